package division

import (
	"fmt"
	"strings"

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
	// Adopted are the pods that ran before they got their seat, by the key of their pool. Staying are those that may be kept where they run,
	// and those without a seat by the empty key.
	Adopted, Staying map[string]int64
}

// Findings returns why the pods are not divided as they should be, the most important one first, and then what else is to be known of them.
func (d *Division) Findings(w *Workload) (out []finding.Finding) {
	add := func(reason finding.Reason, change func(*finding.Values)) {
		f := finding.Finding{Reason: reason, Namespace: w.Namespace, Kind: w.Kind, Name: w.Name, Values: w.Values}
		change(&f.Values)
		out = append(out, f)
	}
	count := func(n int64) func(*finding.Values) { return func(v *finding.Values) { v.Count = n } }
	text := func(s string) func(*finding.Values) { return func(v *finding.Values) { v.Text = s } }

	settled := w.Pods == d.Replicas && len(d.Shortages) == 0
	// 1. What has to end first.
	if waiting := d.waiting(); waiting != "" {
		add(finding.PodsPending, text(waiting))
	}
	for _, s := range d.Shortages {
		add(finding.PoolExhausted, text(s.String()+"; other pools take the pods that wait for it"+s.NextTry()))
	}
	switch {
	case w.Refused != "":
		add(finding.PodsRefused, func(v *finding.Values) { v.Count, v.Of, v.Text = w.Pods, d.Replicas, w.Refused })
	case d.Stuck:
		add(finding.NotReached, text(w.Stuck))
	}
	if d.Moving {
		add(finding.Progressing, func(v *finding.Values) { v.Count, v.Of = w.Pods, d.Replicas })
	}

	// 2. Where pods are.
	if n := d.Outside(); n > 0 {
		add(finding.OutsidePool, count(n))
	}
	if over := d.Over(); over != nil && settled {
		add(finding.OverTarget, func(v *finding.Values) {
			v.Pool, v.Count, v.Of, v.Adopted, v.Staying = over.Name, over.Current, over.Target, w.Adopted[over.Key], w.Staying[over.Key]
		})
	}
	if d.Former > 0 {
		add(finding.PoolRemoved, count(d.Former))
	}
	if n := d.Unseated - d.Former; n > 0 {
		add(finding.WithoutSeat, func(v *finding.Values) { v.Count, v.Staying = n, w.Staying[""] })
	}

	// 3. What else is to be known.
	seated := d.sum(func(p *Pool) int64 { return p.Current })
	if ready := d.sum(func(p *Pool) int64 { return p.Ready }); ready < seated {
		add(finding.NotReady, func(v *finding.Values) { v.Count, v.Of = ready, seated })
	}
	if w.Overflow > 0 {
		add(finding.PoolsFull, count(w.Overflow))
	}
	if n := d.DomainSurplus(); n > 0 && settled {
		add(finding.OverInDomain, count(n))
	}
	if w.Soft != "" {
		add(finding.PoolsPreferred, text(w.Soft))
	}
	for _, pool := range w.Unsuitable {
		add(finding.PoolUnsuitable, text(pool))
	}
	if d.Held > 0 {
		add(finding.HeldByVolume, count(d.Held))
	}
	if d.ForeignCosts > 0 {
		add(finding.ForeignCost, count(d.ForeignCosts))
	}
	return out
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
