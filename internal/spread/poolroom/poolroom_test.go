package poolroom

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	"github.com/stowage-dev/stowage/internal/autoscaler/clusterautoscaler"
	"github.com/stowage-dev/stowage/internal/nodeset"
)

// node is a node of a pool.
func node(name, pool string) *corev1.Node {
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"p": pool}},
		Status: corev1.NodeStatus{
			Allocatable: size, Capacity: size,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// pod is a pod of a namespace, on a node or on none.
func pod(namespace, name, node, cpu string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	return p
}

// bench is a reader that counts its requests.
type bench struct {
	*Reader
	clock    *clocktesting.FakeClock
	client   client.Client
	requests int
	makers   []unstructured.Unstructured // Karpenter's NodePools; nil is no Karpenter
	failing  error
	asked    int // for them
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	b.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*corev1.PodList); ok {
				b.requests++
			}
			if u, ok := list.(*unstructured.UnstructuredList); ok {
				if b.asked++; b.failing != nil {
					return b.failing
				}
				if b.makers == nil {
					return &meta.NoKindMatchError{}
				}
				u.Items = b.makers
				return nil
			}
			return c.List(ctx, list, opts...)
		}}).Build()
	b.Reader = New(b.client, b.client, b.clock, b.clock)
	for _, o := range objects {
		if n, ok := o.(*corev1.Node); ok {
			b.NodeChanged(nil, n)
		}
	}
	b.clock.Step(time.Second)
	return b
}

// count is [Reader.Count] of a pool, with the requests that it cost.
func (b *bench) count(t *testing.T, pool string, p *corev1.Pod, most int64) (count int64, requests int) {
	t.Helper()
	before := b.requests
	count, err := b.Count(t.Context(), nodeset.Set{Labels: map[string]string{"p": pool}}, p, most)
	if err != nil {
		t.Fatal(err)
	}
	return count, b.requests - before
}

// That a pool is full is asked once for all pods of a size, until something changes there, or else less and less often.
func TestFull(t *testing.T) {
	b := newBench(t, node("a", "a"), node("b1", "b"), node("b2", "b"), pod("other", "x", "b1", "3500m"), pod("other", "y", "b2", "3500m"))
	want := func(what string, p *corev1.Pod, count int64, requests int) {
		t.Helper()
		if got, n := b.count(t, "b", p, 1); got != count || n != requests {
			t.Errorf("%s: room for %d by %d requests; want %d by %d", what, got, n, count, requests)
		}
	}
	one := pod("ns", "p", "", "1")
	want("the first look", one, 0, 2)
	want("another workload of the size", pod("ns-2", "q", "", "1000m"), 0, 0)
	want("another size", pod("ns", "p", "", "2"), 0, 2)
	want("a smaller size", pod("ns", "p", "", "500m"), 1, 2)

	// 1. It is asked again after 30 s, a minute, and so on up to ten, less the slack.
	b.clock.Step(time.Second)
	last := b.clock.Now().Add(-time.Second)
	var waits []time.Duration
	for range 3600 {
		if _, n := b.count(t, "b", one, 1); n > 0 {
			waits = append(waits, b.clock.Since(last))
			last = b.clock.Now()
		}
		b.clock.Step(time.Second)
	}
	if got := fmt.Sprint(waits); got != "[20s 50s 1m50s 3m50s 7m50s 9m50s 9m50s 9m50s 9m50s]" {
		t.Errorf("it is asked after %s", got)
	}

	// 2. It is asked at once when a pod leaves the pool, or a node changes, and not because of another pool.
	b.PodLeft("a")
	b.PodLeft("unknown")
	b.NodeChanged(nil, node("a2", "a"))
	want("another pool", one, 0, 0)
	if err := b.client.Delete(t.Context(), pod("other", "y", "b2", "3500m")); err != nil {
		t.Fatal(err)
	}
	want("a pod that nobody watches", one, 0, 0)
	b.PodLeft("b2")
	if got, n := b.count(t, "b", one, 1); got != 1 || n == 0 {
		t.Errorf("after a pod has left there is room for %d, by %d requests", got, n)
	}
	if err := b.client.Create(t.Context(), pod("other", "z", "b2", "4")); err != nil {
		t.Fatal(err)
	}
	want("it is full again", one, 0, 2)
	b.clock.Step(time.Second)
	want("and stays so", one, 0, 0)
	relabelled := node("a", "b")
	if err := b.client.Update(t.Context(), relabelled); err != nil {
		t.Fatal(err)
	}
	b.NodeChanged(node("a", "a"), relabelled)
	if got, _ := b.count(t, "b", one, 10); got != 4 {
		t.Errorf("a node that was given to the pool has room for %d", got)
	}
}

