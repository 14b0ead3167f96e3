package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// These tests are about time, which a real cluster cannot be given; the objects
// stand in a fake store that decides nothing. That replicas agree, and that the API
// server accepts what is served, is tested on a real one (test/serving).

var options = Options{
	Secret:       types.NamespacedName{Namespace: "stowage-system", Name: "stowage-webhook-cert"},
	Registration: "stowage",
	DNSNames:     []string{"stowage-webhook.stowage-system.svc", "localhost"},
}

// start is the time at which a test begins.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newKeeper(c client.Client, clock *clocktesting.FakePassiveClock) *Keeper {
	k := &Keeper{Options: options, client: c, serving: &Serving{}}
	k.Clock, k.Time = clock, clock
	return k
}

func registrationObject() *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "stowage"},
		Webhooks:   []admissionregistrationv1.MutatingWebhook{{Name: "a"}, {Name: "b"}},
	}
}

// settle reconciles until nothing is left to do now, and returns when to come back.
func settle(t *testing.T, k *Keeper) time.Duration {
	t.Helper()
	for range 5 {
		res, err := k.Reconcile(t.Context(), reconcile.Request{})
		if err != nil {
			t.Fatal(err)
		}
		if res.RequeueAfter > 0 {
			return res.RequeueAfter
		}
	}
	t.Fatal("the Keeper does not come to rest")
	return 0
}

// published returns a Keeper whose certificate every webhook trusts, its store and its clock.
func published(t *testing.T) (*Keeper, client.Client, *clocktesting.FakePassiveClock) {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
	k := newKeeper(c, clock)
	settle(t, k)
	clock.SetTime(clock.Now().Add(time.Minute))
	settle(t, k)
	return k, c, clock
}

// expectTrusted checks that every webhook trusts what the Keeper serves, and returns
// the served certificate.
func expectTrusted(t *testing.T, k *Keeper, now time.Time) []byte {
	t.Helper()
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	if err := k.client.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &reg); err != nil {
		t.Fatal(err)
	}
	pair, err := k.serving.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range reg.Webhooks {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(hook.ClientConfig.CABundle) {
			t.Fatalf("webhook %s trusts nobody: %q", hook.Name, hook.ClientConfig.CABundle)
		}
		for _, name := range options.DNSNames {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
				t.Fatalf("webhook %s does not trust what is served for %s: %v", hook.Name, name, err)
			}
		}
	}
	return pair.Leaf.Raw
}

func TestRenewalKeepsTheOldAuthorityTrusted(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
	a, b := newKeeper(c, clock), newKeeper(c, clock)

	// The first certificate is served at once: there is none to go on with.
	if a.serving.Ready(nil) == nil {
		t.Error("ready without a certificate")
	}
	settle(t, a)
	settle(t, b)
	if err := a.serving.Ready(nil); err != nil {
		t.Errorf("not ready: %v", err)
	}
	first := expectTrusted(t, a, clock.Now())
	if !bytes.Equal(first, expectTrusted(t, b, clock.Now())) {
		t.Error("two replicas serve two certificates")
	}

	// Long before the end, nothing happens.
	clock.SetTime(start.Add(validity - renewBefore - 48*time.Hour))
	if again := settle(t, a); again != checkEvery || !bytes.Equal(first, expectTrusted(t, a, clock.Now())) {
		t.Errorf("the certificate changed, or the next check is in %s", again)
	}

	// Closer to it, one replica renews; both go on with the old certificate until
	// every API server can know the new authority.
	clock.SetTime(start.Add(validity - renewBefore + time.Hour))
	if again := settle(t, a); again != propagation {
		t.Errorf("the switch is due in %s, want %s", again, propagation)
	}
	settle(t, b)
	for _, k := range []*Keeper{a, b} {
		if !bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
			t.Error("the new certificate is served at once")
		}
	}

	// Then both switch, at different times, and either certificate is trusted.
	clock.SetTime(clock.Now().Add(propagation))
	settle(t, a)
	second := expectTrusted(t, a, clock.Now())
	if bytes.Equal(first, second) {
		t.Fatal("the new certificate is not served")
	}
	expectTrusted(t, b, clock.Now())
	settle(t, b)
	if !bytes.Equal(second, expectTrusted(t, b, clock.Now())) {
		t.Error("two replicas serve two certificates")
	}

	// The next renewal drops the oldest authority.
	clock.SetTime(clock.Now().Add(validity - renewBefore + time.Hour))
	settle(t, a)
	var secret corev1.Secret
	if err := c.Get(t.Context(), options.Secret, &secret); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(secret.Data[caKey], []byte("-----BEGIN")); n != 2 {
		t.Errorf("%d authorities are trusted, want 2", n)
	}
}

