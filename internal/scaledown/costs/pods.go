package costs

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/internal/world"
)

// whose says where the deletion cost of a pod comes from.
type whose uint8

const (
	nobodys whose = iota // the pod has none
	ours
	others
)

// pod is what is kept of a pod that has not ended: some 200 bytes.
type pod struct {
	uid     types.UID
	name    string
	node    string
	version string
	by      string // who wrote a cost of others, if that is known
	// bound is when the pod was seen to get its node. It is zero if the pod had a node when it was seen first.
	bound time.Time
	cost  int32
	whose whose
	// marked: the pod has the mark of a cost that Stowage wrote, whatever its cost is now.
	marked, ready, seat bool
	// busy: the pod is being written, and gets this cost. Conflicted: there is a newer version of the pod, which the watch has not shown yet.
	busy, conflicted bool
	writing          int32
}

// ownerKey tells owners apart. A pod may name any UID.
type ownerKey struct {
	namespace string
	uid       types.UID
}

// owner is what makes pods, with the pods.
type owner struct {
	ownerKey
	ref      world.Ref
	labels   map[string]string // of the pods
	mode     string            // their stowage.dev/mode
	template layers.Template
	pods     map[types.UID]*pod
	left     time.Time // when the last pod has left

	plan
}

// pods keeps a record of each pod with an owner, from a watch. It is the store that the watch's reflector writes to, so nothing else of a pod is kept.
type pods struct {
	now func() time.Time
	// undone is called where a pod has lost a cost that Stowage wrote.
	undone func(pod types.UID)

	synced  atomic.Bool
	mu      sync.Mutex
	owners  map[ownerKey]*owner
	ownerOf map[types.UID]*owner
	changed map[*owner]bool // since the last plan
}

func newPods(now func() time.Time, undone func(types.UID)) *pods {
	return &pods{now: now, undone: undone, owners: map[ownerKey]*owner{}, ownerOf: map[types.UID]*owner{}, changed: map[*owner]bool{}}
}

// run watches until ctx ends.
func (p *pods) run(ctx context.Context, c rest.Interface) {
	lw := cache.ToListWatcherWithWatchListSemantics(cache.NewFilteredListWatchFromClient(c, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = "status.phase!=Succeeded,status.phase!=Failed"
	}), c)
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, p, cache.ReflectorOptions{Name: "pods of ScaleDownPolicies"}).RunWithContext(ctx)
}

const (
	// maxManager is how many bytes are kept of who wrote a cost.
	maxManager = 64
	// mostAsked is how many bytes the constraints and the affinity of a pod may have, in protobuf. A pod with more is taken for one without.
	mostAsked = 8 << 10
)

// costField is how managedFields name the deletion cost.
var costField = &metav1.FieldsV1{Raw: []byte(`"f:` + corev1.PodDeletionCost + `"`)}

// Transformer drops what no record has. A reflector calls it for its first list alone, and an object may pass it twice.
func (p *pods) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		is, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		slim := &corev1.Pod{ObjectMeta: world.Identity(is.ObjectMeta)}
		slim.DeletionTimestamp = is.DeletionTimestamp
		c := metav1.GetControllerOfNoCopy(is)
		if c == nil || !world.Plausible(c) {
			return slim, nil
		}
		slim.OwnerReferences = []metav1.OwnerReference{*c}
		slim.Labels = world.TemplateLabels(is.Labels)
		slim.Annotations = world.Pick(is.Annotations, corev1.PodDeletionCost, stowage.ScaleDownCostAnnotation, stowage.ModeKey)
		if _, seat := is.Labels[stowage.SeatLabel]; seat {
			metav1.SetMetaDataLabel(&slim.ObjectMeta, stowage.SeatLabel, "")
		}
		for _, f := range is.ManagedFields {
			if f.FieldsV1 != nil && bytes.Contains(f.FieldsV1.Raw, costField.Raw) {
				slim.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: bounded.Text(f.Manager, maxManager), FieldsV1: costField}}
			}
		}
		slim.Spec.NodeName, slim.Status.Phase = is.Spec.NodeName, is.Status.Phase
		asks := corev1.PodSpec{NodeSelector: is.Spec.NodeSelector, Affinity: is.Spec.Affinity, TopologySpreadConstraints: is.Spec.TopologySpreadConstraints}
		if asks.Size() <= mostAsked {
			slim.Spec.NodeSelector, slim.Spec.Affinity, slim.Spec.TopologySpreadConstraints = asks.NodeSelector, asks.Affinity, asks.TopologySpreadConstraints
		}
		for _, c := range is.Status.Conditions {
			if c.Type == corev1.PodReady {
				slim.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
			}
		}
		return slim, nil
	}
}

