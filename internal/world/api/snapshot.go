// Package api is the world as the API server has it: read at each question, or listed once. It also reads what no watch shows,
// such as the size of a workload of any kind and the pods of a node. Its lists come in pages, whose bytes are bounded.
package api

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// readTimeout bounds one read. Nothing waits for it but a person.
const readTimeout = 30 * time.Second

// Live is the world as the API server has it at each question, for somebody who may not be allowed to read all of it. The
// cluster may lack Stowage's kinds.
type Live struct {
	*worldcache.Cache
	uncached client.Reader
}

var _ world.Snapshot = Live{}

// NewLive returns the world that a client reads.
func NewLive(c client.Client) Live {
	cache := worldcache.New(c, c, clock.RealClock{}, worldcache.Limits{Timeout: readTimeout})
	cache.ReadTemplates()
	return Live{cache, c}
}

// Namespace implements [world.Snapshot]. One that may not be read says nothing.
func (l Live) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns, err := l.Cache.Namespace(ctx, name)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return ns, err
}

// PodOwners implements [world.Snapshot].
func (l Live) PodOwners(ctx context.Context, namespace string, top world.Ref) ([]*world.Workload, error) {
	all, err := l.PodOwnersIn(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return world.Under(ctx, l, world.Object{Namespace: namespace, Ref: top}, all)
}

// PodDistributor implements [world.Snapshot].
func (l Live) PodDistributor(ctx context.Context, namespace string, targets []world.Ref) (*versprei.PodDistributor, error) {
	d, err := l.Cache.PodDistributor(ctx, namespace, targets)
	return d, ifServed(err)
}

// Policies implements [world.Snapshot]. Those that may not be read are left out.
func (l Live) Policies(ctx context.Context, namespace string) (*world.Policies, error) {
	var namespaced stowage.SpreadPolicyList
	var cluster stowage.ClusterSpreadPolicyList
	var err error
	if namespace == "" {
		err = l.uncached.List(ctx, &cluster)
	} else {
		err = l.uncached.List(ctx, &namespaced, client.InNamespace(namespace))
	}
	if ifServed(err) != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	return worldcache.PoliciesOf(namespaced.Items, cluster.Items), nil
}

// PoolState implements [world.Snapshot].
func (l Live) PoolState(ctx context.Context, namespace string, workload types.UID) (*stowage.PoolState, error) {
	state, err := l.Cache.PoolState(ctx, namespace, workload)
	return state, ifServed(err)
}

// Template implements [world.Snapshot].
func (l Live) Template(ctx context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error) {
	t, err := l.Cache.Template(ctx, name)
	return t, ifServed(err)
}

// ifServed drops the error of a kind that the cluster does not have.
func ifServed(err error) error {
	if meta.IsNoMatchError(err) {
		return nil
	}
	return err
}

// Volumes implements [world.Snapshot]. Where a claim or its volume may not be read, it is not known.
func (l Live) Volumes(ctx context.Context, namespace string, claims []string) (out []corev1.PersistentVolume, known bool, err error) {
	for _, name := range claims {
		claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
		err := l.uncached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)
		if err == nil && claim.Spec.VolumeName != "" {
			err = l.uncached.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume)
		}
		switch {
		case apierrors.IsForbidden(err):
			return nil, false, nil
		case client.IgnoreNotFound(err) != nil:
			return nil, false, err
		case err == nil && volume.Name != "" && volume.Status.Phase == corev1.VolumeBound:
			out = append(out, *volume)
		}
	}
	return out, true, nil
}

// Snapshot is the world of one namespace, or of all, as it was listed. What was not listed is read when it is asked for.
type Snapshot struct {
	Live
	namespace string
	listed    *manifests.Snapshot
	all       []*world.Workload
}

var _ world.Snapshot = &Snapshot{}

// NewSnapshot returns the world of a namespace, or of all of them if it is empty. The objects are all of it except LimitRanges,
// ResourceQuotas and nodes. Of workloads, they are those of the kinds that Stowage watches.
func NewSnapshot(live Live, namespace string, objects world.Objects) *Snapshot {
	return &Snapshot{Live: live, namespace: namespace, listed: manifests.New(objects), all: objects.Workloads}
}

// Volumes implements [world.Snapshot].
func (s *Snapshot) Volumes(ctx context.Context, namespace string, claims []string) ([]corev1.PersistentVolume, bool, error) {
	return s.listed.Volumes(ctx, namespace, claims)
}

// Covers reports whether the objects of a namespace were listed.
func (s *Snapshot) Covers(namespace string) bool {
	return s.namespace == "" || s.namespace == namespace
}

// Namespace implements [world.Snapshot].
func (s *Snapshot) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return s.listed.Namespace(ctx, name)
}

// Workload implements [world.Snapshot].
func (s *Snapshot) Workload(ctx context.Context, namespace string, ref world.Ref) (*world.Workload, error) {
	w, err := s.listed.Workload(ctx, namespace, ref)
	if w != nil || err != nil || s.Covers(namespace) && ref.Watched() {
		return w, err
	}
	return s.Live.Workload(ctx, namespace, ref)
}

// PodOwners implements [world.Snapshot].
func (s *Snapshot) PodOwners(ctx context.Context, namespace string, top world.Ref) ([]*world.Workload, error) {
	if !s.Covers(namespace) {
		return s.Live.PodOwners(ctx, namespace, top)
	}
	var among []*world.Workload
	for _, w := range s.all {
		if w.Namespace == namespace && w.MakesPods() {
			among = append(among, w)
		}
	}
	return world.Under(ctx, s, world.Object{Namespace: namespace, Ref: top}, among)
}

// PodDistributor implements [world.Snapshot].
func (s *Snapshot) PodDistributor(ctx context.Context, namespace string, targets []world.Ref) (*versprei.PodDistributor, error) {
	return s.listed.PodDistributor(ctx, namespace, targets)
}

// Policies implements [world.Snapshot].
func (s *Snapshot) Policies(ctx context.Context, namespace string) (*world.Policies, error) {
	return s.listed.Policies(ctx, namespace)
}

// PoolState implements [world.Snapshot].
func (s *Snapshot) PoolState(ctx context.Context, namespace string, workload types.UID) (*stowage.PoolState, error) {
	return s.listed.PoolState(ctx, namespace, workload)
}

// Template implements [world.Snapshot].
func (s *Snapshot) Template(ctx context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error) {
	return s.listed.Template(ctx, name)
}
