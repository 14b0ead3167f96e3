package costs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
)

// How long a gap in the layers may wait for a new pod that fills it: after a pod has left, and while a pod of the owner waits for a node. Without the wait,
// a pod would be written again for each pod that a drain replaces.
const (
	gapAfterLoss  = 10 * time.Second
	gapWhileWaits = time.Minute
)

const (
	// unknownNode is how long a plan waits for the watch of nodes to have the node of a pod.
	unknownNode = time.Second
	// freshFor is how long after a pod got its node its cost is written before those of others.
	freshFor = time.Minute
)

// plan is what is to be done for an owner, and what the statuses of its policies say of it.
type plan struct {
	winner   *policies.Policy // of those that select the owner, or nil
	shadowed []*policies.Policy
	writes   []write // in their order
	again    time.Time
	result
}

// tries is what became of the writes of an owner. It is kept from plan to plan.
type tries struct {
	turn   int64 // a number that grows, when a pod of the owner was written last
	flying int
	// probing: so many pods fail that one is tried at a time, for the rounds-th time and not before retry.
	probing bool
	rounds  int
	retry   time.Time
	// refusal is why a write was refused, and refused the pod.
	refusal string
	refused types.UID
}

// write is what a pod is to have.
type write struct {
	pod *pod
	// version is that of the pod, and was says whose its cost is in that version.
	version string
	was     whose
	// cost is zero where the pod loses the cost that Stowage wrote, and the mark.
	cost  int32
	fresh bool // the pod got its node just now
	moves bool
}

// result is what a status says of an owner.
type result struct {
	not      stowage.NotConcernedReason // empty if the policy concerns the owner
	why      string
	placed   int // pods
	written  int
	foreign  int // pods with a cost of somebody else
	example  string
	uneven   string // what the next step leaves, if it breaks the spread
	lacking  int    // pods that do not have their cost yet
	notReady int
}

// look plans for an owner. The caller holds the lock of the pods.
func (r *run) look(ctx context.Context, o *owner, now time.Time) {
	o.plan = plan{}
	if p := o.pods[o.refused]; p == nil || p.failures == 0 {
		o.refusal = ""
	}
	if o.uid == "" { // pods that have left their owners
		o.unwrite(now)
		return
	}
	of := policies.Workload{Namespace: o.namespace, NamespaceLabels: r.namespaceLabels(ctx, o.namespace), PodLabels: o.labels}
	if o.winner, o.shadowed = policies.Winner(r.sorted, &of); o.winner == nil {
		o.unwrite(now)
		return
	}
	var keys []layers.Key
	if keys, o.not, o.why = r.concerns(ctx, o); o.not == stowage.NotConcernedKarpenter {
		return
	} else if o.not != "" || !o.winner.Enforces() {
		o.unwrite(now)
	}
	if o.not == "" {
		r.assign(ctx, o, keys, now)
	}
}

// unwrite takes from all pods what Stowage wrote.
func (o *owner) unwrite(now time.Time) {
	for _, p := range o.byName() {
		if p.marked {
			o.write(write{pod: p}, now)
		}
	}
}

// write adds a write, unless the pod is being written, or waits after one that failed.
func (o *owner) write(w write, now time.Time) {
	switch p := w.pod; {
	case p.busy: // its end brings the owner back
	case now.Before(p.retry):
		o.planAgain(p.retry)
	default:
		w.version, w.was = p.version, p.whose
		o.writes = append(o.writes, w)
	}
}

// byName returns the pods in the order of their names.
func (o *owner) byName() []*pod {
	return slices.SortedFunc(maps.Values(o.pods), func(a, b *pod) int { return cmp.Compare(a.name, b.name) })
}

// concerns returns the keys to keep the pods of an owner spread over, the most important first, or why its policy leaves it alone.
func (r *run) concerns(ctx context.Context, o *owner) (keys []layers.Key, not stowage.NotConcernedReason, why string) {
	seats := false
	for _, p := range o.pods {
		seats = seats || p.seat
		if strings.HasPrefix(p.by, "karpenter") {
			return nil, stowage.NotConcernedKarpenter, "Karpenter's feature gate PodDeletionCostManagement writes the deletion costs of its pods"
		}
	}
	if keys, not, why = o.winner.Keys(o.ref, &o.template, seats); not != "" {
		return nil, not, why
	}
	marked := &podpatch.Pod{}
	if o.mode != "" {
		marked.Metadata.Annotations = podpatch.Strings{stowage.ModeKey: o.mode}
	}
	if a, err := r.Scope.Of(ctx, o.namespace, marked); a.Mode != stowage.ModeEnforce {
		if err != nil {
			a.LeftAlone = err.Error()
		}
		return nil, stowage.NotConcernedMode, cmp.Or(a.LeftAlone, a.Text())
	}
	values := map[string]int{}
	for _, k := range keys {
		values[k.Name] = r.nodes.count(k.Name)
	}
	layers.Sort(keys, values)
	return keys, "", ""
}

