package policies_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
	"github.com/stowage-dev/stowage/internal/world"
)

// spec reads words such as "Enforce p=5 app=web".
func spec(words ...string) (s stowage.ScaleDownPolicySpec) {
	s.Mode = stowage.PolicyMode(words[0])
	s.Selector.MatchLabels = map[string]versprei.LabelValue{}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		if key == "p" {
			s.Priority = int32(value[0] - '0')
		} else {
			s.Selector.MatchLabels[key] = versprei.LabelValue(value)
		}
	}
	return s
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// of makes a policy of namespace ns; a name that begins with C is of a ClusterScaleDownPolicy for namespaces with team=a. The last letter is its age.
func of(text string) *policies.Policy {
	words := strings.Fields(text)
	name := words[0]
	m := metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(-time.Duration(name[len(name)-1]) * time.Hour))}
	if strings.HasPrefix(name, "C") {
		c := &stowage.ClusterScaleDownPolicy{ObjectMeta: m, Spec: stowage.ClusterScaleDownPolicySpec{ScaleDownPolicySpec: spec(words[1:]...)}}
		c.Spec.NamespaceSelector.MatchLabels = map[string]versprei.LabelValue{"team": "a"}
		return policies.OfCluster(c)
	}
	m.Namespace = "ns"
	return policies.Of(&stowage.ScaleDownPolicy{ObjectMeta: m, Spec: spec(words[1:]...)})
}

func TestWinner(t *testing.T) {
	web := policies.Workload{Namespace: "ns", NamespaceLabels: map[string]string{"team": "a"}, PodLabels: map[string]string{"app": "web"}}
	elsewhere, unknown, other := web, web, web
	elsewhere.Namespace = "elsewhere"
	unknown.NamespaceLabels = nil
	other.NamespaceLabels = map[string]string{"team": "b"}
	for _, tt := range []struct {
		name string
		w    policies.Workload
		all  []string
		want string // the winner and the others
	}{
		{"none", web, nil, ""},
		{"that of the namespace", web, []string{"C1 Enforce p=9", "n1 Enforce"}, "n1 C1"},
		{"the highest priority", web, []string{"n2 Enforce p=1", "n1 Enforce p=2"}, "n1 n2"},
		{"the oldest", web, []string{"n1 Enforce", "n2 Enforce"}, "n2 n1"},
		{"Audit never wins over Enforce", web, []string{"n1 Audit p=9", "C1 Enforce"}, "C1 n1"},
		{"Audit alone", web, []string{"n1 Audit"}, "n1"},
		{"other labels", web, []string{"n1 Enforce app=db", "n2 Enforce app=web"}, "n2"},
		{"another namespace", elsewhere, []string{"n1 Enforce", "C1 Enforce"}, "C1"},
		{"other labels of the namespace", other, []string{"C1 Enforce"}, ""},
		{"a namespace that is not known", unknown, []string{"C1 Enforce"}, ""},
	} {
		var all []*policies.Policy
		for _, text := range tt.all {
			all = append(all, of(text))
		}
		policies.Sort(all)
		winner, others := policies.Winner(all, &tt.w)
		var got []string
		if winner != nil {
			got = append(got, winner.Name)
		}
		for _, p := range others {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
	}
}

// An invalid policy selects nothing and says why, and of a namespace not more count than may.
func TestPoliciesThatDoNotCount(t *testing.T) {
	w := policies.Workload{Namespace: "ns", NamespaceLabels: map[string]string{}}
	for _, invalid := range []*policies.Policy{of("n1 Enforce -app=x"), of("C1 Enforce -app=x")} {
		if invalid.Err == nil || !strings.Contains(invalid.Err.Error(), "spec.selector") || invalid.Selects(&w) {
			t.Errorf("%s: %v", invalid, invalid.Err)
		}
	}
	var all []*policies.Policy
	for i := range world.MostPolicies + 1 {
		all = append(all, of(fmt.Sprintf("n%03d Enforce", i)))
	}
	last := of("n1000 Enforce p=9")
	all = append(all, last, of("C1 Enforce"))
	policies.Sort(all)
	count := 0
	for _, p := range all {
		if p.TooMany {
			count++
		}
	}
	if count != 2 || last.TooMany || !slices.ContainsFunc(all, func(p *policies.Policy) bool { return p.TooMany && !p.Selects(&w) }) {
		t.Errorf("%d of %d policies are too many", count, len(all))
	}
}

// Only owners whose controllers remove pods by their costs are concerned, and a CloneSet only without constraints of its own.
func TestKeys(t *testing.T) {
	asks := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	asks.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{}}}
	for _, tt := range []struct {
		apiVersion, kind string
		asks, seats      bool
		policy           []string
		want             stowage.NotConcernedReason
	}{
		{apiVersion: "apps/v1", kind: "ReplicaSet", asks: true},
		{apiVersion: "apps/v1", kind: "ReplicaSet", policy: []string{"zone"}},
		{apiVersion: "apps/v1", kind: "ReplicaSet", want: stowage.NotConcernedNoKeys},
		{apiVersion: "apps/v1", kind: "ReplicaSet", asks: true, seats: true, want: stowage.NotConcernedSeats},
		{apiVersion: "v1", kind: "ReplicationController", asks: true},
		{apiVersion: "apps.kruise.io/v1alpha1", kind: "CloneSet", policy: []string{"zone"}},
		{apiVersion: "apps.kruise.io/v1alpha1", kind: "CloneSet", asks: true, want: stowage.NotConcernedKind},
		{apiVersion: "example.com/v1", kind: "ReplicaSet", asks: true, want: stowage.NotConcernedKind},
		{apiVersion: "apps/v1", kind: "StatefulSet", asks: true, want: stowage.NotConcernedKind},
		{apiVersion: "batch/v1", kind: "Job", asks: true, want: stowage.NotConcernedKind},
	} {
		var template layers.Template
		if tt.asks {
			template = layers.Of(&asks, "ns")
		}
		p := of("n1 Enforce")
		p.Spec.TopologyKeys = tt.policy
		keys, not, why := p.Keys(world.Ref{APIVersion: tt.apiVersion, Kind: tt.kind}, &template, tt.seats)
		if concerned := tt.want == ""; not != tt.want || (len(keys) == 1) != concerned || (why == "") != concerned {
			t.Errorf("%+v: %v, %q, %q", tt, keys, not, why)
		}
	}
}
