package sequence

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// Across is the domains, such as zones, over which the pods of each pool are divided. Package domain divides them. It does not
// change.
type Across struct {
	Key     string // of the node label whose value names a node's domain
	Domains []Domain
}

// Domain is one of the domains.
type Domain struct {
	Value  string
	Weight int64 // its share of each pool, relative to the other domains
}

// MaxDomains is how many domains there are at most.
const MaxDomains = 16

// Index returns the index of a domain, or -1.
func (a *Across) Index(value string) int {
	return slices.IndexFunc(a.Domains, func(d Domain) bool { return d.Value == value })
}

// Weights returns the weights of the domains.
func (a *Across) Weights() []int64 {
	out := make([]int64, len(a.Domains))
	for i, d := range a.Domains {
		out[i] = d.Weight
	}
	return out
}

// WithDomains returns the strategy whose pools are divided over domains. The sequence is the same. The error names what is wrong.
func (s *Strategy) WithDomains(a Across) (*Strategy, error) {
	var errs []error
	if msgs := validation.IsQualifiedName(a.Key); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("the topology key is %q: %s", a.Key, msgs[0]))
	}
	if len(a.Domains) == 0 || len(a.Domains) > MaxDomains {
		errs = append(errs, fmt.Errorf("there are %d domains; there must be 1 to %d", len(a.Domains), MaxDomains))
		return nil, errors.Join(errs...) // each domain is compared to all others
	}
	for i, d := range a.Domains {
		if msgs := validation.IsValidLabelValue(d.Value); len(msgs) > 0 || d.Value == "" {
			errs = append(errs, fmt.Errorf("domain %d is %q, which is no value of label %s", i+1, d.Value, a.Key))
		}
		if a.Index(d.Value) < i {
			errs = append(errs, fmt.Errorf("domain %d is %q, as an earlier one is", i+1, d.Value))
		}
		if d.Weight < 1 || d.Weight > MaxDomainWeight {
			errs = append(errs, fmt.Errorf("domain %d: weight is %d; it must be 1 to %d", i+1, d.Weight, MaxDomainWeight))
		}
	}
	for i := range s.pools {
		if s.pools[i].Nodes().Names(a.Key) {
			errs = append(errs, fmt.Errorf("pool %d has the label %s, by which each pool is to be divided", i, a.Key))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s.across(&a), nil
}

// Values returns how many values of a node label the nodes of the pools have in all, as the pools and domains fix it. It returns 0 where
// they leave a pool's nodes any value.
func (s *Strategy) Values(key string, pool int) int {
	if s.domains != nil && s.domains.Key == key {
		return len(s.domains.Domains)
	}
	if _, fixed := s.pools[pool].Nodes().Values(key); !fixed {
		return 0
	}
	values := map[string]bool{}
	for i := range s.pools {
		of, _ := s.pools[i].Nodes().Values(key)
		for _, v := range of {
			values[v] = true
		}
	}
	return len(values)
}

// MaxDomainWeight is the largest weight of a domain.
const MaxDomainWeight = 100

// across returns the strategy with domains, or with none.
func (s *Strategy) across(a *Across) *Strategy {
	if a == nil {
		return s
	}
	out := *s
	out.domains, out.cells = a, nil
	for i := range s.pools {
		for _, domain := range a.Domains {
			out.cells = append(out.cells, s.pools[i].Nodes().With(a.Key, domain.Value))
		}
	}
	d := newDigest()
	d.Write(s.fingerprint[:])
	d.text(a.Key)
	for _, domain := range a.Domains {
		d.text(domain.Value)
		d.number(domain.Weight)
	}
	out.fingerprint = d.fingerprint()
	return &out
}

// Across returns the domains of the pools, or nil if the pools are not divided.
func (s *Strategy) Across() *Across { return s.domains }

// Nodes returns the nodes of a pool, or of one of its domains. The domain is -1 for all of them. The result is not to be changed.
func (s *Strategy) Nodes(pool, domain int) nodeset.Set {
	if s.domains == nil || domain < 0 {
		return s.pools[pool].Nodes()
	}
	return s.cells[pool*len(s.domains.Domains)+domain]
}

// DomainOfNode returns the domain that a node with these labels is in, or -1 if it is in none. Without domains, all nodes are in domain 0.
func (s *Strategy) DomainOfNode(node map[string]string) int {
	if s.domains == nil {
		return 0
	}
	return s.domains.Index(node[s.domains.Key])
}

// DomainName returns the name of a domain, or "" without domains.
func (s *Strategy) DomainName(domain int) string {
	if s.domains == nil {
		return ""
	}
	return s.domains.Domains[domain].Value
}

// DomainNamed returns the index of a domain by its name, and false if there is no such domain. Without domains, it is 0 for "".
func (s *Strategy) DomainNamed(name string) (domain int, known bool) {
	if s.domains == nil {
		return 0, name == ""
	}
	domain = s.domains.Index(name)
	return max(0, domain), domain >= 0
}

// CellNamed returns the cell of a pool, by its [Pool.Key], and of a domain, by its name. It returns false if there is no such cell.
func (s *Strategy) CellNamed(pool, domain string) (at Cell, known bool) {
	if at.Pool, known = s.PoolKeyed(pool); known {
		at.Domain, known = s.DomainNamed(domain)
	}
	return at, known
}

// Keys returns the keys of the labels by which a pool's nodes are selected, in order.
func (s *Strategy) Keys(pool int) []string {
	keys := s.pools[pool].Nodes().Keys()
	if s.domains != nil {
		keys = append(keys, s.domains.Key)
		slices.Sort(keys)
	}
	return keys
}

// Cell is a pool, or a domain of it.
type Cell struct{ Pool, Domain int }

// Cells are the cells of a strategy, pool by pool: its pools or, where these are divided over domains, each pair of a pool and a domain.
type Cells struct{ pools, domains int }

// Cells returns the cells of the strategy.
func (s *Strategy) Cells() Cells {
	c := Cells{len(s.pools), 1}
	if s.domains != nil {
		c.domains = len(s.domains.Domains)
	}
	return c
}

// Len returns how many cells there are.
func (c Cells) Len() int { return c.pools * c.domains }

// OfPool returns how many cells each pool has.
func (c Cells) OfPool() int { return c.domains }

// Index returns the place of a cell in a list of all.
func (c Cells) Index(at Cell) int { return at.Pool*c.domains + at.Domain }

// At returns the cell at a place in a list of all.
func (c Cells) At(i int) Cell { return Cell{i / c.domains, i % c.domains} }

// NodesOf returns the nodes of a cell.
func (s *Strategy) NodesOf(at Cell) nodeset.Set { return s.Nodes(at.Pool, at.Domain) }
