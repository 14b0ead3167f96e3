// Package domain divides the pods of each pool over topology domains, such as zones.
//
// The division over pools stays what package sequence makes it. Each seat has a home: home(pool, ordinal) is a fixed
// sequence of domains for each pool. A pair of a pool and a domain is a cell.
//
// The rule of [New] goes through the strategy's sequence. The seat of a pool goes to one of the domains that have less than their
// share of that pool. Of these it takes the one that lacks most, over all pools and in this pool together. So in each pool no cell
// has more than its share, rounded up. After as many seats of a pool as the sum of the weights, each cell has exactly its share.
// docs/design/domains.md has the bounds, and the tests that find them.
//
// The package is pure. It knows domains by their index; a policy knows their names.
package domain

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
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
	once   int64     // how many ordinals come before the part that repeats
	order  []uint8   // the domain of each ordinal, from 1, of both parts
	places [][]int32 // the ordinals of each domain
}

// place fills in the places.
func (p *run) place(domains int) {
	p.places = make([][]int32, domains)
	for o, domain := range p.order {
		p.places[domain] = append(p.places[domain], int32(o+1))
	}
}

// Order is the domain in which a workload's first pod has its home, and which domain comes next in a tie. There are two orders for each domain:
// of the first ones, the next domain comes next, of the others the one before.
type Order int

// Orders returns how many orders there are of so many domains.
func Orders(domains int) int { return 2 * domains }

// OrderOf returns the order of a workload, which a text names: the namespace, kind and name of its uppermost object. Without orders, a fleet of workloads
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

// New returns the homes of a strategy's seats in domains of some weights, which are positive. It returns an error if they would take too
// much memory.
func New(s *sequence.Strategy, weights []int64, order Order) (*Homes, error) {
	h := &Homes{order: order, pools: make([]run, s.Len())}
	h.weights, h.sum = sequence.Reduced(weights)
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
		if cycle != nil && cycle[i] < int64(len(p.order)) {
			p.once = cycle[i]
		} else {
			p.once = d.goOnAlone(i)
		}
		p.place(len(weights))
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

// goOnAlone deals seats of a pool until they repeat without other pools. It returns how many come before the part that repeats.
func (d *dealer) goOnAlone(pool int) (once int64) {
	p := &d.h.pools[pool]
	for int64(len(p.order))%d.h.sum != 0 {
		d.dealAlone(pool)
	}
	once = int64(len(p.order))
	for range d.h.sum {
		d.dealAlone(pool)
	}
	return once
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
