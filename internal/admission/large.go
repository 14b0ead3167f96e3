package admission

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Reviews of over smallReview bytes share largeReviews bytes. A decoded pod may take some twenty times as much memory as its
// JSON, and whoever creates pods chooses how many come at once.
const (
	smallReview  = 64 << 10
	largeReviews = 16 << 20
)

var errBusy = fmt.Errorf("reviews of over %d bytes take %d bytes in all; this one waited for room in vain", smallReview, largeReviews)

// LimitLarge lets large reviews wait for each other, so that together they do not exhaust the memory of the process. A review
// waits for at most half the time that the API server waits, and is answered with 503 then. Small ones never wait.
func LimitLarge(log logr.Logger, limit flowcontrol.PassiveRateLimiter, next http.Handler) http.Handler {
	room := semaphore.NewWeighted(largeReviews)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := r.ContentLength
		if n >= 0 && n <= smallReview {
			next.ServeHTTP(w, r)
			return
		}
		if n < 0 || n > MaxBodyBytes {
			n = MaxBodyBytes
		}
		ctx, cancel := context.WithTimeout(r.Context(), budget(r)/2)
		defer cancel()
		if room.Acquire(ctx, n) != nil {
			refuse(strangerLog{log, limit}, w, r, &httpError{http.StatusServiceUnavailable, errBusy})
			return
		}
		defer room.Release(n)
		next.ServeHTTP(w, r)
	})
}

// mostItems is how many containers, tolerations and terms of affinity a pod has at most if Stowage looks at it. The API server
// checks a pod after admission, so that anybody can send any number of them.
const mostItems = 2000

// checkItems reports a pod that would take too long to look at.
func checkItems(p *podpatch.Pod) error {
	n := len(p.Spec.Containers) + len(p.Spec.InitContainers) + len(p.Spec.Tolerations)
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				t := &required.NodeSelectorTerms[i]
				n += 1 + len(t.MatchExpressions) + len(t.MatchFields)
			}
		}
		for i := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			t := &a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference
			n += 1 + len(t.MatchExpressions) + len(t.MatchFields)
		}
	}
	if n > mostItems {
		return fmt.Errorf("it has over %d containers, tolerations and terms of affinity", mostItems)
	}
	return nil
}
