// Package admit is the feature that divides a workload's pods over node pools.
//
// It finds the pod's policy, asks for a seat and writes the seat into the pod. A pod that
// chooses its nodes itself gets none. Which seat is next is decided by package ledger.
package admit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Name is the name of the feature.
const Name = "spread"

// Seats gives seats to pods. seats.Service is the one on a cluster, ledger.Memory the one of
// decisions that are made offline.
type Seats interface {
	Claim(ctx context.Context, owner ledger.Owner, s *sequence.Strategy, writeCost bool) (ledger.Result, error)
	Peek(owner ledger.Owner, s *sequence.Strategy) (ledger.Seat, error)
	Claimed(ctx context.Context, owner ledger.Owner, id string) (bool, error)
	// GiveBack ends a claim that no pod will have.
	GiveBack(owner ledger.Owner, id string)
}

// Feature is the feature.
type Feature struct {
	Policies *policy.Finder
	Seats    Seats
	Key      ledger.Key
	Audits   *Audits
	// Unsettled reports whether what is known of policies and owners may be old; nil is never.
	Unsettled func() bool
	// Nodes is nil where nodes are not known.
	Nodes nodefit.Lister
	// Pods returns an owner's pods that have a seat. It is nil where they are not known.
	Pods func(ledger.OwnerKey) []observed.Pod
}

var _ feature.SeatGiver = &Feature{}

// GivesSeats implements [feature.SeatGiver].
func (*Feature) GivesSeats() {}

// Name implements [feature.Feature].
func (f *Feature) Name() string { return Name }

// Decide implements [feature.Feature].
func (f *Feature) Decide(ctx context.Context, req feature.Request) (feature.Decision, error) {
	// 1. Has the pod a strategy?
	owner := req.Pod.Controller()
	if owner == nil || owner.ChoosesNodes() || !owner.Plausible() {
		return feature.Decision{}, nil
	}
	ref := world.Ref{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: types.UID(owner.UID)}
	p, err := f.Policies.FindForAdmission(ctx, policy.Pod{Namespace: req.Namespace, Owner: ref, Annotations: req.Pod.Metadata.Annotations})
	switch {
	case errors.Is(err, policy.ErrOwnerGone):
		return f.withoutPolicy(req, err), nil
	case err != nil:
		return feature.Decision{}, err
	case p == nil:
		return f.withoutPolicy(req, nil), nil
	case p.Layout == nil:
		return invalid(req, p), nil
	}

	// 2. Has it a seat from an earlier pass? One that is not genuine goes.
	a := assignment{pod: req.Pod.Clone(), policy: p, seat: placement.Seat{Strategy: p.Strategy, Preferred: p.Preferred, Distributed: p.Distributor != nil}}
	a.owner = ledger.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: req.Namespace, Name: ref.Name, UID: ref.UID, Unverified: p.Unverified}
	a.rank, a.seat.OwnOrdinal = placement.OwnRank(a.pod, p.FirstOrdinal())
	kept, err := f.keep(ctx, &a, req.Traceless())
	if err != nil {
		return feature.Decision{}, err
	}
	if a.former { // the decision stands as a whole, so that no pod has a part of each
		return feature.Decision{Pod: req.Pod, Summary: "one with the seat that an earlier call gave it, by the policy as it was"}, nil
	}
	if key, pinned := placement.Pinned(a.pod, p.Strategy, a.ownNodes(kept)); pinned {
		return a.leavePinned(req.Pod, kept, key), nil
	}
	if !p.Preferred && placement.TooLarge(a.pod, p.Strategy) {
		text := fmt.Sprintf("%s: a pod gets no seat, because it has too many terms of node affinity for the expressions of the pools", p.Told())
		return feature.Decision{Pod: a.pod, Warnings: append(slices.Clone(p.Warnings), text), Events: []feature.Event{{Reason: stowage.EventInvalidStrategy, Note: text}}}, nil
	}
	if req.Exists && !p.Preferred && placement.TakesMinDomains(a.pod, p.Strategy) {
		return feature.Decision{}, nil // with a seat it might wait for ever; it gets the seat of where it runs
	}
	// 3. Give it one.
	return f.seat(ctx, &a, req, kept)
}

