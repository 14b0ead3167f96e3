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
//   - the registration trusts what each replica serves: an authority is added before
//     its certificate is served, and removed when it has expired or when there are
//     maxAuthorities younger ones;
//   - replicas that start or renew at once agree: a write that loses is dropped, and
//     one that knows less than another takes nothing away;
//   - a deleted Secret or an overwritten caBundle is put back.
//
// Authorities are made, and certificates checked, by open-policy-agent/cert-controller.
// Its own controller is not used, because it replaces the trusted authority and the
// certificate at once, and replicas that still serve the old certificate are then
// refused (open-policy-agent/cert-controller#50).
package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
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

	"github.com/stowage-dev/stowage/internal/metrics"
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
	// backdate is how far before its making a certificate is valid, for clocks that
	// are behind ours.
	backdate = time.Hour
	// maxAuthorities bounds a bundle. Two are there after a renewal; more only
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
	// Clock tells how long the registration has trusted an authority.
	Clock clock.PassiveClock
}

// Keeper keeps the serving certificate. Every replica runs one.
type Keeper struct {
	Options
	client client.Client

	serving atomic.Pointer[servingCert]
	// trustedSince is since when this replica knows that the registration trusts
	// the authority in trusted. Only Reconcile, which runs once at a time, uses it.
	trusted      []byte
	trustedSince time.Time
	trustedByUs  bool // it was this replica that made it trusted
}

// servingCert is the certificate in use.
type servingCert struct {
	pair     *tls.Certificate
	chain    []byte // PEM, to tell whether the Secret holds another one
	key      []byte // PEM
	ca       []byte // PEM of the authority that signed it
	notAfter time.Time
}

// +kubebuilder:rbac:groups="",resources=secrets,verbs=create,namespace=stowage-system
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=stowage-webhook-cert,verbs=list;watch;update,namespace=stowage-system
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,resourceNames=stowage,verbs=list;watch;update

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
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, only).
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
	if why := k.invalid(secret.Data, renewBefore); why != nil {
		log.FromContext(ctx).Info("writing a serving certificate", "secret", k.Secret.String(), "reason", why.Error())
		if kept := k.kept(); !exists && kept != nil {
			return reconcile.Result{}, k.write(ctx, &corev1.Secret{Data: kept}, exists)
		}
		return reconcile.Result{}, k.renew(ctx, &secret, exists)
	}

	// 2. Make sure that the API server trusts it, and what we serve meanwhile.
	registered, changed, err := k.publish(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{}, secret.Data[caKey])
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: retryConflict}, nil // another replica was first
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	// This one only warns: nothing waits for it.
	_, _, later := k.publish(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{}, secret.Data[caKey])

	// 3. Serve it, once every API server can know that.
	wait, err := k.serve(ctx, secret.Data, registered, changed)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case wait > 0:
		return reconcile.Result{RequeueAfter: wait}, nil
	case apierrors.IsConflict(later):
		return reconcile.Result{RequeueAfter: retryConflict}, nil
	case later != nil:
		return reconcile.Result{}, later
	}
	return reconcile.Result{RequeueAfter: checkEvery}, nil
}

// retryConflict is how long to wait for the write that was before ours.
const retryConflict = 100 * time.Millisecond

// invalid says what is wrong with the certificate in a Secret, if anything, or
// what will be within the given time.
func (k *Keeper) invalid(data map[string][]byte, within time.Duration) error {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return err
	}
	ca := issuer(pair.Leaf, data[caKey])
	for _, name := range k.DNSNames {
		if _, err := rotator.ValidCert(ca, data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey], name,
			&serverAuth, k.Clock.Now().Add(within)); err != nil {
			return fmt.Errorf("for %s: %w", name, err)
		}
	}
	return nil
}

var serverAuth = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

// renew writes a new certificate, signed by a new authority. The authorities before
// it stay trusted, and the names that the certificate before it had stay in it:
// replicas of two revisions with different names would otherwise renew in turns.
func (k *Keeper) renew(ctx context.Context, secret *corev1.Secret, exists bool) error {
	names := slices.Clone(k.DNSNames)
	if old, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err == nil {
		for _, name := range old.Leaf.DNSNames {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	maker := rotator.CertRotator{CAName: "stowage-ca", CAOrganization: "stowage", DNSName: names[0]}
	begin := k.Clock.Now().Add(-backdate)
	ca, err := maker.CreateCACert(begin, begin.Add(validity))
	if err != nil {
		return fmt.Errorf("make an authority: %w", err)
	}
	cert, key, err := newCertificate(ca, names, begin, begin.Add(validity))
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}

	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.TLSCertKey] = cert
	secret.Data[corev1.TLSPrivateKeyKey] = key
	secret.Data[caKey] = k.merge(ca.CertPEM, secret.Data[caKey])
	return k.write(ctx, secret, exists)
}

