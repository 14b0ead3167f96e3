package ledger

import (
	"cmp"
	"container/heap"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// make test plays 2,000 histories of each kind, make test-long 17,000.
var histories = flag.Int("histories", 300, "random histories of each kind in TestSimulation")

// scenario is what a history is made of. Everything else in it follows from the seed.
type scenario struct {
	Seed       uint64
	Webhooks   int
	Strategy   string
	Lag        time.Duration // the most that a watch lags
	Latency    time.Duration // the most that a request to the API takes, each way
	Denied     int           // creates denied after admission, of 100
	Alone      bool          // webhooks do not ask each other for seats
	Lost       int           // answers of one webhook to another that are lost, of 100
	Late       int           // answers, to the API server and to another webhook, that are used up to mostLate later, of 100
	Failing    int           // requests to the API that fail, of 100; half of the writes are applied
	Flapping   bool          // scale-downs do not wait for pods to be ready
	Restarts   int           // webhook restarts, of 1000 events
	Foreign    int           // pods that were there before, in any pools and domains; 0 is a strategy without domains
	Operations []operation
}

type operation struct {
	Kind  string // "scale", "evict", "drain", "restart", "wait", "edit", "stall", "collect"
	Count int
	After time.Duration // since the operation before
}

func (s scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d webhook(s), %d pods before, strategy %s, lag %s, latency %s, %d%% denied, %d%% of answers lost, %d%% late, %d%% of ledger requests fail, %d/1000 restarts\n",
		s.Seed, s.Webhooks, s.Foreign, s.Strategy, s.Lag, s.Latency, s.Denied, s.Lost, s.Late, s.Failing, s.Restarts)
	for _, o := range s.Operations {
		fmt.Fprintf(&b, "  after %-6s %s %d\n", o.After, o.Kind, o.Count)
	}
	return b.String()
}

// The strategies, with pool names as the annotation gives them.
var simulated = map[string]*sequence.Strategy{
	"base 1, then 1:1":  parse("p=a,base=1:p=b,weight=1:p=c,weight=1"),
	"80:20":             parse("p=a,weight=80:p=b,weight=20"),
	"base 2, then 1:3":  parse("p=a,base=2,weight=1:p=b,weight=3"),
	"3:24:1:8:73":       parse("p=a,weight=3:p=b,weight=24:p=c,weight=1:p=d,weight=8:p=e,weight=73"),
	"one pool":          parse("p=a,weight=1"),
	"50:50 (an edit)":   parse("p=a,weight=50:p=b,weight=50"),
	"1:2:4 and a base":  parse("p=a,base=3,weight=1:p=b,weight=2:p=c,weight=4"),
	"equal, many pools": parse("p=a,weight=1:p=b,weight=1:p=c,weight=1:p=d,weight=1:p=e,weight=1:p=f,weight=1:p=g,weight=1:p=h,weight=1"),
}

func parse(text string) *sequence.Strategy {
	s, err := sequence.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

// bug is a mistake that the simulation must find.
type bug string

const (
	noBug           bug = ""
	noClaims        bug = "claims are not shared"
	droppedClaims   bug = "claims leave the ledger once settled"
	noReplicaCheck  bug = "no replica check"
	oldestDeadClaim bug = "the oldest dead claim is taken over"
	endsByAge       bug = "a claim ends by its age alone"
	endsWithLedger  bug = "a claim ends as it leaves the ledger"

	// Of claims ahead:
	usedLate       bug = "a seat ahead is used after others may presume it dead"
	keptAhead      bug = "a seat ahead is not given back"
	usedVoid       bug = "a seat ahead is given back and used"
	beyondReplicas bug = "seats ahead are claimed beyond the replica count"
	usedAfterEdit  bug = "a seat ahead is used after the strategy changed"
	countedTwice   bug = "a seat ahead counts twice once it is used"

	// Of seats that are asked of others:
	anyStrategy  bug = "a seat is given by another strategy than the one that is asked for"
	soonDead     bug = "a claim whose answer is late is presumed dead"
	askedAsLocal bug = "a webhook that is asked presumes claims dead in the short time of such a request"
)

// world is the API server, the ReplicaSet controller, the kubelets and the webhooks.
type world struct {
	scenario
	bug      bug
	rng      *rand.Rand
	now      time.Duration
	events   schedule
	strategy *sequence.Strategy
	log      []string

	// The API server.
	version  uint64
	pods     map[int]*simPod
	serial   int
	ledger   Object
	wroteAt  time.Duration // when the ledger was written last
	replicas int64

	controller controller
	hooks      []*hook
	guessed    int               // seats given without the ledger or the replica check, because the API failed for too long
	inFlight   int               // creates that were asked for and not answered
	edited     bool              // the strategy was edited while creates were in flight
	unsettled  int               // pods that were on their way, or not ready as the controller sees them, when the workload was scaled down; or got a seat by the count before it
	shrunk     time.Duration     // when the workload was scaled down last
	known      map[*Request]bool // requests under way that unsettled counts
	gone       int               // pods that were evicted or drained: a scale-down before they are replaced leaves their seats empty
	checked    checked
	repairing  bool
	ahead      map[string]*aheadClaim
	late       map[string]bool // claims by a replica count from before a scale-down
	failed     error           // what was wrong at a step
	restarted  bool            // a webhook's claims ahead may stay in the ledger until they are presumed dead

	layout *layout.Layout
	least  int64 // the first count at which no pool has too many of the pods that were there before
}

type simPod struct {
	Pod
	uid     int
	rank    int64
	domain  int
	ready   bool
	removed bool
}

type podEvent struct {
	pod  simPod
	gone bool
}

type ledgerEvent struct {
	object  Object
	deleted bool
}

// hook is one webhook process.
type hook struct {
	id      int
	life    int // grows at a restart; what belongs to an earlier life is void
	book    *Book
	shared  *Shared
	podDue  time.Duration // when the last pod event is delivered
	ledgDue time.Duration
	waking  time.Duration
	waiting map[*Request]func(*Request)
	asked   []time.Duration // when requests came
}

// event is something that happens at a time.
type event struct {
	at    time.Duration
	order int
	run   func()
}

type schedule struct {
	list  []event
	order int
}

func (s *schedule) Len() int { return len(s.list) }
func (s *schedule) Less(i, j int) bool {
	return s.list[i].at < s.list[j].at || s.list[i].at == s.list[j].at && s.list[i].order < s.list[j].order
}
func (s *schedule) Swap(i, j int) { s.list[i], s.list[j] = s.list[j], s.list[i] }
func (s *schedule) Push(x any)    { s.list = append(s.list, x.(event)) }
func (s *schedule) Pop() any {
	e := s.list[len(s.list)-1]
	s.list = s.list[:len(s.list)-1]
	return e
}

func (w *world) at(t time.Duration, run func()) {
	w.events.order++
	heap.Push(&w.events, event{at: max(t, w.now), order: w.events.order, run: run})
}

// after runs something within a time that is drawn.
func (w *world) after(most time.Duration, run func()) { w.at(w.now+w.draw(most), run) }

func (w *world) draw(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most) + 1))
}

