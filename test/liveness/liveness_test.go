// Package liveness tests that a pin is a means and never a trap, on a real control plane: see "A pin is a means and never a trap" in the design. A pod
// may wait for a node only where its cell is full, where it would wait without our pin, too, or where the author of its pools contradicts himself.
//
// Random clusters with random workloads come to rest one after the other. Then kube-scheduler's own filters say which nodes would take the pods
// that wait if they had no pin. The situations beside them are those that went wrong once. `make test-liveness` runs both.
package liveness

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stowage-dev/stowage/test/suite"
)

var (
	seeds = flag.Int("seeds", 3, "how many random clusters")
	seed  = flag.Uint64("seed", 1, "of the first cluster; the others follow")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(suite.Run(false, func(context.Context) (int, error) {
		path := filepath.Join(suite.Repo, "bin", "scheduler-filters")
		if _, err := os.Stat(path); err != nil {
			return 0, fmt.Errorf("the filters are not built: run `make bin/scheduler-filters`: %w", err)
		}
		end, err := startFilters(path)
		if err != nil {
			return 0, err
		}
		defer end()
		return m.Run(), nil
	}))
}

// TestSeeds has random clusters come to rest, changes each of them once, and has it come to rest again.
func TestSeeds(t *testing.T) {
	count := *seeds
	if testing.Short() {
		count = min(count, 2)
	}
	for i := range count {
		t.Run(fmt.Sprintf("seed %d", *seed+uint64(i)), func(t *testing.T) {
			w := newWorld(t, *seed+uint64(i))
			w.fill()
			w.rest("at first", glimpsed)
			w.change()
			w.rest("after "+w.changed, watched)
			t.Logf("%s; of %d pods %d wait, all with a reason: %v", w.describe(), w.pods, w.waiting, w.reasons)
		})
	}
}
