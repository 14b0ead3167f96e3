package resize

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
	"github.com/stowage-dev/stowage/test/testkit"
)

var histories = flag.Int("histories", 60, "random histories in TestSimulation")

// bug is a mistake that the simulation must find.
type bug string

const (
	noBug       bug = ""
	eventsLost  bug = "some events are not handled"
	retryLost   bug = "what failed or waits is not looked at again"
	newsOnly    bug = "a new leader handles only what changes"
	unrecorded  bug = "a pod is resized without a record of what it declared"
	statusAgain bug = "a status is written though nothing changes"
	evictsInUse bug = "pods in use are evicted"
	allFollow   bug = "pods are resized whatever the updatePolicy"
	allRestart  bug = "all pods restart at a time"
)

type kind int

const (
	templates kind = iota
	nodes
	daemonSets
	pods
	kinds
)

// event is a version of an object, or nil once it is gone.
type event struct {
	key    string
	object client.Object
	at     time.Time
}

// cluster is an API server, what changes in it, and the leader. One goroutine does everything, one thing after another, so a
// seed always gives the same history.
type cluster struct {
	ctx     context.Context
	rng     *rand.Rand
	bug     bug
	clock   *clocktesting.FakeClock
	server  version.Info
	resizes bool // the API server resizes pods
	objects [kinds]map[string]client.Object
	log     [kinds][]event
	serial  int
	made    map[types.UID]*corev1.Pod // pods as their DaemonSets made them
	named   map[string]time.Time      // when a DaemonSet named a template last, by both names
	inPlace map[string]time.Time      // when a template had updatePolicy InPlace last
	since   map[string][]time.Time    // when a DaemonSet named another template or, by "", when a template was created
	noted   time.Time                 // when these were noted last
	leader  *process
	failing int // requests that fail, of 100
	atRest  bool
	within  bool // a request of the leader is on its way
	written []string
	wrong   []string
}

// maxLag is how late an event is at most.
const maxLag = time.Minute

func (c *cluster) chance(of int) bool { return c.rng.IntN(100) < of }

func (c *cluster) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func keyOf(o client.Object) string { return client.ObjectKeyFromObject(o).String() }

// all returns the objects of a kind, by their names.
func all[T client.Object](of map[string]client.Object) (out []T) {
	for _, key := range slices.Sorted(maps.Keys(of)) {
		out = append(out, of[key].(T))
	}
	return out
}

// anyOf returns a copy of an object of a kind.
func anyOf[T client.Object](c *cluster, k kind) (none T, ok bool) {
	list := all[T](c.objects[k])
	if len(list) == 0 {
		return none, false
	}
	return list[c.rng.IntN(len(list))].DeepCopyObject().(T), true
}

// put stores an object, which must not change any more.
func (c *cluster) put(k kind, o client.Object) {
	c.serial++
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", c.serial)))
		o.SetCreationTimestamp(metav1.NewTime(c.clock.Now().Truncate(time.Second)))
	}
	o.SetResourceVersion(fmt.Sprint(c.serial))
	c.objects[k][keyOf(o)] = o
	c.log[k] = append(c.log[k], event{keyOf(o), o, c.clock.Now()})
}

func (c *cluster) remove(k kind, o client.Object) {
	delete(c.objects[k], keyOf(o))
	c.log[k] = append(c.log[k], event{keyOf(o), nil, c.clock.Now()})
}

// toggle removes an object, or stores it if there is none of its name.
func (c *cluster) toggle(k kind, o client.Object) {
	if was := c.objects[k][keyOf(o)]; was != nil {
		c.remove(k, was)
	} else {
		c.put(k, o)
	}
}

// worldOf returns objects as decisions see them.
func worldOf(of func(k kind) map[string]client.Object) world.Snapshot {
	o := world.Objects{Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}}
	for _, n := range all[*corev1.Node](of(nodes)) {
		o.Nodes = append(o.Nodes, *n)
	}
	for _, t := range all[*flexdaemonsets.FlexDaemonsetTemplate](of(templates)) {
		o.Templates = append(o.Templates, *t)
	}
	for _, d := range all[*appsv1.DaemonSet](of(daemonSets)) {
		o.Workloads = append(o.Workloads, world.New(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), d))
	}
	return manifests.New(o)
}

func (c *cluster) truth(k kind) map[string]client.Object { return c.objects[k] }

// move lets time pass. An event is seen within maxLag.
func (c *cluster) move(d time.Duration) {
	c.clock.Step(d)
	c.note()
	for k, v := range c.leader.views {
		if v != nil && v.at < len(c.log[k]) && c.clock.Since(c.log[k][v.at].at) > maxLag/2 {
			c.leader.catchUp()
			break
		}
	}
}

// note notes what holds now.
func (c *cluster) note() {
	now := c.clock.Now()
	for _, t := range all[*flexdaemonsets.FlexDaemonsetTemplate](c.objects[templates]) {
		if t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace {
			c.inPlace[t.Name] = now
		}
		if at := t.CreationTimestamp.Time; !slices.Contains(c.since[""], at) {
			c.since[""] = append(c.since[""], at)
		}
	}
	for _, d := range all[*appsv1.DaemonSet](c.objects[daemonSets]) {
		both := d.Name + "/" + templateOf(d)
		if !c.named[both].Equal(c.noted) {
			c.since[d.Name] = append(c.since[d.Name], now)
		}
		c.named[both] = now
	}
	c.noted = now
}