// newCertificate makes a serving certificate. Its key is an ECDSA one: over HTTP/1.1 a
// burst of pods opens hundreds of connections, and the RSA key that the library would
// make costs ten times as much at each.
func newCertificate(ca *rotator.KeyPairArtifacts, names []string, begin, end time.Time) (cert, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: begin, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: serverAuth, BasicConstraintsValid: true,
	}, ca.Cert, pair.Public(), ca.Key)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		return nil, nil, err
	}
	return encode(der), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), nil
}

// kept returns the contents of a Secret for what we serve, if that is good for long, so
// that a Secret that is lost costs nothing. Otherwise it returns nil.
func (k *Keeper) kept() map[string][]byte {
	s := k.serving.Load()
	if s == nil {
		return nil
	}
	data := map[string][]byte{corev1.TLSCertKey: s.chain, corev1.TLSPrivateKeyKey: s.key, caKey: s.ca}
	if k.invalid(data, renewBefore) != nil {
		return nil
	}
	return data
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

// merge joins bundles of authorities, with that of the certificate that we serve: the
// youngest first, without those that have expired and what is no certificate.
func (k *Keeper) merge(bundles ...[]byte) []byte {
	if s := k.serving.Load(); s != nil {
		bundles = append(bundles, s.ca)
	}
	var all []*x509.Certificate
	for _, rest := range bundles {
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil || k.Clock.Now().After(c.NotAfter) || slices.ContainsFunc(all, c.Equal) {
				continue
			}
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *x509.Certificate) int {
		return cmp.Or(b.NotBefore.Compare(a.NotBefore), bytes.Compare(a.Raw, b.Raw))
	})
	var out []byte
	for _, c := range all[:min(len(all), maxAuthorities)] {
		out = append(out, encode(c.Raw)...)
	}
	return out
}

// publish makes a registration trust the authorities of the Secret, in addition to those
// that it trusts already. It reports whether there is such a registration, and whether it
// had to be changed.
func (k *Keeper) publish(ctx context.Context, reg client.Object, bundle []byte) (registered, changed bool, err error) {
	if err := k.client.Get(ctx, client.ObjectKey{Name: k.Registration}, reg); err != nil {
		if apierrors.IsNotFound(err) {
			return false, false, nil // not installed yet: its creation is an event
		}
		return false, false, fmt.Errorf("read %T %q: %w", reg, k.Registration, err)
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
	if err := k.client.Update(ctx, reg); err != nil {
		return false, false, fmt.Errorf("update the caBundle of %T %q: %w", reg, k.Registration, err)
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
		since := k.trustedSince
		switch {
		case current != nil && !now.Before(current.notAfter), current == nil && bytes.Equal(ca, data[caKey]):
			// There is nothing better to serve, by anybody.
			since = time.Time{}
		case current == nil && !k.trustedByUs:
			// We are new, in the middle of a renewal perhaps: the certificate
			// tells how long ago that was, if its maker's clock is right.
			if made := pair.Leaf.NotBefore.Add(backdate); made.Before(since) {
				since = made
			}
		}
		if left := since.Add(propagation).Sub(now); left > 0 {
			return left, nil
		}
	}
	k.serving.Store(&servingCert{pair: &pair, chain: data[corev1.TLSCertKey], key: data[corev1.TLSPrivateKeyKey], ca: ca, notAfter: pair.Leaf.NotAfter})
	log.FromContext(ctx).Info("serving certificate loaded", "notAfter", pair.Leaf.NotAfter, "dnsNames", pair.Leaf.DNSNames)
	return 0, nil
}

// issuer returns the authority in a bundle that signed a certificate, or nil.
func issuer(leaf *x509.Certificate, bundle []byte) []byte {
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return nil
		}
		if ca, err := x509.ParseCertificate(block.Bytes); err == nil && leaf.CheckSignatureFrom(ca) == nil {
			return encode(block.Bytes)
		}
	}
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
