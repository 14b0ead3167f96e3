package poolstate

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// +kubebuilder:rbac:groups="",resources=events,verbs=list

// The reasons of the events that the cluster autoscaler publishes about pods that wait. The later one of a pod counts. Tenants
// can write events, too, so an event may delay what becomes of a pod, and never brings it forward.
const (
	scaleUpTriggered    = "TriggeredScaleUp"
	scaleUpNotTriggered = "NotTriggerScaleUp"
)

// scaleUpsFor is how long a list of such events holds.
const scaleUpsFor = 30 * time.Second

// scaleUps is for which pods of a namespace the cluster autoscaler is making nodes.
type scaleUps struct {
	at   time.Time
	pods map[types.UID]bool
}

// askForScaleUps returns for which pods of a namespace the cluster autoscaler is making nodes.
func (r *run) askForScaleUps(ctx context.Context, namespace string) map[types.UID]bool {
	now := r.Clock.Now()
	known := r.scaleUps[namespace]
	if !known.at.IsZero() && now.Sub(known.at) < scaleUpsFor {
		return known.pods
	}
	latest := map[types.UID]time.Time{}
	out := scaleUps{at: now, pods: map[types.UID]bool{}}
	for _, reason := range []string{scaleUpTriggered, scaleUpNotTriggered} {
		var list corev1.EventList
		if err := r.Uncached.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"reason": reason, "involvedObject.kind": "Pod"}); err != nil {
			r.Log.Error(err, "the events of the cluster autoscaler were not listed; pools are taken as if no node were on its way", "namespace", namespace)
			break
		}
		for i := range list.Items {
			e := &list.Items[i]
			at := lastSeen(e)
			if pod := e.InvolvedObject.UID; now.Sub(at) < longestOnWay && !at.Before(latest[pod]) {
				latest[pod] = at
				out.pods[pod] = reason == scaleUpTriggered
			}
		}
	}
	for other, s := range r.scaleUps {
		if now.Sub(s.at) > longestOnWay {
			delete(r.scaleUps, other)
		}
	}
	r.scaleUps[namespace] = out
	return out.pods
}

// lastSeen returns when an event happened last, in whatever form it says that.
func lastSeen(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.EventTime.After(at) {
		at = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}
