package serving

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/cli"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// golden compares an output, without the names that differ each time, with a file.
func (n *tenant) golden(t *testing.T, name, got string) {
	t.Helper()
	got = strings.ReplaceAll(got, n.Namespace, "NAMESPACE")
	got = regexp.MustCompile(`\b(web|bad)-[a-z0-9]{6,10}(-[a-z0-9]{5})?\b`).ReplaceAllString(got, "$1-HASH")
	got = regexp.MustCompile(`node (od|spot)[48]-[0-9]`).ReplaceAllString(got, "node NODE")
	got = regexp.MustCompile(`(?m)^Stowage: leader \S+, pods are created unchanged while no replica answers \(Ignore\), certificate authority valid until \S+$`).ReplaceAllString(got, "Stowage: HEALTH")
	got = regexp.MustCompile(`("?leader"?: |"?authorityUntil"?: |"?clientVersion"?: )"?[^",\n]+"?`).ReplaceAllString(got, "${1}X")
	testkit.Golden(t, filepath.Join("testdata", name+".golden"), got)
}

// led waits until a replica leads, as it does some seconds after the suite has begun.
func (n *tenant) led(t *testing.T) {
	t.Helper()
	eventually(t, "a replica leads", func() (bool, error) {
		out, _, _ := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
		return strings.Contains(out, "leader "), nil
	})
}

func TestStatus(t *testing.T) {
	n := newTenant(t)
	status := func(t *testing.T, args ...string) (string, string, int) {
		t.Helper()
		return suite.CLI(t, cluster, append(append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...), args...)...)
	}
	n.led(t)
	t.Run("nothing", func(t *testing.T) {
		out, errs, exit := status(t)
		n.golden(t, "status-nothing", out+errs)
		if exit != 0 {
			t.Errorf("exit status %d", exit)
		}
	})
	web := n.Deployment("web", 10, annotated(documented))
	must(t, n.Create(t.Context(), web))
	t.Run("wait", func(t *testing.T) {
		if out, errs, exit := status(t, "--wait", "--timeout", "60s"); exit != 0 {
			t.Errorf("exit status %d\n%s%s", exit, out, errs)
		}
	})
	for _, format := range []string{"table", "wide", "json", "yaml"} {
		t.Run(format, func(t *testing.T) {
			out, errs, exit := status(t, "-o", format)
			n.golden(t, "status-"+format, out+errs)
			if exit != 0 {
				t.Errorf("exit status %d", exit)
			}
		})
	}
	t.Run("not as it should be", func(t *testing.T) {
		must(t, n.Create(t.Context(), n.Deployment("bad", 2, annotated("type=spot,weight=x"))))
		n.Scale(t, web, 12)
		n.Spreads(t, "web", 12, strategyOf(t, documented))
		out, errs, exit := status(t, "--wait", "--timeout", "5s")
		n.golden(t, "status-bad", out+errs)
		if exit != 3 {
			t.Errorf("exit status %d", exit)
		}
	})
	t.Run("problems", func(t *testing.T) {
		lost := newTenant(t)
		must(t, lost.Create(t.Context(), &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: lost.Namespace, Name: "lost"}, Spec: versprei.PodDistributorSpec{
			Target:       versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "nowhere"},
			Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"type": "default"}, Weight: 1}},
		}}))
		must(t, lost.Create(t.Context(), lost.SizedDaemonSet("agent", lost.Namespace+".none", suite.Agent())))
		vm := suite.PeerPod().Namespace(lost.Namespace).Container("a", "cpu=1", "cpu=1").Obj()
		vm.Name, vm.Spec.NodeSelector = "waits", map[string]string{"nowhere": "true"}
		must(t, lost.Create(t.Context(), vm))
		off := newTenant(t, stowage.ModeKey+"=Off")
		past := suite.PeerPod().Namespace(off.Namespace).Container("a", "", "").Obj()
		past.Name = "past"
		must(t, off.Create(t.Context(), past))
		off.MergePatch(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: off.Namespace}}, `{"metadata":{"labels":{"`+stowage.ModeKey+`":null}}}`)
		for namespace, parts := range map[string][]string{
			lost.Namespace: {"PodDistributor/lost", "its target apps/v1 Deployment nowhere does not exist", "DaemonSet/agent", "which does not exist", "Pod/waits", "no node is as the node selector or affinity of the pod asks: "},
			off.Namespace:  {"Pod/past", "RuntimeClass kata-remote without kata.peerpods.io/vm: the webhook was bypassed"},
		} {
			eventually(t, "each problem is named", func() (bool, error) {
				out, _, exit := suite.CLI(t, cluster, "status", "-n", namespace)
				return exit == 3 && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(out, part) }), nil
			})
		}
		if _, errs, exit := suite.CLI(t, cluster, "status", "-n", "typo"); exit != 2 || !strings.Contains(errs, "namespace typo: there is no such namespace") {
			t.Errorf("exit status %d: %s", exit, errs)
		}
	})
	t.Run("left alone", func(t *testing.T) {
		out := newTenant(t)
		pinned := out.Deployment("pinned", 2, annotated(documented))
		pinned.Spec.Template.Spec.NodeSelector = map[string]string{"nodesize": "od4vcpu16gb"}
		must(t, out.Create(t.Context(), pinned))
		silent := out.Deployment("silent", 2, annotated(documented))
		silent.Spec.Template.Annotations = map[string]string{stowage.ModeKey: "Off"}
		must(t, out.Create(t.Context(), silent))
		stdout, errs, exit := suite.CLI(t, cluster, append([]string{"status", "-n", out.Namespace, "--wait", "--timeout", "30s"}, suite.SpreadOnly...)...)
		for _, part := range []string{"its pods choose their nodes themselves, by node label nodesize", "left alone on purpose: " + stowage.ModeKey + " is Off"} {
			if exit != 0 || !strings.Contains(stdout, part) {
				t.Errorf("exit status %d; %q is missing in\n%s%s", exit, part, stdout, errs)
			}
		}
	})
	t.Run("templates and VMs", func(t *testing.T) {
		node := n.SizedNode(t, "sized", "cpu=4,memory=8Gi,ephemeral-storage=10Gi")
		template := n.SizeTemplate(t, "tenth", "cpuPercentage: 10")
		must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", template.Name, suite.Agent())))
		vm := suite.PeerPod().Namespace(n.Namespace).Container("a", "cpu=1", "cpu=1").Obj()
		vm.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
		vm.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		must(t, n.Create(t.Context(), vm))
		row := regexp.MustCompile(regexp.QuoteMeta(template.Name) + ` +OnCreate +1 +1 +1 +0\n(.*\n)*` + regexp.QuoteMeta(node.Name) + ` +10 +1 +9\n`)
		eventually(t, "status shows them", func() (bool, error) {
			out, _, _ := suite.CLI(t, cluster, "status", "-A")
			return row.MatchString(out), nil
		})
	})
}

