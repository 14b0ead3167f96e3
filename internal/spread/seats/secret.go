package seats

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// keyName is the entry of the Secret that holds the key.
const keyName = "key"

// SharedKey returns the key that all replicas share, from a Secret, and makes it where
// there is none.
func SharedKey(ctx context.Context, c client.Client, secret client.ObjectKey) (ledger.Key, error) {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name},
		Data:       map[string][]byte{keyName: ledger.NewKey()},
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
	if len(s.Data[keyName]) < ledger.KeySize {
		return nil, fmt.Errorf("secret %s has no key of %d bytes under %q; delete it, and Stowage makes a new one and adopts the pods that have a seat", secret, ledger.KeySize, keyName)
	}
	return s.Data[keyName], nil
}

// errKeyChanged means that the Secret holds another key than the one in use.
var errKeyChanged = errors.New("the key in the Secret is not the one in use; restart Stowage")

// keepKey puts the key back where its Secret was deleted. It is no error that the Secret's namespace is being deleted,
// or that another replica was faster.
func keepKey(ctx context.Context, c client.Client, secret client.ObjectKey, key ledger.Key) error {
	var s corev1.Secret
	err := c.Get(ctx, secret, &s)
	switch {
	case apierrors.IsNotFound(err):
		s = corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}, Data: map[string][]byte{keyName: key}}
		if err := c.Create(ctx, &s); !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return err
		}
		return nil
	case err != nil:
		return err
	case subtle.ConstantTimeCompare(s.Data[keyName], key) != 1:
		return errKeyChanged
	}
	return nil
}
