package sequence

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/nodeset"
)

// Limits of a strategy. They bound the memory of a sequence: one period is at most
// MaxPools * MaxWeight seats long.
const (
	MaxPools  = 32
	MaxWeight = 1000
)

// Pool is one place where a workload's pods may go.
type Pool struct {
	// Name is how status, metrics and labels call the pool.
	Name string
	// ID tells the pool from others of the same name, where that is not the name itself: see [Pool.Key].
	ID string
	// Labels are those of the pool's nodes, and Expressions what else holds for the nodes' labels: see [Pool.Nodes].
	Labels      map[string]string
	Expressions []corev1.NodeSelectorRequirement
	// Base is how many pods go here before any weight counts.
	Base int64
	// Weight is the pool's share of the rest, relative to the other pools. A pool
	// of weight zero has its base only, and one without a base no pod at all.
	Weight int64
	// Max is how many pods the pool may have; zero is no limit. MaxShare is how many of the pods beyond all bases it may have
	// beside its base, in percent, rounded down; zero is no limit.
	Max, MaxShare int64
	// Overflow is the pool's share of the pods for which a shortage leaves no other seat, relative to the other
	// pools: see [Strategy.Without].
	Overflow int64
}

// Key is what seats and books call the pool: the ID, or the name of a pool without one.
func (p *Pool) Key() string { return cmp.Or(p.ID, p.Name) }

// Nodes are the pool's nodes.
func (p *Pool) Nodes() nodeset.Set { return nodeset.Set{Labels: p.Labels, Expressions: p.Expressions} }

// Tie says which of two pools takes a seat that both are due.
type Tie bool

// The ties. Each front end has its own, because its documented examples demand it.
const (
	EarlierWins Tie = false
	LaterWins   Tie = true
)

// ErrFull means that no pool may receive the pod: each has its maximum, or its base
// and no weight.
var ErrFull = errors.New("every pool has as many pods as it may have")

// Strategy is an ordered list of pools with its sequence. It does not change, and may
// be used by several goroutines at once.
type Strategy struct {
	pools    []Pool
	tie      Tie
	base     []int64 // seats of each pool in the base part, at most its maximum
	baseLen  int64
	segments []segment
	short    *shortage     // seats that are left out, or nil
	domains  *Across       // over which each pool is divided, or nil
	cells    []nodeset.Set // the nodes of each domain of each pool

	fingerprint Fingerprint
	selectors   []string // the hash of what selects each pool's nodes
}

// New returns the strategy of some pools. It reports everything that is wrong with
// them, joined; the errors name pools by their place, from 1.
func New(pools []Pool, tie Tie) (*Strategy, error) {
	if err := validate(pools); err != nil {
		return nil, err
	}
	return newStrategy(pools, tie), nil
}

func newStrategy(pools []Pool, tie Tie) *Strategy { return newClosed(pools, tie, nil) }

// newClosed is newStrategy while some pools have no room. Those get no more seats than a gap leaves them, unless no other pool may take a
// seat: then it is one of theirs.
func newClosed(pools []Pool, tie Tie, gaps []Gap) *Strategy {
	s := &Strategy{pools: pools, tie: tie, fingerprint: fingerprintOf(pools, tie), base: make([]int64, len(pools))}
	room := make([]int64, len(pools)) // what each pool may still take
	for i, p := range pools {
		s.selectors = append(s.selectors, SelectorHash(p.Nodes()))
		room[i] = math.MaxInt64
		s.base[i] = p.Base
		most, limited := p.Max, p.Max > 0
		if gaps != nil && gaps[i].Count > 0 && (!limited || gaps[i].From < most) {
			most, limited = gaps[i].From, true
		}
		if limited {
			s.base[i] = min(p.Base, most)
			room[i] = most - s.base[i]
		}
		s.baseLen += s.base[i]
	}
	s.segments = newSegments(pools, room, s.baseLen, tie, gaps)
	return s
}

// WithoutPools returns the strategy as if some of its pools were for nobody: they have no base and no weight. The other pools
// share the pods by their weights or, if they have none, by their overflow weights. Pools keep their indexes.
func (s *Strategy) WithoutPools(left []bool) *Strategy {
	return s.shared(func(i int, p *Pool) {
		if left[i] {
			p.Base, p.Weight, p.Overflow = 0, 0, 0
		}
	})
}

