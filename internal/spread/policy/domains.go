package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// homes are the homes of a strategy's seats, for each order of its domains. Each is computed when it is needed first.
type homes struct {
	strategy *sequence.Strategy // as written
	mu       sync.Mutex
	by       map[domain.Order]*domain.Homes
}

// newHomes returns the homes of a strategy, or nil if it has no domains. It returns an error if they would take too much memory.
func newHomes(s *sequence.Strategy) (*homes, error) {
	if s == nil || s.Across() == nil {
		return nil, nil
	}
	if cells := s.Len() * len(s.Across().Domains); cells > maxCells {
		return nil, fmt.Errorf("there are %d pools over %d domains; the most is %d pairs", s.Len(), len(s.Across().Domains), maxCells)
	}
	h := &homes{strategy: s, by: map[domain.Order]*domain.Homes{}}
	if _, err := h.of(0); err != nil {
		return nil, err
	}
	return h, nil
}

// maxCells is how many pairs of a pool and a domain a strategy has at most. The leader looks at each that has no room.
const maxCells = 128

func (h *homes) of(order domain.Order) (*domain.Homes, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.by[order]; known != nil {
		return known, nil
	}
	computed, err := domain.New(h.strategy, h.strategy.Across().Weights(), order)
	if err == nil {
		h.by[order] = computed
	}
	return computed, err
}

// orOther returns the homes of an order or, where ties make its walk too long, those of the first one. It returns nil if that is too long, too.
func (h *homes) orOther(order domain.Order) *domain.Homes {
	of, err := h.of(order)
	if err != nil {
		of, _ = h.of(0)
	}
	return of
}

// bytes is about what all of them take.
func (h *homes) bytes() int64 {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	domains := len(h.strategy.Across().Domains)
	return (5*h.by[0].Size() + int64(64*h.strategy.Len()*domains)) * int64(domain.Orders(domains))
}

// BindDomains fills in where the seats of a workload are, whose owners are known. The order of the domains follows from the namespace, kind
// and name of the uppermost one. So a workload that is made again finds its volumes.
func (p *Policy) BindDomains(namespace string, chain world.Chain) {
	if p.homes == nil || len(chain.Refs) == 0 {
		return
	}
	// The root may not be known yet, as a Deployment that was created just now. Its name is in the reference.
	root := chain.Root()
	name := namespace + "/" + root.Kind + "/" + root.Name
	if h := p.homes.orOther(p.orderOf(name)); h != nil {
		p.Domains, p.formerOrder = h.Assign(nil), p.orderOf(cmp.Or(string(root.UID), name)) // manifests have no UID
	}
}

// orderOf returns the order of the domains for a workload, which a text names.
func (p *Policy) orderOf(workload string) domain.Order {
	return domain.OrderOf(p.Whole.Across().Weights(), workload)
}

// FormerDomains says in which domain each seat was before 27 November 2026, when the order of the domains followed from the UID. Pods that
// run by it stay. It can go with the second minor release. It returns nil without domains.
func (p *Policy) FormerDomains() *domain.Assignment {
	if p.Domains == nil || p.homes == nil {
		return nil
	}
	return p.Domains.As(p.homes.orOther(p.formerOrder))
}

// BindLimits has the domains leave out the seats for which cells have no room.
func (p *Policy) BindLimits(state *stowage.PoolState) {
	if p.Domains != nil && p.Spill != nil && !p.ordinals {
		p.Domains = p.Domains.Assign(spill.Limits(p.cells(state), p.Whole.Cells()))
	}
}

// cells are the states of pools or cells from which pods move.
func (p *Policy) cells(state *stowage.PoolState) []spill.Pool {
	cells := spill.FromPoolState(state, p.Whole)
	for i := range cells {
		if p.Spill[p.Whole.Cells().At(i).Pool].After == 0 {
			cells[i] = spill.Pool{Phase: spill.Available}
		}
	}
	return cells
}

// DomainOf returns the index of a seat's domain, or 0 where the strategy has no domains. A pod with an ordinal of its own that has moved, or
// whose volume keeps it, is where that is recorded.
func (p *Policy) DomainOf(seat sequence.Seat) int { return p.DomainBy(p.Domains, seat) }

