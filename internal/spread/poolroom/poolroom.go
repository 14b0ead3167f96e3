// Package poolroom finds out how many more pods the nodes of a pool have room for. Package nodefit decides; this package reads
// the nodes from the cache and the pods of a few nodes from the API server. Nothing watches the pods of other workloads, so a look
// costs requests. All callers share what the last look has found, and one limit of looks.
package poolroom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/autoscaler/clusterautoscaler"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// nodesTried is on how many nodes of a pool room is looked for at a time. The pods of each cost one request, or two if there
// seems to be room.
const nodesTried = 10

// How many looks there are in a second, and at once, by all callers that look again. Namespaces share them. A look at a workload costs three
// requests beside those for nodes: its pods, one of them whole, and the webhook's registration. So all of them cost at most five
// requests a second for long. The first look at pods that are as they are now is free.
const (
	lookRate  = 1. / 3
	lookBurst = 40
)

// How long a pool that has no room for pods of a size is taken to have none, while nothing is seen to change there. Each look that
// finds none doubles the wait.
const (
	MinWait = 30 * time.Second
	MaxWait = 10 * time.Minute
)

// slack is how much earlier than that a caller may look that began to wait a little earlier.
const slack = 10 * time.Second

// fullBytes bounds what is remembered of pools without room. The sizes of pods are their authors' choice.
const fullBytes = 4 << 20

// Reader reads nodes and their pods.
type Reader struct {
	cached, uncached client.Reader
	clock, date      clock.PassiveClock
	limit            *fair.Limiter[string]
	full             *bounded.Cache[string, *noRoom]

	mu      sync.Mutex
	nodes   map[string]*nodeState // by name
	changed time.Time             // when a node did last
	left    int64                 // how many pods ended or went

	// NodeGroups are those of the cluster autoscaler, as the user describes them. They are set before the reader is used.
	NodeGroups []clusterautoscaler.NodeGroup

	makers       sync.Mutex // of what follows
	nodePools    []karpenter.NodePool
	nodePoolsErr error     // of the last read
	nodePoolsDue time.Time // when they are read again
}

// nodeState is what was seen of a node.
type nodeState struct {
	labels map[string]string
	// changed is when the node became able to take more pods: it became ready, or changed what it has or lets run.
	changed time.Time
	left    int64 // the number of the last pod with a seat that ended there or went
}

// noRoom is that a pool has no room for pods of a size, as far as it was looked at.
type noRoom struct {
	Checkpoint
	wait time.Duration
	// looked are the nodes that had no room. It is nil if that were all of them.
	looked map[string]bool
}

// New returns a reader that reads nodes from cached, and pods from uncached. Clock measures waits, and date judges dates that the API
// server wrote.
func New(cached, uncached client.Reader, clock, date clock.PassiveClock) *Reader {
	return &Reader{
		cached: cached, uncached: uncached, clock: clock, date: date, limit: fair.NewLimiter[string](lookRate, lookBurst),
		full: bounded.New[string, *noRoom](fullBytes, clock), nodes: map[string]*nodeState{},
	}
}

// Follow has the reader know of changes of nodes.
func (r *Reader) Follow(ctx context.Context, informers crcache.Informers) error {
	informer, err := informers.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	_, err = informer.AddEventHandler(worldcache.Handler(func(was, is *corev1.Node, _ bool) {
		if is != nil {
			r.NodeChanged(was, is)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.nodes, was.Name)
	}))
	return err
}

// NodeChanged notes a node that may take more pods than before. Of a new node, was is nil.
func (r *Reader) NodeChanged(was, is *corev1.Node) {
	if was != nil && !mayTakeMore(was, is) && maps.Equal(was.Labels, is.Labels) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = r.clock.Now()
	n := r.nodes[is.Name]
	if n == nil {
		n = &nodeState{}
		r.nodes[is.Name] = n
	}
	n.labels, n.changed = is.Labels, r.changed
}

// PodLeft notes that a pod ended on a node, or went. Its room may be free.
func (r *Reader) PodLeft(on string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[on]; n != nil {
		r.left++
		n.left = r.left
	}
}

// Checkpoint is a moment of a pool, to tell what changed since.
type Checkpoint struct {
	At    time.Time
	nodes nodeset.Set
	left  int64
}

// Checkpoint returns the present moment of a pool.
func (r *Reader) Checkpoint(nodes nodeset.Set) Checkpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Checkpoint{At: r.clock.Now(), nodes: nodes, left: r.left}
}

// NodesChanged reports whether a node of a pool may take more since a moment.
func (r *Reader) NodesChanged(m Checkpoint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.changed.Before(m.At) && r.any(m, func(n *nodeState) bool { return !n.changed.Before(m.At) })
}

// PodsLeft reports whether a pod has left a pool since a moment.
func (r *Reader) PodsLeft(m Checkpoint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left != m.left && r.any(m, func(n *nodeState) bool { return n.left > m.left })
}

// any reports whether something holds for a node of a mark's pool.
func (r *Reader) any(m Checkpoint, holds func(*nodeState) bool) bool {
	for _, n := range r.nodes {
		if holds(n) && m.nodes.Has(n.labels) {
			return true
		}
	}
	return false
}

// Changed reports whether a pool may have room that it did not have at a moment.
func (r *Reader) Changed(m Checkpoint) bool { return r.NodesChanged(m) || r.PodsLeft(m) }

// MayLook reports whether somebody may look for room for a workload of a namespace now, and counts the look if so.
func (r *Reader) MayLook(namespace string) bool { return r.limit.Allow(namespace, r.clock.Now()) }

