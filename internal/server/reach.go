package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// A replica that reaches no API server cannot share its seats. If others can, it leaves the reviews to them.

// The times of a replica without an answer.
const (
	maxSilence = 20 * time.Second // then it leaves the Service
	// reviewGrace is how long after a review there must still be no answer. An API server that was down sends reviews as soon as
	// it is back, and the first request for one of them ends the silence.
	reviewGrace = 5 * time.Second
)

// contact notes whether the API server answers this replica, while it sends reviews. An API server that sends none gets
// no seat that is not shared. The methods may be called at once.
type contact struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	asked    time.Time // when the first request was sent since the last answer, or zero
	reviewed time.Time // when the first review came since asked, or zero
}

// silence returns for how long the API server has not answered this replica, though it sends reviews.
func (c *contact) silence() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked.IsZero() || c.reviewed.IsZero() || c.clock.Since(c.reviewed) < reviewGrace {
		return 0
	}
	return c.clock.Since(c.asked)
}

// first notes a moment unless one is noted already.
func (c *contact) first(at *time.Time) {
	if at.IsZero() {
		*at = c.clock.Now()
	}
}

// reviews notes the reviews that come to a handler.
func (c *contact) reviews(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		if !c.asked.IsZero() {
			c.first(&c.reviewed)
		}
		c.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// wrap is for rest.Config.Wrap.
func (c *contact) wrap(next http.RoundTripper) http.RoundTripper { return &contactTransport{c, next} }

type contactTransport struct {
	contact *contact
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper. Every answer counts: one that refuses comes to all replicas.
func (t *contactTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.contact
	c.mu.Lock()
	c.first(&c.asked)
	c.mu.Unlock()
	resp, err := t.next.RoundTrip(req)
	if err == nil {
		c.mu.Lock()
		c.asked, c.reviewed = time.Time{}, time.Time{}
		c.mu.Unlock()
	}
	return resp, err
}

// WrappedRoundTripper is how client-go finds the connection below.
func (t *contactTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch,namespace=stowage-system,roleName=stowage-webhook

// newEndpoints returns an informer of the endpoints of the webhook's Service. It is not the cache's: nothing waits for it.
func newEndpoints(clients kubernetes.Interface, namespace string) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewFilteredListWatchFromClient(clients.DiscoveryV1().RESTClient(), "endpointslices", namespace, func(o *metav1.ListOptions) {
			o.LabelSelector = discoveryv1.LabelServiceName + "=" + service
		}),
		&discoveryv1.EndpointSlice{}, toolscache.SharedIndexInformerOptions{})
}

// anotherReady reports whether the pod of another replica was ready as the endpoints were seen last.
func anotherReady(slices []any, pod string) bool {
	for _, obj := range slices {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || pod == "" {
			continue
		}
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) && e.TargetRef != nil && e.TargetRef.Kind == "Pod" && e.TargetRef.Name != pod {
				return true
			}
		}
	}
	return false
}

// addReach adds the check that the API server answers the replica in a pod.
func addReach(mgr ctrl.Manager, endpoints toolscache.SharedIndexInformer, c *contact, pod string, ready *readiness) error {
	ready.add(reachCheck, func(*http.Request) error {
		if d := c.silence(); d >= maxSilence && anotherReady(endpoints.GetStore().List(), pod) {
			return fmt.Errorf("the API server has not answered for %s", d.Round(time.Second))
		}
		return nil
	})
	return mgr.Add(withoutElection(func(ctx context.Context) error {
		endpoints.RunWithContext(ctx)
		return nil
	}))
}

// once hides from client-go that a response asks for another try later. client-go would repeat the request after just that time,
// as long as its caller has time, and not tell.
type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.next.RoundTrip(req)
	if err == nil {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

// WrappedRoundTripper is how client-go finds the connection below.
func (o once) WrappedRoundTripper() http.RoundTripper { return o.next }
