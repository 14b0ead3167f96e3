package seats

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/leader"
)

// sweepEvery is how often books that nobody would miss are forgotten, and ledgers without claims removed.
const sweepEvery = 15 * time.Second

// Collector is the leader's part: it removes SeatLedgers without claims, and puts back the key if its Secret was deleted.
type Collector struct {
	Seats    *Service
	Uncached client.Client
	// KeySecret holds the key that signs seats.
	KeySecret client.ObjectKey
	Log       logr.Logger
}

var _ leader.Controller = &Collector{}

// Name implements [leader.Controller].
func (*Collector) Name() string { return "seats" }

// Register implements [leader.Controller].
func (c *Collector) Register(t *leader.Term) error {
	t.Go(func(ctx context.Context) {
		// Without its pods, every ledger would look as if nobody had a seat.
		if cache.WaitForNamedCacheSyncWithContext(ctx, c.Seats.Pods().HasSynced) {
			t.Every(sweepEvery, c.collect)
		}
	})
	return nil
}

func (c *Collector) collect(ctx context.Context) {
	c.Seats.Sweep(ctx, true)
	switch err := keepKey(ctx, c.Uncached, c.KeySecret, c.Seats.Pods().Key); {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, errKeyChanged):
		c.Log.Error(err, "the key that signs seats is not safe", "namespace", c.KeySecret.Namespace, "kind", "Secret", "name", c.KeySecret.Name)
	default: // it is tried again after sweepEvery
		c.Log.Error(err, "the Secret of the key that signs seats was not checked", "namespace", c.KeySecret.Namespace, "kind", "Secret", "name", c.KeySecret.Name)
	}
}
