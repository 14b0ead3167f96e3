package preview

import (
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
