package situations

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// forbidsPods is [tenant.forbids] of pods. It waits until the policy refuses a pod.
func (n *tenant) forbidsPods(t *testing.T, expression, message string, refused *corev1.Pod) {
	t.Helper()
	n.forbids(t, "pods", expression, message)
	eventually(t, "the policy holds", func() (bool, error) {
		return n.Create(t.Context(), refused.DeepCopy(), client.DryRunAll) != nil, nil
	})
}

// An admission policy refuses what Stowage adds, here node selectors: impact says so before the policy is applied, check and status after it, and each
// of the ways that they offer works.
func TestNodeSelectorsAreForbidden(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	chosen := testkit.Pod("try").Namespace(n.Namespace).Container("a", "", "").Obj()
	chosen.Spec.NodeSelector = map[string]string{"type": "spot"}
	n.forbidsPods(t, "!has(object.spec.nodeSelector)", "node selectors are not for tenants", chosen)
	d := n.Deployment("web", 5, nil)
	must(t, n.Create(t.Context(), d))
	n.Ready(t, "web", 5)

	// 1. Beforehand, by who may create pods and by who may not.
	file := filepath.Join(t.TempDir(), "policy.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `
apiVersion: stowage.dev/v1alpha1
kind: SpreadPolicy
metadata: {name: p, namespace: %s}
spec:
  mode: Enforce
  selector: {matchLabels: {app: web}}
  pools:
  - {name: od, nodeSelector: {type: default}, base: 1, weight: 20}
  - {name: spot, nodeSelector: {type: spot}, weight: 80}
`, n.Namespace), 0o600))
	impact := append([]string{"impact", "-f", file, "-n", n.Namespace}, suite.SpreadOnly...)
	out, errs, exit := suite.CLI(t, cluster, impact...)
	for _, part := range []string{
		"Refused: Deployment " + n.Namespace + "/web: the API server accepts new pods only without what Stowage gives them: ", "denied request: node selectors are not for tenants",
		"Stowage gives pods the node selector type=default or type=spot (SpreadPolicy p)", "set enforcement: Preferred", "until then, mode: Audit in SpreadPolicy p",
	} {
		if !strings.Contains(out, part) || exit != 3 {
			t.Errorf("exit status %d, and %q is not in\n%s%s", exit, part, out, errs)
		}
	}
	if out, errs, exit := suite.CLI(t, cluster, append(impact, "--fail-on", "refused=0")...); exit != 3 || !strings.Contains(errs, "refused is 1, and at most 0") {
		t.Errorf("exit status %d\n%s%s", exit, out, errs)
	}
	viewer := "viewer-" + n.Namespace
	must(t, n.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: viewer}},
	}))
	eventually(t, "a viewer is told what was not asked", func() (bool, error) {
		out, errs, exit := suite.CLI(t, cluster, append(impact, "--as", viewer)...)
		return exit == 3 && strings.Contains(errs, "was not asked in namespace "+n.Namespace+", because you may not create pods there") && !strings.Contains(out, "Refused"), nil
	})
	var pods corev1.PodList
	must(t, n.List(t.Context(), &pods, client.InNamespace(n.Namespace)))
	var ledgers stowage.SeatLedgerList
	must(t, n.List(t.Context(), &ledgers, client.InNamespace(n.Namespace)))
	if len(pods.Items) != 5 || len(ledgers.Items) != 0 {
		t.Errorf("the dry runs left %d pods and %d ledgers", len(pods.Items), len(ledgers.Items))
	}

	// 2. With the policy, and a rollout.
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "p"}}
	p.Spec = stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "web"}},
		Pools: []stowage.PolicyPool{
			{Name: "od", NodeSelector: map[string]versprei.LabelValue{"type": "default"}, Base: 1, Weight: 20}, {Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 80},
		},
	}
	must(t, n.Create(t.Context(), p))
	labels := map[string]string{"app": "web"}
	n.Follows(t, labels, p.UID, p.Generation)
	n.Revise(t, d, "2")
	situation{want: []string{
		" pods exist, because the API server refuses to create more: ", "denied request: node selectors are not for tenants; Stowage gives pods the node selector type=default or type=spot (SpreadPolicy p)",
		"→ have what refuses the pods allow it; or set enforcement: Preferred", "or give each pool matchExpressions", "until then, mode: Audit in SpreadPolicy p",
	}, explain: []string{"deployment/web", "Stowage gives pods the node selector type=default or type=spot"}}.says(t, n)
	out, errs, exit = suite.CLI(t, cluster, append([]string{"check", "-n", n.Namespace}, suite.SpreadOnly...)...)
	if exit != 3 || !strings.Contains(out, "/Deployment/web: the API server accepts new pods only without what Stowage gives them: ") || !strings.Contains(out, "→ have what refuses the pods allow it; or set enforcement: Preferred") {
		t.Errorf("exit status %d\n%s%s", exit, out, errs)
	}

	// 3. The ways out.
	exists := `"matchExpressions":[{"key":"kubernetes.io/os","operator":"Exists"}]`
	for i, patch := range []string{
		`{"spec":{"enforcement":"Preferred"}}`,
		`{"spec":{"enforcement":"Required","pools":[{"name":"od","nodeSelector":{"type":"default"},"base":1,"weight":20,` + exists + `},{"name":"spot","nodeSelector":{"type":"spot"},"weight":80,` + exists + `}]}}`,
	} {
		must(t, n.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(patch))))
		n.Follows(t, labels, p.UID, p.Generation)
		n.Revise(t, d, fmt.Sprint("way-", i))
		n.RolledOut(t, d)
		for _, pod := range n.Ready(t, "web", 5) {
			if pod.Labels[stowage.PoolLabel] == "" || pod.Spec.NodeSelector != nil || pod.Spec.Affinity == nil {
				t.Errorf("%s: %v, %v", patch, pod.Labels, pod.Spec)
			}
		}
	}
	if out, errs, exit := suite.CLI(t, cluster, append([]string{"check", "-n", n.Namespace}, suite.SpreadOnly...)...); exit != 0 {
		t.Errorf("exit status %d\n%s%s", exit, out, errs)
	}
}

// Status says what of a pod is refused that Stowage adds or takes out, and does not say so of anything else.
func TestRefusedAdditions(t *testing.T) {
	t.Parallel()
	spread := func(t *testing.T, n *tenant) {
		t.Helper()
		must(t, n.Create(t.Context(), n.Deployment("web", 2, annotated(documented))))
	}
	peers := func(t *testing.T, n *tenant) {
		t.Helper()
		d := n.Deployment("vm", 1, nil)
		d.Spec.Template.Spec.RuntimeClassName = new("kata-remote")
		suite.OneCPU(&d.Spec.Template.Spec)
		must(t, n.Create(t.Context(), d))
	}
	plain := func(n *tenant) *corev1.Pod {
		return testkit.Pod("try").Namespace(n.Namespace).Container("a", "", "").Obj()
	}
	for name, tc := range map[string]situation{
		"labels of Stowage": {make: func(t *testing.T, n *tenant) {
			pod := plain(n)
			pod.Labels = map[string]string{"stowage.dev/x": "y"}
			n.forbidsPods(t, `!object.metadata.?labels.orValue({}).exists(k, k.startsWith("stowage.dev/"))`, "labels of stowage.dev/ are reserved", pod)
			spread(t, n)
		}, want: []string{"labels of stowage.dev/ are reserved; Stowage gives pods the labels stowage.dev/pool and stowage.dev/seat", "→ have what refuses the pods allow it; until then, the label stowage.dev/mode=Audit on the namespace"}},
		"something without a name": {make: func(t *testing.T, n *tenant) {
			n.forbidsPods(t, "false", "ask the platform team", plain(n))
			spread(t, n)
		}, want: []string{"ask the platform team; whether that is because of what Stowage gives pods is not known: the node selector ", "→ correct what the message names; kubectl stowage check -n "}},
		"images": {make: func(t *testing.T, n *tenant) {
			n.forbidsPods(t, "false", "images must be from registry.example.com", plain(n))
			spread(t, n)
		}, want: []string{"images must be from registry.example.com", "→ correct what the message names: the pod template"}},
		"a LimitRange's minimum and a peer pod": {make: func(t *testing.T, n *tenant) {
			must(t, n.Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "large"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: testkit.ResourceList("cpu=10m")}}}}))
			peers(t, n)
		}, args: []string{"--peer-pods"}, want: []string{"No request is specified; Stowage gives pods a VM in place of requests and limits (RuntimeClass kata-remote)", "→ have what refuses the pods allow it; or remove minimum, maximum and ratio"}},
		"a quota of VMs": {make: func(t *testing.T, n *tenant) {
			limitTo(t, n, "vms", "requests.kata.peerpods.io/vm=0")
			peers(t, n)
		}, args: []string{"--peer-pods"}, want: []string{"exceeded quota: vms", "; Stowage gives pods the resource kata.peerpods.io/vm (RuntimeClass kata-remote)", "or raise the ResourceQuota"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.run(t)
		})
	}
}
