package ledger

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// burstModel is a model of a burst on a machine with two cores, in its own time. BenchmarkBurst compares variants of a book
// with it within seconds and without noise. It proves nothing (TestSimulation does) and measures nothing
// (`make bench-cluster` does).
//
// Processes have equal parts of the cores, and the requests of a process have equal parts of what it has. The work of each
// step is chosen so that the floor costs two thirds more than no webhook, as in `make bench-cluster`.
type burstModel struct {
	rng    *rand.Rand
	now    time.Duration
	timers schedule
	procs  []*process

	api, controllers, scheduler, kubelets *process
	replicas                              []*burstReplica

	pods              int
	version           uint64
	ledger            Object
	created, bypassed int
	done              time.Duration
	reads, writes     int
	conflicts, ahead  int
	scheduled         bool // the pods get nodes
	unscheduled       int  // pods; the scheduler takes one at a time
	diesAfter         int  // so many pods, the replica that writes is killed; 0 is never
}

// process shares its part of the processors equally over its jobs.
type process struct {
	most  float64 // cores
	jobs  []*job
	dead  bool
	calls map[*call]bool // those without an answer
}

// call is a request that a process is to answer.
type call struct {
	order  int
	failed func() // what the caller does if the process dies before
}

type job struct {
	left float64 // seconds of one core
	then func()
}

const cores = 2

// Seconds of one core.
const (
	workBeforeWebhook = 0.0017
	workAfterWebhook  = 0.0017
	workCallWebhook   = 0.0022
	workWebhook       = 0.0010
	workAsk           = 0.0003 // of a request for seats, on each side
	workRead          = 0.0010
	workWrite         = 0.0025
	workWatch         = 0.0002 // of an event, on each side
	workSchedule      = 0.0020
	workBind          = 0.0020
	workKubelet       = 0.0010
	workStatus        = 0.0020
	workController    = 0.0005
)

func (m *burstModel) run(p *process, work float64, then func()) {
	if p.dead {
		return
	}
	p.jobs = append(p.jobs, &job{work * (0.7 + 0.6*m.rng.Float64()), then})
}

// call has a process serve a call, which ends when its answer is taken.
func (m *burstModel) call(p *process, work float64, serve func(answer func(take func())), failed func()) {
	if p.dead {
		failed()
		return
	}
	m.timers.order++
	c := &call{m.timers.order, failed}
	p.calls[c] = true
	m.run(p, work, func() {
		serve(func(take func()) {
			if p.calls[c] {
				delete(p.calls, c)
				take()
			}
		})
	})
}

// kill ends the replica that wrote the ledger last.
func (m *burstModel) kill() {
	r := m.replicaNamed(m.ledger.Writer)
	m.replicas = slices.DeleteFunc(m.replicas, func(other *burstReplica) bool { return other == r })
	calls := slices.SortedFunc(maps.Keys(r.process.calls), func(a, b *call) int { return cmp.Compare(a.order, b.order) })
	r.process.dead, r.process.jobs, r.process.calls = true, nil, nil
	for _, c := range calls {
		c.failed()
	}
}

func (m *burstModel) at(t time.Duration, run func()) {
	m.timers.order++
	heap.Push(&m.timers, event{at: max(t, m.now), order: m.timers.order, run: run})
}

// speeds returns what each process has of the processors: equal parts, and what one does not need goes to the others.
func (m *burstModel) speeds() map[*process]float64 {
	out := map[*process]float64{}
	var busy []*process
	for _, p := range m.procs {
		if len(p.jobs) > 0 {
			busy = append(busy, p)
		}
	}
	need := func(p *process) float64 { return min(p.most, float64(len(p.jobs))) }
	slices.SortStableFunc(busy, func(a, b *process) int { return cmp.Compare(need(a), need(b)) })
	left := float64(cores)
	for i, p := range busy {
		out[p] = min(need(p), left/float64(len(busy)-i))
		left -= out[p]
	}
	return out
}

