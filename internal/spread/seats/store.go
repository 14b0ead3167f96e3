package seats

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=seatledgers,verbs=get;list;watch,roleName=stowage-spread
// +kubebuilder:rbac:groups=stowage.dev,resources=seatledgers,verbs=create;update,roleName=stowage-spread-webhook
// +kubebuilder:rbac:groups=stowage.dev,resources=seatledgers,verbs=delete,roleName=stowage-spread-controllers

// Store is the [API] on a cluster. The client must read from the API server and not
// from a cache.
type Store struct{ Client client.Client }

var _ API = &Store{}

// ReadLedger implements [API].
func (k *Store) ReadLedger(ctx context.Context, owner ledger.Owner) (*ledger.Object, error) {
	var sl stowage.SeatLedger
	err := k.Client.Get(ctx, client.ObjectKey{Namespace: owner.Namespace, Name: string(owner.UID)}, &sl)
	if apierrors.IsNotFound(err) {
		return &ledger.Object{}, nil
	}
	if err != nil {
		return nil, err
	}
	_, o := ledger.FromSeatLedger(&sl)
	return &o, nil
}

// WriteLedger implements [API].
func (k *Store) WriteLedger(ctx context.Context, owner ledger.Owner, o *ledger.Object) (*ledger.Object, ledger.WriteResult, error) {
	sl := ledger.ToSeatLedger(owner, o)
	var err error
	if o.Version == 0 {
		err = k.Client.Create(ctx, sl)
	} else {
		err = k.Client.Update(ctx, sl)
	}
	switch {
	case err == nil:
		_, out := ledger.FromSeatLedger(sl)
		return &out, ledger.WriteOK, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), o.Version != 0 && apierrors.IsNotFound(err):
		return nil, ledger.WriteConflict, nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err), tooLarge(err), meta.IsNoMatchError(err):
		return nil, ledger.WriteRefused, err
	case busy(err):
		return nil, ledger.WriteBusy, err
	}
	return nil, ledger.WriteUncertain, err
}

// busy reports whether the API server had no room for a request. A proxy before it may answer 503 to a write that was applied.
// Then the next write meets a conflict, and the claims of this one count until they are presumed dead.
func busy(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

// tooLarge reports whether an object is larger than the API server takes, or than etcd takes. The API server passes etcd's
// refusals on as internal errors, with nothing but their texts (isTooLargeError in its package handlers).
func tooLarge(err error) bool {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError &&
		(strings.Contains(status.Status().Message, "etcdserver: request is too large") ||
			strings.Contains(status.Status().Message, "trying to send message larger than max"))
}

// DeleteLedger implements [API].
func (k *Store) DeleteLedger(ctx context.Context, owner ledger.Owner, version uint64) error {
	sl := &stowage.SeatLedger{ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: string(owner.UID)}}
	rv := strconv.FormatUint(version, 10)
	return client.IgnoreNotFound(k.Client.Delete(ctx, sl, client.Preconditions{ResourceVersion: &rv}))
}

// ReadReplicas implements [API].
func (k *Store) ReadReplicas(ctx context.Context, owner ledger.Owner) (int64, error) {
	scale, err := worldapi.ReadScale(ctx, k.Client, owner.Namespace, Ref(owner))
	if scale == nil || err != nil {
		return -1, err
	}
	return scale.Replicas, nil
}
