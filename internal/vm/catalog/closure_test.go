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

// place is the key of a type in a namespace, or in "namespace@zone".
func place(namespace, name string) Key {
	namespace, zone, _ := strings.Cut(namespace, "@")
	return Key{Type: name, Namespace: namespace, Zone: zone}
}

// waiting returns pods of a namespace that have waited for a while for a VM of a type.
func waiting(n int, namespace, name string, now time.Time, waits time.Duration) []Pod {
	pods := make([]Pod, n)
	for i := range pods {
		pods[i] = Pod{Key: place(namespace, name), Began: now.Add(-waits)}
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
		in := c.Namespace
		if c.Zone != "" {
			in += "@" + c.Zone
		}
		out = append(out, fmt.Sprintf("%s/%s/%s", in, c.Type, c.Phase))
	}
	return strings.Join(out, " ")
}

func TestWhatCloses(t *testing.T) {
	made := func(namespace string, ago time.Duration) Pod {
		return Pod{Key: place(namespace, "a"), Began: start.Add(-time.Hour), Made: start.Add(-ago)}
	}
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
		{"a VM was made just within failAfter", append(waiting(5, "ns", "a", start, failAfter), made("ns", failAfter-time.Second)), ""},
		{"two namespaces", append(waiting(1, "x", "a", start, failAfter), waiting(1, "y", "a", start, failAfter)...), "x/a/Closed y/a/Closed"},
		{"two of three that wait", append(waiting(2, "ns", "a", start, failAfter), waiting(1, "ns", "a", start, time.Minute)...), ""},
		{"one zone, and a VM of another", append(waiting(3, "ns@x", "a", start, failAfter), made("ns@y", time.Minute)), "ns@x/a/Closed"},
		{"one zone, and pods that have just come to another", append(waiting(1, "ns@x", "a", start, failAfter), waiting(5, "ns@y", "a", start, time.Minute)...), "ns@x/a/Closed"},
		{"two zones", append(waiting(1, "ns@x", "a", start, failAfter), waiting(1, "ns@y", "a", start, failAfter)...), "ns@x/a/Closed ns@y/a/Closed"},
		{"a zone, and nodes without one that have VMs", append(waiting(1, "ns@x", "a", start, failAfter), made("ns", time.Minute)), "ns@x/a/Closed"},
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
		works := Pod{Key: place("ns", "works"), Began: now.Add(-time.Hour), Made: now}
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
		if keys(closures) != "ns/a/Closed" || closures[0].Tries != try+1 || closures[0].Why != fmt.Sprintf("%d tries have found none", try+1) {
			t.Fatalf("try %d: %q after %d tries in vain", try, keys(closures), closures[0].Tries)
		}
		if wait = closures[0].Next.Sub(now); wait != min(timing.First<<(try+1), timing.Last) {
			t.Fatalf("try %d: the next wait is %s", try, wait)
		}
	}
	// A VM opens the type at once, if it is of the same namespace.
	if got := look(closures, Pod{Key: place("other", "a"), Began: now, Made: now.Add(time.Second)}); keys(got) != "ns/a/Closed" {
		t.Errorf("after a VM was made for another namespace, closed are %v", got)
	}
	if got := look(closures, Pod{Key: place("ns@zone", "a"), Began: now, Made: now.Add(time.Second)}); keys(got) != "ns/a/Closed" {
		t.Errorf("after a VM was made in another zone, closed are %v", got)
	}
	if got := look(closures, Pod{Key: place("ns", "a"), Began: now, Made: now.Add(time.Second)}); len(got) != 0 {
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
	works := Pod{Key: place("ns", "works"), Began: start, Made: start.Add(time.Second)}
	closures := next(View{Now: start, Pods: waiting(1, "ns", "a", start, failAfter)}, nil)
	due := start.Add(timing.First)
	made := Pod{Key: place("ns", "a"), Began: start, Made: due.Add(-time.Second)}
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

// A try begins once the namespace got VMs of other types in the zone, as its pods do that were moved. Where none are made, the try begins after a long
// time.
func TestWhenATryBegins(t *testing.T) {
	timing := tries.Default()
	due := start.Add(timing.First)
	made := func(namespace, name string, at time.Time) Pod {
		return Pod{Key: place(namespace, name), Began: start, Made: at}
	}
	for name, tc := range map[string]struct {
		pods []Pod
		now  time.Time
		want string
	}{
		"no VM":                                 {nil, due, "Closed"},
		"another type":                          {[]Pod{made("ns@x", "b", due)}, due, "Trying"},
		"another type, before the wait is over": {[]Pod{made("ns@x", "b", due)}, due.Add(-time.Second), "Closed"},
		"another type in another zone":          {[]Pod{made("ns@y", "b", due)}, due, "Closed"},
		"the same type in another zone":         {[]Pod{made("ns@y", "a", due)}, due, "Closed"},
		"another type, before it was closed":    {[]Pod{made("ns@x", "b", start)}, due, "Closed"},
		"another namespace":                     {[]Pod{made("other@x", "b", due)}, due, "Closed"},
		"no VM for long":                        {nil, due.Add(timing.Last), "Trying"},
		"no VM for almost as long":              {nil, due.Add(timing.Last - time.Second), "Closed"},
	} {
		t.Run(name, func(t *testing.T) {
			was := Closure{Key: place("ns@x", "a"), Phase: Closed, Since: start, Next: due, Waited: start}
			if got := keys(next(View{Now: tc.now, Pods: tc.pods}, []Closure{was})); got != "ns@x/a/"+tc.want {
				t.Errorf("it is %s, want %s", got, tc.want)
			}
		})
	}
}

// What is tried is forgotten if no pod has waited for a VM of it for a while. One pod that waits is enough to keep it.
func TestWhatIsForgotten(t *testing.T) {
	timing := tries.Default()
	forget := start.Add(timing.Forget)
	for name, tc := range map[string]struct {
		pods []Pod
		now  time.Time
		want string
	}{
		"nobody waits":                {nil, forget, ""},
		"nobody waits, a little":      {nil, forget.Add(-time.Second), "ns@x/a/Trying"},
		"one waits":                   {waiting(1, "ns@x", "a", start, time.Hour), forget, "ns@x/a/Trying"},
		"one waits in another zone":   {waiting(1, "ns@y", "a", start, 0), forget, "ns@y/a/Closed"},
		"one has not waited for long": {waiting(1, "ns@x", "a", forget, time.Minute), forget, ""},
		"one that tried waits":        {waiting(1, "ns@x", "a", start.Add(time.Second), 0), forget, "ns@x/a/Closed"},
	} {
		t.Run(name, func(t *testing.T) {
			was := Closure{Key: place("ns@x", "a"), Phase: Trying, Since: start, Next: start, Waited: start}
			after := next(View{Now: tc.now, Pods: tc.pods}, []Closure{was})
			if got := keys(after); got != tc.want {
				t.Errorf("closed are %q, want %q", got, tc.want)
			}
			if name == "one waits" && !after[0].Waited.Equal(tc.now) {
				t.Errorf("a pod last waited at %s", after[0].Waited)
			}
		})
	}
}

// A type that the catalog does not have is not closed, and not any more.
func TestOtherTypesAreNotClosed(t *testing.T) {
	o := &stowage.VMCatalog{Spec: stowage.VMCatalogSpec{FailAfter: failAfter.String(), Types: []stowage.VMType{{Name: "a", VCPUs: 1, Memory: resource.MustParse("1Gi")}}}}
	was := Closure{Key: place("ns", "0-gone"), Phase: Closed, Since: start, Next: start.Add(time.Hour), Waited: start}
	other := Closure{Key: place("other", "a"), Phase: Closed, Since: start, Next: start.Add(time.Hour), Waited: start}
	o.Status.Closed = []stowage.ClosedVMType{was.Status(), other.Status()}
	pods := waiting(5, "ns", strings.Repeat("x", 100_000), start, failAfter)
	if got := Compile(o).Next(View{Now: start, Pods: append(pods, waiting(1, "ns", "a", start, failAfter)...)}, tries.Default()); keys(got) != "ns/a/Closed other/a/Closed" {
		t.Errorf("%d types are closed", len(got))
	}
}

// A tenant closes so many types for its own namespace, and no more; and takes no place from others. What is closed stays so, and what would be
// closed beyond that is not.
func TestClosuresAreBounded(t *testing.T) {
	var pods []Pod
	for i := range 100 {
		pods = append(pods, waiting(1, fmt.Sprintf("hostile@%d", i%3), fmt.Sprintf("t%03d", 100-i), start, failAfter)...)
	}
	closures := next(View{Now: start, Pods: pods[:2]}, nil)
	now := start.Add(time.Second)
	pods = append(pods, waiting(1, "victim", "b", now, failAfter)...)
	later := next(View{Now: now, Pods: pods}, closures)
	of := map[string]int{}
	for _, c := range later {
		of[c.Namespace]++
	}
	if of["hostile"] != mostOfNamespace || of["victim"] != 1 {
		t.Errorf("types are closed for %v", of)
	}
	if !strings.Contains(keys(later), "hostile@0/t100/Closed") || !strings.Contains(keys(later), "hostile@1/t099/Closed") {
		t.Errorf("what was closed first is not closed any more: %s", keys(later))
	}
	pods = nil
	for i := range 2 * mostClosures {
		pods = append(pods, waiting(1, fmt.Sprintf("ns%d", i), fmt.Sprintf("t%d", 2*mostClosures-i), now, failAfter)...)
	}
	first := next(View{Now: start, Pods: waiting(1, "zzz", "z", start, failAfter)}, nil)
	got := next(View{Now: now, Pods: pods}, first)
	if len(got) != mostClosures || !strings.Contains(keys(got), "zzz/z/Closed") {
		t.Errorf("many namespaces close %d types; what was closed first is still closed: %t", len(got), strings.Contains(keys(got), "zzz/z/Closed"))
	}
	if !slices.IsSortedFunc(got, byKey) {
		t.Error("what is closed is not sorted")
	}
}

// An earlier version closed types for all namespaces. Such a closure is ignored, and the next status does not have it.
func TestClosuresOfEarlierVersions(t *testing.T) {
	o := &stowage.VMCatalog{Spec: stowage.VMCatalogSpec{FailAfter: failAfter.String(), Types: []stowage.VMType{{Name: "a", VCPUs: 1, Memory: resource.MustParse("1Gi")}}}}
	o.Status.Closed = []stowage.ClosedVMType{{Type: "a", Phase: stowage.VMTypeClosed, Since: metav1.NewTime(start), Why: "pods of 3 namespaces have waited"}}
	c := Compile(o)
	if choice := c.Choose(&Need{NanoCPU: 1}, "ns", nil); len(choice.Closed) != 0 || len(c.Closures()) != 0 || len(c.Next(View{Now: start}, tries.Default())) != 0 {
		t.Errorf("closed are %v", c.Closures())
	}
}

// closing returns a catalog of types of one size, the cheapest first. Some of them are closed since a minute after the start.
func closing(names string, closures ...Closure) *Catalog {
	o := &stowage.VMCatalog{Spec: stowage.VMCatalogSpec{FailAfter: failAfter.String()}}
	for i, name := range strings.Fields(names) {
		o.Spec.Types = append(o.Spec.Types, stowage.VMType{Name: name, VCPUs: 1, Memory: resource.MustParse("1Gi"), PricePerHour: fmt.Sprint(i + 1)})
	}
	for _, c := range closures {
		c.Since = start.Add(time.Minute)
		o.Status.Closed = append(o.Status.Closed, c.Status())
	}
	return Compile(o)
}

func is(phase Phase, namespace, name string) Closure {
	return Closure{Key: place(namespace, name), Phase: phase}
}

// A pod gets a type that is closed in no zone in which the pod may run.
func TestChooseByZone(t *testing.T) {
	for name, tc := range map[string]struct {
		closures []Closure
		zones    string
		tries    string // the zones whose tries a pod may take
		want     string
		closed   bool // for a pod that has type a already
		all      bool
	}{
		"nothing is closed":                             {nil, "", "", "a", false, false},
		"one zone, and the pod may run everywhere":      {[]Closure{is(Closed, "ns@x", "a")}, "", "", "b", true, false},
		"one zone, and the pod runs there":              {[]Closure{is(Closed, "ns@x", "a")}, "x", "", "b", true, false},
		"one zone, and the pod may run there":           {[]Closure{is(Closed, "ns@x", "a")}, "x y", "", "b", true, false},
		"one zone, and the pod runs in another":         {[]Closure{is(Closed, "ns@x", "a")}, "y", "", "a", false, false},
		"one zone, and the pod runs in two others":      {[]Closure{is(Closed, "ns@x", "a")}, "y z", "", "a", false, false},
		"nodes without zones":                           {[]Closure{is(Closed, "ns", "a")}, "", "", "b", true, false},
		"nodes without zones, and the pod needs a zone": {[]Closure{is(Closed, "ns", "a")}, "x", "", "a", false, false},
		"another namespace":                             {[]Closure{is(Closed, "other@x", "a")}, "", "", "a", false, false},
		"a try":                                         {[]Closure{is(Trying, "ns@x", "a")}, "", "x", "a", false, false},
		"a try that another pod has":                    {[]Closure{is(Trying, "ns@x", "a")}, "", "", "b", false, false},
		"a try, and closed in another zone":             {[]Closure{is(Trying, "ns@x", "a"), is(Closed, "ns@y", "a")}, "", "x", "b", true, false},
		"a try, and closed where the pod cannot run":    {[]Closure{is(Trying, "ns@x", "a"), is(Closed, "ns@y", "a")}, "x", "x", "a", false, false},
		"tries in two zones, one of them taken":         {[]Closure{is(Trying, "ns@x", "a"), is(Trying, "ns@y", "a")}, "", "y", "a", false, false},
		"all are closed":                                {[]Closure{is(Closed, "ns@x", "a"), is(Closed, "ns@x", "b")}, "", "", "a", true, true},
		"all are closed, the dear one in fewer zones":   {[]Closure{is(Closed, "ns@x", "a"), is(Closed, "ns@y", "a"), is(Closed, "ns@x", "b")}, "", "", "b", true, true},
		"all are closed, and one is tried":              {[]Closure{is(Closed, "ns@x", "a"), is(Trying, "ns@x", "b")}, "", "x", "b", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := closing("a b", tc.closures...)
			n := &Need{NanoCPU: 1e9, Zones: strings.Fields(tc.zones)}
			choice := c.Choose(n, "ns", func(try Try) bool {
				return try.Type == "a" && try.Namespace == "ns" && tc.tries == try.Zone && try.Since.Equal(start.Add(time.Minute)) || try.Type == "b"
			})
			if choice.Type.Name != tc.want || choice.AllClosed != tc.all {
				t.Errorf("the pod gets type %s, all closed: %t", choice.Type.Name, choice.AllClosed)
			}
			passed := map[string]int{"a": 0, "b": 1}[tc.want]
			if tc.all {
				passed = 2
			}
			if len(choice.Closed) != passed {
				t.Errorf("%d closed types would fit, want %d", len(choice.Closed), passed)
			}
			if got := c.IsClosed(n, "a", "ns"); got != tc.closed {
				t.Errorf("type a is closed for it: %t", got)
			}
		})
	}
}

