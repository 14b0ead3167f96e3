package preview

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// thirdPartyKinds are kinds of other projects whose pods a preview makes: Argo Rollouts and OpenKruise. Of
// their fields, it reads those that they share with Deployments and StatefulSets.
var thirdPartyKinds = []schema.GroupKind{
	{Group: "argoproj.io", Kind: "Rollout"},
	{Group: "apps.kruise.io", Kind: "CloneSet"},
	{Group: "apps.kruise.io", Kind: "StatefulSet"},
	{Group: "apps.kruise.io", Kind: "DaemonSet"},
}

func isThirdParty(gvk schema.GroupVersionKind) bool {
	return slices.Contains(thirdPartyKinds, gvk.GroupKind())
}

// thirdParty takes an object of one of those kinds.
func (l *loader) thirdParty(at source, where string, gvk schema.GroupVersionKind, data []byte) {
	if l.failValues(where, data) {
		return
	}
	var object struct {
		metav1.PartialObjectMetadata `json:",inline"`

		Spec struct {
			Replicas    *int32                 `json:"replicas"`
			Template    corev1.PodTemplateSpec `json:"template"`
			ServiceName string                 `json:"serviceName"`
			Paused      bool                   `json:"paused"`
			Strategy    struct {
				Canary *struct {
					Steps []json.RawMessage `json:"steps"`
				} `json:"canary"`
				BlueGreen *struct {
					AutoPromotionEnabled *bool `json:"autoPromotionEnabled"`
				} `json:"blueGreen"`
			} `json:"strategy"`
			WorkloadRef *struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
			} `json:"workloadRef"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		l.fail("%s: %w", where, err)
		return
	}
	spec := &object.Spec
	w := Workload{
		GroupVersionKind: gvk, Namespace: object.Namespace, Name: object.Name, meta: object.ObjectMeta, template: spec.Template,
		replicasPath: field.NewPath("spec", "replicas"),
		templatePath: field.NewPath("spec", "template"), specPath: field.NewPath("spec", "template", "spec"), serviceName: spec.ServiceName,
	}
	w.asks(spec.Replicas)
	switch canary, blueGreen := spec.Strategy.Canary, spec.Strategy.BlueGreen; {
	case gvk.Kind != "Rollout":
		w.holds = "how a " + gvk.Kind + " of OpenKruise replaces its pods is not known"
	case spec.Paused:
		w.holds = "it is paused, so that nothing replaces its pods"
	case canary != nil && len(canary.Steps) > 0:
		w.holds = "its rollout has steps, at which it may wait"
	case blueGreen != nil && blueGreen.AutoPromotionEnabled != nil && !*blueGreen.AutoPromotionEnabled:
		w.holds = "its rollout waits to be promoted"
	}
	if spec.WorkloadRef != nil {
		l.references = append(l.references, reference{at, w, &object.PartialObjectMetadata, spec.WorkloadRef.Kind, spec.WorkloadRef.Name})
		return
	}
	l.workload(at, w, &object.PartialObjectMetadata)
}

// reference is a Rollout without a template of its own: it takes that of another object.
type reference struct {
	at         source
	rollout    Workload
	meta       *metav1.PartialObjectMetadata
	kind, name string
}

// resolve gives Rollouts the templates of the objects that they refer to.
func (l *loader) resolve() {
	for _, r := range l.references {
		l.home(&r.rollout.Namespace)
		found := slices.IndexFunc(l.in.Workloads, func(w Workload) bool {
			return w.Kind == r.kind && w.Name == r.name && w.Namespace == r.rollout.Namespace
		})
		if found < 0 {
			l.warn("%s (%s): %s %s, which spec.workloadRef names, is not in the input, so the Rollout is left out", r.at, r.rollout, r.kind, r.name)
			continue
		}
		r.rollout.template = l.in.Workloads[found].template
		l.workload(r.at, r.rollout, r.meta)
	}
}
