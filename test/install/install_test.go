package install

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/testkit"
)

// clean removes what a test leaves, the kinds and the namespace, too.
func clean(t *testing.T) {
	t.Helper()
	do(t, kubectl, "delete", "-k", "config/webhook", "--ignore-not-found")
	do(t, kubectl, "delete", "-k", "config/default", "--ignore-not-found")
}

// restricted makes the namespace, with Pod Security restricted enforced.
func restricted(t *testing.T) {
	t.Helper()
	do(t, kubectl, "apply", "-f", "config/manager/namespace.yaml")
	var ns corev1.Namespace
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Name: namespace}, &ns))
	if ns.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Fatal("the namespace does not enforce restricted")
	}
}

// run runs Stowage as it is installed. The containers of this cluster do not run, so the
// processes are ours; they have the installed permissions, settings and registrations.
func runInstalled(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	must(t, cluster.StartStowage(ctx, controlplane.StowageOptions{Binary: binary, Replicas: 2, Controllers: 1, Installed: true, Args: args}))
	t.Cleanup(cluster.StopStowage)
}

// works creates one pod of each feature and looks at what became of it.
func works(t *testing.T) {
	t.Helper()
	do(t, kubectl, "apply", "-k", "config/samples")
	defer do(t, kubectl, "delete", "-k", "config/samples", "--wait=true")
	c := cluster.Client
	eventually(t, "the samples are spread, sized and converted", func() error {
		var spread, daemons, peers corev1.PodList
		if err := c.List(t.Context(), &spread, client.InNamespace("spread-demo"), client.HasLabels{stowage.SeatLabel}); err != nil {
			return err
		}
		if err := c.List(t.Context(), &daemons, client.InNamespace("default"), client.MatchingLabels{"app": "example-daemonset"}); err != nil {
			return err
		}
		if err := c.List(t.Context(), &peers, client.InNamespace("default"), client.MatchingLabels{"app": "peer-pod"}); err != nil {
			return err
		}
		if n := len(spread.Items); n != 10 {
			return fmt.Errorf("%d of 10 pods have a seat", n)
		}
		if len(daemons.Items) == 0 || daemons.Items[0].Spec.Containers[0].Resources.Requests.Cpu().IsZero() {
			return errors.New("no pod of the DaemonSet has a size")
		}
		if len(peers.Items) != 1 || peers.Items[0].Spec.Containers[0].Resources.Requests[stowage.DefaultVMResource] != resource.MustParse("1") {
			return errors.New("the peer pod asks for no VM")
		}
		return nil
	})
}

// The chart's whole life: a trial, installation, an upgrade, a second installation that is
// refused, and the end, which keeps the policies.
func TestHelm(t *testing.T) {
	restricted(t)
	defer clean(t)
	// Pods that say what they violate are not created: Pod Security would leave the
	// Deployment without replicas, and --wait would notice.
	install := []string{"--namespace", namespace, "--wait", "--timeout", "5m", "--set", "replicaCount=2"}
	do(t, helm, append([]string{"install", "stowage", "charts/stowage", "--dry-run=server"}, install...)...)
	gate := servesGate(t)
	if gate {
		install = append(install, "--set", "gate.enabled=true,deletionCosts.keep=true")
	} else if _, err := try(t, helm, append([]string{"install", "stowage", "charts/stowage", "--set", "gate.enabled=true", "--dry-run=server"}, install...)...); err == nil || !strings.Contains(err.Error(), "needs an API server that serves MutatingAdmissionPolicy") {
		t.Errorf("the gate is installed where there is none: %v", err)
	}
	do(t, helm, append([]string{"install", "stowage", "charts/stowage"}, install...)...)
	var waits func()
	if gate {
		waits = gatedBefore(t)
	}
	runInstalled(t)
	if gate {
		waits()
	}
	works(t)

	t.Run("a second installation is refused", func(t *testing.T) {
		_, err := try(t, helm, "install", "again", "charts/stowage", "--namespace", "default")
		if err == nil || !strings.Contains(err.Error(), "cannot be imported into the current release") {
			t.Errorf("it was not: %v", err)
		}
	})
	t.Run("an upgrade keeps the certificate's authority", func(t *testing.T) {
		pointBack(t)
		before := registration(t)
		do(t, helm, append([]string{"upgrade", "stowage", "charts/stowage", "--reuse-values", "--set", "logLevel=DEBUG", "--set", "webhook.timeoutSeconds=7"}, install[:5]...)...)
		after := registration(t)
		if *after.Webhooks[0].TimeoutSeconds != 7 {
			t.Error("the upgrade changed nothing")
		}
		for i := range after.Webhooks {
			if string(after.Webhooks[i].ClientConfig.CABundle) != string(before.Webhooks[i].ClientConfig.CABundle) || len(after.Webhooks[i].ClientConfig.CABundle) == 0 {
				t.Errorf("the authority of %s has changed: the API server would call nobody until it is back", after.Webhooks[i].Name)
			}
		}
	})
	runInstalled(t)
	t.Run("without its rights, it says so", withoutRights)
	t.Run("the end", func(t *testing.T) {
		uninstall(t, func() { do(t, helm, "uninstall", "stowage", "--namespace", namespace, "--wait") })
		if out, err := try(t, binary, "status", "-A"); strings.Contains(out+fmt.Sprint(err), "Stowage is installed") || !strings.Contains(out+fmt.Sprint(err), "as it should be") {
			t.Errorf("status says %q, %v", out, err)
		}
		for _, kind := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"} {
			if gate {
				if out := do(t, kubectl, "get", kind, "-o", "name"); out != "" {
					t.Errorf("left behind: %s", out)
				}
			}
		}
	})
}