// play runs the model until nothing is left to do or it is done.
func (m *burstModel) play(until func() bool) {
	for !until() {
		speeds := m.speeds()
		next := time.Duration(math.MaxInt64)
		for p, speed := range speeds {
			for _, j := range p.jobs {
				t := m.now + time.Duration(math.Ceil(j.left*float64(len(p.jobs))/speed*1e9))
				next = min(next, t)
			}
		}
		if m.timers.Len() > 0 {
			next = min(next, m.timers.list[0].at)
		}
		if next == math.MaxInt64 {
			return
		}
		passed := (next - m.now).Seconds()
		m.now = next
		var ended []*job
		for _, p := range m.procs {
			speed, ok := speeds[p]
			if !ok {
				continue
			}
			share := passed * speed / float64(len(p.jobs))
			p.jobs = slices.DeleteFunc(p.jobs, func(j *job) bool {
				j.left -= share
				if j.left <= 1e-9 {
					ended = append(ended, j)
					return true
				}
				return false
			})
		}
		for _, j := range ended {
			j.then()
		}
		for m.timers.Len() > 0 && m.timers.list[0].at <= m.now {
			heap.Pop(&m.timers).(event).run()
		}
	}
}

type burstReplica struct {
	m       *burstModel
	name    string
	process *process
	book    *Book
	shared  Shared
	waiting map[*Request]func(Result)
	waking  time.Duration

	asking   []func(Result) // pods that wait until another replica is asked
	underWay int            // requests to other replicas
}

func (m *burstModel) replicaNamed(name string) *burstReplica {
	i := slices.IndexFunc(m.replicas, func(r *burstReplica) bool { return r.name == name })
	if i < 0 {
		return nil
	}
	return m.replicas[i]
}

// newBurstModel returns a model with replicas of Stowage, or of the floor where stowage is false.
func newBurstModel(seed uint64, pods, replicas int, stowage bool) *burstModel {
	m := &burstModel{rng: rand.New(rand.NewPCG(seed, 2)), pods: pods, version: 1}
	start := func(most float64) *process {
		p := &process{most: most, calls: map[*call]bool{}}
		m.procs = append(m.procs, p)
		return p
	}
	m.api, m.controllers, m.scheduler, m.kubelets = start(cores), start(1), start(1), start(1)
	for i := range replicas {
		r := &burstReplica{m: m, name: "w" + strconv.Itoa(i), process: start(1), waiting: map[*Request]func(Result){}, waking: never}
		if stowage {
			timing, ids := DefaultTiming(), 0
			r.book = NewBook(&timing, &r.shared, r.name, func() string {
				ids++
				return fmt.Sprintf("%d.%d", i, ids)
			})
		}
		m.replicas = append(m.replicas, r)
	}
	return m
}

// burst has the controller create all pods, in batches of 1, 2, 4 and so on.
func (m *burstModel) burst() {
	var batch func(size, left int)
	batch = func(size, left int) {
		size = min(size, left)
		pending := size
		for range size {
			m.run(m.controllers, workController, func() {
				m.create(func() {
					if pending--; pending == 0 && left > size {
						batch(2*size, left-size)
					}
				})
			})
		}
	}
	m.scheduled = true
	batch(1, m.pods)
	m.play(func() bool { return m.created == m.pods })
	m.done = m.now
}

// load has users create all pods, each one after the answer for the one before. It returns how long each create took, sorted.
func (m *burstModel) load(users int) (took []time.Duration) {
	left := m.pods
	var next func()
	next = func() {
		if left == 0 {
			return
		}
		left--
		begun := m.now
		m.create(func() {
			took = append(took, m.now-begun)
			next()
		})
	}
	for range users {
		next()
	}
	m.play(func() bool { return m.created == m.pods })
	slices.Sort(took)
	return took
}

func (m *burstModel) create(answered func()) {
	stored := func(p Pod) {
		m.run(m.api, workAfterWebhook, func() {
			m.version++
			p.Version, p.Active = m.version, true
			if m.created++; m.created == m.diesAfter {
				m.kill()
			}
			m.seen(strconv.Itoa(m.created), p)
			if m.unscheduled++; m.unscheduled == 1 && m.scheduled {
				m.schedule()
			}
			answered()
		})
	}
	m.run(m.api, workBeforeWebhook, func() {
		if len(m.replicas) == 0 {
			stored(Pod{})
			return
		}
		m.run(m.api, workCallWebhook/2, func() {
			r := m.replicas[m.rng.IntN(len(m.replicas))]
			m.call(r.process, workWebhook, func(answer func(func())) {
				seated := func(res Result) {
					answer(func() {
						m.run(m.api, workCallWebhook/2, func() { stored(Pod{Seat: res.Seat, ID: res.ID}) })
					})
				}
				if r.book == nil {
					seated(Result{})
					return
				}
				r.admit(seated)
			}, func() {
				m.bypassed++
				stored(Pod{})
			})
		})
	})
}

