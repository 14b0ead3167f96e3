package world_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

func ref(kind, name, uid string) world.Ref {
	return world.Ref{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(uid)}
}

// tree is a Deployment with two ReplicaSets, beside another Deployment and one of a kind that may not be read.
func tree() (s *manifests.Snapshot, all []*world.Workload) {
	web, other := ref("Deployment", "web", "d"), ref("Deployment", "other", "o")
	custom := world.Ref{APIVersion: "example.com/v1", Kind: "Thing", Name: "thing", UID: "t"}
	all = []*world.Workload{
		{Ref: web, Namespace: "ns"}, {Ref: other, Namespace: "ns"},
		{Ref: ref("ReplicaSet", "web-1", "1"), Namespace: "ns", Controller: &web}, {Ref: ref("ReplicaSet", "web-2", "2"), Namespace: "ns", Controller: &web},
		{Ref: ref("ReplicaSet", "other-1", "3"), Namespace: "ns", Controller: &other}, {Ref: ref("ReplicaSet", "made", "4"), Namespace: "ns", Controller: &custom},
	}
	return manifests.New(world.Objects{Workloads: all}), all
}

// A chain goes up from what makes the pods, for as long as objects are known. Its root is named though it is not.
func TestOwners(t *testing.T) {
	s, all := tree()
	for bottom, want := range map[string]string{"web-1": "web", "made": "thing", "gone": "gone"} {
		chain, err := world.Owners(t.Context(), s, "ns", ref("ReplicaSet", bottom, ""))
		if err != nil || chain.Root().Name != want {
			t.Errorf("above %s is %s, %v; want %s", bottom, chain.Root().Name, err, want)
		}
		if known := bottom != "gone"; (chain.Bottom() != nil) != known || (chain.Top() != nil) != known {
			t.Errorf("%s is known: %v, %v", bottom, chain.Bottom(), chain.Top())
		}
		if bottom == "web-1" && chain.Top().Name != "web" || bottom == "made" && chain.Top().Name != "made" {
			t.Errorf("the uppermost that is known of %s is %s", bottom, chain.Top().Name)
		}
	}
	under, err := world.Under(t.Context(), s, world.Object{Namespace: "ns", Ref: ref("Deployment", "web", "")}, all)
	var names []string
	for _, w := range under {
		names = append(names, w.Name)
	}
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"web", "web-1", "web-2"}) {
		t.Errorf("below web are %v, %v", names, err)
	}

	// A loop of owners ends.
	a, b := ref("Deployment", "a", "a"), ref("Deployment", "b", "b")
	loop := manifests.New(world.Objects{Workloads: []*world.Workload{{Ref: a, Namespace: "ns", Controller: &b}, {Ref: b, Namespace: "ns", Controller: &a}}})
	if chain, err := world.Owners(t.Context(), loop, "ns", a); err != nil || len(chain.Workloads) != world.MaxDepth {
		t.Errorf("a loop has %d workloads, %v", len(chain.Workloads), err)
	}
	if _, err := world.Under(t.Context(), failing{s}, world.Object{Namespace: "ns", Ref: a}, all); err == nil {
		t.Error("where nothing can be read, a workload looks as if it had no pods")
	}
}

type failing struct{ *manifests.Snapshot }

func (failing) Workload(context.Context, string, world.Ref) (*world.Workload, error) {
	return nil, errors.New("no answer")
}

