package policy

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// spec is a policy that selects every workload.
func spec(change ...func(*stowage.SpreadPolicySpec)) stowage.SpreadPolicySpec {
	s := stowage.SpreadPolicySpec{
		Mode: stowage.PolicyEnforce,
		Pools: []stowage.PolicyPool{
			{Name: "on-demand", NodeSelector: map[string]versprei.LabelValue{"type": "on-demand"}, Base: 2, Weight: 20},
			{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 80},
		},
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func named(name string, age time.Duration) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))}
}

func spreadPolicy(name string, age time.Duration, change ...func(*stowage.SpreadPolicySpec)) *stowage.SpreadPolicy {
	m := named(name, age)
	m.Namespace = "ns"
	return &stowage.SpreadPolicy{ObjectMeta: m, Spec: spec(change...)}
}

func clusterPolicy(name string, age time.Duration, change ...func(*stowage.SpreadPolicySpec)) *stowage.ClusterSpreadPolicy {
	return &stowage.ClusterSpreadPolicy{ObjectMeta: named(name, age), Spec: stowage.ClusterSpreadPolicySpec{SpreadPolicySpec: spec(change...)}}
}

// replicaSet is a ReplicaSet of a Deployment, with the labels of its pod template.
func replicaSet(template map[string]string, ofDeployment map[string]string) []*world.Workload {
	up := ref("Deployment", "web")
	rs := &world.Workload{Ref: ref("ReplicaSet", "web-1"), Namespace: "ns", Controller: &up, TemplateLabels: template, Labelled: true}
	rs.UID = "rs"
	return []*world.Workload{{Ref: up, Namespace: "ns", Annotations: ofDeployment}, rs}
}

// find returns the source of the policy of a ReplicaSet's pods.
func find(t *testing.T, o world.Objects, template map[string]string) (*Policy, string) {
	t.Helper()
	p, err := NewFinder(manifests.New(o), Settings{}).Find(t.Context(), Pod{Namespace: "ns", Owner: ref("ReplicaSet", "web-1"), Annotations: template})
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return nil, ""
	}
	return p, p.Source
}

// Of each two sources for a workload one wins, and a policy in Audit never does. The sources are in the order of precedence.
func TestPrecedence(t *testing.T) {
	const one = "p=a,weight=1"
	priority := func(n int32) func(*stowage.SpreadPolicySpec) {
		return func(s *stowage.SpreadPolicySpec) { s.Priority = n }
	}
	invalid := func(s *stowage.SpreadPolicySpec) { s.Pools[0].Weight, s.Pools[0].Base, s.Pools[1].Weight = 0, 0, 0 }
	audit := func(s *stowage.SpreadPolicySpec) { s.Mode = stowage.PolicyAudit }
	type input struct {
		objects              world.Objects
		deployment, template map[string]string
	}
	namespaced := func(p *stowage.SpreadPolicy) func(*input) {
		return func(in *input) { in.objects.Policies.Namespaced = append(in.objects.Policies.Namespaced, p) }
	}
	cluster := func(p *stowage.ClusterSpreadPolicy) func(*input) {
		return func(in *input) { in.objects.Policies.Cluster = append(in.objects.Policies.Cluster, p) }
	}
	sources := []struct {
		name string
		add  func(*input)
	}{
		{"PodDistributor d", func(in *input) {
			in.objects.PodDistributors = []versprei.PodDistributor{distributor("d", "Deployment", "web", 0)}
		}},
		{"annotation of the pod template", func(in *input) { in.template = map[string]string{stowage.SpreadStrategyAliasAnnotation: one} }},
		{"annotation of Deployment web", func(in *input) { in.deployment = map[string]string{stowage.SpreadStrategyAliasAnnotation: one} }},
		{"SpreadPolicy high", namespaced(spreadPolicy("high", 0, priority(7)))},
		{"SpreadPolicy old", namespaced(spreadPolicy("old", time.Hour))},
		{"SpreadPolicy a", namespaced(spreadPolicy("a", 0))},
		{"SpreadPolicy invalid", namespaced(spreadPolicy("invalid", 0, invalid))},
		{"SpreadPolicy low", namespaced(spreadPolicy("low", 2*time.Hour, priority(-1)))},
		{"ClusterSpreadPolicy high", cluster(clusterPolicy("high", 0, priority(9)))},
		{"ClusterSpreadPolicy old", cluster(clusterPolicy("old", time.Hour))},
		{"ClusterSpreadPolicy a", cluster(clusterPolicy("a", 0))},
		{"ClusterSpreadPolicy b", cluster(clusterPolicy("b", 0))},
		{"", namespaced(spreadPolicy("audit", 3*time.Hour, priority(99), audit))},
		{"", cluster(clusterPolicy("audit", 3*time.Hour, priority(99), audit))},
	}
	for i := range sources {
		for j := range sources {
			in := input{}
			sources[i].add(&in)
			if j != i {
				sources[j].add(&in)
			}
			in.objects.Workloads = replicaSet(nil, in.deployment)
			want := sources[min(i, j)].name
			p, got := find(t, in.objects, in.template)
			if got != want {
				t.Errorf("of %q and %q, %q wins", sources[i].name, sources[j].name, got)
			}
			if strings.HasSuffix(want, "invalid") && (p == nil || p.Err == nil || p.Layout != nil) {
				t.Errorf("%s divides pods", want)
			}
		}
	}
}

