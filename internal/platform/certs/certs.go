// Package certs keeps the webhook's serving certificate. It makes and renews the certificate, gives the API server
// the authority to trust, and hands the certificate to the TLS server.
//
// The certificate lives in one Secret that all replicas share and watch. Each
// renewal makes a new authority too, whose key is thrown away:
//
//	Secret: new certificate,     ──▶ registration: caBundle  ──▶ each replica serves
//	        new and old authority    trusts new and old          the new certificate
//
// It promises that
//   - the registration trusts what each replica serves: an authority is added before
//     its certificate is served, and removed when it has expired or when there are
//     maxAuthorities younger ones;
//   - replicas that start or renew at once agree: a write that loses is dropped, and
//     one that knows less than another takes nothing away;
//   - a deleted Secret or an overwritten caBundle is put back, a caBundle that another writer
//     keeps changing less and less often;
//   - the API server's clock decides what is valid, and not a replica's (package apitime);
//   - a certificate that is not valid never replaces the one in use;
//   - replicas that renew in turns do so less and less often.
//
// The controller of open-policy-agent/cert-controller is not used, because it replaces the trusted authority and the
// certificate at once. Replicas that still serve the old certificate are then refused
// (open-policy-agent/cert-controller#50).
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

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

	"github.com/stowage-dev/stowage/internal/platform/contest"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
)

const (
	// validity is how long a certificate and its authority are good for, from their making.
	validity = 365 * 24 * time.Hour
	// renewBefore is how long before the end a certificate is replaced. Until
	// then a renewal that fails is tried again.
	renewBefore = 90 * 24 * time.Hour
	// checkEvery is how often validity is looked at when nothing changes.
	checkEvery = 12 * time.Hour
	// propagation is how long every API server has to learn of a caBundle before
	// a certificate that depends on it is served.
	propagation = 10 * time.Second
	// backdate is how far before its making a certificate is valid, for API servers
	// whose clocks differ. A wrong time zone makes up to 26 hours.
	backdate = 48 * time.Hour
	// maxAuthorities bounds a caBundle. Two are there after a renewal; more only
	// after Secrets were lost.
	maxAuthorities = 5

	caKey = "ca.crt" // authorities to trust, the current one first
)

// Options say where certificates are kept and whom they are for.
type Options struct {
	// Secret holds the certificate. It is made if it is missing.
	Secret types.NamespacedName
	// Registration is the name of the MutatingWebhookConfiguration and of the
	// ValidatingWebhookConfiguration.
	Registration string
	// DNSNames are the names under which the API server calls us.
	DNSNames []string
	// ReadOnly leaves the Secret and the registrations to the Keepers of other processes. Then a certificate is served once the
	// registration trusts it.
	ReadOnly bool
	// Clock tells how long the registration has trusted an authority. It never jumps.
	Clock clock.PassiveClock
	// Time is the API server's, which judges the certificate that is served.
	Time clock.PassiveClock
}

// Keeper keeps the serving certificate, or serves what others keep. Every replica runs one.
type Keeper struct {
	Options
	client client.Client
	// writes notices another writer of the registrations' caBundle, or of the Secret.
	writes contest.Contest[string]

	serving *Serving
	// trustedSince is since when this replica knows that the registration trusts
	// the authority in trusted. Only Reconcile, which runs once at a time, uses it.
	trusted      []byte
	trustedSince time.Time
	trustedByUs  bool // it was this replica that made it trusted
}

// Serving is the certificate in use, which there may not be yet. It has no value before a Keeper has found one.
type Serving struct{ atomic.Pointer[servingCert] }

// servingCert is the certificate in use.
type servingCert struct {
	pair  *tls.Certificate
	chain []byte // PEM, to tell whether the Secret holds another one
	key   []byte // PEM
	ca    []byte // PEM of the authority that signed it
}

// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=stowage-webhook-cert,verbs=list;watch,namespace=stowage-system,roleName=stowage-certificate
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,resourceNames=stowage,verbs=list;watch,roleName=stowage-certificate
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create,namespace=stowage-system,roleName=stowage-certificate-controllers
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=stowage-webhook-cert,verbs=update,namespace=stowage-system,roleName=stowage-certificate-controllers
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,resourceNames=stowage,verbs=update,roleName=stowage-certificate-controllers

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
		&admissionregistrationv1.ValidatingWebhookConfiguration{}: {
			Field: fields.OneTermEqualSelector(metav1.ObjectNameField, o.Registration),
		},
	}
}

// Add adds a Keeper to the manager. It runs on every replica, leader or not.
func Add(mgr ctrl.Manager, o Options, serving *Serving) error {
	k := &Keeper{Options: o, client: mgr.GetClient(), serving: serving}
	only := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, _ client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: o.Secret}}
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("certificates").
		Watches(&corev1.Secret{}, only).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, only).
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, only).
		// Neither object may exist yet, and then no event would start us.
		WatchesRawSource(startNow(o.Secret)).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(k)
	if err != nil {
		return fmt.Errorf("watch the serving certificate: %w", err)
	}
	return nil
}

// startNow asks for one reconciliation when the controller starts.
func startNow(key types.NamespacedName) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(reconcile.Request{NamespacedName: key})
		return nil
	})
}

// ErrNotLoaded is why a TLS handshake fails in the first moments of the process.
var ErrNotLoaded = errors.New("the serving certificate is not loaded yet")

// GetCertificate is for tls.Config.
func (s *Serving) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := s.Load()
	if c == nil {
		return nil, ErrNotLoaded
	}
	return c.pair, nil
}

// Ready is a readiness check: it fails until there is a certificate to serve.
func (s *Serving) Ready(*http.Request) error {
	_, err := s.GetCertificate(nil)
	return err
}

// AddExpiry registers a metric that tells when the certificate in use ends, and 0 while there
// is none.
func AddExpiry(set *metrics.Set, get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) {
	set.GaugeFunc("stowage_certificate_expiration_timestamp_seconds", "When the serving certificate ends, in seconds since 1970. 0 if there is none yet.", func() float64 {
		if c, err := get(nil); err == nil && c.Leaf != nil {
			return float64(c.Leaf.NotAfter.Unix())
		}
		return 0
	})
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
	why := k.invalid(secret.Data, renewBefore)
	if why == nil {
		return k.use(ctx, secret.Data)
	}
	wait, err := k.replace(ctx, &secret, exists, why)
	if err == nil && wait == 0 {
		return reconcile.Result{}, nil // the write is an event
	}

	// It is not replaced yet. Until then the Secret's certificate is used if it is valid, or else the last one.
	data := secret.Data
	if k.invalid(data, 0) != nil {
		data = k.inUse()
	}
	result := reconcile.Result{RequeueAfter: wait}
	if data != nil {
		used, failed := k.use(ctx, data)
		result.RequeueAfter, err = min(wait, used.RequeueAfter), errors.Join(err, failed)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return result, nil
}

// use publishes what a Secret holds, or would hold, and serves it in time.
func (k *Keeper) use(ctx context.Context, data map[string][]byte) (reconcile.Result, error) {
	// 2. Make sure that the API server trusts it, and what we serve meanwhile.
	registered, changed, err := k.publish(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{}, data[caKey])
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: retryConflict}, nil // another replica was first
	}
	if errors.Is(err, errUntrusted) {
		log.FromContext(ctx).Info("waiting until the controllers have the registration trust the certificate", "secret", k.Secret.String())
		return reconcile.Result{RequeueAfter: checkEvery}, nil // its change is an event
	}
	contested := errContested{}
	if errors.As(err, &contested) {
		// What is served is the same, whichever replica wins.
		wait, err := k.serve(ctx, data, registered, changed)
		if wait == 0 || wait > contested.wait {
			wait = contested.wait
		}
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	// This one only warns: nothing waits for it.
	_, _, later := k.publish(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{}, data[caKey])

	// 3. Serve it, once every API server can know that.
	wait, err := k.serve(ctx, data, registered, changed)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case wait > 0:
		return reconcile.Result{RequeueAfter: wait}, nil
	case errors.Is(later, errUntrusted):
		return reconcile.Result{RequeueAfter: checkEvery}, nil // its change is an event
	case apierrors.IsConflict(later):
		return reconcile.Result{RequeueAfter: retryConflict}, nil
	case errors.As(later, &contested):
		return reconcile.Result{RequeueAfter: contested.wait}, nil
	case later != nil:
		return reconcile.Result{}, later
	}
	return reconcile.Result{RequeueAfter: checkEvery}, nil
}

