package seats

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// Follower tells the books of pods and of SeatLedgers. A process that admits pods does so always. One that does not needs
// books only while it leads: a replica that stands by reads no pods.
type Follower struct {
	Seats     *Service
	Pods      rest.Interface // of the group of pods
	Informers crcache.Informers
}

var _ leader.Controller = &Follower{}

// Name implements [leader.Controller].
func (*Follower) Name() string { return "follower" }

// Always returns what a process runs that admits pods.
func (f *Follower) Always(ctx context.Context) ([]func(context.Context) error, error) {
	informer, err := f.Informers.GetInformer(ctx, &stowage.SeatLedger{})
	if err != nil {
		return nil, fmt.Errorf("watch SeatLedgers: %w", err)
	}
	if _, err := informer.AddEventHandler(f.handler()); err != nil {
		return nil, fmt.Errorf("watch SeatLedgers: %w", err)
	}
	return []func(context.Context) error{
		func(ctx context.Context) error {
			f.Seats.Pods().Run(ctx, f.Pods)
			return nil
		},
		f.Seats.Run,
	}, nil
}

// Register implements [leader.Controller].
func (f *Follower) Register(t *leader.Term) error {
	f.Seats.reset() // a controller whose term ended later may have asked for a book
	if err := t.Watch(f.Informers, &stowage.SeatLedger{}, f.handler()); err != nil {
		return err
	}
	t.AtEnd(func() {
		_ = f.Informers.RemoveInformer(context.WithoutCancel(t.Context()), &stowage.SeatLedger{}) // it fails for unknown kinds alone
		f.Seats.reset()
	})
	t.Go(func(ctx context.Context) { f.Seats.Pods().Run(ctx, f.Pods) })
	t.Go(func(ctx context.Context) { _ = f.Seats.Run(ctx) }) // it returns no error
	return nil
}

func (f *Follower) handler() toolscache.ResourceEventHandler {
	return worldcache.Handler(func(was, is *stowage.SeatLedger, _ bool) {
		owner, o := ledger.FromSeatLedger(cmp.Or(is, was))
		f.Seats.LedgerSeen(owner, o, is == nil)
	})
}

// errReset ends the requests of books that a process forgets because it leads no more.
var errReset = errors.New("this process does not lead any more")

// reset forgets all pods and books.
func (l *Service) reset() {
	l.pods.reset()
	l.shared.Watch.Reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.books {
		e.mu.Lock()
		e.abandon(errReset)
		e.mu.Unlock()
	}
	clear(l.books)
}

// reset forgets all pods.
func (p *Pods) reset() {
	p.synced.Store(false)
	p.version.Store(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.byOwner)
	clear(p.owners)
	clear(p.unwatched)
}
