package scaledown

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// says waits until a condition of a policy has a reason, and its message a text.
func (a *area) says(t *testing.T, p *stowage.ScaleDownPolicy, kind string, reason stowage.ConditionReason, text string) {
	t.Helper()
	var c *metav1.Condition
	defer func() {
		if t.Failed() {
			t.Logf("%+v", p.Status)
		}
	}()
	suite.Eventually(t, fmt.Sprintf("%s is %s: %s", kind, reason, text), func() (bool, error) {
		err := a.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		c = meta.FindStatusCondition(p.Status.Conditions, kind)
		return c != nil && c.Reason == string(reason) && strings.Contains(c.Message, text) && c.ObservedGeneration == p.Generation, err
	})
}

// unmarked waits until no pod of an app has a cost of Stowage's, or its mark.
func (a *area) unmarked(t *testing.T, app string) {
	t.Helper()
	suite.Eventually(t, "no pod has a cost", func() (bool, error) {
		pods, err := a.Pods(t.Context(), app)
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return p.Annotations[stowage.ScaleDownCostAnnotation] != "" || strings.HasPrefix(p.Annotations[corev1.PodDeletionCost], "-")
		}), err
	})
}

// A policy in Audit writes nothing and says what it would do. In Enforce it writes, and at its end pods have nothing of it any more.
func TestModesAndEnd(t *testing.T) {
	a := newArea(t, 1, 1, 1)
	p := a.policy(t, func(s *stowage.ScaleDownPolicySpec) { s.Mode = stowage.PolicyAudit })
	d := a.deployment(t, "web", 9, "DoNotSchedule", zone)
	a.Ready(t, "web", 9)
	a.says(t, p, stowage.ConditionKept, stowage.ReasonAudit, "would write 9 pods")
	a.unmarked(t, "web")
	a.MergePatch(t, p, `{"spec":{"mode":"Enforce"}}`)
	a.written(t, "web", 9)
	a.says(t, p, stowage.ConditionKept, stowage.ReasonKept, "")
	if s := p.Status; s.Workloads != 1 || s.Pods != 9 || s.Written != 9 || s.NextStep != "1/1" {
		t.Errorf("the status is %+v", s)
	}
	a.MergePatch(t, d, `{"spec":{"template":{"metadata":{"labels":{"stowage.dev/mode":"Off"}}}}}`)
	a.RolledOut(t, d)
	a.unmarked(t, "web")
	a.says(t, p, stowage.ConditionReady, stowage.ReasonCounted, "concerns 0 workloads")
	if n := p.Status.NotConcerned; len(n) != 1 || n[0].Reason != stowage.NotConcernedMode || !strings.Contains(n[0].Example, "stowage.dev/mode is Off on the pod") {
		t.Errorf("not concerned are %+v", n)
	}
	a.MergePatch(t, d, `{"spec":{"template":{"metadata":{"labels":{"stowage.dev/mode":null}}}}}`)
	a.RolledOut(t, d)
	a.written(t, "web", 9)
	suite.Must(t, a.Delete(t.Context(), p))
	a.unmarked(t, "web")
}

// A policy of a namespace wins over one of the cluster, and both say so.
func TestClusterPolicy(t *testing.T) {
	a := newArea(t, 1, 1)
	c := &stowage.ClusterScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}, Spec: stowage.ClusterScaleDownPolicySpec{ScaleDownPolicySpec: stowage.ScaleDownPolicySpec{Mode: stowage.PolicyEnforce}}}
	c.Spec.NamespaceSelector.MatchExpressions = []stowage.Requirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []versprei.LabelValue{versprei.LabelValue(a.Namespace)}}}
	suite.Must(t, a.Create(t.Context(), c))
	t.Cleanup(func() { _ = suite.Cluster.Client.Delete(t.Context(), c) })
	a.deployment(t, "web", 6, "ScheduleAnyway", zone)
	a.written(t, "web", 6)
	p := a.policy(t, func(s *stowage.ScaleDownPolicySpec) { s.Mode = stowage.PolicyAudit })
	a.says(t, p, stowage.ConditionReady, stowage.ReasonCounted, "concerns 0 workloads")
	if !strings.HasPrefix(p.Status.ShadowedBy, "ClusterScaleDownPolicy "+c.Name+", for ReplicaSet "+a.Namespace+"/web-") {
		t.Errorf("shadowed by %q", p.Status.ShadowedBy)
	}
	a.MergePatch(t, p, `{"spec":{"mode":"Enforce"}}`)
	a.says(t, p, stowage.ConditionReady, stowage.ReasonCounted, "concerns 1 workloads")
	suite.Must(t, a.Delete(t.Context(), p))
	suite.Must(t, a.Delete(t.Context(), c))
	a.unmarked(t, "web")
}

