package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Seats are numbered by the sequence, and show what is in them.
func TestSeatsOfWorkload(t *testing.T) {
	s, err := sequence.Parse("type=default,base=1,weight=1:type=spot,weight=3")
	if err != nil {
		t.Fatal(err)
	}
	pools := []Pool{{Name: "0", Target: 2, Current: 3}, {Name: "1", Target: 3, Current: 2, Pending: 1}}
	w := Workload{Kind: "Deployment", Name: "web", Namespace: "ns", Replicas: 5, Pools: pools, strategy: s}
	got := w.seats()
	want := [][]report.Run{
		{{Count: 2, Numbers: []int{1, 4}}, {State: report.Extra, Count: 1, Numbers: []int{}}},
		{{Count: 1, Numbers: []int{2}}, {State: report.Waiting, Count: 1, Numbers: []int{3}}, {State: report.Missing, Count: 1, Numbers: []int{5}}},
	}
	for i, c := range got.Columns {
		if diff := cmp.Diff(want[i], c.Runs); diff != "" {
			t.Errorf("pool %d (-want +got)\n%s", i, diff)
		}
	}
	w.Replicas = 6
	if places := w.places(); places != nil {
		t.Errorf("targets of 5 pods have the places %v of 6", places)
	}
	// Where nobody wants them to be divided, none is missing and none too many.
	w.OK = true
	for i, c := range w.seats().Columns {
		if len(c.Runs) == 0 || c.Runs[len(c.Runs)-1].State > report.Waiting || c.Runs[0].Numbers != nil {
			t.Errorf("pool %d of a workload that is left alone is %v", i, c.Runs)
		}
	}
}

// A page shows first what is not as it should be, and counts what has no picture.
func TestPictureOfManyWorkloads(t *testing.T) {
	r := &Report{}
	for i := range 30 {
		r.Workloads = append(r.Workloads, Workload{Kind: "Deployment", Name: fmt.Sprint("web-", i), OK: i != 27, Pools: []Pool{{Name: "0", Target: 1, Current: 1}}})
	}
	r.Workloads = append(r.Workloads, Workload{Kind: "Deployment", Name: "invalid"})
	drawn, more := r.drawn()
	if len(drawn) != mostPictures || more != 10 || drawn[0].Name != "web-27" || drawn[1].Name != "web-0" {
		t.Errorf("%d are drawn, first %s, then %s, and %d not", len(drawn), drawn[0].Name, drawn[1].Name, more)
	}
	var page strings.Builder
	if err := r.Print(&page, Layout{Format: "html"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.String(), "10 workloads more have no picture here") || strings.Count(page.String(), "<svg") != 1 {
		t.Error("the page does not have one picture and the count of those without")
	}
}