// change changes something.
func (c *cluster) change() {
	if !c.within {
		c.move(time.Duration(c.rng.Int64N(int64(2 * time.Second))))
		if c.chance(4) {
			c.leader.catchUp()
			c.move(time.Duration(c.rng.Int64N(int64(20 * time.Minute))))
		}
	}
	defer c.note()
	switch n := c.rng.IntN(24); n {
	case 0, 1, 2:
		if t, ok := anyOf[*flexdaemonsets.FlexDaemonsetTemplate](c, templates); ok {
			t.Generation++
			t.Spec = c.spec()
			c.put(templates, t)
		}
	case 3:
		t := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: []string{"small", "large"}[c.rng.IntN(2)], Generation: 1}, Spec: c.spec()}
		c.toggle(templates, t)
	case 4, 5:
		if node, ok := anyOf[*corev1.Node](c, nodes); ok {
			if c.chance(70) { // else it is a heartbeat
				node.Status.Allocatable = c.allocatable()
			}
			c.put(nodes, node)
		}
	case 6:
		c.toggle(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", c.rng.IntN(4))}, Status: corev1.NodeStatus{Allocatable: c.allocatable()}})
	case 7, 8:
		if d, ok := anyOf[*appsv1.DaemonSet](c, daemonSets); ok {
			d.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: []string{"small", "large", "large", ""}[c.rng.IntN(4)]}
			c.put(daemonSets, d)
		}
	case 9:
		if d, ok := anyOf[*appsv1.DaemonSet](c, daemonSets); ok && c.chance(50) {
			c.remove(daemonSets, d)
			c.put(daemonSets, c.daemonSet(d.Name))
		}
	case 10, 11:
		if pod, ok := anyOf[*corev1.Pod](c, pods); ok {
			c.end(pod)
		}
	case 12:
		c.failing = []int{0, 10, 40}[c.rng.IntN(3)]
	case 13:
		if !c.within {
			c.leader.dead = true
		}
	case 14, 15, 16, 17:
		c.controlDaemonSets()
	default:
		if pod, ok := anyOf[*corev1.Pod](c, pods); ok {
			c.kubelet(pod)
		}
	}
}

func (c *cluster) spec() (s flexdaemonsets.FlexDaemonsetTemplateSpec) {
	percent := func() *int32 { return new(int32(1 + c.rng.IntN(40))) }
	s.CPUPercentage, s.UpdatePolicy, s.Limits = percent(), flexdaemonsets.UpdateOnCreate, flexdaemonsets.LimitsEqual
	if c.chance(50) {
		s.MemoryPercentage = percent()
	}
	if c.chance(20) {
		s.Limits = flexdaemonsets.LimitsNone
	}
	if c.chance(50) {
		s.UpdatePolicy = flexdaemonsets.UpdateInPlace
	}
	if c.chance(5) { // invalid
		s.CPUPercentage = new(int32(900))
	}
	return s
}

func (c *cluster) allocatable() corev1.ResourceList {
	return testkit.ResourceList(fmt.Sprintf("cpu=%d,memory=%dGi,ephemeral-storage=100Gi", 2+c.rng.IntN(7), 4+c.rng.IntN(13)))
}

func (c *cluster) daemonSet(name string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if c.chance(80) {
		d.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: []string{"small", "large"}[c.rng.IntN(2)]}
	}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	list := testkit.ResourceList("cpu=100m,memory=256Mi")
	requires := []corev1.ResourceRequirements{{Requests: list, Limits: list}, {Requests: list}, {}}[c.rng.IntN(3)]
	for i := range 1 + c.rng.IntN(2) {
		d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Resources: requires})
	}
	if c.chance(40) { // its pods restart for a resize, so that not all of them are resized at a time
		d.Spec.Template.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	}
	return d
}

// end deletes a pod, at once or in two steps.
func (c *cluster) end(pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil && c.chance(50) {
		pod.DeletionTimestamp = new(metav1.NewTime(c.clock.Now().Truncate(time.Second)))
		c.put(pods, pod)
		return
	}
	c.remove(pods, pod)
}

// controlDaemonSets does what the DaemonSet controller and the garbage collector do. A status does not count the pods that are
// being made.
func (c *cluster) controlDaemonSets() {
	for _, pod := range all[*corev1.Pod](c.objects[pods]) {
		if d := c.ownerOf(pod); d == nil || c.objects[nodes]["/"+pod.Labels["node"]] == nil {
			c.end(pod.DeepCopy())
		}
	}
	for _, d := range all[*appsv1.DaemonSet](c.objects[daemonSets]) {
		on := map[string]bool{}
		after := d.DeepCopy()
		after.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: int32(len(c.objects[nodes]))}
		for _, pod := range all[*corev1.Pod](c.objects[pods]) {
			if node := pod.Labels["node"]; metav1.IsControlledBy(pod, d) {
				if !on[node] && c.objects[nodes]["/"+node] != nil {
					after.Status.CurrentNumberScheduled++
				}
				if on[node] = true; podstatus.Ready(pod) {
					after.Status.NumberReady++
				}
			}
		}
		if !equality.Semantic.DeepEqual(d, after) {
			c.put(daemonSets, after)
		}
		for _, node := range all[*corev1.Node](c.objects[nodes]) {
			if !on[node.Name] && (c.atRest || c.chance(80)) {
				c.createPod(d, node.Name)
			}
		}
	}
}

