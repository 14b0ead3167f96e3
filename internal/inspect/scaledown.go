package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
)

// ScaleDown is a ScaleDownPolicy or a ClusterScaleDownPolicy, with the counts of its status.
type ScaleDown struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Mode      string `json:"mode"`
	Workloads int32  `json:"workloads"`
	Pods      int32  `json:"pods"`
	Written   int32  `json:"written"`
	NextStep  string `json:"nextStep,omitempty"`
	Note      string `json:"note,omitempty"`
}

// scaleDownPolicies are the policies that may select workloads of a namespace, or all if it is empty, each with its status.
func (i *Inspector) scaleDownPolicies(ctx context.Context, namespace string) (sorted []*policies.Policy, statuses map[*policies.Policy]*stowage.ScaleDownPolicyStatus, err error) {
	statuses = map[*policies.Policy]*stowage.ScaleDownPolicyStatus{}
	add := func(p *policies.Policy, status *stowage.ScaleDownPolicyStatus) {
		sorted, statuses[p] = append(sorted, p), status
	}
	err = each(ctx, i, &stowage.ScaleDownPolicyList{}, func(p *stowage.ScaleDownPolicy) { add(policies.Of(p), &p.Status) }, client.InNamespace(namespace))
	if err == nil {
		err = each(ctx, i, &stowage.ClusterScaleDownPolicyList{}, func(p *stowage.ClusterScaleDownPolicy) { add(policies.OfCluster(p), &p.Status) })
	}
	policies.Sort(sorted)
	return sorted, statuses, err
}

// scaleDowns adds the policies of scale-downs, with what is not as it should be.
func (i *Inspector) scaleDowns(ctx context.Context, namespace string, r *Report) error {
	sorted, statuses, err := i.scaleDownPolicies(ctx, namespace)
	for _, p := range sorted {
		st := statuses[p]
		out := ScaleDown{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, Mode: string(p.Spec.Mode), Workloads: st.Workloads, Pods: st.Pods, Written: st.Written, NextStep: st.NextStep}
		var notes []string
		note := func(ok bool, format string, args ...any) {
			if ok {
				notes = append(notes, fmt.Sprintf(format, args...))
			}
		}
		kept := meta.FindStatusCondition(st.Conditions, stowage.ConditionKept)
		switch {
		case st.ObservedGeneration != p.Generation:
			note(true, "the leader has not counted its workloads since its last change")
		case kept != nil && kept.Status == metav1.ConditionFalse:
			reason := finding.ScaleDownNotKept
			if meta.IsStatusConditionTrue(st.Conditions, stowage.ConditionStalled) {
				reason = finding.ScaleDownStalled
			}
			r.problem(finding.Finding{Reason: reason, Namespace: p.Namespace, Kind: p.Kind, Name: p.Name, Values: finding.Values{Text: kept.Message, Other: kept.Reason}})
		default:
			if kept != nil && kept.Status == metav1.ConditionUnknown {
				notes = append(notes, kept.Message)
			}
			note(st.OtherCosts > 0, "%d pod(s) have a deletion cost of another writer", st.OtherCosts)
			for _, n := range st.NotConcerned {
				note(true, "%d workload(s) are not concerned, such as %s", n.Workloads, n.Example)
			}
			note(st.Shadowed > 0, "%d workload(s) are those of %s", st.Shadowed, st.ShadowedBy)
		}
		out.Note = strings.Join(notes, "; ")
		r.ScaleDowns = append(r.ScaleDowns, out)
	}
	return err
}

// scaleDownTable has the policies of scale-downs.
func (r *Report) scaleDownTable(l Layout) report.Table {
	t := report.Table{Head: []string{"SCALE-DOWNS", "MODE", "WORKLOADS", "PODS", "WRITTEN", "NEXT STEP", "NOTE"}}
	for _, p := range r.ScaleDowns {
		name := p.Kind + "/" + p.Name
		if l.AllNamespaces && p.Namespace != "" {
			name = p.Kind + "/" + p.Namespace + "/" + p.Name
		}
		t.Rows = append(t.Rows, []string{name, p.Mode, fmt.Sprint(p.Workloads), fmt.Sprint(p.Pods), fmt.Sprint(p.Written), cmp.Or(p.NextStep, "-"), p.Note})
	}
	return t.WithoutEmpty()
}

