package situations

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// What a user meets, and what status must say then: the cause, and what to do about it. Never is a situation as it should be where
// kubectl shows otherwise. The names of the situations are those of docs/troubleshooting.md and docs/operating.md.
func TestSituations(t *testing.T) {
	t.Parallel()
	deploy := func(t *testing.T, n *tenant, replicas int, change func(*appsv1.Deployment)) {
		t.Helper()
		d := n.Deployment("web", replicas, annotated(documented))
		if change != nil {
			change(d)
		}
		must(t, n.Create(t.Context(), d))
	}
	distribute := func(t *testing.T, n *tenant, name, kind, target string) *versprei.PodDistributor {
		t.Helper()
		d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}, Spec: versprei.PodDistributorSpec{
			Target:       versprei.Target{APIVersion: cmp.Or(map[string]string{"Job": "batch/v1", "ReplicationController": "v1"}[kind], "apps/v1"), Kind: kind, Name: target},
			Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"type": "default"}, Weight: 80}, {NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 20}},
		}}
		must(t, n.Create(t.Context(), d))
		return d
	}
	template := func(key, value string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, key, value) }
	}
	own := func(key, value string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value) }
	}
	for name, tc := range map[string]situation{
		"all is well":       {make: func(t *testing.T, n *tenant) { deploy(t, n, 10, nil) }, want: []string{fine, "Deployment/web"}},
		"scaled to nothing": {make: func(t *testing.T, n *tenant) { deploy(t, n, 0, nil) }, want: []string{fine}},
		"the namespace is in mode Audit": {labels: []string{stowage.ModeKey + "=Audit"}, make: func(t *testing.T, n *tenant) { deploy(t, n, 2, nil) },
			want: []string{fine, "left alone on purpose: stowage.dev/mode is Audit on namespace "}},
		"the pods are in mode Off": {make: func(t *testing.T, n *tenant) { deploy(t, n, 2, template(stowage.ModeKey, "Off")) },
			want: []string{fine, "left alone on purpose: stowage.dev/mode is Off on the pod"}},
		"a misspelt mode of a namespace": {labels: []string{stowage.ModeKey + "=Audti"}, make: func(t *testing.T, n *tenant) { deploy(t, n, 2, nil) },
			want: []string{`stowage.dev/mode is "Audti" and is taken as Audit`, "→ correct or remove it in metadata.labels"}},
		"a misspelt failure policy": {labels: []string{stowage.FailurePolicyLabel + "=fail"}, make: func(t *testing.T, n *tenant) { deploy(t, n, 2, nil) },
			want: []string{`stowage.dev/failure-policy is "fail" and has no effect; it must be Fail or Ignore`}},
		"a misspelt mode of pods": {make: func(t *testing.T, n *tenant) { deploy(t, n, 2, template(stowage.ModeKey, "on")) },
			want: []string{`Deployment/web: stowage.dev/mode is "on" and is taken as Audit`}},
		"a mode of a Deployment": {make: func(t *testing.T, n *tenant) { deploy(t, n, 2, own(stowage.ModeKey, "Off")) },
			want: []string{"Deployment/web: stowage.dev/mode has no effect on a Deployment; write it on its pod template or its namespace", "→ move it to spec.template.metadata, or label the namespace"}},
		"a misspelt repair": {make: func(t *testing.T, n *tenant) { deploy(t, n, 2, own(stowage.RepairAnnotation, "Recreat")) },
			want: []string{`stowage.dev/repair is "Recreat" and is ignored; it must be Off, Adopt or Recreate`, "→ correct or remove it in metadata.annotations"}},
		"a misspelt rebalance": {make: func(t *testing.T, n *tenant) { deploy(t, n, 2, own(stowage.RebalanceAnnotation, "evict")) },
			want: []string{`stowage.dev/rebalance is "evict" and is ignored; it must be Never or Evict`}},
		"a misspelt weight": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), n.Deployment("web", 2, annotated("type=default,wieght=1:type=spot,weight=1"))))
		}, want: []string{"pool 0: wieght is taken as a node label; is weight meant?", "pool 0 has no base and no weight, so it never gets a pod"}},
		"an invalid strategy": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), n.Deployment("web", 2, annotated("type=default,weight=many"))))
		}, want: []string{"is invalid, so that it divides no pods: pool 0", "→ correct the strategy"}},
		"a strategy without its switch": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), n.Deployment("web", 2, map[string]string{stowage.SpreadStrategyAnnotation: documented})))
		}, want: []string{"CustomPodScheduleStrategy has no effect without UseCustomKubeScheduler: 'true'", "→ add UseCustomKubeScheduler: 'true' to metadata.annotations, or remove CustomPodScheduleStrategy there"}},
		"annotations beside a PodDistributor": {make: func(t *testing.T, n *tenant) {
			distribute(t, n, "web", "Deployment", "web")
			deploy(t, n, 2, nil)
		}, want: []string{"the strategy is ignored, because a PodDistributor divides the pods of this workload"}},
		"two PodDistributors of one target": {make: func(t *testing.T, n *tenant) {
			distribute(t, n, "a", "Deployment", "web")
			distribute(t, n, "b", "Deployment", "web")
			must(t, n.Create(t.Context(), n.Deployment("web", 2, nil)))
		}, want: []string{"PodDistributor/b: divides no pods, because PodDistributor a is older and has the same target", "→ delete it, or delete a to use it"}},
		"a PodDistributor without a target": {make: func(t *testing.T, n *tenant) { distribute(t, n, "web", "Deployment", "wbe") },
			want: []string{"PodDistributor/web: its target apps/v1 Deployment wbe does not exist", "→ create the target, or correct spec.target"}},
		"a PodDistributor, by its name": {make: func(t *testing.T, n *tenant) {
			distribute(t, n, "lost", "Deployment", "wbe")
			deploy(t, n, 2, nil)
		}, args: []string{"pd/lost"}, want: []string{"PodDistributor/lost: its target"}},
		"the PodDistributor of pods that run is removed": {make: func(t *testing.T, n *tenant) {
			d := distribute(t, n, "web", "Deployment", "web")
			must(t, n.Create(t.Context(), n.Deployment("web", 5, nil)))
			n.Ready(t, "web", 5)
			must(t, n.Delete(t.Context(), d))
		}, want: []string{fine, "no strategy divides these pods any more, and 5 of them still select the nodes of their pools: ", "rollout restart deployment/web"}},
		"a quota refuses pods": {make: func(t *testing.T, n *tenant) {
			limitTo(t, n, "few", "pods=2")
			deploy(t, n, 5, nil)
		}, want: []string{"2 of 5 pods exist, because the API server refuses to create more: ", "exceeded quota: few", "→ correct what the message names: the pod template, a quota"}},
		"a quota refuses the ReplicaSet": {make: func(t *testing.T, n *tenant) {
			limitTo(t, n, "few", "count/replicasets.apps=0")
			deploy(t, n, 2, nil)
		}, want: []string{"Deployment/web: 0 of 2 pods exist, because the API server refuses to create more: ", "exceeded quota: few"}},
		"a quota refuses each pod of a StatefulSet": {make: func(t *testing.T, n *tenant) {
			limitTo(t, n, "none", "pods=0")
			like := n.Deployment("web", 2, annotated(documented))
			must(t, n.Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: like.ObjectMeta, Spec: appsv1.StatefulSetSpec{Replicas: like.Spec.Replicas, Selector: like.Spec.Selector, Template: like.Spec.Template}}))
		}, want: []string{"StatefulSet/web: 0 of 2 pods exist, because the API server refuses to create more: ", "exceeded quota: none"}},
		"a quota refuses each pod of a Job": {make: func(t *testing.T, n *tenant) {
			limitTo(t, n, "none", "pods=0")
			distribute(t, n, "web", "Job", "web")
			template := n.Deployment("web", 2, nil).Spec.Template
			template.Spec.RestartPolicy = corev1.RestartPolicyNever
			must(t, n.Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}, Spec: batchv1.JobSpec{Parallelism: new(int32(2)), Template: template}}))
		}, want: []string{"Job/web: 0 of 2 pods exist, because the API server refuses to create more: ", "exceeded quota: none"},
			explain: []string{"job/web", "Job ", "exceeded quota: none"}},
		"a quota refuses each pod of a ReplicationController": {make: func(t *testing.T, n *tenant) {
			limitTo(t, n, "none", "pods=0")
			distribute(t, n, "web", "ReplicationController", "web")
			template := n.Deployment("web", 2, nil).Spec.Template
			must(t, n.Create(t.Context(), &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}, Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(2)), Selector: template.Labels, Template: &template}}))
		}, want: []string{"ReplicationController/web: 0 of 2 pods exist, because the API server refuses to create more: ", "exceeded quota: none"}},
		"a Deployment is paused before it has pods": {make: func(t *testing.T, n *tenant) {
			deploy(t, n, 2, func(d *appsv1.Deployment) { d.Spec.Paused = true })
		}, want: []string{"Deployment/web: is paused in its rollout: 0 of 2 pods are of the newest revision", "→ resume the Deployment (kubectl -n "}},
		"old pods with a finalizer keep a Deployment from new ones": {make: func(t *testing.T, n *tenant) {
			deploy(t, n, 2, func(d *appsv1.Deployment) {
				d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
				d.Spec.Template.Finalizers, d.Spec.Template.Spec.TerminationGracePeriodSeconds = []string{"example.com/backup"}, new(int64(1))
			})
			n.Ready(t, "web", 2)
			t.Cleanup(func() { n.release(t, "web") })
			n.MergePatch(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}}, `{"spec":{"template":{"metadata":{"annotations":{"a":"b"},"finalizers":null}}}}`)
		}, want: []string{"waits for the end of a pod whose grace period is over: it is held by the finalizer example.com/backup (2 pods, such as web-", "→ find out what is to remove the finalizer"}},
		"no node has the labels of a pool": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), n.Deployment("web", 2, annotated("nowhere=yes,weight=1"))))
		}, want: []string{"no node has the labels of pool 0 (nowhere=yes): ", "→ correct the labels of pool 0 in the annotation of Deployment web, or add nodes with these labels"}},
		"the template's own selector fits no node": {make: func(t *testing.T, n *tenant) {
			deploy(t, n, 2, func(d *appsv1.Deployment) { d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "none"} })
		}, want: []string{"has what the node selector or affinity of the pod template asks for: ", "→ correct the pod template, or label nodes of the pool"}},
		"the template chooses nodes that are not there": {make: func(t *testing.T, n *tenant) {
			deploy(t, n, 2, func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.NodeSelector = map[string]string{"nodesize": "none"}
			})
		}, want: []string{"the pod template chooses nodes itself, and no node is as it asks: ", "→ remove its node selector and affinity"}},
		"a pool is full": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 1)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, func(s *versprei.PodDistributorSpec) { s.Distribution[0].Spill, s.Distribution[1].Spill = nil, nil })))
		}, want: []string{"no room in pool spot: ", "→ make room in the pool, change the strategy, or let other pools take the pods (spill)"}},
		"other pools have taken pods": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 1)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, nil)))
		}, want: []string{"other pools take the pods that wait for it", "→ add nodes to the pool; Stowage tries it again by itself"}},
		"pods that ran before their policy": {make: func(t *testing.T, n *tenant) {
			node := n.PoolNode(t, "od", "1", 20)
			d := n.Deployment("web", 5, map[string]string{stowage.RepairAnnotation: string(stowage.RepairAdopt)})
			suite.OneCPU(&d.Spec.Template.Spec)
			d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
			must(t, n.Create(t.Context(), d))
			n.Ready(t, "web", 5)
			strategy := fmt.Sprintf("shortage-test=%[1]s.od,weight=20:shortage-test=%[1]s.spot,weight=80", n.Namespace)
			must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAliasAnnotation, strategy))))
		}, want: []string{"pool 0 has 5 pods and should have 1: 5 of them were there before Stowage divided them", "→ first correct the labels of pool 1 (shortage-test=", "; then roll out (kubectl -n ", "rollout restart deployment/web), or set the annotation stowage.dev/rebalance: Evict"}},
		"pods without a seat": {make: func(t *testing.T, n *tenant) {
			d := n.Deployment("web", 3, map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)})
			must(t, n.Create(t.Context(), d))
			n.Ready(t, "web", 3)
			must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAliasAnnotation, documented))))
		}, want: []string{"3 pod(s) have no seat: they were created before the annotation of Deployment web, or bypassed the webhook", "→ roll out", "or set stowage.dev/repair to Recreate"}},
		"a DaemonSet without its template": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), n.DaemonSet("agent", n.Namespace+".none")))
		}, args: []string{"ds/agent"}, want: []string{"DaemonSet/agent: names FlexDaemonsetTemplate ", "→ create the template, or correct the annotation"}},
		"Pod Security refuses pods": {labels: []string{"pod-security.kubernetes.io/enforce=restricted"}, make: func(t *testing.T, n *tenant) { deploy(t, n, 2, nil) },
			want: []string{"0 of 2 pods exist, because the API server refuses to create more: ", "violates PodSecurity"}},
		"a LimitRange refuses pods": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "small"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePod, Max: testkit.ResourceList("cpu=1m")}}}}))
			deploy(t, n, 2, nil)
		}, want: []string{"0 of 2 pods exist, because the API server refuses to create more: ", "maximum cpu usage per Pod is 1m"}},
		"a service account is missing": {make: func(t *testing.T, n *tenant) {
			deploy(t, n, 2, func(d *appsv1.Deployment) { d.Spec.Template.Spec.ServiceAccountName = "nobody" })
		}, want: []string{"0 of 2 pods exist, because the API server refuses to create more: ", `serviceaccount "nobody" not found`}},
		"a strategy of a namespace": {make: func(t *testing.T, n *tenant) {
			deploy(t, n, 2, nil)
			must(t, n.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}}, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAliasAnnotation, documented))))
		}, want: []string{"custom-pod-schedule-strategy has no effect on a Namespace", "→ "}},
		"a deletion cost of somebody else": {make: func(t *testing.T, n *tenant) {
			deploy(t, n, 3, nil)
			n.Ready(t, "web", 3)
			pods, err := n.Pods(t.Context(), "web")
			must(t, err)
			first := slices.MaxFunc(pods, func(a, b corev1.Pod) int { // the base's, which has the highest cost
				return strings.Compare(a.Annotations[corev1.PodDeletionCost], b.Annotations[corev1.PodDeletionCost])
			})
			must(t, n.Patch(t.Context(), &first, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"7"}}}`, corev1.PodDeletionCost))))
		}, want: []string{"1 pod(s) have no pod-deletion-cost, or one that is not from Stowage", "so the next scale-down does not keep the division", "→ stop the other writer"}},
		"pods of a StatefulSet without a seat": {make: func(t *testing.T, n *tenant) {
			like := n.Deployment("web", 2, map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)})
			d := &appsv1.StatefulSet{ObjectMeta: like.ObjectMeta, Spec: appsv1.StatefulSetSpec{Replicas: like.Spec.Replicas, Selector: like.Spec.Selector, Template: like.Spec.Template}}
			must(t, n.Create(t.Context(), d))
			n.Ready(t, "web", 2)
			must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAliasAnnotation, documented))))
		}, want: []string{"2 pod(s) have no seat: they were created before the annotation of StatefulSet web, or bypassed the webhook", "rollout restart statefulset/web)"}},
		"Preferred, and its pool is full": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 1)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, func(s *versprei.PodDistributorSpec) {
				s.Enforcement = versprei.EnforcementPreferred
				s.Distribution[0].Spill, s.Distribution[1].Spill = nil, nil
			})))
			n.Ready(t, "web", 5)
		}, want: []string{"pod(s) are outside the pool of their seat, as enforcement Preferred allows", "→ make room in the pool, and roll out"}},
		"a node is relabelled": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			node := n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, nil)))
			n.Ready(t, "web", 5)
			must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"shortage-test":"other"}}}`))))
		}, want: []string{"4 pod(s) are outside the pool of their seat: the labels of pools or nodes, or the order of pools, have changed", "→ roll out"}},
		"a pool is removed": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, nil)))
			n.Ready(t, "web", 5)
			pd := &versprei.PodDistributor{}
			must(t, n.Get(t.Context(), n.Key("web"), pd))
			before := pd.DeepCopy()
			pd.Spec.Distribution = pd.Spec.Distribution[:1]
			must(t, n.Patch(t.Context(), pd, client.MergeFrom(before)))
		}, want: []string{"4 pod(s) are in a pool that was removed from the strategy", "→ roll out"}},
		"every pool has its maximum": {make: func(t *testing.T, n *tenant) {
			n.PoolNode(t, "od", "1", 20)
			n.PoolNode(t, "spot", "1", 20)
			must(t, n.Create(t.Context(), n.Shortage(t, "web", 5, func(s *versprei.PodDistributorSpec) {
				s.Distribution[0].MaxReplicas, s.Distribution[1].MaxReplicas = new(intstr.FromInt32(1)), new(intstr.FromInt32(1))
				s.Distribution[0].Spill, s.Distribution[1].Spill = nil, nil
			})))
		}, want: []string{fine, "3 pod(s) have no seat, because every pool has its maximum"}},
		"a peer pod waits for a VM": {make: func(t *testing.T, n *tenant) {
			n.SizedNode(t, "ten", "cpu=4,memory=8Gi")
			for i := range 11 { // one more than a node has VMs
				pod := testkit.Pod(fmt.Sprint("vm-", i)).Namespace(n.Namespace).RuntimeClass("kata-remote").Container("a", "cpu=1", "").Obj()
				pod.Spec.NodeSelector, pod.Spec.Tolerations = map[string]string{suite.SizingLabel: n.Namespace}, []corev1.Toleration{{Key: suite.SizingLabel, Operator: corev1.TolerationOpExists}}
				must(t, n.Create(t.Context(), pod))
			}
		}, args: []string{"--peer-pods"}, want: []string{": no free VM: ", "→ raise PEERPODS_LIMIT_PER_NODE in ConfigMap "}},
		"a peer pod fits no node": {make: func(t *testing.T, n *tenant) {
			pod := testkit.Pod("vm").Namespace(n.Namespace).RuntimeClass("kata-remote").Container("a", "cpu=1", "").Obj()
			pod.Spec.NodeSelector = map[string]string{"disk": "none"}
			must(t, n.Create(t.Context(), pod))
		}, args: []string{"--peer-pods"}, want: []string{"Pod/vm: no node is as the node selector or affinity of the pod asks: ", "→ correct them in the pod template and in RuntimeClass kata-remote"}},
		"a peer pod that bypassed the webhook": {labels: []string{stowage.ModeKey + "=Off"}, make: func(t *testing.T, n *tenant) {
			eventually(t, "the namespace is older than a second", func() (bool, error) { // its pod came after its last edit with a time
				var ns corev1.Namespace
				err := n.Get(t.Context(), client.ObjectKey{Name: n.Namespace}, &ns)
				return time.Since(ns.CreationTimestamp.Time) > 1500*time.Millisecond, err
			})
			pod := testkit.Pod("vm").Namespace(n.Namespace).RuntimeClass("kata-remote").Container("a", "cpu=1", "").Obj()
			must(t, n.Create(t.Context(), pod))
			n.MergePatch(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}}, `{"metadata":{"labels":{"`+stowage.ModeKey+`":null}}}`)
		}, args: []string{"--peer-pods"}, want: []string{"Pod/vm: RuntimeClass kata-remote without kata.peerpods.io/vm: the webhook was bypassed", "→ delete the pod and create it again"}},
		"a size that finds no room": {make: func(t *testing.T, n *tenant) {
			n.SizedNode(t, "small", "cpu=1,memory=1Gi")
			name := n.SizeTemplate(t, "most", "{cpuPercentage: 60}").Name
			must(t, n.Create(t.Context(), n.SizedDaemonSet("first", name, suite.Agent())))
			n.Ready(t, "first", 1)
			must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", name, suite.Agent())))
		}, args: []string{"ds/agent"}, want: []string{"DaemonSet/agent: no room for the size: ", "→ lower the percentages or minimums of FlexDaemonsetTemplate "}},
		"a DaemonSet by its name": {make: func(t *testing.T, n *tenant) {
			n.SizedNode(t, "a", "cpu=4,memory=8Gi")
			name := n.SizeTemplate(t, "tenth", "{cpuPercentage: 10}").Name
			must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", name, suite.Agent())))
			n.Sized(t, "agent", 1)
		}, args: []string{"ds/agent"}, want: []string{fine}},
		"the problems of pods, by their Deployment": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), n.Deployment("web", 2, annotated("nowhere=yes,weight=1"))))
			must(t, n.Create(t.Context(), n.Deployment("other", 2, annotated("nowhere=no,weight=1"))))
		}, args: []string{"deployment/web"}, want: []string{"ReplicaSet/web-", "no node has the labels of pool 0 (nowhere=yes)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.run(t)
		})
	}
}

