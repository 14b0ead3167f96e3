package layers_test

import (
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/scaledown/layers"
)

const noKeys = "the pods have no topologySpreadConstraints and no anti-affinity to each other"

// own is the selector of the template's own pods.
const own = "labelSelector: {matchLabels: {app: web}}"

func TestKeys(t *testing.T) {
	hard := func(key string) layers.Key { return layers.Key{Name: key, Hard: true, MaxSkew: 1} }
	soft := func(key string) layers.Key { return layers.Key{Name: key, MaxSkew: 1} }
	constraint := func(key, when string) string {
		return fmt.Sprintf("{topologyKey: %s, whenUnsatisfiable: %s, maxSkew: 1, %s}", key, when, own)
	}
	preferred := func(key string) string {
		return fmt.Sprintf("{weight: 1, podAffinityTerm: {topologyKey: %s, %s}}", key, own)
	}
	for _, tt := range []struct {
		name, spec string
		policy     []string
		want       []layers.Key
		reason     string
	}{
		{name: "no keys", spec: "{}", reason: noKeys},
		{name: "the policy's", spec: "{}", policy: []string{"zone", "host"}, want: []layers.Key{soft("zone"), soft("host")}},
		{
			name: "the template's before the policy's", policy: []string{"rack"},
			spec: "topologySpreadConstraints: [" + constraint("host", "ScheduleAnyway") + "," + constraint("zone", "DoNotSchedule") + "]",
			want: []layers.Key{soft("host"), hard("zone")},
		},
		{
			name: "a key named twice is one",
			spec: "topologySpreadConstraints: [" + constraint("zone", "ScheduleAnyway") + "," + constraint("zone", "DoNotSchedule") + "]",
			want: []layers.Key{hard("zone")},
		},
		{
			name: "the smaller of two skews", want: []layers.Key{{Name: "zone", Hard: true, MaxSkew: 2}},
			spec: "topologySpreadConstraints: [{topologyKey: zone, whenUnsatisfiable: DoNotSchedule, maxSkew: 3, " + own + "}, {topologyKey: zone, maxSkew: 2, " + own + "}]",
		},
		{name: "constraints over the pods of others", spec: "topologySpreadConstraints: [{topologyKey: zone, labelSelector: {matchLabels: {app: db}}}]", reason: noKeys},
		{name: "no selector selects nothing", spec: "topologySpreadConstraints: [{topologyKey: zone}]", reason: noKeys},
		{name: "an invalid selector", spec: "topologySpreadConstraints: [{topologyKey: zone, labelSelector: {matchExpressions: [{key: app, operator: Like}]}}]", reason: noKeys},
		{name: "preferred anti-affinity", spec: "affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [" + preferred("zone") + "]}}", want: []layers.Key{soft("zone")}},
		{
			name: "required anti-affinity", spec: "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: host, " + own + "}]}}",
			want: []layers.Key{{Name: "host", Hard: true, Single: true, MaxSkew: 1}},
		},
		{
			name: "a constraint and required anti-affinity over one key", want: []layers.Key{{Name: "host", Hard: true, Single: true, MaxSkew: 1}},
			spec: "{topologySpreadConstraints: [" + constraint("host", "ScheduleAnyway") + "], affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: host, " + own + "}]}}}",
		},
		{name: "anti-affinity to others", spec: "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: host, labelSelector: {matchLabels: {app: db}}}]}}", reason: noKeys},
		{
			name: "anti-affinity in other namespaces", reason: noKeys,
			spec: "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: host, namespaces: [other], " + own + "}, {topologyKey: host, namespaceSelector: {matchLabels: {a: b}}, " + own + "}]}}",
		},
		{
			name: "a selector of namespaces by expressions", reason: noKeys,
			spec: "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: host, namespaceSelector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: Exists}]}, " + own + "}]}}",
		},
		{
			name: "anti-affinity in named namespaces and in all", want: []layers.Key{{Name: "host", Hard: true, Single: true, MaxSkew: 1}, {Name: "zone", Hard: true, Single: true, MaxSkew: 1}},
			spec: "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: host, namespaces: [shop], " + own + "}, {topologyKey: zone, namespaceSelector: {}, " + own + "}]}}",
		},
		{
			name: "a node selector chooses the zone", reason: "the pods choose their nodes by the label zone", policy: []string{"host"},
			spec: "{nodeSelector: {zone: a}, topologySpreadConstraints: [" + constraint("zone", "DoNotSchedule") + "]}",
		},
		{
			name: "a policy's key that the template chooses by", reason: "the pods choose their nodes by the label zone", policy: []string{"zone"},
			spec: "{nodeSelector: {zone: a}}",
		},
		{
			name: "affinity chooses, and another key is left", want: []layers.Key{hard("host")},
			spec: "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}]}}," +
				"topologySpreadConstraints: [" + constraint("zone", "DoNotSchedule") + "," + constraint("host", "DoNotSchedule") + "]}",
		},
		{
			name: "required affinity chooses", reason: "the pods choose their nodes by the label zone",
			spec: "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}," +
				"topologySpreadConstraints: [" + constraint("zone", "DoNotSchedule") + "]}",
		},
		{
			name: "affinity to pods chooses", reason: "the pods choose their nodes by the label zone",
			spec: "{affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: rack}], preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone}}]}}," +
				"topologySpreadConstraints: [" + constraint("rack", "DoNotSchedule") + "," + constraint("zone", "DoNotSchedule") + "]}",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			template := of(t, tt.spec)
			got, reason := template.Keys(tt.policy)
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if reason != tt.reason {
				t.Errorf("reason %q, want %q", reason, tt.reason)
			}
		})
	}
}

