package certs

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stowage-dev/stowage/internal/platform/apitime"
)

// renewal is when a certificate that was made at the start is renewed.
var renewal = start.Add(validity - renewBefore + time.Hour)

// dated is an API server that answers with its time.
type dated struct{ clock clock.PassiveClock }

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(*http.Request) (*http.Response, error) {
	date := d.clock.Now().UTC().Format(http.TimeFormat)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {date}}, Body: http.NoBody}, nil
}

// heard returns the API server's time as a replica has it that had one answer.
func heard(t *testing.T, local, server clock.PassiveClock) *apitime.Clock {
	t.Helper()
	c := apitime.New(local)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api/v1/secrets", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wrap(dated{server}).RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	return c
}

// stored returns the Secret.
func stored(t *testing.T, c client.Client) *corev1.Secret {
	t.Helper()
	var secret corev1.Secret
	if err := c.Get(t.Context(), options.Secret, &secret); err != nil {
		t.Fatal(err)
	}
	return &secret
}

// overwrite gives every webhook another caBundle.
func overwrite(t *testing.T, c client.Client, bundle []byte) {
	t.Helper()
	var reg admissionregistrationv1.MutatingWebhookConfiguration
	if err := c.Get(t.Context(), client.ObjectKey{Name: "stowage"}, &reg); err != nil {
		t.Fatal(err)
	}
	for i := range reg.Webhooks {
		reg.Webhooks[i].ClientConfig.CABundle = bundle
	}
	if err := c.Update(t.Context(), &reg); err != nil {
		t.Fatal(err)
	}
}

// foreignAuthorities returns more authorities than a bundle may have, all younger than ours.
func foreignAuthorities(t *testing.T, now time.Time) (bundle []byte) {
	t.Helper()
	for i := range 2 * maxAuthorities {
		ca, err := newAuthority(now.Add(time.Duration(i)*time.Minute), now.Add(validity))
		if err != nil {
			t.Fatal(err)
		}
		bundle = append(bundle, encode(ca.cert.Raw)...)
	}
	return bundle
}

// refusing returns a client whose writes of Secrets fail.
func refusing(c client.Client) client.Client {
	return interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if _, ok := obj.(*corev1.Secret); ok {
				return errors.New("the Secret is locked")
			}
			return c.Update(ctx, obj, opts...)
		},
	})
}

// Replicas that have had no date of the API server's make certificates that it accepts, if their clocks are hours off.
func TestClockThatIsHoursOff(t *testing.T) {
	for name, skew := range map[string]time.Duration{"ahead": 5 * time.Hour, "behind": -5 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
			off := newKeeper(c, clocktesting.NewFakePassiveClock(start.Add(skew)))
			right := newKeeper(c, clocktesting.NewFakePassiveClock(start))
			settle(t, off)
			settle(t, right)
			if !bytes.Equal(expectTrusted(t, off, start), expectTrusted(t, right, start)) {
				t.Error("two replicas serve two certificates")
			}
		})
	}
}

// With a date of the API server's, it does not matter how far a replica's clock is off.
func TestReplicasClocksDecideNothing(t *testing.T) {
	for name, skew := range map[string]time.Duration{
		"5 hours ahead": 5 * time.Hour, "280 days ahead": 280 * 24 * time.Hour, "280 days behind": -280 * 24 * time.Hour, "10 years ahead": 10 * validity,
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
			server, wrong := clocktesting.NewFakePassiveClock(start), clocktesting.NewFakePassiveClock(start.Add(skew))
			a, b := newKeeper(c, wrong), newKeeper(c, server)
			a.Time, b.Time = heard(t, wrong, server), heard(t, server, server)
			// both lets the replicas work until nothing is left to do, and checks what they serve.
			both := func() {
				t.Helper()
				for range 5 {
					settle(t, a)
					settle(t, b)
				}
				expectTrusted(t, a, server.Now())
				expectTrusted(t, b, server.Now())
			}
			both()
			first := stored(t, c)
			wrong.SetTime(renewal.Add(skew))
			server.SetTime(renewal)
			both() // the first to renew is the one with the wrong clock
			second := stored(t, c)
			if bytes.Equal(first.Data[corev1.TLSCertKey], second.Data[corev1.TLSCertKey]) {
				t.Error("nobody has renewed")
			}
			wrong.SetTime(renewal.Add(skew + propagation))
			server.SetTime(renewal.Add(propagation))
			both()
			if !bytes.Equal(expectTrusted(t, a, server.Now()), expectTrusted(t, b, server.Now())) {
				t.Error("two replicas serve two certificates")
			}
			if stored(t, c).ResourceVersion != second.ResourceVersion {
				t.Error("the replicas renew in turns")
			}
		})
	}
}

// Replicas without a date of the API server's, whose clocks are 280 days apart, renew less and less often.
func TestRenewalsInTurnsBackOff(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(registrationObject()).Build()
	clocks := []*clocktesting.FakePassiveClock{
		clocktesting.NewFakePassiveClock(start), clocktesting.NewFakePassiveClock(start.Add(280 * 24 * time.Hour)),
	}
	keepers := []*Keeper{newKeeper(c, clocks[0]), newKeeper(c, clocks[1])}
	settle(t, keepers[0])
	renewals := 0
	var last []byte
	for range 600 { // ten minutes
		for i, k := range keepers {
			if _, err := k.Reconcile(t.Context(), reconcile.Request{}); err != nil {
				t.Fatal(err)
			}
			if now := stored(t, c).Data[corev1.TLSCertKey]; !bytes.Equal(now, last) {
				renewals, last = renewals+1, now
			}
			if served, err := keepers[0].serving.GetCertificate(nil); err != nil || !valid(served.Leaf, clocks[0].Now()) {
				t.Fatalf("the last valid certificate is not in use: %v", err)
			}
			clocks[i].SetTime(clocks[i].Now().Add(time.Second))
		}
	}
	if renewals < 4 || renewals > 30 {
		t.Errorf("%d renewals in ten minutes", renewals)
	}
}

