package admit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// unknown is a world in which nothing is known of volumes, or they cannot be read.
type unknown struct {
	*manifests.Snapshot
	err error
}

func (u unknown) Volumes(context.Context, string, []string) ([]corev1.PersistentVolume, bool, error) {
	return nil, false, u.err
}

// A pod whose claims are bound gets a seat where its volumes can be, and none where they cannot.
func TestBoundClaims(t *testing.T) {
	volume := func(claim, key string, values ...string) corev1.PersistentVolume {
		v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim}}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim}
		if key != "" {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}},
			}}}}
		}
		return v
	}
	ofNode := volume("node", corev1.LabelHostname, "n")
	strange := volume("strange", "p", "a")
	strange.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name"}}
	volumes := []corev1.PersistentVolume{volume("a", "p", "a"), volume("b", "p", "b"), volume("any", ""), volume("zone-2", "zone", "2"), volume("far", "p", "c"), ofNode, strange}
	const zones = "1, 2, 3"
	for name, tc := range map[string]struct {
		kind    string
		claims  []string
		across  bool
		world   world.Snapshot
		nodes   []string // by their pool and zone; nil is that they are not known
		grows   bool
		gated   bool
		want    []string // the selectors of four pods, without the repeated ones
		wait    bool
		because string
	}{
		"no claim":                      {want: []string{"p=a", "p=b"}},
		"a claim that is not bound":     {claims: []string{"new"}, want: []string{"p=a", "p=b"}},
		"a volume that can be anywhere": {claims: []string{"any"}, want: []string{"p=a", "p=b"}},
		"one that is in pool a":         {claims: []string{"a"}, want: []string{"p=a"}},
		"two in two pools":              {claims: []string{"a", "b"}, because: "its volume is elsewhere"},
		"one that is in no pool":        {claims: []string{"far"}, because: "its volume is elsewhere"},
		"nobody can tell where it is":   {claims: []string{"strange"}, because: "its volume is elsewhere"},
		"too many":                      {claims: strings.Fields(strings.Repeat("any ", observed.MostClaims+1)), because: "over 16 claims"},
		"in one zone of all pools":      {claims: []string{"zone-2"}, across: true, want: []string{"p=a zone=2", "p=b zone=2"}},
		"in one pool, over its zones":   {claims: []string{"b"}, across: true, want: []string{"p=b zone=1", "p=b zone=2", "p=b zone=3"}},
		"of a node that is known":       {claims: []string{"node"}, nodes: []string{"n=b/2", "m=a/2"}, want: []string{"p=b"}},
		"of a node, and none is known":  {claims: []string{"node"}, because: "its volume is elsewhere"},
		"of a node that is gone":        {claims: []string{"node"}, nodes: []string{"m=a/2"}, grows: true, because: "its volume is elsewhere"},
		"in a zone, over pools":         {claims: []string{"zone-2"}, want: []string{"p=a", "p=b"}},
		"in a zone that one pool has":   {claims: []string{"zone-2"}, nodes: []string{"m=a/1", "n=b/2"}, want: []string{"p=b"}},
		"in a zone that pools may get":  {claims: []string{"zone-2"}, nodes: []string{"m=a/1", "n=b/2"}, grows: true, want: []string{"p=a", "p=b"}},
		"in a zone, without nodes":      {claims: []string{"zone-2"}, nodes: []string{"n=b/1"}, want: []string{"p=a"}},
		"an ordinal in a zone":          {kind: "StatefulSet", claims: []string{"zone-2"}, nodes: []string{"m=a/2", "n=b/2"}, want: []string{"p=b"}},
		"an ordinal in its own pool":    {kind: "StatefulSet", claims: []string{"b"}, want: []string{"p=b"}},
		"an ordinal in another pool":    {kind: "StatefulSet", claims: []string{"a"}, want: []string{"p=a"}},
		"an ordinal in no pool":         {kind: "StatefulSet", claims: []string{"far"}, because: "its volume is elsewhere"},
		"volumes are not known yet":     {claims: []string{"a"}, world: unknown{Snapshot: manifests.New(world.Objects{})}, because: "not known yet"},
		"volumes cannot be read":        {claims: []string{"a"}, world: unknown{manifests.New(world.Objects{}), errors.New("no")}, because: "not known yet"},
		"and the pod can wait":          {claims: []string{"a"}, world: unknown{Snapshot: manifests.New(world.Objects{})}, gated: true, wait: true, because: "not known yet"},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot := tc.world
			if snapshot == nil {
				snapshot = manifests.New(world.Objects{Volumes: volumes})
			}
			f, seats := newFeature(snapshot)
			if tc.nodes != nil {
				f.Nodes = func(of nodeset.Set) nodefit.Cell {
					cell := nodefit.Cell{Set: of, Growing: tc.grows}
					for _, text := range tc.nodes {
						name, at, _ := strings.Cut(text, "=")
						pool, zone, _ := strings.Cut(at, "/")
						n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "p": pool, "zone": zone}}}
						if of.Has(n.Labels) {
							cell.Nodes = append(cell.Nodes, n)
						}
					}
					return cell
				}
			}
			if tc.kind == "" {
				tc.kind = "ReplicaSet"
			}
			seen := map[string]bool{}
			for range 12 {
				p := pod(tc.kind, halves)
				if tc.across {
					p.SetAnnotation(stowage.AcrossAnnotation, "zone: "+zones)
				}
				if tc.gated {
					p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: stowage.SeatGate}}
				}
				for _, claim := range tc.claims {
					p.Spec.Volumes = append(p.Spec.Volumes, podpatch.Volume{PersistentVolumeClaim: &podpatch.ClaimVolume{ClaimName: claim}})
				}
				d, err := f.Decide(t.Context(), feature.Request{Namespace: "ns", Pod: p})
				if err != nil {
					t.Fatal(err)
				}
				if (d.Wait != nil) != tc.wait || !strings.Contains(d.Summary, tc.because) || (d.Pool == nil) != (tc.because != "") {
					t.Fatalf("it waits for %v, is %q, and has pool %v", d.Wait, d.Summary, d.Pool)
				}
				if d.Pool == nil {
					continue
				}
				text := "p=" + d.Pod.Spec.NodeSelector["p"]
				if z := d.Pod.Spec.NodeSelector["zone"]; z != "" {
					text += " zone=" + z
				}
				seen[text] = true
				if again := decide(t, f, d.Pod, false); again.Pod.Metadata.Annotations[stowage.ClaimAnnotation] != d.Pod.Metadata.Annotations[stowage.ClaimAnnotation] {
					t.Error("a second pass gives another seat")
				}
			}
			if fmt.Sprint(len(seen)) != fmt.Sprint(len(tc.want)) {
				t.Errorf("the pods select %v, want %v", seen, tc.want)
			}
			for _, text := range tc.want {
				if !seen[text] {
					t.Errorf("no pod selects %s: %v", text, seen)
				}
			}
			if tc.because != "" && seats.claims > 0 {
				t.Errorf("%d seats are claimed that no pod has", seats.claims)
			}
		})
	}
}