// What a policy selects: by kinds, labels of the pod template, and labels of the namespace.
func TestSelects(t *testing.T) {
	equal := func(key, value string) stowage.Selector {
		return stowage.Selector{MatchLabels: map[string]versprei.LabelValue{key: versprei.LabelValue(value)}}
	}
	expression := func(key string, op metav1.LabelSelectorOperator, values ...versprei.LabelValue) stowage.Selector {
		return stowage.Selector{MatchExpressions: []stowage.Requirement{{Key: key, Operator: op, Values: values}}}
	}
	web, two := equal("team", "web"), equal("tier", "2")
	for name, tc := range map[string]struct {
		namespace, pods stowage.Selector
		kinds           []stowage.OwnerKind
		labels          map[string]string // of the namespace
		template        map[string]string
		want            bool
	}{
		"empty selectors select all":                   {want: true},
		"both match":                                   {namespace: web, pods: two, labels: map[string]string{"team": "web"}, template: map[string]string{"tier": "2"}, want: true},
		"the namespace has another label":              {namespace: web, pods: two, labels: map[string]string{"team": "db"}, template: map[string]string{"tier": "2"}},
		"the template has another label":               {namespace: web, pods: two, labels: map[string]string{"team": "web"}, template: map[string]string{"tier": "1"}},
		"labels of the namespace are none of the pods": {pods: web, labels: map[string]string{"team": "web"}},
		"labels of the pods are none of the namespace": {namespace: two, template: map[string]string{"tier": "2"}},
		"by the name of the namespace":                 {namespace: equal(corev1.LabelMetadataName, "ns"), labels: map[string]string{corev1.LabelMetadataName: "ns"}, want: true},
		"by another name":                              {namespace: equal(corev1.LabelMetadataName, "other"), labels: map[string]string{corev1.LabelMetadataName: "ns"}},
		"In":                                           {pods: expression("tier", metav1.LabelSelectorOpIn, "1", "2"), template: map[string]string{"tier": "2"}, want: true},
		"In with one value":                            {pods: expression("tier", metav1.LabelSelectorOpIn, "2"), template: map[string]string{"tier": "2"}, want: true},
		"NotIn":                                        {pods: expression("tier", metav1.LabelSelectorOpNotIn, "2"), template: map[string]string{"tier": "2"}},
		"NotIn, without the label":                     {pods: expression("tier", metav1.LabelSelectorOpNotIn, "2"), want: true},
		"Exists":                                       {pods: expression("tier", metav1.LabelSelectorOpExists), template: map[string]string{"tier": ""}, want: true},
		"DoesNotExist":                                 {pods: expression("tier", metav1.LabelSelectorOpDoesNotExist), template: map[string]string{"tier": ""}},
		"an unknown operator selects nothing":          {pods: expression("tier", "Gt", "1"), template: map[string]string{"tier": "2"}},
		"a wrong value selects nothing":                {pods: expression("tier", metav1.LabelSelectorOpIn), template: map[string]string{"tier": "2"}},
		"another kind":                                 {kinds: []stowage.OwnerKind{{Group: "apps", Kind: "StatefulSet"}}},
		"another group":                                {kinds: []stowage.OwnerKind{{Group: "apps.kruise.io", Kind: "ReplicaSet"}}},
		"one of several kinds":                         {kinds: []stowage.OwnerKind{{Group: "apps", Kind: "StatefulSet"}, {Group: "apps", Kind: "ReplicaSet"}}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := clusterPolicy("p", 0, func(s *stowage.SpreadPolicySpec) { s.Selector, s.Kinds = tc.pods, tc.kinds })
			p.Spec.NamespaceSelector = tc.namespace
			_, got := find(t, world.Objects{
				Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: tc.labels}}},
				Workloads:  replicaSet(tc.template, nil), Policies: world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{p}},
			}, nil)
			if want := map[bool]string{true: "ClusterSpreadPolicy p"}[tc.want]; got != want {
				t.Errorf("the policy is %q, want %q", got, want)
			}
		})
	}
}

