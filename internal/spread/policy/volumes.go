package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// A pod whose claims are bound can run where its volumes are, and nowhere else. Nothing is recorded of that: the PersistentVolumes say it.

var (
	// ErrVolumesUnknown means that the watch of volumes has just begun.
	ErrVolumesUnknown = errors.New("where its volumes can be is not known yet")
	errManyClaims     = fmt.Errorf("it has over %d claims", observed.MostClaims)
)

// NodesWith returns the nodes of a set, and whether there may be others soon. It is nil where nodes are not known.
type NodesWith func(nodeset.Set) (nodes []corev1.Node, grows bool)

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

// Reached reports for each pool and domain whether nodes there reach the bound volumes of a pod with some claims, and whether all do.
func (f *Finder) Reached(ctx context.Context, p *Policy, namespace string, claims []string, nodes NodesWith) (reached [][]bool, all bool, err error) {
	terms, bound, known, err := f.BoundVolumes(ctx, namespace, claims)
	if err != nil || !bound {
		return nil, err == nil, err // they are made where the pod goes
	}
	reached, all = p.Reached(func(cell nodeset.Set) bool { return known && nodefit.ReachesAll(terms, cell, nodes) })
	return reached, all, nil
}

// AnyReached reports whether volumes reach some cell: see [Finder.Reached].
func AnyReached(reached [][]bool) bool {
	return slices.ContainsFunc(reached, func(cells []bool) bool { return slices.Contains(cells, true) })
}

// Holding returns the policy as the volumes of an owner's pods have it: pods with an ordinal of their own are held where their volumes are, and
// all pods of another owner have the same claims, so they have seats in the cells that these reach. What is not known of volumes changes nothing.
func (f *Finder) Holding(ctx context.Context, p *Policy, of observed.Owner, nodes NodesWith) *Policy {
	if p == nil || p.Layout == nil || p.Preferred || of.Workload == nil {
		return p
	}
	if of.IsStatefulSet() {
		return f.holdingOrdinals(ctx, p, of, nodes)
	}
	i := slices.IndexFunc(of.Pods, func(pod observed.Pod) bool { return len(pod.Claims) > 0 })
	if i < 0 {
		return p
	}
	reached, all, err := f.Reached(ctx, p, of.Namespace, of.Pods[i].Claims, nodes)
	if all || err != nil {
		return p
	}
	return cmp.Or(f.Within(p, reached), p)
}

// holdingOrdinals is [Finder.Holding] for a StatefulSet.
func (f *Finder) holdingOrdinals(ctx context.Context, p *Policy, of observed.Owner, nodes NodesWith) *Policy {
	held := map[int64]sequence.Cell{}
	for i := range of.Pods {
		pod := &of.Pods[i]
		rank, ok := of.RankOf(pod)
		at, known := p.CellNamed(pod.Pool, pod.Domain)
		if len(pod.Claims) == 0 || !ok || !known || !p.Away(rank, at) {
			continue
		}
		reached, all, err := f.Reached(ctx, p, of.Namespace, pod.Claims, nodes)
		if err != nil || all {
			continue
		}
		if own, err := p.OfOrdinal(rank); err == nil && !reached[own.Pool][p.DomainOf(own)] && reached[at.Pool][at.Domain] {
			held[rank] = at
		}
	}
	return p.Held(held)
}

// Elsewhere returns those of an owner's pods without a seat whose volumes reach no place for one: see [layout.Elsewhere].
func (f *Finder) Elsewhere(ctx context.Context, p *Policy, of observed.Owner, unseated []*corev1.Pod, nodes NodesWith) (e layout.Elsewhere) {
	for _, pod := range unseated {
		reached, all, err := f.Reached(ctx, p, pod.Namespace, podstatus.VolumeClaims(&pod.Spec), nodes)
		if all || err != nil || AnyReached(reached) {
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
