package seats

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// The bounds of asking another replica for seats.
const (
	relayTimeout = 700 * time.Millisecond // how long a pod waits, and no more than a third of what its review has left
	relayLeast   = 100 * time.Millisecond // with less, nobody is asked
	relayWait    = 600 * time.Millisecond // how long the other replica lets pods wait, so that its answer comes in time
	relayRest    = 50 * time.Millisecond  // how long an answer that has a seat waits for those of the other pods
	mostRelayed  = 256                    // pods of one request
	mostRequests = 2                      // for one owner at once; beyond, pods share the next one
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
	// Ask returns at most one grant for each pod, and an error if there was no answer. [ErrNotAsked] means that no request was sent.
	Ask(ctx context.Context, replica string, a Ask) ([]Grant, error)
}

// ErrNotAsked means that a replica is not asked, because it is none of the webhook's, or because it has not answered lately.
var ErrNotAsked = errors.New("the replica is not asked")

// askers are the pods that wait for seats of other replicas.
type askers struct {
	relay Relay

	mu     sync.Mutex
	groups map[groupKey]*group
}

// groupKey is what pods have in common that may share a request.
type groupKey struct {
	replica   string
	owner     ledger.Owner
	strategy  sequence.Fingerprint
	writeCost bool
}

// group are the pods that wait for a request to be sent, and how many requests for other ones are under way.
type group struct {
	waiting  []*asker
	underWay int
}

// asker is a pod that waits.
type asker struct {
	answer chan *Grant // has room for one: nil if the other replica gives no seat
	left   bool        // it waits no more
}

// fromWriter asks the replica that writes an owner's ledger for a seat: see [ledger.Book.Writer]. The seat is nil if there is no such replica,
// or if that gives none in time. Asked is false if nobody was there to be asked, or no time was left for it.
func (l *Service) fromWriter(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost bool) (seat *ledger.Result, asked bool) {
	wait := l.patience(ctx)
	if wait == 0 || !l.knows(owner.Key()) {
		return nil, false
	}
	key := groupKey{owner: owner, strategy: s.Fingerprint(), writeCost: writeCost}
	l.with(owner.Key(), func(now time.Duration, e *entry) { key.replica = e.book.Writer(now) })
	if key.replica == "" {
		return nil, false
	}
	g := l.wait(ctx, key, wait)
	if g == nil {
		return nil, true
	}
	if _, known := s.PoolKeyed(g.Pool); !known {
		return nil, true
	}
	l.with(owner.Key(), func(now time.Duration, e *entry) { e.book.Granted(now, g.ID) })
	seat = &ledger.Result{
		Claim:   ledger.Claim{Seat: ledger.Seat{Pool: g.Pool, Ordinal: g.Ordinal}, ID: g.ID},
		Written: true, Prepared: g.Prepared,
	}
	l.metrics.claim(*seat)
	return seat, true
}

// patience returns how long a pod waits for another replica's answer, or 0 if there is no time to ask, or no relay.
func (l *Service) patience(ctx context.Context) time.Duration {
	wait := relayTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, deadline.Sub(l.clock.Now())/3)
	}
	if l.askers.relay == nil || wait < relayLeast {
		return 0
	}
	return wait
}

// wait has a pod wait for a seat of another replica, and returns nil if there is none in time.
func (l *Service) wait(ctx context.Context, key groupKey, most time.Duration) *Grant {
	pod := l.join(key)
	timeout := l.clock.NewTimer(most)
	defer timeout.Stop()
	select {
	case g := <-pod.answer:
		return g
	case <-timeout.C():
	case <-ctx.Done():
	}
	l.askers.mu.Lock()
	defer l.askers.mu.Unlock()
	pod.left = true
	select {
	case g := <-pod.answer: // it came at the same moment
		return g
	default:
		return nil
	}
}

// join adds a pod to its group.
func (l *Service) join(key groupKey) *asker {
	l.askers.mu.Lock()
	defer l.askers.mu.Unlock()
	g := l.askers.groups[key]
	if g == nil {
		g = &group{}
		l.askers.groups[key] = g
	}
	pod := &asker{answer: make(chan *Grant, 1)}
	g.waiting = append(g.waiting, pod)
	if g.underWay < mostRequests {
		g.underWay++
		go l.askAll(key, g)
	}
	return pod
}

