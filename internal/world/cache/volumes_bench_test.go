package cache

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// csiVolume is a bound volume as the provisioner of a cloud's CSI driver makes it.
func csiVolume(i int) *corev1.PersistentVolume {
	id := string(uuid.NewUUID())
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-" + id, UID: types.UID(id), ResourceVersion: fmt.Sprint(100000 + i),
		Annotations:   map[string]string{"pv.kubernetes.io/provisioned-by": "ebs.csi.aws.com", "volume.kubernetes.io/provisioner-deletion-secret-name": ""},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "csi-provisioner", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 900))}},
	}}
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-0" + id, VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": id}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: fmt.Sprint("team-", i%200), Name: fmt.Sprint("data-db-", i), UID: types.UID(id)}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "topology.ebs.csi.aws.com/zone", Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprint("eu-west-1", i%3)}}},
	}}}}
	v.Status.Phase = corev1.VolumeBound
	return v
}

// BenchmarkVolumes measures the heap of 50,000 PersistentVolumes, as they are and as the cache keeps them.
func BenchmarkVolumes(b *testing.B) {
	const count = 50000
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, keep := range map[string]func(*corev1.PersistentVolume) *corev1.PersistentVolume{
		"whole": func(v *corev1.PersistentVolume) *corev1.PersistentVolume { return v }, "kept": keepVolume,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before, all := heap(), make([]*corev1.PersistentVolume, 0, count)
				for i := range count {
					whole, err := csiVolume(i).Marshal()
					if err != nil {
						b.Fatal(err)
					}
					v := &corev1.PersistentVolume{}
					if err := v.Unmarshal(whole); err != nil {
						b.Fatal(err)
					}
					all = append(all, keep(v))
				}
				b.ReportMetric(float64(heap()-before)/count, "heap-B/volume")
				runtime.KeepAlive(all)
			}
		})
	}
}