// The workload of pods is what keeps their template. An operator's object above it may have several workloads, whether Stowage may read it or not.
func TestWorkloadOfPods(t *testing.T) {
	at := func(version, kind, name string) world.Ref {
		return world.Ref{APIVersion: version, Kind: kind, Name: name, UID: types.UID(kind + name)}
	}
	kafka, thing := at("example.net/v1", "Kafka", "k"), at("example.net/v1", "Thing", "t")
	for name, tc := range map[string]struct {
		below          []world.Ref // from the bottom
		root, top, all string      // all is the uppermost that is known
		hidden         bool        // the last is not known
	}{
		"an operator's Deployment":             {below: []world.Ref{at("apps/v1", "ReplicaSet", "web-1"), at("apps/v1", "Deployment", "web"), kafka}, root: "web", top: "web", all: "k"},
		"an operator's that is not known":      {below: []world.Ref{at("apps/v1", "ReplicaSet", "web-1"), at("apps/v1", "Deployment", "web"), kafka}, root: "web", top: "web", all: "web", hidden: true},
		"an operator's StatefulSet":            {below: []world.Ref{at("apps/v1", "StatefulSet", "db"), kafka}, root: "db", top: "db", all: "k"},
		"an operator's Rollout":                {below: []world.Ref{at("apps/v1", "ReplicaSet", "web-1"), at("argoproj.io/v1alpha1", "Rollout", "web"), kafka}, root: "web", top: "web", all: "k"},
		"an operator's CloneSet":               {below: []world.Ref{at("apps.kruise.io/v1alpha1", "CloneSet", "web"), kafka}, root: "web", top: "web", all: "k"},
		"a Deployment that is not known":       {below: []world.Ref{at("apps/v1", "ReplicaSet", "web-1"), at("apps/v1", "Deployment", "web")}, root: "web", top: "web-1", all: "web-1", hidden: true},
		"an operator's own ReplicaSet":         {below: []world.Ref{at("apps/v1", "ReplicaSet", "made"), thing}, root: "t", top: "t", all: "t"},
		"a CronJob's Job":                      {below: []world.Ref{at("batch/v1", "Job", "n-1"), at("batch/v1", "CronJob", "n")}, root: "n", top: "n", all: "n"},
		"a Deployment of somebody else's kind": {below: []world.Ref{at("apps/v1", "ReplicaSet", "web-1"), at("example.net/v1", "Deployment", "web"), thing}, root: "t", top: "t", all: "t"},
	} {
		var known []*world.Workload
		for i, ref := range tc.below {
			w := &world.Workload{Ref: ref, Namespace: "ns"}
			if i+1 < len(tc.below) {
				w.Controller = &tc.below[i+1]
			} else if tc.hidden {
				continue
			}
			known = append(known, w)
		}
		chain, err := world.Owners(t.Context(), manifests.New(world.Objects{Workloads: known}), "ns", tc.below[0])
		if err != nil || chain.Root().Name != tc.root || chain.Top().Name != tc.top || chain.Highest().Name != tc.all {
			t.Errorf("%s: the workload is %s, known is %s, and %s above all; %v", name, chain.Root().Name, chain.Top().Name, chain.Highest().Name, err)
		}
	}
}

// Of several PodDistributors with one target the oldest wins, then the first name, in whatever version they name the target.
func TestWinner(t *testing.T) {
	at := func(name string, second int64, version string) versprei.PodDistributor {
		d := versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(second, 0)}}
		d.Spec.Target = versprei.Target{APIVersion: version, Kind: "Deployment", Name: "web"}
		return d
	}
	list := []versprei.PodDistributor{at("c", 7, "apps/v1"), at("b", 5, "apps/v1beta1"), at("a", 5, "apps/v1"), at("old", 1, "example.com/v1")}
	for _, tc := range []struct {
		targets []world.Ref
		want    string
	}{
		{[]world.Ref{ref("Deployment", "web", "")}, "a"}, {[]world.Ref{ref("ReplicaSet", "web", "")}, ""}, {[]world.Ref{ref("Deployment", "other", "")}, ""},
		{[]world.Ref{ref("ReplicaSet", "x", ""), ref("Deployment", "web", "")}, "a"},
	} {
		got := ""
		if d := world.Winner(list, tc.targets); d != nil {
			got = d.Name
		}
		if got != tc.want {
			t.Errorf("of %v, %q wins, want %q", tc.targets, got, tc.want)
		}
	}
	if target := world.TargetOf(&list[0]); target.Namespace != "ns" || target.Name != "web" || !target.SameObject(ref("Deployment", "web", "")) {
		t.Errorf("the target is %+v", target)
	}
}

// Policies have an order, and of a namespace's only the first hundred count, while there is room for their specs.
func TestCountingPolicies(t *testing.T) {
	of := func(name string, priority int32, second int64) *stowage.SpreadPolicy {
		return &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)}, Spec: stowage.SpreadPolicySpec{
			Priority: priority, Kinds: []stowage.OwnerKind{{Group: "g", Kind: "k"}},
			Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"a": "b"}, MatchExpressions: []stowage.Requirement{{Key: "k", Values: []versprei.LabelValue{"v", "w"}}}},
			Pools:    []stowage.PolicyPool{{Name: "p", NodeSelector: map[string]versprei.LabelValue{"x": "y"}, Tolerations: []versprei.Toleration{{Key: "t", Value: "u"}}}},
			Across:   &versprei.Across{TopologyKey: "zone", Domains: []versprei.Domain{{Value: "z"}}},
		}}
	}
	policies := []*stowage.SpreadPolicy{of("late", 0, 9), of("b", 0, 5), of("a", 0, 5), of("first", 1, 9)}
	var names []string
	for _, p := range world.CountingOf(policies) {
		names = append(names, p.Name)
	}
	if want := []string{"first", "a", "b", "late"}; !slices.Equal(names, want) || policies[0].Name != "late" {
		t.Errorf("the order is %v, want %v", names, want)
	}
	if n := world.PolicyBytes(&policies[0].Spec); n != 217 { // two items of 100, and 17 letters
		t.Errorf("a policy takes %d bytes", n)
	}
	for size, want := range map[int]int{1: world.MostPolicies, world.MostPolicyBytes / 2: 2, world.MostPolicyBytes/2 + 1: 1, world.MostPolicyBytes + 1: 0} {
		if n := world.Counting(1000, func(int) int { return size }); n != want {
			t.Errorf("of %d bytes each, %d count, want %d", size, n, want)
		}
	}
	if n := world.Counting(3, func(int) int { return 1 }); n != 3 {
		t.Errorf("of three, %d count", n)
	}
}

