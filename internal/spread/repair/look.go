package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// shownOf sums up what the cache shows of a workload: its policy and its pods.
func shownOf(p *policy.Policy, records []observed.Pod) string {
	h := fnv.New64a()
	var sum uint64
	for i := range records {
		h.Reset()
		_, _ = fmt.Fprint(h, records[i].UID, records[i].Seat, records[i].Ready, records[i].Cost)
		sum += h.Sum64() // in any order
	}
	generation := int64(0) // of what else a PodDistributor says, such as tolerations
	if p.Distributor != nil {
		generation = p.Distributor.Generation
	} else if p.Policy != nil {
		generation = p.Policy.Generation
	}
	h.Reset()
	_, _ = fmt.Fprint(h, p.HeldPods()) // in the order of the keys
	held := h.Sum64()
	return fmt.Sprintf("%s %d %x %v %t %s %d %x ", p.Fingerprint(), generation, held, p.Limits(), p.Evict, p.Repair, len(records), sum)
}

func liveRecords(records []observed.Pod) []observed.Pod {
	return slices.DeleteFunc(records, func(r observed.Pod) bool { return !r.Active })
}

// fromRecords is a workload whose pods all have a seat.
func fromRecords(p *policy.Policy, records []observed.Pod, replicas int64) planner.State {
	state := planner.State{Layout: p.Layout, Replicas: replicas, Settled: true, Mode: p.Repair}
	for i := range records {
		r := &records[i]
		pod := planner.Pod{Name: r.Name, Created: time.Unix(r.Created, 0), Ready: r.Ready, Running: r.Node != "", Ours: true, NodePool: planner.NoNode}
		place(&pod, p, r)
		if r.Origin == ledger.OriginOrdinal {
			pod.OwnRank, _ = p.Rank(pod.Seat) // that it is right is looked at closely
		}
		state.Pods = append(state.Pods, pod)
	}
	return state
}

// place fills in a pod's seat. A seat in a pool that the strategy does not have any more
// is none.
func place(pod *planner.Pod, p *policy.Policy, seen *observed.Pod) {
	pod.Claimed = seen.Origin.Admitted()
	pool, ok := p.PoolKeyed(seen.Pool)
	if p.Domains() != nil && ok {
		pod.Domain, ok = p.DomainNamed(seen.Domain)
		pod.DomainRemoved = !ok
	}
	if !ok {
		pod.Seat.Pool, pod.Foreign = -1, true
		if signed := ledger.CostRank(seen.ID); signed > 0 {
			pod.Rank = sequence.RankOfCost(seen.Cost, signed, signed)
		}
		return
	}
	pod.Seat, pod.Position = sequence.Seat{Pool: pool, Ordinal: seen.Ordinal}, ledger.Position(seen.ID)
	pod.Rank, pod.CostGone = sequence.RankOfCost(seen.Cost, p.RankOrNone(pod.Seat), ledger.CostRank(seen.ID)), seen.Cost == ""
}

// largestSeat is more bytes than the annotations of a seat take.
const largestSeat = 256

// errLeave ends a look at a workload that nobody wants Stowage to touch.
var errLeave = errors.New("the workload is to be left alone")

// kept is what is kept of a pod until a plan is carried out. A workload may have thousands of any size.
func kept(pod *corev1.Pod) corev1.Pod {
	return corev1.Pod{Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName}, ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		Labels:      world.Pick(pod.Labels, stowage.PoolLabel, stowage.SeatLabel, stowage.DomainLabel),
		Annotations: world.Pick(pod.Annotations, stowage.ClaimAnnotation, corev1.PodDeletionCost),
	}}
}

// sight is what a close look reads of a workload.
type sight struct {
	*run
	owner        ledger.Owner
	policy       *policy.Policy
	templateNode string    // that the pod template names
	since        time.Time // see [run.policySince]
	selected     func(*corev1.Pod) (sent, namespaceSent bool)
	volumes      *volumeLook
	nodes        map[string]*corev1.Node

	state *planner.State
	pods  []corev1.Pod // of the state, in its order
	bare  bare
	// example is a whole pod, one without a seat in a former pool if there is one. Foreign says that it has such a seat.
	example *corev1.Pod
	foreign bool
	first   time.Time // when the first pod was created that has its seat by this policy
	large   string    // a pod without room for a seat, or ""
	pinned  []pinned  // the pods without a seat that choose their nodes themselves
	gated   bool      // a pod waits at the gate
}

