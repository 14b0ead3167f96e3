package resize

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	clientevents "k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/stowage-dev/stowage/api"
	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/test/testkit"
)

// The objects stand in a fake store that decides nothing. What the API server and a node make of a
// resize is tested in test/resources.

// bench is a controller in a term.
type bench struct {
	*run
	clock     *clocktesting.FakeClock
	recorder  *clientevents.FakeRecorder
	resizes   []string
	marks     int
	answer    error // to a resize
	marked    error // the answer to a record
	discovery *fakediscovery.FakeDiscovery
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	s, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{clock: clocktesting.NewFakeClock(time.Unix(0, 0)), recorder: clientevents.NewFakeRecorder(100)}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(&flexdaemonsets.FlexDaemonsetTemplate{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				if sub != "resize" {
					return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
				}
				data, err := patch.Data(obj)
				if err != nil {
					return err
				}
				b.resizes = append(b.resizes, string(data))
				return b.answer
			},
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				b.marks++
				return b.marked
			},
		}).Build()
	reader := worldcache.New(c, c, b.clock, worldcache.ForAdmission())
	b.discovery = &fakediscovery.FakeDiscovery{
		Fake:               &clienttesting.Fake{Resources: []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods"}, {Name: "pods/resize"}}}}},
		FakedServerVersion: &version.Info{GitVersion: "v1.32.0"},
	}
	b.run = &run{
		Controller: &Controller{
			Uncached: c, Discovery: b.discovery, Informers: testkit.Cache{Reader: c}, Scope: scope.New(reader, "stowage-system"), Feature: &sizeadmit.Feature{World: reader},
			Clock: b.clock, Time: b.clock, Timing: DefaultTiming(), Log: logr.Discard(), Events: events.Recorder{EventRecorder: b.recorder},
			Evictor: testkit.Evictor(c, b.clock, metrics.NewSet(prometheus.NewRegistry())),
			Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
		},
		work: testkit.Queue[types.NamespacedName](), daemonSets: testkit.Queue[types.NamespacedName](), statuses: testkit.Queue[string](),
		writes: flowcontrol.NewFakeAlwaysRateLimiter(), labels: flowcontrol.NewFakeAlwaysRateLimiter(), planned: map[string][][]string{}, tries: map[types.UID]*tries{}, restarts: map[types.UID]reservation{}, beforeTemplate: map[types.UID]time.Time{}, templateSet: map[types.UID]time.Time{}, counted: map[string]int{},
	}
	b.pods.Store(&podWatch{
		SharedIndexInformer: toolscache.NewSharedIndexInformerWithOptions(&toolscache.ListWatch{}, &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: indexers()}),
		synced:              func() bool { return true },
		stop:                func() {},
	})
	for _, o := range objects {
		if p, ok := o.(*corev1.Pod); ok && p.Labels[stowage.SizedByLabel] != "" {
			kept, err := keepSizedPod(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.pods.Load().GetIndexer().Add(kept); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b
}

func template(edit func(*flexdaemonsets.FlexDaemonsetTemplateSpec)) *flexdaemonsets.FlexDaemonsetTemplate {
	t := &flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tenth", Generation: 3}}
	t.Spec.CPUPercentage, t.Spec.UpdatePolicy = new(int32(10)), flexdaemonsets.UpdateInPlace
	if edit != nil {
		edit(&t.Spec)
	}
	return t
}

func daemonSet() *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "ds", Annotations: map[string]string{flexdaemonsets.TemplateAnnotation: "tenth"}}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}
	d.Status.CurrentNumberScheduled, d.Status.DesiredNumberScheduled = 1, 1
	return d
}

// agent is a pod of the DaemonSet, with this much cpu.
func agent(cpu string, conditions ...corev1.PodCondition) *corev1.Pod {
	p := testkit.Pod("agent-x").Container("c", "cpu="+cpu, "cpu="+cpu).Label("app", "agent").Label(stowage.SizedByLabel, "tenth").
		Annotation(stowage.DeclaredResourcesAnnotation, `{"containers":{"c":{"requests":{"cpu":"100m"}}},"sized":["cpu"]}`).Obj()
	p.UID, p.Spec.NodeName = "pod", "n4"
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "ds", Controller: new(true)}}
	p.Status.Phase, p.Status.Conditions = corev1.PodRunning, conditions
	return p
}