// admit gives a pod a seat, as seats.Service does.
func (r *burstReplica) admit(seated func(Result)) {
	ask := func() {
		r.asking = append(r.asking, seated)
		r.ask()
	}
	if r.book.Writer(r.m.now) != "" {
		ask()
		return
	}
	r.enqueue(&Request{Refer: true, Deadline: r.m.now + 4*time.Second}, func(res Result) {
		if res.Err != nil {
			ask()
			return
		}
		seated(res)
	})
	r.step()
}

// claim gives a pod a seat without another replica.
func (r *burstReplica) claim(seated func(Result)) {
	r.enqueue(&Request{Deadline: r.m.now + 4*time.Second}, seated)
	r.step()
}

func (r *burstReplica) enqueue(request *Request, answer func(Result)) {
	request.Strategy = simulated["base 1, then 1:1"]
	r.waiting[request] = func(res Result) {
		if res.Prepared {
			r.m.ahead++
		}
		answer(res)
	}
	r.book.Enqueue(r.m.now, request)
}

// ask asks the replica that writes the ledger for seats of the pods that wait.
func (r *burstReplica) ask() {
	const atOnce = 2
	m, pods := r.m, r.asking
	if len(pods) == 0 || r.underWay == atOnce {
		return
	}
	r.asking = nil
	r.underWay++
	answered := func(grants []Result) {
		r.underWay--
		for i, seated := range pods {
			switch {
			case i < len(grants):
				r.book.Granted(m.now, grants[i].ID)
				seated(grants[i])
			case len(grants) == 0:
				r.claim(seated)
			default:
				r.asking = append(r.asking, seated)
			}
		}
		r.ask()
	}
	m.run(r.process, workAsk, func() {
		writer := m.replicaNamed(r.book.Writer(m.now))
		if writer == nil {
			answered(nil)
			return
		}
		m.call(writer.process, workAsk, func(answer func(func())) {
			writer.grant(len(pods), func(grants []Result) {
				answer(func() { m.run(r.process, workAsk, func() { answered(grants) }) })
			})
		}, func() { answered(nil) })
	})
}

// grant gives seats to another replica.
func (r *burstReplica) grant(pods int, done func([]Result)) {
	deadline := r.m.now + 600*time.Millisecond
	if ahead := r.book.Spares(deadline); ahead > 0 {
		pods = min(pods, ahead)
	}
	var grants []Result
	left := pods
	for range pods {
		r.enqueue(&Request{Relayed: true, Deadline: deadline}, func(res Result) {
			if res.Written && !res.Unverified {
				grants = append(grants, res)
			} else {
				r.book.GiveBack(res.ID)
			}
			if left--; left == 0 {
				done(grants)
			}
		})
	}
	r.step()
}

// schedule takes the pods that have no node one by one.
func (m *burstModel) schedule() {
	m.run(m.scheduler, workSchedule, func() {
		m.unscheduled--
		m.run(m.api, workBind, func() {
			m.seenByAll()
			m.run(m.kubelets, workKubelet, func() { m.run(m.api, workStatus, m.seenByAll) })
		})
		if m.unscheduled > 0 {
			m.schedule()
		}
	})
}

func (m *burstModel) seen(uid string, p Pod) {
	for _, r := range m.replicas {
		m.watch(r, func() {
			r.book.PodSeen(m.now, uid, p)
			r.book.Applied(p.Version)
		})
	}
}

func (m *burstModel) seenByAll() {
	for _, r := range m.replicas {
		m.watch(r, func() {})
	}
	m.run(m.controllers, workController, func() {})
}

func (m *burstModel) watch(r *burstReplica, apply func()) {
	m.run(m.api, workWatch, func() {
		m.run(r.process, workWatch, func() {
			if r.book != nil {
				apply()
				r.step()
			}
		})
	})
}

