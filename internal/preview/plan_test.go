package preview

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/testkit"
)

// A picture of many pods has as many boxes as a page takes, and each pod is in one.
func TestPictureOfManyPods(t *testing.T) {
	s, err := sequence.Parse("type=od,base=1,weight=1:type=spot,weight=3")
	if err != nil {
		t.Fatal(err)
	}
	for pods, boxes := range map[int]int{150: 150, 151: 76, 2000: 144} {
		plan := Plan{Workload: &Workload{Name: "web"}, Policy: &policy.Policy{Layout: testkit.Layout(s, layout.Workload{})}}
		for n := range pods {
			seat, err := s.SeatAt(int64(n + 1))
			if err != nil {
				t.Fatal(err)
			}
			plan.Pools = append(plan.Pools, seat.Pool)
		}
		var out strings.Builder
		if err := SVG(&out, []Plan{plan}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), `rx="3"`); got != boxes {
			t.Errorf("%d pods have %d boxes, want %d", pods, got, boxes)
		}
		if said := strings.Contains(out.String(), "a box is "); said != (boxes < pods) {
			t.Errorf("%d pods: it says how many are in a box: %t", pods, said)
		}
	}
}

// The domains of a pool stand side by side, and each has its pods.
func TestPictureOfDomains(t *testing.T) {
	s, err := sequence.Parse("type=default,weight=1:type=spot,weight=4")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.WithDomains(sequence.Across{Key: "topology.kubernetes.io/zone", Domains: []sequence.Domain{{Value: "zone-a", Weight: 1}, {Value: "zone-b", Weight: 1}}}); err != nil {
		t.Fatal(err)
	}
	plan := Plan{Workload: &Workload{Name: "web"}, Policy: &policy.Policy{Layout: testkit.Layout(s, layout.Workload{})}, Pools: []int{0, 1, 1, -1}, Domains: []int{1, 0, 1, -1}}
	var out strings.Builder
	if err := SVG(&out, []Plan{plan}); err != nil {
		t.Fatal(err)
	}
	at := map[string]string{}
	for _, m := range regexp.MustCompile(`<text class="title" x="(\d+)" y="(\d+)">(pool [^<]*)<`).FindAllStringSubmatch(out.String(), -1) {
		at[m[3]] = m[1] + " " + m[2]
	}
	row := func(bay string) string { _, y, _ := strings.Cut(at[bay], " "); return y }
	if len(at) != 4 || row("pool 0, zone-a: 0 pods") == "" || row("pool 0, zone-a: 0 pods") != row("pool 0, zone-b: 1 pod") || row("pool 1, zone-a: 1 pod") == row("pool 0, zone-b: 1 pod") {
		t.Errorf("the bays are %v", at)
	}
	if !strings.Contains(out.String(), "type=spot, over topology.kubernetes.io/zone") || !strings.Contains(out.String(), "1 pod without a seat") {
		t.Errorf("the picture is\n%s", out.String())
	}
}