// A pod is moved if it has waited for too long in a zone where its type is closed, and its successor gets another type in whatever zone it lands.
func TestMoves(t *testing.T) {
	later := start.Add(time.Minute)
	for name, tc := range map[string]struct {
		closures []Closure
		zones    string
		began    time.Time
		made     bool
		waits    time.Duration
		want     bool
	}{
		"its zone is closed":                                {[]Closure{is(Closed, "ns@x", "a")}, "", start, false, failAfter, true},
		"it has not waited long enough":                     {[]Closure{is(Closed, "ns@x", "a")}, "", start, false, failAfter - time.Second, false},
		"it has its VM":                                     {[]Closure{is(Closed, "ns@x", "a")}, "", start, true, failAfter, false},
		"another zone is closed":                            {[]Closure{is(Closed, "ns@y", "a")}, "", start, false, failAfter, false},
		"nodes without zones are closed":                    {[]Closure{is(Closed, "ns", "a")}, "", start, false, failAfter, false},
		"another namespace is closed":                       {[]Closure{is(Closed, "other@x", "a")}, "", start, false, failAfter, false},
		"another type is closed":                            {[]Closure{is(Closed, "ns@x", "b")}, "", start, false, failAfter, false},
		"its zone and another one are closed":               {[]Closure{is(Closed, "ns@y", "a"), is(Closed, "ns@x", "a")}, "", start, false, failAfter, true},
		"it may run in its zone alone":                      {[]Closure{is(Closed, "ns@x", "a")}, "x", start, false, failAfter, true},
		"its successor would get the type again":            {[]Closure{is(Closed, "ns@x", "a")}, "y", start, false, failAfter, false},
		"no other type":                                     {[]Closure{is(Closed, "ns@x", "a"), is(Closed, "ns@x", "b")}, "", start, false, failAfter, false},
		"no other type in another zone":                     {[]Closure{is(Closed, "ns@x", "a"), is(Closed, "ns@y", "b")}, "", start, false, failAfter, false},
		"another type, which is closed where it cannot run": {[]Closure{is(Closed, "ns@x", "a"), is(Closed, "ns@y", "b")}, "x", start, false, failAfter, true},
		"it waited before the try":                          {[]Closure{is(Trying, "ns@x", "a")}, "", start, false, failAfter, true},
		"it got its node when the try began":                {[]Closure{is(Trying, "ns@x", "a")}, "", later, false, failAfter, true},
		"it is the one that tries":                          {[]Closure{is(Trying, "ns@x", "a")}, "", later.Add(time.Second), false, failAfter, false},
		"it came after the type was closed":                 {[]Closure{is(Closed, "ns@x", "a")}, "", later.Add(time.Second), false, failAfter, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Pod{Key: place("ns@x", "a"), Began: tc.began}
			if tc.made {
				p.Made = tc.began.Add(time.Second)
			}
			c := closing("a b", tc.closures...)
			n := &Need{NanoCPU: 1e9, Zones: strings.Fields(tc.zones)}
			if got := c.Moves(p, n, tc.began.Add(tc.waits)); got != tc.want {
				t.Errorf("it moves: %t", got)
			}
			c.FailAfter = 0
			if c.Moves(p, n, tc.began.Add(tc.waits)) {
				t.Error("it moves with failAfter 0")
			}
		})
	}
	if c := closing("a", is(Closed, "ns@x", "a")); c.Moves(&Pod{Key: place("ns@x", "a"), Began: start}, &Need{NanoCPU: 5e9}, start.Add(failAfter)) {
		t.Error("a pod that no type fits moves")
	}
}

