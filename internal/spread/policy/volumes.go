package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// A pod whose claims are bound can run where its volumes are, and nowhere else. Nothing is recorded of that: the PersistentVolumes say it.

var (
	// ErrVolumesUnknown means that the watch of volumes has just begun.
	ErrVolumesUnknown = errors.New("where its volumes can be is not known yet")
	errManyClaims     = fmt.Errorf("it has over %d claims", observed.MostClaims)
)

// BoundVolumes returns the node selector terms of the volumes that are bound to some claims, and whether any is. A volume that may be anywhere has
// none. Known is false where nobody can tell where one of them is.
func (f *Finder) BoundVolumes(ctx context.Context, namespace string, claims []string) (terms [][]corev1.NodeSelectorTerm, bound, known bool, err error) {
	switch {
	case len(claims) == 0:
		return nil, false, true, nil
	case len(claims) > observed.MostClaims:
		return nil, false, false, errManyClaims
	}
	volumes, synced, err := f.World.Volumes(ctx, namespace, claims)
	switch {
	case err != nil:
		return nil, false, false, fmt.Errorf("%w: %w", ErrVolumesUnknown, err)
	case !synced:
		return nil, false, false, ErrVolumesUnknown
	}
	terms, known = nodefit.TermsOf(volumes)
	return terms, len(volumes) > 0, known, nil
}

// Reach is where a pod with bound volumes can run, by pool and domain.
type Reach struct {
	// Volumes reports in which cells nodes reach the volumes.
	Volumes [][]bool
	// Takes reports in which of these cells one node also takes the pod when it is empty. It is nil if no cell has such a node, or if that is not known.
	Takes [][]bool
	// MayTake is Takes with the cells that have no nodes yet.
	MayTake [][]bool
	// Unknown says that nobody can tell where one of the volumes is. Then it counts as out of reach.
	Unknown bool
}

// Cells are the cells for the pod. Where no node takes it, it waits for one that reaches its volumes.
func (r *Reach) Cells() [][]bool {
	if r.Takes != nil {
		return r.MayTake
	}
	return r.Volumes
}

// OfOrdinal returns the seat of a pod with an ordinal of its own, by its rank: see [layout.Layout.WithinOrdinal]. A pod that cannot have its own cell
// gets a cell with a node that takes it.
func (r *Reach) OfOrdinal(p *Policy, rank int64) (seat sequence.Seat, domain int, ok bool) {
	seat, domain, ok = p.WithinOrdinal(rank, r.Cells())
	if own, err := p.OfOrdinal(rank); err == nil && ok && seat != own && r.Takes != nil {
		return p.WithinOrdinal(rank, r.Takes)
	}
	return seat, domain, ok
}

// Nowhere reports whether the volumes are out of reach of all cells.
func (r *Reach) Nowhere() bool { return !some(r.Volumes) }

func some(cells [][]bool) bool {
	return slices.ContainsFunc(cells, func(of []bool) bool { return slices.Contains(of, true) })
}

// Bound is a pod whose claims may be bound.
type Bound struct {
	Namespace string
	Claims    []string
	// Pool is the key of the pool in which the pod has a seat, or empty.
	Pool string
	// Shape returns what [observed.ShapeOf] has of the pod. It is nil, or returns nil, where that is not known. Then its volumes alone are asked for.
	// Most pods have no bound volume, and need none.
	Shape func() *corev1.Pod
	// Siblings returns the pods of its owner. It is nil where they are not known.
	Siblings func() []observed.Pod
}

// BoundPod returns what is asked of a pod that was read.
func BoundPod(pod *corev1.Pod) Bound {
	pool := ledger.PoolOf(pod.Labels[stowage.PoolLabel], pod.Annotations[stowage.ClaimAnnotation])
	return Bound{Namespace: pod.Namespace, Claims: podstatus.VolumeClaims(&pod.Spec), Pool: pool, Shape: func() *corev1.Pod { return observed.ShapeOf(pod) }}
}

// BoundRecord returns what is asked of a pod that was observed, with the pods of its owner.
func BoundRecord(rec *observed.Pod, siblings []observed.Pod) Bound {
	return Bound{Namespace: rec.Namespace, Claims: rec.Claims, Pool: rec.Pool, Shape: rec.Shape, Siblings: func() []observed.Pod { return siblings }}
}

