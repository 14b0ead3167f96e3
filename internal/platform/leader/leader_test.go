package leader

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestMain(m *testing.M) {
	utilruntime.ReallyCrash = false // as in the program
	m.Run()
}

// fakeController is a controller whose Register is a function.
type fakeController struct {
	name     string
	register func(t *Term) error
}

func (s fakeController) Name() string           { return s.name }
func (s fakeController) Register(t *Term) error { return s.register(t) }

// newLease returns a lock on a lease in a store that decides nothing.
func newLease(client *fake.Clientset, identity string, gone func(string) bool) *lock {
	return &lock{
		LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		podGone: func(_ context.Context, pod string) bool { return gone != nil && gone(pod) },
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), 10*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

// A term ends with all that was registered in it, and the next one begins anew.
func TestTermsEndWhole(t *testing.T) {
	before := runtime.NumGoroutine()
	var reconciled, ticks, ended atomic.Int64
	c := fakeController{"c", func(term *Term) error {
		q, err := Reconcile(term, "items", 2, func(context.Context, string) (reconcile.Result, error) {
			reconciled.Add(1)
			return reconcile.Result{}, nil
		}, func(s string) []any { return []any{"name", s} })
		if err != nil {
			return err
		}
		q.Add("a")
		term.Every(10*time.Millisecond, func(context.Context) { ticks.Add(1) })
		term.AtEnd(func() { ended.Add(1) })
		return nil
	}}
	r := &Runner{Controllers: []Controller{c}, Clock: clock.RealClock{}, Log: logr.Discard()}
	for term := range int64(3) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Start(ctx) })
		eventually(t, "the term is under way", func() bool { return reconciled.Load() > term && ticks.Load() > 2*term })
		cancel()
		running.Wait()
		if got := ended.Load(); got != term+1 {
			t.Errorf("%d terms have ended, want %d", got, term+1)
		}
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// A reconciler runs only once its controller is registered.
func TestReconcilersWait(t *testing.T) {
	var registered, early atomic.Bool
	reconciled := make(chan struct{})
	c := fakeController{"c", func(term *Term) error {
		q, err := Reconcile(term, "waits", 1, func(context.Context, string) (reconcile.Result, error) {
			early.Store(!registered.Load())
			close(reconciled)
			return reconcile.Result{}, nil
		}, func(s string) []any { return []any{"name", s} })
		if err != nil {
			return err
		}
		q.Add("a")
		select {
		case <-reconciled:
		case <-time.After(50 * time.Millisecond):
		}
		registered.Store(true)
		return nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = (&Runner{Controllers: []Controller{c}, Clock: clock.RealClock{}, Log: logr.Discard()}).Start(ctx)
	})
	<-reconciled
	cancel()
	running.Wait()
	if early.Load() {
		t.Error("the reconciler ran before the controller was registered")
	}
}

// A term that ends while a controller starts leaves nothing behind.
func TestTermEndsWhileStarting(t *testing.T) {
	before := runtime.NumGoroutine()
	starting := make(chan struct{})
	slow := fakeController{"slow", func(term *Term) error {
		close(starting)
		<-term.Context().Done()
		return term.Context().Err()
	}}
	later := fakeController{"later", func(*Term) error { return errors.New("it was registered all the same") }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = (&Runner{Controllers: []Controller{slow, later}, Clock: clock.RealClock{}, Log: logr.Discard()}).Start(ctx)
	}()
	<-starting
	cancel()
	<-done
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// A controller that cannot start is tried again, in a term of which nothing is left from before.
func TestRegisterFails(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Unix(0, 0))
	var tries, running, others atomic.Int64
	c := fakeController{"c", func(term *Term) error {
		if left := running.Load(); left != 0 {
			t.Errorf("%d goroutines are left of the term before", left)
		}
		term.Go(func(ctx context.Context) {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
		})
		if tries.Add(1) < 3 {
			return errors.New("the API server does not answer")
		}
		return nil
	}}
	other := fakeController{"other", func(*Term) error { others.Add(1); return nil }}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() {
		_ = (&Runner{Controllers: []Controller{c, other}, Clock: fake, Log: logr.Discard()}).Start(ctx)
	})
	for want := int64(1); want < 3; want++ {
		eventually(t, "it waits for its next try", func() bool { return tries.Load() == want && fake.HasWaiters() })
		fake.Step(firstBackoff / 2)
		if got := tries.Load(); got != want {
			t.Errorf("%d tries without a pause", got)
		}
		fake.Step(2 << want * firstBackoff)
	}
	eventually(t, "it runs", func() bool { return tries.Load() == 3 && running.Load() == 1 })
	if others.Load() != 1 {
		t.Errorf("the other controller was started %d times", others.Load())
	}
}

