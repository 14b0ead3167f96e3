package inspect

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// spreadFacts are what is known of where a pod goes. Facts that were not needed, or may not be read, are absent.
type spreadFacts struct {
	Owner *objectName `json:"owner,omitempty"` // what controls the pod
	// NeverSeated says that the pods of such an owner have their nodes already.
	NeverSeated bool         `json:"neverSeated,omitempty"`
	NoStrategy  *noStrategy  `json:"noStrategy,omitempty"`
	Policy      *policyFacts `json:"policy,omitempty"`
	// Others are sources that could divide the pods, and do not.
	Others []policy.Other `json:"others,omitempty"`
	Seat   *seatFacts     `json:"seat,omitempty"`
	NoSeat *noSeat        `json:"noSeat,omitempty"`
	// Replicas is how many pods the owner asks for, and Pools how they are divided.
	Replicas  int64           `json:"replicas,omitempty"`
	Pools     []Pool          `json:"pools,omitempty"`
	Shortages []shortageFacts `json:"exhausted,omitempty"`
	// Unsuitable are the pools of the policy in which no pod of the workload can run.
	Unsuitable []stowage.UnsuitablePool `json:"unsuitable,omitempty"`
}

// objectName is an object of the pod's namespace.
type objectName struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

func (o objectName) String() string { return bounded.Name(o.Kind) + " " + bounded.Name(o.Name) }

// noStrategy is why no strategy divides the owner's pods.
type noStrategy struct {
	Namespace string `json:"namespace"` // of the pod
	// OwnerGone says that what controls the pod does not exist. Then strategies of the pod do not count.
	OwnerGone bool `json:"ownerGone,omitempty"`
	// Annotations is whose annotations do not count, or "the pod". It is empty where nobody has any.
	Annotations string `json:"annotations,omitempty"`
	// Wrong is what is wrong with them. If nothing is, annotations do not count in this namespace.
	Wrong []string `json:"wrong,omitempty"`
	// Unselecting are policies that do not select the workload, and why.
	Unselecting []policy.Other `json:"unselecting,omitempty"`
	// For is what a policy could be for: the owner, what made it, and so on.
	For []string `json:"for,omitempty"`
	// Seated says that the pod has a seat all the same, of a source that is gone or does not count any more.
	Seated bool `json:"seated,omitempty"`
	// Unreadable says that Stowage may not read what controls the pod.
	Unreadable string `json:"unreadable,omitempty"`
	// OfPolicy says that the pod has a seat of a policy all the same. That policy is gone, does not select the pod any more, or may not be
	// read.
	OfPolicy bool `json:"ofPolicy,omitempty"`
}

// policyFacts are the policy of a pod.
type policyFacts struct {
	Source   string     `json:"source"`
	Invalid  string     `json:"invalid,omitempty"` // why it is; then it has no pools
	Pools    []poolRule `json:"pools,omitempty"`
	Warnings []string   `json:"warnings,omitempty"`
	// Preferred says that pods may run outside of their pool.
	Preferred bool `json:"preferred,omitempty"`
}

// poolRule is a pool of a policy.
type poolRule struct {
	Name        string `json:"name"`
	nodeset.Set `json:",inline"`
	Base        int64 `json:"base"`
	Weight      int64 `json:"weight"`
	Max         int64 `json:"max,omitempty"`        // 0 is no limit
	MaxPercent  int64 `json:"maxPercent,omitempty"` // of the pods beyond all bases; 0 is no limit
	// Gives is what its new pods get beside a seat and tolerations, in words.
	Gives string `json:"gives,omitempty"`
}

// seatFacts are the seat of a pod.
type seatFacts struct {
	Pool    string `json:"pool"`
	Domain  string `json:"domain,omitempty"`
	Ordinal int64  `json:"ordinal"`
	// Proven says that the pod carries a proof. Only a holder of the key can tell whether that is genuine.
	Proven bool `json:"proven"`
	// Origin is where the seat comes from, or empty if that is not known.
	Origin string `json:"origin,omitempty"`
	// PoolRemoved says that the policy does not have the pool any more. Then the rest is not known.
	PoolRemoved bool `json:"poolRemoved,omitempty"`
	// Number is the seat's number in the sequence of all seats, or 0 if it has none.
	Number int64 `json:"number,omitempty"`
	// DeletionCost is the pod's, and ForeignCost says that Stowage did not write it. Without one, the owner removes pods by
	// their ordinals.
	DeletionCost *string `json:"deletionCost,omitempty"`
	ForeignCost  bool    `json:"foreignCost,omitempty"`
	// HeldBy is what keeps the pod on the pool's nodes.
	HeldBy      holder `json:"heldBy,omitempty"`
	nodeset.Set        // the pool's nodes
	// Node is the pod's node, or empty while the pod waits for one. InPool says whether it is one of the pool's; nil if that
	// may not be read.
	Node   string `json:"node,omitempty"`
	InPool *bool  `json:"inPool,omitempty"`
}

