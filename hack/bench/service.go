package main

import (
	"context"
	"fmt"
	"net/url"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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

// floorService is the Service of the floor.
const floorService = "floor"

// callStowage makes each replica that is to be called an endpoint of the webhook's Service, and has the registration name that Service.
func (b *bench) callStowage(ctx context.Context) error {
	replicas := b.Replicas()
	if b.options.service == affinity {
		replicas = replicas[:1]
	}
	if err := b.ServeReplicas(ctx, replicas); err != nil {
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
		config.URL, config.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: controlplane.StowageNamespace, Name: controlplane.StowageService, Path: &at.Path}
	}
	if err := b.Client.Patch(ctx, &registration, client.MergeFrom(before)); err != nil {
		return err
	}
	return b.until(ctx, b.WebhookAnswers)
}

// reportShares prints how many requests each replica has answered.
func (b *bench) reportShares() error {
	fmt.Print("\nRequests of each replica:")
	for _, r := range b.Replicas() {
		n, err := r.Metric("controller_runtime_webhook_requests_total", `webhook="/mutate[^"]*"`)
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
		{"Seats asked of other replicas", "stowage_claims_relayed_total", "result", []string{"granted", "refused", "failed"}},
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