// Displaced returns the strategy of the pods whose seats are in pools that are for nobody. Each other pool has what it may have beyond its
// own seats, and no base.
func (s *Strategy) Displaced(left []bool) *Strategy {
	return s.shared(func(i int, p *Pool) {
		own := s.Target(i, 1<<50) // more than a workload has pods
		full := p.Max > 0 && own >= p.Max
		switch p.Base = 0; {
		case left[i] || full:
			p.Weight, p.Overflow, p.Max = 0, 0, 0
		case p.Max > 0:
			p.Max -= own
		}
	})
}

// shared returns the strategy of changed pools. Without a weight, they share the pods by their overflow weights.
func (s *Strategy) shared(change func(i int, p *Pool)) *Strategy {
	pools, weights := slices.Clone(s.pools), int64(0)
	for i := range pools {
		change(i, &pools[i])
		weights += pools[i].Weight
	}
	if weights == 0 {
		for i := range pools {
			pools[i].Weight = pools[i].Overflow
		}
	}
	return newStrategy(pools, s.tie).across(s.domains)
}

func validate(pools []Pool) error {
	var errs []error
	if len(pools) == 0 || len(pools) > MaxPools {
		return fmt.Errorf("there are %d pools; there must be 1 to %d", len(pools), MaxPools)
	}
	idle := true
	for i, p := range pools {
		for _, wrong := range p.check(pools[:i]) {
			errs = append(errs, fmt.Errorf("pool %d: %s", i, wrong))
		}
		idle = idle && p.Base == 0 && p.Weight == 0
	}
	if idle {
		errs = append(errs, errors.New("no pool ever gets a pod; give at least one a weight"))
	}
	if len(errs) == 0 {
		errs = append(errs, checkLimited(pools))
	}
	return errors.Join(errs...)
}

// check returns what is wrong with a pool that comes after others.
func (p *Pool) check(before []Pool) (wrong []string) {
	if p.Nodes().Empty() {
		wrong = append(wrong, "has no node label and no expression, so that it would have all nodes")
	}
	for _, n := range []struct {
		is, least   string
		value, most int64
	}{
		{"base", "0", p.Base, math.MaxInt32},
		{"weight", "0", p.Weight, MaxWeight},
		{"overflow", "0", p.Overflow, MaxWeight},
		{"the maximum", "0 (none)", p.Max, math.MaxInt32},
	} {
		if n.value < 0 || n.value > n.most {
			wrong = append(wrong, fmt.Sprintf("%s is %d; it must be %s to %d", n.is, n.value, n.least, n.most))
		}
	}
	for j, other := range before {
		if p.Nodes().Equal(other.Nodes()) {
			wrong = append(wrong, fmt.Sprintf("has the same node labels as pool %d", j))
		}
		if p.Name != "" && p.Name == other.Name {
			wrong = append(wrong, fmt.Sprintf("has the same name as pool %d, %q", j, p.Name))
		}
	}
	return wrong
}

// Len returns the number of pools.
func (s *Strategy) Len() int { return len(s.pools) }

// Size returns how many seats the strategy keeps in memory: a period for each part of the sequence. It is 0 for nil.
func (s *Strategy) Size() (n int64) {
	if s == nil {
		return 0
	}
	for i := range s.segments {
		n += s.segments[i].period()
	}
	if s.short != nil {
		for i := range s.short.overflow {
			n += s.short.overflow[i].period()
		}
	}
	return n
}

// Pool returns a pool by its index.
func (s *Strategy) Pool(i int) Pool { return s.pools[i] }

// PoolKey returns the [Pool.Key] of a pool by its index.
func (s *Strategy) PoolKey(i int) string { return s.pools[i].Key() }

// Capacity returns how many pods have a seat, or math.MaxInt64 without a limit.
func (s *Strategy) Capacity() int64 {
	if s.short != nil {
		return s.short.capacity()
	}
	if n := len(s.segments); n > 0 {
		return s.segments[n-1].end
	}
	return s.baseLen
}

// Seats returns how many pods get a seat by [Strategy.Admit], or math.MaxInt64 without a limit. Without a shortage that is the
// capacity.
func (s *Strategy) Seats() int64 {
	if s.short != nil {
		return s.short.seats()
	}
	return s.Capacity()
}

// Target returns how many of the first n seats a pool has. Beyond the capacity it
// stays what it is there.
func (s *Strategy) Target(pool int, n int64) int64 {
	if s.short != nil {
		return s.short.target(pool, n)
	}
	if n <= s.baseLen {
		for i := range pool {
			n -= s.base[i]
		}
		return max(0, min(n, s.base[pool]))
	}
	count := s.base[pool]
	for i := range s.segments {
		seg := &s.segments[i]
		if n <= seg.start {
			break
		}
		count += seg.count(pool, min(n, seg.end)-seg.start)
	}
	return count
}