// running is an agent whose kubelet reports other limits than its spec.
func running(cpu, inForce string) *corev1.Pod {
	p := agent(cpu)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		Resources: &corev1.ResourceRequirements{Limits: testkit.ResourceList("cpu=" + inForce)},
	}}
	return p
}

func around(pod *corev1.Pod, more ...client.Object) []client.Object {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	node.Status.Allocatable = testkit.ResourceList("cpu=4,memory=16Gi")
	return append([]client.Object{pod, node, daemonSet(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}, more...)
}

func condition(kind corev1.PodConditionType, reason, message string) corev1.PodCondition {
	return corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}
}

func TestReconcilePod(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		pod     *corev1.Pod
		spec    func(*flexdaemonsets.FlexDaemonsetTemplateSpec)
		answer  error
		resizes int
		fails   bool
		outcome string
		event   stowage.EventReason
	}{
		"the right size":             {pod: agent("400m")},
		"the same in another form":   {pod: agent("0.4")},
		"too small":                  {pod: agent("100m"), resizes: 1, outcome: resizeAccepted},
		"but pods do not follow":     {pod: agent("100m"), spec: func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.UpdatePolicy = flexdaemonsets.UpdateOnCreate }},
		"refused as invalid":         {pod: agent("100m"), answer: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "agent-x", nil), resizes: 1, outcome: resizeRefused, event: stowage.EventResizeRefused},
		"forbidden":                  {pod: agent("100m"), answer: apierrors.NewForbidden(pods, "agent-x", errors.New("no")), resizes: 1, outcome: resizeRefused, event: stowage.EventResizeRefused},
		"a cluster without resizing": {pod: agent("100m"), answer: apierrors.NewGenericServerResponse(404, "patch", pods, "", "", 0, false), resizes: 1, outcome: resizeRefused, event: stowage.EventResizeRefused},
		"a pod that is gone":         {pod: agent("100m"), answer: apierrors.NewNotFound(pods, "agent-x"), resizes: 1},
		"a quota that has changed":   {pod: agent("100m"), answer: apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "quota", errors.New("it has changed")), resizes: 1, fails: true, outcome: resizeFailed},
		"an API server that fails":   {pod: agent("100m"), answer: errors.New("no answer"), resizes: 1, fails: true, outcome: resizeFailed},
		"a peer pod": {pod: func() *corev1.Pod {
			p := agent("100m")
			p.Annotations[stowage.OriginalResourcesAnnotation] = "{}"
			return p
		}()},
		"a pod that ends": {pod: func() *corev1.Pod {
			p := agent("100m")
			p.Status.Phase = corev1.PodFailed
			return p
		}()},
		"a pod that is to be left alone": {pod: func() *corev1.Pod {
			p := agent("100m")
			p.Labels[stowage.ModeKey] = string(stowage.ModeOff)
			return p
		}()},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, around(tc.pod, template(tc.spec))...)
			b.answer = tc.answer
			key := client.ObjectKeyFromObject(tc.pod)
			res, err := b.reconcilePod(t.Context(), key)
			if (err != nil) != tc.fails || len(b.resizes) != tc.resizes {
				t.Errorf("%d resizes, %v", len(b.resizes), err)
			}
			if tc.outcome != "" && testutil.ToFloat64(b.Metrics.resizes.WithLabelValues(tc.outcome)) != 1 {
				t.Errorf("it is not counted as %s", tc.outcome)
			}
			if got := len(b.recorder.Events); (got == 1) != (tc.event != "") {
				t.Errorf("%d events", got)
			}
			if tc.answer == nil || tc.fails || res.RequeueAfter == 0 {
				return
			}
			// What was refused is not asked for again at once.
			if _, err := b.reconcilePod(t.Context(), key); err != nil || len(b.resizes) != tc.resizes {
				t.Errorf("it is asked for again at once: %v", err)
			}
			b.clock.Step(res.RequeueAfter)
			if _, err := b.reconcilePod(t.Context(), key); err != nil || len(b.resizes) != tc.resizes+1 {
				t.Errorf("nor after %s: %v", res.RequeueAfter, err)
			}
		})
	}
}

