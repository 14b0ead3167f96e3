package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// Problem is something that is not as it should be.
type Problem struct {
	Reason    problemReason `json:"reason"`
	Namespace string        `json:"namespace,omitempty"`
	Object    string        `json:"object"` // kind/name
	Problem   string        `json:"problem"`
	Action    string        `json:"action"` // what to do about it
}

// problemReason is the kind of a problem, for programs.
type problemReason string

const (
	replicasNotReady problemReason = "ReplicasNotReady"
	noLeader         problemReason = "NoLeader"
	noCertificate    problemReason = "NoValidCertificate"
	notRegistered    problemReason = "NotRegistered"
	webhookBypassed  problemReason = "WebhookBypassed"
	invalidPolicy    problemReason = "InvalidPolicy"
	targetMissing    problemReason = "TargetMissing"
	templateMissing  problemReason = "TemplateMissing"
	poolExhausted    problemReason = "PoolExhausted"
	noRoomInPool     problemReason = "NoRoomInPool"
	noRoomForSize    problemReason = "NoRoomForSize"
	notSized         problemReason = "NotSized"
	planDiffers      problemReason = "PlanDiffers"
	noFreeVM         problemReason = "NoFreeVM"
	invalidLimit     problemReason = "InvalidLimit"
	daemonUnready    problemReason = "DaemonNotReady"
	foreignCapacity  problemReason = "ForeignCapacity"
)

// text is the problem in the text of an explanation.
func (p *Problem) text() string {
	return fmt.Sprintf("Problem: %s\nTo change that: %s\n", p.Problem, p.Action)
}

func (r *Report) problem(reason problemReason, namespace, object, action, format string, args ...any) {
	r.Problems = append(r.Problems, Problem{Reason: reason, Namespace: namespace, Object: object, Problem: fmt.Sprintf(format, args...), Action: action})
}

// podProblem is a problem that several pods of one owner may have.
type podProblem struct {
	reason                             problemReason
	namespace, object, problem, action string
}