// withoutRights takes all rights from Stowage for a while. A replica answers still, and status and check say what it may not read.
func withoutRights(t *testing.T) {
	var bindings rbacv1.ClusterRoleBindingList
	must(t, cluster.Client.List(t.Context(), &bindings))
	for i := range bindings.Items {
		if b := &bindings.Items[i]; strings.HasPrefix(b.Name, "stowage") {
			must(t, cluster.Client.Delete(t.Context(), b))
			defer func() {
				b.ResourceVersion, b.UID = "", ""
				must(t, cluster.Client.Create(context.Background(), b))
			}()
		}
	}
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "divided"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "divided"}},
	}}
	replicaSet.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"app": "divided"}, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "type=default,weight=80:type=spot,weight=20"},
	}, Spec: testkit.Pod("").Container("c", "", "").Obj().Spec}
	must(t, cluster.Client.Create(t.Context(), replicaSet))
	defer func() { _ = cluster.Client.Delete(context.Background(), replicaSet) }()
	for _, args := range [][]string{{"check", "-n", "default"}, {"status", "-n", "default"}} {
		eventually(t, args[0]+" says what may not be read", func() error {
			out, err := try(t, binary, args...)
			if !strings.Contains(out+fmt.Sprint(err), "may not read") || !strings.Contains(out+fmt.Sprint(err), "deployments.apps") {
				return fmt.Errorf("it says %q, %w", out, err)
			}
			return nil
		})
	}
}

// servesGate reports whether the API server can give pods the gate by a policy.
func servesGate(t *testing.T) bool {
	t.Helper()
	kinds, err := cluster.Clientset.Discovery().ServerResourcesForGroupVersion(admissionregistrationv1.SchemeGroupVersion.String())
	must(t, err)
	return slices.ContainsFunc(kinds.APIResources, func(r metav1.APIResource) bool { return r.Name == "mutatingadmissionpolicies" })
}

// gatedBefore creates pods before any replica answers. They wait at the gate. What it returns checks that they got their seats.
func gatedBefore(t *testing.T) func() {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "early", Labels: map[string]string{stowage.GateLabel: stowage.GateOn}}}
	must(t, cluster.Client.Create(t.Context(), ns))
	eventually(t, "the policy is in force", func() error { // a moment after it is written
		probe := testkit.Pod("probe").Namespace(ns.Name).Owner("web").Container("c", "", "").Obj()
		if err := cluster.Client.Create(t.Context(), probe, client.DryRunAll); err != nil || len(probe.Spec.SchedulingGates) == 0 {
			return fmt.Errorf("a pod has the gates %v, %w", probe.Spec.SchedulingGates, err)
		}
		return nil
	})
	replicaSet := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "web"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(5)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	replicaSet.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "type=default,weight=80:type=spot,weight=20"},
	}, Spec: testkit.Pod("").Container("c", "", "").Obj().Spec}
	must(t, cluster.Client.Create(t.Context(), replicaSet))
	look := func(gated bool) error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(ns.Name)); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if (len(p.Spec.SchedulingGates) == 1) != gated || (p.Labels[stowage.SeatLabel] == "") != gated {
				return fmt.Errorf("pod %s has gates %v and labels %v", p.Name, p.Spec.SchedulingGates, p.Labels)
			}
		}
		if len(pods.Items) != 5 {
			return fmt.Errorf("there are %d of 5 pods", len(pods.Items))
		}
		return nil
	}
	eventually(t, "the pods wait at the gate", func() error { return look(true) })
	return func() {
		eventually(t, "the pods have seats", func() error { return look(false) })
		must(t, cluster.Client.Delete(t.Context(), ns))
	}
}

