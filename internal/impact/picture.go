package impact

import (
	"fmt"
	"slices"

	"github.com/stowage-dev/stowage/internal/report"
)

// legend says what the seats of a picture mean.
var legend = []report.Key{
	{State: report.Held, Text: "a pod that the pool has now and keeps"},
	{State: report.Missing, Text: "a pod that the pool gets"}, {State: report.Extra, Text: "a pod that the pool loses"},
}

// picture is the part of a page that shows where pods go. It leaves out workloads whose pods the scheduler places as it likes.
func (r *Report) picture() (part report.Part, ok bool) {
	var pictures []report.Seats
	for i := range r.Workloads {
		if w := &r.Workloads[i]; len(w.Pools) > 0 && !w.free() {
			pictures = append(pictures, w.seats())
		}
	}
	text := ""
	if more := len(pictures) - shown; more > 0 {
		text = fmt.Sprintf("%d workloads more have no picture here.\n", more)
		pictures = slices.Clip(pictures[:shown])
	}
	part = report.Picture("Where the pods go", pictures, text)
	part.Legend = legend
	return part, len(pictures) > 0
}

// seats is the picture of a workload: each pool as it is now, and after the next rollout.
func (w *Workload) seats() report.Seats {
	s := report.Seats{Title: fmt.Sprintf("%s %s/%s: %s", w.Kind, w.Namespace, w.Name, report.Pods(int(w.Replicas))), Note: w.Policy}
	column := func(pool, domain int, name string, now, then int64) {
		s.Columns = append(s.Columns, report.Column{
			Name: name, Count: fmt.Sprintf("%d → %s", now, report.Pods(int(then))), Pool: pool, Domain: domain, Runs: report.Runs(now, now, then, nil),
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
