package preview

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// Exhaust makes all decisions that follow as if pools had no room. The numbers, by the names of the pools, are for
// how many pods of each workload they still have room. A name with a slash is that of a pool and of one of its domains. Replicas is how many pods the workloads are to have, or -1 for
// what the manifests say. The warnings are about workloads whose pods would wait; it is an error if no workload has a
// pool of a name.
func (p *Preview) Exhaust(ctx context.Context, pools map[string]int64, replicas int32) (warnings []string, err error) {
	e := exhaustion{pools: pools, unknown: maps.Clone(pools), replicas: replicas}
	for i := range p.in.Workloads {
		w := &p.in.Workloads[i]
		owner, _ := w.owner()
		found, err := p.policies.Find(ctx, policy.Pod{Namespace: w.Namespace, Owner: world.RefOf(&owner), Annotations: w.template.Annotations})
		if err != nil {
			return nil, err
		}
		if found == nil || found.Layout == nil || found.Root == nil {
			continue
		}
		rooms := spill.ToPoolRooms(e.states(w, found), found.Whole())
		if rooms == nil {
			continue
		}
		if w.Kind == "StatefulSet" || w.Kind == "Job" {
			e.warnings = append(e.warnings, fmt.Sprintf("%s: its pods are shown in their own pools; those of a StatefulSet move once they have waited, and those of a Job wait", w))
		}
		p.in.PoolState(w.Namespace, found.Root.UID).Pools = rooms
	}
	if len(e.unknown) > 0 {
		return nil, fmt.Errorf("no workload of the input has a pool %s", slices.Sorted(maps.Keys(e.unknown))[0])
	}
	*p = *New(p.in, p.settings)
	return e.warnings, nil
}

// exhaustion is what [Preview.Exhaust] is asked to do, and what it says.
type exhaustion struct {
	pools, unknown map[string]int64 // all that are named, and those of them that no workload has so far
	replicas       int32
	warnings       []string
}

// states returns the states of a workload's cells. A pool whose pods would wait is left as it is.
func (e *exhaustion) states(w *Workload, found *policy.Policy) []spill.Pool {
	of := found.Cells()
	states := make([]spill.Pool, of.Len())
	for n := range found.Len() {
		first := of.Index(sequence.Cell{Pool: n})
		cells := states[first : first+of.OfPool()]
		closed := e.closeCells(found, n, cells)
		switch {
		case closed > 0 && (found.Spill == nil || found.Spill[n].After == 0):
			e.warnings = append(e.warnings, fmt.Sprintf("%s: pool %s has no spill, so the pods for which it has no room wait", w, found.Pool(n).Name))
			clear(cells)
		case closed == len(cells):
			leftOut := found.Spill[n].LeftOut(found.Whole(), n, spill.MergeCells(states, of)[n].Max, int64(w.replicasOr(e.replicas)))
			for k := range cells {
				cells[k].LeftOut = leftOut
			}
		}
	}
	return states
}

// closeCells notes for how many pods the cells of a pool have room, if they are named, and returns how many are.
func (e *exhaustion) closeCells(found *policy.Policy, pool int, cells []spill.Pool) (closed int) {
	name := found.Pool(pool).Name
	whole, all := e.pools[name]
	delete(e.unknown, name)
	for k := range cells {
		limit, named := whole, all
		if found.Homes() != nil {
			limit = found.Homes().Count(pool, k, whole)
			cell := name + "/" + found.DomainName(k)
			if most, one := e.pools[cell]; one {
				limit, named = most, true
				delete(e.unknown, cell)
			}
		}
		if named {
			cells[k] = spill.Pool{Phase: spill.Exhausted, Epoch: 1, Since: time.Unix(1, 0), Max: limit} // any time will do
			closed++
		}
	}
	return closed
}

// ParseExhausted returns how many pods pools without room have room for, by name.
func ParseExhausted(texts []string) (map[string]int64, error) {
	out := map[string]int64{}
	if texts != nil && len(texts) == 0 { // the flag is there, without a value
		texts = []string{""}
	}
	for _, text := range texts {
		name, pods, given := strings.Cut(text, "=")
		if !given {
			pods = "0"
		}
		n, err := strconv.ParseInt(pods, 10, 32)
		if name == "" || err != nil || n < 0 {
			return nil, fmt.Errorf("--exhausted is %q; it must be a pool, as NAME or NAME=PODS", text)
		}
		out[name] = n
	}
	return out, nil
}
