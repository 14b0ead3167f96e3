package policy

import (
	"cmp"
	"sync"

	"github.com/stowage-dev/stowage/internal/spread/domain"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
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
	h := &homes{strategy: s, by: map[domain.Order]*domain.Homes{}}
	_, err := h.of(0)
	return h, err
}

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

// bytes is about what all of them take.
func (h *homes) bytes() int64 {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return 5 * h.by[0].Size() * int64(domain.Orders(len(h.strategy.Across().Domains)))
}

// BindDomains fills in where the seats of a workload are, whose owners are known. The order of the domains follows from the uppermost one.
func (p *Policy) BindDomains(namespace string, chain world.Chain) {
	if top := chain.Top(); top != nil {
		p.bindDomains(workloadName(string(top.UID), namespace, top.Kind, top.Name))
	} else if len(chain.Refs) > 0 {
		ref := chain.Refs[len(chain.Refs)-1]
		p.bindDomains(workloadName(string(ref.UID), namespace, ref.Kind, ref.Name))
	}
}

// bindDomains fills in where the seats of a workload are. The workload is named by its UID, or by something else that no other has.
func (p *Policy) bindDomains(workload string) {
	if p.homes == nil {
		return
	}
	// That it fits was found out when the source was compiled.
	if h, err := p.homes.of(domain.OrderOf(p.Whole.Across().Weights(), workload)); err == nil {
		p.Domains = h.Map(nil)
	}
}

// DomainOf returns the index of a seat's domain, or -1 where the strategy has no domains.
func (p *Policy) DomainOf(seat sequence.Seat) int {
	if p.Domains == nil {
		return -1
	}
	return p.Domains.Domain(seat.Pool, seat.Ordinal)
}

// DomainName returns the name of a domain by its index, or "" for -1.
func (c *Compiled) DomainName(index int) string {
	if index < 0 {
		return ""
	}
	return c.Whole.Across().Domains[index].Value
}

// DomainIndex returns the index of a domain by its name. It is -1 for "" where the strategy has no domains. Other names that
// the strategy does not have are unknown, and so is "" where it has domains.
func (c *Compiled) DomainIndex(name string) (index int, known bool) {
	a := c.Whole.Across()
	if a == nil {
		return -1, name == ""
	}
	index = a.Index(name)
	return index, index >= 0
}

// workloadName is what tells a workload from others: its UID, or a name where manifests have none.
func workloadName(uid, namespace, kind, name string) string {
	return cmp.Or(uid, namespace+"/"+kind+"/"+name)
}
