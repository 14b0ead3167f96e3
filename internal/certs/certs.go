// Package certs keeps the webhook's serving certificate: it makes and renews it,
// tells the API server which authority to trust, and hands it to the TLS server.
//
// The certificate lives in one Secret that all replicas share and watch. Each
// renewal makes a new authority too, whose key is thrown away:
//
//	Secret: new certificate,     ──▶ registration: caBundle  ──▶ each replica serves
//	        new and old authority    trusts new and old          the new certificate
//
// It promises that
//   - at every moment, every certificate that a replica serves is signed by an
//     authority in the registration's caBundle (the steps above never swap);
//   - replicas that start or renew at once agree: a write that loses is dropped;
//   - a deleted Secret or an overwritten caBundle is put back.
//
// The key pairs are made and checked by open-policy-agent/cert-controller. Its
// own controller is not used, because it replaces the trusted authority and the
// certificate at once, and replicas that still serve the old certificate are then
// refused (open-policy-agent/cert-controller#50).
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// validity is how long a certificate and its authority are good for.
	validity = 365 * 24 * time.Hour
	// renewBefore is how long before the end a certificate is replaced. Until
	// then a renewal that fails is tried again.
	renewBefore = 90 * 24 * time.Hour
	// checkEvery is how often validity is looked at when nothing changes.
	checkEvery = 12 * time.Hour
	// propagation is how long every API server has to learn of a caBundle before
	// a certificate that depends on it is served.
	propagation = 10 * time.Second

	caKey = "ca.crt" // authorities to trust, the current one first
)

// Options say where certificates are kept and whom they are for.
type Options struct {
	// Secret holds the certificate. It is made if it is missing.
	Secret types.NamespacedName
	// Registration is the name of the MutatingWebhookConfiguration.
	Registration string
	// DNSNames are the names under which the API server calls us.
	DNSNames []string
	// Clock tells how long the registration has trusted an authority.
	Clock clock.PassiveClock
}

// Keeper keeps the serving certificate. Every replica runs one.
type Keeper struct {
	Options
	client client.Client

	serving atomic.Pointer[servingCert]
	// trustedSince is when this replica first saw the registration trust the
	// authority in trusted. Only Reconcile, which runs once at a time, uses it.
	trusted      []byte
	trustedSince time.Time
}

// servingCert is the certificate in use.
type servingCert struct {
	pair     *tls.Certificate
	chain    []byte // PEM, to tell whether the Secret holds another one
	ca       []byte // PEM of the authority that signed it
	notAfter time.Time
}

// +kubebuilder:rbac:groups="",resources=secrets,verbs=create,namespace=stowage-system
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=stowage-webhook-cert,verbs=get;list;watch;update,namespace=stowage-system
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=stowage,verbs=get;list;watch;update

// CacheByObject limits the manager's cache to the two objects that a Keeper
// reads.
func (o Options) CacheByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {Namespaces: map[string]cache.Config{
			o.Secret.Namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, o.Secret.Name)},
		}},
		&admissionregistrationv1.MutatingWebhookConfiguration{}: {
			Field: fields.OneTermEqualSelector(metav1.ObjectNameField, o.Registration),
		},
	}
}

// Add makes a Keeper and adds it to the manager. It runs on every replica,
// leader or not.
func Add(mgr ctrl.Manager, o Options) (*Keeper, error) {
	k := &Keeper{Options: o, client: mgr.GetClient()}
	only := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, _ client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: o.Secret}}
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("certificates").
		Watches(&corev1.Secret{}, only).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, only).
		// Neither object may exist yet, and then no event would start us.
		WatchesRawSource(startNow(o.Secret)).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(k)
	if err != nil {
		return nil, fmt.Errorf("watch the serving certificate: %w", err)
	}
	return k, nil
}

// startNow asks for one reconciliation when the controller starts.
func startNow(key types.NamespacedName) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(reconcile.Request{NamespacedName: key})
		return nil
	})
}

// GetCertificate is for tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s := k.serving.Load()
	if s == nil {
		return nil, errors.New("the serving certificate is not loaded yet")
	}
	return s.pair, nil
}

// Ready is a readiness check: it fails until there is a certificate to serve.
func (k *Keeper) Ready(*http.Request) error {
	_, err := k.GetCertificate(nil)
	return err
}

// Reconcile takes the next of the steps that the package comment draws.
func (k *Keeper) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	// 1. Make sure that the Secret holds a certificate that is good for long.
	var secret corev1.Secret
	err := k.client.Get(ctx, k.Secret, &secret)
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("read Secret %s: %w", k.Secret, err)
	}
	if why := k.invalid(secret.Data, renewBefore); why != nil {
		log.FromContext(ctx).Info("making a serving certificate", "secret", k.Secret.String(), "reason", why.Error())
		return reconcile.Result{}, k.renew(ctx, &secret, exists)
	}

	// 2. Make sure that the API server trusts it.
	trusts, err := k.publish(ctx, secret.Data[caKey])
	if err != nil {
		return reconcile.Result{}, err
	}

	// 3. Serve it, once every API server can know that.
	wait, err := k.serve(ctx, secret.Data, trusts)
	if err != nil {
		return reconcile.Result{}, err
	}
	if wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return reconcile.Result{RequeueAfter: checkEvery}, nil
}

