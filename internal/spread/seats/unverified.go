package seats

import (
	"context"

	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// Anybody who may create pods can invent owners that Stowage cannot verify, and so can anybody who reaches the webhook. Such
// owners get so many new books in a second, and at once. So many of their reads and writes go to the API server.
const (
	unverifiedBooks, unverifiedBooksAtOnce   = 20, 200
	unverifiedReads, unverifiedReadsAtOnce   = 50, 200
	unverifiedWrites, unverifiedWritesAtOnce = 10, 50
)

// unverified limits what owners cost that may not exist.
type unverified struct {
	books         *fair.Limiter[worldcache.Asker]
	reads, writes *fair.Limiter[string] // by namespace
}

func newUnverified() unverified {
	return unverified{
		books:  fair.NewLimiter[worldcache.Asker](unverifiedBooks, unverifiedBooksAtOnce),
		reads:  fair.NewLimiter[string](unverifiedReads, unverifiedReadsAtOnce),
		writes: fair.NewLimiter[string](unverifiedWrites, unverifiedWritesAtOnce),
	}
}

// byNamespace gives each namespace a part of the limits.
func byNamespace(_ context.Context, namespace string) worldcache.Asker {
	return worldcache.Asker{Namespace: namespace}
}

// mayHaveBook reports whether an owner has a book or may get one.
func (l *Service) mayHaveBook(ctx context.Context, owner ledger.Owner) bool {
	return !owner.Unverified || l.knows(owner.Key()) || l.unverified.books.Allow(l.asker(ctx, owner.Namespace), l.clock.Now())
}

// mayRead reports whether an owner's ledger or replica count may be read now.
func (l *Service) mayRead(owner ledger.Owner) bool {
	return !owner.Unverified || l.unverified.reads.Allow(owner.Namespace, l.clock.Now())
}

// mayWrite reports whether an owner's ledger may be written now.
func (l *Service) mayWrite(owner ledger.Owner) bool {
	return !owner.Unverified || l.unverified.writes.Allow(owner.Namespace, l.clock.Now())
}