// The same without Helm: install.yaml, that of another image over it, and uninstall.yaml.
func TestManifest(t *testing.T) {
	manifests := func(image string) string {
		dir := t.TempDir()
		do(t, "go", "-C", "hack/release", "run", ".", "-root", repo, "-version", "v0.1.0", "-manifests", dir, "-tag", image)
		return dir
	}
	const first, second = "registry.example:5000/team/stowage:v1", "registry.example:5000/team/stowage:v2"
	defer clean(t)
	installs(t, manifests(first), first)
	runInstalled(t)
	works(t)
	pointBack(t)
	before := registration(t)
	cluster.StopStowage() // it would restore the authority
	next := manifests(second)
	installs(t, next, second)
	after := registration(t)
	for i := range after.Webhooks {
		if string(after.Webhooks[i].ClientConfig.CABundle) != string(before.Webhooks[i].ClientConfig.CABundle) || len(after.Webhooks[i].ClientConfig.CABundle) == 0 {
			t.Errorf("the authority of %s has changed: the API server would call nobody until it is back", after.Webhooks[i].Name)
		}
	}
	runInstalled(t)
	works(t)
	uninstalls(t, next)
}

// installs applies the install.yaml of a directory.
func installs(t *testing.T, dir, image string) {
	t.Helper()
	do(t, kubectl, "apply", "--server-side", "-f", filepath.Join(dir, "install.yaml"))
	eventually(t, "two replicas of each Deployment under Pod Security restricted", func() error {
		var pods corev1.PodList
		must(t, cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace)))
		n := 0
		for i := range pods.Items {
			if pods.Items[i].DeletionTimestamp == nil && pods.Items[i].Spec.Containers[0].Image == image {
				n++
			}
		}
		if n != 4 {
			return fmt.Errorf("%d pods with the image %s", n, image)
		}
		return nil
	})
}

// uninstalls deletes with the uninstall.yaml of a directory. All goes but the kinds, the policies and the namespace.
func uninstalls(t *testing.T, dir string) {
	t.Helper()
	file := filepath.Join(dir, "uninstall.yaml")
	uninstall(t, func() { do(t, kubectl, "delete", "--ignore-not-found", "-f", file) })
	if out := do(t, kubectl, "get", "--ignore-not-found", "-f", file, "-o", "name"); out != "" {
		t.Errorf("left behind: %s", out)
	}
	install, err := os.ReadFile(filepath.Join(dir, "install.yaml"))
	must(t, err)
	for name, o := range render(t, string(install)) {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		kept := o.GetKind() == "CustomResourceDefinition" || o.GetKind() == "Namespace"
		if kept != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// testDistributor is a policy that must outlive the installation.
func testDistributor() *versprei.PodDistributor {
	return &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}, Spec: versprei.PodDistributorSpec{
		Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"type": "default"}, Weight: 1}},
		Target:       versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"},
	}}
}

// registration returns the webhooks of pods.
func registration(t *testing.T) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &reg))
	return &reg
}

// pointBack makes the registrations name the Service again, as they were installed: an API
// server refuses one with both.
func pointBack(t *testing.T) {
	t.Helper()
	service := func(c *admissionregistrationv1.WebhookClientConfig) {
		at, err := url.Parse(*c.URL)
		must(t, err)
		c.URL, c.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: "stowage-webhook", Path: &at.Path, Port: new(int32(443))}
	}
	eventually(t, "the registrations name the Service", func() error {
		pods := registration(t)
		for i := range pods.Webhooks {
			if pods.Webhooks[i].ClientConfig.URL != nil {
				service(&pods.Webhooks[i].ClientConfig)
			}
		}
		var workloads admissionregistrationv1.ValidatingWebhookConfiguration
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &workloads)
		if apierrors.IsNotFound(err) { // without the spread
			return cluster.Client.Update(t.Context(), pods)
		}
		must(t, err)
		for i := range workloads.Webhooks {
			if workloads.Webhooks[i].ClientConfig.URL != nil {
				service(&workloads.Webhooks[i].ClientConfig)
			}
		}
		return errors.Join(cluster.Client.Update(t.Context(), pods), cluster.Client.Update(t.Context(), &workloads))
	})
}