// ownerOf returns a pod's DaemonSet, or nil once it is gone.
func (c *cluster) ownerOf(pod *corev1.Pod) *appsv1.DaemonSet {
	d, _ := c.objects[daemonSets]["default/"+pod.OwnerReferences[0].Name].(*appsv1.DaemonSet)
	if d == nil || !metav1.IsControlledBy(pod, d) {
		return nil
	}
	return d
}

// createPod makes a pod. Its name may be that of an earlier one. Almost always the webhook sizes it, by what the leader or the API
// server knows.
func (c *cluster) createPod(d *appsv1.DaemonSet, node string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: d.Name + "-" + node, Labels: map[string]string{"app": d.Name, "node": node}, Annotations: map[string]string{"some": "text"}}}
	if c.chance(50) {
		pod.Name += fmt.Sprintf("-%d", c.serial)
	}
	if c.objects[pods][keyOf(pod)] != nil {
		return
	}
	if c.chance(5) {
		pod.Annotations["karpenter.sh/do-not-disrupt"] = "true"
	}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: d.Name, UID: d.UID, Controller: new(true)}}
	pod.Spec, pod.Spec.NodeName = *d.Spec.Template.Spec.DeepCopy(), node
	pod.Status.Phase = corev1.PodPending
	made := pod.DeepCopy()
	if c.chance(85) {
		before, of := podpatch.FromPod(pod), c.truth
		if c.chance(30) {
			of = c.leader.seen
		}
		answer, err := (&sizeadmit.Feature{World: worldOf(of)}).Decide(c.ctx, feature.Request{Namespace: "default", Pod: before})
		if err == nil && answer.Pod != nil {
			data, _ := podpatch.Diff(before, answer.Pod).JSON()
			patch, _ := jsonpatch.DecodePatch(data)
			patched(pod, nil, func(doc, _ []byte) ([]byte, error) { return patch.Apply(doc) })
		}
	}
	if c.chance(30) {
		pod.Spec.NodeName = "" // it is bound later
	}
	c.put(pods, pod)
	c.made[pod.UID] = made
}

// patched applies a patch to an object.
func patched[T any](o *T, patch []byte, apply func(doc, patch []byte) ([]byte, error)) {
	data, err := json.Marshal(o)
	if err == nil {
		data, err = apply(data, patch)
	}
	var out T
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic(err)
	}
	*o = out
}

func mergePod(doc, patch []byte) ([]byte, error) {
	return strategicpatch.StrategicMergePatch(doc, patch, corev1.Pod{})
}

// kubelet does the next thing that a kubelet does with a pod.
func (c *cluster) kubelet(pod *corev1.Pod) {
	before := pod.DeepCopy()
	reports := func() (out []corev1.ContainerStatus) {
		for _, of := range pod.Spec.Containers {
			out = append(out, corev1.ContainerStatus{Name: of.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Resources: of.Resources.DeepCopy()})
		}
		return out
	}
	say := func(kind corev1.PodConditionType, reason, message string) {
		pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type != corev1.PodReady })
		if kind != "" {
			pod.Status.Conditions = append(pod.Status.Conditions, condition(kind, reason, message))
		}
	}
	asked := pod.Spec.Containers[0].Resources.Requests.Cpu().String()
	pending, progress := pendingOf(pod), resizeCondition(pod, corev1.PodResizeInProgress)
	inForce := equality.Semantic.DeepEqual(pod.Status.ContainerStatuses, reports())
	switch {
	case pod.DeletionTimestamp != nil:
		c.remove(pods, pod)
		return
	case pod.Spec.NodeName == "":
		pod.Spec.NodeName = pod.Labels["node"]
	case pod.Status.Phase != corev1.PodRunning:
		pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodRunning, reports()
	case c.atRest && !podstatus.Ready(pod) || !c.atRest && c.chance(30): // it becomes ready, or not
		pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		if !podstatus.Ready(before) {
			pod.Status.Conditions = append(pod.Status.Conditions, condition(corev1.PodReady, "", ""))
		}
	case inForce:
		say("", "", "")
	case progress != nil && (progress.Reason == "" || c.chance(30)): // it is done
		pod.Status.ContainerStatuses = reports()
		if say("", "", ""); mayRestart(pod) {
			pod.Status.Conditions = nil
		}
	case progress != nil, pending != nil && pending.Reason == corev1.PodReasonInfeasible && pending.Message == asked:
	case c.chance(20):
		say(corev1.PodResizePending, corev1.PodReasonInfeasible, asked)
	case c.chance(30):
		say(corev1.PodResizePending, corev1.PodReasonDeferred, asked+", no room")
	case c.chance(20):
		say(corev1.PodResizeInProgress, corev1.PodReasonError, fmt.Sprintf("usage is %d", c.serial))
	default:
		say(corev1.PodResizeInProgress, "", "")
	}
	if !equality.Semantic.DeepEqual(before, pod) {
		c.put(pods, pod)
	}
}

