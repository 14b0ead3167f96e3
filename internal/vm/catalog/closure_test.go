package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/tries"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const failAfter = 5 * time.Minute

// waiting returns pods of a namespace that have waited for a while for a VM of a type.
func waiting(n int, namespace, name string, now time.Time, waits time.Duration) []Pod {
	pods := make([]Pod, n)
	for i := range pods {
		pods[i] = Pod{Namespace: namespace, Type: name, Began: now.Add(-waits)}
	}
	return pods
}

// next is [Catalog.Next] of a catalog that has all types of the pods and the closures.
func next(v View, closures []Closure) []Closure { return nextAfter(failAfter, v, closures) }

// nextAfter is [next] with another time that a VM may take to be made.
func nextAfter(fail time.Duration, v View, closures []Closure) []Closure {
	o, names := &stowage.VMCatalog{Spec: stowage.VMCatalogSpec{FailAfter: fail.String()}}, map[string]bool{}
	for i := range v.Pods {
		names[v.Pods[i].Type] = true
	}
	for i := range closures {
		names[closures[i].Type] = true
		o.Status.Closed = append(o.Status.Closed, closures[i].Status())
	}
	for name := range names {
		o.Spec.Types = append(o.Spec.Types, stowage.VMType{Name: name, VCPUs: 1, Memory: resource.MustParse("1Gi")})
	}
	return Compile(o).Next(v, tries.Default())
}

func keys(closures []Closure) string {
	var out []string
	for _, c := range closures {
		out = append(out, fmt.Sprintf("%s/%s/%s", c.Namespace, c.Type, c.Phase))
	}
	return strings.Join(out, " ")
}

func TestWhatCloses(t *testing.T) {
	made := func(namespace string, ago time.Duration) Pod {
		return Pod{Namespace: namespace, Type: "a", Began: start.Add(-time.Hour), Made: start.Add(-ago)}
	}
	three := append(append(waiting(1, "x", "a", start, failAfter), waiting(1, "y", "a", start, failAfter)...), waiting(1, "z", "a", start, failAfter)...)
	for _, tc := range []struct {
		name string
		pods []Pod
		want string
	}{
		{"one pod that waits alone", waiting(1, "ns", "a", start, failAfter), "ns/a/Closed"},
		{"one that has not waited long enough", waiting(1, "ns", "a", start, failAfter-time.Second), ""},
		{"one of three that wait", append(waiting(1, "ns", "a", start, failAfter), waiting(2, "ns", "a", start, time.Minute)...), ""},
		{"three of many", append(waiting(3, "ns", "a", start, failAfter), waiting(20, "ns", "a", start, time.Minute)...), "ns/a/Closed"},
		{"a VM was made meanwhile", append(waiting(5, "ns", "a", start, failAfter), made("ns", time.Minute)), ""},
		{"a VM was made for somebody else, as it seems", append(waiting(5, "ns", "a", start, failAfter), made("other", time.Minute)), "ns/a/Closed"},
		{"the last VM was made long ago", append(waiting(5, "ns", "a", start, failAfter), made("ns", failAfter)), "ns/a/Closed"},
		{"a VM of another type was made", append(waiting(1, "ns", "b", start, failAfter), made("ns", time.Minute)), "ns/b/Closed"},
		{"two namespaces", append(waiting(1, "x", "a", start, failAfter), waiting(1, "y", "a", start, failAfter)...), "x/a/Closed y/a/Closed"},
		{"three namespaces", three, "/a/Closed"},
		{"three namespaces, and two others with VMs", append(slices.Clone(three), made("p", time.Minute), made("q", time.Minute)), "/a/Closed"},
		{"three namespaces, and three others with VMs", append(slices.Clone(three), made("p", time.Minute), made("q", time.Minute), made("r", time.Minute)), "x/a/Closed y/a/Closed z/a/Closed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := View{Now: start, Pods: tc.pods}
			if got := keys(next(v, nil)); got != tc.want {
				t.Errorf("closed are %q, want %q", got, tc.want)
			}
			if got := nextAfter(0, v, nil); got != nil {
				t.Errorf("with failAfter 0, closed are %v", got)
			}
		})
	}
}

