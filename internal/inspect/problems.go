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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
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
	// about are the other objects that have this problem, as kind/name, such as the workload of a pod.
	about []string
}

// problemReason is the kind of a problem, for programs.
type problemReason string

const (
	replicasNotReady problemReason = "ReplicasNotReady"
	invalidConfig    problemReason = "InvalidConfiguration"
	noLeader         problemReason = "NoLeader"
	noCertificate    problemReason = "NoValidCertificate"
	notRegistered    problemReason = "NotRegistered"
	noAnswer         problemReason = "NoAnswer"
	webhookBypassed  problemReason = "WebhookBypassed"
	podsGated        problemReason = "PodsGated"
	invalidPolicy    problemReason = "InvalidPolicy"
	invalidTemplate  problemReason = "InvalidTemplate"
	supersededPolicy problemReason = "SupersededPolicy"
	ignoredSetting   problemReason = "IgnoredSetting"
	leftOut          problemReason = "LeftOutOfRegistration"
	podsRefused      problemReason = "PodsRefused"
	outsidePool      problemReason = "PodsOutsidePool"
	overTarget       problemReason = "OverTarget"
	formerPool       problemReason = "PoolRemoved"
	withoutSeat      problemReason = "PodsWithoutSeat"
	targetMissing    problemReason = "TargetMissing"
	templateMissing  problemReason = "TemplateMissing"
	poolExhausted    problemReason = "PoolExhausted"
	noRoomInPool     problemReason = "NoRoomInPool"
	fitsNoNode       problemReason = "FitsNoNode"
	noRoomForSize    problemReason = "NoRoomForSize"
	notSized         problemReason = "NotSized"
	offSize          problemReason = "OffSize"
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

// problem adds a problem. What it returns holds until the next one is added.
func (r *Report) problem(reason problemReason, namespace, object, action, format string, args ...any) *Problem {
	r.Problems = append(r.Problems, Problem{Reason: reason, Namespace: namespace, Object: object, Problem: fmt.Sprintf(format, args...), Action: action})
	return &r.Problems[len(r.Problems)-1]
}

// podProblem is a problem that several pods of one owner may have.
type podProblem struct {
	reason                             problemReason
	namespace, object, problem, action string
	owner                              types.UID
	template                           string // a FlexDaemonsetTemplate that it is about
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
		added := r.problem(p.reason, p.namespace, p.object, p.action, "%s (%s)", p.problem, pods)
		if m := s.ownersByUID[p.owner]; m != nil {
			added.about = m.names
		}
		if p.template != "" {
			added.about = append(slices.Clone(added.about), "FlexDaemonsetTemplate/"+p.template)
		}
	}
}

// problemsOf returns what is wrong with one pod.
func (i *Inspector) problemsOf(ctx context.Context, s *snapshot, sc *scope.Scope, pod *corev1.Pod) (out []podProblem) {
	owner := metav1.GetControllerOfNoCopy(pod)
	add := func(p podProblem, format string, args ...any) {
		p.namespace, p.object, p.problem = pod.Namespace, "Pod/"+pod.Name, fmt.Sprintf(format, args...)
		if owner != nil {
			p.object, p.owner = owner.Kind+"/"+owner.Name, owner.UID
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
			if ns, err := s.Namespace(ctx, pod.Namespace); err == nil && ns != nil && pod.CreationTimestamp.After(s.onSince(ns)) {
				s.unanswered = append(s.unanswered, pod.CreationTimestamp.Time)
			}
			action := "delete the pods, so that their owner recreates them"
			if owner == nil {
				action = "delete the pod and create it again"
			}
			add(podProblem{reason: webhookBypassed, action: action}, "RuntimeClass %s without %s: the webhook was bypassed", runtimeClass(pod), i.PeerPods.VMResource)
		}
		if unsized != nil {
			add(podProblem{reason: notSized, template: template, action: fmt.Sprintf("kubectl -n %s rollout restart daemonset/%s", pod.Namespace, unsized.Name)},
				"no size: created before FlexDaemonsetTemplate %s, or the webhook was bypassed, or a LimitRange refuses the size", template)
		}
	}
	// 2. Pods that wait for a node because of what Stowage made of them.
	if why, waits := podstatus.Unschedulable(pod); waits {
		if w := i.waitsFor(pod, s.policyOf(pod), s.nodes); w != nil {
			add(*w, "%s: %s", w.problem, why)
		}
	}
	return out
}