// Who is never selected by a policy.
func TestNeverSelected(t *testing.T) {
	all := world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{clusterPolicy("all", 0, func(s *stowage.SpreadPolicySpec) {
		s.Kinds = []stowage.OwnerKind{{Group: "apps", Kind: "ReplicaSet"}, {Group: "apps.kruise.io", Kind: "CloneSet"}, {Group: "batch", Kind: "Job"}}
	})}}
	unlabelled := replicaSet(nil, nil)
	unlabelled[1].Labelled = false
	for name, tc := range map[string]struct {
		workloads []*world.Workload
		owner     world.Ref
		settings  Settings
	}{
		"a blocklisted namespace":           {replicaSet(nil, nil), ref("ReplicaSet", "web-1"), Settings{ExcludedNamespaces: []string{"ns"}}},
		"an owner that nobody knows":        {nil, ref("ReplicaSet", "web-1"), Settings{}},
		"an owner whose template is hidden": {unlabelled, ref("ReplicaSet", "web-1"), Settings{}},
		"a Job":                             {[]*world.Workload{{Ref: world.Ref{APIVersion: "batch/v1", Kind: "Job", Name: "job"}, Namespace: "ns", Labelled: true}}, world.Ref{APIVersion: "batch/v1", Kind: "Job", Name: "job"}, Settings{}},
	} {
		p, err := NewFinder(manifests.New(world.Objects{Workloads: tc.workloads, Policies: all}), tc.settings).Find(t.Context(), Pod{Namespace: "ns", Owner: tc.owner})
		if p != nil || err != nil {
			t.Errorf("%s has the policy %v (%v)", name, p, err)
		}
	}
	// Of another namespace.
	other := spreadPolicy("p", 0)
	other.Namespace = "other"
	if _, got := find(t, world.Objects{Workloads: replicaSet(nil, nil), Policies: world.Policies{Namespaced: []*stowage.SpreadPolicy{other}}}, nil); got != "" {
		t.Errorf("a SpreadPolicy of another namespace selects: %s", got)
	}
}

// changing is a world that a test changes.
type changing struct {
	*manifests.Snapshot
	objects world.Objects
}

func (c *changing) set(change func(*world.Objects)) {
	change(&c.objects)
	c.Snapshot = manifests.New(c.objects)
}

