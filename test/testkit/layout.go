package testkit

import (
	"strconv"

	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Layout returns the layout of a strategy for a workload.
func Layout(s *sequence.Strategy, of layout.Workload) *layout.Layout {
	written, err := layout.New(s)
	if err != nil {
		panic(err)
	}
	return written.For(of, nil)
}

// Over returns a strategy with its pools divided over domains of some weights: z0, z1 and so on.
func Over(s *sequence.Strategy, weights ...int64) *sequence.Strategy {
	across := sequence.Across{Key: "zone"}
	for i, weight := range weights {
		across.Domains = append(across.Domains, sequence.Domain{Value: "z" + strconv.Itoa(i), Weight: weight})
	}
	over, err := s.WithDomains(across)
	if err != nil {
		panic(err)
	}
	return over
}
