package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// The ConfigMap that plays a shortage, and its key. Each line names offerings that have no capacity:
// capacity type, zone and instance type, separated by slashes. An asterisk stands for all.
var shortage = types.NamespacedName{Namespace: "kube-system", Name: "karpenter-shortage"}

const shortageKey = "offerings"

// shortageMemory is how long Karpenter is kept from an offering after a launch failed. Providers of real clouds
// do the same for some minutes; without it, Karpenter would choose the same offering again.
const shortageMemory = 20 * time.Second

// provider is the kwok provider with capacity that can be taken away, and with nodes as large as their type.
type provider struct {
	*kwok.CloudProvider
	kube  client.Client
	store *nodeoverlay.InstanceTypeStore
	types []*cloudprovider.InstanceType

	mu     sync.Mutex
	failed map[string]time.Time // offerings, and until when they are hidden
}

func newProvider(ctx context.Context, kube client.Client, store *nodeoverlay.InstanceTypeStore, instanceTypes []*cloudprovider.InstanceType) *provider {
	return &provider{
		CloudProvider: kwok.NewCloudProvider(ctx, kube, instanceTypes),
		kube:          kube, store: store, types: instanceTypes, failed: map[string]time.Time{},
	}
}

// offering is how a shortage names an offering of an instance type.
func offering(instanceType string, o *cloudprovider.Offering) string {
	return o.CapacityType() + "/" + o.Zone() + "/" + instanceType
}

// matches reports whether a line of the shortage names an offering.
func matches(line, offering string) bool {
	want, have := strings.Split(strings.TrimSpace(line), "/"), strings.Split(offering, "/")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if want[i] != "*" && want[i] != have[i] {
			return false
		}
	}
	return true
}

// without returns instance types whose offerings are unavailable where hidden says so. Karpenter caches what
// it derives from a type, so the given types stay as they are.
func without(in []*cloudprovider.InstanceType, hidden func(offering string) bool) []*cloudprovider.InstanceType {
	out := make([]*cloudprovider.InstanceType, len(in))
	for i, it := range in {
		out[i] = &cloudprovider.InstanceType{Name: it.Name, Requirements: it.Requirements, Capacity: it.Capacity, Overhead: it.Overhead}
		for _, o := range it.Offerings {
			if hidden(offering(it.Name, o)) {
				unavailable := *o
				unavailable.Available = false
				o = &unavailable
			}
			out[i].Offerings = append(out[i].Offerings, o)
		}
	}
	return out
}

// GetInstanceTypes implements cloudprovider.CloudProvider. Offerings whose launch failed a moment ago are
// unavailable.
func (p *provider) GetInstanceTypes(context.Context, *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	return without(p.types, func(offering string) bool { return now.Before(p.failed[offering]) }), nil
}

// Create implements cloudprovider.CloudProvider. It fails for lack of capacity if every offering that the
// NodeClaim allows is in the shortage.
func (p *provider) Create(ctx context.Context, claim *v1.NodeClaim) (*v1.NodeClaim, error) {
	lines, err := p.shortage(ctx)
	if err != nil {
		return nil, err
	}
	short := func(offering string) bool {
		return slices.ContainsFunc(lines, func(line string) bool { return matches(line, offering) })
	}
	available := without(p.types, short)

	// The kwok provider wants each type that the claim allows to have an offering.
	claim = claim.DeepCopy()
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	launchable := map[string]bool{}
	for i, it := range available {
		launchable[it.Name] = len(it.Offerings.Available().Compatible(requirements)) > 0
		if requirements.Get(corev1.LabelInstanceTypeStable).Has(it.Name) {
			p.remember(it.Name, p.types[i].Offerings.Compatible(requirements), short)
		}
	}
	left := 0
	for i := range claim.Spec.Requirements {
		r := &claim.Spec.Requirements[i]
		if r.Key == corev1.LabelInstanceTypeStable {
			r.Values = slices.DeleteFunc(r.Values, func(name string) bool { return !launchable[name] })
			left = len(r.Values)
		}
	}
	if left == 0 {
		return nil, cloudprovider.NewInsufficientCapacityError(fmt.Errorf("ConfigMap %s leaves no offering", shortage))
	}
	created, err := kwok.NewCloudProvider(ctx, nodeClient{p.kube, p.types}, available).Create(ctx, claim)
	if err != nil {
		return nil, err
	}
	it := typeOf(p.types, created.Labels)
	if overlaid, err := p.store.Apply(claim.Labels[v1.NodePoolLabelKey], it); err == nil { // else there are no overlays
		it = overlaid
	}
	created.Status.Capacity, created.Status.Allocatable = it.Capacity, it.Allocatable()
	return created, nil
}

// remember hides the offerings of the shortage for a while.
func (p *provider) remember(instanceType string, offerings cloudprovider.Offerings, short func(string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range offerings {
		if name := offering(instanceType, o); short(name) {
			p.failed[name] = time.Now().Add(shortageMemory)
		}
	}
}

// shortage returns the lines of the ConfigMap, or none if it does not exist.
func (p *provider) shortage(ctx context.Context) ([]string, error) {
	var config corev1.ConfigMap
	if err := p.kube.Get(ctx, shortage, &config); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return strings.Split(config.Data[shortageKey], "\n"), nil
}

// typeOf returns the instance type that the labels of a node name.
func typeOf(all []*cloudprovider.InstanceType, labels map[string]string) *cloudprovider.InstanceType {
	i := slices.IndexFunc(all, func(it *cloudprovider.InstanceType) bool { return it.Name == labels[corev1.LabelInstanceTypeStable] })
	return all[max(i, 0)]
}

// nodeClient makes nodes as large as their instance type. The kwok provider writes what the pods request as
// their capacity. Extended resources are left to whoever advertises them, as on a real node.
type nodeClient struct {
	client.Client
	types []*cloudprovider.InstanceType
}

// Create implements client.Client.
func (c nodeClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if node, ok := obj.(*corev1.Node); ok {
		node = node.DeepCopy()
		it := typeOf(c.types, node.Labels)
		node.Status.Capacity, node.Status.Allocatable = it.Capacity, it.Allocatable()
		obj = node
	}
	return c.Client.Create(ctx, obj, opts...)
}