// uninstall ends an installation and watches in which order, and that pods can be created
// throughout in a namespace that would refuse them without an answer.
func uninstall(t *testing.T, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "strict", Labels: map[string]string{"stowage.dev/failure-policy": "Fail"}}}
	must(t, cluster.Client.Create(ctx, strict))
	defer func() { must(t, cluster.Client.Delete(t.Context(), strict)) }()
	distributor := testDistributor()
	must(t, cluster.Client.Create(ctx, distributor))

	// Nothing answers from here on: the processes end as the Deployment's pods do.
	hooks, err := cluster.Clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Watch(ctx, metav1.ListOptions{})
	must(t, err)
	deployments, err := cluster.Clientset.AppsV1().Deployments(namespace).Watch(ctx, metav1.ListOptions{})
	must(t, err)
	var all sync.WaitGroup
	var mu sync.Mutex
	gone := map[string]time.Time{}
	for name, w := range map[string]watch.Interface{"registration": hooks, "deployment": deployments} {
		all.Go(func() {
			defer w.Stop()
			for e := range w.ResultChan() {
				if e.Type != watch.Deleted {
					continue
				}
				mu.Lock()
				if gone[name].IsZero() {
					gone[name] = time.Now()
				}
				mu.Unlock()
				if name == "deployment" {
					cluster.StopStowage()
					return
				}
			}
		})
	}
	refused := make(chan error, 1)
	all.Go(func() {
		for ctx.Err() == nil {
			pod := testkit.Pod("probe").Namespace("strict").Container("c", "", "").Obj()
			if err := cluster.Client.Create(ctx, pod, client.DryRunAll); err != nil && ctx.Err() == nil && !apierrors.IsForbidden(err) {
				select {
				case refused <- err:
				default:
				}
			}
		}
	})
	end()
	cancel()
	all.Wait()
	select {
	case err := <-refused:
		t.Errorf("a pod was refused: %v", err)
	default:
	}
	if gone["registration"].IsZero() || gone["deployment"].IsZero() || gone["deployment"].Before(gone["registration"]) {
		t.Errorf("not the registration first: %v", gone)
	}
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		if out := do(t, kubectl, "get", kind, "-o", "name"); strings.Contains(out, "stowage") {
			t.Errorf("left behind: %s", out)
		}
	}
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(distributor), distributor); err != nil {
		t.Errorf("the policy is gone: %v", err)
	}
}

