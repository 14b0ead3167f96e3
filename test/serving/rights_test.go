package serving

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// asStowage returns a client with the rights of one of Stowage's ServiceAccounts. It impersonates that account, because the audit
// log, which shows what Stowage itself asks, notes impersonated requests under the other name.
func asStowage(t *testing.T, account string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(cluster.Config)
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + controlplane.StowageNamespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + controlplane.StowageNamespace, "system:authenticated"},
	}
	c, err := client.New(cfg, client.Options{Scheme: controlplane.Scheme})
	must(t, err)
	return c
}

// judged fails the test unless the API server allowed a request, or a policy of Stowage's refused it, as wanted.
func judged(t *testing.T, err error, allowed bool) {
	t.Helper()
	refused := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'stowage-")
	if allowed && err != nil || !allowed && !refused {
		t.Errorf("want allowed %v, got %v", allowed, err)
	}
}

// Stowage's roles allow each of these requests. The policies beside them leave what Stowage itself does.
func TestRights(t *testing.T) {
	t.Parallel()
	n, own, webhook := newTenant(t), asStowage(t, "stowage-controllers"), asStowage(t, "stowage")
	pod := n.CreatePod(t, testkit.Pod("plain").Label("app", "web").Annotation("of", "another").Container("c", "cpu=10m", ""))
	crowded := testkit.Pod("crowded").Container("c", "", "")
	for i := range 1001 {
		crowded.Annotation(fmt.Sprint("n", i), "")
	}
	many := n.CreatePod(t, crowded)
	held := testkit.Pod("held").Label("app", "web").Container("c", "cpu=10m", "").Obj()
	held.Namespace, held.Spec.SchedulingGates = n.Namespace, []corev1.PodSchedulingGate{{Name: "example.com/other"}} // the leader leaves it
	must(t, n.Create(t.Context(), held))
	system := testkit.Pod("").Namespace(metav1.NamespaceSystem).Container("c", "", "").Obj()
	system.GenerateName = "rights-"
	must(t, n.Create(t.Context(), system))
	t.Cleanup(func() { _ = n.Delete(context.Background(), system) })
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "od4-1"}}

	for name, tc := range map[string]struct {
		of         client.Object
		sub, patch string
		allowed    bool
	}{
		"a pod's seat": {pod, "", `{"metadata":{"labels":{"stowage.dev/pool":"a","stowage.dev/seat":"1"},
			"annotations":{"stowage.dev/claim":"x","controller.kubernetes.io/pod-deletion-cost":"9"}}}`, true},
		"the record of a pod's size":               {pod, "", `{"metadata":{"labels":{"stowage.dev/sized-by":"t"},"annotations":{"stowage.dev/declared-resources":"{}"}}}`, true},
		"a node selector of a pod at another gate": {held, "", `{"spec":{"nodeSelector":{"type":"spot"}}}`, false},
		"the gate of somebody else":                {held, "", `{"spec":{"schedulingGates":[{"$patch":"delete","name":"example.com/other"}]}}`, false},
		"a pod's image":                            {pod, "", `{"spec":{"containers":[{"name":"c","image":"other"}]}}`, false},
		"a pod's deadline":                         {pod, "", `{"spec":{"activeDeadlineSeconds":1}}`, false},
		"another label of a pod":                   {pod, "", `{"metadata":{"labels":{"app":"other"}}}`, false},
		"a new label of a pod":                     {pod, "", `{"metadata":{"labels":{"stowage.dev/mode":"Off"}}}`, false},
		"no labels of a pod":                       {pod, "", `{"metadata":{"labels":null}}`, false},
		"another annotation":                       {pod, "", `{"metadata":{"annotations":{"of":"us"}}}`, false},
		"no annotations":                           {pod, "", `{"metadata":{"annotations":null}}`, false},
		"a pod's finalizer":                        {pod, "", `{"metadata":{"finalizers":["example.com/x"]}}`, false},
		"a pod's owner":                            {pod, "", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"x"}]}}`, false},
		"a seat among annotations that take the API server long": {many, "", `{"metadata":{"labels":{"stowage.dev/seat":"1"}}}`, false},
		"a seat in kube-system":                                  {system, "", `{"metadata":{"labels":{"stowage.dev/seat":"1"}}}`, false},
		"the mark of a node":                                     {node, "", `{"metadata":{"annotations":{"stowage.dev/peerpods-capacity":"5"}}}`, true},
		"the VMs of a node":                                      {node, "status", `{"status":{"capacity":{"kata.peerpods.io/vm":"5"},"allocatable":{"kata.peerpods.io/vm":"5"}}}`, true},
		"no VMs of a node":                                       {node, "status", `{"status":{"capacity":{"kata.peerpods.io/vm":null},"allocatable":{"kata.peerpods.io/vm":null}}}`, true},
		"another annotation of a node":                           {node, "", `{"metadata":{"annotations":{"kwok.x-k8s.io/node":"real"}}}`, false},
		"a label of a node":                                      {node, "", `{"metadata":{"labels":{"type":"other"}}}`, false},
		"a label of a node through its status":                   {node, "status", `{"metadata":{"labels":{"type":"other"}}}`, false},
		"a taint":                                                {node, "", `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`, false},
		"a node that takes no pods":                              {node, "", `{"spec":{"unschedulable":true}}`, false},
		"the CPUs of a node":                                     {node, "status", `{"status":{"allocatable":{"cpu":"1"}}}`, false},
		"no CPUs of a node":                                      {node, "status", `{"status":{"capacity":{"cpu":null}}}`, false},
		"another resource of a node":                             {node, "status", `{"status":{"capacity":{"example.com/gpu":"1"}}}`, false},
		"the readiness of a node":                                {node, "status", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj, patch := tc.of.DeepCopyObject().(client.Object), client.RawPatch(types.StrategicMergePatchType, []byte(tc.patch))
			if tc.sub == "" {
				judged(t, own.Patch(t.Context(), obj, patch, client.DryRunAll), tc.allowed)
			} else {
				judged(t, own.SubResource(tc.sub).Patch(t.Context(), obj, patch, client.DryRunAll), tc.allowed)
			}
		})
	}

	t.Run("a size for a pod of no DaemonSet", func(t *testing.T) {
		suite.NeedsResize(t)
		eventually(t, "the pod runs", func() (bool, error) {
			err := n.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)
			return pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) == 1, err
		})
		// Without that, the API server refuses the resize for want of a kubelet that can do it.
		before := pod.DeepCopy()
		pod.Status.ContainerStatuses[0].Resources = pod.Spec.Containers[0].Resources.DeepCopy()
		must(t, n.Status().Patch(t.Context(), pod, client.MergeFrom(before)))
		patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"20m"}}}]}}`))
		judged(t, own.SubResource("resize").Patch(t.Context(), pod.DeepCopy(), patch, client.DryRunAll), false)
	})

	t.Run("an eviction in kube-system", func(t *testing.T) {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: system.Namespace, Name: system.Name}}
		judged(t, own.SubResource("eviction").Create(t.Context(), system.DeepCopy(), eviction, client.DryRunAll), false)
	})
	for _, namespace := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, controlplane.StowageNamespace} {
		t.Run("in "+namespace, func(t *testing.T) {
			judged(t, webhook.Create(t.Context(), &stowage.SeatLedger{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rights"}}, client.DryRunAll), false)
			event := &eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rights"}, EventTime: metav1.NowMicro(),
				ReportingController: "stowage.dev/test", ReportingInstance: "test", Action: "Test", Reason: "Test", Type: corev1.EventTypeNormal,
				Regarding: corev1.ObjectReference{Kind: "ConfigMap", Namespace: namespace, Name: "rights"},
			}
			for _, c := range []client.Client{own, webhook} {
				judged(t, c.Create(t.Context(), event.DeepCopy(), client.DryRunAll), namespace == controlplane.StowageNamespace)
			}
		})
	}

	for name, tc := range map[string]struct {
		change  func(*admissionregistrationv1.MutatingWebhookConfiguration)
		allowed bool
	}{
		"another authority": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			c := &r.Webhooks[0].ClientConfig
			c.CABundle = append(bytes.Clone(c.CABundle), c.CABundle...)
		}, true},
		"another address": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			r.Webhooks[0].ClientConfig.URL = new("https://elsewhere.example/")
		}, false},
		"other objects": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			r.Webhooks[0].Rules[0].Resources = []string{"secrets"}
		}, false},
		"all namespaces": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			r.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{}
		}, false},
		"pods that are refused": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			r.Webhooks[0].FailurePolicy = new(admissionregistrationv1.Fail)
		}, false},
		"no match conditions": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			r.Webhooks[1].MatchConditions = nil
		}, false},
		"one webhook fewer": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			r.Webhooks = r.Webhooks[:1]
		}, false},
		"a label": {func(r *admissionregistrationv1.MutatingWebhookConfiguration) {
			metav1.SetMetaDataLabel(&r.ObjectMeta, "a", "b")
		}, false},
	} {
		t.Run("a registration with "+name, func(t *testing.T) {
			var err error
			eventually(t, "nobody else writes meanwhile", func() (bool, error) {
				var reg admissionregistrationv1.MutatingWebhookConfiguration
				must(t, n.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &reg))
				tc.change(&reg)
				err = own.Update(t.Context(), &reg, client.DryRunAll)
				return !apierrors.IsConflict(err), nil
			})
			judged(t, err, tc.allowed)
		})
	}
}

