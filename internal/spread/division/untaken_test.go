package division

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Other pools take the pods that wait only if they have seats, and the rules let them.
func TestUntaken(t *testing.T) {
	pool := func(name string, weight int64, edit func(*sequence.Pool)) sequence.Pool {
		p := sequence.Pool{Name: name, Labels: map[string]string{"p": name}, Weight: weight}
		if edit != nil {
			edit(&p)
		}
		return p
	}
	limited := func(p *sequence.Pool) { p.Max = 2 }
	for name, tc := range map[string]struct {
		other     sequence.Pool
		rule      spill.Rule
		exhausted string // pools without room
		leftOut   int64
		want      string
	}{
		"the other pool takes them":            {pool("od", 20, nil), spill.Rule{After: time.Minute}, "s", 0, ""},
		"an overflow takes them":               {pool("od", 0, func(p *sequence.Pool) { p.Overflow = 1 }), spill.Rule{After: time.Minute}, "s", 0, ""},
		"no weight and no overflow":            {pool("od", 0, func(p *sequence.Pool) { p.Base = 1 }), spill.Rule{After: time.Minute}, "s", 0, "pool od has weight 0 and no overflow"},
		"it has its maximum":                   {pool("od", 20, limited), spill.Rule{After: time.Minute}, "s", 0, "pool od has its maximum"},
		"it has no room, either":               {pool("od", 20, nil), spill.Rule{After: time.Minute}, "so", 0, "no pool has room"},
		"maxSpill is reached":                  {pool("od", 20, nil), spill.Rule{After: time.Minute, MaxSpill: new(intstr.FromInt32(2))}, "s", 3, "maxSpill of pool spot lets others take no more"},
		"nobody asked for it":                  {pool("od", 0, nil), spill.Rule{}, "s", 0, ""},
		"all have room":                        {pool("od", 0, nil), spill.Rule{After: time.Minute}, "", 0, ""},
		"few pods fit in what the others have": {pool("od", 20, func(p *sequence.Pool) { p.Max = 9 }), spill.Rule{After: time.Minute}, "s", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := sequence.New([]sequence.Pool{tc.other, pool("spot", 80, nil)}, sequence.EarlierWins)
			if err != nil {
				t.Fatal(err)
			}
			state := &stowage.PoolState{}
			for i, letter := range []string{"o", "s"} {
				room := stowage.PoolRoom{Name: s.Pool(i).Name, NodeLabel: s.Pool(i).Labels, Phase: stowage.PoolPhase(spill.Available), Since: metav1.Now()}
				if len(tc.exhausted) > 0 && (tc.exhausted == "so" || letter == tc.exhausted) {
					room.Phase, room.Max, room.LeftOut = stowage.PoolPhase(spill.Exhausted), 1, tc.leftOut
				}
				state.Pools = append(state.Pools, room)
			}
			l := testkit.Layout(s, layout.Workload{})
			gaps, _ := Gaps(l, state, []spill.Rule{tc.rule, tc.rule})
			if got := Untaken(l, gaps, 10); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
