package shortage

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// A seat never holds a pod where it can never run: see docs/design/pins.md. [nodefit.Judge] answers for the cells in which pods have waited for a
// while. One pod of the newest revision is read for that.
//
//   - Never: the cell is unsuitable, and gets no pods of the workload. That holds for policies, because the authors of their workloads may not
//     know of them. The author of a PodDistributor or of annotations has said where the pods go. If the nodes there are not for the pods by a
//     selector, a taint or their size, there is an event, and the pods wait.
//   - Unknown, for long: the pods of the revision prefer their pools from now on, and may run outside of them.
//
// Where pods of the workload have had nodes, a taint is taken for maintenance. Where pods that ask for as much have had nodes, so is what the nodes
// lack: a device plugin starts again, for example. Neither makes a cell unsuitable.

const (
	// judgeAfter is how long a pod must have waited. Nodes that start have taints, and lack devices, for some seconds.
	judgeAfter = 15 * time.Second
	// unknownAfter is how long a pod must have waited in a cell that it is not known to fit.
	unknownAfter = 10 * time.Minute
	// vainTries is how many tries of each cell must have been in vain, where pods move while they wait. By the waits that are set by default, these
	// take about as long.
	vainTries = 3
	// A cell in which pods wait is looked at again after judgeAgain, and so is an unsuitable cell after rejudge. Both are looked at earlier, if
	// nodes of the cell change.
	judgeAgain = time.Minute
	rejudge    = 10 * time.Minute
	// knownAfter is after how long each replica of the webhook knows what was stored.
	knownAfter = time.Minute
	// longestBlind is for how long an answer stays that cannot be looked at again.
	longestBlind = time.Hour
	// prunedFor is for how long nothing is asked whose answer the API server does not store.
	prunedFor = 5 * time.Minute
)

// So many pods are read for that in a second, and at once. Namespaces share them.
const (
	judgeRate  = 1
	judgeBurst = 20
)

// judged is when it was found out whether a cell is suitable, and for which owner of pods and which policy.
type judged struct {
	poolroom.Checkpoint
	owner  types.UID
	policy ledger.Source
	answer nodefit.Answer
}

// judges reports whether cells may be unsuitable by a policy. Pods run outside a pool in which they cannot run, if they may.
func judges(p *policy.Policy) bool { return p.Layout != nil && (!p.Preferred || p.Soft() != nil) }

// verdict is what is stored about the cells of a workload: see [stowage.PoolState].
type verdict struct {
	unsuitable []stowage.UnsuitablePool
	proven     []stowage.ProvenPool
	soft       *stowage.SoftRevision
}

// cellVerdict is what is stored about one cell. Either may be nil.
type cellVerdict struct {
	unsuitable *stowage.UnsuitablePool
	proven     *stowage.ProvenPool
}

// judge returns what is to be stored about the cells of a workload.
func (r *run) judge(ctx context.Context, v *picture, m *memory) (out verdict) {
	if !judges(v.policy) || len(v.members) == 0 {
		return out
	}
	// What was found for another policy, or another version of it, says nothing.
	maps.DeleteFunc(m.judged, func(_ string, j judged) bool { return j.policy != v.policy.From })
	read, of := r.examples(ctx, v), v.policy.Cells()
	for i := range of.Len() {
		at := of.At(i)
		cell := storedVerdict(v, at)
		if r.judgeNow(v, m, at) {
			r.judgeCell(ctx, v, m, at, read, &cell)
		}
		if cell.unsuitable != nil {
			out.unsuitable = append(out.unsuitable, *cell.unsuitable)
		}
		if cell.proven != nil {
			out.proven = append(out.proven, *cell.proven)
		}
	}
	if v.policy.Policy == nil && len(out.unsuitable) > 0 { // its pods go to the other cells
		for i := range of.Len() {
			if at := of.At(i); m.judgedIn(v, at).owner != v.members[0].UID {
				r.judgeCell(ctx, v, m, at, read, &cellVerdict{})
			}
		}
	}
	out.soft = soften(v, m, &out)
	return out
}

