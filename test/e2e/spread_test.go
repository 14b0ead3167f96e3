package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/policy"
	"github.com/stowage-dev/stowage/internal/spread"
)

// The three known strategies.
const (
	documented = "nodesize=od4vcpu16gb,base=1,weight=0:nodesize=spot4vcpu16gb,weight=1:nodesize=spot8vcpu32gb,weight=1"
	eightyOf   = "type=default,weight=80:type=spot,weight=20"
	oneToThree = "karpenter.sh/capacity-type=on-demand,base=2,weight=1:karpenter.sh/capacity-type=spot,weight=3"
)

func strategyOf(t *testing.T, text string) *spread.Strategy {
	t.Helper()
	s, err := spread.Parse(text)
	must(t, err)
	return s
}

// annotated returns the annotations that give a strategy.
func annotated(strategy string) map[string]string {
	return map[string]string{stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAnnotation: strategy}
}

// podTemplate is a small pod.
func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
}

// deployment makes a Deployment without creating it.
func (n *tenant) deployment(name string, replicas int, annotations map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name, Annotations: annotations},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: podTemplate(name),
		},
	}
}

func (n *tenant) scale(t *testing.T, obj client.Object, replicas int) {
	t.Helper()
	must(t, n.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))))
}

// pods returns the live pods of an app.
func (n *tenant) pods(ctx context.Context, app string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := n.List(ctx, &list, client.InNamespace(n.namespace), client.MatchingLabels{"app": app}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}), nil
}

// nodeLabels are the labels of all nodes, which do not change.
func nodeLabels(ctx context.Context) (map[string]map[string]string, error) {
	var nodes corev1.NodeList
	if err := cluster.Client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, node := range nodes.Items {
		out[node.Name] = node.Labels
	}
	return out, nil
}

// distribution says what is wrong with the pods of an app: each must run, hold a seat of
// its own without gaps below it, and be on a node of its pool; and the counts must be
// those of the strategy.
func (n *tenant) distribution(ctx context.Context, app string, replicas int, s *spread.Strategy) error {
	pods, err := n.pods(ctx, app)
	if err != nil {
		return err
	}
	nodes, err := nodeLabels(ctx)
	if err != nil {
		return err
	}
	if len(pods) != replicas {
		return fmt.Errorf("%d pods of %d", len(pods), replicas)
	}
	onNodes := make([]int64, s.Len())
	seats := map[string][]int{}
	for i := range pods {
		p := &pods[i]
		if !isReady(p) {
			return fmt.Errorf("pod %s is not ready", p.Name)
		}
		for pool := range s.Len() {
			if hasLabels(nodes[p.Spec.NodeName], s.Pool(pool).Labels) {
				onNodes[pool]++
			}
		}
		ordinal, err := strconv.Atoi(p.Labels[stowage.SeatLabel])
		if err != nil {
			return fmt.Errorf("pod %s on node %s has no seat (labels %v)", p.Name, p.Spec.NodeName, p.Labels)
		}
		seats[p.Labels[stowage.PoolLabel]] = append(seats[p.Labels[stowage.PoolLabel]], ordinal)
	}
	for pool := range s.Len() {
		name := s.Pool(pool).Name
		want := s.Target(pool, int64(replicas))
		if onNodes[pool] != want || len(seats[name]) != int(want) {
			return fmt.Errorf("pools have %v pods on their nodes, and pool %s %d seats; it should have %d", onNodes, name, len(seats[name]), want)
		}
		slices.Sort(seats[name])
		for i, ordinal := range seats[name] {
			if ordinal != i+1 {
				return fmt.Errorf("the seats of pool %s are %v", name, seats[name])
			}
		}
	}
	return nil
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// spreads waits until an app's pods are divided as the strategy demands.
func (n *tenant) spreads(t *testing.T, app string, replicas int, s *spread.Strategy) {
	t.Helper()
	var wrong error
	err := wait.PollUntilContextTimeout(t.Context(), 2*waitInterval, 3*waitTimeout, true, func(ctx context.Context) (bool, error) {
		wrong = n.distribution(ctx, app, replicas, s)
		return wrong == nil, nil
	})
	if err != nil {
		pods, _ := n.pods(context.WithoutCancel(t.Context()), app)
		for i := range pods {
			p := &pods[i]
			t.Logf("%s %s/%s on %s, cost %s, created %s", p.Name, p.Labels[stowage.PoolLabel], p.Labels[stowage.SeatLabel], p.Spec.NodeName,
				p.Annotations[corev1.PodDeletionCost], p.CreationTimestamp.Format(time.TimeOnly))
		}
		t.Fatalf("%s at %d: %v", app, replicas, wrong)
	}
}

// withReplicas runs a test with one and with three webhook processes.
func withReplicas(t *testing.T, test func(t *testing.T)) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("webhooks=%d", replicas), func(t *testing.T) {
			o := fleet
			o.Replicas = replicas
			must(t, cluster.StartStowage(t.Context(), o))
			restoreFleet(t)
			test(t)
		})
	}
}

// Deployments of all sizes, grown and shrunk.
func TestSpreadConcurrentBursts(t *testing.T) {
	withReplicas(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			strategy string
			known    map[int][]int64
		}{
			"documented": {documented, map[int][]int64{10: {1, 4, 5}}},
			"80-20":      {eightyOf, map[int][]int64{10: {8, 2}, 25: {20, 5}}},
			"1-3":        {oneToThree, map[int][]int64{10: {4, 6}}},
		} {
			t.Run(name, func(t *testing.T) {
				n := newTenant(t)
				s := strategyOf(t, tc.strategy)
				for at, want := range tc.known {
					for pool, count := range want {
						if got := s.Target(pool, int64(at)); got != count {
							t.Errorf("at %d pool %d has the target %d, want %d", at, pool, got, count)
						}
					}
				}
				d := n.deployment("web", 10, annotated(tc.strategy))
				must(t, n.Create(t.Context(), d))
				for i, replicas := range []int{10, 25, 10, 100, 500, 100} {
					if i > 0 {
						n.scale(t, d, replicas)
					}
					n.spreads(t, "web", replicas, s)
				}
			})
		}
	})
}

// distributor makes the documented PodDistributor for a Deployment of the namespace.
func (n *tenant) distributor(t *testing.T, name, target string, change func(*versprei.PodDistributorSpec)) *versprei.PodDistributor {
	t.Helper()
	d := &versprei.PodDistributor{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name},
		Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{
				{NodeLabel: map[string]versprei.LabelValue{"type": "default"}, Weight: 80},
				{NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 20},
			},
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: target},
		},
	}
	if change != nil {
		change(&d.Spec)
	}
	must(t, n.Create(t.Context(), d))
	return d
}

var _ = maps.Keys[map[string]string]
var _ = strings.Join
var _ = policy.Compile
