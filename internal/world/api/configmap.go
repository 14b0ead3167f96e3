package api

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// ConfigMapFollower follows one ConfigMap, with the permission to list and watch this one only.
// It has an informer of its own, because nothing waits for it: Stowage may not be allowed to
// read the ConfigMap at all.
type ConfigMapFollower struct {
	informer     toolscache.SharedIndexInformer
	registration toolscache.ResourceEventHandlerRegistration
	seen         func(*corev1.ConfigMap)
	known        chan struct{}

	mu       sync.Mutex
	notified bool // seen was called
}

// NewConfigMapFollower returns a follower that calls seen with each version of a ConfigMap, and
// with nil when there is none.
func NewConfigMapFollower(clients kubernetes.Interface, key types.NamespacedName, seen func(*corev1.ConfigMap)) (*ConfigMapFollower, error) {
	f := &ConfigMapFollower{seen: seen, known: make(chan struct{})}
	f.informer = toolscache.NewSharedIndexInformerWithOptions(
		toolscache.NewListWatchFromClient(clients.CoreV1().RESTClient(), "configmaps", key.Namespace, fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name)),
		&corev1.ConfigMap{}, toolscache.SharedIndexInformerOptions{})
	some := func(obj any) {
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			f.notify(cm)
		}
	}
	var err error
	f.registration, err = f.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    some,
		UpdateFunc: func(_, obj any) { some(obj) },
		DeleteFunc: func(any) { f.notify(nil) },
	})
	return f, err
}

// Run follows the ConfigMap until ctx ends.
func (f *ConfigMapFollower) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		defer utilruntime.HandleCrashWithContext(ctx)
		f.informer.RunWithContext(ctx)
	})
	if !toolscache.WaitForNamedCacheSyncWithContext(ctx, f.registration.HasSynced) {
		return
	}
	f.mu.Lock()
	if !f.notified {
		f.seen(nil)
	}
	f.mu.Unlock()
	close(f.known)
}

// notify passes on what there is, one call at a time.
func (f *ConfigMapFollower) notify(cm *corev1.ConfigMap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notified = true
	f.seen(cm)
}

// Known is closed once seen was called with what there was at first.
func (f *ConfigMapFollower) Known() <-chan struct{} { return f.known }
