// Package cache is the world as informers show it. They keep only the fields in use. So a decision lists nothing and, in the
// common case, sends no request. What the informers do not have is read from the API server, once for all callers that ask at the same time. Clients and
// namespaces share the limits of these reads.
package cache

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/ptr"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/world"
)

// Cache reads from a controller-runtime cache that was made with [Options].
type Cache struct {
	cached   client.Reader
	uncached client.Reader // asked for what cached does not know
	clock    Clock

	objects, kinds lane // of uncached reads
	mu             sync.Mutex
	flights        map[readKey]*flight

	// unwatched remembers workloads of kinds that are not watched, and missing what does not exist. unreadable remembers the
	// kinds that Stowage may not read, by namespace, and served which kinds there are.
	unwatched                   *bounded.Cache[readKey, *world.Workload]
	unreadable, served, missing *utilcache.LRUExpireCache

	distributors *distributors // nil before [Cache.FollowDistributors]
	policies     *WatchedPolicies
	volumes      volumes
}

// Clock tells the time.
type Clock interface{ Now() time.Time }

// New returns a cache that reads from uncached, within limits, what cached does not know.
func New(cached, uncached client.Reader, clock Clock, limits Limits) *Cache {
	const most = 4096 // entries of each kind
	remembered := func() *utilcache.LRUExpireCache { return utilcache.NewLRUExpireCacheWithClock(most, clock) }
	return &Cache{
		cached: cached, uncached: uncached, clock: clock,
		objects: newLane(limits.Rate, limits.Burst, limits.AtOnce, limits.Timeout),
		kinds:   newLane(limits.KindRate, limits.KindBurst, kindsAtOnce, cmp.Or(limits.KindTimeout, limits.Timeout)),
		flights: map[readKey]*flight{}, policies: NewWatchedPolicies(),
		unwatched: bounded.New[readKey, *world.Workload](unwatchedBytes, clock), unreadable: remembered(), served: remembered(), missing: remembered(),
	}
}

var _ world.Snapshot = &Cache{}

// Share has the cache answer from policies that [Options] were made with.
func (c *Cache) Share(policies *WatchedPolicies) { c.policies = policies }

// Options keeps only the fields that [world.Snapshot] promises. What is to be known of policies goes into policies. Controls says that the
// process runs controllers, which read what they have stored in a status.
func Options(policies *WatchedPolicies, controls bool) crcache.Options {
	keep := newKeeper()
	shared := true // callers promise not to change what they are given
	return crcache.Options{
		// Policies are not in ByObject: an API server that lacks one of its kinds would end the process.
		DefaultTransform: policies.transform,
		ByObject: map[client.Object]crcache.ByObject{
			metadataOf(appsv1.SchemeGroupVersion.WithKind("Deployment")): {UnsafeDisableDeepCopy: &shared, Transform: keep.workload},
			&appsv1.ReplicaSet{}:  {UnsafeDisableDeepCopy: &shared, Transform: keep.workload},
			&appsv1.StatefulSet{}: {UnsafeDisableDeepCopy: &shared, Transform: keep.workload},
			&appsv1.DaemonSet{}:   {UnsafeDisableDeepCopy: &shared, Transform: keep.workload},
			&corev1.Node{}:        {UnsafeDisableDeepCopy: &shared, Transform: keepNode},
			&schedulingv1.PriorityClass{}: {UnsafeDisableDeepCopy: &shared, Transform: func(obj any) (any, error) {
				p := obj.(*schedulingv1.PriorityClass)
				return &schedulingv1.PriorityClass{ObjectMeta: world.Identity(p.ObjectMeta), Value: p.Value, PreemptionPolicy: p.PreemptionPolicy}, nil
			}},
			&flexdaemonsets.FlexDaemonsetTemplate{}: {UnsafeDisableDeepCopy: &shared},
			&versprei.PodDistributor{}:              {UnsafeDisableDeepCopy: &shared, Transform: keepPodDistributor},
			&corev1.Namespace{}: {UnsafeDisableDeepCopy: &shared, Transform: func(obj any) (any, error) {
				ns := obj.(*corev1.Namespace)
				kept := &corev1.Namespace{ObjectMeta: world.Identity(ns.ObjectMeta)}
				kept.Labels, kept.Annotations = ns.Labels, world.Pick(ns.Annotations, stowage.ModeKey)
				return kept, nil
			}},
			&stowage.PoolState{}: {Transform: func(obj any) (any, error) { return keepPoolState(obj.(*stowage.PoolState), controls) }},
			&corev1.LimitRange{}: {UnsafeDisableDeepCopy: &shared, Transform: func(obj any) (any, error) {
				lr := obj.(*corev1.LimitRange)
				return &corev1.LimitRange{ObjectMeta: world.Identity(lr.ObjectMeta), Spec: lr.Spec}, nil
			}},
			&corev1.ResourceQuota{}: {UnsafeDisableDeepCopy: &shared, Transform: func(obj any) (any, error) {
				q := obj.(*corev1.ResourceQuota)
				return &corev1.ResourceQuota{ObjectMeta: world.Identity(q.ObjectMeta), Spec: q.Spec}, nil
			}},
		},
	}
}