// limitTo gives a namespace a quota, and waits until it is in force.
func limitTo(t *testing.T, n *tenant, name, hard string) {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: testkit.ResourceList(hard)}}
	must(t, n.Create(t.Context(), quota))
	eventually(t, "the quota is in force", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(quota), quota)
		return len(quota.Status.Hard) > 0, err
	})
}

// situation is what a user meets.
type situation struct {
	labels []string // of the namespace
	make   func(t *testing.T, n *tenant)
	// want are parts of what status prints. Its exit status is 3, or 0 if the first part is fine.
	want []string
	args []string // further arguments of status
	// explain are parts of what explain prints of an object, which is the first of them.
	explain []string
	// condition is the reason of the condition Balanced of PodDistributor web, and event the reason of one about the namespace's objects.
	condition, event string
}

// fine is what status says where nothing is wrong.
const fine = "Everything is as it should be."

// run makes the situation, and waits until each view says what it is.
func (tc situation) run(t *testing.T) {
	n := newTenant(t, tc.labels...)
	tc.make(t, n)
	tc.says(t, n)
}

// says waits until each view says what the situation of a tenant is.
func (tc situation) says(t *testing.T, n *tenant) {
	t.Helper()
	args := append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)
	if len(tc.args) > 0 && strings.HasPrefix(tc.args[0], "ds/") {
		args = args[:3]
	}
	want := 3
	if len(tc.want) > 0 && tc.want[0] == fine {
		want = 0
	}
	last := ""
	t.Cleanup(func() { t.Log(last) })
	says := func(what string, exit int, parts []string, args ...string) {
		t.Helper()
		suite.EventuallyEvery(t, suite.ViewInterval, 2*suite.WaitTimeout, what, func() (bool, error) {
			out, errs, status := suite.CLI(t, cluster, args...)
			last = fmt.Sprintf("%v: exit status %d\n%s%s", args, status, out, errs)
			if strings.Contains(out, "no replica answered") {
				return false, fmt.Errorf("the replicas answered:\n%s", out)
			}
			for _, part := range parts {
				if !strings.Contains(out, part) {
					return false, nil
				}
			}
			if len(tc.args) > 0 && strings.Contains(out, "Deployment/other") {
				return false, fmt.Errorf("another object is shown:\n%s", out)
			}
			return status == exit, nil
		})
	}
	if len(tc.want) > 0 {
		says("status says so", want, tc.want, append(args, tc.args...)...)
	}
	if len(tc.explain) > 0 {
		says("explain says so", 0, tc.explain[1:], append(append([]string{"explain", tc.explain[0], "-n", n.Namespace}, suite.SpreadOnly...), tc.args...)...)
	}
	if tc.condition != "" {
		eventually(t, "the condition has the reason "+tc.condition, func() (bool, error) {
			d := &versprei.PodDistributor{}
			err := n.Get(t.Context(), n.Key("web"), d)
			c := meta.FindStatusCondition(d.Status.Conditions, versprei.ConditionBalanced)
			return c != nil && c.Reason == tc.condition, err
		})
	}
	if tc.event != "" {
		eventually(t, "an event has the reason "+tc.event, func() (bool, error) {
			var events corev1.EventList
			err := n.List(t.Context(), &events, client.InNamespace(n.Namespace))
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == tc.event }), err
		})
	}
}