// holder is what keeps a pod on the nodes of its pool.
type holder string

const (
	bySelector holder = "NodeSelector"
	byRequired holder = "NodeAffinity"
	byAffinity holder = "Affinity" // it prefers them
	byNothing  holder = "Nothing"  // an adopted pod is as its template made it, and the pool may have other labels since
)

// noSeat is why a pod has no seat though it has a strategy.
type noSeat struct {
	ChoosesNodesBy string `json:"choosesNodesBy,omitempty"`
	PoolsFull      bool   `json:"poolsFull,omitempty"`
	// VolumeElsewhere says that no node of a pool reaches the pod's volume.
	VolumeElsewhere bool `json:"volumeElsewhere,omitempty"`
	// Unreadable says that Stowage may not read the pod's owner.
	Unreadable string `json:"unreadable,omitempty"`
	// Adopted says that Stowage gives the pod a seat in the pool that it runs in.
	Adopted bool   `json:"adopted,omitempty"`
	RunsIn  string `json:"runsIn,omitempty"`
	// Waits says that the pod waits at the gate until the leader has a seat for it.
	Waits bool `json:"waits,omitempty"`
	bypass
}

// shortageFacts are a pool without room.
type shortageFacts struct {
	spill.Shortage `json:"-"`
	Pool           string     `json:"pool"`
	Since          time.Time  `json:"since"`
	NextTry        *time.Time `json:"nextTry,omitempty"` // nil while it is being tried
	Max            int64      `json:"max"`
	// PodWaits says that the pod waits in this pool, and PodMoved that it runs elsewhere because of it.
	PodWaits bool `json:"podWaits,omitempty"`
	PodMoved bool `json:"podMoved,omitempty"`
	// Untaken says why no other pool takes more of the pods that wait. It is empty where others take them.
	Untaken string `json:"untaken,omitempty"`
}

// spread looks where the pod goes, and why.
func (s *subject) spread(ctx context.Context, f *spreadFacts) error {
	// 1. Has it a strategy?
	p, err := s.strategy(ctx, f)
	if err != nil || p == nil {
		return err
	}

	// 2. Has it a seat?
	name, pooled := s.pod.Labels[stowage.PoolLabel]
	ordinal, err := strconv.ParseInt(s.pod.Labels[stowage.SeatLabel], 10, 64)
	if !pooled || err != nil {
		f.NoSeat = s.noSeat(ctx, p)
		return s.divide(ctx, f, p)
	}
	claim := s.pod.Annotations[stowage.ClaimAnnotation]
	f.Seat = &seatFacts{Pool: name, Domain: s.pod.Labels[stowage.DomainLabel], Ordinal: ordinal, Proven: claim != "", Origin: originOf(claim)}
	pool, ok := p.PoolKeyed(poolOf(s.pod))
	f.Seat.PoolRemoved = !ok
	if err := s.divide(ctx, f, p); err != nil || !ok {
		return err
	}
	position := cmp.Or(ledger.Position(ledger.UnverifiedID(claim)), ordinal)
	if rank, ok := p.Rank(sequence.Seat{Pool: pool, Ordinal: position}); ok {
		f.Seat.Number = rank
	}
	if f.Seat.Origin != originOrdinal {
		seen := observed.Unverified(s.pod, types.UID(s.owner.UID))
		f.Seat.DeletionCost = &seen.Cost
		_, f.Seat.ForeignCost = seen.CostRank(p.Layout)
	}

	// 3. Has every pool room, and is the pod where its seat is?
	if p.Unsuitable() != nil {
		f.Unsuitable = p.State.Unsuitable
	}
	f.Shortages = s.shortages(p, f.Seat, p.Whole().Target(pool, f.Replicas), f.Replicas)
	domain, known := p.DomainNamed(f.Seat.Domain)
	if !known {
		domain = -1
	}
	return s.node(ctx, f.Seat, p, p.Nodes(pool, domain))
}

