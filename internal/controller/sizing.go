package controller

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission"
	"github.com/stowage-dev/stowage/internal/sizing"
)

// SizingTiming is the waits of a [Sizing].
type SizingTiming struct {
	// Jitter is the time over which the pods that a change is about are resized.
	Jitter time.Duration
	// Rate is how many pods are resized in a second.
	Rate float64
	// Backoff is the wait before a pod that could not be resized is resized again,
	// doubled each time up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Settle is how long a DaemonSet must not have changed before its pods are compared
	// with it.
	Settle time.Duration
	// Status is the shortest time between two updates of one status. It grows with the
	// number of pods, all of which are looked at.
	Status time.Duration
}

// DefaultSizingTiming returns the waits unless others are set.
func DefaultSizingTiming() SizingTiming {
	return SizingTiming{
		Jitter: 10 * time.Second, Rate: 5, Backoff: 30 * time.Second, MaxBackoff: time.Hour,
		Settle: 2 * time.Second, Status: time.Second,
	}
}

// Sizing is the controller of the sizing: it keeps the status of FlexDaemonsetTemplates
// and, where one says so, brings running pods to the size that it and their nodes give
// them. What that size is, the webhook's own feature says; this controller never removes
// a pod. It looks at a pod when the pod appears, and when its template or its node's
// allocatable resources change; nothing that only beats, such as a node's heart, is work.
type Sizing struct {
	// Client does not read from the cache.
	Client    client.Client
	Clientset kubernetes.Interface
	Informers cache.Cache
	// Pipeline is the webhook's.
	Pipeline *admission.Pipeline
	// Feature decides sizes.
	Feature *admission.Sizing
	Clock   clock.WithTicker
	Timing  SizingTiming
	Log     logr.Logger
	Events  events.EventRecorder
	Metrics *SizingMetrics
}

// sizer is one run of a [Sizing]: handlers of an earlier run, which may still be under way
// when this replica leads again, have their own.
type sizer struct {
	*Sizing
	pods       toolscache.SharedIndexInformer
	work       workqueue.TypedRateLimitingInterface[types.NamespacedName] // pods
	daemonSets workqueue.TypedRateLimitingInterface[types.NamespacedName]
	statuses   workqueue.TypedRateLimitingInterface[string] // templates, as labels name them
	writes     flowcontrol.RateLimiter                      // resizes
	labels     flowcontrol.RateLimiter                      // records of pods that had none

	mu    sync.Mutex
	tries map[types.UID]*tries
}

// tries is what became of a pod's resizes.
type tries struct {
	asked   string // what was asked for last
	refused string // the API server's reason, if it refused that
	backoff time.Duration
	at      time.Time
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups=flexdaemonsets.xai,resources=flexdaemonsettemplates/status,verbs=patch

// SizingMetrics counts resizes.
type SizingMetrics struct {
	resizes *prometheus.CounterVec
}

// The outcomes of resizes. They are a metric label.
const (
	resizeAccepted   = "accepted"
	resizeRefused    = "refused"
	resizeFailed     = "failed"
	resizeDeferred   = "deferred"
	resizeInfeasible = "infeasible"
)

// NewSizingMetrics makes the metrics and registers them.
func NewSizingMetrics(reg prometheus.Registerer) (*SizingMetrics, error) {
	m := &SizingMetrics{resizes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "stowage_resizes_total",
		Help: "Resizes of running pods, by outcome: accepted, refused or failed at the API server; and, of those accepted, deferred or infeasible at the node.",
	}, []string{"outcome"})}
	for _, outcome := range []string{resizeAccepted, resizeRefused, resizeFailed, resizeDeferred, resizeInfeasible} {
		m.resizes.WithLabelValues(outcome)
	}
	return m, reg.Register(m.resizes)
}

// The indexes of pods.
const (
	byNode     = "node"
	byTemplate = "template" // the label's value
	byOwner    = "owner"    // its UID
)