// refuses reports whether the API server does not make a pod another one: its QoS class or, before 1.34, its memory.
func (c *cluster) refuses(was, is *corev1.Pod) bool {
	class := func(p *corev1.Pod) string {
		guaranteed, none := true, true
		for _, of := range p.Spec.Containers {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := of.Resources.Requests[name], of.Resources.Limits[name]
				guaranteed, none = guaranteed && !limit.IsZero() && request.Equal(limit), none && request.IsZero() && limit.IsZero()
			}
		}
		return fmt.Sprint(guaranteed, none)
	}
	for i := range is.Spec.Containers {
		if c.server.GitVersion < "v1.34" && is.Spec.Containers[i].Resources.Limits.Memory().Cmp(*was.Spec.Containers[i].Resources.Limits.Memory()) < 0 {
			return true
		}
	}
	return class(was) != class(is)
}

// view is what a process has of a kind: the objects in its cache, and the events that were not handled yet.
type view struct {
	at     int // how much of the log is in the cache
	listed bool
	cache  map[string]client.Object
	events []func()
}

// process is one leader, from its election to its end.
type process struct {
	*cluster
	run        *run
	views      [kinds]*view
	watch      *podWatch // of which the view of pods is
	work, sets *queue[types.NamespacedName]
	statuses   *queue[string]
	every      time.Time // when what is done regularly is done next
	dead       bool
	current    bool // it knew everything when the reconciler began
}

// queue is a queue of a reconciler.
type queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	clock    *clocktesting.FakeClock
	ready    map[T]bool
	later    map[T]time.Time
	failures map[T]int
}

func newQueue[T comparable](c *cluster) *queue[T] {
	return &queue[T]{clock: c.clock, ready: map[T]bool{}, later: map[T]time.Time{}, failures: map[T]int{}}
}

func (q *queue[T]) Add(item T) { q.ready[item] = true }

func (q *queue[T]) AddAfter(item T, d time.Duration) {
	at := q.clock.Now().Add(d)
	if was, ok := q.later[item]; !ok || at.Before(was) {
		q.later[item] = at
	}
}

func (q *queue[T]) NumRequeues(item T) int { return q.failures[item] }

// next returns what can be done now, in an order that does not change.
func (q *queue[T]) next() []T {
	for item, at := range q.later {
		if !q.clock.Now().Before(at) {
			delete(q.later, item)
			q.ready[item] = true
		}
	}
	return slices.SortedFunc(maps.Keys(q.ready), func(a, b T) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// handle reconciles an item as controller-runtime does.
func handle[T comparable](p *process, q *queue[T], item T, do func(context.Context, T) (reconcile.Result, error)) {
	delete(q.ready, item)
	p.current = true
	for k, v := range p.views {
		p.current = p.current && (v == nil || v.at == len(p.log[k]) && len(v.events) == 0)
	}
	switch result, err := do(p.ctx, item); {
	case p.bug == retryLost:
	case err != nil:
		q.AddAfter(item, min(time.Second<<min(q.failures[item], 20), 5*time.Minute))
		q.failures[item]++
	default:
		if delete(q.failures, item); result.RequeueAfter > 0 {
			q.AddAfter(item, result.RequeueAfter)
		}
	}
}

// tell has the controller handle an event. Was or is is nil.
func (p *process) tell(k kind, was, is client.Object, first bool) {
	switch k {
	case templates:
		before, _ := was.(*flexdaemonsets.FlexDaemonsetTemplate)
		now, _ := is.(*flexdaemonsets.FlexDaemonsetTemplate)
		p.run.templateChanged(p.ctx, before, now, first)
	case nodes:
		before, _ := was.(*corev1.Node)
		now, _ := is.(*corev1.Node)
		p.run.nodeChanged(p.ctx, before, now, first)
	case daemonSets:
		before, _ := was.(*appsv1.DaemonSet)
		now, _ := is.(*appsv1.DaemonSet)
		p.run.daemonSetChanged(before, now)
	case pods:
		if before, _ := was.(*corev1.Pod); is != nil {
			p.run.podSeen(p.ctx, before, is.(*corev1.Pod))
		} else {
			p.run.podGone(p.ctx, before)
		}
	}
}

func kindOf(o any) kind {
	switch o.(type) {
	case *flexdaemonsets.FlexDaemonsetTemplate, *flexdaemonsets.FlexDaemonsetTemplateList:
		return templates
	case *corev1.Node:
		return nodes
	case *appsv1.DaemonSet, *appsv1.DaemonSetList:
		return daemonSets
	}
	return pods
}

// reader reads from a process's cache or, uncached, from the API server.
type reader struct {
	*process
	of func(kind) map[string]client.Object
}

func (r reader) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	found := r.of(kindOf(o))[key.String()]
	if found == nil {
		return apierrors.NewNotFound(podResource, key.Name)
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(found.DeepCopyObject()).Elem())
	if d, ok := o.(*appsv1.DaemonSet); ok && r.bug == allRestart {
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(1000))}
	}
	if t, ok := o.(*flexdaemonsets.FlexDaemonsetTemplate); ok && r.bug == allFollow {
		t.Spec.UpdatePolicy = flexdaemonsets.UpdateInPlace
	}
	return nil
}

func (r reader) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	var out []runtime.Object
	for _, object := range all[client.Object](r.of(kindOf(list))) {
		if o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			is := object.DeepCopyObject()
			if t, ok := is.(*flexdaemonsets.FlexDaemonsetTemplate); ok && r.bug == statusAgain {
				t.Status = flexdaemonsets.FlexDaemonsetTemplateStatus{}
			}
			out = append(out, is)
		}
	}
	return meta.SetList(list, out)
}

