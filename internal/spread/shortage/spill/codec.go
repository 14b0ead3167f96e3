package spill

import (
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// FromPoolState returns the state of a strategy's pools or cells as the API has it. Pools are identified by their nodes,
// because a name may be a place in a list. State may be nil.
func FromPoolState(state *stowage.PoolState, s *sequence.Strategy) []Pool {
	of := s.Cells()
	pools := make([]Pool, of.Len())
	for i := range pools {
		pools[i].Phase = Available
	}
	if state == nil {
		return pools
	}
	for j := range state.Pools {
		r := &state.Pools[j]
		for i := range pools {
			if at := of.At(i); !Recorded(s, at, nodeset.Set{Labels: r.NodeLabel, Expressions: r.MatchExpressions}, r.Domain) {
				continue
			}
			pools[i] = Pool{Phase: Phase(r.Phase), Epoch: r.Epoch, Since: r.Since.Time, Max: r.Max, LeftOut: r.LeftOut, Tries: int(r.Tries), Step: r.Step, Early: r.Early}
			if r.NextProbe != nil {
				pools[i].Next = r.NextProbe.Time
			}
		}
	}
	return pools
}

// Recorded reports whether an entry of a PoolState about some nodes, and a domain of them, is about a cell.
func Recorded(s *sequence.Strategy, at sequence.Cell, nodes nodeset.Set, domain string) bool {
	return domain == s.DomainName(at.Domain) && nodes.Equal(s.Nodes(at.Pool, -1))
}

// ToPoolRooms returns the state of a strategy's pools or cells as the API has it, or nil if all are available.
func ToPoolRooms(pools []Pool, s *sequence.Strategy) []stowage.PoolRoom {
	var out []stowage.PoolRoom
	short := false
	for i := range pools {
		p, at := &pools[i], s.Cells().At(i)
		if p.Epoch == 0 || p.Since.IsZero() || p.Phase == Unsuitable {
			continue
		}
		short = short || p.Phase != Available
		r := stowage.PoolRoom{
			Name: s.Pool(at.Pool).Name, Domain: s.DomainName(at.Domain), NodeLabel: maps.Clone(s.Pool(at.Pool).Labels), MatchExpressions: s.Pool(at.Pool).Expressions, Phase: stowage.PoolPhase(p.Phase), Epoch: p.Epoch,
			Since: seconds(p.Since), Max: p.Max, LeftOut: p.LeftOut, Tries: int32(p.Tries), Step: p.Step, Early: p.Early,
		}
		if !p.Next.IsZero() {
			next := seconds(p.Next)
			r.NextProbe = &next
		}
		out = append(out, r)
	}
	if !short {
		return nil
	}
	return out
}

// seconds is a time as the API keeps it.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// Shortage is a pool or cell without room, for people.
type Shortage struct {
	Pool   string
	Domain string // empty for a pool
	State  Pool
}

// Shortages returns the pools and cells without room.
func Shortages(pools []Pool, s *sequence.Strategy) (out []Shortage) {
	for i := range pools {
		if pools[i].closed() && pools[i].Phase != Unsuitable {
			out = append(out, shortageOf(s, s.Cells().At(i), pools[i]))
		}
	}
	return out
}

// Place names the pool, with the domain.
func (s Shortage) Place() string {
	if s.Domain == "" {
		return s.Pool
	}
	return s.Pool + " in " + s.Domain
}

// shortageOf is a cell with its state.
func shortageOf(s *sequence.Strategy, at sequence.Cell, state Pool) Shortage {
	return Shortage{s.Pool(at.Pool).Name, s.DomainName(at.Domain), state}
}

// PlaceOf names a cell.
func PlaceOf(s *sequence.Strategy, at sequence.Cell) string { return shortageOf(s, at, Pool{}).Place() }

func (s Shortage) String() string {
	if s.State.Phase == Probing {
		return fmt.Sprintf("pool %s is tried again since %s, with at most %d pod(s)", s.Place(), s.State.Since.UTC().Format(time.RFC3339), s.State.Max)
	}
	return fmt.Sprintf("pool %s has had no room since %s, and keeps at most %d pod(s)", s.Place(), s.State.Since.UTC().Format(time.RFC3339), s.State.Max)
}

// NextTry says when the pool is tried again, after a comma, or nothing while it is being tried.
func (s Shortage) NextTry() string {
	if s.State.Phase != Exhausted {
		return ""
	}
	return ", and it is tried again at " + s.State.Next.UTC().Format(time.RFC3339)
}