// What is closed is tried again, for longer and longer in vain, until a VM was made or nobody has waited for a while.
func TestPhases(t *testing.T) {
	timing := tries.Default()
	now := start
	look := func(closures []Closure, pods ...Pod) []Closure {
		works := Pod{Namespace: "ns", Type: "works", Began: now.Add(-time.Hour), Made: now}
		return next(View{Now: now, Pods: append(pods, works)}, closures)
	}
	closures := look(nil, waiting(1, "ns", "a", now, failAfter)...)
	wait := timing.First
	for try := range 8 {
		// 1. Closed until the wait is over.
		now = now.Add(wait - time.Second)
		if got := keys(look(closures)); got != "ns/a/Closed" {
			t.Fatalf("try %d: %q before the wait of %s is over", try, got, wait)
		}
		now = now.Add(time.Second)
		if closures = look(closures); keys(closures) != "ns/a/Trying" {
			t.Fatalf("try %d: %q after the wait of %s", try, keys(closures), wait)
		}
		// 2. A pod that waited before does not count for the try, and the one that tries does once it has waited.
		old := waiting(1, "ns", "a", now, time.Hour)
		now = now.Add(time.Second)
		trying := waiting(1, "ns", "a", now, 0)
		now = now.Add(failAfter - time.Second)
		if got := keys(look(closures, append(old, trying...)...)); got != "ns/a/Trying" {
			t.Fatalf("try %d: %q while the pod may still get its VM", try, got)
		}
		now = now.Add(time.Second)
		closures = look(closures, append(old, trying...)...)
		if keys(closures) != "ns/a/Closed" || closures[0].Tries != try+1 {
			t.Fatalf("try %d: %q after %d tries in vain", try, keys(closures), closures[0].Tries)
		}
		if wait = closures[0].Next.Sub(now); wait != min(timing.First<<(try+1), timing.Last) {
			t.Fatalf("try %d: the next wait is %s", try, wait)
		}
	}
	// A VM opens the type at once, if it is of the same namespace.
	if got := look(closures, Pod{Namespace: "other", Type: "a", Began: now, Made: now.Add(time.Second)}); keys(got) != "ns/a/Closed" {
		t.Errorf("after a VM was made for another namespace, closed are %v", got)
	}
	if got := look(closures, Pod{Namespace: "ns", Type: "a", Began: now, Made: now.Add(time.Second)}); len(got) != 0 {
		t.Errorf("after a VM was made, closed are %v", got)
	}
	// So does a time in which nobody tries it.
	now = now.Add(timing.Last)
	closures = look(closures)
	now = now.Add(timing.Forget)
	if got := look(closures); len(got) != 0 {
		t.Errorf("after %s without a try, closed are %v", timing.Forget, got)
	}
}

// A VM that was made just before a try began opens the type, whether it is seen in time or later.
func TestVMMadeBeforeATry(t *testing.T) {
	timing := tries.Default()
	works := Pod{Namespace: "ns", Type: "works", Began: start, Made: start.Add(time.Second)}
	closures := next(View{Now: start, Pods: waiting(1, "ns", "a", start, failAfter)}, nil)
	due := start.Add(timing.First)
	made := Pod{Namespace: "ns", Type: "a", Began: start, Made: due.Add(-time.Second)}
	if got := next(View{Now: due, Pods: []Pod{works, made}}, closures); len(got) != 0 {
		t.Errorf("seen in time, closed are %v", keys(got))
	}
	trying := next(View{Now: due, Pods: []Pod{works}}, closures)
	if keys(trying) != "ns/a/Trying" {
		t.Fatalf("when the wait is over, closed are %v", keys(trying))
	}
	if got := next(View{Now: due.Add(time.Second), Pods: []Pod{works, made}}, trying); len(got) != 0 {
		t.Errorf("seen later, closed are %v", keys(got))
	}
	made.Made = start
	if got := next(View{Now: due.Add(time.Second), Pods: []Pod{works, made}}, trying); keys(got) != "ns/a/Trying" {
		t.Errorf("made before the type was closed, closed are %v", keys(got))
	}
}

// What is closed for all opens, or is closed again, by what most namespaces find that try it. One namespace can do neither beside others.
func TestTriesForAll(t *testing.T) {
	began := start.Add(time.Second)
	good := func(namespace string) Pod {
		return Pod{Namespace: namespace, Type: "a", Began: began, Made: began.Add(time.Minute)}
	}
	bad := func(namespace string) Pod { return Pod{Namespace: namespace, Type: "a", Began: began} }
	for _, tc := range []struct {
		name        string
		pods        []Pod
		soon, later string
	}{
		{"nobody tries", nil, "/a/Trying", "/a/Trying"},
		{"one has a VM", []Pod{good("x")}, "/a/Trying", ""},
		{"one has a VM, and two wait", []Pod{good("hostile"), bad("x"), bad("y")}, "/a/Trying", "/a/Closed"},
		{"one waits, and two have VMs", []Pod{bad("hostile"), good("x"), good("y")}, "/a/Trying", "hostile/a/Closed"},
		{"three have VMs", []Pod{good("x"), good("y"), good("z")}, "", ""},
		{"one waits", []Pod{bad("x")}, "/a/Trying", "/a/Closed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			trying := []Closure{{Key: Key{Type: "a"}, Phase: Trying, Since: start, Waited: start}}
			if got := keys(next(View{Now: began.Add(2 * time.Minute), Pods: tc.pods}, trying)); got != tc.soon {
				t.Errorf("soon, closed are %q, want %q", got, tc.soon)
			}
			if got := keys(next(View{Now: began.Add(failAfter), Pods: tc.pods}, trying)); got != tc.later {
				t.Errorf("later, closed are %q, want %q", got, tc.later)
			}
		})
	}
}

