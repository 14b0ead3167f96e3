package supply

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

// What is published is what was counted last.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(metrics.NewSet(registry))
	expect := func(want ...string) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			for _, one := range f.GetMetric() {
				line := strings.TrimPrefix(f.GetName(), "stowage_peerpods_")
				for _, label := range one.GetLabel() {
					line += " " + label.GetName() + "=" + label.GetValue()
				}
				got = append(got, fmt.Sprint(line, " ", one.GetGauge().GetValue()))
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("published are (-want +got):\n%s", diff)
		}
	}
	m.publish(map[Place]Use{{"ns", "a"}: {VMs: 2, VCPUs: 4, Memory: 8, Price: 1_500_000}, {"ns", "b"}: {VMs: 1}}, map[closedType]float64{{"c", "a", "x"}: 2, {"c", "a", ""}: 1})
	expect("memory_bytes namespace=ns type=a 8", "price_per_hour namespace=ns type=a 1.5", "types_closed catalog=c type=a zone= 1", "types_closed catalog=c type=a zone=x 2",
		"vcpus namespace=ns type=a 4", "vms namespace=ns type=a 2", "vms namespace=ns type=b 1")
	m.publish(map[Place]Use{{"ns", "b"}: {VMs: 3}}, map[closedType]float64{{"c", "a", "x"}: 1})
	expect("types_closed catalog=c type=a zone=x 1", "vms namespace=ns type=b 3")
	m.publish(nil, nil)
	expect()
}
