// Package seats gives seats to pods on a cluster. It runs the books of package ledger, one for each owner. Its input
// is a watch of the pods that carry a seat and a watch of SeatLedgers. It performs on the API server what the books
// ask for.
//
// It promises that a seat is given in bounded time even where the API is slow, marked as not
// claimed. Which seat that is, and when a claim counts, is package ledger's answer.
package seats

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/platform/listeners"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// API is what a [Service] asks of the cluster. Its methods may be called at once.
type API interface {
	// ReadLedger returns the owner's ledger, or one of version 0 if there is none.
	ReadLedger(ctx context.Context, owner ledger.Owner) (*ledger.Object, error)
	// WriteLedger replaces the ledger if its version still is the object's, and
	// returns it as it is then. With WriteUncertain and WriteRefused it returns why.
	WriteLedger(ctx context.Context, owner ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error)
	// DeleteLedger removes the ledger if it still has this version.
	DeleteLedger(ctx context.Context, owner ledger.Owner, version uint64) error
	// ReadReplicas returns how many pods the owner asks for, or -1 if its kind does
	// not say.
	ReadReplicas(ctx context.Context, owner ledger.Owner) (int64, error)
}

// requestTimeout bounds one request to the API.
const requestTimeout = 2 * time.Second

// Change says that the pods of an owner changed.
type Change struct {
	Owner ledger.OwnerKey
	// Moved says that a pod came, went, or got another seat or node, which is what seats depend on.
	Moved bool
	// Left is the node on which the pod ended, or from which it went; empty if it did not.
	Left string
}

// Service is the books of this process. Its methods may be called at once.
type Service struct {
	// Changes tells of pods that changed.
	Changes listeners.Listeners[Change]

	api        API
	pods       *Pods
	writer     string
	timing     ledger.Timing
	clock      clock.WithTickerAndDelayedExecution
	start      time.Time
	log        logr.Logger
	metrics    *Metrics
	unverified unverified
	asker      func(ctx context.Context, namespace string) worldcache.Asker
	logs       flowcontrol.PassiveRateLimiter
	askers     askers

	mu     sync.Mutex
	books  map[ledger.OwnerKey]*entry
	shared ledger.Shared
}

// entry is a book with what performs its actions.
type entry struct {
	key ledger.OwnerKey

	mu      sync.Mutex
	owner   ledger.Owner // without a kind and a name until somebody claims or a ledger says it
	book    *ledger.Book
	waiting map[*ledger.Request]chan ledger.Result
	timer   clock.Timer
	primed  bool // it knows the owner's pods
	dead    bool // no longer in Service.books
}

// identify notes what is known of the owner. What is verified stays.
func (e *entry) identify(owner ledger.Owner) {
	if owner.Name != "" && (e.owner.Name == "" || e.owner.Unverified && !owner.Unverified) {
		e.owner = owner
	}
}

// enqueue adds a request to the book, and returns what its answer comes by.
func (e *entry) enqueue(now time.Duration, r *ledger.Request) <-chan ledger.Result {
	answer := make(chan ledger.Result, 1)
	e.waiting[r] = answer
	e.book.Enqueue(now, r)
	return answer
}

// Options are what a Service needs.
type Options struct {
	API     API
	Key     ledger.Key
	Writer  string // this replica's name, which no other has
	Clock   clock.WithTickerAndDelayedExecution
	Log     logr.Logger
	Metrics *Metrics
	// Asker, if set, returns whose part of the limits a claim takes. Without it, each namespace has one.
	Asker func(ctx context.Context, namespace string) worldcache.Asker
	// Relay, if set, asks other replicas for seats.
	Relay Relay
}

// New returns a service whose pods are still to be watched; see [Service.Pods].
func New(o Options) *Service {
	l := &Service{
		api: o.API, writer: o.Writer, timing: ledger.DefaultTiming(), clock: o.Clock, start: o.Clock.Now(), log: o.Log, metrics: o.Metrics,
		books: map[ledger.OwnerKey]*entry{}, unverified: newUnverified(), asker: o.Asker,
		logs:   flowcontrol.NewTokenBucketPassiveRateLimiter(5, 50),
		askers: askers{relay: o.Relay, groups: map[groupKey]*group{}},
	}
	l.timing.Jitter = rand.Float64
	if l.asker == nil {
		l.asker = byNamespace
	}
	l.pods = &Pods{Key: o.Key, Seen: l.podSeen, byOwner: map[ledger.OwnerKey]*ownerPods{}, owners: map[types.UID]*ownerPods{}, unwatched: map[string]map[types.UID]ledger.Owner{}}
	return l
}

// Pods returns the pods that carry a seat.
func (l *Service) Pods() *Pods { return l.pods }

func (l *Service) now() time.Duration { return l.clock.Since(l.start) }

// with calls a function with an owner's book, which nobody else uses meanwhile, and
// performs what the book wants afterwards. A book is made where there is none, and learns of the owner's pods. A panic in
// a book costs its requests their seats, and the next request gets a new book.
func (l *Service) with(key ledger.OwnerKey, use func(now time.Duration, e *entry)) {
	for !l.try(key, use) {
	}
}

