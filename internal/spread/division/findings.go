package division

import (
	"fmt"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// Workload is what [Division.Findings] reads beside the division.
type Workload struct {
	Namespace, Kind, Name string
	// Values are those of the policy.
	Values finding.Values
	Pods   int64 // that there are, with a seat or without
	// Refused is why the API server refuses to create pods, and Adds what Stowage adds to them. Stuck describes an owner that does not reach its replica count. Both may be empty.
	Refused, Stuck string
	Adds           refusal.Added
	// Soft says why pods of the newest revision prefer their pools, or "", and Unsuitable in which pools no pod can run: see [policy.Policy.Misfits].
	Soft       string
	Unsuitable []string
	// CostWriter is the manager that wrote a deletion cost which is not from Stowage, and may be empty.
	CostWriter string
	// Overflow are the pods without a seat because every pool has its maximum.
	Overflow int64
	// Lacking are the pods that have not what their pool gives to new ones, with one of these pools and what it gives.
	Lacking           int64
	LackIn, LackWhich string
	// VolumesUnknown says that pods without a seat wait which may have none because of their volumes.
	VolumesUnknown bool
	// Hindrances are what keeps pods from moving that are in the wrong place.
	Hindrances []stowage.Hindrance
	// Seen says when they were seen, if that is long ago.
	Seen string
	// Outside names a pod that is not in the pool of its seat, and may be empty.
	Outside string
	// Adopted are the pods that ran before they got their seat, by the key of their pool. Staying are those without a seat that may be kept where
	// they run.
	Adopted map[string]int64
	Staying int64
	// Adopting are pods that are counted in the pool that they run in, where Stowage gives them a seat.
	Adopting int64
}

// Findings returns why the pods are not divided as they should be, the most important one first, and then what else is to be known of them.
func (d *Division) Findings(w *Workload) []finding.Finding {
	f := &findings{Division: d, of: w, settled: w.Pods == d.Replicas && len(d.Shortages) == 0}
	f.ends()
	f.places()
	f.notes()
	return f.found
}

// findings are those of a workload in the making.
type findings struct {
	*Division
	of      *Workload
	settled bool
	found   []finding.Finding
}

func (f *findings) add(reason finding.Reason, change func(*finding.Values)) {
	one := finding.Finding{Reason: reason, Namespace: f.of.Namespace, Kind: f.of.Kind, Name: f.of.Name, Values: f.of.Values}
	change(&one.Values)
	f.found = append(f.found, one)
}

func (f *findings) count(reason finding.Reason, n int64) {
	if n > 0 {
		f.add(reason, func(v *finding.Values) { v.Count = n })
	}
}

func (f *findings) text(reason finding.Reason, text string) {
	if text != "" {
		f.add(reason, func(v *finding.Values) { v.Text = text })
	}
}

// ends adds what has to end first.
func (f *findings) ends() {
	if n := f.Gone(); n > 0 {
		f.add(finding.NodesGone, func(v *finding.Values) { v.Count, v.Of = n, f.sum(func(p *Pool) int64 { return p.Current }) })
	}
	f.text(finding.PodsPending, f.waiting())
	for _, s := range f.Shortages {
		others := "; other pools take the pods that wait for it"
		if f.Untaken != "" {
			others = "; no other pool takes more of the pods that wait for it: " + f.Untaken
		}
		f.text(finding.PoolExhausted, s.String()+others+s.NextTry())
	}
	switch w := f.of; {
	case w.Refused != "":
		f.add(finding.PodsRefused, func(v *finding.Values) {
			v.Count, v.Of = w.Pods, f.Replicas
			v.Refused(w.Refused, w.Name, w.Adds)
		})
	case f.Stuck:
		f.text(finding.NotReached, w.Stuck)
	}
	if f.Moving {
		f.add(finding.Progressing, func(v *finding.Values) { v.Count, v.Of = f.of.Pods, f.Replicas })
	}
}

// places adds where pods are that should be elsewhere, and what keeps them there.
func (f *findings) places() {
	if n := f.Outside(); n > 0 && f.of.Soft == "" { // else they may be elsewhere, as a note says
		f.add(finding.OutsidePool, func(v *finding.Values) { v.Count, v.Text = n, f.of.Outside })
	}
	over := f.Over()
	if !f.settled {
		over = nil
	}
	pinned, hindered := f.hindrances(over)
	if over != nil && !hindered {
		reason := finding.OverTarget
		if f.of.Kind == "Job" { // its pods that have ended are not counted, wherever they were
			reason = finding.JobUneven
		}
		f.add(reason, func(v *finding.Values) { f.tooMany(v, over) })
	}
	f.count(finding.BeingAdopted, f.of.Adopting)
	if f.Former > 0 {
		f.add(finding.PoolRemoved, func(v *finding.Values) { v.Count, v.Pool = f.Former, f.formerPools() })
	}
	if n := f.Unseated - f.Former - pinned; n > 0 {
		f.add(finding.WithoutSeat, func(v *finding.Values) {
			v.Count, v.Staying = n, f.of.Staying
			if f.of.VolumesUnknown {
				v.Text = "or have a volume that may be out of reach of the pools"
			}
		})
	}
}

// hindrances adds what keeps pods where they are. Over is the pool that has too many, or nil. Pinned are the pods without a seat that get none, because
// they choose their nodes themselves, may not be updated, or would meet a webhook that may not be reached, and hindered says that something keeps the others from moving.
func (f *findings) hindrances(over *Pool) (pinned int64, hindered bool) {
	misplaced := over != nil || f.Unseated > 0 || f.DomainSurplus() > 0
	for i := range f.of.Hindrances {
		h := &f.of.Hindrances[i]
		switch {
		case !misplaced && h.Reason == stowage.HindrancePodHeld:
			f.text(finding.PodsStay, h.Message) // they are not counted
		case h.Reason == stowage.HindranceUpdateRefused: // also where only the order of the seats is wrong
			pinned += h.Count
			if !f.of.Values.Evicts(f.of.Kind) {
				f.hindrance(h, nil)
				continue
			}
			hindered = true // a pod goes only after that
			f.hindrance(h, over)
		case !misplaced || f.old(h, over):
		case h.Reason == stowage.HindrancePinned, h.Reason == stowage.HindranceUnproven:
			pinned += h.Count
			f.hindrance(h, nil)
		default:
			hindered = true
			f.hindrance(h, over)
		}
	}
	return pinned, hindered
}

// hindrance adds a hindrance, with the pool that has too many pods because of it, unless that is nil.
func (f *findings) hindrance(h *stowage.Hindrance, over *Pool) {
	of := finding.OfHindrance(h)
	f.add(of.Reason, func(v *finding.Values) {
		v.Count, v.Other, v.Objects, v.Several, v.Since, v.Text, v.Seen = of.Count, of.Other, of.Objects, of.Several, of.Since, of.Text, f.of.Seen
		if over != nil {
			f.tooMany(v, over)
		}
	})
}

// tooMany fills in how many pods a pool has, and should have.
func (f *findings) tooMany(v *finding.Values, over *Pool) {
	v.Pool, v.Count, v.Of, v.Adopted = over.Name, over.Current, over.Target, f.of.Adopted[over.Key]
}

// old reports whether a hindrance is one of a strategy or of a setting that the workload does not have any more.
func (f *findings) old(h *stowage.Hindrance, over *Pool) bool {
	switch {
	case h.Reason == stowage.HindrancePinned:
		return false
	case h.Reason == stowage.HindranceUnproven:
		return f.Unseated == 0
	case over != nil && h.Pool != "" && h.Pool != over.Name:
		return true
	}
	return over != nil && !f.of.Values.Evicts(f.of.Kind) && f.Unseated == 0
}

// notes adds what else is to be known.
func (f *findings) notes() {
	seated := f.sum(func(p *Pool) int64 { return p.Current })
	if ready := f.sum(func(p *Pool) int64 { return p.Ready }); ready < seated {
		f.add(finding.NotReady, func(v *finding.Values) { v.Count, v.Of = ready, seated })
	}
	f.count(finding.PoolsFull, f.of.Overflow)
	if f.settled {
		f.count(finding.OverInDomain, f.DomainSurplus())
	}
	f.text(finding.PoolsPreferred, f.of.Soft)
	for _, pool := range f.of.Unsuitable {
		f.text(finding.PoolUnsuitable, pool)
	}
	f.count(finding.HeldByVolume, f.Held)
	if f.of.Lacking > 0 {
		f.add(finding.LackSettings, func(v *finding.Values) {
			v.Count, v.Pool, v.Text = f.of.Lacking, f.of.LackIn, f.of.LackWhich
		})
	}
	if n := f.Costs.Foreign; n > 0 {
		reason := finding.ForeignCost
		if f.Costs.Uneven && f.of.Kind != "Job" { // no scale-down removes its pods
			reason = finding.CostsUneven
		}
		f.add(reason, func(v *finding.Values) { v.Count, v.Several, v.Other = n, f.Costs.ByNode, f.of.CostWriter })
	}
}

// waiting counts the pods that wait for a node, by pool.
func (d *Division) waiting() string {
	var parts []string
	for i := range d.Pools {
		if pool := &d.Pools[i]; pool.Waiting > 0 {
			parts = append(parts, fmt.Sprintf("%d pod(s) of pool %s", pool.Waiting, pool.Name))
		}
	}
	return strings.Join(parts, " and ")
}
