package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// A typo in a pool's labels has its pods wait. Once it is corrected they run, without a rollout, spill or rebalance: of a PodDistributor for a
// Deployment and a StatefulSet, of annotations, and of policies that are corrected, renamed, set to Audit, or deleted. So it is where the
// correction removes a label, or all domains.
func TestCorrectedLabels(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, pool := range []string{"od", "spot"} {
		n.PoolNode(t, pool, "1", 50)
	}
	typo := func(spec *versprei.PodDistributorSpec) {
		for i := range spec.Distribution {
			spec.Distribution[i].Spill = nil
		}
		spec.Distribution[1].NodeLabel = n.Pool("typo", 80).NodeLabel
	}
	waits := func(app string, count int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d pods of %s wait", count, app), func() (bool, error) {
			pods, err := n.Pods(t.Context(), app)
			return err == nil && len(slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName != "" })) == count, nil
		})
	}

	// 1. A PodDistributor.
	web := n.Shortage(t, "web", 5, typo)
	must(t, n.Create(t.Context(), web))
	n.Shortage(t, "db", 0, func(spec *versprei.PodDistributorSpec) {
		typo(spec)
		spec.Target.Kind = "StatefulSet"
	})
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db"}}
	set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = new(int32(5)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, suite.PodTemplate("db")
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	suite.OneCPU(&set.Spec.Template.Spec)
	must(t, n.Create(t.Context(), set))

	// One label too many, and domains that no node has.
	must(t, n.Create(t.Context(), n.Shortage(t, "narrow", 5, func(spec *versprei.PodDistributorSpec) {
		typo(spec)
		spec.Distribution[1].NodeLabel = maps.Clone(n.Pool("spot", 80).NodeLabel)
		spec.Distribution[1].NodeLabel["no-node"] = "has-it"
	})))
	must(t, n.Create(t.Context(), n.Shortage(t, "zonal", 5, func(spec *versprei.PodDistributorSpec) {
		typo(spec)
		spec.Distribution[1].NodeLabel, spec.Across = n.Pool("spot", 80).NodeLabel, suite.Across()
	})))

	// 2. Annotations.
	annotations := n.InPoolsOf(false)
	right := annotations[stowage.SpreadStrategyAnnotation]
	noted := n.Deployment("noted", 5, annotated(strings.Replace(right, ".spot", ".typo", 1)))
	suite.OneCPU(&noted.Spec.Template.Spec)
	must(t, n.Create(t.Context(), noted))

	narrow := n.Deployment("narrow-noted", 5, annotated(strings.Replace(right, ".spot,", ".spot,no-node=has-it,", 1)))
	suite.OneCPU(&narrow.Spec.Template.Spec)
	must(t, n.Create(t.Context(), narrow))

	// 3. Policies.
	policies := map[string]*stowage.SpreadPolicy{}
	for _, app := range []string{"corrected", "renamed", "deleted", "audited"} {
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: app}, Spec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": versprei.LabelValue(app)}},
		}}
		for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("typo", 80)} {
			p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
		}
		must(t, n.Create(t.Context(), p))
		policies[app] = p
		n.Follows(t, map[string]string{"app": app}, p.UID, p.Generation)
		d := n.Deployment(app, 5, nil)
		suite.OneCPU(&d.Spec.Template.Spec)
		must(t, n.Create(t.Context(), d))
	}
	for _, app := range []string{"web", "db", "narrow", "narrow-noted", "noted", "corrected", "renamed", "deleted", "audited"} {
		waits(app, 4)
	}
	waits("zonal", 5)

	// 4. All are corrected.
	label := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/distribution/1/nodeLabel","value":{"shortage-test":%q}}]`, n.Namespace+".spot")
	for _, name := range []string{"web", "db"} {
		must(t, n.Patch(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}}, client.RawPatch(types.JSONPatchType, label)))
	}
	must(t, n.Patch(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "narrow"}}, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/distribution/1/nodeLabel/no-node"}]`))))
	must(t, n.Patch(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "zonal"}}, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/across"}]`))))
	for _, d := range []*appsv1.Deployment{noted, narrow} {
		was := d.DeepCopy()
		d.Annotations[stowage.SpreadStrategyAnnotation] = right
		must(t, n.Patch(t.Context(), d, client.MergeFrom(was)))
	}
	edit := func(app string, change func(*stowage.SpreadPolicySpec)) {
		p := policies[app]
		was := p.DeepCopy()
		change(&p.Spec)
		must(t, n.Patch(t.Context(), p, client.MergeFrom(was)))
	}
	edit("corrected", func(spec *stowage.SpreadPolicySpec) { spec.Pools[1].NodeSelector = n.Pool("spot", 80).NodeLabel })
	edit("renamed", func(spec *stowage.SpreadPolicySpec) {
		spec.Pools[1].Name, spec.Pools[1].NodeSelector = "spot", n.Pool("spot", 80).NodeLabel
	})
	edit("audited", func(spec *stowage.SpreadPolicySpec) { spec.Mode = stowage.PolicyAudit })
	must(t, n.Delete(t.Context(), policies["deleted"]))

	for _, app := range []string{"web", "db", "narrow", "narrow-noted", "zonal", "noted", "corrected", "renamed", "deleted", "audited"} {
		waits(app, 0)
		n.Ready(t, app, 5)
	}
	n.InPools(t, "web", "od=1 spot=4")
	n.InPools(t, "db", "od=1 spot=4")
	n.InPools(t, "renamed", "od=1 spot=4")
	for _, app := range []string{"deleted", "audited"} {
		pods, err := n.Pods(t.Context(), app)
		must(t, err)
		for i := range pods {
			if pods[i].Annotations[stowage.ClaimAnnotation] == "" && len(pods[i].Spec.NodeSelector) > 0 {
				t.Errorf("pod %s of %s has no seat, and selects %v", pods[i].Name, app, pods[i].Spec.NodeSelector)
			}
		}
	}
}