// A policy names a kind of another project that Stowage may not read. Its status, status, explain and check say so, and check prints the rights. Once they
// are applied, new pods are divided within a minute, those that came before get seats where they run, and nothing is said any more.
func TestKindsNotReadable(t *testing.T) {
	n := newTenant(t)
	n.led(t)
	must(t, cluster.ApplyYAML(t.Context(), `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pipelinesets.example.net}
spec:
  group: example.net
  scope: Namespaced
  names: {plural: pipelinesets, singular: pipelineset, kind: PipelineSet, listKind: PipelineSetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}
`))
	p := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "p"}, Spec: stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "app"}},
		Kinds: []stowage.OwnerKind{{Group: "example.net", Kind: "PipelineSet"}},
		Pools: []stowage.PolicyPool{
			{Name: "od", NodeSelector: map[string]versprei.LabelValue{"type": "default"}, Weight: 50}, {Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 50},
		},
	}}
	must(t, n.Create(t.Context(), p))
	kind := metav1.TypeMeta{APIVersion: "example.net/v1", Kind: "PipelineSet"}
	owner := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kind.APIVersion, "kind": kind.Kind, "metadata": map[string]any{"namespace": n.Namespace, "name": "w"},
		"spec":   map[string]any{"replicas": int64(5), "template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "app"}}}},
		"status": map[string]any{"replicas": int64(5), "selector": "app=app"},
	}}
	eventually(t, "the kind is served", func() (bool, error) {
		err := n.Create(t.Context(), owner)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	reason := func(condition string) string {
		must(t, n.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		if c := meta.FindStatusCondition(p.Status.Conditions, condition); c != nil {
			return string(c.Status) + " " + c.Reason
		}
		return ""
	}
	eventuallyWithin(t, time.Minute, "the policy says that its kind cannot be read", func() (bool, error) {
		return reason(stowage.ConditionReady) == "False KindNotReadable" && reason(stowage.ConditionStalled) == "True KindNotReadable", nil
	})
	for range 4 {
		if pod := n.TryPod(t, owner, kind, nil); pod.Labels[stowage.SeatLabel] != "" {
			t.Fatalf("a pod of an owner that Stowage may not read has a seat: %v", pod.Labels)
		}
	}
	pods, err := n.Pods(t.Context(), "app")
	must(t, err)
	const lacks = "Stowage may not get pipelinesets.example.net, so pods of this kind get no seat"
	says := func(want int, text string, args ...string) string {
		t.Helper()
		out, errs, exit := suite.CLI(t, cluster, append(args, "-n", n.Namespace)...)
		if exit != want || !strings.Contains(out, text) {
			t.Errorf("%v: exit status %d, and %q is not in\n%s%s", args, exit, text, out, errs)
		}
		return out
	}
	says(3, lacks, "status")
	says(0, lacks, "explain", "pod/"+pods[0].Name)
	says(0, lacks, "explain", "pipelineset/w")
	_, roles, _ := strings.Cut(says(3, lacks, "check"), "---\n")

	// Without a policy: a PodDistributor knows its target by name, and annotations are not read.
	other := newTenant(t)
	copied := func(name string, annotations map[string]string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": kind.APIVersion, "kind": kind.Kind, "metadata": map[string]any{"namespace": other.Namespace, "name": name}, "spec": map[string]any{"replicas": int64(1)},
		}}
		o.SetAnnotations(annotations)
		must(t, other.Create(t.Context(), o))
		return o
	}
	annotatedOwner, target := copied("annotated", annotated(eightyOf)), copied("target", nil)
	d := other.Distributor(t, "d", "target", func(s *versprei.PodDistributorSpec) {
		s.Target = versprei.Target{APIVersion: kind.APIVersion, Kind: kind.Kind, Name: "target"}
	})
	eventually(t, "the PodDistributor says that its target cannot be read", func() (bool, error) {
		err := other.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		c := meta.FindStatusCondition(d.Status.Conditions, versprei.ConditionTargetFound)
		return c != nil && c.Status == metav1.ConditionUnknown && c.Reason == "KindNotReadable", err
	})
	eventually(t, "a pod of the target has a seat", func() (bool, error) {
		return other.TryPod(t, target, kind, nil, client.DryRunAll).Labels[stowage.SeatLabel] != "", nil
	})
	pod := other.TryPod(t, annotatedOwner, kind, nil)
	if pod.Labels[stowage.SeatLabel] != "" {
		t.Errorf("the annotations of an owner that Stowage may not read are followed: %v", pod.Labels)
	}
	if out, errs, exit := suite.CLI(t, cluster, "explain", "pod/"+pod.Name, "-n", other.Namespace); exit != 0 || !strings.Contains(out, lacks) {
		t.Errorf("exit status %d: %s%s", exit, out, errs)
	}

	granted := time.Now()
	must(t, cluster.ApplyYAML(t.Context(), roles))
	t.Cleanup(func() {
		named := metav1.ObjectMeta{Name: "stowage-get-pipelinesets.example.net"}
		_ = cluster.Client.Delete(context.Background(), &rbacv1.ClusterRoleBinding{ObjectMeta: named})
		_ = cluster.Client.Delete(context.Background(), &rbacv1.ClusterRole{ObjectMeta: named})
	})
	eventuallyWithin(t, time.Minute, "pods that are created get seats", func() (bool, error) {
		return n.TryPod(t, owner, kind, nil, client.DryRunAll).Labels[stowage.SeatLabel] != "", nil
	})
	t.Logf("new pods get seats %s after the grant", time.Since(granted).Round(time.Second))
	eventuallyWithin(t, max(time.Second, time.Minute-time.Since(granted)), "the policy is ready", func() (bool, error) {
		return reason(stowage.ConditionReady) == "True Counted" && reason(stowage.ConditionStalled) == "False Counted" && p.Status.Unreadable == nil, nil
	})
	t.Logf("the policy is ready %s after the grant", time.Since(granted).Round(time.Second))
	n.TryPod(t, owner, kind, nil)
	eventually(t, "the pods that came before get seats where they run", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "app")
		seated := 0
		for i := range pods {
			if pods[i].Labels[stowage.SeatLabel] != "" {
				seated++
			}
		}
		return seated == 5, err
	})
	says(0, "Stowage answered", "check")
	if out := says(0, "", "explain", "spreadpolicy/p"); strings.Contains(out, "may not get") {
		t.Errorf("after the grant, explain says\n%s", out)
	}
}