// strategy looks what divides the pods of the owner. It returns nil where nothing does, or an invalid policy.
func (s *subject) strategy(ctx context.Context, f *spreadFacts) (*policy.Policy, error) {
	if s.owner == nil {
		return nil, nil
	}
	f.Owner = &objectName{s.owner.Kind, s.owner.Name}
	if f.NeverSeated = s.owner.ChoosesNodes(); f.NeverSeated {
		return nil, nil
	}
	finder, of := s.finder(s.reader), policy.Pod{Namespace: s.pod.Namespace, Owner: s.chain[0], Annotations: s.pod.Annotations}
	p, err := finder.Find(ctx, of)
	if err != nil {
		return nil, err
	}
	if f.Others, err = finder.Others(ctx, of, p); err != nil {
		return nil, err
	}
	if p == nil {
		f.NoStrategy = s.noStrategy()
		f.NoStrategy.Seated = s.pod.Labels[stowage.SeatLabel] != "" && proven(s.pod)
		f.NoStrategy.OfPolicy = ofPolicy(s.pod)
		f.NoStrategy.Unreadable = s.unreadable(ctx, false)
		f.NoStrategy.Unselecting, err = finder.Unselecting(ctx, of)
		return nil, err
	}
	s.policy = p
	f.Policy = &policyFacts{Source: p.Source}
	if p.Layout == nil {
		f.Policy.Invalid = oneLine(p.Err)
		return nil, nil
	}
	for n := range p.Len() {
		pool := p.Pool(n)
		gives := p.CarryOf(n)
		f.Policy.Pools = append(f.Policy.Pools, poolRule{pool.Name, pool.Nodes(), pool.Base, pool.Weight, pool.Max, pool.MaxShare, gives.String()})
	}
	f.Policy.Warnings, f.Policy.Preferred = p.Warnings, p.Preferred
	return p, nil
}

// noSeat looks why the pod has no seat.
func (s *subject) noSeat(ctx context.Context, p *policy.Policy) *noSeat {
	created := placement.AsCreated(s.view, p.Strategy, s.templateNode())
	if key, pinned := placement.Pinned(created, p.Strategy, nodeset.Set{}); pinned {
		return &noSeat{ChoosesNodesBy: key}
	}
	if p.Distributor == nil {
		if unreadable := s.unreadable(ctx, true); unreadable != "" {
			return &noSeat{Unreadable: unreadable}
		}
	}
	if foundFull(s.pod) {
		return &noSeat{PoolsFull: true}
	}
	if s.view.Gated(stowage.SeatGate) {
		return &noSeat{Waits: true}
	}
	reach, err := s.finder(s.reader).Reached(ctx, p, policy.BoundPod(s.pod), nil)
	if err == nil && reach != nil && reach.Nowhere() {
		return &noSeat{VolumeElsewhere: true}
	}
	if node, err := s.reader.Node(ctx, s.pod.Spec.NodeName); err == nil && node != nil && s.unseen == "" && adoptable(p, s.pod, node.Labels) && s.listed(ctx) {
		return &noSeat{Adopted: true, RunsIn: p.Pool(p.PoolOfNode(node.Labels)).Name}
	}
	return &noSeat{bypass: s.bypass()}
}

// shortages are the pools without room. A seat beyond what its pool should have came from one of them.
func (s *subject) shortages(p *policy.Policy, seat *seatFacts, target, replicas int64) (out []shortageFacts) {
	untaken := ""
	if gaps, some := division.Gaps(p.Layout, p.State, p.Spill); some {
		untaken = division.Untaken(p.Layout, gaps, replicas)
	}
	for _, in := range p.Shortages() {
		own := in.Pool == seat.Pool
		facts := shortageFacts{
			Shortage: in, Pool: in.Pool, Since: in.State.Since, Max: in.State.Max,
			Untaken: untaken, PodWaits: own && s.pod.Spec.NodeName == "", PodMoved: !own && seat.Ordinal > target,
		}
		if in.State.Phase == spill.Exhausted {
			facts.NextTry = &in.State.Next
		}
		out = append(out, facts)
	}
	return out
}

// noStrategy looks why there is no strategy.
func (s *subject) noStrategy() *noStrategy {
	type source struct {
		of, kind    string
		annotations map[string]string
	}
	if owner := s.chain[0]; len(s.roots) == 0 && owner.Watched() && s.reader.MayRead(s.pod.Namespace, owner) {
		return &noStrategy{Namespace: s.pod.Namespace, OwnerGone: true}
	}
	sources := []source{{"the pod", "Pod", s.pod.Annotations}}
	for _, w := range s.roots {
		sources = append(sources, source{w.Kind + " " + w.Name, w.Kind, w.Annotations})
	}
	for _, src := range sources {
		if _, ok := policy.StrategyText(src.annotations); ok {
			return &noStrategy{Namespace: s.pod.Namespace, Annotations: src.of}
		}
		var wrong []string
		for _, f := range policy.Check(src.kind, feature.Metadata{Annotations: src.annotations}, nil) {
			wrong = append(wrong, f.Text)
		}
		if len(wrong) > 0 {
			return &noStrategy{Namespace: s.pod.Namespace, Annotations: src.of, Wrong: wrong}
		}
	}
	out := &noStrategy{Namespace: s.pod.Namespace}
	for _, o := range s.chain {
		out.For = append(out.For, o.Kind+" "+o.Name)
	}
	return out
}

