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
// resource of each node, how many VMs its pods may have, so that the scheduler counts them.
// It looks at a node when something that it depends on changes; a heartbeat is not that.
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
)

// CapacityMetrics tells what was advertised.
type CapacityMetrics struct {
	invalid prometheus.Gauge
	writes  *prometheus.CounterVec
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
	}
	return m, errors.Join(reg.Register(m.invalid), reg.Register(m.writes))
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=peer-pods-cm,verbs=list;watch,namespace=stowage-system

// advertiser is one run of a [Capacity].
type advertiser struct {
	*Capacity
	nodes workqueue.TypedRateLimitingInterface[string]

	mu    sync.Mutex
	limit int64 // of all nodes; peerpod.None while it is not known
	// restored is how often in a row a node's amount was put back, and when last.
	restored map[string]restores
}

type restores struct {
	times int
	last  time.Time
}

// Run does the controller's work until ctx ends. It may be called again after that.
func (c *Capacity) Run(ctx context.Context) {
	a := &advertiser{
		Capacity: c, limit: peerpod.None, restored: map[string]restores{},
		nodes: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 5*time.Minute)),
	}
	var all sync.WaitGroup
	unwatch, err := a.watch(ctx, &all)
	defer c.Metrics.invalid.Set(0) // who leads next says so
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
		return 0, client.IgnoreNotFound(err)
	}
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
