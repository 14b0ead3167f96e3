package capability

import (
	"context"
	"time"
)

// discoverEvery is the time between two looks whether the API server has a kind.
const discoverEvery = 10 * time.Second

// WhenServed has kinds watched if the API server has them: follow reports whether it has. An older version of Stowage may have installed its own
// kinds, and a kind that is missing must not keep a process from starting. What it returns watches the kinds once the API server has them.
func (h *Host) WhenServed(ctx context.Context, kinds string, follow func(context.Context) (served bool, err error)) (run func(context.Context) error, err error) {
	served, err := follow(ctx)
	if err != nil || served {
		return func(context.Context) error { return nil }, err
	}
	log := h.Log.WithName("kinds").WithValues("kinds", kinds)
	log.Info("the API server does not have these kinds, so there are no objects of them; install the CustomResourceDefinitions of this version")
	return func(ctx context.Context) error {
		ticker := h.Clock.NewTicker(discoverEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C():
			}
			switch served, err := follow(ctx); {
			case err != nil:
				log.Error(err, "objects of these kinds are not watched; this is tried again")
			case served:
				log.Info("the API server has these kinds now")
				return nil
			}
		}
	}, nil
}