func (w *world) chance(of, in int) bool { return of > 0 && w.rng.IntN(in) < of }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%8.1fms  ", float64(w.now)/1e6)+fmt.Sprintf(format, args...))
}

// The longest waits. Together with the lag they stay below MinPatience, as those of a
// healthy cluster do.
const commitLatency = 40 * time.Millisecond

// mostLate is how much later than usual an answer is used at most, and waitsForAnswer how long a webhook waits for one of another webhook (package
// seats).
const (
	mostLate       = 650 * time.Millisecond
	waitsForAnswer = 700 * time.Millisecond
)

// lateness is how much later than usual an answer is used.
func (w *world) lateness() time.Duration {
	if w.chance(w.Late, 100) {
		return w.draw(mostLate)
	}
	return 0
}

func newWorld(s scenario, b bug) *world {
	w := &world{scenario: s, bug: b, rng: rand.New(rand.NewPCG(s.Seed, 1)), pods: map[int]*simPod{}, ahead: map[string]*aheadClaim{}, late: map[string]bool{}, known: map[*Request]bool{}, shrunk: -time.Hour, strategy: simulated[s.Strategy], version: 1}
	w.layout = testkit.Layout(w.strategy, layout.Workload{})
	w.controller = controller{w: w, view: map[int]simPod{}, created: map[int]bool{}, deleted: map[int]bool{}}
	if s.Foreign > 0 {
		w.adopt()
	}
	for i := range s.Webhooks {
		h := &hook{id: i}
		w.hooks = append(w.hooks, h)
		w.start(h)
	}
	return w
}

// start makes a webhook's book from what the API has now.
func (w *world) start(h *hook) {
	h.life++
	h.shared = &Shared{}
	ids := 0
	timing := DefaultTiming()
	timing.Jitter = w.rng.Float64
	if w.bug == soonDead {
		timing.Late = 0
	}
	h.book = NewBook(&timing, h.shared, fmt.Sprintf("hook-%d of life %d", h.id, h.life), func() string {
		ids++
		return fmt.Sprintf("%d.%d.%d", h.id, h.life, ids)
	})
	h.waking, h.podDue, h.ledgDue = never, w.now, w.now
	h.waiting = map[*Request]func(*Request){}
	for _, p := range w.pods {
		if p.Pool != "" {
			h.book.PodSeen(w.now, strconv.Itoa(p.uid), p.Pod)
		}
	}
	h.book.Applied(w.version)
	if w.ledger.Version != 0 {
		h.book.LedgerSeen(w.now, known(w.ledger), false)
	}
}

// known is a ledger as a webhook reads it.
func known(o Object) Object {
	o.Claims = slices.Clone(o.Claims)
	return o
}

func (w *world) restart(h *hook) {
	w.note("webhook %d restarts with %d pods waiting", h.id, len(h.waiting))
	w.restarted = true
	waiting := h.waiting
	w.start(h)
	for _, answer := range waiting {
		w.after(w.Latency, func() { answer(nil) })
	}
}

