package repair

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// budget is a PodDisruptionBudget of the workload's pods.
func budgetFor(name string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
}

// stored returns the PoolState of the workload, or nil.
func (b *bench) stored(t *testing.T) *stowage.PoolState {
	t.Helper()
	state := &stowage.PoolState{}
	err := b.Uncached.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "rs"}, state)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// What keeps a pod from moving is stored once it lasts, with its event, and taken away when it is over. It fails no reconciliation.
func TestHindrances(t *testing.T) {
	full := apierrors.NewTooManyRequests("no", 0)
	full.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	tooMany := []client.Object{seated("x", "1", 1), seated("y", "1", 2)}
	other := budgetFor("other")
	other.Spec.Selector.MatchLabels["app"] = "another"
	for name, tc := range map[string]struct {
		objects []client.Object
		refuse  error
		want    stowage.Hindrance
		event   string
	}{
		"a budget": {objects: []client.Object{budgetFor("one"), other}, refuse: full, want: stowage.Hindrance{Reason: stowage.HindranceEvictionRefused, Pod: "y", Objects: []string{"one"}}, event: "EvictionRefused"},
		"two budgets": {objects: []client.Object{budgetFor("two"), budgetFor("one")}, refuse: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 500, Message: "more than one PodDisruptionBudget"}},
			want: stowage.Hindrance{Reason: stowage.HindranceEvictionRefused, Pod: "y", Objects: []string{"one", "two"}}, event: "EvictionRefused"},
		"an admission policy": {objects: []client.Object{budgetFor("one")}, refuse: apierrors.NewForbidden(corev1.Resource("pods"), "y", errors.New(strings.Repeat("é", 2000))),
			want: stowage.Hindrance{Reason: stowage.HindranceEvictionRefused, Pod: "y", Message: "pods \"y\" is forbidden: é"}, event: "EvictionRefused"},
		"no room": {objects: []client.Object{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "large", UID: "large"}, Spec: corev1.PodSpec{NodeName: "node-a"}}},
			want: stowage.Hindrance{Reason: stowage.HindranceNoRoom, Pod: "y", Objects: []string{"0"}}, event: "NoRoomForRebalance"},
		"an annotation": {want: stowage.Hindrance{Reason: stowage.HindrancePodHeld, Message: "2 pod(s) that should be elsewhere stay where they run, such as x"}, event: "PodHeld"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(workload(2, stowage.RebalanceAnnotation+"=Evict"), tc.objects...)
			for _, o := range tooMany {
				p := o.DeepCopyObject().(*corev1.Pod)
				if tc.want.Reason == stowage.HindrancePodHeld {
					protected(p, "karpenter.sh/do-not-disrupt", "true")
				}
				objects = append(objects, p)
			}
			if tc.want.Reason == stowage.HindranceNoRoom {
				objects[3].(*corev1.Node).Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
			}
			b := newBench(t, objects...)
			b.refuse = tc.refuse
			look := func() {
				t.Helper()
				b.clock.Step(time.Minute)
				if _, err := b.reconcile(t.Context(), owner); err != nil {
					t.Fatal(err)
				}
				b.tellHindrances(t.Context())
			}
			look()
			if b.stored(t) != nil && tc.want.Reason != stowage.HindrancePodHeld {
				t.Error("it is stored before it lasts")
			}
			b.clock.Step(20 * time.Second)
			b.tellHindrances(t.Context())
			state := b.stored(t)
			if state == nil || len(state.Status.Hindrances) != 1 {
				t.Fatalf("stored is %+v", state)
			}
			got := state.Status.Hindrances[0]
			if got.Reason != tc.want.Reason || got.Pod != tc.want.Pod || strings.Join(got.Objects, " ") != strings.Join(tc.want.Objects, " ") || !strings.HasPrefix(got.Message, tc.want.Message) || tc.want.Message == "" && got.Message != "" {
				t.Errorf("stored is %+v, want %+v", got, tc.want)
			}
			if len(got.Message) > mostForeign || got.Since.IsZero() || state.Status.ObservedBy != "replica" || state.OwnerReferences[0].UID != "rs" {
				t.Errorf("stored is %+v of %+v", got, state)
			}
			if n := strings.Count(" "+b.noticed()+" ", " "+tc.event+" "); n != 1 {
				t.Errorf("%d events %s", n, tc.event)
			}
			version := state.ResourceVersion
			b.clock.Step(30 * time.Second)
			b.tellHindrances(t.Context())
			if b.stored(t).ResourceVersion != version {
				t.Error("it is written though nothing changed")
			}
			b.clock.Step(confirmHindrances)
			b.tellHindrances(t.Context())
			if b.stored(t).ResourceVersion == version || b.noticed() != "" {
				t.Error("it is not confirmed, or told again")
			}
			if tc.refuse == nil {
				return
			}
			// It is over.
			b.refuse = nil
			b.clock.Step(b.Timing.MaxBackoff)
			look()
			b.tellHindrances(t.Context())
			if left := b.stored(t).Status; len(left.Hindrances) != 0 || left.ObservedAt != nil || left.ObservedBy != "" {
				t.Errorf("stored is %+v after it was over", left)
			}
		})
	}
}

