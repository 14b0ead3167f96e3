package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/peerpod"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/scope"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// Problem is something that is not as it should be.
type Problem struct {
	Namespace string `json:"namespace,omitempty"`
	Object    string `json:"object"` // kind/name
	Problem   string `json:"problem"`
	Action    string `json:"action"` // what to do about it
}

func (r *Report) problem(namespace, object, action, format string, args ...any) {
	r.Problems = append(r.Problems, Problem{Namespace: namespace, Object: object, Problem: fmt.Sprintf(format, args...), Action: action})
}

// podProblem is a problem that several pods of one owner may have.
type podProblem struct {
	namespace, object, problem, action string
}

// podProblems adds what is wrong with the pods of the report's namespaces, one line for each owner.
func (i *Inspector) podProblems(ctx context.Context, s *snapshot, r *Report) {
	sc := scope.New(s, i.Namespace)
	counts, samples := map[podProblem]int{}, map[podProblem]string{}
	var order []podProblem
	for _, pod := range s.pods {
		if !s.reports(pod.Namespace) {
			continue
		}
		for _, p := range i.problemsOf(ctx, s, sc, pod) {
			if counts[p] == 0 {
				order = append(order, p)
				samples[p] = pod.Name
			}
			counts[p]++
		}
	}
	for _, p := range order {
		pods := "pod " + samples[p]
		if n := counts[p]; n > 1 {
			pods = fmt.Sprintf("%d pods, such as %s", n, samples[p])
		}
		r.problem(p.namespace, p.object, p.action, "%s (%s)", p.problem, pods)
	}
}

// problemsOf returns what is wrong with one pod.
func (i *Inspector) problemsOf(ctx context.Context, s *snapshot, sc *scope.Scope, pod *corev1.Pod) (out []podProblem) {
	owner := metav1.GetControllerOfNoCopy(pod)
	add := func(action, format string, args ...any) {
		p := podProblem{namespace: pod.Namespace, object: "Pod/" + pod.Name, problem: fmt.Sprintf(format, args...), action: action}
		if owner != nil {
			p.object = owner.Kind + "/" + owner.Name
		}
		out = append(out, p)
	}
	// 1. Pods that the webhook should have changed.
	if s.passes(ctx, sc, pod) {
		if i.VMs && !i.asksForVM(pod) && i.PeerPods.Targets(runtimeClass(pod)) {
			add("delete the pods, so that their owner recreates them", "RuntimeClass %s without %s: the webhook was bypassed", runtimeClass(pod), i.PeerPods.VMResource)
		}
		if d := s.daemonSetOf(owner, pod); i.Sizing && d != nil && pod.Labels[stowage.SizedByLabel] == "" && !i.asksForVM(pod) {
			name := sizing.TemplateName(pod.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations)
			if s.templates[name] {
				add(fmt.Sprintf("kubectl -n %s rollout restart daemonset/%s", pod.Namespace, d.Name),
					"no size: created before FlexDaemonsetTemplate %s, or the webhook was bypassed, or a LimitRange refuses the size", name)
			}
		}
	}
	// 2. Pods that wait for a node because of what Stowage made of them.
	if why, waits := unschedulable(pod); waits {
		if action, what := i.waitsFor(pod); action != "" {
			add(action, "%s: %s", what, why)
		}
	}
	return out
}

// waitsFor returns what a pod waits for because of what Stowage made of it, and what to do about that; or
// nothing.
func (i *Inspector) waitsFor(pod *corev1.Pod) (action, what string) {
	switch {
	case i.asksForVM(pod):
		return fmt.Sprintf("raise PEERPODS_LIMIT_PER_NODE in ConfigMap peer-pods-cm of namespace %s, or add nodes", i.Namespace), "no free VM"
	case pod.Labels[stowage.SizedByLabel] != "":
		return "lower the percentages or minimums of FlexDaemonsetTemplate " + pod.Labels[stowage.SizedByLabel], "no room for the size"
	case pod.Labels[stowage.SeatLabel] != "":
		return "make room in the pool, or change the strategy", "no room in pool " + pod.Labels[stowage.PoolLabel]
	}
	return "", ""
}

func runtimeClass(pod *corev1.Pod) string {
	if pod.Spec.RuntimeClassName == nil {
		return ""
	}
	return *pod.Spec.RuntimeClassName
}

// asksForVM reports whether a pod takes a peer-pod VM, by what the scheduler counts.
func (i *Inspector) asksForVM(pod *corev1.Pod) bool { return i.vmsOf(pod) > 0 }

// vmsOf returns how many peer-pod VMs a pod takes.
func (i *Inspector) vmsOf(pod *corev1.Pod) (vms int64) {
	for c := range pod.Spec.Containers {
		q := pod.Spec.Containers[c].Resources.Requests[corev1.ResourceName(i.PeerPods.VMResource)]
		vms += q.Value()
	}
	return vms
}

// unschedulable returns what the scheduler says of a pod that has no node, if it found none.
func unschedulable(pod *corev1.Pod) (why string, is bool) {
	if pod.Spec.NodeName != "" {
		return "", false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			why, _, _ = strings.Cut(c.Message, " preemption:")
			return strings.TrimSuffix(why, "."), true
		}
	}
	return "", false
}