// askAll asks for the pods of a group, until none waits.
func (l *Service) askAll(key groupKey, g *group) {
	for {
		pods := l.next(key, g)
		if len(pods) == 0 {
			return
		}
		grants := l.askOnce(key, len(pods))
		l.askers.mu.Lock()
		pods = slices.DeleteFunc(pods, (*asker).hasLeft)
		g.waiting = slices.DeleteFunc(g.waiting, (*asker).hasLeft)
		more := min(len(g.waiting), max(0, len(grants)-len(pods))) // seats of pods that have left
		pods = append(pods, g.waiting[:more]...)
		g.waiting = slices.Delete(g.waiting, 0, more)
		for i, pod := range pods {
			switch {
			case i < len(grants):
				pod.answer <- &grants[i]
			case len(grants) == 0:
				pod.answer <- nil
			default: // there were seats ahead for the first pods alone
				g.waiting = append(g.waiting, pod)
			}
		}
		l.askers.mu.Unlock()
	}
}

func (a *asker) hasLeft() bool { return a.left }

// next takes the pods of the next request out of a group. If there are none, this was the end of one of its requests.
func (l *Service) next(key groupKey, g *group) []*asker {
	l.askers.mu.Lock()
	defer l.askers.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, (*asker).hasLeft)
	pods := slices.Clone(g.waiting[:min(len(g.waiting), mostRelayed)])
	g.waiting = slices.Delete(g.waiting, 0, len(pods))
	if len(pods) == 0 {
		if g.underWay--; g.underWay == 0 {
			delete(l.askers.groups, key)
		}
	}
	return pods
}

// askOnce sends one request.
func (l *Service) askOnce(key groupKey, pods int) (grants []Grant) {
	ctx, cancel := context.WithTimeout(context.Background(), relayTimeout) //nolint:forbidigo // it serves several pods, and outlives each
	defer cancel()
	defer utilruntime.HandleCrashWithContext(ctx, func(context.Context, any) { grants = nil })
	a := Ask{Namespace: key.owner.Namespace, UID: key.owner.UID, Strategy: key.strategy.String(), WriteCost: key.writeCost, Pods: pods}
	l.with(key.owner.Key(), func(_ time.Duration, e *entry) { a.Seen = e.book.Seen() })
	grants, err := l.askers.relay.Ask(ctx, key.replica, a)
	switch {
	case errors.Is(err, ErrNotAsked):
	case err != nil:
		l.metrics.relayed("failed", pods)
		l.logError(err, "another replica was asked for seats in vain", key.owner)
	case len(grants) == 0:
		l.metrics.relayed("refused", pods)
	default:
		l.metrics.relayed("granted", len(grants))
	}
	return grants
}

// Grant answers another replica, for some of the pods at least. It gives no seat that is a guess, and none to an owner that it has given no seat
// before, so it keeps nothing that was not there. If ctx has ended meanwhile, nobody waits for the answer, and the claims are given back.
func (l *Service) Grant(ctx context.Context, a Ask) []Grant {
	key := ledger.OwnerKey{Namespace: a.Namespace, UID: a.UID}
	if !l.knows(key) {
		return nil
	}
	var answers []<-chan ledger.Result
	l.with(key, func(now time.Duration, e *entry) {
		e.book.SeenElsewhere(now, a.Seen)
		s := e.book.Strategy(a.Strategy)
		if s == nil || e.book.Struggles() {
			return
		}
		pods, deadline := min(a.Pods, mostRelayed), now+relayWait
		if ahead := e.book.Spares(deadline); ahead > 0 {
			pods = min(pods, ahead) // these need not wait for others
		}
		for range pods {
			answers = append(answers, e.enqueue(now, &ledger.Request{Strategy: s, WriteCost: a.WriteCost, Relayed: true, Deadline: deadline}))
		}
	})
	results, late := collect(l.clock, answers)
	owner := ledger.Owner{Namespace: a.Namespace, UID: a.UID}
	if len(late) > 0 {
		go func() {
			for _, answer := range late {
				l.GiveBack(owner, (<-answer).ID) // each comes by its deadline
			}
		}()
	}
	var grants []Grant
	for _, res := range results {
		switch {
		case res.Err != nil:
		case res.Written && !res.Unverified && ctx.Err() == nil:
			grants = append(grants, Grant{ID: res.ID, Pool: res.Pool, Ordinal: res.Ordinal, Prepared: res.Prepared})
		default:
			l.GiveBack(owner, res.ID)
		}
	}
	return grants
}

// collect waits for answers, and no longer than relayRest after one that has a seat: while it waits for others, that seat is presumed dead
// elsewhere. It returns what comes late, too.
func collect(c clock.WithDelayedExecution, answers []<-chan ledger.Result) (results []ledger.Result, late []<-chan ledger.Result) {
	var rest <-chan time.Time
	for i, answer := range answers {
		select {
		case res := <-answer:
			if results = append(results, res); res.Err == nil && rest == nil {
				rest = c.After(relayRest)
			}
		case <-rest:
			return results, answers[i:]
		}
	}
	return results, nil
}
