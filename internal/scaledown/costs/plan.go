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
	winner *policies.Policy // of those that select the owner, or nil
	others []*policies.Policy
	writes []write // in their order
	again  time.Time
	result

	// What became of earlier writes is kept from plan to plan.
	tries
}

// tries is what became of the writes of an owner.
type tries struct {
	failures int
	retry    time.Time
	refusal  string
	turn     int64 // a number that grows, when a pod of the owner was written last
}

// write is what a pod is to have.
type write struct {
	pod *pod
	// cost is zero where the pod loses the cost that Stowage wrote, and the mark.
	cost  int32
	fresh bool // the pod got its node just now
	moves bool
}

// result is what a status says of an owner.
type result struct {
	not        stowage.NotConcernedReason // empty if the policy concerns the owner
	why        string
	pods       int
	written    int
	others     int // pods with a cost of somebody else
	example    string
	uneven     string // what the next step leaves, if it breaks the spread
	disturbed  bool   // by the costs of others
	unfinished bool
}

// look plans for an owner. The caller holds the lock of the pods.
func (r *run) look(ctx context.Context, o *owner, now time.Time) {
	of := policies.Workload{Namespace: o.namespace, NamespaceLabels: r.namespaceLabels(ctx, o.namespace), PodLabels: o.labels}
	p := plan{tries: o.tries}
	p.winner, p.others = policies.Winner(r.sorted, &of)
	o.plan = p
	if p.winner == nil {
		o.unwrite()
		return
	}
	var keys []layers.Key
	if keys, o.not, o.why = r.concerns(ctx, o); o.not != "" {
		o.unwrite()
		return
	}
	if !p.winner.Enforces() {
		o.unwrite()
	}
	r.write(ctx, o, keys, now)
}

// unwrite takes from all pods what Stowage wrote.
func (o *owner) unwrite() {
	for _, p := range o.pods {
		if p.marked && !p.busy && !p.conflicted {
			o.writes = append(o.writes, write{pod: p})
		}
	}
	slices.SortFunc(o.writes, func(a, b write) int { return cmp.Compare(a.pod.name, b.pod.name) })
}

// concerns returns the keys to keep the pods of an owner spread over, the most important first, or why its policy leaves it alone.
func (r *run) concerns(ctx context.Context, o *owner) (keys []layers.Key, not stowage.NotConcernedReason, why string) {
	seats := false
	for _, p := range o.pods {
		seats = seats || p.seat
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
		values[k.Name] = r.valuesOf(ctx, k.Name)
	}
	layers.Sort(keys, values)
	return keys, "", ""
}

// write plans the costs of an owner's pods, and says what the next step down leaves.
func (r *run) write(ctx context.Context, o *owner, keys []layers.Key, now time.Time) {
	var placed []*pod
	var list []layers.Pod
	waits := false
	for _, p := range slices.SortedFunc(maps.Values(o.pods), func(a, b *pod) int { return cmp.Compare(a.name, b.name) }) {
		if p.node == "" {
			waits = true
			continue
		}
		values := r.domainsOf(ctx, p.node, keys)
		if values == nil {
			o.planAgain(now.Add(unknownNode))
			continue
		}
		l := layers.Pod{Name: p.name, Values: values}
		switch {
		case p.busy && p.writing < 0:
			l.Layer = int(-p.writing)
		case p.whose == ours:
			l.Layer = int(-p.cost)
		case p.whose == others && p.cost >= 0:
			l.Stays = true
		case p.whose == others:
			o.noteOther(p) // it goes before or after ours, whatever theirs are
			continue
		}
		if l.Stays {
			o.noteOther(p)
		}
		placed, list = append(placed, p), append(list, l)
	}
	o.result.pods = len(placed)
	planned := map[*pod]bool{}
	for _, w := range layers.Plan(list) {
		p := placed[w.Pod]
		planned[p] = true
		if at := o.left.Add(gapAfterLoss); w.Moves && now.Before(at) {
			o.planAgain(at)
			continue
		} else if at := o.left.Add(gapWhileWaits); w.Moves && waits && now.Before(at) {
			o.planAgain(at)
			continue
		}
		wait := r.contests.Wait(p.uid, now)
		if wait > 0 {
			o.noteOther(p)
			o.planAgain(now.Add(wait))
			continue
		}
		if o.unfinished = true; o.winner.Enforces() && !p.busy && !p.conflicted {
			o.writes = append(o.writes, write{pod: p, cost: int32(-w.Layer), fresh: now.Sub(p.bound) < freshFor, moves: w.Moves})
		}
	}
	slices.Reverse(o.writes) // the highest layer first: a step that comes meanwhile takes those
	for _, p := range placed {
		if !planned[p] && p.whose == ours {
			o.written++
		}
	}
	o.nextStep(placed, list, keys[0])
}

func (o *owner) planAgain(at time.Time) {
	if o.again.IsZero() || at.Before(o.again) {
		o.again = at
	}
}

// noteOther notes a pod whose cost somebody else has written.
func (o *owner) noteOther(p *pod) {
	o.result.others++
	if o.example == "" {
		o.example = fmt.Sprintf("pod %s/%s has %d", o.namespace, p.name, p.cost)
		if p.by != "" {
			o.example += " from " + p.by
		}
	}
}

// nextStep says whether a step down to half leaves the pods spread over the first key as well as they allow. It goes by the costs that they have now.
func (o *owner) nextStep(placed []*pod, list []layers.Pod, key layers.Key) {
	var ranked []layers.Ranked
	var values []string
	before := map[string]int{}
	for i, p := range placed {
		if p.ready {
			ranked = append(ranked, layers.Ranked{Node: p.node, Cost: p.cost})
			values = append(values, list[i].Values[0])
			before[list[i].Values[0]]++
		}
	}
	after := map[string]int{}
	for value := range before {
		after[value] = 0
	}
	left := len(ranked) / 2
	for _, i := range layers.Step(ranked, left) {
		after[values[i]]++
	}
	if layers.Skew(after) <= max(int(key.MaxSkew), layers.LeastSkew(before, left)) {
		return
	}
	o.disturbed = o.result.others > 0 && !o.unfinished
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

// mostCounted is how many keys are remembered with their values.
const mostCounted = 1000

// valuesOf returns how many values the nodes have for a key. All nodes without the label count as one.
func (r *run) valuesOf(ctx context.Context, key string) int {
	if n, known := r.values[key]; known {
		return n
	}
	var nodes corev1.NodeList
	if err := r.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return 0
	}
	seen := map[string]bool{}
	for i := range nodes.Items {
		seen[nodes.Items[i].Labels[key]] = true
	}
	if len(r.values) >= mostCounted {
		clear(r.values)
	}
	r.values[key] = len(seen)
	return len(seen)
}

// namespaceLabels returns the labels of a namespace, or nil if it is not known.
func (r *run) namespaceLabels(ctx context.Context, name string) map[string]string {
	var ns corev1.Namespace
	if r.Cached.Get(ctx, client.ObjectKey{Name: name}, &ns, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	if ns.Labels == nil {
		return map[string]string{}
	}
	return ns.Labels
}
