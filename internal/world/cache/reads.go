package cache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/world"
)

// Limits bound the reads of what the cache does not have. Anybody who may create pods can name owners, nodes and templates that
// do not exist, and so can anybody who reaches the webhook. A rate of zero is no limit.
type Limits struct {
	// Timeout bounds one read, with the wait for its turn. KindTimeout is that of the kinds below; zero is the same.
	Timeout, KindTimeout time.Duration
	// Rate and Burst are how many reads begin in a second, and at once. AtOnce is how many are under way.
	Rate, Burst float64
	AtOnce      int64
	// KindRate and KindBurst are the same for kinds that nobody has asked for yet. Each may cost a discovery.
	KindRate, KindBurst float64
}

// kindsAtOnce is how many kinds are looked up at once. Controller-runtime looks up one after the other.
const kindsAtOnce = 2

// ForAdmission returns the limits of a process that answers the webhook. An object can be younger than our watch of it, and a
// pod waits meanwhile. It gets no seat if its owner is not read in time, so a read may take as long as a request for a seat. All of them
// end with the review. Kinds that somebody invents get less.
func ForAdmission() Limits {
	return Limits{Timeout: 2 * time.Second, KindTimeout: 500 * time.Millisecond, Rate: 200, Burst: 2000, AtOnce: 64, KindRate: 1, KindBurst: 20}
}

// Asker has a part of the limits: a client of the webhook, or Stowage itself, for a namespace.
type Asker struct{ Client, Namespace string }

// clientKey is the key of what [AskedBy] adds to a context.
type clientKey struct{}

// AskedBy returns a context for what a client of the webhook asks.
func AskedBy(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, clientKey{}, address)
}

// Client returns the address that [AskedBy] noted.
func Client(ctx context.Context) string {
	address, _ := ctx.Value(clientKey{}).(string)
	return address
}

// Asker returns the one that asks about a namespace. A stranger can invent namespaces, so those that the watch does not show share a part.
func (c *Cache) Asker(ctx context.Context, namespace string) Asker {
	if c.objects.limit == nil {
		return Asker{}
	}
	if c.cached.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}) != nil {
		namespace = ""
	}
	return Asker{Client(ctx), namespace}
}

// errTooMany means that an object was not read.
var errTooMany = errors.New("too many objects that the cache does not have are asked for; this one was not read")

// readKey names what is read. It is a struct: strangers choose the parts, and joined to a text, two objects could have one key.
type readKey struct {
	what      string // "workload", "kind", or the kind of an object without a namespace
	namespace string
	ref       world.Ref
}

// possible reports whether an object can have a name. A longer one would only make a long request.
func possible(name string) bool { return len(name) <= validation.DNS1123SubdomainMaxLength }

// lane is reads that share limits.
type lane struct {
	limit   *fair.Limiter[Asker] // nil is none
	turns   *fair.Pool[Asker]
	timeout time.Duration
}

func newLane(rate, burst float64, atOnce int64, timeout time.Duration) lane {
	if rate == 0 {
		return lane{turns: fair.NewPool[Asker](math.MaxInt64), timeout: timeout}
	}
	return lane{limit: fair.NewLimiter[Asker](rate, burst), turns: fair.NewPool[Asker](atOnce), timeout: timeout}
}

// flight is a read under way. It serves all callers that ask for the object at that moment.
type flight struct {
	done   chan struct{} // closed when the rest is set
	value  any
	err    error
	gaveUp bool // whoever began it waited for a turn until its own time was over
}

// readUncached reads something from the API server, once for all callers that ask for it at that moment.
func readUncached[T any](ctx context.Context, c *Cache, l lane, who Asker, k readKey, read func(context.Context) (T, error)) (T, error) {
	var none T
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	for {
		f, mine, err := c.join(l, who, k)
		if err != nil {
			return none, err
		}
		if mine {
			c.fly(ctx, l, who, k, f, func(ctx context.Context) (any, error) { return read(ctx) })
		}
		select {
		case <-f.done:
			if f.gaveUp && !mine && ctx.Err() == nil {
				continue // whoever began it had less time
			}
			value, _ := f.value.(T)
			return value, f.err
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

// join returns the read of an object that is under way. If there is none, it begins one, which the caller runs.
func (c *Cache) join(l lane, who Asker, k readKey) (f *flight, mine bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f = c.flights[k]; f != nil {
		return f, false, nil
	}
	if l.limit != nil && !l.limit.Allow(who, c.clock.Now()) {
		return nil, false, errTooMany
	}
	f = &flight{done: make(chan struct{})}
	c.flights[k] = f
	return f, true, nil
}

// fly runs a read when its turn comes. It waits for the turn in the goroutine of the request, as long as that has time. So only reads
// under way have a goroutine of their own. A read outlives the request that began it, for those that joined.
func (c *Cache) fly(ctx context.Context, l lane, who Asker, k readKey, f *flight, read func(context.Context) (any, error)) {
	land := func() {
		c.mu.Lock()
		delete(c.flights, k)
		c.mu.Unlock()
		close(f.done)
	}
	if f.err = l.turns.Acquire(ctx, who, 1); f.err != nil {
		f.gaveUp = true
		land()
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
		defer cancel()
		defer land()
		defer l.turns.Release(who, 1)
		// A panic in a shared read would end the process.
		defer utilruntime.HandleCrashWithContext(ctx, func(_ context.Context, cause any) {
			f.err = fmt.Errorf("internal error (panic): %v", cause)
		})
		f.value, f.err = read(ctx)
	}()
}