// invalid says what is wrong with the certificate in a Secret, if anything, or
// what will be within the given time.
func (k *Keeper) invalid(data map[string][]byte, within time.Duration) error {
	for _, name := range k.DNSNames {
		if _, err := rotator.ValidCert(data[caKey], data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey], name,
			&serverAuth, k.Clock.Now().Add(within)); err != nil {
			return fmt.Errorf("for %s: %w", name, err)
		}
	}
	return nil
}

var serverAuth = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

// renew writes a new certificate, signed by a new authority. The authority of the
// one before stays trusted.
func (k *Keeper) renew(ctx context.Context, secret *corev1.Secret, exists bool) error {
	maker := rotator.CertRotator{
		CAName: "stowage-ca", CAOrganization: "stowage",
		DNSName: k.DNSNames[0], ExtraDNSNames: k.DNSNames[1:], ExtKeyUsages: &serverAuth,
	}
	begin := k.Clock.Now().Add(-time.Hour) // for clocks that are behind ours
	ca, err := maker.CreateCACert(begin, begin.Add(validity))
	if err != nil {
		return fmt.Errorf("make an authority: %w", err)
	}
	cert, key, err := maker.CreateCertPEM(ca, begin, begin.Add(validity))
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	previous := firstPEM(secret.Data[caKey])
	if s := k.serving.Load(); previous == nil && s != nil {
		previous = s.ca // the Secret was lost, but we still serve from it
	}

	secret = secret.DeepCopy()
	secret.Namespace, secret.Name = k.Secret.Namespace, k.Secret.Name
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.TLSCertKey] = cert
	secret.Data[corev1.TLSPrivateKeyKey] = key
	secret.Data[caKey] = append(bytes.Clone(ca.CertPEM), previous...)
	if exists {
		err = k.client.Update(ctx, secret)
	} else {
		secret.Type = corev1.SecretTypeTLS
		err = k.client.Create(ctx, secret)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil // another replica was first; its write is on its way to us
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", k.Secret, err)
	}
	return nil
}

// publish makes the registration trust the bundle, and reports whether there is a
// registration.
func (k *Keeper) publish(ctx context.Context, bundle []byte) (bool, error) {
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	if err := k.client.Get(ctx, client.ObjectKey{Name: k.Registration}, &reg); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil // not installed yet: its creation is an event
		}
		return false, fmt.Errorf("read MutatingWebhookConfiguration %q: %w", k.Registration, err)
	}
	changed := false
	for i := range reg.Webhooks {
		if !bytes.Equal(reg.Webhooks[i].ClientConfig.CABundle, bundle) {
			if !changed {
				reg = *reg.DeepCopy()
				changed = true
			}
			reg.Webhooks[i].ClientConfig.CABundle = bundle
		}
	}
	if !changed {
		return true, nil
	}
	if err := k.client.Update(ctx, &reg); err != nil {
		return false, fmt.Errorf("update the caBundle of MutatingWebhookConfiguration %q: %w", k.Registration, err)
	}
	return true, nil
}

// serve switches to the Secret's certificate, or says how long to wait with that.
func (k *Keeper) serve(ctx context.Context, data map[string][]byte, registered bool) (time.Duration, error) {
	now := k.Clock.Now()
	if ca := firstPEM(data[caKey]); !bytes.Equal(ca, k.trusted) {
		k.trusted, k.trustedSince = ca, now
	}
	current := k.serving.Load()
	if current != nil && bytes.Equal(current.chain, data[corev1.TLSCertKey]) {
		return 0, nil
	}
	// The old certificate is as good as the new one for as long as it is valid.
	if current != nil && registered && now.Before(current.notAfter) {
		if left := k.trustedSince.Add(propagation).Sub(now); left > 0 {
			return left, nil
		}
	}
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return 0, fmt.Errorf("load the certificate of Secret %s: %w", k.Secret, err)
	}
	k.serving.Store(&servingCert{pair: &pair, chain: data[corev1.TLSCertKey], ca: k.trusted, notAfter: pair.Leaf.NotAfter})
	log.FromContext(ctx).Info("serving certificate loaded", "notAfter", pair.Leaf.NotAfter, "dnsNames", pair.Leaf.DNSNames)
	return 0, nil
}

// firstPEM returns the first block of a PEM bundle, or nil.
func firstPEM(bundle []byte) []byte {
	block, _ := pem.Decode(bundle)
	if block == nil {
		return nil
	}
	return pem.EncodeToMemory(block)
}