// judgedIn returns what was found out about a cell.
func (m *memory) judgedIn(v *picture, at sequence.Cell) judged {
	return m.judged[spill.PlaceOf(v.policy.Whole(), at)]
}

// judgeCell finds out whether pods can run in a cell, as far as the rate allows it now, and changes what is stored about the cell accordingly.
func (r *run) judgeCell(ctx context.Context, v *picture, m *memory, at sequence.Cell, read exampleReader, stored *cellVerdict) {
	if !r.looks.Allow(m.workload.Namespace, v.Now) {
		return
	}
	name, last := spill.PlaceOf(v.policy.Whole(), at), m.judgedIn(v, at)
	is := judged{Checkpoint: r.Room.Checkpoint(v.policy.Whole().NodesOf(at)), owner: v.members[0].UID, policy: v.policy.From}
	pod, volumes, err := read(at)
	if pod != nil && err == nil {
		is.answer, err = r.judgeByEvidence(ctx, v, at, question(v, at, pod, volumes), stored)
	}
	m.judged[name] = is
	if err != nil {
		r.Log.Error(err, "whether pods can run in a pool is not known", append(m.workload.LogKeys(), "pool", name)...)
	}
	if pod == nil || err != nil {
		return
	}
	switch template := pod.UID == ""; {
	case is.answer.Verdict != nodefit.Never && template && last.owner == is.owner:
		// A pod was the reason. What other webhooks write into it is not in the template.
	case is.answer.Verdict != nodefit.Never:
		stored.unsuitable = nil
	case !v.policy.AuthorKnows(is.answer.Filter) || r.otherDomainTakes(ctx, v, at, pod, volumes):
		stored.unsuitable = v.unsuitable(at, is.answer, stored.unsuitable)
	default:
		stored.unsuitable = nil
		whole := v.policy.Whole()
		key := exampleKey{seats.OwnerOf(v.members[0].Workload).Key(), whole.PoolKey(at.Pool), whole.DomainName(at.Domain)}
		r.tellMisfit(m, key, pod.Name, name, is.answer.Why)
	}
}

// otherDomainTakes reports whether nodes of another domain of a cell's pool may take a pod.
func (r *run) otherDomainTakes(ctx context.Context, v *picture, at sequence.Cell, pod *corev1.Pod, volumes nodefit.Volumes) bool {
	of := v.policy.Cells()
	for domain := range of.OfPool() {
		other := sequence.Cell{Pool: at.Pool, Domain: domain}
		if answer, err := r.Room.Judge(ctx, question(v, other, pod, volumes)); domain != at.Domain && err == nil && answer.Verdict != nodefit.Never {
			return true
		}
	}
	return false
}

// unsuitable is the entry about an unsuitable cell. Was is the one that is stored, or nil.
func (v *picture) unsuitable(at sequence.Cell, a nodefit.Answer, was *stowage.UnsuitablePool) *stowage.UnsuitablePool {
	pool, is := v.policy.AsWritten().Pool(at.Pool), v.second()
	if was != nil {
		is = was.Since
	}
	return &stowage.UnsuitablePool{Name: pool.Name, NodeLabel: pool.Labels, MatchExpressions: pool.Expressions, Domain: v.policy.DomainName(at.Domain), Since: is, Filter: a.Filter, Why: a.Why}
}

// second is the present time, as the API keeps it.
func (v *picture) second() metav1.Time { return metav1.NewTime(v.Now.Truncate(time.Second)) }

// question asks whether the nodes of a cell take pods such as this one. Where its own bound volumes are says nothing of its siblings: see
// [run.stranded].
func question(v *picture, at sequence.Cell, pod *corev1.Pod, volumes nodefit.Volumes) poolroom.Question {
	pool := ledger.PoolOf(pod.Labels[stowage.PoolLabel], pod.Annotations[stowage.ClaimAnnotation])
	return poolroom.Question{Set: v.policy.Whole().NodesOf(at), Pod: v.policy.InCell(pod, pool, at), Volumes: volumes}
}