func (r *burstReplica) step() {
	m := r.m
	if r.process.dead {
		return
	}
	for _, a := range r.book.Step(m.now) {
		switch {
		case a.Answer != nil:
			answer := r.waiting[a.Answer]
			delete(r.waiting, a.Answer)
			answer(a.Answer.Result)
		case a.ReadReplicas:
			m.reads++
			m.run(m.api, workRead, func() {
				m.run(r.process, workWatch, func() { r.book.ReplicasRead(m.now, int64(m.pods)); r.step() })
			})
		case a.ReadLedger:
			m.reads++
			m.run(m.api, workRead, func() {
				o := m.ledger
				m.run(r.process, workWatch, func() { r.book.LedgerRead(m.now, &o); r.step() })
			})
		case a.Write != nil:
			m.writes++
			m.run(m.api, workWrite, func() {
				res, o := WriteConflict, (*Object)(nil)
				if a.Write.Version == m.ledger.Version {
					m.version++
					m.ledger = *a.Write
					m.ledger.Version, m.ledger.Claims = m.version, slices.Clone(a.Write.Claims)
					written := m.ledger
					res, o = WriteOK, &written
					for _, other := range m.replicas {
						m.watch(other, func() { other.book.LedgerSeen(m.now, written, false) })
					}
				} else {
					m.conflicts++
				}
				m.run(r.process, workWatch, func() { r.book.WriteDone(m.now, res, o); r.step() })
			})
		}
	}
	if t, ok := r.book.Wake(); ok && t < r.waking {
		r.waking = t
		m.at(t, func() {
			if r.waking == t {
				r.waking = never
				r.step()
			}
		})
	}
}

// BenchmarkBurst prints means of 20 bursts of 500 pods for each count. In the last case, the replica that writes the ledger is killed after 200 pods.
func BenchmarkBurst(b *testing.B) {
	for _, tc := range []struct {
		name                string
		replicas, diesAfter int
	}{
		{"replicas=1", 1, 0},
		{"replicas=3", 3, 0},
		{"replicas=3,killed", 3, 200},
	} {
		b.Run(tc.name, func(b *testing.B) {
			var none, floor, ours time.Duration
			var requests, writes, conflicts, ahead, bypassed float64
			n := 0
			for b.Loop() {
				for range 20 {
					n++
					m := newBurstModel(uint64(n), 500, 0, false)
					m.burst()
					none += m.done
					m = newBurstModel(uint64(n), 500, tc.replicas, false)
					m.burst()
					floor += m.done
					m = newBurstModel(uint64(n), 500, tc.replicas, true)
					m.diesAfter = tc.diesAfter
					m.burst()
					ours += m.done
					requests += float64(m.reads + m.writes)
					writes += float64(m.writes)
					conflicts += float64(m.conflicts)
					ahead += float64(m.ahead)
					bypassed += float64(m.bypassed)
				}
			}
			b.ReportMetric(none.Seconds()/float64(n), "s-none")
			b.ReportMetric(floor.Seconds()/float64(n), "s-floor")
			b.ReportMetric(ours.Seconds()/floor.Seconds(), "of-floor")
			b.ReportMetric(requests/float64(n), "requests/burst")
			b.ReportMetric(writes/float64(n), "writes/burst")
			b.ReportMetric(conflicts/float64(n), "conflicts")
			b.ReportMetric(ahead/float64(n), "ahead")
			b.ReportMetric(bypassed/float64(n), "bypassed")
		})
	}
}

// BenchmarkLoad prints what the slowest of a hundred creates takes of the floor's, with so many users, as the mean of 10 loads.
func BenchmarkLoad(b *testing.B) {
	for _, users := range []int{10, 50, 200, 500} {
		b.Run(fmt.Sprintf("users=%d", users), func(b *testing.B) {
			var floor, ours time.Duration
			var writes float64
			n := 0
			for b.Loop() {
				for range 10 {
					n++
					floor += newBurstModel(uint64(n), 1000, 3, false).load(users)[990]
					m := newBurstModel(uint64(n), 1000, 3, true)
					ours += m.load(users)[990]
					writes += float64(m.writes)
				}
			}
			b.ReportMetric(ours.Seconds()/floor.Seconds(), "p99-of-floor")
			b.ReportMetric(writes/float64(n), "writes/load")
		})
	}
}
