// Package domain divides the pods of each pool over topology domains, such as zones.
//
// The division over pools stays what package sequence makes it. Each seat has a home: home(pool, ordinal) is a fixed
// sequence of domains for each pool. A pair of a pool and a domain is a cell.
//
// The rule of [New] goes through the strategy's sequence. The seat of a pool goes to one of the domains that have less than their
// share of that pool. Of these it takes the one that lacks most, over all pools and in this pool together. So in each pool no cell
// has more than its share, rounded up. After as many seats of a pool as the sum of the weights, each cell has exactly its share. docs/design/domains.md
// has the bounds, and the tests that find them.
//
// The package is pure. It knows domains by their index; a policy knows their names.
package domain

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sort"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// maxSeats is how many seats of a strategy's sequence are walked until their homes repeat. Homes take five bytes for each.
const maxSeats = 1 << 13

// Homes are the homes of a strategy's seats. They do not change, and may be used by several goroutines at once.
type Homes struct {
	order   Order
	weights []int64
	sum     int64
	pools   []run
}

// run is the homes of one pool's ordinals: a part that comes once, and one that repeats.
type run struct {
	once   int64   // how many ordinals come before the part that repeats
	order  []uint8 // the domain of each ordinal, from 1, of both parts
	places [][]int32
}

// Order is the domain in which a workload's first pod has its home, and who comes next in a tie. There are two orders for each domain:
// of the first ones, the next domain comes next, of the others the one before.
type Order int

// Orders returns how many orders there are of so many domains.
func Orders(domains int) int { return 2 * domains }

// OrderOf returns the order of a workload, which is named by the UID of its uppermost object. Without orders, a fleet of workloads
// of one pod would be in one domain. Over many workloads, each domain is first as often as its weight says.
func OrderOf(weights []int64, workload string) Order {
	h := fnv.New64a()
	_, _ = h.Write([]byte(workload)) // never fails
	sum := int64(0)
	for _, w := range weights {
		sum += w
	}
	x := mix(h.Sum64())
	at, back := int64(x>>1%uint64(sum)), Order(x&1)
	for i, w := range weights {
		if at < w {
			return Order(i) + back*Order(len(weights))
		}
		at -= w
	}
	return 0 // never
}

// at returns the k-th domain of an order, from 0.
func (o Order) at(k, domains int) int {
	if int(o) < domains {
		return (int(o) + k) % domains
	}
	return (int(o) + domains - k) % domains
}

// mix spreads the bits of a hash of texts that differ little (the finalizer of SplitMix64, G. Steele et al., "Fast splittable
// pseudorandom number generators", OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// New returns the homes of a strategy's seats in domains of some weights, which are positive. It returns an error if they would take too much memory.
func New(s *sequence.Strategy, weights []int64, order Order) (*Homes, error) {
	h := &Homes{order: order, pools: make([]run, s.Len())}
	var divisor int64
	for _, w := range weights {
		divisor = gcd(divisor, w)
	}
	h.weights = make([]int64, len(weights))
	for i, w := range weights {
		h.weights[i] = w / divisor
		h.sum += w / divisor
	}
	start, period := s.Repeats()
	if start > maxSeats || period > maxSeats {
		return nil, errTooLong(max(start, period))
	}

	// 1. Through the sequence, until it is where it was after an earlier period.
	d := newDealer(h)
	began := map[string][]int64{} // how many seats each pool had, by what all cells lacked then
	var cycle []int64
	for n := int64(1); n <= start || period > 0; n++ {
		if n > start && (n-start-1)%period == 0 {
			key := d.key()
			if cycle = began[key]; cycle != nil {
				break
			}
			began[key] = d.seats()
		}
		if n > maxSeats {
			return nil, errTooLong(n)
		}
		seat, err := s.SeatAt(n)
		if err != nil {
			return nil, err // never: the sequence has so many seats
		}
		d.deal(seat.Pool)
	}

	// 2. A pool that has no seats in what repeats goes on alone.
	for i := range h.pools {
		p := &h.pools[i]
		switch {
		case cycle != nil && cycle[i] < int64(len(p.order)):
			p.once = cycle[i]
		default:
			for int64(len(p.order))%h.sum != 0 {
				d.dealAlone(i)
			}
			p.once = int64(len(p.order))
			for range h.sum {
				d.dealAlone(i)
			}
		}
		p.places = make([][]int32, len(weights))
		for o, domain := range p.order {
			p.places[domain] = append(p.places[domain], int32(o+1))
		}
	}
	if h.Size() > 2*maxSeats {
		return nil, errTooLong(h.Size())
	}
	return h, nil
}

func errTooLong(n int64) error {
	return fmt.Errorf("the division over domains would repeat after %d pods or more; the most is %d. Use smaller weights, bases and maxReplicas, or such with a common divisor", n, maxSeats)
}

