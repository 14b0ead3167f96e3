package admission

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// report writes the log line and the events of one decision.
func (h *Handler) report(req *request[*podpatch.Pod], pod *podpatch.Pod, res *pipeline.Result, err error) {
	for _, f := range res.Features {
		if f.Err == nil {
			continue
		}
		keys := []any{"feature", f.Feature, "namespace", req.Namespace, "pod", pod.DisplayName(), "uid", req.UID}
		if p := (*pipeline.PanicError)(nil); errors.As(f.Err, &p) {
			keys = append(keys, "stack", string(p.Stack))
		}
		h.failures().error(f.Err, "feature failed; pod admitted without it", keys...)
	}
	if err != nil {
		h.failures().error(err, "pod admitted as it was", "namespace", req.Namespace, "pod", pod.DisplayName(), "uid", req.UID)
	}

	if len(res.Patch) == 0 {
		if log := h.Log.V(1); log.Enabled() {
			log.Info("pod not changed", "namespace", req.Namespace, "pod", pod.DisplayName(), "warnings", len(res.Warnings), "dryRun", req.DryRun, "uid", req.UID)
		}
	} else if log := h.Log; log.Enabled() && (h.ChangeLimit == nil || h.ChangeLimit.TryAccept()) {
		keys := []any{"namespace", req.Namespace, "pod", pod.DisplayName(), "operations", len(res.Patch), "dryRun", req.DryRun, "uid", req.UID}
		if owner := pod.Controller(); owner != nil {
			keys = append(keys, "owner", owner.Kind+"/"+owner.Name)
		}
		for _, f := range res.Features {
			if f.Outcome == pipeline.OutcomeApplied {
				keys = append(keys, f.Feature, f.Summary)
			}
		}
		log.Info("pod changed", keys...)
	}

	if req.DryRun {
		return // an event is a side effect
	}
	if about := subject(req, pod); about != nil {
		for _, e := range res.Events {
			if !h.EventLimit.Allow(req.Namespace, h.Clock.Now()) {
				h.Metrics.droppedEvents.Inc()
				continue
			}
			h.Events.WarnRelated(about, e.Related, e.Reason, events.Admit, e.Note)
		}
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
