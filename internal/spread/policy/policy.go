// Package policy answers which strategy a pod's workload has, and who says so. A [Finder] reads what that takes, and its answer is a [Policy]: what
// holds for the pods of one workload now, with what is known of pools without room. It is made of
//
//   - [Compiled], what one source says: a PodDistributor, a SpreadPolicy or ClusterSpreadPolicy, or annotations of a workload or its pod template;
//   - the choice between several sources (matchOf), for which the policies of a namespace have an index.
//
// [Check] says what is wrong with settings in annotations. Package sequence says what a strategy means, and package admit applies it to a pod.
package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// Compiled is what one source says of the division of pods.
type Compiled struct {
	// Source names where it comes from, for people.
	Source string
	// Distributor is the PodDistributor that it comes from, or nil.
	Distributor *versprei.PodDistributor
	// Policy is the policy that it comes from, or nil, and From names it in claims.
	Policy *SpreadPolicy
	From   ledger.Source
	// Whole is the strategy with all its seats. It is nil if the source is invalid; then Err says why.
	Whole *sequence.Strategy
	Err   error
	// homes are the homes of Whole's seats, or nil if it has no domains.
	homes *homes
	// Spill is, for each pool, when other pools take the pods that wait, and how many. It is nil if no pool
	// has a limit.
	Spill []spill.Rule
	// Preferred lets pods run outside their pool.
	Preferred bool
	// Tolerations are those of each pool.
	Tolerations [][]corev1.Toleration
	Evict       bool // rebalance by eviction
	Repair      stowage.Repair
	// Warnings are about settings that were ignored.
	Warnings []string
}

// Pool returns the index of a pool by its [sequence.Pool.Key].
func (c *Compiled) Pool(key string) (int, bool) {
	for i := range c.Whole.Len() {
		if c.Whole.PoolKey(i) == key {
			return i, true
		}
	}
	return 0, false
}

// PoolNamed returns the index of a pool by its name.
func (c *Compiled) PoolNamed(name string) (int, bool) {
	for i := range c.Whole.Len() {
		if c.Whole.Pool(i).Name == name {
			return i, true
		}
	}
	return 0, false
}

// TolerationsOf returns the tolerations that a pool gives to its pods.
func (c *Compiled) TolerationsOf(pool int) []corev1.Toleration {
	if pool < len(c.Tolerations) {
		return c.Tolerations[pool]
	}
	return nil
}

// ErrKept means that a pod gets no seat, because its volume may be where no pool is.
var ErrKept = errors.New("its volume may be outside all pools")

// Policy is what holds for the pods of one workload now.
type Policy struct {
	Compiled
	// Strategy is Whole without the seats of pools without room.
	Strategy *sequence.Strategy
	// Domains says in which domain each seat is, or nil if the strategy has no domains.
	Domains *domain.Assignment
	// formerOrder is the order of [Policy.FormerDomains].
	formerOrder domain.Order
	// State is what is known of pools without room, or nil if nothing is.
	State *stowage.PoolState
	// Unsuitable says for each pool why no pod of the workload can run there, or "". It is nil if all pools are suitable. In Whole,
	// pools that are not are for nobody.
	Unsuitable []string
	// KeepsVolumes says that the workload is a StatefulSet with volumes that is older than the policy. A volume may be where its pod runs,
	// and then the pod can run nowhere else.
	KeepsVolumes bool
	gaps         []sequence.Gap // that Strategy leaves out of Whole
	owner        types.UID      // of the pods
	ordinals     bool           // the owner is a StatefulSet
	// asWritten is the strategy with the unsuitable pools, or nil without those. Instead is the one of the pods with ordinals of their own
	// whose seats are there.
	asWritten, instead *sequence.Strategy
	// Root is the uppermost workload, or nil if that is not known.
	Root *world.Workload
	// FirstOrdinal is the ordinal of the first pod, for the owner of a StatefulSet.
	FirstOrdinal int64
	// Unverified says that nobody knows whether the pod's owner exists: Stowage may not read
	// its kind.
	Unverified bool
}

