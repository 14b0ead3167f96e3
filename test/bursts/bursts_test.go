// Package bursts tests that pods are divided exactly while many are created at once, with one webhook and with
// three.
package bursts

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

func TestMain(m *testing.M) {
	os.Exit(suite.Run(false, func(context.Context) (int, error) { return m.Run(), nil }))
}

// long asks for bursts of all strategies and sizes; make test-long sets it.
var long = flag.Bool("long", false, "run the long form of the bursts")

// withReplicas runs a test with one webhook process, and with three that ask each other for seats.
func withReplicas(t *testing.T, test func(t *testing.T)) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("webhooks=%d", replicas), func(t *testing.T) {
			o := suite.Fleet
			o.Replicas, o.Pods = replicas, replicas > 1
			o.Args = append(slices.Clone(o.Args), "--host=0.0.0.0") // an endpoint has no loopback address
			suite.Must(t, suite.Cluster.StartStowage(t.Context(), o))
			suite.RestoreFleet(t)
			if !o.Pods {
				test(t)
				return
			}
			suite.Must(t, suite.Cluster.ServeReplicas(t.Context(), suite.Cluster.Replicas()))
			t.Cleanup(func() {
				suite.Must(t, suite.Cluster.StopServing(context.WithoutCancel(t.Context()), controlplane.StowageService))
			})
			test(t)
			if granted := relayed(t, "granted"); granted == 0 {
				t.Error("no replica was given a seat by another one")
			}
		})
	}
}

// relayed returns how many requests for seats of other replicas have ended in a result.
func relayed(t *testing.T, result string) (sum float64) {
	for _, r := range suite.Cluster.Replicas() {
		sum += suite.MetricAt(t, r.MetricsURL, "stowage_claims_relayed_total", fmt.Sprintf("result=%q", result))
	}
	return sum
}

// The spread under everything that happens to Deployments, with three webhooks. One webhook shares seats with nobody, so only the long form plays with
// one what does not depend on their number.
func TestSpreadConcurrent(t *testing.T) {
	withReplicas(t, func(t *testing.T) {
		for _, tc := range []struct {
			name  string
			alone bool // one webhook alone is another case
			test  func(*testing.T)
		}{
			{"requests of a burst", true, testRequests},
			{"bursts", false, testBursts},
			{"two Deployments at once", false, testTwoAtOnce},
			{"a rollout, and a rollback half-way", false, testRollout},
			{"a drain, and a third deleted", false, testDrain},
			{"a strategy is edited", false, testEdit},
			{"a scale-down meets pending pods", false, testPending},
			{"a webhook is killed, failing closed", false, testKilledClosed},
			{"a webhook is killed, failing open", false, testKilledOpen},
		} {
			if tc.alone || *long || len(suite.Cluster.Replicas()) > 1 {
				t.Run(tc.name, tc.test)
			}
		}
		if len(suite.Cluster.Replicas()) > 1 { // nobody asks a lone replica
			t.Run("a webhook that writes hangs", testHungWriter)
		}
	})
}

// Deployments of all sizes, grown and shrunk.
func testBursts(t *testing.T) {
	for name, tc := range map[string]struct {
		strategy string
		known    map[int][]int64
	}{
		"documented": {suite.Documented, map[int][]int64{10: {1, 4, 5}}},
		"80-20":      {suite.EightyTwenty, map[int][]int64{10: {8, 2}, 25: {20, 5}}},
		"1-3":        {suite.OneToThree, map[int][]int64{10: {4, 6}}},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := []int{10, 25, 100, 10} // and 501 in testRequests
			if *long {
				sizes = []int{10, 25, 10, 100, 500, 100}
			}
			n := suite.NewTenant(t)
			s := suite.StrategyOf(t, tc.strategy)
			for at, want := range tc.known {
				for pool, count := range want {
					if got := s.Target(pool, int64(at)); got != count {
						t.Errorf("at %d pool %d has the target %d, want %d", at, pool, got, count)
					}
				}
			}
			d := n.Deployment("web", 10, suite.Annotated(tc.strategy))
			suite.Must(t, n.Create(t.Context(), d))
			for i, replicas := range sizes {
				if i > 0 {
					n.Scale(t, d, replicas)
				}
				n.SpreadsOrSays(t, "web", replicas, s)
			}
		})
	}
}

