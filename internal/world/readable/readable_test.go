package readable

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/world"
)

// server is an API server with some kinds, of whose objects an account may get some.
type server struct {
	discovery.ServerResourcesInterface
	kinds  map[stowage.OwnerKind]string // the names of their resources
	others []*metav1.APIResourceList    // further ones
	silent []string                     // groups that do not answer
	down   error
	// allowed are the resources that may be read, with the namespace in front where the right is for that one alone.
	allowed map[string]bool

	discoveries, reviews int
	verbs                map[string]bool
}

func (s *server) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	s.discoveries++
	if s.down != nil {
		return nil, nil, s.down
	}
	lists := slices.Clone(s.others)
	for of, resource := range s.kinds {
		if slices.Contains(s.silent, of.Group) {
			continue
		}
		lists = append(lists, &metav1.APIResourceList{GroupVersion: of.Group + "/v1", APIResources: []metav1.APIResource{
			{Name: resource + "/scale", Kind: "Scale"}, {Name: resource, Kind: of.Kind}, {Name: resource + "/status", Kind: of.Kind},
		}})
	}
	if len(s.silent) == 0 {
		return nil, lists, nil
	}
	failed := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{}}
	for _, group := range s.silent {
		failed.Groups[schema.GroupVersion{Group: group, Version: "v1"}] = errors.New("no answer")
	}
	return nil, lists, failed
}

func (s *server) review(action clienttesting.Action) (bool, runtime.Object, error) {
	s.reviews++
	review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
	of := review.Spec.ResourceAttributes
	s.verbs[of.Verb] = true
	name := schema.GroupResource{Group: of.Group, Resource: strings.TrimSuffix(of.Resource+"/"+of.Subresource, "/")}.String()
	review.Status.Allowed = s.allowed[name] || s.allowed[of.Namespace+" "+name]
	return true, review, s.down
}

func newKinds(s *server) (*Kinds, *clocktesting.FakePassiveClock) {
	set, c := fake.NewClientset(), clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	set.PrependReactor("create", "selfsubjectaccessreviews", s.review)
	s.verbs = map[string]bool{}
	return New(s, set.AuthorizationV1().SelfSubjectAccessReviews(), c), c
}

// naming is a SpreadPolicy that names kinds, or a ClusterSpreadPolicy where it has no namespace.
func naming(namespace string, kinds ...stowage.OwnerKind) *world.Policies {
	spec := stowage.SpreadPolicySpec{Kinds: kinds}
	if namespace == "" {
		return &world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{{Spec: stowage.ClusterSpreadPolicySpec{SpreadPolicySpec: spec}}}}
	}
	return &world.Policies{Namespaced: []*stowage.SpreadPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: spec}}}
}

const tick = 5 * time.Second

var pipelines = stowage.OwnerKind{Group: "example.net", Kind: "PipelineSet"}

// after looks every few seconds until a condition holds, and returns how long that took.
func after(t *testing.T, k *Kinds, c *clocktesting.FakePassiveClock, of *world.Policies, holds func() bool) time.Duration {
	t.Helper()
	for begin := c.Now(); ; c.SetTime(c.Now().Add(tick)) {
		took := c.Now().Sub(begin)
		if k.Look(t.Context(), of); holds() {
			return took
		}
		if took > time.Hour {
			t.Fatal("it is not noticed within an hour")
		}
	}
}