// Run does the controller's work until ctx ends. It may be called again after that.
func (c *Sizing) Run(ctx context.Context) {
	// 1. A clean slate.
	limiter := func() workqueue.TypedRateLimiter[types.NamespacedName] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Second, 5*time.Minute)
	}
	burst := max(1, int(c.Timing.Rate))
	s := &sizer{
		Sizing: c, tries: map[types.UID]*tries{},
		work: workqueue.NewTypedRateLimitingQueue(limiter()), daemonSets: workqueue.NewTypedRateLimitingQueue(limiter()),
		statuses: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 5*time.Minute)),
		writes:   flowcontrol.NewTokenBucketRateLimiter(float32(c.Timing.Rate), burst),
		labels:   flowcontrol.NewTokenBucketRateLimiter(10*float32(c.Timing.Rate), 10*burst),
	}

	// 2. The pods that have a size, seen by the replica that leads only.
	s.pods = toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewFilteredListWatchFromClient(s.Clientset.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.LabelSelector = stowage.SizedByLabel
		}), &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: toolscache.Indexers{
			byNode:     func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil },
			byTemplate: func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Labels[stowage.SizedByLabel]}, nil },
			byOwner: func(obj any) ([]string, error) {
				if o := metav1.GetControllerOfNoCopy(obj.(*corev1.Pod)); o != nil {
					return []string{string(o.UID)}, nil
				}
				return nil, nil
			},
		}})
	if err := s.pods.SetTransform(keepSizedPod); err != nil {
		s.Log.Error(err, "pods are not watched")
		return
	}
	_, err := s.pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.podSeen(nil, obj.(*corev1.Pod)) },
		UpdateFunc: func(was, obj any) { s.podSeen(was.(*corev1.Pod), obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if pod, ok := unwrapped(obj).(*corev1.Pod); ok {
				s.forget(pod.UID)
				s.dirty(pod)
				// The pod that takes its place may have come past the webhook.
				if o := metav1.GetControllerOfNoCopy(pod); o != nil {
					s.daemonSets.AddAfter(client.ObjectKey{Namespace: pod.Namespace, Name: o.Name}, s.Timing.Settle)
				}
			}
		},
	})
	if err != nil {
		s.Log.Error(err, "pods are not watched")
		return
	}
	var all sync.WaitGroup
	all.Go(func() { s.pods.RunWithContext(ctx) })
	if toolscache.WaitForNamedCacheSyncWithContext(ctx, s.pods.HasSynced) {
		// 3. What they depend on.
		unwatch, err := s.watch(ctx)
		defer unwatch()
		if err != nil {
			s.Log.Error(err, "sizes are not followed")
		}

		// 4. The work.
		for range 2 {
			all.Go(func() { process(ctx, s.work, s.resize, s.Log) })
		}
		all.Go(func() { process(ctx, s.daemonSets, s.adopt, s.Log) })
		all.Go(func() { process(ctx, s.statuses, s.status, s.Log) })
		<-ctx.Done()
	}
	s.work.ShutDown()
	s.daemonSets.ShutDown()
	s.statuses.ShutDown()
	all.Wait()
}

