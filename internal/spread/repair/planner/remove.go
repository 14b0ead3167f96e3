package planner

import (
	"slices"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// removeEarly returns a pod to remove that was created before its policy and that nobody uses yet. It is not ready, or
// its whole workload is young. One without a seat comes first, then one in a pool that has too many. Pods with an ordinal of
// their own stay.
func (s *State) removeEarly(p *Plan) *Removal {
	outside := func(pod *Pod) bool { return pod.Seat.Pool < 0 && pod.Ours && pod.NodePool < 0 }
	recreate := s.first(func(pod *Pod) bool { return s.early(pod) && outside(pod) }, func(pod, best *Pod) bool { return best.Ready && !pod.Ready })
	if recreate >= 0 && p.Unseated > 0 {
		if to, ok := s.successor(p.Counts, &s.Pods[recreate]); ok && s.takes(to) {
			return s.removal(recreate, Unseated, to)
		}
	}
	over, tooMany := s.mostOver(p)
	if !tooMany {
		return nil
	}
	if evict := s.first(func(pod *Pod) bool { return s.early(pod) && pod.Seat.Pool == over && !pod.Claimed }, s.goesBefore); evict >= 0 {
		if to, ok := s.another(p.Counts, over); ok {
			return s.removal(evict, Misplaced, to)
		}
	}
	return nil
}

// first returns the index of the pod that comes before all others, of those that may go, or -1.
func (s *State) first(may func(*Pod) bool, before func(pod, best *Pod) bool) int {
	best := -1
	for i := range s.Pods {
		if pod := &s.Pods[i]; may(pod) && (best < 0 || before(pod, &s.Pods[best])) {
			best = i
		}
	}
	return best
}

// evictsEarly reports whether pods may be evicted that were created before their policy and are not in use yet.
func (s *State) evictsEarly() bool {
	return s.Mode == stowage.RepairRecreate || s.EvictEarly && s.Mode == stowage.RepairAdopt
}

// GoesEarly reports whether a pod may be evicted because it was created before its policy and is not in use yet.
func (s *State) GoesEarly(pod *Pod) bool { return s.evictsEarly() && s.early(pod) }

// early reports whether a pod was created before its policy and is not in use yet.
func (s *State) early(pod *Pod) bool {
	unused := !pod.Ready || s.Young
	return pod.BeforePolicy && unused && pod.OwnRank == 0 && pod.Held == ""
}

// goesBefore reports whether a pod of a pool with too many goes before another one: one that is not ready first, then the highest ordinal.
func (s *State) goesBefore(pod, other *Pod) bool {
	if pod.Ready != other.Ready {
		return !pod.Ready
	}
	return pod.Seat.Ordinal > other.Seat.Ordinal
}

// recreate returns a pod without a seat that is older than one to which the webhook gave a seat. It prefers one that
// waits for a node to one that runs, and of those the youngest. Pods that run stay while another is not ready, while
// the workload rolls out, and where the pool of their successor has no room. A pod that came when every pool had its maximum
// stays where it runs, unless eviction was asked for.
func (s *State) recreate(p *Plan) *Removal {
	if !s.proven() {
		return nil
	}
	ready := !slices.ContainsFunc(s.Pods, func(pod Pod) bool { return !pod.Ready })
	best := s.first(func(pod *Pod) bool { return s.lacksSeat(pod) && s.mayRecreate(p, pod, ready) }, recreatedBefore)
	if best < 0 {
		return nil
	}
	to, ok := s.successor(p.Counts, &s.Pods[best])
	r := s.removal(best, Unseated, to)
	r.NeedsRoom = r.NeedsRoom && ok
	return r
}

// proven reports whether the webhook was reached by a pod that is as new as each one without a seat. Otherwise their successors might bypass it, too.
func (s *State) proven() bool {
	last := s.lastSeated()
	// Times are whole seconds. A pod of the same second may be the later one; then its removal helps nothing, and no other follows.
	return !last.IsZero() && !slices.ContainsFunc(s.Pods, func(pod Pod) bool { return s.lacksSeat(&pod) && pod.Created.After(last) })
}

// Unproven returns how many pods without a seat would be recreated if the webhook had given a seat to a later pod, and the first of them by name.
func (s *State) Unproven() (pods int64, first string) {
	if s.Mode != stowage.RepairRecreate || s.Keep || s.proven() {
		return 0, ""
	}
	for i := range s.Pods {
		pod := &s.Pods[i]
		if stays := pod.Held != "" || pod.NodePool >= 0 || pod.Foreign || pod.Full && pod.Running; stays || !s.lacksSeat(pod) {
			continue
		}
		if pods++; first == "" || pod.Name < first {
			first = pod.Name
		}
	}
	return pods, first
}

// lastSeated returns when the last pod came that reached the webhook, or zero.
func (s *State) lastSeated() (last time.Time) {
	if !s.Reached.IsZero() {
		last = s.Reached.Add(-time.Second) // times are whole seconds, and another workload's pod proves nothing for its own second
	}
	for i := range s.Pods {
		if pod := &s.Pods[i]; (pod.Claimed || pod.Full) && pod.Created.After(last) {
			last = pod.Created
		}
	}
	return last
}

// mayRecreate reports whether a pod without a seat may go now. Ready says that all pods of the workload are.
func (s *State) mayRecreate(p *Plan, pod *Pod, ready bool) bool {
	former := pod.Foreign && (!pod.DomainRemoved || pod.NodePool != NoNode)
	stays := pod.Held != "" || pod.NodePool >= 0 || former
	if beyond := pod.Full && pod.Running; stays || beyond && !s.Evict {
		return false
	}
	if pod.NodePool != OtherNode {
		return true
	}
	if bound := pod.OwnRank > 0 && pod.Volume; bound || !ready || s.RollingOut { // its volume may be where it runs
		return false
	}
	to, ok := s.successor(p.Counts, pod)
	return ok && s.takes(to)
}

// recreatedBefore reports whether a pod without a seat goes before another one.
func recreatedBefore(pod, other *Pod) bool {
	if waits, waited := pod.NodePool == NoNode, other.NodePool == NoNode; waits != waited {
		return waits
	}
	return pod.NodePool == other.NodePool && pod.Created.After(other.Created)
}

// successor returns the pool that gets the successor of a pod, and false if none does. A seat that the pod holds is no longer
// in the counts.
func (s *State) successor(counts []int64, pod *Pod) (pool int, ok bool) {
	if pod.OwnRank > 0 {
		own, ok := s.own(pod)
		return own.Pool, ok
	}
	next, err := s.Layout.Next(counted(counts))
	return next.Pool, err == nil
}

// evict returns a pod that is to go to another pool, if another pool gets the next pod and has a node for it. It
// prefers a pod whose pool is no more; then the highest ordinal of the pool that has most too many. All pods must be
// ready.
func (s *State) evict(p *Plan) *Removal {
	if s.RollingOut || int64(len(s.Pods)) != s.Replicas || slices.ContainsFunc(s.Pods, func(pod Pod) bool { return !pod.Ready }) {
		return nil
	}
	for i := range s.Pods {
		pod := &s.Pods[i]
		switch {
		case pod.Held != "":
		case pod.OwnRank > 0:
			if to, ok := s.comesBack(p, pod); ok {
				return s.removal(i, Misplaced, to)
			}
		case pod.Foreign && pod.Seat.Pool < 0:
			if to, ok := s.successor(p.Counts, pod); ok && s.takes(to) {
				return s.removal(i, Misplaced, to)
			}
		}
	}
	over, tooMany := s.mostOver(p)
	best := -1
	if tooMany {
		best = s.first(func(pod *Pod) bool { return pod.Held == "" && pod.OwnRank == 0 && pod.Seat.Pool == over },
			func(pod, best *Pod) bool { return pod.Seat.Ordinal > best.Seat.Ordinal })
	}
	if best < 0 {
		return s.evictFromCell(p)
	}
	to, ok := s.another(p.Counts, over)
	if !ok {
		return nil
	}
	return s.removal(best, Misplaced, to)
}

// comesBack returns the pool in which a pod with an ordinal of its own comes back, if it is to leave where it is and there is room.
func (s *State) comesBack(p *Plan, pod *Pod) (to int, ok bool) {
	own, ok := s.own(pod)
	if !ok || !s.takes(own.Pool) || slices.Contains(s.NoRoom, s.Layout.Cell(own)) {
		return 0, false
	}
	switch {
	case pod.Foreign:
		return own.Pool, true
	case pod.Seat.Pool >= 0:
		return own.Pool, own.Pool != pod.Seat.Pool || !pod.Volume && s.inOtherDomain(p, pod, own)
	}
	return own.Pool, s.lacksSeat(pod) && pod.NodePool >= 0 && own.Pool != pod.NodePool && !pod.Volume
}

// evictFromCell returns a pod of a domain that has too many of its pool's pods, while no pool has too many or too few. Its successor
// gets the lowest ordinal that is left out, which is in another domain.
func (s *State) evictFromCell(p *Plan) *Removal {
	if p.DomainSurplus == 0 || !p.Balanced() {
		return nil
	}
	for pool, count := range p.Counts {
		last := s.first(func(pod *Pod) bool {
			movable := pod.OwnRank == 0 && pod.Held == ""
			return movable && pod.Seat.Pool == pool && pod.Seat.Ordinal > count && s.crowded(p, pod)
		}, func(pod, best *Pod) bool { return pod.Seat.Ordinal > best.Seat.Ordinal })
		if last < 0 || !s.takes(pool) {
			continue
		}
		if r := s.removal(last, Misplaced, pool); r.Domain != s.Pods[last].Domain {
			return r
		}
	}
	return nil
}

// mostOver returns the pool that has most too many pods, and false if none has. Pools without room do not count, and neither do those whose
// pods are all held.
func (s *State) mostOver(p *Plan) (over int, tooMany bool) {
	for i := range p.Counts {
		if s.Short != nil && s.Short[i] || s.holds(i) {
			continue
		}
		surplus := p.Counts[i] - p.Targets[i]
		if surplus > 0 && (!tooMany || surplus > p.Counts[over]-p.Targets[over]) {
			over, tooMany = i, true
		}
	}
	return over, tooMany
}

// holds reports whether a pool has pods, and each of them is held.
func (s *State) holds(pool int) bool {
	held := false
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.Seat.Pool == pool {
			if held = pod.Held != ""; !held {
				return false
			}
		}
	}
	return held
}

