package costs

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
)

// server is an API server for the patches of pods, and what the caches of a process have. It decides nothing that a test is about: what it answers is what the
// test says.
type server struct {
	testing.TB
	client.Reader
	run   *run
	clock *clocktesting.FakeClock
	nodes map[string]map[string]string

	mu      sync.Mutex
	pods    map[string]*corev1.Pod // by namespace/name
	version int
	patches map[string]int // by namespace
	// answer has another answer than the pod as it was patched: a status, or a change of the pod.
	answer func(is *corev1.Pod) (status int)
}

func newServer(t testing.TB, mode stowage.PolicyMode, keys ...string) *server {
	t.Helper()
	s := &server{TB: t, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), nodes: map[string]map[string]string{}, pods: map[string]*corev1.Pod{}, version: 1000, patches: map[string]int{}}
	listens := httptest.NewServer(s)
	t.Cleanup(listens.Close)
	set, err := kubernetes.NewForConfig(&rest.Config{Host: listens.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	term, wait := leader.NewTerm(t.Context(), clock.RealClock{}, logr.Discard())
	t.Cleanup(wait)
	c := &Controller{Cached: s, Clientset: set, Scope: scope.New(s, "stowage-system"), Clock: s.clock, Log: logr.Discard(), Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry()))}
	s.run = c.newRun(term)
	s.run.pods.synced.Store(true)
	p := &stowage.ClusterScaleDownPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	p.Spec.Mode, p.Spec.TopologyKeys = mode, keys
	s.run.sorted = []*policies.Policy{policies.OfCluster(p)}
	return s
}

// Get implements client.Reader.
func (s *server) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	switch o := out.(type) {
	case *corev1.Node:
		if labels, ok := s.nodes[key.Name]; ok {
			*o = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Labels: labels}}
			return nil
		}
	case *corev1.Namespace:
		*o = corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Labels: map[string]string{corev1.LabelMetadataName: key.Name}}}
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// Namespace implements scope.Namespaces.
func (s *server) Namespace(context.Context, string) (*corev1.Namespace, error) { return nil, nil }

func (s *server) node(name, zone string) {
	s.nodes[name] = map[string]string{"zone": zone}
	s.run.nodeSeen(nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: s.nodes[name]}})
}

// pod makes a ready pod of an owner on a node, or changes it, and has the watch show it.
func (s *server) pod(namespace, owner, name, node string, change ...func(*corev1.Pod)) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	is := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(namespace + name), Labels: map[string]string{"app": owner},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: new(true)}},
	}, Spec: corev1.PodSpec{NodeName: node}}
	if was := s.pods[namespace+"/"+name]; was != nil {
		is = was.DeepCopy()
	}
	is.ResourceVersion = fmt.Sprint(s.version)
	is.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(is)
	}
	s.pods[namespace+"/"+name] = is
	if err := s.run.pods.Update(is); err != nil {
		s.Fatal(err)
	}
}

// ServeHTTP answers the patch of a pod.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	var body struct {
		Metadata struct {
			ResourceVersion string
			Annotations     map[string]*string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches[parts[4]]++
	is := s.pods[parts[4]+"/"+parts[6]].DeepCopy()
	status := http.StatusOK
	if body.Metadata.ResourceVersion != is.ResourceVersion {
		status = http.StatusConflict
	} else {
		for key, value := range body.Metadata.Annotations {
			if value == nil {
				delete(is.Annotations, key)
			} else {
				metav1.SetMetaDataAnnotation(&is.ObjectMeta, key, *value)
			}
		}
		if s.answer != nil {
			status = s.answer(is)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if status != http.StatusOK {
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(status), Message: "refused by the test", Reason: map[int]metav1.StatusReason{http.StatusConflict: metav1.StatusReasonConflict, http.StatusForbidden: metav1.StatusReasonForbidden}[status]})
		return
	}
	s.version++
	is.ResourceVersion = fmt.Sprint(s.version)
	s.pods[parts[4]+"/"+parts[6]] = is
	_ = json.NewEncoder(w).Encode(is)
}