// assign plans the costs of an owner's pods, and says what the next step down leaves.
func (r *run) assign(ctx context.Context, o *owner, keys []layers.Key, now time.Time) {
	var placed, ranked []*pod // ranked have a layer, or may have one
	var list []layers.Pod
	values := map[*pod]string{} // of the first key
	waits := false
	for _, p := range o.byName() {
		if p.node == "" {
			waits = true
			continue
		}
		at := r.domainsOf(ctx, p.node, keys)
		if at == nil {
			o.planAgain(now.Add(unknownNode))
			continue
		}
		placed, values[p] = append(placed, p), at[0]
		if p.whose == others {
			o.noteForeign(p)
		}
		if p.whose != others || p.cost >= 0 { // a lower one goes before or after ours, whatever theirs are
			ranked, list = append(ranked, p), append(list, p.layered(at))
		}
	}
	o.placed = len(placed)
	planned := map[*pod]bool{}
	for _, w := range layers.Plan(list) {
		p := ranked[w.Pod]
		planned[p] = true
		if at := o.gapUntil(waits); w.Moves && now.Before(at) {
			o.planAgain(at)
			continue
		}
		if wait := r.contests.Wait(p.uid, now); wait > 0 {
			o.noteForeign(p)
			o.planAgain(now.Add(wait))
			continue
		}
		if o.lacking++; o.winner.Enforces() {
			o.write(write{pod: p, cost: int32(-w.Layer), fresh: now.Sub(p.bound) < freshFor, moves: w.Moves}, now)
		}
	}
	slices.Reverse(o.writes) // the highest layer first: a step that comes meanwhile takes those
	for _, p := range ranked {
		if !planned[p] && p.whose == ours {
			o.written++
		}
	}
	o.nextStep(placed, values, &keys[0])
}

// layered is a pod as the rule sees it: with the layer that it has, or is getting.
func (p *pod) layered(values []string) layers.Pod {
	l := layers.Pod{Name: p.name, Values: values}
	switch {
	case p.busy && p.writing < 0:
		l.Layer = int(-p.writing)
	case p.whose == ours:
		l.Layer = int(-p.cost)
	case p.whose == others:
		l.Stays = true
	}
	return l
}

// gapUntil is when a gap is filled by a pod above it, if no new pod has filled it. Waits says that a pod of the owner waits for a node.
func (o *owner) gapUntil(waits bool) time.Time {
	if waits {
		return o.left.Add(gapWhileWaits)
	}
	return o.left.Add(gapAfterLoss)
}

func (o *owner) planAgain(at time.Time) {
	if o.again.IsZero() || at.Before(o.again) {
		o.again = at
	}
}

// noteForeign notes a pod whose cost somebody else has written.
func (o *owner) noteForeign(p *pod) {
	o.foreign++
	if o.example == "" {
		o.example = fmt.Sprintf("pod %s/%s has %d", o.namespace, p.name, p.cost)
		if p.by != "" {
			o.example += " from " + p.by
		}
	}
}

// nextStep says whether a step down to half leaves the pods spread over the first key as well as they allow. It goes by the costs that they have now.
func (o *owner) nextStep(placed []*pod, values map[*pod]string, key *layers.Key) {
	var ready []*pod
	var ranked []layers.Ranked
	before := map[string]int{}
	for _, p := range placed {
		if !p.ready {
			o.notReady++
			continue
		}
		ready, ranked = append(ready, p), append(ranked, layers.Ranked{Node: p.node, Cost: p.cost})
		before[values[p]]++
	}
	after := map[string]int{}
	for value := range before {
		after[value] = 0
	}
	left := len(ranked) / 2
	for _, i := range layers.Step(ranked, left) {
		after[values[ready[i]]]++
	}
	if layers.Skew(after) <= max(int(key.MaxSkew), layers.LeastSkew(before, left)) {
		return
	}
	var texts []string
	for _, value := range slices.Sorted(maps.Keys(after))[:min(len(after), mostDomainsTold)] {
		texts = append(texts, fmt.Sprintf("%s %d", cmp.Or(value, "none"), after[value]))
	}
	if len(after) > mostDomainsTold {
		texts = append(texts, fmt.Sprintf("%d more", len(after)-mostDomainsTold))
	}
	o.uneven = fmt.Sprintf("%s %s/%s from %d to %d ready pods: %s", o.ref.Kind, o.namespace, o.ref.Name, len(ranked), left, strings.Join(texts, ", "))
}

// mostDomainsTold is how many domains a status names.
const mostDomainsTold = 8

// domainsOf returns what a node has for each key: "" if it lacks the label. It returns nil if the node is not known.
func (r *run) domainsOf(ctx context.Context, name string, keys []layers.Key) []string {
	var node corev1.Node
	if r.Cached.Get(ctx, client.ObjectKey{Name: name}, &node, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	values := make([]string, len(keys))
	for i, k := range keys {
		values[i] = node.Labels[k.Name]
	}
	return values
}

// namespaceLabels returns the labels of a namespace, or nil if it is not known.
func (r *run) namespaceLabels(ctx context.Context, name string) map[string]string {
	var ns corev1.Namespace
	if r.Cached.Get(ctx, client.ObjectKey{Name: name}, &ns, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return ns.Labels
}
