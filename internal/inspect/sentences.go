package inspect

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// The sentences that explanations print. Nothing in this file reads from a cluster.

const leftAlone = "left alone"

func (a *Aspect) say(format string, args ...any) {
	a.Facts = append(a.Facts, finding.Printable(fmt.Sprintf(format, args...)))
}

// because notes why the pod was left alone though there is a policy for it.
func (a *Aspect) because(format string, args ...any) {
	a.Reason = finding.Printable(fmt.Sprintf(format, args...))
	a.say("%s", a.Reason)
}

// missed notes that the pod would become something if it were created now.
func (a *Aspect) missed(b bypass, what string) {
	if b.LeftAlone != "" {
		a.because("It would be %s, but: %s.", what, b.LeftAlone)
		return
	}
	a.because("It would be %s if it were created now. It was created before its policy, or it bypassed the webhook (see the events of its owner).", what)
}

// lines are those of a text for a terminal. What they are made of comes from objects that tenants write, so that none of it ends a line.
type lines struct{ strings.Builder }

func (l *lines) add(format string, args ...any) {
	l.WriteString(bounded.Printable(fmt.Sprintf(format, args...)) + "\n")
}

// oneLine is an error without line breaks.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (e *Explanation) text() string {
	var l lines
	head := fmt.Sprintf("Pod %s/%s", e.Namespace, e.Pod)
	if len(e.Owners) > 0 {
		head += ", of " + strings.Join(e.Owners, " of ")
	}
	if e.Node != "" {
		head += ", on node " + e.Node
	}
	l.add("%s", head)
	if e.LeftAlone != "" {
		l.add("Stowage changed nothing in it: %s", e.LeftAlone)
	}
	type answer struct {
		question string
		Aspect
	}
	answers := []answer{{"Where it goes", e.Spread}, {"How big it is", e.Sizing}, {"What it really consumes", e.PeerPods}}
	if e.ScaleDown != nil {
		answers = append(answers, answer{"When a scale-down removes it", *e.ScaleDown})
	}
	for _, a := range answers {
		l.add("")
		l.add("%s: %s", a.question, a.Summary)
		for _, fact := range a.Facts {
			l.add("  %s", fact)
		}
	}
	if e.Pending != "" {
		l.add("")
		l.add("It is Pending: %s.", e.Pending)
		l.add("To change that: %s.", e.Action)
	}
	return l.String()
}

func (f *spreadFacts) describe(a *Aspect) {
	switch {
	case f.Owner == nil:
		a.say("A strategy divides the pods of a workload, and nothing controls this pod.")
		return
	case f.NeverSeated:
		a.say("The pods of a %s have their nodes already.", f.Owner.Kind)
		return
	case f.NoStrategy != nil:
		f.NoStrategy.describe(a)
		f.describeOthers(a)
		return
	case f.Policy == nil:
		return
	case f.Policy.Invalid != "":
		a.say("The %s is invalid: %s.", f.Policy.Source, f.Policy.Invalid)
		return
	}
	var pools []string
	for _, p := range f.Policy.Pools {
		pools = append(pools, p.String())
	}
	a.say("The policy is the %s: %s.", f.Policy.Source, strings.Join(pools, "; "))
	f.describeOthers(a)
	for _, w := range f.Policy.Warnings {
		a.say("%s.", w)
	}
	switch {
	case f.NoSeat != nil:
		f.NoSeat.describe(a)
		f.describePools(a)
	case f.Seat != nil:
		f.describeSeat(a)
	}
}

