package inspect

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// workloads adds the workloads that have a strategy.
func (i *Inspector) workloads(ctx context.Context, s *snapshot, r *Report) error {
	if !i.Spread {
		return nil
	}
	s.addPodless()
	busy := map[types.UID]bool{}
	if err := s.findRoots(ctx, s.owners, busy); err != nil {
		return err
	}
	targets, err := i.addTargets(ctx, s)
	if err != nil {
		return err
	}
	if err := s.findRoots(ctx, targets, busy); err != nil {
		return err
	}
	// The newest revision comes first, and speaks for its workload.
	slices.SortFunc(s.owners, func(a, b *podOwner) int { return world.NewestFirst(a.Workload, b.Workload) })
	all := &groups{Inspector: i, s: s, finder: i.finder(s), scope: scope.New(s, i.Namespace), byUID: map[types.UID]*group{}}
	for _, m := range s.owners {
		if busy[m.root.UID] && !m.busy() {
			continue // an old revision
		}
		if err := all.addOwner(ctx, m); err != nil {
			return err
		}
	}
	all.addRollouts()
	if err := all.readRefusals(ctx); err != nil {
		return err
	}
	r.Workloads = append(r.Workloads, all.leftPins(r)...)
	for _, uid := range all.order {
		g := all.byUID[uid]
		all.noteClosed(ctx, g)
		r.Workloads = append(r.Workloads, g.done(r))
		if g.idle == "" && !g.leftOut {
			s.unanswered = append(s.unanswered, slices.DeleteFunc(g.unanswered, func(at time.Time) bool { return !at.After(g.edited) })...)
		}
	}
	slices.SortFunc(r.Workloads, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// findRoots fills in what is above some owners of pods, and which of the workloads have pods, or ask for some.
func (s *snapshot) findRoots(ctx context.Context, owners []*podOwner, busy map[types.UID]bool) error {
	for _, m := range owners {
		chain, err := world.Owners(ctx, s, m.Namespace, m.Ref)
		if err != nil {
			return err
		}
		m.root = chain.Root()
		for _, ref := range chain.Refs {
			m.names = append(m.names, ref.Kind+"/"+ref.Name)
		}
		busy[m.root.UID] = busy[m.root.UID] || m.busy()
	}
	return nil
}

// groups are the workloads in the making, in the order in which they came.
type groups struct {
	*Inspector
	s      *snapshot
	finder *policy.Finder
	scope  *scope.Scope
	byUID  map[types.UID]*group
	order  []types.UID
	// undivided are the owners of pods that no source divides.
	undivided []*podOwner
}

// add adds a workload.
func (all *groups) add(uid types.UID, g *group) *group {
	all.byUID[uid] = g
	all.order = append(all.order, uid)
	return g
}

// addOwner adds an owner of pods to its workload, if a policy selects it.
func (all *groups) addOwner(ctx context.Context, m *podOwner) error {
	p, err := all.finder.FindSelected(ctx, policy.Pod{Namespace: m.Namespace, Owner: m.Ref, Annotations: all.s.created[m.UID].Annotations})
	if err == nil && p == nil {
		all.undivided = append(all.undivided, m)
	}
	if err != nil || p == nil || all.scope.Excludes(m.Namespace) {
		return err
	}
	seen := m.observed()
	p = all.finder.Holding(ctx, p, seen, all.s.cells.with(ctx))
	m.policy = p
	g := all.byUID[m.root.UID]
	if g == nil {
		g = all.add(m.root.UID, &group{Workload: Workload{Namespace: m.Namespace, Kind: m.root.Kind, Name: m.root.Name}, adopted: map[string]int64{}, noMoves: all.s.noMoves})
	}
	g.about = append(g.about, m.names...)
	if g.policy != nil && !m.busy() {
		return nil // none of its revisions has pods, and one is enough
	}
	if g.state, err = all.s.PoolState(ctx, m.Namespace, m.root.UID); err != nil {
		return err
	}
	if err := g.look(ctx, all.s, all.scope, m, p); err != nil {
		return err
	}
	if p.Layout != nil && p.Nowhere() {
		g.addUndivided(m, p)
		return nil
	}
	return g.add(ctx, all, m, seen, p)
}

// adoptable reports whether Stowage gives a pod without a seat one where it runs. The labels are those of its node, or nil.
func adoptable(p *policy.Policy, pod *corev1.Pod, node map[string]string) bool {
	if p.Repair == stowage.RepairOff || node == nil || p.PoolOfNode(node) < 0 {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if seatable := owner != nil && owner.Kind != "StatefulSet" && !proven(pod); !seatable || hasGate(&pod.Spec) {
		return false
	}
	_, pinned := pinnedBy(p, pod)
	return !pinned
}

// pinnedBy returns how a pod that exists chooses its nodes itself, and whether it does.
func pinnedBy(p *policy.Policy, pod *corev1.Pod) (by string, pinned bool) {
	return placement.Pinned(placement.AsCreated(podpatch.FromPod(pod), p.Strategy, ""), p.Strategy, nodeset.Set{})
}

// noteClosed names the pools that take none of the pods that a rollout would create. Nodes are read only of a workload whose pods are not where they
// should be.
func (all *groups) noteClosed(ctx context.Context, g *group) {
	if g.Over() == nil && g.Division.Unseated == 0 && g.Former == 0 {
		return
	}
	g.noNodes, g.cordoned = g.Closed(func(pool nodeset.Set) nodefit.Nodes {
		if nodes, known := all.s.cells.nodes(ctx, pool); known {
			return nodefit.NodesOf(nodes)
		}
		return nodefit.NodesUnknown
	})
}

// outsider names a pod whose node is not in the pool of its seat, and the label that the node lacks.
func (all *groups) outsider(p *policy.Policy, seen observed.Owner) string {
	for i := range seen.Pods {
		pod := &seen.Pods[i]
		pool, known := p.PoolKeyed(pod.Pool)
		has := all.s.nodes[pod.Node]
		if !known || pod.Node == "" || has == nil || p.HasNode(pool, has) {
			continue
		}
		for _, r := range p.Nodes(pool, -1).Requirements() {
			if !nodeset.Meets(&r, has) {
				return fmt.Sprintf("such as %s on node %s, %s", pod.Name, pod.Node, lacks(&r, has))
			}
		}
	}
	return ""
}

// lacks says what a node has in place of what a requirement asks for.
func lacks(r *corev1.NodeSelectorRequirement, node map[string]string) string {
	value, has := node[r.Key]
	switch {
	case !has:
		return fmt.Sprintf("which has no label %s, and the pool has %s", r.Key, nodeset.Text(r))
	case r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1:
		return fmt.Sprintf("which has %s=%s and not %s", r.Key, value, r.Values[0])
	}
	return fmt.Sprintf("which has %s=%s, and the pool has %s", r.Key, value, nodeset.Text(r))
}

// adopting returns the pods without a seat that Stowage gives one where they run, as a division counts them.
func (all *groups) adopting(p *policy.Policy, m *podOwner) (out []division.Pod) {
	for _, pod := range m.bare {
		node := all.s.nodes[pod.Spec.NodeName]
		if !adoptable(p, pod, node) {
			continue
		}
		pool := p.PoolOfNode(node)
		seat := division.Pod{Pool: p.PoolKey(pool), Ready: podstatus.Ready(pod), OnNode: true, Node: node}
		if p.Domains() != nil {
			seat.Domain = p.DomainName(p.DomainOfNode(node))
		}
		out = append(out, seat)
	}
	return out
}

// observed returns what makes pods with those of them that have a seat, as their labels say.
func (m *podOwner) observed() observed.Owner {
	o := observed.Owner{Workload: m.Workload}
	for _, pod := range m.pods {
		o.Pods = append(o.Pods, observed.Unverified(pod, m.UID))
	}
	return o
}

// viewOf is what pods of a policy are looked at with.
func (i *Inspector) viewOf(p *policy.Policy, nodes nodeLabels) division.View {
	v := division.View{Layout: p.Layout, Preferred: p.Preferred, Nodes: func(name string) map[string]string { return nodes[name] }, Now: i.Clock.Now()}
	if nodes != nil {
		v.Gone = func(name string) bool { _, there := nodes[name]; return !there }
	}
	return v
}

// poolsOf is what each pool of a division has and should have.
func poolsOf(d *division.Division) (out []Pool) {
	for _, p := range d.Pools {
		out = append(out, Pool{
			Name: p.Name, Labels: p.Nodes.String(), Share: math.Round(p.Share*100) / 100, Target: p.Target,
			Current: p.Current, Ready: p.Ready, Pending: p.Pending, Outside: p.Outside, Removed: p.Removed, Difference: p.Current - p.Target,
		})
		for _, in := range p.Domains() {
			of := &out[len(out)-1]
			of.Domains = append(of.Domains, Domain{in.Name, in.Current, in.Target})
		}
	}
	return out
}

// poolOf returns the pool of a pod's seat, as strategies know it.
func poolOf(pod *corev1.Pod) string {
	return ledger.PoolOf(pod.Labels[stowage.PoolLabel], pod.Annotations[stowage.ClaimAnnotation])
}
