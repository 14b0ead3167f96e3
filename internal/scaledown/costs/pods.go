package costs

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podstatus"
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

// pod is what is kept of a pod that has not ended: some 250 bytes, and 150 in maps.
type pod struct {
	uid     types.UID
	name    string
	version string
	facts
	by string // who wrote a cost of others, if that is known
	// bound is when the pod was seen to get its node. It is zero if the pod had a node when it was seen first.
	bound time.Time
	// busy: the pod is being written, and gets this cost.
	busy    bool
	writing int32
	// failures are those in a row, and retry is when the pod may be written again.
	failures int
	retry    time.Time
}

// facts are what plans depend on.
type facts struct {
	node        string
	ready, seat bool
	carried
}

// carried is the cost that a pod carries. Marked: it has the mark of a cost that Stowage wrote, whatever its cost is now.
type carried struct {
	cost   int32
	whose  whose
	marked bool
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
	newest   newest
	pods     map[types.UID]*pod
	left     time.Time // when the last pod has left

	tries
	plan
}

// newest is the pod that labels, mode and template are of: the one created last. Pods that were made from one template have them in common.
type newest struct {
	created int64 // in seconds since 1970
	uid     types.UID
}

func (n newest) before(is *corev1.Pod) bool {
	created := is.CreationTimestamp.Unix()
	return n.created < created || n.created == created && n.uid <= is.UID
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
var costField = metav1.NewFieldsV1(`"f:` + corev1.PodDeletionCost + `"`)

// Transformer drops what no record has. A reflector calls it for its first list alone, and an object may pass it twice.
func (p *pods) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		is, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		slim := &corev1.Pod{ObjectMeta: world.Identity(is.ObjectMeta)}
		slim.DeletionTimestamp, slim.CreationTimestamp = is.DeletionTimestamp, is.CreationTimestamp
		c := metav1.GetControllerOfNoCopy(is)
		if c == nil || !world.Plausible(c) {
			slim.Annotations = world.Pick(is.Annotations, corev1.PodDeletionCost, stowage.ScaleDownCostAnnotation)
			return slim, nil
		}
		slim.OwnerReferences = []metav1.OwnerReference{*c}
		slim.Labels = world.TemplateLabels(is.Labels)
		slim.Annotations = world.Pick(is.Annotations, corev1.PodDeletionCost, stowage.ScaleDownCostAnnotation, stowage.ModeKey)
		if seat, has := is.Labels[stowage.SeatLabel]; has && slim.Labels[stowage.SeatLabel] != seat { // of too many labels it was dropped
			metav1.SetMetaDataLabel(&slim.ObjectMeta, stowage.SeatLabel, seat)
		}
		for _, f := range is.ManagedFields {
			if f.FieldsV1 != nil && bytes.Contains(f.FieldsV1.GetRawBytes(), costField.GetRawBytes()) {
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
	r := &pod{uid: is.UID, name: is.Name, version: is.ResourceVersion}
	r.node = unique.Make(is.Spec.NodeName).Value()
	r.ready = podstatus.Ready(is)
	_, r.seat = is.Labels[stowage.SeatLabel]
	_, r.marked = is.Annotations[stowage.ScaleDownCostAnnotation]
	if layer, own := layers.Written(is.Annotations); own {
		r.whose, r.cost = ours, int32(-layer)
	} else if text, has := is.Annotations[corev1.PodDeletionCost]; has {
		cost, _ := strconv.ParseInt(text, 10, 32) // a value that is no number counts as 0, as for the ReplicaSet controller
		r.whose, r.cost = others, int32(cost)
		if len(is.ManagedFields) > 0 {
			r.by = unique.Make(is.ManagedFields[0].Manager).Value()
		}
	}
	return r
}

// put notes a pod.
func (p *pods) put(is *corev1.Pod) {
	r, ref := recordOf(is), metav1.GetControllerOfNoCopy(is)
	switch {
	case !podstatus.Active(is), ref == nil && !r.marked:
		p.remove(is.UID)
		return
	case ref == nil: // it has left its owner, with a cost
		ref = &metav1.OwnerReference{}
	}
	key := ownerKey{is.Namespace, ref.UID}
	if o := p.ownerOf[is.UID]; o != nil && o.ownerKey != key {
		p.remove(is.UID) // another owner has taken it
	}
	o := p.owners[key]
	if o == nil {
		o = &owner{ownerKey: key, ref: world.RefOf(ref), pods: map[types.UID]*pod{}}
		p.owners[key] = o
	}
	reshaped, was := o.follow(is), o.pods[is.UID]
	if was != nil {
		p.succeed(was, r)
	} else if r.node != "" && p.synced.Load() {
		r.bound = p.now()
	}
	o.pods[is.UID], p.ownerOf[is.UID] = r, o
	if reshaped || was == nil || was.facts != r.facts || was.retry != r.retry {
		p.changed[o] = true
	}
}

// follow takes labels, mode and template from a pod, if it is the newest. It reports whether they are others now.
func (o *owner) follow(is *corev1.Pod) bool {
	if !o.newest.before(is) {
		return false
	}
	mode := cmp.Or(is.Annotations[stowage.ModeKey], is.Labels[stowage.ModeKey])
	same := o.newest.uid == is.UID && mode == o.mode && maps.Equal(is.Labels, o.labels)
	if o.newest = (newest{is.CreationTimestamp.Unix(), is.UID}); same {
		return false
	}
	template := layers.Of(&corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: is.Labels}, Spec: is.Spec}, is.Namespace)
	changed := mode != o.mode || !maps.Equal(is.Labels, o.labels) || !template.Equal(&o.template)
	o.labels, o.mode, o.template = is.Labels, mode, template
	return changed
}

// succeed gives a new version of a pod what is known of the one before it.
func (p *pods) succeed(was, is *pod) {
	is.busy, is.writing, is.bound = was.busy, was.writing, was.bound
	if was.node == "" && is.node != "" {
		is.bound = p.now()
	}
	if was.failures > 0 && was.carried == is.carried {
		is.failures, is.retry = was.failures, was.retry
	}
	if removing := was.busy && was.writing == 0; was.marked && is.whose == nobodys && !removing {
		p.undone(is.uid)
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
	if o == nil {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(is.ResourceVersion, o.pods[is.UID].version)
	return err != nil || order >= 0
}

// clear forgets all pods. Their watch has ended.
func (p *pods) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced.Store(false)
	clear(p.owners)
	clear(p.ownerOf)
	clear(p.changed)
}

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
