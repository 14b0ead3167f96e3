package relay

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

var (
	histories = flag.Int("histories", 120, "random histories of each kind in TestSimulation")
	firstSeed = flag.Uint64("seed", 1, "seed of the first history")
)

// weather is what happens to the replicas of a history.
type weather struct {
	late     int // of 100 answers, to the API server and to other replicas, this many are used up to mostLate later
	denied   int // of 100 pods, this many are refused after they have a seat
	lost     int // of 100 answers of replicas, this many never come
	pauses   int // of 100 answers of the API, this many find a replica that stops for up to mostPause
	restarts int // between two steps, of 100
}

// mostLate is how late an answer is used at most: so long may an API server hang, or a replica wait for another one.
const mostLate = 650 * time.Millisecond

// mostPause is for how long a process stands still: an answer that is late beside that is used before anybody presumes its claim dead.
const mostPause = 300 * time.Millisecond

var weathers = map[string]weather{
	"calm":                   {},
	"some answers come late": {late: 10, denied: 5},
	"all answers come late":  {late: 100, denied: 5, lost: 5},
	"replicas stop":          {late: 10, pauses: 5},
	"replicas restart":       {late: 10, denied: 10, restarts: 50},
}

// Several replicas that ask each other give each pod a seat of its own, and at rest the pods have the first seats of the sequence. What runs
// is the code of a process: services, their clients and their handlers. Their time is that of synctest. API, watches, controller and network
// are played.
func TestSimulation(t *testing.T) {
	for name, w := range weathers {
		t.Run(name, func(t *testing.T) {
			guessed := 0
			for i := range *histories {
				synctest.Test(t, func(t *testing.T) {
					h := newHistory(t, *firstSeed+uint64(i), w)
					h.play(t)
					if h.guesses > 0 {
						guessed++
					}
				})
				if t.Failed() {
					return
				}
			}
			if guessed > *histories/10 {
				t.Errorf("in %d of %d histories, a pod was given a guess", guessed, *histories)
			}
		})
	}
}

// history is an API server, one workload and the replicas that seat its pods.
type history struct {
	seed     uint64
	weather  weather
	strategy *sequence.Strategy
	key      ledger.Key

	mu       sync.Mutex
	rng      *rand.Rand
	desired  int64
	version  uint64
	ledger   ledger.Object
	pods     map[string]*corev1.Pod
	replicas []*replica
	names    int
	guesses  int // seats that were given without the ledger
	begun    time.Time
	trace    []string
}

// note adds to what is printed of a history that ends wrong. The caller holds the lock.
func (h *history) note(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf("%8.3f ", time.Since(h.begun).Seconds())+fmt.Sprintf(format, args...))
}

// replica is one process.
type replica struct {
	*seats.Service
	name    string
	handler http.Handler
	h       *history
	ctx     context.Context // ends with the process
	stop    context.CancelFunc
	events  chan func()
	until   time.Time // it stands still until then
}

var workload = ledger.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "web", UID: "uid"}

func newHistory(t *testing.T, seed uint64, w weather) *history {
	t.Helper()
	texts := []string{"p=a,base=1:p=b,weight=1:p=c,weight=1", "p=a,weight=80:p=b,weight=20", "p=a,base=3,weight=1:p=b,weight=4"}
	rng := rand.New(rand.NewPCG(seed, 0))
	s, err := sequence.Parse(texts[rng.IntN(len(texts))])
	if err != nil {
		t.Fatal(err)
	}
	h := &history{seed: seed, weather: w, strategy: s, key: make(ledger.Key, ledger.KeySize), rng: rng, pods: map[string]*corev1.Pod{}, begun: time.Now()}
	for range 2 + rng.IntN(3) {
		h.start(t)
	}
	t.Cleanup(func() {
		for _, r := range h.replicas {
			r.stop()
		}
		time.Sleep(20 * time.Minute) // a service tries its last write again until its claims expire, after 10 minutes at most
	})
	return h
}

// start starts a process, which lists first.
func (h *history) start(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names++
	r := &replica{name: fmt.Sprint("r", h.names), h: h, events: make(chan func(), 10_000)}
	r.ctx, r.stop = context.WithCancel(t.Context())
	r.Service = seats.New(seats.Options{
		API: &api{r}, Key: h.key, Writer: r.name, Clock: clock.RealClock{}, Log: logr.Discard(), Metrics: seats.NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
		Relay: NewClient(&network{r}, h.key, clock.RealClock{}),
	})
	r.handler = Handler(h.key, r.Service)
	var list []any
	for _, p := range h.pods {
		list = append(list, p)
	}
	if err := r.Pods().Replace(list, fmt.Sprint(h.version)); err != nil {
		t.Error(err)
	}
	if h.ledger.Version > 0 {
		r.LedgerSeen(workload, h.ledger, false)
	}
	h.replicas = append(h.replicas, r)
	go func() {
		for {
			select {
			case <-r.ctx.Done():
				return
			case event := <-r.events:
				event()
			}
		}
	}()
	go func() { _ = r.Run(r.ctx) }()
}

