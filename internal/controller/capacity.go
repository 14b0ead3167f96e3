package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/peerpod"
)

// Capacity is the controller of the peer pods' capacity: it advertises, as an extended
// resource of each node, how many VMs its pods may have, so that the scheduler counts them,
// and tells how many they have. It looks at a node when something that it depends on
// changes; a heartbeat is not that.
type Capacity struct {
	// Client does not read from the cache.
	Client    client.Client
	Clientset kubernetes.Interface
	Informers cache.Cache
	// Resource is the extended resource.
	Resource corev1.ResourceName
	// ConfigMap holds the limit of all nodes, and Default is the limit without it.
	ConfigMap types.NamespacedName
	Default   int64
	// Nodes selects the nodes that may have VMs.
	Nodes   labels.Selector
	Clock   clock.Clock
	Log     logr.Logger
	Events  events.EventRecorder
	Metrics *CapacityMetrics
}

// The reasons of the controller's events.
const (
	ReasonInvalidLimit    = "InvalidPeerPodLimit"
	ReasonForeignCapacity = "PeerPodCapacityNotOurs"
	ReasonCapacityFight   = "PeerPodCapacityKeepsChanging"
	ReasonOverCapacity    = "PeerPodsOverCapacity"
)

// CapacityMetrics tells what was advertised, and what of it is in use.
type CapacityMetrics struct {
	invalid        prometheus.Gauge
	writes         *prometheus.CounterVec
	capacity, used *prometheus.GaugeVec
}

// NewCapacityMetrics makes the metrics and registers them.
func NewCapacityMetrics(reg prometheus.Registerer) (*CapacityMetrics, error) {
	m := &CapacityMetrics{
		invalid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stowage_peerpods_limit_invalid",
			Help: "1 while the limit in the ConfigMap is refused and the last good one holds, or else 0.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_peerpods_capacity_writes_total",
			Help: "Changes of the VM capacity of nodes, by what they were: set, restored (somebody had changed it), withdrawn.",
		}, []string{"change"}),
		capacity: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stowage_peerpods_vm_capacity",
			Help: "Peer-pod VMs that a node may have. The replica that leads tells it.",
		}, []string{"node"}),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stowage_peerpods_vm_used",
			Help: "Peer-pod VMs that the pods of a node have. The replica that leads tells it.",
		}, []string{"node"}),
	}
	return m, errors.Join(reg.Register(m.invalid), reg.Register(m.writes), reg.Register(m.capacity), reg.Register(m.used))
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=peer-pods-cm,verbs=list;watch,namespace=stowage-system

// advertiser is one run of a [Capacity].
type advertiser struct {
	*Capacity
	nodes workqueue.TypedRateLimitingInterface[string]
	pods  toolscache.SharedIndexInformer

	mu    sync.Mutex
	limit int64 // of all nodes; peerpod.None while it is not known
	// restored is how often in a row a node's amount was put back, and when last.
	restored map[string]restores
	// told is what was last said of a node's use.
	told map[string]use
}

// use is how many VMs a node may have and its pods have.
type use struct{ capacity, used int64 }

type restores struct {
	times int
	last  time.Time
}

// Run does the controller's work until ctx ends. It may be called again after that.
func (c *Capacity) Run(ctx context.Context) {
	a := &advertiser{
		Capacity: c, limit: peerpod.None, restored: map[string]restores{}, told: map[string]use{},
		nodes: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 5*time.Minute)),
	}
	var all sync.WaitGroup
	unwatch, err := a.watch(ctx, &all)
	defer func() { // who leads next says so
		c.Metrics.invalid.Set(0)
		c.Metrics.capacity.Reset()
		c.Metrics.used.Reset()
	}()
	defer all.Wait()
	defer a.nodes.ShutDown()
	defer unwatch()
	if err != nil {
		if ctx.Err() == nil {
			c.Log.Error(err, "the capacity of peer pods is not kept")
		}
		return
	}
	for range 2 {
		all.Go(func() { process(ctx, a.nodes, a.advertise, c.Log) })
	}
	<-ctx.Done()
}

// patience is how long nodes wait for the ConfigMap.
const patience = 10 * time.Second

