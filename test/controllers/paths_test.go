package controllers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/server"
)

// The most that a request costs, whoever sends it. Garbage counts as well. A replica has a gibibyte of memory (charts/stowage/values.yaml).
const (
	mostOfReplica = 1 << 30
	mostPerByte   = 64      // bytes, of each byte of a body
	mostOfItself  = 2 << 20 // bytes, beside those
	// A body is read at some 100 MB/s. What grows with its square takes seconds.
	mostTimePerByte = 500 * time.Nanosecond
	mostTime        = 100 * time.Millisecond
)

// servedPath is a path of a port of the process.
type servedPath struct{ port, path string }

// servedPaths are all paths of all ports of a process that runs everything, with their handlers.
func servedPaths(t *testing.T) map[servedPath]http.Handler {
	t.Helper()
	clock = clocktesting.NewFakeClock(time.Now())
	o := server.DefaultOptions()
	o.Kubeconfig, o.LeaderElection, o.ShutdownDelay = cluster.Kubeconfig, false, 0
	o.Host, o.Port, o.MetricsAddress, o.HealthAddress, o.PprofAddress = "127.0.0.1", 0, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	var mu sync.Mutex
	paths := map[servedPath]http.Handler{}
	run(t, o, func(e *server.Environment) {
		e.Served = func(port, path string, h http.Handler) {
			mu.Lock()
			defer mu.Unlock()
			paths[servedPath{port, path}] = h
		}
	})
	eventually(t, "the ports are open", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return paths[servedPath{"profiles", "/debug/pprof/"}] != nil
	})
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(paths)
}

// The objects of the reviews that the API server sends to a path.
var reviewed = map[string][]any{
	"/mutate":        {corev1.Pod{}},
	"/mutate-v1-pod": {corev1.Pod{}},
	"/validate-workload": {
		appsv1.Deployment{}, batchv1.CronJob{}, corev1.Namespace{}, versprei.PodDistributor{}, stowage.SpreadPolicy{}, stowage.ClusterSpreadPolicy{},
	},
}

// No request costs much more than the bytes that it sends, on any path of any port: not in memory, and not in time. What is let in at once
// has room in a replica.
func TestEveryPathIsBounded(t *testing.T) {
	paths := servedPaths(t)
	for _, at := range slices.SortedFunc(maps.Keys(paths), func(a, b servedPath) int {
		return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.path, b.path))
	}) {
		t.Run(at.port+at.path, func(t *testing.T) {
			switch {
			case at.port == "webhook" && reviewed[at.path] != nil:
				reviewsAreBounded(t, at.path, paths[at])
			case at.port == "webhook" && at.path == "/seats":
				strangersAreBounded(t, paths[at], at.path)
			case at.port != "webhook":
				if strings.HasPrefix(at.path, "/debug/pprof/") && at.path != "/debug/pprof/" && at.path != "/debug/pprof/cmdline" {
					return // they take as long as they are asked to, and few run at once
				}
				strangersAreBounded(t, paths[at], at.path)
			default:
				t.Errorf("this test does not know what a stranger sends to %s: add that, and a bound for it", at.path)
			}
		})
	}
}

