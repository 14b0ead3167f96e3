package capacity

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The objects stand in a fake store that decides nothing; what the scheduler and kubelets make of
// the capacity is tested in test/resources.

const vm = corev1.ResourceName("kata.peerpods.io/vm")

type bench struct {
	*run
	clock    *clocktesting.FakeClock
	recorder *clientevents.FakeRecorder
	fakes    *informertest.FakeInformers
}

// newBench returns a controller in a term that knows the limit of all nodes.
func newBench(t *testing.T, limit int64, objects ...client.Object) *bench {
	t.Helper()
	s, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(&corev1.Node{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
	b := &bench{clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), recorder: clientevents.NewFakeRecorder(100), fakes: &informertest.FakeInformers{Scheme: s}}
	selector, err := labels.Parse("!control-plane")
	if err != nil {
		t.Fatal(err)
	}
	b.run = &run{
		Controller: &Controller{
			Uncached: c, Informers: testkit.Cache{Informers: b.fakes, Reader: c}, Resource: vm, ConfigMap: types.NamespacedName{Namespace: "stowage-system", Name: "peer-pods-cm"}, Default: 10,
			Nodes: selector, Mode: peerpod.CapacityAuto, Daemons: labels.SelectorFromSet(labels.Set{"app": "cloud-api-adaptor"}), DaemonNamespace: "caa", Clock: b.clock, Log: logr.Discard(), Events: events.Recorder{EventRecorder: b.recorder}, Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
		},
		term:  t.Context(),
		nodes: testkit.Queue[string](),
		limit: limit, published: map[string]use{}, others: map[string]unlabelled{}, daemonSets: map[types.UID]bool{}, missing: map[string]time.Time{},
	}
	b.pods = synced{toolscache.NewSharedIndexInformerWithOptions(&toolscache.ListWatch{}, &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: podIndexers()})}
	b.daemons = synced{toolscache.NewSharedIndexInformerWithOptions(&toolscache.ListWatch{}, &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: daemonIndexers()})}
	return b
}

// synced is an informer that is filled by hand.
type synced struct{ toolscache.SharedIndexInformer }

func (synced) HasSynced() bool { return true }

func node(capacity int64, mark string, edit func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker", UID: "node", Annotations: map[string]string{}}}
	if capacity >= 0 {
		n.Status.Capacity = corev1.ResourceList{vm: *resource.NewQuantity(capacity, resource.DecimalSI)}
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	if mark != "" {
		n.Annotations[stowage.PeerPodsCapacityAnnotation] = mark
	}
	if edit != nil {
		edit(n)
	}
	return n
}

func (b *bench) advertisedNow(t *testing.T) (amount, mark string) {
	t.Helper()
	var n corev1.Node
	if err := b.Uncached.Get(t.Context(), client.ObjectKey{Name: "worker"}, &n); err != nil {
		t.Fatal(err)
	}
	if q, ok := n.Status.Allocatable[vm]; ok {
		amount = q.String()
	}
	return amount, n.Annotations[stowage.PeerPodsCapacityAnnotation]
}

func TestReconcile(t *testing.T) {
	for name, tc := range map[string]struct {
		node         *corev1.Node
		limit        int64
		amount, mark string
		event        stowage.EventReason
		kind         string // of the write
	}{
		"a node that advertises nothing":   {node: node(-1, "", nil), limit: 7, amount: "7", mark: "7", kind: "set"},
		"one that is right":                {node: node(7, "7", nil), limit: 7, amount: "7", mark: "7"},
		"another limit":                    {node: node(7, "7", nil), limit: 3, amount: "3", mark: "3", kind: "set"},
		"a kubelet that zeroed it":         {node: node(0, "7", nil), limit: 7, amount: "7", mark: "7", kind: "restored"},
		"another writer":                   {node: node(99, "7", nil), limit: 7, amount: "7", mark: "7", kind: "restored", event: stowage.EventCapacityContested},
		"an amount of another client's":    {node: node(99, "", nil), limit: 7, amount: "99", event: stowage.EventForeignCapacity},
		"a node that may have none":        {node: node(7, "7", func(n *corev1.Node) { n.Labels = map[string]string{"control-plane": ""} }), limit: 7, kind: "withdrawn"},
		"a limit of its own":               {node: node(-1, "", func(n *corev1.Node) { n.Annotations[stowage.PeerPodsLimitAnnotation] = "2" }), limit: 7, amount: "2", mark: "2", kind: "set"},
		"one that is wrong":                {node: node(-1, "", func(n *corev1.Node) { n.Annotations[stowage.PeerPodsLimitAnnotation] = "two" }), limit: 7, amount: "7", mark: "7", kind: "set", event: stowage.EventInvalidLimit},
		"the limit is not known":           {node: node(-1, "", nil), limit: peerpod.None},
		"but the node was told one before": {node: node(0, "5", nil), limit: peerpod.None, amount: "5", mark: "5", kind: "restored"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.limit, tc.node)
			for range 2 { // the second time there is nothing to do
				if _, err := b.reconcile(t.Context(), "worker"); err != nil {
					t.Fatal(err)
				}
			}
			if amount, mark := b.advertisedNow(t); amount != tc.amount || mark != tc.mark {
				t.Errorf("it advertises %q, marked %q", amount, mark)
			}
			for _, kind := range []string{"set", "restored", "withdrawn"} {
				want := 0.0
				if kind == tc.kind {
					want = 1
				}
				if got := testutil.ToFloat64(b.Metrics.writes.WithLabelValues(kind)); got != want {
					t.Errorf("%v writes are counted as %s", got, kind)
				}
			}
			if n := len(b.recorder.Events); (n > 0) != (tc.event != "") {
				t.Errorf("%d events", n)
			} else if n > 0 {
				if e := <-b.recorder.Events; !strings.Contains(e, string(tc.event)) {
					t.Errorf("event %q", e)
				}
			}
		})
	}
}