// watch follows the ConfigMap, and adds a handler to the informer of nodes. The ConfigMap
// has an informer of its own, because the webhook is ready without it: we may not be
// allowed to read it in the namespace that it is said to be in.
func (a *advertiser) watch(ctx context.Context, all *sync.WaitGroup) (unwatch func(), err error) {
	unwatch = func() {}
	configMaps := toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewListWatchFromClient(a.Clientset.CoreV1().RESTClient(), "configmaps", a.ConfigMap.Namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, a.ConfigMap.Name)), &corev1.ConfigMap{}, toolscache.SharedIndexInformerOptions{})
	seen := func(obj any) {
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			a.configured(ctx, cm)
		}
	}
	registration, err := configMaps.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: func(any) { a.setLimit(ctx, a.Default) },
	})
	if err != nil {
		return unwatch, err
	}
	all.Go(func() { configMaps.RunWithContext(ctx) })
	// The limit is known before the first node is looked at. Where it cannot be read, what
	// nodes themselves say still counts.
	known := make(chan struct{})
	all.Go(func() {
		defer close(known)
		if toolscache.WaitForNamedCacheSyncWithContext(ctx, registration.HasSynced) && len(configMaps.GetStore().ListKeys()) == 0 {
			a.setLimit(ctx, a.Default)
		}
	})
	select {
	case <-known:
	case <-ctx.Done():
		return unwatch, ctx.Err()
	case <-a.Clock.After(patience):
		a.Log.Error(nil, "the ConfigMap of the limit cannot be read; nodes without a limit of their own stay as they are", "configMap", a.ConfigMap.String())
	}

	if err := a.watchPods(ctx, all); err != nil {
		return unwatch, fmt.Errorf("watch peer pods: %w", err)
	}
	informer, err := a.Informers.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return unwatch, fmt.Errorf("watch nodes: %w", err)
	}
	onNodes, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { a.nodes.Add(obj.(*corev1.Node).Name) },
		UpdateFunc: func(was, obj any) {
			if old, now := was.(*corev1.Node), obj.(*corev1.Node); a.said(old) != a.said(now) ||
				a.Nodes.Matches(labels.Set(old.Labels)) != a.Nodes.Matches(labels.Set(now.Labels)) ||
				old.Annotations[stowage.PeerPodsLimitAnnotation] != now.Annotations[stowage.PeerPodsLimitAnnotation] {
				a.nodes.Add(now.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := unwrapped(obj).(*corev1.Node); ok {
				a.mu.Lock()
				delete(a.restored, node.Name)
				a.mu.Unlock()
				a.nodes.Add(node.Name)
			}
		},
	})
	if err != nil {
		return unwatch, fmt.Errorf("watch nodes: %w", err)
	}
	return func() {
		if err := informer.RemoveEventHandler(onNodes); err != nil {
			a.Log.Error(err, "a handler was not removed")
		}
	}, nil
}

// watchPods follows the peer pods, of which only the node is kept.
func (a *advertiser) watchPods(ctx context.Context, all *sync.WaitGroup) error {
	a.pods = toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewFilteredListWatchFromClient(a.Clientset.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.LabelSelector = stowage.PeerPodLabel
		}), &corev1.Pod{}, toolscache.SharedIndexInformerOptions{Indexers: toolscache.Indexers{
			byNode: func(obj any) ([]string, error) { return []string{nodeOfVM(obj.(*corev1.Pod))}, nil },
		}})
	err := a.pods.SetTransform(func(obj any) (any, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
		kept.Spec.NodeName, kept.Status.Phase = pod.Spec.NodeName, pod.Status.Phase
		return kept, nil
	})
	if err != nil {
		return err
	}
	seen := func(pods ...*corev1.Pod) {
		for _, pod := range pods {
			if node := nodeOfVM(pod); node != "" {
				a.nodes.Add(node)
			}
		}
	}
	_, err = a.pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen(obj.(*corev1.Pod)) },
		UpdateFunc: func(was, obj any) {
			if old, now := was.(*corev1.Pod), obj.(*corev1.Pod); nodeOfVM(old) != nodeOfVM(now) {
				seen(old, now)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, ok := unwrapped(obj).(*corev1.Pod); ok {
				seen(pod)
			}
		},
	})
	if err == nil {
		all.Go(func() { a.pods.RunWithContext(ctx) })
	}
	return err
}

// nodeOfVM is the node on which a peer pod takes a VM, or "". The scheduler counts a pod
// until it has ended.
func nodeOfVM(pod *corev1.Pod) string {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return ""
	}
	return pod.Spec.NodeName
}