// step lets a webhook do what it wants to do now.
func (w *world) step(h *hook) {
	if w.bug == oldestDeadClaim {
		w.takeOver(h)
	}
	life := h.life
	alive := func(run func()) func() {
		return func() {
			if h.life == life {
				run()
			}
		}
	}
	w.plant(h)
	for _, a := range h.book.Step(w.now) {
		switch {
		case a.Answer != nil:
			w.answered(h, a.Answer)
			if (w.late[a.Answer.Result.ID] || w.behind(h)) && !w.known[a.Answer] && !errors.Is(a.Answer.Result.Err, ErrElsewhere) {
				w.unsettled++
			}
			delete(w.known, a.Answer)
			if a.Answer.Result.Prepared {
				w.checked.ahead++
			}
			answer := h.waiting[a.Answer]
			delete(h.waiting, a.Answer)
			w.after(w.Latency, func() { answer(a.Answer) })
		case a.ReadReplicas:
			w.after(w.Latency, func() {
				n := w.replicas
				if w.bug == noReplicaCheck {
					n = -1
				}
				w.after(w.Latency, alive(func() {
					if w.chance(w.Failing, 100) {
						h.book.ReplicasFailed(w.now)
					} else {
						h.book.ReplicasRead(w.now, n)
					}
					w.step(h)
				}))
			})
		case a.ReadLedger:
			w.after(w.Latency, func() {
				o := known(w.ledger)
				w.after(w.Latency, alive(func() {
					if w.chance(w.Failing, 100) {
						h.book.LedgerRead(w.now, nil)
					} else {
						h.book.LedgerRead(w.now, &o)
					}
					w.step(h)
				}))
			})
		case a.Write != nil:
			w.plantWrite(h, a.Write)
			w.wrote(h, a.Write)
			w.after(w.Latency, func() {
				fails := w.chance(w.Failing, 100)
				busy := fails && w.chance(1, 3)
				res, o := WriteUncertain, (*Object)(nil)
				if !fails || !busy && w.chance(1, 2) {
					res, o = w.write(*a.Write)
				}
				switch {
				case busy:
					res, o = WriteBusy, nil
				case fails:
					res, o = WriteUncertain, nil
				}
				w.after(w.Latency, alive(func() {
					switch {
					case busy:
						h.shared.Load.Refused(w.now, h.book.timing.Busy)
					case !fails:
						h.shared.Load.Served()
					}
					h.book.WriteDone(w.now, res, o)
					w.step(h)
				}))
			})
		}
	}
	w.held(h)
	if t, ok := h.book.Wake(); ok && t < h.waking {
		h.waking = t
		w.at(t, alive(func() {
			if h.waking == t {
				h.waking = never
			}
			w.step(h)
		}))
	}
}

// behind reports whether a webhook still gives seats by a replica count from before a scale-down, as it may for a time.
func (w *world) behind(h *hook) bool {
	return h.book.replicas > w.replicas && w.now <= w.shrunk+h.book.timing.Ahead+2*w.Latency
}

// write is the API server's conditional write of the ledger.
func (w *world) write(o Object) (WriteResult, *Object) {
	if o.Version != w.ledger.Version {
		return WriteConflict, nil
	}
	switch w.bug {
	case noClaims:
		o.Claims = nil
	case droppedClaims:
		o.Claims = slices.DeleteFunc(slices.Clone(o.Claims), func(c Claim) bool { return c.Settled != 0 })
	}
	w.version++
	w.wroteAt = w.now
	o.Version = w.version
	o.Claims = slices.Clone(o.Claims)
	w.ledger = o
	w.publishLedger(ledgerEvent{object: o})
	return WriteOK, &o
}

func (w *world) publishLedger(e ledgerEvent) {
	for _, h := range w.hooks {
		life := h.life
		h.ledgDue = max(h.ledgDue, w.now+w.draw(w.Lag))
		w.at(h.ledgDue, func() {
			if h.life == life {
				h.book.LedgerSeen(w.now, known(e.object), e.deleted)
				w.step(h)
			}
		})
	}
}

// publish shows a pod to every watch, each in its own time.
func (w *world) publish(p *simPod, gone bool) {
	w.version++
	p.Version = w.version
	e := podEvent{pod: *p, gone: gone}
	for _, h := range w.hooks {
		if p.Pool == "" {
			break // the webhooks watch pods with a seat
		}
		life := h.life
		h.podDue = max(h.podDue, w.now+w.draw(w.Lag))
		w.at(h.podDue, func() {
			if h.life != life {
				return
			}
			if e.gone {
				h.book.PodGone(w.now, strconv.Itoa(e.pod.uid))
			} else {
				h.book.PodSeen(w.now, strconv.Itoa(e.pod.uid), e.pod.Pod)
			}
			h.book.Applied(e.pod.Version)
			w.step(h)
		})
	}
	w.controller.due = max(w.controller.due, w.now+w.draw(w.Lag))
	w.at(w.controller.due, func() { w.controller.see(e) })
}

