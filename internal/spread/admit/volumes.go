package admit

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// seatless decides that a pod gets no seat because of its volumes. It has the tolerations of all pools, because its volume may be on a node of
// any. A pod with the gate waits until its volumes are known.
func (a *assignment) seatless(d *feature.Decision, why error, gated bool) {
	d.Summary = "one without a seat, because " + why.Error()
	if gated && errors.Is(why, policy.ErrVolumesUnknown) {
		d.Wait = why
	}
	for pool := range a.policy.Whole().Len() {
		for _, t := range a.policy.TolerationsOf(pool) {
			a.pod.AddToleration(t)
		}
	}
}

// errVolumeElsewhere means that no cell has a node that reaches the pod's volumes.
var errVolumeElsewhere = errors.New("its volume is elsewhere")

// bindVolumes has a pod whose claims are bound choose among the cells where its volumes can be. It returns an error if the pod is to have no seat.
// Such a pod runs where its volumes are. It may need what the pools tolerate.
func (f *Feature) bindVolumes(ctx context.Context, a *assignment) error {
	claims := a.pod.VolumeClaims()
	if len(claims) == 0 || a.policy.Preferred {
		return nil
	}
	b := policy.Bound{Namespace: a.owner.Namespace, Claims: claims, Shape: func() *corev1.Pod { return observed.ShapeOf(a.pod.Shape()) }}
	if f.Pods != nil {
		b.Siblings = func() []observed.Pod { return f.Pods(a.owner.Key()) }
	}
	reach, err := f.Policies.Reached(ctx, a.policy, b, f.Nodes)
	if reach == nil || err != nil {
		return err
	}
	if a.seat.OwnOrdinal {
		if _, err := a.policy.OfOrdinal(a.rank); err != nil {
			return nil //nolint:nilerr // one without a seat has no place of its own, wherever its volumes are
		}
		seat, domain, ok := reach.OfOrdinal(a.policy, a.rank)
		if !ok {
			return errVolumeElsewhere
		}
		a.held, a.domain = &seat, domain
		return nil
	}
	within := f.Policies.Within(a.policy, reach.Cells())
	if within == nil {
		return errVolumeElsewhere
	}
	a.policy, a.seat.Strategy = within, within.Strategy
	return nil
}