func TestTextOfAClosure(t *testing.T) {
	c := Closure{Key: place("ns@x", "a"), Phase: Closed, Next: start, Why: "because"}
	for want, change := range map[string]func(){
		"closed in zone x, and not tried again before 03:04:05 UTC: because": func() {},
		"tried again by the next pod in zone x: because":                     func() { c.Phase = Trying },
		"tried again by the next pod: because":                               func() { c.Phase, c.Zone = Trying, "" },
		"closed, and not tried again before 03:04:05 UTC: because":           func() { c.Zone = "" },
	} {
		c.Phase, c.Zone = Closed, "x"
		if change(); c.Text() != want {
			t.Errorf("got %q, want %q", c.Text(), want)
		}
	}
	o := closing("a b", is(Trying, "ns@x", "a"), is(Trying, "ns@y", "a"), is(Trying, "ns@z", "a")).Offer(&Need{NanoCPU: 1, Zones: []string{"x", "y"}}, "ns", "", false)
	if want := "tried again by the next pod in zone x: ; tried again by the next pod in zone y: "; o.Fits[0].Closed != want || o.Fits[1].Closed != "" {
		t.Errorf("the offer says %q and %q", o.Fits[0].Closed, o.Fits[1].Closed)
	}
}

func TestStatusKeepsClosures(t *testing.T) {
	c := Closure{Key: Key{"a", "ns", "zone"}, Phase: Closed, Since: start, Tries: 3, Next: start.Add(time.Minute), Waited: start, Why: "because"}
	o := &stowage.VMCatalog{Status: stowage.VMCatalogStatus{Closed: []stowage.ClosedVMType{c.Status()}}}
	got := Compile(o).Closures()
	for i := range got {
		got[i].Since, got[i].Next, got[i].Waited = got[i].Since.UTC(), got[i].Next.UTC(), got[i].Waited.UTC()
	}
	if diff := cmp.Diff([]Closure{c}, got); diff != "" {
		t.Errorf("the status keeps (-want +got):\n%s", diff)
	}
}