// A cost that somebody else has written stays, before ours and over ours. What takes ours away again and again is not fought.
func TestOtherWriters(t *testing.T) {
	a := newArea(t, 1, 1)
	d := a.deployment(t, "web", 8, "DoNotSchedule", zone)
	pods := a.Ready(t, "web", 8)
	first := &pods[0]
	a.MergePatch(t, first, `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-900"}}}`)
	p := a.policy(t)
	suite.Eventually(t, "the others have costs", func() (bool, error) {
		err := a.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.Written == 7 && p.Status.OtherCosts == 1, err
	})
	suite.Must(t, a.Get(t.Context(), client.ObjectKeyFromObject(first), first))
	if first.Annotations[corev1.PodDeletionCost] != "-900" || first.Annotations[stowage.ScaleDownCostAnnotation] != "" {
		t.Errorf("the annotations are %v", first.Annotations)
	}
	if !strings.Contains(p.Status.OtherCostsExample, first.Name+" has -900 from ") {
		t.Errorf("the example is %q", p.Status.OtherCostsExample)
	}
	// All of one zone are protected: the next step has to take the other zone.
	pods, err := a.Pods(t.Context(), "web")
	suite.Must(t, err)
	for i := range pods {
		if a.zones[pods[i].Spec.NodeName] == "a" {
			a.MergePatch(t, &pods[i], `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"7"}}}`)
		}
	}
	a.says(t, p, stowage.ConditionKept, stowage.ReasonOtherCosts, "have a deletion cost that another writer has set")
	a.scale(t, d, 4)
	for _, pod := range a.Ready(t, "web", 4) {
		if a.zones[pod.Spec.NodeName] != "a" {
			t.Errorf("a pod of zone %s is left, though all of zone a are protected", a.zones[pod.Spec.NodeName])
		}
	}
}

