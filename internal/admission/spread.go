package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/spread"
)

// Seats gives seats to pods. [ledger.Ledger] is the one on a cluster.
type Seats interface {
	Claim(ctx context.Context, owner ledger.Owner, s *spread.Strategy) (ledger.Result, error)
	Peek(owner ledger.Owner, s *spread.Strategy) (ledger.Seat, error)
	Claimed(ctx context.Context, owner ledger.Owner, id string) (bool, error)
}

// Spread is the feature that divides a workload's pods over node pools.
type Spread struct {
	Policies *policy.Finder
	Seats    Seats
	Key      ledger.Key
}

var _ Feature = &Spread{}

// The reasons of the feature's events.
const (
	ReasonInvalidStrategy = "InvalidStrategy"
	ReasonPoolsFull       = "PoolsFull"
	ReasonUnsharedSeat    = "SeatNotShared"
)

// SpreadName is the name of the feature.
const SpreadName = "spread"

// Name implements [Feature].
func (f *Spread) Name() string { return SpreadName }

// Decide implements [Feature].
func (f *Spread) Decide(ctx context.Context, req Request) (Decision, error) {
	// 1. Has the pod a strategy?
	owner := req.Pod.Controller()
	if owner == nil || NeverSeated(owner) || !plausible(owner) {
		return Decision{}, nil
	}
	ref := cluster.Ref{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: types.UID(owner.UID)}
	p, err := f.Policies.Find(ctx, policy.Pod{Namespace: req.Namespace, Owner: ref, Annotations: req.Pod.Metadata.Annotations})
	if p == nil || err != nil {
		return Decision{}, err
	}
	if p.Strategy == nil {
		text := fmt.Sprintf("%s is invalid, so its pods are admitted as they are: %s", p.Source, strings.ReplaceAll(p.Err.Error(), "\n", "; "))
		return Decision{Pod: req.Pod, Warnings: []string{text}, Events: []Event{{Reason: ReasonInvalidStrategy, Note: text}}}, nil
	}

	// 2. Has it a seat from an earlier pass? One that is not genuine goes.
	a := assignment{pod: req.Pod.Clone(), policy: p}
	a.owner = ledger.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: req.Namespace, Name: ref.Name, UID: ref.UID}
	ours, err := f.keep(ctx, &a, req.DryRun)
	if err != nil {
		return Decision{}, err
	}
	if key, pinned := a.pins(ours); pinned {
		if ours { // another webhook chose nodes since
			a.withdraw(a.chosen())
		}
		stripSeat(a.pod)
		d := Decision{Warnings: p.Warnings}
		if len(podpatch.Diff(req.Pod, a.pod)) > 0 {
			d.Pod, d.Summary = a.pod, "one without a seat, because it chooses its nodes itself by "+key
		}
		return d, nil
	}

	// 3. Give it one.
	d := Decision{Pod: a.pod, Warnings: slices.Clone(p.Warnings)}
	if !ours {
		if err := f.assign(ctx, &a, req.DryRun, &d); err != nil {
			if !errors.Is(err, spread.ErrFull) {
				return Decision{}, err
			}
			text := fmt.Sprintf("%s: %v, so a pod was admitted without a pool", p.Source, err)
			d.Warnings = append(d.Warnings, text)
			d.Events = append(d.Events, Event{Reason: ReasonPoolsFull, Note: text})
			return d, nil
		}
	}
	a.apply()
	pool := p.Strategy.Pool(a.pool)
	d.Summary = fmt.Sprintf("seat %d of pool %s (%s)", a.seat.Ordinal, pool.Name, labels.Set(pool.Labels))
	return d, nil
}

// NeverSeated reports whether the pods of an owner never have a seat: a DaemonSet's pods
// have their nodes, and a static pod's mirror is there already.
func NeverSeated(owner *podpatch.Owner) bool {
	return owner.Kind == "DaemonSet" && strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/") ||
		owner.Kind == "Node" && owner.APIVersion == "v1"
}

// plausible reports whether an owner reference can be of an object. The API server checks
// it only after us.
func plausible(o *podpatch.Owner) bool {
	for _, part := range []string{o.APIVersion, o.Kind, o.Name, o.UID} {
		if part == "" || len(part) > validation.DNS1123SubdomainMaxLength {
			return false
		}
	}
	return len(validation.IsDNS1123Subdomain(o.UID)) == 0 // it becomes the name of a ledger
}

// assignment is a pod on its way to a seat.
type assignment struct {
	pod    *podpatch.Pod
	policy *policy.Policy
	owner  ledger.Owner
	seat   ledger.Seat
	pool   int // its index
	claim  string
}

