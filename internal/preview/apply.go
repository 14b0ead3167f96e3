package preview

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// last is what kubectl applied last.
type last struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
		Labels      map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Template struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		} `json:"template"`
	} `json:"spec"`
}

// lastApplied reads what kubectl applied last from the annotation in which it keeps that.
func lastApplied(annotations map[string]string) (l last) {
	_ = json.Unmarshal([]byte(annotations[corev1.LastAppliedConfigAnnotation]), &l) // without it, nothing is pruned
	return l
}

func (l last) annotations(live, manifest map[string]string) map[string]string {
	return applied(live, manifest, l.Metadata.Annotations)
}

func (l last) labels(live, manifest map[string]string) map[string]string {
	return applied(live, manifest, l.Metadata.Labels)
}

// applied returns what kubectl apply makes of a map: what the manifest has, and what others wrote. What was applied last and is not in the
// manifest goes.
func applied(live, manifest, last map[string]string) map[string]string {
	out := merged(live, manifest)
	for k := range last {
		if _, kept := manifest[k]; !kept {
			out = maps.Clone(out)
			delete(out, k)
		}
	}
	return out
}

// mergedNode returns a live node with what a manifest says of it.
func mergedNode(live, manifest corev1.Node) corev1.Node {
	live.Labels, live.Annotations = merged(live.Labels, manifest.Labels), merged(live.Annotations, manifest.Annotations)
	if manifest.Spec.Taints != nil {
		live.Spec.Taints = manifest.Spec.Taints
	}
	live.Spec.Unschedulable = live.Spec.Unschedulable || manifest.Spec.Unschedulable
	if manifest.Status.Allocatable != nil || manifest.Status.Capacity != nil {
		live.Status.Allocatable, live.Status.Capacity = manifest.Status.Allocatable, manifest.Status.Capacity
	}
	return live
}

// merged returns the entries of both, those of b where both have one.
func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		return b
	}
	maps.Copy(out, b)
	return out
}
