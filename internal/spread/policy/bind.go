package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// shortKey identifies a strategy without some seats.
type shortKey struct {
	whole sequence.Fingerprint
	gaps  string
}

// bind says what holds for one workload now. The seats of pools without room are left out. Pods with an ordinal of their own
// keep the whole strategy: only those that waited have another seat, see [Policy.SeatAt].
func (f *Finder) bind(ctx context.Context, p *Policy, namespace string, chain world.Chain) error {
	p.Root, p.Unverified = chain.Top(), chain.Unverified
	if bottom := chain.Bottom(); bottom != nil {
		p.FirstOrdinal = bottom.FirstOrdinal
	}
	if bottom := chain.Bottom(); bottom != nil {
		p.owner, p.ordinals = bottom.UID, bottom.IsStatefulSet()
		p.KeepsVolumes = p.Policy != nil && p.Policy.KeepsVolumes(bottom)
	}
	p.BindDomains(namespace, chain)
	if p.Whole == nil || p.Spill == nil && p.Policy == nil && (p.Domains == nil || !p.ordinals) || p.Root == nil {
		return nil
	}
	state, err := f.World.PoolState(ctx, namespace, p.Root.UID)
	if err != nil || state == nil {
		return err
	}
	p.State = state
	if p.Policy != nil {
		f.leaveOutUnsuitable(p)
	}
	if p.Spill == nil || p.Nowhere() {
		return nil
	}
	bottom := chain.Bottom()
	if bottom.IsStatefulSet() {
		return nil
	}
	of, cells := p.Whole.Cells(), p.cells(state)
	gaps := spill.Gaps(spill.MergeCells(cells, of))
	var limits [][]int64
	if p.Domains != nil {
		limits = spill.Limits(cells, of)
	}
	if err := f.share(ctx, p, bottom, gaps, limits); err != nil {
		return err
	}
	if p.Domains != nil {
		p.Domains = p.Domains.Assign(limits)
	}
	p.gaps = gaps
	p.Strategy = f.computed(shortKey{p.Whole.Fingerprint(), fmt.Sprint(gaps)}, func() *sequence.Strategy { return p.Whole.Without(gaps) })
	return nil
}

// Reached reports for each pool and domain whether a function does of its node labels, and whether it does of all.
func (p *Policy) Reached(reaches func(cell map[string]string) bool) (reached [][]bool, all bool) {
	all = true
	for pool := range p.Whole.Len() {
		cells := make([]bool, p.Whole.Cells().OfPool())
		for domain := range cells {
			cells[domain] = reaches(p.Whole.NodeSelector(pool, domain))
			all = all && cells[domain]
		}
		reached = append(reached, cells)
	}
	return reached, all
}

// Within returns a policy that gives seats only in some pools and domains: in those that are reached. What has no room keeps its limits. It
// returns nil if none is reached.
func (f *Finder) Within(p *Policy, reached [][]bool) *Policy {
	of, left, limits := *p, make([]bool, len(reached)), make([][]int64, len(reached))
	for i, cells := range reached {
		left[i] = !slices.Contains(cells, true)
		for k, is := range cells {
			limit := int64(0)
			if is && p.Domains != nil {
				limit = p.Domains.Limit(i, k)
			}
			limits[i] = append(limits[i], limit)
		}
	}
	if !slices.Contains(left, false) {
		return nil
	}
	if slices.Contains(left, true) {
		of.Strategy = f.computed(shortKey{p.Whole.Fingerprint(), fmt.Sprint("within", left, p.gaps)}, func() *sequence.Strategy { return p.Whole.WithoutPools(left).Without(p.gaps) })
	}
	if p.Domains != nil {
		of.Domains = p.Domains.Assign(limits)
	}
	return &of
}

// computed returns a strategy that follows from another one, computed once.
func (f *Finder) computed(key shortKey, compute func() *sequence.Strategy) *sequence.Strategy {
	if known, ok := f.shorts.Get(key); ok {
		return known
	}
	s := compute()
	f.shorts.Add(key, s, int64(len(key.gaps))+2*bytesOf(s), rememberFor)
	return s
}

// leaveOutUnsuitable leaves out the pools in which no pod of the workload can run.
func (f *Finder) leaveOutUnsuitable(p *Policy) {
	left := make([]bool, p.Whole.Len())
	for i := range left {
		for _, u := range p.State.Unsuitable {
			if maps.Equal(u.NodeLabel, p.Whole.Pool(i).Labels) {
				if p.Unsuitable == nil {
					p.Unsuitable = make([]string, len(left))
				}
				p.Unsuitable[i], left[i] = u.Why, true
			}
		}
	}
	if p.Unsuitable == nil || p.Nowhere() {
		return
	}
	p.asWritten = p.Whole
	p.Whole = f.computed(shortKey{p.asWritten.Fingerprint(), fmt.Sprint(left)}, func() *sequence.Strategy { return p.asWritten.WithoutPools(left) })
	p.Strategy = p.Whole
	if p.ordinals {
		p.instead = f.computed(shortKey{p.asWritten.Fingerprint(), fmt.Sprint("displaced", left)}, func() *sequence.Strategy { return p.asWritten.Displaced(left) })
	}
}

// share takes from the maxima of pools and cells without room what other revisions of the workload hold there.
func (f *Finder) share(ctx context.Context, p *Policy, bottom *world.Workload, gaps []sequence.Gap, limits [][]int64) error {
	if f.settings.Held == nil || bottom.Controller == nil {
		return nil
	}
	owners, err := f.World.PodOwners(ctx, bottom.Namespace, p.Root.Ref)
	if err != nil {
		return err
	}
	for _, owner := range owners {
		if owner.UID == bottom.UID {
			continue
		}
		for i := range gaps {
			if gaps[i].Count > 0 {
				gaps[i].From = max(0, gaps[i].From-f.settings.Held(owner, p.Whole.PoolKey(i)))
			}
		}
		if limits == nil || f.settings.HeldIn == nil {
			continue
		}
		held := f.settings.HeldIn(owner)
		for i := range limits {
			for k, limit := range limits[i] {
				if limit != domain.Open {
					limits[i][k] = max(0, limit-held[ledger.Cell{Pool: p.Whole.PoolKey(i), Domain: p.Whole.DomainName(k)}])
				}
			}
		}
	}
	return nil
}