// pass lets some time pass, beat by beat. Writes end within their beat.
func (s *server) pass(d time.Duration) {
	s.Helper()
	for ; d > 0; d -= every {
		s.run.pods.mu.Lock()
		s.run.mark(new(s.run.news.take()), s.clock.Now())
		s.run.lookAtMarked(s.Context(), s.clock.Now())
		s.run.send(s.Context(), s.clock.Now())
		s.run.pods.mu.Unlock()
		for end := time.Now().Add(time.Minute); ; { //nolint:forbidigo // a deadline for the requests of the test
			s.run.pods.mu.Lock()
			flown := s.run.flown()
			s.run.pods.mu.Unlock()
			if flown == 0 {
				break
			}
			if time.Now().After(end) { //nolint:forbidigo // see above
				s.Fatal("writes do not end")
			}
		}
		s.clock.Step(every)
	}
}

// owner returns what is known of an owner after another look.
func (s *server) owner(namespace, name string) *owner {
	s.Helper()
	s.run.pods.mu.Lock()
	defer s.run.pods.mu.Unlock()
	o := s.run.pods.owners[ownerKey{namespace, types.UID(name)}]
	if o == nil {
		s.Fatalf("there is no owner %s", name)
	}
	s.run.look(s.Context(), o, s.clock.Now())
	return o
}

// written returns how many pods of a namespace have a cost and its mark.
func (s *server) written(namespace string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, p := range s.pods {
		if cost := p.Annotations[corev1.PodDeletionCost]; strings.HasPrefix(key, namespace+"/") && cost != "" && cost == p.Annotations[stowage.ScaleDownCostAnnotation] {
			n++
		}
	}
	return n
}

// two makes two zones of a node, and so many pods of an owner on both.
func (s *server) two(namespace, owner string, pods int) {
	s.Helper()
	if len(s.nodes) == 0 {
		s.node("n0", "a")
		s.node("n1", "b")
	}
	for i := range pods {
		s.pod(namespace, owner, fmt.Sprintf("%s-%03d", owner, i), fmt.Sprintf("n%d", i%2))
	}
}

// conditionOf is the condition Kept of the only policy.
func (s *server) conditionOf() metav1.Condition {
	s.Helper()
	s.run.pods.mu.Lock()
	defer s.run.pods.mu.Unlock()
	p := s.run.sorted[0]
	return s.run.tally()[p.UID].conditions(p)[2]
}

func (s *server) says(reason stowage.ConditionReason, text string) {
	s.Helper()
	if c := s.conditionOf(); c.Reason != string(reason) || !strings.Contains(c.Message, text) {
		s.Errorf("Kept is %s %s: %s; want %s: %s", c.Status, c.Reason, c.Message, reason, text)
	}
}

func TestAllAreWritten(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.two("ns", "web", 40)
	s.pass(2 * time.Second)
	if n := s.written("ns"); n != 40 || s.patches["ns"] != 40 {
		t.Errorf("%d pods of 40 are written, with %d patches", n, s.patches["ns"])
	}
	s.says(stowage.ReasonKept, "")
	s.pass(10 * time.Second)
	if s.patches["ns"] != 40 {
		t.Errorf("at rest there were %d patches", s.patches["ns"]-40)
	}
}

// Somebody takes the cost away within the very request. He is not fought.
func TestStrippedCosts(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.answer = func(is *corev1.Pod) int {
		maps.DeleteFunc(is.Annotations, func(string, string) bool { return true })
		return http.StatusOK
	}
	s.two("ns", "web", 4)
	s.pass(time.Minute)
	if n := s.patches["ns"]; n > 4*12 {
		t.Errorf("%d patches in a minute for 4 pods", n)
	}
}

