package nodefit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
	list := func(cpu, gpu string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, q := range map[corev1.ResourceName]string{"cpu": cpu, "x/gpu": gpu} {
			if q != "" {
				out[name] = resource.MustParse(q)
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		has, asks corev1.ResourceList
		want      bool
	}{
		"as much":                 {list("1", ""), list("1", ""), true},
		"less":                    {list("1", ""), list("2", ""), false},
		"another resource beside": {list("1", "1"), list("1", ""), true},
		"a resource is missing":   {list("1", ""), list("1", "1"), false},
		"nothing is asked for":    {list("1", ""), nil, true},
	} {
		if got := Covers(tc.has, tc.asks); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
