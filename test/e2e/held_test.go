package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/suite"
)

// stays checks that the pods of an app are those that there were.
func (n *tenant) stays(t *testing.T, app string, was []string) {
	t.Helper()
	if is, _ := n.UIDs(t, app); !slices.Equal(was, is) {
		t.Errorf("the pods of %s were %v, and are %v", app, was, is)
	}
}

// held waits until an event says that pods of an app stay.
func (n *tenant) held(t *testing.T, app string) {
	t.Helper()
	eventuallyWithin(t, 2*suite.WaitTimeout, "an event says that pods of "+app+" stay", func() (bool, error) {
		return n.HasEvent(t, string(stowage.EventPodHeld), "such as "+app+"-"), nil
	})
}

// cordon cordons nodes, or takes that back.
func (n *tenant) cordon(t *testing.T, nodes []*corev1.Node, on bool) {
	t.Helper()
	for _, node := range nodes {
		must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on))))
	}
}

// says waits until the condition Balanced of a PodDistributor has a text.
func (n *tenant) says(t *testing.T, name, text string) {
	t.Helper()
	eventuallyWithin(t, 2*suite.WaitTimeout, fmt.Sprintf("the condition of %s says %q", name, text), func() (bool, error) {
		d := &versprei.PodDistributor{}
		err := n.Get(t.Context(), n.Key(name), d)
		c := meta.FindStatusCondition(d.Status.Conditions, versprei.ConditionBalanced)
		return c != nil && strings.Contains(c.Message, text), err
	})
}

// A pod that uses a bound volume is never evicted into a pool where its volume cannot be. By default repair, by rebalance, for annotations, a
// PodDistributor and a policy, for Deployments and StatefulSets. Where the volume can be in the other pool, the pod moves.
func TestHeldByVolume(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	other := n.ZoneNode(t, "other", "a", 50)
	eventually(t, "the other node is ready", func() (bool, error) { // or the pods prefer it in vain
		err := n.Get(t.Context(), client.ObjectKeyFromObject(other), other)
		return nodefit.Ready(other), err
	})
	pools := []*corev1.Node{n.ZoneNode(t, "od", "a", 50), n.ZoneNode(t, "spot", "a", 50)}
	ofNode, ofZone := n.Provisioner(t, corev1.LabelHostname), n.Provisioner(t, corev1.LabelTopologyZone)
	deployment := func(name string, replicas int, claim corev1.PersistentVolumeClaimSpec, pool string) *appsv1.Deployment {
		d := n.Deployment(name, replicas, nil)
		suite.OneCPU(&d.Spec.Template.Spec)
		d.Spec.Template.Spec.Affinity = prefer(n.Pool(pool, 1).NodeLabel)
		n.WithClaim(t, &d.Spec.Template, name, claim)
		must(t, n.Create(t.Context(), d))
		n.Ready(t, name, replicas)
		return d
	}

	// 1. Deployments outside of the pools get a strategy later, which asks for nothing: by annotations, and by a PodDistributor.
	n.cordon(t, pools, true)
	wiki := deployment("wiki", 1, suite.ClaimSpec(ofNode, corev1.ReadWriteOnce), "other")
	moves := deployment("moves", 1, suite.ClaimSpec(ofZone, corev1.ReadWriteOnce), "other")
	shared := deployment("shared", 3, suite.ClaimSpec(ofNode, corev1.ReadWriteMany), "other")
	for _, name := range []string{"wiki", "moves"} {
		n.earlier(t, name, 1)
	}
	n.cordon(t, pools, false)
	before := map[string][]string{}
	for _, d := range []*appsv1.Deployment{wiki, shared} {
		before[d.Name], _ = n.UIDs(t, d.Name)
	}
	n.Shortage(t, "shared", 0, suite.Evicts)
	for _, d := range []*appsv1.Deployment{wiki, moves} {
		was := d.DeepCopy()
		d.Annotations = n.InPoolsOf(false)
		must(t, n.Patch(t.Context(), d, client.MergeFrom(was)))
	}
	proof := n.Deployment("proof", 2, n.InPoolsOf(false)) // the webhook is reached
	suite.OneCPU(&proof.Spec.Template.Spec)
	must(t, n.Create(t.Context(), proof))
	n.Ready(t, "proof", 2)

	// 2. StatefulSets whose weights are edited.
	for name, class := range map[string]string{"local": ofNode, "zonal": ofZone} {
		set := statefulSet(n, name, 5)
		set.Spec.VolumeClaimTemplates[0].Spec = suite.ClaimSpec(class, corev1.ReadWriteOnce)
		n.Shortage(t, name, 0, func(spec *versprei.PodDistributorSpec) {
			suite.Evicts(spec)
			spec.Target.Kind = "StatefulSet"
		})
		must(t, n.Create(t.Context(), set))
		n.InPools(t, name, "od=1 spot=4")
		n.Ready(t, name, 5)
		n.Swap(t, name)
	}

	// 3. Who can move does, and who cannot stays.
	n.InPools(t, "zonal", "od=4 spot=1")
	n.InPools(t, "moves", "1=1")
	n.held(t, "wiki")
	n.says(t, "local", "are held in another pool or domain")
	n.says(t, "shared", "reaches its volume")
	for app, was := range before {
		n.stays(t, app, was)
	}
	n.InPools(t, "local", "od=1 spot=4")

	// 4. A policy that asks for evictions holds them, too.
	n.cordon(t, pools, true)
	late := deployment("late", 2, suite.ClaimSpec(ofNode, corev1.ReadWriteMany), "other")
	n.cordon(t, pools, false)
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "late"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Rebalance: versprei.RebalanceEvict, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "late"}},
	}}
	for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	n.earlier(t, "late", 2)
	was, _ := n.UIDs(t, late.Name)
	must(t, n.Create(t.Context(), p))
	pods, err := n.Pods(t.Context(), "proof")
	must(t, err)
	must(t, n.Delete(t.Context(), &pods[0])) // its successor shows that the webhook is reached
	n.held(t, late.Name)
	n.stays(t, late.Name, was)
}