// A type that the catalog does not have is not closed, and not any more.
func TestOtherTypesAreNotClosed(t *testing.T) {
	o := &stowage.VMCatalog{Spec: stowage.VMCatalogSpec{FailAfter: failAfter.String(), Types: []stowage.VMType{{Name: "a", VCPUs: 1, Memory: resource.MustParse("1Gi")}}}}
	was := Closure{Key: Key{Type: "gone"}, Phase: Closed, Since: start, Next: start.Add(time.Hour), Waited: start}
	o.Status.Closed = []stowage.ClosedVMType{was.Status()}
	pods := waiting(5, "ns", strings.Repeat("x", 100_000), start, failAfter)
	if got := Compile(o).Next(View{Now: start, Pods: append(pods, waiting(1, "ns", "a", start, failAfter)...)}, tries.Default()); keys(got) != "ns/a/Closed" {
		t.Errorf("%d types are closed", len(got))
	}
}

// A tenant closes so many types for its own namespace, and no more; and takes no place from others.
func TestClosuresAreBounded(t *testing.T) {
	var pods []Pod
	for i := range 100 {
		pods = append(pods, waiting(1, "hostile", fmt.Sprintf("t%03d", i), start, failAfter)...)
	}
	closures := next(View{Now: start, Pods: pods}, nil)
	if len(closures) != mostOfNamespace {
		t.Fatalf("one namespace closes %d types", len(closures))
	}
	now := start.Add(time.Second)
	pods = append(pods, waiting(1, "victim", "b", now, failAfter)...)
	later := next(View{Now: now, Pods: pods}, closures)
	if len(later) != mostOfNamespace+1 {
		t.Errorf("beside it, %d types are closed", len(later))
	}
	pods = nil
	for i := range 2 * mostClosures {
		pods = append(pods, waiting(1, fmt.Sprintf("ns%d", i), fmt.Sprintf("t%d", i), now, failAfter)...)
	}
	if got := len(next(View{Now: now, Pods: pods}, nil)); got != mostClosures {
		t.Errorf("many namespaces close %d types", got)
	}
}

func TestStatusKeepsClosures(t *testing.T) {
	c := Closure{Key: Key{"a", "ns"}, Phase: Closed, Since: start, Tries: 3, Next: start.Add(time.Minute), Waited: start, Why: "because"}
	o := &stowage.VMCatalog{Status: stowage.VMCatalogStatus{Closed: []stowage.ClosedVMType{c.Status()}}}
	got := Compile(o).Closures()
	for i := range got {
		got[i].Since, got[i].Next, got[i].Waited = got[i].Since.UTC(), got[i].Next.UTC(), got[i].Waited.UTC()
	}
	if diff := cmp.Diff([]Closure{c}, got); diff != "" {
		t.Errorf("the status keeps (-want +got):\n%s", diff)
	}
}

// simulated is a cluster in which some types have no VMs at times, and pods of some namespaces wait for reasons of their own.
type simulated struct {
	t      *testing.T
	random *rand.Rand
	now    time.Time
	object *stowage.VMCatalog
	pods   []*simulatedPod
	out    map[string]bool // types whose VMs cannot be made
	taken  map[Try]time.Time
	moves  int
	closed map[Key]bool // ever
	fakes  bool         // a tenant has pods that look as if their VMs, of all types, had just been made
}

type simulatedPod struct {
	Pod
	need   Need
	broken bool // its VM is never made, whatever its type
	moved  int
}

const takes = 90 * time.Second // of a VM

// create gives a pod its type, as the webhook does.
func (s *simulated) create(namespace string, need Need, broken bool, moved int) {
	c := Compile(s.object)
	choice := c.Choose(&need, namespace, func(try Try) bool {
		if at, ok := s.taken[try]; ok && s.now.Sub(at) < c.FailAfter {
			return false
		}
		s.taken[try] = s.now
		return true
	})
	if choice.Type == nil {
		s.t.Fatalf("no type fits %+v", need)
	}
	s.pods = append(s.pods, &simulatedPod{Pod: Pod{Namespace: namespace, Type: choice.Type.Name, Began: s.now}, need: need, broken: broken, moved: moved})
}