// The conditions say that a workload is left alone on purpose.
func TestConditionOfModes(t *testing.T) {
	t.Parallel()
	n := newTenant(t, stowage.ModeKey+"=Audit")
	n.PoolNode(t, "od", "1", 20)
	d := n.Shortage(t, "web", 2, nil)
	must(t, n.Create(t.Context(), d))
	n.Ready(t, "web", 2)
	eventually(t, "the condition says that the pods are left alone", func() (bool, error) {
		var pd versprei.PodDistributor
		err := n.Get(t.Context(), n.Key("web"), &pd)
		for _, c := range pd.Status.Conditions {
			if c.Type == versprei.ConditionBalanced && c.Reason == string(stowage.ReasonLeftAlone) {
				return c.Status == metav1.ConditionUnknown && strings.Contains(c.Message, "stowage.dev/mode is Audit on namespace "+n.Namespace), err
			}
		}
		return false, err
	})
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	for i := range pods {
		if pods[i].Labels[stowage.SeatLabel] != "" || !podstatus.Active(&pods[i]) {
			t.Errorf("pod %s was changed", pods[i].Name)
		}
	}
}

// release removes the finalizers of an app's pods.
func (n *tenant) release(t *testing.T, app string) {
	t.Helper()
	var pods corev1.PodList
	if err := n.List(context.Background(), &pods, client.InNamespace(n.Namespace), client.MatchingLabels{"app": app}); err != nil {
		t.Error(err)
	}
	for i := range pods.Items {
		_ = n.Patch(context.Background(), &pods.Items[i], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	}
}
