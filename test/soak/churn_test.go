package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// churnTime is how long the short form goes on.
const churnTime = 40 * time.Second

// churn is one namespace with workloads of all kinds, which are changed all the time.
type churn struct {
	*suite.Tenant
	random *rand.Rand
	nodes  []*corev1.Node
	policy *stowage.SpreadPolicy
	local  map[string]bool // workloads whose volumes are on one node each

	mu      sync.Mutex
	evicted map[string]int // by workload
	harmed  []string       // evictions of pods that are held
}

// distributed are the workloads with a PodDistributor.
var distributed = []string{"local", "zonal", "guarded", "free", "shared"}

// Everything that people do in hours is done in minutes: weights are edited, labels mistyped and corrected, workloads scaled and rolled out,
// nodes cordoned, pods protected and not, a policy switched. Pods are evicted, but never one that its volume or an annotation holds. At rest,
// all pods run.
func TestNothingHeldIsEvicted(t *testing.T) {
	c := newChurn(t)
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	end := sync.OnceFunc(func() { stop(); watching.Wait() })
	defer end()
	c.watch(ctx, t, &watching)

	length := max(churnTime, time.Duration(*minutes)*time.Minute)
	steps := 0
	changing, enough := context.WithTimeout(ctx, length)
	defer enough()
	for ; pause(changing, 300*time.Millisecond) && len(c.harm()) == 0; steps++ {
		c.step(t)
	}

	// What was done to nodes, labels and the policy is undone. Then nobody waits.
	for _, node := range c.nodes {
		c.cordon(t, node, false)
	}
	for _, name := range distributed {
		c.label(t, name, "spot")
	}
	c.mode(t, stowage.PolicyEnforce)
	suite.EventuallyWithin(t, 4*time.Minute, "all pods run", func() (bool, error) {
		var pods corev1.PodList
		if err := c.List(t.Context(), &pods, client.InNamespace(c.Namespace)); err != nil {
			return false, err
		}
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !podstatus.Ready(&p) }), nil
	})
	end()
	for _, text := range c.harm() {
		t.Error(text)
	}
	t.Logf("%d changes; evictions: %v", steps, c.evicted)
	if c.evicted["free"]+c.evicted["zonal"]+c.evicted["partly"] == 0 {
		t.Errorf("no pod was evicted that may be, so nothing was tried: %v", c.evicted)
	}
}

func newChurn(t *testing.T) *churn {
	c := &churn{Tenant: suite.NewTenant(t), random: rand.New(rand.NewPCG(1, uint64(time.Now().Unix()))), evicted: map[string]int{}, local: map[string]bool{"local": true, "shared": true}}
	for _, pool := range []string{"od", "spot"} {
		for _, zone := range suite.Zones[:2] {
			c.nodes = append(c.nodes, c.ZoneNode(t, pool, zone, 50))
		}
	}
	ofNode, ofZone := c.Provisioner(t, corev1.LabelHostname), c.Provisioner(t, corev1.LabelTopologyZone)
	for name, class := range map[string]string{"local": ofNode, "zonal": ofZone} {
		c.Shortage(t, name, 0, func(spec *versprei.PodDistributorSpec) {
			spec.Rebalance, spec.Target.Kind = versprei.RebalanceEvict, "StatefulSet"
		})
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}}
		set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = new(int32(5)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, suite.PodTemplate(name)
		set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		suite.OneCPU(&set.Spec.Template.Spec)
		set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: suite.ClaimSpec(class, corev1.ReadWriteOnce)}}
		suite.Must(t, c.Create(t.Context(), set))
	}
	evicts := func(spec *versprei.PodDistributorSpec) { spec.Rebalance = versprei.RebalanceEvict }
	guarded := c.Shortage(t, "guarded", 6, evicts)
	guarded.Spec.Template.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
	shared := c.Deployment("shared", 4, nil) // which is divided once its volume is on a node
	suite.OneCPU(&shared.Spec.Template.Spec)
	c.WithClaim(t, &shared.Spec.Template, "shared", suite.ClaimSpec(ofNode, corev1.ReadWriteMany))
	for _, d := range []*appsv1.Deployment{guarded, shared, c.Shortage(t, "free", 8, evicts)} {
		suite.Must(t, c.Create(t.Context(), d))
	}
	c.policy = &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "partly"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Rebalance: versprei.RebalanceEvict, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "partly"}},
	}}
	for _, of := range []versprei.Pool{c.Pool("od", 20), c.Pool("spot", 80)} {
		c.policy.Spec.Pools = append(c.policy.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	suite.Must(t, c.Create(t.Context(), c.policy))
	c.Follows(t, map[string]string{"app": "partly"}, c.policy.UID, c.policy.Generation)
	partly := c.Deployment("partly", 6, nil)
	suite.OneCPU(&partly.Spec.Template.Spec)
	suite.Must(t, c.Create(t.Context(), partly))
	for name, pods := range map[string]int{"local": 5, "zonal": 5, "guarded": 6, "shared": 4, "free": 8, "partly": 6} {
		c.Ready(t, name, pods)
	}
	c.Shortage(t, "shared", 0, evicts)
	return c
}

// watch looks at each pod that is evicted through the API, which then has a condition that says so.
func (c *churn) watch(ctx context.Context, t *testing.T, group *sync.WaitGroup) {
	t.Helper()
	w, err := client.NewWithWatch(c.Config, client.Options{Scheme: controlplane.Scheme})
	suite.Must(t, err)
	events, err := w.Watch(ctx, &corev1.PodList{}, client.InNamespace(c.Namespace))
	suite.Must(t, err)
	group.Go(func() {
		defer events.Stop()
		seen := map[types.UID]bool{}
		for {
			select {
			case <-ctx.Done():
				return
			case e, open := <-events.ResultChan():
				if !open {
					if ctx.Err() == nil {
						c.note("", "the watch of pods ended")
					}
					return
				}
				if pod, ok := e.Object.(*corev1.Pod); ok && evicted(pod) && !seen[pod.UID] {
					seen[pod.UID] = true
					c.judge(pod)
				}
			}
		}
	})
}

func evicted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(cond corev1.PodCondition) bool {
		return cond.Type == corev1.DisruptionTarget && cond.Status == corev1.ConditionTrue && cond.Reason == "EvictionByEvictionAPI"
	})
}

