package capacity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/test/testkit"
)

var histories = flag.Int("histories", 60, "random histories in TestSimulation")

// bug is a mistake that the simulation must find.
type bug string

const (
	noBug          bug = ""
	amountFirst    bug = "an amount is written before its mark"
	markGoesFirst  bug = "a mark is removed before its amount"
	versionless    bug = "a write does not say what version it changes"
	errorForgotten bug = "a node whose request failed is forgotten"
	eventDropped   bug = "some events are dropped"
)

// cluster is an API server with all that the controller watches, and the processes that lead. It runs in a synctest bubble.
type cluster struct {
	clock.RealClock // the bubble's
	seed            uint64
	bug             bug
	mode            peerpod.CapacityMode
	lag, slow       time.Duration // most of an event and of a request

	mu      sync.Mutex
	draws   map[string]int
	objects map[string]client.Object
	log     []entry       // entry i made version i+1
	news    chan struct{} // closed with the next entry
	serial  int
	failing int // requests that fail, of 100
	calm    bool
	decided time.Time       // when a daemon decided last
	foreign map[string]bool // nodes whose amount another client wrote
	writes  int             // requests to write that arrived
	wrong   []string
	leader  *process
}

// entry is a version of an object, or that it is gone (nil).
type entry struct {
	key string
	obj client.Object
}

// roll returns random numbers. They depend on the seed, the purpose, and how often there was that purpose before, and not on what
// goroutine comes first. The caller holds the lock.
func (c *cluster) roll(purpose string) *rand.Rand {
	c.draws[purpose]++
	h := fnv.New64a()
	fmt.Fprint(h, purpose, c.draws[purpose])
	return rand.New(rand.NewPCG(c.seed, h.Sum64()))
}

func upTo(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most) + 1))
}

func (c *cluster) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// put stores a version of an object; nil removes it. The caller holds the lock, and changes the object no more.
func (c *cluster) put(key string, obj client.Object) {
	if obj == nil {
		if c.objects[key] == nil {
			return
		}
		delete(c.objects, key)
		delete(c.foreign, key)
	} else {
		if obj.GetUID() == "" {
			c.serial++
			obj.SetUID(types.UID(fmt.Sprint("uid-", c.serial)))
		}
		kind := kinds[key[:strings.Index(key, "/")]]
		obj.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(versions[kind], kind))
		obj.SetResourceVersion(fmt.Sprint(len(c.log) + 1))
		c.objects[key] = obj
	}
	c.log = append(c.log, entry{key, obj})
	if c.decides() {
		c.decided = c.Now()
	}
	close(c.news)
	c.news = make(chan struct{})
}

// rest lets time pass without the lock.
func (c *cluster) rest(d time.Duration) {
	c.mu.Unlock()
	c.Sleep(d)
	c.mu.Lock()
}

// edit changes an object if it exists. The caller holds the lock.
func edit[T client.Object](c *cluster, key string, do func(T)) {
	if was := c.objects[key]; was != nil {
		obj := was.DeepCopyObject().(T)
		do(obj)
		c.put(key, obj)
	}
}

// selector tells what a list or watch is of.
type selector func(key string, obj client.Object) bool

// state returns the objects of a version. The caller holds the lock.
func (c *cluster) state(of selector, version int) map[string]client.Object {
	out := map[string]client.Object{}
	for _, e := range c.log[:version] {
		delete(out, e.key)
		if e.obj != nil && of(e.key, e.obj) {
			out[e.key] = e.obj
		}
	}
	return out
}

// process is one process of Stowage, as the API server's client. It leads in one term or more.
type process struct {
	*cluster
	name       string
	ctx        context.Context
	kill       context.CancelFunc
	controller *Controller
	left       int               // writes until its end
	limit      int64             // the last valid one of which the term was told
	held       map[string][]byte // writes that a bug sends later
}

// sorted is a cache that lists nodes by their name, so that a seed makes the same history each time.
type sorted struct{ cache.Cache }

// List implements client.Reader.
func (s sorted) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := s.Cache.List(ctx, list, options...)
	if nodes, ok := list.(*corev1.NodeList); ok {
		slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	}
	return err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// start starts a process.