// A process removed the amount and ended before it removed the mark. The next one removes the mark, and writes no amount.
func TestMarkLeftBehind(t *testing.T) {
	b := newBench(t, 7, node(-1, "7", func(n *corev1.Node) { n.Labels = map[string]string{"control-plane": ""} }))
	b.Uncached = interceptor.NewClient(b.Uncached.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			t.Error("an amount is written")
			return nil
		},
	})
	if _, err := b.reconcile(t.Context(), "worker"); err != nil {
		t.Fatal(err)
	}
	if amount, mark := b.advertisedNow(t); amount != "" || mark != "" {
		t.Errorf("it advertises %q, marked %q", amount, mark)
	}
}

// Another client hands a node's amount over to itself after the node was read. Its amount stays.
func TestChangedMeanwhile(t *testing.T) {
	b := newBench(t, 7, node(7, "7", func(n *corev1.Node) { n.Labels = map[string]string{"control-plane": ""} }))
	api := b.Uncached
	b.Uncached = interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			if err := api.Get(ctx, key, obj); err != nil {
				return err
			}
			other := obj.DeepCopyObject().(*corev1.Node)
			delete(other.Annotations, stowage.PeerPodsCapacityAnnotation)
			return api.Update(ctx, other)
		},
	})
	result, err := b.reconcile(t.Context(), "worker")
	b.Uncached = api
	if amount, mark := b.advertisedNow(t); err != nil || result.RequeueAfter == 0 || amount != "7" || mark != "" {
		t.Errorf("it advertises %q, marked %q, looks again after %s, %v", amount, mark, result.RequeueAfter, err)
	}
	if _, err := b.reconcile(t.Context(), "worker"); err != nil {
		t.Fatal(err)
	}
	if amount, _ := b.advertisedNow(t); amount != "7" {
		t.Errorf("later it advertises %q", amount)
	}
}

// A kubelet zeroes the amount again before the cache shows that it was put back, so the cache shows no change. The node is looked
// at again all the same.
func TestLooksAgain(t *testing.T) {
	for name, node := range map[string]*corev1.Node{"it was put back by this process": node(0, "7", nil), "or by another": node(7, "7", nil)} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 7, node)
			stale := node.DeepCopy()
			stale.Status.Capacity[vm], stale.Status.Allocatable[vm] = resource.MustParse("0"), resource.MustParse("0")
			if result, err := b.advertise(t.Context(), stale); err != nil || result.RequeueAfter != lookAgain {
				t.Errorf("it is looked at again after %s, %v", result.RequeueAfter, err)
			}
			if result, err := b.reconcile(t.Context(), "worker"); err != nil || result.RequeueAfter != 0 {
				t.Errorf("there is nothing to do, and it is looked at again after %s, %v", result.RequeueAfter, err)
			}
		})
	}
}

