package e2e

import (
	"context"
	"fmt"
	rand "math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	flex "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// Nothing is filled in that makes kubectl, or Argo CD, see a difference between what was applied and what is there: kubectl compares
// whole lists.
func TestApplyAgain(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	bin, err := controlplane.Locate(repo)
	must(t, err)
	manifests := fmt.Sprintf(`
apiVersion: versprei.versprei.io/v1beta1
kind: PodDistributor
metadata: {name: web, namespace: %[1]s}
spec:
  target: {apiVersion: apps/v1, kind: Deployment, name: web}
  distribution:
  - {nodeLabel: {type: default}, base: 1}
  - {nodeLabel: {type: spot}, weight: 80, spill: {}, tolerations: [{key: spot, value: "true"}]}
  across: {topologyKey: zone, domains: [{value: a}, {value: b}]}
---
apiVersion: stowage.dev/v1alpha1
kind: SpreadPolicy
metadata: {name: web, namespace: %[1]s}
spec:
  mode: Audit
  selector: {matchExpressions: [{key: tier, operator: Exists}]}
  pools:
  - {name: od, nodeSelector: {type: default}, base: 1}
  - {name: spot, nodeSelector: {type: spot}, weight: 80, spill: {}, tolerations: [{key: spot, value: "true"}]}
  across: {topologyKey: zone, domains: [{value: a}, {value: b}]}
---
apiVersion: stowage.dev/v1alpha1
kind: ClusterSpreadPolicy
metadata: {name: %[1]s}
spec:
  mode: Audit
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
  selector: {}
  pools:
  - {name: od, nodeSelector: {type: default}, base: 1}
  - {name: spot, nodeSelector: {type: spot}, weight: 80, spill: {}, tolerations: [{key: spot, value: "true"}]}
---
apiVersion: flexdaemonsets.xai/v1alpha1
kind: FlexDaemonsetTemplate
metadata: {name: %[1]s}
spec: {cpuPercentage: 10, memoryPercentage: 15}
`, n.Namespace)
	t.Cleanup(func() {
		for _, o := range []client.Object{&stowage.ClusterSpreadPolicy{}, &flex.FlexDaemonsetTemplate{}} {
			o.SetName(n.Namespace)
			_ = client.IgnoreNotFound(n.Delete(context.Background(), o))
		}
	})
	apply := func() string {
		cmd := exec.Command(bin.Kubectl, "--kubeconfig", cluster.Kubeconfig, "apply", "-f", "-")
		cmd.Stdin = strings.NewReader(manifests)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := apply(); strings.Count(out, "created\n") != 4 {
		t.Fatal(out)
	}
	if out := apply(); strings.Count(out, "unchanged\n") != 4 {
		t.Error(out)
	}
}

// What the API server accepts, fills in and refuses of a policy.
func TestSpreadPolicyValidation(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	must(t, cluster.ApplyFiles(t.Context(), filepath.Join(repo, "config", "crd", "bases", "stowage.dev_spreadpolicies.yaml"), filepath.Join(repo, "config", "crd", "bases", "stowage.dev_clusterspreadpolicies.yaml")))
	try := func(kind, spec string) (*unstructured.Unstructured, error) {
		u := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte("apiVersion: stowage.dev/v1alpha1\nkind: "+kind+"\nmetadata: {name: web}\nspec: "+spec), &u.Object))
		if kind == "SpreadPolicy" {
			u.SetNamespace(n.Namespace)
		}
		return u, n.Create(t.Context(), u, client.DryRunAll)
	}
	const pools = "pools: [{name: od, nodeSelector: {type: default}, base: 2, weight: 20}, {name: spot, nodeSelector: {type: spot}, weight: 80}]"
	eventually(t, "the kinds are served", func() (bool, error) {
		for _, kind := range []string{"SpreadPolicy", "ClusterSpreadPolicy"} {
			_, err := try(kind, "{mode: Audit, namespaceSelector: {}, selector: {}, "+pools+"}")
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	})

	got, err := try("ClusterSpreadPolicy", "{mode: Enforce, namespaceSelector: {}, selector: {}, "+pools+"}")
	must(t, err)
	text, err := yaml.Marshal(got.Object["spec"])
	must(t, err)
	for _, part := range []string{"kinds:\n- group: apps\n  kind: ReplicaSet\n", "priority: 0\n", "rebalance: Never\n", "repair: Adopt\n"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%q is missing in\n%s", part, text)
		}
	}

	many := func(n int, format string) string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(out, ", ")
	}
	for name, tc := range map[string]struct {
		kind, spec string // the kind is SpreadPolicy unless it is given
		want       string // a part of the refusal; "" is accepted
	}{
		"everything": {spec: "{mode: Enforce, priority: -5, selector: {matchLabels: {app.kubernetes.io/name: web}, matchExpressions: [{key: tier, operator: In, values: ['2', '3']}, {key: batch, operator: DoesNotExist}]}, kinds: [{group: '', kind: ReplicationController}, {group: apps.kruise.io, kind: CloneSet}], " +
			"pools: [{name: od, nodeSelector: {karpenter.sh/capacity-type: on-demand}, weight: 1, maxReplicas: 5, spill: {after: 2m, maxSpill: 50%}, tolerations: [{key: a, operator: Exists}]}, {name: spot, nodeSelector: {type: spot}, weight: 1, overflow: 3}], enforcement: Required, repair: Recreate, rebalance: Evict}"},
		"no mode":                       {spec: "{selector: {}, " + pools + "}", want: "spec.mode: Required value"},
		"another mode":                  {spec: "{mode: Off, selector: {}, " + pools + "}", want: "spec.mode"},
		"no selector":                   {spec: "{mode: Audit, " + pools + "}", want: "spec.selector: Required value"},
		"no namespaceSelector":          {kind: "ClusterSpreadPolicy", spec: "{mode: Audit, selector: {}, " + pools + "}", want: "spec.namespaceSelector: Required value"},
		"no pools":                      {spec: "{mode: Audit, selector: {}}", want: "spec.pools: Required value"},
		"all weights zero":              {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, base: 1}]}", want: "give at least one pool a weight"},
		"a pool without a name":         {spec: "{mode: Audit, selector: {}, pools: [{nodeSelector: {type: a}, weight: 1}]}", want: "spec.pools[0].name: Required value"},
		"equal names":                   {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, weight: 1}, {name: a, nodeSelector: {type: b}, weight: 1}]}", want: "two pools have the same name"},
		"equal selectors":               {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, weight: 1}, {name: b, nodeSelector: {type: a}, weight: 1}]}", want: "two pools have the same nodeSelector"},
		"a pool without a selector":     {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {}, weight: 1}]}", want: "spec.pools[0].nodeSelector"},
		"a base above the maximum":      {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, base: 3, maxReplicas: 2, weight: 1}]}", want: "base is above maxReplicas"},
		"a percentage":                  {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, maxReplicas: 50%, weight: 1}, {name: b, nodeSelector: {type: b}, weight: 1}]}"},
		"percentages alone":             {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, maxReplicas: 50%, weight: 1}]}", want: "the maxReplicas of each pool with a weight is a percentage"},
		"domains":                       {spec: "{mode: Audit, selector: {}, across: {topologyKey: zone, domains: [{value: a}]}, " + pools + "}"},
		"a pool of one domain":          {spec: "{mode: Audit, selector: {}, across: {topologyKey: type, domains: [{value: a}]}, " + pools + "}", want: "across.topologyKey is a key of a pool's nodeSelector"},
		"our label":                     {spec: "{mode: Audit, selector: {matchLabels: {stowage.dev/pool: a}}, " + pools + "}", want: "cannot be selected"},
		"the hash of a revision":        {spec: "{mode: Audit, selector: {matchExpressions: [{key: pod-template-hash, operator: Exists}]}, " + pools + "}", want: "cannot be selected"},
		"an unknown operator":           {spec: "{mode: Audit, selector: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}, " + pools + "}", want: "spec.selector.matchExpressions[0].operator"},
		"In without values":             {spec: "{mode: Audit, selector: {matchExpressions: [{key: a, operator: In}]}, " + pools + "}", want: "In and NotIn need values"},
		"Exists with values":            {spec: "{mode: Audit, selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}, " + pools + "}", want: "Exists and DoesNotExist have none"},
		"a wrong key":                   {spec: "{mode: Audit, selector: {matchLabels: {'a b': c}}, " + pools + "}", want: "a key of matchLabels is no label key"},
		"a wrong value":                 {spec: "{mode: Audit, selector: {matchLabels: {a: b c}}, " + pools + "}", want: "spec.selector.matchLabels.a"},
		"too many values":               {spec: "{mode: Audit, selector: {matchExpressions: [{key: a, operator: In, values: [" + many(10_000, "v%d") + "]}]}, " + pools + "}", want: "must have at most 64 items"},
		"too many labels":               {spec: "{mode: Audit, selector: {matchLabels: {" + many(17, "k%d: v") + "}}, " + pools + "}", want: "must have at most 16 items"},
		"too many pools":                {spec: "{mode: Audit, selector: {}, pools: [" + many(33, "{name: p%[1]d, nodeSelector: {type: t%[1]d}, weight: 1}") + "]}", want: "must have at most 32 items"},
		"Deployments":                   {spec: "{mode: Audit, selector: {}, kinds: [{group: apps, kind: Deployment}], " + pools + "}", want: "write ReplicaSet"},
		"Rollouts":                      {spec: "{mode: Audit, selector: {}, kinds: [{group: argoproj.io, kind: Rollout}], " + pools + "}", want: "kind ReplicaSet"},
		"Jobs":                          {spec: "{mode: Audit, selector: {}, kinds: [{group: batch, kind: Job}], " + pools + "}", want: "a policy does not divide pods of this kind"},
		"a misspelt field":              {spec: "{mode: Audit, selector: {}, poools: [], " + pools + "}"}, // the API server prunes it, and kubectl refuses it
		"another enforcement":           {spec: "{mode: Audit, selector: {}, enforcement: Hard, " + pools + "}", want: "spec.enforcement"},
		"a spill that is too short":     {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, weight: 1, spill: {after: 1s}}]}", want: "after is 10s to 1h"},
		"a toleration without a key":    {spec: "{mode: Audit, selector: {}, pools: [{name: a, nodeSelector: {type: a}, weight: 1, tolerations: [{operator: Equal}]}]}", want: "a toleration without a key has the operator Exists"},
		"a name that is no label value": {spec: "{mode: Audit, selector: {}, pools: [{name: A_b, nodeSelector: {type: a}, weight: 1}]}", want: "spec.pools[0].name"},
	} {
		kind := tc.kind
		if kind == "" {
			kind = "SpreadPolicy"
		}
		_, err := try(kind, tc.spec)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// whole reports a pod of the namespace that has not all of one policy's seat: the pool's labels in its node selector, and the claim of
// that policy.
func (n *tenant) whole(t *testing.T, apps []string, policies ...*policy.SpreadPolicy) {
	t.Helper()
	for _, app := range apps {
		pods, err := n.Pods(t.Context(), app)
		must(t, err)
		for i := range pods {
			pod := &pods[i]
			if pod.Labels[stowage.SeatLabel] == "" {
				continue
			}
			key, claim := ledger.PoolOf(pod.Labels[stowage.PoolLabel], pod.Annotations[stowage.ClaimAnnotation]), pod.Annotations[stowage.ClaimAnnotation]
			matches := 0
			for _, s := range policies {
				if !strings.Contains(claim, ":"+string(s.UID)+":") {
					continue
				}
				c := policy.CompilePolicy(s)
				if at, ok := c.PoolKeyed(key); ok {
					matches++
					for k, v := range c.Pool(at).Labels {
						if pod.Spec.NodeSelector[k] != v {
							t.Errorf("pod %s of %s has the claim %s and the node selector %v", pod.Name, s, claim, pod.Spec.NodeSelector)
						}
					}
				}
			}
			if matches != 1 {
				t.Errorf("pod %s of pool %s has the claim %s of none of the policies", pod.Name, key, claim)
			}
		}
	}
}

// One policy divides many workloads of namespaces that it selects, each exactly: through bursts, scale-downs and rollouts. A policy of
// the namespace comes before it, and one in Audit or gone leaves the workloads to the next.
func TestSpreadPolicies(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	team := "team-" + n.Namespace
	label := func(value string) {
		t.Helper()
		text := "null"
		if value != "" {
			text = fmt.Sprintf("%q", value)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}}
		must(t, n.Patch(t.Context(), ns, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"team":%s}}}`, text))))
	}
	label(team)
	fleet := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: team}}
	fleet.Spec = stowage.ClusterSpreadPolicySpec{
		NamespaceSelector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"team": versprei.LabelValue(team)}},
		SpreadPolicySpec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"tier": "2"}},
			Kinds: []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}},
			Pools: suite.PoolsOf(2, 20, 80), Enforcement: versprei.EnforcementRequired,
		},
	}
	must(t, n.Create(t.Context(), fleet))
	t.Cleanup(func() { _ = n.Delete(context.Background(), fleet) })
	ofFleet := policy.FromClusterSpreadPolicy(fleet)
	s := suite.StrategyOfPolicy(t, ofFleet)
	tier, zero := map[string]string{"tier": "2"}, map[string]string{"tier": "2", "app": "web-0"} // labels of pods
	n.Follows(t, tier, fleet.UID, fleet.Generation)

	// 1. A burst of many workloads of random sizes, and one that is not selected.
	sizes, deployments := map[string]int{}, map[string]*appsv1.Deployment{}
	var apps []string
	for i := range 12 {
		app := fmt.Sprint("web-", i)
		apps, sizes[app] = append(apps, app), 1+rand.IntN(20)
		d := n.Deployment(app, sizes[app], nil)
		d.Spec.Template.Labels["tier"] = "2"
		deployments[app] = d
		must(t, n.Create(t.Context(), d))
	}
	other := n.Deployment("other", 3, nil)
	must(t, n.Create(t.Context(), other))
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(7)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: podTemplate("db"),
			PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}
	set.Spec.Template.Labels["tier"] = "2"
	must(t, n.Create(t.Context(), set))
	exact := func(s *sequence.Strategy, apps ...string) {
		t.Helper()
		for _, app := range apps {
			n.Spreads(t, app, sizes[app], s)
		}
	}
	exact(s, apps...)
	n.Spreads(t, "db", 7, s)
	for _, pod := range n.Ready(t, "other", 3) {
		if pod.Labels[stowage.SeatLabel] != "" || len(pod.Spec.NodeSelector) > 0 {
			t.Errorf("pod %s is not selected and has labels %v", pod.Name, pod.Labels)
		}
	}
	n.whole(t, append(apps, "db"), ofFleet)
	status := func(of client.Object, what string, holds func(stowage.SpreadPolicyStatus) bool) {
		t.Helper()
		var st stowage.SpreadPolicyStatus
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s: %+v", what, st)
			}
		})
		eventually(t, what, func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(of), of)
			switch p := of.(type) {
			case *stowage.SpreadPolicy:
				st = p.Status
			case *stowage.ClusterSpreadPolicy:
				st = p.Status
			}
			return err == nil && holds(st), err
		})
	}
	total := 7
	for _, app := range apps {
		total += sizes[app]
	}
	status(fleet, "the status counts all workloads", func(st stowage.SpreadPolicyStatus) bool {
		return st.Workloads == 13 && st.Balanced == "13/13" && int(st.Pods) == total && st.Pools[0].Current+st.Pools[1].Current == st.Pods && st.Pools[0].Current == st.Pools[0].Desired &&
			meta.IsStatusConditionTrue(st.Conditions, stowage.ConditionReady) && meta.IsStatusConditionTrue(st.Conditions, stowage.ConditionNodesFound) && st.ObservedGeneration == fleet.Generation
	})

	says := func(args []string, wants ...string) {
		t.Helper()
		last := ""
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%v: %s", args, last)
			}
		})
		eventually(t, fmt.Sprintf("%v says so", args), func() (bool, error) {
			out, errs, _ := suite.CLI(t, cluster, args...)
			last = out + errs
			for _, want := range wants {
				if !strings.Contains(out, want) {
					return false, nil
				}
			}
			return true, nil
		})
	}
	says([]string{"status", "-n", n.Namespace}, "13 workloads are as they should be; --all shows their rows.", "POLICY ", "ClusterSpreadPolicy/"+team, "Enforce", "13/13", "Everything is as it should be.")
	says([]string{"status", "-n", n.Namespace, "clusterspreadpolicy/" + team}, "ClusterSpreadPolicy/"+team, "Deployment/web-0", "StatefulSet/db")
	pods, err := n.Pods(t.Context(), "web-0")
	must(t, err)
	says([]string{"explain", "pod/" + pods[0].Name, "-n", n.Namespace}, "The policy is the ClusterSpreadPolicy "+team+": on-demand (type=default) has base 2, weight 20; spot (type=spot) has weight 80.", "The seat was claimed")

	// 2. Scale-downs and rollouts.
	for _, app := range apps[:6] {
		sizes[app] = rand.IntN(sizes[app]) + 1
		n.Scale(t, deployments[app], sizes[app])
	}
	for _, app := range apps[6:] {
		n.Revise(t, deployments[app], "2")
	}
	for _, app := range apps[6:] {
		n.RolledOut(t, deployments[app])
	}
	exact(s, apps...)

	// 3. A policy of the namespace for one of the workloads. The pods that are there keep their seats until they are rolled out.
	mine := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "mine"}, Spec: *fleet.Spec.SpreadPolicySpec.DeepCopy()}
	mine.Spec.Selector = stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "web-0"}}
	mine.Spec.Pools = suite.PoolsOf(0, 60, 40)
	must(t, n.Create(t.Context(), mine))
	ofMine := policy.FromSpreadPolicy(mine)
	n.Follows(t, zero, mine.UID, mine.Generation)
	sizes["web-0"] = 20
	n.Scale(t, deployments["web-0"], 20)
	n.Ready(t, "web-0", 20)
	n.whole(t, apps, ofFleet, ofMine)
	n.Revise(t, deployments["web-0"], "3")
	n.RolledOut(t, deployments["web-0"])
	exact(suite.StrategyOfPolicy(t, ofMine), "web-0")
	exact(s, apps[1:]...)
	status(mine, "the status of the namespace's policy", func(st stowage.SpreadPolicyStatus) bool {
		return st.Workloads == 1 && st.Balanced == "1/1" && st.Pods == 20
	})
	status(fleet, "the status of the cluster's policy says what shadows it", func(st stowage.SpreadPolicyStatus) bool {
		return st.Workloads == 12 && st.Shadowed > 0 && st.ShadowedBy == fmt.Sprintf("SpreadPolicy mine (Deployment %s/web-0)", n.Namespace)
	})

	pods, err = n.Pods(t.Context(), "web-0")
	must(t, err)
	says([]string{"explain", "pod/" + pods[0].Name, "-n", n.Namespace}, "The policy is the SpreadPolicy mine", "The ClusterSpreadPolicy "+team+" does not divide its pods: a SpreadPolicy wins over a ClusterSpreadPolicy.")

	// 4. In Audit it leaves the workload to the policy of the cluster.
	must(t, n.Patch(t.Context(), mine, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"mode":"Audit"}}`))))
	n.Follows(t, zero, fleet.UID, fleet.Generation)
	n.Revise(t, deployments["web-0"], "4")
	n.RolledOut(t, deployments["web-0"])
	exact(s, "web-0")
	// It says what it would do: of 20 pods, 6 are on demand and 14 spot. It would have 12 and 8.
	status(mine, "the status in Audit", func(st stowage.SpreadPolicyStatus) bool {
		a := st.Audit
		return a != nil && a.Workloads == 1 && a.Pods == 20 && a.InPlace == 14 && a.InOtherPool == 6 && a.Outside == 0 && st.Pools[0].Desired == 12 && st.Pools[0].Current == 6 && st.Balanced == ""
	})
	says([]string{"status", "-n", n.Namespace}, "SpreadPolicy/mine", "Audit", "on-demand 6/12, spot 14/8", "Enforce would move 6 of 20 pods at their next rollout")

	// 5. An edited node selector makes other pools of the same names: no pod of a pool of before counts in them.
	must(t, n.Patch(t.Context(), fleet, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/pools/0/nodeSelector","value":{"nodesize":"od4vcpu16gb"}}]`))))
	n.Follows(t, tier, fleet.UID, fleet.Generation)
	edited := policy.FromClusterSpreadPolicy(fleet)
	n.Revise(t, deployments["web-1"], "5")
	n.RolledOut(t, deployments["web-1"])
	exact(suite.StrategyOfPolicy(t, edited), "web-1")

	// 6. A namespace without the label, and one without a policy, are left alone.
	label("")
	n.Follows(t, tier, "", 0)
	n.Revise(t, deployments["web-2"], "6")
	n.RolledOut(t, deployments["web-2"])
	label(team)
	n.Follows(t, tier, fleet.UID, fleet.Generation)
	must(t, n.Delete(t.Context(), fleet))
	n.Follows(t, tier, "", 0)
	n.Revise(t, deployments["web-3"], "6")
	n.RolledOut(t, deployments["web-3"])
	for _, app := range []string{"web-2", "web-3"} {
		for _, pod := range n.Ready(t, app, sizes[app]) {
			if pod.Labels[stowage.SeatLabel] != "" {
				t.Errorf("pod %s has the seat of a policy that does not select it", pod.Name)
			}
		}
	}
}

// A policy that comes to a cluster that runs evicts nothing. Pods that run in one of its pools get a seat, in turns; the others stay where
// they are until their workload is rolled out.
func TestPolicyComesToRunningWorkloads(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	deployments := map[string]*appsv1.Deployment{}
	before := map[types.UID]bool{}
	inPool := 0
	const workloads, replicas = 6, 15
	for i := range workloads {
		app := fmt.Sprint("web-", i)
		deployments[app] = n.Deployment(app, replicas, nil)
		must(t, n.Create(t.Context(), deployments[app]))
	}
	var nodes corev1.NodeList
	must(t, n.List(t.Context(), &nodes))
	pools := map[string]string{}
	for _, node := range nodes.Items {
		pools[node.Name] = map[string]string{"default": "on-demand", "spot": "spot"}[node.Labels["type"]]
	}
	for app := range deployments {
		for _, pod := range n.Ready(t, app, replicas) {
			before[pod.UID] = true
			if pools[pod.Spec.NodeName] != "" {
				inPool++
			}
		}
	}
	for _, d := range deployments {
		n.settled(t, d)
	}
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "late"}}
	p.Spec = stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Pools: suite.PoolsOf(1, 50, 50), Repair: stowage.RepairRecreate}
	must(t, n.Create(t.Context(), p))
	adopted := func() (seats int) {
		for app := range deployments {
			pods, err := n.Pods(t.Context(), app)
			must(t, err)
			for _, pod := range pods {
				if !before[pod.UID] {
					t.Fatalf("pod %s was not there before the policy", pod.Name)
				}
				if pod.Labels[stowage.SeatLabel] == "" {
					continue
				}
				if seats++; pod.Labels[stowage.PoolLabel] != pools[pod.Spec.NodeName] {
					t.Errorf("pod %s on a node of pool %q has a seat in pool %s", pod.Name, pools[pod.Spec.NodeName], pod.Labels[stowage.PoolLabel])
				}
			}
		}
		return seats
	}
	eventuallyWithin(t, 3*waitTimeout, fmt.Sprintf("the %d of %d pods that run in a pool have a seat", inPool, workloads*replicas), func() (bool, error) { return adopted() == inPool, nil })
	eventually(t, "the status counts those without a seat", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.Workloads == workloads && int(p.Status.WithoutSeat) == workloads*replicas-inPool, err
	})
	adopted() // and nothing was evicted meanwhile
	s := suite.StrategyOfPolicy(t, policy.FromSpreadPolicy(p))
	for app, d := range deployments {
		n.Revise(t, d, "2")
		n.RolledOut(t, d)
		n.Spreads(t, app, replicas, s)
	}
}

