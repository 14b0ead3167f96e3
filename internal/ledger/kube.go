package ledger

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=seatledgers,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=*,resources=*/scale,verbs=get
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get

// Kube is the [API] on a cluster. The client must read from the API server and not
// from a cache.
type Kube struct{ Client client.Client }

var _ API = &Kube{}

// ReadLedger implements [API].
func (k *Kube) ReadLedger(ctx context.Context, owner Owner) (*Object, error) {
	var sl stowage.SeatLedger
	err := k.Client.Get(ctx, client.ObjectKey{Namespace: owner.Namespace, Name: string(owner.UID)}, &sl)
	if apierrors.IsNotFound(err) {
		return &Object{}, nil
	}
	if err != nil {
		return nil, err
	}
	_, o := FromSeatLedger(&sl)
	return &o, nil
}

// WriteLedger implements [API].
func (k *Kube) WriteLedger(ctx context.Context, owner Owner, o *Object) (*Object, WriteResult, error) {
	sl := toSeatLedger(owner, o)
	var err error
	if o.Version == 0 {
		err = k.Client.Create(ctx, sl)
	} else {
		err = k.Client.Update(ctx, sl)
	}
	switch {
	case err == nil:
		_, out := FromSeatLedger(sl)
		return &out, WriteOK, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), o.Version != 0 && apierrors.IsNotFound(err):
		return nil, WriteConflict, nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err), apierrors.IsRequestEntityTooLargeError(err), meta.IsNoMatchError(err):
		return nil, WriteRefused, err
	}
	return nil, WriteUncertain, err
}

// DeleteLedger implements [API].
func (k *Kube) DeleteLedger(ctx context.Context, owner Owner, version uint64) error {
	sl := &stowage.SeatLedger{ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: string(owner.UID)}}
	rv := strconv.FormatUint(version, 10)
	return client.IgnoreNotFound(k.Client.Delete(ctx, sl, client.Preconditions{ResourceVersion: &rv}))
}

// ReadReplicas implements [API].
func (k *Kube) ReadReplicas(ctx context.Context, owner Owner) (int64, error) {
	scale, err := k.ReadScale(ctx, owner)
	if scale == nil || err != nil {
		return -1, err
	}
	return scale.Replicas, nil
}

// ReadScale implements [API], through the scale subresource, which every kind has that
// an autoscaler can scale. A Job has none; it asks for its parallelism,
// or for what is left to do.
func (k *Kube) ReadScale(ctx context.Context, owner Owner) (*Scale, error) {
	key := client.ObjectKey{Namespace: owner.Namespace, Name: owner.Name}
	if owner.Kind == "Job" && strings.HasPrefix(owner.APIVersion, batchv1.GroupName+"/") {
		var job batchv1.Job
		if err := k.Client.Get(ctx, key, &job); err != nil || job.UID != owner.UID || job.Spec.Parallelism == nil {
			return nil, client.IgnoreNotFound(err)
		}
		s := &Scale{Replicas: int64(*job.Spec.Parallelism), Current: int64(job.Status.Active)}
		if job.Spec.Completions != nil {
			s.Replicas = min(s.Replicas, int64(*job.Spec.Completions)-int64(job.Status.Succeeded))
		}
		if job.Status.CompletionTime != nil || job.Spec.Suspend != nil && *job.Spec.Suspend {
			s.Replicas = 0
		}
		s.Selector = metav1.FormatLabelSelector(job.Spec.Selector)
		return s, nil
	}
	obj, scale := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	obj.SetAPIVersion(owner.APIVersion)
	obj.SetKind(owner.Kind)
	obj.SetNamespace(owner.Namespace)
	obj.SetName(owner.Name)
	scale.SetAPIVersion("autoscaling/v1")
	scale.SetKind("Scale")
	err := k.Client.SubResource("scale").Get(ctx, obj, scale)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil // no such kind, no such subresource, or gone
	case err != nil:
		return nil, err
	case scale.GetUID() != "" && scale.GetUID() != owner.UID:
		return nil, nil // another one of the same name
	}
	out := &Scale{}
	// What is absent is zero, or no selector.
	out.Replicas, _, err = unstructured.NestedInt64(scale.Object, "spec", "replicas")
	if err == nil {
		out.Current, _, err = unstructured.NestedInt64(scale.Object, "status", "replicas")
	}
	if err == nil {
		out.Selector, _, err = unstructured.NestedString(scale.Object, "status", "selector")
	}
	return out, err
}