// try is with, unless the book was forgotten at that very moment.
func (l *Service) try(key ledger.OwnerKey, use func(now time.Duration, e *entry)) (done bool) {
	l.mu.Lock()
	e := l.books[key]
	if e == nil {
		e = &entry{key: key, owner: ledger.Owner{Namespace: key.Namespace, UID: key.UID}, waiting: map[*ledger.Request]chan ledger.Result{}}
		e.book = ledger.NewBook(&l.timing, &l.shared, l.writer, ledger.NewID)
		l.books[key] = e
	}
	l.mu.Unlock()
	e.mu.Lock()
	failed := false
	defer func() {
		e.mu.Unlock()
		if failed {
			l.mu.Lock()
			delete(l.books, key) // nobody else makes one before it is gone
			l.mu.Unlock()
		}
	}()
	if e.dead {
		return false
	}
	defer utilruntime.HandleCrashWithContext(context.Background(), func(_ context.Context, cause any) { //nolint:forbidigo // it is for the log alone
		e.abandon(fmt.Errorf("internal error (panic): %v", cause))
		failed, done = true, true
	})
	now := l.now()
	if !e.primed {
		e.primed = true
		for _, r := range l.pods.Of(key) { // an earlier book may have failed
			e.book.PodSeen(now, string(r.UID), heldBy(&r))
		}
	}
	use(now, e)
	e.book.Applied(l.pods.Version())
	l.perform(e, e.book.Step(now))
	if t, ok := e.book.Wake(); ok {
		l.wake(e, t-now)
	}
	return true
}

// abandon ends a book that cannot be used any more. Its requests are answered with an error.
func (e *entry) abandon(err error) {
	e.dead = true
	if e.timer != nil {
		e.timer.Stop()
	}
	for r, answer := range e.waiting {
		answer <- ledger.Result{Err: err} // has room for it
		delete(e.waiting, r)
	}
}

// wake has a book stepped again after a time.
func (l *Service) wake(e *entry, d time.Duration) {
	if e.timer != nil {
		e.timer.Stop()
	}
	e.timer = l.clock.AfterFunc(d, func() { l.with(e.key, func(time.Duration, *entry) {}) })
}

// perform does what a book asks for. Requests to the API are made on their own, and
// come back as events.
func (l *Service) perform(e *entry, acts []ledger.Action) {
	owner := e.owner
	for _, a := range acts {
		switch {
		case a.Answer != nil:
			e.waiting[a.Answer] <- a.Answer.Result // has room for it
			delete(e.waiting, a.Answer)
		case a.ReadReplicas:
			go l.readReplicas(owner)
		case a.ReadLedger:
			go l.readLedger(owner)
		case a.Write != nil:
			l.metrics.batch(e.book)
			go l.write(owner, a.Write)
		}
	}
}

// knows reports whether there is a book of an owner.
func (l *Service) knows(owner ledger.OwnerKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.books[owner] != nil
}

// entries returns the books that there are now.
func (l *Service) entries() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.books))
}

// Peek returns the seat that one more pod of an owner would get now, and claims
// nothing. It leaves nothing behind, not even a book.
func (l *Service) Peek(owner ledger.Owner, s *sequence.Strategy) (seat ledger.Seat, err error) {
	if !l.knows(owner.Key()) {
		return ledger.NewBook(&l.timing, &l.shared, l.writer, ledger.NewID).Peek(0, s)
	}
	l.with(owner.Key(), func(now time.Duration, e *entry) { seat, err = e.book.Peek(now, s) })
	return seat, err
}

// LedgerSeen tells of a ledger that a watch shows.
func (l *Service) LedgerSeen(owner ledger.Owner, o ledger.Object, deleted bool) {
	l.with(owner.Key(), func(now time.Duration, e *entry) {
		e.identify(owner)
		e.book.LedgerSeen(now, o, deleted)
	})
}

// podSeen tells the book of its owner about a pod.
func (l *Service) podSeen(was, is *observed.Pod) {
	r := cmp.Or(is, was)
	key := ledger.OwnerKey{Namespace: r.Namespace, UID: r.Owner}
	l.with(key, func(now time.Duration, e *entry) {
		if is == nil {
			e.book.PodGone(now, string(r.UID))
			return
		}
		e.book.PodSeen(now, string(r.UID), heldBy(r))
	})
	if moved := moved(was, is); moved || was.Ready != is.Ready {
		change := Change{Owner: key, Moved: moved}
		if was != nil && (is == nil || was.Active && !is.Active) {
			change.Left = was.Node
		}
		l.Changes.Tell(change)
	}
}

// moved reports whether a pod came or went, or got another seat or node. Either may be nil.
func moved(was, is *observed.Pod) bool {
	return was == nil || is == nil || standingOf(was) != standingOf(is)
}

// standing is what of a pod the seats of others depend on.
type standing struct {
	ledger.Seat
	id, node, cost string
	origin         ledger.Origin
	active         bool
}

func standingOf(p *observed.Pod) standing {
	return standing{Seat: p.Seat, id: p.ID, node: p.Node, cost: p.Cost, origin: p.Origin, active: p.Active}
}