// Policies, labels of namespaces and of templates may change at any time, and the next pod is decided by what is true then.
func TestTheNextPodFollowsEachChange(t *testing.T) {
	team := func(name, team string) *stowage.ClusterSpreadPolicy {
		p := clusterPolicy(name, 0)
		p.Spec.NamespaceSelector.MatchLabels = map[string]versprei.LabelValue{"team": versprei.LabelValue(team)}
		return p
	}
	c := &changing{}
	c.set(func(o *world.Objects) {
		o.Namespaces = []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "web"}}}}
		o.Workloads = replicaSet(map[string]string{"tier": "2"}, nil)
		o.Policies = world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{team("web", "web"), team("db", "db")}}
	})
	f := NewFinder(c, Settings{})
	owner := ref("ReplicaSet", "web-1")
	owner.UID = "rs"
	expect := func(step, want string) *Policy {
		t.Helper()
		var last *Policy
		for range 2 { // the second answer may come from memory
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: owner})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if p != nil {
				got = p.Source
			}
			if got != want {
				t.Fatalf("%s: the policy is %q, want %q", step, got, want)
			}
			last = p
		}
		return last
	}
	expect("at first", "ClusterSpreadPolicy web")
	c.set(func(o *world.Objects) {
		o.Namespaces = []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "db"}}}}
	})
	expect("another label of the namespace", "ClusterSpreadPolicy db")
	c.set(func(o *world.Objects) {
		o.Policies = world.Policies{Cluster: o.Policies.Cluster, Namespaced: []*stowage.SpreadPolicy{spreadPolicy("tier", 0, func(s *stowage.SpreadPolicySpec) {
			s.Selector.MatchLabels = map[string]versprei.LabelValue{"tier": "2"}
		})}}
	})
	was := expect("a policy of the namespace", "SpreadPolicy tier")
	c.set(func(o *world.Objects) {
		edited := o.Policies.Namespaced[0].DeepCopy()
		edited.Generation, edited.Spec.Pools[0].Base = 2, 5
		o.Policies = world.Policies{Cluster: o.Policies.Cluster, Namespaced: []*stowage.SpreadPolicy{edited}}
	})
	is := expect("an edit", "SpreadPolicy tier")
	if was.Target(0, 4) == 4 || is.Target(0, 4) != 4 || is.From.Generation != 2 || is.From.UID != "tier" {
		t.Errorf("after the edit the pools of 4 pods are %d and then %d, from %+v", was.Target(0, 4), is.Target(0, 4), is.From)
	}
	c.set(func(o *world.Objects) { o.Workloads = replicaSet(map[string]string{"tier": "1"}, nil) })
	expect("another label of the template", "ClusterSpreadPolicy db")
	c.set(func(o *world.Objects) { o.Policies = world.Policies{} })
	expect("without policies", "")
}

// Beside a policy, annotations of a workload may only lower what is repaired.
func TestAnnotationsBesideAPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		policy      stowage.Repair
		annotations map[string]string
		want        stowage.Repair
		warning     string
	}{
		"nothing":   {"", nil, stowage.RepairAdopt, ""},
		"lower":     {stowage.RepairRecreate, map[string]string{stowage.RepairAnnotation: "Off"}, stowage.RepairOff, ""},
		"higher":    {stowage.RepairAdopt, map[string]string{stowage.RepairAnnotation: "Recreate"}, stowage.RepairAdopt, "which a workload may only lower"},
		"wrong":     {stowage.RepairAdopt, map[string]string{stowage.RepairAnnotation: "never"}, stowage.RepairAdopt, "must be"},
		"rebalance": {"", map[string]string{stowage.RebalanceAnnotation: "Evict"}, stowage.RepairAdopt, "stowage.dev/rebalance has no effect"},
		"spill":     {"", map[string]string{stowage.SpillAnnotation: "2m"}, stowage.RepairAdopt, "stowage.dev/spill has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := find(t, world.Objects{
				Workloads: replicaSet(nil, tc.annotations),
				Policies:  world.Policies{Namespaced: []*stowage.SpreadPolicy{spreadPolicy("p", 0, func(s *stowage.SpreadPolicySpec) { s.Repair = tc.policy })}},
			}, nil)
			if p.Repair != tc.want || p.Evict || p.Spill != nil {
				t.Errorf("repair is %s, rebalance %t, spill %v", p.Repair, p.Evict, p.Spill)
			}
			if text := strings.Join(p.Warnings, "; "); (text == "") != (tc.warning == "") || !strings.Contains(text, tc.warning) {
				t.Errorf("the warning is %q", text)
			}
		})
	}
}

