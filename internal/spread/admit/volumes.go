package admit

import (
	"context"
	"errors"
	"fmt"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/nodefit"
)

// seatless decides that a pod gets no seat because of its volumes. It has the tolerations of all pools, because its volume may be on a node of
// any. A pod with the gate waits until its volumes are known.
func (a *assignment) seatless(d *feature.Decision, why error, gated bool) {
	d.Summary = "one without a seat, because " + why.Error()
	if gated && errors.Is(why, errVolumesUnknown) {
		d.Wait = why
	}
	for pool := range a.policy.Whole().Len() {
		for _, t := range a.policy.TolerationsOf(pool) {
			a.pod.AddToleration(t)
		}
	}
}

// mostClaims is how many PersistentVolumeClaims of a pod are looked at. One with more gets no seat.
const mostClaims = 16

// errVolumesUnknown means that the watch of volumes has just begun.
var errVolumesUnknown = errors.New("where its volumes can be is not known yet")

// errVolumeElsewhere means that no cell has a node that reaches the pod's volumes or, of a pod with an ordinal of its own, no domain of its pool.
var errVolumeElsewhere = errors.New("its volume is elsewhere")

// bindVolumes has a pod whose claims are bound choose among the cells where its volumes can be. A pod with an ordinal of its own stays in its
// pool. It returns an error if the pod is to have no seat. Such a pod runs where its volumes are. It may need what the pools tolerate.
func (f *Feature) bindVolumes(ctx context.Context, a *assignment) error {
	claims := a.pod.VolumeClaims()
	switch {
	case len(claims) == 0 || a.policy.Preferred:
		return nil
	case len(claims) > mostClaims:
		return fmt.Errorf("it has over %d claims", mostClaims)
	}
	volumes, known, err := f.Policies.World.Volumes(ctx, a.owner.Namespace, claims)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errVolumesUnknown, err)
	case !known:
		return errVolumesUnknown
	case len(volumes) == 0:
		return nil // they are made where the pod goes
	}
	terms, known := nodefit.TermsOf(volumes)
	reached, all := a.policy.Reached(func(cell map[string]string) bool { return known && nodefit.ReachesAll(terms, cell, f.Nodes) })
	if all {
		return nil
	}
	if a.seat.OwnOrdinal {
		own, err := a.policy.OfOrdinal(a.rank)
		if err != nil {
			return nil //nolint:nilerr // one without a seat has no place of its own, wherever its volumes are
		}
		domain, ok := a.policy.DomainWithin(own, reached[own.Pool])
		if !ok {
			return errVolumeElsewhere
		}
		a.domain = &domain
		return nil
	}
	within := f.Policies.Within(a.policy, reached)
	if within == nil {
		return errVolumeElsewhere
	}
	a.policy, a.seat.Strategy = within, within.Strategy
	return nil
}
