package inspect

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
)

func zonePolicy(change ...func(*stowage.ScaleDownPolicy)) *stowage.ScaleDownPolicy {
	p := &stowage.ScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "zones", Generation: 1}, Spec: stowage.ScaleDownPolicySpec{Mode: stowage.PolicyEnforce, TopologyKeys: []string{"zone"}}}
	p.Status = stowage.ScaleDownPolicyStatus{ObservedGeneration: 1, Workloads: 2, Pods: 9, Written: 8, NextStep: "1/2"}
	for _, c := range change {
		c(p)
	}
	return p
}

func kept(status metav1.ConditionStatus, reason stowage.ConditionReason, text string) func(*stowage.ScaleDownPolicy) {
	return func(p *stowage.ScaleDownPolicy) {
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: stowage.ConditionKept, Status: status, Reason: string(reason), Message: text})
	}
}

// The status has the policies of scale-downs, and what is wrong with them.
func TestScaleDownPolicies(t *testing.T) {
	stalled := func(p *stowage.ScaleDownPolicy) {
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: stowage.ConditionStalled, Status: metav1.ConditionTrue})
	}
	for name, tt := range map[string]struct {
		policy *stowage.ScaleDownPolicy
		want   finding.Reason
		text   string
	}{
		"kept":            {policy: zonePolicy(kept(metav1.ConditionTrue, stowage.ReasonKept, "")), text: "ScaleDownPolicy/zones  Enforce  2          9     8        1/2"},
		"written":         {policy: zonePolicy(kept(metav1.ConditionUnknown, stowage.ReasonWriting, "some lack it")), text: "some lack it"},
		"refused":         {policy: zonePolicy(kept(metav1.ConditionFalse, stowage.ReasonRefused, "no writes")), want: finding.ScaleDownNotKept, text: "have whoever refuses them"},
		"other writers":   {policy: zonePolicy(kept(metav1.ConditionFalse, stowage.ReasonOtherCosts, "7 from karpenter")), want: finding.ScaleDownNotKept, text: "have one writer"},
		"invalid":         {policy: zonePolicy(stalled, kept(metav1.ConditionFalse, stowage.ReasonInvalid, "a key")), want: finding.ScaleDownStalled, text: "correct its selectors"},
		"not counted yet": {policy: zonePolicy(func(p *stowage.ScaleDownPolicy) { p.Generation = 2 }), text: "has not counted"},
		"shadowed": {policy: zonePolicy(func(p *stowage.ScaleDownPolicy) {
			p.Status.Shadowed, p.Status.ShadowedBy, p.Status.OtherCosts = 1, "ScaleDownPolicy b, for ReplicaSet ns/web", 3
			p.Status.NotConcerned = []stowage.NotConcerned{{Reason: stowage.NotConcernedKind, Workloads: 4, Example: "Job ns/a"}}
		}), text: "3 pod(s) have a deletion cost of another writer; 4 workload(s) are not concerned, such as Job ns/a; 1 workload(s) are those of ScaleDownPolicy b"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t, tt.policy)
			r := &Report{}
			if err := i.scaleDowns(t.Context(), "ns", r); err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := r.Print(&text, Layout{Format: "table"}); err != nil || !strings.Contains(text.String(), tt.text) {
				t.Errorf("%v\n%s", err, text.String())
			}
			if len(r.Problems) != 0 != (tt.want != "") || tt.want != "" && r.Problems[0].Reason != tt.want {
				t.Errorf("the problems are %+v", r.Problems)
			}
		})
	}
}