// A warning tells of the object that is reviewed alone: whoever writes it, or reaches the port, may not be allowed to read nodes and PriorityClasses.
func TestWarningsNameNoObjects(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "secret-node", Labels: map[string]string{"type": "spot", "zone": "z", corev1.LabelHostname: "secret-node"}}}
	must(t, cluster.Client.Create(t.Context(), node))
	t.Cleanup(func() { must(t, cluster.Client.Delete(context.Background(), node)) })
	h := servedPaths(t)[servedPath{"webhook", "/validate-workload"}]
	var answer string
	review := func(other string) {
		r := httptest.NewRequest(http.MethodPost, "/validate-workload", strings.NewReader(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u",
			"kind":{"group":"stowage.dev","version":"v1alpha1","kind":"SpreadPolicy"},"operation":"CREATE","namespace":"default","object":{"metadata":{"name":"p"},"spec":{"mode":"Enforce",
			"selector":{"matchLabels":{"app":"web"}},"pools":[{"name":"a","weight":1,"nodeSelector":{"type":"spot"}},{"name":"b","weight":1,"nodeSelector":{`+other+`},"priorityClassName":"secret"}]}}}}`))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		answer = w.Body.String()
	}
	eventually(t, "a warning says that the pools share nodes", func() bool {
		review(`"zone":"z"`)
		return strings.Contains(answer, "a node has the labels of the pools a and b")
	})
	if strings.Contains(answer, node.Name) || strings.Contains(answer, "PriorityClass") {
		t.Errorf("the answer is %s", answer)
	}
	// A guess at the name of a node is not confirmed.
	if review(`"kubernetes.io/hostname":"secret-node"`); strings.Contains(answer, "a node") || !strings.Contains(answer, `"allowed":true`) {
		t.Errorf("the answer about a host name is %s", answer)
	}
}

// cost is what a request has cost.
type cost struct {
	bytes int64
	time  time.Duration // of all processors
}

// ask sends a request to a handler.
func ask(h http.Handler, method, path string, body []byte) (code int, c cost) {
	r := httptest.NewRequest(method, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	bytes, begin := allocated(), processorTime()
	h.ServeHTTP(w, r)
	return w.Code, cost{allocated() - bytes, processorTime() - begin}
}

// allocated is how many bytes this process has allocated since it began.
func allocated() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// processorTime is what this process has used of all processors.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// within reports whether a body has cost no more than its length allows.
func (c cost) within(body int) bool {
	return c.bytes <= mostOfItself+int64(mostPerByte*body) && c.time <= mostTime+time.Duration(body)*mostTimePerByte
}

// strangersAreBounded asks for a path as a stranger may, with and without a body.
func strangersAreBounded(t *testing.T, h http.Handler, path string) {
	t.Helper()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, body := range [][]byte{nil, bytes.Repeat([]byte("["), 7<<20), bytes.Repeat([]byte(`{"a":`), 1<<20)} {
			_, c := ask(h, method, path, body)
			if c.bytes > mostOfItself || c.time > mostTime {
				t.Errorf("%s with a body of %d bytes allocates %d bytes, and takes %s", method, len(body), c.bytes, c.time)
			}
		}
	}
}

// reviewsAreBounded sends reviews of each object of a path with each hostile value at each place.
func reviewsAreBounded(t *testing.T, path string, h http.Handler) {
	t.Helper()
	type worst struct {
		name string
		at   hostileReview
		cost
	}
	var all []worst
	try := func(name string, at hostileReview, size int) {
		body := at(size)
		code, c := ask(h, http.MethodPost, path, body)
		if code == http.StatusUnsupportedMediaType {
			t.Fatalf("%s: %d", name, code)
		}
		if !c.within(len(body)) {
			t.Errorf("%s: a body of %d bytes allocates %d bytes, and takes %s", name, len(body), c.bytes, c.time)
		}
		room, most := admission.RoomOf(body)
		if c.bytes*most/room > mostOfReplica { // what the process allocates beside, and counts late, is much for a small review
			const times = 20
			before := allocated()
			for range times {
				ask(h, http.MethodPost, path, body)
			}
			c.bytes = (allocated() - before) / times
		}
		if together := c.bytes * most / room; together > mostOfReplica {
			t.Errorf("%s: reviews of %d bytes that are let in at once allocate %d MiB", name, len(body), together>>20)
		}
		all = append(all, worst{fmt.Sprintf("%s, %d bytes", name, len(body)), at, cost{c.bytes * 1000 / int64(len(body)), c.time * 1000 / time.Duration(len(body))}})
	}
	for _, object := range reviewed[path] {
		for name, at := range hostileReviews(object) {
			// Small ones as well: what refuses a large one for its size does not refuse them.
			for _, size := range []int{3 << 10, 10 << 10, 30 << 10, 100 << 10} {
				try(name, at, size)
			}
		}
	}
	t.Logf("%d reviews", len(all))
	by := func(less func(a, b worst) int) []worst {
		slices.SortFunc(all, less)
		return slices.Clone(all[:5])
	}
	hungry, slow := by(func(a, b worst) int { return cmp.Compare(b.bytes, a.bytes) }), by(func(a, b worst) int { return cmp.Compare(b.time, a.time) })
	// The worst ones again, as small and as large as they may be.
	for _, w := range append(hungry, slow...) {
		t.Logf("%s: %.1f bytes, and %.1f ns, for each byte of it", w.name, float64(w.bytes)/1000, float64(w.time)/1000)
		for _, size := range []int{60 << 10, 7<<20 - 4<<10} {
			try(w.name, w.at, size)
		}
	}
}

// hostileReview returns a review of about so many bytes.
type hostileReview func(size int) []byte

// hostileReviews returns reviews of an object, by what is wrong with each.
func hostileReviews(object any) map[string]hostileReview {
	of := reflect.TypeOf(object)
	kind := metav1.GroupVersionKind{Group: groupOf(of), Version: "v1", Kind: of.Name()}
	before := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":%q,"version":%q,"kind":%q},"operation":"CREATE","namespace":"default","object":`, kind.Group, kind.Version, kind.Kind)
	const after = `}}`
	out := map[string]hostileReview{}
	add := func(place, before, after, shape string, fill func(size int) string) {
		out[of.Name()+place+" "+shape] = func(size int) []byte { return []byte(before + fill(size-len(before)-len(after)) + after) }
	}
	// What needs no place of the object.
	add("", before+"null", after, "with object: null again and again", repeated(`,"object":null`, ""))
	add("", before+`{"spec":{}`, "}"+after, "with its spec again and again", repeated(`,"spec":{}`, ""))
	add("", before+`{"spec":{}`, "}"+after, "with metadata again and again", repeated(`,"metadata":{"labels":{"a":"b"}}`, ""))
	add("", before, after, "nested", func(size int) string { return strings.Repeat("[", size/2) + strings.Repeat("]", size/2) })
	add("", before+"{", "}"+after, "nested", func(size int) string { return strings.Repeat(`"a":{`, size/6) + `"a":1` + strings.Repeat("}", size/6) })
	add("", before[:len(before)-len(`"object":`)], "}}", "with unknown fields", func(size int) string { return keys(size) })

	for _, part := range []string{`"spec":{"tolerations":[%s]},"spec":null`, `"metadata":{"ownerReferences":[%s]},"metadata":null`,
		`"spec":{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[%s]}},"affinity":null}`,
		`"spec":{"template":{"metadata":{"labels":{"a":""}}},"pools":[%s],"pools":null,"distribution":[%[1]s],"distribution":null}`} {
		for _, items := range []int{10, 1999} { // as many as a bound lets through, and few in a small review
			item := fmt.Sprintf(part, strings.TrimSuffix(strings.Repeat("{},", items), ","))
			add("", before+"{", "}"+after, fmt.Sprintf("with %d items again after null: %s", items, part), repeated(item+",", item))
		}
	}
	add("", before+`{},`, after, "with a request again after null", repeated(`"object":{"spec":{"tolerations":[{},{},{},{},{},{},{},{}]}},"object":null,`, `"object":{}`))
	for _, at := range []string{`"metadata":{%s}`, `"metadata":{%s},"spec":{"template":{"metadata":{%[1]s}}}`} {
		for _, owner := range []string{"", `"name":"web-0","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web","uid":"u","controller":true}],`} {
			begin, end, _ := strings.Cut(fmt.Sprintf(at, owner+`"annotations":{"custom-pod-schedule-strategy":"weight=1§"}`), "§")
			place := " with a strategy of labels" + map[bool]string{true: ", and an owner"}[owner != ""] + " in " + at
			add(place, before+"{"+begin, strings.ReplaceAll(end, "§", ",b=1")+"}"+after, "of many labels", func(size int) string { return numbered(",k%x=1", min(size, 8<<10-16)) })
			add(place, before+"{"+begin, strings.ReplaceAll(end, "§", ",b=1")+"}"+after, "of many pools", func(size int) string { return numbered(":k%x=1", size) })
		}
	}
	for _, shape := range []struct{ before, item, after string }{
		{`{"spec":{"pools":[{"nodeSelector":{`, `"k%x":"1"`, `}}]}}`},
		{`{"spec":{"distribution":[{"nodeLabel":{`, `"k%x":"1"`, `}}]}}`},
		{`{"spec":{"pools":[{"podLabels":{`, `"!%x":"!"`, `}}]}}`},
		{`{"spec":{"distribution":[{"podAnnotations":{`, `"!%x":"!"`, `}}]}}`},
		{`{"spec":{"selector":{"matchLabels":{`, `"!%x":"!"`, `}}}}`},
		{`{"spec":{"selector":{"matchExpressions":[`, `{"key":"!%x"}`, `]}}}`},
		{`{"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"In","values":[`, `"!%x"`, `]}]}}}`},
		{`{"spec":{"namespaceSelector":{"matchLabels":{`, `"!%x":"!"`, `}}}}`},
		{`{"spec":{"across":{"topologyKey":"a","domains":[`, `{"value":"%x"}`, `]}}}`},
		{`{"metadata":{"annotations":{`, `"stowage.dev/rebalanc%x":""`, `}}}`},
	} {
		add("", before+shape.before, shape.after+after, "of many "+shape.item+" in "+shape.before, func(size int) string {
			return strings.TrimPrefix(numbered(","+shape.item, size), ",")
		})
	}

	seen := map[reflect.Type]int{}
	var walk func(of reflect.Type, place, before, after string)
	walk = func(of reflect.Type, place, before, after string) {
		switch of.Kind() {
		case reflect.Pointer:
			walk(of.Elem(), place, before, after)
		case reflect.Slice:
			for _, item := range []string{"{}", `""`, "null", "[]", "0", `{"name":"x"}`} {
				add(place, before+"[", "]"+after, "of many "+item, repeated(item+",", item))
			}
			walk(of.Elem(), place+"[]", before+"[", "]"+after)
		case reflect.Map:
			add(place, before+"{", "}"+after, "of many keys", keys)
			add(place, before+"{", "}"+after, "of one key", repeated(`"k":"",`, `"k":""`))
			walk(of.Elem(), place+"{}", before+`{"k":`, "}"+after)
		case reflect.String:
			add(place, before+`"`, `"`+after, "long", func(size int) string { return strings.Repeat("x", max(0, size)) })
		case reflect.Struct:
			// A quantity and a date are written as texts.
			if seen[of]++; seen[of] > 2 || of == reflect.TypeFor[metav1.Time]() {
				return
			}
			for field := range of.Fields() {
				name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				switch {
				case name == "" && field.Anonymous:
					walk(field.Type, place, before, after)
				case name != "" && name != "-" && field.IsExported():
					walk(field.Type, place+"."+name, before+fmt.Sprintf(`{%q:`, name), "}"+after)
				}
			}
		}
	}
	walk(of, "", before, after)
	return out
}

// groupOf is the API group of a kind.
func groupOf(of reflect.Type) string {
	switch of.PkgPath() {
	case reflect.TypeFor[stowage.SpreadPolicy]().PkgPath():
		return stowage.GroupVersion.Group
	case reflect.TypeFor[versprei.PodDistributor]().PkgPath():
		return versprei.GroupVersion.Group
	case reflect.TypeFor[appsv1.Deployment]().PkgPath():
		return appsv1.GroupName
	case reflect.TypeFor[batchv1.Job]().PkgPath():
		return batchv1.GroupName
	}
	return ""
}

// repeated fills a size with an item, and ends with another one.
func repeated(item, last string) func(size int) string {
	return func(size int) string { return strings.Repeat(item, max(0, size-len(last))/len(item)) + last }
}

// numbered fills a size with items, each with a number of its own.
func numbered(item string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-len(item)-8; i++ {
		fmt.Fprintf(&b, item, i)
	}
	return b.String()
}

// keys fills a size with entries of a map, each with a key of its own.
func keys(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-16; i++ {
		fmt.Fprintf(&b, `"%x":"",`, i)
	}
	return b.String() + `"last":""`
}