// A pod is not resized before it has a record of what it declared.
func TestRecordBeforeResize(t *testing.T) {
	p := agent("100m")
	delete(p.Annotations, stowage.DeclaredResourcesAnnotation)
	b := newBench(t, around(p, template(nil))...)
	b.marked = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, p.Name, errors.New("it has changed"))
	if _, err := b.reconcilePod(t.Context(), client.ObjectKeyFromObject(p)); err == nil || b.marks != 1 || len(b.resizes) > 0 {
		t.Errorf("%d records, %d resizes, %v", b.marks, len(b.resizes), err)
	}
}

// Where the API server does not resize pods it is not asked to, until it has been upgraded.
func TestWithoutResizing(t *testing.T) {
	p := agent("100m")
	b := newBench(t, around(p, template(nil))...)
	served := b.discovery.Resources[0].APIResources
	b.discovery.Resources[0].APIResources = served[:1]
	key := client.ObjectKeyFromObject(p)
	if _, err := b.reconcilePod(t.Context(), key); err != nil || len(b.resizes) > 0 {
		t.Errorf("%d resizes, %v", len(b.resizes), err)
	}
	if _, err := b.reconcileStatus(t.Context(), sizing.LabelOf("tenth")); err != nil {
		t.Fatal(err)
	}
	var tmpl flexdaemonsets.FlexDaemonsetTemplate
	if err := b.Uncached.Get(t.Context(), client.ObjectKey{Name: "tenth"}, &tmpl); err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(tmpl.Status.Conditions, flexdaemonsets.ConditionUpToDate); c == nil || c.Reason != string(stowage.ReasonUnsupported) {
		t.Errorf("the status is %+v", c)
	}
	b.discovery.Resources[0].APIResources = served
	b.clock.Step(resizableFor)
	if _, err := b.reconcilePod(t.Context(), key); err != nil || len(b.resizes) != 1 {
		t.Errorf("after the upgrade: %d resizes, %v", len(b.resizes), err)
	}
}

// What Karpenter plans for a DaemonSet is compared with its sizes, on nodes that Karpenter makes only.
func TestReportPlans(t *testing.T) {
	small, large := agent("400m"), agent("6400m")
	large.Name, large.UID, large.Spec.NodeName, large.CreationTimestamp = "agent-y", "other", "n64", metav1.Unix(10, 0)
	node := func(name, instanceType string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpenter.NodePoolLabel: "default", corev1.LabelInstanceTypeStable: instanceType}}}
	}
	b := newBench(t, small, large, node("n4", "c4"), node("n64", "c64"), daemonSet(), template(nil))
	b.reportPlans(t.Context(), "tenth", b.indexed(byTemplate, "tenth"))
	for class, want := range map[string]float64{"c4": 0.0625, "c64": 1} {
		if got := testkit.Sample(t, b.Metrics.planned, map[string]string{"daemonset": "agent", "node_class": class, "resource": "cpu"}); got != want {
			t.Errorf("on %s the ratio is %v, want %v", class, got, want)
		}
	}
	for _, p := range b.pods.Load().GetIndexer().List() {
		if err := b.pods.Load().GetIndexer().Delete(p); err != nil {
			t.Fatal(err)
		}
	}
	b.reportPlans(t.Context(), "tenth", b.indexed(byTemplate, "tenth"))
	if n := testutil.CollectAndCount(b.Metrics.planned); n != 0 {
		t.Errorf("%d ratios are left of a DaemonSet without pods", n)
	}
}

// A record that somebody has edited into another form makes no resize for ever.
func TestRecordInAnotherForm(t *testing.T) {
	p := agent("400m")
	p.Annotations[stowage.DeclaredResourcesAnnotation] = `{"containers":{"c":{"requests":{"cpu":"0.1000"},"limits":{"cpu":"100e-3"}}},"sized":["cpu"]}`
	b := newBench(t, around(p, template(nil))...)
	for range 5 {
		if _, err := b.reconcilePod(t.Context(), client.ObjectKeyFromObject(p)); err != nil {
			t.Fatal(err)
		}
		b.clock.Step(time.Hour)
	}
	if len(b.resizes) > 0 {
		t.Errorf("%d resizes: %s", len(b.resizes), b.resizes[0])
	}
}

func TestStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		spec   func(*flexdaemonsets.FlexDaemonsetTemplateSpec)
		reason stowage.ConditionReason
		off    int32
	}{
		"up to date":      {pod: agent("400m"), reason: stowage.ReasonUpToDate},
		"resizing":        {pod: agent("100m"), reason: stowage.ReasonResizing, off: 1},
		"in progress":     {pod: agent("400m", condition(corev1.PodResizeInProgress, "", "")), reason: stowage.ReasonResizing, off: 1},
		"not in force":    {pod: running("400m", "100m"), reason: stowage.ReasonResizing, off: 1},
		"rounded":         {pod: running("400m", "402m"), reason: stowage.ReasonUpToDate},
		"failed":          {pod: agent("400m", condition(corev1.PodResizeInProgress, corev1.PodReasonError, "limit (104383386) below current usage")), reason: stowage.ReasonFailed, off: 1},
		"deferred":        {pod: agent("400m", condition(corev1.PodResizePending, corev1.PodReasonDeferred, "no room")), reason: stowage.ReasonDeferred, off: 1},
		"infeasible":      {pod: agent("400m", condition(corev1.PodResizePending, corev1.PodReasonInfeasible, "never")), reason: stowage.ReasonInfeasible, off: 1},
		"awaits new pods": {pod: agent("100m"), spec: func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.UpdatePolicy = flexdaemonsets.UpdateOnCreate }, reason: stowage.ReasonAwaitsNewPods, off: 1},
		"invalid":         {pod: agent("100m"), spec: func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.CPUPercentage = new(int32(900)) }, reason: stowage.ReasonInvalid, off: 0},
	} {
		for how, watched := range map[string]bool{"watched": true, "listed": false} {
			t.Run(name+", "+how, func(t *testing.T) {
				b := newBench(t, around(tc.pod, template(tc.spec))...)
				if !watched {
					b.pods.Store(nil)
				}
				if _, err := b.reconcileStatus(t.Context(), sizing.LabelOf("tenth")); err != nil {
					t.Fatal(err)
				}
				var got flexdaemonsets.FlexDaemonsetTemplate
				if err := b.Uncached.Get(t.Context(), client.ObjectKey{Name: "tenth"}, &got); err != nil {
					t.Fatal(err)
				}
				c := meta.FindStatusCondition(got.Status.Conditions, flexdaemonsets.ConditionUpToDate)
				if c == nil || c.Reason != string(tc.reason) || got.Status.OffSize != tc.off || got.Status.DaemonSets != 1 {
					t.Errorf("condition %+v, status %+v", c, got.Status)
				}
			})
		}
	}
}

// Pods are watched only where one may be resized.
func TestNeedsWatch(t *testing.T) {
	onCreate := func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.UpdatePolicy = flexdaemonsets.UpdateOnCreate }
	for name, tc := range map[string]struct {
		spec  func(*flexdaemonsets.FlexDaemonsetTemplateSpec)
		early bool
		want  bool
	}{
		"InPlace":                       {want: true},
		"OnCreate":                      {spec: onCreate},
		"OnCreate, created before them": {spec: onCreate, early: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := agent("100m")
			b := newBench(t, around(p, template(tc.spec))...)
			if tc.early {
				b.beforeTemplate[p.UID] = b.clock.Now()
			}
			if got, err := b.needsWatch(t.Context()); err != nil || got != tc.want {
				t.Errorf("%t, %v", got, err)
			}
			if err := b.pods.Load().GetIndexer().Replace(nil, ""); err != nil {
				t.Fatal(err)
			}
			if b.forgetEarly(); tc.early != (len(b.beforeTemplate) > 0) {
				t.Error("a pod that was just found is forgotten")
			}
			b.clock.Step(earlyFor)
			if b.forgetEarly(); len(b.beforeTemplate) > 0 {
				t.Error("a pod that is gone is still a reason to watch")
			}
		})
	}
}