// A panic, in whatever part of a controller, ends neither the process nor the others.
func TestPanics(t *testing.T) {
	var counted, ticks, reconciled atomic.Int64
	handlers := utilruntime.PanicHandlers
	utilruntime.PanicHandlers = []func(context.Context, any){func(context.Context, any) { counted.Add(1) }}
	defer func() { utilruntime.PanicHandlers = handlers }()
	bad := fakeController{"bad", func(*Term) error { panic("a fault") }}
	worse := fakeController{"worse", func(term *Term) error {
		term.Go(func(context.Context) { panic("a fault") })
		term.Every(5*time.Millisecond, func(context.Context) { ticks.Add(1); panic("a fault") })
		q, err := Reconcile(term, "faulty", 1, func(context.Context, int) (reconcile.Result, error) {
			reconciled.Add(1)
			panic("a fault")
		}, func(int) []any { return nil })
		q.Add(1)
		return err
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = (&Runner{Controllers: []Controller{bad, worse}, Clock: clock.RealClock{}, Log: logr.Discard()}).Start(ctx)
	}()
	eventually(t, "the work goes on", func() bool { return ticks.Load() > 3 && counted.Load() > 4 && reconciled.Load() > 0 })
	cancel()
	<-done
}

// Only one of several replicas leads, and another follows when it leaves.
func TestElection(t *testing.T) {
	client := fake.NewClientset()
	var leading atomic.Int64
	var most atomic.Int64
	c := fakeController{"c", func(term *Term) error {
		if n := leading.Add(1); n > most.Load() {
			most.Store(n)
		}
		term.AtEnd(func() { leading.Add(-1) })
		return nil
	}}
	stops := map[string]context.CancelFunc{}
	var running sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		ctx, cancel := context.WithCancel(t.Context())
		stops[name] = cancel
		r := &Runner{Controllers: []Controller{c}, Lock: newLease(client, name, nil), Clock: clock.RealClock{}, Log: logr.Discard()}
		running.Go(func() { _ = r.Start(ctx) })
	}
	holder := func() string {
		lease, err := client.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	eventually(t, "one leads", func() bool { return leading.Load() == 1 && holder() != "" })
	first := holder()
	stops[first]() // it releases the lease, so that the other need not wait for it to expire
	released := clock.RealClock{}.Now()
	eventually(t, "the other leads", func() bool { return leading.Load() == 1 && holder() != first && holder() != "" })
	if took := (clock.RealClock{}).Since(released); took > leaseDuration {
		t.Errorf("the other leads after %s", took)
	}
	for _, stop := range stops {
		stop()
	}
	running.Wait()
	if most.Load() != 1 {
		t.Errorf("%d replicas led at once", most.Load())
	}
}

// A replica without controllers holds its lease for as long as it runs.
func TestElectionWithoutControllers(t *testing.T) {
	client := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&Runner{Lock: newLease(client, "a", nil), Clock: clock.RealClock{}, Log: logr.Discard()}).Start(ctx)
	}()
	lease := func() *coordinationv1.Lease {
		l, err := client.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
		if err != nil {
			return &coordinationv1.Lease{}
		}
		return l
	}
	var renewed metav1.MicroTime
	eventually(t, "it holds the lease", func() bool {
		l := lease()
		if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != "a" {
			return false
		}
		renewed = *l.Spec.RenewTime
		return true
	})
	eventually(t, "it renews it", func() bool { return lease().Spec.RenewTime.After(renewed.Time) })
	if n := lease().Spec.LeaseTransitions; n != nil && *n > 1 {
		t.Errorf("the lease has changed hands %d times", *n)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The lease of a pod that is gone is free at once; that of one that is only slow is not.
func TestHolderThatIsGone(t *testing.T) {
	now := metav1.NowMicro()
	lease := func(holder string) *coordinationv1.Lease {
		seconds := int32(leaseDuration.Seconds())
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now, AcquireTime: &now}}
	}
	for name, tc := range map[string]struct {
		holder string
		free   bool
	}{
		"a pod that is gone":     {"pod/gone_abc12", true},
		"a pod that is there":    {"pod/there_abc12", false},
		"a process on a machine": {"gone_abc12", false},
		"this replica itself":    {"pod/gone_me", false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			l := newLease(fake.NewClientset(lease(tc.holder)), "pod/gone_me", func(pod string) bool { asked++; return pod == "gone" })
			record, _, err := l.Get(t.Context())
			if err != nil || record.HolderIdentity != tc.holder || asked != 0 {
				t.Errorf("at first sight the holder is %q, %d requests, %v", record.HolderIdentity, asked, err)
			}
			record, raw, err := l.Get(t.Context())
			if err != nil || (record.HolderIdentity == "") != tc.free {
				t.Errorf("then the holder is %q, %v", record.HolderIdentity, err)
			}
			if changed := string(raw) != string(l.last); changed != tc.free {
				t.Errorf("the elector notices: %t", changed)
			}
		})
	}
}

// One request that hangs leaves time for another before the lease is lost.
func TestRequestTimeout(t *testing.T) {
	if 2*requestTimeout >= renewDeadline || renewDeadline >= leaseDuration {
		t.Errorf("a request takes up to %s, the lease is lost after %s and free after %s", requestTimeout, renewDeadline, leaseDuration)
	}
}

func TestIdentity(t *testing.T) {
	inPod := Identity(func(string) (string, bool) { return "stowage-abc", true })
	if !strings.HasPrefix(inPod, "pod/stowage-abc_") || inPod == Identity(func(string) (string, bool) { return "stowage-abc", true }) {
		t.Errorf("a pod's replica is called %s", inPod)
	}
	if got := Identity(func(string) (string, bool) { return "", false }); strings.HasPrefix(got, podPrefix) {
		t.Errorf("a replica outside of a pod is called %s", got)
	}
}
