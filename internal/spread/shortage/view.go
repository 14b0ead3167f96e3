package shortage

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/successor"
	"github.com/stowage-dev/stowage/internal/world"
)

// member is an owner of pods of a workload, such as one ReplicaSet of a Deployment.
type member struct {
	observed.Owner
	policy    *policy.Policy // with the seats that this owner's pods may have
	spillPods []spill.Pod    // in the order of [observed.Owner.Pods]
	replicas  int64
	ordinals  bool // its pods have ordinals of their own
}

// picture is what [spill.Next] and the moves want to know of a workload.
type picture struct {
	spill.View
	policy  *policy.Policy // of the member that creates pods now
	state   *stowage.PoolState
	pools   []spill.Pool // as stored
	members []*member
	stays   bool // Stowage may not move pods of the workload now
}

// members returns the owners of a workload's pods, the one that creates pods now first.
func (r *run) members(ctx context.Context, w world.Object) ([]*member, error) {
	owners, err := r.Seats.Pods().OwnersUnder(ctx, r.World, w)
	if err != nil {
		return nil, err
	}
	var out []*member
	for _, owner := range owners {
		// The PoolState of an older version may belong to an operator's object above several workloads. An owner that is being deleted creates no pods.
		chain, err := world.Owners(ctx, r.World, w.Namespace, owner.Ref)
		if err != nil {
			return nil, err
		}
		if top := chain.Top(); top == nil || !top.Is(w.Ref) || owner.Deleting {
			continue
		}
		// The pods of an Indexed Job stay, because their index determines their seat.
		if next, err := r.Successors.Of(ctx, w.Namespace, owner.Ref); err != nil {
			return nil, err
		} else if next != successor.Another {
			continue
		}
		one := &member{Owner: r.Seats.Pods().Observe(owner), replicas: owner.Replicas, ordinals: owner.IsStatefulSet()}
		slices.SortFunc(one.Pods, func(a, b observed.Pod) int { return cmp.Compare(a.Name, b.Name) }) // so that what is seen decides alone
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b *member) int {
		if active := func(m *member) bool { return m.replicas != 0 }; active(a) != active(b) {
			if active(a) {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Revision(), a.Revision()), b.Created.Compare(a.Created))
	})
	return out, nil
}

// see looks at a workload. It returns nil if there is nothing to record of its policy.
func (r *run) see(ctx context.Context, w world.Object, m *memory) (*picture, error) {
	// 1. What divides it, and is anything recorded of that?
	members, err := r.members(ctx, w)
	if err != nil || len(members) == 0 {
		return nil, err
	}
	for _, one := range members {
		if one.policy, err = r.Policies.FindForSelected(ctx, w.Namespace, one.Ref, one.Workload); err != nil {
			return nil, err
		}
	}
	if !isRecorded(members[0]) {
		return nil, nil
	}
	v, err := r.newPicture(ctx, w, members[0].policy, m)
	if err != nil {
		return nil, err
	}

	// 2. What is on its way, and what can be made?
	m.forget(members, v.Now)
	way := onWay{pools: r.endingIn(ctx, members, v.policy)}
	if v.spills() && slices.ContainsFunc(members, (*member).waits) {
		r.askSuppliers(ctx, w, v, m, &way)
	}

	// 3. Its pods.
	for _, one := range members {
		if one.policy == nil || one.policy.Layout == nil || !samePools(one.policy.Whole(), v.policy.Whole()) {
			continue // the annotations of its revision name other pools
		}
		v.members = append(v.members, one)
		if err := r.seePods(ctx, v, one, m, way); err != nil {
			return nil, err
		}
		v.Pods = append(v.Pods, one.spillPods...)
		v.Replicas += one.replicas
	}
	m.forgetPods(v.Now)
	return v, nil
}

// isRecorded reports whether anything is recorded of an owner's policy: pools without room, or pools that are not for its pods.
func isRecorded(one *member) bool {
	p := one.policy
	return p != nil && p.Layout != nil && (p.Spill != nil || judges(p))
}

// newPicture is a workload without its pods.
func (r *run) newPicture(ctx context.Context, w world.Object, p *policy.Policy, m *memory) (_ *picture, err error) {
	now, n := r.Clock.Now(), p.Cells().Len()
	v := &picture{
		policy: p, state: p.State,
		View: spill.View{Now: now, Layout: p.Layout, Rules: make([]spill.Rule, p.Len()), Hard: make([]bool, n), Room: make([]int64, n)},
	}
	copy(v.Rules, p.Spill)
	for i := range p.Len() {
		if !p.Suits(i) {
			v.Rules[i] = spill.Rule{} // whoever waits there does not wait for room
		}
	}
	if p.Policy == nil { // what was decided by and what is stored are to be the same
		if v.state, err = r.World.PoolState(ctx, w.Namespace, w.UID); err != nil {
			return nil, err
		}
	}
	v.pools = spill.FromPoolState(v.state, p.Whole())
	spill.CloseUnsuitable(v.pools, p.Cells(), p.Unsuitable())
	for i := range v.pools {
		v.pools[i].Waited = m.waitedFor(spill.PlaceOf(p.Whole(), p.Cells().At(i)), now)
	}
	return v, nil
}

