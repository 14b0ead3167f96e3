package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

// reaching plays what happens between a replica and the API server.
type reaching struct {
	t        *testing.T
	contact  *contact
	now      *clocktesting.FakePassiveClock
	answered bool
}

// RoundTrip implements http.RoundTripper.
func (r *reaching) RoundTrip(*http.Request) (*http.Response, error) {
	if !r.answered {
		return nil, errors.New("no answer")
	}
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
}

func (r *reaching) ask(answered bool) {
	r.answered = answered
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "https://server/api", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.contact.wrap(r).RoundTrip(req); (err == nil) != answered {
		r.t.Fatal(err)
	}
}

func (r *reaching) review() {
	none := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	r.contact.reviews(none).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/mutate", nil))
}

func (r *reaching) wait(d time.Duration) { r.now.SetTime(r.now.Now().Add(d)) }

func TestSilence(t *testing.T) {
	cases := map[string]struct {
		play func(r *reaching)
		want time.Duration
	}{
		"the API server answers":                            {func(r *reaching) { r.ask(true); r.review(); r.wait(time.Minute) }, 0},
		"nobody asks it":                                    {func(r *reaching) { r.review(); r.wait(time.Minute) }, 0},
		"it does not answer, and sends reviews":             {func(r *reaching) { r.ask(false); r.review(); r.wait(30 * time.Second) }, 30 * time.Second},
		"it sends none, because it is down for everybody":   {func(r *reaching) { r.ask(false); r.wait(time.Minute) }, 0},
		"the first review after it was down does not count": {func(r *reaching) { r.ask(false); r.wait(time.Minute); r.review(); r.wait(time.Second) }, 0},
		"a silence lasts from the first request that had none": {func(r *reaching) {
			r.ask(false)
			r.review()
			r.wait(15 * time.Second)
			r.ask(false)
			r.review()
			r.wait(15 * time.Second)
		}, 30 * time.Second},
		"any answer ends it": {func(r *reaching) { r.ask(false); r.review(); r.wait(time.Minute); r.ask(true); r.wait(time.Minute) }, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			now := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
			r := &reaching{t: t, contact: &contact{clock: now}, now: now}
			tc.play(r)
			if got := r.contact.silence(); got != tc.want {
				t.Errorf("the silence is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestAnotherReady(t *testing.T) {
	endpoint := func(pod string, ready *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: ready}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod}}
	}
	slice := func(endpoints ...discoveryv1.Endpoint) any { return &discoveryv1.EndpointSlice{Endpoints: endpoints} }
	cases := map[string]struct {
		slices []any
		pod    string
		want   bool
	}{
		"another pod is ready":                       {[]any{slice(endpoint("a", new(true)), endpoint("b", new(true)))}, "a", true},
		"so is one in another slice":                 {[]any{slice(endpoint("a", new(true))), slice(endpoint("b", nil))}, "a", true},
		"this one is the only one":                   {[]any{slice(endpoint("a", new(true))), slice(endpoint("a", new(true)))}, "a", false},
		"the other one is not ready":                 {[]any{slice(endpoint("a", new(true)), endpoint("b", new(false)))}, "a", false},
		"no endpoint was seen":                       {nil, "a", false},
		"this replica does not know its own pod":     {[]any{slice(endpoint("a", new(true)), endpoint("b", new(true)))}, "", false},
		"an endpoint that is no pod may be this one": {[]any{slice(discoveryv1.Endpoint{})}, "a", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := anotherReady(tc.slices, tc.pod); got != tc.want {
				t.Errorf("another one is ready: %t", got)
			}
		})
	}
}

// A request that an API server has no room for comes back at once, with the reason.
func TestRequestsAreSentOnce(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	}))
	defer server.Close()
	clients, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: server.URL}, &http.Client{Transport: once{http.DefaultTransport}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = clients.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{})
	if n := requests.Load(); n != 1 || !apierrors.IsTooManyRequests(err) {
		t.Errorf("%d requests, and the error is %v", n, err)
	}
}
