package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// spread says where the pod goes, and why.
func (s *subject) spread(ctx context.Context, a *Aspect) error {
	// 1. Has it a strategy?
	if s.owner == nil {
		a.say("A strategy divides the pods of a workload, and nothing controls this pod.")
		return nil
	}
	if placement.NeverSeated(s.owner) {
		a.say("The pods of a %s have their nodes already.", s.owner.Kind)
		return nil
	}
	find := policy.Pod{Namespace: s.pod.Namespace, Owner: s.chain[0], Annotations: s.pod.Annotations}
	p, err := s.finder(s.reader).Find(ctx, find)
	if err != nil {
		return err
	}
	if p == nil {
		return s.noPolicy(a)
	}
	if p.Strategy == nil {
		a.say("The %s is invalid: %s.", p.Source, strings.ReplaceAll(p.Err.Error(), "\n", "; "))
		return nil
	}
	pools := make([]string, p.Strategy.Len())
	for n := range pools {
		pools[n] = poolText(p.Strategy.Pool(n))
	}
	a.say("The policy is the %s: %s.", p.Source, strings.Join(pools, "; "))
	for _, w := range p.Warnings {
		a.say("%s.", w)
	}

	// 2. Has it a seat?
	name, pooled := s.pod.Labels[stowage.PoolLabel]
	ordinal, err := strconv.ParseInt(s.pod.Labels[stowage.SeatLabel], 10, 64)
	if !pooled || err != nil {
		created := placement.AsCreated(s.view, p.Strategy, s.templateNode())
		if key, pinned := placement.Pinned(created, p.Strategy, nil); pinned {
			a.because(fmt.Sprintf("The pod chooses its nodes itself, by %s, so it has no seat.", key))
		} else if strings.HasPrefix(s.pod.Annotations[stowage.ClaimAnnotation], string(ledger.OriginFull)) {
			a.because("Every pool had as many pods as it may have when the pod was created, so it has no seat and runs anywhere.")
		} else {
			a.because(s.past("given a seat"))
		}
		return s.counts(ctx, a, p)
	}
	if a.Changed = proven(s.pod); a.Changed {
		a.Summary = fmt.Sprintf("seat %d of pool %s", ordinal, name)
	}
	pool, ok := p.Pool(name)
	if !ok {
		a.say("The policy has no pool %s any more: it was edited after this pod came. Its next pods go to the pools that there are.", name)
		return s.counts(ctx, a, p)
	}
	a.say("%s", origin(s.pod.Annotations[stowage.ClaimAnnotation]))
	replicas, err := s.countPods(ctx, a, p)
	if err != nil {
		return err
	}
	if rank, ok := p.Strategy.Rank(sequence.Seat{Pool: pool, Ordinal: ordinal}); ok {
		a.say("The seat is number %d of the sequence; %s.", rank, s.removal(rank))
	}
	short := p.Shortages()
	spilled := len(short) > 0 && ordinal > p.Whole.Target(pool, replicas)
	for n := range short {
		switch text := short[n].String() + short[n].NextTry(); {
		case short[n].Pool == name && s.pod.Spec.NodeName == "":
			a.say("P%s. The pod waits, because no other pool has room for it, either.", text[1:])
		case spilled && short[n].Pool != name:
			a.say("The pod was to run in another pool: %s.", text)
		default:
			a.say("P%s.", text[1:])
		}
	}
	return s.placement(ctx, a, p, pool)
}

// noPolicy says why there is no strategy.
func (s *subject) noPolicy(a *Aspect) error {
	sources := []struct {
		of          string
		annotations map[string]string
	}{{"the pod", s.pod.Annotations}}
	for _, w := range s.roots {
		sources = append(sources, struct {
			of          string
			annotations map[string]string
		}{w.Kind + " " + w.Name, w.Annotations})
	}
	for _, src := range sources {
		if _, ok := policy.StrategyText(src.annotations); ok {
			a.say("The strategy in the annotations of %s does not count in namespace %s: the namespace is blocked, or lacks the label of --spread-namespace-label.", src.of, s.pod.Namespace)
			return nil
		}
		if wrong := slices.Concat(policy.Check(src.annotations)); len(wrong) > 0 {
			a.say("The annotations of %s give no strategy: %s.", src.of, strings.Join(wrong, "; "))
			return nil
		}
	}
	var names []string
	for _, o := range s.chain {
		names = append(names, o.Kind+" "+o.Name)
	}
	a.say("It has no strategy: no PodDistributor is for %s, and there are no annotations %s and %s.",
		strings.Join(names, " or "), stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation)
	return nil
}

func poolText(p sequence.Pool) string {
	var parts []string
	if p.Base > 0 {
		parts = append(parts, fmt.Sprintf("base %d", p.Base))
	}
	parts = append(parts, fmt.Sprintf("weight %d", p.Weight))
	if p.Max > 0 {
		parts = append(parts, fmt.Sprintf("at most %d", p.Max))
	}
	return fmt.Sprintf("%s (%s) has %s", p.Name, labels.Set(p.Labels), strings.Join(parts, ", "))
}

