package layout

import (
	"fmt"
	"sync"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Written is a strategy as its source has it, for all workloads. Where its pools are divided over domains, it has the homes of the seats for
// each order of the domains. Each is computed when it is needed first.
type Written struct {
	*sequence.Strategy

	mu    sync.Mutex
	homes map[domain.Order]*domain.Homes // nil without domains
}

// maxCells is how many pairs of a pool and a domain a strategy has at most. The leader looks at each that has no room.
const maxCells = 128

// New returns what a source says, or an error if the homes of its seats would take too much memory.
func New(s *sequence.Strategy) (*Written, error) {
	w := &Written{Strategy: s}
	if s.Across() == nil {
		return w, nil
	}
	if cells := s.Cells(); cells.Len() > maxCells {
		return nil, fmt.Errorf("there are %d pools over %d domains; the most is %d pairs", s.Len(), cells.OfPool(), maxCells)
	}
	w.homes = map[domain.Order]*domain.Homes{}
	if _, err := w.homesIn(0); err != nil {
		return nil, err
	}
	return w, nil
}

// homesIn returns the homes of the seats for an order.
func (w *Written) homesIn(order domain.Order) (*domain.Homes, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.homes[order]; known != nil {
		return known, nil
	}
	computed, err := domain.New(w.Strategy, w.Across().Weights(), order)
	if err == nil {
		w.homes[order] = computed
	}
	return computed, err
}

// homesOrFirst returns the homes of the seats for an order. Where ties make the walk of that order too long, they are those of the first one.
func (w *Written) homesOrFirst(order domain.Order) *domain.Homes {
	of, err := w.homesIn(order)
	if err != nil {
		of, _ = w.homesIn(0) // never fails: New computed it
	}
	return of
}

// OrdersOf returns the orders of the domains for a workload, or nil without domains. Now it follows from the workload's name, and formerly from
// another text.
func (w *Written) OrdersOf(name, former string) *Orders {
	if w.Across() == nil {
		return nil
	}
	weights := w.Across().Weights()
	return &Orders{Now: domain.OrderOf(weights, name), Former: domain.OrderOf(weights, former)}
}

// Bytes is about what all of it takes in memory, once all orders are computed. It is 0 for nil.
func (w *Written) Bytes() int64 {
	if w == nil {
		return 0
	}
	bytes := Bytes(w.Strategy)
	if w.homes == nil {
		return bytes
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	cells := w.Cells()
	return bytes + (5*w.homes[0].Size()+int64(64*cells.Len()))*int64(domain.Orders(cells.OfPool()))
}

// Bytes is about what a strategy takes in memory: five bytes for each of its [sequence.Strategy.Size], and its pools.
func Bytes(s *sequence.Strategy) int64 { return 5*s.Size() + 512*int64(s.Len()) }

// assign fills in where the seats are while cells have no more than their limits.
func (l *Layout) assign(limits [][]int64) {
	orders := l.workload.Orders
	l.domains = l.written.homesOrFirst(orders.Now).Assign(limits)
	l.former = sync.OnceValue(func() *domain.Assignment { return l.written.homesOrFirst(orders.Former).Assign(limits) })
}

// Domains says in which domain each seat is, or nil if the layout has no domains.
func (l *Layout) Domains() *domain.Assignment {
	if l == nil {
		return nil
	}
	return l.domains
}

// Former is [Layout.Domains] by the order that the domains had in a release before: see [Orders].
func (l *Layout) Former() *domain.Assignment {
	if l.Domains() == nil {
		return nil
	}
	return l.former()
}

// Homes returns the homes of the strategy's seats, or nil without domains.
func (l *Layout) Homes() *domain.Homes {
	if l.Domains() == nil {
		return nil
	}
	return l.domains.Homes
}

// DomainOf returns the index of a seat's domain, or 0 without domains. A pod with an ordinal of its own that has moved, or that is held, is
// there.
func (l *Layout) DomainOf(seat sequence.Seat) int { return l.domainBy(l.domains, seat) }

// FormerDomainOf is [Layout.DomainOf] by the order that the domains had in a release before.
func (l *Layout) FormerDomainOf(seat sequence.Seat) int { return l.domainBy(l.Former(), seat) }

func (l *Layout) domainBy(domains *domain.Assignment, seat sequence.Seat) int {
	if domains == nil {
		return 0
	}
	if at, moved := l.recorded(seat.Ordinal - sequence.MovedOrdinals); moved {
		return at.Domain
	}
	return domains.Domain(seat.Pool, seat.Ordinal)
}

// mostOrdinals is how many ordinals are looked at one by one. Their owner says how many it asks for, and may ask for billions.
const mostOrdinals = 10000

// domainTargets returns how many of n pods of the owner each domain of each pool should have: see [Layout.Divide]. Nothing is known without
// domains, and where there are too many ordinals to say.
func (l *Layout) domainTargets(n int64, pools []int64, indexed []sequence.Seat) (t domain.Targets) {
	ordinals := l.workload.Ordinals != nil
	if l.domains == nil || ordinals && n > mostOrdinals {
		return t
	}
	if ordinals && len(indexed) == 0 {
		for rank := int64(1); rank <= n; rank++ {
			if seat, err := l.OfOrdinal(rank); err == nil { // else every pool has its maximum
				indexed = append(indexed, seat)
			}
		}
	}
	if ordinals || len(indexed) > 0 {
		return domain.Targets{Now: l.inDomains(l.domains, indexed), Former: l.inDomains(l.Former(), indexed)}
	}
	for i := range pools {
		t.Now, t.Former = append(t.Now, l.domains.Division(i, pools[i])), append(t.Former, l.Former().Division(i, pools[i]))
	}
	return t
}

// inDomains returns how many of some seats are in each domain of each pool.
func (l *Layout) inDomains(domains *domain.Assignment, seats []sequence.Seat) [][]int64 {
	out := make([][]int64, l.Len())
	for i := range out {
		out[i] = make([]int64, domains.Len())
	}
	for _, seat := range seats {
		out[seat.Pool][l.domainBy(domains, seat)]++
	}
	return out
}