// evidence is [nodefit.RanAlike] if a sibling of a pod has a node in a cell that reaches the pod's volumes.
func (p *Policy) evidence(b *Bound, at sequence.Cell, volumes [][]corev1.NodeSelectorTerm, nodes []corev1.Node) nodefit.Evidence {
	if b.Siblings == nil {
		return nodefit.NoEvidence
	}
	on, siblings := map[string]bool{}, b.Siblings()
	for i := range siblings {
		pod := &siblings[i]
		if cell, known := p.CellNamed(pod.Pool, pod.Domain); known && cell == at && pod.Active && pod.Node != "" {
			on[pod.Node] = true
		}
	}
	for i := range nodes {
		outside := func(terms []corev1.NodeSelectorTerm) bool { return !nodefit.InReach(terms, &nodes[i]) }
		if on[nodes[i].Name] && !slices.ContainsFunc(volumes, outside) {
			return nodefit.RanAlike
		}
	}
	return nodefit.NoEvidence
}

// Reached returns where a pod can run, or nil where its volumes leave all cells open.
func (f *Finder) Reached(ctx context.Context, p *Policy, b Bound, nodes nodefit.Lister) (*Reach, error) {
	terms, bound, known, err := f.BoundVolumes(ctx, b.Namespace, b.Claims)
	if err != nil || !bound {
		return nil, err // they are made where the pod goes
	}
	if !known {
		nowhere, _ := p.Reached(func(sequence.Cell) bool { return false })
		return &Reach{Volumes: nowhere, Unknown: true}, nil
	}
	return p.ReachOf(terms, b, nodes), nil
}

// mostListed is how many nodes are listed for one pod. The last list may exceed it, and the nodes of further cells are not listed: these may take the pod.
const mostListed = 10_000

// listingOnce returns a lister that lists the nodes of each set once, and none after mostListed. It is nil where nodes are not known.
func listingOnce(list nodefit.Lister) nodefit.Lister {
	if list == nil {
		return nil
	}
	cells, left := map[string]nodefit.Cell{}, mostListed
	return func(of nodeset.Set) nodefit.Cell {
		key := of.String()
		cell, listed := cells[key]
		switch {
		case listed:
			return cell
		case left > 0:
			cell = list(of)
			left -= len(cell.Nodes)
		default:
			cell = nodefit.Cell{Set: of, Growing: true}
		}
		cells[key] = cell
		return cell
	}
}

// mayTake reports whether a node of a cell may take a pod, by its shape and volumes. What its nodes refuse now passes if a sibling runs there.
func (p *Policy) mayTake(b *Bound, shape *corev1.Pod, at sequence.Cell, volumes nodefit.Volumes, cell nodefit.Cell) bool {
	pod := p.InCell(shape, b.Pool, at)
	if nodefit.Judge(pod, volumes, &cell).Verdict != nodefit.Never {
		return true
	}
	cell.Proven = p.evidence(b, at, volumes.Terms, cell.Nodes)
	return cell.Proven != nodefit.NoEvidence && nodefit.Judge(pod, volumes, &cell).Verdict != nodefit.Never
}

// ReachOf is [Finder.Reached] for volumes with some node selector terms. One node has to reach the volumes and take the pod.
func (p *Policy) ReachOf(volumes [][]corev1.NodeSelectorTerm, b Bound, nodes nodefit.Lister) *Reach {
	nodes = listingOnce(nodes)
	reached, all := p.Reached(func(at sequence.Cell) bool { return nodefit.ReachesAll(volumes, p.NodesOf(at), nodes) })
	r := &Reach{Volumes: reached}
	var shape *corev1.Pod
	if b.Shape != nil && nodes != nil {
		shape = b.Shape()
	}
	if shape != nil {
		empty := map[sequence.Cell]bool{}
		may, every := p.Reached(func(at sequence.Cell) bool {
			if !reached[at.Pool][at.Domain] {
				return false
			}
			cell := nodes(p.NodesOf(at))
			empty[at] = len(cell.Nodes) == 0
			return p.mayTake(&b, shape, at, nodefit.Volumes{Terms: volumes}, cell)
		})
		if takes, _ := p.Reached(func(at sequence.Cell) bool { return may[at.Pool][at.Domain] && !empty[at] }); some(takes) {
			r.Takes, r.MayTake, all = takes, may, all && every
		}
	}
	if all {
		return nil
	}
	return r
}

