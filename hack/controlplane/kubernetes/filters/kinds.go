package filters

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// informerOf returns the informer of an object's kind, or nil where no plugin reads the kind.
func informerOf(f informers.SharedInformerFactory, o runtime.Object) cache.SharedIndexInformer {
	switch o.(type) {
	case *corev1.Node:
		return f.Core().V1().Nodes().Informer()
	case *corev1.Pod:
		return f.Core().V1().Pods().Informer()
	case *corev1.Namespace:
		return f.Core().V1().Namespaces().Informer()
	case *corev1.PersistentVolume:
		return f.Core().V1().PersistentVolumes().Informer()
	case *corev1.PersistentVolumeClaim:
		return f.Core().V1().PersistentVolumeClaims().Informer()
	case *corev1.Service:
		return f.Core().V1().Services().Informer()
	case *corev1.ReplicationController:
		return f.Core().V1().ReplicationControllers().Informer()
	case *appsv1.ReplicaSet:
		return f.Apps().V1().ReplicaSets().Informer()
	case *appsv1.StatefulSet:
		return f.Apps().V1().StatefulSets().Informer()
	}
	switch o.(type) {
	case *storagev1.StorageClass:
		return f.Storage().V1().StorageClasses().Informer()
	case *storagev1.CSINode:
		return f.Storage().V1().CSINodes().Informer()
	case *storagev1.CSIDriver:
		return f.Storage().V1().CSIDrivers().Informer()
	case *storagev1.CSIStorageCapacity:
		return f.Storage().V1().CSIStorageCapacities().Informer()
	case *storagev1.VolumeAttachment:
		return f.Storage().V1().VolumeAttachments().Informer()
	case *resourcev1.ResourceClaim:
		return f.Resource().V1().ResourceClaims().Informer()
	case *resourcev1.ResourceSlice:
		return f.Resource().V1().ResourceSlices().Informer()
	case *resourcev1.DeviceClass:
		return f.Resource().V1().DeviceClasses().Informer()
	}
	return nil
}
