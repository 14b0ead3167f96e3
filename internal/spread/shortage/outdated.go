package shortage

import (
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
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Some pods wait for good for nodes that are not for them. They are recreated, and their successors get a cell of the source that divides them
// now, or no pin if none does any more. Such pods have
//
//   - the selector of a pool as it was, before somebody corrected the pool's labels;
//   - a volume that was bound after their admission, and no node of their cell that reaches it and takes them. A node of another cell does both.

const (
	// outdatedAfter is for how long a pod must be outdated. A policy that is written anew is gone for a moment.
	outdatedAfter = 10 * time.Second
	// strandedAfter is for how long the volume of a pod must be elsewhere.
	strandedAfter = 30 * time.Second
	// exemptFor is for how long a pod is not read again that is not to be touched, and triedFor one that was evicted.
	exemptFor = 10 * time.Minute
	// correctedFor is how long it is remembered that pods of a workload were recreated.
	correctedFor = 30 * time.Minute
	triedFor     = 30 * time.Second
)

// cellSelectors are the nodes for which a source writes pins into the pods of each cell.
type cellSelectors struct {
	cells  []nodeset.Set
	hashes map[string]bool // of the pools' selectors
	across bool            // the cells are domains of pools
	// required says that pods ask for a cell. Otherwise they ask for none of the pools' labels.
	required bool
}

// cellSelectorsOf returns those of a policy, or nil if it may not change its pods.
func cellSelectorsOf(p *policy.Policy) *cellSelectors {
	if p.Layout == nil || p.Repair == stowage.RepairOff && p.Soft() == nil {
		return nil
	}
	whole := p.AsWritten()
	out := &cellSelectors{required: !p.Preferred, across: whole.Across() != nil, hashes: map[string]bool{}}
	for i := range whole.Cells().Len() {
		at := whole.Cells().At(i)
		out.cells = append(out.cells, whole.NodesOf(at))
		out.hashes[whole.SelectorHash(at.Pool)] = true
	}
	return out
}

// have reports whether some cell has written a pod's pins. Nothing has, where nothing divides the pod any more.
func (s *cellSelectors) have(rec *observed.Pod) bool {
	if s == nil {
		return false
	}
	if !s.required {
		return !slices.ContainsFunc(s.cells, func(cell nodeset.Set) bool { return slices.ContainsFunc(cell.Keys(), rec.Pins.Name) })
	}
	// What was removed from a pool, or from all of them, is not seen in the pod's pins alone.
	if hash := rec.Source.Selector; hash != "" && !s.hashes[hash] || rec.Domain != "" && !s.across {
		return false
	}
	return slices.ContainsFunc(s.cells, rec.Pins.AskFor)
}

// outdated returns the pods of an owner that wait for nodes of no cell, by their index.
func outdated(p *policy.Policy, records []observed.Pod) (out []int) {
	var selectors *cellSelectors
	if p != nil {
		if selectors = cellSelectorsOf(p); selectors == nil {
			return nil
		}
	}
	for i := range records {
		rec := &records[i]
		if rec.Origin.Admitted() && pinned(rec) && rec.Waiting() && !rec.Nominated && !selectors.have(rec) {
			out = append(out, i)
		}
	}
	return out
}

// pinned reports whether a pod may have been given pins. An affinity is its own where its claim names no pool's nodes.
func pinned(rec *observed.Pod) bool {
	return rec.Pins != nil && (len(rec.Pins.Selector) > 0 || rec.Source.Selector != "")
}

// mostStranded is the number of waiting pods with volumes that one look checks. The cost of each grows with the cells and their nodes.
const mostStranded = 100

// stranded returns the indexes of pods that cannot run in their cell because of their volumes: see [policy.Reach]. All pods of the owner are in of.
func (r *run) stranded(ctx context.Context, p *policy.Policy, of *observed.Owner, some []observed.Pod) (out []int, err error) {
	if p == nil || p.Layout == nil || p.Preferred {
		return nil, nil
	}
	look := r.Room.NewLook(ctx)
	for i := range some {
		rec := &some[i]
		at, known := p.CellNamed(rec.Pool, rec.Domain)
		if !known || !asksForVolumes(rec) {
			continue
		}
		reach, err := r.Policies.Reached(ctx, p, policy.BoundRecord(rec, of.Pods), look.With)
		switch {
		case err != nil || reach != nil && reach.Unknown:
		case reach != nil && !reach.Cells()[at.Pool][at.Domain], r.ownCellTakes(ctx, p, of, rec, at, reach):
			out = append(out, i)
		}
	}
	return out, look.Err
}

// ownCellTakes reports whether a pod with a bound volume waits in another cell than its ordinal's, although its own cell has a node for it again. The
// reach is nil where all cells have one.
func (r *run) ownCellTakes(ctx context.Context, p *policy.Policy, of *observed.Owner, rec *observed.Pod, at sequence.Cell, reach *policy.Reach) bool {
	rank, ok := of.RankOf(rec)
	if !of.IsStatefulSet() || !ok || !p.Away(rank, at) {
		return false
	}
	own, err := p.OfOrdinal(rank)
	if err != nil {
		return false
	}
	if reach == nil {
		return r.mayBeBound(ctx, rec)
	}
	return reach.Cells()[own.Pool][p.DomainOf(own)]
}

// asksForVolumes reports whether a pod may be stranded.
func asksForVolumes(rec *observed.Pod) bool {
	return len(rec.Claims) > 0 && rec.Waiting() && !rec.Nominated && rec.Origin.Admitted()
}

// withVolumes returns the waiting pods with volumes: mostStranded of them that a look checks, by its number, and the others. Each look begins where
// the last ended.
func withVolumes(pods []observed.Pod, look int) (some, others []observed.Pod) {
	waiting := slices.DeleteFunc(slices.Clone(pods), func(rec observed.Pod) bool { return !asksForVolumes(&rec) })
	if len(waiting) <= mostStranded {
		return waiting, nil
	}
	first := look * mostStranded % len(waiting)
	waiting = slices.Concat(waiting[first:], waiting[:first])
	return waiting[:mostStranded], waiting[mostStranded:]
}

// hasOutdated reports whether an owner of pods that wait has some that are outdated, or may be stranded.
func (r *run) hasOutdated(p *policy.Policy, owner ledger.Owner) bool {
	synced, _ := r.World.PoliciesSynced()
	records := r.Seats.Pods().Of(owner.Key())
	return synced && (len(outdated(p, records)) > 0 || slices.ContainsFunc(records, func(rec observed.Pod) bool { return rec.Waiting() && len(rec.Claims) > 0 }))
}

// correct recreates the pods of a workload that are outdated, and remembers which are.
func (r *run) correct(ctx context.Context, w world.Object, m *memory) error {
	if synced, _ := r.World.PoliciesSynced(); !synced {
		return nil
	}
	members, err := r.members(ctx, w) // without Jobs whose pods may not move
	if err != nil {
		return err
	}
	m.looks++
	found := map[types.UID]bool{}
	for _, one := range members {
		p, err := r.Policies.FindForSelected(ctx, w.Namespace, one.Ref, one.Workload)
		if err != nil {
			return err
		}
		some, others := withVolumes(one.Pods, m.looks)
		stranded, err := r.stranded(ctx, p, &one.Owner, some)
		if err != nil {
			return err
		}
		for i := range others { // their clocks go on
			found[others[i].UID] = true
		}
		for _, i := range outdated(p, one.Pods) {
			found[one.Pods[i].UID] = true
			if err := r.correctPod(ctx, w, m, one, &one.Pods[i], outdatedAfter); err != nil {
				return err
			}
		}
		for _, i := range stranded {
			found[some[i].UID] = true
			if err := r.correctPod(ctx, w, m, one, &some[i], strandedAfter); err != nil {
				return err
			}
		}
	}
	maps.DeleteFunc(m.outdated, func(uid types.UID, _ time.Time) bool { return !found[uid] })
	return nil
}

// correctPod recreates a pod that was found to be outdated, or stranded, for so long.
func (r *run) correctPod(ctx context.Context, w world.Object, m *memory, one *member, rec *observed.Pod, after time.Duration) error {
	now := r.Clock.Now()
	due, known := m.outdated[rec.UID]
	switch {
	case !known:
		m.outdated[rec.UID] = now.Add(m.outdatedWait(after))
	case now.Before(due):
	case one.Annotations[stowage.RepairAnnotation] == string(stowage.RepairOff):
		m.outdated[rec.UID] = now.Add(exemptFor)
	default:
		return r.recreate(ctx, w, m, one, rec)
	}
	return nil
}

// outdatedWait returns how long a pod that is found to be outdated waits until it is recreated. It doubles each time that one is found
// after others were recreated. That one may be a successor, and its own successor may be outdated again, without an end.
func (m *memory) outdatedWait(after time.Duration) time.Duration {
	if m.corrected {
		m.again++
	}
	m.corrected = false
	return min(exemptFor, after<<min(m.again, 10))
}

// waitsAlone reports whether a pod waits for the scheduler, and for nothing and nobody else.
func waitsAlone(pod *corev1.Pod) bool {
	bound := pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != ""
	return !bound && len(pod.Spec.SchedulingGates) == 0 && !podstatus.Grouped(pod)
}

// mayTouch reports whether a pod's modes let Stowage recreate it.
func (r *run) mayTouch(ctx context.Context, pod *corev1.Pod) bool {
	off := strings.EqualFold(pod.Annotations[stowage.RepairAnnotation], string(stowage.RepairOff))
	return !off && r.Scope.Enforces(ctx, pod.Namespace, podpatch.FromPod(pod))
}

// recreate evicts a pod that is outdated, if the rates of spill allow it now. The pod is judged once more, by its own annotations: those of
// the template are for other pods, if an update is rolled out.
func (r *run) recreate(ctx context.Context, w world.Object, m *memory, one *member, rec *observed.Pod) error {
	now := r.Clock.Now()
	if !r.unproven.MayEvict(r.Seats.Pods().Given(), now) {
		return nil
	}
	if !r.takeTurn(w, m, now) {
		return nil // the next look goes on
	}
	m.outdated[rec.UID] = now.Add(exemptFor)
	pod := &corev1.Pod{}
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: rec.Namespace, Name: rec.Name}, pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if pod.UID != rec.UID || !waitsAlone(pod) || !r.mayTouch(ctx, pod) {
		return nil
	}
	p, err := r.Policies.FindSelected(ctx, policy.Pod{Namespace: pod.Namespace, Owner: one.Ref, Annotations: pod.Annotations})
	if err != nil {
		return err
	}
	stranded, err := r.stranded(ctx, p, &one.Owner, []observed.Pod{*rec})
	if err != nil || len(stranded)+len(outdated(p, []observed.Pod{*rec})) == 0 {
		return err
	}
	result, err := r.Evictor.EvictUnchanged(ctx, pod)
	if result == evict.Failed {
		return fmt.Errorf("evict pod %s: %w", rec.Name, err)
	}
	m.outdated[rec.UID] = now.Add(triedFor)
	if result == evict.Evicted {
		r.corrected(w, m, rec, p, now)
	}
	return nil
}

// corrected notes that a pod was recreated. P is what divides its successor, or nil.
func (r *run) corrected(w world.Object, m *memory, rec *observed.Pod, p *policy.Policy, now time.Time) {
	m.corrected = true
	r.mu.Lock()
	m.correctedAt = now
	r.mu.Unlock()
	if p != nil { // else the successor gets no seat, and proves nothing
		r.unproven.Note(now)
	}
	r.Metrics.corrected.Inc()
	r.Log.Info("pod evicted, because it waited for nodes that are not for it", "namespace", rec.Namespace, "pod", rec.Name, "kind", w.Kind, "name", w.Name, "pool", ledger.PoolName(rec.Pool))
	if p != nil && p.Soft() != nil {
		r.Events.Normal(w.Reference(), stowage.EventPodRecreated, events.Spill, "pod %s waited in a pool, and its successor may run outside of it: %s", rec.Name, p.Soft().Why)
		return
	}
	r.Events.Normal(w.Reference(), stowage.EventPodRecreated, events.Spill, "pod %s waited for nodes of a pool as it was before a correction, or for nodes that do not reach its volume or do not take it; it was evicted, so that its owner recreates it", rec.Name)
}
