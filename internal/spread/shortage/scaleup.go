package shortage

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// +kubebuilder:rbac:groups="",resources=events,verbs=list,roleName=stowage-spread-controllers

// The reasons of the events that the cluster autoscaler publishes about pods that wait. The later one of a pod counts. Tenants
// can write events, too, so an event may delay what becomes of a pod, and never brings it forward.
const (
	scaleUpTriggered    = "TriggeredScaleUp"
	scaleUpNotTriggered = "NotTriggerScaleUp"
)

// scaleUpsFor is how long a list of such events holds, and scaleUpsUnreadFor one that was not read to its end.
const (
	scaleUpsFor       = 30 * time.Second
	scaleUpsUnreadFor = 5 * time.Minute
)

// Tenants decide how many events there are, and what stands in them.
const (
	maxScaleUps     = 5000
	maxUID          = 64 // bytes
	scaleUpsTimeout = 5 * time.Second
)

var errManyEvents = errors.New("there are too many events")

// scaleUps is for which pods of a namespace the cluster autoscaler is making nodes.
type scaleUps struct {
	until time.Time // when to ask again
	pods  map[types.UID]bool
}

// askForScaleUps returns for which pods of a namespace the cluster autoscaler is making nodes.
func (r *run) askForScaleUps(ctx context.Context, namespace string) map[types.UID]bool {
	now := r.Clock.Now()
	if known, ok := r.scaleUps[namespace]; ok && now.Before(known.until) {
		return known.pods
	}
	for other, s := range r.scaleUps {
		if now.Sub(s.until) > longestOnWay {
			delete(r.scaleUps, other)
		}
	}
	out := scaleUps{until: now.Add(scaleUpsFor), pods: map[types.UID]bool{}}
	if err := r.readScaleUps(ctx, namespace, now, out.pods); err != nil && ctx.Err() == nil {
		out.until = now.Add(scaleUpsUnreadFor)
		r.Log.Error(err, "the events of the cluster autoscaler were not all read; the other pods are taken as if no node were on its way", "namespace", namespace)
	}
	r.scaleUps[namespace] = out
	return out.pods
}

func (r *run) readScaleUps(ctx context.Context, namespace string, now time.Time, pods map[types.UID]bool) error {
	ctx, cancel := context.WithTimeout(ctx, scaleUpsTimeout)
	defer cancel()
	latest, read := map[types.UID]time.Time{}, 0
	for _, reason := range []string{scaleUpTriggered, scaleUpNotTriggered} {
		err := worldapi.Each(ctx, r.Uncached, &corev1.EventList{}, func(e *corev1.Event) error {
			if read++; read > maxScaleUps {
				return errManyEvents
			}
			pod, at := e.InvolvedObject.UID, lastSeen(e)
			if len(pod) <= maxUID && now.Sub(at) < longestOnWay && !at.Before(latest[pod]) {
				latest[pod], pods[pod] = at, reason == scaleUpTriggered
			}
			return nil
		}, client.InNamespace(namespace), client.MatchingFields{"reason": reason, "involvedObject.kind": "Pod"})
		if err != nil {
			return err
		}
	}
	return nil
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