// A policy becomes what it says: pools with the identity of their node selector, and the defaults of its kind.
func TestCompilePolicy(t *testing.T) {
	seconds := int64(30)
	change := func(s *stowage.SpreadPolicySpec) {
		s.Rebalance = versprei.RebalanceEvict
		s.Pools[1].Tolerations = []versprei.Toleration{{Key: "spot", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds}}
	}
	p := CompilePolicy(FromSpreadPolicy(spreadPolicy("p", 0, change)))
	if p.Err != nil || p.Preferred || !p.Evict || p.Repair != stowage.RepairAdopt || len(p.TolerationsOf(1)) != 1 || len(p.TolerationsOf(0)) != 0 {
		t.Errorf("the policy is %+v", p)
	}
	if key := p.PoolKey(1); p.Pool(1).Name != "spot" || !strings.HasPrefix(key, "spot@") {
		t.Errorf("the pool is %s", key)
	}
	if at, ok := p.PoolKeyed(p.PoolKey(1)); !ok || at != 1 {
		t.Error("the pool is not found by its key")
	}
	if _, ok := p.PoolKeyed("spot"); ok {
		t.Error("the pool of a policy is that of an annotation of the same name")
	}
	cluster := CompilePolicy(FromClusterSpreadPolicy(clusterPolicy("p", 0)))
	if cluster.Preferred || cluster.PoolKey(0) != p.PoolKey(0) {
		t.Errorf("the cluster's policy is %+v", cluster)
	}
	preferred := CompilePolicy(FromClusterSpreadPolicy(clusterPolicy("p", 0, func(s *stowage.SpreadPolicySpec) { s.Enforcement = versprei.EnforcementPreferred })))
	if !preferred.Preferred {
		t.Error("Preferred is taken as Required")
	}
	for field, change := range map[string]func(*stowage.SpreadPolicySpec){
		"spec.pools[0].nodeSelector": func(s *stowage.SpreadPolicySpec) {
			s.Pools[0].NodeSelector = map[string]versprei.LabelValue{"not a key": "v"}
		},
		"spec.pools[1].tolerations[0].key": func(s *stowage.SpreadPolicySpec) { s.Pools[1].Tolerations = []versprei.Toleration{{Key: "not a key"}} },
		"spec.selector": func(s *stowage.SpreadPolicySpec) {
			s.Selector.MatchExpressions = []stowage.Requirement{{Key: "a", Operator: "Near"}}
		},
	} {
		if p := CompilePolicy(FromSpreadPolicy(spreadPolicy("p", 0, change))); p.Err == nil || p.Written != nil || !strings.Contains(p.Err.Error(), field) {
			t.Errorf("%s: the error is %v", field, p.Err)
		}
	}
}

// Of many SpreadPolicies of a namespace, the first ones count. They cost other namespaces nothing.
func TestManyPoliciesOfANamespace(t *testing.T) {
	of := world.Policies{}
	for i := range 5000 {
		of.Namespaced = append(of.Namespaced, spreadPolicy(fmt.Sprint("p", i), time.Duration(i)*time.Second))
	}
	o := world.Objects{Policies: of, Workloads: replicaSet(nil, nil)}
	other := *o.Workloads[1]
	other.Namespace = "other"
	o.Workloads = append(o.Workloads, &other)
	f := NewFinder(manifests.New(o), Settings{})
	for range 3 {
		p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: o.Workloads[1].Ref})
		if err != nil || p == nil || p.Source != "SpreadPolicy p4999" {
			t.Fatalf("the policy is %v (%v)", p, err)
		}
	}
	own, ok := f.ofNamespaces.Get("ns")
	if n := own.evaluations.Load(); !ok || n > world.MostPolicies {
		t.Errorf("%d evaluations of selectors for one workload", n)
	}
	if p, err := f.Find(t.Context(), Pod{Namespace: "other", Owner: other.Ref}); p != nil || err != nil {
		t.Errorf("the policy of another namespace is %v (%v)", p, err)
	}
	if n := own.evaluations.Load(); n > world.MostPolicies {
		t.Errorf("%d evaluations of selectors after a workload of another namespace", n)
	}
}