// keep reports whether the pod has a seat that we gave it in an earlier pass, and takes
// a seat that we did not from it.
func (f *Spread) keep(ctx context.Context, a *assignment, dryRun bool) (bool, error) {
	m := &a.pod.Metadata
	_, hasPool := m.Labels[stowage.PoolLabel]
	_, hasSeat := m.Labels[stowage.SeatLabel]
	_, hasClaim := m.Annotations[stowage.ClaimAnnotation]
	if !hasPool && !hasSeat && !hasClaim {
		return false, nil
	}
	holder := ledger.Holder{Namespace: a.owner.Namespace, Owner: string(a.owner.UID)}
	ordinal, err := strconv.ParseInt(m.Labels[stowage.SeatLabel], 10, 64)
	a.seat = ledger.Seat{Pool: m.Labels[stowage.PoolLabel], Ordinal: ordinal}
	a.claim = m.Annotations[stowage.ClaimAnnotation]
	kind, id, genuine := f.Key.Verify(a.claim, holder, a.seat)
	pool, known := a.policy.Pool(a.seat.Pool)
	if err == nil && genuine && known {
		a.pool = pool
		switch kind {
		case ledger.KindDryRun:
			genuine = dryRun
		case ledger.KindClaimed, ledger.KindUnshared:
			if genuine, err = f.Seats.Claimed(ctx, a.owner, id); err != nil {
				return false, err
			}
		case ledger.KindOrdinal:
			rank, has := a.rank()
			seat, err := a.policy.Strategy.SeatAt(rank)
			genuine = has && err == nil && seat == (spread.Seat{Pool: pool, Ordinal: ordinal})
		default:
			genuine = false // an adopted pod is not created again
		}
		if genuine {
			return true, nil
		}
		a.withdraw(nil)
	}
	stripSeat(a.pod)
	return false, nil
}

// withdraw removes what holds the pod to a seat that we gave and that is not the pod's any
// more: somebody copied it from a pod that is there already or was long ago, or has chosen
// other nodes since, by the labels in keep. Tolerations and preferences hold it nowhere.
func (a *assignment) withdraw(keep map[string]string) {
	s := a.policy.Strategy
	if !a.policy.Preferred {
		for k, v := range s.Pool(a.pool).Labels {
			if _, kept := keep[k]; !kept && a.pod.Spec.NodeSelector[k] == v {
				delete(a.pod.Spec.NodeSelector, k)
			}
		}
	}
	rank, ok := s.Rank(spread.Seat{Pool: a.pool, Ordinal: a.seat.Ordinal})
	if ok && a.pod.Metadata.Annotations[corev1.PodDeletionCost] == DeletionCost(rank) {
		delete(a.pod.Metadata.Annotations, corev1.PodDeletionCost)
	}
}

// chosen returns the labels of another pool that the pod's node selector asks for, if there is
// one: its labels may be those of our pool in part.
func (a *assignment) chosen() map[string]string {
	s := a.policy.Strategy
	for i := range s.Len() {
		asked := i != a.pool
		for k, v := range s.Pool(i).Labels {
			asked = asked && a.pod.Spec.NodeSelector[k] == v
		}
		if asked {
			return s.Pool(i).Labels
		}
	}
	return nil
}

// stripSeat removes what only a pod with a seat carries.
func stripSeat(pod *podpatch.Pod) {
	if pod.Metadata.Labels[stowage.MutatedByLabel] == stowage.MutatedByValue {
		delete(pod.Metadata.Labels, stowage.MutatedByLabel)
	}
	delete(pod.Metadata.Labels, stowage.PoolLabel)
	delete(pod.Metadata.Labels, stowage.SeatLabel)
	delete(pod.Metadata.Annotations, stowage.ClaimAnnotation)
}

// pins returns what in the pod already chooses nodes by a pool's labels, or chooses a
// node. What we added in an earlier pass does not count.
func (a *assignment) pins(ours bool) (key string, pinned bool) {
	var own map[string]string
	if ours {
		own = a.policy.Strategy.Pool(a.pool).Labels
	}
	return pins(a.pod, a.policy.Strategy, own)
}

// Pinned returns what in a pod as its owner made it chooses nodes by a pool's labels, or
// chooses a node. Such a pod gets no seat.
func Pinned(pod *podpatch.Pod, s *spread.Strategy) (key string, pinned bool) {
	return pins(pod, s, nil)
}

func pins(pod *podpatch.Pod, s *spread.Strategy, own map[string]string) (key string, pinned bool) {
	spec := &pod.Spec
	if spec.NodeName != "" {
		return "spec.nodeName", true
	}
	terms := pod.RequiredTerms()
	for i := range s.Len() {
		for _, key := range slices.Sorted(maps.Keys(s.Pool(i).Labels)) {
			if v, ok := spec.NodeSelector[key]; ok {
				if want, mine := own[key]; !mine || v != want {
					return "node label " + key, true
				}
			}
			for _, t := range terms {
				if slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return r.Key == key }) {
					return "node label " + key, true
				}
			}
		}
	}
	for _, t := range terms {
		if len(t.MatchFields) > 0 {
			return "a node's name", true
		}
	}
	return "", false
}