func TestExplain(t *testing.T) {
	n := newTenant(t)
	explain := func(t *testing.T, namespace, pod string, args ...string) (string, string, int) {
		t.Helper()
		return suite.CLI(t, cluster, append([]string{"explain", "pod", pod, "-n", namespace, "--target-runtimeclass=kata-remote"}, args...)...)
	}
	t.Run("a seat", func(t *testing.T) {
		must(t, n.Create(t.Context(), n.Deployment("web", 4, annotated(documented))))
		n.Spreads(t, "web", 4, strategyOf(t, documented))
		pods, err := n.Pods(t.Context(), "web")
		must(t, err)
		for i := range pods {
			if pods[i].Labels[stowage.PoolLabel] == "0" {
				out, errs, exit := explain(t, n.Namespace, pods[i].Name)
				n.golden(t, "explain-seat", out+errs)
				if exit != 0 {
					t.Errorf("exit status %d", exit)
				}
			}
		}
	})
	t.Run("a size", func(t *testing.T) {
		n.SizedNode(t, "four", "cpu=4,memory=8Gi")
		template := n.SizeTemplate(t, "tenth", "{cpuPercentage: 10, minCPU: 500m, excludeContainers: [proxy]}")
		must(t, n.Create(t.Context(), n.SizedDaemonSet("agent", template.Name, suite.Agent().Container("proxy", "cpu=100m", ""))))
		n.Sized(t, "agent", 1)
		pods, err := n.Pods(t.Context(), "agent")
		must(t, err)
		out, errs, _ := explain(t, n.Namespace, pods[0].Name)
		n.golden(t, "explain-size", strings.ReplaceAll(out+errs, pods[0].Name, "agent-HASH"))
	})
	t.Run("a peer pod", func(t *testing.T) {
		p := n.CreatePod(t, suite.PeerPod().Container("a", "cpu=500m", "cpu=1500m,memory=1Gi").Container("b", "", ""))
		out, errs, _ := explain(t, n.Namespace, p.Name)
		n.golden(t, "explain-vm", out+errs)
	})
	t.Run("what was left alone", func(t *testing.T) {
		off := newTenant(t, stowage.ModeKey+"=Off")
		p := n.CreatePod(t, testkit.Pod("plain").Container("a", "", ""))
		q := off.CreatePod(t, suite.PeerPod().Container("a", "cpu=1", "cpu=1"))
		half := n.Deployment("web-half", 1, map[string]string{stowage.SpreadStrategyAnnotation: documented})
		must(t, n.Create(t.Context(), half))
		var halves []corev1.Pod
		eventually(t, "a pod is created", func() (bool, error) {
			var err error
			halves, err = n.Pods(t.Context(), "web-half")
			return len(halves) == 1, err
		})
		for _, tc := range []struct{ namespace, pod, want string }{
			{n.Namespace, p.Name, "Stowage changed nothing in it: A strategy divides the pods of a workload, and nothing controls this pod."},
			{off.Namespace, q.Name, "Stowage changed nothing in it: stowage.dev/mode is Off on namespace " + off.Namespace},
			{off.Namespace, q.Name, "It would be converted to a peer pod, but: stowage.dev/mode is Off"},
			{n.Namespace, halves[0].Name, "CustomPodScheduleStrategy has no effect without UseCustomKubeScheduler: 'true'"},
		} {
			if out, errs, exit := explain(t, tc.namespace, tc.pod); !strings.Contains(out, tc.want) || exit != 0 {
				t.Errorf("%s: %q is not in\n%s%s", tc.pod, tc.want, out, errs)
			}
		}
	})
	t.Run("as JSON", func(t *testing.T) {
		if out, _, exit := explain(t, n.Namespace, "plain", "-o", "json"); exit != 0 || !strings.Contains(out, `"spread": {`) {
			t.Errorf("exit status %d: %s", exit, out)
		}
	})
	t.Run("a workload", func(t *testing.T) {
		out, errs, exit := suite.CLI(t, cluster, "explain", "deployment/web", "-n", n.Namespace)
		if exit != 0 || !strings.Contains(out, "Deployment "+n.Namespace+"/web\n") || !strings.Contains(out, "1 pod: Pod "+n.Namespace+"/web-") {
			t.Errorf("exit status %d:\n%s%s", exit, out, errs)
		}
		if _, errs, exit := suite.CLI(t, cluster, "explain", "sts", "web", "-n", n.Namespace); exit != 2 || !strings.Contains(errs, "not found") {
			t.Errorf("a StatefulSet that does not exist: exit status %d: %s", exit, errs)
		}
	})
	t.Run("a node", func(t *testing.T) {
		node := n.SizedNode(t, "five", "cpu=4,memory=8Gi")
		out, errs, exit := suite.CLI(t, cluster, "explain", "node", node.Name)
		if exit != 0 || !strings.Contains(out, "Node "+node.Name) || !strings.Contains(out, "and its pods request 0") {
			t.Errorf("exit status %d:\n%s%s", exit, out, errs)
		}
	})
	t.Run("completion", func(t *testing.T) {
		for want, args := range map[string][]string{
			"plain\n":          {"explain", "-n", n.Namespace, "pod", ""},
			"deployment/web\n": {"status", "-n", n.Namespace, "deployment/"},
			n.Namespace + "\n": {"status", "-n", ""},
		} {
			var out bytes.Buffer
			args = append([]string{"__complete", args[0], "--kubeconfig", cluster.Kubeconfig}, args[1:]...)
			cli.Main(t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: io.Discard, LookupEnv: func(string) (string, bool) { return "", false }})
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v completes\n%s", args, &out)
			}
		}
	})
	t.Run("no such pod", func(t *testing.T) {
		if _, errs, exit := explain(t, n.Namespace, "nope"); exit != 2 || !strings.Contains(errs, `pods "nope" not found`) {
			t.Errorf("exit status %d: %s", exit, errs)
		}
	})
}

