package inspect

import (
	"slices"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
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
		g.problem(r, finding.InvalidPolicy, finding.Values{Source: g.policy.Source, Text: oneLine(g.policy.Err)})
	case g.leftOut:
		g.problem(r, finding.LeftOut, finding.Values{})
	case g.undivided != "":
		of := finding.Values{Source: g.policy.Source, Text: g.undivided, Count: g.waiting}
		if g.waiting > 0 {
			g.problem(r, finding.FitsNoPool, of)
			break
		}
		f := finding.Finding{Reason: finding.FitsNoPool, Values: of}
		w.Note = f.Sentence()
	case g.unseen:
		f := finding.Finding{Reason: finding.NotYetObserved, Kind: g.Kind}
		w.Note, waits = f.Sentence(), true
	default:
		waits = g.causes(r)
	}
	if g.policy != nil && !slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet"}, g.Kind) { // of these, what is written is read
		for _, text := range g.policy.Warnings {
			g.problem(r, finding.IgnoredSetting, finding.Values{Text: text, Fix: "correct or remove the setting"})
		}
	}
	w.about, w.asksFor = g.objects(), g.idle == "" && !g.leftOut
	w.OK = g.idle != "" || !waits && len(r.Problems) == found
	return *w
}

// causes adds why the pods are not divided as they should be, and notes the first thing beside that. It returns whether pods are on their
// way, which passes by itself.
func (g *group) causes(r *Report) (waits bool) {
	w := &g.Workload
	g.Moving = g.failure == "" && g.pods != w.Replicas
	noted := w.Note != ""
	of := &division.Workload{
		Namespace: g.Namespace, Kind: g.Kind, Name: g.Name, Values: g.policy.Values(), Pods: g.pods, Refused: g.failure, Overflow: g.overflow,
		Adopted: g.adopted, Staying: g.staying, Adopting: g.adopting,
	}
	of.Outside, of.Lacking, of.LackIn, of.LackWhich = g.outsider, g.lacking, g.lackIn, g.lackWhich
	of.CostWriter, of.VolumesUnknown = g.costWriter, g.volumesUnknown
	if g.failure != "" {
		of.Adds = slices.Concat(g.policy.Adds(), g.vm)
	}
	of.Values.Rollout, of.Values.NoNodes, of.Values.Cordoned, of.Values.NoMoves = g.Rollout, g.noNodes, g.cordoned, g.noMoves
	if g.state != nil {
		of.Hindrances, of.Seen = g.state.Status.Hindrances, r.lastSeen(&g.state.Status)
	}
	if g.pinned != nil { // what is seen now is newer than what is stored
		of.Hindrances = append(slices.DeleteFunc(slices.Clone(of.Hindrances), func(h stowage.Hindrance) bool { return h.Reason == stowage.HindrancePinned }), *g.pinned)
	}
	for _, text := range g.ungiven {
		g.problem(r, finding.IgnoredSetting, finding.Values{Text: g.policy.Source + ": " + text, Fix: "remove these podLabels from the pool, or give the workload a policy of its own"})
	}
	of.Soft, of.Unsuitable = g.policy.Misfits()
	for _, f := range append(g.Findings(of), g.rolloutFindings(r.at)...) {
		if f.Reason == finding.PodsChooseNodes && g.pinned != nil {
			f.Missing, f.Pool, f.Fix = g.pin.later, g.pin.pool, g.pin.class
		}
		passing := f.Reason.Severity() == finding.Passing
		switch {
		case f.Reason == finding.PodsPending: // pods that wait have problems of their own
		case f.Reason.Severity() == finding.Problem:
			r.problem(f, g.objects()...)
		case passing && !waits:
			w.Note, waits = f.String(), true
		case !passing && !waits && !noted:
			w.Note, noted = f.String(), true
		}
	}
	return waits
}

// confirmedWithin is how old what the leader has stored of hindrances may be, because it confirms that now and then.
const confirmedWithin = 3 * time.Minute

// lastSeen says when hindrances were seen, and by which replica, if it is long ago or by another one than leads now. It is empty otherwise.
func (r *Report) lastSeen(st *stowage.PoolStateStatus) string {
	if st.ObservedAt == nil {
		return ""
	}
	by := replicaName(st.ObservedBy)
	leads := r.Stowage == nil || r.Stowage.Leader == "" || r.Stowage.Leader == by
	if leads && r.at.Sub(st.ObservedAt.Time) < confirmedWithin {
		return ""
	}
	return "last seen at " + st.ObservedAt.UTC().Format(time.RFC3339) + " by " + by
}

// problem adds a problem of the workload.
func (g *group) problem(r *Report, reason finding.Reason, values finding.Values) {
	r.problem(finding.Finding{Reason: reason, Namespace: g.Namespace, Kind: g.Kind, Name: g.Name, Values: values}, g.objects()...)
}

// objects are what the workload consists of, and its policy.
func (g *group) objects() []string {
	out := slices.Clone(g.about)
	switch {
	case g.policy == nil:
	case g.policy.Distributor != nil:
		out = append(out, "PodDistributor/"+g.policy.Distributor.Name)
	case g.policy.Policy != nil:
		out = append(out, g.policy.Policy.Kind+"/"+g.policy.Policy.Name)
	}
	return out
}