// Half a second of errors delays costs by seconds.
func TestShortOutage(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.answer = func(*corev1.Pod) int { return http.StatusBadGateway }
	s.two("ns", "web", 60)
	s.pass(500 * time.Millisecond)
	s.says(stowage.ReasonRefused, "refused by the test")
	s.answer = nil
	s.pass(5 * time.Second)
	if n := s.written("ns"); n != 60 {
		t.Errorf("%d of 60 pods are written 5 s after the outage", n)
	}
	s.says(stowage.ReasonKept, "")
}

// An outage that lasts is asked about less and less often.
func TestLongOutage(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.answer = func(*corev1.Pod) int { return http.StatusForbidden }
	s.two("ns", "web", 60)
	s.pass(5 * time.Minute)
	if n := s.patches["ns"]; n > 30 {
		t.Errorf("%d patches in five minutes", n)
	}
}

// A pod that is refused for good delays no other one of its owner, and is told until it is gone.
func TestOneIsRefused(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.answer = func(is *corev1.Pod) int {
		if is.Name == "web-003" {
			return http.StatusForbidden
		}
		return http.StatusOK
	}
	s.two("ns", "web", 10)
	s.pass(time.Minute)
	s.says(stowage.ReasonRefused, "pod ns/web-003: ")
	s.pod("ns", "web", "web-new", "n0")
	s.pass(500 * time.Millisecond)
	if n := s.written("ns"); n != 10 {
		t.Errorf("%d pods are written, want all but one", n)
	}
	s.pod("ns", "web", "web-003", "n1", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
	s.pass(gapAfterLoss + time.Second)
	s.says(stowage.ReasonKept, "")
}

// A conflict that nothing newer explains is tried again.
func TestConflictWithoutANewerVersion(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.answer = func(*corev1.Pod) int { return http.StatusConflict }
	s.two("ns", "web", 2)
	s.pass(time.Second)
	s.answer = nil
	s.pass(2 * conflictWait)
	if n := s.written("ns"); n != 2 {
		t.Errorf("%d of 2 pods are written", n)
	}
}

// Pods that come all the time do not keep older ones of other namespaces waiting.
func TestFreshPodsLeaveRoom(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.two("old", "web", 60)
	s.pass(0)
	s.clock.Step(2 * freshFor) // they are not fresh any more
	for i := range 50 {
		for n := range 12 {
			s.pod("flood", "web", fmt.Sprintf("f-%d-%d", i, n), "n0")
		}
		s.pass(every)
	}
	if n := s.written("old"); n < 50 {
		t.Errorf("%d of 60 older pods are written beside a flood of 5 s", n)
	}
}

// Foreign costs that are below ours count at the next step, and pods that are not ready are told.
func TestNextStepCounts(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.two("ns", "web", 8)
	for i := 0; i < 8; i += 2 {
		s.pod("ns", "web", fmt.Sprintf("web-%03d", i), "n0", func(p *corev1.Pod) { p.Annotations = costs("-900", "") })
	}
	s.pass(time.Second)
	s.says(stowage.ReasonOtherCosts, "a 0, b 4")
	if o := s.owner("ns", "web"); o.placed != 8 || o.foreign != 4 || o.written != 4 {
		t.Errorf("%+v", o.result)
	}

	s = newServer(t, stowage.PolicyEnforce, "zone")
	s.two("ns", "web", 12)
	s.pass(time.Second)
	for i := range 12 {
		name := fmt.Sprintf("web-%03d", i)
		if cost := s.pods["ns/"+name].Annotations[corev1.PodDeletionCost]; i%2 == 0 && cost >= "-1" && cost <= "-3" {
			s.pod("ns", "web", name, "n0", func(p *corev1.Pod) { p.Status.Conditions = nil })
		}
	}
	s.pass(time.Second)
	s.says(stowage.ReasonNotReady, "not ready and go first")
}

// What an owner's newest pod asks for holds, in whatever order pods are seen.
func TestNewestPodCounts(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce)
	s.two("ns", "web", 2)
	s.pass(time.Second)
	if o := s.owner("ns", "web"); o.not != stowage.NotConcernedNoKeys {
		t.Errorf("not concerned: %q", o.not)
	}
	asks := func(p *corev1.Pod) {
		p.CreationTimestamp = metav1.Unix(2e9, 0)
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "zone", MaxSkew: 1, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	}
	s.pod("ns", "web", "web-new", "n0", asks)
	s.pass(time.Second)
	s.pod("ns", "web", "web-001", "n1") // an event of an old one changes nothing
	s.pass(time.Second)
	if o := s.owner("ns", "web"); o.not != "" || s.written("ns") != 3 {
		t.Errorf("not concerned: %q; %d are written", o.not, s.written("ns"))
	}
	s.pod("ns", "web", "web-new", "n0", func(p *corev1.Pod) { p.Annotations[stowage.ModeKey] = "Off" })
	s.pass(time.Second)
	if o := s.owner("ns", "web"); o.not != stowage.NotConcernedMode || s.written("ns") != 0 {
		t.Errorf("not concerned: %q; %d are written", o.not, s.written("ns"))
	}
}

