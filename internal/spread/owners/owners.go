// Package owners finds the policies of owners of pods, for controllers. Their caches have the pod templates of some kinds only. For an owner of
// another kind, one of its pods is read.
package owners

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// Owners finds the policies of owners of pods. The cache has the pod templates of some kinds only, see
// [world.Ref.HasTemplate]. For an owner of another kind, the annotations of its template are those of one of its pods.
type Owners struct {
	*policy.Finder
	podOf    func(namespace string, owner types.UID) string
	uncached client.Reader
	known    *bounded.Cache[ledger.OwnerKey, map[string]string] // annotations of a pod, by its owner
	// Observe returns the pods of an owner if one of them has a volume, and Nodes the nodes of a cell. So what is found knows where pods are held.
	// Both may be nil.
	Observe func(*world.Workload) (of observed.Owner, ok bool)
	Nodes   nodefit.Lister
}

// So many bytes of owners' annotations are remembered, and for so long.
const (
	templateBytes = 16 << 20
	templateTTL   = time.Minute
)

// New returns Owners. The function podOf returns the name of a live pod of an owner, or "". Pods are read
// from uncached, at most once a minute for an owner.
func New(f *policy.Finder, podOf func(namespace string, owner types.UID) string, uncached client.Reader, c clock.PassiveClock) *Owners {
	return &Owners{Finder: f, podOf: podOf, uncached: uncached, known: bounded.New[ledger.OwnerKey, map[string]string](templateBytes, c)}
}

// FindFor returns the policy for the pods of an owner, or nil if they have none. The workload w is what is known of the owner;
// it may be nil.
func (o *Owners) FindFor(ctx context.Context, namespace string, owner world.Ref, w *world.Workload) (*policy.Policy, error) {
	p, err := o.FindForSelected(ctx, namespace, owner, w)
	return p.Dividing(), err
}

// FindForSelected is to [Owners.FindFor] what [policy.Finder.FindSelected] is to [policy.Finder.Find].
func (o *Owners) FindForSelected(ctx context.Context, namespace string, owner world.Ref, w *world.Workload) (*policy.Policy, error) {
	pod := policy.Pod{Namespace: namespace, Owner: owner}
	switch {
	case w != nil && owner.HasTemplate():
		pod.Annotations = w.TemplateAnnotations
	case !owner.IsJob(): // Jobs have policies by PodDistributors alone, and there may be many
		var err error
		if pod.Annotations, err = o.template(ctx, namespace, owner.UID); err != nil {
			return nil, err
		}
	}
	p, err := o.FindSelected(ctx, pod)
	if err != nil || w == nil || o.Observe == nil {
		return p, err
	}
	if of, ok := o.Observe(w); ok {
		return o.Holding(ctx, p, of, o.Nodes), nil
	}
	return p, nil
}

// template returns the annotations of one of an owner's pods, or nil if it has no pod.
func (o *Owners) template(ctx context.Context, namespace string, owner types.UID) (map[string]string, error) {
	key := ledger.OwnerKey{Namespace: namespace, UID: owner}
	if known, ok := o.known.Get(key); ok {
		return known, nil
	}
	name := o.podOf(namespace, owner)
	if name == "" {
		return nil, nil
	}
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := o.uncached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, m); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	kept, bytes := world.Settings(m.Annotations), int64(0)
	for k, v := range kept {
		bytes += int64(len(k) + len(v))
	}
	o.known.Add(key, kept, bytes, templateTTL)
	return kept, nil
}
