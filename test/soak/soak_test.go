package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/test/suite"
)

// roundTime is how long a round goes on. What is done is written after each, so that the next run goes on from there.
const roundTime = 2 * time.Minute

// figures are what a round found.
type figures struct {
	Round       int     `json:"round"`
	Scales      int     `json:"scales"`      // of the victim
	Pods        int     `json:"pods"`        // of the victim that were seen
	WithoutSeat int     `json:"withoutSeat"` // that the webhook gave none
	Elsewhere   int64   `json:"elsewhere"`   // at most, at rest, in another pool than is due
	Strangers   int64   `json:"strangers"`   // reviews of strangers that were answered
	ResidentMiB float64 `json:"residentMiB"` // the most of any process of Stowage
	Requests    float64 `json:"requests"`    // a second, of all processes of Stowage
	Series      int     `json:"series"`      // of the process that has most
}

// Tenants and strangers do the worst that is known, all at once, for as long as asked. The pods of another namespace keep their seats
// meanwhile: each one gets a seat when it is created, and the division is exact whenever they are at rest. In every second round somebody
// forges reviews of that namespace's own pods. No rule can stop that (see SECURITY.md), and it may move one pod.
func TestSoak(t *testing.T) {
	if *minutes == 0 {
		t.Skip("make soak runs it")
	}
	var done []figures
	if text, err := os.ReadFile(*state); err == nil {
		suite.Must(t, json.Unmarshal(text, &done))
	}
	rounds := (*minutes + 1) / 2
	fmt.Printf("%-6s %7s %6s %12s %9s %10s %13s %11s %7s\n", "round", "scales", "pods", "without seat", "elsewhere", "strangers", "resident MiB", "requests/s", "series")
	for _, f := range done {
		f.print()
	}
	for len(done) < rounds {
		f := round(t, len(done)+1)
		if t.Failed() {
			return
		}
		done = append(done, f)
		f.print()
		if *state != "" {
			text, err := json.MarshalIndent(done, "", "  ")
			suite.Must(t, err)
			suite.Must(t, os.WriteFile(*state, text, 0o644))
		}
	}
}

func (f figures) print() {
	fmt.Printf("%-6d %7d %6d %12d %9d %10d %13.0f %11.1f %7d\n", f.Round, f.Scales, f.Pods, f.WithoutSeat, f.Elsewhere, f.Strangers, f.ResidentMiB, f.Requests, f.Series)
}

func round(t *testing.T, number int) figures {
	f := figures{Round: number}
	s := suite.StrategyOf(t, suite.EightyTwenty)
	victim := suite.NewTenant(t)
	d := victim.Deployment("web", 5, suite.Annotated(suite.EightyTwenty))
	suite.Must(t, victim.Create(t.Context(), d))
	victim.Spreads(t, "web", 5, s)

	ctx, stop := context.WithCancel(t.Context())
	var attacks sync.WaitGroup
	end := sync.OnceFunc(func() { stop(); attacks.Wait() })
	defer end()
	var strangers []*stranger
	address := 0
	meet := func() *stranger { // on another address, and with another replica than the one before
		address++
		replicas := suite.Cluster.Replicas()
		one := newStranger(fmt.Sprintf("127.4.%d.%d", address/250, address%250+1), replicas[address%len(replicas)].WebhookAddr)
		strangers = append(strangers, one)
		return one
	}
	var large []*stranger
	for range 6 {
		large = append(large, meet())
	}
	attacks.Go(func() { sendHostileReviews(ctx, large) })
	attacks.Go(func() { keepConnections(ctx) })
	attacks.Go(func() { inventOwners(ctx, []*stranger{meet(), meet(), meet()}) })
	greedy := suite.NewTenant(t)
	attacks.Go(func() { writePolicies(ctx, greedy, 400) })
	attacks.Go(func() { waitAtTheGate(ctx, greedy) })
	attacks.Go(func() { waitForNodes(ctx, greedy) })
	forged := int64(0) // how many pods that may move
	if number%2 == 0 {
		forged = 1
		forger := meet()
		attacks.Go(func() { forge(ctx, forger, victim) })
	}

	before, begin := requests(t), clock.RealClock{}.Now()
	seen := map[types.UID]bool{}
	for _, replicas := range []int{60, 20, 45, 5, 80, 30, 10, 60, 1, 50, 25, 70} {
		if (clock.RealClock{}).Since(begin) > roundTime {
			break
		}
		victim.Scale(t, d, replicas)
		f.Elsewhere = max(f.Elsewhere, victim.SpreadsBut(t, "web", replicas, s, forged))
		f.Scales++
		pods, err := victim.Pods(t.Context(), "web")
		suite.Must(t, err)
		for i := range pods {
			if seen[pods[i].UID] {
				continue
			}
			seen[pods[i].UID] = true
			if !seated(&pods[i]) {
				f.WithoutSeat++
			}
		}
	}
	f.Pods = len(seen)
	f.Requests = (requests(t) - before) / (clock.RealClock{}).Since(begin).Seconds()
	for _, r := range suite.Cluster.Processes() {
		f.ResidentMiB = max(f.ResidentMiB, suite.MetricAt(t, r.MetricsURL, "process_resident_memory_bytes")/(1<<20))
		f.Series = max(f.Series, series(t, r.MetricsURL))
	}
	end()
	for _, one := range strangers {
		f.Strangers += one.asked.Load()
	}
	if ended := suite.Cluster.EndedReplicas(); len(ended) > 0 {
		t.Errorf("round %d: a process of Stowage ended: see %s", number, ended[0].Log)
	}
	if f.WithoutSeat > 0 {
		t.Errorf("round %d: %d of %d pods of the victim came without a seat", number, f.WithoutSeat, f.Pods)
	}
	suite.Must(t, victim.Delete(t.Context(), d))
	return f
}

