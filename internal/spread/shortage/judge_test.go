package shortage

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/testkit"
)

// waitsInB is what is seen of a workload with the pools a and b. One of its pods has waited in pool b for so long.
func waitsInB(t *testing.T, waits time.Duration) *picture {
	t.Helper()
	whole, err := sequence.New([]sequence.Pool{{Name: "a", Labels: map[string]string{"p": "a"}, Weight: 1}, {Name: "b", Labels: map[string]string{"p": "b"}, Weight: 1}}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	return &picture{policy: &policy.Policy{Layout: testkit.Layout(whole, layout.Workload{})}, members: []*member{{
		Owner: observed.Owner{
			Workload: &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "rs"}, Namespace: "ns"},
			Pods:     []observed.Pod{{Namespace: "ns", Name: "web-1"}},
		},
		spillPods: []spill.Pod{{Seat: sequence.Seat{Pool: 1, Ordinal: 1}, Waits: waits}},
	}}}
}

// When it is found out whether a pool is suitable: first and again.
func TestWhenAPoolIsJudged(t *testing.T) {
	const never = -1
	for name, tc := range map[string]struct {
		unsuitable bool
		proven     bool          // by pods that ran there before a taint came
		waits      time.Duration // of a pod in the pool
		age        time.Duration // of the last look
		node       string        // the pool of a node that changed a second after it
		owner      types.UID     // of which the last look was
		pruned     time.Duration // since the API server left out the answer
		want       bool
	}{
		"no pod waits there":                    {age: never},
		"a pod has not waited for long":         {age: never, waits: judgeAfter - 1},
		"a pod has waited for long":             {age: never, waits: judgeAfter, want: true},
		"it was just found out":                 {age: judgeAgain - 1, waits: time.Hour},
		"that was a minute ago":                 {age: judgeAgain, waits: time.Hour, want: true},
		"and no pod waits any more":             {age: time.Hour, waits: 0},
		"it was found out of another owner":     {age: time.Second, waits: time.Hour, owner: "other", want: true},
		"a node came a moment ago":              {age: newNodesAfter - 1, waits: time.Hour, node: "b"},
		"a node came":                           {age: newNodesAfter, waits: time.Hour, node: "b", want: true},
		"a node of another pool came":           {age: newNodesAfter, waits: time.Hour, node: "a"},
		"the answer was just not stored":        {age: never, waits: time.Hour, pruned: prunedFor - 1},
		"the answer was not stored once":        {age: never, waits: time.Hour, pruned: prunedFor, want: true},
		"unsuitable, and the leader is new":     {unsuitable: true, age: never, want: true},
		"unsuitable for less than ten minutes":  {unsuitable: true, age: rejudge - 1, waits: time.Hour},
		"unsuitable for ten minutes":            {unsuitable: true, age: rejudge, want: true},
		"unsuitable, for another owner":         {unsuitable: true, age: time.Second, owner: "other", want: true},
		"unsuitable, and a node came":           {unsuitable: true, age: newNodesAfter, node: "b", want: true},
		"unsuitable, and a node came elsewhere": {unsuitable: true, age: newNodesAfter, node: "a"},
		"proven for less than ten minutes":      {proven: true, age: rejudge - 1, waits: time.Hour},
		"proven for ten minutes":                {proven: true, age: rejudge, want: true},
		"proven, and a node came":               {proven: true, age: newNodesAfter, node: "b", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			b, v := newBench(t), waitsInB(t, tc.waits)
			m := b.memoryOf(web)
			if tc.age != never {
				if tc.owner == "" {
					tc.owner = "rs"
				}
				m.judged["b"] = judged{Checkpoint: b.Room.Checkpoint(v.policy.Nodes(1, -1)), owner: tc.owner}
			}
			if tc.node != "" {
				b.clock.SetTime(start.Add(time.Second))
				b.Room.NodeChanged(nil, node(tc.node))
			}
			b.clock.SetTime(start.Add(max(0, tc.age)))
			if tc.pruned > 0 {
				m.pruned = b.clock.Now().Add(-tc.pruned)
			}
			v.Now = b.clock.Now()
			switch in := map[string]string{"p": "b"}; {
			case tc.unsuitable:
				v.state = &stowage.PoolState{Unsuitable: []stowage.UnsuitablePool{{NodeLabel: in}}}
			case tc.proven:
				v.state = &stowage.PoolState{Proven: []stowage.ProvenPool{{NodeLabel: in}}}
			}
			if got := b.judgeNow(v, m, sequence.Cell{Pool: 1}); got != tc.want {
				t.Errorf("the pool is judged: %t, want %t", got, tc.want)
			}
		})
	}
}

