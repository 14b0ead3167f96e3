package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// The bounds of a gauge: series, series of one namespace, and bytes of labels. Tenants who may create workloads could exceed them.
const (
	mostSeries            = 2000
	mostSeriesOfNamespace = 100
	mostLabelBytes        = 512 << 10
)

// other stands for the series beyond the bound, in all labels but that of the namespace, which is empty.
const other = "other"

// BoundedGauge is a gauge for what tenants make. Only values other than zero have a series, and so many of them at most; one more
// series has the sum of the others. A series that another one leaves room for is there after it was set again.
type BoundedGauge struct {
	vec *prometheus.GaugeVec

	mu     sync.Mutex
	series map[string]*series // by labels
	named  map[string]int     // how many are published, by namespace
	all    int
	bytes  int // of the labels of those that are published
	rest   float64
	beyond []string // labels of the rest; nil where there is none
}

type series struct {
	labels []string
	value  float64
	named  bool
}

// BoundedGauge registers a bounded gauge. The first label is the namespace.
func (s *Set) BoundedGauge(name, help string, labels ...string) *BoundedGauge {
	help += " A value of 0 has no series. Beyond 2,000 series, 100 of one namespace, or 512 KiB of labels, the others are added up in one that has other for a name."
	g := &BoundedGauge{vec: s.GaugeVec(name, help, labels...), beyond: make([]string, len(labels))}
	for i := range labels[1:] {
		g.beyond[i+1] = other
	}
	g.clear()
	return g
}

// BoundedRatio is BoundedGauge for values that cannot be added up. Those beyond the bound are left out.
func (s *Set) BoundedRatio(name, help string, labels ...string) *BoundedGauge {
	help += " Series beyond 2,000, 100 of one namespace, or 512 KiB of labels are left out."
	g := &BoundedGauge{vec: s.GaugeVec(name, help, labels...)}
	g.clear()
	return g
}

func (g *BoundedGauge) clear() {
	g.series, g.named, g.all, g.bytes, g.rest = map[string]*series{}, map[string]int{}, 0, 0, 0
}

// Set sets the value of a series.
func (g *BoundedGauge) Set(value float64, labels ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := strings.Join(labels, "\x00")
	known := g.series[key]
	switch {
	case value == 0 && known == nil:
		return
	case value == 0:
		g.remove(key, known)
		return
	case known == nil:
		known = &series{labels: labels}
		g.series[key] = known
	}
	// What has no namespace is not a tenant's.
	if !known.named && g.all < mostSeries && (labels[0] == "" || g.named[labels[0]] < mostSeriesOfNamespace) && g.bytes+len(key) <= mostLabelBytes {
		g.addRest(-known.value)
		known.named = true
		g.all++
		g.bytes += len(key)
		g.named[labels[0]]++
	}
	if known.named {
		g.vec.WithLabelValues(labels...).Set(value)
	} else {
		g.addRest(value - known.value)
	}
	known.value = value
}

func (g *BoundedGauge) remove(key string, known *series) {
	delete(g.series, key)
	if !known.named {
		g.addRest(-known.value)
		return
	}
	g.vec.DeleteLabelValues(known.labels...)
	g.all--
	g.bytes -= len(key)
	if g.named[known.labels[0]]--; g.named[known.labels[0]] == 0 {
		delete(g.named, known.labels[0])
	}
}

func (g *BoundedGauge) addRest(value float64) {
	if value == 0 || g.beyond == nil {
		return
	}
	if g.rest += value; g.rest == 0 {
		g.vec.DeleteLabelValues(g.beyond...)
	} else {
		g.vec.WithLabelValues(g.beyond...).Set(g.rest)
	}
}

// Reset removes all series.
func (g *BoundedGauge) Reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.vec.Reset()
	g.clear()
}

// Describe implements prometheus.Collector.
func (g *BoundedGauge) Describe(to chan<- *prometheus.Desc) { g.vec.Describe(to) }

// Collect implements prometheus.Collector.
func (g *BoundedGauge) Collect(to chan<- prometheus.Metric) { g.vec.Collect(to) }
