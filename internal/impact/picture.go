package impact

import (
	"fmt"

	"github.com/stowage-dev/stowage/internal/report"
)

// legend says what the seats of a picture mean.
const legend = `A dashed seat gets a pod, and the pod of a red one goes.
`

// pictures are those of the workloads that a text would show, without those whose pods the scheduler places as it likes.
func (r *Report) pictures() (out []report.Seats) {
	for i := range r.Workloads[:min(len(r.Workloads), shown)] {
		if w := &r.Workloads[i]; len(w.Pools) > 0 && !w.free() {
			out = append(out, w.seats())
		}
	}
	return out
}

// seats is the picture of a workload: each pool as it is now, and after the next rollout.
func (w *Workload) seats() report.Seats {
	s := report.Seats{Title: fmt.Sprintf("%s %s/%s: %s", w.Kind, w.Namespace, w.Name, report.Pods(int(w.Replicas))), Note: w.Policy}
	column := func(pool, domain int, name string, now, then int64) {
		s.Columns = append(s.Columns, report.Column{
			Name: name, Count: fmt.Sprintf("%d → %s", now, report.Pods(int(then))), Pool: pool, Domain: domain, Boxes: report.Boxes(now, now, then, nil),
		})
	}
	for i, p := range w.Pools {
		if len(p.Domains) == 0 {
			column(i, -1, "pool "+p.Name, p.Now, p.Then)
		}
		for n, d := range p.Domains {
			column(i, n, "pool "+p.Name+", "+d.Name, d.Now, d.Then)
		}
	}
	return s
}