// seat gives a pod its seat. kept means that an earlier pass gave it one.
func (f *Feature) seat(ctx context.Context, a *assignment, req feature.Request, kept bool) (feature.Decision, error) {
	p := a.policy
	d := feature.Decision{Pod: a.pod, Warnings: slices.Clone(p.Warnings)}
	if !p.Preferred {
		d.Warnings = append(d.Warnings, placement.UnmetConstraints(a.pod, p.Strategy)...)
		if text, _ := placement.UnmetAffinity(a.pod, p.Strategy); text != "" {
			d.Warnings = append(d.Warnings, text)
		}
	}
	if !kept && !a.full {
		if given, err := f.give(ctx, a, req, &d); err != nil || !given {
			return d, err
		}
	}
	if a.full {
		d.Summary = "one without a pool, because every pool has as many pods as it may have"
		return d, nil
	}
	a.seat.Tolerations = p.TolerationsOf(a.seat.Pool)
	a.seat.Apply(a.pod)
	pool := p.Pool(a.seat.Pool)
	d.Pool = &feature.Pool{Name: pool.Name, Nodes: a.seat.Nodes()}
	d.Summary = fmt.Sprintf("seat %d of pool %s (%s)", a.seat.Ordinal, pool.Name, d.Pool.Nodes)
	if !req.Exists {
		f.carry(ctx, a, &d)
	}
	return d, nil
}

// carry gives a new pod what its pool gives.
func (f *Feature) carry(ctx context.Context, a *assignment, d *feature.Decision) {
	carry, ungiven := a.policy.Gives(a.seat.Pool)
	pool := a.policy.Pool(a.seat.Pool).Name
	if ungiven != "" {
		d.Warnings = append(d.Warnings, a.policy.Told()+": "+ungiven)
	}
	if carry.Empty() {
		return
	}
	if grouped := a.pod.Spec.SchedulingGroup != nil || a.pod.Spec.WorkloadRef != nil; grouped {
		carry.PriorityClass = "" // the pods of a scheduling group have one priority
	}
	if name := carry.PriorityClass; name != "" {
		class, err := f.Policies.World.PriorityClass(ctx, name)
		if class != nil {
			carry.Priority, carry.Preemption = class.Value, class.PreemptionPolicy
		} else {
			carry.PriorityClass = ""
			text := withoutClass(a.policy, pool, name, err)
			d.Warnings = append(d.Warnings, text)
			d.Events = append(d.Events, feature.Event{Reason: stowage.EventPriorityClassMissing, Note: text})
		}
	}
	if carry.Annotations != nil && podpatch.FreeAnnotations(a.pod.Metadata.Annotations)-carry.Bytes(a.pod) < 0 {
		carry.Annotations = nil // with them, the API server would refuse the pod
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s: pool %s has podAnnotations, which a pod did not get: it has too many of its own", a.policy.Told(), pool))
	}
	carry.Apply(a.pod)
	if text := carry.String(); text != "" {
		d.Summary += ", with " + text
	}
}

// withoutClass says that a pod of a pool did not get the PriorityClass of a name: there is none, or it could not be read. People
// who create pods may not be allowed to read ClusterSpreadPolicies, and the names of PriorityClasses in them.
func withoutClass(p *policy.Policy, pool, name string, err error) string {
	if p.OfCluster() {
		why := "which pods do not get: there is no such PriorityClass"
		if err != nil {
			why = "which a pod did not get: it could not be read"
		}
		return fmt.Sprintf("%s: pool %s has a priorityClassName, %s", p.Told(), pool, why)
	}
	if err != nil {
		return fmt.Sprintf("%s: pool %s has priorityClassName %s, which a pod did not get: %v", p.Told(), pool, name, err)
	}
	return fmt.Sprintf("%s: pool %s has priorityClassName %s, which pods do not get: there is no such PriorityClass", p.Told(), pool, name)
}

