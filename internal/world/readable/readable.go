// Package readable knows whether Stowage's account may read the objects of the kinds that policies name. Pods of a kind that it may not read get no
// seat, and no request fails where a user would see it.
package readable

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/world"
)

// How long an answer holds, and how often the API server is asked which kinds it has: while a policy names one that it lacks, and otherwise. A grant,
// and a kind that is installed, are noticed within a minute. One look takes at most lookTimeout.
const (
	answerFor   = 30 * time.Second
	absentEvery = 20 * time.Second
	servedEvery = 10 * time.Minute
	lookTimeout = 5 * time.Second
)

// reviewRate and reviewBurst bound the questions about rights, in a second and at once. Namespaces whose policies name kinds share them. Kinds that the
// API server does not have cost none: one discovery tells of all.
const (
	reviewRate  = 5
	reviewBurst = 100
)

// Kinds knows which kinds that policies name may be read. Every account may ask that of itself.
type Kinds struct {
	served  discovery.ServerResourcesInterfaceWithContext
	reviews authorizationclient.SelfSubjectAccessReviewInterface
	clock   clock.PassiveClock
	limit   *fair.Limiter[string]

	mu sync.Mutex
	// resources are those of the kinds that policies name, empty where the API server does not have a kind that scales. It was asked at lookedAt.
	resources map[schema.GroupKind]string
	lookedAt  time.Time
	answers   map[question]answer
}

// question is whether objects of a resource may be read in a namespace, or in all where that is empty.
type question struct {
	namespace string
	schema.GroupResource
}

type answer struct {
	allowed bool
	at      time.Time
}

// New returns Kinds that know nothing yet.
func New(served discovery.ServerResourcesInterface, reviews authorizationclient.SelfSubjectAccessReviewInterface, c clock.PassiveClock) *Kinds {
	return &Kinds{
		served: discovery.ToServerResourcesInterfaceWithContext(served), reviews: reviews, clock: c, limit: fair.NewLimiter[string](reviewRate, reviewBurst),
		resources: map[schema.GroupKind]string{}, answers: map[question]answer{},
	}
}

// named is a kind that policies of a namespace name, or ClusterSpreadPolicies where that is empty.
type named struct {
	namespace string
	schema.GroupKind
}

// watched reports whether the rights to read a kind are among those that each installation has: see docs/reference/permissions.md.
func watched(k stowage.OwnerKind) bool {
	return world.Ref{APIVersion: k.Group + "/v1", Kind: k.Kind}.Watched()
}

// namedBy returns the kinds that policies name and that are not watched, those of ClusterSpreadPolicies first.
func namedBy(all *world.Policies) []named {
	found := map[named]bool{}
	add := func(namespace string, kinds []stowage.OwnerKind) {
		for _, k := range kinds {
			if !watched(k) {
				found[named{namespace, schema.GroupKind{Group: k.Group, Kind: k.Kind}}] = true
			}
		}
	}
	for _, p := range all.Cluster {
		add("", p.Spec.Kinds)
	}
	for _, p := range all.Namespaced {
		add(p.Namespace, p.Spec.Kinds)
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b named) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind))
	})
}

// Look asks the API server what is not known, or was asked too long ago, of the kinds that policies name. It reports whether an answer has changed. What
// no policy names any more is forgotten.
func (k *Kinds) Look(ctx context.Context, all *world.Policies) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	of := namedBy(all)

	// 1. Which kinds are there?
	was := k.resources
	k.resources = make(map[schema.GroupKind]string, len(of))
	wait := servedEvery
	for _, n := range of {
		resource, known := was[n.GroupKind]
		if known {
			k.resources[n.GroupKind] = resource
		}
		if resource == "" {
			wait = absentEvery
		}
	}
	if now := k.clock.Now(); len(of) > 0 && (k.lookedAt.IsZero() || now.Sub(k.lookedAt) >= wait) {
		k.lookedAt = now
		k.discover(ctx, of)
	}
	changed = !maps.Equal(was, k.resources)

	// 2. May they be read, in all namespaces or else in that of the policy?
	before := k.answers
	k.answers = make(map[question]answer, len(before))
	for _, n := range of {
		for _, resource := range k.resourcesOf(n.GroupKind) {
			allowed, known := k.ask(ctx, before, n.namespace, question{"", resource})
			if known && !allowed && n.namespace != "" {
				k.ask(ctx, before, n.namespace, question{n.namespace, resource})
			}
		}
	}
	return changed || !maps.EqualFunc(before, k.answers, func(a, b answer) bool { return a.allowed == b.allowed })
}