// proven reports whether a pod carries a proof of its seat. Whether that is genuine only
// who has the key can tell.
func proven(pod *corev1.Pod) bool { return pod.Annotations[stowage.ClaimAnnotation] != "" }

// adoptedClaim is how the claim of an adopted pod begins.
var adoptedClaim = string(ledger.OriginAdopted)

// origin says where a seat comes from, by its claim.
func origin(claim string) string {
	if claim == "" {
		return "The pod carries no proof of its seat, so Stowage does not count it: somebody wrote its labels."
	}
	switch ledger.Origin(claim[0]) {
	case ledger.OriginClaimed:
		return "The seat was claimed in the ledger as the pod was created."
	case ledger.OriginUnshared:
		return "The seat was given by one replica alone, because the API was too slow to share it."
	case ledger.OriginOrdinal:
		return "The seat follows from the pod's own ordinal."
	case ledger.OriginAdopted:
		return "The seat was given to the pod later, because it had come without one."
	}
	return "The claim that the pod carries is of no kind that this version knows."
}

// counts tells the arithmetic: how many pods there are, and how they are divided.
func (s *subject) counts(ctx context.Context, a *Aspect, p *policy.Policy) error {
	_, err := s.countPods(ctx, a, p)
	return err
}

// countPods is counts. It returns how many pods the owner asks for.
func (s *subject) countPods(ctx context.Context, a *Aspect, p *policy.Policy) (replicas int64, err error) {
	owner := ledger.Owner{APIVersion: s.owner.APIVersion, Kind: s.owner.Kind, Namespace: s.pod.Namespace, Name: s.owner.Name, UID: types.UID(s.owner.UID)}
	var pods []division.Pod
	err = each(ctx, s.Inspector, &corev1.PodList{}, func(pod *corev1.Pod) {
		if c := metav1.GetControllerOfNoCopy(pod); c != nil && c.UID == owner.UID && podstatus.Active(pod) && proven(pod) {
			pods = append(pods, division.Pod{Pool: pod.Labels[stowage.PoolLabel]})
		}
	}, client.InNamespace(s.pod.Namespace), client.HasLabels{stowage.SeatLabel})
	if err != nil {
		return 0, err
	}
	var d division.Division
	replicas = d.AddPods(p.Strategy, pods)
	scale, err := worldapi.ReadScale(ctx, s.Client, owner.Namespace, seats.Ref(owner))
	switch {
	case err == nil && scale != nil:
		replicas = scale.Replicas
	case err != nil && !apierrors.IsForbidden(err):
		return 0, err
	}
	d.AddTargets(p.Strategy, replicas)
	var names, shares, targets, counts []string
	for _, pool := range d.Pools {
		names = append(names, pool.Name)
		shares = append(shares, strconv.FormatFloat(pool.Share, 'f', 1, 64))
		targets = append(targets, strconv.FormatInt(pool.Target, 10))
		counts = append(counts, strconv.FormatInt(pool.Current, 10))
	}
	a.say("%s %s asks for %d pods: share %s, target %s, current %s (%s).", owner.Kind, owner.Name, replicas,
		strings.Join(shares, " / "), strings.Join(targets, " / "), strings.Join(counts, " / "), strings.Join(names, " / "))
	return replicas, nil
}

// removal says when a pod goes at a scale-down.
func (s *subject) removal(rank int64) string {
	cost, ok := s.pod.Annotations[corev1.PodDeletionCost]
	switch {
	case !ok:
		return "its owner removes pods by their ordinals"
	case sequence.RankOfCost(cost, rank, ledger.CostRank(ledger.UnverifiedID(s.pod.Annotations[stowage.ClaimAnnotation]))) != 0:
		return fmt.Sprintf("a scale-down removes higher numbers first (deletion cost %s)", cost)
	}
	return fmt.Sprintf("its deletion cost, %s, is not ours, and decides when a scale-down removes it", cost)
}

// placement says how the pod is held to its pool.
func (s *subject) placement(ctx context.Context, a *Aspect, p *policy.Policy, pool int) error {
	want := p.Strategy.Pool(pool).Labels
	how := "A node selector holds it there"
	switch {
	case p.Preferred:
		how = "Its affinity prefers nodes of that pool"
	case !labels.SelectorFromSet(want).Matches(labels.Set(s.pod.Spec.NodeSelector)):
		how = "Nothing holds it there, because it was adopted" // its template's node selector is as it was
	}
	if s.pod.Spec.NodeName == "" {
		a.say("%s; it waits for a node with %s.", how, labels.Set(want))
		return nil
	}
	node, err := s.reader.Node(ctx, s.pod.Spec.NodeName)
	switch {
	case apierrors.IsForbidden(err) || err == nil && node == nil:
		a.say("%s.", how)
	case err != nil:
		return err
	case labels.SelectorFromSet(want).Matches(labels.Set(node.Labels)):
		a.say("%s; node %s is one of them.", how, node.Name)
	default:
		a.say("%s; node %s is not one of them.", how, node.Name)
	}
	return nil
}