// judge notes the eviction of a pod, and whether that was to be.
func (c *churn) judge(pod *corev1.Pod) {
	app, harm := pod.Labels["app"], ""
	switch protected := podstatus.Protected(pod); {
	case pod.Spec.NodeName == "":
	case protected != "":
		harm = fmt.Sprintf("pod %s on %s was evicted, which has %s", pod.Name, pod.Spec.NodeName, protected)
	case c.local[app]:
		harm = fmt.Sprintf("pod %s was evicted, whose volume is on %s alone", pod.Name, pod.Spec.NodeName)
	}
	c.note(app, harm)
}

func (c *churn) note(app, harm string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.evicted[app]++; harm != "" {
		c.harmed = append(c.harmed, harm)
	}
}

func (c *churn) harm() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.harmed)
}

// step does one thing that people do.
func (c *churn) step(t *testing.T) {
	t.Helper()
	name := distributed[c.random.IntN(len(distributed))]
	switch c.random.IntN(12) {
	case 0, 1, 2, 3:
		c.patch(t, &versprei.PodDistributor{}, name, types.JSONPatchType, `[{"op":"replace","path":"/spec/distribution/0/weight","value":%d}]`, 1+c.random.IntN(100))
	case 4:
		c.label(t, name, []string{"typo", "spot"}[c.random.IntN(2)])
	case 5:
		c.cordon(t, c.nodes[c.random.IntN(len(c.nodes))], c.random.IntN(3) == 0)
	case 6:
		c.patch(t, &appsv1.Deployment{}, []string{"guarded", "shared", "free", "partly"}[c.random.IntN(4)], types.MergePatchType, `{"spec":{"replicas":%d}}`, 3+c.random.IntN(8))
	case 7:
		c.patch(t, &appsv1.Deployment{}, []string{"guarded", "free", "partly"}[c.random.IntN(3)], types.MergePatchType, `{"spec":{"template":{"metadata":{"labels":{"revision":"%d"}}}}}`, c.random.IntN(1e6))
	case 8:
		c.mode(t, []stowage.PolicyMode{stowage.PolicyEnforce, stowage.PolicyEnforce, stowage.PolicyAudit}[c.random.IntN(3)])
	case 9:
		c.patch(t, &stowage.SpreadPolicy{}, "partly", types.JSONPatchType, `[{"op":"replace","path":"/spec/pools/0/weight","value":%d}]`, 1+c.random.IntN(100))
	default:
		c.protect(t)
	}
}

// patch changes one object, if it is there.
func (c *churn) patch(t *testing.T, obj client.Object, name string, kind types.PatchType, format string, args ...any) {
	t.Helper()
	obj.SetNamespace(c.Namespace)
	obj.SetName(name)
	suite.Must(t, client.IgnoreNotFound(c.Patch(t.Context(), obj, client.RawPatch(kind, fmt.Appendf(nil, format, args...)))))
}

// label gives the second pool of a PodDistributor the labels of a pool.
func (c *churn) label(t *testing.T, name, pool string) {
	t.Helper()
	c.patch(t, &versprei.PodDistributor{}, name, types.JSONPatchType, `[{"op":"replace","path":"/spec/distribution/1/nodeLabel","value":{"shortage-test":%q}}]`, c.Namespace+"."+pool)
}

func (c *churn) mode(t *testing.T, mode stowage.PolicyMode) {
	t.Helper()
	c.patch(t, &stowage.SpreadPolicy{}, "partly", types.MergePatchType, `{"spec":{"mode":%q}}`, mode)
}

func (c *churn) cordon(t *testing.T, node *corev1.Node, on bool) {
	t.Helper()
	suite.Must(t, c.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on))))
}

// protect protects a pod of the workload partly, or lets it go again.
func (c *churn) protect(t *testing.T) {
	t.Helper()
	pods, err := c.Pods(t.Context(), "partly")
	suite.Must(t, err)
	if len(pods) == 0 {
		return
	}
	value := []string{`"false"`, "null"}[c.random.IntN(2)]
	c.patch(t, &corev1.Pod{}, pods[c.random.IntN(len(pods))].Name, types.MergePatchType, `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/safe-to-evict":%s}}}`, value)
}
