// Package spread divides the pods of workloads over node pools. The packages below hold all of it, from the sequence of seats
// to the controllers; this one makes a process's part.
package spread

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/capability"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/gate"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/relay"
	"github.com/stowage-dev/stowage/internal/spread/repair"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage"
	"github.com/stowage-dev/stowage/internal/spread/status"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// The names of the spread's own objects in config/ and the chart.
const (
	seatSecret = "stowage-seats"
	// repairConfigMap keeps for the next leader the back-off of repair, and since when pods at the gate cannot be decided about.
	repairConfigMap = "stowage-repair"
)

// How many pods that exist are patched in a second, and at once, in the whole cluster.
const (
	patchRate  = 50
	patchBurst = 200
)

// statusRate is how many statuses of PodDistributors are written in a second.
const statusRate = 50

// Capability is the spread of a process.
type Capability struct {
	capability.Capability
	seats    *seats.Service
	policies *policy.Finder
	nodes    nodefit.Lister // nil where nodes are not known
	overlaps *fair.Limiter[string]
	clock    clock.PassiveClock
}

// +kubebuilder:rbac:groups="",resources=secrets,verbs=create,namespace=stowage-system,roleName=stowage-spread-controllers
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=stowage-seats,verbs=get,namespace=stowage-system,roleName=stowage-spread

// New makes the spread of a process.
func New(ctx context.Context, o *Options, h *capability.Host) (*Capability, error) {
	// 1. Seats.
	secret := types.NamespacedName{Namespace: h.Namespace, Name: seatSecret}
	key, err := signingKey(ctx, h, secret)
	if err != nil {
		return nil, fmt.Errorf("the key that signs seats: %w", err)
	}
	options := seats.Options{
		API: &seats.Store{Client: h.Once}, Key: key, Writer: h.Replica, Clock: h.Clock, Asker: h.World.Asker,
		Log: h.Log.WithName("seats"), Metrics: seats.NewMetrics(h.Metrics),
	}
	if h.Siblings != nil {
		options.Relay = relay.NewClient(h.Siblings, key, h.Clock)
	}
	service := seats.New(options)
	seats.AddLag(h.Metrics, service.Lag)

	// 2. Which workload has which strategy.
	policies := policy.NewFinder(h.World, policy.Settings{
		Held: service.Held, HeldIn: service.HeldIn, NamespaceLabel: o.Feature.NamespaceLabel, ExcludedNamespaces: o.Feature.ExcludedNamespaces,
	})
	h.World.FollowVolumes(h.Informers)
	if err := h.World.FollowDistributors(ctx, h.Informers); err != nil {
		return nil, err
	}
	if _, err := h.Informers.GetInformer(ctx, &stowage.PoolState{}); err != nil {
		return nil, fmt.Errorf("watch PoolStates: %w", err)
	}
	follow, err := followPolicies(ctx, h)
	if err != nil {
		return nil, err
	}

	decides := &admit.Feature{Policies: policies, Seats: service, Key: key, Audits: admit.NewAudits(h.Clock), Unsettled: h.Unsettled, Pods: service.Pods().Of}
	if h.Nodes {
		decides.Nodes = recentNodes(func(of nodeset.Set) []corev1.Node { return h.World.NodesWith(context.WithoutCancel(ctx), of) }, h.Clock, h.Time)
	}
	c := &Capability{
		seats: service, policies: policies, nodes: decides.Nodes, overlaps: fair.NewLimiter[string](overlapRate, overlapBurst), clock: h.Clock,
		Capability: capability.Capability{
			Feature:     decides,
			Debug:       map[string]http.Handler{"/debug/seats": service},
			ForSiblings: map[string]http.Handler{relay.Path: relay.Handler(key, service)},
			Runs:        []func(context.Context) error{follow, h.World.ReadSpecs},
		},
	}
	follower := &seats.Follower{Seats: service, Pods: h.Clientset.CoreV1().RESTClient(), Informers: h.Informers}
	if h.Admits {
		runs, err := follower.Always(ctx)
		if err != nil {
			return nil, err
		}
		c.Runs = append(c.Runs, runs...)
		c.Checks = map[string]healthz.Checker{
			"seats": func(*http.Request) error {
				if !service.Pods().HasSynced() {
					return errors.New("the pods that have a seat are not listed yet")
				}
				return nil
			},
			"policies": func(*http.Request) error {
				if synced, _ := h.World.PoliciesSynced(); !synced {
					return errors.New("the SpreadPolicies and ClusterSpreadPolicies are not listed yet")
				}
				return nil
			},
		}
	}
	if !h.Controls {
		c.Runs = append(c.Runs, func(ctx context.Context) error {
			return seats.WatchKey(ctx, h.Uncached, secret, key, h.Clock, h.Log.WithName("seats"))
		})
		return c, nil
	}
	if c.Controllers, err = newControllers(ctx, o, h, service, decides, secret); err != nil {
		return nil, err
	}
	if !h.Admits {
		c.Controllers = append(c.Controllers, follower)
	}
	return c, nil
}