// see brings an object of the cache up to date. A watch of pods has those with a size.
func (p *process) see(k kind, key string, is client.Object) {
	v := p.views[k]
	was := v.cache[key]
	if pod, ok := is.(*corev1.Pod); ok {
		if is = nil; pod.Labels[stowage.SizedByLabel] != "" {
			kept, err := keepSizedPod(pod)
			if err != nil {
				panic(err)
			}
			is = kept.(*corev1.Pod)
		}
	}
	if was == nil && is == nil {
		return
	}
	if is != nil {
		v.cache[key] = is
	} else {
		delete(v.cache, key)
	}
	if k == pods {
		if is != nil {
			_ = p.watch.GetIndexer().Update(is)
		} else {
			_ = p.watch.GetIndexer().Delete(was)
		}
	}
	if p.bug != eventsLost || !p.chance(30) {
		v.events = append(v.events, func() { p.tell(k, was, is, false) })
	}
}

// advance has a cache see the next event or, after a new list, only what there is now.
func (p *process) advance(k kind) {
	v := p.views[k]
	if v.listed && !p.chance(10) {
		e := p.log[k][v.at]
		v.at++
		p.see(k, e.key, e.object)
		return
	}
	v.at, v.listed = len(p.log[k]), true
	both := maps.Clone(v.cache)
	maps.Copy(both, p.objects[k])
	for _, key := range slices.Sorted(maps.Keys(both)) {
		p.see(k, key, p.objects[k][key])
	}
}

// step does one of the things that the process can do now, and returns false if there is none.
func (p *process) step(watchesOnly bool) bool {
	p.followPods()
	var can []func()
	for k := range kinds {
		if v := p.views[k]; v != nil {
			if v.at < len(p.log[k]) || !v.listed {
				can = append(can, func() { p.advance(k) })
			}
			if len(v.events) > 0 {
				can = append(can, func() {
					next := v.events[0]
					v.events = v.events[1:]
					next()
				})
			}
		}
	}
	if !watchesOnly {
		for _, item := range p.work.next() {
			can = append(can, func() { handle(p, p.work, item, p.run.reconcilePod) })
		}
		for _, item := range p.sets.next() {
			can = append(can, func() { handle(p, p.sets, item, p.run.reconcileDaemonSet) })
		}
		for _, item := range p.statuses.next() {
			can = append(can, func() { handle(p, p.statuses, item, p.run.reconcileStatus) })
		}
		if !p.clock.Now().Before(p.every) {
			can = append(can, p.regularly)
		}
	}
	if len(can) == 0 {
		return false
	}
	can[p.rng.IntN(len(can))]()
	return true
}

// catchUp has the process know everything.
func (p *process) catchUp() {
	for p.step(true) {
	}
}

// regularly does what [Controller.Register] has done regularly.
func (p *process) regularly() {
	p.every = p.clock.Now().Add(earlyFor)
	p.run.forgetEarly()
	p.run.watchIfNeeded(p.ctx)
}

// followPods begins to follow a watch of pods that the controller has started, or forgets one that it has stopped. The informer
// itself does not run.
func (p *process) followPods() {
	w := p.run.pods.Load()
	if w == p.watch {
		return
	}
	p.watch, p.views[pods] = w, nil
	if w != nil {
		v := &view{cache: map[string]client.Object{}}
		w.synced, p.views[pods] = func() bool { return v.listed }, v
	}
}

// clientset has no client of pods, because informers do not run.
type clientset struct {
	kubernetes.Interface
	corev1client.CoreV1Interface
}

func (clientset) CoreV1() corev1client.CoreV1Interface { return clientset{} }

func (clientset) RESTClient() rest.Interface { return nil }

// apiServer says what the API server is.
type apiServer struct {
	discovery.DiscoveryInterface
	*process
}

func (s apiServer) ServerVersion() (*version.Info, error) { return &s.server, nil }

func (s apiServer) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	if !s.atRest && s.chance(s.failing) {
		return nil, errNoAnswer
	}
	list := &metav1.APIResourceList{}
	if s.resizes {
		list.APIResources = []metav1.APIResource{{Name: "pods/resize"}}
	}
	return list, nil
}

func (*process) Name() string { return sizeadmit.Name }

func (p *process) Decide(ctx context.Context, req feature.Request) (feature.Decision, error) {
	return (&sizeadmit.Feature{World: worldOf(p.seen)}).Decide(ctx, req)
}

func (p *process) seen(k kind) map[string]client.Object { return p.views[k].cache }

