// Package leader runs the controllers on one replica at a time, and elects one where there are none.
//
// Each time a replica becomes the leader, a [Term] begins for every [Controller]. The controller registers what it
// does in that term, with state of its own. When the lease is lost, the term ends and with it everything that was
// registered; the process lives on, because its webhook still answers. The election of a controller-runtime manager
// would end the process.
//
// The package promises that
//   - a term has ended, with all its goroutines and event handlers, before the next one begins,
//     also a term that ends while it starts;
//   - a controller that cannot start is tried again, and holds up no other;
//   - one slow request does not lose the lease;
//   - a lease whose holder's pod is gone is taken over at once;
//   - a leader whose watch is behind hands over, if another replica wants to lead.
//
// Leading saves work, and nothing rests on it. Two replicas that both lead for a moment write the same things, and
// may evict twice as many pods in that moment.
package leader

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// The times of the lease. They are shorter than usual, because pods of a leader that dies hard
// are the ones that need repair. One request takes at most requestTimeout, which is below half
// of renewDeadline, so that one that is lost leaves time for another.
const (
	leaseDuration  = 6 * time.Second
	renewDeadline  = 4500 * time.Millisecond
	retryPeriod    = 1500 * time.Millisecond
	requestTimeout = 2 * time.Second
)

// Controller is what the leader runs.
type Controller interface {
	// Name is the controller's name in logs.
	Name() string
	// Register adds to a term what the controller does in it. It is called once in each term. If
	// it fails, that term ends, and a new one begins later.
	Register(t *Term) error
}

// Runner runs controllers while this replica leads. It is a manager.Runnable of every replica.
type Runner struct {
	Controllers []Controller
	// Lock is the lease, or nil where this replica leads without asking.
	Lock resourcelock.Interface
	// Leaving, if set, is done as soon as the process begins to shut down: a leader hands over
	// before it stops answering requests.
	Leaving context.Context
	// Board, if set, is that of Lock.
	Board *Board
	Clock clock.WithTicker
	Log   logr.Logger

	handedOver time.Time // when this replica handed over because it was behind
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Runner) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable. It returns when ctx ends, and everything that it started
// has ended then.
func (r *Runner) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.Leaving != nil {
		defer context.AfterFunc(r.Leaving, cancel)()
	}
	if r.Lock == nil {
		r.term(ctx)
		return nil
	}
	for ctx.Err() == nil {
		if err := r.elect(ctx); err != nil {
			return err
		}
	}
	return nil
}

// elect waits for the lease and runs one term. It returns when the lease is lost or ctx ends.
func (r *Runner) elect(ctx context.Context) error {
	elected := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: r.Lock, Name: r.Lock.Describe(), ReleaseOnCancel: true,
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			// The elector does not wait for this callback, so the term is run below: it has
			// ended before the next one begins.
			OnStartedLeading: func(context.Context) { close(elected) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		defer cancel()
		elector.Run(ctx)
	})
	select {
	case <-elected:
		if r.Board != nil {
			running.Go(func() { r.handOver(ctx, cancel) })
		}
		r.term(ctx)
	case <-ctx.Done():
	}
	return nil
}

// handOverEvery is how often a leader hands over because it is behind: the others may be so, too.
const handOverEvery = 5 * time.Minute

// handOver ends a term once this replica is behind.
func (r *Runner) handOver(ctx context.Context, end func()) {
	tick := r.Clock.NewTicker(retryPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
			if now := r.Clock.Now(); r.Board.behind() && now.Sub(r.handedOver) >= handOverEvery {
				r.handedOver = now
				r.Log.Info("the watch of pods is behind; another replica may lead", "lag", r.Board.Own().Lag.String())
				end()
				return
			}
		}
	}
}

// term runs the controllers until ctx ends.
func (r *Runner) term(ctx context.Context) {
	r.Log.Info("leading")
	defer r.Log.Info("not leading")
	// Each has a term of its own: one that waits for what it may not list, say, holds up no other.
	var running sync.WaitGroup
	defer running.Wait()
	for _, c := range r.Controllers {
		running.Go(func() { r.run(ctx, c) })
	}
	<-ctx.Done() // there may be no controllers
}

