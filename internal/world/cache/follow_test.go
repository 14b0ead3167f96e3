package cache

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// watch is an informer whose events the test makes.
type watch struct {
	crcache.Informer
	toolscache.ResourceEventHandler
	synced bool
	err    error
}

func (w *watch) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	w.ResourceEventHandler = h
	return w, w.err
}

func (w *watch) HasSynced() bool { return w.synced }

func (w *watch) HasSyncedChecker() toolscache.DoneChecker { return nil }

// watches are such informers, by the kind. Waited says that somebody would have waited for the first list.
type watches struct {
	crcache.Informers
	of     map[string]*watch
	err    error
	waited bool
}

func (w *watches) GetInformer(_ context.Context, o client.Object, opts ...crcache.InformerGetOption) (crcache.Informer, error) {
	var got crcache.InformerGetOptions
	for _, opt := range opts {
		opt(&got)
	}
	w.waited = w.waited || got.BlockUntilSynced == nil || *got.BlockUntilSynced
	return w.of[fmt.Sprintf("%T", o)], w.err
}

// Policies follow their watches, and are known once both have been listed. Nobody waits for that.
func TestFollowPolicies(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(stowage.GroupVersion.WithKind("ClusterSpreadPolicy"), meta.RESTScopeRoot)
	namespaced, cluster := &watch{}, &watch{}
	informers := &watches{of: map[string]*watch{"*v1alpha1.SpreadPolicy": namespaced, "*v1alpha1.ClusterSpreadPolicy": cluster}}
	c := New(nil, nil, clock.RealClock{}, Limits{})

	// 1. What fails is said, and is tried again.
	informers.err = errors.New("no informer")
	if served, err := c.FollowPolicies(t.Context(), mapper, informers); served || err == nil {
		t.Errorf("served %t, %v", served, err)
	}
	informers.err, cluster.err, namespaced.err = nil, errors.New("stopped"), errors.New("stopped")
	if served, err := c.FollowPolicies(t.Context(), mapper, informers); served || err == nil {
		t.Errorf("served %t, %v", served, err)
	}
	if synced, served := c.PoliciesSynced(); synced || served {
		t.Errorf("nothing is watched: synced %t, served %t", synced, served)
	}
	cluster.err, namespaced.err = nil, nil
	if served, err := c.FollowPolicies(t.Context(), mapper, informers); !served || err != nil {
		t.Fatalf("served %t, %v", served, err)
	}
	if informers.waited {
		t.Error("somebody waits for the first list")
	}

	// 2. Are they known?
	for _, tc := range []struct{ namespaced, cluster, want bool }{{false, false, false}, {true, false, false}, {false, true, false}, {true, true, true}} {
		namespaced.synced, cluster.synced = tc.namespaced, tc.cluster
		if synced, served := c.PoliciesSynced(); synced != tc.want || !served {
			t.Errorf("%+v: synced %t, served %t", tc, synced, served)
		}
	}

	// 3. Events. The transform has seen a SpreadPolicy before its event.
	small := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}, Spec: stowage.SpreadPolicySpec{Pools: []stowage.PolicyPool{{Name: "a"}}}}
	kept := c.policies.keep(small)
	wide := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "w", UID: "w", Generation: 1}}
	cluster.OnAdd(wide, true)
	edited := wide.DeepCopy()
	edited.Generation = 2
	cluster.OnUpdate(wide, edited)
	if all := c.AllPolicies(); len(all.Namespaced) != 1 || len(all.Cluster) != 1 || all.Cluster[0].Generation != 2 {
		t.Errorf("the policies are %+v", all)
	}
	namespaced.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: kept})
	cluster.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: edited})
	namespaced.OnDelete("nothing that is known")
	if all := c.AllPolicies(); len(all.Namespaced) != 0 || len(all.Cluster) != 0 {
		t.Errorf("the policies are %+v", all)
	}
}

// What is known of SpreadPolicies follows each version once, in their order, whatever else comes between.
func TestVersionsOfPolicies(t *testing.T) {
	c := New(nil, nil, clock.RealClock{}, Limits{})
	p := c.policies
	clone := world.Ref{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet"}
	of := func(name, uid string, generation int64) *stowage.SpreadPolicy {
		return &stowage.SpreadPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), Generation: generation},
			Spec:       stowage.SpreadPolicySpec{Pools: []stowage.PolicyPool{{Name: fmt.Sprint(uid, generation)}}, Kinds: []stowage.OwnerKind{{Group: "apps.kruise.io", Kind: "CloneSet"}}},
		}
	}
	check := func(moment string, named bool, want ...string) {
		t.Helper()
		var got []string
		if now := p.of["ns"]; now != nil {
			for _, o := range now.Namespaced {
				got = append(got, o.Name+" "+o.Spec.Pools[0].Name)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || p.names(clone) != named {
			t.Errorf("%s, the policies are %v, want %v; their kind is named: %t", moment, got, want, p.names(clone))
		}
	}
	a := of("a", "a", 2)
	p.keep(p.keep(a)) // the informer's own copy comes through the transform again
	p.keep(of("b", "b", 1))
	check("two", true, "a a2", "b b1")
	p.keep(of("a", "a", 1))
	check("an earlier version comes late", true, "a a2", "b b1")
	p.keep(of("a", "a", 3))
	check("the next version", true, "a a3", "b b1")
	p.keep(of("b", "again", 1))
	check("one is made again", true, "a a3", "b again1")
	p.gone(of("b", "b", 1))
	p.gone(of("c", "c", 1))
	p.gone(&stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "b", UID: "b"}})
	check("and the former one is gone", true, "a a3", "b again1")
	p.gone(of("a", "a", 3))
	check("one is gone", true, "b again1")
	p.keep(of("a", "new", 1))
	check("and made again", true, "a new1", "b again1")

	// The spec of the first one is not known, as of one that has just come to count.
	delete(p.ranked["ns"].whole, "a")
	p.keep(of("b", "again", 2))
	check("one has to be read", true, "b again2")
	if lacking := p.lacking(); len(lacking) != 1 || lacking[0].Name != "a" || len(p.missing) != 1 {
		t.Errorf("%v are to be read", lacking)
	}
	p.gone(of("b", "again", 2))
	check("nothing that is known", false)
	p.gone(of("a", "new", 1))
	if len(p.ranked)+len(p.of)+len(p.kinds) > 0 {
		t.Errorf("%v, %v and %v are left", p.ranked, p.of, p.kinds)
	}
	if all := PoliciesOf([]stowage.SpreadPolicy{*a}, []stowage.ClusterSpreadPolicy{{}}); all == nil || len(all.Namespaced) != 1 || len(all.Cluster) != 1 {
		t.Errorf("of one each: %+v", all)
	}
}
