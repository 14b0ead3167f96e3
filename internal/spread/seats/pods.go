package seats

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/world"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch,roleName=stowage-spread

// newRecord returns what is kept of a pod. It returns false if the pod has no seat.
func newRecord(key ledger.Key, pod *corev1.Pod) (observed.Pod, bool) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !world.Plausible(owner) {
		return observed.Pod{}, false
	}
	carried, ok := ledger.SeatOf(key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations)
	if !ok {
		return observed.Pod{}, false
	}
	return observed.New(pod, owner.UID, carried), true
}

// heldBy is a pod as a book sees it.
func heldBy(p *observed.Pod) ledger.Pod {
	return ledger.Pod{Seat: p.Seat, ID: p.ID, Active: p.Active, Version: p.Version}
}

// Pods keeps a record of each pod with a seat, from a watch. It is the store that the watch's reflector writes to. So
// nothing else of a pod is kept, and its version never runs ahead of what its listeners know.
type Pods struct {
	Key ledger.Key
	// Seen is called with each change, in the order of the watch: a pod and what was known of it before, or nil. If
	// the pod is gone, is is nil.
	Seen func(was, is *observed.Pod)

	version atomic.Uint64
	reached atomic.Int64 // seconds since 1970
	given   atomic.Int64 // pods that came with a seat of the webhook's, after the first list
	synced  atomic.Bool
	mu      sync.RWMutex
	byOwner map[ledger.OwnerKey]*ownerPods
	owners  map[types.UID]*ownerPods // of each pod
	// formerly is where pods of owners that have none any more had nodes, in the order of lastOwners.
	formerly   map[ledger.OwnerKey][]ledger.Cell
	lastOwners []ledger.OwnerKey
	// unwatched are the owners of kinds that the cache does not watch, by namespace.
	unwatched map[string]map[types.UID]ledger.Owner
}

// ownerPods are the pods of one owner.
type ownerPods struct {
	owner   ledger.Owner
	pods    map[types.UID]observed.Pod
	waiting int           // pods that are [observed.Pod.Waiting]
	claims  int           // pods with volumes
	had     []ledger.Cell // in which pods of the owner have had nodes
}

// note notes in which cell a pod has a node.
func (o *ownerPods) note(is *observed.Pod) {
	if at := (ledger.Cell{Pool: is.Pool, Domain: is.Domain}); is.Node != "" && len(o.had) < mostHad && !slices.Contains(o.had, at) {
		o.had = append(o.had, at)
	}
}

// mostFormer is how many owners without pods are remembered.
const mostFormer = 10000

// keepFormer remembers where pods of an owner had nodes whose last pod has gone.
func (p *Pods) keepFormer(o *ownerPods) {
	key := o.owner.Key()
	if len(o.had) == 0 {
		return
	}
	if p.formerly == nil {
		p.formerly = map[ledger.OwnerKey][]ledger.Cell{}
	}
	if _, known := p.formerly[key]; !known {
		if p.lastOwners = append(p.lastOwners, key); len(p.lastOwners) > mostFormer {
			delete(p.formerly, p.lastOwners[0])
			p.lastOwners = p.lastOwners[1:]
		}
	}
	p.formerly[key] = o.had
}

// mostHad is how many cells an owner's pods may have had nodes in that are remembered. A policy has at most as many.
const mostHad = 128

// replace changes what is known of a pod. Either may be nil.
func (o *ownerPods) replace(was, is *observed.Pod) {
	if was != nil && was.Waiting() {
		o.waiting--
	}
	if was != nil && len(was.Claims) > 0 {
		o.claims--
	}
	if is == nil {
		delete(o.pods, was.UID)
		return
	}
	if is.Waiting() {
		o.waiting++
	}
	if len(is.Claims) > 0 {
		o.claims++
	}
	o.pods[is.UID] = *is
	o.note(is)
}

var (
	_ cache.TransformingStore      = &Pods{}
	_ cache.ReflectorBookmarkStore = &Pods{}
)

// Version is the highest resource version whose changes were all passed on.
func (p *Pods) Version() uint64 { return p.version.Load() }

// Reached returns when the last pod was created to which the webhook gave a seat, or the zero time. It is not earlier
// if that pod is gone.
func (p *Pods) Reached() time.Time {
	if s := p.reached.Load(); s > 0 {
		return time.Unix(s, 0)
	}
	return time.Time{}
}

// Given returns a number that grows whenever a pod comes to which the webhook gave a seat.
func (p *Pods) Given() int64 { return p.given.Load() }

// HasSynced reports whether the first list is in.
func (p *Pods) HasSynced() bool { return p.synced.Load() }

// Of returns the records of an owner's pods.
func (p *Pods) Of(owner ledger.OwnerKey) []observed.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	o := p.byOwner[owner]
	if o == nil {
		return nil
	}
	return slices.Collect(maps.Values(o.pods))
}

// Had reports whether a pod of an owner has had a node in a cell.
func (p *Pods) Had(owner ledger.OwnerKey, at ledger.Cell) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	o := p.byOwner[owner]
	if o == nil {
		return slices.Contains(p.formerly[owner], at)
	}
	return slices.Contains(o.had, at)
}

// NameOf returns the name of a live pod of an owner, or "" if there is none.
func (p *Pods) NameOf(namespace string, owner types.UID) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if o := p.byOwner[ledger.OwnerKey{Namespace: namespace, UID: owner}]; o != nil {
		for _, r := range o.pods {
			if r.Active {
				return r.Name
			}
		}
	}
	return ""
}

