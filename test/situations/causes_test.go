package situations

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// budget creates a PodDisruptionBudget of the pods of web.
func (n *tenant) budget(t *testing.T, name string, unavailable int32) {
	t.Helper()
	must(t, n.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(unavailable)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}))
}

// swapped creates a Deployment of five pods whose pools have changed their weights since, so that three pods are to move.
func (n *tenant) swapped(t *testing.T, before func()) {
	t.Helper()
	n.PoolNode(t, "od", "1", 20)
	n.PoolNode(t, "spot", "1", 20)
	must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, suite.Evicts)))
	n.InPools(t, "web", "od=1 spot=4")
	n.Ready(t, "web", 5)
	if before != nil {
		before()
	}
	n.Swap(t, "web")
}

// patch changes an object by a merge patch.
func (n *tenant) patch(t *testing.T, o client.Object, name, text string) {
	t.Helper()
	o.SetNamespace(n.Namespace)
	o.SetName(name)
	must(t, n.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text))))
}

// pins has a policy of somebody else write a node selector into the pods of the namespace.
func (n *tenant) pins(t *testing.T, selector string) {
	t.Helper()
	name := metav1.ObjectMeta{Name: "pins-" + n.Namespace}
	p := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: name, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
		ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
		MatchConstraints: &admissionregistrationv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: n.Namespace}},
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}}},
		},
		Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{
			Expression: `[JSONPatch{op: "add", path: "/spec/nodeSelector", value: ` + selector + `}]`,
		}}},
	}}
	b := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: name, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name.Name}}
	for _, o := range []client.Object{p, b} {
		if err := n.Create(t.Context(), o); apimeta.IsNoMatchError(err) {
			t.Skip("NOT RUN: this API server has no MutatingAdmissionPolicies")
		} else {
			must(t, err)
		}
		t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), o) })
	}
	eventually(t, "the policy holds", func() (bool, error) {
		pod := testkit.Pod("try").Namespace(n.Namespace).Container("a", "", "").Obj()
		err := n.Create(t.Context(), pod, client.DryRunAll)
		return len(pod.Spec.NodeSelector) > 0, err
	})
}

// forbids has an admission policy of somebody else refuse what is created in the namespace, unless an expression holds.
func (n *tenant) forbids(t *testing.T, resource, expression, message string) {
	t.Helper()
	name := metav1.ObjectMeta{Name: strings.ReplaceAll(resource, "/", "-") + "-" + n.Namespace}
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: name, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: new(admissionregistrationv1.Fail),
		MatchConstraints: &admissionregistrationv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: n.Namespace}},
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}}},
		},
		Validations: []admissionregistrationv1.Validation{{Expression: expression, Message: message}},
	}}
	b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: p.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
	}}
	for _, o := range []client.Object{p, b} {
		must(t, n.Create(t.Context(), o))
		t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), o) })
	}
}

// What keeps Stowage from doing what it should do is said by each view, with one reason.
func TestHindrances(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]situation{
		"a budget of 0": {make: func(t *testing.T, n *tenant) {
			n.swapped(t, func() { n.budget(t, "none", 0) })
		}, want: []string{"pool spot has 4 pods and should have 1: the eviction of pod web-", "by PodDisruptionBudget none", "→ wait until it allows a disruption, or change it; or roll out"},
			explain: []string{"deployment/web", "by PodDisruptionBudget none"}, condition: "EvictionRefused", event: "EvictionRefused"},
		"two budgets": {make: func(t *testing.T, n *tenant) { // d10
			n.swapped(t, func() { n.budget(t, "one", 1); n.budget(t, "two", 1) })
		}, want: []string{"by PodDisruptionBudgets one and two", "→ have one PodDisruptionBudget select the pods"},
			explain: []string{"deployment/web", "by PodDisruptionBudgets one and two"}, condition: "EvictionRefused", event: "EvictionRefused"},
		"a policy forbids evictions": {make: func(t *testing.T, n *tenant) {
			n.forbids(t, "pods/eviction", "false", "nobody evicts here")
			n.swapped(t, func() {
				eventually(t, "the policy holds", func() (bool, error) {
					pods, err := n.Pods(t.Context(), "web")
					if err != nil || len(pods) == 0 {
						return false, err
					}
					return n.SubResource("eviction").Create(t.Context(), &pods[0], &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}) != nil, nil
				})
			})
		}, want: []string{"nobody evicts here", "→ correct what refuses evictions"}, condition: "EvictionRefused", event: "EvictionRefused"},
		"no room in the other pool": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 1)
			n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, func(s *versprei.PodDistributorSpec) {
				suite.Evicts(s)
				s.Distribution[0].Spill, s.Distribution[1].Spill = nil, nil
			})))
			n.InPools(t, "web", "od=1 spot=4")
			n.Swap(t, "web")
		}, want: []string{"pool spot has 4 pods and should have 1: no node of pool od has had room for another pod since ", "→ add nodes to that pool, or make room there"},
			condition: "NoRoomForRebalance", event: "NoRoomForRebalance"},
		"a node that is deleted": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			node := n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, func(s *versprei.PodDistributorSpec) {
				s.Distribution[0].Spill, s.Distribution[1].Spill = nil, nil
			})))
			n.InPools(t, "web", "od=1 spot=4")
			n.Ready(t, "web", 5)
			must(t, n.Delete(t.Context(), node))
		}, want: []string{"4 of 5 pods are on nodes that do not exist any more, and do not count as ready"}, condition: "NodesGone"},
		"pods that another policy pins": {make: func(t *testing.T, n *tenant) { // d9
			n.pins(t, fmt.Sprintf(`{%q: %q}`, "shortage-test", n.Namespace+".spot"))
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 3, nil)))
			n.Ready(t, "web", 3)
		}, want: []string{"3 pod(s) such as web-", "have no seat, because they choose their nodes themselves, by node label shortage-test", "→ correct what adds it to pods at admission"},
			condition: "PodsChooseNodes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.run(t)
		})
	}
}