// A change of what a template asks for is seen, and a change of anything else is none.
func TestEqual(t *testing.T) {
	spread := func(skew int) string {
		return fmt.Sprintf("topologySpreadConstraints: [{topologyKey: zone, maxSkew: %d, %s}]", skew, own)
	}
	specs := []string{
		"{}", "{" + spread(1) + "}", "{" + spread(2) + "}", "{nodeSelector: {pool: a}}", "{nodeSelector: {zone: a}}",
		"{nodeSelector: {pool: a}, " + spread(1) + "}", "{nodeSelector: {zone: a}, " + spread(1) + "}",
	}
	for i, a := range specs {
		for j, b := range specs {
			left, right := of(t, a), of(t, b)
			if left.Equal(&right) != (i == j) {
				t.Errorf("%s and %s: equal is %t", a, b, i != j)
			}
		}
		template := of(t, a)
		if asks := i == 1 || i == 2 || i == 5; template.Asks() != asks {
			t.Errorf("%s: asks for a spread is %t", a, !asks)
		}
	}
	image, other := of(t, "{containers: [{name: a, image: a}]}"), of(t, "{containers: [{name: a, image: b}]}")
	if !image.Equal(&other) {
		t.Error("another image is another spread")
	}
}

// of returns what the pods of app=web in namespace shop ask for.
func of(t *testing.T, spec string) layers.Template {
	t.Helper()
	template := corev1.PodTemplateSpec{}
	template.Labels = map[string]string{"app": "web"}
	if err := yaml.UnmarshalStrict([]byte(spec), &template.Spec); err != nil {
		t.Fatal(err)
	}
	return layers.Of(&template, "shop")
}

func TestKeysAreBounded(t *testing.T) {
	var policy []string
	for i := range 100 {
		policy = append(policy, fmt.Sprintf("key-%d", i))
	}
	if got, _ := new(layers.Template).Keys(policy); len(got) != layers.MostKeys {
		t.Errorf("%d keys, want %d", len(got), layers.MostKeys)
	}
}

func TestSort(t *testing.T) {
	values := map[string]int{"zone": 3, "host": 10, "type": 2, "rack": 3}
	for _, tt := range []struct {
		name       string
		keys, want []layers.Key
	}{
		{"the zone before its hosts", []layers.Key{{Name: "host", Hard: true}, {Name: "zone", Hard: true}}, []layers.Key{{Name: "zone", Hard: true}, {Name: "host", Hard: true}}},
		{"hard before soft", []layers.Key{{Name: "zone"}, {Name: "host", Hard: true}}, []layers.Key{{Name: "host", Hard: true}, {Name: "zone"}}},
		{"single pods hold by themselves", []layers.Key{{Name: "host", Hard: true, Single: true, MaxSkew: 1}, {Name: "zone"}}, []layers.Key{{Name: "zone"}, {Name: "host", Hard: true, Single: true, MaxSkew: 1}}},
		{"single pods after soft keys of more values", []layers.Key{{Name: "type", Hard: true, Single: true}, {Name: "zone"}}, []layers.Key{{Name: "zone"}, {Name: "type", Hard: true, Single: true}}},
		{"by name", []layers.Key{{Name: "zone"}, {Name: "rack"}, {Name: "type"}}, []layers.Key{{Name: "type"}, {Name: "rack"}, {Name: "zone"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			layers.Sort(tt.keys, values)
			if diff := gocmp.Diff(tt.want, tt.keys); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
