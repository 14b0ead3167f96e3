package division

import (
	"fmt"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// Gaps returns the seats that pools without room do not give, by what is recorded of a workload, which may be nil, and the rules of each pool. Some says
// whether a pool has no room.
func Gaps(l *layout.Layout, state *stowage.PoolState, rules []spill.Rule) (gaps []sequence.Gap, some bool) {
	s := l.Whole()
	if rules == nil {
		return make([]sequence.Gap, s.Len()), false
	}
	cells := spill.FromPoolState(state, s)
	for i := range cells {
		if rules[s.Cells().At(i).Pool].After == 0 {
			cells[i] = spill.Pool{Phase: spill.Available}
		}
	}
	gaps = spill.Gaps(spill.MergeCells(cells, s.Cells()))
	for i := range gaps {
		some = some || gaps[i].Count > 0
	}
	return gaps, some
}

// Untaken says why other pools do not take all the pods that wait for pools without room, of n pods of one owner. It is empty where they do.
func Untaken(l *layout.Layout, gaps []sequence.Gap, n int64) string {
	s := l.Whole()
	cut := s.Without(gaps)
	waits := n > cut.Capacity()
	for i := range gaps {
		if g := &gaps[i]; g.Count > 0 && cut.Target(i, n) > g.From {
			if g.Count != sequence.All {
				return "maxSpill of pool " + s.Pool(i).Name + " lets others take no more"
			}
			waits = true
		}
	}
	if !waits {
		return ""
	}
	var why []string
	for i := range gaps {
		switch pool := s.Pool(i); {
		case gaps[i].Count > 0:
		case !l.Suits(i):
			why = append(why, "no pod can run in pool "+pool.Name)
		case pool.Weight == 0 && pool.Overflow == 0:
			why = append(why, fmt.Sprintf("pool %s has weight 0 and no overflow", pool.Name))
		default:
			why = append(why, fmt.Sprintf("pool %s has its maximum", pool.Name))
		}
	}
	if len(why) == 0 {
		return "no pool has room"
	}
	return strings.Join(why, ", and ")
}