// Who may not look is told what to ask for; who may look at a namespace sees that.
func TestInspectPermissions(t *testing.T) {
	n := newTenant(t)
	must(t, n.Create(t.Context(), n.Deployment("web", 3, annotated(documented))))
	n.Spreads(t, "web", 3, strategyOf(t, documented))
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	for _, args := range [][]string{{"status", "-A"}, {"status", "-n", n.Namespace}, {"explain", "pod", pods[0].Name, "-n", n.Namespace}, {"impact"}, {"impact", "-n", n.Namespace}} {
		out, errs, exit := suite.CLI(t, cluster, append(args, "--as", "nobody")...)
		if exit != 1 || out != "" || !strings.Contains(errs, "is forbidden") || !strings.Contains(errs, "ask for the ClusterRoles") {
			t.Errorf("%v: exit status %d: %s%s", args, exit, out, errs)
		}
	}
	must(t, n.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "viewer-" + n.Namespace}},
	}))
	viewer := []string{"-n", n.Namespace, "--as", "viewer-" + n.Namespace}
	eventually(t, "a viewer of the namespace sees its workloads", func() (bool, error) {
		out, errs, exit := suite.CLI(t, cluster, append([]string{"status"}, viewer...)...)
		return exit == 0 && strings.Contains(out, "Deployment/web") && strings.Contains(errs, "Warning: what you may not read is left out: ") && strings.Contains(errs, "the registration of the webhook"), nil
	})
	out, errs, exit := suite.CLI(t, cluster, append([]string{"explain", "pod/" + pods[0].Name}, viewer...)...)
	if exit != 0 || !strings.Contains(out, "The seat was claimed in the ledger") {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	out, errs, exit = suite.CLI(t, cluster, append([]string{"impact", "--replicas", "deployment/web=4", "-o", "json"}, viewer...)...)
	if exit != 3 || !strings.Contains(out, `"replicas": 4`) || !strings.Contains(out, "the pods of other namespaces (so the room on nodes is not known)") ||
		!strings.Contains(out, "you may not read nodes") || !strings.Contains(out, `"waiting": 0`) {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}
	inspects := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "inspects-" + n.Namespace},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "stowage-inspect"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "viewer-" + n.Namespace}},
	}
	must(t, n.Create(t.Context(), inspects))
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), inspects) })
	eventually(t, "the roles view and stowage-inspect are enough", func() (bool, error) {
		_, errs, exit := suite.CLI(t, cluster, append([]string{"impact", "--replicas", "deployment/web=4"}, viewer...)...)
		return exit == 3 && strings.Count(errs, "Warning: ") == 1 && strings.Contains(errs, "was not asked in namespace "+n.Namespace+", because you may not create pods there"), nil
	})
}