// describeSeat says where the seat is and where it comes from, and what keeps the pod there.
func (f *spreadFacts) describeSeat(a *Aspect) {
	if a.Changed = f.Seat.Proven; a.Changed {
		a.Summary = fmt.Sprintf("seat %d of pool %s", f.Seat.Ordinal, f.Seat.Pool)
		if f.Seat.Domain != "" {
			a.Summary += ", in domain " + f.Seat.Domain
		}
	}
	if f.Seat.PoolRemoved {
		a.say("The policy has no pool %s any more: it was edited after this pod came. Its next pods go to the pools that there are.", f.Seat.Pool)
		f.describePools(a)
		return
	}
	a.say("%s", f.Seat.origin())
	f.describePools(a)
	if f.Seat.Number > 0 {
		a.say("The seat is number %d of the sequence; %s.", f.Seat.Number, f.Seat.removal())
	}
	for n := range f.Shortages {
		a.say("%s", f.Shortages[n].sentence())
	}
	for _, u := range f.Unsuitable {
		a.say("Pool %s gets no pods of this workload, because no node of it could take one: %s.", u.Place(), u.Why)
	}
	if f.Seat.HeldBy != "" {
		a.say("%s.", f.Seat.held())
	}
}

// describeOthers says which sources do not divide the pods, and why.
func (f *spreadFacts) describeOthers(a *Aspect) {
	for _, o := range f.Others {
		a.say("The %s does not divide its pods: %s.", o.Source, o.Why)
	}
}

func (f *noStrategy) describe(a *Aspect) {
	switch {
	case f.OfPolicy:
		a.Changed, a.Summary = true, "a seat of a policy that does not divide it any more"
		a.say("Its seat is of a policy that is gone, that does not select the pod any more, or that you may not read.")
	case f.Seated:
		a.Changed, a.Summary = true, "a seat of a source that is gone"
		a.say("Its seat is of a PodDistributor or of annotations that are gone. The pod stays where it is; the next pods get no seat.")
	}
	switch {
	case f.OwnerGone:
		a.say("What controls it does not exist, so no strategy divides it.")
	case len(f.Wrong) > 0:
		a.say("The annotations of %s give no strategy: %s.", f.Annotations, strings.Join(f.Wrong, "; "))
	case f.Annotations != "":
		a.say("The strategy in the annotations of %s does not count in namespace %s: the namespace is blocked, or lacks the label of --spread-namespace-label.", f.Annotations, f.Namespace)
	case f.Unreadable != "":
		a.because("%s.", f.Unreadable)
	default:
		a.say("It has no strategy: no PodDistributor is for %s, no policy divides it, and there are no annotations %s and %s.",
			strings.Join(f.For, " or "), stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation)
	}
	for _, o := range f.Unselecting {
		a.say("%s does not select it: %s.", o.Source, o.Why)
	}
}

func (p poolRule) String() string {
	var parts []string
	if p.Base > 0 {
		parts = append(parts, fmt.Sprintf("base %d", p.Base))
	}
	parts = append(parts, fmt.Sprintf("weight %d", p.Weight))
	if p.Max > 0 {
		parts = append(parts, fmt.Sprintf("at most %d", p.Max))
	}
	if p.MaxPercent > 0 {
		parts = append(parts, fmt.Sprintf("at most %d%% of the pods beyond the bases", p.MaxPercent))
	}
	text := fmt.Sprintf("%s (%s) has %s", p.Name, p.Set, strings.Join(parts, ", "))
	if p.Gives != "" {
		text += " and gives new pods " + p.Gives
	}
	return text
}

func (f *noSeat) describe(a *Aspect) {
	switch {
	case f.ChoosesNodesBy != "":
		a.because("The pod chooses its nodes itself, by %s, so it has no seat.", f.ChoosesNodesBy)
	case f.Unreadable != "":
		a.because("%s.", f.Unreadable)
	case f.PoolsFull:
		a.because("Every pool had as many pods as it may have when the pod was created, so it has no seat and runs anywhere.")
	case f.Waits:
		a.because("No replica of the webhook had a seat for the pod when it was created. So it waits at the gate %s until the leader has one; kubectl stowage ungate lets it through without.", stowage.SeatGate)
	case f.Adopted:
		a.because("It was there before, and runs in pool %s. Stowage gives it a seat there, if its controllers run.", f.RunsIn)
	case f.VolumeElsewhere:
		a.because("No node of a pool reaches the pod's volume. So it has no seat for as long as it has its claims, and runs where its volume is.")
	default:
		a.missed(f.bypass, "given a seat")
	}
}