// scaleDownFacts are what is known of when a scale-down removes a pod.
type scaleDownFacts struct {
	Policy string `json:"policy"`
	Mode   string `json:"mode"`
	// NotConcerned is why the policy leaves the pod's owner alone, and Why says it for people.
	NotConcerned stowage.NotConcernedReason `json:"notConcerned,omitempty"`
	Why          string                     `json:"why,omitempty"`
	// Keys are the labels of nodes over which the pods are kept spread, the most important first.
	Keys []string `json:"keys,omitempty"`
	// Cost is the deletion cost that the pod has, and Own says that Stowage wrote it.
	Cost string `json:"cost,omitempty"`
	Own  bool   `json:"own"`
	// Domain is what the pod's node has for the first key. Layer is the pod's place among the Of pods there.
	Domain string `json:"domain,omitempty"`
	Layer  int    `json:"layer,omitempty"`
	Of     int    `json:"of,omitempty"`
}

// scaleDown looks when a scale-down removes the pod, and why. It returns nil if no policy selects the pod.
func (s *subject) scaleDown(ctx context.Context) (*scaleDownFacts, error) {
	if s.owner == nil {
		return nil, nil
	}
	sorted, _, err := s.scaleDownPolicies(ctx, s.pod.Namespace)
	if err != nil || len(sorted) == 0 {
		return nil, err
	}
	of := policies.Workload{Namespace: s.pod.Namespace, PodLabels: s.pod.Labels}
	ns, err := s.reader.Namespace(ctx, s.pod.Namespace)
	if err != nil {
		return nil, err
	}
	if ns != nil {
		of.NamespaceLabels = ns.Labels
	}
	winner, _ := policies.Winner(sorted, &of)
	if winner == nil {
		return nil, nil
	}
	f := &scaleDownFacts{Policy: winner.String(), Mode: string(winner.Spec.Mode), Cost: s.pod.Annotations[corev1.PodDeletionCost]}
	f.Layer, f.Own = layers.Written(s.pod.Annotations)
	_, seat := s.pod.Labels[stowage.SeatLabel]
	template := layers.Of(&corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: s.pod.Labels}, Spec: s.pod.Spec}, s.pod.Namespace)
	var keys []layers.Key
	if keys, f.NotConcerned, f.Why = winner.Keys(s.chain[0], &template, seat); f.NotConcerned != "" {
		return f, nil
	}
	return f, s.place(ctx, f, keys)
}

// place fills in over which keys the pods stay spread, and the pod's place among those of its domain.
func (s *subject) place(ctx context.Context, f *scaleDownFacts, keys []layers.Key) error {
	nodes, err := s.nodeLabels(ctx)
	if err != nil {
		return err
	}
	layers.Sort(keys, layers.Count(keys, maps.Values(nodes)))
	for _, k := range keys {
		f.Keys = append(f.Keys, k.Name)
	}
	if !f.Own || s.pod.Spec.NodeName == "" {
		return nil
	}
	f.Domain = nodes[s.pod.Spec.NodeName][keys[0].Name]
	return each(ctx, s.Inspector, &corev1.PodList{}, func(p *corev1.Pod) {
		sibling := podstatus.Active(p) && p.Spec.NodeName != "" && metav1.IsControlledBy(p, &metav1.ObjectMeta{UID: s.chain[0].UID})
		if sibling && nodes[p.Spec.NodeName][keys[0].Name] == f.Domain {
			f.Of++
		}
	}, client.InNamespace(s.pod.Namespace))
}

func (f *scaleDownFacts) describe(a *Aspect) {
	a.Summary = leftAlone
	a.say("%s selects it, in mode %s.", f.Policy, f.Mode)
	if f.NotConcerned != "" {
		a.because("It is not concerned: %s.", f.Why)
		return
	}
	if len(f.Keys) > 0 {
		a.say("A scale-down keeps its owner's pods spread over %s.", strings.Join(f.Keys, ", then "))
	}
	switch {
	case f.Cost != "" && !f.Own:
		a.because("Its deletion cost of %s is another writer's, and stays.", f.Cost)
	case f.Cost == "" && f.Mode == string(stowage.PolicyAudit):
		a.because("In mode Audit no cost is written.")
	case f.Cost == "":
		a.because("Its cost is not written yet: a pod gets it once it has a node.")
	default:
		a.Changed, a.Summary = true, "layer "+strconv.Itoa(f.Layer)
		where := cmp.Or(f.Domain, "nodes without the label "+slices.Concat(f.Keys, []string{""})[0])
		a.say("It is number %d of the %d pods in %s, and its deletion cost is %s: a step down takes the highest numbers first.", f.Layer, f.Of, where, f.Cost)
	}
}