// A volume of a StatefulSet from before the order of domains changed is in another domain than its ordinal's. The pod keeps its pool, and gets a pin
// to where the volume is. A second call changes nothing.
func TestVolumeInAnotherDomain(t *testing.T) {
	for _, zone := range []string{"1", "2", "3"} {
		p := pod("StatefulSet", halves)
		p.SetAnnotation(stowage.AcrossAnnotation, "zone: 1, 2, 3")
		v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c"}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
		f, _ := newFeature(manifests.New(world.Objects{Volumes: []corev1.PersistentVolume{v}}))
		p.Spec.Volumes = append(p.Spec.Volumes, podpatch.Volume{PersistentVolumeClaim: &podpatch.ClaimVolume{ClaimName: "c"}})
		first := decide(t, f, p, false).Pod
		if first == nil || first.Spec.NodeSelector["zone"] != zone || first.Metadata.Labels[stowage.DomainLabel] != zone || first.Spec.NodeSelector["p"] != "b" {
			t.Fatalf("with its volume in zone %s, the pod is %+v", zone, first)
		}
		if again := decide(t, f, first, false).Pod; again != nil && len(podpatch.Diff(first, again)) > 0 {
			t.Errorf("a second call changes it: %s", podpatch.Diff(first, again))
		}
	}
}

// A claim has the hash of the node selector that the pod got, and none where the pod only prefers its pool.
func TestClaimNamesTheSelector(t *testing.T) {
	for _, preferred := range []bool{false, true} {
		d := versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: versprei.PodDistributorSpec{
			Target:       versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"},
			Distribution: []versprei.Pool{{Name: "spot", NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 1}},
		}}
		want := sequence.SelectorHash(nodeset.Set{Labels: map[string]string{"type": "spot"}})
		if preferred {
			d.Spec.Enforcement, want = versprei.EnforcementPreferred, ""
		}
		f, _ := newFeature(manifests.New(world.Objects{PodDistributors: []versprei.PodDistributor{d}}))
		got := decide(t, f, pod("ReplicaSet", ""), false).Pod.Metadata
		if c, ok := ledger.SeatOf(key, "ns", "uid", got.Labels, got.Annotations); !ok || c.Source.Selector != want {
			t.Errorf("preferred %t: the claim has %+v (%t), want the hash %q", preferred, c.Source, ok, want)
		}
	}
}

// A pod of many containers, labels and volumes is compared with nodes as a small one is: its successors would otherwise get a pool in which none takes it.
func TestBoundClaimsOfPodsWithManyItems(t *testing.T) {
	v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}}},
	}}}}
	f, _ := newFeature(manifests.New(world.Objects{Volumes: []corev1.PersistentVolume{v}}))
	f.Nodes = func(of nodeset.Set) nodefit.Cell {
		cell := nodefit.Cell{Set: of}
		for _, pool := range []string{"a", "b"} {
			n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool, Labels: map[string]string{"p": pool, "zone": "1"}}}
			n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("10")}
			if pool == "b" {
				n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			}
			if of.Has(n.Labels) {
				cell.Nodes = append(cell.Nodes, n)
			}
		}
		return cell
	}
	p := pod("StatefulSet", halves)
	p.Spec.Volumes = []podpatch.Volume{{PersistentVolumeClaim: &podpatch.ClaimVolume{ClaimName: "data"}}}
	p.Metadata.Labels = podpatch.Strings{}
	for i := range 100 {
		p.Metadata.Labels[fmt.Sprint("l", i)] = "x"
		asks := podpatch.ResourceList{"cpu": "100m", "memory": "100Mi"}
		p.Spec.Containers = append(p.Spec.Containers, podpatch.Container{Name: fmt.Sprint("c", i), Resources: &podpatch.Resources{Requests: asks, Limits: asks}})
	}
	for ordinal := range 2 {
		p.Metadata.Name = fmt.Sprint("web-", ordinal)
		if d := decide(t, f, p, false); d.Pool == nil || d.Pod.Spec.NodeSelector["p"] != "a" {
			t.Errorf("%s selects %v, want p=a", p.Metadata.Name, d.Pod.Spec.NodeSelector)
		}
	}
}
