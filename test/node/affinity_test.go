package node

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

var compare = flag.Bool("compare", false, "also measure the faults of replicas without session affinity")

// takeoverLimit is the time in which another replica must answer in place of one that hangs: three readiness probes, 2 s apart, of
// 2 s each, and what the news takes to kube-proxy.
const takeoverLimit = 15 * time.Second

// affinity checks what webhook.sessionAffinity of the chart says, with both ways in which kube-proxy serves Services: an API
// server calls one replica, and another one takes over from it. Until it does, no call is answered, which is why it is off.
func affinity(t *testing.T, n *suite.Tenant) {
	stowageScale(t, 3)
	for _, mode := range []string{"iptables", "nftables"} { // the last one is what the node began with
		useProxy(t, cluster.Nodes[0], mode)
		for _, a := range []corev1.ServiceAffinity{corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP} {
			if a == corev1.ServiceAffinityNone && !*compare {
				continue
			}
			setAffinity(t, a)
			fresh(t)
			t.Run(mode+" "+string(a), func(t *testing.T) {
				before := reads(t)
				const pods = 100 // the controller creates some ten at once
				d := n.Deployment(strings.ToLower("burst-"+mode+"-"+string(a)), pods, suite.Annotated(strategy))
				d.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
				suite.Must(t, n.Create(t.Context(), d))
				suite.Eventually(t, "all pods are created", func() (bool, error) {
					have, err := n.Pods(t.Context(), d.Name)
					return len(have) == pods, err
				})
				called := callees(before, reads(t))
				t.Logf("a burst: calls by replica: %v", slices.Collect(maps.Values(called)))
				if one := len(called) == 1; one != (a == corev1.ServiceAffinityClientIP) {
					t.Errorf("with affinity %s, a burst reached %v", a, called)
				}
				suite.Must(t, n.Delete(t.Context(), d))
				faults(t, n, mode, a)
			})
		}
	}
	setAffinity(t, corev1.ServiceAffinityNone)
	stowageScale(t, 2)
}

// faults kills, drains and stops the replica that is called.
func faults(t *testing.T, n *suite.Tenant, mode string, a corev1.ServiceAffinity) {
	name := strings.ToLower(mode + "-" + string(a))
	open := failedOpen(t)
	l := startLoad(t, n, "kill-"+name)
	l.grows(t, 10)
	victim := callee(t)
	signal(t, victim, "SIGKILL")
	suite.Eventually(t, "the replica runs again", func() (bool, error) {
		var pod corev1.Pod
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(&victim), &pod)
		return err == nil && pod.Status.ContainerStatuses[0].RestartCount > 0 && pod.Status.ContainerStatuses[0].Ready, err
	})
	takesOver(t, corev1.Pod{})
	bypassed := failedOpen(t) - open
	t.Logf("a replica is killed: %d pods were created meanwhile, and %d calls bypassed the webhook", len(l.end(t)), bypassed)
	if bypassed > 200 {
		t.Errorf("%d calls bypassed the webhook", bypassed)
	}
	suite.Must(t, n.Delete(t.Context(), l.d))

	t.Log("a replica is drained:")
	underLoad(t, n, "drain-"+name, 0, func() {
		victim := callee(t)
		suite.Must(t, cluster.Client.SubResource("eviction").Create(t.Context(), &victim, &policyv1.Eviction{}))
		takesOver(t, victim)
	})
	stowageScale(t, 3)

	victim = callee(t)
	p := startProbes(t)
	begin := time.Now()
	signal(t, victim, "SIGSTOP")
	suite.Eventually(t, "the replica that hangs is not ready", func() (bool, error) { return !isReady(t, victim.Name), nil })
	unready := time.Since(begin)
	takesOver(t, victim)
	<-time.After(2 * time.Second) // calls under way end
	p.end()
	signal(t, victim, "SIGCONT")
	suite.Eventually(t, "the replica is ready again", func() (bool, error) { return isReady(t, victim.Name), nil })
	asked, missed, slow, last := p.since(begin)
	t.Logf("a replica hangs: of %d calls, %d were not answered and %d took over a second, the last one asked after %.1f s; the replica was not ready after %.1f s",
		asked, missed, slow, last.Seconds(), unready.Seconds())
	if last > takeoverLimit {
		t.Errorf("calls were late for %s after a replica hung", last)
	}
}

// useProxy restarts the kube-proxy of a node in a mode. It removes the rules of the other mode.
func useProxy(t *testing.T, n *Node, mode string) {
	t.Helper()
	suite.Must(t, n.End("kube-proxy", syscall.SIGTERM))
	suite.Must(t, os.WriteFile(n.file("kube-proxy.yaml"), []byte(n.proxyConfig(mode)), 0o644))
	suite.Must(t, n.Start("kube-proxy", cluster.programs.KubeProxy, "--config="+n.file("kube-proxy.yaml")))
	suite.Eventually(t, "the API server calls the webhook", func() (bool, error) { return cluster.WebhookAnswers(t.Context()) })
}

