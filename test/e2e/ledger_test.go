package e2e

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// spentLedger is the SeatLedger of a pod that was created before the first test.
var spentLedger client.ObjectKey

// claimOnce makes a pod with a seat, so that there is a ledger whose claim ends a minute later.
func claimOnce(ctx context.Context) error {
	const namespace = "spent"
	if err := cluster.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", Annotations: annotated(eightyOf)}}
	rs.Spec.Replicas = new(int32(1))
	rs.Spec.Template = podTemplate("web")
	rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: rs.Spec.Template.Labels}
	if err := cluster.Client.Create(ctx, rs); err != nil {
		return err
	}
	spentLedger = client.ObjectKey{Namespace: namespace, Name: string(rs.UID)}
	return wait.PollUntilContextTimeout(ctx, waitInterval, waitTimeout, true, func(ctx context.Context) (bool, error) {
		err := cluster.Client.Get(ctx, spentLedger, &stowage.SeatLedger{})
		return err == nil, client.IgnoreNotFound(err)
	})
}

// A SeatLedger without claims is removed: its pods were seen long ago. A claim holds for a minute,
// which has passed by now where all tests run.
func TestSpentLedgerIsRemoved(t *testing.T) {
	t.Parallel()
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, 2*waitTimeout, true, func(ctx context.Context) (bool, error) {
		err := cluster.Client.Get(ctx, spentLedger, &stowage.SeatLedger{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		t.Errorf("the ledger stays: %v", err)
	}
}