// Another writer that zeroes the amount again and again is met less and less often.
func TestContest(t *testing.T) {
	b := newBench(t, 7, node(7, "7", nil))
	for range 600 {
		var n corev1.Node
		if err := b.Uncached.Get(t.Context(), client.ObjectKey{Name: "worker"}, &n); err != nil {
			t.Fatal(err)
		}
		n.Status.Capacity[vm], n.Status.Allocatable[vm] = resource.MustParse("0"), resource.MustParse("0")
		if err := b.Uncached.Status().Update(t.Context(), &n); err != nil {
			t.Fatal(err)
		}
		if _, err := b.reconcile(t.Context(), "worker"); err != nil {
			t.Fatal(err)
		}
		b.clock.Step(time.Second)
	}
	if got := testutil.ToFloat64(b.Metrics.writes.WithLabelValues("restored")); got < 4 || got > 20 {
		t.Errorf("it was put back %v times in ten minutes", got)
	}
	if n := len(b.recorder.Events); n != 1 {
		t.Errorf("%d events", n)
	}
}

// The limit follows the ConfigMap; a wrong one leaves the last good one.
func TestConfigured(t *testing.T) {
	b := newBench(t, peerpod.None, node(-1, "", nil))
	cm := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "peer-pods-cm"}, Data: map[string]string{stowage.PeerPodsLimitKey: text}}
	}
	for _, step := range []struct {
		cm      *corev1.ConfigMap
		limit   int64
		invalid float64
	}{{nil, 10, 0}, {cm("4"), 4, 0}, {cm("many"), 4, 1}, {cm("5"), 5, 0}, {&corev1.ConfigMap{}, 10, 0}} {
		b.configured(step.cm)
		if b.limit != step.limit || testutil.ToFloat64(b.Metrics.invalid) != step.invalid {
			t.Errorf("after %v the limit is %d", step.cm, b.limit)
		}
	}
	if b.nodes.Len() != 1 {
		t.Errorf("%d nodes are to be looked at", b.nodes.Len())
	}
}

// takesVM is a pod on the node that takes a VM.
var takesVM = corev1.PodSpec{NodeName: "worker", Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{vm: resource.MustParse("1")}}}}}

// Pods that a predecessor converted take VMs without our label.
func TestAccountWithoutLabel(t *testing.T) {
	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old"}, Spec: takesVM}
	b := newBench(t, 5, node(5, "5", nil), old)
	used := func() float64 {
		result, err := b.reconcile(t.Context(), "worker")
		if err != nil {
			t.Fatal(err)
		}
		b.clock.Step(result.RequeueAfter)
		return testutil.ToFloat64(b.Metrics.used.WithLabelValues("worker"))
	}
	if got := used(); got != 1 {
		t.Errorf("%v are used", got)
	}
	if err := b.Uncached.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if got := used(); got != 0 {
		t.Errorf("%v are used after the pod is gone", got)
	}
	if result, err := b.reconcile(t.Context(), "worker"); err != nil || result.RequeueAfter != 0 {
		t.Errorf("it looks again after %s though there is no such pod, %v", result.RequeueAfter, err)
	}
}

// Where a daemon makes the VMs, a node advertises them exactly while its daemon is Ready.
func TestByDaemon(t *testing.T) {
	for name, tc := range map[string]struct {
		mode         peerpod.CapacityMode
		scheduled    int32
		hostNetwork  bool
		ready        bool
		node         *corev1.Node
		amount, mark string
	}{
		"it is Ready":                     {peerpod.CapacityAuto, 1, true, true, node(-1, "", nil), "7", "7"},
		"it is not":                       {peerpod.CapacityAuto, 1, true, false, node(7, "7", nil), "", ""},
		"its own amount is ours":          {peerpod.CapacityAuto, 1, true, true, node(10, "", nil), "7", "7"},
		"its own amount before it is":     {peerpod.CapacityAuto, 1, true, false, node(10, "", nil), "", ""},
		"no pods yet":                     {peerpod.CapacityAuto, 0, true, false, node(-1, "", nil), "7", "7"},
		"an imitation":                    {peerpod.CapacityAuto, 1, false, false, node(7, "7", nil), "7", "7"},
		"asked to wait for one":           {peerpod.CapacityWhenReady, 0, true, false, node(7, "7", nil), "", ""},
		"asked not to":                    {peerpod.CapacityAlways, 1, true, false, node(-1, "", nil), "7", "7"},
		"another client's amount, Always": {peerpod.CapacityAlways, 1, true, true, node(10, "", nil), "10", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 7, tc.node)
			b.Mode = tc.mode
			d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "caa", Name: "caa", UID: "caa"}}
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cloud-api-adaptor"}}
			d.Spec.Template.Spec.HostNetwork, d.Status.CurrentNumberScheduled = tc.hostNetwork, tc.scheduled
			b.daemonSetSeen(d, true)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "caa", Name: "caa-x", OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "caa", UID: "caa", Controller: new(true)}}}, Spec: corev1.PodSpec{NodeName: "worker"}}
			if tc.ready {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			if err := b.daemons.GetIndexer().Add(p); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := b.reconcile(t.Context(), "worker"); err != nil {
					t.Fatal(err)
				}
			}
			if amount, mark := b.advertisedNow(t); amount != tc.amount || mark != tc.mark {
				t.Errorf("it advertises %q, marked %q", amount, mark)
			}
		})
	}
}

