package preview

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// thirdPartyKinds are kinds of other projects whose pods a preview makes: Argo Rollouts and OpenKruise. Of
// their fields, it reads those that they share with Deployments and StatefulSets.
var thirdPartyKinds = []schema.GroupKind{
	rollouts,
	{Group: "apps.kruise.io", Kind: "CloneSet"},
	{Group: "apps.kruise.io", Kind: "StatefulSet"},
	{Group: "apps.kruise.io", Kind: "DaemonSet"},
}

// rollouts are Argo's. The ReplicaSets and pods of one have a hash of its template in a label.
var rollouts = schema.GroupKind{Group: "argoproj.io", Kind: "Rollout"}

const rolloutHashLabel = "rollouts-pod-template-hash"

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
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
				Name       string `json:"name"`
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
	if ref := spec.WorkloadRef; ref != nil {
		l.home(&w.Namespace)
		gv, _ := schema.ParseGroupVersion(ref.APIVersion) // one that is none names no group that there is
		rollout := &reference{at, w, &object.PartialObjectMetadata, identity{gv.WithKind(ref.Kind).GroupKind(), w.Namespace, ref.Name}}
		l.take(taken{
			identity: w.identity(), at: at, obj: &object.ObjectMeta, workload: &rollout.rollout,
			add: func() { l.references = append(l.references, rollout) },
		})
		return
	}
	l.workload(at, w, &object.PartialObjectMetadata)
}

// reference is a Rollout without a template of its own: it takes that of another object.
type reference struct {
	at      source
	rollout Workload
	meta    *metav1.PartialObjectMetadata
	to      identity
}

// resolve gives Rollouts the templates of the objects that they refer to. The objects are the last of their identity, and may be parts of others.
func (l *loader) resolve() {
	for _, r := range l.references {
		var template *corev1.PodTemplateSpec
		if at, known := l.places[r.to]; known && l.taken[at].workload != nil {
			template = &l.taken[at].workload.template
		} else if i := slices.IndexFunc(l.in.Workloads, func(w Workload) bool { return w.identity() == r.to }); i >= 0 { // of a cluster
			template = &l.in.Workloads[i].template
		}
		if template == nil {
			missing := fmt.Sprintf("%s (%s): %s %s, which spec.workloadRef names, is not in the input", r.at, r.rollout, r.to.Kind, line(r.to.name))
			l.warn("%s, so the Rollout is left out", missing)
			l.dangling = append(l.dangling, errors.New(missing+", and there is no other workload"))
			continue
		}
		r.rollout.template = *template
		if l.valid(r.at, &r.rollout) {
			l.in.add(r.rollout, r.meta)
		}
	}
}
