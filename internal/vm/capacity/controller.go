// Package capacity is the controller of the peer pods' capacity. As an extended resource of each node, it
// advertises how many VMs its pods may have, so that the scheduler counts them. It publishes as metrics how many they
// have.
//
// What a node should advertise is decided by package peerpod. The controller looks at a node when
// something that the answer depends on changes; a heartbeat causes no work.
package capacity

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/contest"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// Controller is the controller of VM capacity.
type Controller struct {
	// Uncached asks the API server, and not the cache.
	Uncached  client.Client
	Clientset kubernetes.Interface
	Informers cache.Cache
	// Resource is the extended resource.
	Resource corev1.ResourceName
	// ConfigMap holds the limit of all nodes, and Default is the limit without it.
	ConfigMap types.NamespacedName
	Default   int64
	// Nodes selects the nodes that may have VMs.
	Nodes labels.Selector
	// Mode says when they advertise VMs; [peerpod.CapacityOff] is no mode of a controller. Daemons selects the pods of the
	// DaemonSets that make VMs, and those DaemonSets.
	Mode    peerpod.CapacityMode
	Daemons labels.Selector
	// DaemonNamespace is the namespace of those DaemonSets, which an administrator named. If it is empty, none counts.
	DaemonNamespace string
	Clock           clock.WithTicker
	Log             logr.Logger
	Events          events.Recorder
	Metrics         *Metrics
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch,roleName=stowage-capacity-controllers
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch,roleName=stowage-capacity-controllers
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch,roleName=stowage-capacity-controllers
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=peer-pods-cm,verbs=list;watch,namespace=stowage-system,roleName=stowage-capacity-controllers

var _ leader.Controller = &Controller{}

// Name implements [leader.Controller].
func (*Controller) Name() string { return "vm-capacity" }

// run is what the controller knows in one term.
type run struct {
	*Controller
	term  context.Context
	nodes leader.Queue[string]
	pods  toolscache.SharedIndexInformer // peer pods
	// daemons are the pods of the DaemonSets that make VMs; nil with [peerpod.CapacityAlways], and where no namespace is named.
	daemons toolscache.SharedIndexInformer

	mu    sync.Mutex
	limit int64 // of all nodes; peerpod.None while it is not known
	// restored notices another writer of a node's amount.
	restored contest.Contest[string]
	// published is what was last published of a node's use.
	published map[string]use
	// others are the VMs of pods without the label of peer pods, by node.
	others map[string]unlabelled
	// daemonSets are the DaemonSets that make VMs.
	daemonSets map[types.UID]bool
	// missing is since when an amount is missing on a node whose daemon is Ready.
	missing map[string]time.Time
}

// patience is how long nodes wait for the ConfigMap.
const patience = 10 * time.Second

// Register implements [leader.Controller].
func (c *Controller) Register(t *leader.Term) error {
	// 1. The reconciler.
	r := &run{Controller: c, term: t.Context(), limit: peerpod.None, published: map[string]use{}, others: map[string]unlabelled{}, daemonSets: map[types.UID]bool{}, missing: map[string]time.Time{}}
	var err error
	if r.nodes, err = leader.Reconcile(t, "vm-capacity", 2, r.reconcile, nodeKeys); err != nil {
		return err
	}
	t.AtEnd(func() { // the next leader publishes them
		c.Metrics.invalid.Set(0)
		c.Metrics.capacity.Reset()
		c.Metrics.used.Reset()
	})

	// 2. The limit, which is known before the first node is looked at. Where it cannot be read,
	// the limits of the nodes themselves still count.
	limit, err := worldapi.NewConfigMapFollower(c.Clientset, c.ConfigMap, r.configured)
	if err != nil {
		return fmt.Errorf("watch ConfigMap %s: %w", c.ConfigMap, err)
	}
	t.Go(limit.Run)
	select {
	case <-limit.Known():
	case <-t.Context().Done():
		return nil
	case <-c.Clock.After(patience):
		c.Log.Error(nil, "the ConfigMap of the limit cannot be read; nodes without a limit of their own stay as they are",
			"namespace", c.ConfigMap.Namespace, "kind", "ConfigMap", "name", c.ConfigMap.Name)
	}

	// 3. The daemons, peer pods and nodes.
	if err := r.watchDaemons(t); err != nil {
		return fmt.Errorf("watch the daemons that make VMs: %w", err)
	}
	if err := r.watchPods(t); err != nil {
		return fmt.Errorf("watch peer pods: %w", err)
	}
	return r.watchNodes(t)
}

func nodeKeys(name string) []any { return []any{"kind", "Node", "name", name} }