// A tenant's large policies cost what the hundred that count cost, once for each generation: neither twenty requests at once nor a policy that
// is patched all the time compiles the others again.
func TestPoliciesAreCompiledOnce(t *testing.T) {
	const policies, requests = 1000, 20
	values := make([]versprei.LabelValue, 64)
	for i := range values {
		values[i] = versprei.LabelValue(fmt.Sprintf("%063d", i))
	}
	generation := int64(1)
	one := func(i int) *stowage.SpreadPolicy {
		p := spreadPolicy(fmt.Sprintf("p%04d", i), 0, func(s *stowage.SpreadPolicySpec) {
			s.Selector.MatchExpressions = []stowage.Requirement{{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: values}}
		})
		p.UID, p.Generation = types.UID(p.Name), 1
		return p
	}
	o := world.Objects{Workloads: replicaSet(nil, nil)}
	for i := range policies {
		o.Policies.Namespaced = append(o.Policies.Namespaced, one(i))
	}
	snapshot := &patched{Snapshot: manifests.New(o)}
	f := NewFinder(snapshot, Settings{})
	indexes := func() map[*policyIndex]bool {
		out, mu := map[*policyIndex]bool{}, sync.Mutex{}
		var group sync.WaitGroup
		for range requests {
			group.Go(func() {
				if p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: o.Workloads[1].Ref}); err != nil || p == nil || p.Source != "SpreadPolicy p0000" {
					t.Errorf("the policy is %v (%v)", p, err)
				}
				index, _ := f.ofNamespaces.Get("ns")
				mu.Lock()
				defer mu.Unlock()
				out[index] = true
			})
		}
		group.Wait()
		return out
	}
	if n := len(indexes()); n != 1 || f.selectors.Len() != world.MostPolicies {
		t.Errorf("%d indexes were made, and %d policies compiled", n, f.selectors.Len())
	}
	compiledFirst := func() *SpreadPolicy {
		index, _ := f.ofNamespaces.Get("ns")
		return index.rest[slices.IndexFunc(index.rest, func(p *SpreadPolicy) bool { return p.Name == "p0000" })]
	}
	first := compiledFirst()
	for i := range 3 {
		generation++
		edited := &world.Policies{Namespaced: slices.Clone(o.Policies.Namespaced)}
		last := one(99)
		last.Generation = generation
		edited.Namespaced[99] = last
		snapshot.policies.Store(edited)
		if n := len(indexes()); n != 1 || f.selectors.Len() != world.MostPolicies+i+1 {
			t.Errorf("after a patch, %d indexes were made, and %d policies are compiled in all", n, f.selectors.Len())
		}
		if compiledFirst() != first {
			t.Error("a policy that did not change was compiled again")
		}
	}
}

// patched is a world whose policies change.
type patched struct {
	world.Snapshot
	policies atomic.Pointer[world.Policies]
}

func (p *patched) Policies(ctx context.Context, namespace string) (*world.Policies, error) {
	if of := p.policies.Load(); of != nil && namespace != "" {
		return of, nil
	}
	return p.Snapshot.Policies(ctx, namespace)
}

// manyPolicies returns many policies for tests of speed: one of each tier, of several teams.
func manyPolicies(n int) *world.Policies {
	of := &world.Policies{}
	for i := range n {
		p := clusterPolicy(fmt.Sprint("p", i), 0, func(s *stowage.SpreadPolicySpec) {
			s.Selector.MatchLabels = map[string]versprei.LabelValue{"tier": versprei.LabelValue(fmt.Sprint(i))}
		})
		p.Spec.NamespaceSelector.MatchLabels = map[string]versprei.LabelValue{"team": "web"}
		of.Cluster = append(of.Cluster, p)
	}
	return of
}