// Somebody has the API server refuse our writes in a namespace: its policy says so with the reason, and other namespaces are written meanwhile.
func TestRefusedWrites(t *testing.T) {
	a, b := newArea(t, 1, 1), newArea(t, 1, 1)
	refuse := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: a.Namespace}},
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update}, Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}}},
		},
		Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "pods of this namespace stay as they are"}},
	}}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: a.Namespace, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
	}}
	suite.Must(t, a.Create(t.Context(), refuse))
	suite.Must(t, a.Create(t.Context(), binding))
	t.Cleanup(func() {
		_ = suite.Cluster.Client.Delete(t.Context(), binding)
		_ = suite.Cluster.Client.Delete(t.Context(), refuse)
	})
	a.deployment(t, "web", 6, "DoNotSchedule", zone)
	pod := &a.Ready(t, "web", 6)[0]
	suite.Eventually(t, "pods are refused", func() (bool, error) {
		err := a.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`)), client.DryRunAll)
		if apierrors.IsInvalid(err) {
			return true, nil
		}
		return false, err
	})
	p := a.policy(t)
	b.policy(t)
	b.deployment(t, "web", 6, "DoNotSchedule", zone)
	a.says(t, p, stowage.ConditionKept, stowage.ReasonRefused, "pods of this namespace stay as they are")
	b.written(t, "web", 6)
	a.unmarked(t, "web")
	suite.Must(t, a.Delete(t.Context(), binding))
	a.written(t, "web", 6)
	a.says(t, p, stowage.ConditionKept, stowage.ReasonKept, "")
}

// Each revision keeps its own zones even. A rollout that stops half way has two of them.
func TestTwoRevisions(t *testing.T) {
	a := newArea(t, 2, 1, 3)
	a.policy(t)
	d := a.deployment(t, "web", 60, "DoNotSchedule", zone)
	a.written(t, "web", 60)
	suite.Must(t, a.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"strategy":{"rollingUpdate":{"maxSurge":0,"maxUnavailable":"50%"}},"template":{"metadata":{"annotations":{"revision":"2"}},"spec":{"schedulingGates":[{"name":"example.com/wait"}]}}}}`))))
	suite.Eventually(t, "half of the pods wait", func() (bool, error) {
		pods, err := a.Pods(t.Context(), "web")
		waits := 0
		for _, p := range pods {
			if p.Spec.NodeName == "" {
				waits++
			}
		}
		return waits == 30 && len(pods) == 60, err
	})
	suite.Must(t, a.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`))))
	pods, err := a.Pods(t.Context(), "web")
	suite.Must(t, err)
	for i := range pods {
		if pods[i].Spec.NodeName == "" {
			a.MergePatch(t, &pods[i], `{"spec":{"schedulingGates":null}}`)
		}
	}
	a.Ready(t, "web", 60)
	suite.Eventually(t, "both revisions have their costs", func() (bool, error) {
		pods, err := a.Pods(t.Context(), "web")
		for _, of := range byRevision(pods) {
			if _, problem := a.layersOf(of); problem != "" {
				return false, err
			}
		}
		return err == nil, err
	})
	a.scale(t, d, 20)
	after := map[string]int{}
	for _, p := range a.Ready(t, "web", 20) {
		after[a.zones[p.Spec.NodeName]]++
	}
	if layers.Skew(after) > 2 {
		t.Errorf("two revisions of 20 pods together are %v", after)
	}
}

func byRevision(pods []corev1.Pod) map[string][]corev1.Pod {
	out := map[string][]corev1.Pod{}
	for _, p := range pods {
		hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		out[hash] = append(out[hash], p)
	}
	return out
}

// A step that comes before all costs are written ends uneven at worst, and the next one is even again.
func TestEarlyStep(t *testing.T) {
	a := newArea(t, 2, 3, 5)
	d := a.deployment(t, "web", 150, "DoNotSchedule", zone)
	a.Ready(t, "web", 150)
	a.policy(t)
	a.scale(t, d, 120)
	a.Ready(t, "web", 120)
	a.stepTo(t, d, 60)
	a.stepTo(t, d, 7)
}

// A node that gets another zone moves its pods to the layers of that zone.
func TestNodeChangesItsZone(t *testing.T) {
	a := newArea(t, 1, 1, 1)
	a.policy(t)
	a.deployment(t, "web", 12, "ScheduleAnyway", zone)
	a.written(t, "web", 12)
	a.MergePatch(t, a.nodes[2], `{"metadata":{"labels":{"topology.kubernetes.io/zone":"b"}}}`)
	a.zones[a.nodes[2].Name] = "b"
	a.written(t, "web", 12)
}

// A new leader writes nothing that is there. If the last policy goes while no leader runs, the next one takes the costs away.
func TestLeaders(t *testing.T) {
	a := newArea(t, 1, 1)
	p := a.policy(t)
	d := a.deployment(t, "web", 20, "DoNotSchedule", zone)
	a.written(t, "web", 20)
	leader := suite.Cluster.Controllers()[0]
	leader.Kill()
	suite.Must(t, suite.Cluster.Restart(t.Context(), leader))
	a.scale(t, d, 21)
	a.written(t, "web", 21)
	if wrote := writes(t); wrote != 1 {
		t.Errorf("the new leader wrote %.0f pods, and 1 is new", wrote)
	}
	leader.Kill()
	suite.Must(t, a.Delete(t.Context(), p))
	suite.Must(t, suite.Cluster.Restart(t.Context(), leader))
	a.unmarked(t, "web")
	suite.Eventually(t, "nothing is left to be taken away", func() (bool, error) {
		note := &corev1.ConfigMap{}
		err := a.Get(t.Context(), client.ObjectKey{Namespace: controlplane.StowageNamespace, Name: "stowage-scale-down"}, note)
		return len(note.Data) == 0, err
	})
}

// The account of the installation without the webhook may write these two annotations and nothing else, whatever its roles would allow.
func TestAccountIsNarrow(t *testing.T) {
	a := newArea(t, 1)
	a.deployment(t, "web", 1, "ScheduleAnyway", zone)
	pod := &a.Ready(t, "web", 1)[0]
	path, err := suite.Cluster.StowageKubeconfig(t.Context(), "stowage-controllers")
	suite.Must(t, err)
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	suite.Must(t, err)
	account, err := client.New(cfg, client.Options{Scheme: controlplane.Scheme})
	suite.Must(t, err)
	for _, tt := range []struct {
		patch string
		want  string // part of the refusal; empty is none
	}{
		{`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-12","stowage.dev/scale-down-cost":"-12"}}}`, ""},
		{`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-100000"}}}`, ""},
		{`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":null,"stowage.dev/scale-down-cost":null}}}`, ""},
		{`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"1"}}}`, "from -100000 to 0"},
		{`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-100001"}}}`, "from -100000 to 0"},
		{`{"metadata":{"annotations":{"stowage.dev/scale-down-cost":"x"}}}`, "from -100000 to 0"},
		{`{"metadata":{"annotations":{"other":"x"}}}`, "no annotations of a pod but"},
		{`{"metadata":{"labels":{"app":"x"}}}`, "no metadata of a pod but"},
		{`{"metadata":{"finalizers":["a.b/c"]}}`, "no metadata of a pod but"},
		{`{"spec":{"activeDeadlineSeconds":1}}`, "not change the spec"},
	} {
		err := account.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(tt.patch)))
		if tt.want == "" && err != nil || tt.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.patch, err, tt.want)
		}
	}
	if err := account.SubResource("eviction").Create(t.Context(), pod.DeepCopy(), &policyv1.Eviction{}); !apierrors.IsForbidden(err) {
		t.Errorf("it may evict: %v", err)
	}
	if err := account.List(t.Context(), &corev1.SecretList{}, client.InNamespace(controlplane.StowageNamespace)); !apierrors.IsForbidden(err) {
		t.Errorf("it may read Secrets: %v", err)
	}
}