func (c *cluster) start(ctx context.Context, n int) *process {
	c.mu.Lock()
	p := &process{cluster: c, name: fmt.Sprint("process-", n), held: map[string][]byte{}}
	p.left = 1 + c.roll("left").IntN(12)
	c.mu.Unlock()
	p.ctx, p.kill = context.WithCancel(ctx)
	config := &rest.Config{Host: "http://server", QPS: -1, Transport: p, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), meta.RESTScopeNamespace)
	informers := must(cache.New(config, cache.Options{HTTPClient: &http.Client{Transport: p}, Scheme: scheme.Scheme, Mapper: mapper}))
	go func() { _ = informers.Start(p.ctx) }()
	p.controller = &Controller{
		Uncached:  must(client.New(config, client.Options{HTTPClient: &http.Client{Transport: p}, Scheme: scheme.Scheme, Mapper: mapper})),
		Clientset: must(kubernetes.NewForConfig(config)), Informers: sorted{informers},
		Resource: vm, ConfigMap: types.NamespacedName{Namespace: "stowage-system", Name: "peer-pods-cm"}, Default: 10,
		Nodes: must(labels.Parse("!control-plane")), Mode: c.mode, Daemons: labels.SelectorFromSet(labels.Set{"app": "cloud-api-adaptor"}), DaemonNamespace: "caa",
		Clock: clock.RealClock{}, Log: logr.Discard(), Events: events.Recorder{EventRecorder: &clientevents.FakeRecorder{}}, Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
	}
	return p
}

// lead has processes lead in turn until ctx ends. A process may lead again, and two may lead for a moment.
func (c *cluster) lead(ctx context.Context) {
	var p *process
	for n := 0; ctx.Err() == nil; n++ {
		if p == nil || p.ctx.Err() != nil {
			p = c.start(ctx, n)
		}
		term, end := context.WithCancel(p.ctx)
		c.mu.Lock()
		r := c.roll("lead")
		c.leader, p.limit = p, peerpod.None
		c.mu.Unlock()
		ended := make(chan struct{})
		go func(p *process) {
			defer close(ended)
			for _, obj := range []client.Object{&corev1.Node{}, &appsv1.DaemonSet{}} { // a process leads once its cache is filled
				_, _ = p.controller.Informers.GetInformer(term, obj)
			}
			if !p.controller.Informers.WaitForCacheSync(term) {
				return
			}
			t, wait := leader.NewTerm(term, c.RealClock, logr.Discard())
			if err := p.controller.Register(t); err != nil && term.Err() == nil {
				panic(err)
			}
			t.Start()
			<-term.Done()
			wait()
		}(p)
		select {
		case <-term.Done():
		case <-c.After(upTo(r, time.Minute)):
			c.mu.Lock()
			calm := c.calm
			c.mu.Unlock()
			if calm {
				<-term.Done()
			}
		}
		old := p
		switch r.IntN(3) {
		case 0: // the next one leads already
			time.AfterFunc(upTo(r, 3*time.Second), func() {
				end()
				old.kill()
			})
			p = nil
			continue
		case 1:
			p.kill()
		}
		end()
		<-ended
		c.Sleep(upTo(r, 4*time.Second))
	}
}

var (
	kinds    = map[string]string{"nodes": "Node", "pods": "Pod", "configmaps": "ConfigMap", "daemonsets": "DaemonSet"}
	versions = map[string]string{"Node": "v1", "Pod": "v1", "ConfigMap": "v1", "DaemonSet": "apps/v1"}
)

// RoundTrip implements http.RoundTripper. It answers as an API server does.
func (p *process) RoundTrip(req *http.Request) (*http.Response, error) {
	path := strings.Split(req.URL.Path, "/")[3:] // without api and v1
	if path[0] == "v1" {                         // after apis and apps
		path = path[1:]
	}
	prefix := path[0] + "/"
	if path[0] == "namespaces" {
		prefix, path = path[2]+"/"+path[1]+"/", path[2:]
	}
	q := req.URL.Query()
	selected := must(labels.Parse(q.Get("labelSelector")))
	of := func(key string, obj client.Object) bool {
		return strings.HasPrefix(key, prefix) && selected.Matches(labels.Set(obj.GetLabels()))
	}
	switch {
	case q.Get("sendInitialEvents") != "":
		return answer(req, http.StatusBadRequest, nil), nil
	case q.Get("watch") != "":
		r, w := io.Pipe()
		go p.stream(req.Context(), w, of, p.name+req.URL.Path+q.Get("labelSelector"), must(strconv.Atoi(q.Get("resourceVersion"))))
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: r, Request: req}, nil
	case len(path) == 1:
		return p.list(req, of, kinds[path[0]])
	}
	var patch []byte
	if req.Method == http.MethodPatch {
		patch = must(io.ReadAll(req.Body))
	}
	return p.request(req, "nodes/"+path[1], patch, len(path) > 2)
}

