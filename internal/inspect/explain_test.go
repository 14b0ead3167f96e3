package inspect

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/test/testkit"
)

// golden compares texts, by name, with a file of testdata.
func golden(t *testing.T, file string, texts map[string]string) {
	t.Helper()
	var got strings.Builder
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&got, "=== %s\n%s\n", name, texts[name])
	}
	testkit.Golden(t, filepath.Join("testdata", file), got.String())
}

// Every sentence that an explanation of a pod can have stands in the golden file.
func TestExplainTexts(t *testing.T) {
	nodeA := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{"p": "a"}}, Status: corev1.NodeStatus{Allocatable: testkit.ResourceList("cpu=4,memory=8Gi")}}
	nodeB := nodeA.DeepCopy()
	nodeB.Labels = map[string]string{"p": "b"}
	annotated := func(annotations map[string]string) *appsv1.ReplicaSet {
		return web(2, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Annotations, rs.Annotations = annotations, annotations })
	}
	withClaim := func(origin ledger.Origin) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations[stowage.ClaimAnnotation] = string(origin) + "x.mac"
			if origin == ledger.OriginAdopted {
				p.Spec.NodeSelector = nil
			}
		}
	}
	of := func(kind, name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "owner", Controller: new(true)}}
		}
	}
	both := func(edits ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, edit := range edits {
				edit(p)
			}
		}
	}
	waits := func(p *corev1.Pod) {
		p.Spec.NodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient cpu. preemption: none."}}
	}
	bare := func(p *corev1.Pod) { p.OwnerReferences = nil }
	distributor := func(edit func(*versprei.PodDistributor)) *versprei.PodDistributor {
		d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: versprei.PodDistributorSpec{
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"},
			Distribution: []versprei.Pool{
				{Name: "first", NodeLabel: map[string]versprei.LabelValue{"p": "a"}, Weight: 1, Base: 1, MaxReplicas: new(intstr.FromInt32(3))},
				{Name: "second", NodeLabel: map[string]versprei.LabelValue{"p": "b"}, Weight: 4},
			},
		}}
		if edit != nil {
			edit(d)
		}
		return d
	}
	short := func(phase stowage.PoolPhase, pools string) []client.Object {
		rs := annotated(map[string]string{stowage.SpreadStrategyAliasAnnotation: halves, stowage.SpillAnnotation: "2m"})
		state := &stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs"}}
		for pool := range strings.SplitSeq(pools, "") {
			next := metav1.NewTime(now.Add(time.Minute))
			state.Pools = append(state.Pools, stowage.PoolRoom{Name: pool, NodeLabel: map[string]string{"p": pool}, Phase: phase, Epoch: 1, Since: metav1.NewTime(now), NextProbe: &next, Max: 0})
		}
		return []client.Object{rs, state, nodeA}
	}
	daemons := func(annotations map[string]string) *appsv1.DaemonSet {
		return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent", UID: "owner", Annotations: annotations}}
	}
	named := map[string]string{flexdaemonsets.TemplateAnnotation: "tenth"}
	template := func(edit func(*flexdaemonsets.FlexDaemonsetTemplate)) *flexdaemonsets.FlexDaemonsetTemplate {
		out := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tenth"}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{CPUPercentage: new(int32(10))}}
		if edit != nil {
			edit(out)
		}
		return out
	}
	agent := func(sized bool, edit func(*corev1.Pod)) *corev1.Pod {
		return pod("x", "", 0, both(of("DaemonSet", "agent"), func(p *corev1.Pod) {
			p.Annotations = map[string]string{}
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=400m")
			if sized {
				p.Labels = map[string]string{stowage.SizedByLabel: "tenth"}
				p.Annotations[stowage.DeclaredResourcesAnnotation] = `{"containers":{"c":{}},"sized":["cpu"]}`
			}
			if edit != nil {
				edit(p)
			}
		}))
	}
	condition := func(kind corev1.PodConditionType, reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
		}
	}
	vm := func(record string) func(*corev1.Pod) {
		return both(bare, func(p *corev1.Pod) {
			p.Labels = map[string]string{stowage.PeerPodLabel: "true"}
			p.Spec.RuntimeClassName = new("kata-remote")
			p.Annotations = map[string]string{stowage.OriginalResourcesAnnotation: record, stowage.DefaultVCPUsAnnotation: "8"}
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("kata.peerpods.io/vm=1")
		})
	}

	type situation struct {
		objects []client.Object
		edit    func(*Inspector)
	}
	of1 := func(objects ...client.Object) situation { return situation{objects: objects} }
	texts := map[string]string{}
	for name, tc := range map[string]situation{
		"spread: nothing controls it": of1(pod("x", "", 0, bare)),
		"spread: a DaemonSet's":       of1(pod("x", "", 0, of("DaemonSet", "agent"))),
		"spread: no strategy":         of1(annotated(nil), pod("x", "", 0, func(p *corev1.Pod) { p.Annotations = nil })),
		"spread: of a Deployment": of1(web(2, func(rs *appsv1.ReplicaSet) {
			rs.OwnerReferences = pod("y", "", 0, of("Deployment", "site")).OwnerReferences
			rs.Spec.Template.Annotations = nil
		}), pod("x", "", 0, func(p *corev1.Pod) { p.Annotations = nil })),
		"spread: annotations without effect": of1(annotated(map[string]string{stowage.SpreadSwitchAnnotation: "yes please"}), pod("x", "", 0, func(p *corev1.Pod) { p.Annotations = nil })),
		"spread: a namespace without label":  {[]client.Object{web(2, nil), pod("x", "", 0, nil)}, func(i *Inspector) { i.NamespaceLabel = "divide" }},
		"spread: invalid":                    of1(web(2, nil), pod("x", "", 0, func(p *corev1.Pod) { p.Annotations[stowage.SpreadStrategyAliasAnnotation] = "p" })),
		"spread: a PodDistributor":           of1(web(2, nil), distributor(nil), nodeA, pod("x", "first", 1, nil)),
		"spread: an invalid PodDistributor":  of1(web(2, nil), distributor(func(d *versprei.PodDistributor) { d.Spec.Distribution[1].Name = "first" }), nodeA, pod("x", "first", 1, nil)),
		"spread: prefers its pool":           of1(web(2, nil), distributor(func(d *versprei.PodDistributor) { d.Spec.Enforcement = versprei.EnforcementPreferred }), nodeA, pod("x", "first", 1, nil)),
		"spread: chooses its nodes":          of1(web(2, nil), nodeA, pod("x", "", 0, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"p": "a"} })),
		"spread: every pool was full":        of1(web(2, nil), nodeA, pod("x", "", 0, withClaim(ledger.OriginFull))),
		"spread: it came without a seat":     of1(web(2, nil), nodeA, pod("x", "", 0, nil), pod("y", "0", 1, nil)),
		"spread: mode Audit":                 of1(web(2, nil), nodeA, pod("x", "", 0, func(p *corev1.Pod) { p.Labels = map[string]string{stowage.ModeKey: "Audit"} })),
		"spread: mode Off":                   of1(web(2, nil), nodeA, pod("x", "", 0, func(p *corev1.Pod) { p.Labels = map[string]string{stowage.ModeKey: "Off"} })),
		"spread: its template names a node":  of1(web(1, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.NodeName = "node-a" }), nodeA, pod("x", "", 0, nil)),
		"spread: a pool that was removed":    of1(web(2, nil), nodeA, pod("x", "gone", 1, nil)),
		"spread: a claimed seat":             of1(web(2, nil), nodeA, pod("x", "0", 1, nil), pod("y", "1", 1, nil)),
		"spread: its pool had other labels":  of1(web(2, nil), nodeA, pod("x", "0", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"p": "former"} })),
		"spread: prefers, and is elsewhere":  of1(web(2, nil), distributor(func(d *versprei.PodDistributor) { d.Spec.Enforcement = versprei.EnforcementPreferred }), nodeB, pod("x", "first", 1, nil)),
		"spread: an unshared seat":           of1(web(2, nil), nodeA, pod("x", "0", 1, withClaim(ledger.OriginUnshared))),
		"spread: a seat by ordinal":          of1(web(2, nil), nodeA, pod("x", "0", 1, withClaim(ledger.OriginOrdinal))),
		"spread: an adopted pod":             of1(web(2, nil), nodeA, pod("x", "0", 1, withClaim(ledger.OriginAdopted))),
		"spread: an unknown claim":           of1(web(2, nil), nodeA, pod("x", "0", 1, withClaim('z'))),
		"spread: no proof":                   of1(web(2, nil), nodeA, pod("x", "0", 1, func(p *corev1.Pod) { delete(p.Annotations, stowage.ClaimAnnotation) })),
		"spread: a cost of another writer":   of1(web(2, nil), nodeA, pod("x", "0", 1, func(p *corev1.Pod) { p.Annotations[corev1.PodDeletionCost] = "7" })),
		"spread: a cost that is gone":        of1(web(2, nil), nodeA, pod("x", "0", 1, func(p *corev1.Pod) { delete(p.Annotations, corev1.PodDeletionCost) })),
		"spread: a wrong node":               of1(web(2, nil), nodeB, pod("x", "0", 1, nil)),
		"spread: an unknown node":            of1(web(2, nil), pod("x", "0", 1, nil)),
		"spread: waits for a node":           of1(web(2, nil), nodeA, pod("x", "0", 1, waits)),
		"spread: no pool has room":           of1(append(short(stowage.PoolExhausted, "ab"), pod("x", "0", 1, waits))...),
		"spread: taken from another pool":    of1(append(short(stowage.PoolExhausted, "a"), pod("x", "1", 1, nil), pod("y", "1", 2, nil))...),
		"spread: spilled itself":             of1(append(short(stowage.PoolExhausted, "a"), pod("x", "1", 2, nil), pod("y", "1", 1, nil))...),
		"spread: its pool is tried again":    of1(append(short(stowage.PoolProbing, "a"), pod("x", "0", 1, waits))...),
		"spread: no registration":            {[]client.Object{web(2, nil), nodeA, pod("x", "", 0, nil)}, func(i *Inspector) { i.Registration = "other" }},
		"spread: off":                        {[]client.Object{web(2, nil), nodeA, pod("x", "", 0, nil)}, func(i *Inspector) { i.Spread, i.Sizing, i.VMs = false, false, false }},

		"size: not a DaemonSet's":             of1(web(2, nil), pod("x", "", 0, nil)),
		"size: no annotation":                 of1(daemons(nil), nodeA, agent(false, nil)),
		"size: an annotation on another kind": of1(web(2, nil), nodeA, pod("x", "", 0, func(p *corev1.Pod) { p.Annotations[flexdaemonsets.TemplateAnnotation] = "tenth" })),
		"size: an overhead":                   of1(daemons(map[string]string{flexdaemonsets.TemplateAnnotation: "tenth"}), template(nil), nodeA, agent(true, func(p *corev1.Pod) { p.Spec.Overhead = testkit.ResourceList("cpu=250m,memory=160Mi") })),
		"size: no annotation any more":        of1(daemons(nil), nodeA, agent(true, nil)),
		"size: a template that is gone":       of1(daemons(named), nodeA, agent(true, nil)),
		"size: an invalid template":           of1(daemons(named), nodeA, template(func(t *flexdaemonsets.FlexDaemonsetTemplate) { t.Spec.CPUPercentage = new(int32(-1)) }), agent(true, nil)),
		"size: it came without a size":        of1(daemons(named), nodeA, template(nil), agent(false, nil)),
		"size: a share":                       of1(daemons(named), nodeA, template(nil), agent(true, nil)),
		"size: an unknown node":               of1(daemons(named), template(nil), agent(true, nil)),
		"size: in force": of1(daemons(named), nodeA, template(nil), agent(true, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: &corev1.ResourceRequirements{Requests: testkit.ResourceList("cpu=200m")}}}
		})),
		"size: excluded and a ceiling": of1(daemons(named), nodeA, template(func(t *flexdaemonsets.FlexDaemonsetTemplate) {
			t.Spec.ExcludeContainers = []string{"c"}
			t.Spec.Ceiling = flexdaemonsets.CeilingTemplate
		}), agent(true, nil)),
		"size: another one now": of1(daemons(named), nodeA, template(func(t *flexdaemonsets.FlexDaemonsetTemplate) { t.Spec.CPUPercentage = new(int32(20)) }), agent(true, nil)),
		"size: another one now, in place": of1(daemons(named), nodeA, template(func(t *flexdaemonsets.FlexDaemonsetTemplate) {
			t.Spec.CPUPercentage, t.Spec.UpdatePolicy = new(int32(20)), flexdaemonsets.UpdateInPlace
			t.Status.Conditions = []metav1.Condition{{Type: flexdaemonsets.ConditionUpToDate, Status: metav1.ConditionFalse, Message: "1 of 1 pods was refused: a quota."}}
		}), agent(true, nil)),
		"size: a resize under way":   of1(daemons(named), nodeA, template(nil), agent(true, condition(corev1.PodResizeInProgress, "", ""))),
		"size: a resize that failed": of1(daemons(named), nodeA, template(nil), agent(true, condition(corev1.PodResizeInProgress, corev1.PodReasonError, "below current usage"))),
		"size: a resize that waits":  of1(daemons(named), nodeA, template(nil), agent(true, condition(corev1.PodResizePending, corev1.PodReasonDeferred, "no room"))),
		"size: a resize that cannot": of1(daemons(named), nodeA, template(nil), agent(true, condition(corev1.PodResizePending, corev1.PodReasonInfeasible, ""))),
		"size: no room":              of1(daemons(named), nodeA, template(nil), agent(true, waits)),

		"vm: no RuntimeClass":      of1(pod("x", "", 0, bare)),
		"vm: another one":          of1(pod("x", "", 0, both(bare, func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("gvisor") }))),
		"vm: it bypassed":          of1(pod("x", "", 0, both(bare, func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("kata-remote") }))),
		"vm: a record":             of1(pod("x", "", 0, vm(`{"containers":{"c":{"requests":{"cpu":"1500m","memory":"1Gi"},"limits":{"cpu":"2","nvidia.com/gpu":"1"}},"d":{}},"kept":["`+stowage.DefaultVCPUsAnnotation+`"]}`))),
		"vm: a pod-level record":   of1(pod("x", "", 0, vm(`{"pod":{"requests":{"cpu":"1"}},"containers":{"c":{}}}`))),
		"vm: an unreadable record": of1(pod("x", "", 0, vm(`{`))),
		"vm: no free one":          of1(pod("x", "", 0, both(vm(`{"containers":{"c":{}}}`), waits))),
	} {
		i := newInspectorOf(t, tc.objects...)
		if tc.edit != nil {
			tc.edit(i)
		}
		e, err := i.Explain(t.Context(), "ns", "x")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		texts[name] = e.text()
	}
	golden(t, "explain.golden", texts)
	if _, err := newInspectorOf(t).Explain(t.Context(), "ns", "none"); err == nil {
		t.Error("a pod that does not exist is explained")
	}
}

