package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/finding"
)

// Where hundreds of workloads are not as they should be, some are shown and the others are counted, unless all are asked for.
func TestManyProblemsAreCounted(t *testing.T) {
	r := &Report{}
	for i := range 300 {
		name := fmt.Sprintf("web-%03d", i)
		r.problem(finding.Finding{Reason: finding.WithoutSeat, Namespace: "ns", Kind: "Deployment", Name: name, Values: finding.Values{Count: int64(i)}})
		if i%3 == 0 {
			r.problem(finding.Finding{Reason: finding.OverTarget, Namespace: "ns", Kind: "Deployment", Name: name})
		}
		r.Workloads = append(r.Workloads, Workload{Namespace: "ns", Kind: "Deployment", Name: name, Pools: make([]Pool, 2)})
	}
	shown := func(l Layout) string {
		var out strings.Builder
		if err := r.Print(&out, l); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	few := shown(Layout{Format: "table"})
	for _, part := range []string{"ns/Deployment/web-000: 0 pod(s) have no seat", "295 more like these (PodsWithoutSeat); --all shows them.", "95 more like these (OverTarget); --all shows them.", "280 more workloads are not as they should be; --all shows their rows.", "400 problems, 300 workloads"} {
		if !strings.Contains(few, part) {
			t.Errorf("%q is missing", part)
		}
	}
	if lines := strings.Count(few, "\n"); lines > 80 {
		t.Errorf("%d lines", lines)
	}
	if page := shown(Layout{Format: "html"}); strings.Count(page, "<tr>") != 400+1+600+1 || !strings.Contains(page, "<td>295 pod(s) have no seat") {
		t.Errorf("the page has %d rows", strings.Count(page, "<tr>"))
	}
	if page, link := shown(Layout{Format: "html"}), `<td><a href="https://github.com/stowage-dev/stowage/blob/main/docs/reasons.md#podswithoutseat">PodsWithoutSeat</a></td>`; strings.Count(page, link) != 300 {
		t.Errorf("%d rows lead to their reason", strings.Count(page, link))
	}
	if all := shown(Layout{Format: "table", All: true}); strings.Count(all, "\n") < 1400 || strings.Contains(all, "more like these") {
		t.Errorf("--all leaves something out, of %d lines", strings.Count(all, "\n"))
	}
}

// A namespace with many problems, or with many workloads that have some, does not take the places of the others.
func TestNamespacesShareWhatIsPrinted(t *testing.T) {
	r := &Report{}
	add := func(ns, name string) {
		r.problem(finding.Finding{Reason: finding.WithoutSeat, Namespace: ns, Kind: "Deployment", Name: name})
		r.Workloads = append(r.Workloads, Workload{Namespace: ns, Kind: "Deployment", Name: name, Pools: []Pool{{Name: "od", Target: 3, Current: 3, Pending: 2}, {}}})
	}
	for i := range 300 {
		add("greedy", fmt.Sprint("web-", i))
	}
	add("other", "shop")
	var out strings.Builder
	if err := r.Print(&out, Layout{Format: "table", AllNamespaces: true}); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"other/Deployment/shop: ", "other      Deployment/shop    od", "296 more like these", "281 more workloads", "  █▄▄\n", "PODS: █ is a pod, ▄ waits for a node, "} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, &out)
		}
	}
}
