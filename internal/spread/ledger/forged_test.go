package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// forging is a book that strangers ask for seats that no pod takes. Each of them asks again as soon as it has its answer.
type forging struct {
	*Book
	now      time.Duration
	replicas int64
	later    []due
	answers  map[*Request]func(Result)
	answered int // requests of strangers
	longest  int // claims of the ledger
	pods     map[string]Result
	created  time.Duration // how long a pod takes from its answer to the watch
}

// due is something that happens at a time.
type due struct {
	at time.Duration
	do func()
}

func newForging(replicas int64) *forging {
	timing, ids := DefaultTiming(), 0
	f := &forging{now: begin, replicas: replicas, pods: map[string]Result{}, answers: map[*Request]func(Result){}, created: 30 * time.Millisecond}
	f.Book = NewBook(&timing, &Shared{}, "w", func() string { ids++; return fmt.Sprint("c", ids) })
	return f
}

func (f *forging) after(d time.Duration, do func()) { f.later = append(f.later, due{f.now + d, do}) }

func (f *forging) ask(s *sequence.Strategy, answer func(Result)) {
	r := &Request{Strategy: s, Deadline: f.now + 4*time.Second}
	f.answers[r] = answer
	f.Enqueue(f.now, r)
}

// stranger asks without a pause until an end.
func (f *forging) stranger(s *sequence.Strategy, end time.Duration) {
	f.ask(s, func(Result) {
		if f.answered++; f.now < end {
			f.after(time.Millisecond, func() { f.stranger(s, end) })
		}
	})
}

// pod is created, as a controller does it.
func (f *forging) pod(name string, s *sequence.Strategy) {
	f.ask(s, func(r Result) {
		f.pods[name] = r
		f.after(f.created, func() {
			f.PodSeen(f.now, name, Pod{Active: true, Seat: r.Seat, ID: r.ID, Version: uint64(f.now)})
			f.Applied(uint64(f.now))
		})
	})
}

// play lets time pass, in steps of a millisecond.
func (f *forging) play(d time.Duration) {
	for end := f.now + d; f.now < end; f.now += time.Millisecond {
		happens := slices.DeleteFunc(slices.Clone(f.later), func(l due) bool { return l.at > f.now })
		f.later = slices.DeleteFunc(f.later, func(l due) bool { return l.at <= f.now })
		for _, l := range happens {
			l.do()
		}
		for _, a := range f.Step(f.now) {
			switch {
			case a.Write != nil:
				o := &Object{Version: a.Write.Version + 1, Writer: a.Write.Writer, Claims: slices.Clone(a.Write.Claims)}
				f.longest = max(f.longest, len(o.Claims))
				f.after(3*time.Millisecond, func() { f.WriteDone(f.now, WriteOK, o) })
			case a.ReadReplicas:
				f.after(3*time.Millisecond, func() { f.ReplicasRead(f.now, f.replicas) })
			case a.ReadLedger:
				f.after(3*time.Millisecond, func() { f.LedgerRead(f.now, &Object{}) })
			case a.Answer != nil:
				answer := f.answers[a.Answer]
				delete(f.answers, a.Answer)
				answer(a.Answer.Result)
			}
		}
	}
}

// base is one pod in pool 0 and the others in pool 1.
func base(t *testing.T) *sequence.Strategy {
	t.Helper()
	s, err := sequence.New([]sequence.Pool{{Name: "0", Labels: map[string]string{"p": "a"}, Base: 1}, {Name: "1", Labels: map[string]string{"p": "b"}, Weight: 1}}, sequence.EarlierWins)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Strangers who ask for seats that no pod takes, a few requests at a time and without a pause, cost the pods of an owner time, and none of
// them its pool.
func TestForgedRequestsTakeNoBase(t *testing.T) {
	for _, strangers := range []int{1, 3, 5, 10} {
		t.Run(fmt.Sprint(strangers), func(t *testing.T) {
			f, s := newForging(3), base(t)
			for range strangers {
				f.stranger(s, begin+20*time.Second)
			}
			f.play(2 * time.Second)
			for i := range 3 {
				f.pod(fmt.Sprint(i), s)
			}
			f.play(5 * time.Second)
			counts := map[string]int{}
			for name, r := range f.pods {
				if counts[r.Pool]++; r.Err != nil {
					t.Errorf("pod %s got %v", name, r.Err)
				}
			}
			if len(f.pods) != 3 || counts["0"] != 1 || counts["1"] != 2 {
				t.Errorf("%d pods came, %v by pool; want 1 and 2", len(f.pods), counts)
			}
			if f.answered == 0 {
				t.Error("no stranger was answered")
			}
		})
	}
}

// However many ask, the ledger has claims for the pods that are asked for, and for some that a controller could be creating at once.
func TestForgedRequestsFillNoLedger(t *testing.T) {
	f, s := newForging(3), base(t)
	for range 600 {
		f.stranger(s, begin+1500*time.Millisecond)
	}
	f.play(6 * time.Second)
	if most := 3 + mostBeyond; f.longest > most || f.answered < 600 {
		t.Errorf("a ledger had %d claims, want at most %d; %d were answered", f.longest, most, f.answered)
	}
}