func answer(req *http.Request, code int, body []byte) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: req}
}

// list answers a list. That of the limit is late at times.
func (p *process) list(req *http.Request, of selector, kind string) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.roll("list" + p.name + req.URL.Path + req.URL.RawQuery)
	wait := upTo(r, p.slow)
	if kind == "ConfigMap" && r.IntN(8) == 0 {
		wait += patience
	}
	if p.rest(wait); req.Context().Err() != nil {
		return nil, req.Context().Err()
	}
	version := len(p.log)
	items, state := []client.Object{}, p.state(of, version)
	for _, key := range slices.Sorted(maps.Keys(state)) {
		items = append(items, state[key])
	}
	if kind == "ConfigMap" {
		p.told(nil, state[configMap])
	}
	return answer(req, http.StatusOK, must(json.Marshal(map[string]any{
		"kind": kind + "List", "apiVersion": versions[kind], "metadata": map[string]any{"resourceVersion": fmt.Sprint(version)}, "items": items,
	}))), nil
}

const configMap = "configmaps/stowage-system/peer-pods-cm"

// told notes the limit of which a term was told. Without a ConfigMap before, one that is invalid may come first: then the term
// knows none. The caller holds the lock.
func (p *process) told(was, cm client.Object) {
	if limit, valid := limitOf(cm); valid {
		p.limit = limit
	} else if was == nil {
		p.limit = peerpod.None
	}
}

// limitOf returns the limit of all nodes, and whether it is valid.
func limitOf(obj client.Object) (int64, bool) {
	cm, _ := obj.(*corev1.ConfigMap)
	if cm == nil {
		return 10, true
	}
	n, err := strconv.Atoi(cm.Data[stowage.PeerPodsLimitKey])
	return int64(n), err == nil
}

// stream answers a watch. Events come late. Some come twice, and of some versions there is none, as after a watch that broke.
func (p *process) stream(ctx context.Context, w *io.PipeWriter, of selector, name string, at int) {
	defer func() { _ = w.Close() }()
	defer context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })()
	p.mu.Lock()
	defer p.mu.Unlock()
	for seen := p.state(of, at); ctx.Err() == nil; {
		now, news := p.state(of, at), p.news
		for at < len(p.log) && maps.Equal(seen, now) {
			at++
			now = p.state(of, at)
		}
		if maps.Equal(seen, now) {
			p.mu.Unlock()
			select {
			case <-news:
			case <-ctx.Done():
			}
			p.mu.Lock()
			continue
		}
		r := p.roll(name)
		p.rest(upTo(r, p.lag))
		if r.IntN(4) == 0 {
			at = len(p.log)
			now = p.state(of, at)
		}
		keys := maps.Clone(seen)
		maps.Copy(keys, now)
		var send bytes.Buffer
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			was, obj, kind := seen[key], now[key], "MODIFIED"
			if was == obj || p.bug == eventDropped && r.IntN(4) == 0 {
				continue
			}
			if key == configMap {
				p.told(was, obj)
			}
			times := 1
			switch {
			case was == nil:
				kind = "ADDED"
			case obj == nil:
				kind, obj = "DELETED", was
			case r.IntN(10) == 0:
				times = 2
			}
			send.Write(bytes.Repeat(must(json.Marshal(map[string]any{"type": kind, "object": obj})), times))
		}
		seen = now
		p.mu.Unlock()
		_, _ = w.Write(send.Bytes())
		p.mu.Lock()
	}
}

// request answers a request about one node. One that was sent arrives also if the process has ended since.
func (p *process) request(req *http.Request, key string, patch []byte, status bool) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.roll(p.name + req.Method + key)
	fails, code, obj := !p.calm && r.IntN(100) < p.failing, []int{0, http.StatusConflict, http.StatusInternalServerError, http.StatusOK}[r.IntN(4)], client.Object(nil)
	if fails && p.bug == errorForgotten {
		return answer(req, http.StatusNotFound, nil), nil
	}
	p.rest(upTo(r, p.slow))
	if !fails {
		code, obj = p.serve(r, key, patch, status)
	} else if code == http.StatusOK { // it arrives
		_, _ = p.serve(r, key, patch, status)
		code = 0
	}
	if p.rest(upTo(r, p.slow)); code == 0 || req.Context().Err() != nil {
		return nil, errors.New("no answer")
	}
	return answer(req, code, must(json.Marshal(obj))), nil
}