// Where the watch of pods stops, it may not have shown the last changes: statuses are looked at once more.
func TestWatchStops(t *testing.T) {
	b := newBench(t, around(agent("100m"), template(func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.UpdatePolicy = flexdaemonsets.UpdateOnCreate }))...)
	b.Timing.Status = 0
	if err := b.adjustWatch(t.Context()); err != nil || b.pods.Load() != nil || b.statuses.Len() != 1 {
		t.Errorf("%d statuses are to be looked at, %v", b.statuses.Len(), err)
	}
}

// The status of a template whose pods another template sized lists them by their DaemonSet.
func TestListedPodsOfAnotherTemplate(t *testing.T) {
	p := agent("100m")
	p.Labels[stowage.SizedByLabel] = "another"
	b := newBench(t, around(p, template(nil))...)
	b.pods.Store(nil)
	var d appsv1.DaemonSet
	if err := b.Informers.Get(t.Context(), client.ObjectKey{Namespace: p.Namespace, Name: "agent"}, &d); err != nil {
		t.Fatal(err)
	}
	d.Status.CurrentNumberScheduled = 1
	pods, err := b.sizedPods(t.Context(), template(nil), []appsv1.DaemonSet{d})
	if err != nil || len(pods) != 1 {
		t.Errorf("%d pods, %v", len(pods), err)
	}
}

// A kubelet's message whose numbers change does not rewrite a status again and again; what else
// changes in it does.
func TestChangingNumbers(t *testing.T) {
	var conditions []metav1.Condition
	set := func(rest, kubelet string) string {
		setCondition(&conditions, metav1.Condition{Type: "T", Status: metav1.ConditionFalse, Reason: "Failed", Message: rest + kubelet}, kubelet)
		return conditions[0].Message
	}
	first := set("1 of 3 pods, such as x", ": usage is 104383386")
	if got := set("1 of 3 pods, such as x", ": usage is 104999999"); got != first {
		t.Errorf("it was written again: %s", got)
	}
	if got := set("2 of 3 pods, such as x", ": usage is 104999999"); !strings.HasPrefix(got, "2 of 3") {
		t.Errorf("another count is hidden: %s", got)
	}
	if got := set("2 of 3 pods, such as x", ": no room"); !strings.HasSuffix(got, "no room") {
		t.Errorf("another reason is hidden: %s", got)
	}
}

// What a node says of a resize is told once.
func TestPodSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		condition corev1.PodCondition
		outcome   string
		event     stowage.EventReason
	}{
		"deferred":   {condition(corev1.PodResizePending, corev1.PodReasonDeferred, "no room"), resizeDeferred, stowage.EventResizeDeferred},
		"infeasible": {condition(corev1.PodResizePending, corev1.PodReasonInfeasible, "never"), resizeInfeasible, stowage.EventResizeInfeasible},
		"failed":     {condition(corev1.PodResizeInProgress, corev1.PodReasonError, "below usage"), resizeNodeError, stowage.EventResizeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, around(agent("400m"), template(nil))...)
			with, changed := agent("400m", tc.condition), agent("400m", tc.condition)
			changed.Status.Conditions[0].Message += " 1234"
			b.podSeen(t.Context(), nil, agent("400m"))
			b.podSeen(t.Context(), agent("400m"), with)
			b.podSeen(t.Context(), with, changed)
			if n := testutil.ToFloat64(b.Metrics.resizes.WithLabelValues(tc.outcome)); n != 1 {
				t.Errorf("counted %v times", n)
			}
			if n := len(b.recorder.Events); n != 1 {
				t.Fatalf("%d events", n)
			}
			if e := <-b.recorder.Events; !strings.Contains(e, string(tc.event)) {
				t.Errorf("event %q", e)
			}
			if b.work.Len() != 1 {
				t.Errorf("%d pods are to be looked at", b.work.Len())
			}
		})
	}
}

// A pod that another template sized counts for the template that its DaemonSet names now.
func TestSeenPodOfAnotherTemplate(t *testing.T) {
	p := agent("100m")
	p.Labels[stowage.SizedByLabel] = "another"
	b := newBench(t, around(p, template(nil))...)
	b.Timing.Status = 0
	if b.podSeen(t.Context(), nil, p); b.statuses.Len() != 2 {
		t.Errorf("%d statuses are to be looked at", b.statuses.Len())
	}
}