// Running pods that stay because of another pod, or because of what they are, have a hindrance. It is over once they may go, and there is none where
// nothing would go.
func TestWhyNoneGoes(t *testing.T) {
	crashing := func(p *corev1.Pod) *corev1.Pod {
		p.Status.Conditions[0].Status = corev1.ConditionFalse
		return p
	}
	grouped := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")}
		return p
	}
	evict := []string{stowage.RebalanceAnnotation + "=Evict"}
	for name, tc := range map[string]struct {
		settings []string
		pods     []*corev1.Pod
		want     stowage.HindranceReason // or ""
		pod      string
	}{
		"a pool has too many pods, and one crashes": {
			settings: evict, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2), crashing(seated("z", "1", 3))}, want: stowage.HindranceNotReady, pod: "z",
		},
		"of two that crash, the first": {
			settings: evict, pods: []*corev1.Pod{crashing(seated("y", "1", 1)), crashing(seated("x", "1", 2)), seated("z", "1", 3)}, want: stowage.HindranceNotReady, pod: "x",
		},
		"a pod without a seat is outside the pools, and another one crashes": {
			pods: []*corev1.Pod{seated("x", "1", 1), crashing(seated("y", "0", 1)), pod("z", "node-none", "", 0, 0)}, want: stowage.HindranceNotReady, pod: "y",
		},
		"it crashes itself": {
			pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "0", 1), crashing(pod("z", "node-none", "", 0, 0))}, want: stowage.HindranceNotReady, pod: "z",
		},
		"pods without a seat wait, and no other pod came later": {
			pods: []*corev1.Pod{pod("x", "", "", 0, 0), pod("y", "", "", 0, 0), pod("z", "node-none", "", 0, 0)}, want: stowage.HindranceUnproven, pod: "x",
		},
		"eviction was not asked for": {pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2), crashing(seated("z", "1", 3))}},
		"repair is off":              {settings: append(evict, stowage.RepairAnnotation+"=Off"), pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "1", 2), crashing(seated("z", "1", 3))}},
		"all is divided":             {settings: evict, pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "0", 1), crashing(seated("z", "1", 2))}},
		"they belong to a scheduling group": {
			settings: evict, pods: []*corev1.Pod{grouped(seated("x", "1", 1)), grouped(seated("y", "1", 2)), grouped(seated("z", "1", 3))}, want: stowage.HindrancePodHeld,
		},
		"they are held, so that one that crashes is not why": {
			settings: evict, pods: []*corev1.Pod{grouped(seated("x", "1", 1)), grouped(seated("y", "1", 2)), crashing(grouped(seated("z", "1", 3)))}, want: stowage.HindrancePodHeld,
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := workload(3, tc.settings...)
			for _, p := range tc.pods {
				objects = append(objects, p)
			}
			b := newBench(t, objects...)
			look := func() []stowage.Hindrance {
				t.Helper()
				b.clock.Step(time.Minute)
				if _, err := b.reconcile(t.Context(), owner); err != nil {
					t.Fatal(err)
				}
				b.clock.Step(hindersAfter + time.Second)
				return b.Hindrances(owner.Key())
			}
			got := look()
			switch {
			case tc.want == "" && len(got) == 0:
				return
			case tc.want == "" || len(got) != 1 || got[0].Reason != tc.want || got[0].Pod != tc.pod:
				t.Fatalf("the hindrances are %+v, want %q of pod %q", got, tc.want, tc.pod)
			case tc.want != stowage.HindranceNotReady:
				return
			}
			for _, p := range tc.pods {
				p = p.DeepCopy()
				if err := b.Uncached.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
					t.Fatal(err)
				}
				p.Status.Conditions[0].Status = corev1.ConditionTrue
				if err := b.Uncached.Status().Update(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			b.see(t)
			if got := look(); len(got) != 0 {
				t.Errorf("all are ready, and the hindrances are %+v", got)
			}
		})
	}
}

