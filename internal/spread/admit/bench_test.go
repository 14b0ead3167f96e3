package admit

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
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
	bound := []podpatch.Volume{{PersistentVolumeClaim: &podpatch.ClaimVolume{ClaimName: "data"}}}
	for name, tc := range map[string]struct {
		claims []podpatch.Volume
		nodes  int
	}{"none": {}, "bound": {claims: bound}, "bound, 600 nodes": {bound, 600}, "bound, 6000 nodes": {bound, 6000}} {
		b.Run(name, func(b *testing.B) {
			f, _ := newFeature(manifests.New(world.Objects{Volumes: []corev1.PersistentVolume{v}}))
			if tc.nodes > 0 {
				nodes := make([]corev1.Node, tc.nodes)
				for i := range nodes {
					nodes[i].Labels = map[string]string{"p": []string{"a", "b"}[i%2], "zone": fmt.Sprint(i / 2 % 3), "kubernetes.io/hostname": fmt.Sprint(i), "kubernetes.io/os": "linux"}
				}
				listed := map[string][]corev1.Node{} // as a replica keeps them for a second
				f.Nodes = func(of nodeset.Set) nodefit.Cell {
					key := of.String()
					if _, known := listed[key]; !known {
						listed[key] = slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return !of.Has(n.Labels) })
					}
					return nodefit.Cell{Set: of, Nodes: listed[key]}
				}
			}
			p := pod("ReplicaSet", halves)
			p.SetAnnotation("stowage.dev/across", "zone: 0, 1, 2")
			p.Spec.Volumes = tc.claims
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