// waitsFor returns what a pod waits for and what to do about that, if its policy or what Stowage made of it is the reason. The policy
// may be nil, and so may the nodes.
func (i *Inspector) waitsFor(pod *corev1.Pod, p *policy.Policy, nodes nodeLabels) *podProblem {
	switch {
	case p != nil && p.Layout != nil && !nodes.fit(pod):
		return misfitOf(pod, p, nodes)
	case i.vmsOf(pod) > 0 && !nodes.fit(pod):
		return &podProblem{
			reason: fitsNoNode, problem: "no node is as the node selector or affinity of the pod asks",
			action: fmt.Sprintf("correct them in the pod template and in RuntimeClass %s (scheduling), or label nodes", runtimeClass(pod)),
		}
	case i.vmsOf(pod) > 0:
		return &podProblem{
			reason: noFreeVM, problem: "no free VM",
			action: fmt.Sprintf("raise %s in ConfigMap %s, add nodes, or see why the daemons that make VMs are not Ready", stowage.PeerPodsLimitKey, i.limitConfigMap()),
		}
	case pod.Labels[stowage.SizedByLabel] != "":
		return &podProblem{
			reason: noRoomForSize, problem: "no room for the size", template: pod.Labels[stowage.SizedByLabel],
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

// misfitOf returns why no node is as a pod of a policy asks.
func misfitOf(pod *corev1.Pod, p *policy.Policy, nodes nodeLabels) *podProblem {
	n, seated := p.PoolKeyed(poolOf(pod))
	switch pool := p.Pool(n); {
	case !seated:
		return &podProblem{
			reason: fitsNoNode, problem: "the pod template chooses nodes itself, and no node is as it asks",
			action: "remove its node selector and affinity, so that the strategy divides its pods, or correct them",
		}
	case !nodes.have(pool.Labels):
		return &podProblem{
			reason: fitsNoNode, problem: fmt.Sprintf("no node has the labels of pool %s (%s)", pool.Name, labels.Set(pool.Labels)),
			action: fmt.Sprintf("correct the labels of pool %s in the %s, or add nodes with these labels (a node autoscaler may be at its limit)", pool.Name, p.Source),
		}
	default:
		return &podProblem{
			reason: fitsNoNode, problem: fmt.Sprintf("no node of pool %s has what the node selector or affinity of the pod template asks for", pool.Name),
			action: "correct the pod template, or label nodes of the pool",
		}
	}
}

// policyOf returns the policy of a pod's workload, or nil if it has none.
func (s *snapshot) policyOf(pod *corev1.Pod) *policy.Policy {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && s.ownersByUID[owner.UID] != nil {
		return s.ownersByUID[owner.UID].policy
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
	sent, _ := s.registration.Sent(ns.Labels, created)
	return sent != selection.No
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
			r.distributors = append(r.distributors, "PodDistributor/"+s.objects.PodDistributors[n].Name)
			if err := s.distributorProblems(ctx, &s.objects.PodDistributors[n], r); err != nil {
				return err
			}
		}
	}
	if err := s.settingProblems(ctx, i.finder(s), r); err != nil {
		return err
	}
	if s.hiddenTemplates || !i.Sizing {
		return nil
	}
	sc := scope.New(s, i.Namespace)
	for _, d := range s.daemonSets {
		name := s.templateOf(d)
		made := podpatch.FromPod(&corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta})
		if s.Covers(d.Namespace) && name != "" && !s.hasTemplate(name) && sc.Enforces(ctx, d.Namespace, made) {
			added := r.problem(templateMissing, d.Namespace, "DaemonSet/"+d.Name, "create the template, or correct the annotation "+flexdaemonsets.TemplateAnnotation, "names FlexDaemonsetTemplate %s, which does not exist: its pods keep the size that they declare", name)
			added.about = []string{"FlexDaemonsetTemplate/" + name}
		}
	}
	return nil
}

// settingProblems adds settings that have no effect. What is wrong with the strategy of a workload is told with the workload.
func (s *snapshot) settingProblems(ctx context.Context, finder *policy.Finder, r *Report) error {
	for _, w := range s.written {
		found, err := finder.Check(ctx, w.Object, w.own, w.template)
		if err != nil {
			return err
		}
		for _, f := range found {
			object := w.Kind + "/" + w.Name
			if !f.Invalid && !slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Namespace == w.Namespace && p.Object == object && p.Problem == f.Text }) {
				r.problem(ignoredSetting, w.Namespace, object, f.Fix, "%s", f.Text)
			}
		}
	}
	return nil
}

// distributorProblems adds what is wrong with a PodDistributor.
func (s *snapshot) distributorProblems(ctx context.Context, d *versprei.PodDistributor, r *Report) error {
	target := world.TargetOf(d)
	add := func(reason problemReason, action, format string, args ...any) {
		r.problem(reason, d.Namespace, "PodDistributor/"+d.Name, action, format, args...).about = []string{target.Kind + "/" + target.Name}
	}
	if err := policy.Compile(d).Err; err != nil {
		add(invalidPolicy, "kubectl -n "+d.Namespace+" edit poddistributor "+d.Name, "is invalid, so that it divides no pods: %s", oneLine(err))
		return nil
	}
	winner, err := s.PodDistributor(ctx, d.Namespace, []world.Ref{target.Ref})
	if err != nil {
		return err
	}
	if winner != nil && winner.Name != d.Name {
		add(supersededPolicy, fmt.Sprintf("delete it, or delete %s to use it", winner.Name), "divides no pods, because PodDistributor %s is older and has the same target", winner.Name)
	}
	exists, err := s.exists(ctx, d.Namespace, target.Ref)
	switch {
	case apierrors.IsForbidden(err):
	case err != nil:
		return fmt.Errorf("the target of PodDistributor %s: %w", d.Name, err)
	case !exists:
		add(targetMissing, "create the target, or correct spec.target", "its target %s %s %s does not exist", target.APIVersion, target.Kind, target.Name)
	}
	return nil
}

// sortProblems sorts problems by object; those of Stowage itself stay first.
func (r *Report) sortProblems(first int) {
	slices.SortStableFunc(r.Problems[first:], func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Object, b.Object))
	})
}