// Owner returns an owner of pods.
func (p *Pods) Owner(key ledger.OwnerKey) (ledger.Owner, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	o := p.byOwner[key]
	if o == nil {
		return ledger.Owner{}, false
	}
	return o.owner, true
}

// Owners returns the owners of all pods.
func (p *Pods) Owners() []ledger.Owner {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := make([]ledger.Owner, 0, len(p.byOwner))
	for _, o := range p.byOwner {
		out = append(out, o.owner)
	}
	return out
}

// ownersUnwatched returns the owners of pods in a namespace that are of kinds that the cache does not watch.
func (p *Pods) ownersUnwatched(namespace string) []ledger.Owner {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Collect(maps.Values(p.unwatched[namespace]))
}

// OwnersOn returns the owners that have pods on some nodes.
func (p *Pods) OwnersOn(nodes map[string]bool) (out []ledger.OwnerKey) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for key, o := range p.byOwner {
		for _, pod := range o.pods {
			if nodes[pod.Node] {
				out = append(out, key)
				break
			}
		}
	}
	return out
}

// Waiting returns the owners of pods for which the scheduler found no node.
func (p *Pods) Waiting() []ledger.Owner {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []ledger.Owner
	for _, o := range p.byOwner {
		if o.waiting > 0 {
			out = append(out, o.owner)
		}
	}
	return out
}

// Add implements cache.ReflectorStore.
func (p *Pods) Add(obj any) error { return p.Update(obj) }

// Update implements cache.ReflectorStore.
func (p *Pods) Update(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("unexpected %T", obj)
	}
	p.put(pod)
	p.passed(ledger.ParseVersion(pod.ResourceVersion))
	return nil
}

func (p *Pods) put(pod *corev1.Pod) {
	r, ok := newRecord(p.Key, pod)
	if !ok {
		p.remove(pod.UID) // its seat is not genuine, or not any more
		return
	}
	key := ledger.OwnerKey{Namespace: r.Namespace, UID: r.Owner}
	if r.Origin.Admitted() && r.Created > p.reached.Load() {
		p.reached.Store(r.Created) // only the reflector's goroutine stores
	}
	p.mu.Lock()
	if before := p.owners[r.UID]; before != nil && before.owner.Key() != key {
		p.mu.Unlock()
		p.remove(r.UID) // it was given to another owner
		p.mu.Lock()
	}
	o := p.byOwner[key]
	if o == nil {
		ref := metav1.GetControllerOfNoCopy(pod)
		o = &ownerPods{
			owner: ledger.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: pod.Namespace, Name: ref.Name, UID: ref.UID},
			pods:  map[types.UID]observed.Pod{},
			had:   slices.Clone(p.formerly[key]),
		}
		p.byOwner[key] = o
		if !Ref(o.owner).Watched() {
			if p.unwatched[key.Namespace] == nil {
				p.unwatched[key.Namespace] = map[types.UID]ledger.Owner{}
			}
			p.unwatched[key.Namespace][key.UID] = o.owner
		}
	}
	var was *observed.Pod
	if before, ok := o.pods[r.UID]; ok {
		was = &before
	}
	o.replace(was, &r)
	p.owners[r.UID] = o
	p.mu.Unlock()
	if was == nil && r.Origin.Admitted() && p.synced.Load() {
		p.given.Add(1)
	}
	p.Seen(was, &r)
}

// Delete implements cache.ReflectorStore.
func (p *Pods) Delete(obj any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	p.remove(o.GetUID())
	p.passed(ledger.ParseVersion(o.GetResourceVersion()))
	return nil
}

func (p *Pods) remove(uid types.UID) {
	p.mu.Lock()
	o := p.owners[uid]
	var r observed.Pod
	if o != nil {
		r = o.pods[uid]
		delete(p.owners, uid)
		o.replace(&r, nil)
		if len(o.pods) == 0 {
			delete(p.byOwner, o.owner.Key())
			p.keepFormer(o)
			if of := p.unwatched[o.owner.Namespace]; of != nil {
				if delete(of, o.owner.UID); len(of) == 0 {
					delete(p.unwatched, o.owner.Namespace)
				}
			}
		}
	}
	p.mu.Unlock()
	if o != nil {
		p.Seen(&r, nil)
	}
}

// Replace implements cache.ReflectorStore.
func (p *Pods) Replace(list []any, version string) error {
	there := make(map[types.UID]bool, len(list))
	for _, obj := range list {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("unexpected %T", obj)
		}
		there[pod.UID] = true
		p.put(pod)
	}
	p.mu.RLock()
	var missing []types.UID
	for uid := range p.owners {
		if !there[uid] {
			missing = append(missing, uid)
		}
	}
	p.mu.RUnlock()
	for _, uid := range missing {
		p.remove(uid)
	}
	p.passed(ledger.ParseVersion(version))
	p.synced.Store(true)
	return nil
}

// Resync implements cache.ReflectorStore.
func (p *Pods) Resync() error { return nil }

// Bookmark implements cache.ReflectorBookmarkStore.
func (p *Pods) Bookmark(version string) error {
	p.passed(ledger.ParseVersion(version))
	return nil
}

// passed notes a version. Only the reflector's goroutine calls it.
func (p *Pods) passed(version uint64) {
	if version > p.version.Load() {
		p.version.Store(version)
	}
}
