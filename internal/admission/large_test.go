package admission

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Large reviews wait for each other, for less time than the API server waits. Small ones never wait.
func TestLimitLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		inside := 0
		h := LimitLarge(logr.Discard(), nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.ContentLength > smallReview {
				inside++
				<-end
			}
		}))
		ask := func(size int) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/mutate?timeout=5s", bytes.NewReader(make([]byte, size))))
			return w
		}
		const large = 4 << 20
		for range largeReviews / large {
			go ask(large)
			synctest.Wait()
		}
		if inside != largeReviews/large {
			t.Fatalf("%d large reviews are answered at once", inside)
		}
		if w := ask(smallReview); w.Code != http.StatusOK {
			t.Errorf("a small review got %d", w.Code)
		}
		if w := ask(large); w.Code != http.StatusServiceUnavailable {
			t.Errorf("one large review more got %d", w.Code)
		}
		close(end)
		synctest.Wait()
		if w := ask(large); w.Code != http.StatusOK {
			t.Errorf("the next large review got %d", w.Code)
		}
	})
}

// A pod of any number of parts is left as it is.
func TestManyItems(t *testing.T) {
	pod := &podpatch.Pod{Spec: podpatch.Spec{Tolerations: make([]corev1.Toleration, mostItems+1)}}
	res := (&Pipeline{}).Run(t.Context(), feature.Request{Namespace: "ns", Pod: pod})
	if len(res.Patch) > 0 || len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "over 2000") {
		t.Errorf("the result is %+v", res)
	}
}