// In a large pool, each look goes on where the last one ended, so that full nodes do not hide the others.
func TestLargePool(t *testing.T) {
	var objects []client.Object
	for n := range 35 {
		name := fmt.Sprint("n", n)
		objects = append(objects, node(name, "b"))
		if n != 17 {
			objects = append(objects, pod("other", name, name, "4"))
		}
	}
	b := newBench(t, objects...)
	looks := 1
	for ; ; looks++ {
		got, n := b.count(t, "b", pod("ns", "p", "", "1"), 1)
		if got > 0 {
			break
		}
		if n != nodesTried || looks == 4 {
			t.Fatalf("look %d costs %d requests", looks, n)
		}
		b.clock.Step(time.Second)
	}
}

// A thousand workloads of as many sizes share a limit, fairly by namespace. All that they ask costs less than five requests a
// second.
func TestLimit(t *testing.T) {
	var objects []client.Object
	for n := range nodesTried {
		name := fmt.Sprint("n", n)
		objects = append(objects, node(name, "b"), pod("other", name, name, "4"))
	}
	b := newBench(t, objects...)
	const seconds, others = 1200, 3 // requests for the workload itself
	looks := map[string]int{}
	sum := 0
	for range seconds {
		for n := range 1000 {
			namespace := fmt.Sprint("ns", min(n, 1)) // one workload, and many
			if b.MayLook(namespace) {
				_, requests := b.count(t, "b", pod(namespace, "p", "", fmt.Sprintf("%dm", 1000+n)), 1)
				looks[namespace]++
				sum += requests + others
			}
		}
		b.clock.Step(time.Second)
	}
	if burst := lookBurst * (nodesTried + others); float64(sum-burst)/seconds > 5 {
		t.Errorf("%d requests in %d s", sum, seconds)
	}
	if looks["ns0"] < 100 || looks["ns1"] < 100 {
		t.Errorf("looks by namespace: %v", looks)
	}
}

