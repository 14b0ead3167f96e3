package shortage

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/observed"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list,roleName=stowage-spread-controllers
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list,roleName=stowage-spread-controllers

// mayBeBound reports whether a volume decides where a pod runs, as far as the watch of volumes shows it. What is not known may be so.
func (r *run) mayBeBound(ctx context.Context, rec *observed.Pod) bool {
	_, bound, _, err := r.Policies.BoundVolumes(ctx, rec.Namespace, rec.Claims)
	return bound || err != nil
}

// volumesOf returns where the volumes of a pod can be that are still to be made, as the API server has their claims now. Bound says that one has
// its volume, or waits for somebody else than the scheduler: then the volume decides where the pod runs.
func (r *run) volumesOf(ctx context.Context, pod *corev1.Pod) (v nodefit.Volumes, bound bool, err error) {
	claims := podstatus.VolumeClaims(&pod.Spec)
	if len(claims) > observed.MostClaims {
		return nodefit.Volumes{Unknown: true}, true, nil
	}
	for _, name := range claims {
		var found corev1.PersistentVolumeClaimList // to list them is all that Stowage may
		err := r.Uncached.List(ctx, &found, client.InNamespace(pod.Namespace), client.MatchingFields{metav1.ObjectNameField: name})
		if err != nil {
			return v, true, err
		}
		if len(found.Items) == 0 || found.Items[0].Spec.VolumeName != "" {
			bound = true
			continue
		}
		class, err := r.storageClass(ctx, ptr.Deref(found.Items[0].Spec.StorageClassName, ""))
		switch {
		case err != nil:
			return v, true, err
		case class == nil:
			continue
		case ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingImmediate:
			bound = true // its volume comes before the pod has a node
			continue
		}
		terms, some := nodefit.TopologyTerms(class)
		if len(terms) > 0 {
			v.Terms = append(v.Terms, terms)
		}
		v.Unknown = v.Unknown || !some || class.Provisioner == noProvisioner
	}
	return v, bound, nil
}

// noProvisioner is the provisioner of classes whose volumes somebody makes by hand. The scheduler takes one that is free.
const noProvisioner = "kubernetes.io/no-provisioner"

// storageClass returns a StorageClass. It is nil if there is none, or if Stowage may not list them.
func (r *run) storageClass(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	if name == "" {
		return nil, nil
	}
	var found storagev1.StorageClassList
	err := r.Uncached.List(ctx, &found, client.MatchingFields{metav1.ObjectNameField: name})
	if apierrors.IsForbidden(err) || err == nil && len(found.Items) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &found.Items[0], nil
}
