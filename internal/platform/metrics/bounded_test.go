package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// However many workloads tenants have, a gauge has so many series; one namespace leaves room for others; nothing is lost from the sum; and a
// value of zero takes nothing.
func TestBoundedGauge(t *testing.T) {
	g := NewSet(prometheus.NewRegistry()).BoundedGauge("g", "Help.", "namespace", "name")
	sum := func() float64 { return testutil.ToFloat64(g.vec.WithLabelValues("", "other")) }
	for i := range 150 {
		g.Set(1, "greedy", fmt.Sprint(i))
		g.Set(0, "quiet", fmt.Sprint(i))
	}
	if n := testutil.CollectAndCount(g.vec); n != mostSeriesOfNamespace+1 || sum() != 50 {
		t.Errorf("a greedy namespace has %d series, and %v are in the rest", n, sum())
	}
	for ns := range 40 {
		for i := range 60 {
			g.Set(2, fmt.Sprint("ns-", ns), fmt.Sprint(i))
		}
	}
	if n := testutil.CollectAndCount(g.vec); n != mostSeries+1 || sum() != 50+2*(40*60+100-mostSeries) {
		t.Errorf("%d series, and %v in the rest", n, sum())
	}
	g.Set(3, "greedy", "149") // in the rest
	if want := 52 + 2.*(40*60+100-mostSeries); sum() != want {
		t.Errorf("%v in the rest, want %v", sum(), want)
	}
	for i := range 100 {
		g.Set(0, "greedy", fmt.Sprint(i))
	}
	g.Set(3, "greedy", "149")
	if got := testutil.ToFloat64(g.vec.WithLabelValues("greedy", "149")); got != 3 {
		t.Errorf("a series for which there is room is %v", got)
	}
	for ns := range 40 {
		for i := range 60 {
			g.Set(0, fmt.Sprint("ns-", ns), fmt.Sprint(i))
		}
	}
	for i := range 150 {
		g.Set(0, "greedy", fmt.Sprint(i))
	}
	if n := testutil.CollectAndCount(g.vec); n != 0 || len(g.series)+len(g.named)+g.all != 0 || g.rest != 0 {
		t.Errorf("%d series are left, and %+v", n, g)
	}
	ratio := NewSet(prometheus.NewRegistry()).BoundedRatio("r", "Help.", "namespace", "name")
	for i := range 150 {
		ratio.Set(0.1, "ns", fmt.Sprint(i))
	}
	if n := testutil.CollectAndCount(ratio); n != mostSeriesOfNamespace {
		t.Errorf("ratios of a namespace have %d series", n)
	}
	g.Set(1, "ns", "a")
	if g.Reset(); testutil.CollectAndCount(g.vec) != 0 {
		t.Error("a series is left")
	}
}

// Long labels take the place of short ones, and not more memory. What goes makes room.
func TestBoundedGaugeInBytes(t *testing.T) {
	registry := prometheus.NewRegistry()
	g := NewSet(registry).BoundedGauge("test", "Test.", "namespace", "name")
	published := func() (bytes int) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range families[0].GetMetric() {
			for _, l := range m.GetLabel() {
				bytes += len(l.GetValue())
			}
		}
		return bytes
	}
	name := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", 100_000)) }
	for i := range 20 {
		g.Set(1, fmt.Sprint("ns-", i), name(i))
	}
	if n := published(); n > mostLabelBytes || n < mostLabelBytes/2 {
		t.Errorf("labels of %d bytes are published", n)
	}
	before := published()
	g.Set(0, "ns-0", name(0))
	g.Set(1, "ns-19", name(19))
	if n := published(); n < before-10 || n > mostLabelBytes {
		t.Errorf("labels of %d bytes are published after one made room, and of %d before", n, before)
	}
}