// some returns a random number below n.
func (h *history) some(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rng.IntN(n)
}

// happens reports whether something happens that does so in so many of 100 cases.
func (h *history) happens(percent int) bool { return h.some(100) < percent }

// late lets the time pass by which an answer is late. Half of the late ones are as late as can be.
func (h *history) late() {
	if !h.happens(h.weather.late) {
		return
	}
	if h.happens(50) {
		time.Sleep(mostLate)
		return
	}
	h.passes(mostLate)
}

// passes lets a random time pass.
func (h *history) passes(most time.Duration) { time.Sleep(time.Duration(h.some(int(most)))) }

// tell has all watches show a change, each after a time of its own, and in the order of the changes. The caller holds the lock.
func (h *history) tell(change func(*replica)) {
	for _, r := range h.replicas {
		due := time.Now().Add(time.Duration(h.rng.IntN(int(50 * time.Millisecond))))
		r.events <- func() {
			time.Sleep(time.Until(due))
			r.still()
			change(r)
		}
	}
}

// still waits while the process stands still.
func (r *replica) still() {
	r.h.mu.Lock()
	until := r.until
	r.h.mu.Unlock()
	time.Sleep(time.Until(until))
}

// api is the API server as a replica reaches it.
type api struct{ *replica }

// request takes the time of a request. It returns what takes that of the answer.
func (a *api) request() (answer func()) {
	a.h.passes(15 * time.Millisecond)
	return func() {
		a.h.passes(15 * time.Millisecond)
		if a.h.happens(a.h.weather.pauses) {
			long := time.Duration(a.h.some(int(mostPause)))
			a.h.mu.Lock()
			a.until = time.Now().Add(long)
			a.h.mu.Unlock()
		}
		a.still()
	}
}

func (a *api) ReadLedger(context.Context, ledger.Owner) (*ledger.Object, error) {
	defer a.request()()
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	o := a.h.ledger
	return &o, nil
}

func (a *api) WriteLedger(_ context.Context, owner ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	defer a.request()()
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	if a.ctx.Err() != nil { // the process is gone
		return nil, ledger.WriteUncertain, a.ctx.Err()
	}
	if o.Version != a.h.ledger.Version {
		return nil, ledger.WriteConflict, nil
	}
	a.h.version++
	a.h.ledger = *o
	a.h.ledger.Claims, a.h.ledger.Version = slices.Clone(o.Claims), a.h.version
	now := a.h.ledger
	a.h.note("%s writes %+v", a.name, now.Claims)
	a.h.tell(func(r *replica) { r.LedgerSeen(owner, now, false) })
	return &now, ledger.WriteOK, nil
}

func (a *api) DeleteLedger(context.Context, ledger.Owner, uint64) error { return nil }

func (a *api) ReadReplicas(context.Context, ledger.Owner) (int64, error) {
	defer a.request()()
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	return a.h.desired, nil
}

// network carries requests of a replica to the others.
type network struct{ *replica }

func (n *network) Knows(name string) bool { return name != n.name }

func (n *network) Send(ctx context.Context, name, path string, header http.Header, body []byte, most int64) ([]byte, error) {
	n.h.mu.Lock()
	i := slices.IndexFunc(n.h.replicas, func(r *replica) bool { return r.name == name })
	var to *replica
	if i >= 0 {
		to = n.h.replicas[i]
	}
	n.h.mu.Unlock()
	if to == nil {
		return nil, errors.New("no such replica")
	}
	n.h.passes(2 * time.Millisecond)
	to.still()
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)).WithContext(ctx)
	r.Header = header.Clone()
	w := httptest.NewRecorder()
	to.handler.ServeHTTP(w, r)
	to.still()
	n.h.passes(2 * time.Millisecond)
	if n.h.happens(n.h.weather.lost) {
		<-ctx.Done()
	}
	n.h.late()
	n.still()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if w.Code != http.StatusOK {
		return nil, errors.New(w.Result().Status)
	}
	return io.ReadAll(io.LimitReader(w.Body, most))
}

