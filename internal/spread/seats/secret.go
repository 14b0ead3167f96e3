package seats

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/spread/ledger"
)

// keyName is the entry of the Secret that holds the key.
const keyName = "key"

// keyPoll is how often a replica that may not make the key looks for it.
const keyPoll = time.Second

// AwaitKey returns the key that all replicas share, from a Secret, once another process has made it. It returns an error if the
// Secret has no key, or ctx ends.
func AwaitKey(ctx context.Context, c client.Client, secret client.ObjectKey, log logr.Logger) (key ledger.Key, err error) {
	waits := false
	err = wait.PollUntilContextCancel(ctx, keyPoll, true, func(ctx context.Context) (bool, error) {
		key, err = readKey(ctx, c, secret)
		if err == nil || errors.Is(err, errNoKey) {
			return true, err
		}
		if !waits {
			log.Info("waiting for the key that signs seats, which the controllers make", "namespace", secret.Namespace, "kind", "Secret", "name", secret.Name, "reason", err.Error())
		}
		waits = true
		return false, nil
	})
	return key, err
}

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
	return readKey(ctx, c, secret)
}

func readKey(ctx context.Context, c client.Client, secret client.ObjectKey) (ledger.Key, error) {
	s := &corev1.Secret{}
	if err := c.Get(ctx, secret, s); err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", secret, err)
	}
	if len(s.Data[keyName]) < ledger.KeySize {
		return nil, fmt.Errorf("secret %s: %w of %d bytes under %q; delete it, and Stowage makes a new one and adopts the pods that have a seat", secret, errNoKey, ledger.KeySize, keyName)
	}
	return s.Data[keyName], nil
}

// errNoKey means that the Secret is there and has no key.
var errNoKey = errors.New("there is no key")

// errKeyChanged means that the Secret holds another key than the one in use.
var errKeyChanged = errors.New("the key in the Secret is not the one in use; restart Stowage")

// WatchKey logs, until ctx ends, that the Secret holds another key than the one in use. It is for replicas without the leader's
// [Collector].
func WatchKey(ctx context.Context, c client.Client, secret client.ObjectKey, key ledger.Key, clock clock.WithTicker, log logr.Logger) error {
	return eachSweep(ctx, clock, func() {
		if now, err := readKey(ctx, c, secret); err == nil && subtle.ConstantTimeCompare(now, key) != 1 {
			log.Error(errKeyChanged, "the key that signs seats is not safe", "namespace", secret.Namespace, "kind", "Secret", "name", secret.Name)
		}
	})
}

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