func metadataOf(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(gvk)
	return m
}

// Features says which features are on, and what of them the process runs. Roles let it read just that.
type Features struct {
	Spread, Sizing, PeerPods bool
	ScaleDown                bool
	Capacity                 bool // nodes advertise VMs, which needs PeerPods
	Webhook, Controllers     bool
}

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch,roleName=stowage-spread-controllers
// +kubebuilder:rbac:groups=apps,resources=daemonsets;deployments;replicasets;statefulsets,verbs=get;list;watch,roleName=stowage-spread
// +kubebuilder:rbac:groups=versprei.versprei.io,resources=poddistributors,verbs=list;watch,roleName=stowage-spread
// +kubebuilder:rbac:groups=scheduling.k8s.io,resources=priorityclasses,verbs=get;list;watch,roleName=stowage-spread-webhook
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch,roleName=stowage-sizing
// +kubebuilder:rbac:groups="",resources=limitranges;resourcequotas,verbs=list;watch,roleName=stowage-sizing
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=get;list;watch,roleName=stowage-sizing
// +kubebuilder:rbac:groups=flexdaemonsets.xai,resources=flexdaemonsettemplates,verbs=get;list;watch,roleName=stowage-sizing
// +kubebuilder:rbac:groups="",resources=limitranges;resourcequotas,verbs=list;watch,roleName=stowage-peerpods-webhook
// +kubebuilder:rbac:groups=apps,resources=daemonsets;replicasets;statefulsets,verbs=get;list;watch,roleName=stowage-peerpods-webhook

// Nodes reports whether nodes are watched.
func (f Features) Nodes() bool {
	return f.Sizing || f.Controllers && slices.Contains([]bool{f.Spread, f.PeerPods, f.ScaleDown}, true)
}

// Kinds are those that a feature that is on needs.
func (f Features) Kinds() (out []client.Object) {
	for kind, needed := range f.watched() {
		if needed {
			out = append(out, kind)
		}
	}
	return out
}

// watched returns the kinds of [Options], and whether a feature that is on needs them.
func (f Features) watched() map[client.Object]bool {
	peers := f.PeerPods && f.Webhook
	return map[client.Object]bool{
		&corev1.Namespace{}:     true,
		&corev1.Node{}:          f.Nodes(),
		&corev1.LimitRange{}:    f.Sizing || peers,
		&corev1.ResourceQuota{}: f.Sizing || peers,
		metadataOf(appsv1.SchemeGroupVersion.WithKind("Deployment")): f.Spread,
		&appsv1.ReplicaSet{}:                    f.Spread || peers,
		&appsv1.StatefulSet{}:                   f.Spread || peers,
		&appsv1.DaemonSet{}:                     f.Spread || f.Sizing || peers,
		&flexdaemonsets.FlexDaemonsetTemplate{}: f.Sizing,
		&versprei.PodDistributor{}:              f.Spread,
		&stowage.PoolState{}:                    f.Spread,
		&schedulingv1.PriorityClass{}:           f.Spread && f.Webhook,
	}
}

// StartInformers asks the cache for every informer that the features use, so that they have synced before the first request.
func StartInformers(ctx context.Context, c crcache.Cache, on Features) error {
	for obj, used := range on.watched() {
		if !used {
			continue
		}
		if _, err := c.GetInformer(ctx, obj, crcache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %T: %w", obj, err)
		}
	}
	return nil
}

// Namespace implements [world.Snapshot].
func (c *Cache) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return get(ctx, c, "namespace", name, &corev1.Namespace{})
}

// Node implements [world.Snapshot].
func (c *Cache) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return get(ctx, c, "node", name, &corev1.Node{})
}

// NodeLabels returns the labels of a node as the informer of nodes has them, or nil. Only processes that run controllers have it.
func (c *Cache) NodeLabels(ctx context.Context, name string) map[string]string {
	var node corev1.Node
	if name == "" || c.cached.Get(ctx, client.ObjectKey{Name: name}, &node) != nil {
		return nil // it is gone, and its pods go with it
	}
	return node.Labels
}

