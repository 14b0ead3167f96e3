package cache

import (
	"encoding/json"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/world"
)

// keeper keeps of objects what decisions read, and once the texts that several objects have.
type keeper struct {
	texts *bounded.Cache[string, string]
}

const (
	sharedTexts   = 8 << 20 // bytes
	worthSharing  = 128     // bytes
	sharedForever = time.Duration(math.MaxInt64)
)

func newKeeper() *keeper {
	return &keeper{texts: bounded.New[string, string](sharedTexts, clock.RealClock{})}
}

// workload keeps what a [world.Workload] has.
func (k *keeper) workload(obj any) (any, error) {
	kept := world.Keep(obj.(metav1.Object))
	k.share(kept.GetAnnotations())
	switch o := kept.(type) {
	case *appsv1.ReplicaSet:
		k.share(o.Spec.Template.Annotations)
	case *appsv1.StatefulSet:
		k.share(o.Spec.Template.Annotations)
	case *appsv1.DaemonSet:
		k.share(o.Spec.Template.Annotations)
	}
	return kept, nil
}

// share replaces texts by the copy that another object has, as a ReplicaSet has the annotations of its Deployment.
func (k *keeper) share(annotations map[string]string) {
	for key, text := range annotations {
		if len(text) < worthSharing {
			continue
		}
		if known, ok := k.texts.Get(text); ok {
			annotations[key] = known
		} else {
			k.texts.Add(text, text, int64(len(text)), sharedForever)
		}
	}
}

// keepPodDistributor keeps the spec and the status, within a bound.
func keepPodDistributor(obj any) (any, error) {
	d := obj.(*versprei.PodDistributor)
	return world.KeepDistributor(dated(d.ObjectMeta), d), nil
}

// transform keeps the status of a SpreadPolicy, whose spec goes into p, and of a ClusterSpreadPolicy the spec, too. The kinds' schemas bound
// their texts. Of a PersistentVolume it keeps where it can be. Of other objects it leaves out the managed fields.
func (p *WatchedPolicies) transform(obj any) (any, error) {
	switch o := obj.(type) {
	case *stowage.SpreadPolicy:
		return p.keep(o), nil
	case *stowage.ClusterSpreadPolicy:
		return &stowage.ClusterSpreadPolicy{ObjectMeta: dated(o.ObjectMeta), Spec: o.Spec, Status: o.Status}, nil
	case *stowage.ScaleDownPolicy:
		return &stowage.ScaleDownPolicy{ObjectMeta: dated(o.ObjectMeta), Spec: o.Spec, Status: o.Status}, nil
	case *stowage.ClusterScaleDownPolicy:
		return &stowage.ClusterScaleDownPolicy{ObjectMeta: dated(o.ObjectMeta), Spec: o.Spec, Status: o.Status}, nil
	case *corev1.PersistentVolume:
		return keepVolume(o), nil
	}
	return crcache.TransformStripManagedFields()(obj)
}

// The most that is kept of an object, in bytes. Nobody needs as much: of a larger one only the identity is kept.
const (
	mostOfNode      = 64 << 10 // or of a PersistentVolume
	mostOfPoolState = 512 << 10
)

// keepNode keeps what pods ask of a node, whether it is ready, and what says how many VMs it may have. A node that is too large is in no pool.
func keepNode(obj any) (any, error) {
	n := obj.(*corev1.Node)
	kept := &corev1.Node{ObjectMeta: world.Identity(n.ObjectMeta)}
	kept.Labels, kept.Annotations = n.Labels, world.Pick(n.Annotations, stowage.PeerPodsCapacityAnnotation, stowage.PeerPodsLimitAnnotation)
	kept.Spec.Unschedulable, kept.Spec.Taints = n.Spec.Unschedulable, n.Spec.Taints
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	kept.Status.Allocatable, kept.Status.Capacity = n.Status.Allocatable, n.Status.Capacity
	if kept.Size() > mostOfNode {
		return &corev1.Node{ObjectMeta: world.Identity(n.ObjectMeta)}, nil
	}
	return kept, nil
}

// keepPoolState keeps all but the managed fields, and the status for a process that controls. One that is too large says nothing of any pool.
func keepPoolState(s *stowage.PoolState, controls bool) (any, error) {
	s.ManagedFields = nil
	if !controls {
		s.Status = stowage.PoolStateStatus{}
	}
	if data, err := json.Marshal(s); err != nil || len(data) > mostOfPoolState {
		return &stowage.PoolState{ObjectMeta: world.Identity(s.ObjectMeta)}, err
	}
	return s, nil
}

// dated keeps the generation and the age, too.
func dated(m metav1.ObjectMeta) metav1.ObjectMeta {
	kept := world.Identity(m)
	kept.CreationTimestamp, kept.Generation = m.CreationTimestamp, m.Generation
	return kept
}

// Handler returns a handler of an informer's events that passes on each change of an object, and whether it is of the first list. If the
// object is new, was is nil; if it is gone, is is nil.
func Handler[T any](seen func(was, is *T, first bool)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, first bool) { seen(nil, obj.(*T), first) },
		UpdateFunc: func(was, is any) { seen(was.(*T), is.(*T), false) },
		DeleteFunc: func(obj any) {
			if o, ok := Deleted(obj).(*T); ok {
				seen(o, nil, false)
			}
		},
	}
}

// Deleted returns the object of a deletion event, the last known state if the deletion itself
// was missed.
func Deleted(obj any) any {
	if lost, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		return lost.Obj
	}
	return obj
}
