package supply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/tries"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Timing is the waits of a [Controller].
type Timing struct {
	// Look is how often the pods are looked at.
	Look time.Duration
	// Write is the least time between two writes of a status that differ in numbers alone.
	Write time.Duration
	Tries tries.Timing
}

// DefaultTiming returns the waits unless others are set.
func DefaultTiming() Timing {
	return Timing{Look: time.Second, Write: 10 * time.Second, Tries: tries.Default()}
}

// evictRate is how many pods are evicted in a second. Namespaces share it.
const evictRate = 20

// Controller keeps the status of VMCatalogs, and evicts pods whose VM cannot be made.
type Controller struct {
	Config   peerpod.Config
	Catalogs *Catalogs
	// Cached reads VMCatalogs and nodes from the watch, and Uncached asks the API server.
	Cached     client.Reader
	Uncached   client.Client
	Clientset  kubernetes.Interface
	Scope      *scope.Scope
	Evictor    *evict.Evictor
	Successors *successor.Finder
	Clock      clock.WithTicker
	Time       clock.PassiveClock // the API server's
	Timing     Timing
	Log        logr.Logger
	Events     events.Recorder
	Metrics    *Metrics
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch,roleName=stowage-peerpods-controllers
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch,roleName=stowage-peerpods-controllers
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create,roleName=stowage-peerpods-controllers
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get,roleName=stowage-peerpods-controllers
// +kubebuilder:rbac:groups=stowage.dev,resources=vmcatalogs/status,verbs=patch,roleName=stowage-peerpods-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "vm-supply" }

// run is what the controller knows in one term. One goroutine uses it.
type run struct {
	*Controller
	peers    toolscache.SharedIndexInformer // nil until there is a catalog
	limit    *fair.Limiter[string]          // of evictions, by namespace
	written  map[string]time.Time           // when the status of a catalog was written
	unproven evict.Unproven                 // by newest
	newest   int64                          // when the last pod with a type was created, in seconds
	// changed says that a pod has changed since the last look, looked is the catalogs of it, and unsettled says that a later one may find
	// something, whatever changes.
	changed   atomic.Bool
	looked    *[]*catalog.Catalog
	unsettled bool
}

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	r := &run{Controller: c, limit: fair.NewLimiter[string](evictRate, evictRate), written: map[string]time.Time{}}
	t.AtEnd(func() { c.Metrics.publish(nil, nil) }) // the next leader publishes them
	t.Every(c.Timing.Look, func(ctx context.Context) { r.look(ctx, t) })
	return nil
}

// look looks at all pods once.
func (r *run) look(ctx context.Context, t *leader.Term) {
	looked := r.Catalogs.sorted.Load()
	if looked == nil || !r.Catalogs.Synced() || !r.watches(t) {
		return
	}
	if !r.changed.Swap(false) && looked == r.looked && !r.unsettled {
		return
	}
	all := *looked
	r.looked, r.unsettled = looked, false
	var peers []*Peer
	for _, obj := range r.peers.GetStore().List() {
		peers = append(peers, obj.(*Peer))
	}
	of, published, closed := ByCatalog(all, peers), map[Place]Use{}, map[closedType]float64{}
	for _, c := range all {
		counts := Count(c, of[c])
		for at, u := range counts.In {
			published[at] = published[at].Plus(u)
		}
		for _, closure := range c.Closures() {
			closed[closedType{c.Name, closure.Type, closure.Zone}]++
		}
		settled, err := r.update(ctx, all, c, of[c], counts)
		r.unsettled = r.unsettled || !settled
		if err != nil {
			r.Log.Error(err, "the status of a VMCatalog was not written; this is tried again", "name", c.Name)
			continue
		}
		r.move(ctx, c, of[c])
	}
	r.Metrics.publish(published, closed)
}

// watches reports whether the peer pods are known. Their watch begins once there is a catalog.
func (r *run) watches(t *leader.Term) bool {
	if r.peers != nil {
		return r.peers.HasSynced()
	}
	peers, err := newPeers(&r.Config, r.Clientset)
	if err == nil {
		change := func() { r.changed.Store(true) }
		_, err = peers.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { change() }, UpdateFunc: func(any, any) { change() }, DeleteFunc: func(any) { change() }})
	}
	if err != nil {
		r.Log.Error(err, "peer pods are not watched; this is tried again")
		return false
	}
	r.peers = peers
	t.Inform(peers)
	return false
}

// zoneOf returns the zone of a node, "" if the node has none. A node that the watch does not have is not known: it is new, or gone with its pods.
func (r *run) zoneOf(ctx context.Context, name string) (zone string, known bool) {
	var node corev1.Node
	if err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return "", false
	}
	return node.Labels[corev1.LabelTopologyZone], true
}

// view is what is seen of the pods of a catalog whose types Stowage chose. A pod that ended without a VM shows nothing.
func (r *run) view(ctx context.Context, c *catalog.Catalog, peers []*Peer) catalog.View {
	v := catalog.View{Now: r.Time.Now()}
	for _, p := range peers {
		if !p.shows() || c.Type(p.Type) == nil || !p.Active && p.Made.IsZero() {
			continue
		}
		if zone, known := r.zoneOf(ctx, p.Node); known {
			v.Pods = append(v.Pods, p.pod(zone))
		}
	}
	return v
}

