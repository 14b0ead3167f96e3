package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// inPool is a volume that the nodes of one pool reach, bound to a claim.
func inPool(claim, pool string) corev1.PersistentVolume {
	v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "p", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}}},
	}}}}
	return v
}

// Volumes hold the pods of a StatefulSet one by one, and those of another owner all together. The others are divided around them.
func TestHolding(t *testing.T) {
	volumes := []corev1.PersistentVolume{inPool("a", "a"), inPool("b", "b"), inPool("far", "c")}
	for name, tc := range map[string]struct {
		kind    string
		claims  []string // of each pod, or ""
		pools   string   // of each pod
		targets []int64
		held    []int64 // ranks
	}{
		"no claims":                    {kind: "ReplicaSet", claims: []string{"", "", "", ""}, pools: "abab", targets: []int64{2, 2}},
		"one claim for all":            {kind: "ReplicaSet", claims: []string{"a", "a", "a", "a"}, pools: "aaaa", targets: []int64{4, 0}},
		"one that nothing reaches":     {kind: "ReplicaSet", claims: []string{"far", "far", "far", "far"}, pools: "abab", targets: []int64{2, 2}},
		"one that is not bound":        {kind: "ReplicaSet", claims: []string{"new", "new", "new", "new"}, pools: "abab", targets: []int64{2, 2}},
		"other claims for each":        {kind: "ReplicaSet", claims: []string{"a", "b", "b", "b"}, pools: "abab", targets: []int64{2, 2}},
		"each in its own pool":         {kind: "StatefulSet", claims: []string{"b", "a", "b", "a"}, pools: "baba", targets: []int64{2, 2}},
		"the first is in another pool": {kind: "StatefulSet", claims: []string{"a", "a", "b", "a"}, pools: "aaba", targets: []int64{3, 1}, held: []int64{1}},
		"two are":                      {kind: "StatefulSet", claims: []string{"a", "b", "b", "a"}, pools: "abba", targets: []int64{2, 2}, held: []int64{1, 2}},
		"it could be in its own":       {kind: "StatefulSet", claims: []string{"b", "a", "b", "a"}, pools: "aaba", targets: []int64{2, 2}},
		"it runs without a volume":     {kind: "StatefulSet", claims: []string{"", "a", "b", "a"}, pools: "aaba", targets: []int64{2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: tc.kind, Name: "db", UID: "u"}, Namespace: "ns"}
			f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}, Volumes: volumes}), Settings{})
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: w.Ref, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1"}})
			if err != nil {
				t.Fatal(err)
			}
			of := observed.Owner{Workload: w}
			for i, claim := range tc.claims {
				pod := observed.Pod{Namespace: "ns", Name: fmt.Sprint("db-", i), Seat: ledger.Seat{Pool: fmt.Sprint(int(tc.pools[i] - 'a'))}}
				if claim != "" {
					pod.Claims = []string{claim}
				}
				of.Pods = append(of.Pods, pod)
			}
			got := f.Holding(t.Context(), p, of, nil)
			if d := got.Divide(4, nil, layout.Elsewhere{}); !slices.Equal(d.Pools, tc.targets) || !slices.Equal(got.Targets(4, layout.Elsewhere{}), tc.targets) {
				t.Errorf("the targets are %v and %v, want %v", d.Pools, got.Targets(4, layout.Elsewhere{}), tc.targets)
			}
			var held []int64
			for rank := range got.HeldPods() {
				held = append(held, rank)
			}
			if slices.Sort(held); !slices.Equal(held, tc.held) {
				t.Errorf("held are %v, want %v", held, tc.held)
			}
		})
	}
}