// Pods that something else than their template has choose their nodes get no seat. The status counts them apart from those that a rollout helps.
func TestPolicyAndPodsThatChooseTheirNodes(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace}, Handler: "runc", Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"type": "spot"}}}
	must(t, n.Create(t.Context(), class))
	t.Cleanup(func() { _ = n.Delete(context.WithoutCancel(t.Context()), class) })
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "p"}}
	p.Spec = stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Pools: suite.PoolsOf(0, 20, 80)}
	must(t, n.Create(t.Context(), p))
	d := n.Deployment("web", 5, nil)
	d.Spec.Template.Spec.RuntimeClassName = &class.Name
	must(t, n.Create(t.Context(), d))
	n.Ready(t, "web", 5)
	eventuallyWithin(t, 3*waitTimeout, "the status says that five pods choose their nodes", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.ChooseNodes == 5 && p.Status.WithoutSeat == 0, err
	})
}

// A pool whose nodes could take no pod of a workload gets none, though the policy gives it most of them: in the forecast of Audit, in
// rollouts, and for StatefulSets. Once its nodes take such pods, the pool gets its share. A workload that could run in no pool is left alone.
func TestUnsuitablePools(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "od", "1", 50)
	spot := n.PoolNode(t, "spot", "1", 50)
	n.PoolNode(t, "large", "1", 1000)
	taint := func(taints ...corev1.Taint) {
		t.Helper()
		was := spot.DeepCopy()
		spot.Spec.Taints = append(spot.Spec.Taints[:1:1], taints...)
		must(t, n.Patch(t.Context(), spot, client.StrategicMergeFrom(was)))
	}
	taint(corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoSchedule})
	var pools []stowage.PolicyPool
	for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
		pools = append(pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	web := n.Deployment("web", 10, nil)
	suite.OneCPU(&web.Spec.Template.Spec)
	web.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Namespace + "-od-1"}
	must(t, n.Create(t.Context(), web))
	n.Ready(t, "web", 10)

	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyAudit, Pools: pools, Kinds: []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}},
	}}
	must(t, n.Create(t.Context(), p))
	status := func(what string, workloads int32, example string, more func(*stowage.SpreadPolicyStatus) bool) {
		t.Helper()
		eventuallyWithin(t, 2*suite.WaitTimeout, "the status says "+what, func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
			st := &p.Status
			return st.Unsuitable == workloads && strings.Contains(st.UnsuitableExample, example) && more(st), err
		})
	}
	of := func(od, spot int32) func(*stowage.SpreadPolicyStatus) bool {
		return func(st *stowage.SpreadPolicyStatus) bool {
			return len(st.Pools) == 2 && st.Pools[0].Desired == od && st.Pools[1].Desired == spot
		}
	}
	status("in Audit that the pool is unsuitable", 1, "pool spot for Deployment "+n.Namespace+"/web: the pods select other nodes", of(10, 0))

	edit := func(mode stowage.PolicyMode) {
		t.Helper()
		was := p.DeepCopy()
		p.Spec.Mode = mode
		must(t, n.Patch(t.Context(), p, client.MergeFrom(was)))
	}
	edit(stowage.PolicyEnforce)
	n.Follows(t, nil, p.UID, p.Generation)
	was := web.DeepCopy()
	web.Spec.Template.Spec.NodeSelector = nil
	must(t, n.Patch(t.Context(), web, client.MergeFrom(was)))
	n.RolledOut(t, web)
	n.InPools(t, "web", "od=10")
	status("that the pool is unsuitable", 1, "pool spot for Deployment "+n.Namespace+"/web: the pods do not tolerate the taint gpu:NoSchedule", of(10, 0))
	eventually(t, "an event says so", func() (bool, error) {
		return n.HasEvent(t, string(stowage.EventPoolUnsuitable), "no pod can run in pool spot: the pods do not tolerate the taint gpu:NoSchedule"), nil
	})
	if out, _, _ := suite.CLI(t, cluster, "explain", "-n", n.Namespace, "pod/"+n.Ready(t, "web", 10)[0].Name); !strings.Contains(out, "Pool spot gets no pods of this workload") {
		t.Errorf("explain says:\n%s", out)
	}
	before := n.Seen("web")
	n.Scale(t, web, 15)
	n.InPools(t, "web", "od=15")
	if seen := n.Seen("web"); seen != before+5 {
		t.Errorf("%d pods came for 5 of a scale-up", seen-before)
	}

	db := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db"}}
	db.Spec.Replicas, db.Spec.Selector, db.Spec.Template = new(int32(5)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, *web.Spec.Template.DeepCopy()
	db.Spec.Template.Labels = map[string]string{"app": "db"}
	must(t, n.Create(t.Context(), db))
	n.InPools(t, "db", "od=5")

	large := n.Deployment("large", 3, nil)
	suite.OneCPU(&large.Spec.Template.Spec)
	large.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("200")
	must(t, n.Create(t.Context(), large))
	n.InPools(t, "large", "=3")
	status("that a workload can run in no pool", 3, "for Deployment "+n.Namespace+"/large: ", of(20, 0))
	if out, _, _ := suite.CLI(t, cluster, "explain", "-n", n.Namespace, "pod/"+n.Ready(t, "large", 3)[0].Name); !strings.Contains(out, "the pods can run in none of its pools") {
		t.Errorf("explain says:\n%s", out)
	}

	taint()
	status("that the pool is suitable but for one workload", 1, "/large: ", of(4, 16))
	n.Revise(t, web, "2")
	n.RolledOut(t, web)
	n.InPools(t, "web", "od=3 spot=12")
}