// A pod that somebody protects is never evicted, and status says so. Pods beside it that nobody protects move.
func TestHeldByAnnotation(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, pool := range []string{"od", "spot"} {
		n.PoolNode(t, pool, "1", 50)
	}
	for app, annotation := range map[string][2]string{"guarded": {"karpenter.sh/do-not-disrupt", "true"}, "unsafe": {"cluster-autoscaler.kubernetes.io/safe-to-evict", "false"}} {
		d := n.Shortage(t, app, 5, suite.Evicts)
		d.Spec.Template.Annotations = map[string]string{annotation[0]: annotation[1]}
		must(t, n.Create(t.Context(), d))
		n.InPools(t, app, "od=1 spot=4")
	}
	d := n.Shortage(t, "partly", 5, suite.Evicts)
	must(t, n.Create(t.Context(), d))
	n.InPools(t, "partly", "od=1 spot=4")
	guarded, _ := n.Highest(t, "partly", "spot")
	must(t, n.Patch(t.Context(), guarded, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":"true"}}}`))))
	for _, app := range []string{"guarded", "unsafe", "partly"} {
		n.Swap(t, app)
	}
	n.says(t, "guarded", "pod(s) that should be elsewhere stay where they run, such as guarded-")
	n.says(t, "guarded", "the annotation karpenter.sh/do-not-disrupt protects it")
	n.says(t, "unsafe", "the annotation cluster-autoscaler.kubernetes.io/safe-to-evict protects it")
	n.InPools(t, "partly", "od=4 spot=1")
	must(t, n.Get(t.Context(), client.ObjectKeyFromObject(guarded), guarded))
	n.InPools(t, "guarded", "od=1 spot=4")
	n.InPools(t, "unsafe", "od=1 spot=4")
	eventually(t, "status says so", func() (bool, error) {
		out, _, exit := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
		return exit != 0 && strings.Contains(out, "4 pod(s) that should be elsewhere stay where they run, such as guarded-"), nil
	})
}

// prefer has pods prefer nodes, so that a template has no pin.
func prefer(labels map[string]versprei.LabelValue) *corev1.Affinity {
	term := corev1.PreferredSchedulingTerm{Weight: 100}
	for k, v := range labels {
		term.Preference.MatchExpressions = append(term.Preference.MatchExpressions, corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{string(v)}})
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{term}}}
}

// volumeIn makes a volume that only nodes of a zone reach, for a claim of that name, and returns what the claim asks for.
func (n *tenant) volumeIn(t *testing.T, claim, zone string) corev1.PersistentVolumeClaimSpec {
	t.Helper()
	spec := suite.ClaimSpec("", corev1.ReadWriteOnce)
	spec.VolumeName = n.Namespace + "-" + claim
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: spec.VolumeName}, Spec: corev1.PersistentVolumeSpec{
		Capacity: spec.Resources.Requests, AccessModes: spec.AccessModes, ClaimRef: &corev1.ObjectReference{Namespace: n.Namespace, Name: claim},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}},
	}}
	must(t, n.Create(t.Context(), v))
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), v) })
	return spec
}