// discover asks the API server which of some kinds it has. A kind without the subresource scale counts as one that it does not have: whoever writes a
// policy could otherwise have others let Stowage read Secrets. Of a group that does not answer, what was known stays.
func (k *Kinds) discover(ctx context.Context, of []named) {
	_, lists, err := k.served.ServerGroupsAndResourcesWithContext(ctx)
	failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partly {
		return // it is asked again
	}
	silent := map[string]bool{}
	for gv := range failed {
		silent[gv.Group] = true
	}
	found, scales := map[schema.GroupKind]string{}, map[schema.GroupResource]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if whole, scale := strings.CutSuffix(r.Name, "/scale"); scale {
				scales[schema.GroupResource{Group: gv.Group, Resource: whole}] = true
			}
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if gk := gv.WithKind(r.Kind).GroupKind(); !strings.Contains(r.Name, "/") && found[gk] == "" && scales[schema.GroupResource{Group: gv.Group, Resource: r.Name}] {
				found[gk] = r.Name
			}
		}
	}
	for _, n := range of {
		if resource := found[n.GroupKind]; resource != "" || !silent[n.Group] {
			k.resources[n.GroupKind] = resource
		}
	}
}

// resourcesOf returns what Stowage reads of the objects of a kind: themselves, and how many pods they ask for. There are none where the API server does
// not have the kind with a scale, or where that is not known.
func (k *Kinds) resourcesOf(gk schema.GroupKind) []schema.GroupResource {
	resource := k.resources[gk]
	if resource == "" {
		return nil
	}
	return []schema.GroupResource{{Group: gk.Group, Resource: resource}, {Group: gk.Group, Resource: resource + "/scale"}}
}

// ask returns the answer to a question, if one is known. It asks again where the answer is old, within the part that a namespace has of the rate.
func (k *Kinds) ask(ctx context.Context, before map[question]answer, asker string, q question) (allowed, known bool) {
	a, known := k.answers[q]
	if known {
		return a.allowed, true // for another policy
	}
	a, known = before[q]
	if now := k.clock.Now(); !known || now.Sub(a.at) >= answerFor {
		if k.limit.Allow(asker, now) {
			if allowed, err := k.review(ctx, q); err == nil {
				a, known = answer{allowed, now}, true
			}
		}
	}
	if known {
		k.answers[q] = a
	}
	return a.allowed, known
}

func (k *Kinds) review(ctx context.Context, q question) (bool, error) {
	resource, subresource, _ := strings.Cut(q.Resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: q.namespace, Verb: "get", Group: q.Group, Resource: resource, Subresource: subresource,
	}}}
	answer, err := k.reviews.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// Unreadable returns which of the kinds of a policy cannot be read or have no scale, as far as that is known. The namespace is the policy's.
func (k *Kinds) Unreadable(namespace string, kinds []stowage.OwnerKind) (out []stowage.UnreadableKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kind := range kinds {
		gk := schema.GroupKind{Group: kind.Group, Kind: kind.Kind}
		resource, known := k.resources[gk]
		u := stowage.UnreadableKind{OwnerKind: kind}
		for _, of := range k.resourcesOf(gk) {
			if k.denied(namespace, of) {
				u.Lacks = append(u.Lacks, of.String())
			}
		}
		if known && resource == "" || len(u.Lacks) > 0 {
			out = append(out, u)
		}
	}
	return out
}

// denied reports whether it is known that objects of a resource may not be read in a namespace, or in all where that is empty.
func (k *Kinds) denied(namespace string, of schema.GroupResource) bool {
	a, known := k.answers[question{"", of}]
	if known && !a.allowed && namespace != "" {
		a, known = k.answers[question{namespace, of}]
	}
	return known && !a.allowed
}

// Lacks returns what the account may not get of what it has to for the policies of a namespace and of the cluster, such as pipelinesets.example.net. What
// the policies of other namespaces name is no matter of this one.
func (k *Kinds) Lacks(all *world.Policies, namespace string) []string {
	lacks := map[string]bool{}
	for _, n := range namedBy(all) {
		if n.namespace != "" && n.namespace != namespace {
			continue
		}
		for _, u := range k.Unreadable(n.namespace, []stowage.OwnerKind{{Group: n.Group, Kind: n.Kind}}) {
			for _, resource := range u.Lacks {
				lacks[resource] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(lacks))
}
