package serving

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
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
