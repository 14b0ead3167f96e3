package testkit

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/platform/leader"
)

// Queue returns a queue for a test that calls the reconciler itself.
func Queue[T comparable]() leader.Queue[T] {
	return leader.Queue[T]{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[T]())}
}

// Cache is a cache.Cache that reads from a fake store.
type Cache struct {
	cache.Informers
	client.Reader
}