func (a *assignment) rank() (int64, bool) { return OwnRank(a.pod, a.owner, a.policy.FirstOrdinal) }

// OwnRank returns the rank of a pod that has an ordinal of its own, and false for others.
func OwnRank(pod *podpatch.Pod, owner ledger.Owner, firstOrdinal int64) (int64, bool) {
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	m := &pod.Metadata
	switch {
	case owner.Kind == "StatefulSet" && group == appsv1.GroupName:
		text := m.Labels[appsv1.PodIndexLabel]
		if text == "" {
			text = m.Name[strings.LastIndexByte(m.Name, '-')+1:]
		}
		n, err := strconv.ParseInt(text, 10, 32)
		return n - firstOrdinal + 1, err == nil && n >= firstOrdinal
	case owner.Kind == "Job" && group == batchv1.GroupName:
		n, err := strconv.ParseInt(m.Annotations[batchv1.JobCompletionIndexAnnotation], 10, 32)
		return n + 1, err == nil && n >= 0
	}
	return 0, false
}

// assign gives the pod a seat: the one of its own ordinal, or the next free one.
func (f *Spread) assign(ctx context.Context, a *assignment, dryRun bool, d *Decision) error {
	kind, id := ledger.KindClaimed, ""
	s := a.policy.Strategy
	switch rank, has := a.rank(); {
	case has:
		seat, err := s.SeatAt(rank)
		if err != nil {
			return err
		}
		kind, a.seat = ledger.KindOrdinal, ledger.Seat{Pool: s.Pool(seat.Pool).Name, Ordinal: seat.Ordinal}
	case dryRun:
		seat, err := f.Seats.Peek(a.owner, s)
		if err != nil {
			return err
		}
		kind, a.seat = ledger.KindDryRun, seat
	default:
		res, err := f.Seats.Claim(ctx, a.owner, s)
		if err != nil {
			return err
		}
		id, a.seat = res.ID, res.Seat
		if !res.Written {
			kind = ledger.KindUnshared
			text := "the API was too slow to share a seat among the replicas, so the counts of " + a.policy.Source + " may be off by a pod"
			d.Warnings = append(d.Warnings, text)
			d.Events = append(d.Events, Event{Reason: ReasonUnsharedSeat, Note: text})
		}
	}
	a.pool, _ = a.policy.Pool(a.seat.Pool)
	a.claim = f.Key.Sign(kind, id, ledger.Holder{Namespace: a.owner.Namespace, Owner: string(a.owner.UID)}, a.seat)
	return nil
}

// preferenceWeight is how much a preferred pool weighs; it is the API's maximum.
const preferenceWeight = 100

// apply writes the seat into the pod.
func (a *assignment) apply() {
	p := a.policy
	pool := p.Strategy.Pool(a.pool)
	a.pod.SetLabel(stowage.PoolLabel, a.seat.Pool)
	a.pod.SetLabel(stowage.SeatLabel, strconv.FormatInt(a.seat.Ordinal, 10))
	a.pod.SetAnnotation(stowage.ClaimAnnotation, a.claim)
	if p.Distributor != nil {
		a.pod.SetLabel(stowage.MutatedByLabel, stowage.MutatedByValue)
		for _, t := range p.Tolerations[a.pool] {
			a.pod.AddToleration(t)
		}
	}
	// A pod with an ordinal of its own is removed by that.
	if _, has := a.rank(); !has {
		if _, set := a.pod.Metadata.Annotations[corev1.PodDeletionCost]; !set {
			if rank, ok := p.Strategy.Rank(spread.Seat{Pool: a.pool, Ordinal: a.seat.Ordinal}); ok {
				a.pod.SetAnnotation(corev1.PodDeletionCost, DeletionCost(rank))
			}
		}
	}
	if !p.Preferred {
		// It holds beside each of the terms of an affinity, which are alternatives.
		for k, v := range pool.Labels {
			a.pod.SetNodeSelector(k, v)
		}
		return
	}
	term := corev1.PreferredSchedulingTerm{Weight: preferenceWeight}
	for _, k := range slices.Sorted(maps.Keys(pool.Labels)) {
		term.Preference.MatchExpressions = append(term.Preference.MatchExpressions,
			corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{pool.Labels[k]}})
	}
	a.pod.AddPreference(term)
}

// DeletionCost returns the cost with which a ReplicaSet removes the highest rank first,
// and pods without a rank, whose cost is 0, before that.
func DeletionCost(rank int64) string {
	return strconv.FormatInt(math.MaxInt32-min(rank, math.MaxInt32-1), 10)
}
