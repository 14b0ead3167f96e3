package e2e

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// A pod may say that another workload owns it: in another namespace that changes nothing for
// the others, and what is no reference is not followed.
func TestForgedOwner(t *testing.T) {
	t.Parallel()
	victim, attacker := newTenant(t), newTenant(t)
	rs := victim.BareReplicaSet(t, "owner", 0, annotated(eightyOf))
	for range 5 {
		pod := attacker.TryPod(t, rs, suite.ReplicaSetKind, func(p *corev1.Pod) { p.Annotations = annotated(eightyOf) })
		attacker.untouched(t, pod)
		must(t, client.IgnoreNotFound(attacker.Delete(t.Context(), pod)))
	}
	if err := victim.Get(t.Context(), victim.Key(string(rs.UID)), &stowage.SeatLedger{}); !apierrors.IsNotFound(err) {
		t.Errorf("pods of another namespace have claims: %v", err)
	}
	pod := victim.TryPod(t, rs, suite.ReplicaSetKind, nil)
	strategy := strategyOf(t, eightyOf)
	first, err := strategy.SeatAt(1)
	must(t, err)
	if pod.Labels[stowage.PoolLabel] != strconv.Itoa(first.Pool) || pod.Labels[stowage.SeatLabel] != strconv.FormatInt(first.Ordinal, 10) {
		t.Errorf("the first pod has the labels %v, want seat %v", pod.Labels, first)
	}

	// An owner that does not exist has no ledger, and its pods have no seat. Of one that does,
	// neither the name nor the kind can be made up.
	for name, ref := range map[string]metav1.OwnerReference{
		"a UID that was made up":  {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "0d1f7a7e-0000-0000-0000-000000000000"},
		"a name that was made up": {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "other", UID: rs.UID},
		"a kind that was made up": {APIVersion: "apps/v1", Kind: "StatefulSet", Name: "owner", UID: rs.UID},
		"a kind that is nowhere":  {APIVersion: "nowhere.example/v9", Kind: "Nothing", Name: "owner", UID: "0d1f7a7e-0000-0000-0000-000000000001"},
	} {
		t.Run(name, func(t *testing.T) {
			invented := podTemplate("x")
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: attacker.Namespace, GenerateName: "invented-", Annotations: annotated(eightyOf)}, Spec: invented.Spec}
			ref.Controller = new(true)
			p.OwnerReferences = []metav1.OwnerReference{ref}
			must(t, attacker.Create(t.Context(), p))
			attacker.untouched(t, p)
		})
	}
	// The version of the owner is that of its kind: with another one, nobody could read its replica count.
	other := podTemplate("x")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: victim.Namespace, GenerateName: "version-", Annotations: annotated(eightyOf)}, Spec: other.Spec}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v9", Kind: "ReplicaSet", Name: "owner", UID: rs.UID, Controller: new(true)}}
	victim.Warnings.Take()
	must(t, victim.Create(t.Context(), p, client.DryRunAll))
	victim.untouched(t, p)

	var ledgers stowage.SeatLedgerList
	must(t, attacker.List(t.Context(), &ledgers, client.InNamespace(attacker.Namespace)))
	if n := len(ledgers.Items); n != 0 {
		t.Errorf("%d SeatLedgers of owners that do not exist", n)
	}

	for name, ref := range map[string]metav1.OwnerReference{
		"a path":             {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "../../secrets/stowage-seats", UID: "u"},
		"a path as the UID":  {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "../x"},
		"a Secret":           {APIVersion: "v1", Kind: "Secret", Name: "stowage-seats", UID: "u"},
		"a kind of no group": {APIVersion: "nowhere.example/v9", Kind: "Nothing", Name: "x", UID: "u"},
		"a long name":        {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: strings.Repeat("x", 5000), UID: "u"},
		"no version":         {APIVersion: "///", Kind: "ReplicaSet", Name: "x", UID: "u"},
	} {
		t.Run(name, func(t *testing.T) {
			ref.Controller = new(true)
			p := pod.DeepCopy()
			p.ObjectMeta = metav1.ObjectMeta{Namespace: attacker.Namespace, GenerateName: "forged-", OwnerReferences: []metav1.OwnerReference{ref}}
			p.Spec = podTemplate("x").Spec
			eventually(t, "no warning says that the processors had other work", func() (bool, error) {
				// The API server itself may refuse it; we may not.
				if err := attacker.Create(t.Context(), p.DeepCopy(), client.DryRunAll); err != nil && (apierrors.IsInternalError(err) || strings.Contains(err.Error(), "stowage")) {
					t.Errorf("refused: %v", err)
				}
				warned := attacker.Warnings.Take()
				late := strings.Contains(strings.Join(warned, ""), "deadline exceeded")
				if len(warned) != 0 && !late {
					t.Errorf("warned: %q", warned)
				}
				return !late, nil
			})
		})
	}
	events, err := cluster.Audit()
	must(t, err)
	for i := range events {
		ref := events[i].ObjectRef
		if ref.Resource == "secrets" && ref.Namespace == attacker.Namespace && events[i].Annotations["authorization.k8s.io/decision"] != "forbid" {
			t.Errorf("a reference let Stowage %s Secret %s", events[i].Verb, ref.Name)
		}
	}
}

// untouched checks that Stowage neither placed a pod nor warned of it.
func (n *tenant) untouched(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, key := range []string{stowage.PoolLabel, stowage.SeatLabel, stowage.ClaimAnnotation, corev1.PodDeletionCost} {
		if value, has := pod.Labels[key]; has {
			t.Errorf("the pod has the label %s=%s", key, value)
		}
		if value, has := pod.Annotations[key]; has {
			t.Errorf("the pod has the annotation %s=%s", key, value)
		}
	}
	if len(pod.Spec.NodeSelector) != 0 {
		t.Errorf("the pod has the node selector %v", pod.Spec.NodeSelector)
	}
	if warned := n.Warnings.Take(); len(warned) != 0 {
		t.Errorf("warned: %q", warned)
	}
}

// A PodDistributor divides pods of its own namespace alone.
func TestPodDistributorOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	victim, attacker := newTenant(t), newTenant(t)
	theirs, own := victim.BareReplicaSet(t, "web", 0, nil), attacker.BareReplicaSet(t, "web", 0, nil)
	attacker.Distributor(t, "web", "web", func(s *versprei.PodDistributorSpec) { s.Target.Kind = "ReplicaSet" })
	eventually(t, "it is known", func() (bool, error) {
		return attacker.TryPod(t, own, suite.ReplicaSetKind, nil, client.DryRunAll).Labels[stowage.SeatLabel] != "", nil
	})
	for range 8 {
		if pod := victim.TryPod(t, theirs, suite.ReplicaSetKind, nil, client.DryRunAll); pod.Labels[stowage.SeatLabel] != "" {
			t.Fatalf("a pod of another namespace has a seat: %v", pod.Labels)
		}
	}
}