// A burst costs the webhooks a commit for each batch of the ReplicaSet controller, which doubles (slowStartBatch), and for each beat that the burst takes:
// seats ahead are for the pods of some 500 ms (docs/design/ledger.md). A commit is two requests, a write of the ledger and a read of the replica count, and each
// webhook may try one. So the bound grows with the time of the burst, and holds on a slow machine, too. It stays below a request for every second pod:
// where each commit is of one pod, a burst takes long because of that.
const (
	batchesOfBurst = 9 // of 500 pods
	beat           = 500 * time.Millisecond
)

func mostRequests(replicas int, took time.Duration) float64 {
	commits := batchesOfBurst + int(took/beat) + 1
	return float64(min(2*replicas*commits, 500/2))
}

// testRequests counts the requests that webhooks send for a burst of 500 pods.
func testRequests(t *testing.T) {
	n := suite.NewTenant(t)
	d := n.Deployment("web", 1, suite.Annotated(suite.EightyTwenty))
	suite.Must(t, n.Create(t.Context(), d))
	n.Ready(t, "web", 1)
	sent := func() (sum float64) {
		for _, r := range suite.Cluster.Replicas() {
			sum += suite.MetricAt(t, r.MetricsURL, "rest_client_requests_total")
		}
		return sum
	}
	before, begin := sent(), time.Now()
	n.Scale(t, d, 501)
	suite.Eventually(t, "there are 501 pods", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.Replicas == 501, err
	})
	took, replicas := time.Since(begin), len(suite.Cluster.Replicas())
	n.Ready(t, "web", 501)
	got := sent() - before
	n.SpreadsOrSays(t, "web", 501, suite.StrategyOf(t, suite.EightyTwenty))
	t.Logf("%d webhook(s) sent %.0f requests for 500 pods in %s", replicas, got, took)
	if most := mostRequests(replicas, took); got > most {
		t.Errorf("the most is %.0f", most)
	}
}

func testTwoAtOnce(t *testing.T) {
	n := suite.NewTenant(t)
	for name, strategy := range map[string]string{"one": suite.Documented, "two": suite.EightyTwenty} {
		suite.Must(t, n.Create(t.Context(), n.Deployment(name, 150, suite.Annotated(strategy))))
	}
	n.SpreadsOrSays(t, "one", 150, suite.StrategyOf(t, suite.Documented))
	n.SpreadsOrSays(t, "two", 150, suite.StrategyOf(t, suite.EightyTwenty))
}

func testRollout(t *testing.T) {
	n := suite.NewTenant(t)
	s := suite.StrategyOf(t, suite.Documented)
	d := n.Deployment("web", 60, suite.Annotated(suite.Documented))
	suite.Must(t, n.Create(t.Context(), d))
	n.SpreadsOrSays(t, "web", 60, s)
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.SpreadsOrSays(t, "web", 60, s)

	n.Revise(t, d, "3")
	suite.Eventually(t, "the rollout is half-way", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.UpdatedReplicas >= 20, err
	})
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.SpreadsOrSays(t, "web", 60, s)
}

func testDrain(t *testing.T) {
	n := suite.NewTenant(t)
	s := suite.StrategyOf(t, suite.Documented)
	suite.Must(t, n.Create(t.Context(), n.Deployment("web", 100, suite.Annotated(suite.Documented))))
	n.SpreadsOrSays(t, "web", 100, s)

	// A node goes: its pods are evicted all at once.
	pods, err := n.Pods(t.Context(), "web")
	suite.Must(t, err)
	var evictions sync.WaitGroup
	for i := range pods[:30] {
		evictions.Go(func() {
			if err := n.SubResource("eviction").Create(t.Context(), &pods[i], &policyv1.Eviction{}); err != nil {
				t.Errorf("evict: %v", err)
			}
		})
	}
	evictions.Wait()
	n.SpreadsOrSays(t, "web", 100, s)

	pods, err = n.Pods(t.Context(), "web")
	suite.Must(t, err)
	for i := range pods {
		if i%3 == 0 {
			suite.Must(t, client.IgnoreNotFound(n.Delete(t.Context(), &pods[i])))
		}
	}
	n.SpreadsOrSays(t, "web", 100, s)
}

