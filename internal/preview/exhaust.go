package preview

import (
	"cmp"
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
	unknown := maps.Clone(pools)
	since := time.Unix(1, 0) // any time will do
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
		of := found.Cells()
		states := make([]spill.Pool, of.Len())
		at := func(pool, domain int) *spill.Pool {
			return &states[of.Index(sequence.Cell{Pool: pool, Domain: domain})]
		}
		for n := range found.Len() {
			name := found.Pool(n).Name
			whole, ok := pools[name]
			delete(unknown, name)
			closed := 0
			for k := range of.OfPool() {
				limit, some := whole, ok
				if found.Homes() != nil {
					limit = found.Homes().Count(n, k, whole)
					cell := name + "/" + found.DomainName(k)
					if most, named := pools[cell]; named {
						limit, some = most, true
						delete(unknown, cell)
					}
				}
				if some {
					*at(n, k) = spill.Pool{Phase: spill.Exhausted, Epoch: 1, Since: since, Max: limit}
					closed++
				}
			}
			switch {
			case closed > 0 && (found.Spill == nil || found.Spill[n].After == 0):
				warnings = append(warnings, fmt.Sprintf("%s: pool %s has no spill, so the pods for which it has no room wait", w, name))
				for k := range of.OfPool() {
					*at(n, k) = spill.Pool{}
				}
			case closed == of.OfPool():
				maximum := spill.MergeCells(states, of)[n].Max
				for k := range of.OfPool() {
					at(n, k).LeftOut = found.Spill[n].LeftOut(found.Whole(), n, maximum, int64(w.replicasOr(replicas)))
				}
			}
		}
		rooms := spill.ToPoolRooms(states, found.Whole())
		if rooms == nil {
			continue
		}
		if w.Kind == "StatefulSet" || w.Kind == "Job" {
			warnings = append(warnings, fmt.Sprintf("%s: its pods are shown in their own pools; those of a StatefulSet move once they have waited, and those of a Job wait", w))
		}
		p.in.PoolState(w.Namespace, found.Root.UID).Pools = rooms
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("no workload of the input has a pool %s", slices.Sorted(maps.Keys(unknown))[0])
	}
	*p = *New(p.in, p.settings)
	return warnings, nil
}

// ParseExhausted returns how many pods pools without room have room for, by name.
func ParseExhausted(texts []string) (map[string]int64, error) {
	out := map[string]int64{}
	for _, text := range texts {
		name, pods, given := strings.Cut(text, "=")
		n, err := strconv.ParseInt(cmp.Or(pods, "0"), 10, 32)
		if name == "" || err != nil || n < 0 || given && pods == "" {
			return nil, fmt.Errorf("--exhausted is %q; it must be a pool, as NAME or NAME=PODS", text)
		}
		out[name] = n
	}
	return out, nil
}
