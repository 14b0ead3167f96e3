// Package capability is the contract between a process and what Stowage does to pods: the spread, sizing, and peer pods.
// A process makes each capability once, from a Host. It asks the features of all of them about a pod, runs their
// controllers on the leader, and the rest on every replica.
package capability

import (
	"context"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/evict"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/successor"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/internal/world/readable"
)

// Host is what a process gives to a capability.
type Host struct {
	Namespace    string // that Stowage runs in
	Registration string // name of the webhook's registration
	Replica      string // name of this replica, which no other has
	Admits       bool   // the process answers the API server
	Controls     bool   // the process may run controllers
	Nodes        bool   // the process watches nodes

	// Cached reads from informers. Uncached asks the API server. Once is Uncached without retries.
	Cached, Uncached, Once client.Client
	// Clientset speaks protobuf: every pod with a seat or a size passes there several times in its life.
	Clientset kubernetes.Interface
	// Informers is what Cached reads, which is shared by all.
	Informers crcache.Cache

	// Siblings sends requests to other replicas of the webhook. It is nil where the process is none.
	Siblings Siblings

	World *worldcache.Cache
	// Kinds says which kinds that policies name may be read.
	Kinds   *readable.Kinds
	Scope   *scope.Scope
	Evictor *evict.Evictor
	// Successors says whose pods are created again.
	Successors *successor.Finder
	Clock      clock.WithTickerAndDelayedExecution
	// Time is the API server's clock. It judges dates that the API server wrote; Clock measures waits.
	Time clock.PassiveClock
	// Unsettled reports whether the watches may show what was before the process was frozen.
	Unsettled func() bool
	Log       logr.Logger
	Events    events.Recorder
	Metrics   *metrics.Set
}

// Siblings are the other replicas of the webhook.
type Siblings interface {
	// Knows reports whether a replica is another one of the webhook's, and serves.
	Knows(replica string) bool
	// Send returns the answer to a POST to a replica, and no more than so many bytes of it. It returns an error if the status is not 200.
	Send(ctx context.Context, replica, path string, header http.Header, body []byte, most int64) ([]byte, error)
}

// Capability is what a capability brings to a process.
type Capability struct {
	// Feature decides about pods that are created. It is nil where the capability leaves them as they are.
	Feature feature.Feature
	// Controllers run on the leader, where the process may run any, and Runs on every replica until the context ends.
	Controllers []leader.Controller
	Runs        []func(ctx context.Context) error
	// Checks are of readiness, by name.
	Checks map[string]healthz.Checker
	// Debug are pages beside the metrics, by path. They show what only administrators may see.
	Debug map[string]http.Handler
	// ForSiblings are pages of the webhook's port that only its other replicas may call, by path. Each refuses whoever is none.
	ForSiblings map[string]http.Handler
}