// A burst of 500 pods, and then 20 pods a second: none is written before it has a node, and each soon after. The times are told, and not asserted.
func TestBurst(t *testing.T) {
	a := newArea(t, 2, 2, 2)
	a.policy(t)
	d := a.deployment(t, "web", 500, "ScheduleAnyway", zone)
	a.Ready(t, "web", 500)
	ready := time.Now()
	a.written(t, "web", 500)
	t.Logf("500 pods were written %.1f s after all were ready; %s", time.Since(ready).Seconds(), lateness(t))
	before := delays(t)
	for i := range 10 {
		a.scale(t, d, 520+20*i)
		next := time.Now().Add(time.Second)
		suite.Eventually(t, "a second is over", func() (bool, error) { return time.Now().After(next), nil })
	}
	a.written(t, "web", 700)
	after := delays(t)
	for bound := range after {
		after[bound] -= before[bound]
	}
	t.Logf("20 pods a second: %s", percentile(after))
	events, err := suite.Cluster.Audit()
	suite.Must(t, err)
	patches := 0
	for _, e := range events {
		if e.ObjectRef.Namespace == a.Namespace && e.Account() == "stowage-controllers" && e.ObjectRef.Resource == "pods" {
			patches++
		}
	}
	if patches > 3*700 { // a pod that starts changes some times beside its write
		t.Errorf("%d requests for 700 pods", patches)
	}
	t.Logf("%d requests for 700 pods", patches)
}

// bounds are those of the histogram of delays.
var bounds = []string{"0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "+Inf"}

// delays returns how many pods were written within each bound, from when the leader saw that they had a node.
func delays(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, bound := range bounds {
		out[bound] = suite.Metric(t, suite.Cluster.Controllers()[0], "stowage_scaledown_delay_seconds_bucket", `le="`+bound+`"`)
	}
	return out
}

func lateness(t *testing.T) string {
	t.Helper()
	return percentile(delays(t))
}

// percentile says within what bound 99 of 100 pods were written.
func percentile(of map[string]float64) string {
	for _, bound := range bounds {
		if of[bound] >= 0.99*of["+Inf"] {
			return fmt.Sprintf("99%% of %.0f pods were written within %s s of their node", of["+Inf"], bound)
		}
	}
	return ""
}
