package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// While the webhook answers, no pod is stored with the gate, whatever becomes of it.
func TestGateOfTemplate(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	d := n.Deployment("web", 10, annotated(eightyOf))
	suite.Gated(&d.Spec.Template.Spec)
	must(t, n.Create(t.Context(), d))
	n.Spreads(t, "web", 10, strategyOf(t, eightyOf))
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	for i := range pods {
		if len(pods[i].ManagedFields) == 0 || suite.Gates(&pods[i]) != "" {
			t.Errorf("pod %s has gates %q", pods[i].Name, suite.Gates(&pods[i]))
		}
		for _, m := range pods[i].ManagedFields {
			if strings.HasPrefix(m.Manager, "stowage") {
				t.Errorf("pod %s was written again by %s", pods[i].Name, m.Manager)
			}
		}
	}

	// What nobody decides about, and what only gets a part.
	rs := n.BareReplicaSet(t, "bare", 0, annotated(eightyOf))
	plain := n.BareReplicaSet(t, "plain", 0, nil)
	for name, tc := range map[string]struct {
		owner  *appsv1.ReplicaSet
		change func(*corev1.Pod)
		seat   bool
		gates  string
	}{
		"with a seat": {rs, nil, true, ""},
		"with another gate": {rs, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"})
		}, true, "kueue.x-k8s.io/admission"},
		"after another gate": {rs, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a.example.com/first"}, {Name: stowage.SeatGate}, {Name: "b.example.com/last"}}
		}, true, "a.example.com/first b.example.com/last"},
		"without a strategy":  {plain, nil, false, ""},
		"mode Off":            {rs, func(p *corev1.Pod) { p.Labels[stowage.ModeKey] = "Off" }, false, ""},
		"mode Audit":          {rs, func(p *corev1.Pod) { p.Labels[stowage.ModeKey] = "Audit" }, false, ""},
		"pinned":              {rs, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"type": "default"} }, false, ""},
		"with a RuntimeClass": {rs, func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("kata-remote") }, true, ""},
		"of a DaemonSet": {plain, func(p *corev1.Pod) {
			p.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "none", UID: "none", Controller: new(true)}
		}, false, ""},
		"of nobody": {plain, func(p *corev1.Pod) { p.OwnerReferences = nil }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := n.TryPod(t, tc.owner, suite.ReplicaSetKind, func(p *corev1.Pod) {
				suite.Gated(&p.Spec)
				if tc.change != nil {
					tc.change(p)
				}
			}, client.DryRunAll)
			if _, seat := pod.Labels[stowage.SeatLabel]; seat != tc.seat || suite.Gates(pod) != tc.gates {
				t.Errorf("the gates are %q, and the labels %v", suite.Gates(pod), pod.Labels)
			}
		})
	}
}

// A gate in a namespace that is never touched is removed all the same, and nothing else of the pod is changed.
func TestGateInSystemNamespace(t *testing.T) {
	t.Parallel()
	pod := testkit.Pod("").Namespace(metav1.NamespaceSystem).Container("c", "", "").Label("stowage.dev/seat", "7").Obj()
	pod.GenerateName = "gate-"
	suite.Gated(&pod.Spec)
	for i := range 1001 { // more than Stowage may change
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, fmt.Sprint("n", i), "")
	}
	must(t, cluster.Client.Create(t.Context(), pod))
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), pod) })
	if suite.Gates(pod) != stowage.SeatGate {
		t.Fatalf("the webhook was called for a pod in %s", pod.Namespace)
	}
	eventually(t, "the gate is removed", func() (bool, error) {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)
		return err == nil && suite.Gates(pod) == "", err
	})
	if pod.Labels["stowage.dev/seat"] != "7" {
		t.Errorf("the labels are %v now", pod.Labels)
	}
}