// NodeGone reports whether the informer of nodes has no node of a name. It is false where that is not known.
func (c *Cache) NodeGone(ctx context.Context, name string) bool {
	return apierrors.IsNotFound(c.cached.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}))
}

// NodesWith returns the nodes of a set as the informer of nodes has them.
func (c *Cache) NodesWith(ctx context.Context, of nodeset.Set) []corev1.Node {
	var list corev1.NodeList
	if c.cached.List(ctx, &list, client.MatchingLabelsSelector{Selector: of.Selector()}, client.UnsafeDisableDeepCopy) != nil {
		return nil // it has not synced; then no pod is decided about
	}
	return list.Items
}

// get reads a cluster-scoped object from the cache or, where that has none, from the API server. It returns nil
// if there is none.
func get[T client.Object](ctx context.Context, c *Cache, kind, name string, obj T) (T, error) {
	var none T
	key := client.ObjectKey{Name: name}
	err := c.cached.Get(ctx, key, obj)
	if apierrors.IsNotFound(err) && possible(name) {
		fresh := obj.DeepCopyObject().(T) // its own: the shared read may outlive this call
		// No namespace has a slash in its name, so a kind has a part of its own.
		obj, err = readUncached(ctx, c, c.objects, Asker{Client(ctx), "/" + kind}, readKey{what: kind, ref: world.Ref{Name: name}}, func(ctx context.Context) (T, error) {
			return fresh, c.uncached.Get(ctx, key, fresh)
		})
	}
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read %s %q: %w", kind, name, err)
	}
	return obj, nil
}

// missingTTL is how long it is remembered that there is no object of a name, and absentTTL that there is none of a UID.
const (
	missingTTL = time.Second
	absentTTL  = time.Minute
)

// PriorityClass implements [world.Snapshot]. That there is none of a name is remembered for a moment: every pod of a pool may ask for it.
func (c *Cache) PriorityClass(ctx context.Context, name string) (*world.PriorityClass, error) {
	k, class := readKey{what: "PriorityClass", ref: world.Ref{Name: name}}, &schedulingv1.PriorityClass{}
	var err error
	if _, missing := c.missing.Get(k); missing {
		if err := c.cached.Get(ctx, client.ObjectKey{Name: name}, class); err != nil { // else it has been made since
			return nil, client.IgnoreNotFound(err)
		}
	} else if class, err = get(ctx, c, "PriorityClass", name, class); err != nil {
		return nil, err
	}
	if class == nil {
		c.missing.Add(k, true, missingTTL)
		return nil, nil
	}
	policy := ptr.Deref(class.PreemptionPolicy, corev1.PreemptLowerPriority) // the API server's default
	return &world.PriorityClass{Value: &class.Value, PreemptionPolicy: &policy}, nil
}

// Template implements [world.Snapshot]. That there is none of a name is remembered for a moment:
// every pod of a DaemonSet may ask for it.
func (c *Cache) Template(ctx context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error) {
	k := readKey{what: "FlexDaemonsetTemplate", ref: world.Ref{Name: name}}
	if _, ok := c.missing.Get(k); ok {
		// It may have been made since, and be in the cache.
		t := &flexdaemonsets.FlexDaemonsetTemplate{}
		if err := c.cached.Get(ctx, client.ObjectKey{Name: name}, t); err == nil {
			return t, nil
		}
		return nil, nil
	}
	t, err := get(ctx, c, "FlexDaemonsetTemplate", name, &flexdaemonsets.FlexDaemonsetTemplate{})
	if t == nil && err == nil {
		c.missing.Add(k, true, missingTTL)
	}
	return t, err
}

// LimitRanges implements [world.Snapshot].
func (c *Cache) LimitRanges(ctx context.Context, namespace string) ([]corev1.LimitRange, error) {
	var list corev1.LimitRangeList
	if err := c.cached.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("read the LimitRanges of namespace %q: %w", namespace, err)
	}
	return list.Items, nil
}

// ResourceQuotas implements [world.Snapshot].
func (c *Cache) ResourceQuotas(ctx context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	var list corev1.ResourceQuotaList
	if err := c.cached.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("read the ResourceQuotas of namespace %q: %w", namespace, err)
	}
	return list.Items, nil
}

// PoolState implements [world.Snapshot]. A replica that has not seen one yet seats a pod where it may have to wait.
func (c *Cache) PoolState(ctx context.Context, namespace string, workload types.UID) (*stowage.PoolState, error) {
	state := &stowage.PoolState{}
	err := c.cached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: string(workload)}, state)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the PoolState %q: %w", workload, err)
	}
	return state, nil
}
