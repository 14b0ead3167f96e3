// Package metrics registers Prometheus metrics and remembers what they are, so that the
// reference of metrics is made from the metrics themselves.
package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Definition is what the reference says of a metric.
type Definition struct {
	Name, Type, Help string
	Labels           []string
}

// Set is the metrics of a process. Its methods panic if a name is taken: that is a mistake in
// the program, which its first start shows.
type Set struct {
	registry    prometheus.Registerer
	definitions []Definition
}

// NewSet returns a set that registers its metrics with a registry.
func NewSet(registry prometheus.Registerer) *Set { return &Set{registry: registry} }

// Definitions returns what was registered, by name.
func (s *Set) Definitions() []Definition {
	return slices.SortedFunc(slices.Values(s.definitions), func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
}

func register[C prometheus.Collector](s *Set, c C, kind, name, help string, labels []string) C {
	s.registry.MustRegister(c)
	s.definitions = append(s.definitions, Definition{Name: name, Type: kind, Help: help, Labels: labels})
	return c
}

// Counter registers a counter.
func (s *Set) Counter(name, help string) prometheus.Counter {
	return register(s, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}), "counter", name, help, nil)
}

// CounterVec registers a counter with labels.
func (s *Set) CounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return register(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels), "counter", name, help, labels)
}

// Gauge registers a gauge.
func (s *Set) Gauge(name, help string) prometheus.Gauge {
	return register(s, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}), "gauge", name, help, nil)
}

// GaugeFunc registers a gauge whose value is asked for.
func (s *Set) GaugeFunc(name, help string, value func() float64) {
	register(s, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value), "gauge", name, help, nil)
}

// GaugeVec registers a gauge with labels.
func (s *Set) GaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return register(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels), "gauge", name, help, labels)
}

// Histogram registers a histogram.
func (s *Set) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return register(s, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}), "histogram", name, help, nil)
}

// HistogramVec registers a histogram with labels.
func (s *Set) HistogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels), "histogram", name, help, labels)
}