// A cluster that has never heard of us.
func TestInspectEmptyCluster(t *testing.T) {
	empty, err := controlplane.Start(t.Context(), controlplane.Config{Root: repo, Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(empty.Stop)
	out, errs, exit := suite.CLI(t, empty, "status", "-A")
	if exit != 3 || !strings.Contains(out, "Stowage is not installed in context stowage-local: neither this nor any of its kinds (CustomResourceDefinitions) exists, and no Deployment stowage in namespace stowage-system") || errs != "" {
		t.Errorf("exit status %d: %q %q", exit, out, errs)
	}
	if out, errs, exit := suite.CLI(t, empty, "status", "deployment/web"); exit != 3 || !strings.Contains(out, "Stowage is not installed in context") {
		t.Errorf("of a name: exit status %d: %q %q", exit, out, errs)
	}
	if out, errs, exit := suite.CLI(t, empty, "check"); exit != 3 || !strings.Contains(out, "Stowage is not installed in context") {
		t.Errorf("check: exit status %d: %q %q", exit, out, errs)
	}
	must(t, empty.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "viewer"}},
	}))
	eventually(t, "a viewer is told what is missing, and what is not known", func() (bool, error) {
		out, errs, exit := suite.CLI(t, empty, "status", "-n", "default", "--as", "viewer")
		return exit == 3 && !strings.Contains(out, "not installed") && strings.Contains(out, "whether the webhook is registered there, you may not read") && strings.Contains(errs, "the registration of the webhook"), nil
	})
	out, errs, exit = suite.CLI(t, empty, "impact", "-f", filepath.Join(repo, "config", "samples"))
	if exit != 3 || !strings.Contains(out, "Deployment default/") || !strings.Contains(errs, "Stowage is not installed here") {
		t.Errorf("impact before the installation: exit status %d: %s%s", exit, out, errs)
	}
	pod := testkit.Pod("plain").Namespace("default").Container("a", "", "").Obj()
	must(t, client.IgnoreAlreadyExists(empty.Client.Create(t.Context(), pod)))
	out, errs, exit = suite.CLI(t, empty, "explain", "pod", "plain")
	if exit != 0 || !strings.Contains(out, `there is no MutatingWebhookConfiguration "stowage"`) {
		t.Errorf("exit status %d: %q %q", exit, out, errs)
	}
}