// A new pod whose claim is bound gets no pin where its volume cannot be. Twelve Deployments of one pod have their volumes in one zone of three, and
// then a policy divides them over the zones: all of them run after a rollout. A StatefulSet that is younger than what divides it runs after an
// edit of the weights and a rollout, too.
func TestNewPodsWithVolumes(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.ZoneNode(t, "od", "d", 50)
	for _, pool := range []string{"od", "spot"} {
		for _, zone := range suite.Zones {
			n.ZoneNode(t, pool, zone, 50)
		}
	}

	// 1. The volumes of twelve Deployments are in zone a, whatever pool they run in. Another one is in zone d, where the policy will have no nodes.
	const deployments = 12
	var all []*appsv1.Deployment
	withVolume := func(name, zone string) *appsv1.Deployment {
		d := n.Deployment(name, 1, nil)
		d.Spec.Template.Labels["fleet"], d.Spec.Strategy.Type = "volumes", appsv1.RecreateDeploymentStrategyType
		suite.OneCPU(&d.Spec.Template.Spec)
		n.WithClaim(t, &d.Spec.Template, d.Name, n.volumeIn(t, d.Name, zone))
		must(t, n.Create(t.Context(), d))
		return d
	}
	for i := range deployments {
		all = append(all, withVolume(fmt.Sprint("one-", i), "a"))
	}
	outside := withVolume("outside", "d")
	eventuallyWithin(t, 2*suite.WaitTimeout, "all of them run", func() (bool, error) {
		var pods corev1.PodList
		err := n.List(t.Context(), &pods, client.InNamespace(n.Namespace), client.MatchingLabels{"fleet": "volumes"})
		return len(pods.Items) == deployments+1 && !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !podstatus.Ready(&p) }), err
	})
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "fleet"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"fleet": "volumes"}}, Across: suite.Across(),
	}}
	for _, of := range []versprei.Pool{n.Pool("od", 50), n.Pool("spot", 50)} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	must(t, n.Create(t.Context(), p))
	n.Follows(t, map[string]string{"fleet": "volumes"}, p.UID, p.Generation)
	for _, d := range all {
		n.Revise(t, d, "2")
	}
	seated := 0
	for _, d := range all {
		n.RolledOut(t, d)
		pods := n.Ready(t, d.Name, 1)
		if pods[0].Labels[stowage.DomainLabel] == "a" && pods[0].Spec.NodeSelector[corev1.LabelTopologyZone] == "a" {
			seated++
		}
	}
	n.Revise(t, outside, "2")
	n.RolledOut(t, outside)
	if pod := n.Ready(t, outside.Name, 1)[0]; pod.Labels[stowage.PoolLabel] != "" || !strings.HasSuffix(pod.Spec.NodeName, "-d") {
		t.Errorf("the pod whose volume is in no zone of the policy is in pool %q, on %s", pod.Labels[stowage.PoolLabel], pod.Spec.NodeName)
	}
	eventuallyWithin(t, 2*suite.WaitTimeout, "the policy counts it as kept by its volume", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.KeptByVolume == 1 && p.Status.WithoutSeat == 0 && p.Status.Workloads == deployments+1 && p.Status.Balanced != "", err
	})

	// The first pod of each may come before the watch of volumes has synced.
	if seated < deployments-2 {
		t.Errorf("%d of %d pods have a seat where their volume is", seated, deployments)
	}

	// 2. A StatefulSet with volumes of the nodes' zones, and one with volumes of the nodes themselves.
	class, node := n.Provisioner(t, corev1.LabelTopologyZone), n.Provisioner(t, corev1.LabelHostname)
	for name, class := range map[string]string{"zonal": class, "local": node} {
		n.Shortage(t, name, 0, func(spec *versprei.PodDistributorSpec) {
			spec.Target.Kind, spec.Across = "StatefulSet", suite.Across()
			for i := range spec.Distribution {
				spec.Distribution[i].Spill = nil
			}
		})
		set := statefulSet(n, name, 6)
		set.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		set.Spec.VolumeClaimTemplates[0].Spec = suite.ClaimSpec(class, corev1.ReadWriteOnce)
		must(t, n.Create(t.Context(), set))
		n.Ready(t, name, 6)
		n.Swap(t, name)
		must(t, n.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"annotations":{"revision":"2"}}}}}`))))
		eventuallyWithin(t, 2*suite.WaitTimeout, "the rollout of "+name+" is complete", func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(set), set)
			return set.Status.ObservedGeneration == set.Generation && set.Status.UpdatedReplicas == 6 && set.Status.ReadyReplicas == 6 && set.Status.CurrentRevision == set.Status.UpdateRevision, err
		})
	}
	n.says(t, "local", "are held in another pool or domain")

	// 3. StatefulSets that are made again, as by helm uninstall and install, come back to their volumes with a seat in each one's zone.
	domains := func(name string) map[string]string {
		out := map[string]string{}
		for _, pod := range n.Ready(t, name, 4) {
			out[pod.Name] = pod.Labels[stowage.DomainLabel]
		}
		return out
	}
	for i := range 3 {
		name := fmt.Sprint("again-", i)
		n.OverZones(t, name, 0, func(spec *versprei.PodDistributorSpec) { spec.Target.Kind = "StatefulSet" })
		set := statefulSet(n, name, 4)
		set.Spec.VolumeClaimTemplates[0].Spec = suite.ClaimSpec(class, corev1.ReadWriteOnce)
		again := set.DeepCopy()
		must(t, n.Create(t.Context(), set))
		before := domains(name)
		must(t, n.Delete(t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		eventually(t, name+" is gone", func() (bool, error) {
			err := n.Get(t.Context(), n.Key(name), set)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		must(t, n.Create(t.Context(), again))
		if diff := cmp.Diff(before, domains(name)); diff != "" {
			t.Errorf("%s is made again (-before +after):\n%s", name, diff)
		}
	}
}
