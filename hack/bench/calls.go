package main

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// callsMetric is the API server's histogram of calls of webhooks, and webhooksOfPods matches the labels of those for pods.
const (
	callsMetric    = "apiserver_admission_webhook_admission_duration_seconds"
	webhooksOfPods = `name="(?:floor\.bench|pods|pods-fail)\.stowage\.dev"`
)

// calls returns how many calls of the webhooks for pods the API server has made, and the time that they took in all.
func (b *bench) calls(ctx context.Context) (n float64, took time.Duration, err error) {
	if n, err = b.Metric(ctx, callsMetric+"_count", webhooksOfPods); err != nil {
		return 0, 0, err
	}
	seconds, err := b.Metric(ctx, callsMetric+"_sum", webhooksOfPods)
	return n, time.Duration(seconds * float64(time.Second)), err
}

// callBounds are the bounds of the buckets of callsMetric, in seconds.
var callBounds = []string{"0.005", "0.025", "0.1", "0.5", "1", "2.5", "10", "25", "+Inf"}

// callTimes is how many calls of the webhooks for pods took at most as long as each of callBounds.
type callTimes []float64

// callTimes returns what the API server has counted so far.
func (b *bench) callTimes(ctx context.Context) (callTimes, error) {
	page, err := b.Clientset.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	out := make(callTimes, len(callBounds))
	for i, bound := range callBounds {
		if out[i], err = controlplane.SumMetric(page, callsMetric+"_bucket", webhooksOfPods, regexp.QuoteMeta(fmt.Sprintf("le=%q", bound))); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// within returns the index of the least of callBounds that 99 of 100 calls since an earlier count kept, and -1 if there were none.
func (c callTimes) within(earlier callTimes) int {
	last := len(c) - 1
	all := c[last] - earlier[last]
	for i := range callBounds {
		if all > 0 && c[i]-earlier[i] >= 0.99*all {
			return i
		}
	}
	return -1
}

// boundText is the bound with an index of callBounds, as a text.
func boundText(i int) string {
	if i < 0 {
		return "-"
	}
	return callBounds[i] + "s"
}