// withoutPolicy decides about a pod that nothing divides. Gone says that its owner is not there. One with the gate waits where that may change.
func (f *Feature) withoutPolicy(req feature.Request, gone error) feature.Decision {
	switch {
	case !req.Pod.Gated(stowage.SeatGate):
		return feature.Decision{}
	case f.Unsettled != nil && f.Unsettled():
		return feature.Decision{Pod: req.Pod, Wait: errUnsettled} // the leader decides, or this process a moment later
	case gone != nil:
		return feature.Decision{Pod: req.Pod, Wait: fmt.Errorf("%w: %w", feature.ErrUndecidable, gone)}
	}
	return feature.Decision{}
}

// invalid decides about a pod whose strategy cannot be read.
func invalid(req feature.Request, p *policy.Policy) feature.Decision {
	gated, becomes := req.Pod.Gated(stowage.SeatGate), "are admitted as they are"
	if gated {
		becomes = "wait for a minute, and then run as they are"
	}
	why := "its status says why"
	if !p.OfCluster() { // the errors quote the policy, which people who create pods may not read
		why = strings.ReplaceAll(p.Err.Error(), "\n", "; ")
	}
	text := fmt.Sprintf("%s is invalid, so its pods %s: %s", p.Told(), becomes, why)
	d := feature.Decision{Pod: req.Pod, Warnings: []string{text}, Events: []feature.Event{{Reason: stowage.EventInvalidStrategy, Note: text}}}
	if gated {
		d.Wait = fmt.Errorf("%w: %s is invalid", feature.ErrUndecidable, p.Told())
	}
	return d
}

// leavePinned decides about a pod that chooses its nodes itself, by a key. Kept says that an earlier pass gave it a seat.
func (a *assignment) leavePinned(was *podpatch.Pod, kept bool, key string) feature.Decision {
	if kept { // another webhook chose nodes since
		a.seat.Withdraw(a.pod, a.seat.OtherPool(a.pod))
	}
	placement.Strip(a.pod)
	changed := len(podpatch.Diff(was, a.pod)) > 0
	if !changed && len(a.policy.Warnings) == 0 {
		return feature.Decision{}
	}
	d := feature.Decision{Pod: a.pod, Warnings: a.policy.Warnings}
	if changed {
		d.Summary = "one without a seat, because it chooses its nodes itself by " + key
	}
	return d
}

// give gives a seat to a pod. It returns false if the decision is complete without one.
func (f *Feature) give(ctx context.Context, a *assignment, req feature.Request, d *feature.Decision) (given bool, _ error) {
	gated := req.Pod.Gated(stowage.SeatGate)
	if err := f.bindVolumes(ctx, a); err != nil {
		a.seatless(d, err, gated)
		return false, nil
	}
	switch err := f.assign(ctx, a, req, d); {
	case gated && errors.Is(err, errUnsure):
		d.Wait = err
		return false, nil
	case errors.Is(err, sequence.ErrFull):
		f.admitFull(a, req.Traceless(), d)
	case err != nil:
		*d = feature.Decision{}
		return false, err
	}
	return true, nil
}

// assignment is a pod on its way to a seat.
type assignment struct {
	pod    *podpatch.Pod
	policy *policy.Policy
	owner  ledger.Owner
	seat   placement.Seat
	rank   int64 // of a pod with an ordinal of its own
	// held is the seat of a pod with an ordinal of its own that has bound volumes, and domain the one of that seat. It is nil for others.
	held   *sequence.Seat
	domain int
	full   bool // every pool has its maximum
	former bool // an earlier pass decided by another policy, or another generation of it
}