// passes reports whether a pod should have come through the webhook.
func (s *snapshot) passes(ctx context.Context, sc *scope.Scope, pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror || !sc.Enforces(ctx, pod.Namespace, podpatch.FromPod(pod)) {
		return false
	}
	ns, err := s.Namespace(ctx, pod.Namespace)
	if err != nil || ns == nil || s.registration == nil {
		return err == nil && s.hiddenRegistration // what it selects is not known
	}
	created := pod.DeepCopy()
	created.Spec.NodeName = "" // a pod that was created with a node is not told from one that was scheduled
	sent, err := s.registration.Selects(ns.Labels, created)
	return err == nil && sent
}

// daemonSetOf returns the DaemonSet that made a pod, or nil.
func (s *snapshot) daemonSetOf(owner *metav1.OwnerReference, pod *corev1.Pod) *appsv1.DaemonSet {
	if owner == nil || owner.Kind != "DaemonSet" {
		return nil
	}
	if d := s.daemonSets[pod.Namespace+"/"+owner.Name]; d != nil && d.UID == owner.UID {
		return d
	}
	return nil
}

// exists reports whether there is an object of a name. One whose kind may not be read is taken to be there.
func (s *snapshot) exists(ctx context.Context, namespace string, ref cluster.Ref) (bool, error) {
	for _, w := range s.byUID {
		if w.Namespace == namespace && w.SameObject(ref) {
			return true, nil
		}
	}
	w, err := s.Workload(ctx, namespace, ref)
	return w != nil || !s.MayRead(ref), err
}

// policyProblems adds policies that concern nothing, and DaemonSets whose template is not there.
func (i *Inspector) policyProblems(ctx context.Context, s *snapshot, r *Report) error {
	if i.Spread {
		for n := range s.listed.PodDistributorList {
			d := &s.listed.PodDistributorList[n]
			target := policy.TargetOf(d)
			if err := policy.Compile(d).Err; err != nil {
				r.problem(d.Namespace, "PodDistributor/"+d.Name, "mend spec.distribution", "is invalid, so that it divides no pods: %v", err)
			}
			exists, err := s.exists(ctx, d.Namespace, target)
			switch {
			case apierrors.IsForbidden(err):
			case err != nil:
				return fmt.Errorf("the target of PodDistributor %s: %w", d.Name, err)
			case !exists:
				r.problem(d.Namespace, "PodDistributor/"+d.Name, "create the target, or mend spec.target", "its target %s %s %s does not exist", target.APIVersion, target.Kind, target.Name)
			}
		}
	}
	if !i.Sizing {
		return nil
	}
	sc := scope.New(s, i.Namespace)
	for _, d := range s.daemonSets {
		name := sizing.TemplateName(d.Spec.Template.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations)
		made := podpatch.FromPod(&corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta})
		if s.reports(d.Namespace) && name != "" && s.templates != nil && !s.templates[name] && sc.Enforces(ctx, d.Namespace, made) {
			r.problem(d.Namespace, "DaemonSet/"+d.Name, "create the template, or mend the annotation "+flexdaemonsets.TemplateAnnotation, "names FlexDaemonsetTemplate %s, which does not exist: its pods keep the size that they declare", name)
		}
	}
	return nil
}

// nodeProblems adds nodes whose number of VMs is not the one that Stowage would set.
func (i *Inspector) nodeProblems(ctx context.Context, nodes []corev1.Node, r *Report) error {
	limit := i.VMLimit
	if limit == peerpod.None {
		return nil
	}
	var cm corev1.ConfigMap
	err := i.Client.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: "peer-pods-cm"}, &cm)
	switch {
	case apierrors.IsForbidden(err):
		r.Warnings = append(r.Warnings, fmt.Sprintf("the limit of VMs is taken to be %d: %v", limit, err))
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("ConfigMap peer-pods-cm: %w", err)
	case err == nil:
		if text, ok := cm.Data["PEERPODS_LIMIT_PER_NODE"]; ok {
			n, err := peerpod.ParseLimit(text)
			if err != nil {
				r.problem(cm.Namespace, "ConfigMap/"+cm.Name, "mend PEERPODS_LIMIT_PER_NODE", "its limit is refused, and the last valid one holds: %v", err)
				return nil // which that is, the nodes alone know
			}
			limit = n
		}
	}
	for n := range nodes {
		node := &nodes[n]
		want := limit
		if text, ok := node.Annotations[stowage.PeerPodsLimitAnnotation]; ok {
			own, err := peerpod.ParseLimit(text)
			if err != nil {
				r.problem("", "Node/"+node.Name, "mend or remove the annotation", "its annotation %s is refused, and the limit of the other nodes holds: %v", stowage.PeerPodsLimitAnnotation, err)
			} else {
				want = own
			}
		}
		capacity := node.Status.Capacity[corev1.ResourceName(i.PeerPods.VMResource)]
		now := peerpod.Advertised{Capacity: capacity.Value(), Allocatable: capacity.Value(), Mark: node.Annotations[stowage.PeerPodsCapacityAnnotation]}
		if _, foreign := peerpod.Advertise(now, want); foreign {
			r.problem("", "Node/"+node.Name, fmt.Sprintf("kubectl annotate node %s %s=take-over, or remove the amount", node.Name, stowage.PeerPodsCapacityAnnotation),
				"advertises %d %s, which another client set, and not %d", capacity.Value(), i.PeerPods.VMResource, want)
		}
	}
	return nil
}

// sortProblems sorts problems by object; those of Stowage itself stay first.
func (r *Report) sortProblems(first int) {
	slices.SortStableFunc(r.Problems[first:], func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Object, b.Object))
	})
}