// What may take pods that was not there before is looked at: nodes that become ready, lose a taint, or grow.
func TestMayTakeMore(t *testing.T) {
	ready := node("a", "a")
	for name, tc := range map[string]struct {
		was, is func(*corev1.Node)
		want    bool
	}{
		"nothing":          {want: false},
		"becomes ready":    {was: func(n *corev1.Node) { n.Status.Conditions = nil }, want: true},
		"is uncordoned":    {was: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: true},
		"is cordoned":      {is: func(n *corev1.Node) { n.Spec.Unschedulable = true }},
		"loses a taint":    {was: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x"}} }, want: true},
		"gets a taint":     {is: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x"}} }},
		"is not ready now": {is: func(n *corev1.Node) { n.Status.Conditions = nil }},
		"grows":            {is: func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("8") }, want: true},
		"shrinks":          {is: func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1") }},
	} {
		was, is := ready.DeepCopy(), ready.DeepCopy()
		if tc.was != nil {
			tc.was(was)
		}
		if tc.is != nil {
			tc.is(is)
		}
		if got := mayTakeMore(was, is); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// why returns why no node of pool a takes a pod, or "".
func why(t *testing.T, b *bench, pod *corev1.Pod) (string, error) {
	t.Helper()
	answer, err := b.Judge(t.Context(), Question{Set: nodeset.Set{Labels: map[string]string{"p": "a"}}, Pod: pod})
	return answer.Why, err
}

// A pool is unsuitable if none of its nodes could take a pod, were the node empty, and Karpenter would make none.
func TestUnsuitable(t *testing.T) {
	tainted := func(name string) *corev1.Node {
		n := node(name, "a")
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	maker := func(taint string) []unstructured.Unstructured {
		return []unstructured.Unstructured{{Object: map[string]any{"metadata": map[string]any{"name": "a"}, "spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"p": "a"}}, "spec": map[string]any{"taints": []any{map[string]any{"key": taint, "effect": "NoSchedule"}}},
		}}}}}
	}
	small := pod("ns", "web", "", "1")
	small.Spec.NodeSelector, small.Spec.Tolerations = map[string]string{"p": "a"}, []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpExists}}
	large := small.DeepCopy()
	large.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("5")
	for name, tc := range map[string]struct {
		nodes  []client.Object
		pod    *corev1.Pod
		makers []unstructured.Unstructured
		groups string
		want   string
		asked  int
	}{
		"a pool without nodes":            {nodes: []client.Object{node("1", "b")}, pod: small},
		"one node of several takes it":    {nodes: []client.Object{tainted("1"), tainted("2"), node("3", "a")}, pod: small},
		"none does":                       {nodes: []client.Object{tainted("1"), tainted("2")}, pod: small, want: "the pods do not tolerate the taint gpu:NoSchedule", asked: 1},
		"for several reasons":             {nodes: []client.Object{tainted("1"), node("2", "a"), node("3", "a")}, pod: large, want: "the pods are too large", asked: 1},
		"Karpenter can make one":          {nodes: []client.Object{tainted("1")}, pod: small, makers: maker("team"), asked: 1},
		"Karpenter makes another one":     {nodes: []client.Object{tainted("1")}, pod: small, makers: maker("gpu"), want: "the pods do not tolerate the taint gpu:NoSchedule", asked: 1},
		"a node group can make one":       {nodes: []client.Object{tainted("1")}, pod: small, groups: "spot=p=a"},
		"a node group makes others":       {nodes: []client.Object{tainted("1")}, pod: small, groups: "spot=p=b", want: "the pods do not tolerate the taint gpu:NoSchedule", asked: 1},
		"Karpenter can make a larger one": {nodes: []client.Object{node("1", "a")}, pod: large, makers: maker("team"), asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.nodes...)
			b.makers = tc.makers
			var err error
			if b.NodeGroups, err = clusterautoscaler.ParseNodeGroups(tc.groups); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got, err := why(t, b, tc.pod); err != nil || got != tc.want {
					t.Errorf("got %q, %v, want %q", got, err, tc.want)
				}
			}
			if b.asked != tc.asked {
				t.Errorf("Karpenter's NodePools were read %d times", b.asked)
			}
		})
	}
}

// A read of NodePools that fails is no answer, also for who asks a moment later.
func TestNodePoolsThatAreNotRead(t *testing.T) {
	n := node("1", "a")
	n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	b := newBench(t, n)
	b.failing = errors.New("too slow")
	for range 2 {
		if got, err := why(t, b, pod("ns", "web", "", "1")); err == nil || got != "" {
			t.Errorf("the answer is %q, %v", got, err)
		}
	}
	if b.asked != 1 {
		t.Errorf("it is read %d times within a moment", b.asked)
	}
	b.failing, b.makers = nil, []unstructured.Unstructured{}
	b.clock.Step(nodePoolsFor)
	if got, err := why(t, b, pod("ns", "web", "", "1")); err != nil || got == "" {
		t.Errorf("once it is read, the answer is %q, %v", got, err)
	}
}

// A node that has just come may lack its devices, and is not judged by that.
func TestNodeThatStarts(t *testing.T) {
	wants := pod("ns", "web", "", "1")
	wants.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1")
	n := node("1", "a")
	b := newBench(t)
	n.CreationTimestamp = metav1.NewTime(b.clock.Now())
	b = newBench(t, n)
	for _, want := range []string{"", "the pods are too large"} {
		if got, err := why(t, b, wants); err != nil || got != want {
			t.Errorf("the answer is %q, %v, want %q", got, err, want)
		}
		b.clock.Step(15 * time.Minute) // drivers are installed
	}
}