// References name objects. What cannot be the name of a kind is never asked for.
func TestRefs(t *testing.T) {
	for apiVersion, tc := range map[string]struct {
		kind, group string
		named       bool
	}{
		"apps/v1":            {"Deployment", "apps", true},
		"v1":                 {"Pod", "", true},
		"example.com/v1":     {"Thing", "example.com", true},
		"../../x/v1":         {"Thing", "", false},
		"a/b/c":              {"Thing", "a", false},
		"example.com/V-1":    {"Thing", "example.com", false},
		"example.com/v1 ":    {"Thing", "example.com", false},
		"example.com/v1beta": {"no kind", "example.com", false},
	} {
		r := world.Ref{APIVersion: apiVersion, Kind: tc.kind, Name: "x"}
		if gvk, named := r.GroupVersionKind(); named != tc.named || named && (gvk.Group != tc.group || gvk.Kind != tc.kind) {
			t.Errorf("%s %s is %v, %t", apiVersion, tc.kind, gvk, named)
		}
		if named := tc.named; named && r.Group() != tc.group {
			t.Errorf("%s has the group %s", apiVersion, r.Group())
		}
	}
	for kind, want := range map[string][4]bool{"ReplicaSet": {true, true, true}, "StatefulSet": {true, true, true, true}, "DaemonSet": {true, false, true}, "Deployment": {true, false, false}, "Job": {}} {
		r := ref(kind, "x", "")
		if got := [4]bool{r.Watched(), r.MakesPods(), r.HasTemplate(), r.IsStatefulSet()}; got != want {
			t.Errorf("%s is %v, want %v", kind, got, want)
		}
	}
	if job := (world.Ref{APIVersion: "batch/v1", Kind: "Job"}); !job.IsJob() || ref("Job", "x", "").IsJob() {
		t.Error("a Job is one of batch")
	}
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: "u"}
	if r := world.RefOf(&owner); r != ref("ReplicaSet", "x", "u") || !world.Plausible(&owner) {
		t.Errorf("the reference is %+v", r)
	}
	owner.Name = strings.Repeat("x", 254)
	if world.Plausible(&owner) {
		t.Error("an owner with a name of 254 letters may exist")
	}
	o := world.Object{Namespace: "ns", Ref: ref("ReplicaSet", "x", "u")}
	if e := o.Reference(); *e != (corev1.ObjectReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "ns", Name: "x", UID: "u"}) {
		t.Errorf("events are about %+v", e)
	}
	if keys := fmt.Sprint(o.LogKeys()...); keys != fmt.Sprint("namespace", "ns", "kind", "ReplicaSet", "name", "x") {
		t.Errorf("a log line has %v", keys)
	}
	w := &world.Workload{Ref: ref("ReplicaSet", "x", "u"), Annotations: map[string]string{"a": "b"}}
	if !w.Is(ref("ReplicaSet", "x", "")) || !w.Is(ref("ReplicaSet", "x", "u")) || w.Is(ref("ReplicaSet", "x", "v")) || w.Bytes() != 1<<10+2 || (*world.Workload)(nil).Bytes() != 0 {
		t.Errorf("%+v is another workload, or takes %d bytes", w, w.Bytes())
	}
}