// What may be read, and which kinds there are, is known at the first look. A change is noticed within a minute, and costs few requests.
func TestChangesAreNoticed(t *testing.T) {
	both := map[string]bool{"pipelinesets.example.net": true, "pipelinesets/scale.example.net": true}
	s := &server{kinds: map[stowage.OwnerKind]string{pipelines: "pipelinesets"}, allowed: map[string]bool{"pipelinesets/scale.example.net": true}}
	k, c := newKinds(s)
	of := naming("", pipelines)
	unreadable := func() []stowage.UnreadableKind { return k.Unreadable("", of.Cluster[0].Spec.Kinds) }
	lacks := []stowage.UnreadableKind{{OwnerKind: pipelines, Lacks: []string{"pipelinesets.example.net"}}}
	if got := unreadable(); got != nil {
		t.Errorf("before the first look, %v cannot be read", got)
	}
	if changed := k.Look(t.Context(), of); !changed {
		t.Error("the first look has changed nothing")
	}
	if diff := cmp.Diff(lacks, unreadable()); diff != "" {
		t.Errorf("a kind that may not be read (-want +got):\n%s", diff)
	}
	for _, step := range []struct {
		name    string
		allowed map[string]bool
		want    []stowage.UnreadableKind
	}{
		{"a grant", both, nil},
		{"a grant that is withdrawn", map[string]bool{"pipelinesets/scale.example.net": true}, lacks},
		{"another grant", both, nil},
	} {
		s.allowed = step.allowed
		if took := after(t, k, c, of, func() bool { return cmp.Equal(unreadable(), step.want) }); took > time.Minute {
			t.Errorf("%s is noticed after %s", step.name, took)
		}
	}
	before, discoveries := s.reviews, s.discoveries
	for range 120 { // ten minutes
		c.SetTime(c.Now().Add(tick))
		k.Look(t.Context(), of)
	}
	if asked := s.reviews - before; asked > 41 || asked < 20 {
		t.Errorf("one kind costs %d reviews in ten minutes", asked)
	}
	if asked := s.discoveries - discoveries; asked > 1 {
		t.Errorf("kinds that the API server has cost %d discoveries in ten minutes", asked)
	}
	if len(s.verbs) != 1 || !s.verbs["get"] {
		t.Errorf("the verbs %v are asked for, and get is enough", s.verbs)
	}

	// A kind that is installed later.
	k, c = newKinds(s)
	s.kinds, s.allowed = nil, nil
	k.Look(t.Context(), of)
	if diff := cmp.Diff([]stowage.UnreadableKind{{OwnerKind: pipelines}}, unreadable()); diff != "" {
		t.Errorf("a kind that is not installed (-want +got):\n%s", diff)
	}
	c.SetTime(c.Now().Add(time.Hour))
	k.Look(t.Context(), of)
	s.kinds, s.allowed = map[stowage.OwnerKind]string{pipelines: "pipelinesets"}, both
	if took := after(t, k, c, of, func() bool { return unreadable() == nil }); took > time.Minute {
		t.Errorf("that it is installed is noticed after %s", took)
	}

	// No policy names it any more.
	if k.Look(t.Context(), &world.Policies{}); len(k.resources)+len(k.answers) > 0 || unreadable() != nil {
		t.Errorf("it is remembered: %v, %v", k.resources, k.answers)
	}
}