// DomainBy is [Policy.DomainOf] where seats are in some domains: those of [Policy.FormerDomains], or the policy's own.
func (p *Policy) DomainBy(domains *domain.Assignment, seat sequence.Seat) int {
	if domains == nil {
		return 0
	}
	if rank := seat.Ordinal - sequence.MovedOrdinals; p.ordinals && rank > 0 && p.State != nil {
		text := strconv.FormatInt(rank+p.FirstOrdinal-1, 10)
		recorded := p.State.Ordinals[text]
		if kept := p.Kept(); kept != nil && kept.Ordinals[text] != "" {
			recorded = kept.Ordinals[text]
		}
		if _, domain, ok := p.CellOf(recorded); ok {
			return domain
		}
	}
	return domains.Domain(seat.Pool, seat.Ordinal)
}

// DomainWithin returns the domain of a pod with an ordinal of its own whose volumes reach some domains of its pool: its own; else the one that
// it had before; else the first one. It returns false if they reach none.
func (p *Policy) DomainWithin(seat sequence.Seat, reached []bool) (domain int, ok bool) {
	for _, domain := range []int{p.DomainOf(seat), p.DomainBy(p.FormerDomains(), seat), slices.Index(reached, true)} {
		if domain >= 0 && reached[domain] {
			return domain, true
		}
	}
	return 0, false
}

// mostOrdinals is how many ordinals are looked at one by one. Their owner says how many it asks for, and may ask for billions.
const mostOrdinals = 10000

// DomainTargets returns how many of n pods of the owner each domain of each pool should have. Own is as in [Policy.OwnTargets]. Indexed are
// the seats of the pods of an Indexed Job: those that have ended are not there, so the indexes of the others decide. Nothing is known
// without domains, and where there are too many ordinals to say.
func (p *Policy) DomainTargets(n int64, own []int64, indexed []sequence.Seat) (t domain.Targets) {
	if p.Domains == nil || p.ordinals && n > mostOrdinals {
		return t
	}
	former := p.FormerDomains()
	if p.ordinals && len(indexed) == 0 {
		for rank := int64(1); rank <= n; rank++ {
			if seat, err := p.SeatAt(rank); err == nil { // else every pool has its maximum, or its volume is in none
				indexed = append(indexed, seat)
			}
		}
	}
	if p.ordinals || len(indexed) > 0 {
		return domain.Targets{Now: p.domainsOf(p.Domains, indexed), Former: p.domainsOf(former, indexed)}
	}
	for i := range p.Whole.Len() {
		target := p.Whole.Target(i, n)
		if own != nil {
			target = own[i]
		}
		t.Now, t.Former = append(t.Now, p.Domains.Division(i, target)), append(t.Former, former.Division(i, target))
	}
	return t
}

// domainsOf returns how many of some seats are in each domain of each pool.
func (p *Policy) domainsOf(domains *domain.Assignment, seats []sequence.Seat) [][]int64 {
	out := make([][]int64, p.Whole.Len())
	for i := range out {
		out[i] = make([]int64, domains.Len())
	}
	for _, seat := range seats {
		out[seat.Pool][p.DomainBy(domains, seat)]++
	}
	return out
}

// Of returns the policy as it is for one owner of the workload's pods. A policy that a [Finder] has found is that already.
func (p *Policy) Of(w *world.Workload) *Policy {
	of := *p
	of.owner, of.FirstOrdinal, of.ordinals = w.UID, w.FirstOrdinal, w.IsStatefulSet()
	if of.ordinals && of.Domains != nil {
		of.Domains = of.Domains.Assign(nil) // limits are for pods without ordinals
	}
	return &of
}

// homeOf returns the home of a seat, or 0 where the strategy has no domains.
func (p *Policy) homeOf(seat sequence.Seat) int {
	if p.Domains == nil {
		return 0
	}
	return p.Domains.Of(seat.Pool, seat.Ordinal)
}

// Homes returns the homes of the strategy's seats, or nil without domains.
func (p *Policy) Homes() *domain.Homes {
	if p.Domains == nil {
		return nil
	}
	return p.Domains.Homes
}

// cellMark separates the pool from the domain where a cell is named. No pool's key has one.
const cellMark = "/"

// CellName names a pool, or a domain of it, in the records of the API: see [Compiled.CellOf].
func (c *Compiled) CellName(pool, domain int) string {
	if c.Whole.Across() == nil {
		return c.Whole.PoolKey(pool)
	}
	return c.Whole.PoolKey(pool) + cellMark + c.Whole.DomainName(domain)
}

// CellOf returns the pool, and the domain, that a record of the API names.
func (c *Compiled) CellOf(name string) (pool, domain int, known bool) {
	key, in, _ := strings.Cut(name, cellMark)
	if pool, known = c.Pool(key); known {
		domain, known = c.Whole.DomainNamed(in)
	}
	return pool, domain, known
}