// An upgrade from one Deployment to two and back lets no pod pass unchanged, and each process has the permissions that it needs.
// What the chart renders is applied but for the registrations: they name the address of our processes here.
func TestPartsUnderLoad(t *testing.T) {
	restricted(t)
	defer clean(t)
	rendered := func(separate bool) string {
		manifest := do(t, helm, "template", "stowage", "charts/stowage", "--namespace", namespace, "--set", fmt.Sprintf("controllers.separate=%t", separate))
		var documents []string
		for document := range strings.SplitSeq(manifest, "\n---\n") {
			if !strings.Contains(document, "WebhookConfiguration\nmetadata:\n  name: stowage\n") {
				documents = append(documents, document)
			}
		}
		file := filepath.Join(t.TempDir(), "rendered.yaml")
		must(t, os.WriteFile(file, []byte(strings.Join(documents, "\n---\n")), 0o600))
		return file
	}
	change := func(separate bool) {
		t.Helper()
		do(t, kubectl, "apply", "--server-side", "--force-conflicts", "-f", rendered(separate))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		o := controlplane.StowageOptions{Binary: binary, Replicas: 2, Installed: true, Args: []string{"--target-runtimeclass=kata-remote,kata-load"}}
		if separate {
			o.Controllers = 1
		}
		must(t, cluster.StartStowage(ctx, o)) // starts new processes, then ends the old ones
	}
	do(t, helm, "install", "stowage", "charts/stowage", "--namespace", namespace, "--set", "controllers.separate=false")
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata-load"}, Handler: "kata"}
	must(t, cluster.Client.Create(t.Context(), class))
	defer func() { must(t, cluster.Client.Delete(t.Context(), class)) }()
	t.Cleanup(cluster.StopStowage)
	change(false)
	works(t)

	for _, separate := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		var load sync.WaitGroup
		var created, missed atomic.Int64
		for range 4 {
			load.Go(func() {
				for ctx.Err() == nil {
					pod := testkit.Pod("probe").Namespace("default").RuntimeClass(class.Name).Container("c", "cpu=1", "").Obj()
					err := cluster.Client.Create(ctx, pod, client.DryRunAll)
					if ctx.Err() != nil {
						return
					}
					created.Add(1)
					if err != nil || pod.Spec.Containers[0].Resources.Requests[stowage.DefaultVMResource] != resource.MustParse("1") {
						missed.Add(1)
					}
				}
			})
		}
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("load-%t", separate)}}
		rs.Spec.Replicas = new(int32(150))
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": rs.Name}}
		rs.Spec.Template.Labels = rs.Spec.Selector.MatchLabels
		rs.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAnnotation: "type=default,weight=1:type=spot,weight=1", stowage.SpreadSwitchAnnotation: "true"}
		rs.Spec.Template.Spec = testkit.Pod("").Container("c", "", "").Obj().Spec
		must(t, cluster.Client.Create(t.Context(), rs))
		change(separate)
		before, err := cluster.Audit() // processes of before lose permissions a moment before they end
		must(t, err)
		enough := created.Load() + 50
		eventually(t, "some more pods are created", func() error {
			if created.Load() < enough {
				return errors.New("not yet")
			}
			return nil
		})
		eventually(t, "every pod of a workload has a seat", func() error {
			var pods, seated corev1.PodList
			if err := errors.Join(
				cluster.Client.List(t.Context(), &pods, client.MatchingLabels(rs.Spec.Template.Labels)),
				cluster.Client.List(t.Context(), &seated, client.MatchingLabels(rs.Spec.Template.Labels), client.HasLabels{stowage.SeatLabel}),
			); err != nil {
				return err
			}
			if len(pods.Items) < int(*rs.Spec.Replicas) || len(seated.Items) < len(pods.Items) {
				return fmt.Errorf("%d of %d pods have a seat", len(seated.Items), len(pods.Items))
			}
			return nil
		})
		must(t, cluster.Client.Delete(t.Context(), rs, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		cancel()
		load.Wait()
		if missed.Load() > 0 {
			t.Errorf("with controllers.separate=%t, %d of %d pods passed unchanged", separate, missed.Load(), created.Load())
		}
		works(t)
		after, err := cluster.Audit()
		must(t, err)
		for _, e := range after[len(before):] {
			if e.Annotations["authorization.k8s.io/decision"] == "forbid" && strings.HasPrefix(e.UserAgent, "stowage/") {
				t.Errorf("with controllers.separate=%t, a permission is missing: %+v", separate, e)
			}
		}
	}
	cluster.StopStowage()
	do(t, helm, "uninstall", "stowage", "--namespace", namespace)
}

// A feature that is off needs none of what the chart leaves out for it, its role above all.
func TestHelmWithoutAFeature(t *testing.T) {
	restricted(t)
	defer clean(t)
	flags := map[string]string{"spread": "--spread=false", "sizing": "--sizing=false", "peerPods": "--peer-pods=false"}
	verb := "install"
	for _, off := range [][]string{{"spread"}, {"sizing"}, {"peerPods"}, {"spread", "sizing"}, {"spread", "peerPods"}, {"sizing", "peerPods"}} {
		args := []string{verb, "stowage", "charts/stowage", "--namespace", namespace, "--wait", "--timeout", "5m"}
		var settings []string
		for _, feature := range off {
			args = append(args, "--set", "features."+feature+"=false")
			settings = append(settings, flags[feature])
		}
		do(t, helm, args...)
		verb = "upgrade"
		before, err := cluster.Audit()
		must(t, err)
		runInstalled(t, settings...)
		do(t, kubectl, "apply", "-k", "config/samples")
		eventually(t, "a replica leads, and pods are there", func() error {
			var lease coordinationv1.Lease
			var pods corev1.PodList
			err := errors.Join(
				cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "stowage-leader"}, &lease),
				cluster.Client.List(t.Context(), &pods, client.MatchingLabels{"app": "peer-pod"}),
			)
			if holder := lease.Spec.HolderIdentity; err == nil && (holder == nil || *holder == "" || len(pods.Items) == 0) {
				return errors.New("not yet")
			}
			return err
		})
		do(t, kubectl, "delete", "-k", "config/samples", "--wait=true")
		cluster.StopStowage() // which takes a second
		after, err := cluster.Audit()
		must(t, err)
		for _, e := range after[len(before):] {
			if e.Annotations["authorization.k8s.io/decision"] == "forbid" && strings.HasPrefix(e.UserAgent, "stowage/") {
				t.Errorf("without %s, a permission is missing: %+v", off, e)
			}
		}
		if len(after) == len(before) {
			t.Error("the replicas asked for nothing")
		}
		pointBack(t)
	}
	do(t, helm, "uninstall", "stowage", "--namespace", namespace, "--wait")
}

