package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// The bounds of how long a pod waits until other pools take it, and what holds where a PodDistributor says nothing.
const (
	minSpill     = 10 * time.Second
	maxSpill     = time.Hour
	defaultSpill = "2m"
)

func parseSpill(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < minSpill || d > maxSpill {
		return 0, errors.New("it must be a duration from 10s to 1h, such as 2m")
	}
	return d, nil
}

// Shortages returns the pools without room of which other pools take the pods that wait.
func (p *Policy) Shortages() []spill.Shortage {
	if p.Spill == nil {
		return nil
	}
	return spill.Shortages(spill.FromPoolState(p.State, p.Whole), p.Whole)
}

// Short reports for each pool whether it has no room, as far as pods move from it.
func (p *Policy) Short() []bool {
	short := make([]bool, p.Whole.Len())
	for i, pool := range spill.FromPoolState(p.State, p.Whole) {
		short[i] = p.Spill != nil && p.Spill[i].After > 0 && pool.Phase != spill.Available
	}
	return short
}

// shortKey identifies a strategy without some seats.
type shortKey struct {
	whole sequence.Fingerprint
	gaps  string
}

// shorten leaves out the seats of pools without room. Pods with an ordinal of their own keep the whole strategy: only
// those that waited have another seat, see [Policy.SeatAt].
func (f *Finder) shorten(ctx context.Context, p *Policy, namespace string, chain world.Chain) error {
	p.Root = chain.Top()
	if p.Strategy == nil || p.Spill == nil || p.Root == nil {
		return nil
	}
	state, err := f.World.PoolState(ctx, namespace, p.Root.UID)
	if err != nil || state == nil {
		return err
	}
	p.State = state
	bottom := chain.Bottom()
	if bottom.IsStatefulSet() {
		return nil
	}
	gaps := spill.Gaps(spill.FromPoolState(state, p.Whole))
	for i := range gaps {
		if p.Spill[i].After == 0 {
			gaps[i] = sequence.Gap{}
		}
	}
	if err := f.share(ctx, p, bottom, gaps); err != nil {
		return err
	}
	key := shortKey{p.Whole.Fingerprint(), fmt.Sprint(gaps)}
	if known, ok := f.shorts.Get(key); ok {
		p.Strategy = known
		return nil
	}
	p.Strategy = p.Whole.Without(gaps)
	if p.Whole.Size() <= maxSize && p.Strategy.Size() <= maxSize {
		f.shorts.Add(key, p.Strategy, int64(len(key.gaps))+bytesOf(p.Whole)+bytesOf(p.Strategy), rememberFor)
	}
	return nil
}

// share takes from the maxima of pools without room what other revisions of the workload hold there.
func (f *Finder) share(ctx context.Context, p *Policy, bottom *world.Workload, gaps []sequence.Gap) error {
	if f.settings.Held == nil || bottom.Controller == nil {
		return nil
	}
	owners, err := f.World.PodOwners(ctx, bottom.Namespace, p.Root.Ref)
	if err != nil {
		return err
	}
	for i := range gaps {
		if gaps[i].Count == 0 {
			continue
		}
		for _, owner := range owners {
			if owner.UID != bottom.UID {
				gaps[i].From -= f.settings.Held(owner, p.Whole.Pool(i).Name)
			}
		}
		gaps[i].From = max(0, gaps[i].From)
	}
	return nil
}