// What a user meets beside that, and what was told wrongly, or not at all.
func TestCauses(t *testing.T) {
	t.Parallel()
	strategy := func(n *tenant) map[string]string { return n.InPoolsOf(false) }
	target := func(apiVersion, kind string) func(t *testing.T, n *tenant) {
		return func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}, Spec: versprei.PodDistributorSpec{
				Target: versprei.Target{APIVersion: apiVersion, Kind: kind, Name: "web"}, Distribution: []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)},
			}}))
		}
	}
	for name, tc := range map[string]situation{
		"a CronJob":                 {make: target("batch/v1", "CronJob"), want: []string{"spec.target.kind is CronJob, and the pods of its Jobs are never divided"}}, // d8
		"a Service":                 {make: target("v1", "Service"), want: []string{"spec.target.kind is Service of v1, which has no pods to divide"}},
		"a Pod":                     {make: target("v1", "Pod"), want: []string{"spec.target.kind is Pod of v1, which has no pods to divide"}},
		"a version that is gone":    {make: target("extensions/v1beta1", "Deployment"), want: []string{"spec.target.apiVersion is extensions/v1beta1, which no API server has any more; write apps/v1"}},
		"its brother":               {make: target("apps/v1beta2", "Deployment"), want: []string{"spec.target.apiVersion is apps/v1beta2, which no API server has any more; write apps/v1"}},
		"a Deployment without pods": {make: func(t *testing.T, n *tenant) { must(t, n.Create(t.Context(), n.Deployment("web", 0, nil))) }, explain: []string{"deployment/web", "It has no pods."}},
		"a PodDistributor that was there": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 1, nil)))
			n.Ready(t, "web", 1)
			must(t, n.Delete(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}}))
		}, explain: []string{"deployment/web", "Its seat is of a PodDistributor or of annotations that are gone."}},
		"a mode that is none": {make: func(t *testing.T, n *tenant) {
			d := n.Deployment("web", 1, annotated(documented))
			d.Spec.Template.Annotations = map[string]string{stowage.ModeKey: "Enforced"}
			must(t, n.Create(t.Context(), d))
			n.Ready(t, "web", 1)
		}, want: []string{`stowage.dev/mode is "Enforced" and is taken as Audit`}, explain: []string{"deployment/web", "stowage.dev/mode is taken as Audit on the pod"}},
		"a zone that no node has": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 2, func(s *versprei.PodDistributorSpec) {
				s.Across = &versprei.Across{TopologyKey: "zone-of-" + n.Namespace, Domains: []versprei.Domain{{Value: "moon"}}}
				s.Distribution[0].Spill, s.Distribution[1].Spill = nil, nil
			})))
		}, want: []string{" in domain moon (", "no node has the labels of pool "}},
		"a taint of all nodes": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			spot := n.PoolNode(t, "spot", "1", 20)
			n.patch(t, spot, spot.Name, `{"spec":{"taints":[{"key":"arch","value":"arm64","effect":"NoSchedule"}]}}`)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, nil)))
		}, want: []string{"no node of pool spot could take them: the pods do not tolerate the taint arch=arm64:NoSchedule", "→ add a toleration of the taint to the pool in the PodDistributor web"}},
		"pods larger than each node": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 2)
			d := n.Shortage(t, "web", 5, nil)
			d.Spec.Template.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=3")
			must(t, n.Create(t.Context(), d))
		}, want: []string{"no node of pool spot could take them: each pod requests 3 of cpu, and the largest node there has 2 allocatable", "→ lower what the pods ask for, or add larger nodes to the pool"}},
		"all nodes are cordoned": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			spot := n.PoolNode(t, "spot", "1", 20)
			n.patch(t, spot, spot.Name, `{"spec":{"unschedulable":true}}`)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, func(s *versprei.PodDistributorSpec) { s.Distribution[1].Spill = nil })))
		}, want: []string{"all 1 node(s) of pool spot are cordoned", "→ kubectl uncordon them"}},
		"spill that is on": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 1)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, func(s *versprei.PodDistributorSpec) { s.Distribution[1].Spill.After = "1h" })))
		}, want: []string{"no room in pool spot: ", "→ other pools take the pods from "}},
		"a Deployment that is paused": {make: func(t *testing.T, n *tenant) {
			d := n.Deployment("web", 3, map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)})
			must(t, n.Create(t.Context(), d))
			n.Ready(t, "web", 3)
			n.patch(t, d, "web", fmt.Sprintf(`{"spec":{"paused":true},"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAliasAnnotation, documented))
		}, want: []string{"3 pod(s) have no seat", "→ resume the Deployment (kubectl -n "}},
		"a StatefulSet that nobody rolls out": {make: func(t *testing.T, n *tenant) {
			like := n.Deployment("web", 2, map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)})
			s := &appsv1.StatefulSet{ObjectMeta: like.ObjectMeta, Spec: appsv1.StatefulSetSpec{
				Replicas: like.Spec.Replicas, Selector: like.Spec.Selector, Template: like.Spec.Template, UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			}}
			must(t, n.Create(t.Context(), s))
			n.Ready(t, "web", 2)
			n.patch(t, s, "web", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAliasAnnotation, documented))
		}, want: []string{"2 pod(s) have no seat", "→ delete its pods one after the other, because its update strategy is OnDelete"}},
		"a key that is misspelt": {make: func(t *testing.T, n *tenant) {
			all := annotated(documented)
			all["stowage.dev/spil"] = "2m"
			must(t, n.Create(t.Context(), n.Deployment("web", 1, all)))
		}, want: []string{"stowage.dev/spil is no key that Stowage knows, and has no effect; is stowage.dev/spill meant?"}},
		"a template's name that is misspelt": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), n.Deployment("web", 1, map[string]string{"flexdaemonsets.xai/resource-templates": "tenth"})))
		}, want: []string{"flexdaemonsets.xai/resource-templates is no key that Stowage knows", "is flexdaemonsets.xai/resource-template meant?"}},
		"a gate that is misspelt": {make: func(t *testing.T, n *tenant) {
			d := n.Deployment("web", 1, annotated(documented))
			d.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "stowage.dev/seats"}}
			must(t, n.Create(t.Context(), d))
		}, want: []string{"waits at the gate stowage.dev/seats, which nobody removes", "→ write stowage.dev/seat in the pod template"}},
		"two strategies": {make: func(t *testing.T, n *tenant) {
			d := n.Deployment("web", 1, annotated(documented))
			d.Spec.Template.Annotations = strategy(n)
			must(t, n.Create(t.Context(), d))
		}, want: []string{"the strategy of the pod template wins over another one in metadata.annotations", "→ remove one of the two"}},
		"a strategy on a Job": {make: func(t *testing.T, n *tenant) {
			like := n.Deployment("web", 1, nil)
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "once", Annotations: annotated(documented)}, Spec: batchv1.JobSpec{Template: like.Spec.Template}}
			job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			must(t, n.Create(t.Context(), job))
		}, want: []string{"Job/once: UseCustomKubeScheduler has no effect on a Job", "→ name the Job in a PodDistributor"}},
		"a strategy on a CronJob": {make: func(t *testing.T, n *tenant) {
			like := n.Deployment("web", 1, nil)
			job := batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: like.Spec.Template}}
			job.Spec.Template.Annotations, job.Spec.Template.Spec.RestartPolicy = annotated(documented), corev1.RestartPolicyNever
			must(t, n.Create(t.Context(), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "nightly"}, Spec: batchv1.CronJobSpec{Schedule: "0 0 1 1 *", JobTemplate: job}}))
		}, want: []string{"CronJob/nightly: UseCustomKubeScheduler has no effect on a CronJob", "→ remove it: the pods of a CronJob are not divided"}},
		"a policy that does not select it": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "aa"}, Spec: stowage.SpreadPolicySpec{
				Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"tire": "web"}}, Mode: stowage.PolicyEnforce,
				Pools: []stowage.PolicyPool{{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 1}},
			}}))
			must(t, n.Create(t.Context(), n.Deployment("web", 1, nil)))
			n.Ready(t, "web", 1)
		}, want: []string{fine, "it selects no workload, or none whose pods can run in its pools: kubectl stowage explain of a workload says why"},
			explain: []string{"deployment/web", "SpreadPolicy aa does not select it: of the pod template, label tire is missing (it must be web)"}},
		"peer pods that a LimitRange refuses": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "small"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePod, Max: testkit.ResourceList("cpu=1m")}}}}))
			d := n.Deployment("web", 2, nil)
			d.Spec.Template.Spec.RuntimeClassName = new("kata-remote")
			suite.OneCPU(&d.Spec.Template.Spec)
			must(t, n.Create(t.Context(), d))
		}, args: []string{"--peer-pods"}, want: []string{"Deployment/web: 0 of 2 pods exist, because the API server refuses to create more: "}, explain: []string{"deployment/web", "because the API server refuses to create more"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.run(t)
		})
	}
}