// FromSeatLedger reads a ledger as the API has it. Claims that do not parse are left
// out: nobody but Stowage writes them.
func FromSeatLedger(sl *stowage.SeatLedger) (Owner, Object) {
	owner := Owner{Namespace: sl.Namespace, UID: types.UID(sl.Name)}
	for _, r := range sl.OwnerReferences {
		if r.UID == owner.UID {
			owner.APIVersion, owner.Kind, owner.Name = r.APIVersion, r.Kind, r.Name
		}
	}
	o := Object{Version: parseVersion(sl.ResourceVersion), Writer: sl.Writer, Claims: make([]Claim, 0, len(sl.Claims))}
	for _, text := range sl.Claims {
		if c, ok := parseClaim(text); ok {
			o.Claims = append(o.Claims, c)
		}
	}
	return owner, o
}

func toSeatLedger(owner Owner, o *Object) *stowage.SeatLedger {
	sl := &stowage.SeatLedger{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.Namespace, Name: string(owner.UID),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}},
		},
		Writer: o.Writer,
		Claims: make([]string, 0, len(o.Claims)),
	}
	if o.Version != 0 {
		sl.ResourceVersion = strconv.FormatUint(o.Version, 10)
	}
	for _, c := range o.Claims {
		sl.Claims = append(sl.Claims, formatClaim(c))
	}
	return sl
}

func formatClaim(c Claim) string {
	buf := make([]byte, 0, 64)
	buf = append(buf, c.Pool...)
	buf = append(buf, '/')
	buf = strconv.AppendInt(buf, c.Ordinal, 10)
	buf = append(buf, ' ')
	buf = append(buf, c.ID...)
	if c.Settled != 0 {
		buf = append(buf, ' ')
		buf = strconv.AppendUint(buf, c.Settled, 10)
	}
	return string(buf)
}

func parseClaim(text string) (Claim, bool) {
	seat, rest, ok := strings.Cut(text, " ")
	if !ok {
		return Claim{}, false
	}
	pool, ordinal, ok := strings.Cut(seat, "/")
	if !ok {
		return Claim{}, false
	}
	id, settled, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(ordinal, 10, 64)
	if err != nil || n < 1 || id == "" {
		return Claim{}, false
	}
	c := Claim{Seat: Seat{Pool: pool, Ordinal: n}, ID: id}
	if settled != "" {
		c.Settled = parseVersion(settled)
	}
	return c, true
}

// keyName is the entry of the Secret that holds the key.
const keyName = "key"

// SharedKey returns the key that all replicas share, from a Secret, and makes it where
// there is none.
func SharedKey(ctx context.Context, c client.Client, secret client.ObjectKey) (Key, error) {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name},
		Data:       map[string][]byte{keyName: NewKey()},
	}
	switch err := c.Create(ctx, s); {
	case err == nil:
		return s.Data[keyName], nil
	case !apierrors.IsAlreadyExists(err):
		return nil, fmt.Errorf("make Secret %s: %w", secret, err)
	}
	if err := c.Get(ctx, secret, s); err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", secret, err)
	}
	if len(s.Data[keyName]) < KeySize {
		return nil, fmt.Errorf("secret %s has no key of %d bytes under %q; delete it, and a new one is made (pods that have a seat are adopted again)", secret, KeySize, keyName)
	}
	return s.Data[keyName], nil
}

// ErrKeyChanged means that the Secret holds another key than the one in use.
var ErrKeyChanged = errors.New("the key in the Secret is not the one in use; restart Stowage")

// KeepKey puts the key back where its Secret was deleted.
func KeepKey(ctx context.Context, c client.Client, secret client.ObjectKey, key Key) error {
	var s corev1.Secret
	err := c.Get(ctx, secret, &s)
	switch {
	case apierrors.IsNotFound(err):
		s = corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}, Data: map[string][]byte{keyName: key}}
		return c.Create(ctx, &s)
	case err != nil:
		return err
	case subtle.ConstantTimeCompare(s.Data[keyName], key) != 1:
		return ErrKeyChanged
	}
	return nil
}