// describePools tells how many pods there are, and how they are divided.
func (f *spreadFacts) describePools(a *Aspect) {
	if len(f.Pools) == 0 {
		return
	}
	var names, shares, targets, counts []string
	for _, pool := range f.Pools {
		names = append(names, pool.Name)
		shares = append(shares, strconv.FormatFloat(pool.Share, 'f', 1, 64))
		targets = append(targets, strconv.FormatInt(pool.Target, 10))
		counts = append(counts, strconv.FormatInt(pool.Current, 10))
	}
	a.say("%s asks for %d pods: share %s, target %s, current %s (%s).", f.Owner, f.Replicas,
		strings.Join(shares, " / "), strings.Join(targets, " / "), strings.Join(counts, " / "), strings.Join(names, " / "))
	for _, pool := range f.Pools {
		if len(pool.Domains) > 0 {
			a.say("Domains of pool %s: %s.", pool.Name, pool.domains())
		}
		switch {
		case pool.Removed:
			a.say("The policy has no pool %s any more; roll out to move its %d pod(s).", pool.Name, pool.Current)
		case pool.Outside > 0 && f.Policy.Preferred:
			a.say("%d pod(s) with a seat in pool %s are outside it, as enforcement Preferred allows.", pool.Outside, pool.Name)
		case pool.Outside > 0:
			a.say("%d pod(s) with a seat in pool %s are outside it; roll out to move them.", pool.Outside, pool.Name)
		}
	}
}

// origin says where the seat comes from.
func (f *seatFacts) origin() string {
	if !f.Proven {
		return "The pod carries no proof of its seat, so Stowage does not count it: somebody wrote its labels."
	}
	return cmp.Or(map[string]string{
		originClaimed:  "The seat was claimed in the ledger as the pod was created.",
		originUnshared: "The seat was given by one replica alone, because the API was too slow to share it.",
		originOrdinal:  "The seat follows from the pod's own ordinal.",
		originAdopted:  "The seat was given to the pod later, because it had come without one.",
	}[f.Origin], "The claim that the pod carries is of no kind that this version knows.")
}

// removal says when the pod goes at a scale-down.
func (f *seatFacts) removal() string {
	switch {
	case f.DeletionCost == nil:
		return "its owner removes pods by their ordinals"
	case *f.DeletionCost == "":
		return "its deletion cost is gone, so a scale-down removes it before the pods that have one"
	case f.ForeignCost:
		return fmt.Sprintf("its deletion cost, %s, is not ours, and decides when a scale-down removes it", *f.DeletionCost)
	}
	return fmt.Sprintf("a scale-down removes higher numbers first (deletion cost %s)", *f.DeletionCost)
}

func (f *shortageFacts) sentence() string {
	text := f.String() + f.Shortage.NextTry()
	switch {
	case f.PodWaits && f.Untaken == "":
		return "P" + text[1:] + ". If the pod finds no node there, another pool takes it."
	case f.PodWaits:
		return "P" + text[1:] + ". The pod waits, because no other pool takes it: " + f.Untaken + "."
	case f.PodMoved:
		return "The pod was to run in another pool: " + text + "."
	}
	return "P" + text[1:] + "."
}

// held says how the pod is held to its pool, and whether it is there.
func (f *seatFacts) held() string {
	how := map[holder]string{
		bySelector: "A node selector holds it there",
		byRequired: "Its node affinity holds it there",
		byAffinity: "Its affinity prefers nodes of that pool",
		byNothing:  "Nothing holds it there, because it was adopted",
	}[f.HeldBy]
	if f.HeldBy == byNothing && f.Origin != originAdopted {
		how = "Its node selector is not that of the pool, which had other labels when the pod was created"
	}
	switch {
	case f.Node == "":
		return fmt.Sprintf("%s; it waits for a node with %s", how, f.Set)
	case f.InPool == nil:
		return how
	case *f.InPool:
		return fmt.Sprintf("%s; node %s is one of them", how, f.Node)
	}
	return fmt.Sprintf("%s; node %s is not one of them", how, f.Node)
}

// describeNoTemplate says why no template is named for the pod.