// serve reads or writes a node. After some of the writes the process ends; and before some, which are not done.
func (p *process) serve(r *rand.Rand, key string, patch []byte, status bool) (int, client.Object) {
	was := p.objects[key]
	switch {
	case was == nil:
		return http.StatusNotFound, nil
	case patch == nil:
		return http.StatusOK, was
	case p.bug == amountFirst || p.bug == markGoesFirst:
		removes := bytes.Contains(patch, []byte("null"))
		if removes == (p.bug == markGoesFirst) && status == removes {
			p.held[key] = patch
			return http.StatusOK, was
		}
		if first := p.held[key]; first != nil {
			delete(p.held, key)
			defer p.write(r, key, first, !status)
		}
	}
	code := p.write(r, key, patch, status)
	return code, p.objects[key]
}

// write changes a node as the API server does. The caller holds the lock.
func (p *process) write(r *rand.Rand, key string, patch []byte, status bool) int {
	p.writes++
	if p.left--; p.left == 0 && !p.calm {
		defer p.kill()
		if r.IntN(3) == 0 {
			return http.StatusInternalServerError
		}
	}
	was, _ := p.objects[key].(*corev1.Node)
	if was == nil {
		return http.StatusNotFound
	}
	var of metav1.PartialObjectMetadata
	_ = json.Unmarshal(patch, &of)
	if unchecked := []bug{versionless, amountFirst, markGoesFirst}; of.ResourceVersion != was.ResourceVersion && !slices.Contains(unchecked, p.bug) {
		return http.StatusConflict
	}
	var now *corev1.Node
	_ = json.Unmarshal(must(strategicpatch.StrategicMergePatch(must(json.Marshal(was)), patch, corev1.Node{})), &now)
	if status {
		now.ObjectMeta = was.ObjectMeta
	} else {
		now.Status, now.ResourceVersion = was.Status, was.ResourceVersion
	}
	p.judge(key, was, now)
	p.put(key, now)
	return http.StatusOK
}

// judge notes what is wrong with a write of Stowage's.
func (c *cluster) judge(key string, was, now *corev1.Node) {
	a, b := peerpod.AdvertisedBy(was, string(vm)), peerpod.AdvertisedBy(now, string(vm))
	others := a.Mark == "" && a.Capacity > 0 && c.foreign[key]
	if selected(was) && c.Since(c.decided) < time.Minute {
		others = false // Stowage takes over what a daemon wrote
	}
	switch {
	case a == b:
		c.fail("a write changes nothing of %s: %+v", key, a)
	case others && a.Capacity != b.Capacity:
		c.fail("another client's amount on %s is overwritten: %+v, %+v", key, a, b)
	case others && b.Mark != fmt.Sprint(a.Capacity):
		c.fail("another client's amount on %s gets a mark: %+v, %+v", key, a, b)
	case a.Capacity != b.Capacity && b.Capacity > 0 && b.Mark != fmt.Sprint(b.Capacity):
		c.fail("an amount on %s comes before its mark: %+v, %+v", key, a, b)
	case b.Mark == "" && b.Capacity > 0 && !c.foreign[key]:
		c.fail("a mark on %s goes before its amount: %+v, %+v", key, a, b)
	}
	if a.Capacity != b.Capacity {
		delete(c.foreign, key)
	}
}

func selected(node *corev1.Node) bool { _, not := node.Labels["control-plane"]; return !not }

const daemonSet = "daemonsets/caa/caa"

// decides reports whether daemons decide what nodes advertise.
func (c *cluster) decides() bool {
	d, _ := c.objects[daemonSet].(*appsv1.DaemonSet)
	return c.mode == peerpod.CapacityWhenReady || c.mode == peerpod.CapacityAuto && d != nil && d.Status.CurrentNumberScheduled > 0
}

