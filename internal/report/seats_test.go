package report

import (
	"strings"
	"testing"

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
		Name: "pool a", Count: "2 of 3 pods", Domain: -1, Boxes: []Box{{1, Held}, {2, Waiting}, {3, Missing}, {0, Extra}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	boxes := strings.Split(out.String(), `rx="3" `)[1:]
	if len(boxes) != 4 {
		t.Fatalf("%d boxes", len(boxes))
	}
	for i, look := range []string{`fill="#0072b2"/>`, `fill="#fff" stroke="#0072b2"`, `stroke-dasharray`, `fill="#0072b2" stroke="#cf222e"`} {
		if !strings.HasPrefix(boxes[i], look) && !strings.Contains(strings.SplitN(boxes[i], "/>", 2)[0], look) {
			t.Errorf("seat %d is %s, want %s", i, boxes[i], look)
		}
	}
	if strings.Contains(out.String(), "<b>") {
		t.Error("a name is not escaped")
	}
}