// ownNodes are the nodes that an earlier pass wrote into the pod.
func (a *assignment) ownNodes(kept bool) nodeset.Set {
	if !kept {
		return nodeset.Set{}
	}
	return a.seat.Nodes()
}

func (a *assignment) holder() ledger.Holder {
	return ledger.Holder{Namespace: a.owner.Namespace, Owner: string(a.owner.UID)}
}

// keep reports whether the pod has a seat that Stowage gave it in an earlier pass, and
// takes any other seat from it.
func (f *Feature) keep(ctx context.Context, a *assignment, dryRun bool) (bool, error) {
	m := &a.pod.Metadata
	_, hasPool := m.Labels[stowage.PoolLabel]
	_, hasSeat := m.Labels[stowage.SeatLabel]
	_, hasClaim := m.Annotations[stowage.ClaimAnnotation]
	if !hasPool && !hasSeat && !hasClaim {
		placement.Strip(a.pod) // of what a template that was copied from a pod may have
		return false, nil
	}
	if a.full = !hasPool && !hasSeat && f.foundFull(a, dryRun); a.full {
		return false, nil
	}
	a.seat.Claim = m.Annotations[stowage.ClaimAnnotation]
	carried, genuine := ledger.Read(f.Key, a.owner.Namespace, a.owner.UID, m.Labels, m.Annotations)
	pool, known := a.policy.PoolKeyed(carried.Pool)
	other := !carried.Source.Same(a.policy.From) // the policy has changed since
	domain, knownDomain := a.policy.Whole().DomainNamed(carried.Domain)
	known = known && knownDomain
	if genuine && (known || other) {
		a.seat.Seat, a.seat.Domain, a.seat.CostRank = sequence.Seat{Pool: pool, Ordinal: carried.Ordinal}, domain, ledger.CostRank(carried.ID)
		given, err := f.gave(ctx, a, &carried, other, dryRun)
		if err != nil {
			return false, err
		}
		if a.former = given && other; given {
			return !other, nil
		}
		if known {
			a.seat.Withdraw(a.pod, nil)
		}
	}
	placement.Strip(a.pod)
	return false, nil
}

// foundFull reports whether an earlier pass found every pool full.
func (f *Feature) foundFull(a *assignment, dryRun bool) bool {
	origin, _, genuine := f.Key.Verify(a.pod.Metadata.Annotations[stowage.ClaimAnnotation], a.holder(), ledger.Seat{})
	return genuine && (origin == ledger.OriginFull || dryRun && origin == ledger.OriginDryRun)
}

// gave reports whether an earlier pass gave a pod the seat that it carries, with its proof. Other says that it was by another policy, or another
// generation of it.
func (f *Feature) gave(ctx context.Context, a *assignment, carried *ledger.Carried, other, dryRun bool) (bool, error) {
	switch carried.Origin {
	case ledger.OriginDryRun:
		return dryRun, nil
	case ledger.OriginClaimed, ledger.OriginUnshared:
		return f.Seats.Claimed(ctx, a.owner, carried.ID)
	case ledger.OriginOrdinal:
		if !a.seat.OwnOrdinal || other {
			return a.seat.OwnOrdinal && len(a.pod.Spec.NodeSelector)+len(a.pod.RequiredTerms()) > 0, nil // a call wrote it, and not only the template
		}
		seat, err := a.policy.OfOrdinal(a.rank)
		return err == nil && seat == a.seat.Seat, nil
	}
	return false, nil // an adopted pod is not created again
}

// errUnsettled means that a process was frozen, and may not know of a policy that was made meanwhile.
var errUnsettled = errors.New("the process was frozen, and may not know the policies of now")

// errUnsure means that a seat would be no more than a guess.
var errUnsure = errors.New("no seat could be claimed for sure")