func TestExpiredCertificateIsReplacedAtOnce(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
	k := newKeeper(c, clock)
	settle(t, k)
	first := expectTrusted(t, k, clock.Now())
	clock.SetTime(start.Add(2 * validity))
	settle(t, k)
	if bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
		t.Error("the expired certificate is still served")
	}
}

func TestNewNameMakesANewCertificate(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
	k := newKeeper(c, clock)
	settle(t, k)
	old := slices.Clone(k.DNSNames)
	k.DNSNames = append([]string{"new.example"}, k.DNSNames...)
	settle(t, k) // nobody is registered, so nobody must learn of it first
	pair, err := k.serving.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	// The old names stay: replicas that want them may still be there, and would
	// renew in turns with the new ones.
	for _, name := range append(old, "new.example") {
		if err := pair.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
}

// A replica whose view of the Secret is behind takes no authority away.
func TestStaleReplicaTakesNothingAway(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
	a, b := newKeeper(c, clock), newKeeper(c, clock)
	settle(t, a)
	settle(t, b)
	var stale, secret corev1.Secret
	if err := c.Get(t.Context(), options.Secret, &stale); err != nil {
		t.Fatal(err)
	}
	secret = *stale.DeepCopy()
	secret.Data[corev1.TLSCertKey] = []byte("broken")
	if err := c.Update(t.Context(), &secret); err != nil {
		t.Fatal(err)
	}
	settle(t, a) // renews and publishes
	if _, _, err := b.publish(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{}, stale.Data[caKey]); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(propagation))
	settle(t, a)
	expectTrusted(t, a, clock.Now())
	expectTrusted(t, b, clock.Now())
}

// loseSecret deletes the Secret.
func loseSecret(t *testing.T, c client.Client) {
	t.Helper()
	if err := c.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: options.Secret.Namespace, Name: options.Secret.Name}}); err != nil {
		t.Fatal(err)
	}
}

// A lost Secret is written back by a replica that has its contents, however often.
func TestLostSecretIsWrittenBack(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
	k := newKeeper(c, clock)
	settle(t, k)
	first := expectTrusted(t, k, clock.Now())
	for range 2 * maxAuthorities {
		loseSecret(t, c)
		clock.SetTime(clock.Now().Add(2 * time.Second))
		settle(t, k)
		if !bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
			t.Fatal("another certificate is served")
		}
	}
}

// Where a replica that starts is faster, what the others serve stays trusted, and they
// follow after a while.
func TestLostSecretIsReplacedByAStranger(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
	running, starting := newKeeper(c, clock), newKeeper(c, clock)
	settle(t, running)
	first := expectTrusted(t, running, clock.Now())
	loseSecret(t, c)
	clock.SetTime(clock.Now().Add(time.Hour))
	settle(t, starting)
	settle(t, running)
	if !bytes.Equal(first, expectTrusted(t, running, clock.Now())) {
		t.Error("the new certificate is served at once")
	}
	clock.SetTime(clock.Now().Add(propagation))
	settle(t, running)
	if bytes.Equal(first, expectTrusted(t, running, clock.Now())) {
		t.Error("the new certificate is not served")
	}
}

// A Keeper that only reads serves what another keeps, once the registration trusts it. It writes nothing.
func TestReadOnly(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "stowage"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "a"}},
	}).Build()
	keeper, reader := newKeeper(c, clock), newKeeper(interceptor.NewClient(c, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return errors.New("a create")
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			return errors.New("an update")
		},
	}), clock)
	reader.ReadOnly = true
	if again := settle(t, reader); again != checkEvery || reader.serving.Ready(nil) == nil {
		t.Errorf("without a certificate it looks again in %s, and is ready: %v", again, reader.serving.Ready(nil) == nil)
	}
	settle(t, keeper)
	settle(t, reader)
	first := expectTrusted(t, reader, clock.Now())

	// The keeper renews: first the Secret, then the registration, then both serve it.
	clock.SetTime(start.Add(validity - renewBefore + time.Hour))
	if _, err := keeper.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(2 * propagation))
	settle(t, reader)
	if !bytes.Equal(first, expectTrusted(t, reader, clock.Now())) {
		t.Error("it serves what the registration does not trust yet")
	}
	late := newKeeper(c, clock)
	late.ReadOnly = true
	if settle(t, late); late.serving.Ready(nil) == nil {
		t.Error("one that starts serves what the registration does not trust yet")
	}
	settle(t, keeper)
	if again := settle(t, reader); again != propagation || !bytes.Equal(first, expectTrusted(t, reader, clock.Now())) {
		t.Errorf("the switch is due in %s, want %s", again, propagation)
	}
	clock.SetTime(clock.Now().Add(propagation))
	settle(t, keeper)
	settle(t, reader)
	settle(t, late)
	second := expectTrusted(t, keeper, clock.Now())
	if bytes.Equal(first, second) || !bytes.Equal(second, expectTrusted(t, reader, clock.Now())) || !bytes.Equal(second, expectTrusted(t, late, clock.Now())) {
		t.Error("the processes do not serve the new certificate")
	}

	// The Secret is lost: the reader goes on.
	if err := c.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: options.Secret.Namespace, Name: options.Secret.Name}}); err != nil {
		t.Fatal(err)
	}
	settle(t, reader)
	expectTrusted(t, reader, clock.Now())
}