// Nodes returns the nodes of a set. They are the cache's own.
func (r *Reader) Nodes(ctx context.Context, of nodeset.Set) ([]corev1.Node, error) {
	var nodes corev1.NodeList
	err := r.cached.List(ctx, &nodes, client.MatchingLabelsSelector{Selector: of.Selector()}, client.UnsafeDisableDeepCopy)
	return nodes.Items, err
}

// Look is one look at nodes. It lists those of a cell once.
type Look struct {
	Err    error           // of the lists so far
	ctx    context.Context //nolint:containedctx // a look ends with the call that makes it
	reader *Reader
	nodes  map[string][]corev1.Node
}

// NewLook begins a look.
func (r *Reader) NewLook(ctx context.Context) *Look {
	return &Look{ctx: ctx, reader: r, nodes: map[string][]corev1.Node{}}
}

// With is a [nodefit.Lister]. A cell grows where Karpenter made one of its nodes.
func (l *Look) With(selected nodeset.Set) nodefit.Cell {
	key := selected.String()
	nodes, known := l.nodes[key]
	if !known {
		var err error
		nodes, err = l.reader.Nodes(l.ctx, selected)
		l.nodes[key], l.Err = nodes, errors.Join(l.Err, err)
	}
	return nodefit.Cell{Set: selected, Nodes: nodes, Growing: karpenter.Made(nodes), Now: l.reader.date.Now()}
}

// Count returns how many more pods such as this one the nodes of a set have room for, at most so many.
func (r *Reader) Count(ctx context.Context, selected nodeset.Set, pod *corev1.Pod, most int64) (int64, error) {
	// 1. Has somebody looked already?
	key, now := keyOf(selected, pod), r.Checkpoint(selected) // before the nodes are read
	last, _ := r.full.Get(key)
	switch {
	case last == nil || r.Changed(last.Checkpoint):
		last = &noRoom{}
	case last.looked == nil && now.At.Sub(last.At) < last.wait-slack:
		return 0, nil
	}
	nodes, err := r.Nodes(ctx, selected)
	if err != nil {
		return 0, err
	}

	// 2. Look at some nodes; at those first that the last looks left out.
	tried, sum := map[string]bool{}, int64(0)
	unseen, seen := candidates(nodes, pod, last.looked)
	for _, node := range slices.Concat(unseen, seen) {
		if len(tried) == nodesTried {
			break
		}
		tried[node.Name] = true
		count, err := r.countOn(ctx, node, pod)
		if err != nil {
			return 0, err
		}
		if sum += count; sum >= most {
			return most, nil
		}
	}
	if sum > 0 {
		return sum, nil
	}

	// 3. There is none. It holds for longer each time that all nodes were looked at.
	found := &noRoom{Checkpoint: now, wait: last.wait}
	if len(unseen) > len(tried) {
		found.looked = tried
		maps.Copy(found.looked, last.looked)
	} else {
		found.wait = min(MaxWait, max(MinWait, 2*last.wait))
	}
	bytes := int64(len(key)) + 256
	for name := range found.looked {
		bytes += int64(len(name)) + 64
	}
	r.full.Add(key, found, bytes, 2*MaxWait)
	return 0, nil
}

// candidates returns the nodes on which a pod could run, were they empty: those that were not looked at, and those that were. Their order
// is another one each time, so that full nodes do not hide the others.
func candidates(nodes []corev1.Node, pod *corev1.Pod, looked map[string]bool) (unseen, seen []*corev1.Node) {
	for _, i := range rand.Perm(len(nodes)) {
		node := &nodes[i]
		if !nodefit.Allows(node, pod) || nodefit.Count(node, nil, pod) == 0 {
			continue
		}
		if looked[node.Name] {
			seen = append(seen, node)
		} else {
			unseen = append(unseen, node)
		}
	}
	return unseen, seen
}

// countOn returns how many more pods such as this one a node has room for. The watch cache may be behind, so a node that seems to have room is
// looked at once more.
func (r *Reader) countOn(ctx context.Context, node *corev1.Node, pod *corev1.Pod) (count int64, err error) {
	for _, cached := range []bool{true, false} {
		running, err := worldapi.PodsOn(ctx, r.uncached, node.Name, cached)
		if err != nil {
			return 0, err
		}
		if count = nodefit.Count(node, running, pod); count == 0 {
			break
		}
	}
	return count, nil
}

// keyOf names a pool, and all that [nodefit.Allows] and [nodefit.Count] ask of a pod.
func keyOf(selected nodeset.Set, pod *corev1.Pod) string {
	var affinity *corev1.NodeAffinity
	if pod.Spec.Affinity != nil {
		affinity = pod.Spec.Affinity.NodeAffinity
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	key, _ := json.Marshal([]any{selected, pod.Spec.NodeSelector, affinity, pod.Spec.Tolerations, requests}) // all of these encode
	return string(key)
}

// mayTakeMore reports whether a node may take pods now that it did not take before.
func mayTakeMore(was, is *corev1.Node) bool {
	if is.Spec.Unschedulable || len(is.Spec.Taints) > len(was.Spec.Taints) {
		return false
	}
	if !nodefit.Ready(is) {
		return false
	}
	if !nodefit.Ready(was) || was.Spec.Unschedulable || len(is.Spec.Taints) < len(was.Spec.Taints) {
		return true
	}
	for name, q := range is.Status.Allocatable {
		if before, ok := was.Status.Allocatable[name]; !ok || q.Cmp(before) > 0 {
			return true
		}
	}
	return false
}