func testEdit(t *testing.T) {
	n := suite.NewTenant(t)
	const half = "type=default,weight=50:type=spot,weight=50"
	d := n.Deployment("web", 10, suite.Annotated(suite.EightyTwenty))
	suite.Must(t, n.Create(t.Context(), d))
	n.SpreadsOrSays(t, "web", 10, suite.StrategyOf(t, suite.EightyTwenty)) // 8 and 2
	suite.Must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, stowage.SpreadStrategyAnnotation, half))))
	suite.Eventually(t, "the replicas know the edit", func() (bool, error) {
		var list appsv1.ReplicaSetList
		err := n.List(t.Context(), &list, client.InNamespace(n.Namespace))
		return len(list.Items) == 1 && list.Items[0].Annotations[stowage.SpreadStrategyAnnotation] == half, err
	})
	n.Scale(t, d, 16) // 8 and 8: no pool is over its target any more
	n.SpreadsOrSays(t, "web", 16, suite.StrategyOf(t, half))
	// The costs follow, so that it shrinks exactly, too.
	n.CostsAgree(t, "web", suite.StrategyOf(t, half))
	n.Scale(t, d, 9)
	n.SpreadsOrSays(t, "web", 9, suite.StrategyOf(t, half))
}

func testPending(t *testing.T) {
	n := suite.NewTenant(t)
	// No node has the second pool's label, so its pods wait.
	const strategy = "type=default,weight=1:type=nowhere,weight=1"
	s := suite.StrategyOf(t, strategy)
	d := n.Deployment("web", 20, suite.Annotated(strategy))
	suite.Must(t, n.Create(t.Context(), d))
	seats := func(replicas int, want ...int) {
		t.Helper()
		suite.Eventually(t, fmt.Sprintf("the seats at %d are %v", replicas, want), func() (bool, error) {
			pods, err := n.Pods(t.Context(), "web")
			have := make([]int, s.Len())
			for i := range pods {
				if pool, err := strconv.Atoi(pods[i].Labels[stowage.PoolLabel]); err == nil {
					have[pool]++
				}
			}
			return len(pods) == replicas && slices.Equal(have, want), err
		})
	}
	seats(20, 10, 10)
	suite.Eventually(t, "the first pool's pods are ready", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		return d.Status.ReadyReplicas == 10, err
	})
	n.Scale(t, d, 12)
	seats(12, 10, 2) // pending pods go first, whatever their rank
	n.Scale(t, d, 20)
	seats(20, 10, 10)
}

// failClosed makes the API server refuse pods while no webhook answers, for this test. It returns when the API
// server knows that: a webhook that never answers comes with the change, and is called.
func failClosed(t *testing.T) {
	t.Helper()
	const probe = "probe.stowage.dev"
	n := suite.NewTenant(t, probe+"=yes")
	change := func(ctx context.Context, policy admissionregistrationv1.FailurePolicyType, probes ...admissionregistrationv1.MutatingWebhook) error {
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			var r admissionregistrationv1.MutatingWebhookConfiguration
			if err := suite.Cluster.Client.Get(ctx, client.ObjectKey{Name: "stowage"}, &r); err != nil {
				return err
			}
			r.Webhooks = slices.DeleteFunc(r.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == probe })
			r.Webhooks[0].FailurePolicy = &policy
			r.Webhooks = append(r.Webhooks, probes...)
			return suite.Cluster.Client.Update(ctx, &r)
		})
	}
	t.Cleanup(func() {
		if err := change(context.Background(), admissionregistrationv1.Ignore); err != nil {
			t.Error(err)
		}
	})
	suite.Must(t, change(t.Context(), admissionregistrationv1.Fail, admissionregistrationv1.MutatingWebhook{
		Name: probe, ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")},
		FailurePolicy: new(admissionregistrationv1.Fail), SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{probe: "yes"}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}},
	}))
	template := suite.PodTemplate("probe")
	suite.Eventually(t, "the API server knows the failure policy", func() (bool, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "probe", Labels: template.Labels}, Spec: template.Spec}
		err := n.Create(t.Context(), pod, client.DryRunAll)
		if err != nil && strings.Contains(err.Error(), probe) {
			return true, nil
		}
		return false, err
	})
	suite.Must(t, change(t.Context(), admissionregistrationv1.Fail))
}

// killInBurst kills one webhook in the middle of a burst, and starts it again.
func killInBurst(t *testing.T, n *suite.Tenant, d *appsv1.Deployment) {
	t.Helper()
	suite.Must(t, n.Create(t.Context(), d))
	suite.Eventually(t, "the burst is under way", func() (bool, error) {
		pods, err := n.Pods(t.Context(), d.Name)
		return len(pods) > 40, err
	})
	victim := suite.Cluster.Replicas()[0]
	victim.Kill()
	suite.Must(t, suite.Cluster.Restart(t.Context(), victim))
}