// A zone whose nodes are not for a StatefulSet's pods gets none of them, before they have volumes. The other zones of each pool have them all.
func TestUnsuitableZone(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, pool := range []string{"od", "spot"} {
		for _, zone := range suite.Zones {
			node := n.ZoneNode(t, pool, zone, 50)
			if zone == "c" {
				must(t, n.Patch(t.Context(), node, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/taints/-","value":{"key":"arch","value":"arm64","effect":"NoSchedule"}}]`))))
			}
		}
	}
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Across: suite.Across(), Kinds: []stowage.OwnerKind{{Group: "apps", Kind: "StatefulSet"}, {Group: "apps", Kind: "ReplicaSet"}},
	}}
	for _, of := range []versprei.Pool{n.Pool("od", 50), n.Pool("spot", 50)} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	must(t, n.Create(t.Context(), p))
	n.Follows(t, map[string]string{"app": "db"}, p.UID, p.Generation)
	set := statefulSet(n, "db", 12)
	set.Spec.VolumeClaimTemplates[0].Spec = suite.ClaimSpec(n.Provisioner(t, corev1.LabelTopologyZone), corev1.ReadWriteOnce)
	must(t, n.Create(t.Context(), set))
	n.Ready(t, "db", 12)
	cells, err := n.CellsOf(t.Context(), "db", 12)
	if must(t, err); cells["od"][2]+cells["spot"][2] != 0 || cells["od"][0]+cells["od"][1] != 6 {
		t.Errorf("the pods are in %v", cells)
	}
	eventually(t, "an event says so", func() (bool, error) {
		return n.HasEvent(t, string(stowage.EventPoolUnsuitable), "in c: the pods do not tolerate the taint arch=arm64:NoSchedule"), nil
	})
	if out, _, _ := suite.CLI(t, cluster, "explain", "-n", n.Namespace, "pod/db-0"); !strings.Contains(out, "Pool spot in c gets no pods of this workload") {
		t.Errorf("explain says:\n%s", out)
	}
}

