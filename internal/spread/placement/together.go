package placement

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// UnmetAffinity says, for people, that a pod has a required affinity to pods like itself which contradicts a division over several pools: the first pod
// chooses a domain of the topology key, and each of the others has to run there. It is empty where it has none. Certain says that pools or domains have no
// such domain in common; otherwise that depends on their nodes.
func UnmetAffinity(pod *podpatch.Pod, s *sequence.Strategy) (text string, certain bool) {
	if pod.Spec.Affinity == nil {
		return "", false
	}
	for i := range pod.Spec.Affinity.Together {
		term := &pod.Spec.Affinity.Together[i]
		if !likeItself(pod, term) {
			continue
		}
		is, certain := contradicts(term.TopologyKey, s)
		if certain || text == "" && is != "" {
			text = is
		}
		if certain {
			return text, true
		}
	}
	return text, false
}

// likeItself reports whether a term of affinity selects the pod that has it, by labels that tell the pod from others of its namespace.
func likeItself(pod *podpatch.Pod, term *corev1.PodAffinityTerm) bool {
	has := labels.Set(pod.Metadata.Labels)
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil || selector.Empty() || !selector.Matches(has) || slices.ContainsFunc(term.MismatchLabelKeys, has.Has) {
		return false
	}
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil || slices.Contains(term.Namespaces, pod.Metadata.Namespace) {
		return true
	}
	of := term.NamespaceSelector // an empty one selects every namespace, and the labels of this one are not known here
	return of != nil && len(of.MatchLabels)+len(of.MatchExpressions) == 0
}

// contradicts says that pods which have to run in one domain of a topology key are divided over several, or nothing. Certain is as in [UnmetAffinity].
func contradicts(key string, s *sequence.Strategy) (text string, certain bool) {
	var used []int // the pools that may get pods
	for i := range s.Len() {
		if n := s.Values(key, i); n > 1 {
			return fmt.Sprintf("the required affinity to pods over %s keeps them all in one domain, and the strategy divides them over %d", key, n), true
		}
		if p := s.Pool(i); p.Base > 0 || p.Weight > 0 {
			used = append(used, i)
		}
	}
	switch {
	case len(used) < 2 || s.Values(key, used[0]) == 1: // all pools have the one value
		return "", false
	case key == corev1.LabelHostname && apart(s, used):
		return fmt.Sprintf("the required affinity to pods over %s keeps them all on one node, and the strategy divides them over pools that share no node", key), true
	}
	return fmt.Sprintf("the required affinity to pods over %s keeps them all in one domain: pods of a pool without nodes in that domain wait", key), false
}

// apart reports whether the first of some pools can have no node in common with one of the others.
func apart(s *sequence.Strategy, pools []int) bool {
	first := s.Nodes(pools[0], -1)
	return slices.ContainsFunc(first.Keys(), func(key string) bool {
		of := first.Of(key)
		return slices.ContainsFunc(pools[1:], func(i int) bool {
			return !nodeset.Satisfiable(slices.Concat(of, s.Nodes(i, -1).Of(key)))
		})
	})
}