// spills reports whether other pools take the pods that wait for one of the pools.
func (v *picture) spills() bool {
	return slices.ContainsFunc(v.Rules, func(rule spill.Rule) bool { return rule.After > 0 })
}

// rank returns the rank of a StatefulSet's pod, from 1, or 0 if its name does not say it.
func (m *member) rank(i int) int64 {
	rank, _ := m.RankOf(&m.Pods[i])
	return max(0, rank)
}

// waits reports whether a pod of the owner waits for a node.
func (m *member) waits() bool {
	return slices.ContainsFunc(m.Pods, func(rec observed.Pod) bool { return rec.Waiting() })
}

// askSuppliers asks the node autoscalers for which cells nodes are on their way, and for which they can make none now.
func (r *run) askSuppliers(ctx context.Context, w world.Object, v *picture, m *memory, way *onWay) {
	p, of := v.policy, v.policy.Cells()
	karpenter, groups := r.askKarpenter(ctx), r.askClusterAutoscaler(ctx)
	way.pods = r.askForScaleUps(ctx, w.Namespace)
	for i := range way.pools {
		selected := p.NodesOf(of.At(i))
		way.pools[i] = way.pools[i] || karpenter.onWay(selected) || groups.OnWay(r.NodeGroups.Groups, selected, v.Now)
	}
	for key, e := range m.examples {
		cell, known := p.CellNamed(key.pool, key.domain)
		if at := of.Index(cell); known && !way.pools[at] {
			selected := p.NodesOf(cell)
			v.Hard[at] = v.Hard[at] || karpenter.cannotMake(selected, e.requests) || groups.CannotMake(r.NodeGroups.Groups, selected, v.Now)
		}
	}
}

// forget forgets examples that are old, and what is known of owners that are gone.
func (m *memory) forget(members []*member, now time.Time) {
	maps.DeleteFunc(m.examples, func(_ exampleKey, e *example) bool { return now.Sub(e.at) >= exampleFor })
	maps.DeleteFunc(m.misfits, func(key exampleKey, _ bool) bool {
		return !slices.ContainsFunc(members, func(one *member) bool { return seats.OwnerOf(one.Workload).Key() == key.owner })
	})
}

// samePools reports whether two strategies have the same pools in the same order, over the same domains.
func samePools(a, b *sequence.Strategy) bool {
	over, other := a.Across(), b.Across()
	if a.Len() != b.Len() || (over == nil) != (other == nil) {
		return false
	}
	if over != nil && (over.Key != other.Key || !slices.Equal(over.Domains, other.Domains)) {
		return false
	}
	for i := range a.Len() {
		if a.Pool(i).Name != b.Pool(i).Name || !a.Nodes(i, -1).Equal(b.Nodes(i, -1)) {
			return false
		}
	}
	return true
}

// waitedFor returns when a pod was last seen to wait for a pool; a new leader says now.
func (m *memory) waitedFor(pool string, now time.Time) time.Time {
	if at, ok := m.waited[pool]; ok {
		return at
	}
	m.waited[pool] = now
	return now
}

// cellOf returns the cell of a pod. One that has a seat from before the pools were divided is where its node is.
func (r *run) cellOf(ctx context.Context, p *policy.Policy, rec *observed.Pod) (at sequence.Cell, ok bool) {
	if at, ok = p.CellNamed(rec.Pool, rec.Domain); ok || rec.Node == "" {
		return at, ok
	}
	at.Pool, ok = p.PoolKeyed(rec.Pool)
	at.Domain = p.DomainOfNode(r.World.NodeLabels(ctx, rec.Node))
	return at, ok && at.Domain >= 0
}

// endingIn reports for each pool or cell whether a pod of the workload is ending on one of its nodes. Its room is on its way.
func (r *run) endingIn(ctx context.Context, members []*member, p *policy.Policy) []bool {
	of := p.Cells()
	out := make([]bool, of.Len())
	for _, m := range members {
		for i := range m.Pods {
			if at, ok := r.cellOf(ctx, p, &m.Pods[i]); ok && m.Pods[i].Ending && m.Pods[i].Node != "" {
				out[of.Index(at)] = true
			}
		}
	}
	return out
}

// onWay is what room is on its way: to pools or cells, and for single pods.
type onWay struct {
	pools []bool
	pods  map[types.UID]bool
}

