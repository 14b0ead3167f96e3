package policy

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// steady is a world whose policies stay the same objects, as those of the cache do until one of them changes.
type steady struct {
	*manifests.Snapshot
	policies map[string]*world.Policies // by namespace; those of the cluster have none
}

// Policies implements [world.Snapshot].
func (s *steady) Policies(_ context.Context, namespace string) (*world.Policies, error) {
	return s.policies[namespace], nil
}

// source returns what divides the pods of an owner.
func source(t *testing.T, f *Finder, namespace string, owner world.Ref) string {
	t.Helper()
	p, err := f.Find(t.Context(), Pod{Namespace: namespace, Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return ""
	}
	return p.Source
}

// The policy of an owner is remembered, but not beyond a change of the labels by which policies select it. No policy changes here.
func TestRememberedChoice(t *testing.T) {
	label := func(key, value string) stowage.Selector {
		return stowage.Selector{MatchLabels: map[string]versprei.LabelValue{key: versprei.LabelValue(value)}}
	}
	var cluster []*stowage.ClusterSpreadPolicy
	for _, team := range []string{"web", "db"} {
		p := clusterPolicy(team, 0)
		p.Spec.NamespaceSelector = label("team", team)
		cluster = append(cluster, p)
	}
	tier := func(name string) *stowage.SpreadPolicy {
		return spreadPolicy("tier-"+name, 0, func(s *stowage.SpreadPolicySpec) { s.Selector = label("tier", name) })
	}
	type side struct {
		namespace, template map[string]string
		want                string
	}
	team := func(name string) map[string]string { return map[string]string{"team": name} }
	of := func(name string) map[string]string { return map[string]string{"tier": name} }
	for name, tc := range map[string]struct{ before, after side }{
		"nothing":                            {side{team("web"), of("0"), "ClusterSpreadPolicy web"}, side{team("web"), of("0"), "ClusterSpreadPolicy web"}},
		"another label of the namespace":     {side{team("web"), of("0"), "ClusterSpreadPolicy web"}, side{team("db"), of("0"), "ClusterSpreadPolicy db"}},
		"the namespace loses its label":      {side{team("web"), of("0"), "ClusterSpreadPolicy web"}, side{nil, of("0"), ""}},
		"the namespace gets a label":         {side{nil, of("0"), ""}, side{team("db"), of("0"), "ClusterSpreadPolicy db"}},
		"another label of the template":      {side{team("web"), of("1"), "SpreadPolicy tier-1"}, side{team("web"), of("2"), "SpreadPolicy tier-2"}},
		"the template loses its label":       {side{team("web"), of("1"), "SpreadPolicy tier-1"}, side{team("web"), nil, "ClusterSpreadPolicy web"}},
		"the template gets a label":          {side{nil, nil, ""}, side{nil, of("1"), "SpreadPolicy tier-1"}},
		"both, of which one decides no more": {side{team("web"), of("1"), "SpreadPolicy tier-1"}, side{team("db"), of("0"), "ClusterSpreadPolicy db"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &steady{policies: map[string]*world.Policies{"": {Cluster: cluster}, "ns": {Namespaced: []*stowage.SpreadPolicy{tier("1"), tier("2")}}}}
			f, owner := NewFinder(s, Settings{}), ref("ReplicaSet", "web-1")
			owner.UID = "rs"
			for step, is := range []side{tc.before, tc.after} {
				s.Snapshot = manifests.New(world.Objects{
					Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: is.namespace}}},
					Workloads:  replicaSet(is.template, nil),
				})
				for range 2 { // the second answer may come from memory
					if diff := cmp.Diff(is.want, source(t, f, "ns", owner)); diff != "" {
						t.Errorf("step %d: the policy (-want +got):\n%s", step, diff)
					}
				}
				if _, ok := f.chosen.Get(ledger.OwnerKey{Namespace: "ns", UID: "rs"}); !ok {
					t.Errorf("step %d: nothing is remembered", step)
				}
			}
		})
	}
}

// What is remembered of one owner says nothing of another one: of one with the same UID in another namespace, or of one without a UID. The
// policy divides pods of ReplicaSets alone.
func TestChoiceOfAnotherOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		uid       types.UID
		namespace string // of the other owner
	}{
		"of another namespace": {"uid", "other"},
		"without a UID":        {"", "ns"},
	} {
		t.Run(name, func(t *testing.T) {
			rs, set := ref("ReplicaSet", "web"), ref("StatefulSet", "web")
			rs.UID, set.UID = tc.uid, tc.uid
			s := &steady{policies: map[string]*world.Policies{"": {Cluster: []*stowage.ClusterSpreadPolicy{clusterPolicy("all", 0)}}}}
			s.Snapshot = manifests.New(world.Objects{Workloads: []*world.Workload{{Ref: rs, Namespace: "ns", Labelled: true}, {Ref: set, Namespace: tc.namespace, Labelled: true}}})
			f := NewFinder(s, Settings{})
			for range 2 {
				got := []string{source(t, f, "ns", rs), source(t, f, tc.namespace, set)}
				if diff := cmp.Diff([]string{"ClusterSpreadPolicy all", ""}, got); diff != "" {
					t.Errorf("the policies of both (-want +got):\n%s", diff)
				}
			}
		})
	}
}