// Without the webhook, the chart installs what writes deletion costs, and nothing that is in the way of pods. An upgrade adds the webhook, and another one takes
// it away with all that it needs.
func TestHelmWithoutWebhook(t *testing.T) {
	restricted(t)
	defer clean(t)
	verb := "install"
	for _, on := range []bool{false, true, false} {
		do(t, helm, verb, "stowage", "charts/stowage", "--namespace", namespace, "--set", fmt.Sprintf("webhook.enabled=%t", on), "--wait", "--timeout", "5m")
		verb = "upgrade"
		before, err := cluster.Audit()
		must(t, err)
		if on {
			runInstalled(t)
			works(t)
			pointBack(t)
		} else {
			for _, o := range []client.Object{
				&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}}, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}},
				&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stowage"}}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stowage"}},
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stowage-webhook"}},
			} {
				if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
					t.Errorf("%T is there: %v", o, err)
				}
			}
			must(t, cluster.StartStowage(t.Context(), controlplane.StowageOptions{Binary: binary, Controllers: 1, Installed: true, WithoutWebhook: true}))
			do(t, kubectl, "apply", "-f", "config/samples/scale-down.yaml")
			eventually(t, "each pod has its deletion cost", func() error {
				var pods corev1.PodList
				must(t, cluster.Client.List(t.Context(), &pods, client.MatchingLabels{"app": "zones"}))
				for i := range pods.Items {
					if cost := pods.Items[i].Annotations[corev1.PodDeletionCost]; cost == "" {
						return fmt.Errorf("pod %s has none", pods.Items[i].Name)
					}
				}
				if len(pods.Items) != 6 {
					return fmt.Errorf("%d pods", len(pods.Items))
				}
				return nil
			})
			do(t, kubectl, "delete", "-f", "config/samples/scale-down.yaml", "--wait=true")
		}
		cluster.StopStowage()
		after, err := cluster.Audit()
		must(t, err)
		for _, e := range after[len(before):] {
			if e.Annotations["authorization.k8s.io/decision"] == "forbid" && strings.HasPrefix(e.UserAgent, "stowage/") {
				t.Errorf("with webhook.enabled=%t, a permission is missing: %+v", on, e)
			}
		}
	}
	do(t, helm, "uninstall", "stowage", "--namespace", namespace, "--wait")
}

// With a label for the spread's namespaces, the API server calls nobody for pods of other namespaces that no feature wants.
func TestHelmSendsNoPodOfNoConcern(t *testing.T) {
	restricted(t)
	defer clean(t)
	do(t, helm, "install", "stowage", "charts/stowage", "--namespace", namespace, "--set", "webhook.spreadNamespaceLabel=stowage.dev/spread=on", "--wait", "--timeout", "5m")
	runInstalled(t)
	calls := func() float64 {
		n, err := cluster.Metric(t.Context(), "apiserver_admission_webhook_request_total", `name="[^"]*pods[^"]*\.stowage\.dev"`)
		must(t, err)
		return n
	}
	before := calls()
	do(t, kubectl, "create", "namespace", "no-concern")
	defer do(t, kubectl, "delete", "namespace", "no-concern", "--wait=true")
	do(t, kubectl, "-n", "no-concern", "create", "deployment", "web", "--image=none", "--replicas=20")
	eventually(t, "20 pods", func() error {
		var pods corev1.PodList
		must(t, cluster.Client.List(t.Context(), &pods, client.InNamespace("no-concern")))
		if len(pods.Items) != 20 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	})
	if n := calls() - before; n != 0 {
		t.Errorf("the API server called Stowage %v times", n)
	}
	do(t, kubectl, "create", "namespace", "spread-demo")
	do(t, kubectl, "label", "namespace", "spread-demo", "stowage.dev/spread=on")
	works(t)
	do(t, helm, "uninstall", "stowage", "--namespace", namespace, "--wait")
}

