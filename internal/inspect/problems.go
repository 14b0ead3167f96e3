package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// Problem is a [finding.Finding] that asks somebody to act, in words.
type Problem struct {
	Reason    finding.Reason `json:"reason"`
	Namespace string         `json:"namespace,omitempty"`
	Object    string         `json:"object"` // kind/name
	Problem   string         `json:"problem"`
	Action    string         `json:"action"` // what to do about it
	// about are the other objects that have this problem, as kind/name, such as the workload of a pod.
	about []string
	of    finding.Finding
}

// text is the problem in the text of an explanation.
func (p *Problem) text() string {
	var l lines
	l.add("Problem: %s", p.Problem)
	l.add("To change that: %s", p.Action)
	return l.String()
}

// where is the object, with its namespace if it has one.
func (p *Problem) where() string {
	if p.Namespace == "" {
		return p.Object
	}
	return p.Namespace + "/" + p.Object
}

// problem adds a finding, which is also about other objects (kind/name).
func (r *Report) problem(f finding.Finding, about ...string) {
	r.Problems = append(r.Problems, problemOf(&f, about...))
}

func problemOf(f *finding.Finding, about ...string) Problem {
	return Problem{Reason: f.Reason, Namespace: f.Namespace, Object: f.Object(), Problem: f.Sentence(), Action: f.Remedy(), about: about, of: *f}
}

// podProblem is a finding about the pods of an owner.
type podProblem struct {
	finding.Finding
	owner types.UID
	why   string // what the scheduler says
}

// podProblems adds what is wrong with the pods of the report's namespaces, one line for each owner.
func (i *Inspector) podProblems(ctx context.Context, s *snapshot, r *Report) {
	sc := scope.New(s, i.Namespace)
	found, cells := &tally[podProblem]{pods: map[podProblem][]string{}}, s.cells
	cells.owners, cells.created = s.ownersByUID, s.created
	if !s.podsOfNamespace {
		cells.pods = s.pods
	}
	cells.hiddenPolicies = slices.Contains(r.hidden, hiddenClusterPolicies)
	for _, pod := range s.pods {
		if !s.Covers(pod.Namespace) {
			continue
		}
		for _, p := range i.problemsOf(ctx, s, sc, cells, pod) {
			found.add(p, pod.Name)
		}
	}
	for _, pod := range slices.Concat(s.pods, s.ended) {
		if i.overdue(pod) && s.awaited(pod) {
			found.add(podProblemOf(pod, finding.PodNotDeleted, cells.holdsBack(ctx, s, pod)), pod.Name)
		}
	}
	for _, p := range found.order {
		names := found.pods[p]
		pods := "pod " + names[0]
		if n := len(names); n > 1 {
			pods = fmt.Sprintf("%d pods, such as %s", n, names[0])
		}
		var about []string
		if m := s.ownersByUID[p.owner]; m != nil {
			about = m.names
		}
		if p.Reason == finding.NotSized || p.Reason == finding.NoRoomForSize {
			about = append(slices.Clone(about), "FlexDaemonsetTemplate/"+p.Other)
		}
		if p.Reason == finding.NotSized {
			p.Text = i.neverSized(ctx, p.Namespace, names[0])
		}
		added := problemOf(&p.Finding, about...)
		if p.why != "" {
			added.Problem += ": " + finding.Printable(p.why)
		}
		added.Problem += " (" + pods + ")"
		r.Problems = append(r.Problems, added)
	}
}

// ownPrefix is that of Stowage's keys and gates.
const ownPrefix = "stowage.dev/"

// problemsOf returns what is wrong with one pod.
func (i *Inspector) problemsOf(ctx context.Context, s *snapshot, sc *scope.Scope, cells *cells, pod *corev1.Pod) (out []podProblem) {
	// 1. Should the webhook have changed it?
	bypassed, template := i.VMs && i.PeerPods.Targets(runtimeClass(pod)) && i.vmsOf(pod) == 0, i.unsizedBy(s, pod)
	if (bypassed || template != "") && s.passes(ctx, sc, pod) {
		if bypassed {
			if ns, err := s.Namespace(ctx, pod.Namespace); err == nil && ns != nil && pod.CreationTimestamp.After(s.onSince(ns)) {
				s.unanswered = append(s.unanswered, pod.CreationTimestamp.Time)
			}
			out = append(out, podProblemOf(pod, finding.WebhookBypassed, finding.Values{Other: runtimeClass(pod), Text: i.PeerPods.VMResource}))
		}
		if template != "" {
			out = append(out, podProblemOf(pod, finding.NotSized, finding.Values{Other: template}))
		}
	}
	// 2. Does it wait at a gate that nobody removes?
	for _, gate := range pod.Spec.SchedulingGates {
		if strings.HasPrefix(gate.Name, ownPrefix) && gate.Name != stowage.SeatGate {
			out = append(out, podProblemOf(pod, finding.UnknownGate, finding.Values{Text: gate.Name}))
		}
	}
	// 3. Does it wait for a node because of what Stowage made of it?
	if why, waits := podstatus.Unschedulable(pod); waits {
		if reason, values := cells.waitsFor(ctx, pod, s.policyOf(pod), s.nodes); reason != "" {
			p := podProblemOf(pod, reason, values)
			p.why = why
			out = append(out, p)
		}
	}
	// 4. Has no scheduler looked for one?
	if reason, values := i.unscheduled(pod); reason != "" && s.ours(pod) {
		out = append(out, podProblemOf(pod, reason, values))
	}
	return out
}