// simulated is a cluster in which some types have no VMs in some zones at times, and pods of some namespaces wait for reasons of their own.
type simulated struct {
	t      *testing.T
	random *rand.Rand
	now    time.Time
	object *stowage.VMCatalog
	pods   []*simulatedPod
	zones  []string
	out    map[Key]bool // types whose VMs cannot be made, by zone
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
	zone := s.zones[s.random.IntN(len(s.zones))] // the scheduler knows no types
	if len(need.Zones) > 0 {
		zone = need.Zones[s.random.IntN(len(need.Zones))]
	}
	s.pods = append(s.pods, &simulatedPod{Pod: Pod{Key: Key{choice.Type.Name, namespace, zone}, Began: s.now}, need: need, broken: broken, moved: moved})
}

// step lets time pass: VMs are made, and the leader looks.
func (s *simulated) step(d time.Duration) {
	s.now = s.now.Add(d)
	v := View{Now: s.now}
	for _, p := range s.pods {
		if p.Made.IsZero() && !p.broken && !s.out[Key{Type: p.Type, Zone: p.Zone}] && p.waits(s.now) >= takes {
			p.Made = s.now
		}
		v.Pods = append(v.Pods, p.Pod)
	}
	if s.fakes {
		for i := range s.object.Spec.Types {
			v.Pods = append(v.Pods, Pod{Key: place("fakes", s.object.Spec.Types[i].Name), Began: s.now.Add(-time.Hour), Made: s.now})
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

// Whatever types have no VMs in whatever zones: all pods get a VM, within a time that grows with the types that have none. A pod of one zone gets the
// cheapest type of that zone, and one that may run everywhere a type that costs no more than the cheapest that all zones have. A tenant whose pods
// never get a VM closes nothing for others. In the end, new pods have the cheapest type again.
func TestSimulation(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			o := &stowage.VMCatalog{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: stowage.VMCatalogSpec{FailAfter: failAfter.String()}}
			kinds := 2 + r.IntN(4)
			for i := range kinds {
				o.Spec.Types = append(o.Spec.Types, stowage.VMType{Name: fmt.Sprintf("t%d", i), VCPUs: 4, Memory: resource.MustParse("8Gi"), PricePerHour: fmt.Sprintf("0.%d", i+1)})
			}
			s := &simulated{t: t, random: r, now: start, object: o, out: map[Key]bool{}, taken: map[Try]time.Time{}, closed: map[Key]bool{}, fakes: r.IntN(3) == 0}
			s.zones = [][]string{{""}, {"x", "y"}, {"x", "y", "z"}}[r.IntN(3)]
			out, most := map[string]int{}, 0 // so many of the cheapest have no VMs, by zone
			for _, zone := range s.zones {
				out[zone] = r.IntN(kinds)
				most = max(most, out[zone])
				for i := range out[zone] {
					s.out[Key{Type: fmt.Sprintf("t%d", i), Zone: zone}] = true
				}
			}
			need := func() Need {
				n := Need{NanoCPU: 1e9}
				if zone := s.zones[r.IntN(len(s.zones))]; zone != "" && r.IntN(3) == 0 {
					n.Zones = []string{zone}
				}
				return n
			}
			for n := range 1 + r.IntN(5) {
				for range 1 + r.IntN(10) {
					s.create(fmt.Sprintf("ns%d", n), need(), false, 0)
				}
			}
			if r.IntN(2) == 0 {
				for range 1 + r.IntN(5) {
					s.create("hostile", need(), true, 0)
				}
			}
			// 1. All pods run.
			deadline := s.now.Add(time.Duration(most+1)*(failAfter+time.Minute) + takes)
			for s.now.Before(deadline) {
				s.step(10 * time.Second)
			}
			for _, p := range s.pods {
				least, dearest := fmt.Sprintf("t%d", out[p.Zone]), fmt.Sprintf("t%d", most)
				if len(p.need.Zones) > 0 {
					dearest = least
				}
				if !p.broken && (p.Made.IsZero() || p.Type < least || p.Type > dearest) {
					t.Errorf("a pod of %s in zone %q, of %v, has type %s, made %t, after %s; want one from %s to %s",
						p.Namespace, p.Zone, p.need.Zones, p.Type, !p.Made.IsZero(), s.now.Sub(start), least, dearest)
				}
			}
			for key := range s.closed {
				if !s.out[Key{Type: key.Type, Zone: key.Zone}] && key.Namespace != "hostile" {
					t.Errorf("type %s, which has VMs in zone %q, was closed there for %q", key.Type, key.Zone, key.Namespace)
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
			// 3. No pod is moved all the time, even if it never gets its VM.
			for _, p := range s.pods {
				if hours := s.now.Sub(start).Hours(); float64(p.moved) > 12*hours {
					t.Errorf("a pod that never gets its VM: %t, was moved %d times in %.1f hours", p.broken, p.moved, hours)
				}
			}
		})
	}
}
