package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

func distributor(name, kind, target string, age time.Duration) versprei.PodDistributor {
	return versprei.PodDistributor{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))},
		Spec: versprei.PodDistributorSpec{
			Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"type": "a"}, Weight: 1}},
			Target:       versprei.Target{APIVersion: "apps/v1", Kind: kind, Name: target},
		},
	}
}

func ref(kind, name string) world.Ref {
	return world.Ref{APIVersion: "apps/v1", Kind: kind, Name: name}
}

func TestFind(t *testing.T) {
	const one = "p=a,weight=1"
	on := map[string]string{stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAnnotation: one}
	deployment := func(annotations map[string]string) []*world.Workload {
		up := ref("Deployment", "web")
		return []*world.Workload{
			{Ref: up, Namespace: "ns", Annotations: annotations},
			{Ref: ref("ReplicaSet", "web-1"), Namespace: "ns", Controller: &up},
		}
	}
	cases := map[string]struct {
		cluster  world.Objects
		settings func(*Finder)
		owner    world.Ref
		template map[string]string
		source   string // empty: no policy
		evict    bool
		repair   stowage.Repair
		warnings int
		invalid  bool
	}{
		"nothing": {cluster: world.Objects{Workloads: deployment(nil)}},
		"an annotation on the Deployment": {
			cluster: world.Objects{Workloads: deployment(on)}, source: "annotation of Deployment web",
		},
		"an annotation of the template wins over it": {
			cluster: world.Objects{Workloads: deployment(on)}, template: map[string]string{stowage.SpreadStrategyAliasAnnotation: one}, source: "annotation of the pod template",
		},
		"a ReplicaSet's copy of an annotation that the Deployment lost is nothing": {
			cluster: world.Objects{Workloads: func() []*world.Workload {
				w := deployment(nil)
				w[1].Annotations = on
				return w
			}()},
		},
		"a strategy without the switch is nothing": {
			cluster: world.Objects{Workloads: deployment(map[string]string{stowage.SpreadStrategyAnnotation: one})},
		},
		"the switch turned off": {
			cluster: world.Objects{Workloads: deployment(map[string]string{stowage.SpreadStrategyAnnotation: one, stowage.SpreadSwitchAnnotation: "false"})},
		},
		"an invalid strategy": {
			cluster: world.Objects{Workloads: deployment(map[string]string{stowage.SpreadStrategyAliasAnnotation: "p"})}, source: "annotation of Deployment web", invalid: true,
		},
		"a PodDistributor beats an annotation": {
			cluster: world.Objects{Workloads: deployment(on), PodDistributors: []versprei.PodDistributor{distributor("d", "Deployment", "web", 0)}}, source: "PodDistributor d",
		},
		"the older PodDistributor wins": {
			cluster: world.Objects{Workloads: deployment(nil), PodDistributors: []versprei.PodDistributor{
				distributor("a", "Deployment", "web", 0), distributor("b", "Deployment", "web", time.Hour), distributor("c", "Deployment", "other", 2*time.Hour),
			}}, source: "PodDistributor b",
		},
		"within a second the name decides": {
			cluster: world.Objects{Workloads: deployment(nil), PodDistributors: []versprei.PodDistributor{
				distributor("b", "Deployment", "web", 0), distributor("a", "Deployment", "web", 0),
			}}, source: "PodDistributor a",
		},
		"a PodDistributor of a Job": {
			cluster: world.Objects{PodDistributors: []versprei.PodDistributor{func() versprei.PodDistributor {
				d := distributor("j", "Job", "job", 0)
				d.Spec.Target.APIVersion = "batch/v1"
				return d
			}()}}, owner: world.Ref{APIVersion: "batch/v1", Kind: "Job", Name: "job"}, source: "PodDistributor j",
		},
		"a Job's annotation is nothing": {owner: world.Ref{APIVersion: "batch/v1", Kind: "Job", Name: "job"}, template: on},
		"a blocklisted namespace": {
			cluster: world.Objects{Workloads: deployment(on)}, settings: func(f *Finder) { f.Exclude([]string{"ns"}) },
		},
		"a namespace without the label that is asked for": {
			cluster: world.Objects{Workloads: deployment(on), Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}}}, settings: func(f *Finder) { f.settings.NamespaceLabel = "k=v" },
		},
		"a namespace with it": {
			cluster:  world.Objects{Workloads: deployment(on), Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"k": "v"}}}}},
			settings: func(f *Finder) { f.settings.NamespaceLabel = "k=v" }, source: "annotation of Deployment web",
		},
		"settings beside a strategy": {
			cluster: world.Objects{Workloads: deployment(map[string]string{
				stowage.SpreadStrategyAliasAnnotation: one, stowage.RebalanceAnnotation: "Evict", stowage.RepairAnnotation: "Adopt",
			})}, source: "annotation of Deployment web", evict: true, repair: stowage.RepairAdopt,
		},
		"settings that are wrong": {
			cluster: world.Objects{Workloads: deployment(map[string]string{
				stowage.SpreadStrategyAliasAnnotation: one, stowage.RebalanceAnnotation: "now", stowage.RepairAnnotation: "adopt",
			})}, source: "annotation of Deployment web", warnings: 2,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			finder := NewFinder(manifests.New(tc.cluster), Settings{})
			if tc.settings != nil {
				tc.settings(finder)
			}
			if tc.owner.Kind == "" {
				tc.owner = ref("ReplicaSet", "web-1")
			}
			if tc.repair == "" {
				tc.repair = stowage.RepairRecreate
			}
			p, err := finder.Find(t.Context(), Pod{Namespace: "ns", Owner: tc.owner, Annotations: tc.template})
			if err != nil {
				t.Fatal(err)
			}
			if p == nil {
				if tc.source != "" {
					t.Errorf("no policy, want %s", tc.source)
				}
				return
			}
			if p.Source != tc.source || p.Evict != tc.evict || p.Repair != tc.repair || len(p.Warnings) != tc.warnings || (p.Err != nil) != tc.invalid {
				t.Errorf("policy %+v", p)
			}
		})
	}
}