// A policy that comes after a StatefulSet with volumes keeps each of its pods in the pool in which it runs, for as long as it has its
// claim. A pod that runs in no pool gets no seat. New ordinals follow the policy, and so does one whose claim is gone.
func TestPolicyKeepsVolumes(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, pool := range []string{"od", "spot", "other"} {
		n.PoolNode(t, pool, "1", 50)
	}
	set := statefulSet(n, "db", 0)
	must(t, n.Create(t.Context(), set))

	// 1. Each pod runs where its node selector of then said. Claims are bound to volumes as a provisioner would.
	on := func(pool string, replicas int) {
		t.Helper()
		was := set.DeepCopy()
		set.Spec.Replicas = new(int32(replicas))
		if pool == "" {
			set.Spec.Template.Spec.NodeSelector = nil
		} else {
			set.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Namespace + "-" + pool + "-1"}
		}
		must(t, n.Patch(t.Context(), set, client.MergeFrom(was)))
		for i := range replicas {
			n.provide(t, fmt.Sprintf("data-db-%d", i), set.Spec.Template.Spec.NodeSelector)
		}
		n.Ready(t, "db", replicas)
	}
	on("od", 3)
	on("other", 4)
	on("", 4)
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Kinds: []stowage.OwnerKind{{Group: "apps", Kind: "StatefulSet"}},
	}}
	for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	eventually(t, "a policy is of a later second than the set", func() (bool, error) {
		probe := p.DeepCopy()
		err := n.Create(t.Context(), probe, client.DryRunAll)
		return probe.CreationTimestamp.After(set.CreationTimestamp.Time), err
	})
	must(t, n.Create(t.Context(), p))
	n.InPools(t, "db", "=1 od=3") // adopted, but for the one outside

	// 2. Pods that come again keep their pools, and new ordinals follow the policy, which has the third of five in od.
	for _, i := range []int{1, 3} {
		must(t, n.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: fmt.Sprintf("db-%d", i)}}))
	}
	n.Ready(t, "db", 4)
	n.InPools(t, "db", "=1 od=3")
	on("", 10)
	n.InPools(t, "db", "=1 od=4 spot=5")
	eventuallyWithin(t, 2*suite.WaitTimeout, "the status counts the set, and finds it balanced", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.KeptByVolume == 1 && p.Status.Balanced == "1/1" && p.Status.WithoutSeat == 0, err
	})
	if out, _, exit := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...); exit != 0 || !strings.Contains(out, "1 workload(s) have pods that stay where their volumes are") {
		t.Errorf("status is %d:\n%s", exit, out)
	}
	if out, _, _ := suite.CLI(t, cluster, "explain", "-n", n.Namespace, "pod/db-3"); !strings.Contains(out, "No node of a pool reaches the pod's volume") {
		t.Errorf("explain says:\n%s", out)
	}
	if out, _, _ := suite.CLI(t, cluster, "explain", "-n", n.Namespace, "pod/db-1"); !strings.Contains(out, "target 4 / 5, current 4 / 5") {
		t.Errorf("explain says:\n%s", out)
	}
}

