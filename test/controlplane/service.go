package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// StowageService is the Service of the webhook, as config/ names it.
const StowageService = "stowage-webhook"

// ServeReplicas makes replicas of Stowage the endpoints of the webhook's Service. They must listen beyond the loopback interface, and have
// Pod objects: see [StowageOptions].
func (c *Cluster) ServeReplicas(ctx context.Context, replicas []*Replica) error {
	var addrs, pods []string
	for _, r := range replicas {
		addrs, pods = append(addrs, r.WebhookAddr), append(pods, r.Name)
	}
	return c.Serve(ctx, StowageService, addrs, pods)
}

// Serve makes processes of this machine the endpoints of a new Service on port 443. Pods are the names of their Pod objects, or nil if they have
// none.
func (c *Cluster) Serve(ctx context.Context, name string, addrs, pods []string) error {
	address, err := ownAddress()
	if err != nil {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: StowageNamespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "webhook", Port: 443}}},
	}
	if err := c.Client.Create(ctx, service); err != nil {
		return err
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
		if pods != nil {
			slice.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: service.Namespace, Name: pods[i]}
		}
		if err := c.Client.Create(ctx, slice); err != nil {
			return err
		}
	}
	return nil
}

// StopServing removes a Service with its endpoints, and the Pod objects of replicas.
func (c *Cluster) StopServing(ctx context.Context, name string) error {
	in := client.InNamespace(StowageNamespace)
	return errors.Join(
		c.Client.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: StowageNamespace, Name: name}}),
		c.Client.DeleteAllOf(ctx, &discoveryv1.EndpointSlice{}, in, client.MatchingLabels{discoveryv1.LabelServiceName: name}),
		c.Client.DeleteAllOf(ctx, &corev1.Pod{}, in),
	)
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