// pinned is a pod that chooses its nodes itself, by its index, and how.
type pinned struct {
	at int
	by string
}

// hindrance says that pods get no seat because they choose their nodes themselves, or nil.
func (s *sight) hindrance() (h *stowage.Hindrance) {
	for _, one := range s.pinned {
		if pod := &s.state.Pods[one.at]; !pod.Ours { // else it is adopted where it runs
			if h == nil {
				h = &stowage.Hindrance{Reason: stowage.HindrancePinned, Pod: pod.Name, Objects: []string{one.by}}
			}
			h.Count++
		}
	}
	return h
}

// look reads the pods of a workload, with those that have no seat. It returns nil if the
// workload moves or is not ours to repair. Soon is after how long a pod may move that waits for a node now, or 0.
func (r *run) look(ctx context.Context, t *turn) (_ *planner.State, _ []corev1.Pod, soon time.Duration, _ error) {
	owner, p := t.owner, t.policy
	scale, err := worldapi.ReadScale(ctx, r.Uncached, owner.Namespace, seats.Ref(owner))
	if err != nil || scale == nil || scale.Selector == "" {
		return nil, nil, 0, err
	}
	selector, err := labels.Parse(scale.Selector)
	if err != nil {
		return nil, nil, 0, err
	}
	s := &sight{run: r, owner: owner, policy: p, since: r.policySince(owner, p), volumes: r.newVolumeLook(ctx, p), nodes: map[string]*corev1.Node{}}
	if t.workload != nil {
		s.templateNode = t.workload.TemplateNode
	}
	s.state = &planner.State{
		Layout: p.Layout, Replicas: scale.Replicas, Mode: p.Repair, Evict: p.Evict, EvictEarly: p.EvictEarly,
		Settled: scale.Current == scale.Replicas,
		Keep:    !seats.Ref(owner).Recreates(), Reached: r.Seats.Pods().Reached(), Short: p.Short(),
	}
	if s.selected, err = r.selected(ctx, owner.Namespace, s.templateNode); err != nil {
		return nil, nil, 0, err
	}
	see := func(pod *corev1.Pod) error { return s.see(ctx, pod) }
	err = worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, see, client.InNamespace(owner.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if errors.Is(err, errLeave) {
		return nil, nil, 0, nil // nobody wants us to touch this workload
	}
	if err != nil {
		return nil, nil, 0, err
	}
	if soon, err = s.settle(ctx, scale); err != nil {
		return nil, nil, 0, err
	}
	t.example = s.example
	r.notePinned(owner, s.hindrance())
	return s.state, s.pods, soon, nil
}

// see notes one pod of the list. It returns errLeave if the workload is to be left alone.
func (s *sight) see(ctx context.Context, pod *corev1.Pod) error {
	c := metav1.GetControllerOfNoCopy(pod)
	if c == nil || c.UID != s.owner.UID || !podstatus.Active(pod) {
		return nil
	}
	sent, namespaceSent := s.selected(pod)
	created := placement.AsCreated(podpatch.FromPod(pod), s.policy.Strategy, s.templateNode)
	if !namespaceSent || !s.Scope.Enforces(ctx, pod.Namespace, created) {
		return errLeave
	}
	view := viewOf(pod, created, s.owner, s.policy, s.Seats.Pods().Key)
	view.Held = cmp.Or(protection(pod), s.heldByVolume(s.owner.Key(), pod.UID, s.policy))
	if !sent {
		view.Held = cmp.Or(view.Held, "the API server may not ask Stowage about its successor")
	}
	if podstatus.Grouped(pod) {
		view.Held = cmp.Or(view.Held, "it belongs to a group, and would go alone")
	}
	if by, is := placement.Pinned(created, s.policy.Strategy, nodeset.Set{}); is && view.Seat.Pool < 0 {
		s.pinned = append(s.pinned, pinned{len(s.pods), by})
	}
	if view.Seat.Pool < 0 {
		s.gated = s.gated || created.Gated(stowage.SeatGate)
		view.Ours = view.Ours && sent
		if err := s.seeUnseated(ctx, pod, &view); err != nil {
			return err
		}
	}
	s.seeAge(pod, &view)
	if s.example == nil || s.foreign && !view.Foreign {
		whole := *pod // a copy, so that the page is not kept
		s.example, s.foreign = &whole, view.Foreign
	}
	s.bare.note(len(s.pods), pod, created, &view, s.policy, sent)
	s.state.Pods, s.pods = append(s.state.Pods, view), append(s.pods, kept(pod))
	return nil
}

// seeUnseated fills in where a pod without a seat runs, and since when it waits.
func (s *sight) seeUnseated(ctx context.Context, pod *corev1.Pod, view *planner.Pod) (err error) {
	if view.Ours && podpatch.FreeAnnotations(pod.Annotations) < largestSeat {
		view.Ours, s.large = false, pod.Name // a recreated pod would get none, either
	}
	if view.NodePool, view.NodeDomain, err = s.nodePool(ctx, s.policy, pod, s.nodes); err != nil {
		return err
	}
	if since := podstatus.UnschedulableSince(pod); !since.IsZero() {
		view.Waits = s.Time.Since(since)
	}
	return s.volumes.look(ctx, pod, view)
}

// settle completes the state once all pods are read. Soon is as in [run.look].
func (s *sight) settle(ctx context.Context, scale *worldapi.Scale) (soon time.Duration, err error) {
	p, state, pods := s.policy, s.state, int64(len(s.pods))
	if err := s.dropCopies(ctx, p, state, s.pods, s.nodes); err != nil { // what they claim is not theirs
		return 0, err
	}
	state.Layout = p.Held(s.volumes.held).Layout
	s.bare.settle(state, p)
	state.Young = s.young()
	if p.Policy != nil {
		soon = leaveEarlier(state, s.first, leastWait(p))
	}
	if s.large != "" {
		s.noteLarge(s.owner, s.large)
	}
	state.Settled = state.Settled && pods == scale.Replicas
	if s.stuck(s.owner.Key(), scale.Current, scale.Replicas) && pods == scale.Current {
		state.Settled, state.Keep, state.Replicas = true, true, scale.Current // nothing is evicted whose successor may not come
	}
	state.Settled = state.Settled && !s.gated // such a pod gets its seat from package gate
	if state.RollingOut, err = s.rollingOut(ctx, s.owner); err != nil {
		return 0, err
	}
	if state.Yields, err = s.yieldingPools(ctx, s.owner, p); err != nil {
		return 0, err
	}
	state.Available, err = s.available(ctx, p, s.example, s.foreign)
	return soon, err
}

// carries reports whether a pod's claim, which was verified, names the policy.
func carries(pod *corev1.Pod, p *policy.Policy) bool {
	return ledger.UnverifiedSource(pod.Annotations[stowage.ClaimAnnotation]).UID == p.From.UID
}

// selected returns a function that reports what the live registration selects. It reports whether the API server
// sends a pod of a namespace to the webhook. It also reports whether it sends any pod of that namespace with its labels.
func (r *run) selected(ctx context.Context, namespace, templateNode string) (func(*corev1.Pod) (sent, namespaceSent bool), error) {
	registration, err := r.Registrations.Read(ctx)
	if err != nil {
		return nil, err
	}
	ns, err := r.World.Namespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return func(pod *corev1.Pod) (sent, namespaceSent bool) {
		if ns == nil {
			return false, false
		}
		created := pod.DeepCopy()
		created.Spec.NodeName = templateNode
		answer, _ := registration.Sent(ns.Labels, created)
		return answer == selection.Yes, registration.SentByLabels(ns.Labels, pod.Labels)
	}, nil
}

// revisions returns an owner as the cache knows it, and the other revisions of what made it.
func (r *run) revisions(ctx context.Context, owner ledger.Owner) (w *world.Workload, others []*world.Workload, err error) {
	w, err = r.World.Workload(ctx, owner.Namespace, seats.Ref(owner))
	if err != nil || w == nil || w.Controller == nil {
		return w, nil, err
	}
	others, err = r.World.PodOwners(ctx, owner.Namespace, *w.Controller)
	return w, slices.DeleteFunc(others, func(m *world.Workload) bool { return m.UID == owner.UID }), err
}

// rollingOut reports whether another revision of what made the owner has pods.
func (r *run) rollingOut(ctx context.Context, owner ledger.Owner) (bool, error) {
	_, others, err := r.revisions(ctx, owner)
	return slices.ContainsFunc(others, func(m *world.Workload) bool { return m.Replicas > 0 || m.Current > 0 }), err
}
