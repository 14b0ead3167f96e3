package policy

import (
	"cmp"
	"context"
	"slices"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// bind says what holds for the pods of one owner now. The seats of pools without room are left out. Pods with an ordinal of their own
// keep the whole strategy: only those that waited have another seat, see [layout.Layout.OfOrdinal].
func (f *Finder) bind(ctx context.Context, c Compiled, namespace string, chain world.Chain) (*Policy, error) {
	var state *stowage.PoolState
	if top := chain.Top(); top != nil && c.Written != nil {
		var err error
		if state, err = f.World.PoolState(ctx, namespace, top.UID); err != nil {
			return nil, err
		}
	}
	p := c.policyOf(chain, state)
	if c.Written == nil {
		return p, nil
	}
	w := p.workload(c.Written, namespace, chain)
	if err := f.share(ctx, c.Strategy, p.Root, chain.Bottom(), w); err != nil {
		return nil, err
	}
	p.Layout = c.For(w, f.computed)
	return p, nil
}

// Forecast returns the layout that the pods of an owner would have if a policy in Audit divided them. Nothing is recorded of such a policy. Unsuitable says
// for each cell why the pods cannot run there, or "": see [layout.Workload].
func (f *Finder) Forecast(c Compiled, namespace string, chain world.Chain, unsuitable []string) *layout.Layout {
	w := c.policyOf(chain, nil).workload(c.Written, namespace, chain)
	w.Unsuitable = unsuitable
	return c.For(w, f.computed)
}

// policyOf is a policy without its layout.
func (c Compiled) policyOf(chain world.Chain, state *stowage.PoolState) *Policy {
	p := &Policy{
		Origin: c.Origin, Rules: c.Rules, Err: c.Err, Warnings: c.Warnings,
		State: state, Root: chain.Top(), Unverified: chain.Unverified, owner: chain.Bottom(),
	}
	p.soften()
	return p
}

// workload is what is known of the workload that a policy divides. The order of its domains follows from the namespace, kind and name of the
// uppermost object. So a workload that is made again finds its volumes.
func (p *Policy) workload(written *layout.Written, namespace string, chain world.Chain) (w layout.Workload) {
	if len(chain.Refs) > 0 {
		highest := chain.Refs[len(chain.Refs)-1] // may not be known yet, as a Deployment that was created just now
		name := namespace + "/" + highest.Kind + "/" + highest.Name
		w.Orders = written.OrdersOf(name, cmp.Or(string(highest.UID), name)) // manifests have no UID
	}
	w.Ordinals = p.ordinals()
	if p.State == nil {
		return w
	}
	w.Unsuitable = p.unsuitable(written.Strategy)
	nowhere := w.Unsuitable != nil && !slices.Contains(w.Unsuitable, "")
	if p.Spill != nil && !nowhere && w.Ordinals == nil {
		of, cells := written.Cells(), p.cells(written.Strategy)
		spill.CloseUnsuitable(cells, of, w.Unsuitable)
		if w.Gaps = spill.Gaps(spill.MergeCells(cells, of)); written.Across() != nil {
			w.Limits = spill.Limits(cells, of)
		}
	}
	return w
}

// ordinals are the ordinals of the owner's pods, or nil if these have none.
func (p *Policy) ordinals() *layout.Ordinals {
	if p.owner == nil || !p.owner.IsStatefulSet() {
		return nil
	}
	o := &layout.Ordinals{First: p.owner.FirstOrdinal, Moves: p.Spill != nil}
	if p.State != nil {
		o.Moved = p.State.Ordinals
	}
	return o
}

// unsuitable says for each cell why no pod of the workload can run there, or "". It is nil if all cells are suitable.
func (p *Policy) unsuitable(s *sequence.Strategy) (why []string) {
	of := s.Cells()
	for i := range of.Len() {
		at := of.At(i)
		for _, u := range p.State.Unsuitable {
			if spill.Recorded(s, at, nodeset.Set{Labels: u.NodeLabel, Expressions: u.MatchExpressions}, u.Domain) && (u.Domain != "" || !p.AuthorKnows(u.Filter)) {
				if why == nil {
					why = make([]string, of.Len())
				}
				why[i] = u.Why
			}
		}
	}
	return why
}

// Within returns a policy that gives seats only in some pools and domains: see [layout.Layout.Within]. It returns nil if none is reached.
func (f *Finder) Within(p *Policy, reached [][]bool) *Policy {
	within := p.Within(reached, f.computed)
	if within == nil {
		return nil
	}
	of := *p
	of.Layout = within
	return &of
}

// computed implements [layout.Memo].
func (f *Finder) computed(key layout.Key, compute func() *sequence.Strategy) *sequence.Strategy {
	if known, ok := f.shorts.Get(key); ok {
		return known
	}
	s := compute()
	f.shorts.Add(key, s, int64(len(key.What))+2*layout.Bytes(s), rememberFor)
	return s
}

// share takes from the maxima of pools and cells without room what other revisions of the workload hold there.
func (f *Finder) share(ctx context.Context, s *sequence.Strategy, root, bottom *world.Workload, w layout.Workload) error {
	if w.Gaps == nil || f.settings.Held == nil || bottom.Controller == nil {
		return nil
	}
	owners, err := f.World.PodOwners(ctx, bottom.Namespace, root.Ref)
	if err != nil {
		return err
	}
	for _, owner := range owners {
		if owner.UID == bottom.UID {
			continue
		}
		for i := range w.Gaps {
			if w.Gaps[i].Count > 0 {
				w.Gaps[i].From = max(0, w.Gaps[i].From-f.settings.Held(owner, s.PoolKey(i)))
			}
		}
		if w.Limits == nil || f.settings.HeldIn == nil {
			continue
		}
		held := f.settings.HeldIn(owner)
		for i := range w.Limits {
			for k, limit := range w.Limits[i] {
				if limit != domain.Open {
					w.Limits[i][k] = max(0, limit-held[ledger.Cell{Pool: s.PoolKey(i), Domain: s.DomainName(k)}])
				}
			}
		}
	}
	return nil
}