// proven reports whether a pod carries a proof of its seat. Whether that is genuine only
// who has the key can tell.
func proven(pod *corev1.Pod) bool { return pod.Annotations[stowage.ClaimAnnotation] != "" }

// ofPolicy reports whether a pod's claim says that its seat is of a SpreadPolicy or a ClusterSpreadPolicy.
func ofPolicy(pod *corev1.Pod) bool {
	return ledger.UnverifiedSource(pod.Annotations[stowage.ClaimAnnotation]).UID != ""
}

// adopted reports whether a pod got its seat after it was created.
func adopted(pod *corev1.Pod) bool {
	return strings.HasPrefix(pod.Annotations[stowage.ClaimAnnotation], string(ledger.OriginAdopted))
}

// originOf returns a word for where a claim says that its seat comes from, or nothing.
func originOf(claim string) string {
	if claim == "" {
		return ""
	}
	return map[ledger.Origin]string{
		ledger.OriginClaimed: originClaimed, ledger.OriginUnshared: originUnshared, ledger.OriginOrdinal: originOrdinal, ledger.OriginAdopted: originAdopted,
	}[ledger.Origin(claim[0])]
}

// The words for origins.
const (
	originClaimed  = "Claimed"
	originUnshared = "Unshared"
	originOrdinal  = "Ordinal"
	originAdopted  = "Adopted"
)

// divide counts the pods of the owner, and how many each pool should have.
func (s *subject) divide(ctx context.Context, f *spreadFacts, p *policy.Policy) error {
	owner := ledger.Owner{APIVersion: s.owner.APIVersion, Kind: s.owner.Kind, Namespace: s.pod.Namespace, Name: s.owner.Name, UID: types.UID(s.owner.UID)}
	seen := observed.Owner{Workload: &world.Workload{Ref: seats.Ref(owner), Namespace: owner.Namespace}}
	var err error
	if s.nodes, err = s.nodeLabels(ctx); readable(err) != nil {
		return err
	}
	var unseated []*corev1.Pod
	which := []client.ListOption{client.InNamespace(s.pod.Namespace)}
	if len(podstatus.VolumeClaims(&s.pod.Spec)) == 0 { // else those without a seat may be where their volumes are
		which = append(which, client.HasLabels{stowage.SeatLabel})
	}
	err = each(ctx, s.Inspector, &corev1.PodList{}, func(pod *corev1.Pod) {
		switch c := metav1.GetControllerOfNoCopy(pod); {
		case c == nil || c.UID != owner.UID || !podstatus.Active(pod):
		case proven(pod):
			seen.Pods = append(seen.Pods, observed.Unverified(pod, owner.UID))
		default:
			unseated = append(unseated, pod)
		}
	}, which...)
	if err != nil {
		return err
	}
	var d division.Division
	replicas := d.AddPods(p.Whole(), s.viewOf(p, s.nodes).Pods(seen.Pods)) // as status does, whatever lacks room
	scale, err := worldapi.ReadScale(ctx, s.Client, owner.Namespace, seats.Ref(owner))
	if readable(err) != nil {
		return err
	}
	if scale != nil {
		replicas = scale.Replicas
	}
	finder, nodes := s.finder(s.reader), s.newCells().with(ctx)
	p = finder.Holding(ctx, p, seen, nodes)
	d.AddTargets(p.Layout, p.Divide(replicas, seen.Indexed(p.Layout), finder.Elsewhere(ctx, p, seen, unseated, nodes)))
	f.Replicas, f.Pools = replicas, poolsOf(&d)
	return nil
}

// node looks how the pod is held to the nodes of its pool, which have some labels, and whether it is on one.
func (s *subject) node(ctx context.Context, f *seatFacts, p *policy.Policy, want nodeset.Set) error {
	f.Set, f.HeldBy, f.Node = want, bySelector, s.pod.Spec.NodeName
	switch {
	case p.Preferred:
		f.HeldBy = byAffinity
	case !nodeset.PinsOf(&s.pod.Spec).AskFor(want):
		f.HeldBy = byNothing // the node selector of its template is as it was
	case !want.Equalities():
		f.HeldBy = byRequired
	}
	if f.Node == "" {
		return nil
	}
	node, err := s.reader.Node(ctx, f.Node)
	if err == nil && node != nil {
		f.InPool = new(want.Has(node.Labels))
	}
	return readable(err)
}
