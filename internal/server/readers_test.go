package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// reviews answers as the API server does: it knows the tokens "good" and "stranger", and the user of the first may get /metrics.
type reviews struct {
	authenticationclient.TokenReviewInterface
	tokens int
	fail   error
}

func (r *reviews) Create(_ context.Context, t *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	r.tokens++
	t.Status.Authenticated = t.Spec.Token == "good" || t.Spec.Token == "stranger"
	t.Status.User.Username = t.Spec.Token
	if t.Spec.Token == "unlucky" {
		t.Status.Error = "invalid bearer token" // as an API server says of each that it does not know
	}
	return t, r.fail
}

type accesses struct {
	authorizationclient.SubjectAccessReviewInterface
}

func (accesses) Create(_ context.Context, s *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	s.Status.Allowed = s.Spec.User == "good" && s.Spec.NonResourceAttributes.Path == metricsPath && s.Spec.NonResourceAttributes.Verb == "get"
	return s, nil
}

// Each request is answered by what the API server says of it, and asked about again after a minute, or ten seconds if its user is refused. A
// token that is not known is asked about each time.
func TestReaders(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	api := &reviews{}
	readers := newReaders(api, accesses{}, clk, logr.Discard())
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for i, tc := range []struct {
		method, path, header string
		fail                 error
		after                time.Duration
		want                 int
		asked                bool
	}{
		{method: "GET", path: metricsPath, want: http.StatusUnauthorized},
		{method: "GET", path: metricsPath, header: "Basic good", want: http.StatusUnauthorized},
		{method: "GET", path: metricsPath, header: "Bearer ", want: http.StatusUnauthorized},
		{method: "GET", path: metricsPath, header: "Bearer made-up", want: http.StatusUnauthorized, asked: true},
		{method: "GET", path: metricsPath, header: "Bearer made-up", want: http.StatusUnauthorized, asked: true},
		{method: "GET", path: metricsPath, header: "Bearer unlucky", want: http.StatusUnauthorized, asked: true},
		{method: "GET", path: metricsPath, header: "Bearer stranger", want: http.StatusForbidden, asked: true},
		{method: "GET", path: metricsPath, header: "Bearer stranger", want: http.StatusForbidden},
		{method: "GET", path: metricsPath, header: "Bearer stranger", after: refusedAge + time.Second, want: http.StatusForbidden, asked: true},
		{method: "GET", path: metricsPath, header: "Bearer good", fail: errors.New("no answer"), want: http.StatusInternalServerError, asked: true},
		{method: "GET", path: metricsPath, header: "Bearer good", want: http.StatusOK, asked: true},
		{method: "GET", path: metricsPath, header: "bearer good", want: http.StatusOK},
		{method: "HEAD", path: metricsPath, header: "Bearer good", want: http.StatusOK},
		{method: "POST", path: metricsPath, header: "Bearer good", want: http.StatusMethodNotAllowed},
		{method: "GET", path: "/debug/seats", header: "Bearer good", want: http.StatusForbidden, asked: true},
		{method: "GET", path: metricsPath, header: "Bearer good", after: readerAge + time.Second, want: http.StatusOK, asked: true},
	} {
		clk.Step(tc.after)
		before := api.tokens
		api.fail = tc.fail
		r := httptest.NewRequest(tc.method, tc.path, http.NoBody)
		if tc.header != "" {
			r.Header.Set("Authorization", tc.header)
		}
		w := httptest.NewRecorder()
		readers.only(tc.path, served).ServeHTTP(w, r)
		if asked := api.tokens > before; w.Code != tc.want || asked != tc.asked {
			t.Errorf("%d. %s %s with %q: status %d, the API server is asked: %t; want %d and %t", i, tc.method, tc.path, tc.header, w.Code, asked, tc.want, tc.asked)
		}
	}
}

// A client that guesses tokens is refused before the API server is asked. A known reader and another client are not.
func TestReviewsAreLimited(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	api := &reviews{}
	h := newReaders(api, accesses{}, clk, logr.Discard()).only(metricsPath, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get := func(from, token string) int {
		r := httptest.NewRequest(http.MethodGet, metricsPath, http.NoBody)
		r.RemoteAddr = from
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	if code := get("10.0.0.7:1", "good"); code != http.StatusOK {
		t.Fatalf("the reader got %d", code)
	}
	for i := range 1000 {
		get("10.0.0.7:1", fmt.Sprint("guess-", i))
	}
	if api.tokens > reviewBurst {
		t.Errorf("1000 requests at once cost %d reviews, want at most %d", api.tokens, reviewBurst)
	}
	for from, want := range map[string]map[string]int{
		"10.0.0.7:2": {"guess": http.StatusTooManyRequests, "good": http.StatusOK},
		"10.0.0.8:1": {"guess": http.StatusUnauthorized},
	} {
		for token, want := range want {
			if code := get(from, token); code != want {
				t.Errorf("%s got %d with %s, want %d", from, code, token, want)
			}
		}
	}
	clk.Step(10 * time.Second)
	if code := get("10.0.0.7:1", "guess"); code != http.StatusUnauthorized {
		t.Errorf("the client got %d after ten seconds", code)
	}
}