// Seat is a place of one pod in a workload.
type Seat struct {
	Pool    int   // index of the pool
	Ordinal int64 // from 1
}

// Share returns a pool's exact share of the first n seats: its base, and its weight's part
// of the rest. Its target is that, rounded to whole pods one way or the other.
func (s *Strategy) Share(pool int, n int64) float64 {
	if s.short != nil {
		return float64(s.Target(pool, n))
	}
	share := float64(s.Target(pool, min(n, s.baseLen)))
	for i := range s.segments {
		seg := &s.segments[i]
		if n <= seg.start {
			break
		}
		share += float64(min(n, seg.end)-seg.start) * float64(len(seg.places[pool])) / float64(seg.period())
	}
	return share
}

// Nth returns the n-th seat, which is the one of rank n unless seats are left out. It returns ErrFull beyond the capacity.
func (s *Strategy) Nth(n int64) (Seat, error) {
	if s.short != nil && n >= 1 {
		return s.short.nth(n)
	}
	return s.SeatAt(n)
}

// SeatAt returns the seat of a rank, which counts from 1. It returns ErrFull beyond
// the capacity, and for a seat that is left out.
func (s *Strategy) SeatAt(rank int64) (Seat, error) {
	if s.short != nil {
		return s.short.seatAt(rank)
	}
	if rank < 1 || rank > s.Capacity() {
		return Seat{}, ErrFull
	}
	if rank <= s.baseLen {
		for i, b := range s.base {
			if rank <= b {
				return Seat{Pool: i, Ordinal: rank}, nil
			}
			rank -= b
		}
	}
	seg := s.segments[sort.Search(len(s.segments), func(i int) bool { return rank <= s.segments[i].end })]
	pool := int(seg.order[(rank-seg.start-1)%seg.period()])
	return Seat{Pool: pool, Ordinal: s.Target(pool, rank)}, nil
}

// Rank returns a seat's place in the sequence, from 1, and false if the sequence has
// no such seat.
func (s *Strategy) Rank(seat Seat) (int64, bool) {
	if s.short != nil {
		return s.short.rank(seat)
	}
	if seat.Pool < 0 || seat.Pool >= len(s.pools) || seat.Ordinal < 1 {
		return 0, false
	}
	left := seat.Ordinal
	if left <= s.base[seat.Pool] {
		for i := range seat.Pool {
			left += s.base[i]
		}
		return left, true
	}
	left -= s.base[seat.Pool]
	for i := range s.segments {
		seg := &s.segments[i]
		if rank, ok := seg.rank(seat.Pool, left); ok && rank <= math.MaxInt64-seg.start {
			return seg.start + rank, true
		}
		left -= seg.count(seat.Pool, seg.end-seg.start)
	}
	return 0, false
}

// Held is the seats that a workload's pods hold.
type Held interface {
	// Count returns how many pods a pool has, with or without an ordinal.
	Count(pool int) int64
	// LowestFree returns the lowest ordinal from 1 that no pod of the pool holds.
	LowestFree(pool int) int64
}

// Next returns the seat for one more pod. It is in the pool that lacks most of what it should have with one pod more,
// at the lowest free ordinal. Counting, instead of handing out the next rank, is what fills the holes that deletions
// leave and what follows a strategy that was edited. It returns ErrFull when no pool may take a pod.
func (s *Strategy) Next(held Held) (Seat, error) {
	var n int64
	for i := range s.pools {
		n += held.Count(i)
	}
	best, most := -1, int64(0)
	for i := range s.pools {
		lacks := s.Target(i, n+1) - held.Count(i)
		if lacks > most || lacks == most && best >= 0 && s.tie == LaterWins {
			best, most = i, lacks
		}
	}
	if best < 0 {
		return Seat{}, ErrFull
	}
	return Seat{Pool: best, Ordinal: held.LowestFree(best)}, nil
}

// Admit returns the seat for one more pod, also where a shortage leaves none. Then it is the next seat of the whole strategy, and
// the pod waits there. It returns ErrFull only if the whole strategy has no seat, either.
func (s *Strategy) Admit(held Held) (Seat, error) {
	seat, err := s.Next(held)
	if err != nil && s.short != nil {
		return s.short.full.Next(held)
	}
	return seat, err
}