// create is a pod's way from its controller through a webhook into the API.
func (w *world) create(answered func(ok bool, uid int)) {
	w.inFlight++
	counted := w.controller.aim > w.replicas
	if counted {
		w.unsettled++ // the controller goes on with what it began before the scale-down
	}
	done := func(ok bool, uid int) {
		w.inFlight--
		answered(ok, uid)
	}
	h, begun := w.hooks[w.rng.IntN(len(w.hooks))], w.now
	refused := func() { w.after(w.Latency, func() { done(false, 0) }) }
	w.after(w.Latency, func() {
		answer := func(r *Request) {
			if r == nil { // the webhook is gone, and the API server fails closed
				refused()
				return
			}
			if w.chance(w.Denied, 100) {
				w.note("create of %s/%d is denied", r.Result.Pool, r.Result.Ordinal)
				refused()
				return
			}
			if r.Result.Err == nil && (!r.Result.Written || r.Result.Unverified) {
				w.guessed++
			}
			w.at(w.now+w.lateness()+w.draw(commitLatency), func() {
				w.serial++
				p := &simPod{uid: w.serial}
				if r.Result.Err == nil {
					p.Pod = Pod{Seat: r.Result.Seat, ID: r.Result.ID}
					p.domain, p.rank = w.seated(p)
				}
				p.Active = true
				w.pods[p.uid] = p
				w.note("pod %d is created: %s/%d by webhook %d", p.uid, p.Pool, p.Ordinal, h.id)
				w.publish(p, false)
				w.after(50*time.Millisecond, func() {
					if !p.removed && p.Active {
						p.ready = true
						w.publish(p, false)
					}
				})
				w.after(w.Latency, func() { done(true, p.uid) })
			})
		}
		ask := func(at *hook, r *Request, answer func(*Request)) {
			r.Relayed = at != h && w.bug != askedAsLocal
			if counted || begun <= w.shrunk {
				w.known[r] = true
			}
			at.waiting[r] = answer
			at.asked = append(at.asked, w.now)
			at.book.Enqueue(w.now, r)
			w.step(at)
		}
		deadline, s, life := w.now+4*time.Second, w.strategy, h.life
		local := func() { ask(h, &Request{Strategy: s, Deadline: deadline}, answer) }
		if w.chance(10, 100) { // its review has too little time to ask another webhook
			local()
			return
		}
		if w.relay(h, s, ask, answer, refused, local) {
			return
		}
		ask(h, &Request{Strategy: s, Refer: !w.Alone, Deadline: deadline}, func(r *Request) {
			switch {
			case r == nil || !errors.Is(r.Result.Err, ErrElsewhere):
				answer(r)
			case h.life != life:
				refused()
			case !w.relay(h, s, ask, answer, refused, local):
				local()
			}
		})
	})
}

// relay has a webhook ask the one that writes the ledger for a seat, as package seats does. It returns false if there is none to ask.
func (w *world) relay(h *hook, s *sequence.Strategy, ask func(*hook, *Request, func(*Request)), answer func(*Request), refused, local func()) bool {
	id, life := -1, 0
	if _, err := fmt.Sscanf(h.book.Writer(w.now), "hook-%d of life %d", &id, &life); err != nil || id == h.id || w.Alone {
		return false
	}
	writer, life, seen := w.hooks[id], h.life, h.book.Seen() // it may have restarted since
	asked := w.now
	back := func(late time.Duration, run func()) {
		w.at(w.now+late+w.draw(w.Latency), func() {
			if h.life != life {
				refused()
			} else {
				run()
			}
		})
	}
	w.after(w.Latency, func() {
		known := writer.book.Strategy(s.Fingerprint().String())
		if w.bug == anyStrategy && writer.book.latest != nil {
			known = writer.book.latest.Strategy
		}
		if known == nil || writer.book.Struggles() {
			back(0, local)
			return
		}
		w.checked.relayed++
		writer.book.SeenElsewhere(w.now, seen)
		ask(writer, &Request{Strategy: known, Deadline: w.now + 600*time.Millisecond}, func(r *Request) {
			switch {
			case r == nil || r.Result.Err != nil:
				back(0, local)
			case !r.Result.Written || r.Result.Unverified:
				writer.book.GiveBack(r.Result.ID)
				w.step(writer)
				back(0, local)
			case w.chance(w.Lost, 100):
				w.note("the answer %s/%d of webhook %d to webhook %d is lost", r.Result.Pool, r.Result.Ordinal, writer.id, h.id)
				back(asked+waitsForAnswer-w.now, local)
			default:
				late := w.lateness()
				if w.now+late > asked+waitsForAnswer {
					w.note("the answer %s/%d of webhook %d to webhook %d is too late", r.Result.Pool, r.Result.Ordinal, writer.id, h.id)
					back(asked+waitsForAnswer-w.now, local)
					return
				}
				back(late, func() {
					h.book.Granted(w.now, r.Result.ID)
					answer(r)
				})
			}
		})
	})
	return true
}

// remove ends a pod: first it is ending, then it is gone.
func (w *world) remove(uid int) {
	p := w.pods[uid]
	if p == nil || !p.Active {
		return
	}
	p.Active = false
	w.note("pod %d (%s/%d) ends", uid, p.Pool, p.Ordinal)
	w.publish(p, false)
	w.after(100*time.Millisecond, func() {
		p.removed = true
		delete(w.pods, uid)
		w.publish(p, true)
	})
}