// tellMisfit says once, for the pods of an owner in a cell, why they do not wait for room.
func (r *run) tellMisfit(m *memory, key exampleKey, pod, place, why string) {
	if !m.misfits[key] {
		m.misfits[key] = true
		r.Events.Warn(m.workload.Reference(), stowage.EventPodFitsNoNode, events.Spill, "pod %s waits for pool %s, and no other pool takes it: %s", pod, place, why)
	}
}

// soften returns what is to be stored of a revision whose pods prefer their pools, or nil. That is so where no cell is left for them by something
// that their author cannot know, and where pods have waited for long in a cell that they are not known to fit.
func soften(v *picture, m *memory, is *verdict) *stowage.SoftRevision {
	newest, of, vain := v.members[0].UID, v.policy.Cells(), inVain(v.pools)
	why, open, unknown, left := "", false, false, of.Len()
	for i := range of.Len() {
		at := of.At(i)
		j := m.judgedIn(v, at)
		judged := j.owner == newest && !j.At.IsZero()
		open = open || judged && j.answer.Verdict <= nodefit.Full
		if judged && j.answer.Verdict == nodefit.Never {
			left--
		}
		if j.answer.Verdict != nodefit.Unknown {
			continue
		}
		unknown = true
		if waitsIn(v, at, unknownAfter) != nil || vain && waitsIn(v, at, 1) != nil {
			why = j.answer.Why
		}
	}
	was := v.policy.Soft()
	switch {
	case was != nil && (unknown || !open):
		is.unsuitable = nil
		return was
	case why == "" && v.policy.Policy == nil && len(is.unsuitable) > 0 && left == 0:
		why = is.unsuitable[0].Why
	}
	if why == "" {
		return nil
	}
	is.unsuitable = nil
	return &stowage.SoftRevision{Owner: newest, Since: v.second(), Why: why}
}

// inVain reports whether each pool or cell has no room, and was tried in vain for long. So pods that move are nowhere.
func inVain(pools []spill.Pool) bool {
	return !slices.ContainsFunc(pools, func(p spill.Pool) bool { return p.Phase != spill.Unsuitable && p.Tries < vainTries })
}

// storedVerdict returns a copy of what is stored of a cell.
func storedVerdict(v *picture, at sequence.Cell) (out cellVerdict) {
	if v.state == nil {
		return out
	}
	if i := slices.IndexFunc(v.state.Unsuitable, func(u stowage.UnsuitablePool) bool {
		return spill.Recorded(v.policy.AsWritten(), at, nodeset.Set{Labels: u.NodeLabel, Expressions: u.MatchExpressions}, u.Domain)
	}); i >= 0 {
		out.unsuitable = v.state.Unsuitable[i].DeepCopy()
	}
	if i := slices.IndexFunc(v.state.Proven, func(p stowage.ProvenPool) bool {
		return spill.Recorded(v.policy.AsWritten(), at, nodeset.Set{Labels: p.NodeLabel, Expressions: p.MatchExpressions}, p.Domain)
	}); i >= 0 {
		out.proven = v.state.Proven[i].DeepCopy()
	}
	return out
}

// judgeNow reports whether to find out now whether a cell is suitable.
func (r *run) judgeNow(v *picture, m *memory, at sequence.Cell) bool {
	last := m.judgedIn(v, at)
	age := v.Now.Sub(last.At)
	changed := last.owner != v.members[0].UID || age >= newNodesAfter && r.Room.NodesChanged(last.Checkpoint)
	stored := storedVerdict(v, at)
	switch {
	case v.Now.Sub(m.pruned) < prunedFor:
		return false
	case stored.unsuitable != nil || stored.proven != nil || v.policy.Soft() != nil:
		return changed || age >= rejudge
	}
	return waitsIn(v, at, judgeAfter) != nil && (changed || age >= judgeAgain)
}

