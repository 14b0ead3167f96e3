package evict

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// recorder notes the evictions that it is asked for. What the API server makes of them is tested
// in test/e2e.
type recorder struct {
	client.Client
	answer error
}

type subresource struct {
	client.SubResourceClient
	answer error
}

func (r *recorder) SubResource(string) client.SubResourceClient { return subresource{answer: r.answer} }

func (r subresource) Create(_ context.Context, _ client.Object, _ client.Object, _ ...client.SubResourceCreateOption) error {
	return r.answer
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
}

// askAll asks to evict the pods whose time has come, and takes those that were evicted out of next.
func askAll(t *testing.T, e *Evictor, clock *clocktesting.FakePassiveClock, next map[string]time.Time) (asked, evicted int) {
	t.Helper()
	for name, at := range next {
		if clock.Now().Before(at) {
			continue
		}
		asked++
		result, wait, err := e.Evict(t.Context(), pod(name))
		switch {
		case err != nil:
			t.Fatal(err)
		case result == Waits:
			next[name] = clock.Now().Add(wait)
		default:
			delete(next, name)
			evicted++
		}
	}
	return asked, evicted
}

// After an outage many workloads want to evict at once: together they stay within the rate.
func TestManyWorkloadsAtOnce(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	e := New(&recorder{}, Rules{recreated, running}, clock, 2, metrics.NewSet(prometheus.NewRegistry()))
	next := map[string]time.Time{}
	for i := range 100 {
		next[fmt.Sprint("pod-", i)] = clock.Now()
	}
	var when []time.Duration
	for step := 0; len(next) > 0 && step < 10_000; step++ {
		for _, evicted := askAll(t, e, clock, next); evicted > 0; evicted-- {
			when = append(when, clock.Since(time.Unix(0, 0)))
		}
		clock.SetTime(clock.Now().Add(100 * time.Millisecond))
	}
	for i, at := range when {
		if earliest := time.Duration(i) * 500 * time.Millisecond; at < earliest {
			t.Errorf("eviction %d came after %s, want at least %s", i+1, at, earliest)
		}
	}
	if len(when) != 100 || when[99] > 51*time.Second {
		t.Errorf("%d evictions, the last after %s; nothing should be held up longer than the rate asks for", len(when), when[len(when)-1])
	}
}

func TestWaitingPodsAreForgotten(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	e := New(&recorder{}, Rules{recreated, running}, clock, 1, metrics.NewSet(prometheus.NewRegistry()))
	for _, name := range []string{"a", "b", "b", "b"} {
		if _, _, err := e.Evict(t.Context(), pod(name)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(e.waiting["ns"]); n != 1 {
		t.Errorf("%d pods wait, want 1: asking again is not waiting twice", n)
	}
	clock.SetTime(clock.Now().Add(5 * time.Minute))
	if result, _, err := e.Evict(t.Context(), pod("c")); result != Evicted || err != nil {
		t.Errorf("%s, %v", result, err)
	}
	if n := len(e.waiting); n != 0 {
		t.Errorf("pods of %d namespaces wait that nobody asks for any more", n)
	}
}

// Pods that asked once, or that go on asking, do not keep another tenant's pod waiting.
func TestAnotherTenantIsNotDelayed(t *testing.T) {
	for name, goOn := range map[string]bool{"a thousand pods asked once": false, "a thousand pods go on asking": true} {
		t.Run(name, func(t *testing.T) {
			begin := time.Unix(0, 0)
			clock := clocktesting.NewFakePassiveClock(begin)
			e := New(&recorder{}, Rules{recreated, running}, clock, 1, metrics.NewSet(prometheus.NewRegistry()))
			var crowd []*corev1.Pod
			for i := range 1000 {
				crowd = append(crowd, pod(fmt.Sprint("pod-", i)))
			}
			ask := func(p *corev1.Pod) (Result, time.Duration) {
				result, wait, err := e.Evict(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				return result, wait
			}
			for _, p := range crowd {
				ask(p)
			}
			other := pod("other")
			other.Namespace = "elsewhere"
			for next := clock.Now(); ; {
				if goOn {
					for _, p := range crowd {
						ask(p)
					}
				}
				if !clock.Now().Before(next) {
					result, wait := ask(other)
					if result == Evicted {
						break
					}
					next = clock.Now().Add(wait)
				}
				clock.SetTime(clock.Now().Add(100 * time.Millisecond))
				if waited := clock.Since(begin); waited > 10*time.Second {
					t.Fatalf("the other tenant's pod still waits after %s", waited)
				}
			}
		})
	}
}

// forbidden is the answer where a PodDisruptionBudget forbids an eviction.
func forbidden() error {
	err := apierrors.NewTooManyRequests("no", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	return err
}

func TestResults(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		answer error
		want   Result
		fails  bool
	}{
		"evicted":                     {want: Evicted},
		"a budget forbids it":         {answer: forbidden(), want: Refused, fails: true},
		"two budgets forbid it":       {answer: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 500, Message: "two"}}, want: Refused, fails: true},
		"a policy forbids it":         {answer: apierrors.NewForbidden(resource, "p", errors.New("no")), want: Refused, fails: true},
		"the API server times out":    {answer: apierrors.NewServerTimeout(resource, "create", 1), want: Failed, fails: true},
		"the API server is busy":      {answer: apierrors.NewTooManyRequestsError("no"), want: Failed, fails: true},
		"there is no such pod":        {answer: apierrors.NewNotFound(resource, "p"), want: Gone},
		"another pod of the name":     {answer: apierrors.NewConflict(resource, "p", errors.New("UID")), want: Gone},
		"the API server has an error": {answer: errors.New("no answer"), want: Failed, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			e := New(&recorder{answer: tc.answer}, Rules{recreated, running}, clocktesting.NewFakePassiveClock(time.Unix(0, 0)), 1, metrics.NewSet(reg))
			result, _, err := e.Evict(t.Context(), pod("p"))
			if result != tc.want || (err != nil) != tc.fails {
				t.Errorf("%s, %v", result, err)
			}
			if n := testutil.ToFloat64(e.evictions.WithLabelValues(string(tc.want))); n != 1 {
				t.Errorf("%v were counted", n)
			}
		})
	}
}

