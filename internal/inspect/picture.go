package inspect

import (
	"fmt"
	"slices"

	"github.com/stowage-dev/stowage/internal/report"
)

// mostPictures is how many workloads a picture has, and mostNumbered how many seats of one have their number.
const (
	mostPictures = 20
	mostNumbered = 2000
)

// legend says what the seats of a picture mean.
var legend = []report.Key{
	{State: report.Held, Text: "a pod on its node"}, {State: report.Waiting, Text: "a pod that waits for a node"},
	{State: report.Missing, Text: "the pool lacks a pod"}, {State: report.Extra, Text: "a pod too many in the pool"},
}

// numbers says what the numbers in seats mean.
const numbers = "A number is the place of a seat in the sequence. The pods of a pool are shown in its first seats.\n"

// places returns the places of each pool's seats in the sequence, by the pool's name. It returns nil where the targets are not
// those of one sequence, as during most rollouts and while a pool has no room.
func (w *Workload) places() map[string][]int {
	if w.strategy == nil || w.Replicas > mostNumbered {
		return nil
	}
	places := map[string][]int{}
	for n := int64(1); n <= w.Replicas; n++ {
		seat, err := w.strategy.SeatAt(n)
		if err != nil {
			break
		}
		name := w.strategy.Pool(seat.Pool).Name
		places[name] = append(places[name], int(n))
	}
	if slices.ContainsFunc(w.Pools, func(p Pool) bool { return int64(len(places[p.Name])) != w.wanted(&p) }) {
		return nil
	}
	return places
}

// drawn are the workloads that a picture has, those first that are not as they should be. More are those that it leaves out.
func (r *Report) drawn() (drawn []Workload, more int) {
	are := func(ok bool) []Workload {
		return slices.DeleteFunc(slices.Clone(r.Workloads), func(w Workload) bool { return len(w.Pools) == 0 || w.OK != ok })
	}
	all := slices.Concat(are(false), are(true))
	n := min(len(all), mostPictures)
	return all[:n], len(all) - n
}

// picture is the part of a page that shows where the pods are.
func (r *Report) picture() (part report.Part, ok bool) {
	drawn, more := r.drawn()
	text := numbers
	if more > 0 {
		text += fmt.Sprintf("%d workloads more have no picture here: name them to see theirs.\n", more)
	}
	pictures := make([]report.Seats, len(drawn))
	for i := range drawn {
		pictures[i] = drawn[i].seats()
	}
	part = report.Picture("Where the pods are", pictures, text)
	part.Legend = legend
	return part, len(drawn) > 0
}

// wanted is how many pods a pool should have: as many as it has where nobody wants the pods to be divided.
func (w *Workload) wanted(p *Pool) int64 {
	if w.OK {
		return p.Current
	}
	return p.Target
}

// seats is the picture of a workload.
func (w *Workload) seats() report.Seats {
	s := report.Seats{Title: fmt.Sprintf("%s/%s in %s: %s", w.Kind, w.Name, w.Namespace, report.Pods(int(w.Replicas))), Note: w.Policy, Unseated: int(w.Unseated)}
	places := w.places()
	for i := range w.Pools {
		p := &w.Pools[i]
		wanted := w.wanted(p)
		s.Columns = append(s.Columns, report.Column{
			Name: "pool " + p.Name, Count: fmt.Sprintf("%d of %s", p.Current, report.Pods(int(wanted))), Labels: p.Labels, Pool: i, Domain: -1,
			Runs: report.Runs(p.Current, p.Current-p.Pending, wanted, places[p.Name]),
		})
	}
	return s
}