// step lets time pass: VMs are made, and the leader looks.
func (s *simulated) step(d time.Duration) {
	s.now = s.now.Add(d)
	v := View{Now: s.now}
	for _, p := range s.pods {
		if p.Made.IsZero() && !p.broken && !s.out[p.Type] && p.waits(s.now) >= takes {
			p.Made = s.now
		}
		v.Pods = append(v.Pods, p.Pod)
	}
	if s.fakes {
		for i := range s.object.Spec.Types {
			v.Pods = append(v.Pods, Pod{Namespace: "fakes", Type: s.object.Spec.Types[i].Name, Began: s.now.Add(-time.Hour), Made: s.now})
		}
	}
	next := Compile(s.object).Next(v, tries.Default())
	s.object.Status.Closed = nil
	for i := range next {
		s.closed[next[i].Key] = true
		s.object.Status.Closed = append(s.object.Status.Closed, next[i].Status())
	}
	c := Compile(s.object)
	var stay []*simulatedPod
	var gone []*simulatedPod
	for _, p := range s.pods {
		if !c.Moves(&p.Pod, &p.need, s.now) {
			stay = append(stay, p)
			continue
		}
		if !p.Made.IsZero() || p.waits(s.now) < failAfter {
			s.t.Fatalf("a pod is evicted that has its VM, or has waited for %s", p.waits(s.now))
		}
		gone = append(gone, p)
	}
	s.pods = stay
	for _, p := range gone {
		s.moves++
		s.create(p.Namespace, p.need, p.broken, p.moved+1)
	}
}

// Whatever types have no VMs: pods that wait get the cheapest type that can be made, within a time that grows with the types before it. A tenant
// whose pods never get a VM closes nothing for others. In the end, new pods have the cheapest type again.
func TestSimulation(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			o := &stowage.VMCatalog{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: stowage.VMCatalogSpec{FailAfter: failAfter.String()}}
			kinds := 2 + r.IntN(4)
			for i := range kinds {
				o.Spec.Types = append(o.Spec.Types, stowage.VMType{Name: fmt.Sprintf("t%d", i), VCPUs: 4, Memory: resource.MustParse("8Gi"), PricePerHour: fmt.Sprintf("0.%d", i+1)})
			}
			s := &simulated{t: t, random: r, now: start, object: o, out: map[string]bool{}, taken: map[Try]time.Time{}, closed: map[Key]bool{}, fakes: r.IntN(3) == 0}
			namespaces := 1 + r.IntN(5)
			out := r.IntN(kinds) // so many of the cheapest have none
			for i := range out {
				s.out[fmt.Sprintf("t%d", i)] = true
			}
			hostile := r.IntN(2) == 0
			for n := range namespaces {
				for range 1 + r.IntN(10) {
					s.create(fmt.Sprintf("ns%d", n), Need{NanoCPU: 1e9}, false, 0)
				}
			}
			if hostile {
				for range 1 + r.IntN(5) {
					s.create("hostile", Need{NanoCPU: 1e9}, true, 0)
				}
			}
			// 1. All pods run, on the cheapest type that can be made.
			deadline := s.now.Add(time.Duration(out+1)*(failAfter+time.Minute) + takes)
			for s.now.Before(deadline) {
				s.step(10 * time.Second)
			}
			for _, p := range s.pods {
				if p.broken {
					continue
				}
				if p.Made.IsZero() || p.Type != fmt.Sprintf("t%d", out) {
					t.Errorf("a pod of %s has type %s, made %t, after %s; the cheapest with VMs is t%d; closed are %v", p.Namespace, p.Type, !p.Made.IsZero(), s.now.Sub(start), out, o.Status.Closed)
				}
			}
			for key := range s.closed {
				if !s.out[key.Type] && key.Namespace != "hostile" {
					t.Errorf("type %s, which has VMs, was closed for %q", key.Type, key.Namespace)
				}
			}
			// 2. There are VMs again: with a pod now and then, new ones have the cheapest type before long.
			clear(s.out)
			for range 90 {
				s.step(time.Minute)
				s.create("ns0", Need{NanoCPU: 1e9}, false, 0)
			}
			if last := s.pods[len(s.pods)-1]; last.Type != "t0" {
				t.Errorf("in the end, a new pod has type %s; closed are %v", last.Type, o.Status.Closed)
			}
			// 3. A pod that never gets its VM is not moved all the time.
			for _, p := range s.pods {
				if hours := s.now.Sub(start).Hours(); p.broken && float64(p.moved) > 12*hours {
					t.Errorf("a pod that never gets its VM was moved %d times in %.1f hours", p.moved, hours)
				}
			}
		})
	}
}
