package seats

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// A Secret that was deleted comes back with the key in use. Another key is said, and stays.
func TestKeyIsKept(t *testing.T) {
	key, other := ledger.NewKey(), ledger.NewKey()
	secret := func(key ledger.Key) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "stowage-system", Name: "stowage-seats"}, Data: map[string][]byte{keyName: key}}
	}
	for name, tc := range map[string]struct {
		there *corev1.Secret
		want  ledger.Key
		said  string
	}{
		"deleted":     {nil, key, ""},
		"as it was":   {secret(key), key, ""},
		"another key": {secret(other), other, "the key that signs seats is not safe"},
	} {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder()
			if tc.there != nil {
				builder.WithObjects(tc.there)
			}
			var log bytes.Buffer
			c := &Collector{
				Uncached: builder.Build(), KeySecret: client.ObjectKeyFromObject(secret(nil)), Log: logr.FromSlogHandler(slog.NewTextHandler(&log, nil)),
				Seats: New(Options{Key: key, Writer: "w", Clock: clock.RealClock{}, Metrics: NewMetrics(metrics.NewSet(prometheus.NewRegistry()))}),
			}
			c.collect(t.Context())
			var got corev1.Secret
			if err := c.Uncached.Get(t.Context(), c.KeySecret, &got); err != nil || !bytes.Equal(got.Data[keyName], tc.want) {
				t.Errorf("the Secret has another key than wanted, or none: %v", err)
			}
			if !strings.Contains(log.String(), tc.said) || tc.said == "" && log.Len() > 0 {
				t.Errorf("the log has %q", log.String())
			}
		})
	}
}
