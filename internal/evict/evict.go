// Package evict evicts pods for the controllers of the leader.
//
// It promises that
//   - a pod is only ever removed through the eviction API, so that PodDisruptionBudgets hold, and
//     only if it still is the pod that was meant;
//   - all evictions of Stowage together stay within one rate, however many workloads ask at once.
//
// Pods wait for their turn in one queue, by their UID. Whether a pod is still to be evicted when its
// turn comes is for the caller to decide again: it calls [Evictor.Evict] again.
package evict

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/metrics"
)

// Result is what became of an eviction. Each but Waits is a metric label.
type Result string

// The results.
const (
	Evicted Result = "evicted"
	Waits   Result = "waits"   // the pod's turn has not come yet
	Refused Result = "refused" // a PodDisruptionBudget forbids it now
	Gone    Result = "gone"    // there is no such pod any more
	Failed  Result = "failed"
)

// Evictor evicts pods.
type Evictor struct {
	client    client.Client
	clock     clock.PassiveClock
	evictions *prometheus.CounterVec

	interval time.Duration // between two evictions

	mu    sync.Mutex
	limit *rate.Limiter
	turns map[types.UID]time.Time // when a pod's turn comes
	last  time.Time               // when a turn was used
}

// leastLapse is the shortest time for which an unused turn stays valid. A controller looks again before
// it evicts, which may take a while, and does not come back where nothing is to be evicted any more.
const leastLapse = time.Minute

// requestTimeout bounds one eviction. The API server asks clients to come back after 10 s while it does not know a
// PodDisruptionBudget yet. The client waits for that inside the call.
const requestTimeout = 5 * time.Second

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// New returns an evictor that evicts so many pods a second. The client is not a cached one.
func New(c client.Client, clock clock.PassiveClock, perSecond float64, set *metrics.Set) *Evictor {
	return &Evictor{
		client: c, clock: clock, interval: time.Duration(float64(time.Second) / perSecond),
		limit: rate.NewLimiter(rate.Limit(perSecond), 1), turns: map[types.UID]time.Time{},
		evictions: set.CounterVec("stowage_evictions_total", "Evictions of pods that Stowage asked for, by result: evicted, refused (a PodDisruptionBudget), gone (it was there no more), or failed.", "result"),
	}
}

// Evict evicts a pod if its turn has come. Otherwise it returns Waits and for how long; the pod
// then has a place in the queue.
func (e *Evictor) Evict(ctx context.Context, pod *corev1.Pod) (Result, time.Duration, error) {
	if wait := e.turn(pod.UID); wait > 0 {
		return Waits, wait, nil
	}
	result, err := e.request(ctx, pod, &metav1.Preconditions{UID: &pod.UID})
	return result, 0, err
}

// EvictUnchanged evicts a pod of which nothing has changed since its resource version, such as one that waits for a
// node. Binding changes the version, so a pod that got its node meanwhile is Gone for the caller. It does not wait
// for a turn; the caller limits the rate. The API server asks no PodDisruptionBudget about pods that are Pending.
func (e *Evictor) EvictUnchanged(ctx context.Context, pod *corev1.Pod) (Result, error) {
	return e.request(ctx, pod, &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
}

func (e *Evictor) request(ctx context.Context, pod *corev1.Pod, preconditions *metav1.Preconditions) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := e.client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: preconditions},
	})
	result := Failed
	switch {
	case err == nil:
		result = Evicted
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		result, err = Refused, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		result, err = Gone, nil
	}
	e.evictions.WithLabelValues(string(result)).Inc()
	return result, err
}

// turn returns how long a pod has to wait for its turn. When it has come it is used up.
func (e *Evictor) turn(pod types.UID) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	lapse := max(leastLapse, 2*e.interval)
	for uid, at := range e.turns {
		if now.Sub(at) > lapse {
			delete(e.turns, uid)
		}
	}
	at, queued := e.turns[pod]
	if !queued {
		at = now.Add(e.limit.ReserveN(now, 1).DelayFrom(now))
	}
	// Turns that are used late do not come closer to each other than the rate allows.
	if next := e.last.Add(e.interval); next.After(at) && next.After(now) {
		at = next
	}
	if wait := at.Sub(now); wait > 0 {
		e.turns[pod] = at
		return wait
	}
	delete(e.turns, pod)
	e.last = now
	return 0
}
