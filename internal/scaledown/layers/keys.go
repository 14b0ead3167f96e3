package layers

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// MostKeys is how many keys of a template count. The API server sets no bound on them.
const MostKeys = 8

// Key is a label of nodes over whose values the pods of an owner are to be spread.
type Key struct {
	Name string
	// Hard: a pod that breaks the spread waits, as with whenUnsatisfiable: DoNotSchedule.
	Hard bool
	// Single: a value has at most one pod, because the template requires anti-affinity to its own pods. No scale-down can break that.
	Single bool
	// MaxSkew is by how many pods two values may differ.
	MaxSkew int32
}

// Template is what the pods of an owner ask for.
type Template struct {
	keys []Key
	// chosen are labels of nodes that the pods choose their nodes by, and skipped is one of them over which they ask for a spread, too.
	chosen  []string
	skipped string
}

// mostChosen is how many labels are kept that pods choose their nodes by. The API server sets no bound on them.
const mostChosen = 32

// Of returns what a template asks for: a spread over the keys of its topologySpreadConstraints and of its anti-affinity, as far as they
// select its own pods, which are in this namespace. A key that the template also chooses nodes by, with affinity or a node selector, is left out: its pods
// are to be uneven. The order means nothing.
func Of(template *corev1.PodTemplateSpec, namespace string) Template {
	t, own := Template{chosen: chosenBy(&template.Spec)}, labels.Set(template.Labels)
	for _, c := range template.Spec.TopologySpreadConstraints {
		if selects(c.LabelSelector, own) {
			t.add(Key{Name: c.TopologyKey, Hard: c.WhenUnsatisfiable == corev1.DoNotSchedule, MaxSkew: c.MaxSkew})
		}
	}
	if a := template.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			if ownTerm(&term, namespace, own) {
				t.add(Key{Name: term.TopologyKey, Hard: true, Single: true})
			}
		}
		for _, term := range a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			if ownTerm(&term.PodAffinityTerm, namespace, own) {
				t.add(Key{Name: term.PodAffinityTerm.TopologyKey})
			}
		}
	}
	if len(t.chosen) > mostChosen {
		t.chosen = t.chosen[:mostChosen:mostChosen]
	}
	return t
}

// add adds a key. One that is there twice is one.
func (t *Template) add(k Key) {
	k.MaxSkew = max(k.MaxSkew, 1)
	if slices.Contains(t.chosen, k.Name) {
		t.skipped = k.Name
	} else if i := slices.IndexFunc(t.keys, func(other Key) bool { return other.Name == k.Name }); i >= 0 {
		t.keys[i].Hard = t.keys[i].Hard || k.Hard
		t.keys[i].Single = t.keys[i].Single || k.Single
		t.keys[i].MaxSkew = min(t.keys[i].MaxSkew, k.MaxSkew)
	} else if len(t.keys) < MostKeys {
		t.keys = append(t.keys, k)
	}
}

// Equal reports whether two templates ask for the same.
func (t *Template) Equal(other *Template) bool {
	return t.skipped == other.skipped && slices.Equal(t.keys, other.keys) && slices.Equal(t.chosen, other.chosen)
}

// Asks reports whether the template itself asks for a spread.
func (t *Template) Asks() bool { return len(t.keys) > 0 }

// Keys returns the keys to keep the pods spread over: those of the template, or else those of the policy. The reason says why there is no key.
func (t *Template) Keys(policy []string) (keys []Key, reason string) {
	with := Template{keys: slices.Clone(t.keys), chosen: t.chosen, skipped: t.skipped}
	if len(with.keys) == 0 && with.skipped == "" {
		for _, name := range policy {
			with.add(Key{Name: name})
		}
	}
	switch {
	case len(with.keys) > 0:
		return with.keys, ""
	case with.skipped != "":
		return nil, fmt.Sprintf("the pods choose their nodes by the label %s", with.skipped)
	default:
		return nil, "the pods have no topologySpreadConstraints and no anti-affinity to each other"
	}
}

// chosenBy returns the labels of nodes that a pod is drawn to or kept from by something else than the spread of its own pods.
func chosenBy(pod *corev1.PodSpec) (names []string) {
	names = slices.Sorted(maps.Keys(pod.NodeSelector))
	if pod.Affinity == nil {
		return names
	}
	terms := func(terms ...corev1.NodeSelectorTerm) {
		for _, t := range terms {
			for _, e := range t.MatchExpressions {
				names = append(names, e.Key)
			}
		}
	}
	if a := pod.Affinity.NodeAffinity; a != nil {
		if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			terms(r.NodeSelectorTerms...)
		}
		for _, p := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			terms(p.Preference)
		}
	}
	if a := pod.Affinity.PodAffinity; a != nil {
		for _, t := range a.RequiredDuringSchedulingIgnoredDuringExecution {
			names = append(names, t.TopologyKey)
		}
		for _, t := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			names = append(names, t.PodAffinityTerm.TopologyKey)
		}
	}
	return names
}

// ownTerm reports whether a term of affinity selects pods with these labels in this namespace. The labels of the namespace are not known here, so a
// namespace selector counts only if it is empty, which selects all namespaces.
func ownTerm(t *corev1.PodAffinityTerm, namespace string, own labels.Set) bool {
	here := len(t.Namespaces) == 0 && t.NamespaceSelector == nil || slices.Contains(t.Namespaces, namespace)
	if s := t.NamespaceSelector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		here = true
	}
	return here && selects(t.LabelSelector, own)
}

// selects reports whether a selector of a template selects its own pods. As for kube-scheduler, no selector selects nothing.
func selects(selector *metav1.LabelSelector, own labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(own)
}

// Count returns how many values nodes with these labels have for each key. All nodes without the label count as one.
func Count(keys []Key, nodes iter.Seq[map[string]string]) map[string]int {
	values := map[string]int{}
	for _, k := range keys {
		seen := map[string]bool{}
		for labels := range nodes {
			seen[labels[k.Name]] = true
		}
		values[k.Name] = len(seen)
	}
	return values
}

// Sort puts the most important key first, because scale-downs keep the first key exactly. Hard keys come before soft ones. Then keys with fewer values come
// first, so a zone comes before its hosts. A key with single pods comes last: no scale-down can break it. The map is that of [Count].
func Sort(keys []Key, values map[string]int) {
	last := func(k Key) int {
		switch {
		case k.Single:
			return 2
		case k.Hard:
			return 0
		}
		return 1
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(values[a.Name], values[b.Name]), cmp.Compare(a.Name, b.Name))
	})
}