// ready reports whether a node has a daemon that can make VMs.
func (c *cluster) ready(node string) bool {
	d, _ := c.objects[daemonSet].(*appsv1.DaemonSet)
	for _, obj := range c.objects {
		pod, ok := obj.(*corev1.Pod)
		if ok && d != nil && d.Status.CurrentNumberScheduled > 0 && metav1.IsControlledBy(pod, d) && pod.Spec.NodeName == node && pod.Status.Conditions[0].Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// set has somebody else write the amount of a node. Less than 0 removes it.
func (c *cluster) set(key string, amount int64) {
	edit(c, key, func(n *corev1.Node) {
		list := corev1.ResourceList{vm: *resource.NewQuantity(amount, resource.DecimalSI)}
		if amount < 0 {
			list = corev1.ResourceList{}
		}
		n.Status.Capacity, n.Status.Allocatable = list, list
		c.foreign[key] = true
	})
}

func (c *cluster) newNode(r *rand.Rand, name string) {
	n := node(-1, "", nil)
	n.Name, n.UID = name, ""
	if r.IntN(8) == 0 {
		n.Labels = map[string]string{"control-plane": ""}
	}
	c.put("nodes/"+name, n)
	if r.IntN(6) == 0 {
		c.set("nodes/"+name, 1+r.Int64N(9))
	}
}

func (c *cluster) configure(r *rand.Rand) {
	if r.IntN(6) == 0 {
		c.put(configMap, nil)
		return
	}
	c.put(configMap, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "peer-pods-cm"},
		Data:       map[string]string{stowage.PeerPodsLimitKey: []string{"many", "0", "1", "2", "3", "4"}[r.IntN(6)]},
	})
}

func (c *cluster) deploy(scheduled int32) {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "caa", Name: "caa"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cloud-api-adaptor"}}
	d.Spec.Template.Spec.HostNetwork, d.Status.CurrentNumberScheduled = true, scheduled
	c.put(daemonSet, d)
}

// daemon changes the daemon of a node.
func (c *cluster) daemon(r *rand.Rand, on string) {
	is := func(status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Conditions[0].Status = status }
	}
	for _, key := range slices.Sorted(maps.Keys(c.objects)) {
		if pod, ok := c.objects[key].(*corev1.Pod); ok && pod.Spec.NodeName == on {
			switch r.IntN(5) {
			case 0:
				c.put(key, nil)
			case 1: // it stops, and removes the amount before
				c.set("nodes/"+on, -1)
				time.AfterFunc(upTo(r, time.Second), func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					edit(c, key, is(corev1.ConditionFalse))
				})
			default:
				edit(c, key, is([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[r.IntN(2)]))
			}
			return
		}
	}
	if d := c.objects[daemonSet]; d != nil {
		c.serial++
		key := fmt.Sprint("caa-", c.serial)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "caa", Name: key}, Spec: corev1.PodSpec{NodeName: on}}
		pod.Labels = map[string]string{"app": "cloud-api-adaptor"}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "caa", UID: d.GetUID(), Controller: new(true)}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		c.put("pods/caa/"+key, pod)
		edit(c, daemonSet, func(d *appsv1.DaemonSet) { d.Status.CurrentNumberScheduled++ })
	}
}

// act changes something. The caller holds the lock.
func (c *cluster) act(r *rand.Rand) {
	name := fmt.Sprint("n", r.IntN(3))
	key := "nodes/" + name
	was := c.objects[key]
	if was == nil {
		c.newNode(r, name)
		return
	}
	annotate := func(key, value string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Annotations[key] = value
			if value == "" {
				delete(n.Annotations, key)
			}
		}
	}
	switch r.IntN(17) {
	case 0:
		c.put(key, nil)
	case 1: // made anew at once
		c.put(key, nil)
		c.newNode(r, name)
	case 2:
		edit(c, key, func(n *corev1.Node) {
			if n.Labels = nil; r.IntN(2) == 0 {
				n.Labels = map[string]string{"control-plane": ""}
			}
		})
	case 3, 4:
		edit(c, key, annotate(stowage.PeerPodsLimitAnnotation, []string{"", "0", "2", "4", "two"}[r.IntN(5)]))
	case 5, 6: // a kubelet that starts
		if _, has := was.(*corev1.Node).Status.Capacity[vm]; has {
			c.set(key, 0)
		}
	case 7: // a heartbeat
		edit(c, key, annotate("heartbeat", fmt.Sprint(len(c.log))))
	case 8, 9:
		c.set(key, 1+r.Int64N(9))
	case 10:
		c.set(key, -1)
	case 11: // an administrator hands the amount over
		edit(c, key, annotate(stowage.PeerPodsCapacityAnnotation, "1"))
	case 12, 13:
		c.configure(r)
	case 14: // removed, or made anew
		c.put(daemonSet, nil)
		if r.IntN(3) > 0 {
			c.deploy(r.Int32N(2))
		}
	default:
		if c.objects[daemonSet] == nil {
			c.deploy(r.Int32N(2))
		}
		c.daemon(r, name)
	}
}