// podProblemOf is a finding about a pod. If the pod has an owner, the finding is the owner's.
func podProblemOf(pod *corev1.Pod, reason finding.Reason, values finding.Values) podProblem {
	p := podProblem{Finding: finding.Finding{Reason: reason, Namespace: pod.Namespace, Kind: "Pod", Name: pod.Name, Values: values}}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		p.Kind, p.Name, p.owner = owner.Kind, owner.Name, owner.UID
	}
	return p
}

// unsizedBy names the FlexDaemonsetTemplate by which a pod should be sized and is not, if there is one.
func (i *Inspector) unsizedBy(s *snapshot, pod *corev1.Pod) string {
	d := s.daemonSetOf(pod)
	if d == nil || !i.Sizing || pod.Labels[stowage.SizedByLabel] != "" || i.vmsOf(pod) > 0 {
		return ""
	}
	template := sizing.TemplateName(pod.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations)
	if !s.hasTemplate(template) {
		return ""
	}
	return template
}

// refusedProblems adds the workloads that no strategy divides, whose pods Stowage makes peer pods of, and the API server refuses.
func (i *Inspector) refusedProblems(s *snapshot, r *Report) {
	if !i.VMs {
		return
	}
	for _, m := range s.owners {
		class := ptr.Deref(s.created[m.UID].Spec.RuntimeClassName, "")
		if m.Failure == "" || m.policy != nil || !i.PeerPods.Targets(class) {
			continue
		}
		values := finding.Values{Count: m.Current, Of: m.Replicas}
		values.Refused(m.Failure, m.root.Name, i.PeerPods.Adds(class))
		r.problem(finding.Finding{Reason: finding.PodsRefused, Namespace: m.Namespace, Kind: m.root.Kind, Name: m.root.Name, Values: values}, m.names...)
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
	return w != nil || !s.MayRead(namespace, ref), err
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
			r.problem(finding.Finding{Reason: finding.TemplateMissing, Namespace: d.Namespace, Kind: "DaemonSet", Name: d.Name, Values: finding.Values{Other: name}}, "FlexDaemonsetTemplate/"+name)
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
			is := ignored(w.Object, f.Text, f.Fix)
			if !f.Invalid && !slices.ContainsFunc(r.Problems, func(p Problem) bool { p.of.Fix = is.Fix; return p.of == is }) {
				r.problem(is)
			}
		}
	}
	return nil
}

// distributorProblems adds what is wrong with a PodDistributor.
func (s *snapshot) distributorProblems(ctx context.Context, d *versprei.PodDistributor, r *Report) error {
	target := world.TargetOf(d)
	add := func(reason finding.Reason, values finding.Values) {
		r.problem(finding.Finding{Reason: reason, Namespace: d.Namespace, Kind: "PodDistributor", Name: d.Name, Values: values}, target.Kind+"/"+target.Name)
	}
	compiled := policy.Compile(d)
	if compiled.Written == nil {
		add(finding.InvalidPolicy, finding.Values{Text: oneLine(compiled.Err)})
		return nil
	}
	for _, v := range s.missingClasses(&compiled) {
		add(finding.ClassMissing, v)
	}
	winner, err := s.PodDistributor(ctx, d.Namespace, []world.Ref{target.Ref})
	if err != nil {
		return err
	}
	if winner != nil && winner.Name != d.Name {
		add(finding.SupersededPolicy, finding.Values{Other: winner.Name})
	}
	exists, err := s.exists(ctx, d.Namespace, target.Ref)
	switch {
	case apierrors.IsForbidden(err):
	case err != nil:
		return fmt.Errorf("the target of PodDistributor %s: %w", d.Name, err)
	case !exists:
		add(finding.TargetMissing, finding.Values{Other: target.APIVersion + " " + target.Kind + " " + target.Name})
	}
	return nil
}

// ignored is a setting of an object that has no effect.
func ignored(of world.Object, text, fix string) finding.Finding {
	return finding.Finding{Reason: finding.IgnoredSetting, Namespace: of.Namespace, Kind: of.Kind, Name: of.Name, Values: finding.Values{Text: text, Fix: fix}}
}

// sortProblems sorts problems by object; those of Stowage itself stay first.
func (r *Report) sortProblems(first int) {
	slices.SortStableFunc(r.Problems[first:], func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Object, b.Object))
	})
}