func testKilledClosed(t *testing.T) {
	failClosed(t)
	n := suite.NewTenant(t)
	d := n.Deployment("web", 300, suite.Annotated(suite.Documented))
	killInBurst(t, n, d)
	// A refused create makes the controller wait longer, and it tries one for each pod that becomes ready meanwhile: it may wait up to
	// 1000 s now. A change of the ReplicaSet, whose annotations are those of the Deployment, ends that.
	tries := 0
	suite.EventuallyEvery(t, 2*time.Second, 3*suite.WaitTimeout, "there are 300 pods", func() (bool, error) {
		if pods, err := n.Pods(t.Context(), "web"); err != nil || len(pods) == 300 {
			return len(pods) == 300, err
		}
		tries++
		return false, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/try":"%d"}}}`, tries)))
	})
	n.SpreadsOrSays(t, "web", 300, suite.StrategyOf(t, suite.Documented))
}

// The replica that the others ask for seats hangs until the burst is over. Pods that it was called for bypass it.
func testHungWriter(t *testing.T) {
	n := suite.NewTenant(t)
	annotations := suite.Annotated(suite.EightyTwenty)
	annotations[stowage.RebalanceAnnotation] = string(versprei.RebalanceEvict)
	within := func(seconds string) float64 { // calls of the webhook so far
		sum, err := suite.Cluster.Metric(t.Context(), "apiserver_admission_webhook_admission_duration_seconds_bucket", `name="pods`, `le="`+regexp.QuoteMeta(seconds)+`"`)
		suite.Must(t, err)
		return sum
	}
	before := map[string]float64{}
	for _, bound := range []string{"+Inf", "1", "2.5"} {
		before[bound] = within(bound)
	}
	d := n.Deployment("web", 300, annotations)
	suite.Must(t, n.Create(t.Context(), d))
	var writer *controlplane.Replica
	suite.Eventually(t, "the burst is under way, and a replica writes its ledger", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		if err != nil || len(pods) < 40 {
			return false, err
		}
		var ledgers stowage.SeatLedgerList
		if err := suite.Cluster.Client.List(t.Context(), &ledgers, client.InNamespace(n.Namespace)); err != nil || len(ledgers.Items) == 0 {
			return false, err
		}
		for _, r := range suite.Cluster.Replicas() {
			if strings.HasPrefix(ledgers.Items[0].Writer, "pod/"+r.Name+"_") {
				writer = r
			}
		}
		return writer != nil, nil
	})
	begin := time.Now()
	suite.Must(t, writer.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = writer.Signal(syscall.SIGCONT) }) // if it fails before
	suite.Eventually(t, "all pods are created without it", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		return len(pods) == 300, err
	})
	took := time.Since(begin)
	all := within("+Inf") - before["+Inf"]
	over := func(bound string) float64 { return all - (within(bound) - before[bound]) }
	t.Logf("the burst took %s more: of %.0f calls, %.0f took over 1 s, and %.0f over 2.5 s", took.Round(100*time.Millisecond), all, over("1"), over("2.5"))
	suite.Must(t, writer.Signal(syscall.SIGCONT))
	n.Spreads(t, "web", 300, suite.StrategyOf(t, suite.EightyTwenty))
}

func testKilledOpen(t *testing.T) {
	n := suite.NewTenant(t)
	s := suite.StrategyOf(t, suite.Documented)
	annotations := suite.Annotated(suite.Documented)
	if len(suite.Cluster.Replicas()) == 1 {
		// With nobody to take over, many pods bypass the webhook. They are adopted
		// where they run, which is reported, and a rollout is exact.
		d := n.Deployment("web", 300, annotations)
		killInBurst(t, n, d)
		suite.Eventually(t, "all pods have a seat, and pools with too many are reported", func() (bool, error) {
			pods, err := n.Pods(t.Context(), "web")
			seated := 0
			for i := range pods {
				if pods[i].Labels[stowage.SeatLabel] != "" {
					seated++
				}
			}
			return seated == 300 && suite.Metric(t, suite.Cluster.Controllers()[0], "stowage_spread_distance", "") > 0, err
		})
		n.Revise(t, d, "2")
		n.RolledOut(t, d)
		n.SpreadsOrSays(t, "web", 300, s)
		return
	}
	annotations[stowage.RebalanceAnnotation] = string(versprei.RebalanceEvict)
	d := n.Deployment("web", 300, annotations)
	killInBurst(t, n, d)
	// Pods that bypassed the webhook are adopted, and evicted from pools with too many.
	n.Spreads(t, "web", 300, s)
	n.CostsAgree(t, "web", s)
	n.Scale(t, d, 50)
	n.Spreads(t, "web", 50, s)
}