// A StatefulSet's pods have volumes, and then the policy divides its pools over zones. Each pod stays in the zone in which it runs, for as
// long as it has its claim. New ordinals are where the policy has them.
func TestVolumesKeepTheirZone(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	var others []*corev1.Node
	for _, zone := range suite.Zones {
		for _, pool := range []string{"od", "spot"} {
			if node := n.ZoneNode(t, pool, zone, 50); zone != "a" {
				others = append(others, node)
			}
		}
	}
	n.cordon(t, others, true)
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "all"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Kinds: []stowage.OwnerKind{{Group: "apps", Kind: "StatefulSet"}, {Group: "apps", Kind: "ReplicaSet"}},
	}}
	for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
		p.Spec.Pools = append(p.Spec.Pools, stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight})
	}
	must(t, n.Create(t.Context(), p))
	n.Follows(t, map[string]string{"app": "db"}, p.UID, p.Generation)
	set := statefulSet(n, "db", 5)
	must(t, n.Create(t.Context(), set))
	for i := range 5 {
		n.provide(t, fmt.Sprintf("data-db-%d", i), map[string]string{corev1.LabelTopologyZone: suite.Zones[0]})
	}
	n.Ready(t, "db", 5)
	n.cordon(t, others, false)

	was := p.DeepCopy()
	p.Spec.Across = suite.Across()
	must(t, n.Patch(t.Context(), p, client.MergeFrom(was)))
	for _, i := range []int{1, 3} {
		must(t, n.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: fmt.Sprintf("db-%d", i)}}))
	}
	n.Ready(t, "db", 5)
	eventually(t, "all pods are in zone a, and say so", func() (bool, error) {
		cells, err := n.CellsOf(t.Context(), "db", 5)
		return err == nil && cells["od"][0]+cells["spot"][0] == 5, nil
	})
	n.Scale(t, set, 11)
	for i := range 11 {
		n.provide(t, fmt.Sprintf("data-db-%d", i), nil)
	}
	n.Ready(t, "db", 11)
	eventually(t, "the new pods are where the policy has them", func() (bool, error) {
		cells, err := n.CellsOf(t.Context(), "db", 11)
		return err == nil && cells["od"][0]+cells["spot"][0] < 11 && cells["spot"][1] > 0 && cells["spot"][2] > 0, nil
	})
	eventuallyWithin(t, 2*suite.WaitTimeout, "the status counts the set", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(p), p)
		return p.Status.KeptByVolume == 1, err
	})
}

