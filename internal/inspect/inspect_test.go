package inspect

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The objects stand in a fake store that decides nothing. What the views need in a real cluster, and
// what they may read there, is tested in test/serving.

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// authority returns a certificate that ends a month after now.
var authority = sync.OnceValue(func() []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.AddDate(0, 1, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
})

// nodeGone is a node that no test has.
const nodeGone = "node-gone"

const halves = "p=a,weight=1:p=b,weight=1"

// newInspector is for a cluster in which the nodes of pods that run are there, without labels.
func newInspector(t *testing.T, objects ...client.Object) *Inspector {
	t.Helper()
	there := map[string]bool{nodeGone: true}
	for _, o := range objects {
		if _, is := o.(*corev1.Node); is {
			there[o.GetName()] = true
		}
	}
	for _, o := range objects {
		if pod, is := o.(*corev1.Pod); is && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" && !there[pod.Spec.NodeName] {
			there[pod.Spec.NodeName] = true
			objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}})
		}
	}
	return newInspectorOf(t, objects...)
}

// newInspectorOf is for a cluster with these objects, and no other nodes.
func newInspectorOf(t *testing.T, objects ...client.Object) *Inspector {
	t.Helper()
	s, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects { // a node is ready unless its test says otherwise
		if node, is := o.(*corev1.Node); is && node.Status.Conditions == nil {
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}
	}
	renewed := metav1.NewMicroTime(now)
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-leader"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod/stowage-0_abcde"), LeaseDurationSeconds: new(int32(8)), RenewTime: &renewed},
	}, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "stowage"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "w", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: authority()}, MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: `object.spec.?nodeName.orValue("") == ""`}},
		}},
	})
	onNode := func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }
	return &Inspector{
		Client: testkit.Indexed(fake.NewClientBuilder().WithScheme(s)).WithObjects(objects...).WithStatusSubresource(&versprei.PodDistributor{}).WithReturnManagedFields().WithIndex(&corev1.Pod{}, "spec.nodeName", onNode).
			WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).
			WithInterceptorFuncs(interceptor.Funcs{SubResourceGet: testkit.ReplicaSetScale}).Build(),
		Namespace: "stowage-system", Registration: "stowage",
		Clock: clocktesting.NewFakePassiveClock(now), Deployment: "stowage", Controllers: "stowage-controllers", Lease: "stowage-leader",
		Capacity: &Capacity{ConfigMap: types.NamespacedName{Namespace: "stowage-system", Name: "peer-pods-cm"}, Default: 10, Nodes: labels.Everything(), Mode: peerpod.CapacityAuto, Daemons: labels.SelectorFromSet(labels.Set{"app": "cloud-api-adaptor"}), DaemonNamespace: "ns"}, PeerPods: peerpod.DefaultConfig(), Spread: true, Sizing: true, VMs: true,
	}
}

// web is a ReplicaSet with a strategy.
func web(replicas int32, edit func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs"}}
	rs.Spec.Replicas = &replicas
	rs.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: halves}
	if edit != nil {
		edit(rs)
	}
	return rs
}

// failing has a ReplicaSet say that the API server refuses its pods.
func failing(text string) func(*appsv1.ReplicaSet) {
	return func(rs *appsv1.ReplicaSet) {
		rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: text}}
	}
}

// pod is one of its pods, with a seat unless the pool is "".
func pod(name, pool string, ordinal int, edit func(*corev1.Pod)) *corev1.Pod {
	p := testkit.Pod(name).Namespace("ns").Annotation(stowage.SpreadStrategyAliasAnnotation, halves).Container("c", "", "").Obj()
	p.UID = types.UID(name)
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}}
	p.Spec.NodeName = "node-a"
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if pool != "" {
		if label := map[string]string{"0": "a", "1": "b", "first": "a", "second": "b"}[pool]; label != "" {
			p.Spec.NodeSelector, p.Spec.NodeName = map[string]string{"p": label}, "node-"+label
		}
		key := make(ledger.Key, ledger.KeySize)
		metav1.SetMetaDataLabel(&p.ObjectMeta, stowage.PoolLabel, pool)
		metav1.SetMetaDataLabel(&p.ObjectMeta, stowage.SeatLabel, fmt.Sprint(ordinal))
		rank := int64(2*ordinal - map[string]int{"1": 1, "first": 1}[pool])
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.PodDeletionCost, sequence.DeletionCost(rank))
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, stowage.ClaimAnnotation, key.Sign(ledger.OriginClaimed, ledger.WithCostRank(name, rank), ledger.Holder{Namespace: "ns", Owner: "rs"}, ledger.Seat{Pool: pool, Ordinal: int64(ordinal)}))
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// Who wrote a deletion cost is told if that was after the pod was created, and not Stowage.
func TestCostWriter(t *testing.T) {
	t.Parallel()
	const cost, other = `{"f:metadata":{"f:annotations":{"f:controller.kubernetes.io/pod-deletion-cost":{}}}}`, `{"f:metadata":{"f:labels":{"f:x":{}}}}`
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	for name, tc := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   string
	}{
		"nobody":         {},
		"its controller": {fields: []metav1.ManagedFieldsEntry{entry("kube-controller-manager", cost)}},
		"Stowage":        {fields: []metav1.ManagedFieldsEntry{entry("kubelet", other), entry("stowage", cost)}},
		"Karpenter":      {fields: []metav1.ManagedFieldsEntry{{Manager: "x"}, entry("kubelet", other), entry("karpenter", cost)}, want: "karpenter"},
	} {
		kept := slim(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: tc.fields}})
		got := ""
		for _, f := range kept.ManagedFields {
			got += f.Manager
		}
		if got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// daemon is a pod that makes the VMs of a node.
