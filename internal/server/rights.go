package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/internal/world/readable"
)

// rightsFor is how long what a process may do is remembered, and rightsTimeout bounds the requests that ask for it. Whoever creates pods in a dry
// run can have it asked. The leader asks every rightsEvery by itself.
const (
	rightsFor     = 10 * time.Second
	rightsTimeout = time.Second
	rightsEvery   = time.Minute
)

// right is what a process has to be allowed, in all namespaces.
type right struct{ verb, group, resource, subresource string }

// String names a right in one word: the resource alone where it is to be read, or else the verb and the resource.
func (r right) String() string {
	if r.verb == reads {
		return schema.GroupResource{Group: r.group, Resource: r.resource}.String()
	}
	if r.subresource != "" {
		return r.verb + "-" + r.resource + "/" + r.subresource
	}
	return r.verb + "-" + r.resource
}

// reads is the verb that is asked for where a process reads a kind. The roles have get and watch beside it.
const reads = "list"

// rights knows what a process may not do of what it has to. Every service account may ask that of itself.
type rights struct {
	reviews authorizationclient.SelfSubjectAccessReviewInterface
	needs   []right
	clock   clock.PassiveClock
	log     logr.Logger

	mu    sync.Mutex
	at    time.Time
	lacks []string

	// told is what the leader has found, for its Lease.
	told atomic.Pointer[[]string]
}

// readsOf returns the rights to read some kinds, of those that the API server has.
func readsOf(kinds []client.Object, scheme *runtime.Scheme, mapper meta.RESTMapper) (out []right) {
	for _, o := range kinds {
		gvk, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			continue
		}
		if mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err == nil {
			out = append(out, right{verb: reads, group: mapping.Resource.Group, resource: mapping.Resource.Resource})
		}
	}
	slices.SortFunc(out, func(a, b right) int {
		return slices.Compare([]string{a.resource, a.group}, []string{b.resource, b.group})
	})
	return out
}

// writesOf returns the rights to write that the features of a process need: those of each ClusterRole of config/rbac without which something is not
// done that nothing else shows.
func writesOf(on worldcache.Features) (out []right) {
	evicts := []right{{"patch", "", "pods", ""}, {"create", "", "pods", "eviction"}}
	if on.Controllers && (on.Spread || on.Sizing) {
		out = append(out, evicts...)
	} else if on.Controllers && on.ScaleDown {
		out = append(out, evicts[0])
	}
	if on.Controllers && on.ScaleDown {
		out = append(out, right{"patch", stowage.GroupVersion.Group, "clusterscaledownpolicies", "status"})
	}
	if on.Spread {
		out = append(out, right{"update", stowage.GroupVersion.Group, "seatledgers", ""})
	}
	if on.Controllers && on.Spread {
		out = append(out,
			right{"delete", stowage.GroupVersion.Group, "seatledgers", ""}, right{"create", stowage.GroupVersion.Group, "poolstates", ""},
			right{"patch", stowage.GroupVersion.Group, "poolstates", "status"}, right{"patch", stowage.GroupVersion.Group, "clusterspreadpolicies", "status"},
			right{"patch", versprei.GroupVersion.Group, "poddistributors", "status"})
	}
	if on.Controllers && on.Sizing {
		out = append(out, right{"patch", "", "pods", "resize"}, right{"patch", flexdaemonsets.GroupVersion.Group, "flexdaemonsettemplates", "status"})
	}
	if on.Controllers && on.PeerPods {
		out = append(out, right{"patch", stowage.GroupVersion.Group, "vmcatalogs", "status"})
		if !on.Spread && !on.Sizing {
			out = append(out, right{"create", "", "pods", "eviction"})
		}
	}
	if on.Controllers && on.Capacity {
		out = append(out, right{"patch", "", "nodes", "status"})
	}
	return out
}

// Lacks returns the rights that the process lacks, each in a word. It returns none where that cannot be known.
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
	for _, need := range r.needs {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: need.verb, Group: need.group, Resource: need.resource, Subresource: need.subresource},
		}}
		answer, err := r.reviews.Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil // it is asked again
		}
		if !answer.Status.Allowed {
			lacks = append(lacks, need.String())
		}
	}
	r.lacks = lacks
	return lacks
}

// kindsLacking returns the rights that a process lacks to read kinds which policies of a namespace or of the cluster name, each in a word.
func kindsLacking(ctx context.Context, namespace string, kinds *readable.Kinds, reader *worldcache.Cache) (lacks []string) {
	ctx, cancel := context.WithTimeout(ctx, rightsTimeout)
	defer cancel()
	all := reader.AllPolicies()
	kinds.Look(ctx, all)
	for _, resource := range kinds.Lacks(all, namespace) {
		lacks = append(lacks, stowage.CheckLacksGet+resource)
	}
	return lacks
}

// The leader asks what it may not do, and writes that into its Lease, which its own Role lets it renew. Where the webhook runs in other processes,
// nobody else can tell: their rights are their own.

var _ leader.Controller = &rights{}

// Name implements [leader.Controller].
func (*rights) Name() string { return "rights" }

// Register implements [leader.Controller].
func (r *rights) Register(t *leader.Term) error {
	t.AtEnd(func() { r.told.Store(nil) })
	t.Every(rightsEvery, r.look)
	return nil
}

// look notes what the process lacks, for its Lease.
func (r *rights) look(ctx context.Context) {
	lacks := r.Lacks(ctx)
	if was := r.told.Swap(&lacks); len(lacks) > 0 && (was == nil || !slices.Equal(*was, lacks)) {
		r.log.Info("the controllers lack rights. Apply the ClusterRoles and their bindings of this version", "lacks", strings.Join(lacks, " "))
	}
}

// found returns what the last look has found, and asks nobody: the Lease is renewed in time, whatever the API server does.
func (r *rights) found() []string {
	if lacks := r.told.Load(); lacks != nil {
		return *lacks
	}
	return nil
}