// recordOf returns what is kept of a pod.
func recordOf(is *corev1.Pod) *pod {
	r := &pod{uid: is.UID, name: is.Name, version: is.ResourceVersion, node: unique.Make(is.Spec.NodeName).Value()}
	for _, c := range is.Status.Conditions {
		r.ready = c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	_, r.seat = is.Labels[stowage.SeatLabel]
	mark, marked := is.Annotations[stowage.ScaleDownCostAnnotation]
	text, has := is.Annotations[corev1.PodDeletionCost]
	r.marked = marked
	cost, err := strconv.ParseInt(text, 10, 32)
	switch {
	case !has:
	case marked && mark == text && err == nil && cost < 0:
		r.whose, r.cost = ours, int32(cost)
	default: // a value that is no number counts as 0, as for the ReplicaSet controller
		r.whose, r.cost = others, int32(cost)
		if len(is.ManagedFields) > 0 {
			r.by = unique.Make(is.ManagedFields[0].Manager).Value()
		}
	}
	return r
}

// put notes a pod.
func (p *pods) put(is *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(is)
	if ref == nil || is.DeletionTimestamp != nil || is.Status.Phase == corev1.PodSucceeded || is.Status.Phase == corev1.PodFailed {
		p.remove(is.UID)
		return
	}
	key := ownerKey{is.Namespace, ref.UID}
	if o := p.ownerOf[is.UID]; o != nil && o.ownerKey != key {
		p.remove(is.UID) // another owner has taken it
	}
	o := p.owners[key]
	if o == nil {
		mode := is.Annotations[stowage.ModeKey]
		if mode == "" {
			mode = is.Labels[stowage.ModeKey]
		}
		o = &owner{ownerKey: key, ref: world.RefOf(ref), labels: is.Labels, mode: mode, pods: map[types.UID]*pod{}}
		o.template = layers.Of(&corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: is.Labels}, Spec: is.Spec}, is.Namespace)
		p.owners[key] = o
	}
	r, was := recordOf(is), o.pods[is.UID]
	switch {
	case was == nil && r.node != "" && !p.synced.Load():
	case was == nil && r.node != "", was != nil && was.node == "" && r.node != "":
		r.bound = p.now()
	case was != nil:
		r.bound = was.bound
	}
	if was != nil {
		r.busy, r.writing = was.busy, was.writing
		if was.whose == ours && r.whose == nobodys {
			p.undone(r.uid)
		}
	}
	o.pods[is.UID], p.ownerOf[is.UID] = r, o
	if was == nil || was.conflicted || was.node != r.node || was.cost != r.cost || was.whose != r.whose || was.marked != r.marked || was.ready != r.ready || was.seat != r.seat {
		p.changed[o] = true
	}
}

func (p *pods) remove(uid types.UID) {
	o := p.ownerOf[uid]
	if o == nil {
		return
	}
	if o.pods[uid].node != "" {
		o.left = p.now()
	}
	delete(o.pods, uid)
	delete(p.ownerOf, uid)
	p.changed[o] = true
	if len(o.pods) == 0 {
		delete(p.owners, o.ownerKey)
	}
}

// newer reports whether one version of a pod is newer than what is known of it. A write of ours may be known before the watch shows it.
func (p *pods) newer(is *corev1.Pod) bool {
	o := p.ownerOf[is.UID]
	return o == nil || !older(is.ResourceVersion, o.pods[is.UID].version)
}

// older compares resource versions, which are numbers (KEP-5504).
func older(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }

var _ cache.TransformingStore = &pods{}

// Add implements [cache.ReflectorStore].
func (p *pods) Add(obj any) error { return p.Update(obj) }

// Update implements [cache.ReflectorStore].
func (p *pods) Update(obj any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.update(obj)
}

func (p *pods) update(obj any) error {
	slim, err := p.Transformer()(obj)
	if err != nil {
		return err
	}
	is, ok := slim.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("unexpected %T", obj)
	}
	if p.newer(is) {
		p.put(is)
	}
	return nil
}

// Delete implements [cache.ReflectorStore].
func (p *pods) Delete(obj any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(o.GetUID())
	return nil
}

// Replace implements [cache.ReflectorStore].
func (p *pods) Replace(list []any, _ string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	there := make(map[types.UID]bool, len(list))
	for _, obj := range list {
		o, err := meta.Accessor(obj)
		if err == nil {
			err = p.update(obj)
		}
		if err != nil {
			return err
		}
		there[o.GetUID()] = true
	}
	for uid := range p.ownerOf {
		if !there[uid] {
			p.remove(uid)
		}
	}
	p.synced.Store(true)
	return nil
}

// Resync implements [cache.ReflectorStore].
func (*pods) Resync() error { return nil }

// List implements [cache.Store]. A reflector does not read.
func (*pods) List() []any { return nil }

// ListKeys implements [cache.Store].
func (*pods) ListKeys() []string { return nil }

// Get implements [cache.Store].
func (*pods) Get(any) (item any, exists bool, err error) { return nil, false, nil }

// GetByKey implements [cache.Store].
func (*pods) GetByKey(string) (item any, exists bool, err error) { return nil, false, nil }