// An update of pods that the API server refuses is a hindrance with its message, and fails no reconciliation. The other pods get their seats, and the
// pod is tried less and less often.
func TestRefusedUpdates(t *testing.T) {
	long := strings.Repeat("é", 2000)
	for name, tc := range map[string]struct {
		refuse error
		only   string // this pod, or all
		pods   []*corev1.Pod
		want   string // seats
		count  int64
		text   string // the beginning of the message
		fails  bool
	}{
		"an admission policy": {
			refuse: apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "y", nil), pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0), pod("z", "node-a", "", 0, 0)},
			want: "1/1 / /", count: 2, text: `Pod "y" is invalid`,
		},
		"a missing right": {
			refuse: apierrors.NewForbidden(corev1.Resource("pods"), "y", errors.New(long)), pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0), pod("z", "node-a", "", 0, 0)},
			want: "1/1 / /", count: 2, text: `pods "y" is forbidden: é`,
		},
		"a webhook refuses one pod": {
			refuse: apierrors.NewBadRequest("admission webhook denied the request"), only: "y", pods: []*corev1.Pod{seated("x", "1", 1), pod("y", "node-a", "", 0, 0), pod("z", "node-a", "", 0, 0)},
			want: "1/1 / 0/2", count: 1, text: "admission webhook denied",
		},
		"a webhook is down": {
			refuse: apierrors.NewInternalError(errors.New("failed calling webhook")), pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "0", 1), seated("z", "1", 3)},
			want: "1/1 0/1 1/3", text: "Internal error occurred: failed calling webhook",
		},
		"the API server does not answer": {
			refuse: apierrors.NewServerTimeout(corev1.Resource("pods"), "patch", 1), pods: []*corev1.Pod{seated("x", "1", 1), seated("y", "0", 1), seated("z", "1", 3)},
			want: "1/1 0/1 1/3", fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := workload(3)
			for _, p := range tc.pods {
				objects = append(objects, p)
			}
			b := newBench(t, objects...)
			b.refuseUpdates = func(pod string) error {
				if tc.only != "" && tc.only != pod {
					return nil
				}
				return tc.refuse
			}
			for range 60 {
				b.clock.Step(10 * time.Second)
				if _, err := b.reconcile(t.Context(), owner); (err != nil) != tc.fails {
					t.Fatalf("the reconciliation ended with %v", err)
				}
				b.see(t)
				b.tellHindrances(t.Context())
			}
			seats := b.seatsNow(t)
			if got := seats["x"] + " " + seats["y"] + " " + seats["z"]; got != tc.want {
				t.Errorf("the seats are %q, want %q", got, tc.want)
			}
			if tc.fails {
				return
			}
			if n := b.patches.Load(); n > 3*15 {
				t.Errorf("%d writes in ten minutes", n)
			}
			state := b.stored(t)
			if state == nil || len(state.Status.Hindrances) != 1 {
				t.Fatalf("stored is %+v", state)
			}
			got := state.Status.Hindrances[0]
			if got.Reason != stowage.HindranceUpdateRefused || got.Count != tc.count || !strings.HasPrefix(got.Message, tc.text) || len(got.Message) > mostForeign {
				t.Errorf("stored is %+v, want %d pods and %q", got, tc.count, tc.text)
			}
			if n := strings.Count(" "+b.noticed()+" ", " PodUpdateRefused "); n != 1 {
				t.Errorf("%d events", n)
			}
			// It is over.
			b.refuseUpdates = nil
			for range 40 {
				b.clock.Step(10 * time.Second)
				if _, err := b.reconcile(t.Context(), owner); err != nil {
					t.Fatal(err)
				}
				b.see(t)
			}
			b.tellHindrances(t.Context())
			if left := b.stored(t).Status.Hindrances; len(left) != 0 {
				t.Errorf("stored is %+v after it was over", left)
			}
			if seats := b.seatsNow(t); seats["y"] == "/" || seats["z"] == "1/3" || seats["z"] == "/" {
				t.Errorf("the seats are %v", seats)
			}
		})
	}
}