// podProblems adds what is wrong with the pods of the report's namespaces, one line for each owner.
func (i *Inspector) podProblems(ctx context.Context, s *snapshot, r *Report) {
	sc := scope.New(s, i.Namespace)
	counts, samples := map[podProblem]int{}, map[podProblem]string{}
	var order []podProblem
	for _, pod := range s.pods {
		if !s.Covers(pod.Namespace) {
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
		r.problem(p.reason, p.namespace, p.object, p.action, "%s (%s)", p.problem, pods)
	}
}

// problemsOf returns what is wrong with one pod.
func (i *Inspector) problemsOf(ctx context.Context, s *snapshot, sc *scope.Scope, pod *corev1.Pod) (out []podProblem) {
	owner := metav1.GetControllerOfNoCopy(pod)
	add := func(reason problemReason, action, format string, args ...any) {
		p := podProblem{reason: reason, namespace: pod.Namespace, object: "Pod/" + pod.Name, problem: fmt.Sprintf(format, args...), action: action}
		if owner != nil {
			p.object = owner.Kind + "/" + owner.Name
		}
		out = append(out, p)
	}
	// 1. Pods that the webhook should have changed.
	bypassed := i.VMs && i.PeerPods.Targets(runtimeClass(pod)) && i.vmsOf(pod) == 0
	var unsized *appsv1.DaemonSet
	var template string
	if d := s.daemonSetOf(pod); d != nil && i.Sizing && pod.Labels[stowage.SizedByLabel] == "" && i.vmsOf(pod) == 0 {
		if template = sizing.TemplateName(pod.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations); s.hasTemplate(template) {
			unsized = d
		}
	}
	if (bypassed || unsized != nil) && s.passes(ctx, sc, pod) {
		if bypassed {
			action := "delete the pods, so that their owner recreates them"
			if owner == nil {
				action = "delete the pod and create it again"
			}
			add(webhookBypassed, action, "RuntimeClass %s without %s: the webhook was bypassed", runtimeClass(pod), i.PeerPods.VMResource)
		}
		if unsized != nil {
			add(notSized, fmt.Sprintf("kubectl -n %s rollout restart daemonset/%s", pod.Namespace, unsized.Name),
				"no size: created before FlexDaemonsetTemplate %s, or the webhook was bypassed, or a LimitRange refuses the size", template)
		}
	}
	// 2. Pods that wait for a node because of what Stowage made of them.
	if why, waits := podstatus.Unschedulable(pod); waits {
		if w := i.waitsFor(pod); w != nil {
			add(w.reason, w.action, "%s: %s", w.problem, why)
		}
	}
	return out
}

// waitsFor returns what a pod waits for because of what Stowage made of it, and what to do about that; or nil.
func (i *Inspector) waitsFor(pod *corev1.Pod) *podProblem {
	switch {
	case i.vmsOf(pod) > 0:
		return &podProblem{
			reason: noFreeVM, problem: "no free VM",
			action: fmt.Sprintf("raise %s in ConfigMap %s, add nodes, or see why the daemons that make VMs are not Ready", stowage.PeerPodsLimitKey, i.limitConfigMap()),
		}
	case pod.Labels[stowage.SizedByLabel] != "":
		return &podProblem{
			reason: noRoomForSize, problem: "no room for the size",
			action: "lower the percentages or minimums of FlexDaemonsetTemplate " + pod.Labels[stowage.SizedByLabel],
		}
	case pod.Labels[stowage.SeatLabel] != "":
		return &podProblem{
			reason: noRoomInPool, problem: "no room in pool " + pod.Labels[stowage.PoolLabel],
			action: "make room in the pool, change the strategy, or let other pools take the pods (spill)",
		}
	}
	return nil
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

// exists reports whether there is an object of a name. One whose kind may not be read is taken to be there.
func (s *snapshot) exists(ctx context.Context, namespace string, ref world.Ref) (bool, error) {
	w, err := s.Workload(ctx, namespace, ref)
	return w != nil || !s.MayRead(ref), err
}

// policyProblems adds policies that concern nothing, and DaemonSets whose template is not there.
func (i *Inspector) policyProblems(ctx context.Context, s *snapshot, r *Report) error {
	if i.Spread {
		for n := range s.objects.PodDistributors {
			if err := s.distributorProblems(ctx, &s.objects.PodDistributors[n], r); err != nil {
				return err
			}
		}
	}
	if s.hiddenTemplates || !i.Sizing {
		return nil
	}
	sc := scope.New(s, i.Namespace)
	for _, d := range s.daemonSets {
		name := sizing.TemplateName(d.Spec.Template.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations)
		made := podpatch.FromPod(&corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta})
		if s.Covers(d.Namespace) && name != "" && !s.hasTemplate(name) && sc.Enforces(ctx, d.Namespace, made) {
			r.problem(templateMissing, d.Namespace, "DaemonSet/"+d.Name, "create the template, or mend the annotation "+flexdaemonsets.TemplateAnnotation, "names FlexDaemonsetTemplate %s, which does not exist: its pods keep the size that they declare", name)
		}
	}
	return nil
}

// distributorProblems adds what is wrong with a PodDistributor.
func (s *snapshot) distributorProblems(ctx context.Context, d *versprei.PodDistributor, r *Report) error {
	if err := policy.Compile(d).Err; err != nil {
		r.problem(invalidPolicy, d.Namespace, "PodDistributor/"+d.Name, "correct spec.distribution", "is invalid, so that it divides no pods: %v", err)
	}
	target := world.TargetOf(d)
	exists, err := s.exists(ctx, d.Namespace, target.Ref)
	switch {
	case apierrors.IsForbidden(err):
	case err != nil:
		return fmt.Errorf("the target of PodDistributor %s: %w", d.Name, err)
	case !exists:
		r.problem(targetMissing, d.Namespace, "PodDistributor/"+d.Name, "create the target, or correct spec.target", "its target %s %s %s does not exist", target.APIVersion, target.Kind, target.Name)
	}
	return nil
}

// sortProblems sorts problems by object; those of Stowage itself stay first.
func (r *Report) sortProblems(first int) {
	slices.SortStableFunc(r.Problems[first:], func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Object, b.Object))
	})
}
