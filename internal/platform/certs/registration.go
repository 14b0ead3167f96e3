package certs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// errContested means that another writer keeps changing a caBundle, and that it is too early to put
// it back again.
type errContested struct{ wait time.Duration }

func (e errContested) Error() string {
	return "another writer keeps changing the caBundle; it is put back in " + e.wait.String()
}

// errUntrusted means that a registration does not trust the authority of the Secret's certificate yet.
var errUntrusted = errors.New("the registration does not trust the certificate yet")

// publish makes a registration trust the authorities of the Secret, in addition to those
// that it trusts already. It reports whether there is such a registration, and whether it
// had to be changed. A Keeper that only reads returns errUntrusted instead of changing it.
func (k *Keeper) publish(ctx context.Context, reg client.Object, bundle []byte) (registered, changed bool, err error) {
	if err := k.client.Get(ctx, client.ObjectKey{Name: k.Registration}, reg); err != nil {
		if apierrors.IsNotFound(err) {
			return false, false, nil // not installed yet: its creation is an event
		}
		return false, false, fmt.Errorf("read %T %q: %w", reg, k.Registration, err)
	}
	if k.ReadOnly {
		current := parse(bundle)
		for _, c := range clientConfigs(reg) {
			if len(current) > 0 && !slices.ContainsFunc(parse(c.CABundle), current[0].Equal) {
				return true, false, errUntrusted
			}
		}
		return true, false, nil
	}
	reg = reg.DeepCopyObject().(client.Object)
	for _, c := range clientConfigs(reg) {
		if want := k.merge(bundle, c.CABundle); !bytes.Equal(c.CABundle, want) {
			c.CABundle, changed = want, true
		}
	}
	if !changed {
		return true, false, nil
	}
	kind := fmt.Sprintf("%T", reg)
	if wait := k.writes.Wait(kind, k.Clock.Now()); wait > 0 {
		return true, false, errContested{wait}
	}
	if err := k.client.Update(ctx, reg); err != nil {
		return false, false, fmt.Errorf("update the caBundle of %T %q: %w", reg, k.Registration, err)
	}
	if k.writes.Written(kind, k.Clock.Now()) {
		log.FromContext(ctx).Error(nil, "another writer keeps changing the caBundle; it is put back less and less often", "kind", kind, "name", k.Registration)
	}
	return true, true, nil
}

// clientConfigs returns where a registration's webhooks are called.
func clientConfigs(registration client.Object) (out []*admissionregistrationv1.WebhookClientConfig) {
	switch r := registration.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range r.Webhooks {
			out = append(out, &r.Webhooks[i].ClientConfig)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range r.Webhooks {
			out = append(out, &r.Webhooks[i].ClientConfig)
		}
	}
	return out
}