// statefulSet makes one whose pods have a volume each and come at once, without creating it.
func statefulSet(n *tenant, name string, replicas int) *appsv1.StatefulSet {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name}}
	set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = new(int32(replicas)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, suite.PodTemplate(name)
	set.Spec.PodManagementPolicy, set.Spec.UpdateStrategy.Type = appsv1.ParallelPodManagement, appsv1.OnDeleteStatefulSetStrategyType
	suite.OneCPU(&set.Spec.Template.Spec)
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(""),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}}
	return set
}

// provide binds a claim to a volume of its own, as a provisioner would.
func (n *tenant) provide(t *testing.T, claim string, nodes map[string]string) {
	t.Helper()
	eventually(t, claim+" is there", func() (bool, error) {
		c := &corev1.PersistentVolumeClaim{}
		if err := n.Get(t.Context(), n.Key(claim), c); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		if c.Spec.VolumeName != "" {
			return true, nil
		}
		name := n.Namespace + "-" + claim
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: c.Spec.Resources.Requests, AccessModes: c.Spec.AccessModes, ClaimRef: &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
		}}
		if len(nodes) > 0 {
			term := corev1.NodeSelectorTerm{}
			for key, value := range nodes {
				term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
			}
			volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}
		}
		if err := n.Create(t.Context(), volume); err != nil {
			return false, client.IgnoreAlreadyExists(err)
		}
		t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), volume) })
		return false, nil
	})
}