// A pod about which nobody can decide as things are waits for a minute, and is let through with an event.
func TestGateLetsThrough(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	pods := n.Undecidable(t, 1, suite.Gated)
	suite.EventuallyWithin(t, 2*suite.WaitTimeout, "the pod is let through", func() (bool, error) {
		var err error
		pods, err = n.Pods(t.Context(), "web")
		return len(pods) == 1 && suite.Gates(&pods[0]) == "", err
	})
	if age := time.Since(pods[0].CreationTimestamp.Time); age < time.Minute {
		t.Errorf("the pod waited for less than %s", age)
	}
	eventually(t, "an event says so", func() (bool, error) {
		return n.HasEvent(t, string(stowage.EventPodUngatedWithoutSeat), "waited for a minute"), nil
	})
}

// Without Stowage, whoever may patch pods lets them through: by name with that right alone, or all that wait.
func TestUngate(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.Undecidable(t, 3, func(spec *corev1.PodSpec) {
		suite.Gated(spec)
		spec.SchedulingGates = append(spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/other"})
	})
	waiting := func() (names []string) {
		pods, err := n.Pods(t.Context(), "web")
		must(t, err)
		for i := range pods {
			switch suite.Gates(&pods[i]) {
			case stowage.SeatGate + " example.com/other":
				names = append(names, pods[i].Name)
			case "example.com/other":
			default:
				t.Errorf("pod %s has the gates %q", pods[i].Name, suite.Gates(&pods[i]))
			}
		}
		return names
	}
	pods := waiting()
	if len(pods) != 3 {
		t.Fatalf("%q wait", pods)
	}

	// 1. What status says of them.
	out, _, _ := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
	for _, text := range []string{"3 pod(s) wait at the gate stowage.dev/seat", "The gate is in 1 pod template(s)", n.Namespace + "/deployment/web."} {
		if !strings.Contains(out, text) {
			t.Errorf("status does not say %q:\n%s", text, out)
		}
	}

	// 2. A dry run changes nothing.
	out, _, exit := suite.CLI(t, cluster, "ungate", "-n", n.Namespace, "--dry-run")
	if exit != 0 || strings.Count(out, " ungated (dry run)") != 3 || len(waiting()) != 3 {
		t.Errorf("a dry run: exit %d\n%s", exit, out)
	}

	// 3. By name, with the right to patch alone.
	must(t, n.Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "patch"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"patch"}}}}))
	must(t, n.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "patch"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "patch"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "patcher"}}}))
	var exitStatus int
	var errs string
	eventually(t, "the patcher may patch", func() (bool, error) { // RBAC is a moment behind
		out, errs, exitStatus = suite.CLI(t, cluster, "ungate", "-n", n.Namespace, pods[0], "--as", "patcher")
		return exitStatus == 0, nil
	})
	if out != "pod/"+pods[0]+" ungated\n" || len(waiting()) != 2 {
		t.Errorf("by name: %s%s", out, errs)
	}
	if _, errs, exit := suite.CLI(t, cluster, "ungate", "-n", n.Namespace, "--as", "patcher"); exit != 1 || !strings.Contains(errs, "cannot list resource") {
		t.Errorf("without the right to list: exit %d, %s", exit, errs)
	}
	if _, errs, exit := suite.CLI(t, cluster, "ungate", "-n", n.Namespace, "none"); exit != 1 || !strings.Contains(errs, "pod none") {
		t.Errorf("a pod that does not exist: exit %d, %s", exit, errs)
	}

	// 4. All that wait, and then none.
	if out, errs, exit := suite.CLI(t, cluster, "ungate", "-n", n.Namespace); exit != 0 || strings.Count(out, " ungated") != 2 || len(waiting()) != 0 {
		t.Errorf("all: exit %d\n%s%s", exit, out, errs)
	}
	if out, errs, exit := suite.CLI(t, cluster, "ungate", "-n", n.Namespace); exit != 0 || out != "" || !strings.Contains(errs, "No pod waits") {
		t.Errorf("none: exit %d\n%s%s", exit, out, errs)
	}
	if _, _, exit := suite.CLI(t, cluster, "ungate", "-A", "web-0"); exit != 2 {
		t.Errorf("-A with a name: exit %d", exit)
	}
}