// CRDs that a predecessor or an earlier installation left are refused, as Helm does, and
// taken over if asked to, with the policies in them.
func TestHelmTakesOverKinds(t *testing.T) {
	restricted(t)
	defer clean(t)
	do(t, kubectl, "apply", "--server-side", "-f", "config/crd/bases/versprei.versprei.io_poddistributors.yaml")
	do(t, kubectl, "wait", "--for=condition=Established", "crd/poddistributors.versprei.versprei.io")
	distributor := testDistributor()
	eventually(t, "the kind is served", func() error { return cluster.Client.Create(t.Context(), distributor) })
	_, err := try(t, helm, "install", "stowage", "charts/stowage", "--namespace", namespace)
	if err == nil || !strings.Contains(err.Error(), "poddistributors.versprei.versprei.io") {
		t.Errorf("Helm did not refuse the CRD that is there: %v", err)
	}
	do(t, helm, "install", "stowage", "charts/stowage", "--namespace", namespace, "--take-ownership", "--wait", "--timeout", "5m")
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(distributor), distributor); err != nil {
		t.Errorf("the policy is gone: %v", err)
	}
	do(t, helm, "uninstall", "stowage", "--namespace", namespace, "--wait")
}

// The same from config/, by the Makefile's targets, and its end, which keeps the policies.
func TestMake(t *testing.T) {
	defer clean(t)
	run := func(target string, args ...string) (string, error) {
		return try(t, "make", append([]string{"--no-print-directory", target, "KUBECTL=" + kubectl}, args...)...)
	}
	succeeds := func(target string, args ...string) {
		t.Helper()
		_, err := run(target, args...)
		must(t, err)
	}
	succeeds("deploy", "IMG=registry.example:5000/team/stowage:v9")
	var pods corev1.PodList
	must(t, cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace)))
	if len(pods.Items) != 4 {
		t.Errorf("%d pods under Pod Security restricted, want 4", len(pods.Items))
	}
	for i := range pods.Items {
		if image := pods.Items[i].Spec.Containers[0].Image; image != "registry.example:5000/team/stowage:v9" {
			t.Errorf("the image is %s", image)
		}
	}
	runInstalled(t)
	succeeds("deploy-samples")
	succeeds("deploy-samples") // it works a second time
	succeeds("undeploy-samples")

	distributor := testDistributor()
	must(t, cluster.Client.Create(t.Context(), distributor))
	succeeds("undeploy")
	for _, kind := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "flowschemas", "deployments"} {
		if out := do(t, kubectl, "get", kind, "-A", "-o", "name"); strings.Contains(out, "stowage") {
			t.Errorf("left behind: %s", out)
		}
	}
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(distributor), distributor); err != nil {
		t.Errorf("the policy is gone: %v", err)
	}
	if _, err := run("uninstall"); err == nil || !strings.Contains(err.Error(), "CONFIRM=yes") {
		t.Errorf("the kinds are deleted without a question: %v", err)
	}
	succeeds("uninstall", "CONFIRM=yes")
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(distributor), distributor); err == nil {
		t.Error("the kinds are still there")
	}
}

// What needs a program, a daemon or a cluster says so where there is none.
func TestMakeSaysWhatIsMissing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for target, part := range map[string]string{
		"install": "needs a cluster", "deploy": "needs a cluster", "deploy-manifests": "needs a cluster", "undeploy": "needs a cluster",
		"deploy-samples": "needs a cluster", "undeploy-samples": "needs a cluster", "logs": "needs a cluster", "uninstall": "needs a cluster",
		"docker-build": "needs docker-that-is-not", "docker-push": "needs docker-that-is-not",
		"kind-cluster": "needs kind-that-is-not", "kind-deploy": "needs kind-that-is-not", "push-deploy": "needs a cluster",
	} {
		_, err := try(t, "make", target, "IMG=registry.example/stowage:1", "KUBECTL="+kubectl, "KUBECONFIG="+none, "DOCKER=docker-that-is-not", "KIND=kind-that-is-not")
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("make %s does not say that it %s: %v", target, part, err)
		}
	}
}

