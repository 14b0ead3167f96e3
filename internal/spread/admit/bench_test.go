package admit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// The decision about a pod by a strategy over three zones: without a claim, and with one that is bound to a volume of one zone. The volume is found
// as an index finds it.
func BenchmarkClaims(b *testing.B) {
	v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"2"}}},
	}}}}
	for name, claims := range map[string][]podpatch.Volume{"none": nil, "bound": {{PersistentVolumeClaim: &podpatch.ClaimVolume{ClaimName: "data"}}}} {
		b.Run(name, func(b *testing.B) {
			f, _ := newFeature(manifests.New(world.Objects{Volumes: []corev1.PersistentVolume{v}}))
			p := pod("ReplicaSet", halves)
			p.SetAnnotation("stowage.dev/across", "zone: 1, 2, 3")
			p.Spec.Volumes = claims
			b.ReportAllocs()
			for b.Loop() {
				d, err := f.Decide(b.Context(), feature.Request{Namespace: "ns", Pod: p, DryRun: true})
				if err != nil || d.Pool == nil {
					b.Fatal(d, err)
				}
			}
		})
	}
}

// The decision about a pod by a strategy of two pools, with the patch: by labels, and where one pool is what the other is not.
func BenchmarkExpressions(b *testing.B) {
	for name, strategy := range map[string]string{"labels": "spot=false,weight=20:spot=true,weight=80", "expressions": "!spot,weight=20:spot=true,weight=80"} {
		b.Run(name, func(b *testing.B) {
			f, _ := newFeature(manifests.New(world.Objects{}))
			p := pod("ReplicaSet", strategy)
			b.ReportAllocs()
			for b.Loop() {
				d, err := f.Decide(b.Context(), feature.Request{Namespace: "ns", Pod: p, DryRun: true})
				if err != nil || d.Pool == nil {
					b.Fatal(d, err)
				}
				if _, err := podpatch.Diff(p, d.Pod).JSON(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