// An unsuitable pool is looked at again after ten minutes, though nothing was seen to change. Here the node lost its taint unseen.
func TestUnsuitablePoolIsJudgedAgain(t *testing.T) {
	b, _ := ofPolicy(t, tainted)
	b.pass(t, 18)
	if got := b.unsuitablePools(t); got == "" {
		t.Fatal("the pool is not unsuitable")
	}
	node := &corev1.Node{}
	if err := b.Uncached.Get(t.Context(), types.NamespacedName{Name: "node-b"}, node); err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = nil
	if err := b.Uncached.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	b.pass(t, 580) // it was found out after 16 s
	if got := b.unsuitablePools(t); got == "" {
		t.Error("it was looked at before ten minutes had passed")
	}
	b.pass(t, 30)
	if got := b.unsuitablePools(t); got != "" {
		t.Errorf("after ten minutes: %q", got)
	}
}

// A claim with a volume decides where its pod runs, and one that is not there is taken to do so. So it is for a pod with more claims than
// are looked at.
func TestBound(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	claim := func(namespace, name, volume string) client.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	objects := []client.Object{claim("ns", "bound", "volume"), claim("other", "elsewhere", ""), claim("other", "free-0", "volume")}
	var free []string
	for i := range observed.MostClaims + 1 {
		name := fmt.Sprint("free-", i)
		objects, free = append(objects, claim("ns", name, "")), append(free, name)
	}
	for name, tc := range map[string]struct {
		claims  []string
		failing error
		want    bool
		lists   int
	}{
		"no claim":                        {},
		"a claim without a volume":        {claims: free[:1], lists: 1},
		"a claim with its volume":         {claims: []string{"bound"}, want: true, lists: 1},
		"the second one has its volume":   {claims: []string{"free-0", "bound", "free-1"}, want: true, lists: 3},
		"a claim that is not there":       {claims: []string{"none"}, want: true, lists: 1},
		"the second one is not there":     {claims: []string{"free-0", "none"}, want: true, lists: 2},
		"a claim of another namespace":    {claims: []string{"elsewhere"}, want: true, lists: 1},
		"as many claims as are looked at": {claims: free[:observed.MostClaims], lists: observed.MostClaims},
		"one claim more":                  {claims: free, want: true},
		"the API server is not there":     {claims: free[:1], failing: context.DeadlineExceeded, want: true, lists: 1},
		"nobody asks it":                  {failing: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			lists := 0
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
				WithIndex(&corev1.PersistentVolumeClaim{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
				WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if lists++; tc.failing != nil {
						return tc.failing
					}
					return c.List(ctx, list, opts...)
				}}).Build()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			for _, name := range tc.claims {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
				}})
			}
			r := &run{Controller: &Controller{Uncached: c}}
			_, got, err := r.volumesOf(t.Context(), pod)
			if got != tc.want || (err != nil) != (tc.failing != nil && tc.want) || lists != tc.lists {
				t.Errorf("a volume decides where it runs: %t, want %t (%v), after %d lists", got, tc.want, err, lists)
			}
		})
	}
}

// A taint is for pods with volumes, too, wherever these are.
func TestPoolOfPodsWithVolumes(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		claim string // that the pod uses
		want  string // why no pod can run in the pool
	}{
		"no volume":                 {want: "the pods do not tolerate the taint gpu:NoSchedule"},
		"a claim without a volume":  {claim: "free", want: "the pods do not tolerate the taint gpu:NoSchedule"},
		"a claim with its volume":   {claim: "bound", want: "the pods do not tolerate the taint gpu:NoSchedule"},
		"a claim that is not there": {claim: "none", want: "the pods do not tolerate the taint gpu:NoSchedule"},
	} {
		t.Run(name, func(t *testing.T) {
			n, pod := node("b"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "pod-1"}}
			tainted(n)
			if tc.claim != "" {
				pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: tc.claim}}}}
			}
			free := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "free"}}
			bound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "bound"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "volume"}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(n, pod, free, bound).
				WithIndex(&corev1.PersistentVolumeClaim{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
				WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if _, ok := list.(*unstructured.UnstructuredList); ok { // Karpenter's
						return apierrors.NewForbidden(karpenterResource, "", nil)
					}
					return c.List(ctx, list, opts...)
				}}).Build()
			clock := clocktesting.NewFakeClock(start)
			r := &run{Controller: &Controller{Uncached: c, Room: poolroom.New(c, c, clock, clock)}}
			volumes, _, err := r.volumesOf(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			q := question(waitsInB(t, judgeAfter), sequence.Cell{Pool: 1}, pod, volumes)
			if answer, err := r.Room.Judge(t.Context(), q); answer.Why != tc.want || err != nil {
				t.Errorf("no pod can run there because %q (%v)", answer.Why, err)
			}
		})
	}
}