// lead starts a new leader. Its caches may be behind.
func (c *cluster) lead() {
	p := &process{cluster: c, work: newQueue[types.NamespacedName](c), sets: newQueue[types.NamespacedName](c), statuses: newQueue[string](c)}
	for k := range pods {
		v := &view{listed: true, cache: map[string]client.Object{}}
		behind := c.rng.IntN(4)
		if c.atRest {
			behind = 0
		}
		for ; v.at < len(c.log[k])-behind; v.at++ {
			if e := c.log[k][v.at]; e.object != nil {
				v.cache[e.key] = e.object
			} else {
				delete(v.cache, e.key)
			}
		}
		p.views[k] = v
	}
	ended, end := context.WithCancel(c.ctx)
	end()
	term, _ := leader.NewTerm(ended, c.clock, logr.Discard())
	api := interceptor.NewClient(nil, interceptor.Funcs{Get: p.get, List: p.list, Patch: p.mark, SubResourcePatch: p.patch, SubResourceCreate: p.evict})
	set := metrics.NewSet(prometheus.NewRegistry())
	p.run = &run{
		Controller: &Controller{
			Uncached: api, Clientset: clientset{}, Discovery: apiServer{process: p}, Informers: testkit.Cache{Reader: reader{p, p.seen}},
			Scope: scope.New(worldOf(c.truth), "stowage-system"), Feature: p, Clock: c.clock, Time: c.clock, Timing: DefaultTiming(), Log: logr.Discard(),
			Events: events.Recorder{EventRecorder: &clientevents.FakeRecorder{}}, Evictor: testkit.Evictor(api, c.clock, set), Metrics: NewMetrics(set),
		},
		term: term, writes: flowcontrol.NewFakeAlwaysRateLimiter(), labels: flowcontrol.NewFakeAlwaysRateLimiter(), planned: map[string][][]string{}, tries: map[types.UID]*tries{}, restarts: map[types.UID]reservation{},
		work: leader.Queue[types.NamespacedName]{TypedRateLimitingInterface: p.work}, daemonSets: leader.Queue[types.NamespacedName]{TypedRateLimitingInterface: p.sets},
		statuses: leader.Queue[string]{TypedRateLimitingInterface: p.statuses}, beforeTemplate: map[types.UID]time.Time{}, templateSet: map[types.UID]time.Time{}, counted: map[string]int{},
	}
	p.run.Timing.Jitter = 0 // what is done next is drawn
	c.leader = p
	p.run.watchIfNeeded(c.ctx)
	if p.followPods(); p.watch != nil {
		p.advance(pods)
	}
	for k := range pods {
		for _, o := range all[client.Object](p.views[k].cache) {
			if p.bug != newsOnly {
				p.views[k].events = append(p.views[k].events, func() { p.tell(k, nil, o, true) })
			}
		}
	}
}

var (
	errNoAnswer = errors.New("no answer")
	podResource = schema.GroupResource{Resource: "pods"}
)

// request sends a request. Meanwhile something else may change, the leader may end, and the request or its answer may be lost.
func (p *process) request(do func() error) (err error) {
	if p.dead {
		return errNoAnswer
	}
	if p.atRest {
		return do()
	}
	if !p.within && p.chance(20) {
		p.within, p.current = true, false
		p.change()
		p.within = false
	}
	p.dead = p.chance(3)
	lost := p.dead || p.chance(p.failing)
	if lost && p.chance(30) { // admission says so where a ResourceQuota was changed meanwhile
		return apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "quota", errNoAnswer)
	}
	if !lost || p.chance(50) {
		err = do()
	}
	if lost {
		return errNoAnswer
	}
	return err
}

func (p *process) get(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return p.request(func() error {
		err := reader{p, p.truth}.Get(ctx, key, o)
		if pod, ok := o.(*corev1.Pod); ok && p.bug == evictsInUse {
			pod.Status.Conditions = nil
		}
		return err
	})
}

func (p *process) list(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	return p.request(func() error { return reader{p, p.truth}.List(ctx, list, opts...) })
}

func (p *process) mark(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	if p.bug == unrecorded {
		return nil
	}
	return p.patch(ctx, c, "", o, patch)
}

// patch applies a patch.
func (p *process) patch(_ context.Context, _ client.Client, sub string, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	k := kindOf(o)
	return p.request(func() error {
		was := p.objects[k][keyOf(o)]
		if was == nil {
			return apierrors.NewNotFound(podResource, o.GetName())
		}
		is := was.DeepCopyObject().(client.Object)
		switch is := is.(type) {
		case *flexdaemonsets.FlexDaemonsetTemplate:
			patched(is, data, jsonpatch.MergePatch)
			is.Spec = was.(*flexdaemonsets.FlexDaemonsetTemplate).Spec
		case *corev1.Pod:
			patched(is, data, mergePod)
		}
		if is.GetUID() != was.GetUID() {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, o.GetName(), nil)
		}
		if sub == "resize" {
			pod := is.(*corev1.Pod)
			if !p.resizes {
				return apierrors.NewNotFound(podResource, "")
			}
			if !p.mayResize(pod) {
				p.fail("pod %s was resized, and should not be", pod.Name)
			}
			if p.refuses(was.(*corev1.Pod), pod) {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, pod.Name, nil)
			}
			if p.current {
				p.checkRestart(was.(*corev1.Pod), pod)
			}
		}
		if equality.Semantic.DeepEqual(was, is) {
			if p.current {
				p.fail("a write changes nothing of %s: %s", keyOf(o), data)
			}
			return nil
		}
		p.written = append(p.written, fmt.Sprintf("%s %s", keyOf(o), data))
		p.put(k, is)
		return nil
	})
}

// checkRestart fails if a ready pod restarts for a resize while another one of its DaemonSet does so or is not ready, though the leader knows.
func (p *process) checkRestart(was, is *corev1.Pod) {
	if !podstatus.Ready(was) || !restarts(was, podpatch.FromPod(was), podpatch.FromPod(is)) {
		return
	}
	for _, other := range all[*corev1.Pod](p.objects[pods]) {
		sibling := metav1.IsControlledBy(other, p.ownerOf(was)) && other.Name != was.Name && other.Labels[stowage.SizedByLabel] != ""
		waits := pendingOf(other) != nil || failedOn(other) != nil
		if sibling && (!podstatus.Ready(other) || len(notInForce(other)) > 0 && !waits) {
			p.fail("pod %s restarts for its size while %s is away", was.Name, other.Name)
		}
	}
}

