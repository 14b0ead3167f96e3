package inspect

import (
	"cmp"
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
const legend = `A number is the place of a seat in the sequence.
A seat with a border alone has a pod that waits for a node. A dashed one has no pod, and a red one is too many.
`

// places returns the places of each pool's seats in the sequence, by the pool's name. It returns nil where the targets are of more than
// one sequence: during a rollout, and while a pool has no room.
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
	if slices.ContainsFunc(w.Pools, func(p Pool) bool { return int64(len(places[p.Name])) != p.Target }) {
		return nil
	}
	return places
}

// pictures are those of workloads.
func pictures(of []Workload) []report.Seats {
	out := make([]report.Seats, len(of))
	for i := range of {
		out[i] = of[i].seats()
	}
	return out
}

// drawn are the workloads that a picture has, those first that are not as they should be. More are those that it leaves out.
func (r *Report) drawn() (drawn []Workload, more int) {
	all := slices.DeleteFunc(slices.Clone(r.Workloads), func(w Workload) bool { return len(w.Pools) == 0 })
	rank := func(w Workload) int {
		if w.OK {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b Workload) int { return cmp.Compare(rank(a), rank(b)) })
	n := min(len(all), mostPictures)
	return all[:n], len(all) - n
}

// seats is the picture of a workload.
func (w *Workload) seats() report.Seats {
	s := report.Seats{Title: fmt.Sprintf("%s/%s in %s: %s", w.Kind, w.Name, w.Namespace, report.Pods(int(w.Replicas))), Note: w.Policy, Unseated: int(w.Unseated)}
	places := w.places()
	for i, p := range w.Pools {
		c := report.Column{
			Name: "pool " + p.Name, Count: fmt.Sprintf("%d of %s", p.Current, report.Pods(int(p.Target))), Labels: p.Labels, Pool: i, Domain: -1,
			Boxes: report.Boxes(p.Current, p.Current-p.Pending, p.Target, places[p.Name]),
		}
		if len(p.Domains) == 0 {
			s.Columns = append(s.Columns, c)
			continue
		}
		for n, d := range p.Domains {
			in := c
			in.Name, in.Count, in.Domain = c.Name+", "+d.Name, fmt.Sprintf("%d of %s", d.Current, report.Pods(int(d.Target))), n
			in.Boxes = report.Boxes(d.Current, d.Current, d.Target, nil)
			if n > 0 {
				in.Labels = ""
			}
			s.Columns = append(s.Columns, in)
		}
	}
	return s
}
