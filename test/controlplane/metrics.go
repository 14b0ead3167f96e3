package controlplane

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
)

// Metric returns the sum of the samples of one of the API server's own metrics: see [SumMetric].
func (c *Cluster) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	page, err := c.Clientset.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return SumMetric(page, name, labels...)
}

// Metric returns the sum of the samples of a replica's metric: see [SumMetric].
func (r *Replica) Metric(name string, labels ...string) (float64, error) {
	return MetricAt(r.MetricsURL, name, labels...)
}

// MetricAt returns the sum of the samples of a metric on the page of an address: see [SumMetric].
func MetricAt(url, name string, labels ...string) (float64, error) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return SumMetric(page, name, labels...)
}

// SumMetric returns the sum of the samples of a metric, on a page in Prometheus' text format, whose labels match each
// of some expressions. It is 0 where there is no such sample.
func SumMetric(page []byte, name string, labels ...string) (float64, error) {
	sum := 0.0
samples:
	for _, sample := range regexp.MustCompile(`(?m)^`+name+`(\{[^}]*\})? (\S+)$`).FindAllSubmatch(page, -1) {
		for _, expression := range labels {
			if matches, err := regexp.Match(expression, sample[1]); err != nil {
				return 0, err
			} else if !matches {
				continue samples
			}
		}
		value, err := strconv.ParseFloat(string(sample[2]), 64)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, nil
}
