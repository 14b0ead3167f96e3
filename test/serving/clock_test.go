package serving

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stowage-dev/stowage/internal/platform/apitime"
	"github.com/stowage-dev/stowage/internal/platform/certs"
	"github.com/stowage-dev/stowage/test/controlplane"
)

// A replica whose clock is wrong makes a certificate that is valid by the API server's.
func TestCertificateOfAWrongClock(t *testing.T) {
	for name, skew := range map[string]time.Duration{"ahead": 280 * 24 * time.Hour, "behind": -280 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			local := clocktesting.NewFakePassiveClock(time.Now().Add(skew))
			server := apitime.New(local)
			cfg := rest.CopyConfig(cluster.Config)
			cfg.Wrap(server.Wrap)
			// A Secret and a registration of its own: the fleet does not notice.
			o := certs.Options{
				Secret:       types.NamespacedName{Namespace: controlplane.StowageNamespace, Name: "wrong-clock-" + name},
				Registration: "wrong-clock", DNSNames: []string{"localhost"}, Clock: local, Time: server,
			}
			mgr, err := ctrl.NewManager(cfg, ctrl.Options{
				Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
				Cache:      cache.Options{ByObject: o.CacheByObject()},
				Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
			})
			must(t, err)
			keeper := &certs.Serving{}
			must(t, certs.Add(mgr, o, keeper))
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- mgr.Start(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				_ = cluster.Client.Delete(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.Secret.Namespace, Name: o.Secret.Name}})
			})
			eventually(t, "there is a certificate", func() (bool, error) { return keeper.Ready(nil) == nil, nil })
			served, err := keeper.GetCertificate(nil)
			must(t, err)
			now := time.Now()
			if left := served.Leaf.NotAfter.Sub(now); served.Leaf.NotBefore.After(now) || left < 364*24*time.Hour || left > 366*24*time.Hour {
				t.Errorf("it is valid from %s until %s", served.Leaf.NotBefore, served.Leaf.NotAfter)
			}
		})
	}
}