// run runs one controller until ctx ends. A controller that cannot be registered is tried again
// in a new term.
func (r *Runner) run(ctx context.Context, c Controller) {
	log := r.Log.WithName(c.Name())
	backoff := wait.Backoff{Duration: firstBackoff, Factor: 2, Jitter: 0.1, Steps: math.MaxInt, Cap: mostBackoff}
	for ctx.Err() == nil {
		err := runTerm(ctx, c, r.Clock, log)
		if ctx.Err() != nil {
			return
		}
		pause := backoff.Step()
		log.Error(err, "controller not started; it is tried again", "controller", c.Name(), "after", pause)
		select {
		case <-ctx.Done():
		case <-r.Clock.After(pause):
		}
	}
}

// runTerm runs a controller until ctx ends, or returns why it cannot be registered.
func runTerm(ctx context.Context, c Controller, clock clock.WithTicker, log logr.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	t := &Term{ctx: ctx, clock: clock, log: log}
	defer t.end()
	defer cancel()
	if err := t.register(c); err != nil {
		return err
	}
	t.Start()
	<-ctx.Done()
	return nil
}

// register registers a controller. A panic becomes an error: it must not end the webhook.
func (t *Term) register(c Controller) (err error) {
	defer utilruntime.HandleCrashWithContext(t.ctx, func(_ context.Context, cause any) {
		err = fmt.Errorf("internal error (panic): %v", cause)
	})
	return c.Register(t)
}

// podPrefix marks the identity of a replica that runs in a pod of a known name.
const podPrefix = "pod/"

// Identity returns a name that no other replica has. It names the pod, if that is known from the
// variable POD_NAME, so that others can tell when the replica is gone.
func Identity(lookup func(string) (string, bool)) string {
	suffix := "_" + rand.String(5) // a container that restarts keeps its pod's name
	if pod, ok := lookup("POD_NAME"); ok && pod != "" {
		return podPrefix + pod + suffix
	}
	host, err := os.Hostname()
	if err != nil {
		host = "stowage"
	}
	return host + suffix
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get,namespace=stowage-system

// NewLock returns a lock on a Lease. The board may be nil.
func NewLock(config *rest.Config, namespace, name, identity string, board *Board) (resourcelock.Interface, error) {
	config = rest.CopyConfig(config)
	config.Timeout = requestTimeout
	clients, err := kubernetes.NewForConfig(rest.AddUserAgent(config, "leader-election"))
	if err != nil {
		return nil, err
	}
	var client coordinationclient.LeasesGetter = clients.CoordinationV1()
	if board != nil {
		client = leases{client, board, identity}
	}
	return &lock{
		LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		board: board,
		podGone: func(ctx context.Context, pod string) bool {
			_, err := clients.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		},
	}, nil
}

// lock is a lease that nobody holds once its holder's pod is gone. An uninstallation removes the permission to
// release the lease before the pods end, and a node that fails releases nothing. Without this the next leader waits
// leaseDuration.
type lock struct {
	*resourcelock.LeaseLock
	board   *Board
	podGone func(ctx context.Context, pod string) bool
	last    []byte // the record as it was read last
}

// PodOf returns the name of a holder's pod, or "" if the holder does not name one.
func PodOf(holder string) string {
	pod, named := strings.CutPrefix(holder, podPrefix)
	if i := strings.LastIndexByte(pod, '_'); named && i > 0 {
		return pod[:i]
	}
	return ""
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil {
		return record, raw, err
	}
	// Only a holder that has not renewed since the last look is worth a request.
	same := bytes.Equal(raw, l.last)
	l.last = raw
	if pod := PodOf(record.HolderIdentity); same && pod != "" && record.HolderIdentity != l.Identity() && l.podGone(ctx, pod) {
		record.HolderIdentity = ""
		raw = append(slices.Clone(raw), '!') // the elector looks at a record only if it differs from the last one
	}
	if record.HolderIdentity == "" && l.board.behind() {
		// The others come first. The elector takes a lease that nobody renews.
		record.HolderIdentity, record.LeaseDurationSeconds = "nobody", int(leaseDuration/time.Second)
	}
	return record, raw, nil
}