// Enforce and Audit in turn are no contest, and Karpenter's costs are left alone.
func TestModesAndKarpenter(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.two("ns", "web", 6)
	for range 6 {
		for _, mode := range []stowage.PolicyMode{stowage.PolicyEnforce, stowage.PolicyAudit} {
			want := map[stowage.PolicyMode]int{stowage.PolicyEnforce: 6}[mode]
			s.run.sorted[0].Spec.Mode = mode
			s.run.news.tell(func(all *told) { all.policies[""] = true })
			s.pass(time.Second)
			if n := s.written("ns"); n != want {
				t.Fatalf("in %s %d pods are written", mode, n)
			}
		}
	}
	s.run.sorted[0].Spec.Mode = stowage.PolicyEnforce
	s.pod("ns", "web", "web-000", "n0", func(p *corev1.Pod) {
		p.Annotations = costs("5", "")
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "karpenter", FieldsV1: costField}}
	})
	before := s.patches["ns"]
	s.pass(time.Second)
	if o := s.owner("ns", "web"); o.not != stowage.NotConcernedKarpenter || s.patches["ns"] != before {
		t.Errorf("not concerned: %q, %d patches", o.not, s.patches["ns"]-before)
	}
	s.says(stowage.ReasonKarpenter, "PodDeletionCostManagement")
}

// A pod that leaves its owner loses the cost.
func TestPodsWithoutOwner(t *testing.T) {
	s := newServer(t, stowage.PolicyEnforce, "zone")
	s.two("ns", "web", 2)
	s.pass(time.Second)
	s.pod("ns", "web", "web-000", "n0", func(p *corev1.Pod) { p.OwnerReferences = nil })
	s.pass(time.Second)
	if p := s.pods["ns/web-000"]; len(p.Annotations) != 0 {
		t.Errorf("the annotations are %v", p.Annotations)
	}
	if n := len(s.run.pods.owners); n != 1 {
		t.Errorf("%d owners are known", n)
	}
}

// The values of a key are counted as nodes come, change and go.
func TestNodeLabels(t *testing.T) {
	var n nodeLabels
	a, b, none := map[string]string{"zone": "a"}, map[string]string{"zone": "b"}, map[string]string{"x": "y"}
	for step, tt := range []struct {
		labels map[string]string
		by     int
		want   int
	}{{a, 1, 1}, {a, 1, 1}, {b, 1, 2}, {none, 1, 3}, {b, -1, 2}, {none, -1, 1}, {a, -1, 1}, {a, -1, 0}} {
		if n.add(tt.labels, tt.by); n.count("zone") != tt.want {
			t.Errorf("step %d: %d values, want %d", step, n.count("zone"), tt.want)
		}
	}
	if len(n.keys) != 0 {
		t.Errorf("%v are left", n.keys)
	}
}