// In a burst, selectors are evaluated at most once for ten pods, however many policies there are.
func TestFewSelectorsAreEvaluated(t *testing.T) {
	const workloads, pods = 20, 50
	o := world.Objects{Policies: *manyPolicies(1000), Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "web"}}}}}
	for i := range workloads {
		w := &world.Workload{Ref: ref("ReplicaSet", fmt.Sprint("rs-", i)), Namespace: "ns", TemplateLabels: map[string]string{"tier": fmt.Sprint(i), "app": "web"}, Labelled: true}
		w.UID = types.UID(w.Name)
		o.Workloads = append(o.Workloads, w)
	}
	f := NewFinder(manifests.New(o), Settings{})
	for n := range workloads * pods {
		p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: o.Workloads[n%workloads].Ref})
		if want := fmt.Sprint("ClusterSpreadPolicy p", n%workloads); err != nil || p == nil || p.Source != want {
			t.Fatalf("pod %d has the policy %v (%v), want %s", n, p, err, want)
		}
	}
	if got := f.ofCluster.Load().evaluations.Load(); got > workloads*pods/10 {
		t.Errorf("%d evaluations of selectors for %d pods", got, workloads*pods)
	}
}

// A decision costs the same with one policy and with a thousand: compare the times and the allocations of the rows.
func BenchmarkFindPolicy(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("policies=%d", n), func(b *testing.B) {
			rs := replicaSet(map[string]string{"tier": "0", "app": "web"}, nil)
			f := NewFinder(manifests.New(world.Objects{
				Policies: *manyPolicies(n), Workloads: rs,
				Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "web"}}}},
			}), Settings{})
			b.ReportAllocs()
			for b.Loop() {
				if p, err := f.Find(b.Context(), Pod{Namespace: "ns", Owner: rs[1].Ref}); p == nil || err != nil {
					b.Fatal(p, err)
				}
			}
		})
	}
}

// Everything that selects an owner is listed in the order of precedence, those in Audit too.
func TestSelecting(t *testing.T) {
	audit := func(s *stowage.SpreadPolicySpec) { s.Mode = stowage.PolicyAudit }
	own := NewFinder(nil, Settings{}).newIndex(&world.Policies{Namespaced: []*stowage.SpreadPolicy{spreadPolicy("b", 0), spreadPolicy("audit", time.Hour, audit)}})
	cluster := NewFinder(nil, Settings{}).newIndex(&world.Policies{Cluster: []*stowage.ClusterSpreadPolicy{clusterPolicy("young", 0), clusterPolicy("old", time.Hour)}})
	var got []string
	all := selecting([2]*policyIndex{own, cluster}, &owner{namespace: "ns", ref: ref("ReplicaSet", "web-1")})
	for _, p := range all {
		got = append(got, p.String())
	}
	if want := []string{"SpreadPolicy audit", "SpreadPolicy b", "ClusterSpreadPolicy old", "ClusterSpreadPolicy young"}; !slices.Equal(got, want) {
		t.Errorf("selecting are %v", got)
	}
	winner := first(all)
	if winner.Name != "b" {
		t.Errorf("%s wins", winner)
	}
	for i, want := range []string{"it is in Audit", "", "a SpreadPolicy wins over a ClusterSpreadPolicy", ""} {
		if want != "" {
			if got := whyBefore(winner, all[i]); got != want {
				t.Errorf("%s loses because %s", all[i], got)
			}
		}
	}
	if got := whyBefore(all[2], all[3]); got != "it is younger" {
		t.Errorf("%s loses because %s", all[3], got)
	}
}