// Pods that waited for a node before their policy came stay as they are. With spill they move after as long as others: here the tolerations
// of the pools let them run.
func TestPolicyComesToWaitingPods(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for _, pool := range []string{"od", "spot"} {
		n.PoolNode(t, pool, "1", 4000)
	}
	for _, app := range []string{"moves", "stays"} {
		d := n.Deployment(app, 5, nil)
		d.Spec.Template.Spec.Containers[0].Resources.Requests = testkit.ResourceList("cpu=300")
		must(t, n.Create(t.Context(), d))
		eventually(t, "the pods of "+app+" wait", func() (bool, error) { return n.Waiting(t, app, "") == 5, nil })
		n.settled(t, d)
		p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: app}, Spec: stowage.SpreadPolicySpec{
			Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": versprei.LabelValue(app)}},
		}}
		for _, of := range []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)} {
			pool := stowage.PolicyPool{Name: of.Name, NodeSelector: of.NodeLabel, Weight: of.Weight}
			pool.Tolerations = []versprei.Toleration{{Key: "shortage-test", Operator: "Exists"}}
			if app == "moves" {
				pool.Spill = of.Spill
			}
			p.Spec.Pools = append(p.Spec.Pools, pool)
		}
		must(t, n.Create(t.Context(), p))
	}
	n.InPools(t, "moves", "od=1 spot=4")
	if n.Waiting(t, "stays", "") != 5 || n.Seen("stays") != 5 {
		t.Errorf("%d of 5 pods wait still, and %d were seen in all", n.Waiting(t, "stays", ""), n.Seen("stays"))
	}
}