// A pod that waits looks at its workload again each time it asks, so a thousand of them ask seldom.
func TestWaitingPodsAskSeldom(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	e := New(&recorder{}, Rules{recreated, running}, clock, 1, metrics.NewSet(prometheus.NewRegistry()))
	next := map[string]time.Time{}
	for i := range 1000 {
		next[fmt.Sprint("pod-", i)] = clock.Now()
	}
	asks := 0
	for range 1200 { // two minutes
		asked, _ := askAll(t, e, clock, next)
		asks += asked
		clock.SetTime(clock.Now().Add(100 * time.Millisecond))
	}
	if evicted := 1000 - len(next); asks > 10_000 || evicted < 115 {
		t.Errorf("%d asks for %d evictions", asks, evicted)
	}
}

// Turns that nobody used do not add up: after a pause, evictions are as far apart as ever.
func TestPauseSavesNoTurns(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	e := New(&recorder{}, Rules{recreated, running}, clock, 1, metrics.NewSet(prometheus.NewRegistry()))
	next := map[string]time.Time{}
	for _, name := range []string{"a", "b", "c", "d"} {
		result, _, err := e.Evict(t.Context(), pod(name))
		if err != nil {
			t.Fatal(err)
		}
		if result == Waits {
			next[name] = time.Unix(5, 0)
		}
	}
	clock.SetTime(time.Unix(5, 0))
	var when []time.Time
	for range 1000 {
		for name, at := range next {
			if clock.Now().Before(at) {
				continue
			}
			result, wait, err := e.Evict(t.Context(), pod(name))
			if err != nil {
				t.Fatal(err)
			}
			if result == Waits {
				next[name] = clock.Now().Add(wait)
				continue
			}
			delete(next, name)
			when = append(when, clock.Now())
		}
		clock.SetTime(clock.Now().Add(100 * time.Millisecond))
	}
	if len(when) != 3 {
		t.Fatalf("%d pods were evicted after the pause, want 3", len(when))
	}
	for i, at := range when[1:] {
		if apart := at.Sub(when[i]); apart < time.Second {
			t.Errorf("evictions %d and %d are %s apart", i+1, i+2, apart)
		}
	}
}

// recreated is of pods whose owners create others.
func recreated(context.Context, *corev1.Pod) (string, error) { return "", nil }

// running is of namespaces that are not paused.
func running(context.Context, string) bool { return false }

// No caller evicts a pod of a paused namespace.
func TestPaused(t *testing.T) {
	c, paused := &recorder{}, true
	e := New(c, Rules{recreated, func(_ context.Context, namespace string) bool { return paused && namespace == "ns" }}, clocktesting.NewFakePassiveClock(time.Unix(0, 0)), 1, metrics.NewSet(prometheus.NewRegistry()))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}}
	if result, wait, err := e.Evict(t.Context(), pod); result != Waits || wait <= 0 || err != nil {
		t.Errorf("%s, %s, %v", result, wait, err)
	}
	if result, err := e.EvictUnchanged(t.Context(), pod); result != Waits || err != nil {
		t.Errorf("%s, %v", result, err)
	}
	paused = false
	if result, _, err := e.Evict(t.Context(), pod); result != Evicted || err != nil {
		t.Errorf("%s, %v", result, err)
	}
}

// A pod that would be lost is not evicted. Neither is a pod if it is not known whether it would be.
func TestLost(t *testing.T) {
	c := &recorder{}
	for name, tc := range map[string]struct {
		why  string
		err  error
		want Result
	}{
		"it would be lost": {why: "nobody creates another one", want: Refused},
		"nobody knows":     {err: errors.New("no answer"), want: Failed},
	} {
		e := New(c, Rules{func(context.Context, *corev1.Pod) (string, error) { return tc.why, tc.err }, running}, clocktesting.NewFakePassiveClock(time.Unix(0, 0)), 1, metrics.NewSet(prometheus.NewRegistry()))
		if got, err := e.EvictUnchanged(t.Context(), &corev1.Pod{}); got != tc.want || err == nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}