func daemon(node string, ready bool) *corev1.Pod {
	return pod("caa", "", 0, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "caa", UID: "caa", Controller: new(true)}}
		p.Labels, p.Annotations, p.Spec.NodeName, p.Spec.HostNetwork = map[string]string{"app": "cloud-api-adaptor"}, nil, node, true
		if !ready {
			p.Status.Conditions = nil
		}
	})
}

func TestStatus(t *testing.T) {
	template := func(status flexdaemonsets.FlexDaemonsetTemplateStatus) *flexdaemonsets.FlexDaemonsetTemplate {
		return &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tenth"}, Status: status}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Status: corev1.NodeStatus{Allocatable: testkit.ResourceList("kata.peerpods.io/vm=1")}}
	node.Annotations = map[string]string{stowage.PeerPodsLimitAnnotation: "1"}
	vm := func(name string) *corev1.Pod {
		return pod(name, "", 0, func(p *corev1.Pod) {
			p.OwnerReferences = nil
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("kata.peerpods.io/vm=1")
		})
	}
	for name, tc := range map[string]struct {
		objects []client.Object
		ok      bool
		text    []string
	}{
		"an empty cluster":                  {nil, true, []string{"nothing"}},
		"each pool has its own":             {[]client.Object{web(2, nil), pod("x", "0", 1, nil), pod("y", "1", 1, nil)}, true, []string{"ReplicaSet/web", "Everything is as it should be"}},
		"too many in a pool":                {[]client.Object{web(2, nil), pod("x", "0", 1, nil), pod("y", "0", 2, nil)}, false, []string{"pool 0 has 2 pods and should have 1", "roll out"}},
		"a deletion cost of another writer": {[]client.Object{web(2, nil), pod("y", "1", 1, nil), pod("x", "0", 1, func(p *corev1.Pod) { p.Annotations[corev1.PodDeletionCost] = "7" })}, true, []string{"1 pod(s) have no pod-deletion-cost, or one that is not from Stowage"}},
		"costs that break the division": {[]client.Object{web(2, nil), pod("x", "0", 1, nil), pod("y", "1", 1, func(p *corev1.Pod) {
			p.Annotations[corev1.PodDeletionCost] = "-1"
		})}, false, []string{"PodDeletionCostManagement", "does not keep"}},
		"a deletion cost that is gone": {[]client.Object{web(2, nil), pod("x", "0", 1, nil), pod("y", "1", 1, func(p *corev1.Pod) { delete(p.Annotations, corev1.PodDeletionCost) })}, false, []string{"does not keep"}},
		"a pod without a seat":         {[]client.Object{web(2, nil), pod("x", "0", 1, nil), pod("y", "", 0, nil)}, false, []string{"1 pod(s) have no seat"}},
		"a pod that is missing":        {[]client.Object{web(2, nil), pod("x", "0", 1, nil)}, false, []string{"1 pods exist, and 2 are asked for"}},
		"a pod that is not ready":      {[]client.Object{web(2, nil), pod("x", "0", 1, nil), pod("y", "1", 1, func(p *corev1.Pod) { p.Status.Conditions = nil })}, false, []string{"1 of 2 pods are ready"}},
		"an invalid strategy": {[]client.Object{web(1, func(rs *appsv1.ReplicaSet) {
			rs.Spec.Template.Annotations[stowage.SpreadStrategyAliasAnnotation] = "p"
		})}, false, []string{"is invalid, so that it", "→ correct the"}},
		"one that is left alone":       {[]client.Object{web(2, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Labels = map[string]string{stowage.ModeKey: "Off"} })}, true, []string{"left alone on purpose: stowage.dev/mode is Off"}},
		"pods that choose their nodes": {[]client.Object{web(2, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.NodeSelector = map[string]string{"p": "a"} })}, true, []string{"choose their nodes themselves"}},
		"a match condition leaves it out": {[]client.Object{web(2, func(rs *appsv1.ReplicaSet) {
			rs.Spec.Template.Spec.NodeName = "node-a"
			rs.Spec.Template.Annotations[stowage.SpreadStrategyAliasAnnotation] = "q=a,weight=1"
		})}, true, []string{"choose their nodes themselves, by spec.nodeName"}},
		"a template that nobody looked at": {[]client.Object{&flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tenth", Generation: 2}}}, false, []string{"no controller has looked at it"}},
		"pods that a kubelet could not resize": {[]client.Object{template(flexdaemonsets.FlexDaemonsetTemplateStatus{Pods: 3, OffSize: 1, Conditions: []metav1.Condition{
			{Type: flexdaemonsets.ConditionUpToDate, Status: metav1.ConditionFalse, Reason: string(stowage.ReasonFailed), Message: "1 of 3 pods could not be resized"},
		}})}, false, []string{"1 of another size: 1 of 3 pods could not be resized"}},
		"VMs that are free":      {[]client.Object{node, vm("p")}, true, []string{"KATA.PEERPODS.IO/VM"}},
		"more than there may be": {[]client.Object{node, vm("p"), vm("q")}, false, []string{"more than it may have"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newInspector(t, tc.objects...).Status(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := r.Print(&out, Layout{Format: "table", AllNamespaces: true, Width: 80}); err != nil {
				t.Fatal(err)
			}
			if r.OK() != tc.ok {
				t.Errorf("it is as it should be: %t", r.OK())
			}
			for _, part := range tc.text {
				if name != "an empty cluster" && !strings.Contains(out.String(), part) {
					t.Errorf("%q is missing in\n%s", part, &out)
				}
			}
			for _, format := range Formats {
				if err := r.Print(&strings.Builder{}, Layout{Format: format, AllNamespaces: true, Color: true}); err != nil {
					t.Errorf("%s: %v", format, err)
				}
			}
		})
	}
}

// standing has the leader write how it stands.
func standing(t *testing.T, i *Inspector, says string) {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := i.Client.Get(t.Context(), client.ObjectKey{Namespace: i.Namespace, Name: i.Lease}, lease); err != nil {
		t.Fatal(err)
	}
	lease.Annotations = map[string]string{stowage.StandingAnnotation: says}
	if err := i.Client.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

// What is wrong is named, with the object and what to do.
func TestProblems(t *testing.T) {
	daemonSet := func(template string, edit func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent", UID: "ds", Annotations: map[string]string{flexdaemonsets.TemplateAnnotation: template}}}
		if edit != nil {
			edit(d)
		}
		return d
	}
	agent := func(edit func(*corev1.Pod)) *corev1.Pod {
		return pod("agent-x", "", 0, func(p *corev1.Pod) {
			p.Annotations = nil
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "ds", Controller: new(true)}}
			if edit != nil {
				edit(p)
			}
		})
	}
	waits := func(p *corev1.Pod) {
		p.Spec.NodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient x. preemption: none"}}
	}
	kata := func(p *corev1.Pod) {
		p.OwnerReferences, p.Annotations, p.Spec.RuntimeClassName = nil, nil, new("kata-remote")
	}
	tenth := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tenth"}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{CPUPercentage: new(int32(10))}}
	distributor := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: versprei.PodDistributorSpec{
		Target:       versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "gone"},
		Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}},
	}}
	node := func(capacity string, annotations map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: annotations}, Status: corev1.NodeStatus{
			Capacity: testkit.ResourceList("kata.peerpods.io/vm=" + capacity), Allocatable: testkit.ResourceList("kata.peerpods.io/vm=" + capacity),
		}}
	}
	poolNode := func(pool string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + pool, Labels: map[string]string{"p": pool}}}
	}
	claims := func(p *corev1.Pod) {
		waits(p)
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}
	claim := func(volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	volumeOn := func(pool string) *corev1.PersistentVolume {
		terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "p", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}}}}}
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}}}
	}
	const outside = "ReplicaSet/web: 1 pod(s) are outside the pool of their seat: the labels of pools or nodes, or the order of pools, have changed"
	closedNode := func(name string, edit func(*corev1.Node)) *corev1.Node {
		n := poolNode("b")
		n.Name = name
		edit(n)
		return n
	}
	sizedNode := closedNode("sized", func(n *corev1.Node) { n.Status.Allocatable = testkit.ResourceList("cpu=4") })
	elsewhere := tenth.DeepCopy()
	elsewhere.Status = flexdaemonsets.FlexDaemonsetTemplateStatus{OffSize: 2, Pods: 2, DaemonSets: 1, Conditions: []metav1.Condition{{
		Type: flexdaemonsets.ConditionUpToDate, Status: metav1.ConditionFalse, Reason: string(stowage.ReasonDeferred), Message: "such as other/agent-1",
	}}}
	spilling := func(strategy string) *appsv1.ReplicaSet {
		return web(2, func(rs *appsv1.ReplicaSet) {
			rs.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: strategy, stowage.SpillAnnotation: "2m"}
		})
	}
	unschedulable := func(name string, since time.Duration) *corev1.Pod {
		return pod(name, "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-since))
		})
	}
	adopted := func(name string, ordinal int) *corev1.Pod {
		return pod(name, "0", ordinal, func(p *corev1.Pod) { p.Annotations[stowage.ClaimAnnotation] = string(ledger.OriginAdopted) + "x" })
	}
	distributorOf := func(name, kind, target string) *versprei.PodDistributor {
		d := distributor.DeepCopy()
		d.Name, d.Spec.Target.Kind, d.Spec.Target.Name = name, kind, target
		return d
	}
	carrying := func(key string) *versprei.PodDistributor {
		d := distributorOf("d", "ReplicaSet", "web")
		d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{NodeLabel: map[string]versprei.LabelValue{"p": "b"}, Weight: 1, PodLabels: map[string]versprei.LabelValue{key: "x"}})
		return d
	}
	selectNothing := func(i *Inspector) {
		registration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
		if err := i.Client.Patch(t.Context(), registration, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/webhooks/0/namespaceSelector","value":{"matchLabels":{"no":"namespace"}}}]`))); err != nil {
			t.Fatal(err)
		}
	}
	noAuthority := func(i *Inspector) {
		registration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}
		if err := i.Client.Patch(t.Context(), registration, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`))); err != nil {
			t.Fatal(err)
		}
	}
	aged := func(p *corev1.Pod, age time.Duration) *corev1.Pod {
		p.CreationTimestamp = metav1.NewTime(now.Add(-age))
		return p
	}
	later := func(i *Inspector) { i.Clock = clocktesting.NewFakePassiveClock(now.AddDate(0, 2, 0)) }
	for name, tc := range map[string]struct {
		objects []client.Object
		edit    func(*Inspector)
		want    []string // "object: problem" each; a part of it is enough
		action  string   // a part of what to do about the last
	}{
		"nothing": {},
		"Stowage is down": {edit: func(i *Inspector) { i.Clock = clocktesting.NewFakePassiveClock(now.Add(time.Minute)) },
			want: []string{"Lease/stowage-leader: no replica of Stowage leads"}},
		"its leader lacks rights": {edit: func(i *Inspector) {
			standing(t, i, "pod/stowage-0_abcde ready 5ms"+stowage.CheckLacks+"nodes create-pods/eviction patch-pods")
		},
			want: []string{"Pod/stowage-0: may not read nodes: it decides by what it has read before, or leaves pods as they are; and may not create pods/eviction, patch pods: what it is to do"}},
		"its leader lacks none":     {edit: func(i *Inspector) { standing(t, i, "pod/stowage-0_abcde ready 5ms") }},
		"its certificate has ended": {edit: later, want: []string{"Lease/stowage-leader", "MutatingWebhookConfiguration/stowage: its caBundle has no valid certificate"}},
		"settings that are invalid": {edit: func(i *Inspector) {
			i.ConfigMap, i.InvalidConfig = "stowage-config", errors.New("LOG_LEVEL: it is loud")
		},
			want: []string{"ConfigMap/stowage-config: is invalid, and the last valid settings hold: LOG_LEVEL: it is loud"}},
		"no authority": {edit: noAuthority, want: []string{"MutatingWebhookConfiguration/stowage: its caBundle has no valid certificate"}},
		"a certificate from files needs none": {edit: func(i *Inspector) {
			noAuthority(i)
			i.CertDir = "/etc/stowage/certs"
		}},
		"no replica is ready": {objects: []client.Object{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}}},
			want: []string{"Deployment/stowage: 0 of 2 replicas are ready: pods are created unchanged"}},
		"no replica of the controllers is ready": {objects: []client.Object{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-controllers"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}}},
			want: []string{"Deployment/stowage-controllers: 0 of 2 replicas are ready: nothing is repaired"}},
		"the youngest pods have no answer": {objects: []client.Object{web(2, nil), aged(pod("x", "0", 1, nil), 10*time.Minute), aged(pod("y", "", 0, nil), 3*time.Minute)},
			want: []string{"MutatingWebhookConfiguration/stowage: no replica answered in the last 3m: 1 pod(s)", "ReplicaSet/web: 1 pod(s) have no seat"}},
		"no pod shows that its namespace was on": {objects: []client.Object{web(1, nil), aged(pod("y", "", 0, nil), 3*time.Minute)},
			want: []string{"ReplicaSet/web: 1 pod(s) have no seat"}},
		"a younger pod has an answer": {objects: []client.Object{web(2, nil), aged(pod("x", "0", 1, nil), 2*time.Minute), aged(pod("y", "", 0, nil), 3*time.Minute)},
			want: []string{"ReplicaSet/web: 1 pod(s) have no seat"}},
		"an annotation that is younger than its pods": {objects: []client.Object{web(2, func(rs *appsv1.ReplicaSet) {
			rs.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "apps/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}"), Time: &metav1.Time{Time: now.Add(-time.Minute)}}}
		}), pod("x", "0", 1, nil), aged(pod("y", "", 0, nil), 3*time.Minute)},
			want: []string{"ReplicaSet/web: 1 pod(s) have no seat"}},
		"a peer pod that bypassed the webhook": {objects: []client.Object{pod("vm", "", 0, kata)}, want: []string{"Pod/vm: RuntimeClass kata-remote without kata.peerpods.io/vm: the webhook was bypassed (pod vm)"}},
		"but not where Stowage is off": {objects: []client.Object{pod("vm", "", 0, func(p *corev1.Pod) {
			kata(p)
			p.Labels = map[string]string{stowage.ModeKey: "Off"}
		})}},
		"a DaemonSet's pod without a size":          {objects: []client.Object{closedNode("node-a", func(n *corev1.Node) { n.Status.Allocatable = testkit.ResourceList("cpu=4,memory=8Gi,pods=10") }), daemonSet("tenth", nil), tenth, agent(nil)}, want: []string{"DaemonSet/agent: no size: created before"}},
		"a DaemonSet's pod that has a size nowhere": {objects: []client.Object{daemonSet("tenth", nil), tenth, agent(nil)}, want: []string{"DaemonSet/agent: no size, and a pod that is created now gets none: "}, action: "a rollout alone changes nothing"},
		"a DaemonSet whose template is not there":   {objects: []client.Object{daemonSet("none", nil), agent(nil)}, want: []string{"DaemonSet/agent: names FlexDaemonsetTemplate none, which does not exist"}},
		"a PodDistributor without a target":         {objects: []client.Object{distributor}, want: []string{"PodDistributor/d: its target apps/v1 Deployment gone does not exist"}},
		"a PodDistributor with a target": {objects: []client.Object{web(1, nil), pod("x", "0", 1, nil), &versprei.PodDistributor{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: versprei.PodDistributorSpec{
				Target: versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}, Distribution: distributor.Spec.Distribution,
			}}}, want: []string{"ReplicaSet/web: the strategy is ignored, because a PodDistributor divides the pods of this workload"}},
		"a peer pod that waits for a VM": {objects: []client.Object{node("10", nil), pod("vm", "", 0, func(p *corev1.Pod) {
			kata(p)
			waits(p)
			p.Spec.NodeSelector = nil
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("kata.peerpods.io/vm=1")
		})}, want: []string{"Pod/vm: no free VM: 0/1 nodes are available: 1 Insufficient x (pod vm)"}},
		"a peer pod that fits no node": {objects: []client.Object{node("10", nil), pod("vm", "", 0, func(p *corev1.Pod) {
			kata(p)
			waits(p)
			p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("kata.peerpods.io/vm=1")
		})}, want: []string{"Pod/vm: no node is as the node selector or affinity of the pod asks: 0/1"}},
		"a sized pod that waits": {objects: []client.Object{daemonSet("tenth", nil), tenth, agent(func(p *corev1.Pod) {
			waits(p)
			p.Labels = map[string]string{stowage.SizedByLabel: "tenth"}
		})}, want: []string{"DaemonSet/agent: no room for the size: 0/1"}},
		"a sized pod that something else keeps from its node": {objects: []client.Object{closedNode("roomy", func(n *corev1.Node) { n.Status.Allocatable = testkit.ResourceList("cpu=4,pods=10") }), daemonSet("tenth", nil), tenth, agent(func(p *corev1.Pod) {
			waits(p)
			p.Labels = map[string]string{stowage.SizedByLabel: "tenth"}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"roomy"}}},
			}}}}}
		})}, want: []string{"DaemonSet/agent: node roomy has room for the size, and something else keeps the pod from it: 0/1"}},
		"a template with pods of another size elsewhere": {objects: []client.Object{elsewhere, daemonSet("tenth", nil)}},
		"a seated pod that waits":                        {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, waits)}, want: []string{"ReplicaSet/web: no room in pool 1: 0/1"}},
		"a constraint over all pools": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "p", WhenUnsatisfiable: corev1.DoNotSchedule, MaxSkew: 1, NodeAffinityPolicy: new(corev1.NodeInclusionPolicyIgnore)}}
		})}, want: []string{"ReplicaSet/web: the topology spread constraint over p counts the nodes of all pools (nodeAffinityPolicy: Ignore), so pods may wait although their pool has room (pool 1): 0/1"}, action: "set nodeAffinityPolicy to Honor"},
		"affinity to pods of one pool": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Labels["app"] = "web"
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "p", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}
		})}, want: []string{"ReplicaSet/web: the required affinity to pods over p keeps them all in one domain, and the strategy divides them over 2 (pool 1): 0/1"}, action: "make the affinity preferred"},
		"affinity to other pods": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "p", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}}}
		})}, want: []string{"ReplicaSet/web: no room in pool 1: 0/1"}},
		"a pod that other pools take later":   {objects: []client.Object{poolNode("b"), spilling("p=a,weight=1:p=b,weight=1"), unschedulable("x", time.Minute)}, want: []string{"ReplicaSet/web: no room in pool 1: 0/1"}, action: "other pools take the pods from 00:01:00 on"},
		"a pod that others should have taken": {objects: []client.Object{poolNode("b"), spilling("p=a,weight=1:p=b,weight=1"), unschedulable("x", 5*time.Minute)}, want: []string{"ReplicaSet/web: no room in pool 1: 0/1"}, action: "wait: other pools take the pods, unless room is on its way"},
		"a pod that no other pool takes":      {objects: []client.Object{poolNode("b"), spilling("p=a,base=1,weight=0:p=b,weight=1"), pod("y", "0", 1, nil), unschedulable("x", 5*time.Minute)}, want: []string{"ReplicaSet/web: no room in pool 1: 0/1"}, action: "other pools do not take all of the pods, because pool 0 has weight 0 and no overflow"},
		"a node selector from admission": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.NodeSelector["disk"] = "ssd"
			p.Spec.RuntimeClassName = new("fast")
		})}, want: []string{"ReplicaSet/web: no node of pool 1 is as the pods ask, and their pod template does not ask for nodes: 0/1"}, action: "correct what adds it to pods at admission: RuntimeClass fast (scheduling), an admission policy"},
		"a pin from admission": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"p": "z"} })},
			want: []string{"ReplicaSet/web: 1 pod(s) such as x have no seat, because they choose their nodes themselves, by node label p, which their pod template does not have"}, action: "correct what adds it to pods at admission: an admission policy"},
		"a pod whose labels are gone": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"p": "b"} })},
			want: []string{"ReplicaSet/web: 1 pod(s) such as x have no seat, because they choose their nodes themselves, by node label p, which their pod template does not have, and which is that of pool 1"}, action: "if somebody has removed the labels or the claim of their seat, delete these pods one after the other"},
		"a claim that does not exist": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, claims)}, want: []string{"ReplicaSet/web: PersistentVolumeClaim data does not exist: 0/1"}},
		"a claim that is to have a volume first": {objects: []client.Object{poolNode("b"), web(1, nil), claim(""), pod("x", "1", 1, func(p *corev1.Pod) {
			claims(p)
			p.Status.Conditions[0].Message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims"
		})}, want: []string{"ReplicaSet/web: PersistentVolumeClaim data has no volume yet"}, action: "kubectl -n ns describe pvc data"},
		"a volume that is gone":           {objects: []client.Object{poolNode("b"), web(1, nil), claim("pv"), pod("x", "1", 1, claims)}, want: []string{"ReplicaSet/web: PersistentVolume pv of PersistentVolumeClaim data does not exist any more"}},
		"a volume of a node that is gone": {objects: []client.Object{poolNode("b"), web(1, nil), claim("pv"), volumeOn("gone"), pod("x", "1", 1, claims)}, want: []string{"ReplicaSet/web: no node reaches the volume of PersistentVolumeClaim data, which is for nodes with p=gone"}},
		"a volume of another pool":        {objects: []client.Object{poolNode("a"), poolNode("b"), web(1, nil), claim("pv"), volumeOn("a"), pod("x", "1", 1, claims)}, want: []string{"ReplicaSet/web: no node of pool 1 could take them: the pods' volumes are elsewhere"}, action: "add a node to the pool that reaches the volume"},
		"a volume within reach":           {objects: []client.Object{poolNode("b"), web(1, nil), claim("pv"), volumeOn("b"), pod("x", "1", 1, claims)}, want: []string{"ReplicaSet/web: no room in pool 1"}},
		"a pool that is closed": {objects: []client.Object{poolNode("b"), closedNode("cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }), closedNode("broken", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}), web(1, nil), pod("x", "1", 1, waits)}, want: []string{"ReplicaSet/web: no room in pool 1"}},
		"each node is closed in another way": {objects: []client.Object{closedNode("cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }), closedNode("broken", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}), closedNode("tainted", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "arch", Value: "arm64", Effect: corev1.TaintEffectNoSchedule}}
		}), web(1, nil), pod("x", "1", 1, waits)},
			want: []string{"ReplicaSet/web: no node of pool 1 takes new pods: 1 cordoned, 1 not ready, 1 with a taint that the pods do not tolerate, such as arch=arm64:NoSchedule"}},
		"devices": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
		})}, want: []string{"ReplicaSet/web: no node of pool 1 is found for them, and whether room is the cause is not known, because the pods claim devices"}},
		"requests of the pod as a whole": {objects: []client.Object{sizedNode, web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: testkit.ResourceList("cpu=30")}
		})}, want: []string{"ReplicaSet/web: no node of pool 1 could take them: each pod requests 30 of cpu, and the largest node there has 4 allocatable"}},
		"a scheduler that does not run": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.SchedulerName, p.Status.Conditions = "mine", nil
		})}, want: []string{"ReplicaSet/web: no scheduler has looked for a node; the pods are for the scheduler mine"}},
		"a pod that has just come": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.CreationTimestamp, p.Status.Conditions = metav1.NewTime(now.Add(-time.Second)), nil
		})}},
		"a gate of somebody else": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.SchedulingGates, p.Status.Conditions = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}, nil
		})}, want: []string{"ReplicaSet/web: waits at the scheduling gate kueue.x-k8s.io/admission"}},
		"a scheduler that fails": {objects: []client.Object{poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Status.Conditions[0].Reason, p.Status.Conditions[0].Message = corev1.PodReasonSchedulerError, "out of luck"
		})}, want: []string{"ReplicaSet/web: the scheduler default-scheduler has found no node: SchedulerError: out of luck"}},
		"a seated pod whose strategy is gone": {objects: []client.Object{poolNode("b"), web(1, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Annotations = nil }), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			delete(p.Annotations, stowage.SpreadStrategyAliasAnnotation)
		})}, want: []string{"ReplicaSet/web: no strategy divides these pods any more, and they still wait for a node of pool 1, which their seat has them select: 0/1"}},
		"the pool had other labels when the pod came": {objects: []client.Object{poolNode("a"), poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.NodeSelector = map[string]string{"p": "bb"}
		})}, want: []string{outside, "ReplicaSet/web: the pods ask for nodes with p=bb, as pool 1 had them when the pods were created, and no node has these labels: 0/1"}, action: "delete the pods, so that their owner creates others by the strategy as it is now"},
		"the pool required other labels when the pod came": {objects: []client.Object{poolNode("a"), poolNode("b"), web(1, nil), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.NodeSelector = nil
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "p", Operator: corev1.NodeSelectorOpIn, Values: []string{"bb", "bbb"}}}},
			}}}}
		})}, want: []string{outside, "ReplicaSet/web: the pods ask for nodes with p in (bb,bbb), as pool 1 had them when the pods were created, and no node has these labels: 0/1"}},
		"but not where the spread is off": {objects: []client.Object{pod("x", "1", 1, waits)}, edit: func(i *Inspector) { i.Spread = false }},
		"no node has the labels":          {objects: []client.Object{poolNode("a"), web(1, nil), pod("x", "1", 1, waits)}, want: []string{"ReplicaSet/web: no node has the labels of pool 1 (p=b): 0/1"}},
		"the template's own selector fits no node": {objects: []client.Object{poolNode("b"), web(1, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"} }), pod("x", "1", 1, func(p *corev1.Pod) {
			waits(p)
			p.Spec.NodeSelector["disk"] = "ssd"
		})}, want: []string{"ReplicaSet/web: no node of pool 1 has what the node selector or affinity of the pod template asks for: 0/1"}},
		"pods that choose nodes which are not there": {objects: []client.Object{poolNode("b"), web(1, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.NodeSelector = map[string]string{"p": "c"} }), pod("x", "", 0, func(p *corev1.Pod) {
			waits(p)
			p.Spec.NodeSelector = map[string]string{"p": "c"}
		})}, want: []string{"ReplicaSet/web: the pod template chooses nodes itself, and no node is as it asks: 0/1"}},
		"a quota refuses pods": {objects: []client.Object{web(2, failing("exceeded quota: none")), pod("x", "0", 1, nil)}, want: []string{"ReplicaSet/web: 1 of 2 pods exist, because the API server refuses to create more: exceeded quota: none"}},
		"a policy refuses what Stowage adds": {objects: []client.Object{web(2, failing("denied: node selectors are not for tenants")), pod("x", "0", 1, nil)},
			want: []string{"ReplicaSet/web: 1 of 2 pods exist, because the API server refuses to create more: denied: node selectors are not for tenants; Stowage gives pods the node selector p=a or p=b (annotation of the pod template)"}, action: "set enforcement: Preferred"},
		"a policy refuses, and says nothing": {objects: []client.Object{web(2, failing("denied: ask the platform team")), pod("x", "0", 1, nil)},
			want: []string{"whether that is because of what Stowage gives pods is not known: the node selector p=a or p=b"}, action: "kubectl stowage check -n ns"},
		"a LimitRange refuses peer pods": {objects: []client.Object{web(2, func(rs *appsv1.ReplicaSet) {
			failing("minimum cpu usage per Container is 1.  No request is specified")(rs)
			rs.Spec.Template.Annotations, rs.Spec.Template.Spec.RuntimeClassName = nil, new("kata-remote")
		})}, want: []string{"ReplicaSet/web: 0 of 2 pods exist, because the API server refuses to create more: minimum cpu usage per Container is 1.  No request is specified; Stowage gives pods a VM in place of requests and limits (RuntimeClass kata-remote)"}, action: "from the LimitRange"},
		"a LimitRange refuses peer pods of a strategy": {objects: []client.Object{web(2, func(rs *appsv1.ReplicaSet) {
			failing("minimum cpu usage per Container is 1.  No request is specified")(rs)
			rs.Spec.Template.Spec.RuntimeClassName = new("kata-remote")
		}), pod("x", "0", 1, nil)}, want: []string{"Stowage gives pods a VM in place of requests and limits (RuntimeClass kata-remote)"}, action: "from the LimitRange"},
		"no replica of the webhook answers, and none has to be missed": {objects: []client.Object{web(2, failing(`Internal error occurred: failed calling webhook "pods-fail.stowage.dev": connection refused`)), pod("x", "0", 1, nil)},
			want: []string{"no replica of Stowage's webhook answered, and with failure policy Fail no pod is created then"}, action: "set the failure policy to Ignore"},
		"pods that were adopted": {objects: []client.Object{web(2, nil), adopted("x", 1), adopted("y", 2)}, want: []string{"ReplicaSet/web: pool 0 has 2 pods and should have 1: 2 of them were there before Stowage divided them"}},
		"a rollout that finds no node": {objects: []client.Object{poolNode("a"), web(2, nil), adopted("x", 1), adopted("y", 2)},
			want: []string{"ReplicaSet/web: pool 0 has 2 pods and should have 1"}, action: "first correct the labels of pool 1 (p=b), or add nodes with them: no node has them"},
		"a rollout that finds cordoned nodes": {objects: []client.Object{poolNode("a"), closedNode("b", func(n *corev1.Node) { n.Spec.Unschedulable = true }), web(2, nil), adopted("x", 1), adopted("y", 2)},
			want: []string{"ReplicaSet/web: pool 0 has 2 pods and should have 1"}, action: "first kubectl uncordon nodes of pool 1, or add others: all are cordoned"},
		"labels that the owner selects by": {objects: []client.Object{web(2, func(rs *appsv1.ReplicaSet) {
			rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			rs.Spec.Template.Annotations = nil
		}), pod("x", "0", 1, nil), pod("y", "1", 1, nil), carrying("app")},
			want: []string{"ReplicaSet/web: PodDistributor d: pool 1 has podLabels with the key app, which pods do not get: the selector of ReplicaSet web names it"}, action: "remove these podLabels from the pool"},
		"a setting that is ignored": {objects: []client.Object{web(1, func(rs *appsv1.ReplicaSet) {
			rs.Spec.Template.Annotations[stowage.RepairAnnotation] = "Recreat"
		}), pod("x", "1", 1, nil)}, want: []string{`ReplicaSet/web: stowage.dev/repair is "Recreat" and is ignored`}},
		"the registration leaves all out":      {objects: []client.Object{web(1, nil), pod("x", "1", 1, nil)}, edit: selectNothing, want: []string{"ReplicaSet/web: has a strategy, and the webhook's registration leaves its pods out"}},
		"a PodDistributor of a DaemonSet":      {objects: []client.Object{daemonSet("", nil), distributorOf("d", "DaemonSet", "agent")}, want: []string{"PodDistributor/d: is invalid, so that it divides no pods: spec.target.kind is DaemonSet"}},
		"a PodDistributor of another spelling": {objects: []client.Object{web(1, nil), pod("x", "1", 1, nil), distributorOf("d", "replicaset", "web")}, want: []string{"PodDistributor/d: is invalid, so that it divides no pods: spec.target.kind is \"replicaset\""}},
		"two PodDistributors of one target":    {objects: []client.Object{web(1, nil), pod("x", "0", 1, nil), distributorOf("c", "ReplicaSet", "web"), distributorOf("d", "ReplicaSet", "web")}, want: []string{"PodDistributor/d: divides no pods, because PodDistributor c is older and has the same target", "ReplicaSet/web: the strategy is ignored"}},
		"VMs of another client":                {objects: []client.Object{node("3", nil)}, want: []string{"Node/n: advertises 3 kata.peerpods.io/vm, which another client set, and not 10"}},
		"a daemon that is not Ready":           {objects: []client.Object{node("0", nil), daemon("n", false)}, want: []string{"Node/n: its daemon is not Ready, so it advertises no VMs"}},
		"the amount of a daemon":               {objects: []client.Object{node("3", nil), daemon("n", true)}},
		"a limit that is no number":            {objects: []client.Object{node("10", map[string]string{stowage.PeerPodsLimitAnnotation: "many"})}, want: []string{"Node/n: its annotation"}},
		"a ConfigMap that is refused": {objects: []client.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "peer-pods-cm"}, Data: map[string]string{"PEERPODS_LIMIT_PER_NODE": "ten"}}},
			want: []string{"ConfigMap/peer-pods-cm: its limit is refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInspector(t, tc.objects...)
			if tc.edit != nil {
				tc.edit(i)
			}
			r, err := i.Status(t.Context(), "ns")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range r.Problems {
				got = append(got, p.Object+": "+p.Problem)
				if p.Action == "" || p.Reason == "" {
					t.Errorf("%s: nothing is said about its reason or what to do", p.Object)
				}
			}
			if len(got) != len(tc.want) {
				t.Fatalf("the problems are %q", got)
			}
			for n, want := range tc.want {
				if !strings.Contains(got[n], want) {
					t.Errorf("problem %d is %q, want %q", n, got[n], want)
				}
			}
			if n := len(r.Problems); n > 0 && !strings.Contains(r.Problems[n-1].Action, tc.action) {
				t.Errorf("what to do is %q", r.Problems[n-1].Action)
			}
			if len(tc.want) > 0 && r.OK() {
				t.Error("it is as it should be")
			}
		})
	}
}

// A namespace that does not exist is a mistake of the caller, and names leave out all others.
func TestStatusOfNames(t *testing.T) {
	i := newInspector(t, web(1, nil), pod("x", "1", 1, nil))
	if _, err := i.Status(t.Context(), "typo"); !errors.Is(err, ErrNoNamespace) {
		t.Errorf("a namespace that does not exist: %v", err)
	}
	r, err := i.Status(t.Context(), "ns")
	if err != nil {
		t.Fatal(err)
	}
	if unknown := r.Only([]string{"replicaset/web", "deployment/other"}); len(unknown) != 1 || unknown[0] != "deployment/other" || len(r.Workloads) != 1 {
		t.Errorf("unknown %v, %d workloads", unknown, len(r.Workloads))
	}
}

// says checks that an explanation, as text, has some parts.
func says(t *testing.T, e interface{ Print(io.Writer, string) error }, parts ...string) {
	t.Helper()
	var out strings.Builder
	if err := e.Print(&out, "text"); err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, &out)
		}
	}
}

// Pods of a workload that look alike are explained by one of them.
func TestExplainWorkload(t *testing.T) {
	waits := func(p *corev1.Pod) {
		p.Spec.NodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available."}}
	}
	bNode := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-b", Labels: map[string]string{"p": "b"}}}
	i := newInspector(t, bNode, web(4, nil), pod("a", "0", 1, nil), pod("b", "0", 2, nil), pod("c", "1", 1, waits), pod("d", "", 0, nil),
		pod("stranger", "0", 9, func(p *corev1.Pod) { p.OwnerReferences = nil }))
	for _, kind := range []string{"rs", "replicaset", "ReplicaSets"} {
		e, err := i.ExplainWorkload(t.Context(), "ns", kind, "web")
		if err != nil {
			t.Fatal(err)
		}
		says(t, e,
			"ReplicaSet ns/web", "Problem: no room in pool 1: 0/1 nodes are available (pod c)", "2 pods that look alike, one of them: Pod ns/a",
			"1 pod: Pod ns/c", "It is Pending: no room in pool 1: 0/1", "1 pod: Pod ns/d", "It would be given a seat if it were created now")
	}
	// A Deployment's problems are those of its ReplicaSets' pods.
	owned := web(1, func(rs *appsv1.ReplicaSet) {
		rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "site", UID: "d", Controller: new(true)}}
	})
	site := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "site", UID: "d"}}
	if e, err := newInspector(t, site, owned, pod("c", "1", 1, waits)).ExplainWorkload(t.Context(), "ns", "deploy", "site"); err != nil || len(e.Problems) != 1 || e.Problems[0].Object != "ReplicaSet/web" {
		t.Errorf("a Deployment: %+v, %v", e, err)
	}
	if _, err := i.ExplainWorkload(t.Context(), "ns", "deployment", "web"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a Deployment that does not exist: %v", err)
	}
}

func TestExplainNode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Status: corev1.NodeStatus{
		Capacity: testkit.ResourceList("kata.peerpods.io/vm=3"), Allocatable: testkit.ResourceList("kata.peerpods.io/vm=3"),
	}}
	i := newInspector(t, node, web(1, nil), pod("x", "0", 1, nil),
		pod("vm", "", 0, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("kata.peerpods.io/vm=1")
		}),
		pod("agent", "", 0, func(p *corev1.Pod) {
			p.Labels = map[string]string{stowage.SizedByLabel: "tenth"}
			p.Annotations = map[string]string{stowage.DeclaredResourcesAnnotation: `{"containers":{"c":{}},"sized":["cpu"]}`}
			p.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=400m")
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: &corev1.ResourceRequirements{Requests: testkit.ResourceList("cpu=200m")}}}
		}))
	e, err := i.ExplainNode(t.Context(), "node-a")
	if err != nil {
		t.Fatal(err)
	}
	says(t, e,
		"It advertises 3 kata.peerpods.io/vm, and its pods request 1.", "Pod ns/vm takes 1.", "The limit of all nodes is 10",
		"Problem: advertises 3 kata.peerpods.io/vm, which another client set, and not 10",
		"Pod ns/agent is sized by FlexDaemonsetTemplate tenth: cpu 400m (in force: 200m).",
		"1 of the pods of ReplicaSet ns/web in pool 0.")
	if _, err := i.ExplainNode(t.Context(), "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a node that does not exist: %v", err)
	}
}

// A pod that its author gave a VM has no RuntimeClass. It waits for no seat.
func TestVMWithoutRuntimeClass(t *testing.T) {
	i := &Inspector{}
	i.PeerPods.VMResource = "kata.peerpods.io/vm"
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"a": "b"}, Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"kata.peerpods.io/vm": resource.MustParse("1")}},
	}}}}
	reason, values := i.newCells().waitsFor(t.Context(), pod, nil, nodeLabels{"n": {}})
	f := finding.Finding{Reason: reason, Values: values}
	if want := "no node is as the node selector or affinity of the pod asks; correct them in the pod template, or label nodes"; f.String() != want {
		t.Errorf("%s, want %s", &f, want)
	}
}