// What an earlier leader stored stays until this one has looked at all workloads.
func TestInheritedHindrances(t *testing.T) {
	old := &stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs"}, Status: stowage.PoolStateStatus{Hindrances: []stowage.Hindrance{{Reason: stowage.HindranceRollout}}, ObservedBy: "former"}}
	b := newBench(t, append(workload(0), old)...)
	b.tellHindrances(t.Context())
	if len(b.stored(t).Status.Hindrances) != 1 {
		t.Error("it is gone at once")
	}
	b.clock.Step(inheritedFor + time.Second)
	b.tellHindrances(t.Context())
	if len(b.stored(t).Status.Hindrances) != 0 {
		t.Error("it stays")
	}
}

// The metrics of a pool have the pods of all owners of a workload, and forget an owner that is gone.
func TestPoolMetrics(t *testing.T) {
	b := newBench(t, append(workload(3), seated("x", "1", 1), seated("y", "1", 2), seated("z", "0", 1))...)
	value := func(gauge, pool string) float64 {
		t.Helper()
		families, err := b.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if of := m.GetLabel(); f.GetName() == gauge && of[len(of)-1].GetValue() == pool {
					return m.GetGauge().GetValue()
				}
			}
		}
		return 0
	}
	want := func(desired, current float64) {
		t.Helper()
		if d, c := value("stowage_pool_desired_pods", "1"), value("stowage_pool_current_pods", "1"); d != desired || c != current {
			t.Errorf("pool 1 should have %v pods and has %v, want %v and %v", d, c, desired, current)
		}
	}
	b.clock.Step(time.Minute)
	if _, err := b.reconcile(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	want(2, 2)
	name := poolName{workloadName{"ns", "ReplicaSet", "web-1"}, "1"}
	other := ledger.OwnerKey{Namespace: "ns", UID: "other"}
	b.replaceCounts(other, map[poolName]poolCount{name: {desired: 2, current: 1, ready: 1}})
	want(4, 3)
	b.replaceCounts(other, map[poolName]poolCount{name: {desired: 1, current: 1}})
	want(3, 3)
	b.replaceCounts(other, nil)
	want(2, 2)
	b.forget(map[ledger.OwnerKey]bool{})
	want(0, 0)
	if len(b.counted)+len(b.sums) > 0 {
		t.Errorf("%v and %v are kept", b.counted, b.sums)
	}
}