// InCell returns the pod that a pod's owner creates in its place, with a seat in a cell. The pod has a seat in the pool with a key, if that is not empty.
func (p *Policy) InCell(pod *corev1.Pod, pool string, at sequence.Cell) *corev1.Pod {
	if seat, ok := p.PoolKeyed(pool); ok {
		own := p.TolerationsOf(seat) // which it has because of that pool
		of := *pod
		of.Spec.Tolerations = slices.DeleteFunc(slices.Clone(pod.Spec.Tolerations), func(t corev1.Toleration) bool { return slices.Contains(own, t) })
		pod = &of
	}
	return placement.InCell(pod, p.Whole(), at, p.TolerationsOf(at.Pool))
}

// Holding returns the policy as the volumes of an owner's pods have it: pods with an ordinal of their own are held where their volumes are. If all pods
// of another owner have the same claims, they have seats in the cells that these reach. What is not known of volumes changes nothing.
func (f *Finder) Holding(ctx context.Context, p *Policy, of observed.Owner, nodes nodefit.Lister) *Policy {
	if p == nil || p.Layout == nil || p.Preferred || of.Workload == nil {
		return p
	}
	if of.IsStatefulSet() {
		return f.holdingOrdinals(ctx, p, of, nodes)
	}
	pod := sharingClaims(of.Pods)
	if pod == nil {
		return p
	}
	reach, err := f.Reached(ctx, p, BoundRecord(pod, of.Pods), nodes)
	if reach == nil || err != nil {
		return p
	}
	return cmp.Or(f.Within(p, reach.Cells()), p)
}

// sharingClaims returns a pod with claims, if all pods with claims have the same, and else nil.
func sharingClaims(pods []observed.Pod) (one *observed.Pod) {
	for i := range pods {
		switch pod := &pods[i]; {
		case len(pod.Claims) == 0:
		case one == nil:
			one = pod
		case !slices.Equal(pod.Claims, one.Claims):
			return nil
		}
	}
	return one
}

// holdingOrdinals is [Finder.Holding] for a StatefulSet.
func (f *Finder) holdingOrdinals(ctx context.Context, p *Policy, of observed.Owner, nodes nodefit.Lister) *Policy {
	held := map[int64]sequence.Cell{}
	for i := range of.Pods {
		pod := &of.Pods[i]
		rank, ok := of.RankOf(pod)
		at, known := p.CellNamed(pod.Pool, pod.Domain)
		if len(pod.Claims) == 0 || !ok || !known || !p.Away(rank, at) {
			continue
		}
		reach, err := f.Reached(ctx, p, BoundRecord(pod, of.Pods), nodes)
		if reach == nil || err != nil {
			continue
		}
		if own, err := p.OfOrdinal(rank); err == nil && !reach.Cells()[own.Pool][p.DomainOf(own)] && reach.Volumes[at.Pool][at.Domain] {
			held[rank] = at
		}
	}
	return p.Held(held)
}

// Elsewhere returns those of an owner's pods without a seat whose volumes reach no place for one: see [layout.Elsewhere].
func (f *Finder) Elsewhere(ctx context.Context, p *Policy, of observed.Owner, unseated []*corev1.Pod, nodes nodefit.Lister) (e layout.Elsewhere) {
	for _, pod := range unseated {
		reach, err := f.Reached(ctx, p, Bound{Namespace: pod.Namespace, Claims: podstatus.VolumeClaims(&pod.Spec)}, nodes)
		if reach == nil || err != nil || !reach.Nowhere() {
			continue
		}
		rank, ok := of.RankOf(&observed.Pod{Name: pod.Name})
		if !of.IsStatefulSet() || !ok {
			e.Others++
		} else if own, err := p.OfOrdinal(rank); err == nil {
			e.Own = append(e.Own, p.Cell(own))
		}
	}
	return e
}

// Held returns the policy with pods with an ordinal of their own that are held in other cells than their own, by their ranks.
func (p *Policy) Held(in map[int64]sequence.Cell) *Policy {
	if len(in) == 0 {
		return p
	}
	of := *p
	of.Layout = p.Holding(in, nil)
	return &of
}
