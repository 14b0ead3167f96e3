package server

import (
	"context"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// rightsFor is how long what a process may read is remembered, and rightsTimeout bounds the requests that ask for it. Whoever creates pods in a dry
// run can have it asked.
const (
	rightsFor     = 10 * time.Second
	rightsTimeout = time.Second
)

// rights knows what of the things that a process has to read it may not read. Every service account may ask that of itself.
type rights struct {
	reviews   authorizationclient.SelfSubjectAccessReviewInterface
	resources []schema.GroupResource
	clock     clock.PassiveClock

	mu    sync.Mutex
	at    time.Time
	lacks []string
}

// resourcesOf returns the resources of some kinds, of those that the API server has.
func resourcesOf(kinds []client.Object, scheme *runtime.Scheme, mapper meta.RESTMapper) (out []schema.GroupResource) {
	for _, o := range kinds {
		gvk, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			continue
		}
		if mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err == nil {
			out = append(out, mapping.Resource.GroupResource())
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupResource) int {
		return slices.Compare([]string{a.Resource, a.Group}, []string{b.Resource, b.Group})
	})
	return out
}

// Lacks returns the resources that the process may not list. It returns none where that cannot be known.
func (r *rights) Lacks(ctx context.Context) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if !r.at.IsZero() && now.Sub(r.at) < rightsFor {
		return r.lacks
	}
	r.at, r.lacks = now, nil
	ctx, cancel := context.WithTimeout(ctx, rightsTimeout)
	defer cancel()
	var lacks []string
	for _, resource := range r.resources {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: resource.Group, Resource: resource.Resource},
		}}
		answer, err := r.reviews.Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil // it is asked again
		}
		if !answer.Status.Allowed {
			lacks = append(lacks, resource.String())
		}
	}
	r.lacks = lacks
	return lacks
}