// evict is a request to evict a pod.
func (p *process) evict(_ context.Context, _ client.Client, _ string, o, eviction client.Object, _ ...client.SubResourceCreateOption) error {
	return p.request(func() error {
		was, _ := p.objects[pods][keyOf(o)].(*corev1.Pod)
		if was == nil {
			return apierrors.NewNotFound(podResource, o.GetName())
		}
		if must := eviction.(*policyv1.Eviction).DeleteOptions.Preconditions; *must.UID != was.UID || *must.ResourceVersion != was.ResourceVersion {
			return apierrors.NewConflict(podResource, o.GetName(), errors.New("it has changed"))
		}
		if p.failing > 0 && !p.atRest && p.chance(30) {
			refused := apierrors.NewTooManyRequests("a PodDisruptionBudget", 0)
			refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
			return refused
		}
		d := p.ownerOf(was)
		young := d != nil && p.clock.Since(d.CreationTimestamp.Time) < podstatus.PolicyGrace+maxLag
		if was.DeletionTimestamp != nil || podstatus.Ready(was) && !young || podstatus.Protected(was) != "" || !p.mayBeEarly(was) {
			p.fail("pod %s is evicted; it ends: %t, is ready: %t", was.Name, was.DeletionTimestamp != nil, podstatus.Ready(was))
		}
		is := was.DeepCopy()
		is.DeletionTimestamp = new(metav1.NewTime(p.clock.Now().Truncate(time.Second)))
		p.written = append(p.written, "eviction of "+was.Name)
		p.put(pods, is)
		return nil
	})
}

// mayBeEarly reports whether a pod was created just before a template, or before its DaemonSet named that. A leader may see the
// latter maxLag later.
func (c *cluster) mayBeEarly(pod *corev1.Pod) bool {
	created := pod.CreationTimestamp.Time
	return slices.ContainsFunc(slices.Concat(c.since[""], c.since[pod.OwnerReferences[0].Name]), func(at time.Time) bool {
		return podstatus.CreatedBefore(created, at) || created.After(at) && created.Before(at.Add(maxLag+5*time.Second))
	})
}

// mayResize reports whether the controller may have reason to resize a pod.
func (c *cluster) mayResize(pod *corev1.Pod) bool {
	after := pod.CreationTimestamp.Add(-maxLag)
	for both, at := range c.named {
		d, name, _ := strings.Cut(both, "/")
		if d == pod.OwnerReferences[0].Name && !at.Before(after) && !c.inPlace[name].Before(after) {
			return true
		}
	}
	return c.mayBeEarly(pod)
}

// settle lets time pass in which nobody but the controller changes anything. Kubelets act for the first part of it.
func (c *cluster) settle(acting, quiet time.Duration) {
	start := c.clock.Now()
	for c.clock.Since(start) < acting+quiet {
		for _, pod := range all[*corev1.Pod](c.objects[pods]) {
			// The next pod of a DaemonSet waits until one that restarts has done so.
			restarts := mayRestart(pod) && pendingOf(pod) == nil && failedOn(pod) == nil && len(notInForce(pod)) > 0
			if c.clock.Since(start) < acting || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || !podstatus.Ready(pod) || restarts {
				c.kubelet(pod.DeepCopy())
			}
		}
		c.controlDaemonSets()
		for c.leader.step(false) {
		}
		next := c.leader.every
		for _, later := range []iter.Seq[time.Time]{maps.Values(c.leader.work.later), maps.Values(c.leader.sets.later), maps.Values(c.leader.statuses.later)} {
			for at := range later {
				if at.Before(next) {
					next = at
				}
			}
		}
		c.clock.SetTime(next)
	}
}

// check notes what is wrong at rest.
func (c *cluster) check() {
	order := []stowage.ConditionReason{
		stowage.ReasonUnsupported, stowage.ReasonRefused, stowage.ReasonInfeasible, stowage.ReasonFailed, stowage.ReasonDeferred,
		stowage.ReasonResizing, stowage.ReasonUnsized, stowage.ReasonAwaitsNewPods,
	}
	for _, t := range all[*flexdaemonsets.FlexDaemonsetTemplate](c.objects[templates]) {
		want := flexdaemonsets.FlexDaemonsetTemplateStatus{ObservedGeneration: t.Generation}
		counts := map[stowage.ConditionReason]int{}
		for _, d := range all[*appsv1.DaemonSet](c.objects[daemonSets]) {
			if templateOf(d) != t.Name {
				continue
			}
			want.DaemonSets++
			for _, pod := range all[*corev1.Pod](c.objects[pods]) {
				if metav1.IsControlledBy(pod, d) {
					want.Pods++
					if reason := c.judge(pod, t); reason != "" {
						want.OffSize++
						counts[reason]++
					}
				}
			}
		}
		reason := stowage.ReasonUpToDate
		if i := slices.IndexFunc(order, func(r stowage.ConditionReason) bool { return counts[r] > 0 }); i >= 0 {
			reason = order[i]
		} else if want.Pods == 0 {
			reason = stowage.ReasonNoPods
		}
		if _, err := sizing.Compile(t); err != nil {
			reason = stowage.ReasonInvalid
		}
		got := t.Status
		if u := meta.FindStatusCondition(got.Conditions, flexdaemonsets.ConditionUpToDate); u == nil || u.Reason != string(reason) {
			c.fail("template %s is UpToDate: %+v, and should say %s %v", t.Name, u, reason, counts)
		}
		if got.Conditions = nil; !equality.Semantic.DeepEqual(got, want) {
			c.fail("template %s has status %+v, and should have %+v", t.Name, got, want)
		}
	}
}

