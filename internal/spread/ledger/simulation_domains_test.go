package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The histories of workloads whose pools are divided over domains. They begin with pods that were there before and ran in any pools
// and domains. Those were adopted, so some ordinals are left out. From the first count at which no pool has too many, the pools are to be exact
// at each rest, and each pod is to be in the domain of its seat.

// Of domains:
const (
	costByOrdinal     bug = "the deletion cost follows the ordinal"
	renumberedAnyhow  bug = "a pod is given the ordinal of another domain"
	domainsByCounting bug = "the domain that has fewest pods is taken"
)

// adopt makes the pods that were there before.
func (w *world) adopt() {
	order := domain.Order(w.Seed % 6)
	w.layout = testkit.Layout(testkit.Over(w.strategy, 1, 1, 2), layout.Workload{Orders: &layout.Orders{Now: order, Former: order}})
	s := planner.State{Layout: w.layout, Settled: true, Mode: stowage.RepairAdopt}
	var pools []int // those that get more pods as the workload grows
	for i := range w.strategy.Len() {
		if w.strategy.Pool(i).Weight > 0 {
			pools = append(pools, i)
		}
	}
	for i := range w.Foreign {
		s.Pods = append(s.Pods, planner.Pod{
			Name: strconv.Itoa(i), Created: time.Unix(int64(i), 0), Ready: true, Running: true, Ours: true, Seat: sequence.Seat{Pool: -1},
			NodePool: pools[w.rng.IntN(len(pools))], NodeDomain: min(w.rng.IntN(5), 2), // the last one has more
		})
	}
	s.Replicas = int64(w.Foreign)
	counts := make([]int64, w.strategy.Len())
	for _, m := range planner.Make(s).Adopt {
		w.serial++
		p := &simPod{uid: w.serial, ready: true, domain: m.Domain, rank: m.Rank}
		id := WithPosition(fmt.Sprint("adopted.", w.serial), m.Position)
		p.Pod = Pod{Seat: Seat{Pool: w.strategy.PoolKey(m.Seat.Pool), Ordinal: m.Seat.Ordinal}, ID: id, Active: true, Version: w.version}
		if w.bug == costByOrdinal {
			p.rank = w.strategy.RankOrNone(m.Seat)
		}
		w.pods[p.uid] = p
		w.controller.view[p.uid] = *p
		counts[m.Seat.Pool]++
	}
	w.replicas, w.controller.replicas = int64(len(w.pods)), int64(len(w.pods))
	for i, n := range counts { // the first count at which no pool has too many
		for n > w.strategy.Target(i, w.least) {
			w.least++
		}
	}
}

// positionOf returns the position of a pod among its pool's pods.
func (p *simPod) position() int64 { return cmp.Or(Position(p.ID), p.Ordinal) }

// domainOf returns the domain of a pod that gets a seat, and its rank.
func (w *world) seated(p *simPod) (in int, rank int64) {
	pool, _ := strconv.Atoi(p.Pool)
	seat := sequence.Seat{Pool: pool, Ordinal: p.position()}
	if w.bug == costByOrdinal {
		seat.Ordinal = p.Ordinal
	}
	rank, _ = w.strategy.Rank(seat)
	if w.layout.Domains() == nil {
		return 0, rank
	}
	if w.bug != domainsByCounting {
		return w.layout.Domains().Domain(pool, p.Ordinal), rank
	}
	counts := make([]int64, w.layout.Domains().Len())
	for _, other := range w.pods {
		if other.Pool == p.Pool && other.Active {
			counts[other.domain]++
		}
	}
	return slices.Index(counts, slices.Min(counts)), rank
}

// checkDomains says what is wrong with the domains of pods at a rest.
func (w *world) checkDomains() error {
	if w.layout.Domains() == nil {
		return nil
	}
	counts := map[string]int64{}
	for _, p := range w.pods {
		counts[p.Pool]++
	}
	for _, p := range w.pods {
		if w.repairing && p.Ordinal > counts[p.Pool] { // it evicts pods from domains that have too many
			return fmt.Errorf("pod %d has seat %d of the %d in pool %s, so that a domain has too many", p.uid, p.Ordinal, counts[p.Pool], p.Pool)
		}
		pool, _ := strconv.Atoi(p.Pool)
		if own := w.layout.Domains().Domain(pool, p.Ordinal); p.domain != own {
			return fmt.Errorf("pod %d has seat %d of pool %s, which is in domain %d, and runs in domain %d", p.uid, p.Ordinal, p.Pool, own, p.domain)
		}
	}
	return nil
}