// account tells how many VMs a node may have and its pods have. A limit below that is
// legal: it holds for pods to come.
func (a *advertiser) account(name string, node *corev1.Node) {
	if !a.pods.HasSynced() {
		a.nodes.AddAfter(name, time.Second)
		return
	}
	keys, err := a.pods.GetIndexer().IndexKeys(byNode, name)
	if err != nil {
		a.Log.Error(err, "peer pods were not counted")
		return
	}
	now := use{used: int64(len(keys))}
	if node != nil {
		now.capacity = max(0, a.said(node).Allocatable)
	}
	a.mu.Lock()
	was := a.told[name]
	a.told[name] = now
	if now == (use{}) {
		delete(a.told, name)
	}
	a.mu.Unlock()
	if now == (use{}) {
		a.Metrics.capacity.DeleteLabelValues(name)
		a.Metrics.used.DeleteLabelValues(name)
		return
	}
	a.Metrics.capacity.WithLabelValues(name).Set(float64(now.capacity))
	a.Metrics.used.WithLabelValues(name).Set(float64(now.used))
	if node != nil && now.used > now.capacity && (was.used <= was.capacity || was.capacity != now.capacity) {
		a.Events.Eventf(node, nil, corev1.EventTypeWarning, ReasonOverCapacity, "Advertise",
			"the node has %d peer-pod VM(s) and may have %d; they stay, and no new one is scheduled here until there are fewer", now.used, now.capacity)
	}
}

// LimitKey is the key of the limit in the ConfigMap.
const LimitKey = "PEERPODS_LIMIT_PER_NODE"

// configured takes the limit from the ConfigMap. One that is none leaves the last good one.
func (a *advertiser) configured(ctx context.Context, cm *corev1.ConfigMap) {
	text, ok := cm.Data[LimitKey]
	if !ok {
		a.setLimit(ctx, a.Default)
		return
	}
	limit, err := peerpod.ParseLimit(text)
	if err != nil {
		a.Metrics.invalid.Set(1)
		a.Log.Error(err, "limit refused", "configMap", a.ConfigMap.String(), "key", LimitKey)
		a.Events.Eventf(cm, nil, corev1.EventTypeWarning, ReasonInvalidLimit, "Configure",
			"%s: %v; the last good value holds", LimitKey, err)
		return
	}
	a.setLimit(ctx, limit)
}

func (a *advertiser) setLimit(ctx context.Context, limit int64) {
	a.Metrics.invalid.Set(0)
	a.mu.Lock()
	changed := a.limit != limit
	a.limit = limit
	a.mu.Unlock()
	if !changed {
		return
	}
	var list corev1.NodeList
	if err := a.Informers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		a.Log.Error(err, "nodes were not listed")
		return
	}
	for i := range list.Items {
		a.nodes.Add(list.Items[i].Name)
	}
}

// said is what a node says of its VMs.
func (a *advertiser) said(node *corev1.Node) peerpod.Advertised {
	of := func(list corev1.ResourceList) int64 {
		if q, ok := list[a.Resource]; ok {
			return q.Value()
		}
		return peerpod.None
	}
	return peerpod.Advertised{
		Capacity: of(node.Status.Capacity), Allocatable: of(node.Status.Allocatable), Mark: node.Annotations[stowage.PeerPodsCapacityAnnotation],
	}
}

// wanted is how many VMs a node should say it may have, and false while that is not known.
func (a *advertiser) wanted(node *corev1.Node) (limit int64, known bool) {
	if !a.Nodes.Matches(labels.Set(node.Labels)) {
		return 0, true
	}
	if text, ok := node.Annotations[stowage.PeerPodsLimitAnnotation]; ok {
		limit, err := peerpod.ParseLimit(text)
		if err == nil {
			return limit, true
		}
		a.Events.Eventf(node, nil, corev1.EventTypeWarning, ReasonInvalidLimit, "Configure",
			"annotation %s: %v; the limit of the other nodes holds", stowage.PeerPodsLimitAnnotation, err)
	}
	a.mu.Lock()
	limit = a.limit
	a.mu.Unlock()
	if limit != peerpod.None {
		return limit, true
	}
	// The ConfigMap has been invalid since before this replica led. What the node was
	// told last is the last good value; one that was told nothing waits.
	limit, err := peerpod.ParseLimit(node.Annotations[stowage.PeerPodsCapacityAnnotation])
	return limit, err == nil
}

