package nodefit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/test/testkit"
)

// A pod is evidence for another one if it asks for as much, and for the same nodes.
func TestAlike(t *testing.T) {
	t.Parallel()
	zone := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector["zone"] = value }
	}
	for name, tc := range map[string]struct {
		ran, asks *corev1.Pod
		want      bool
	}{
		"the same":                           {seated(), seated(), true},
		"more":                               {seated(cpu("4")), seated(), true},
		"less":                               {seated(cpu("2")), seated(), false},
		"another selector":                   {seated(zone("1")), seated(zone("2")), false},
		"the same selector":                  {seated(zone("1")), seated(zone("1")), true},
		"required affinity":                  {seated(), seated(requires(terms("zone=2")...)), false},
		"the same required affinity":         {seated(requires(terms("zone=2")...)), seated(requires(terms("zone=2")...)), true},
		"affinity to pods makes no selector": {seated(), seated(func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}} }), true},
	} {
		if got := Alike(tc.ran, tc.asks); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestCovers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		has, asks string
		want      bool
	}{{"cpu=1", "cpu=1", true}, {"cpu=1", "cpu=2", false}, {"cpu=1,x/gpu=1", "cpu=1", true}, {"cpu=1", "cpu=1,x/gpu=1", false}, {"cpu=1", "", true}} {
		if got := Covers(testkit.ResourceList(tc.has), testkit.ResourceList(tc.asks)); got != tc.want {
			t.Errorf("%s for %s: %t", tc.has, tc.asks, got)
		}
	}
}