// Settings in the ConfigMap change without a restart; one that is wrong changes nothing, and
// a replica that starts refuses it.
func TestConfigMapIsFollowed(t *testing.T) {
	defer clean(t)
	do(t, kubectl, "apply", "--server-side", "-k", "config/default")
	runInstalled(t)
	c, ctx := cluster.Client, t.Context()
	set := func(patch string) {
		t.Helper()
		do(t, kubectl, "-n", namespace, "patch", "configmap", "stowage-config", "--type=merge", "-p", patch)
	}
	seats := func() int {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{GenerateName: "live-", Namespace: "default", Annotations: map[string]string{
			stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAnnotation: "nodesize=od4vcpu16gb,base=1,weight=1",
		}}}
		labels := map[string]string{"live": "test"}
		rs.Spec.Replicas, rs.Spec.Selector = new(int32(1)), &metav1.LabelSelector{MatchLabels: labels}
		rs.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: testkit.Pod("").Container("c", "", "").Obj().Spec}
		must(t, c.Create(ctx, rs))
		defer func() { must(t, c.Delete(ctx, rs)) }()
		n := -1
		eventually(t, "the pod is there", func() error {
			var pods corev1.PodList
			if err := c.List(ctx, &pods, client.InNamespace("default")); err != nil {
				return err
			}
			for i := range pods.Items {
				if metav1.IsControlledBy(&pods.Items[i], rs) {
					n = 0
					if pods.Items[i].Labels[stowage.SeatLabel] != "" {
						n = 1
					}
					return nil
				}
			}
			return errors.New("no pod")
		})
		return n
	}
	// A log begins before this test: replicas of earlier tests had the same names.
	begin := map[string]int{}
	for _, r := range cluster.Replicas() {
		data, err := os.ReadFile(r.Log)
		must(t, err)
		begin[r.Log] = len(data)
	}
	logged := func(what string) error {
		for _, r := range cluster.Replicas() {
			data, err := os.ReadFile(r.Log)
			if err != nil {
				return err
			}
			if strings.Contains(string(data[begin[r.Log]:]), what) {
				return nil
			}
		}
		return fmt.Errorf("no replica says %q", what)
	}
	if seats() != 1 {
		t.Fatal("the pod has no seat to begin with")
	}
	if logged(`"level":"DEBUG`) == nil {
		t.Fatal("the log level is DEBUG to begin with")
	}
	set(`{"data":{"BLOCKLISTED_NAMESPACE_LIST":"other, default","LOG_LEVEL":"DEBUG"}}`)
	eventually(t, "the block list holds", func() error {
		if seats() != 0 {
			return errors.New("the pod has a seat")
		}
		return nil
	})
	eventually(t, "the log level holds", func() error { return logged(`"level":"DEBUG`) })

	set(`{"data":{"BLOCKLISTED_NAMESPACE_LIST":"A_B","LOG_LEVEL":"LOUD","TARGET_RUNTIMECLASS":"x"}}`)
	eventually(t, "it is refused", func() error {
		return errors.Join(logged("the last good settings stay"), logged("LOUD"), logged("A_B"), logged("TARGET_RUNTIMECLASS is not one of"))
	})
	if seats() != 0 {
		t.Error("the last good block list does not hold")
	}
	eventually(t, "an event says so", func() error {
		if out := do(t, kubectl, "-n", namespace, "get", "events", "-o", "yaml"); !strings.Contains(out, "InvalidConfiguration") || !strings.Contains(out, "LOUD") {
			return errors.New(out)
		}
		return nil
	})
	if r, err := cluster.StartReplica(ctx, controlplane.StowageOptions{Binary: binary}); err == nil {
		t.Error("a replica started with settings that are wrong")
		r.Kill()
	} else if !strings.Contains(err.Error(), "LOUD") || !strings.Contains(err.Error(), "A_B") {
		t.Errorf("a replica that starts does not say all that is wrong: %v", err)
	}
	do(t, kubectl, "-n", namespace, "delete", "configmap", "stowage-config")
	eventually(t, "nothing is excluded any more", func() error {
		if seats() != 1 {
			return errors.New("the pod has no seat")
		}
		return nil
	})
}
