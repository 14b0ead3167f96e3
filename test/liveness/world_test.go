package liveness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// world is a random cluster: a namespace and nodes of its own in the control plane that all seeds share.
type world struct {
	*rand.Rand
	*suite.Tenant
	t         *testing.T
	seed      uint64
	zones     []string
	source    *source
	nodes     []*corev1.Node
	workloads []*workload
	made      []client.Object // the sources, for reports
	class     string          // of volumes that are made for the first consumer
	serial    int
	changed   string // what the change was
	since     time.Time
	// evidence has the cells in which a workload has had a pod with a node.
	evidence      map[string]map[cell]bool
	pods, waiting int            // at the last rest
	reasons       map[string]int // why those wait that are pinned
}

// chance reports true so many times of a hundred.
func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

// pick returns one of some values.
func pick[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 58)), Tenant: suite.NewTenant(t), t: t, seed: seed, evidence: map[string]map[cell]bool{}}
	w.class = w.Provisioner(t, corev1.LabelTopologyZone)
	w.zones = suite.Zones[:1+w.IntN(3)]
	// The kinds of sources, spill and across go round, so that few seeds have all of them.
	w.source = &source{
		kind:  []string{clusterPolicy, podDistributor, policy, annotations, clusterPolicy, podDistributor}[seed%6],
		spill: seed/2%2 == 0,
	}
	if w.chance(20) {
		w.poolsAreZones()
	} else {
		w.poolsHaveNodes()
	}
	w.node(pick(w, "od", "spot"), pick(w, w.zones...), 16) // with room for most pods
	if w.chance(30) {                                      // a node that is in no pool
		w.node("other", pick(w, w.zones...), 8)
	}
	return w
}

// poolsAreZones makes a pool of each zone. One more may have no node.
func (w *world) poolsAreZones() {
	zones := slices.Clone(w.zones)
	if w.chance(30) {
		zones = append(zones, "none")
	}
	for _, zone := range zones {
		w.source.pools = append(w.source.pools, pool{name: "in-" + zone, labels: ofZone(w.Tenant, zone), weight: 1 + w.Int32N(4), byAffinity: w.seed%3 == 0})
		if zone != "none" {
			w.cellNodes("od", zone)
			w.cellNodes("spot", zone)
		}
	}
}

// poolsHaveNodes makes some pools with nodes in zones, one whose nodes are tainted, or one without nodes.
func (w *world) poolsHaveNodes() {
	if w.seed/4%2 == 0 {
		w.source.across = slices.Clone(w.zones)
		if w.chance(20) && len(w.zones) < len(suite.Zones) { // a zone without any node
			w.source.across = slices.Clone(suite.Zones[:len(w.zones)+1])
		}
	}
	names := []string{"od", "spot"}
	if w.chance(25) {
		names = append(names, "gpu")
	}
	if w.chance(15) {
		names = append(names, "void")
	}
	for i, name := range names {
		p := pool{name: name, labels: ofPool(w.Tenant, name), weight: 1 + w.Int32N(4), byAffinity: w.seed%3 == 0 && i > 0}
		if i == 0 {
			p.base = w.Int32N(3)
		}
		if name == "gpu" && w.chance(40) {
			p.tolerations = []versprei.Toleration{{Key: gpu.Key, Operator: "Exists"}}
		}
		w.source.pools = append(w.source.pools, p)
		if name == "void" {
			continue
		}
		for _, zone := range w.zones {
			w.cellNodes(name, zone)
		}
	}
}

// cellNodes makes the nodes of a cell: none, one or two, small or large, some of them tainted.
func (w *world) cellNodes(pool, zone string) {
	var taints []corev1.Taint
	if pool == "gpu" {
		taints = append(taints, gpu)
	} else if w.chance(25) {
		taints = append(taints, arm)
	}
	for range pick(w, 0, 1, 1, 2) {
		w.node(pool, zone, pick(w, 2, 4, 8, 16), taints...)
	}
}

func (w *world) node(pool, zone string, cpus int, taints ...corev1.Taint) {
	w.serial++
	w.nodes = append(w.nodes, addNode(w.t, w.Tenant, pool, zone, fmt.Sprint(w.serial), cpus, taints...))
}

// fill creates the policy, and workloads.
func (w *world) fill() {
	if made := w.source.apply(w.t, w.Tenant); made != nil {
		w.made = append(w.made, made)
	}
	for range 3 + w.IntN(4) {
		w.workload()
	}
	w.since = time.Now()
}

// describe says in a line what the world is.
func (w *world) describe() string {
	var kinds []string
	for _, of := range w.workloads {
		kinds = append(kinds, of.kind+" "+strings.Join(of.traits, " "))
	}
	return fmt.Sprintf("seed %d: %s, spill %t, across %v, %d pools, %d nodes, %s", w.seed, w.source.kind, w.source.spill, w.source.across,
		len(w.source.pools), len(w.nodes), strings.Join(kinds, "; "))
}