// Explain tells the layer of a pod, or why it has none.
func TestExplainScaleDown(t *testing.T) {
	node := func(name, zone string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}}
	}
	pod := func(name, on, kind string, annotations map[string]string) client.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: annotations, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: kind, Name: "web-1", UID: "rs", Controller: new(true),
		}}}, Spec: corev1.PodSpec{NodeName: on}}
	}
	cost := func(is, mark string) map[string]string {
		return map[string]string{corev1.PodDeletionCost: is, stowage.ScaleDownCostAnnotation: mark}
	}
	for name, tt := range map[string]struct {
		pod    client.Object
		change func(*stowage.ScaleDownPolicy)
		want   string
	}{
		"its layer":        {pod: pod("p", "a1", "ReplicaSet", cost("-2", "-2")), want: "layer 2\n  ScaleDownPolicy zones selects it, in mode Enforce.\n  A scale-down keeps its owner's pods spread over zone.\n  It is number 2 of the 2 pods in a"},
		"no node yet":      {pod: pod("p", "", "ReplicaSet", nil), want: "not written yet"},
		"another writer":   {pod: pod("p", "a1", "ReplicaSet", cost("7", "-2")), want: "deletion cost of 7 is another writer's"},
		"in Audit":         {pod: pod("p", "a1", "ReplicaSet", nil), change: func(p *stowage.ScaleDownPolicy) { p.Spec.Mode = stowage.PolicyAudit }, want: "In mode Audit no cost is written"},
		"not of this kind": {pod: pod("p", "a1", "StatefulSet", nil), want: "a StatefulSet does not remove pods by their deletion cost"},
		"another selector": {pod: pod("p", "a1", "ReplicaSet", nil), change: func(p *stowage.ScaleDownPolicy) {
			p.Spec.Selector.MatchExpressions = []stowage.Requirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := zonePolicy()
			if tt.change != nil {
				tt.change(p)
			}
			i := newInspector(t, p, node("a1", "a"), node("a2", "a"), node("b1", "b"), tt.pod, pod("q", "a2", "ReplicaSet", nil), pod("r", "b1", "ReplicaSet", nil))
			e, err := i.Explain(t.Context(), "ns", "p")
			if err != nil {
				t.Fatal(err)
			}
			if got := e.text(); tt.want == "" && e.ScaleDown != nil || !strings.Contains(got, tt.want) {
				t.Errorf("want %q in\n%s", tt.want, got)
			}
		})
	}
}

// What is paused stands before anything else.
func TestPaused(t *testing.T) {
	for _, tt := range []struct {
		everywhere bool
		want       string
	}{{false, "PAUSED: Stowage changes and evicts no pods that exist in ns;"}, {true, "PAUSED: Stowage changes and evicts no pods that exist, in the whole cluster;"}} {
		i := newInspector(t)
		i.Paused = tt.everywhere
		var ns corev1.Namespace
		if err := i.Client.Get(t.Context(), client.ObjectKey{Name: "ns"}, &ns); err != nil {
			t.Fatal(err)
		}
		ns.Labels = map[string]string{stowage.PausedLabel: stowage.PausedOn}
		if err := i.Client.Update(t.Context(), &ns); err != nil {
			t.Fatal(err)
		}
		r, err := i.Status(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := r.Print(&text, Layout{Format: "table"}); err != nil || !strings.HasPrefix(text.String(), tt.want) {
			t.Errorf("%v\n%s", err, text.String())
		}
	}
}

// An installation without the webhook is as it should be. Only what needs the webhook is told.
func TestWithoutWebhook(t *testing.T) {
	controllers := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-controllers"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(1))}}
	controllers.Status.ReadyReplicas = 1
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
	status := func(objects ...client.Object) (*Inspector, []finding.Reason) {
		i := newInspectorOf(t, append(objects, controllers.DeepCopy())...)
		if err := i.Client.Delete(t.Context(), registration.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		i.Discovery, i.Heard = &apiServer{}, func() []string { return nil }
		r, err := i.Status(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		var reasons []finding.Reason
		for _, p := range r.Problems {
			reasons = append(reasons, p.Reason)
		}
		return i, reasons
	}
	i, reasons := status(zonePolicy())
	if len(reasons) > 0 {
		t.Errorf("the problems are %v", reasons)
	}
	if a, err := i.Check(t.Context(), "ns"); err != nil || !a.OK || !a.Sound() || !strings.Contains(a.text(), "without its webhook") {
		t.Errorf("%+v, %v", a, err)
	}
	if _, reasons := status(web(2, nil)); len(reasons) == 0 || reasons[0] != finding.WithoutWebhook {
		t.Errorf("the problems of a workload with a strategy are %v", reasons)
	}
}