// A daemon that stops removes the amount before its pod is seen to be not Ready: the amount is not put back at once.
func TestDaemonThatStops(t *testing.T) {
	b := newBench(t, 7, node(-1, "7", nil))
	b.Mode = peerpod.CapacityWhenReady
	b.daemonSets["caa"] = true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "caa", Name: "caa-x", OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "caa", UID: "caa", Controller: new(true)}}}, Spec: corev1.PodSpec{NodeName: "worker"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := b.daemons.GetIndexer().Add(p); err != nil {
		t.Fatal(err)
	}
	result, err := b.reconcile(t.Context(), "worker")
	if amount, _ := b.advertisedNow(t); err != nil || amount != "" || result.RequeueAfter != daemonStops {
		t.Errorf("it advertises %q, looks again after %s, %v", amount, result.RequeueAfter, err)
	}
	b.clock.Step(daemonStops)
	if _, err := b.reconcile(t.Context(), "worker"); err != nil {
		t.Fatal(err)
	}
	if amount, _ := b.advertisedNow(t); amount != "7" {
		t.Errorf("a daemon that is still Ready: the node advertises %q", amount)
	}

	// The wait begins anew, also where the daemon has put the amount back itself.
	set := func(amount string) {
		t.Helper()
		if err := b.Uncached.Status().Patch(t.Context(), node(-1, "7", nil), client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"status":{"capacity":{%q:%s},"allocatable":{%q:%s}}}`, b.Resource, amount, b.Resource, amount))); err != nil {
			t.Fatal(err)
		}
		if result, err = b.reconcile(t.Context(), "worker"); err != nil {
			t.Fatal(err)
		}
	}
	set("null")
	set(`"7"`)
	b.clock.Step(time.Hour)
	set("null")
	if amount, _ := b.advertisedNow(t); amount != "" || result.RequeueAfter != daemonStops {
		t.Errorf("an hour later it advertises %q, looks again after %s", amount, result.RequeueAfter)
	}
}

// How many VMs are used is what the pods on a node request that have not ended.
func TestAccount(t *testing.T) {
	n := node(1, "1", nil)
	b := newBench(t, 1, n)
	for i := range 4 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i)}, Spec: takesVM}
		switch i {
		case 2:
			p.Status.Phase = corev1.PodSucceeded
		case 3: // somebody wrote the label
			p.Spec.Containers = nil
		}
		if err := b.pods.GetIndexer().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := b.reconcile(t.Context(), "worker"); err != nil {
			t.Fatal(err)
		}
	}
	if got := testutil.ToFloat64(b.Metrics.used.WithLabelValues("worker")); got != 2 {
		t.Errorf("%v are used", got)
	}
	if len(b.recorder.Events) == 0 {
		t.Fatal("there is no event")
	}
	if e := <-b.recorder.Events; !strings.Contains(e, string(stowage.EventOverCapacity)) || len(b.recorder.Events) > 0 {
		t.Errorf("event %q, and %d more", e, len(b.recorder.Events))
	}
	if err := b.Uncached.Delete(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	for _, obj := range b.pods.GetIndexer().List() {
		if err := b.pods.GetIndexer().Delete(obj); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.reconcile(t.Context(), "worker"); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(b.Metrics.used); n != 0 {
		t.Errorf("a node that is gone has %d series", n)
	}
}

// A heartbeat makes no work.
func TestWatchNodes(t *testing.T) {
	b := newBench(t, 7)
	ctx, cancel := context.WithCancel(t.Context())
	term, wait := leader.NewTerm(ctx, b.clock, logr.Discard())
	if err := b.watchNodes(term); err != nil {
		t.Fatal(err)
	}
	nodes, err := b.fakes.FakeInformerFor(t.Context(), &corev1.Node{})
	if err != nil {
		t.Fatal(err)
	}
	nodes.Update(node(7, "7", nil), node(7, "7", func(n *corev1.Node) { n.ResourceVersion = "2" }))
	if b.nodes.Len() != 0 {
		t.Error("a heartbeat makes work")
	}
	nodes.Update(node(7, "7", nil), node(0, "7", nil))
	if b.nodes.Len() != 1 {
		t.Error("an amount that was zeroed makes none")
	}
	nodes.Add(node(7, "7", nil))
	nodes.Delete(node(7, "7", nil))
	cancel()
	wait()
}

// server answers lists of ConfigMaps and pods as an API server does, and lets watches wait.
func server(t *testing.T, limit string) kubernetes.Interface {
	t.Helper()
	lists := map[string]runtime.Object{
		"configmaps": &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.ConfigMap{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "peer-pods-cm"}, Data: map[string]string{stowage.PeerPodsLimitKey: limit}},
		}},
		"pods": &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p", Labels: map[string]string{stowage.PeerPodLabel: "true"}}, Spec: takesVM},
		}},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case q.Get("sendInitialEvents") != "":
			http.Error(w, "this server only lists", http.StatusBadRequest)
		case q.Get("watch") != "":
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(lists[path.Base(r.URL.Path)])
		}
	}))
	t.Cleanup(s.Close)
	c, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A term knows the limit before it looks at the first node.
func TestRegister(t *testing.T) {
	b := newBench(t, peerpod.None, node(-1, "", nil))
	b.Clientset = server(t, "6")
	ctx, cancel := context.WithCancel(t.Context())
	term, ended := leader.NewTerm(ctx, clock.RealClock{}, logr.Discard())
	b.Clock = clock.RealClock{}
	if err := b.Register(term); err != nil {
		t.Fatal(err)
	}
	term.Start()
	nodes, err := b.fakes.FakeInformerFor(t.Context(), &corev1.Node{})
	if err != nil {
		t.Fatal(err)
	}
	nodes.Add(node(-1, "", nil))
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		amount, _ := b.advertisedNow(t)
		return amount == "6" && testutil.ToFloat64(b.Metrics.used.WithLabelValues("worker")) == 1, nil
	})
	if err != nil {
		t.Fatalf("the node does not advertise the limit of the ConfigMap: %v", err)
	}
	cancel()
	ended()
	if n := testutil.CollectAndCount(b.Metrics.used); n != 0 {
		t.Errorf("%d series are left for the next leader", n)
	}
}

// A relist shows a DaemonSet that was deleted and created again as an update. The deleted one counts no more.
func TestDaemonSetMadeAnew(t *testing.T) {
	b := newBench(t, 7, node(7, "7", nil))
	b.Clientset = server(t, "7")
	ctx, cancel := context.WithCancel(t.Context())
	term, ended := leader.NewTerm(ctx, clock.RealClock{}, logr.Discard())
	defer ended()
	defer cancel()
	if err := b.watchDaemons(term); err != nil {
		t.Fatal(err)
	}
	informer, err := b.fakes.FakeInformerFor(t.Context(), &appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	daemonSet := func(uid types.UID, scheduled int32) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "caa", Name: "caa", UID: uid}}
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cloud-api-adaptor"}}
		d.Spec.Template.Spec.HostNetwork, d.Status.CurrentNumberScheduled = true, scheduled
		return d
	}
	informer.Add(daemonSet("one", 1))
	if !b.byDaemon() {
		t.Fatal("the DaemonSet does not count")
	}
	informer.Update(daemonSet("one", 1), daemonSet("two", 0))
	if b.byDaemon() || b.makesVMs("one") {
		t.Error("a DaemonSet that is gone counts")
	}
}

// A relist shows a node that was deleted and created again as an update. What is known of the deleted one is forgotten.
func TestNodeMadeAnew(t *testing.T) {
	b := newBench(t, 7, node(7, "7", nil))
	ctx, cancel := context.WithCancel(t.Context())
	term, ended := leader.NewTerm(ctx, clock.RealClock{}, logr.Discard())
	defer ended()
	defer cancel()
	if err := b.watchNodes(term); err != nil {
		t.Fatal(err)
	}
	informer, err := b.fakes.FakeInformerFor(t.Context(), &corev1.Node{})
	if err != nil {
		t.Fatal(err)
	}
	was := node(7, "7", nil)
	b.missing = map[string]time.Time{was.Name: {}}
	for _, uid := range []types.UID{was.UID, "anew"} {
		is := was.DeepCopy()
		is.UID = uid
		informer.Update(was, is)
		if _, known := b.missing[was.Name]; known != (uid == was.UID) {
			t.Errorf("UID %q: known %t", uid, known)
		}
	}
}

// A daemon counts in the namespace that an administrator named, and nowhere else.
func TestDaemonOfAnotherNamespace(t *testing.T) {
	for name, tc := range map[string]struct{ named, amount string }{
		"of the namespace that was named": {"caa", ""},
		"of another namespace":            {"elsewhere", "7"},
		"where none was named":            {"", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 7, node(7, "7", nil))
			b.DaemonNamespace = tc.named
			d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "caa", Name: "caa", UID: "caa"}}
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cloud-api-adaptor"}}
			d.Spec.Template.Spec.HostNetwork, d.Status.CurrentNumberScheduled = true, 1
			b.daemonSetSeen(d, true)
			for range 2 {
				if _, err := b.reconcile(t.Context(), "worker"); err != nil {
					t.Fatal(err)
				}
			}
			if amount, _ := b.advertisedNow(t); amount != tc.amount {
				t.Errorf("the node advertises %q, want %q", amount, tc.amount)
			}
		})
	}
}

// A kubelet reports between the mark and the amount. Nobody else has changed the amount, so that nothing is restored.
func TestStatusBetweenMarkAndAmount(t *testing.T) {
	for name, tc := range map[string]struct {
		reports int
		edit    func(*corev1.Node)
		amount  string
	}{
		"once":                      {1, func(*corev1.Node) {}, "10"},
		"too often":                 {9, func(*corev1.Node) {}, "5"},
		"another client, meanwhile": {1, func(n *corev1.Node) { n.Status.Allocatable[vm] = resource.MustParse("3") }, "3"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 10, node(5, "5", nil))
			inner, reports := b.Uncached, 0
			b.Uncached = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if reports++; reports <= tc.reports {
						var n corev1.Node
						if err := inner.Get(ctx, client.ObjectKey{Name: "worker"}, &n); err != nil {
							return err
						}
						n.Status.Phase = corev1.NodePhase(strconv.Itoa(reports))
						tc.edit(&n)
						if err := inner.Status().Update(ctx, &n); err != nil {
							return err
						}
					}
					return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
				},
			})
			again, err := b.reconcile(t.Context(), "worker")
			if amount, mark := b.advertisedNow(t); err != nil || again.RequeueAfter == 0 || amount != tc.amount || mark != "10" {
				t.Errorf("%v, %v: amount %s, mark %q", again, err, amount, mark)
			}
			if len(b.recorder.Events) != 0 {
				t.Errorf("event %s", <-b.recorder.Events)
			}
		})
	}
}

// The cache shows a node that advertises nothing, and another client has set an amount. If that goes while the watch is broken, no event comes.
func TestForeignAmountBehindTheCache(t *testing.T) {
	stale, b := newBench(t, 10, node(-1, "", nil)), newBench(t, 10, node(5, "", nil))
	b.Informers = stale.Informers
	if again, err := b.reconcile(t.Context(), "worker"); err != nil || again.RequeueAfter == 0 {
		t.Errorf("%v, %v: it is not looked at again", again, err)
	}
	b = newBench(t, 10, node(5, "", nil))
	if again, err := b.reconcile(t.Context(), "worker"); err != nil || again.RequeueAfter != 0 {
		t.Errorf("%v, %v: it is looked at again though an event comes", again, err)
	}
}

// Whatever a tenant writes into a pod, little of it is kept.
func TestPodsKeepLittle(t *testing.T) {
	large := strings.Repeat("x", 200<<10)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"a": large}, Labels: map[string]string{"l": large}}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: large, Kind: large, Name: large, UID: "u", Controller: new(true)}}
	pod.Spec.NodeSelector, pod.Spec.Containers = pod.Labels, make([]corev1.Container, 10_000)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Message: large}, {Type: "Other", Message: large}}
	for name, keep := range map[string]func(any) (any, error){"daemon": keepDaemon, "peer pod": (&run{Controller: &Controller{Resource: stowage.DefaultVMResource}}).keepPeerPod} {
		kept, err := keep(pod)
		if data, _ := json.Marshal(kept); err != nil || len(data) > 2<<10 {
			t.Errorf("%s: %d bytes are kept, %v", name, len(data), err)
		}
	}
}