// The sample of a ValidatingAdmissionPolicy keeps tenants from leaving a policy, and lets them do everything else.
func TestKeepPolicySample(t *testing.T) {
	t.Parallel()
	must(t, cluster.ApplyFiles(t.Context(), filepath.Join(repo, "config", "samples", "policies", "keep-policy.yaml")))
	n := newTenant(t, "keep-policy=true")
	cfg := rest.CopyConfig(cluster.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "ops", Groups: []string{"platform", "system:masters"}}
	platform, err := client.New(cfg, client.Options{Scheme: controlplane.Scheme})
	must(t, err)
	annotatedTemplate := n.Deployment("template", 0, nil)
	annotatedTemplate.Spec.Template.Annotations = map[string]string{stowage.ModeKey: "Off"}
	own := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "own"}, Spec: stowage.SpreadPolicySpec{Mode: stowage.PolicyEnforce, Pools: suite.PoolsOf(0, 1, 1)}}
	for what, object := range map[string]client.Object{
		"annotations": n.Deployment("annotated", 0, annotated(eightyOf)), "annotations of the template": annotatedTemplate, "a SpreadPolicy": own,
	} {
		eventually(t, what+" are refused", func() (bool, error) {
			err := n.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
			return err != nil && strings.Contains(err.Error(), "ask for an exception"), nil
		})
	}
	must(t, platform.Create(t.Context(), own, client.DryRunAll))
	must(t, n.Create(t.Context(), n.Deployment("plain", 1, nil)))
	n.Ready(t, "plain", 1)
}

// settled waits until a workload is so old that a SpreadPolicy evicts none of its pods for having come a moment before it.
func (n *tenant) settled(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	must(t, wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*podstatus.PolicyGrace, true, func(context.Context) (bool, error) {
		return time.Since(d.CreationTimestamp.Time) > podstatus.PolicyGrace+time.Second, nil
	}))
}
