package cache

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=list;watch,roleName=stowage-spread

// byClaim is the index of PersistentVolumes by the namespace and name of their claim.
const byClaim = "spec.claimRef"

// volumesWait is how long requests wait for the watch of volumes while it is younger than volumesYoung.
const (
	volumesWait  = time.Second
	volumesYoung = 10 * time.Second
)

// volumes is the watch of PersistentVolumes. It begins when a pod with a claim comes first, because most clusters have many volumes, and few
// pods with a claim that Stowage divides.
type volumes struct {
	informers crcache.Cache // nil before [Cache.FollowVolumes]

	mu       sync.Mutex
	informer crcache.Informer // nil before the watch begins
	begun    time.Time
}

// FollowVolumes has the cache answer [world.Snapshot.Volumes].
func (c *Cache) FollowVolumes(informers crcache.Cache) { c.volumes.informers = informers }

// begin begins the watch, if nobody has. Young says that it may sync in a moment.
func (v *volumes) begin(ctx context.Context, now time.Time) (informer crcache.Informer, young bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.informer != nil {
		return v.informer, now.Sub(v.begun) < volumesYoung, nil
	}
	volume := &corev1.PersistentVolume{}
	informer, err = v.informers.GetInformer(ctx, volume, crcache.BlockUntilSynced(false))
	if err != nil {
		return nil, false, err
	}
	if err := v.informers.IndexField(ctx, volume, byClaim, claimOf); err != nil {
		return nil, false, err
	}
	v.informer, v.begun = informer, now
	return informer, true, nil
}

// claimOf returns the claim of a volume that is bound.
func claimOf(obj client.Object) []string {
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok || v.Spec.ClaimRef == nil || v.Status.Phase != corev1.VolumeBound {
		return nil
	}
	return []string{v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name}
}

// Volumes implements [world.Snapshot].
func (c *Cache) Volumes(ctx context.Context, namespace string, claims []string) (found []corev1.PersistentVolume, known bool, err error) {
	if c.volumes.informers == nil {
		return nil, true, nil
	}
	informer, young, err := c.volumes.begin(ctx, c.clock.Now())
	if err != nil {
		return nil, false, err
	}
	if young {
		waiting, cancel := context.WithTimeout(ctx, volumesWait)
		defer cancel()
		toolscache.WaitForCacheSync(waiting.Done(), informer.HasSynced)
	}
	if !informer.HasSynced() {
		return nil, false, nil
	}
	for _, claim := range claims {
		var list corev1.PersistentVolumeList
		if err := c.volumes.informers.List(ctx, &list, client.MatchingFields{byClaim: namespace + "/" + claim}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, false, err
		}
		found = append(found, list.Items...)
	}
	return found, true, nil
}

// keepVolume keeps where a volume can be, and whose it is.
func keepVolume(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	kept := &corev1.PersistentVolume{ObjectMeta: world.Identity(v.ObjectMeta)}
	kept.Labels = world.Pick(v.Labels, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion)
	kept.Status.Phase = v.Status.Phase
	kept.Spec.NodeAffinity = v.Spec.NodeAffinity
	if ref := v.Spec.ClaimRef; ref != nil {
		kept.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name}
	}
	if kept.Size() > mostOfNode { // as one that is not known
		return &corev1.PersistentVolume{ObjectMeta: world.Identity(v.ObjectMeta)}
	}
	return kept
}
