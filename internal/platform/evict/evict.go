// Package evict evicts pods for the controllers of the leader.
//
// It promises that
//   - a pod is only ever removed through the eviction API, so that PodDisruptionBudgets hold, and
//     only if it still is the pod that was meant;
//   - all evictions of Stowage together stay within one rate, however many workloads ask at once;
//   - namespaces that ask share the rate equally, so that no tenant delays another one's evictions for long;
//   - no pod is evicted unless its owner creates another one.
//
// A turn is given when it is used, and nobody holds one in advance. Whether a pod is still to be evicted when its
// turn comes is for the caller to decide again: it calls [Evictor.Evict] again.
package evict

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// Result is what became of an eviction. Each but Waits is a metric label.
type Result string

// The results.
const (
	Evicted Result = "evicted"
	Waits   Result = "waits"   // the pod's turn has not come yet, or its namespace is paused
	Refused Result = "refused" // by a PodDisruptionBudget, an admission policy or the right that is missing, or because the pod would be lost
	Gone    Result = "gone"    // there is no such pod any more
	Failed  Result = "failed"
)

// Rules say which pods stay.
type Rules struct {
	// Lost says why the work of a pod would be lost if it is evicted, or "".
	Lost func(ctx context.Context, pod *corev1.Pod) (why string, err error)
	// Paused reports whether no pod of a namespace is evicted now.
	Paused func(ctx context.Context, namespace string) bool
}

// Evictor evicts pods.
type Evictor struct {
	client    client.Client
	rules     Rules
	clock     clock.PassiveClock
	evictions *prometheus.CounterVec

	interval time.Duration // between two evictions
	limit    *fair.Limiter[string]

	mu      sync.Mutex
	waiting map[string]map[types.UID]place // by namespace
	came    uint64                         // how many pods have come to wait
}

// place is a pod's place among those of its namespace that wait.
type place struct {
	number uint64 // in the order in which they came
	asked  time.Time
}

// longestWait is how long a pod is told to wait at most, and forgetAfter is how long after it asked last it counts as waiting. A
// controller looks again before it evicts, and does not come back where nothing is to be evicted any more.
const (
	longestWait = 30 * time.Second
	forgetAfter = time.Minute
)

// pausedWait is how long a pod waits whose namespace is paused, until it asks again.
const pausedWait = 5 * time.Second

// requestTimeout bounds one eviction. The API server asks clients to come back after 10 s while it does not know a
// PodDisruptionBudget yet. The client waits for that inside the call.
const requestTimeout = 5 * time.Second

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create,roleName=stowage-spread-controllers
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create,roleName=stowage-sizing-controllers

// New returns an evictor that evicts so many pods a second, by rules. The client is not a cached one.
func New(c client.Client, rules Rules, clock clock.PassiveClock, perSecond float64, set *metrics.Set) *Evictor {
	return &Evictor{
		client: c, rules: rules, clock: clock, interval: time.Duration(float64(time.Second) / perSecond),
		limit: fair.NewLimiter[string](perSecond, 1), waiting: map[string]map[types.UID]place{},
		evictions: set.CounterVec("stowage_evictions_total", "Evictions of pods that Stowage asked for, by result: evicted, refused (by a PodDisruptionBudget or an admission policy, or because the pod would be lost), gone (it was there no more), or failed.", "result"),
	}
}

// Evict evicts a pod as [Evictor.EvictUnchanged] does if its turn has come. Otherwise it returns Waits, and after what time to ask again.
// With Refused, the error is why. That is no fault of the caller's, and the pod may go later.
func (e *Evictor) Evict(ctx context.Context, pod *corev1.Pod) (Result, time.Duration, error) {
	if e.rules.Paused(ctx, pod.Namespace) {
		return Waits, pausedWait, nil
	}
	if wait := e.turn(pod); wait > 0 {
		return Waits, wait, nil
	}
	result, err := e.EvictUnchanged(ctx, pod)
	return result, 0, err
}

// EvictUnchanged evicts a pod of which nothing has changed since its resource version, such as one that waits for a
// node. Binding changes the version, so a pod that got its node meanwhile is Gone for the caller. It does not wait
// for a turn; the caller limits the rate. In a namespace that is paused it returns Waits. The API server asks no PodDisruptionBudget about pods that are Pending.
func (e *Evictor) EvictUnchanged(ctx context.Context, pod *corev1.Pod) (Result, error) {
	if e.rules.Paused(ctx, pod.Namespace) {
		return Waits, nil
	}
	return e.request(ctx, pod, &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
}

func (e *Evictor) request(ctx context.Context, pod *corev1.Pod, preconditions *metav1.Preconditions) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	why, err := e.rules.Lost(ctx, pod)
	if why != "" {
		e.evictions.WithLabelValues(string(Refused)).Inc()
		return Refused, errors.New(why)
	}
	if err != nil {
		return Failed, err
	}
	err = e.client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: preconditions},
	})
	result := Failed
	switch {
	case err == nil:
		result = Evicted
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		result, err = Gone, nil
	case refuses(err):
		result = Refused
	}
	e.evictions.WithLabelValues(string(result)).Inc()
	return result, err
}

// refuses reports whether an error says that the API server refuses an eviction, and not that it could not be asked. The code is 500 where a pod has
// two PodDisruptionBudgets, and where a webhook fails that is to allow the eviction.
func refuses(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsServerTimeout(err) {
		return false
	}
	switch status.Status().Code {
	case http.StatusTooManyRequests:
		return apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause)
	case http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusBadRequest, http.StatusInternalServerError, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

// turn takes a turn for a pod and returns 0, or returns after what time to ask again. The more pods of its namespace wait, the
// later that is, so that they do not all ask at once.
func (e *Evictor) turn(pod *corev1.Pod) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	for namespace, pods := range e.waiting {
		maps.DeleteFunc(pods, func(_ types.UID, p place) bool { return now.Sub(p.asked) > forgetAfter })
		if len(pods) == 0 {
			delete(e.waiting, namespace)
		}
	}
	wait := e.limit.Take(pod.Namespace, now)
	pods := e.waiting[pod.Namespace]
	if wait == 0 {
		delete(pods, pod.UID)
		return 0
	}
	if pods == nil {
		pods = map[types.UID]place{}
		e.waiting[pod.Namespace] = pods
	}
	p, again := pods[pod.UID]
	if !again {
		e.came++
		p.number = e.came
	}
	p.asked = now
	pods[pod.UID] = p
	before := 0
	for _, other := range pods {
		if other.number < p.number {
			before++
		}
	}
	return min(wait+time.Duration(before*len(e.waiting))*e.interval, max(longestWait, wait))
}