// claim claims the next free seat. Of a pod that can wait at the gate, it gives back a seat that is a guess: see [errUnsure].
func (f *Feature) claim(ctx context.Context, a *assignment, req feature.Request) (ledger.Result, error) {
	_, hasCost := a.pod.Metadata.Annotations[corev1.PodDeletionCost]
	res, err := f.Seats.Claim(ctx, a.owner, a.policy.Strategy, !hasCost)
	if guess := res.Unverified || err == nil && !res.Written; !guess || !req.Pod.Gated(stowage.SeatGate) {
		return res, err
	}
	f.Seats.GiveBack(a.owner, res.ID)
	if err != nil {
		return res, fmt.Errorf("%w: %w", errUnsure, err)
	}
	return res, fmt.Errorf("%w: the API was too slow", errUnsure)
}

// assign gives the pod a seat: the one of its own ordinal, or the next free one. A pod that can wait at the gate gets no seat that is
// a guess: see [errUnsure].
func (f *Feature) assign(ctx context.Context, a *assignment, req feature.Request, d *feature.Decision) error {
	s := a.policy.Strategy
	origin, id, seat := ledger.OriginClaimed, "", ledger.Seat{}
	switch {
	case a.seat.OwnOrdinal:
		own, err := a.policy.OfOrdinal(a.rank)
		if err != nil {
			return err
		}
		if a.held != nil {
			own = *a.held
		}
		origin, seat = ledger.OriginOrdinal, ledger.Seat{Pool: s.PoolKey(own.Pool), Ordinal: own.Ordinal}
	case req.Audit:
		ref := world.Ref{APIVersion: a.owner.APIVersion, Kind: a.owner.Kind, Name: a.owner.Name, UID: a.owner.UID}
		next, err := f.Audits.next(ctx, f.Policies.World, a.owner.Namespace, ref, s, !req.DryRun)
		if err != nil {
			return err
		}
		origin, seat = ledger.OriginDryRun, ledger.Seat{Pool: s.PoolKey(next.Pool), Ordinal: next.Ordinal}
	case req.DryRun:
		next, err := f.Seats.Peek(a.owner, s)
		if err != nil {
			return err
		}
		origin, seat = ledger.OriginDryRun, next
	default:
		res, err := f.claim(ctx, a, req)
		if err != nil {
			return err
		}
		id, seat = res.ID, res.Seat
		if !res.Written {
			origin = ledger.OriginUnshared
			text := "the API was too slow to share a seat among the replicas, so the counts of " + a.policy.Told() + " may be off by a pod"
			d.Warnings = append(d.Warnings, text)
			d.Events = append(d.Events, feature.Event{Reason: stowage.EventSeatNotShared, Note: text})
		}
	}
	pool, _ := a.policy.PoolKeyed(seat.Pool)
	a.seat.Seat, a.seat.CostRank = sequence.Seat{Pool: pool, Ordinal: seat.Ordinal}, ledger.CostRank(id)
	a.seat.Domain = a.policy.DomainOf(a.seat.Seat)
	if a.held != nil {
		a.seat.Domain = a.domain
	}
	seat.Domain = a.policy.Whole().DomainName(a.seat.Domain)
	source := a.policy.From
	if !a.policy.Preferred {
		source.Selector = a.policy.Whole().SelectorHash(pool)
	}
	a.seat.Claim = f.Key.Sign(origin, ledger.WithSource(id, seat.Pool, source), a.holder(), seat)
	return nil
}

// admitFull marks a pod that no pool may take: it came through Stowage, and has no pool for that reason.
func (f *Feature) admitFull(a *assignment, dryRun bool, d *feature.Decision) {
	origin := ledger.OriginFull
	if dryRun {
		origin = ledger.OriginDryRun
	}
	a.full = true
	a.pod.SetAnnotation(stowage.ClaimAnnotation, f.Key.Sign(origin, "", a.holder(), ledger.Seat{}))
	text := fmt.Sprintf("%s: %v, so a pod was admitted without a pool", a.policy.Told(), sequence.ErrFull)
	d.Warnings = append(d.Warnings, text)
	d.Events = append(d.Events, feature.Event{Reason: stowage.EventPoolsFull, Note: text})
}