// Pods without a seat lower the targets where no pool reaches their volumes.
func TestElsewhere(t *testing.T) {
	pod := func(name, claim string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		return p
	}
	for kind, want := range map[string]layout.Elsewhere{"ReplicaSet": {Others: 1}, "StatefulSet": {Own: []sequence.Cell{{Pool: 1}}}} {
		w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: kind, Name: "db", UID: "u"}, Namespace: "ns"}
		f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}, Volumes: []corev1.PersistentVolume{inPool("a", "a"), inPool("far", "c")}}), Settings{})
		p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: w.Ref, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1"}})
		if err != nil {
			t.Fatal(err)
		}
		got := f.Elsewhere(t.Context(), p, observed.Owner{Workload: w}, []*corev1.Pod{pod("db-0", "far"), pod("db-1", "a"), pod("db-2", "new")}, nil)
		if got.Others != want.Others || !slices.Equal(got.Own, want.Own) {
			t.Errorf("%s: %+v, want %+v", kind, got, want)
		}
	}
}

// A pod runs where one node both reaches its volumes and takes it. That two nodes of a pool each do one of it is of no use.
func TestOneNodeForVolumesAndPod(t *testing.T) {
	const bound, elsewhere = "b", "z"
	now := time.Unix(1_000_000, 0)
	node := func(pool, zone string, edit ...func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool + zone, Labels: map[string]string{"p": pool, "zone": zone, "host": pool + zone}}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
		for _, f := range edit {
			f(&n)
		}
		return n
	}
	taint := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}} }
	}
	small := func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1") }
	unlabelled := func(n *corev1.Node) { delete(n.Labels, "host") }
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	in := func(key, value string) []corev1.NodeSelectorTerm {
		return []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}}}
	}
	for name, tc := range map[string]struct {
		nodes   []corev1.Node
		volumes [][]corev1.NodeSelectorTerm // in zone b, unless others are named
		edit    func(*corev1.PodSpec)
		grows   bool
		blind   bool   // nothing is known of the pod
		runs    string // the node of a sibling in pool a
		want    string // pools for the pod, or "all"
	}{
		"both pools take it":             {nodes: []corev1.Node{node("a", "b"), node("b", "b")}, want: "all"},
		"a taint":                        {nodes: []corev1.Node{node("a", "z"), node("a", "b", taint("arm")), node("b", "b")}, want: "b"},
		"a taint that it tolerates":      {nodes: []corev1.Node{node("a", "b", taint("own")), node("b", "b")}, want: "all"},
		"a taint that the pool gives":    {nodes: []corev1.Node{node("a", "b", taint("pool")), node("b", "b")}, want: "all"},
		"a taint that another one gives": {nodes: []corev1.Node{node("a", "b"), node("b", "b", taint("pool"))}, want: "a"},
		"too small":                      {nodes: []corev1.Node{node("a", "z"), node("a", "b", small), node("b", "b")}, want: "b"},
		"a resource is missing": {nodes: []corev1.Node{node("a", "b"), node("b", "b", func(n *corev1.Node) { n.Status.Allocatable["gpu"] = resource.MustParse("1") })}, want: "b", edit: func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests["gpu"] = resource.MustParse("1")
		}},
		"other nodes are selected": {nodes: []corev1.Node{node("a", "b"), node("b", "b")}, want: "b", edit: func(s *corev1.PodSpec) { s.NodeSelector["host"] = "bb" }},
		"a key of a constraint is missing": {nodes: []corev1.Node{node("a", "b", unlabelled), node("b", "b")}, want: "b", edit: func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "host", WhenUnsatisfiable: corev1.DoNotSchedule}}
		}},
		"a host port, which passes": {nodes: []corev1.Node{node("a", "b"), node("b", "b")}, want: "all", edit: func(s *corev1.PodSpec) {
			s.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
		}},
		"a cordon, which passes":       {nodes: []corev1.Node{node("a", "b", cordoned), node("b", "b")}, want: "all"},
		"two volumes on two nodes":     {nodes: []corev1.Node{node("a", "b"), node("a", "z", func(n *corev1.Node) { n.Labels["zone"] = "y" }), node("b", "b", func(n *corev1.Node) { n.Labels["rack"] = "1" })}, volumes: [][]corev1.NodeSelectorTerm{in("zone", bound), in("rack", "1")}, want: "b"},
		"no pool takes it":             {nodes: []corev1.Node{node("a", "b", small), node("b", elsewhere)}, want: "a"},
		"no pool reaches it":           {nodes: []corev1.Node{node("a", elsewhere), node("b", elsewhere)}, want: ""},
		"its siblings run there":       {nodes: []corev1.Node{node("a", "b", taint("maintenance")), node("b", "b")}, runs: "ab", want: "all"},
		"siblings run in another zone": {nodes: []corev1.Node{node("a", "z"), node("a", "b", taint("maintenance")), node("b", "b")}, runs: "az", want: "b"},
		"its drivers may still start": {nodes: []corev1.Node{node("a", "b", func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(now) }), node("b", "b", func(n *corev1.Node) { n.Status.Allocatable["gpu"] = resource.MustParse("1") })}, want: "all", edit: func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests["gpu"] = resource.MustParse("1")
		}},
		"Karpenter may make a node":   {nodes: []corev1.Node{node("a", "b", small), node("b", "b")}, grows: true, want: "all"},
		"its size is not known":       {nodes: []corev1.Node{node("a", "b", small), node("b", "b")}, blind: true, want: "all"},
		"another pool without a node": {nodes: []corev1.Node{node("a", "b", taint("arm"))}, want: "all"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "db", UID: "u"}, Namespace: "ns"}
			f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}}), Settings{})
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: w.Ref, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1:p=b,weight=1"}})
			if err != nil {
				t.Fatal(err)
			}
			p.Tolerations = [][]corev1.Toleration{{{Key: "pool", Operator: corev1.TolerationOpExists}}}
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}},
			}}}}
			if tc.edit != nil {
				tc.edit(&pod.Spec)
			}
			if tc.volumes == nil {
				tc.volumes = [][]corev1.NodeSelectorTerm{in("zone", bound)}
			}
			b := Bound{Shape: func() *corev1.Pod { return pod }, Siblings: func() []observed.Pod {
				return []observed.Pod{{Seat: ledger.Seat{Pool: p.PoolKey(0)}, Active: true, Node: tc.runs}}
			}}
			if tc.blind {
				b.Shape = nil
			}
			reach := p.ReachOf(tc.volumes, b, func(of nodeset.Set) nodefit.Cell {
				cell := nodefit.Cell{Set: of, Growing: tc.grows, Now: now}
				for _, n := range tc.nodes {
					if of.Has(n.Labels) {
						cell.Nodes = append(cell.Nodes, n)
					}
				}
				return cell
			})
			got := "all"
			if reach != nil {
				got = ""
				for i, name := range []string{"a", "b"} {
					if reach.Cells()[i][0] {
						got += name
					}
				}
			}
			if got != tc.want {
				t.Errorf("the pod may have %q, want %q: %+v", got, tc.want, reach)
			}
		})
	}
}

