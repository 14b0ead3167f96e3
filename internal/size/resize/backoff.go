package resize

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// tries is what became of a pod's resizes.
type tries struct {
	asked   string // what was asked for last
	refused string // the API server's reason, if it refused that
	backoff time.Duration
	at      time.Time
}

func (r *run) forget(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tries, pod)
	delete(r.restarts, pod)
	delete(r.beforeTemplate, pod)
}

// waitFor returns how long to wait before a pod is asked to become something.
func (r *run) waitFor(pod *corev1.Pod, patch string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tries[pod.UID]
	var wait time.Duration
	switch {
	case t == nil:
	case t.refused != "" && t.asked != patch:
		wait = r.Timing.Backoff // the next size may be a better one
	case t.refused != "", pendingOf(pod) != nil, t.asked == patch:
		wait = t.backoff // what was accepted came out different, because another client changes it
	}
	if wait == 0 {
		return 0
	}
	return max(0, wait-r.Clock.Since(t.at))
}

// asked notes what was asked of a pod and what the API server said, and returns when it may be asked the same again.
// The wait doubles as long as the size is not granted, or is granted and comes out different.
func (r *run) asked(pod *corev1.Pod, patch, refused string, forLong bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tries[pod.UID]
	if t == nil {
		t = &tries{}
		r.tries[pod.UID] = t
	}
	again := t.asked == patch && (refused == "") == (t.refused == "") || pendingOf(pod) != nil
	switch {
	case forLong:
		t.backoff = r.Timing.MaxBackoff
	case again:
		t.backoff = min(max(2*t.backoff, r.Timing.Backoff), r.Timing.MaxBackoff)
	default:
		t.backoff = r.Timing.Backoff
	}
	t.asked, t.refused, t.at = patch, refused, r.Clock.Now()
	return t.backoff
}

// refusal is why the API server refused the size that a pod should have, or "".
func (r *run) refusal(pod types.UID, patch string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tries[pod]; t != nil && t.asked == patch {
		return t.refused
	}
	return ""
}