// A pod that waits for a node for ever is looked at less and less often, and one that gets no size is not.
func TestPodWithoutNode(t *testing.T) {
	pod := agent("100m")
	delete(pod.Labels, stowage.SizedByLabel)
	delete(pod.Annotations, stowage.DeclaredResourcesAnnotation)
	pod.Spec.NodeName, pod.Status.Phase = "", corev1.PodPending
	for name, tc := range map[string]struct {
		edit         func(*corev1.Pod)
		least, looks int
	}{
		"it waits": {func(*corev1.Pod) {}, 100, 250}, // in a day
		"it is a peer pod": {func(p *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, stowage.OriginalResourcesAnnotation, "{}")
		}, 1, 1},
		"its mode is Off": {func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, stowage.ModeKey, "Off") }, 1, 1},
		"it has failed":   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod.DeepCopy()
			tc.edit(p)
			b := newBench(t, around(p, template(nil))...)
			looks := 0
			for spent := time.Duration(0); spent < 24*time.Hour; looks++ {
				res, err := b.reconcileDaemonSet(t.Context(), client.ObjectKey{Namespace: "default", Name: "agent"})
				if err != nil {
					t.Fatal(err)
				}
				if spent += res.RequeueAfter; res.RequeueAfter == 0 {
					spent = 24 * time.Hour
				}
				b.clock.Step(res.RequeueAfter)
			}
			if looks < tc.least || looks > tc.looks {
				t.Errorf("%d looks in a day", looks)
			}
		})
	}
}

// Pods that are older than the template, or bypassed the webhook, get a record of what they declare.
func TestReconcileDaemonSet(t *testing.T) {
	unsized := agent("100m")
	delete(unsized.Labels, stowage.SizedByLabel)
	delete(unsized.Annotations, stowage.DeclaredResourcesAnnotation)
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		edit  func(*appsv1.DaemonSet)
		spec  func(*flexdaemonsets.FlexDaemonsetTemplateSpec)
		marks int
		again bool
	}{
		"none is missing":        {pod: agent("400m")},
		"one is missing":         {pod: unsized, marks: 1},
		"it waits for a node":    {pod: func() *corev1.Pod { p := unsized.DeepCopy(); p.Spec.NodeName = ""; return p }(), again: true},
		"pods are being made":    {pod: unsized, edit: func(d *appsv1.DaemonSet) { d.Status.DesiredNumberScheduled = 5 }, again: true},
		"they do not follow":     {pod: unsized, spec: func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.UpdatePolicy = flexdaemonsets.UpdateOnCreate }},
		"it names no template":   {pod: unsized, edit: func(d *appsv1.DaemonSet) { d.Annotations = nil }},
		"a pod of another owner": {pod: func() *corev1.Pod { p := unsized.DeepCopy(); p.OwnerReferences = nil; return p }()},
	} {
		t.Run(name, func(t *testing.T) {
			objects := around(tc.pod, template(tc.spec))
			if tc.edit != nil {
				tc.edit(objects[2].(*appsv1.DaemonSet))
			}
			b := newBench(t, objects...)
			res, err := b.reconcileDaemonSet(t.Context(), client.ObjectKey{Namespace: "default", Name: "agent"})
			if err != nil || b.marks != tc.marks || (res.RequeueAfter > 0) != tc.again {
				t.Errorf("%d records, again after %s, %v", b.marks, res.RequeueAfter, err)
			}
		})
	}
}

func TestTemplateSeen(t *testing.T) {
	b := newBench(t, around(agent("100m"), template(nil))...)
	b.Timing.Jitter = 0
	b.templateSeen(t.Context(), template(nil), false)
	if b.work.Len()+b.daemonSets.Len() != 0 {
		t.Error("a template that did not change makes work")
	}
	b.templateSeen(t.Context(), template(nil), true)
	if b.work.Len() != 1 || b.daemonSets.Len() != 1 {
		t.Errorf("%d pods and %d DaemonSets are to be looked at", b.work.Len(), b.daemonSets.Len())
	}
	b.daemonSetsChanged(daemonSet())
}