// advertise has one node say how many VMs it may have.
func (a *advertiser) advertise(ctx context.Context, name string) (time.Duration, error) {
	// 1. What should it say?
	var node corev1.Node
	if err := a.Informers.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		if apierrors.IsNotFound(err) {
			a.account(name, nil)
		}
		return 0, client.IgnoreNotFound(err)
	}
	a.account(name, &node)
	want, known := a.wanted(&node)
	if !known {
		return 0, nil
	}
	if change, foreign := peerpod.Advertise(a.said(&node), want); change == nil && !foreign {
		return 0, nil
	}
	// There is something to do: what the cache shows may be older than what we did last.
	if err := a.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if want, known = a.wanted(&node); !known {
		return 0, nil
	}
	said := a.said(&node)
	change, foreign := peerpod.Advertise(said, want)
	if foreign {
		a.Events.Eventf(&node, nil, corev1.EventTypeWarning, ReasonForeignCapacity, "Advertise",
			"the node says that it has %d of %s, which somebody else has set, and not %d; it stays until that is removed, or the node gets the annotation %s",
			said.Capacity, a.Resource, want, stowage.PeerPodsCapacityAnnotation)
		return 0, nil
	}
	if change == nil {
		return 0, nil
	}
	if change.Restores {
		if wait := a.restoring(&node, said, want); wait > 0 {
			return wait, nil
		}
	}

	// 2. Have it say that. The mark comes before the amount and goes after it, so that no
	// amount of ours is ever taken for somebody else's.
	var mark, amount any
	if change.Amount != peerpod.None {
		mark, amount = change.Mark, fmt.Sprint(change.Amount)
	}
	writeMark := func() error {
		if change.Mark == said.Mark {
			return nil
		}
		return a.patch(ctx, a.Client.Patch, &node, map[string]any{"metadata": map[string]any{"annotations": map[string]any{stowage.PeerPodsCapacityAnnotation: mark}}})
	}
	writeAmount := func() error {
		entry := map[string]any{string(a.Resource): amount}
		return a.patch(ctx, a.patchStatus, &node, map[string]any{"status": map[string]any{"capacity": entry, "allocatable": entry}})
	}
	steps, kind := []func() error{writeMark, writeAmount}, "set"
	if change.Amount == peerpod.None {
		steps, kind = []func() error{writeAmount, writeMark}, "withdrawn"
	} else if change.Restores {
		kind = "restored"
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return 0, client.IgnoreNotFound(err)
		}
	}
	a.Metrics.writes.WithLabelValues(kind).Inc()
	a.Log.Info("VM capacity "+kind, "node", name, "vms", max(0, change.Amount), "had", said.Capacity)
	return 0, nil
}

func (a *advertiser) patchStatus(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return a.Client.Status().Patch(ctx, obj, patch)
}

func (a *advertiser) patch(ctx context.Context, send func(context.Context, client.Object, client.Patch, ...client.PatchOption) error, node *corev1.Node, change map[string]any) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return send(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, client.RawPatch(types.MergePatchType, data))
}

// How often in a row an amount is put back at once, and within what time that is a row.
const (
	atOnce = 3
	row    = 10 * time.Minute
)

// restoring notes that a node's amount is put back, and returns how long to wait first: a
// kubelet that starts zeroes it once; whoever keeps changing it wins less and less often.
func (a *advertiser) restoring(node *corev1.Node, said peerpod.Advertised, want int64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, now := a.restored[node.Name], a.Clock.Now()
	wait := time.Duration(0)
	if r.times >= atOnce {
		wait = min(5*time.Minute, time.Second<<min(r.times-atOnce, 16))
	}
	if since := now.Sub(r.last); since < wait {
		return wait - since
	} else if since > row+wait {
		r.times = 0
	}
	r.times, r.last = r.times+1, now
	a.restored[node.Name] = r
	// A kubelet zeroes; an amount is somebody's.
	if r.times == atOnce+1 || said.Capacity > 0 && said.Capacity != want {
		a.Events.Eventf(node, nil, corev1.EventTypeWarning, ReasonCapacityFight, "Advertise",
			"somebody else changed %s, which Stowage keeps at %d, to %d; it is put back, less often each time", a.Resource, want, max(0, said.Capacity))
	}
	return 0
}