// controller is the ReplicaSet controller (k8s.io/kubernetes/pkg/controller/replicaset):
// its own lagging view, expectations, slow-start batches, and its order of deletion.
type controller struct {
	w        *world
	view     map[int]simPod
	replicas int64
	aim      int64 // what replicas was when it began to create pods
	due      time.Duration
	busy     bool         // in the middle of a sync
	created  map[int]bool // pods whose creation it waits to see
	deleted  map[int]bool
	failures int
}

func (c *controller) see(e podEvent) {
	if e.gone || !e.pod.Active {
		delete(c.deleted, e.pod.uid)
	}
	if e.gone {
		delete(c.view, e.pod.uid)
	} else {
		c.view[e.pod.uid] = e.pod
	}
	if c.created[e.pod.uid] {
		delete(c.created, e.pod.uid)
	}
	c.sync()
}

func (c *controller) sync() {
	if c.busy || len(c.created) > 0 || len(c.deleted) > 0 {
		return
	}
	var active []simPod
	for _, p := range c.view {
		if p.Active {
			active = append(active, p)
		}
	}
	diff := int64(len(active)) - c.replicas
	switch {
	case diff < 0:
		c.busy, c.aim = true, c.replicas
		c.batch(int(min(-diff, 500)), 1)
	case diff > 0:
		slices.SortFunc(active, func(a, b simPod) int {
			if a.ready != b.ready {
				if a.ready {
					return 1
				}
				return -1
			}
			// A lower cost goes first: the higher rank, and no rank before any.
			cost := func(p simPod) int64 {
				if p.rank == 0 {
					return 0
				}
				return 10_000_000 - p.rank
			}
			return cmp.Or(cmp.Compare(cost(a), cost(b)), cmp.Compare(b.uid, a.uid))
		})
		for _, p := range active[:diff] {
			c.deleted[p.uid] = true
			c.w.after(c.w.Latency, func() {
				if q := c.w.pods[p.uid]; q == nil || !q.Active {
					delete(c.deleted, p.uid)
					c.sync()
				}
				c.w.remove(p.uid)
			})
		}
	}
}

// batch creates pods in parallel, and twice as many after that, until one fails.
func (c *controller) batch(left, size int) {
	size = min(left, size)
	answered, failed := 0, false
	for range size {
		c.w.create(func(ok bool, uid int) {
			answered++
			if !ok {
				failed = true
			} else if _, seen := c.view[uid]; !seen && c.w.pods[uid] != nil {
				c.created[uid] = true
			}
			if answered < size {
				return
			}
			switch {
			case failed:
				c.busy = false
				c.failures++
				c.w.at(c.w.now+5*time.Millisecond<<min(c.failures, 8), c.sync)
			case left > size:
				c.batch(left-size, 2*size)
			default:
				c.busy, c.failures = false, 0
				c.sync()
			}
		})
	}
}

// settle runs until nothing happens any more.
func (w *world) settle() error {
	for steps := 0; w.events.Len() > 0; steps++ {
		if steps > 200_000 {
			return fmt.Errorf("the history does not end")
		}
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.run()
		if w.chance(w.Restarts, 1000) && w.now < time.Hour {
			w.restart(w.hooks[w.rng.IntN(len(w.hooks))])
		}
	}
	return nil
}

// runFor lets time pass.
func (w *world) runFor(d time.Duration) {
	end := w.now + d
	for w.events.Len() > 0 && w.events.list[0].at <= end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.run()
		if w.chance(w.Restarts, 1000) {
			w.restart(w.hooks[w.rng.IntN(len(w.hooks))])
		}
	}
	w.now = end
}

// check compares the pods with the sequence.
func (w *world) check() error {
	if w.failed != nil {
		return w.failed
	}
	var live int64
	counts := make([]int64, w.strategy.Len())
	ordinals := map[Seat]int{}
	for _, p := range w.pods {
		if !p.Active {
			return fmt.Errorf("pod %d is still ending", p.uid)
		}
		live++
		if p.Pool == "" {
			return fmt.Errorf("pod %d has no seat", p.uid)
		}
		pool, _ := strconv.Atoi(p.Pool)
		counts[pool]++
		ordinals[Seat{Pool: p.Pool, Ordinal: p.position()}]++
	}
	if live != w.replicas {
		return fmt.Errorf("%d pods of %d", live, w.replicas)
	}
	switch {
	case w.repairing:
		w.checked.repaired++
	case w.Flapping || w.guessed > 0 || w.Foreign > 0 && w.chance(1, 2):
		return w.checkRepaired()
	default:
		w.checked.exact++
	}
	for pool, n := range counts {
		if want := w.strategy.Target(pool, live); n != want {
			return fmt.Errorf("counts are %v at %d pods; pool %d should have %d", counts, live, pool, want)
		}
		for o := int64(1); o <= n; o++ {
			if s := (Seat{Pool: strconv.Itoa(pool), Ordinal: o}); ordinals[s] != 1 {
				if w.edited && !w.repairing && ordinals[s] == 0 {
					w.checked.exact--
					return w.checkRepaired() // a pod on its way has a higher seat of the former strategy
				}
				return fmt.Errorf("seat %v is held by %d pods (counts %v)", s, ordinals[s], counts)
			}
		}
	}
	if n := slices.IndexFunc(w.ledger.Claims, func(c Claim) bool { a := w.ahead[c.ID]; return c.Ahead && a != nil && !a.used }); n >= 0 && !w.restarted && w.Failing == 0 {
		return fmt.Errorf("the seat %v is still claimed ahead", w.ledger.Claims[n].Seat)
	}
	if err := w.checkDomains(); err != nil {
		return err
	}
	// The books agree with the API once nothing moves.
	for _, h := range w.hooks {
		h.book.refresh(w.now)
		pods := int64(0)
		for _, p := range h.book.pods {
			if p.Active {
				pods++
			}
		}
		if pods != live || h.book.total < live {
			return fmt.Errorf("webhook %d counts %d seats of %d pods; there are %d pods", h.id, h.book.total, pods, live)
		}
	}
	return nil
}