// watch adds handlers to the informers of templates, nodes and DaemonSets, and returns
// what removes them.
func (s *sizer) watch(ctx context.Context) (unwatch func(), err error) {
	var removals []func()
	unwatch = func() {
		for _, remove := range removals {
			remove()
		}
	}
	for _, w := range []struct {
		object client.Object
		seen   func(was, is any, first bool) // was or is is nil
	}{
		{&flexdaemonsets.FlexDaemonsetTemplate{}, func(was, is any, first bool) {
			if t, ok := is.(*flexdaemonsets.FlexDaemonsetTemplate); ok {
				old, had := was.(*flexdaemonsets.FlexDaemonsetTemplate)
				s.templateSeen(ctx, t, !first && (!had || old.Generation != t.Generation || old.UID != t.UID))
			} else if t, ok := was.(*flexdaemonsets.FlexDaemonsetTemplate); ok {
				s.statuses.Add(sizing.LabelOf(t.Name))
			}
		}},
		{&corev1.Node{}, func(was, is any, first bool) {
			node, ok := is.(*corev1.Node)
			if old, had := was.(*corev1.Node); ok && !first && (!had || !equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable)) {
				s.soon(s.indexed(byNode, node.Name))
			}
		}},
		{&appsv1.DaemonSet{}, func(was, is any, _ bool) {
			old, had := was.(*appsv1.DaemonSet)
			now, ok := is.(*appsv1.DaemonSet)
			switch {
			case !ok && had:
				s.daemonSetsChanged(old)
			case ok && (!had || templateOf(old) != templateOf(now) || old.Status.CurrentNumberScheduled != now.Status.CurrentNumberScheduled):
				if had && templateOf(old) != templateOf(now) {
					s.daemonSetsChanged(old)
					s.soon(s.indexed(byOwner, string(now.UID)))
				}
				s.daemonSetsChanged(now)
				s.daemonSets.AddAfter(client.ObjectKeyFromObject(now), s.Timing.Settle)
			}
		}},
	} {
		informer, err := s.Informers.GetInformer(ctx, w.object)
		if err != nil {
			return unwatch, fmt.Errorf("watch %T: %w", w.object, err)
		}
		seen := w.seen
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(obj any, first bool) { seen(nil, obj, first) },
			UpdateFunc: func(was, obj any) { seen(was, obj, false) },
			DeleteFunc: func(obj any) { seen(unwrapped(obj), nil, false) },
		})
		if err != nil {
			return unwatch, fmt.Errorf("watch %T: %w", w.object, err)
		}
		removals = append(removals, func() {
			if err := informer.RemoveEventHandler(registration); err != nil {
				s.Log.Error(err, "a handler was not removed")
			}
		})
	}
	return unwatch, nil
}

func unwrapped(obj any) any {
	if lost, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		return lost.Obj
	}
	return obj
}

// templateOf is the name of the template of a DaemonSet's next pods.
func templateOf(d *appsv1.DaemonSet) string {
	return admission.TemplateName(d.Spec.Template.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations)
}

// keepSizedPod keeps what this controller reads of a pod.
func keepSizedPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
	}}
	kept.Labels = pick(pod.Labels, stowage.SizedByLabel, stowage.ModeKey)
	kept.Annotations = pick(pod.Annotations, stowage.DeclaredResourcesAnnotation, stowage.ModeKey, flexdaemonsets.TemplateAnnotation)
	if _, ok := pod.Annotations[stowage.OriginalResourcesAnnotation]; ok {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, stowage.OriginalResourcesAnnotation, "") // that it is there is enough
	}
	if c := metav1.GetControllerOfNoCopy(pod); c != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{APIVersion: c.APIVersion, Kind: c.Kind, Name: c.Name, UID: c.UID, Controller: c.Controller}}
	}
	kept.Spec.NodeName, kept.Spec.Resources = pod.Spec.NodeName, pod.Spec.Resources
	slim := func(list []corev1.Container) []corev1.Container {
		out := make([]corev1.Container, len(list))
		for i := range list {
			out[i] = corev1.Container{Name: list[i].Name, RestartPolicy: list[i].RestartPolicy, Resources: list[i].Resources}
		}
		return out
	}
	kept.Spec.InitContainers, kept.Spec.Containers = slim(pod.Spec.InitContainers), slim(pod.Spec.Containers)
	kept.Status.Phase = pod.Status.Phase
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			// Kubelets renew the times of a condition that stays.
			kept.Status.Conditions = append(kept.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	return kept, nil
}

func pick(all map[string]string, keys ...string) map[string]string {
	out := map[string]string{}
	for _, key := range keys {
		if v, ok := all[key]; ok {
			out[key] = v
		}
	}
	return out
}