// However many pools all nodes are in, so many nodes are listed for a pod, and those of a pool once.
func TestListsOfAPodAreBounded(t *testing.T) {
	const pools, ofEach = 32, 6000
	text := make([]string, pools)
	for i := range text {
		text[i] = fmt.Sprintf("!x%d,weight=1", i)
	}
	w := &world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "db", UID: "u"}, Namespace: "ns"}
	f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{w}}), Settings{})
	p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: w.Ref, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: strings.Join(text, ":")}})
	if err != nil {
		t.Fatal(err)
	}
	zone := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}}}}}
	nodes, lists := make([]corev1.Node, ofEach), 0
	reach := p.ReachOf([][]corev1.NodeSelectorTerm{zone, zone}, Bound{Shape: func() *corev1.Pod { return &corev1.Pod{} }}, func(nodeset.Set) nodefit.Cell {
		lists++
		return nodefit.Cell{Nodes: nodes}
	})
	if want := mostListed/ofEach + 1; lists != want {
		t.Errorf("nodes are listed %d times, want %d", lists, want)
	}
	if reach == nil || reach.Cells()[0][0] || !reach.Cells()[pools-1][0] {
		t.Errorf("no node of the first pool reaches the volume, and those of the last are not looked at: %+v", reach)
	}
}
