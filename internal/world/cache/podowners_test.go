package cache

import (
	"context"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stowage-dev/stowage/internal/world"
)

// indexer adds indexes to a fake client, as a manager adds them to its cache.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, obj client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(obj, field, values)
	return nil
}

// made returns an object of a kind, with the UID of its name, that another object controls.
func made(gvk schema.GroupVersionKind, namespace, name, controllerAPI, controllerKind, controller string) client.Object {
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)}
	if controller != "" {
		m.OwnerReferences = []metav1.OwnerReference{
			{UID: "another", Kind: "Deployment"}, // owns it, too, but does not control it
			{APIVersion: controllerAPI, Kind: controllerKind, Name: controller, UID: types.UID(namespace + "/" + controller), Controller: new(true)},
		}
	}
	switch gvk.Kind {
	case "ReplicaSet":
		return &appsv1.ReplicaSet{ObjectMeta: m}
	case "StatefulSet":
		return &appsv1.StatefulSet{ObjectMeta: m}
	case "Deployment":
		return &appsv1.Deployment{ObjectMeta: m}
	case "Pod":
		return &corev1.Pod{ObjectMeta: m}
	}
	o := &metav1.PartialObjectMetadata{ObjectMeta: m}
	o.SetGroupVersionKind(gvk)
	return o
}

// From a workload, all that makes pods for it is found, through kinds that are watched and kinds that are not.
func TestPodOwners(t *testing.T) {
	apps := func(kind string) schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind(kind) }
	service, revision := schema.GroupVersionKind{Group: "serving.example", Version: "v1", Kind: "Service"}, schema.GroupVersionKind{Group: "serving.example", Version: "v1", Kind: "Revision"}
	known := scheme.Scheme
	for _, gvk := range []schema.GroupVersionKind{service, revision} {
		known.AddKnownTypeWithName(gvk, &metav1.PartialObjectMetadata{})
	}
	b := fake.NewClientBuilder().WithScheme(known).WithObjects(
		made(apps("Deployment"), "ns", "web", "", "", ""),
		made(apps("ReplicaSet"), "ns", "web-1", "apps/v1", "Deployment", "web"), made(apps("ReplicaSet"), "ns", "web-2", "apps/v1", "Deployment", "web"),
		made(apps("ReplicaSet"), "ns", "other-1", "apps/v1", "Deployment", "other"), made(apps("ReplicaSet"), "other", "web-1", "apps/v1", "Deployment", "web"),
		made(apps("ReplicaSet"), "ns", "alone", "", "", ""),
		// A StatefulSet's pods own others.
		made(apps("StatefulSet"), "ns", "leader", "", "", ""), made(corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "leader-0", "apps/v1", "StatefulSet", "leader"),
		made(apps("StatefulSet"), "ns", "workers", "v1", "Pod", "leader-0"),
		// Two kinds that are not watched stand above a Deployment.
		made(service, "ns", "shop", "", "", ""), made(revision, "ns", "shop-1", "serving.example/v1", "Service", "shop"),
		made(apps("Deployment"), "ns", "shop-1-d", "serving.example/v1", "Revision", "shop-1"), made(apps("ReplicaSet"), "ns", "shop-1-rs", "apps/v1", "Deployment", "shop-1-d"),
	)
	if err := AddIndexes(t.Context(), indexer{b}); err != nil {
		t.Fatal(err)
	}
	c := b.Build()
	cache := New(c, c, clock.RealClock{}, Limits{Timeout: time.Second})
	ref := func(apiVersion, kind, name string) world.Ref {
		return world.Ref{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("ns/" + name)}
	}
	for name, tc := range map[string]struct {
		top  world.Ref
		want []types.UID
	}{
		"a Deployment":                        {ref("apps/v1", "Deployment", "web"), []types.UID{"ns/web-1", "ns/web-2"}},
		"a Deployment by name":                {world.Ref{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, []types.UID{"ns/web-1", "ns/web-2"}},
		"one that is not there":               {ref("apps/v1", "Deployment", "none"), nil},
		"a ReplicaSet":                        {ref("apps/v1", "ReplicaSet", "alone"), []types.UID{"ns/alone"}},
		"a StatefulSet whose pods own others": {ref("apps/v1", "StatefulSet", "leader"), []types.UID{"ns/leader", "ns/workers"}},
		"a kind that is not watched":          {ref("serving.example/v1", "Revision", "shop-1"), []types.UID{"ns/shop-1-rs"}},
		"and what stands above it":            {ref("serving.example/v1", "Service", "shop"), []types.UID{"ns/shop-1-rs"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := cache.PodOwners(t.Context(), "ns", tc.top)
			if err != nil {
				t.Fatal(err)
			}
			var uids []types.UID
			for _, w := range got {
				uids = append(uids, w.UID)
				if w.Replicas < 0 {
					t.Errorf("%s asks for %d pods", w.UID, w.Replicas)
				}
			}
			if slices.Sort(uids); !slices.Equal(uids, tc.want) {
				t.Errorf("owners %v, want %v", uids, tc.want)
			}
		})
	}
}

// A workload has the version of its object. Another one in a reference is a sign that the owner is made up.
func TestVersionOfTheObject(t *testing.T) {
	b := fake.NewClientBuilder()
	for _, kind := range []string{"ReplicaSet", "StatefulSet"} {
		b.WithObjects(made(appsv1.SchemeGroupVersion.WithKind(kind), "ns", "web", "", "", ""))
	}
	c := b.Build()
	for name, cache := range map[string]*Cache{
		"watched":     New(c, fake.NewClientBuilder().Build(), clock.RealClock{}, Limits{Timeout: time.Second}),
		"not watched": New(fake.NewClientBuilder().Build(), c, clock.RealClock{}, Limits{Timeout: time.Second}),
	} {
		for _, kind := range []string{"ReplicaSet", "StatefulSet"} {
			w, err := cache.Workload(t.Context(), "ns", world.Ref{APIVersion: "apps/v9", Kind: kind, Name: "web", UID: "ns/web"})
			if err != nil || w == nil || w.APIVersion != "apps/v1" {
				t.Errorf("%s, %s: %+v, %v", name, kind, w, err)
			}
		}
	}
}