// checkRepaired checks a history whose counts need not be exact at once: no more pods are in the
// wrong pool than seats were guessed, pods were not settled at a scale-down and pods were evicted. After
// repair none is.
func (w *world) checkRepaired() error {
	if wrong, explained := w.distance(), int64(w.guessed+w.unsettled+w.gone); wrong > explained {
		return fmt.Errorf("%d pods are in the wrong pool; %d guessed seats, %d pods that were not settled at a scale-down and %d evicted pods explain %d",
			wrong, w.guessed, w.unsettled, w.gone, explained)
	}
	w.repairing = true
	defer func() { w.repairing = false }()
	if err := w.repair(); err != nil {
		return err
	}
	w.guessed, w.unsettled, w.gone = 0, 0, 0
	return w.check()
}

// run plays a scenario and returns what is wrong in the end, or at a quiet point.
func (s scenario) run(b bug) (*world, error) {
	w := newWorld(s, b)
	for i, o := range s.Operations {
		if i == 0 {
			o.Count = max(o.Count, int(w.least))
		}
		// A scale-down takes pods that are not ready first, whatever their rank: what
		// is exact is a scale-down of pods that are.
		down := o.Kind == "scale" && int64(o.Count) < w.replicas && !w.Flapping
		if down || o.Kind == "edit" && w.chance(1, 2) {
			if err := w.quiet(); err != nil {
				return w, fmt.Errorf("before operation %d: %w", i+1, err)
			}
		} else {
			w.runFor(o.After)
		}
		w.note("%s %d", o.Kind, o.Count)
		switch o.Kind {
		case "scale":
			if int64(o.Count) < w.replicas {
				w.unsettled += w.inFlight
				w.shrunk = w.now
				for _, h := range w.hooks {
					for r := range h.waiting {
						w.known[r] = true
					}
				}
				live := int64(0)
				for _, p := range w.pods {
					if p.Active {
						live++
					}
				}
				for uid, p := range w.pods {
					// In a burst, some pods have later seats than others that are still to come. If it ends here, they stay.
					pool, _ := strconv.Atoi(p.Pool)
					early := live < w.replicas && p.position() > w.strategy.Target(pool, int64(o.Count))
					if p.Active && (!w.controller.view[uid].ready || early) {
						w.unsettled++
					}
				}
			}
			w.replicas = int64(o.Count)
			w.after(w.Lag, func() { w.controller.replicas = w.replicas; w.controller.sync() })
		case "evict", "drain":
			var live []int
			for uid, p := range w.pods {
				if p.Active {
					live = append(live, uid)
				}
			}
			slices.Sort(live)
			w.rng.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
			for _, uid := range live[:min(o.Count, len(live))] {
				w.remove(uid)
				w.gone++
			}
		case "restart":
			w.restart(w.hooks[o.Count%len(w.hooks)])
		case "wait":
			w.runFor(time.Duration(o.Count) * time.Second)
		case "stall":
			h := w.hooks[o.Count%len(w.hooks)]
			h.podDue = max(h.podDue, w.now+time.Duration(o.Count)*time.Second)
		case "collect":
			if w.ledger.Version != 0 && w.now-w.wroteAt > time.Minute {
				w.removeLedger()
			}
		case "edit":
			// From 80:20 to 50:50, and to where no pool is over its new target.
			if w.Strategy != "80:20" {
				continue
			}
			w.edited = w.inFlight > 0
			w.strategy = simulated["50:50 (an edit)"]
			w.layout = testkit.Layout(w.strategy, layout.Workload{})
			w.replicas = 2*w.replicas + 2
			w.after(w.Lag, func() { w.controller.replicas = w.replicas; w.controller.sync() })
			return w, w.quiet()
		}
		if down {
			if err := w.quiet(); err != nil {
				return w, fmt.Errorf("after operation %d: %w", i+1, err)
			}
		}
	}
	return w, w.quiet()
}

