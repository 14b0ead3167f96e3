package preview

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// warnWithoutSeat says of workloads with a strategy or a policy why their pods have no seat, by one pod of each. It leaves out what the
// table or another warning says.
func (p *Preview) warnWithoutSeat(ctx context.Context, pods []Admitted) (texts []string, err error) {
	if !p.settings.Spread {
		return nil, nil
	}
	for i := range pods {
		a := &pods[i]
		if placeOf(a).pool != "" || a.Result.LeftAlone != "" || a.Result.Pool() != nil {
			continue
		}
		source, why, err := p.whyNoSeat(ctx, a)
		if err != nil {
			return nil, err
		}
		if why != "" {
			texts = append(texts, line(fmt.Sprintf("%s: %s has no effect: %s", a.Workload, source, why)))
		}
	}
	return texts, nil
}

// whyNoSeat returns what could divide the pods of a workload, and why the pod has no seat. Both are empty if nothing could.
func (p *Preview) whyNoSeat(ctx context.Context, a *Admitted) (source, why string, err error) {
	owner := metav1.GetControllerOfNoCopy(a.Pod)
	if owner == nil {
		source, err = p.sourceFor(ctx, a.Workload)
		return because(source, "a strategy divides the pods of a workload, and nothing controls this pod", err)
	}
	ref := world.RefOf(owner)
	if (&podpatch.Owner{APIVersion: owner.APIVersion, Kind: owner.Kind}).ChoosesNodes() {
		return because(a.Workload.annotated(), "the pods of a "+owner.Kind+" have their nodes already", nil)
	}
	found, err := p.policies.FindSelected(ctx, policy.Pod{Namespace: a.Pod.Namespace, Owner: ref, Annotations: a.Pod.Annotations})
	switch {
	case err != nil:
		return "", "", err
	case found != nil:
		return because(found.Source, whyUnseated(a, found), nil)
	case ref.IsJob(): // what is wrong with its annotations was said
		source, err = p.policyFor(ctx, a.Workload)
		return because(source, jobs[a.Workload.Kind], err)
	}
	return because(a.Workload.annotated(), fmt.Sprintf("namespace %s is blocked, or lacks the label of --spread-namespace-label", a.Pod.Namespace), nil)
}

// jobs is why policies do not divide the pods of Jobs, by the kind of the workload.
var jobs = map[string]string{
	"Job":     "a Job's pods are divided by a PodDistributor alone; name the Job in one",
	"CronJob": "the pods of a CronJob are never divided",
}

// because returns a source with a reason, or neither if one of them is empty.
func because(source, why string, err error) (string, string, error) {
	if source == "" || why == "" || err != nil {
		return "", "", err
	}
	return "the " + source, why, nil
}

// whyUnseated says why a pod has no seat though a policy is for it, or "" if that was said.
func whyUnseated(a *Admitted, found *policy.Policy) string {
	if found.Layout == nil { // its error was told
		return ""
	}
	if found.Nowhere() {
		return "its pods can run in none of its pools"
	}
	if key, pinned := placement.Pinned(podpatch.FromPod(a.Pod), found.Strategy, nodeset.Set{}); pinned {
		return fmt.Sprintf("the pod chooses its nodes itself, by %s, so it has no seat", key)
	}
	if len(a.Result.Warnings) > 0 {
		return ""
	}
	return a.WhyNoSeat()
}

// annotated names the annotations of a workload that give a strategy, or is empty if none do.
func (w *Workload) annotated() string {
	if _, ok := policy.StrategyText(w.template.Annotations); ok {
		return "strategy in the annotations of its pod template"
	}
	if _, ok := policy.StrategyText(w.meta.Annotations); ok {
		return "strategy in its annotations"
	}
	return ""
}

// sourceFor names what would divide the pods of a workload if it were another kind of workload.
func (p *Preview) sourceFor(ctx context.Context, w *Workload) (string, error) {
	if source := w.annotated(); source != "" {
		return source, nil
	}
	return p.policyFor(ctx, w)
}

// policyFor names the policy that would divide the pods of a workload if it were a Deployment. A policy that selects every pod template is
// left out: whoever wrote it does not mean this workload.
func (p *Preview) policyFor(ctx context.Context, w *Workload) (string, error) {
	of := w.template.Labels
	if w.Kind == "Pod" {
		of = w.meta.Labels
	}
	as := &world.Workload{
		Ref:       world.Ref{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Name: w.Name},
		Namespace: w.Namespace, TemplateLabels: world.TemplateLabels(of), Labelled: true,
	}
	selecting, err := p.policies.Selecting(ctx, w.Namespace, world.Chain{Refs: []world.Ref{as.Ref}, Workloads: []*world.Workload{as}})
	if err != nil {
		return "", err
	}
	for _, s := range selecting {
		by := &s.Spec.Selector
		if s.Spec.Mode == stowage.PolicyEnforce && len(by.MatchLabels)+len(by.MatchExpressions) > 0 {
			return s.String(), nil
		}
	}
	return "", nil
}
