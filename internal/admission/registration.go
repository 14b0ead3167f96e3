package admission

import (
	"encoding/json"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread"
)

// Called reports whether the API server calls one of a registration's webhooks for a pod,
// as far as their selectors say so.
func Called(reg *admissionregistrationv1.MutatingWebhookConfiguration, namespaceLabels, podLabels map[string]string) bool {
	return slices.ContainsFunc(reg.Webhooks, func(h admissionregistrationv1.MutatingWebhook) bool {
		return selects(h.NamespaceSelector, namespaceLabels) && selects(h.ObjectSelector, podLabels)
	})
}

func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	if selector == nil {
		return true
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

// AsCreated returns a pod as its owner made it, as far as its placement goes: without
// the node that the scheduler chose, and without what we wrote into it.
func AsCreated(pod *corev1.Pod, s *spread.Strategy) (*podpatch.Pod, error) {
	created := pod.DeepCopy()
	// A pod that was created with its node has no later sibling with a seat.
	created.Spec.NodeName = ""
	_, claimed := pod.Annotations[stowage.ClaimAnnotation]
	_, pooled := pod.Labels[stowage.PoolLabel]
	if claimed || pooled {
		for i := range s.Len() {
			for key := range s.Pool(i).Labels {
				delete(created.Spec.NodeSelector, key)
			}
		}
	}
	data, err := json.Marshal(created)
	if err != nil {
		return nil, err
	}
	return podpatch.Decode(data)
}