// A replica that starts in the middle of a renewal waits as long as the others do, but
// not for a clock that is wrong.
func TestStartInARenewal(t *testing.T) {
	for name, tc := range map[string]struct {
		published bool          // whether the renewer told the registration
		skew      time.Duration // of the starting replica's clock
		after     time.Duration // when it starts
		wait      time.Duration // what is left then
	}{
		"a moment after":                      {published: true, after: time.Second, wait: propagation - time.Second},
		"long after":                          {published: true, after: time.Minute},
		"a clock that is behind":              {published: true, skew: -5 * time.Minute, after: time.Minute, wait: propagation},
		"long after, and nobody published it": {after: time.Minute, wait: propagation},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(start)
			c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
			renewer := newKeeper(c, clock)
			settle(t, renewer)
			clock.SetTime(start.Add(validity - renewBefore + time.Hour))
			if tc.published {
				settle(t, renewer)
			} else if _, err := renewer.Reconcile(t.Context(), reconcile.Request{}); err != nil { // only the Secret
				t.Fatal(err)
			}
			late := newKeeper(c, clocktesting.NewFakePassiveClock(clock.Now().Add(tc.after+tc.skew)))
			got := settle(t, late)
			if ready := late.serving.Ready(nil) == nil; ready != (tc.wait == 0) || !ready && got != tc.wait {
				t.Errorf("ready: %t, the next look is in %s, want %s", ready, got, tc.wait)
			}
		})
	}
}

// The key of the authority exists only while a certificate is made.
func TestSecretHoldsNoAuthorityKey(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
	settle(t, newKeeper(c, clock))
	var secret corev1.Secret
	if err := c.Get(t.Context(), options.Secret, &secret); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	if pair.Leaf.IsCA || len(secret.Data) != 3 {
		t.Errorf("the Secret has %d entries, and a certificate that may sign: %t", len(secret.Data), pair.Leaf.IsCA)
	}
	for rest := secret.Data[caKey]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		} else if block.Type != "CERTIFICATE" {
			t.Errorf("%s holds a %s", caKey, block.Type)
		}
	}
}

// A replica that loses the race for the Secret drops its certificate.
func TestLosingARenewalIsNoError(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
	settle(t, newKeeper(c, clock))
	var before, after corev1.Secret
	if err := c.Get(t.Context(), options.Secret, &before); err != nil {
		t.Fatal(err)
	}
	k := newKeeper(c, clock)
	if err := k.renew(t.Context(), &corev1.Secret{}, false); err != nil {
		t.Errorf("losing to a creation: %v", err)
	}
	stale := before.DeepCopy()
	stale.ResourceVersion = "1"
	if err := c.Update(t.Context(), before.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if err := k.renew(t.Context(), stale, true); err != nil {
		t.Errorf("losing to an update: %v", err)
	}
	if err := c.Get(t.Context(), options.Secret, &after); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before.Data[corev1.TLSCertKey], after.Data[corev1.TLSCertKey]) {
		t.Error("the loser wrote its certificate")
	}
}

// Authorities that another client has added, however young, push out none that is needed.
func TestForeignAuthoritiesPushOutNone(t *testing.T) {
	k, c, clock := published(t)
	expectTrusted(t, k, clock.Now())
	overwrite(t, c, foreignAuthorities(t, clock.Now()))
	settle(t, k)
	expectTrusted(t, k, clock.Now())
}

// Two writers of a caBundle do not fight at the speed of the API server.
func TestContestedBundle(t *testing.T) {
	k, c, clock := published(t)
	written := 0
	for range 600 { // ten minutes
		var reg admissionregistrationv1.MutatingWebhookConfiguration
		if err := c.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &reg); err != nil {
			t.Fatal(err)
		}
		if len(reg.Webhooks[0].ClientConfig.CABundle) > 0 {
			written++
			for i := range reg.Webhooks {
				reg.Webhooks[i].ClientConfig.CABundle = nil // a deployment tool that applies its manifest
			}
			if err := c.Update(t.Context(), &reg); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := k.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		clock.SetTime(clock.Now().Add(time.Second))
	}
	if written < 5 || written > 20 {
		t.Errorf("the caBundle was put back %d times in ten minutes", written)
	}
}