// create has the API server create a pod. It returns false if there is none.
func (h *history) create(t *testing.T) bool {
	h.mu.Lock()
	r := h.replicas[h.rng.IntN(len(h.replicas))]
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	h.passes(5 * time.Millisecond)
	r.still()
	res, err := r.Claim(ctx, workload, h.strategy, true)
	r.still()
	h.late()
	if ctx.Err() != nil || h.happens(h.weather.denied) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.note("%s answers in vain: %+v", r.name, res.Seat)
		return false
	}
	if err != nil {
		t.Errorf("a pod got no seat: %v", err)
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	origin := ledger.OriginClaimed
	if !res.Written || res.Unverified {
		origin = ledger.OriginUnshared
		h.guesses++
	}
	h.names++
	h.version++
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: workload.Namespace, Name: fmt.Sprint("web-", h.names), UID: types.UID(fmt.Sprint("pod-", h.names)), ResourceVersion: fmt.Sprint(h.version),
		CreationTimestamp: metav1.Now(),
		Labels:            map[string]string{stowage.PoolLabel: res.Pool, stowage.SeatLabel: fmt.Sprint(res.Ordinal)},
		Annotations:       map[string]string{stowage.ClaimAnnotation: h.key.Sign(origin, res.ID, ledger.Holder{Namespace: workload.Namespace, Owner: string(workload.UID)}, res.Seat)},
		OwnerReferences:   []metav1.OwnerReference{{APIVersion: workload.APIVersion, Kind: workload.Kind, Name: workload.Name, UID: workload.UID, Controller: new(true)}},
	}}
	h.pods[p.Name] = p
	h.note("%s gives rank %d to %s, ahead %t, and %d are wanted", r.name, h.rank(p), p.Name, res.Prepared, h.desired)
	h.tell(func(r *replica) {
		if err := r.Pods().Add(p); err != nil {
			t.Error(err)
		}
	})
	return true
}

// fill creates pods in batches that double, as controllers do, until there are as many as are wanted.
func (h *history) fill(t *testing.T) {
	for batch := 1; ; batch *= 2 {
		h.mu.Lock()
		missing := int(h.desired) - len(h.pods)
		h.mu.Unlock()
		if missing <= 0 {
			return
		}
		var all sync.WaitGroup
		failed := make(chan bool, missing)
		for range min(batch, missing) {
			all.Go(func() {
				if !h.create(t) {
					failed <- true
				}
			})
		}
		all.Wait()
		if len(failed) > 0 { // a controller waits, and begins anew
			time.Sleep(20 * time.Millisecond)
			batch = 1
		}
	}
}

// rank returns the rank of a pod's seat.
func (h *history) rank(p *corev1.Pod) int64 {
	carried, _ := ledger.SeatOf(h.key, workload.Namespace, workload.UID, p.Labels, p.Annotations)
	pool, _ := h.strategy.PoolKeyed(carried.Pool)
	return h.strategy.RankOrNone(sequence.Seat{Pool: pool, Ordinal: carried.Ordinal})
}

// shrink removes the pods of the last ranks, as the deletion costs say, and one more at random.
func (h *history) shrink() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pods []*corev1.Pod
	for _, p := range h.pods {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return int(h.rank(b) - h.rank(a)) })
	gone := pods[:max(0, len(pods)-int(h.desired))]
	if len(pods) > len(gone) {
		gone = append(gone, pods[len(gone)+h.rng.IntN(len(pods)-len(gone))])
	}
	for _, p := range gone {
		h.note("%s with rank %d goes, and %d are wanted", p.Name, h.rank(p), h.desired)
		delete(h.pods, p.Name)
		h.version++
		last := p.DeepCopy()
		last.ResourceVersion = fmt.Sprint(h.version)
		h.tell(func(r *replica) { _ = r.Pods().Delete(last) })
	}
}

// restart replaces a process. Pods that wait for its answers get none.
func (h *history) restart(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	i := h.rng.IntN(len(h.replicas))
	h.note("%s ends", h.replicas[i].name)
	h.replicas[i].stop()
	h.replicas = slices.Delete(h.replicas, i, i+1)
	h.mu.Unlock()
	h.start(t)
}

// play scales the workload up and down, and checks it whenever it is at rest.
func (h *history) play(t *testing.T) {
	t.Helper()
	for step := range 4 {
		h.mu.Lock()
		h.desired = int64(1 + h.rng.IntN(60))
		h.mu.Unlock()
		h.shrink()
		if h.happens(50) {
			h.passes(2 * time.Second)
		}
		var all sync.WaitGroup
		if h.happens(h.weather.restarts) {
			all.Go(func() {
				h.passes(500 * time.Millisecond)
				h.restart(t)
			})
		}
		h.fill(t)
		all.Wait()
		if h.guesses > 0 {
			return // those are repaired, by a controller that is not played here
		}
		if h.check(t, step); t.Failed() {
			return
		}
		h.passes(20 * time.Second)
	}
}

// check compares the seats with the first ones of the sequence.
func (h *history) check(t *testing.T, step int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var got, want []int64
	for _, p := range h.pods {
		got = append(got, h.rank(p))
	}
	slices.Sort(got)
	for rank := range h.desired {
		want = append(want, rank+1)
	}
	if !slices.Equal(got, want) {
		t.Errorf("seed %d, %d replicas, step %d: the pods have the ranks %v\n%s", h.seed, len(h.replicas), step, got, strings.Join(h.trace, "\n"))
	}
}
