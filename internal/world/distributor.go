package world

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// MostSpec is how many bytes the spec of a PodDistributor has at most. Each replica keeps those of all namespaces.
const MostSpec = 64 << 10

// tooLarge is an annotation of PodDistributors in caches: of one that is too large, only the target is kept.
const tooLarge = "stowage.dev/too-large"

// KeepDistributor returns a PodDistributor as caches keep it, with its spec unless that is too large, and with its status.
func KeepDistributor(m metav1.ObjectMeta, d *versprei.PodDistributor) *versprei.PodDistributor {
	kept := &versprei.PodDistributor{ObjectMeta: m, Spec: d.Spec, Status: d.Status}
	if TooLarge(d) {
		kept.Spec = versprei.PodDistributorSpec{Target: d.Spec.Target}
		kept.Annotations = map[string]string{tooLarge: ""}
	}
	return kept
}

// TooLarge reports whether a PodDistributor has more than [MostSpec].
func TooLarge(d *versprei.PodDistributor) bool {
	_, was := d.Annotations[tooLarge]
	return was || specBytes(&d.Spec) > MostSpec
}

// specBytes is about how many bytes the texts of a spec have that its schema lets be long.
func specBytes(s *versprei.PodDistributorSpec) (n int) {
	for i := range s.Distribution {
		p := &s.Distribution[i]
		n += len(p.Name) + len(p.PriorityClassName)
		for k, v := range p.NodeLabel {
			n += len(k) + len(v)
		}
		for k, v := range p.PodLabels {
			n += len(k) + len(v)
		}
		for k, v := range p.PodAnnotations {
			n += len(k) + len(v)
		}
		for _, e := range p.MatchExpressions {
			n += len(e.Key)
			for _, v := range e.Values {
				n += len(v)
			}
		}
		for _, t := range p.Tolerations {
			n += len(t.Key) + len(t.Value)
		}
	}
	return n
}