// Changes of templates, nodes and DaemonSets make work for the pods that depend on them, and a
// heartbeat makes none.
func TestWatch(t *testing.T) {
	pod := agent("100m")
	b := newBench(t, around(pod, template(nil))...)
	b.Timing.Jitter = 0
	fakes := &informertest.FakeInformers{Scheme: b.Uncached.Scheme()}
	b.Informers = testkit.Cache{Informers: fakes, Reader: b.Uncached}
	ctx, cancel := context.WithCancel(t.Context())
	term, wait := leader.NewTerm(ctx, b.clock, logr.Discard())
	if err := b.watch(term); err != nil {
		t.Fatal(err)
	}
	drained := func() int {
		n := b.work.Len()
		for b.work.Len() > 0 {
			item, _ := b.work.Get()
			b.work.Done(item)
		}
		return n
	}
	informerOf := func(o client.Object) *controllertest.FakeInformer {
		i, err := fakes.FakeInformerFor(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	nodes, templates, sets := informerOf(&corev1.Node{}), informerOf(&flexdaemonsets.FlexDaemonsetTemplate{}), informerOf(&appsv1.DaemonSet{})
	small, big := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	small.Status.Allocatable, big.Status.Allocatable = testkit.ResourceList("cpu=4"), testkit.ResourceList("cpu=8")
	heartbeat := small.DeepCopy()
	heartbeat.ResourceVersion = "2"
	nodes.Update(small, heartbeat)
	if n := drained(); n != 0 {
		t.Errorf("a heartbeat makes work for %d pods", n)
	}
	nodes.Update(small, big)
	if n := drained(); n != 1 {
		t.Errorf("a node that grew makes work for %d pods", n)
	}
	changed := template(nil)
	changed.Generation++
	templates.Update(template(nil), changed)
	if n := drained(); n != 1 {
		t.Errorf("a template that changed makes work for %d pods", n)
	}
	templates.Delete(changed)
	other := daemonSet()
	other.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: "other"}
	sets.Update(daemonSet(), other)
	if n := drained(); n != 1 {
		t.Errorf("a DaemonSet with another template makes work for %d pods", n)
	}
	sets.Delete(other)
	nodes.Delete(big)
	cancel()
	wait()
}

// A size that the API server accepts and that comes out different, because another webhook changes it, is asked for less
// and less often.
func TestResizeThatComesOutDifferent(t *testing.T) {
	p := agent("100m")
	b := newBench(t, around(p, template(nil))...)
	for start := b.clock.Now(); b.clock.Since(start) < 10*time.Minute; {
		res, err := b.reconcilePod(t.Context(), client.ObjectKeyFromObject(p))
		if err != nil {
			t.Fatal(err)
		}
		b.clock.Step(max(res.RequeueAfter, time.Second))
	}
	if n := len(b.resizes); n < 2 || n > 10 {
		t.Errorf("%d resizes in 10 minutes", n)
	}
}

// What a size depends on is kept of a pod: the webhook decided with it, and the controller must come to the same.
func TestKeepSizedPodKeepsWhatDecides(t *testing.T) {
	pod := agent("100m")
	pod.Spec.PriorityClassName = "high" // of the scopes of ResourceQuotas
	kept, err := keepSizedPod(pod)
	if err != nil || kept.(*corev1.Pod).Spec.PriorityClassName != "high" {
		t.Errorf("kept is %+v, %v", kept, err)
	}
}

// Anybody can write the label of pods with a size: of a pod that no DaemonSet can have made, almost nothing is kept.
func TestKeepSizedPodKeepsLittle(t *testing.T) {
	owned := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "ds", Controller: new(true)}}
	for name, pod := range map[string]*corev1.Pod{
		"of nobody":             {Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1000)}},
		"of too many parts":     {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned}, Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1000)}},
		"with a record so long": {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned, Annotations: map[string]string{stowage.DeclaredResourcesAnnotation: strings.Repeat("x", 200<<10)}}},
	} {
		kept, err := keepSizedPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := json.Marshal(kept); err != nil || len(data) > 1<<10 {
			t.Errorf("%s: %d bytes are kept, %v", name, len(data), err)
		}
	}
}