// What an account may read, by where it may.
func TestUnreadable(t *testing.T) {
	const resource, scale = "pipelinesets.example.net", "pipelinesets/scale.example.net"
	all := []string{resource, scale}
	others := []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "secrets", Kind: "Secret"}, {Name: "secrets/status", Kind: "Secret"}, {Name: "secretscale", Kind: "Secretscale"},
			{Name: "replicationcontrollers", Kind: "ReplicationController"}, {Name: "replicationcontrollers/scale", Kind: "Scale", Group: "autoscaling"},
		}},
		{GroupVersion: "example.net/v2", APIResources: []metav1.APIResource{
			{Name: "odds", Kind: "Odd"}, {Name: "odds/scale/status", Kind: "Odd"}, {Name: "twos", Kind: "Two"}, {Name: "twinsets", Kind: "Twin"}, {Name: "twins", Kind: "Twin"}, {Name: "twins/scale", Kind: "Scale"},
		}},
		{GroupVersion: "example.net/v1", APIResources: []metav1.APIResource{{Name: "twos", Kind: "Two"}, {Name: "twos/scale", Kind: "Scale"}}},
	}
	for name, tc := range map[string]struct {
		allowed   []string
		namespace string // of the policy
		kind      stowage.OwnerKind
		silent    []string
		down      error
		want      []string // lacks
		absent    bool
	}{
		"in all namespaces":                        {allowed: all, kind: pipelines},
		"nowhere":                                  {kind: pipelines, want: all},
		"nowhere, by a SpreadPolicy":               {kind: pipelines, namespace: "a", want: all},
		"in the policy's namespace":                {allowed: []string{"a " + resource, "a " + scale}, namespace: "a", kind: pipelines},
		"in another namespace":                     {allowed: []string{"b " + resource, scale}, namespace: "a", kind: pipelines, want: []string{resource}},
		"in one namespace, and the policy has all": {allowed: []string{"a " + resource, scale}, kind: pipelines, want: []string{resource}},
		"without its scale":                        {allowed: []string{resource}, kind: pipelines, want: []string{scale}},
		"a kind that is watched":                   {kind: stowage.OwnerKind{Group: "apps", Kind: "StatefulSet"}},
		"a kind of a group that has others":        {allowed: all, kind: stowage.OwnerKind{Group: "example.net", Kind: "Other"}, absent: true},
		"a group that there is not":                {kind: stowage.OwnerKind{Group: "gone.example.net", Kind: "PipelineSet"}, absent: true},
		"a kind without a scale":                   {kind: stowage.OwnerKind{Kind: "Secret"}, namespace: "a", absent: true},
		"the scale of another resource":            {kind: stowage.OwnerKind{Kind: "Secretscale"}, absent: true},
		"a subresource of a scale":                 {kind: stowage.OwnerKind{Group: "example.net", Kind: "Odd"}, absent: true},
		"a scale in another version":               {kind: stowage.OwnerKind{Group: "example.net", Kind: "Two"}, want: []string{"twos.example.net", "twos/scale.example.net"}},
		"a kind that two resources have":           {kind: stowage.OwnerKind{Group: "example.net", Kind: "Twin"}, want: []string{"twins.example.net", "twins/scale.example.net"}},
		"a kind of the core group with a scale":    {kind: stowage.OwnerKind{Kind: "ReplicationController"}, want: []string{"replicationcontrollers", "replicationcontrollers/scale"}},
		"a group that does not answer":             {kind: pipelines, silent: []string{"example.net"}},
		"another group does not answer":            {kind: pipelines, silent: []string{"metrics.example.net"}, want: all},
		"an API server that does not answer":       {kind: pipelines, down: errors.New("no answer")},
	} {
		s := &server{kinds: map[stowage.OwnerKind]string{pipelines: "pipelinesets"}, others: others, allowed: map[string]bool{}, silent: tc.silent, down: tc.down}
		for _, a := range tc.allowed {
			s.allowed[a] = true
		}
		k, _ := newKinds(s)
		of := naming(tc.namespace, tc.kind)
		k.Look(t.Context(), of)
		var want []stowage.UnreadableKind
		if len(tc.want) > 0 || tc.absent {
			want = []stowage.UnreadableKind{{OwnerKind: tc.kind, Lacks: tc.want}}
		}
		if diff := cmp.Diff(want, k.Unreadable(tc.namespace, []stowage.OwnerKind{tc.kind})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for namespace, concerned := range map[string]bool{tc.namespace: true, "other": tc.namespace == ""} {
			var want []string
			if concerned {
				want = tc.want
			}
			if diff := cmp.Diff(want, k.Lacks(of, namespace)); diff != "" {
				t.Errorf("%s: all that is lacking for namespace %q (-want +got):\n%s", name, namespace, diff)
			}
		}
	}
}

// A tenant whose policies name hundreds of kinds costs no more than the rates, and the kind of another tenant is asked about in time.
func TestManyKinds(t *testing.T) {
	for name, there := range map[string]bool{"kinds that are invented": false, "kinds that there are": true} {
		t.Run(name, func(t *testing.T) {
			s := &server{kinds: map[stowage.OwnerKind]string{pipelines: "pipelinesets"}, allowed: map[string]bool{}}
			of := naming("z", pipelines)
			for i := range 40 {
				var kinds []stowage.OwnerKind
				for n := range 8 {
					kind := stowage.OwnerKind{Group: fmt.Sprintf("g%d.example.com", i), Kind: fmt.Sprintf("Kind%d", n)}
					if kinds = append(kinds, kind); there {
						s.kinds[kind] = strings.ToLower(kind.Kind) + "s"
					}
				}
				of.Namespaced = append(of.Namespaced, naming("tenant", kinds...).Namespaced...)
			}
			k, c := newKinds(s)
			readable := func() bool { return k.Unreadable("z", []stowage.OwnerKind{pipelines}) == nil }
			for range 120 { // ten minutes
				k.Look(t.Context(), of)
				c.SetTime(c.Now().Add(tick))
			}
			if s.discoveries > 31 {
				t.Errorf("%d discoveries in ten minutes", s.discoveries)
			}
			if most := reviewBurst + 600*reviewRate; s.reviews > most || !there && s.reviews > 200 {
				t.Errorf("%d reviews in ten minutes", s.reviews)
			}
			if readable() {
				t.Fatal("the kind of another tenant was not asked about")
			}
			s.allowed["z pipelinesets.example.net"], s.allowed["z pipelinesets/scale.example.net"] = true, true
			if took := after(t, k, c, of, readable); took > time.Minute {
				t.Errorf("the grant of another tenant is noticed after %s", took)
			}
		})
	}
}
