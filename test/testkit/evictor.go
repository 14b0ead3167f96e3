package testkit

import (
	"context"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/world"
)

// NoOwners finds no owner. A pod whose owner is not found may be evicted.
func NoOwners(context.Context, string, world.Ref) (*world.Workload, error) { return nil, nil }

// Evictor returns an evictor as a process has it, which evicts one pod a second.
func Evictor(c client.Client, clock clock.PassiveClock, set *metrics.Set) *evict.Evictor {
	return evict.New(c, evict.Rules{Lost: successor.New(c, NoOwners).Lost, Paused: func(context.Context, string) bool { return false }}, clock, 1, set)
}