// A certificate that is not valid yet, of another release say, is replaced. Where that fails, the last one stays in use.
func TestCertificateOfTheFutureIsNotServed(t *testing.T) {
	k, c, clock := published(t)
	first := expectTrusted(t, k, clock.Now())
	begin := clock.Now().Add(4 * time.Hour)
	ca, err := newAuthority(begin, begin.Add(validity))
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := newCertificate(ca, options.DNSNames, begin, begin.Add(validity))
	if err != nil {
		t.Fatal(err)
	}
	secret := stored(t, c)
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = cert, key
	secret.Data[caKey] = append(encode(ca.cert.Raw), secret.Data[caKey]...)
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}

	starting := newKeeper(refusing(c), clock)
	k.client = starting.client
	for range 3 {
		for _, replica := range []*Keeper{k, starting} {
			if _, err := replica.Reconcile(t.Context(), reconcile.Request{}); err == nil {
				t.Error("a renewal that fails is no error")
			}
		}
		if !bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
			t.Error("the last valid certificate is not in use")
		}
		if starting.serving.Ready(nil) == nil {
			t.Error("ready with a certificate that is not valid yet")
		}
		overwrite(t, c, nil) // it is put back all the same
		clock.SetTime(clock.Now().Add(time.Minute))
	}

	k.client, starting.client = c, c
	settle(t, k)
	clock.SetTime(clock.Now().Add(propagation))
	settle(t, k)
	settle(t, starting)
	second := expectTrusted(t, k, clock.Now())
	if bytes.Equal(first, second) || !bytes.Equal(second, expectTrusted(t, starting, clock.Now())) {
		t.Error("the replacement is not served")
	}
}

// A renewal that fails keeps no replica from a certificate that is still valid.
func TestRenewalThatFailsHoldsUpNobody(t *testing.T) {
	_, c, clock := published(t)
	clock.SetTime(renewal)
	starting := newKeeper(refusing(c), clock)
	if _, err := starting.Reconcile(t.Context(), reconcile.Request{}); err == nil {
		t.Error("a renewal that fails is no error")
	}
	if err := starting.serving.Ready(nil); err != nil {
		t.Fatalf("not ready: %v", err)
	}
	expectTrusted(t, starting, clock.Now())
}

// In a renewal the authority of what is still served is needed as well as the next one.
func TestForeignAuthoritiesInARenewal(t *testing.T) {
	k, c, clock := published(t)
	first := expectTrusted(t, k, clock.Now())
	clock.SetTime(renewal)
	settle(t, k)
	overwrite(t, c, foreignAuthorities(t, clock.Now()))
	settle(t, k)
	if !bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
		t.Fatal("the new certificate is served at once")
	}
	clock.SetTime(clock.Now().Add(propagation))
	settle(t, k)
	if bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
		t.Error("the new certificate is not served")
	}
}

// What others serve stays trusted, too, when the replica that renews has only just started.
func TestRenewalByAStartingReplica(t *testing.T) {
	k, c, clock := published(t)
	clock.SetTime(renewal)
	settle(t, newKeeper(c, clock))
	overwrite(t, c, nil)
	settle(t, newKeeper(c, clock))
	expectTrusted(t, k, clock.Now())
}

// The wait before a switch goes on where nothing has changed, and begins again where an API server may have
// learned of another caBundle.
func TestWaitBeforeASwitch(t *testing.T) {
	k, c, clock := published(t)
	first := expectTrusted(t, k, clock.Now())
	// step lets time pass, and checks how much of the wait is left.
	step := func(d, want time.Duration) {
		t.Helper()
		clock.SetTime(clock.Now().Add(d))
		if left := settle(t, k); left != want || !bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
			t.Errorf("the switch is due in %s, want %s", left, want)
		}
	}
	clock.SetTime(renewal)
	step(0, propagation)
	step(4*time.Second, propagation-4*time.Second)
	overwrite(t, c, nil)
	step(0, propagation)
	step(propagation-time.Second, time.Second)
	clock.SetTime(clock.Now().Add(time.Second))
	settle(t, k)
	if bytes.Equal(first, expectTrusted(t, k, clock.Now())) {
		t.Error("the new certificate is not served")
	}
}

// An authority that is dated after the current one, by another clock, does not take its place.
func TestAuthorityOfTheFuture(t *testing.T) {
	k, c, clock := published(t)
	secret := stored(t, c)
	secret.Data[corev1.TLSCertKey] = []byte("broken")
	foreign := foreignAuthorities(t, clock.Now().Add(280*24*time.Hour))
	secret.Data[caKey] = slices.Concat(foreign, secret.Data[caKey])
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	settle(t, k)
	starting := newKeeper(c, clock)
	overwrite(t, c, foreign)
	settle(t, starting)
	clock.SetTime(clock.Now().Add(propagation))
	settle(t, starting)
	expectTrusted(t, starting, clock.Now())
}