// With --metrics-auth only who may get the path is answered, over TLS.
func TestMetricsAuth(t *testing.T) {
	n := newTenant(t)
	must(t, cluster.ApplyFiles(t.Context(), filepath.Join(repo, "config", "metricsauth", "role.yaml")))
	strict := fleet
	strict.Args = append(slices.Clone(fleet.Args), "--metrics-auth")
	r, err := cluster.StartReplica(t.Context(), strict)
	must(t, err)
	t.Cleanup(r.Kill)
	for _, reader := range []string{"prometheus", "stranger"} {
		must(t, n.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: reader}}))
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: n.Namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "stowage-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: n.Namespace, Name: "prometheus"}},
	}
	must(t, n.Create(t.Context(), binding))
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), binding) })
	token := func(name string) string {
		token, err := cluster.Clientset.CoreV1().ServiceAccounts(n.Namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		must(t, err)
		return token.Status.Token
	}
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it is about the client
	t.Cleanup(c.CloseIdleConnections)
	get := func(path, token string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(strings.TrimSuffix(r.MetricsURL, "/metrics"), "http:", "https:", 1)+path, nil)
		must(t, err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := c.Do(req)
		must(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(body)
	}
	reader := token("prometheus")
	eventually(t, "the reader is answered", func() (bool, error) {
		code, body := get("/metrics", reader)
		return code == http.StatusOK && strings.Contains(body, "stowage_"), nil
	})
	for _, tc := range []struct {
		who, path, token string
		want             int
	}{
		{"nobody", "/metrics", "", http.StatusUnauthorized},
		{"who makes a token up", "/metrics", "made-up", http.StatusUnauthorized},
		{"another account", "/metrics", token("stranger"), http.StatusForbidden},
		{"the reader", "/debug/seats", reader, http.StatusForbidden},
		{"nobody", "/debug/seats", "", http.StatusUnauthorized},
	} {
		if code, _ := get(tc.path, tc.token); code != tc.want {
			t.Errorf("%s got %d of %s, want %d", tc.who, code, tc.path, tc.want)
		}
	}
	if resp, err := http.Get(r.MetricsURL); err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("the metrics are served without TLS")
		}
	}
}

// Every metric that is served is in the reference.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repo, "docs/reference/metrics.md"))
	must(t, err)
	var found [][]string
	for _, r := range cluster.Processes() {
		resp, err := http.Get(r.MetricsURL)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		must(t, err)
		found = append(found, regexp.MustCompile(`(?m)^# TYPE (stowage_\w+) (\w+)$`).FindAllStringSubmatch(string(body), -1)...)
	}
	if len(found) < 5 {
		t.Errorf("only %d metrics are served", len(found))
	}
	for _, m := range found {
		if !strings.Contains(string(page), "| `"+m[1]+"` | "+m[2]+" |") {
			t.Errorf("%s, a %s, is not in the reference", m[1], m[2])
		}
	}
}