// One of these sleeps until a moment that it noted in another bubble.
func init() { utilruntime.ErrorHandlers = nil }

// play plays one history.
func play(t *testing.T, seed uint64, b bug) (wrong []string) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 37))
		ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logr.Discard()))
		c := &cluster{
			seed: seed, bug: b, mode: []peerpod.CapacityMode{peerpod.CapacityAuto, peerpod.CapacityWhenReady, peerpod.CapacityAlways}[r.IntN(3)],
			lag: []time.Duration{2 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second}[r.IntN(3)], slow: []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, time.Second}[r.IntN(3)],
			draws: map[string]int{}, objects: map[string]client.Object{}, news: make(chan struct{}), foreign: map[string]bool{},
		}
		c.mu.Lock()

		// 1. What there was before.
		for i := range 3 {
			c.newNode(r, fmt.Sprint("n", i))
		}
		c.configure(r)
		if r.IntN(2) == 0 {
			c.deploy(0)
			c.daemon(r, "n0")
			c.daemon(r, "n1")
		}
		c.rest(2 * time.Second)

		// 2. Much changes, while one process after the other leads.
		c.failing = []int{0, 5, 30}[r.IntN(3)]
		if b == versionless { // others write in the meantime
			c.slow = 5 * time.Second
		}
		go c.lead(ctx)
		for range 10 + r.IntN(50) {
			if r.IntN(3) > 0 {
				c.rest(upTo(r, 6*time.Second))
			} else if r.IntN(2) > 0 {
				c.rest(upTo(r, 5*time.Millisecond))
			}
			c.act(r)
		}

		// 3. At rest all is right, and nothing is written any more.
		c.calm = true
		c.rest(20 * time.Minute)
		writes := c.writes
		c.rest(20 * time.Minute)
		if c.writes != writes {
			c.fail("%d writes at rest", c.writes-writes)
		}
		for key, obj := range c.objects {
			if node, ok := obj.(*corev1.Node); ok {
				c.checkNode(key, node)
			}
		}
		wrong = c.wrong
		c.mu.Unlock()
		cancel()
		c.Sleep(time.Minute)
	})
	return wrong
}

// checkNode notes what is wrong with a node at rest.
func (c *cluster) checkNode(key string, node *corev1.Node) {
	now := peerpod.AdvertisedBy(node, string(vm))
	limit := c.leader.limit
	if n, err := strconv.Atoi(now.Mark); limit == peerpod.None && err == nil {
		limit = int64(n) // what the node was told last
	}
	if n, err := strconv.Atoi(node.Annotations[stowage.PeerPodsLimitAnnotation]); err == nil {
		limit = int64(n)
	}
	daemons := c.decides()
	if !selected(node) || daemons && !c.ready(node.Name) {
		limit = 0
	}
	others := now.Mark == "" && (now.Capacity <= 0 || c.foreign[key])
	right := now == peerpod.Advertised{Capacity: limit, Allocatable: limit, Mark: fmt.Sprint(limit)}
	switch {
	case limit == peerpod.None:
		right = others
	case limit == 0:
		right = others && (now.Capacity <= 0 || !daemons || !selected(node))
	case !daemons && now.Capacity > 0:
		right = right || others && now.Capacity != limit
	}
	if !right {
		c.fail("%s advertises %+v and not %d at rest (%s, another client's: %t)", key, now, limit, c.mode, c.foreign[key])
	}
}

// Whatever fails, and whoever leads, nodes come to advertise what they should, and each write was due.
func TestSimulation(t *testing.T) {
	testkit.PlayHistories(t, *histories, func(seed uint64) []string { return play(t, seed, noBug) })
}

// The simulation finds each of these mistakes.
func TestSimulationFindsPlantedBugs(t *testing.T) {
	testkit.FindBugs(t, 300, map[bug]string{
		amountFirst: "comes before its mark", markGoesFirst: "goes before its amount", errorForgotten: "at rest",
		versionless: "comes before its mark", eventDropped: "at rest",
	}, play)
}