// Unbound is the policy of a source for a workload that nothing is known of.
func (c Compiled) Unbound() *Policy { return &Policy{Compiled: c, Strategy: c.Whole} }

// Suits reports whether pods of the workload can run in a pool, as far as is known.
func (p *Policy) Suits(pool int) bool { return p.Unsuitable == nil || p.Unsuitable[pool] == "" }

// Nowhere reports whether the pods of the workload can run in no pool. Then the policy does not select the workload.
func (p *Policy) Nowhere() bool { return p.Unsuitable != nil && !slices.Contains(p.Unsuitable, "") }

// Unrecorded reports whether the workload is a StatefulSet that is older than its policy, and nobody has recorded yet where its volumes
// may be. Until then the policy does not divide it.
func (p *Policy) Unrecorded() bool { return p.KeepsVolumes && p.Kept() == nil }

// ChoosesBy reports whether pools have a node label.
func (c *Compiled) ChoosesBy(label string) bool {
	for i := range c.Whole.Len() {
		if slices.Contains(c.Whole.Keys(i), label) {
			return true
		}
	}
	return false
}

// AsWritten returns the strategy with the pools that are unsuitable for the workload, too.
func (p *Policy) AsWritten() *sequence.Strategy {
	if p.asWritten != nil {
		return p.asWritten
	}
	return p.Whole
}

// SourceUID returns the UID of the policy or PodDistributor, or "" for annotations.
func (c *Compiled) SourceUID() types.UID {
	if c.Distributor != nil {
		return c.Distributor.UID
	}
	return c.From.UID
}

// Kept returns where the volumes may be of a StatefulSet, as far as that is recorded, or nil.
func (p *Policy) Kept() *stowage.KeptOrdinals {
	if p.State == nil || p.State.Kept == nil || p.State.Kept.Policy == "" || p.State.Kept.Policy != p.SourceUID() || p.State.Kept.Owner != p.owner {
		return nil
	}
	return p.State.Kept
}

// Keeping reports whether volumes keep some pods.
func (p *Policy) Keeping() bool {
	kept := p.Kept()
	return kept != nil && len(kept.Ordinals) > 0
}

// Dividing returns the policy if it divides the workload now, or nil.
func (p *Policy) Dividing() *Policy {
	if p != nil && (p.Nowhere() || p.Unrecorded()) {
		return nil
	}
	return p
}

// OwnTargets returns how many of n pods with ordinals of their own each pool should have. It is nil where that follows from the strategy
// alone, because no volume keeps a pod and all pools are suitable. Outside is how many of the n pods their volumes leave
// without a seat.
func (p *Policy) OwnTargets(n int64) (targets []int64, outside int64) {
	kept := p.Kept()
	if p.instead == nil && !p.Keeping() || !p.ordinals {
		return nil, 0
	}
	targets = make([]int64, p.Whole.Len())
	for i := range targets {
		if p.instead == nil {
			targets[i] = p.Whole.Target(i, n)
			continue
		}
		targets[i] = p.instead.Target(i, p.displaced(n))
		if p.Suits(i) {
			targets[i] += p.asWritten.Target(i, n)
		}
	}
	if kept == nil {
		return targets, 0
	}
	for text, key := range kept.Ordinals {
		ordinal, err := strconv.ParseInt(text, 10, 64)
		rank := ordinal - p.FirstOrdinal + 1
		if err != nil || rank < 1 || rank > n {
			continue
		}
		if own, err := p.Own(rank); err == nil {
			targets[own.Pool]--
		}
		if pool, _, known := p.CellOf(key); known {
			targets[pool]++
		} else {
			outside++
		}
	}
	return targets, outside
}

