package cache

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// How long is remembered: a workload of another kind, a kind that Stowage may not read, one that is served, and one that is not.
const (
	unwatchedTTL  = time.Minute
	unreadableTTL = 30 * time.Second // a grant is noticed within a minute
	servedTTL     = time.Hour
	unservedTTL   = 10 * time.Second
	// mostUnservedTTL is for a kind that was not served at any look, and namedTTL for such a kind that a policy names. Each look is four times as far
	// from the one before.
	mostUnservedTTL = 10 * time.Minute
	namedTTL        = 40 * time.Second
)

// unwatchedBytes is how many bytes of workloads of other kinds are remembered.
const unwatchedBytes = 16 << 20

// +kubebuilder:rbac:groups="",resources=replicationcontrollers,verbs=get,roleName=stowage-spread
// +kubebuilder:rbac:groups=argoproj.io,resources=rollouts,verbs=get,roleName=stowage-spread
// +kubebuilder:rbac:groups=apps.kruise.io,resources=clonesets;statefulsets,verbs=get,roleName=stowage-spread
// +kubebuilder:rbac:groups=apps.kruise.io,resources=daemonsets,verbs=get,roleName=stowage-sizing

// unwatchedWorkload reads a workload of a kind that is not watched.
func (c *Cache) unwatchedWorkload(ctx context.Context, namespace string, ref world.Ref) (*world.Workload, error) {
	gvk, named := ref.GroupVersionKind()
	if !named || !c.MayRead(namespace, ref) {
		return nil, nil
	}
	k := readKey{what: "workload", namespace: namespace, ref: ref}
	withTemplate := c.policies.names(ref)
	if withTemplate {
		k.what = "workload with its template"
	}
	if known, ok := c.unwatched.Get(k); ok {
		return known, nil
	}
	who := c.Asker(ctx, namespace)
	if served, err := c.serves(ctx, who, namespace, ref, gvk); err != nil {
		return nil, fmt.Errorf("find the kind %s of %s: %w", ref.Kind, ref.APIVersion, err)
	} else if !served {
		return nil, nil
	}
	w, err := readUncached(ctx, c, c.objects, who, k, func(ctx context.Context) (*world.Workload, error) {
		if withTemplate {
			return readTemplate(ctx, c.uncached, namespace, ref, gvk)
		}
		m := metadataOf(gvk)
		if err := c.uncached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, m); err != nil {
			return nil, err
		}
		return world.FromKept(ref, world.Keep(m)), nil
	})
	switch {
	case apierrors.IsForbidden(err):
		c.unreadable.Add(kindIn(namespace, ref), true, unreadableTTL)
		return nil, nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err), err == nil && ref.UID != "" && w.UID != ref.UID:
		w = nil
	case err != nil:
		return nil, fmt.Errorf("read %s %q: %w", ref.Kind, ref.Name, err)
	}
	c.unwatched.Add(k, w, w.Bytes(), unwatchedTTL)
	return w, nil
}

// readTemplate reads a workload with the labels of its pod template, by which policies select.
func readTemplate(ctx context.Context, from client.Reader, namespace string, ref world.Ref, gvk schema.GroupVersionKind) (*world.Workload, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, u); err != nil {
		return nil, err
	}
	w := world.FromKept(ref, world.Keep(u))
	labels, found, err := unstructured.NestedStringMap(u.Object, "spec", "template", "metadata", "labels")
	w.TemplateLabels, w.Labelled = world.TemplateLabels(labels), found && err == nil
	w.SelectorKeys = selectorKeysOf(u)
	return w, nil
}

// selectorKeysOf returns the keys that the selector of an object of any kind names, or nil where it has none of the usual form.
func selectorKeysOf(u *unstructured.Unstructured) []string {
	of, _, err := unstructured.NestedMap(u.Object, "spec", "selector")
	if err != nil || len(of) == 0 {
		return nil
	}
	var s metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(of, &s, true) != nil {
		return slices.Sorted(maps.Keys(of)) // of a ReplicationController
	}
	return world.SelectorKeys(&s)
}

// serves reports whether the API server has a kind. To look up a kind that nobody has asked for may take a discovery. All such
// kinds wait for it, and no context ends it. So an object of the kind is read for it once, in a lane of its own. That a kind is not served holds while it
// cannot be looked up again: where tenants name more kinds than may be looked up, all of their workloads would fail for ever.
func (c *Cache) serves(ctx context.Context, who Asker, namespace string, ref world.Ref, gvk schema.GroupVersionKind) (bool, error) {
	if c.kinds.limit == nil {
		return true, nil
	}
	entry, _ := c.served.Get(gvk)
	was, known := entry.(kindKnown)
	if ttl := was.ttl; known {
		if c.policies.names(ref) && !was.served {
			ttl = min(ttl, namedTTL)
		}
		if c.clock.Now().Before(was.at.Add(ttl)) {
			return was.served, nil
		}
	}
	served, err := readUncached(ctx, c, c.kinds, who, readKey{what: "kind", ref: kindOnly(ref)}, func(ctx context.Context) (bool, error) {
		err := c.uncached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, metadataOf(gvk))
		switch {
		case meta.IsNoMatchError(err):
			return false, nil
		case err == nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return true, nil
		}
		return false, err
	})
	if err != nil && known && !was.served {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	ttl := unservedTTL
	switch {
	case served:
		ttl = servedTTL
	case known && !was.served:
		ttl = min(4*was.ttl, mostUnservedTTL)
	}
	c.served.Add(gvk, kindKnown{served, c.clock.Now(), ttl}, servedTTL)
	return served, nil
}

// kindKnown is whether a kind was served at a time, and how long that is remembered.
type kindKnown struct {
	served bool
	at     time.Time
	ttl    time.Duration
}

// kindOnly is the kind of a reference, without an object.
func kindOnly(ref world.Ref) world.Ref { return world.Ref{APIVersion: ref.APIVersion, Kind: ref.Kind} }

// kindIn is what is remembered of a kind that may not be read. A Role may grant it in one namespace alone.
func kindIn(namespace string, ref world.Ref) readKey {
	return readKey{what: "kind", namespace: namespace, ref: kindOnly(ref)}
}

// MayRead implements [world.Snapshot].
func (c *Cache) MayRead(namespace string, ref world.Ref) bool {
	_, unreadable := c.unreadable.Get(kindIn(namespace, ref))
	return !unreadable
}
