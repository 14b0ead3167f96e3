package testkit

import (
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/successor"
)

// Evictor returns an evictor as a process has it, which evicts one pod a second.
func Evictor(c client.Client, clock clock.PassiveClock, set *metrics.Set) *evict.Evictor {
	return evict.New(c, successor.New(c).Lost, clock, 1, set)
}
