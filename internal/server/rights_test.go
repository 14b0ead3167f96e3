package server

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// granted returns the rules of the ClusterRoles of config/rbac.
func granted(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for part := range bytes.SplitSeq(text, []byte("---\n")) {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal(part, &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "ClusterRole" {
			rules = append(rules, role.Rules...)
		}
	}
	return rules
}

// What a process is asked for is what its roles grant, or a sound installation would be reported. Only a process that runs the controllers has to write
// more than seats.
func TestWritesAreGranted(t *testing.T) {
	rules := granted(t)
	for _, need := range writesOf(worldcache.Features{Spread: true, Sizing: true, PeerPods: true, Capacity: true, Webhook: true, Controllers: true}) {
		resource := need.resource
		if need.subresource != "" {
			resource += "/" + need.subresource
		}
		if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Verbs, need.verb) && slices.Contains(r.APIGroups, need.group) && slices.Contains(r.Resources, resource) && len(r.ResourceNames) == 0
		}) {
			t.Errorf("no ClusterRole grants %s of group %q", need, need.group)
		}
	}
	for on, want := range map[worldcache.Features]string{
		{Spread: true, Sizing: true, Webhook: true}: "update-seatledgers", {Sizing: true, Webhook: true}: "",
		{Sizing: true, Controllers: true}:                   "patch-pods create-pods/eviction patch-pods/resize patch-flexdaemonsettemplates/status",
		{PeerPods: true, Capacity: true, Controllers: true}: "patch-vmcatalogs/status create-pods/eviction patch-nodes/status",
	} {
		var got []string
		for _, need := range writesOf(on) {
			got = append(got, need.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("with %+v, a process has to %q, want %q", on, got, want)
		}
	}
}

// What a process lacks is asked for once in a while, and the leader tells what it has found, without a request. A right that nobody could tell about is
// not reported.
func TestRights(t *testing.T) {
	set, now := fake.NewClientset(), clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	var lacks []string
	var down error
	asked := 0
	set.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		of := review.Spec.ResourceAttributes
		review.Status.Allowed = !slices.Contains(lacks, strings.Trim(of.Verb+" "+of.Resource+"/"+of.Subresource, "/"))
		return true, review, down
	})
	r := &rights{reviews: set.AuthorizationV1().SelfSubjectAccessReviews(), clock: now, log: logr.Discard(), needs: []right{
		{"list", "apps", "deployments", ""}, {"patch", "", "pods", ""}, {"create", "", "pods", "eviction"},
	}}
	expect := func(when string, requests int, want ...string) {
		t.Helper()
		now.SetTime(now.Now().Add(rightsFor))
		before := asked
		if r.look(t.Context()); !slices.Equal(r.found(), want) || asked-before != requests {
			t.Errorf("%s, it lacks %v after %d requests, want %v after %d", when, r.found(), asked-before, want, requests)
		}
	}
	if got := r.found(); got != nil {
		t.Errorf("before the first look it lacks %v", got)
	}
	expect("with all", 3)
	lacks = []string{"patch pods", "create pods/eviction"}
	expect("without some", 3, "patch-pods", "create-pods/eviction")
	before := asked
	if got := r.Lacks(t.Context()); len(got) != 2 || asked != before {
		t.Errorf("a moment later it lacks %v, after %d requests", got, asked-before)
	}
	lacks = []string{"list deployments"}
	expect("without one to read", 3, "deployments.apps")
	down = errors.New("no answer")
	expect("while nobody answers", 1)
	down, lacks = nil, nil
	expect("with all again", 3)
}