// update writes the status of a catalog, if it changed. Settled is whether only another change makes it write again.
func (r *run) update(ctx context.Context, all []*catalog.Catalog, c *catalog.Catalog, peers []*Peer, counts *Counts) (settled bool, err error) {
	stored := &stowage.VMCatalog{}
	if err := r.Cached.Get(ctx, client.ObjectKey{Name: c.Name}, stored); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if stored.UID != c.UID || stored.ResourceVersion != c.Version {
		return false, nil // the next look has the same one
	}
	o, was := stored.DeepCopy(), map[catalog.Key]catalog.Closure{}
	for _, closure := range c.Closures() {
		was[closure.Key] = closure
	}
	view := r.view(ctx, c, peers)
	after := c.Next(view, r.Timing.Tries)
	counts.Into(&o.Status)
	o.Status.ObservedGeneration, o.Status.Closed, o.Status.ClosedTypes = o.Generation, statusOf(after, was), namesOf(after)
	meta.SetStatusCondition(&o.Status.Conditions, r.ready(all, c, o.Generation))
	if apiequality.Semantic.DeepEqual(o.Status, stored.Status) {
		return len(after) == 0 && !view.Waits(), nil
	}
	urgent := !apiequality.Semantic.DeepEqual(o.Status.Closed, stored.Status.Closed) || o.Status.ObservedGeneration != stored.Status.ObservedGeneration
	if !urgent && r.Clock.Since(r.written[c.Name]) < r.Timing.Write {
		return false, nil
	}
	r.written[c.Name] = r.Clock.Now()
	if err := r.Uncached.Status().Patch(ctx, o, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, fmt.Errorf("write the status: %w", err)
	}
	r.tell(o, was, after)
	return false, nil
}

// statusOf is what closes types, for a status. When a pod last waited is known to about a minute, so that the status stays as it is.
func statusOf(after []catalog.Closure, was map[catalog.Key]catalog.Closure) (closed []stowage.ClosedVMType) {
	for _, c := range after {
		if known, ok := was[c.Key]; ok && c.Phase == known.Phase && c.Waited.Sub(known.Waited) < time.Minute {
			c.Waited = known.Waited
		}
		closed = append(closed, c.Status())
	}
	return closed
}

// mostNamed is how many closed types a column names.
const mostNamed = 4

// namesOf names the types that are closed, each once. They are sorted.
func namesOf(closures []catalog.Closure) string {
	var names []string
	for i := range closures {
		if !slices.Contains(names, closures[i].Type) {
			names = append(names, closures[i].Type)
		}
	}
	if more := len(names) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ","), more)
	}
	return strings.Join(names, ",")
}

// ready is the condition Ready of a catalog.
func (r *run) ready(all []*catalog.Catalog, c *catalog.Catalog, generation int64) metav1.Condition {
	reason, message := Effect(all, c, r.Config.RuntimeClasses)
	ready := metav1.Condition{
		Type: stowage.ConditionReady, Status: metav1.ConditionFalse, Reason: string(reason), Message: message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(r.Time.Now()),
	}
	if reason == stowage.ReasonCounted {
		ready.Status = metav1.ConditionTrue
	}
	return ready
}

// tell publishes what closed and what opened.
func (r *run) tell(o *stowage.VMCatalog, was map[catalog.Key]catalog.Closure, after []catalog.Closure) {
	for i := range after {
		c := &after[i]
		known, before := was[c.Key]
		delete(was, c.Key)
		if before && known.Phase == c.Phase {
			continue
		}
		r.Log.Info("a type of VMs changed", "catalog", o.Name, "type", c.Type, "namespace", c.Namespace, "zone", c.Zone, "phase", string(c.Phase), "why", c.Why)
		switch c.Phase {
		case catalog.Closed:
			r.Events.WarnRelated(o, typeOf(o, c), stowage.EventVMTypeClosed, events.Supply, fmt.Sprintf("no VM of type %s can be made%s: %s; such pods get the next cheapest type, and the type is not tried again before %s",
				c.Type, forWhom(c), c.Why, c.Next.UTC().Format(time.RFC3339)))
		case catalog.Trying:
			r.Events.NormalRelated(o, typeOf(o, c), stowage.EventVMTypeTried, events.Supply, fmt.Sprintf("the next pod tries type %s again%s", c.Type, forWhom(c)))
		}
	}
	for _, c := range was {
		r.Events.NormalRelated(o, typeOf(o, &c), stowage.EventVMTypeOpen, events.Supply, fmt.Sprintf("type %s is open again%s", c.Type, forWhom(&c)))
	}
}

// typeOf is the type in its catalog, and the namespace and the zone that an event is about. Events of one reason about one object become one series,
// unless they are related to different objects.
func typeOf(o *stowage.VMCatalog, c *catalog.Closure) *corev1.ObjectReference {
	path := "spec.types{" + c.Type + "}"
	if c.Zone != "" {
		path += ".zones{" + c.Zone + "}"
	}
	return &corev1.ObjectReference{APIVersion: stowage.GroupVersion.String(), Kind: "VMCatalog", Namespace: c.Namespace, Name: o.Name, UID: o.UID, FieldPath: path}
}

// forWhom says for which pods a type is closed.
func forWhom(c *catalog.Closure) string { return " for pods of namespace " + c.Namespace + c.In() }