// waitsIn returns the name of a pod of the newest owner that has waited in a cell for a while, or nil.
func waitsIn(v *picture, at sequence.Cell, after time.Duration) *types.NamespacedName {
	one := v.members[0]
	for i := range one.spillPods {
		if p := &one.spillPods[i]; p.Cell() == at && p.Waits >= after {
			return &types.NamespacedName{Namespace: one.Pods[i].Namespace, Name: one.Pods[i].Name}
		}
	}
	return nil
}

// staysUnsuitable reports whether the record of a workload stays though no owner of pods is known. Where no pool suits, no pod has a seat,
// and the owners of some kinds are known by such pods alone.
func (r *run) staysUnsuitable(ctx context.Context, w world.Object) (bool, error) {
	state, err := r.World.PoolState(ctx, w.Namespace, w.UID)
	if state == nil || len(state.Unsuitable) == 0 || err != nil || w.Watched() {
		return false, err
	}
	if r.Clock.Since(state.Unsuitable[0].Since.Time) >= longestBlind {
		return false, nil
	}
	there, err := r.World.Workload(ctx, w.Namespace, w.Ref)
	return there != nil && there.UID == w.UID, err
}

// tellUnsuitable says what was found out about pools.
func (r *run) tellUnsuitable(w world.Object, v *picture, is verdict) {
	about, whole := w.Reference(), v.policy.AsWritten()
	of := whole.Cells()
	for i := range of.Len() {
		at := of.At(i)
		name := spill.PlaceOf(whole, at)
		now := slices.IndexFunc(is.unsuitable, func(u stowage.UnsuitablePool) bool {
			return spill.Recorded(whole, at, nodeset.Set{Labels: u.NodeLabel, Expressions: u.MatchExpressions}, u.Domain)
		})
		switch {
		case now >= 0 && v.policy.SuitsCell(at):
			r.Metrics.misfits.WithLabelValues("unsuitable").Inc()
			r.Events.Warn(about, stowage.EventPoolUnsuitable, events.Spill, "no pod can run in pool %s: %s. The pool gets no pods of this workload", name, is.unsuitable[now].Why)
		case now < 0 && !v.policy.SuitsCell(at):
			r.Events.Normal(about, stowage.EventPoolSuitable, events.Spill, "pods can run in pool %s now, so it gets its share of the next ones", name)
		}
	}
	switch was := v.policy.Soft(); {
	case was == nil && is.soft != nil:
		r.Metrics.misfits.WithLabelValues("preferred").Inc()
		r.Events.Warn(about, stowage.EventPoolsPreferred, events.Spill, "pods may run outside of their pools from now on: %s", is.soft.Why)
	case was != nil && is.soft == nil:
		r.Events.Normal(about, stowage.EventPoolSuitable, events.Spill, "pods can run in their pools now, so new ones run nowhere else")
	}
}

// unsuitableMoves returns the pods of an owner that wait in unsuitable cells, by their index. Their successors get a seat elsewhere or, if no
// other cell may have one more, none.
func unsuitableMoves(v *picture, one *member) (out []int) {
	for i := range one.spillPods {
		p := &one.spillPods[i]
		if v.policy.SuitsCell(p.Cell()) || p.Waits == 0 {
			continue
		}
		stored := storedVerdict(v, p.Cell()).unsuitable
		if knew := stored != nil && time.Unix(one.Pods[i].Created, 0).After(stored.Since.Add(knownAfter)); knew && p.Waits < rejudge {
			continue // the webhook had no other seat for it
		}
		if one.ordinals && !v.policy.Nowhere() { // it may have been there before
			if own, err := v.policy.OfOrdinal(one.rank(i)); err == nil && v.policy.Cell(own) == p.Cell() {
				continue
			}
		}
		out = append(out, i)
	}
	return out
}