// followPolicies watches policies, once the API server has their kinds.
func followPolicies(ctx context.Context, h *capability.Host) (run func(context.Context) error, err error) {
	status.AddServed(h.Metrics, func() bool {
		_, served := h.World.PoliciesSynced()
		return served
	})
	return h.WhenServed(ctx, "SpreadPolicy and ClusterSpreadPolicy", func(ctx context.Context) (bool, error) {
		return h.World.FollowPolicies(ctx, h.Uncached.RESTMapper(), h.Informers)
	})
}

// signingKey returns the key in a Secret, which the processes that run controllers make.
func signingKey(ctx context.Context, h *capability.Host, secret types.NamespacedName) (ledger.Key, error) {
	if h.Controls {
		return seats.SharedKey(ctx, h.Uncached, secret)
	}
	return seats.AwaitKey(ctx, h.Uncached, secret, h.Log.WithName("seats"))
}

// newControllers makes what the leader does.
func newControllers(ctx context.Context, o *Options, h *capability.Host, service *seats.Service, decides *admit.Feature, keySecret types.NamespacedName) ([]leader.Controller, error) {
	byOwner := owners.New(decides.Policies, service.Pods().NameOf, h.Uncached, h.Clock)
	byOwner.Observe, byOwner.Nodes = service.Pods().ObserveClaims, decides.Nodes
	nodeGroups, err := o.ClusterAutoscaler.Parse()
	if err != nil {
		return nil, err
	}
	rooms := poolroom.New(h.Cached, h.Uncached, h.Clock, h.Time)
	rooms.NodeGroups = nodeGroups.Groups
	if err := rooms.Follow(ctx, h.Informers); err != nil {
		return nil, err
	}
	service.Changes.Add(func(change seats.Change) { rooms.PodLeft(change.Left) })
	shortages := &shortage.Controller{
		Cached: h.Cached, Uncached: h.Uncached, Informers: h.Informers, World: h.World, Policies: byOwner, Seats: service, Scope: h.Scope,
		Room: rooms, Evictor: h.Evictor, Successors: h.Successors, Clock: h.Clock, Timing: o.Shortage, NodeGroups: nodeGroups,
		Log: h.Log.WithName("shortage"), Events: h.Events, Metrics: shortage.NewMetrics(h.Metrics),
	}
	registrations := &selection.Reader{Reader: h.Uncached, Name: h.Registration, Log: h.Log.WithName("registration")}
	gates := &gate.Controller{
		API: &gate.Cluster{Pods: h.Clientset, Once: h.Once, Uncached: h.Uncached, Registrations: registrations, Kept: types.NamespacedName{Namespace: h.Namespace, Name: repairConfigMap}}, Feature: decides, Seats: service, Scope: h.Scope,
		Synced: func() bool { synced, _ := h.World.PoliciesSynced(); return synced },
		Clock:  h.Clock, Log: h.Log.WithName("gate"), Events: h.Events, Metrics: gate.NewMetrics(h.Metrics, h.Clock),
	}
	repairs := &repair.Controller{
		Cached: h.Cached, Uncached: h.Uncached, Informers: h.Informers, World: h.World, Policies: byOwner, Seats: service, Scope: h.Scope,
		Room: rooms, Evictor: h.Evictor, Clock: h.Clock, Time: h.Time, Timing: o.Repair, Writes: fair.NewLimiter[string](patchRate, patchBurst), Yielding: &shortages.Yielding, Gated: gates.Waits,
		Registrations: registrations, Replica: h.Replica, Backoffs: types.NamespacedName{Namespace: h.Namespace, Name: repairConfigMap},
		Log: h.Log.WithName("repair"), Events: h.Events, Metrics: repair.NewMetrics(h.Metrics),
	}
	statuses := &status.Controller{
		Cached: h.Cached, Uncached: h.Uncached, Informers: h.Informers, World: h.World, Seats: service, Scope: h.Scope, Find: byOwner, Progress: repairs, Clock: h.Clock, Time: h.Time,
		Timing: status.Timing{Every: time.Second, All: o.Repair.Resync, Rate: repair.ResyncRate, Quiet: o.Repair.Quiet}, Writes: fair.NewLimiter[string](statusRate, 2*statusRate), Log: h.Log.WithName("status"),
	}
	policyStatuses := &status.Policies{Controller: statuses, Registrations: registrations, Room: rooms, Kinds: h.Kinds, Metrics: status.NewMetrics(h.Metrics)}
	collector := &seats.Collector{Seats: service, Uncached: h.Uncached, KeySecret: keySecret, Log: h.Log.WithName("seats")}
	return []leader.Controller{gates, repairs, shortages, statuses, policyStatuses, collector}, nil
}

