package world

import (
	"cmp"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// TargetOf returns a PodDistributor's target.
func TargetOf(d *versprei.PodDistributor) Object {
	t := &d.Spec.Target
	return Object{Namespace: d.Namespace, Ref: Ref{APIVersion: t.APIVersion, Kind: t.Kind, Name: t.Name}}
}

// Wins reports whether one PodDistributor wins over another of the same target. The older one does, or the first by
// name if both are of the same second.
func Wins(a, b *versprei.PodDistributor) bool {
	return b == nil || cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// Winner returns which PodDistributor of a namespace targets one of some objects, or nil if none does.
func Winner(list []versprei.PodDistributor, targets []Ref) *versprei.PodDistributor {
	var best *versprei.PodDistributor
	for i := range list {
		d := &list[i]
		for n := range targets {
			if targets[n].Name == d.Spec.Target.Name && targets[n].SameObject(TargetOf(d).Ref) && Wins(d, best) {
				best = d
			}
		}
	}
	return best
}