func (w *world) quiet() error {
	if err := w.settle(); err != nil {
		return err
	}
	w.collect()
	return w.check()
}

// collect is the controller that removes ledgers without claims.
func (w *world) collect() {
	if w.ledger.Version == 0 || !w.chance(1, 2) {
		return
	}
	w.now += time.Minute + time.Second
	w.removeLedger()
}

func (w *world) removeLedger() {
	w.version++
	w.ledger = Object{}
	w.publishLedger(ledgerEvent{object: Object{Version: w.version}, deleted: true})
}

// takeOver is the planted mistake of taking the oldest dead claim's seat instead of
// deciding anew.
func (w *world) takeOver(h *hook) {
	b := h.book
	if b.writing || !b.known {
		return
	}
	for _, r := range b.queue {
		if r.claim != nil || r.blockedAt == 0 || w.now < r.blockedAt+b.timing.patience(b.settle) {
			continue
		}
		for _, c := range b.claims {
			if c.counted && !c.waiting && w.now-c.firstSeen >= b.timing.patience(b.settle) {
				b.drop(c)
				c.ID = b.newID()
				c.firstSeen, c.own, c.counted, c.waiting, c.place, c.Ahead, c.ahead = w.now, true, true, true, unwritten, false, nil
				b.byID[c.ID] = c
				b.take(c.Seat, c.ID)
				r.claim = c
				b.unwritten = true
				break
			}
		}
	}
}

// kinds are the kinds of histories.
var kinds = map[string]func(*rapid.T, *scenario){
	"bursts and restarts": func(t *rapid.T, s *scenario) {
		s.Restarts = rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(t, "restarts")
		s.Operations = operations(t, "scale", "scale", "wait", "restart")
	},
	"evictions and drains": func(t *rapid.T, s *scenario) {
		s.Restarts = rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "restarts")
		s.Operations = operations(t, "scale", "evict", "evict", "drain", "wait", "restart")
	},
	"answers that are lost": func(t *rapid.T, s *scenario) {
		s.Alone = false
		s.Lost = rapid.SampledFrom([]int{5, 20, 50}).Draw(t, "lost")
		s.Restarts = rapid.SampledFrom([]int{0, 0, 5}).Draw(t, "restarts")
		s.Operations = operations(t, "scale", "scale", "evict", "wait")
	},
	"answers that come late": func(t *rapid.T, s *scenario) {
		s.Late = rapid.SampledFrom([]int{10, 100}).Draw(t, "late")
		s.Denied = rapid.SampledFrom([]int{0, 5, 20}).Draw(t, "denied")
		s.Operations = operations(t, "scale", "scale", "evict", "evict", "wait")
	},
	"denied creates": func(t *rapid.T, s *scenario) {
		s.Denied = rapid.SampledFrom([]int{5, 10, 30}).Draw(t, "denied")
		s.Operations = operations(t, "scale", "scale", "evict", "wait")
	},
	"a slow and failing API": func(t *rapid.T, s *scenario) {
		s.Failing = rapid.SampledFrom([]int{5, 20}).Draw(t, "failing")
		s.Operations = operations(t, "scale", "scale", "evict", "wait", "restart")
	},
	// Nothing is lost, whatever happens at once.
	"flapping": func(t *rapid.T, s *scenario) {
		s.Flapping, s.Restarts = true, 2
		s.Operations = operations(t, "scale", "scale", "scale", "evict", "drain")
	},
	// Pods come while seats are held ahead, and less are asked for meanwhile.
	"bursts of many pods": func(t *rapid.T, s *scenario) {
		s.Restarts = rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "restarts")
		s.Operations = operations(t, "scale", "evict", "scale")
		s.Operations = s.Operations[:min(3, len(s.Operations))]
		for i := range s.Operations {
			if o := &s.Operations[i]; o.Kind == "scale" {
				o.Count *= 2
			}
		}
	},
	// The watch of a replica shows no pod for longer than a claim lasts, and the workload grows. The counts are exact all the
	// same, while no pod goes and none is denied: what a watch does not show gone, nobody can know.
	"a watch that lags": func(t *rapid.T, s *scenario) {
		count := 0
		for range rapid.IntRange(2, 4).Draw(t, "rounds") {
			count += rapid.IntRange(1, 30).Draw(t, "more")
			soon := func(of string) time.Duration {
				return time.Duration(rapid.IntRange(0, 300).Draw(t, "after "+of)) * time.Millisecond
			}
			s.Operations = append(s.Operations,
				operation{Kind: "stall", Count: rapid.IntRange(0, 240).Draw(t, "stall"), After: soon("a scale-up")},
				operation{Kind: "scale", Count: count, After: soon("a stall")},
				operation{Kind: "wait", Count: rapid.IntRange(0, 90).Draw(t, "wait")},
				operation{Kind: rapid.SampledFrom([]string{"collect", "wait"}).Draw(t, "collect")})
		}
	},
	// Some pods were there before, in any pools and domains.
	"adopted pods": func(t *rapid.T, s *scenario) {
		s.Foreign = rapid.IntRange(1, 30).Draw(t, "foreign")
		s.Restarts = rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "restarts")
		s.Operations = operations(t, "scale", "scale", "scale", "evict", "restart")
	},
	"edits": func(t *rapid.T, s *scenario) {
		s.Strategy = "80:20"
		s.Operations = append(operations(t, "scale", "evict"), operation{Kind: "edit"})
	},
}

