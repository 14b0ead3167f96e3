package inspect

import (
	"fmt"
	"slices"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/division"
)

// done returns the workload, and adds to the report why it is not as it should be.
func (g *group) done(r *Report) Workload {
	w := &g.Workload
	w.Replicas, w.Unseated = g.Division.Replicas, g.Division.Unseated
	w.Pools = poolsOf(&g.Division)
	if g.policy != nil && g.policy.Layout != nil {
		w.strategy = g.policy.Strategy
	}
	found, waits := len(r.Problems), false
	switch {
	case g.idle != "":
		w.Note = g.idle
	case g.policy != nil && g.policy.Err != nil:
		w.Pools = nil
		g.problem(r, invalidPolicy, "correct the strategy", "the %s is invalid, so that it divides no pods: %s", g.policy.Source, oneLine(g.policy.Err))
	case g.leftOut:
		g.problem(r, leftOut, "change the selectors of the registration, or set "+stowage.ModeKey+" to Off where that is intended",
			"has a strategy, and the webhook's registration leaves its pods out")
	case g.unseen:
		w.Note, waits = "kube-controller-manager has not acted on the last change of this Deployment yet: wait", true
	default:
		waits = g.causes(r)
	}
	if g.policy != nil && !slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet"}, g.Kind) { // of these, what is written is read
		for _, text := range g.policy.Warnings {
			g.problem(r, ignoredSetting, "correct or remove the setting", "%s", text)
		}
	}
	w.about = g.objects()
	w.OK = g.idle != "" || !waits && len(r.Problems) == found
	return *w
}

// causes adds each reason why the pods are not divided as they should be. It returns whether pods are on their way, which passes
// by itself.
func (g *group) causes(r *Report) (waits bool) {
	w := &g.Workload
	seated, ready := int64(0), int64(0)
	for _, pool := range g.Division.Pools {
		seated, ready = seated+pool.Current, ready+pool.Ready
	}
	for i := range g.Shortages {
		g.problem(r, poolExhausted, "add nodes to the pool; Stowage tries it again by itself", "%s; other pools take the pods that wait for it%s", g.Shortages[i], g.Shortages[i].NextTry())
	}
	if g.failure != "" {
		g.problem(r, podsRefused, "correct what the message names: the pod template, or a quota, LimitRange or admission policy", "%d of %d pods exist, because the API server refuses to create more: %s", g.pods, w.Replicas, g.failure)
	}
	settled := g.pods == w.Replicas && len(g.Shortages) == 0
	if n := g.Outside(); n > 0 {
		text, action := "%d pod(s) are outside the pool of their seat: the labels of pools or nodes, or the order of pools, have changed", g.rollOut()
		if g.policy.Preferred {
			text, action = "%d pod(s) are outside the pool of their seat, as enforcement Preferred allows", "make room in the pool, and "+action
		}
		g.problem(r, outsidePool, action, text, n)
	}
	if g.Former > 0 {
		g.problem(r, formerPool, g.rollOut(), "%d pod(s) are in a pool that was removed from the strategy", g.Former)
	}
	if over := g.Over(); over != nil && settled {
		g.tooMany(r, over)
	}
	if n := g.Division.Unseated - g.Former; n > 0 {
		g.unseated(r, n)
	}
	return g.note(seated, ready, settled)
}

// tooMany adds that a pool has too many pods.
func (g *group) tooMany(r *Report, over *division.Pool) {
	why := ""
	if n := g.adopted[over.Key]; n > 0 {
		why = fmt.Sprintf(": %d of them ran there before they got a seat", n)
	}
	action := "wait: Stowage evicts one pod after the other"
	switch stay := g.staying[over.Key]; {
	case !g.policy.Evict:
		action = g.rollOut() + ", or " + g.evict()
	case stay > over.Target:
		why += fmt.Sprintf(": %d of them have a claim or an annotation that may keep them where they run", stay)
		action = "none is needed; the events of the workload say which pods stay (" + string(stowage.EventPodHeld) + "); to move them, " + g.rollOut()
	}
	g.problem(r, overTarget, action, "pool %s has %d pods, and %d are due%s", over.Name, over.Current, over.Target, why)
}

// unseated adds that so many pods have no seat.
func (g *group) unseated(r *Report, n int64) {
	action := "wait: Stowage gives them a seat or recreates them, unless its controllers are down"
	if g.policy.Repair != stowage.RepairRecreate {
		action = fmt.Sprintf("%s, or set %s to %s", g.rollOut(), stowage.RepairAnnotation, stowage.RepairRecreate)
		if g.policy.Policy != nil {
			action = g.rollOut()
		}
	}
	if stay := g.staying[""]; stay > 0 {
		action += fmt.Sprintf("; %d of them have a claim or an annotation that may keep them where they run", stay)
	}
	g.problem(r, withoutSeat, action, "%d pod(s) have no seat: they were created before the %s, or bypassed the webhook", n, g.policy.Source)
}

// note fills in what is to be known of the workload beside its problems, and reports whether that passes by waiting.
func (g *group) note(seated, ready int64, settled bool) (waits bool) {
	w := &g.Workload
	switch {
	case g.failure == "" && g.pods != w.Replicas:
		w.Note, waits = fmt.Sprintf("%d pods exist, and %d are asked for", g.pods, w.Replicas), true
	case ready < seated:
		w.Note, waits = fmt.Sprintf("%d of %d pods are ready", ready, seated), true
	case g.overflow > 0 && w.Note == "":
		w.Note = fmt.Sprintf("%d pod(s) have no seat, because every pool has its maximum", g.overflow)
	case settled && g.DomainSurplus() > 0 && w.Note == "":
		w.Note = fmt.Sprintf("%d pod(s) are in a domain that has too many of their pool; %s", g.DomainSurplus(), g.rollOut())
		if !g.policy.Evict {
			w.Note += ", or " + g.evict()
		}
	case g.ForeignCosts > 0 && w.Note == "":
		w.Note = fmt.Sprintf("%d pod(s) have a pod-deletion-cost that is not from Stowage: scale-downs remove the lowest first", g.ForeignCosts)
	}
	return waits
}

// problem adds a problem of the workload.
func (g *group) problem(r *Report, reason problemReason, action, format string, args ...any) {
	r.problem(reason, g.Namespace, g.Kind+"/"+g.Name, action, format, args...).about = g.objects()
}

// objects are what the workload consists of, and its policy.
func (g *group) objects() []string {
	out := g.about
	switch {
	case g.policy == nil:
	case g.policy.Distributor != nil:
		out = append(out, "PodDistributor/"+g.policy.Distributor.Name)
	case g.policy.Policy != nil:
		out = append(out, g.policy.Policy.Kind+"/"+g.policy.Policy.Name)
	}
	return out
}

// rollOut is how to have all pods of the workload created again.
func (g *group) rollOut() string {
	if g.Kind == "Deployment" || g.Kind == "StatefulSet" {
		return fmt.Sprintf("roll out (kubectl -n %s rollout restart %s/%s)", g.Namespace, strings.ToLower(g.Kind), g.Name)
	}
	return "roll out: have its pods created again"
}

// evict is how to have Stowage move pods.
func (g *group) evict() string {
	if d := g.policy.Distributor; d != nil {
		return "set rebalance: Evict in PodDistributor " + d.Name
	}
	if p := g.policy.Policy; p != nil {
		return "set rebalance: Evict in " + p.String()
	}
	return fmt.Sprintf("set the annotation %s: Evict", stowage.RebalanceAnnotation)
}