// fresh replaces all replicas, so that every connection is new.
func fresh(t *testing.T) {
	t.Helper()
	stowageScale(t, 0)
	stowageScale(t, 3)
	suite.Eventually(t, "the API server calls the webhook", func() (bool, error) { return cluster.WebhookAnswers(t.Context()) })
}

func setAffinity(t *testing.T, affinity corev1.ServiceAffinity) {
	t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: "stowage-webhook"}}
	patch := fmt.Sprintf(`{"spec":{"sessionAffinity":%q,"sessionAffinityConfig":null}}`, affinity)
	suite.Must(t, cluster.Client.Patch(t.Context(), service, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// replicas returns the pods of Stowage.
func replicas(t *testing.T) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	suite.Must(t, cluster.Client.List(t.Context(), &pods, client.InNamespace(controlplane.StowageNamespace), client.MatchingLabels{"app.kubernetes.io/name": "stowage"}))
	return pods.Items
}

func isReady(t *testing.T, name string) bool {
	t.Helper()
	for _, p := range replicas(t) {
		if p.Name == name {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady {
					return c.Status == corev1.ConditionTrue
				}
			}
		}
	}
	return false
}

// reads returns how many reviews each replica has read. One that does not answer is left out.
func reads(t *testing.T) map[string]float64 {
	t.Helper()
	asking := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: cluster.Nodes[0].Dial}}
	out := map[string]float64{}
	for _, p := range replicas(t) {
		resp, err := asking.Get("http://" + p.Status.PodIP + ":8080/metrics")
		if err != nil {
			continue
		}
		page, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			continue
		}
		out[p.Name], err = controlplane.SumMetric(page, "stowage_admission_step_seconds_count", `step="read"`)
		suite.Must(t, err)
	}
	return out
}

// callees returns the replicas that have read reviews meanwhile, and how many.
func callees(before, after map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for name, n := range after {
		if n > before[name] {
			out[name] = n - before[name]
		}
	}
	return out
}

// callee returns the replica that the API server calls now, or the one that it calls most.
func callee(t *testing.T) corev1.Pod {
	t.Helper()
	var name string
	suite.Eventually(t, "a replica is called", func() (bool, error) {
		before := reads(t)
		for range 10 {
			if _, err := cluster.WebhookAnswers(t.Context()); err != nil {
				return false, err
			}
		}
		most := 0.0
		for replica, n := range callees(before, reads(t)) {
			if n > most {
				name, most = replica, n
			}
		}
		return most > 0, nil
	})
	for _, p := range replicas(t) {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("the replica %s is gone", name)
	return corev1.Pod{}
}

// signal sends a signal to a replica's process.
func signal(t *testing.T, pod corev1.Pod, name string) {
	t.Helper()
	node := nodeOf(&pod)
	id := pod.Status.ContainerStatuses[0].ContainerID[len("containerd://"):]
	suite.Must(t, node.run(node.Command(t.Context(), "ctr", "--namespace", "k8s.io", "task", "kill", "--signal", name, id)))
}

// takesOver waits until another replica than the victim is called.
func takesOver(t *testing.T, victim corev1.Pod) {
	t.Helper()
	suite.Eventually(t, "another replica takes over", func() (bool, error) {
		before := reads(t)
		if ok, err := cluster.WebhookAnswers(t.Context()); err != nil || !ok {
			return false, err
		}
		called := callees(before, reads(t))
		return len(called) > 0 && called[victim.Name] == 0, nil
	})
}

// probes ask ten times a second whether the API server calls the webhook.
type probes struct {
	stop context.CancelFunc
	all  sync.WaitGroup

	mu   sync.Mutex
	done []probe
}

// probe is a call, and whether it was answered.
type probe struct {
	asked    time.Time
	took     time.Duration
	answered bool
}

func startProbes(t *testing.T) *probes {
	ctx, cancel := context.WithCancel(t.Context())
	p := &probes{stop: cancel}
	t.Cleanup(cancel)
	p.all.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case at := <-tick.C:
				p.all.Go(func() {
					ok, err := cluster.WebhookAnswers(context.WithoutCancel(ctx))
					p.mu.Lock()
					defer p.mu.Unlock()
					p.done = append(p.done, probe{at, time.Since(at), ok && err == nil})
				})
			}
		}
	})
	return p
}

// end waits for the probes under way.
func (p *probes) end() {
	p.stop()
	p.all.Wait()
}

// since counts the probes after a time, those of them that were not answered and those that took over a second, and when the last
// one of both was asked.
func (p *probes) since(begin time.Time) (asked, missed, slow int, last time.Duration) {
	for _, c := range p.done {
		if c.asked.Before(begin) {
			continue
		}
		asked++
		switch {
		case !c.answered:
			missed++
		case c.took > time.Second:
			slow++
		default:
			continue
		}
		last = max(last, c.asked.Sub(begin))
	}
	return asked, missed, slow, last
}