// seated reports whether the webhook gave a pod its seat.
func seated(pod *corev1.Pod) bool {
	claim := pod.Annotations[stowage.ClaimAnnotation]
	return claim != "" && ledger.Origin(claim[0]).Admitted()
}

func requests(t *testing.T) (sum float64) {
	for _, r := range suite.Cluster.Processes() {
		sum += suite.MetricAt(t, r.MetricsURL, "rest_client_requests_total")
	}
	return sum
}

// sendHostileReviews sends large reviews of small items, on several connections of each client.
func sendHostileReviews(ctx context.Context, from []*stranger) {
	bodies := hostileReviews(2 << 20)
	var all sync.WaitGroup
	for n, s := range from {
		for range 2 {
			all.Go(func() {
				for i := n; pause(ctx, 200*time.Millisecond); i++ {
					s.ask(ctx, bodies[i%len(bodies)])
				}
			})
		}
	}
	all.Wait()
}

// keepConnections opens many connections from many addresses, sends nothing on them, and opens them again.
func keepConnections(ctx context.Context) {
	for pause(ctx, time.Second) {
		var conns []net.Conn
		for i := range 600 {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 5, 0, byte(i%120+1))}, Timeout: time.Second}
			replicas := suite.Cluster.Replicas()
			if conn, err := dialer.DialContext(ctx, "tcp", replicas[i%len(replicas)].WebhookAddr); err == nil {
				conns = append(conns, conn)
			}
		}
		pause(ctx, 3*time.Second)
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
}

// inventOwners sends reviews of pods whose owners do not exist, in many namespaces and of many kinds.
func inventOwners(ctx context.Context, from []*stranger) {
	for i := 0; pause(ctx, 5*time.Millisecond); i++ {
		owner := fmt.Sprintf(`"name":"p","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r%d","uid":"u%[1]d","controller":true}],"annotations":{"CustomPodScheduleStrategy":"p=a,weight=1"}`, i)
		from[i%len(from)].ask(ctx, review(fmt.Sprintf("ns-%d", i%50), owner, ""))
	}
}

// writePolicies makes large policies, of some 45 KiB each, and writes one of them twice a second.
func writePolicies(ctx context.Context, n *suite.Tenant, policies int) {
	large := func(i int) *stowage.SpreadPolicy {
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: fmt.Sprint("p", i)}}
		p.Spec = stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Priority: int32(i)}
		for k := range 16 {
			r := stowage.Requirement{Key: fmt.Sprint("key-", k), Operator: metav1.LabelSelectorOpNotIn}
			for v := range 4 {
				r.Values = append(r.Values, versprei.LabelValue(fmt.Sprintf("%063d", v)))
			}
			p.Spec.Selector.MatchExpressions = append(p.Spec.Selector.MatchExpressions, r)
		}
		for k := range 32 {
			selector := map[string]versprei.LabelValue{}
			for l := range 16 {
				selector[fmt.Sprintf("pool-%d-%d", k, l)] = versprei.LabelValue(strings.Repeat("v", 63))
			}
			p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: fmt.Sprint("p", k), NodeSelector: selector, Weight: int32(k + 1)})
		}
		return p
	}
	for i := range policies {
		if ctx.Err() != nil {
			return
		}
		_ = n.Create(ctx, large(i))
	}
	for i := 0; pause(ctx, 500*time.Millisecond); i++ {
		p := large(i % world.MostPolicies)
		_ = n.Patch(ctx, p, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"priority":%d}}`, 1000+i)))
	}
}

// waitAtTheGate has pods wait at the gate about which nobody can decide, again and again.
func waitAtTheGate(ctx context.Context, n *suite.Tenant) {
	d := n.Deployment("gated", 0, nil)
	d.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: "no strategy"}
	d.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}, {Name: stowage.SeatGate}}
	_ = n.Create(ctx, d)
	for {
		for _, replicas := range []int{600, 0} {
			_ = n.Patch(ctx, &appsv1.Deployment{ObjectMeta: d.ObjectMeta}, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)))
			if !pause(ctx, 40*time.Second) {
				return
			}
		}
	}
}

// waitForNodes makes workloads of many pools without nodes, whose pods wait.
func waitForNodes(ctx context.Context, n *suite.Tenant) {
	var strategy []string
	for k := range 30 {
		strategy = append(strategy, fmt.Sprintf("none=%d,weight=%d", k, k+1))
	}
	for i := range 30 {
		annotations := suite.Annotated(strings.Join(strategy, ":"))
		annotations[stowage.SpillAnnotation] = "30s"
		_ = n.Create(ctx, n.Deployment(fmt.Sprint("waits-", i), 10, annotations))
	}
	<-ctx.Done()
}

// forge asks for seats of the victim's pods, which no pod takes: one after the other, as somebody may who knows its ReplicaSet.
func forge(ctx context.Context, s *stranger, victim *suite.Tenant) {
	for pause(ctx, 100*time.Millisecond) {
		var list appsv1.ReplicaSetList
		if victim.List(ctx, &list, client.InNamespace(victim.Namespace)) != nil || len(list.Items) == 0 {
			continue
		}
		rs := &list.Items[0]
		owner := fmt.Sprintf(`"generateName":"web-","labels":{"app":"web"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":%q,"uid":%q,"controller":true}]`, rs.Name, rs.UID)
		s.ask(ctx, review(victim.Namespace, owner, ""))
	}
}

// pause waits, and reports whether there is still something to do.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