// Lag is how far the watch of pods with a seat is behind.
func (c *Capability) Lag() time.Duration { return c.seats.Lag() }

// Check returns what is wrong with the settings of an object that is written, for whoever writes it.
func (c *Capability) Check(ctx context.Context, w feature.Written) (texts []string, err error) {
	if source, is := policy.CompileSpec(w.Kind.Group, w.Kind.Kind, w.Spec); is {
		return c.checkSource(ctx, &source), nil
	}
	ref := world.Ref{APIVersion: schema.GroupVersion{Group: w.Kind.Group, Version: w.Kind.Version}.String(), Kind: w.Kind.Kind, Name: w.Name}
	found, err := c.policies.Check(ctx, world.Object{Namespace: w.Namespace, Ref: ref}, w.Own, w.Template)
	for _, f := range found {
		texts = append(texts, f.String())
	}
	lists := []map[string]string{w.Own.Annotations}
	if w.Template != nil {
		lists = append(lists, w.Template.Annotations)
	}
	for _, annotations := range lists {
		text, _ := policy.StrategyText(annotations)
		if s, err := sequence.Parse(text); err == nil && w.Kind.Kind != "Namespace" {
			texts = append(texts, c.overlap(ctx, s)...)
		}
	}
	return texts, err
}

// The rate (per second) and burst of checks for nodes that are in several pools. Each check looks at all nodes. One client gets half of the burst.
const (
	overlapRate  = 20
	overlapBurst = 100
)

// overlap returns a warning if a node is in several pools. The warning doesn't name the node, because the author of the reviewed object may not be
// allowed to read nodes. Of pools that select nodes by their host names it says nothing, because that would tell whether there is a node of a name.
// It returns nothing if nodes aren't known, or beyond the rate.
func (c *Capability) overlap(ctx context.Context, s *sequence.Strategy) []string {
	for pool := range s.Len() {
		if slices.Contains(s.Keys(pool), corev1.LabelHostname) {
			return nil
		}
	}
	if c.nodes == nil || !c.overlaps.Allow(worldcache.Client(ctx), c.clock.Now()) {
		return nil
	}
	if node, text := policy.Overlap(s, c.nodes(nodeset.Set{}).Nodes); node != "" {
		return []string{"a node " + text}
	}
	return nil
}

// checkSource returns what is wrong with what divides pods, that the API server does not refuse. Whether a PriorityClass exists, its status says: a
// stranger may not ask that here.
func (c *Capability) checkSource(ctx context.Context, source *policy.Compiled) (texts []string) {
	if source.Written == nil {
		for line := range strings.SplitSeq(source.Err.Error(), "\n") {
			texts = append(texts, "it is invalid, and divides no pods: "+line)
		}
		return texts
	}
	return c.overlap(ctx, source.Strategy)
}

// Exclude says in which namespaces annotations are not looked at, from now on.
func (c *Capability) Exclude(namespaces []string) { c.policies.Exclude(namespaces) }

// Excluded returns what Exclude was last told.
func (c *Capability) Excluded() []string { return c.policies.Excluded() }