// templateSeen notes a template. If it changed, its pods may have another size now, and
// there may be pods that have none. Its status is looked at each time, because what we
// compared it with when we wrote it may have been old.
func (s *sizer) templateSeen(ctx context.Context, t *flexdaemonsets.FlexDaemonsetTemplate, changed bool) {
	s.describeSoon(sizing.LabelOf(t.Name))
	if !changed {
		return
	}
	s.soon(s.indexed(byTemplate, sizing.LabelOf(t.Name)))
	var list appsv1.DaemonSetList
	if err := s.Informers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		s.Log.Error(err, "DaemonSets were not listed")
		return
	}
	for i := range list.Items {
		if templateOf(&list.Items[i]) == t.Name {
			s.daemonSets.Add(client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
}

// daemonSetsChanged has the status of a DaemonSet's template looked at.
func (s *sizer) daemonSetsChanged(d *appsv1.DaemonSet) {
	if name := templateOf(d); name != "" {
		s.describeSoon(sizing.LabelOf(name))
	}
}

// podSeen notes a pod. One that is new may have been sized by what a replica did not
// know yet; one that is bound now could not be resized before; and one whose node granted
// or dropped a resize may have been wished another size meanwhile.
func (s *sizer) podSeen(was, pod *corev1.Pod) {
	now, before := pendingOf(pod), pendingOf(was)
	if was == nil || was.Spec.NodeName != pod.Spec.NodeName || now == nil && before != nil {
		s.work.Add(client.ObjectKeyFromObject(pod))
	}
	if was != nil && was.Labels[stowage.SizedByLabel] != pod.Labels[stowage.SizedByLabel] {
		s.dirty(was)
	}
	if was == nil || was.Status.Phase != pod.Status.Phase || !maps.Equal(was.Labels, pod.Labels) ||
		!equality.Semantic.DeepEqual(was.Status.Conditions, pod.Status.Conditions) || !equality.Semantic.DeepEqual(was.Spec, pod.Spec) {
		s.dirty(pod)
	}
	if now != nil && was != nil && (before == nil || before.Reason != now.Reason) {
		outcome, reason := resizeDeferred, ReasonResizeDeferred
		if now.Reason == corev1.PodReasonInfeasible {
			outcome, reason = resizeInfeasible, ReasonResizeInfeasible
		}
		s.Metrics.resizes.WithLabelValues(outcome).Inc()
		s.tell(pod, reason, fmt.Sprintf("node %q cannot resize a pod now: %s", pod.Spec.NodeName, now.Message))
	}
}

// perPod is what each pod adds to the time between two updates of a status: about a
// hundred times what it takes to judge one.
const perPod = 5 * time.Millisecond

// describeSoon has the status of the templates of a label looked at.
func (s *sizer) describeSoon(label string) {
	keys, err := s.pods.GetIndexer().IndexKeys(byTemplate, label)
	if err != nil {
		s.Log.Error(err, "pods were not counted")
	}
	s.statuses.AddAfter(label, s.Timing.Status+time.Duration(len(keys))*perPod)
}

// dirty has the status of a pod's template looked at.
func (s *sizer) dirty(pod *corev1.Pod) {
	s.describeSoon(pod.Labels[stowage.SizedByLabel])
}

// soon has pods looked at, spread over a time.
func (s *sizer) soon(pods []*corev1.Pod) {
	for _, pod := range pods {
		s.work.AddAfter(client.ObjectKeyFromObject(pod), time.Duration(rand.Int64N(int64(s.Timing.Jitter)+1)))
		s.dirty(pod)
	}
}

// indexed returns the pods of an index.
func (s *sizer) indexed(index, value string) []*corev1.Pod {
	objects, err := s.pods.GetIndexer().ByIndex(index, value)
	if err != nil {
		s.Log.Error(err, "pods were not found", "index", index)
	}
	out := make([]*corev1.Pod, 0, len(objects))
	for _, obj := range objects {
		out = append(out, obj.(*corev1.Pod))
	}
	return out
}

func (s *sizer) forget(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tries, pod)
}