// Every sentence that an explanation of a node can have stands in the golden file.
func TestExplainNodeTexts(t *testing.T) {
	node := func(vms string, limit string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Status: corev1.NodeStatus{Capacity: testkit.ResourceList("kata.peerpods.io/vm=" + vms), Allocatable: testkit.ResourceList("kata.peerpods.io/vm=" + vms)}}
		if limit != "" {
			n.Annotations = map[string]string{stowage.PeerPodsLimitAnnotation: limit}
		}
		return n
	}
	limits := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "peer-pods-cm"}, Data: map[string]string{stowage.PeerPodsLimitKey: text}}
	}
	vm := pod("vm", "", 0, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("kata.peerpods.io/vm=1")
	})
	texts := map[string]string{}
	for name, tc := range map[string]struct {
		objects []client.Object
		edit    func(*Inspector)
	}{
		"the limit of all nodes":      {objects: []client.Object{node("10", ""), vm}},
		"a limit of its own":          {objects: []client.Object{node("3", "3"), vm}},
		"an invalid limit of its own": {objects: []client.Object{node("10", "many")}},
		"an invalid limit of all":     {objects: []client.Object{node("10", ""), limits("ten")}},
		"both are invalid":            {objects: []client.Object{node("10", "many"), limits("ten")}},
		"another client's amount":     {objects: []client.Object{node("4", "3")}},
		"a ready daemon":              {objects: []client.Object{node("10", ""), daemon("node-a", true)}},
		"a daemon that is not ready":  {objects: []client.Object{node("0", ""), daemon("node-a", false)}},
		"no daemon":                   {objects: []client.Object{node("0", ""), daemon("node-b", true)}},
		"not selected":                {objects: []client.Object{node("0", "")}, edit: func(i *Inspector) { i.Capacity.Nodes = labels.Nothing() }},
		"nothing is advertised":       {objects: []client.Object{node("0", "")}, edit: func(i *Inspector) { i.Capacity = nil }},
		"sized pods and pools": {objects: []client.Object{node("10", ""), web(3, nil), pod("x", "0", 1, nil), pod("y", "0", 2, nil), pod("z", "1", 1, func(p *corev1.Pod) { p.Spec.NodeName = "node-a" }), pod("agent", "", 0, func(p *corev1.Pod) {
			p.Labels = map[string]string{stowage.SizedByLabel: "tenth"}
			p.Annotations = map[string]string{stowage.DeclaredResourcesAnnotation: `{"containers":{"c":{}},"sized":["cpu"]}`}
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=400m")
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: &corev1.ResourceRequirements{Requests: testkit.ResourceList("cpu=200m")}}}
		})}},
	} {
		i := newInspector(t, tc.objects...)
		if tc.edit != nil {
			tc.edit(i)
		}
		e, err := i.ExplainNode(t.Context(), "node-a")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var out strings.Builder
		if err := e.Print(&out, "text"); err != nil {
			t.Fatal(err)
		}
		texts[name] = out.String()
	}
	golden(t, "explain-node.golden", texts)
}
