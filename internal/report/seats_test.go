package report

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Each of the most pools that a strategy may have has a colour of its own.
func TestColorsDoNotRepeat(t *testing.T) {
	seen := map[color]int{}
	for pool := range sequence.MaxPools {
		c := colorOf(pool)
		if other, ok := seen[c]; ok {
			t.Errorf("pools %d and %d are both %s", other, pool, c)
		}
		seen[c] = pool
	}
}

// A seat shows what is in it, and a name cannot leave its text.
func TestSeatStates(t *testing.T) {
	var out strings.Builder
	err := SVG(&out, []Seats{{Title: "Deployment a/<b>", Columns: []Column{{
		Name: "pool a", Count: "2 of 3 pods", Domain: -1,
		Runs: []Run{{State: Held, Count: 1, Numbers: []int{1}}, {State: Waiting, Count: 1}, {State: Missing, Count: 1}, {State: Extra, Count: 1}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	boxes := strings.Split(out.String(), `rx="3" `)[1:]
	if len(boxes) != 4 {
		t.Fatalf("%d boxes", len(boxes))
	}
	for i, look := range []string{`fill="#0072b2"/>`, `stroke="#0072b2" stroke-width="2"`, `stroke-dasharray`, `fill="#0072b2" stroke="#cf222e"`} {
		if !strings.HasPrefix(boxes[i], look) && !strings.Contains(strings.SplitN(boxes[i], "/>", 2)[0], look) {
			t.Errorf("seat %d is %s, want %s", i, boxes[i], look)
		}
	}
	for _, dark := range []string{"@media (prefers-color-scheme: dark)", `<rect class="ground"`, `<rect class="held"`, `<rect class="waiting"`, `<text fill="#fff"`} {
		if !strings.Contains(out.String(), dark) {
			t.Errorf("%s is not in the picture", dark)
		}
	}
	if strings.Contains(out.String(), "<b>") {
		t.Error("a name is not escaped")
	}
}

// However many pods there are, a picture has about as many boxes as a page takes, and none of the states is lost.
func TestSeatsOfManyPods(t *testing.T) {
	var out strings.Builder
	if err := SVG(&out, []Seats{{Columns: []Column{{Domain: -1, Runs: Runs(math.MaxInt32-1, math.MaxInt32-1, math.MaxInt32, []int{1})}}}}); err != nil {
		t.Fatal(err)
	}
	if boxes, missing := strings.Count(out.String(), `rx="3"`), strings.Count(out.String(), "stroke-dasharray"); boxes > mostBoxes+1 || missing != 1 {
		t.Errorf("%d boxes, %d of them are missing", boxes, missing)
	}
}

// What a pool has and should have gives the states of its seats.
func TestRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		pods, onNodes, target int64
		want                  []Run
	}{
		"as it should be":  {2, 2, 2, []Run{{Held, 2, []int{1, 4}}}},
		"a pod waits":      {2, 1, 2, []Run{{Held, 1, []int{1}}, {Waiting, 1, []int{4}}}},
		"one is missing":   {1, 1, 2, []Run{{Held, 1, []int{1}}, {Missing, 1, []int{4}}}},
		"two are too many": {4, 4, 2, []Run{{Held, 2, []int{1, 4}}, {Extra, 2, []int{}}}},
		"nothing":          {0, 0, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Runs(tc.pods, tc.onNodes, tc.target, []int{1, 4})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
