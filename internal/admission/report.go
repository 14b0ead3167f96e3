package admission

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// mostName is how many bytes of a name are logged. The API server allows no longer one; whoever reaches the port may send any.
const mostName = 253

// report writes the log lines and the events of one decision.
func (h *Handler) report(req *request[*podpatch.Pod], pod *podpatch.Pod, res *pipeline.Result, err error) {
	namespace, name, uid := bounded.Text(req.Namespace, mostName), bounded.Text(pod.DisplayName(), mostName), bounded.Text(string(req.UID), mostName)
	for _, f := range res.Features {
		if f.Err == nil {
			continue
		}
		keys := []any{"feature", f.Feature, "namespace", namespace, "pod", name, "uid", uid}
		if p := (*pipeline.PanicError)(nil); errors.As(f.Err, &p) {
			keys = append(keys, "stack", string(p.Stack))
		}
		h.failures().error(f.Err, "feature failed; pod admitted without it", keys...)
	}
	if err != nil {
		h.failures().error(err, "pod admitted as it was", "namespace", namespace, "pod", name, "uid", uid)
	}

	if len(res.Patch) == 0 {
		if log := h.Log.V(1); log.Enabled() {
			log.Info("pod not changed", "namespace", namespace, "pod", name, "warnings", len(res.Warnings), "dryRun", req.DryRun, "uid", uid)
		}
	} else if log := h.Log; log.Enabled() && (h.ChangeLimit == nil || h.ChangeLimit.TryAccept()) {
		keys := []any{"namespace", namespace, "pod", name, "operations", len(res.Patch), "dryRun", req.DryRun, "uid", uid}
		if owner := pod.Controller(); owner != nil {
			keys = append(keys, "owner", bounded.Text(owner.Kind+"/"+owner.Name, mostName))
		}
		for _, f := range res.Features {
			if f.Outcome == pipeline.OutcomeApplied {
				keys = append(keys, f.Feature, f.Summary)
			}
		}
		log.Info("pod changed", keys...)
	}

	if about := subject(req, pod); about != nil && !req.DryRun { // an event is a side effect
		h.warn(about, res.Events)
	}
}

// warn writes the events of a decision, as many as the limit allows.
func (h *Handler) warn(about *corev1.ObjectReference, of []feature.Event) {
	for _, e := range of {
		if !h.EventLimit.Allow(about.Namespace, h.Clock.Now()) {
			h.Metrics.droppedEvents.Inc()
			continue
		}
		h.Events.WarnRelated(about, e.Related, e.Reason, events.Admit, e.Note)
	}
}

// subject is the object that an event about a pod is about: its controller, or the pod itself. It is nothing where
// neither has a name yet.
func subject(req *request[*podpatch.Pod], pod *podpatch.Pod) *corev1.ObjectReference {
	if o := pod.Controller(); o != nil {
		return &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: req.Namespace, Name: o.Name, UID: types.UID(o.UID)}
	}
	if pod.Metadata.Name != "" {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: req.Namespace, Name: pod.Metadata.Name}
	}
	return nil
}
