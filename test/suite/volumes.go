package suite

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// selectedNode is the annotation by which the scheduler tells a provisioner for which node a claim needs its volume.
const selectedNode = "volume.kubernetes.io/selected-node"

// Provisioner provides volumes for the claims of a namespace, for as long as the test runs. A volume is made once the scheduler has chosen
// a node, and only nodes reach it that have the same value of a label. It returns the name of the StorageClass.
func (n *Tenant) Provisioner(t *testing.T, key string) string {
	t.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{GenerateName: n.Namespace + "-"},
		Provisioner: "test.stowage.dev/" + n.Namespace, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	Must(t, n.Create(t.Context(), class))
	var made []client.Object
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	t.Cleanup(func() {
		stop()
		<-ended
		for _, o := range append(made, class) {
			_ = Cluster.Client.Delete(context.Background(), o)
		}
	})
	go func() {
		defer close(ended)
		_ = wait.PollUntilContextCancel(ctx, 300*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			var claims corev1.PersistentVolumeClaimList
			_ = n.List(ctx, &claims, client.InNamespace(n.Namespace)) // else the next look finds them
			for i := range claims.Items {
				if c := &claims.Items[i]; c.Spec.VolumeName == "" && c.Spec.StorageClassName != nil && *c.Spec.StorageClassName == class.Name {
					if v := n.volumeFor(ctx, c, key); v != nil {
						made = append(made, v)
					}
				}
			}
			return false, nil
		})
	}()
	return class.Name
}

// volumeFor makes the volume of a claim, and returns nil if that is for a later look.
func (n *Tenant) volumeFor(ctx context.Context, c *corev1.PersistentVolumeClaim, key string) *corev1.PersistentVolume {
	node := &corev1.Node{}
	if name := c.Annotations[selectedNode]; name == "" || n.Get(ctx, client.ObjectKey{Name: name}, node) != nil {
		return nil
	}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID)}}
	v.Spec = corev1.PersistentVolumeSpec{
		Capacity: c.Spec.Resources.Requests, AccessModes: c.Spec.AccessModes, StorageClassName: *c.Spec.StorageClassName,
		ClaimRef:                      &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Labels[key]}}},
		}}}},
	}
	if err := n.Create(ctx, v); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil
	}
	return v
}

// ClaimSpec asks for a volume of a StorageClass.
func ClaimSpec(class string, mode corev1.PersistentVolumeAccessMode) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
}

// WithClaim makes a claim, and has a pod template use it.
func (n *Tenant) WithClaim(t *testing.T, template *corev1.PodTemplateSpec, name string, spec corev1.PersistentVolumeClaimSpec) {
	t.Helper()
	Must(t, n.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}, Spec: spec}))
	template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}},
	})
}
