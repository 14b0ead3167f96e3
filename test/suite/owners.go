package suite

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/testkit"
)

// BareReplicaSet makes a ReplicaSet that wants some pods. Its pods are made by the test
// where it wants none: the controller does not touch what it does not select.
func (n *Tenant) BareReplicaSet(t *testing.T, name string, replicas int, annotations map[string]string) *appsv1.ReplicaSet {
	t.Helper()
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name, Annotations: annotations},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: PodTemplate(name),
		},
	}
	Must(t, n.Create(t.Context(), rs))
	return rs
}

// TryPod makes a pod as a controller would, and returns it as it would be created.
func (n *Tenant) TryPod(t *testing.T, owner client.Object, gvk metav1.TypeMeta, change func(*corev1.Pod), opts ...client.CreateOption) *corev1.Pod {
	t.Helper()
	template := PodTemplate("app")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: n.Namespace, GenerateName: "try-", Labels: template.Labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: gvk.APIVersion, Kind: gvk.Kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true)}},
		},
		Spec: template.Spec,
	}
	if change != nil {
		change(pod)
	}
	Must(t, n.Create(t.Context(), pod, opts...))
	return pod
}

// ReplicaSetKind is the kind of [Tenant.BareReplicaSet].
var ReplicaSetKind = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}

// HasEvent reports whether the namespace has an event with a reason and a text.
func (n *Tenant) HasEvent(t *testing.T, reason, text string) bool {
	t.Helper()
	var list corev1.EventList
	Must(t, n.List(t.Context(), &list, client.InNamespace(n.Namespace)))
	return slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == reason && strings.Contains(e.Message, text) })
}

// Distributor makes the documented PodDistributor, for a Deployment of the namespace.
func (n *Tenant) Distributor(t *testing.T, name, target string, change func(*versprei.PodDistributorSpec)) *versprei.PodDistributor {
	t.Helper()
	d := &versprei.PodDistributor{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: name},
		Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{
				{NodeLabel: map[string]versprei.LabelValue{"type": "default"}, Weight: 80},
				{NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 20},
			},
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: target},
		},
	}
	if change != nil {
		change(&d.Spec)
	}
	Must(t, n.Create(t.Context(), d))
	return d
}

// CreatePod creates a pod in the namespace and returns it as the API server has it.
func (n *Tenant) CreatePod(t *testing.T, b *testkit.PodBuilder, opts ...client.CreateOption) *corev1.Pod {
	t.Helper()
	pod := b.Namespace(n.Namespace).Obj()
	Must(t, n.Create(t.Context(), pod, opts...))
	return pod
}