// retryConflict is how long to wait for the write that was before ours.
const retryConflict = 100 * time.Millisecond

// renewals is the Secret in writes.
const renewals = "Secret"

// replace writes what the Secret should hold: what we serve, if only the Secret is lost, or else a new certificate.
// After some renewals in a row it returns how long to wait before the next one.
func (k *Keeper) replace(ctx context.Context, secret *corev1.Secret, exists bool, why error) (time.Duration, error) {
	logger := log.FromContext(ctx).WithValues("secret", k.Secret.String(), "reason", why.Error())
	if k.ReadOnly {
		logger.Info("waiting for the controllers to write a serving certificate")
		return checkEvery, nil // the write is an event
	}
	if data := k.inUse(); !exists && data != nil && k.invalid(data, renewBefore) == nil {
		logger.Info("writing the serving certificate back")
		return 0, k.write(ctx, &corev1.Secret{Data: data}, exists)
	}
	if wait := k.writes.Wait(renewals, k.Clock.Now()); wait > 0 {
		return wait, nil
	}
	logger.Info("writing a serving certificate")
	if err := k.renew(ctx, secret, exists); err != nil {
		return 0, err
	}
	if k.writes.Written(renewals, k.Clock.Now()) {
		logger.Error(nil, "another writer keeps replacing the serving certificate; it is renewed less and less often")
	}
	return 0, nil
}

// inUse returns the contents of a Secret for what we serve, or nil.
func (k *Keeper) inUse() map[string][]byte {
	s := k.serving.Load()
	if s == nil {
		return nil
	}
	return map[string][]byte{corev1.TLSCertKey: s.chain, corev1.TLSPrivateKeyKey: s.key, caKey: s.ca}
}

// write creates or updates the Secret. A write that comes second is dropped.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret, exists bool) (err error) {
	secret.Namespace, secret.Name = k.Secret.Namespace, k.Secret.Name
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

// serve switches to the Secret's certificate, or says how long to wait with that.
func (k *Keeper) serve(ctx context.Context, data map[string][]byte, registered, changed bool) (time.Duration, error) {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return 0, fmt.Errorf("load the certificate of Secret %s: %w", k.Secret, err)
	}
	now := k.Clock.Now()
	ca := issuer(pair.Leaf, data[caKey])
	if changed || !bytes.Equal(ca, k.trusted) {
		k.trusted, k.trustedSince, k.trustedByUs = ca, now, changed
	}
	current := k.serving.Load()
	if current != nil && bytes.Equal(current.chain, data[corev1.TLSCertKey]) {
		return 0, nil
	}
	if registered {
		known := now.Sub(k.trustedSince)
		switch {
		case current != nil && !valid(current.pair.Leaf, k.Time.Now()), current == nil && bytes.Equal(ca, data[caKey]):
			// There is nothing better to serve, by anybody.
			known = propagation
		case current == nil && !k.trustedByUs:
			// We are new, in the middle of a renewal perhaps: the certificate
			// tells how long ago that was.
			known = max(known, k.Time.Since(pair.Leaf.NotBefore.Add(backdate)))
		}
		if left := propagation - known; left > 0 {
			return left, nil
		}
	}
	k.serving.Store(&servingCert{pair: &pair, chain: data[corev1.TLSCertKey], key: data[corev1.TLSPrivateKeyKey], ca: ca})
	log.FromContext(ctx).Info("serving certificate loaded", "notAfter", pair.Leaf.NotAfter, "dnsNames", pair.Leaf.DNSNames)
	return 0, nil
}
