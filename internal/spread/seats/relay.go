package seats

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// The bounds of asking another replica for seats.
const (
	relayWait    = time.Second             // how long the other replica lets the pods wait
	relayTimeout = 1250 * time.Millisecond // how long its answer may take
	mostRelayed  = 256                     // pods of one request
	mostAsking   = 2                       // requests for one owner at once
)

// Ask asks another replica for seats of some pods of an owner.
type Ask struct {
	Namespace string    `json:"namespace"`
	UID       types.UID `json:"uid"`
	// Strategy is the fingerprint of the owner's strategy. The other replica gives seats only by the strategy that it used last for
	// the owner, and only if that is the same.
	Strategy  string `json:"strategy"`
	WriteCost bool   `json:"writeCost,omitempty"`
	Pods      int    `json:"pods"`
	Seen      uint64 `json:"seen,omitempty"` // see [ledger.Book.Seen]
}

// Grant is a seat whose claim is in the ledger.
type Grant struct {
	ID       string `json:"id"`
	Pool     string `json:"pool"`
	Ordinal  int64  `json:"ordinal"`
	Prepared bool   `json:"prepared,omitempty"` // it was claimed before the request came
}

// Relay asks other replicas for seats. Its method may be called at once.
type Relay interface {
	// Ask returns at most one grant for each pod. An error says why there is none.
	Ask(ctx context.Context, replica string, a Ask) ([]Grant, error)
}

// relays are the pods that wait for seats of other replicas. Those of one owner share requests: beyond mostAsking under way, pods wait for the
// next one.
type relays struct {
	relay Relay

	mu     sync.Mutex
	asking map[relayKey]*asking
}

// asking is what waits, and how many requests are under way.
type asking struct {
	waiting []chan<- *Grant
	under   int
}

// relayKey is what pods have in common that may share a request.
type relayKey struct {
	replica   string
	owner     ledger.OwnerKey
	strategy  sequence.Fingerprint
	writeCost bool
}

// fromWriter asks the replica that writes an owner's ledger for a seat: see [ledger.Book.Writer]. It returns false if there is no such replica,
// or if that gives no seat in time.
func (l *Service) fromWriter(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost bool) (res ledger.Result, ok bool) {
	key := relayKey{owner: owner.Key(), strategy: s.Fingerprint(), writeCost: writeCost}
	if l.relays.relay == nil || !l.knows(key.owner) {
		return res, false
	}
	l.with(key.owner, func(now time.Duration, e *entry) { key.replica = e.book.Writer(now) })
	if key.replica == "" {
		return res, false
	}
	answer := make(chan *Grant, 1)
	l.relays.mu.Lock()
	a := l.relays.asking[key]
	if a == nil {
		a = &asking{}
		l.relays.asking[key] = a
	}
	a.waiting = append(a.waiting, answer)
	if a.under < mostAsking {
		a.under++
		go l.relayAll(key, a)
	}
	l.relays.mu.Unlock()
	select {
	case g := <-answer:
		if g != nil {
			res.Seat, res.ID, res.Written, res.Prepared = ledger.Seat{Pool: g.Pool, Ordinal: g.Ordinal}, g.ID, true, g.Prepared
		}
		return res, g != nil
	case <-ctx.Done():
		return res, false
	}
}

// relayAll asks for the pods that wait, until none does.
func (l *Service) relayAll(key relayKey, a *asking) {
	for {
		l.relays.mu.Lock()
		now := a.waiting[:min(len(a.waiting), mostRelayed)]
		a.waiting = a.waiting[len(now):]
		if len(now) == 0 {
			if a.under--; a.under == 0 {
				delete(l.relays.asking, key)
			}
			l.relays.mu.Unlock()
			return
		}
		l.relays.mu.Unlock()
		grants := l.relayOnce(key, len(now))
		for i, answer := range now {
			if i < len(grants) {
				answer <- &grants[i] // has room for it
			} else {
				answer <- nil
			}
		}
	}
}

// relayOnce sends one request. An answer without a grant is one of a replica that knows the owner by another strategy.
func (l *Service) relayOnce(key relayKey, pods int) (grants []Grant) {
	ctx, cancel := context.WithTimeout(context.Background(), relayTimeout) //nolint:forbidigo // it serves several pods, and outlives each
	defer cancel()
	defer utilruntime.HandleCrashWithContext(ctx, func(context.Context, any) { grants = nil })
	var seen uint64
	l.with(key.owner, func(_ time.Duration, e *entry) { seen = e.book.Seen() })
	grants, err := l.relays.relay.Ask(ctx, key.replica, Ask{
		Namespace: key.owner.Namespace, UID: key.owner.UID, Strategy: key.strategy.String(), WriteCost: key.writeCost, Pods: pods, Seen: seen,
	})
	l.metrics.relayed(pods, len(grants), err)
	return grants
}

// Grant answers another replica. It gives no seat that is a guess, and none to an owner that it has given no seat before, so it keeps nothing
// that was not there.
func (l *Service) Grant(ctx context.Context, a Ask) []Grant {
	key := ledger.OwnerKey{Namespace: a.Namespace, UID: a.UID}
	if !l.knows(key) {
		return nil
	}
	var answers []chan ledger.Result
	l.with(key, func(now time.Duration, e *entry) {
		s := e.book.Strategy(a.Strategy)
		if s == nil {
			return
		}
		e.book.SeenElsewhere(now, a.Seen)
		for range min(a.Pods, mostRelayed) {
			r := &ledger.Request{Strategy: s, WriteCost: a.WriteCost, Relayed: true, Deadline: now + relayWait}
			answer := make(chan ledger.Result, 1)
			e.waiting[r], answers = answer, append(answers, answer)
			e.book.Enqueue(now, r)
		}
	})
	var grants []Grant
	for _, answer := range answers {
		select {
		case res := <-answer:
			switch {
			case res.Err != nil:
			case res.Written && !res.Unverified:
				grants = append(grants, Grant{ID: res.ID, Pool: res.Pool, Ordinal: res.Ordinal, Prepared: res.Prepared})
			default:
				l.GiveBack(ledger.Owner{Namespace: a.Namespace, UID: a.UID}, res.ID)
			}
		case <-ctx.Done(): // the other replica is gone; the claims are presumed dead
			return grants
		}
	}
	return grants
}