func operations(t *rapid.T, kinds ...string) []operation {
	first := operation{Kind: "scale", Count: rapid.IntRange(2, 60).Draw(t, "first count")}
	return append([]operation{first}, rapid.SliceOfN(rapid.Custom(func(t *rapid.T) operation {
		o := operation{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		switch o.Kind {
		case "evict":
			o.Count = rapid.IntRange(1, 6).Draw(t, "count")
		case "drain":
			o.Count = rapid.IntRange(5, 40).Draw(t, "count")
		case "wait":
			o.Count = rapid.IntRange(0, 70).Draw(t, "count")
		default:
			o.Count = rapid.IntRange(0, 60).Draw(t, "count")
		}
		o.After = time.Duration(rapid.IntRange(0, 300).Draw(t, "after")) * time.Millisecond
		return o
	}), 1, 6).Draw(t, "operations")...)
}

func drawScenario(t *rapid.T, kind string) scenario {
	s := scenario{
		Webhooks: rapid.IntRange(1, 5).Draw(t, "webhooks"),
		Lag:      time.Duration(rapid.SampledFrom([]int{1, 20, 80}).Draw(t, "lag")) * time.Millisecond,
		Latency:  20 * time.Millisecond,
		Alone:    rapid.Bool().Draw(t, "alone"),
		Strategy: rapid.SampledFrom([]string{"base 1, then 1:1", "80:20", "base 2, then 1:3", "3:24:1:8:73", "one pool", "1:2:4 and a base", "equal, many pools"}).Draw(t, "strategy"),
	}
	if s.Lag < 80*time.Millisecond {
		s.Latency = time.Duration(rapid.SampledFrom([]int{1, 20, 45}).Draw(t, "latency")) * time.Millisecond
	}
	kinds[kind](t, &s)
	s.Seed = rapid.Uint64().Draw(t, "seed")
	return s
}

// check plays random histories of a kind, and returns what was checked in them. rapid reduces one
// that fails to a short one.
func check(tb rapid.TB, kind string) (sum checked) {
	rapid.Check(tb, func(t *rapid.T) {
		s := drawScenario(t, kind)
		w, err := s.run(noBug)
		if err != nil {
			t.Fatalf("%v\n%s%s", err, s, strings.Join(w.log, "\n"))
		}
		if w.guessed > 0 && s.Failing == 0 {
			t.Fatalf("%d seats were guessed\n%s%s", w.guessed, s, strings.Join(w.log, "\n"))
		}
		w.checked.pods = w.serial
		sum.add(w.checked)
	})
	return sum
}

func TestSimulation(t *testing.T) {
	old := flag.Lookup("rapid.checks").Value.String()
	_ = flag.Set("rapid.checks", strconv.Itoa(*histories))
	t.Cleanup(func() { _ = flag.Set("rapid.checks", old) }) // when all kinds are done
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			n := check(t, kind)
			t.Logf("%d histories: counts and ordinals demanded at once at %d quiet points, after repair (%d moves) at %d; %.0f%% of the pods had a seat claimed ahead, and %.0f%% were asked of another webhook",
				*histories, n.exact, n.moves, n.repaired, 100*float64(n.ahead)/float64(n.pods), 100*float64(n.relayed)/float64(n.pods))
			if n.exact+n.repaired < *histories {
				t.Errorf("only %d quiet points were checked", n.exact+n.repaired)
			}
		})
	}
}

// The simulation finds the mistakes that others made, and those that were considered.
func TestSimulationFindsPlantedBugs(t *testing.T) {
	for b, kind := range map[bug]string{
		noClaims: "bursts and restarts", droppedClaims: "evictions and drains",
		noReplicaCheck: "evictions and drains", oldestDeadClaim: "bursts and restarts",
		usedLate: "bursts of many pods", keptAhead: "bursts of many pods", usedVoid: "bursts of many pods", beyondReplicas: "bursts of many pods",
		usedAfterEdit: "edits", countedTwice: "bursts of many pods",
		anyStrategy: "edits", askedAsLocal: "a watch that lags", soonDead: "answers that come late",
		endsByAge: "a watch that lags", endsWithLedger: "a watch that lags",
		costByOrdinal: "adopted pods", renumberedAnyhow: "adopted pods", domainsByCounting: "adopted pods",
	} {
		t.Run(string(b), func(t *testing.T) {
			wrong := 0
			n := 0
			for ; n < 5000 && wrong < 5; n++ {
				s := rapid.Custom(func(t *rapid.T) scenario { return drawScenario(t, kind) }).Example(n)
				if _, err := s.run(b); err != nil {
					wrong++
				}
			}
			t.Logf("%d of %d histories end wrong", wrong, n)
			if wrong == 0 {
				t.Error("the simulation does not notice")
			}
		})
	}
}
