package testkit

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Sample returns the value of the sample that has all of some labels, and 0 if there is none.
func Sample(t *testing.T, c prometheus.Collector, labels map[string]string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			have := 0
			for _, l := range sample.GetLabel() {
				if want, ok := labels[l.GetName()]; ok && want == l.GetValue() {
					have++
				}
			}
			if have == len(labels) {
				return sample.GetGauge().GetValue()
			}
		}
	}
	return 0
}
