package division

import (
	"fmt"
	"slices"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
)

// Workload is what [Division.Findings] reads beside the division.
type Workload struct {
	Namespace, Kind, Name string
	// Values are those of the policy.
	Values finding.Values
	Pods   int64 // that there are, with a seat or without
	// Refused is why the API server refuses to create pods. Stuck describes an owner that does not reach its replica count. Both may be empty.
	Refused, Stuck string
	// Soft says why pods of the newest revision prefer their pools, or "", and Unsuitable in which pools no pod can run: see [policy.Policy.Misfits].
	Soft       string
	Unsuitable []string
	// Overflow are the pods without a seat because every pool has its maximum.
	Overflow int64
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
	f.text(finding.PodsPending, f.waiting())
	for _, s := range f.Shortages {
		f.text(finding.PoolExhausted, s.String()+"; other pools take the pods that wait for it"+s.NextTry())
	}
	switch w := f.of; {
	case w.Refused != "":
		f.add(finding.PodsRefused, func(v *finding.Values) { v.Count, v.Of, v.Text = w.Pods, f.Replicas, w.Refused })
	case f.Stuck:
		f.text(finding.NotReached, w.Stuck)
	}
	if f.Moving {
		f.add(finding.Progressing, func(v *finding.Values) { v.Count, v.Of = f.of.Pods, f.Replicas })
	}
}

// places adds where pods are that should be elsewhere, and what keeps them there.
func (f *findings) places() {
	if n := f.Outside(); n > 0 {
		f.add(finding.OutsidePool, func(v *finding.Values) { v.Count, v.Text = n, f.of.Outside })
	}
	over, w := f.Over(), f.of
	if !f.settled {
		over = nil
	}
	tooMany := func(v *finding.Values) {
		if over != nil {
			v.Pool, v.Count, v.Of, v.Adopted = over.Name, over.Current, over.Target, w.Adopted[over.Key]
		}
	}
	hindered := slices.DeleteFunc(slices.Clone(w.Hindrances), func(h stowage.Hindrance) bool { return f.old(&h, over) })
	if misplaced := over != nil || f.Unseated > 0 || f.DomainSurplus() > 0; !misplaced {
		hindered = nil // it is over, or it concerns pods that are not counted
		for i := range w.Hindrances {
			if h := &w.Hindrances[i]; h.Reason == stowage.HindrancePodHeld {
				f.text(finding.PodsStay, h.Message)
			}
		}
	}
	pinned := int64(0)
	for i := range hindered {
		h := finding.OfHindrance(&hindered[i])
		f.add(h.Reason, func(v *finding.Values) {
			if h.Reason == finding.PodsChooseNodes {
				v.Count, pinned = h.Count, h.Count
			} else {
				tooMany(v)
			}
			v.Other, v.Objects, v.Several, v.Since, v.Text, v.Seen = h.Other, h.Objects, h.Several, h.Since, h.Text, w.Seen
		})
	}
	if over != nil && (len(hindered) == 0 || pinned > 0 && len(hindered) == 1) {
		f.add(finding.OverTarget, tooMany)
	}
	f.count(finding.BeingAdopted, w.Adopting)
	f.count(finding.PoolRemoved, f.Former)
	if n := f.Unseated - f.Former - pinned; n > 0 {
		f.add(finding.WithoutSeat, func(v *finding.Values) { v.Count, v.Staying = n, w.Staying })
	}
}

// old reports whether a hindrance is one of a strategy or of a setting that the workload does not have any more.
func (f *findings) old(h *stowage.Hindrance, over *Pool) bool {
	switch {
	case h.Reason == stowage.HindrancePinned:
		return false
	case over != nil && h.Pool != "" && h.Pool != over.Name:
		return true
	}
	return over != nil && !f.of.Values.Evict && f.Unseated == 0
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
	f.count(finding.ForeignCost, f.ForeignCosts)
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