// seePods fills in the pods of one owner.
func (r *run) seePods(ctx context.Context, v *picture, one *member, m *memory, way onWay) error {
	records := make([]observed.Pod, 0, len(one.Pods))
	of := v.policy.Cells()
	for i := range one.Pods {
		rec := &one.Pods[i]
		cell, ok := r.cellOf(ctx, v.policy, rec)
		if !rec.Active || !ok {
			continue
		}
		at, pool := of.Index(cell), cell.Pool
		pod := spill.Pod{Seat: sequence.Seat{Pool: pool, Ordinal: rec.Ordinal}, Domain: cell.Domain, Node: rec.Node != ""}
		pod.Rank = v.policy.Whole().RankOrNone(pod.Seat)
		switch _, old := m.outdated[rec.UID]; {
		case old:
			pod.Misfit = true // it does not wait for room
		case rec.Waiting():
			pod.Waits = m.pass(rec.UID, v.Now, rec.Nominated || way.pools[at] || way.pods[rec.UID])
			there, err := r.seeWaiting(ctx, v, one, m, rec, &pod)
			if err != nil {
				return err
			}
			if !there {
				continue
			}
		}
		records, one.spillPods = append(records, *rec), append(one.spillPods, pod)
	}
	one.Pods = records
	if one.replicas < 0 {
		one.replicas = int64(len(one.spillPods))
	}
	return nil
}

// seeWaiting fills in whether a pod that waits is a misfit, and notes whether the workload's pods stay. It returns false if the pod has gone: then
// nothing is known of its siblings now, and all stay.
func (r *run) seeWaiting(ctx context.Context, v *picture, one *member, m *memory, rec *observed.Pod, pod *spill.Pod) (there bool, err error) {
	at := v.policy.Cells().Index(pod.Cell())
	suits := v.policy.SuitsCell(pod.Cell())
	pod.Misfit = r.mayBeBound(ctx, rec) || !suits
	// The example is read early, because what Karpenter can make depends on the size of the pods.
	rule := v.Rules[pod.Seat.Pool].After
	likely := pod.Waits >= min(rule, exampleAfter) || pod.Waits > 0 && v.pools[at].Phase != spill.Available
	if spills := rule > 0 && likely; !spills && suits {
		return true, nil
	}
	e, err := r.exampleOf(ctx, v, m, one, rec)
	if err != nil {
		return false, err
	}
	if e == nil {
		v.stays = true
		return false, nil
	}
	if e.group {
		pod.Waits = 0 // it goes with its group alone
	}
	if e.misfit != "" && suits && rule > 0 {
		pod.Misfit = true
		r.tellMisfit(m, keyOf(one, rec), rec.Name, ledger.PoolName(rec.Pool), e.misfit)
	}
	v.stays = v.stays || e.stays
	return true, nil
}

func keyOf(one *member, rec *observed.Pod) exampleKey {
	return exampleKey{seats.OwnerOf(one.Workload).Key(), rec.Pool, rec.Domain}
}

// exampleOf returns a pod of an owner that waits for a pool, as the API server has it, or nil if it has gone meanwhile or may not be read now.
func (r *run) exampleOf(ctx context.Context, v *picture, m *memory, one *member, rec *observed.Pod) (*example, error) {
	key := keyOf(one, rec)
	if e := m.examples[key]; e != nil && r.Clock.Since(e.at) < exampleFor {
		return e, nil
	}
	if len(rec.Claims) > 0 && !r.looks.Allow(rec.Namespace, r.Clock.Now()) {
		return nil, nil // each claim costs requests; a later look may ask
	}
	pod := &corev1.Pod{}
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: rec.Namespace, Name: rec.Name}, pod); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if pod.UID != rec.UID {
		return nil, nil
	}
	e := &example{at: r.Clock.Now(), group: podstatus.Grouped(pod), requests: resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})}
	var err error
	if e.misfit, err = r.misfit(ctx, v, one, pod, rec); err != nil {
		return nil, err
	}
	e.stays = !r.Scope.Enforces(ctx, pod.Namespace, placement.AsCreated(podpatch.FromPod(pod), one.policy.Strategy, ""))
	m.examples[key] = e
	return e, nil
}

// misfit says why pods such as this one do not wait for room, for people, or "". They would fit on no empty node of their cell, a volume that is
// not there yet decides, or they belong to a scheduling group.
func (r *run) misfit(ctx context.Context, v *picture, one *member, pod *corev1.Pod, rec *observed.Pod) (string, error) {
	p := one.policy
	cell, known := p.CellNamed(rec.Pool, rec.Domain)
	switch {
	case podstatus.Grouped(pod):
		return "the pods belong to a group", nil
	case placement.IgnoresPin(pod, p.Whole()):
		return "a topology spread constraint of the pods counts the nodes of all pools (nodeAffinityPolicy: Ignore)", nil
	case !known:
		return "", nil
	}
	volumes, bound, err := r.volumesOf(ctx, pod)
	if bound || err != nil {
		return "a volume decides where the pods run", err
	}
	proven := r.evidence(v, cell, one.UID, storedVerdict(v, cell).proven)
	answer, err := r.Room.Judge(ctx, poolroom.Question{Set: p.NodesOf(cell), Pod: pod, Volumes: volumes, Proven: proven})
	if answer.Verdict != nodefit.Never {
		return "", err
	}
	return answer.Why, err
}