// A policy of a namespace selects that one, and one of the cluster the namespaces with its labels. A policy that does not compile selects
// nothing, and says all that is wrong. None comes before itself.
func TestSelectsNamespace(t *testing.T) {
	f := NewFinder(nil, Settings{})
	own, all := f.OfSpreadPolicy(spreadPolicy("own", 0)), f.OfClusterSpreadPolicy(clusterPolicy("all", 0))
	labelled := clusterPolicy("labelled", 0)
	labelled.Spec.NamespaceSelector.MatchLabels = map[string]versprei.LabelValue{"team": "a"}
	some := f.OfClusterSpreadPolicy(labelled)
	wrong := spreadPolicy("wrong", 0, func(s *stowage.SpreadPolicySpec) {
		s.Selector.MatchExpressions = []stowage.Requirement{{Key: "a", Operator: "Is"}, {Key: "b", Operator: metav1.LabelSelectorOpExists}, {Key: "c", Operator: "Has"}}
	})
	broken := f.OfSpreadPolicy(wrong)
	for i, tc := range []struct {
		policy    *SpreadPolicy
		namespace string
		labels    map[string]string
		want      bool
	}{
		{own, "ns", nil, true}, {own, "other", nil, false}, {own, "other", map[string]string{"team": "a"}, false},
		{all, "ns", nil, true}, {all, "other", map[string]string{"team": "b"}, true},
		{some, "ns", map[string]string{"team": "a"}, true}, {some, "ns", map[string]string{"team": "b"}, false}, {some, "ns", nil, false},
		{broken, "ns", nil, false},
	} {
		if got := tc.policy.SelectsNamespace(tc.namespace, tc.labels); got != tc.want {
			t.Errorf("case %d: it selects the namespace: %t", i, got)
		}
	}
	if text := fmt.Sprint(broken.err); !strings.Contains(text, "operator of a") || !strings.Contains(text, "operator of c") || strings.Contains(text, "of b") {
		t.Errorf("it says %s", text)
	}
	if own.Before(own) || !own.Before(all) || all.Before(own) {
		t.Error("a SpreadPolicy does not come before a ClusterSpreadPolicy")
	}
	o := &owner{namespace: "other", ref: ref("ReplicaSet", "web-1")}
	if own.selects(o) || broken.selects(&owner{namespace: "ns", ref: o.ref}) || !own.selects(&owner{namespace: "ns", ref: o.ref}) {
		t.Error("a policy selects owners of another namespace, or none of its own")
	}
	if small, large := selectorBytes(own.Spec), selectorBytes(&wrong.Spec); large <= small || large > small+8*1000 {
		t.Errorf("a selector takes %d bytes, and one with three requirements %d", small, large)
	}
}

// What policies cost to be looked up, after one of them changes: B/op of a thousand.
func BenchmarkIndex(b *testing.B) {
	of := manyPolicies(1000)
	f := NewFinder(nil, Settings{})
	f.newIndex(of)
	b.ReportAllocs()
	for b.Loop() {
		edited := of.Cluster[0].DeepCopy()
		edited.Generation++
		of = &world.Policies{Cluster: append([]*stowage.ClusterSpreadPolicy{edited}, of.Cluster[1:]...)}
		if index := f.newIndex(of); len(index.by) == 0 {
			b.Fatal("the policies are not found by their labels")
		}
	}
}

// What is remembered of 10,000 workloads that a policy selects, beside the cache: the bytes of each.
func BenchmarkSelectedWorkloads(b *testing.B) {
	const workloads = 10_000
	o := world.Objects{Policies: *manyPolicies(1), Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "web"}}}}}
	for i := range workloads {
		w := &world.Workload{Ref: ref("ReplicaSet", fmt.Sprint("rs-", i)), Namespace: "ns", TemplateLabels: map[string]string{"tier": "0", "app": fmt.Sprint(i)}, Labelled: true}
		w.UID = types.UID(w.Name)
		o.Workloads = append(o.Workloads, w)
	}
	snapshot := manifests.New(o)
	for b.Loop() {
		f := NewFinder(snapshot, Settings{})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range o.Workloads {
			if p, err := f.Find(b.Context(), Pod{Namespace: "ns", Owner: o.Workloads[i].Ref}); p == nil || err != nil {
				b.Fatal(p, err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/workloads, "B/workload")
		runtime.KeepAlive(f)
	}
}
