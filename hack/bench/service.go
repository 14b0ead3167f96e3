package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/controlplane"
)

// How the API server chooses an endpoint of the webhook's Service: for each request (the feature gate
// WebhookRoundTripLoadBalancing), or for each connection. With sessionAffinity ClientIP it always has the same one.
const (
	byRequest    = "by-request"
	byConnection = "by-connection"
	affinity     = "affinity"
)

// apiServerArgs let the API server call endpoints itself, as it does in managed clusters, instead of the Service's address. They let it
// serve profiles, if those are asked for.
func (o *options) apiServerArgs() (args []string) {
	if o.profiles != "" {
		args = append(args, "--profiling=true")
	}
	if o.service != "" {
		args = append(args, "--enable-aggregator-routing=true", fmt.Sprintf("--feature-gates=WebhookRoundTripLoadBalancing=%t", o.service == byRequest))
	}
	return args
}

// stowageArgs are the flags of a replica. As the endpoint of a Service it is called from outside the loopback interface.
func (o *options) stowageArgs() []string {
	args := []string{"--peerpods-capacity=Off"}
	if o.service != "" {
		args = append(args, "--host=0.0.0.0")
	}
	return args
}

// The Services of the floor and of Stowage.
const (
	floorService   = "floor"
	stowageService = "stowage-webhook"
)

// callStowage makes each replica that is to be called an endpoint of the webhook's Service, and has the registration name that Service.
func (b *bench) callStowage(ctx context.Context) error {
	var addrs []string
	for _, r := range b.Replicas() {
		addrs = append(addrs, r.WebhookAddr)
	}
	if err := b.serve(ctx, stowageService, addrs); err != nil {
		return err
	}
	var registration admissionregistrationv1.MutatingWebhookConfiguration
	if err := b.Client.Get(ctx, client.ObjectKey{Name: "stowage"}, &registration); err != nil {
		return err
	}
	before := registration.DeepCopy()
	for i := range registration.Webhooks {
		config := &registration.Webhooks[i].ClientConfig
		at, err := url.Parse(*config.URL)
		if err != nil {
			return err
		}
		config.URL, config.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: controlplane.StowageNamespace, Name: stowageService, Path: &at.Path}
	}
	if err := b.Client.Patch(ctx, &registration, client.MergeFrom(before)); err != nil {
		return err
	}
	return b.until(ctx, b.WebhookAnswers)
}

// serve makes processes of this machine the endpoints of a Service. With [affinity], only the first one is.
func (b *bench) serve(ctx context.Context, name string, addrs []string) error {
	address, err := ownAddress()
	if err != nil {
		return err
	}
	const port = 443
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.StowageNamespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "webhook", Port: port}}},
	}
	if err := b.Client.Create(ctx, service); err != nil {
		return err
	}
	if b.options.service == affinity {
		addrs = addrs[:1]
	}
	for i, addr := range addrs {
		_, text, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		number, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return err
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: service.Namespace, Name: fmt.Sprintf("%s-%d", name, i), Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new("webhook"), Port: new(int32(number)), Protocol: new(corev1.ProtocolTCP)}},
		}
		if err := b.Client.Create(ctx, slice); err != nil {
			return err
		}
	}
	return nil
}

// ownAddress returns an address of this machine that an EndpointSlice may have: no loopback address.
func ownAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no IPv4 address but loopback ones, which no EndpointSlice may have")
}

// reportShares prints how many requests each replica has answered.
func (b *bench) reportShares() error {
	fmt.Print("\nRequests of each replica:")
	for _, r := range b.Replicas() {
		n, err := r.Metric("controller_runtime_webhook_requests_total")
		if err != nil {
			return err
		}
		fmt.Printf(" %.0f", n)
	}
	fmt.Println()
	return nil
}

// reportSeats prints how all seats of the run were given, and what that cost.
func (b *bench) reportSeats() error {
	for _, m := range []struct {
		what, name, label string
		values            []string
	}{
		{"Seats", "stowage_claims_total", "result", []string{"claimed", "ahead", "unverified", "unshared"}},
		{"Writes of ledgers", "stowage_ledger_writes_total", "result", []string{"ok", "conflict", "uncertain", "refused", "busy"}},
		{"API requests", requestsMetric, "method", []string{"GET", "PUT", "POST", "PATCH", "DELETE"}},
	} {
		fmt.Printf("%s:", m.what)
		for _, value := range m.values {
			n, err := b.sum(m.name, fmt.Sprintf("%s=%q", m.label, value))
			if err != nil {
				return err
			}
			fmt.Printf(" %s %.0f", value, n)
		}
		fmt.Println()
	}
	return nil
}
