package seats

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// What books ask of the API server. Each answer comes back to its book as an event.

func (l *Service) readReplicas(owner ledger.Owner) {
	n, known, forbidden := int64(-1), true, false
	if l.mayRead(owner) { // otherwise the count is taken for one that nobody knows
		l.request(owner, "replica count not read", func(ctx context.Context) (err error) {
			n, err = l.api.ReadReplicas(ctx, owner)
			forbidden = apierrors.IsForbidden(err) // it is of no use to ask again
			return err
		}, func() { n, known = -1, forbidden })
	}
	l.with(owner.Key(), func(now time.Duration, e *entry) {
		if known {
			e.book.ReplicasRead(now, n)
		} else {
			e.book.ReplicasFailed(now)
		}
	})
}

func (l *Service) readLedger(owner ledger.Owner) {
	var o *ledger.Object
	if l.mayRead(owner) {
		l.request(owner, "ledger not read", func(ctx context.Context) (err error) {
			o, err = l.api.ReadLedger(ctx, owner)
			return err
		}, func() { o = nil })
	}
	l.with(owner.Key(), func(now time.Duration, e *entry) { e.book.LedgerRead(now, o) })
}

func (l *Service) write(owner ledger.Owner, object *ledger.Object) {
	var o *ledger.Object
	res := ledger.WriteRefused
	if l.mayWrite(owner) {
		res = ledger.WriteUncertain
		l.request(owner, "ledger not written", func(ctx context.Context) (err error) {
			o, res, err = l.api.WriteLedger(ctx, owner, object)
			return err
		}, func() { o = nil })
	}
	l.metrics.write(res)
	l.with(owner.Key(), func(now time.Duration, e *entry) { e.book.WriteDone(now, res, o) })
}

// request runs a request to the API with its time limit. Pods wait for it, and one that
// was begun is brought to its end even while the process shuts down. An error is logged, and so
// is a panic, after which failed is called, so that the book learns of it.
func (l *Service) request(owner ledger.Owner, message string, do func(context.Context) error, failed func()) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout) //nolint:forbidigo // it serves requests of several callers, and outlives each
	defer cancel()
	defer utilruntime.HandleCrashWithContext(ctx, func(context.Context, any) { failed() })
	err := do(ctx)
	switch {
	case err == nil:
		l.shared.Load.Served()
		return
	case busy(err):
		l.shared.Load.Refused(l.now(), l.timing.Busy)
	}
	l.logError(err, message, owner)
	failed()
}

// logError logs an error about an owner. Whoever creates pods can cause such lines.
func (l *Service) logError(err error, message string, owner ledger.Owner) {
	if l.logs.TryAccept() {
		l.log.Error(err, message, "namespace", owner.Namespace, "kind", owner.Kind, "name", owner.Name)
	}
}
