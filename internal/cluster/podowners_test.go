package cluster

import (
	"context"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// indexer adds indexes to a fake client, as a manager adds them to its cache.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, obj client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(obj, field, values)
	return nil
}

func TestSiblings(t *testing.T) {
	set := func(namespace, name string, controller types.UID) *appsv1.ReplicaSet {
		s := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)}}
		if controller != "" {
			s.OwnerReferences = []metav1.OwnerReference{
				{UID: "another", Kind: "Deployment"}, // owns it, too, but does not control it
				{UID: controller, Kind: "Deployment", Controller: new(true)},
			}
		}
		return s
	}
	b := fake.NewClientBuilder().WithObjects(
		set("ns", "a", "web"), set("ns", "b", "web"), set("ns", "c", "web"), set("ns", "d", "another"), set("ns", "e", ""), set("other", "a", "web"),
	)
	if err := AddIndexes(t.Context(), indexer{b}); err != nil {
		t.Fatal(err)
	}
	c := b.Build()
	cache := NewCache(c, c, clock.RealClock{}, Limits{Timeout: time.Second})
	for name, tc := range map[string]struct {
		of   *appsv1.ReplicaSet
		want []types.UID
	}{
		"of three":     {set("ns", "a", "web"), []types.UID{"ns/b", "ns/c"}},
		"of one":       {set("ns", "d", "another"), nil},
		"of nobody":    {set("ns", "e", ""), nil},
		"elsewhere":    {set("other", "a", "web"), nil},
		"of a new one": {set("ns", "new", "web"), []types.UID{"ns/a", "ns/b", "ns/c"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := cache.Siblings(t.Context(), fromReplicaSet(tc.of))
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
				t.Errorf("siblings %v, want %v", uids, tc.want)
			}
		})
	}
}