// A workload has what decisions read of its object, and little more.
func TestWorkloads(t *testing.T) {
	created := time.Unix(100, 0)
	controller := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: new(true)}}
	m := metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "u", CreationTimestamp: metav1.Time{Time: created}, OwnerReferences: controller, Annotations: map[string]string{
		"deployment.kubernetes.io/revision": "7", "other": "large", stowage.SpillAnnotation: "1m",
	}}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}, Annotations: map[string]string{
		"other": "large", stowage.SpreadStrategyAliasAnnotation: strings.Repeat("x", 10<<10), flexdaemonsets.TemplateAnnotation: "t", stowage.OriginalResourcesAnnotation: "{}",
	}}, Spec: corev1.PodSpec{NodeName: "n"}}
	rs := &appsv1.ReplicaSet{ObjectMeta: m, Spec: appsv1.ReplicaSetSpec{Template: template}}
	rs.Status.Replicas = 2
	rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: strings.Repeat("ü", 500)}}
	set := &appsv1.StatefulSet{ObjectMeta: m, Spec: appsv1.StatefulSetSpec{
		Template: template, Replicas: new(int32(5)), Ordinals: &appsv1.StatefulSetOrdinals{Start: 3}, VolumeClaimTemplates: make([]corev1.PersistentVolumeClaim, 4),
	}}
	daemon := &appsv1.DaemonSet{ObjectMeta: m, Spec: appsv1.DaemonSetSpec{Template: template}}
	other := &metav1.PartialObjectMetadata{ObjectMeta: m}
	deployment := &appsv1.Deployment{ObjectMeta: m, Spec: appsv1.DeploymentSpec{Template: template}}
	for kind, obj := range map[string]metav1.Object{"ReplicaSet": rs, "StatefulSet": set, "DaemonSet": daemon, "Thing": other, "Deployment": deployment} {
		w := world.New(appsv1.SchemeGroupVersion.WithKind(kind), obj)
		if w.Name != "web-1" || w.Namespace != "ns" || w.UID != "u" || !w.Created.Equal(created) || w.Controller == nil || w.Controller.UID != "d" || w.Revision() != 7 {
			t.Errorf("%s: %+v", kind, w)
		}
		if len(w.Annotations) != 2 || w.Annotations[stowage.SpillAnnotation] != "1m" {
			t.Errorf("%s: the annotations are %v", kind, w.Annotations)
		}
		hasTemplate := kind != "Thing" && kind != "Deployment"
		if len(w.TemplateAnnotations[stowage.SpreadStrategyAliasAnnotation]) > 8<<10+1 || (len(w.TemplateAnnotations) == 3) != hasTemplate {
			t.Errorf("%s: of the template it has %d annotations", kind, len(w.TemplateAnnotations))
		}
		makes := kind == "ReplicaSet" || kind == "StatefulSet"
		if (w.TemplateNode == "n") != makes || (w.TemplateLabels["app"] == "web") != makes || w.Labelled != makes || (w.Replicas >= 0) != makes {
			t.Errorf("%s: %+v", kind, w)
		}
		switch kind {
		case "ReplicaSet":
			if w.Replicas != 1 || w.Current != 2 || w.Failure != strings.Repeat("ü", 254)+"..." {
				t.Errorf("it asks for %d, has %d, and fails for %q", w.Replicas, w.Current, w.Failure)
			}
		case "StatefulSet":
			if w.Replicas != 5 || w.FirstOrdinal != 3 || !w.Volumes {
				t.Errorf("%+v", w)
			}
		}
	}
	a, b := world.New(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), rs), world.New(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), rs)
	b.UID, b.Annotations = "v", map[string]string{"rollout.argoproj.io/revision": "6"}
	if !world.Newer(a, b) || world.Newer(b, a) || world.Newer(a, a) {
		t.Error("revision 7 is newer than 6")
	}
}

// Of a template's labels so many are kept as policies may select by, that of the mode always.
func TestTemplateLabels(t *testing.T) {
	many := map[string]string{stowage.ModeKey: "Off"}
	for i := range 100 {
		many[fmt.Sprintf("label-%03d", i)] = "x"
	}
	got := world.TemplateLabels(many)
	if len(got) != 64 || got[stowage.ModeKey] != "Off" || got["label-062"] != "x" || got["label-063"] != "" {
		t.Errorf("%d labels are kept: %v", len(got), got)
	}
	large := map[string]string{"a": strings.Repeat("x", 3<<10), "b": strings.Repeat("x", 3<<10)}
	if got := world.TemplateLabels(large); len(got) != 1 || got["a"] == "" {
		t.Errorf("%d large labels are kept", len(got))
	}
	few := map[string]string{"a": "b"}
	if diff := cmp.Diff(few, world.TemplateLabels(few)); diff != "" {
		t.Error(diff)
	}
	if got := world.Settings(map[string]string{stowage.RepairAnnotation: "Off", "other": "x"}); len(got) != 1 || got[stowage.RepairAnnotation] != "Off" {
		t.Errorf("the settings are %v", got)
	}
}