// another returns the pool that gets the successor of a pod that leaves a pool. It returns false if that is the same
// pool or one without room.
func (s *State) another(counts []int64, pool int) (to int, ok bool) {
	counts = slices.Clone(counts)
	counts[pool]--
	next, err := s.Layout.Next(counted(counts))
	return next.Pool, err == nil && next.Pool != pool && s.takes(next.Pool)
}

// Next returns the seat and the domain that a pod's successor gets. The seat that the pod holds is free then. It returns an error if there is none.
func (s *State) Next(pod int) (seat sequence.Seat, domain int, err error) {
	t := newTable(s)
	if of := s.Pods[pod].Seat; of.Pool >= 0 {
		delete(t[of.Pool].held, of.Ordinal)
	}
	if seat, err = s.Layout.Next(t); err == nil {
		domain = s.Layout.DomainOf(seat)
	}
	return seat, domain, err
}

// Count implements [sequence.Held].
func (t table) Count(pool int) int64 { return int64(len(t[pool].held)) }

// LowestFree implements [sequence.Held].
func (t table) LowestFree(pool int) int64 {
	o := int64(1)
	for t[pool].held[o] {
		o++
	}
	return o
}

// counted shows counts to a strategy.
type counted []int64

func (c counted) Count(pool int) int64      { return c[pool] }
func (c counted) LowestFree(pool int) int64 { return c[pool] + 1 }