// judge says what is not as it should be of a pod, or "". It notes what the controller must have put right.
func (c *cluster) judge(pod *corev1.Pod, t *flexdaemonsets.FlexDaemonsetTemplate) stowage.ConditionReason {
	now := podpatch.FromPod(pod)
	want := now
	inPlace := t.Spec.UpdatePolicy == flexdaemonsets.UpdateInPlace
	if compiled, err := sizing.Compile(t); err == nil {
		made := podpatch.FromPod(c.made[pod.UID])
		res, err := compiled.Size(made, sizing.Place{Allocatable: c.objects[nodes]["/"+pod.Labels["node"]].(*corev1.Node).Status.Allocatable})
		if err != nil {
			panic(err)
		}
		if want = res.Pod; inPlace && pod.Labels[stowage.SizedByLabel] == "" && len(res.Sized) > 0 {
			c.fail("pod %s has no size, and template %s has InPlace", pod.Name, t.Name)
		}
	}
	if pod.Labels[stowage.SizedByLabel] == "" {
		return stowage.ReasonUnsized
	}
	next := sizing.Resize(now, want)
	if c.server.GitVersion < "v1.34" {
		sizing.KeepMemory(now, next)
	}
	pending, progress := pendingOf(pod), resizeCondition(pod, corev1.PodResizeInProgress)
	if inPlace && c.resizes && !sizing.SameSize(now, next) {
		is := pod.DeepCopy()
		patched(is, sizing.ResizePatch(pod.UID, now, next), mergePod)
		if c.refuses(pod, is) {
			return stowage.ReasonRefused
		}
		c.fail("pod %s has another size than template %s gives it: %s", pod.Name, t.Name, sizing.ResizePatch(pod.UID, now, next))
	}
	switch {
	case pending != nil && pending.Reason == corev1.PodReasonInfeasible:
		return stowage.ReasonInfeasible
	case pending != nil:
		return stowage.ReasonDeferred
	case failedOn(pod) != nil:
		return stowage.ReasonFailed
	case progress != nil, len(notInForce(pod)) > 0:
		return stowage.ReasonResizing
	case sizing.SameSize(now, want):
		return ""
	case inPlace && !c.resizes:
		return stowage.ReasonUnsupported
	}
	return stowage.ReasonAwaitsNewPods
}

// play plays one history.
func play(ctx context.Context, seed uint64, b bug) []string {
	c := &cluster{
		ctx: ctx, rng: rand.New(rand.NewPCG(seed, 41)), bug: b, clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)),
		made: map[types.UID]*corev1.Pod{}, named: map[string]time.Time{}, inPlace: map[string]time.Time{}, since: map[string][]time.Time{},
	}
	for k := range c.objects {
		c.objects[k] = map[string]client.Object{}
	}
	c.server.GitVersion = []string{"v1.33.4", "v1.36.1", "v1.36.1"}[c.rng.IntN(3)]
	c.resizes, c.failing = c.chance(80), []int{0, 10, 40}[c.rng.IntN(3)]
	for i := range 1 + c.rng.IntN(3) {
		c.put(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}, Status: corev1.NodeStatus{Allocatable: c.allocatable()}})
	}
	for _, name := range []string{"a", "b"} {
		c.put(daemonSets, c.daemonSet(name))
	}
	c.lead()
	for range 20 + c.rng.IntN(100) {
		if c.leader.dead && c.chance(50) {
			c.lead()
		}
		c.change()
		for range c.rng.IntN(12) {
			if c.leader.dead || !c.leader.step(false) {
				break
			}
		}
		if c.leader.dead {
			c.move(0)
		}
	}

	c.atRest = true
	if c.leader.dead {
		c.lead()
	}
	c.settle(time.Hour, 2*time.Hour)
	c.check()
	for _, again := range []bool{false, true} {
		if again {
			c.lead()
		}
		c.written = nil
		if c.settle(0, 2*time.Hour); len(c.written) > 0 {
			c.fail("%d writes at rest, the first is %s", len(c.written), c.written[0])
		}
	}
	return c.wrong
}

// Whatever fails, and whoever leads, each pod has its size in the end, and statuses say what is so.
func TestSimulation(t *testing.T) {
	testkit.PlayHistories(t, *histories, func(seed uint64) []string { return play(t.Context(), seed, noBug) })
}

// The simulation finds each of these mistakes.
func TestSimulationFindsPlantedBugs(t *testing.T) {
	testkit.FindBugs(t, 150, map[bug]string{
		eventsLost: "should", retryLost: "should", newsOnly: "should", unrecorded: "has no size", statusAgain: "a write changes nothing", evictsInUse: "is evicted",
		allFollow: "was resized, and should not be", allRestart: "restarts for its size while",
	}, func(t *testing.T, seed uint64, b bug) []string { return play(t.Context(), seed, b) })
}
