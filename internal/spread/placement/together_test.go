package placement

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// A required affinity to pods like itself keeps pods in one domain. That contradicts pools which have no domain in common, and may contradict others.
func TestUnmetAffinity(t *testing.T) {
	parse := func(text string, domains ...string) *sequence.Strategy {
		t.Helper()
		s, err := sequence.Parse(text)
		if err == nil && len(domains) > 0 {
			a := sequence.Across{Key: corev1.LabelTopologyZone}
			for _, name := range domains {
				a.Domains = append(a.Domains, sequence.Domain{Value: name, Weight: 1})
			}
			s, err = s.WithDomains(a)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const zone, host = corev1.LabelTopologyZone, corev1.LabelHostname
	types := parse("type=spot,weight=1:type=default,weight=1")
	zones := parse(zone + "=a,weight=1:" + zone + "=b,weight=1")
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	pod := func(key string, change func(*corev1.PodAffinityTerm)) *podpatch.Pod {
		term := corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: own}
		if change != nil {
			change(&term)
		}
		p := &podpatch.Pod{}
		p.Metadata.Namespace, p.Metadata.Labels = "shop", map[string]string{"app": "web", "pod-template-hash": "1"}
		p.Spec.Affinity = &podpatch.Affinity{Together: []corev1.PodAffinityTerm{term}}
		return p
	}
	selects := func(s *metav1.LabelSelector) func(*corev1.PodAffinityTerm) {
		return func(term *corev1.PodAffinityTerm) { term.LabelSelector = s }
	}
	for name, tc := range map[string]struct {
		strategy *sequence.Strategy
		pod      *podpatch.Pod
		want     string
		certain  bool
	}{
		"pools are zones":                   {zones, pod(zone, nil), "keeps them all in one domain, and the strategy divides them over 2", true},
		"pools are divided over zones":      {parse("type=spot,weight=1", "a", "b", "c"), pod(zone, nil), "divides them over 3", true},
		"one node, and pools apart":         {types, pod(host, nil), "keeps them all on one node, and the strategy divides them over pools that share no node", true},
		"one node, and pools that may meet": {parse("type=spot,weight=1:disk=ssd,weight=1"), pod(host, nil), "pods of a pool without nodes in that domain wait", false},
		"zones, of pools of any":            {types, pod(zone, nil), "keeps them all in one domain: pods of a pool without nodes in that domain wait", false},
		"regions, of pools of any":          {types, pod(corev1.LabelTopologyRegion, nil), "without nodes in that domain wait", false},
		"one pool":                          {parse("type=spot,weight=1"), pod(host, nil), "", false},
		"one pool that gets pods":           {parse("type=spot,weight=1:type=default,weight=0"), pod(host, nil), "", false},
		"all pools are of one zone":         {parse(zone + "=a,type=spot,weight=1:" + zone + "=a,type=default,weight=1"), pod(zone, nil), "", false},
		"it selects other pods":             {zones, pod(zone, selects(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}})), "", false},
		"it selects none":                   {zones, pod(zone, selects(nil)), "", false},
		"it selects all of the namespace":   {zones, pod(zone, selects(&metav1.LabelSelector{})), "", false},
		"it is wrong":                       {zones, pod(zone, selects(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Is"}}})), "", false},
		"pods of another namespace":         {zones, pod(zone, func(term *corev1.PodAffinityTerm) { term.Namespaces = []string{"other"} }), "", false},
		"of its namespace, by name":         {zones, pod(zone, func(term *corev1.PodAffinityTerm) { term.Namespaces = []string{"other", "shop"} }), "divides them over 2", true},
		"of every namespace":                {zones, pod(zone, func(term *corev1.PodAffinityTerm) { term.NamespaceSelector = &metav1.LabelSelector{} }), "divides them over 2", true},
		"of namespaces by labels":           {zones, pod(zone, func(term *corev1.PodAffinityTerm) { term.NamespaceSelector = own }), "", false},
		"pods of the same revision":         {zones, pod(zone, func(term *corev1.PodAffinityTerm) { term.MatchLabelKeys = []string{"pod-template-hash"} }), "divides them over 2", true},
		"pods of other revisions":           {zones, pod(zone, func(term *corev1.PodAffinityTerm) { term.MismatchLabelKeys = []string{"pod-template-hash"} }), "", false},
		"none":                              {zones, &podpatch.Pod{}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			text, certain := UnmetAffinity(tc.pod, tc.strategy)
			if certain != tc.certain || (text == "") != (tc.want == "") || !strings.Contains(text, tc.want) {
				t.Errorf("it says %q, certain: %t; want %q, %t", text, certain, tc.want, tc.certain)
			}
		})
	}

	// Of several terms, a certain one counts.
	both := pod(corev1.LabelTopologyRegion, nil)
	both.Spec.Affinity.Together = append(both.Spec.Affinity.Together, pod(host, nil).Spec.Affinity.Together...)
	if text, certain := UnmetAffinity(both, types); !certain || !strings.Contains(text, "on one node") {
		t.Errorf("of two terms, it says %q", text)
	}
}