// dealer deals seats to domains.
type dealer struct {
	h     *Homes
	cells [][]int64 // dealt in each pool, by domain
	total []int64   // dealt in all, by domain
	n     int64
}

func newDealer(h *Homes) *dealer {
	d := &dealer{h: h, cells: make([][]int64, len(h.pools)), total: make([]int64, len(h.weights))}
	for i := range d.cells {
		d.cells[i] = make([]int64, len(h.weights))
	}
	return d
}

// deal gives the next seat of the sequence, which is one of a pool, to a domain.
func (d *dealer) deal(pool int) {
	d.n++
	if d.n == 1 {
		d.give(pool, d.h.order.at(0, d.h.Len()))
		return
	}
	d.choose(pool, true)
}

// dealAlone gives a seat of a pool to a domain, as if there were no other pools.
func (d *dealer) dealAlone(pool int) { d.choose(pool, false) }

func (d *dealer) choose(pool int, all bool) {
	o := int64(len(d.h.pools[pool].order)) + 1
	best, most := -1, int64(math.MinInt64)
	for k := range d.h.weights {
		i := d.h.order.at(k, d.h.Len())
		w := d.h.weights[i]
		here := o*w - d.h.sum*d.cells[pool][i]
		if here <= 0 {
			continue // it has its share of this pool
		}
		lacks := here
		if all {
			lacks += d.n*w - d.h.sum*d.total[i]
		}
		if lacks > most {
			best, most = i, lacks
		}
	}
	d.give(pool, best)
}

func (d *dealer) give(pool, domain int) {
	d.cells[pool][domain]++
	d.total[domain]++
	d.h.pools[pool].order = append(d.h.pools[pool].order, uint8(domain))
}

// key is what all cells lack, from which all that follows is determined.
func (d *dealer) key() string {
	var out []byte
	for pool, cells := range d.cells {
		o := int64(len(d.h.pools[pool].order))
		for i, c := range cells {
			out = binary.AppendVarint(out, o*d.h.weights[i]-d.h.sum*c)
		}
	}
	return string(out)
}