// displaced returns how many of the first n seats are in unsuitable pools, as the strategy is written.
func (p *Policy) displaced(n int64) (count int64) {
	for i := range p.Unsuitable {
		if !p.Suits(i) {
			count += p.asWritten.Target(i, n)
		}
	}
	return count
}

// Own returns the seat of a pod with an ordinal of its own, by its rank, wherever its volume is and whatever has no room. It is the one
// of the strategy, unless that is in an unsuitable pool. Then the other pools take the pod, and all other pods keep their seats: their
// volumes may be there.
func (p *Policy) Own(rank int64) (sequence.Seat, error) {
	if p.instead == nil {
		return p.Whole.Nth(rank)
	}
	own, err := p.asWritten.Nth(rank)
	if err != nil || p.Suits(own.Pool) {
		return own, err
	}
	other, err := p.instead.Nth(p.displaced(rank))
	return sequence.Seat{Pool: other.Pool, Ordinal: sequence.MovedOrdinals + rank}, err
}

// WorkloadCreated is when the uppermost workload was created, or zero if that is not known.
func (p *Policy) WorkloadCreated() time.Time {
	if p.Root == nil {
		return time.Time{}
	}
	return p.Root.Created
}

// SeatAt returns the seat of a pod with an ordinal of its own, by its rank. While the pod's pool has no room, the pod
// may have a seat in another one. A pod whose volume may be where it ran before the policy came keeps that pool. It returns ErrKept if
// that was none of the pools.
func (p *Policy) SeatAt(rank int64) (sequence.Seat, error) {
	if kept := p.Kept(); kept != nil {
		if key, ok := kept.Ordinals[strconv.FormatInt(rank+p.FirstOrdinal-1, 10)]; ok {
			pool, domain, known := p.CellOf(key)
			if !known {
				return sequence.Seat{}, ErrKept
			}
			if own, err := p.Own(rank); err == nil && own.Pool == pool && p.homeOf(own) == domain {
				return own, nil
			}
			return sequence.Seat{Pool: pool, Ordinal: sequence.MovedOrdinals + rank}, nil
		}
	}
	if p.State != nil && p.Spill != nil {
		if pool, _, ok := p.CellOf(p.State.Ordinals[strconv.FormatInt(rank+p.FirstOrdinal-1, 10)]); ok {
			return sequence.Seat{Pool: pool, Ordinal: sequence.MovedOrdinals + rank}, nil
		}
	}
	return p.Own(rank)
}

// Shortages returns the pools and cells without room whose waiting pods others take.
func (p *Policy) Shortages() []spill.Shortage {
	if p.Spill == nil {
		return nil
	}
	return spill.Shortages(spill.FromPoolState(p.State, p.Whole), p.Whole)
}

// ForeignCost reports whether Stowage did not write the deletion cost of a pod in a seat, so that a scale-down follows somebody
// else's. Signed is the rank for which the pod's claim says that it was written, or 0. Pods that their owner removes by ordinal
// have no cost of ours.
func (p *Policy) ForeignCost(pool string, ordinal int64, cost string, signed int64) bool {
	n, ok := p.Pool(pool)
	return ok && cost != "" && sequence.RankOfCost(cost, p.Whole.RankOrNone(sequence.Seat{Pool: n, Ordinal: ordinal}), signed) == 0
}

// Limits are the pools and cells without room, with how many pods each may have, for comparisons.
func (p *Policy) Limits() string {
	cells := spill.FromPoolState(p.State, p.Whole)
	return fmt.Sprint(p.Short(), spill.Limits(cells, p.Whole.Cells()))
}

// Short reports for each pool whether it has no room, as far as pods move from it.
func (p *Policy) Short() []bool {
	short := make([]bool, p.Whole.Len())
	for i, pool := range spill.MergeCells(spill.FromPoolState(p.State, p.Whole), p.Whole.Cells()) {
		short[i] = p.Spill != nil && p.Spill[i].After > 0 && pool.Phase != spill.Available
	}
	return short
}