// complete is a cluster in which what is not listed does not exist.
type complete struct{ *manifests.Snapshot }

func (complete) MayRead(string, world.Ref) bool { return true }

// Whoever may create pods can write any owner into them: one that does not exist has no policy.
func TestFindInventedOwner(t *testing.T) {
	const text = "p=a,weight=1"
	annotations := map[string]string{stowage.SpreadStrategyAliasAnnotation: text}
	there := world.Workload{Ref: ref("ReplicaSet", "web"), Namespace: "ns"}
	there.UID = "uid"
	job := world.Ref{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "job-uid"}
	static := manifests.New(world.Objects{Workloads: []*world.Workload{&there}, PodDistributors: []versprei.PodDistributor{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"},
		Spec: versprei.PodDistributorSpec{
			Target:       versprei.Target{APIVersion: "batch/v1", Kind: "Job", Name: "job"},
			Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"p": "a"}, Weight: 1}},
		},
	}}})
	named := func(kind, name, uid string) world.Ref {
		r := ref(kind, name)
		r.UID = types.UID(uid)
		return r
	}
	for name, tc := range map[string]struct {
		reader            world.Snapshot
		owner             world.Ref
		found, unverified bool
	}{
		"an owner that exists":             {&complete{static}, named("ReplicaSet", "web", "uid"), true, false},
		"another UID":                      {&complete{static}, named("ReplicaSet", "web", "other"), false, false},
		"another name":                     {&complete{static}, named("ReplicaSet", "other", "uid"), false, false},
		"another kind":                     {&complete{static}, named("StatefulSet", "web", "uid"), false, false},
		"another version":                  {&complete{static}, func() world.Ref { r := named("ReplicaSet", "web", "uid"); r.APIVersion = "apps/v9"; return r }(), false, false},
		"a Job that does not exist":        {&complete{static}, job, false, false},
		"a kind that Stowage may not read": {static, named("Custom", "web", "x"), true, true},
		"a Job where Jobs may not be read": {static, job, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewFinder(tc.reader, Settings{}).Find(t.Context(), Pod{Namespace: "ns", Owner: tc.owner, Annotations: annotations})
			if err != nil {
				t.Fatal(err)
			}
			if (p != nil) != tc.found || p != nil && p.Unverified != tc.unverified {
				t.Errorf("the policy is %+v", p)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	const key = stowage.SpreadStrategyAnnotation
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        []string
		invalid     bool
	}{
		"nothing":                {},
		"all is well":            {annotations: map[string]string{key: "p=a,weight=1", stowage.SpreadSwitchAnnotation: "true"}},
		"the alias alone":        {annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1"}},
		"no switch":              {annotations: map[string]string{key: "p=a,weight=1"}, want: []string{"CustomPodScheduleStrategy has no effect without UseCustomKubeScheduler: 'true'"}},
		"the switch alone":       {annotations: map[string]string{stowage.SpreadSwitchAnnotation: "true"}, want: []string{"UseCustomKubeScheduler has no effect without CustomPodScheduleStrategy"}},
		"a switch that is none":  {annotations: map[string]string{stowage.SpreadSwitchAnnotation: "yes"}, want: []string{"UseCustomKubeScheduler is \"yes\"; expected 'true' or 'false'"}},
		"an alias that differs":  {annotations: map[string]string{key: "p=a,weight=1", stowage.SpreadSwitchAnnotation: "true", stowage.SpreadStrategyAliasAnnotation: "p=b,weight=1"}, want: []string{"custom-pod-schedule-strategy differs from CustomPodScheduleStrategy and is ignored"}},
		"two pools are wrong":    {annotations: map[string]string{key: "p:q", stowage.SpreadSwitchAnnotation: "true"}, want: []string{`CustomPodScheduleStrategy: pool 0 ("p"): "p" has no equals sign; expected key=value, key!=value or !key`, `CustomPodScheduleStrategy: pool 1 ("q"): "q" has no equals sign; expected key=value, key!=value or !key`}, invalid: true},
		"the alias is wrong":     {annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a"}, want: []string{"custom-pod-schedule-strategy: no pool ever gets a pod; give at least one a weight"}, invalid: true},
		"switched off and wrong": {annotations: map[string]string{key: "p", stowage.SpreadSwitchAnnotation: "false"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			invalid := false
			for _, f := range Check("Deployment", feature.Metadata{}, &feature.Metadata{Annotations: tc.annotations}) {
				got, invalid = append(got, f.Text), invalid || f.Invalid
				if f.Field != "spec.template.metadata.annotations" {
					t.Errorf("the field is %s", f.Field)
				}
			}
			if tc.invalid != invalid {
				t.Errorf("invalid: %t", invalid)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Settings at the wrong place, or with a value that is none, are told with their field.
func TestCheckPlaces(t *testing.T) {
	mode := func(v string) feature.Metadata {
		return feature.Metadata{Labels: map[string]string{stowage.ModeKey: v}}
	}
	for name, tc := range map[string]struct {
		kind     string
		own      feature.Metadata
		template *feature.Metadata
		want     []string
	}{
		"a mode of a namespace":         {kind: "Namespace", own: mode("Off")},
		"a misspelt mode":               {kind: "Namespace", own: mode("Audti"), want: []string{`metadata.labels: stowage.dev/mode is "Audti" and is taken as Audit; it must be Enforce, Audit or Off`}},
		"a failure policy":              {kind: "Namespace", own: feature.Metadata{Labels: map[string]string{stowage.FailurePolicyLabel: "fail"}}, want: []string{`metadata.labels: stowage.dev/failure-policy is "fail" and has no effect; it must be Fail or Ignore`}},
		"a failure policy, annotated":   {kind: "Namespace", own: feature.Metadata{Annotations: map[string]string{stowage.FailurePolicyLabel: "Fail"}}, want: []string{"metadata.annotations: stowage.dev/failure-policy has no effect as an annotation; write it as a label"}},
		"a strategy of a namespace":     {kind: "Namespace", own: feature.Metadata{Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1"}}, want: []string{"metadata.annotations: custom-pod-schedule-strategy has no effect on a Namespace; write it on a workload or its pod template"}},
		"a mode of a Deployment":        {kind: "Deployment", own: mode("Off"), template: &feature.Metadata{}, want: []string{"metadata.labels: stowage.dev/mode has no effect on a Deployment; write it on its pod template or its namespace"}},
		"a mode of its template":        {kind: "Deployment", template: &feature.Metadata{Annotations: map[string]string{stowage.ModeKey: "On"}}, want: []string{`spec.template.metadata.annotations: stowage.dev/mode is "On" and is taken as Audit; it must be Enforce, Audit or Off`}},
		"settings of a Deployment":      {kind: "Deployment", own: feature.Metadata{Annotations: map[string]string{stowage.RebalanceAnnotation: "evict", stowage.RepairAnnotation: "Adopt", stowage.SpillAnnotation: "1s"}}, template: &feature.Metadata{}, want: []string{`metadata.annotations: stowage.dev/rebalance is "evict" and is ignored; it must be Never or Evict`, `metadata.annotations: stowage.dev/spill is "1s" and is ignored; it must be a duration from 10s to 1h, such as 2m`}},
		"what looks like a weight":      {kind: "Deployment", own: feature.Metadata{Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,wieght=1:p=b,weight=1"}}, template: &feature.Metadata{}, want: []string{"metadata.annotations: custom-pod-schedule-strategy: pool 0 has no base and no weight, so it never gets a pod", "metadata.annotations: custom-pod-schedule-strategy: pool 0: wieght is taken as a node label; is weight meant?"}},
		"labels that look like no word": {kind: "Deployment", own: feature.Metadata{Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "weight-class=a,weight=1:database=b,weight=1"}}, template: &feature.Metadata{}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range Check(tc.kind, tc.own, tc.template) {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// largeStrategy is one of the longest that can be written.
func largeStrategy(key string) string {
	large := make([]string, sequence.MaxPools)
	for i := range large {
		large[i] = fmt.Sprintf("%s=%d,weight=%d", key, i, sequence.MaxWeight-i)
	}
	return strings.Join(large, ":")
}

// Large strategies are computed once, also those of 160 workloads, and what a shortage makes of them. However many there are, they have so
// many bytes together.
func TestLargeStrategiesAreComputedOnce(t *testing.T) {
	f := NewFinder(manifests.New(world.Objects{}), Settings{})
	const workloads = 160
	var first []*layout.Written
	for i := range workloads {
		s, err := f.parse(largeStrategy(fmt.Sprint("p", i)), "")
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, s)
	}
	for i, s := range first {
		if again, _ := f.parse(largeStrategy(fmt.Sprint("p", i)), ""); again != s {
			t.Fatalf("strategy %d of %d is computed again", i, workloads)
		}
	}
	for i := range workloads {
		if _, err := f.parse(largeStrategy(fmt.Sprint("q", i)), ""); err != nil {
			t.Fatal(err)
		}
	}
	if bytes := int64(f.parsed.Len()) * layout.Bytes(first[0].Strategy); bytes > parsedBytes {
		t.Errorf("strategies of %d bytes are remembered", bytes)
	}
}

// A shortage makes another strategy of one, which is computed once, too.
func TestLargeStrategiesOfShortages(t *testing.T) {
	for _, text := range []string{"p=0,weight=80:p=1,weight=20", largeStrategy("p")} {
		owner := ref("Deployment", "web")
		owner.UID = "web"
		w := world.Workload{Ref: owner, Namespace: "ns"}
		state := stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
		state.Pools = []stowage.PoolRoom{{NodeLabel: map[string]string{"p": "0"}, Phase: stowage.PoolExhausted, Max: 1}}
		f := NewFinder(manifests.New(world.Objects{Workloads: []*world.Workload{&w}, PoolStates: []stowage.PoolState{state}}), Settings{})
		for range 5 {
			p, err := f.Find(t.Context(), Pod{Namespace: "ns", Owner: owner, Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: text, stowage.SpillAnnotation: "1m"}})
			if err != nil || p == nil || p.State == nil {
				t.Fatalf("policy %+v, %v", p, err)
			}
		}
		if got := f.shorts.Len(); got != 1 {
			t.Errorf("%d strategies are remembered, want 1", got)
		}
	}
}

// What the API server would refuse in a pod makes a PodDistributor invalid: its pods are admitted as they are.
func TestCompileChecksPods(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*versprei.Pool)
		want string
	}{
		"nothing wrong": {func(p *versprei.Pool) {
			p.Tolerations = []versprei.Toleration{{Operator: "Exists"}, {Key: "example.com/spot", Value: "yes"}}
		}, ""},
		"a taint as the key of a toleration": {func(p *versprei.Pool) {
			p.Tolerations = []versprei.Toleration{{Key: "dedicated=spot", Operator: "Exists"}}
		}, "spec.distribution[0].tolerations[0].key"},
		"an effect in the value of a toleration": {func(p *versprei.Pool) {
			p.Tolerations = []versprei.Toleration{{Key: "dedicated", Value: "spot:NoSchedule"}}
		}, "spec.distribution[0].tolerations[0].value"},
		"a long label key": {func(p *versprei.Pool) {
			p.NodeLabel = map[string]versprei.LabelValue{strings.Repeat("x", 64): "a"}
		}, "a key of spec.distribution[0].nodeLabel"},
	} {
		d := distributor("d", "Deployment", "web", 0)
		tc.edit(&d.Spec.Distribution[0])
		p := Compile(&d)
		if tc.want == "" {
			if p.Err != nil || p.Written == nil {
				t.Errorf("%s: %v", name, p.Err)
			}
			continue
		}
		if p.Written != nil || p.Err == nil || !strings.Contains(p.Err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error about %s", name, p.Err, tc.want)
		}
	}
}

// What is remembered of a PodDistributor does not keep the list that it was read with.
func TestCompiledIsNoPartOfAList(t *testing.T) {
	list := []versprei.PodDistributor{distributor("d", "Deployment", "web", 0)}
	list[0].UID = "d"
	f := NewFinder(manifests.New(world.Objects{}), Settings{})
	if p := f.compile(&list[0]); p.Distributor == &list[0] || p.Distributor.Name != "d" {
		t.Error("the policy holds the element of the list")
	}
}

// One source wins, and nothing is merged.
func TestMatchOf(t *testing.T) {
	const one, two = "p=a,weight=1", "p=b,weight=1"
	text := func(s string) map[string]string {
		return map[string]string{stowage.SpreadStrategyAliasAnnotation: s}
	}
	up, down, job := ref("Deployment", "web"), ref("ReplicaSet", "web-1"), world.Ref{APIVersion: "batch/v1", Kind: "Job", Name: "job"}
	chain := func(annotations map[string]string) world.Chain {
		return world.Chain{Refs: []world.Ref{down, up}, Workloads: []*world.Workload{{Ref: down, Controller: &up}, {Ref: up, Annotations: annotations}}}
	}
	deployment, set := distributor("of-the-deployment", "Deployment", "web", 1), distributor("of-the-set", "ReplicaSet", "web-1", 2)
	other, ofJob := distributor("other", "Deployment", "other", 0), distributor("of-the-job", "Job", "job", 0)
	ofJob.Spec.Target.APIVersion = "batch/v1"
	invalid := distributor("invalid", "Deployment", "web", 0)
	invalid.Spec.Distribution = nil
	for name, tc := range map[string]struct {
		chain        world.Chain
		template     map[string]string
		distributors []versprei.PodDistributor
		want         string // the PodDistributor, or the strategy; empty is none
	}{
		"nothing":                                {chain: chain(nil)},
		"of the workload":                        {chain: chain(text(one)), want: one},
		"of the template":                        {chain: chain(nil), template: text(one), want: one},
		"the template over the workload":         {chain: chain(text(one)), template: text(two), want: two},
		"a PodDistributor over annotations":      {chain: chain(text(one)), template: text(two), distributors: []versprei.PodDistributor{deployment}, want: "of-the-deployment"},
		"one of the owner":                       {chain: chain(nil), distributors: []versprei.PodDistributor{set}, want: "of-the-set"},
		"the older one":                          {chain: chain(nil), distributors: []versprei.PodDistributor{deployment, set}, want: "of-the-set"},
		"one of another workload":                {chain: chain(nil), distributors: []versprei.PodDistributor{other}},
		"... beside annotations":                 {chain: chain(text(one)), distributors: []versprei.PodDistributor{other}, want: one},
		"an invalid one shadows annotations":     {chain: chain(text(one)), distributors: []versprei.PodDistributor{invalid}, want: "invalid"},
		"an invalid strategy shadows another":    {chain: chain(text(one)), template: text("p"), want: "p"},
		"annotations of a Job's pods do nothing": {chain: world.Chain{Refs: []world.Ref{job}}, template: text(one)},
		"a PodDistributor of a Job":              {chain: world.Chain{Refs: []world.Ref{job}}, distributors: []versprei.PodDistributor{ofJob}, want: "of-the-job"},
	} {
		t.Run(name, func(t *testing.T) {
			m := matchOf(tc.chain, tc.template, world.Winner(tc.distributors, tc.chain.Refs))
			got := m.Text
			if m.Distributor != nil {
				got = m.Distributor.Name
			}
			if got != tc.want || m.None() != (tc.want == "") {
				t.Errorf("%+v, want %q", m, tc.want)
			}
		})
	}
}

// An invalid source has no layout, and answers what is asked of any policy.
func TestInvalidPolicyAnswers(t *testing.T) {
	p := Compiled{Err: errors.New("invalid")}.policyOf(world.Chain{}, nil)
	if p.Layout != nil || p.Homes() != nil || p.Domains() != nil || p.Keeping() || p.Unsuitable() != nil || p.Nowhere() || !p.Suits(0) {
		t.Errorf("%+v", p)
	}
}

// A finding about a workload does not name the PodDistributor that divides its pods: whoever reaches the port of the webhook may ask for any workload.
func TestFindingsNameNoPodDistributor(t *testing.T) {
	f := NewFinder(manifests.New(world.Objects{PodDistributors: []versprei.PodDistributor{distributor("secret", "Deployment", "web", 0)}}), Settings{})
	own := feature.Metadata{Annotations: map[string]string{stowage.SpreadStrategyAliasAnnotation: "p=a,weight=1"}}
	found, err := f.Check(t.Context(), world.Object{Namespace: "ns", Ref: ref("Deployment", "web")}, own, &feature.Metadata{})
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Text, "a PodDistributor divides") || strings.Contains(fmt.Sprint(found), "secret") {
		t.Errorf("got %+v, %v", found, err)
	}
}