func (d *dealer) seats() []int64 {
	out := make([]int64, len(d.h.pools))
	for i := range out {
		out[i] = int64(len(d.h.pools[i].order))
	}
	return out
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Len returns the number of domains.
func (h *Homes) Len() int { return len(h.weights) }

// Size returns how many seats are kept in memory.
func (h *Homes) Size() (n int64) {
	for i := range h.pools {
		n += int64(len(h.pools[i].order))
	}
	return n
}

// Of returns the home of a seat. Ordinals count from 1, and each has one, also beyond the sequence.
func (h *Homes) Of(pool int, ordinal int64) int {
	p := &h.pools[pool]
	return int(p.order[p.fold(ordinal)-1])
}

// fold returns the ordinal in the parts that are kept which stands for an ordinal.
func (p *run) fold(ordinal int64) int64 {
	if ordinal <= p.once {
		return ordinal
	}
	return p.once + 1 + (ordinal-p.once-1)%p.period()
}

func (p *run) period() int64 { return int64(len(p.order)) - p.once }

// Count returns how many of a pool's first n seats have their home in a domain.
func (h *Homes) Count(pool, domain int, n int64) int64 {
	p := &h.pools[pool]
	if n <= p.once {
		return p.upTo(domain, n)
	}
	periods, rest := (n-p.once)/p.period(), (n-p.once)%p.period()
	once := p.upTo(domain, p.once)
	return periods*(int64(len(p.places[domain]))-once) + p.upTo(domain, p.once+rest)
}

func (p *run) upTo(domain int, n int64) int64 {
	places := p.places[domain]
	return int64(sort.Search(len(places), func(i int) bool { return int64(places[i]) > n }))
}

// Nth returns the ordinal of the k-th seat of a pool that has its home in a domain. k counts from 1.
func (h *Homes) Nth(pool, domain int, k int64) int64 {
	p := &h.pools[pool]
	places, once := p.places[domain], p.upTo(domain, p.once)
	if k <= once {
		return int64(places[k-1])
	}
	each := int64(len(places)) - once
	return (k-once-1)/each*p.period() + int64(places[once+(k-once-1)%each])
}

// ErrNone means that a cell has no such seat.
var ErrNone = errors.New("the cell has no such seat")

// Open is the limit of a cell that has none.
const Open = int64(-1)

// Map is where seats are while some cells have no room. Without such cells, each seat is at home.
type Map struct {
	*Homes
	// short are the pools of which some cell has no room. It is nil if there is none.
	short []shortPool
}

// shortPool is a pool of which some cell may have no room.
type shortPool struct {
	// most is, for each cell, how many of its seats are given there, or [Open].
	most []int64
	// instead is one period of the open domains, which take the seats of cells without room. It is empty if no domain is open.
	instead run
	// Without an open domain, the first seats are divided over all domains by their limits, and all is how many these are. Each domain
	// takes some that are not at home there: spare.
	all   int64
	spare []int64
}

// Map returns where seats are: see [Map]. The limits are how many seats of each cell are given there, or [Open]; nil is all open.
func (h *Homes) Map(limits [][]int64) *Map {
	m := &Map{Homes: h}
	for pool, cells := range limits {
		p := shortPool{most: cells}
		for _, limit := range cells {
			p.all += max(0, limit)
		}
		if slices.Contains(cells, Open) {
			p.instead = h.rest(cells)
		} else {
			p.spare = make([]int64, len(cells))
			for i, limit := range cells {
				p.spare[i] = max(0, limit-h.Count(pool, i, p.all))
			}
		}
		m.short = append(m.short, p)
	}
	return m
}

// rest deals one period of seats to the open domains of a pool.
func (h *Homes) rest(most []int64) (r run) {
	sum := int64(0)
	for i, limit := range most {
		if limit == Open {
			sum += h.weights[i]
		}
	}
	given := make([]int64, len(most))
	for n := int64(1); n <= sum; n++ {
		best, lack := -1, int64(math.MinInt64)
		for k := range most {
			i := h.order.at(k, len(most))
			if l := n*h.weights[i] - sum*given[i]; most[i] == Open && l > lack {
				best, lack = i, l
			}
		}
		given[best]++
		r.order = append(r.order, uint8(best))
	}
	r.places = make([][]int32, len(most))
	for o, domain := range r.order {
		r.places[domain] = append(r.places[domain], int32(o+1))
	}
	return r
}

// Limit returns how many seats of a cell there is room for, or [Open].
func (m *Map) Limit(pool, domain int) int64 {
	if m.short == nil {
		return Open
	}
	return m.short[pool].most[domain]
}

// Domain returns the domain of a seat. It is the home, unless that cell has no room and the seat is beyond those that are given there.
// Then it is one of the pool's open domains. If none is open, it is one that has fewer seats at home than room. Beyond the
// room of all domains, it is the home.
func (m *Map) Domain(pool int, ordinal int64) int {
	home := m.Of(pool, ordinal)
	limit := m.Limit(pool, home)
	if limit == Open || m.Count(pool, home, ordinal) <= limit {
		return home
	}
	p := &m.short[pool]
	if n := int64(len(p.instead.order)); n > 0 {
		return int(p.instead.order[(m.moved(pool, ordinal)-1)%n])
	}
	if ordinal > p.all {
		return home
	}
	n := m.moved(pool, ordinal)
	for i, spare := range p.spare {
		if n <= spare {
			return i
		}
		n -= spare
	}
	return home // never: as many seats are spare as are not at home
}

// HasRoom reports whether there is room for a seat in its domain.
func (m *Map) HasRoom(pool int, ordinal int64) bool {
	return m.short == nil || len(m.short[pool].instead.order) > 0 || ordinal <= m.short[pool].all
}

// moved returns how many of a pool's first n seats are not given at home.
func (m *Map) moved(pool int, n int64) (count int64) {
	for i, limit := range m.short[pool].most {
		if limit != Open {
			count += max(0, m.Count(pool, i, n)-limit)
		}
	}
	return count
}

// Given returns how many of a pool's first n seats are in a domain.
func (m *Map) Given(pool, domain int, n int64) int64 {
	if m.short == nil {
		return m.Count(pool, domain, n)
	}
	p := &m.short[pool]
	limit, count := p.most[domain], m.Count(pool, domain, n)
	switch {
	case limit == Open:
		return count + (&Homes{pools: []run{p.instead}}).Count(0, domain, m.moved(pool, n))
	case len(p.instead.order) > 0:
		return min(count, limit)
	case n > p.all:
		return limit + count - m.Count(pool, domain, p.all)
	}
	before := int64(0)
	for i := range domain {
		before += p.spare[i]
	}
	return min(count, limit) + min(max(0, m.moved(pool, n)-before), p.spare[domain])
}

// Seat returns the ordinal of the k-th seat of a pool that is in a domain. It returns ErrNone if there are fewer.
func (m *Map) Seat(pool, domain int, k int64) (int64, error) {
	if m.short == nil {
		return m.Nth(pool, domain, k), nil
	}
	p := &m.short[pool]
	limit, most := p.most[domain], p.all
	switch {
	case limit == Open:
		most = m.Nth(pool, domain, k) // at home alone it would be that one
	case len(p.instead.order) > 0 && k > limit:
		return 0, ErrNone
	case len(p.instead.order) > 0:
		return m.Nth(pool, domain, k), nil
	case k > limit:
		return m.Nth(pool, domain, k-limit+m.Count(pool, domain, p.all)), nil
	}
	return int64(1 + sort.Search(int(most)-1, func(i int) bool { return m.Given(pool, domain, int64(i+1)) >= k })), nil
}
