package podpatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Operation is one operation of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Patch is a JSON patch. An empty patch changes nothing.
type Patch []Operation

// JSON returns the patch as the API server takes it.
func (p Patch) JSON() ([]byte, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}
	return data, nil
}

// Diff returns the smallest patch that turns before into after. The two must
// have the same containers in the same order: Stowage adds and removes none.
func Diff(before, after *Pod) Patch {
	var d differ
	diffMap(&d, "/metadata/labels", before.Metadata.Labels, after.Metadata.Labels)
	diffMap(&d, "/metadata/annotations", before.Metadata.Annotations, after.Metadata.Annotations)
	diffMap(&d, "/spec/nodeSelector", before.Spec.NodeSelector, after.Spec.NodeSelector)
	d.affinity(before.Spec.Affinity, after.Spec.Affinity)
	diffList(&d, "/spec/tolerations", before.Spec.Tolerations, after.Spec.Tolerations)
	if b, a := before.Spec.Resources, after.Spec.Resources; b != nil && a == nil {
		d.add("remove", "/spec/resources", nil)
	} else {
		d.resources("/spec/resources", b, a)
	}
	d.containers("/spec/initContainers/", before.Spec.InitContainers, after.Spec.InitContainers)
	d.containers("/spec/containers/", before.Spec.Containers, after.Spec.Containers)
	return d.patch
}

// Merge returns the merge patch (RFC 7396) of the labels and annotations that turns before into after. It is for a pod that
// exists, and holds for one resource version of it. What neither of the two knows stays as it is.
func Merge(before, after *Pod, resourceVersion string) ([]byte, error) {
	metadata := map[string]any{"resourceVersion": resourceVersion}
	for field, maps := range map[string][2]map[string]string{
		"labels": {before.Metadata.Labels, after.Metadata.Labels}, "annotations": {before.Metadata.Annotations, after.Metadata.Annotations},
	} {
		changed := map[string]any{}
		for k, v := range maps[1] {
			if was, ok := maps[0][k]; !ok || was != v {
				changed[k] = v
			}
		}
		for k := range maps[0] {
			if _, ok := maps[1][k]; !ok {
				changed[k] = nil
			}
		}
		if len(changed) > 0 {
			metadata[field] = changed
		}
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}
	return data, nil
}

type differ struct {
	patch Patch
}

func (d *differ) add(op, path string, value any) {
	d.patch = append(d.patch, Operation{Op: op, Path: path, Value: value})
}

func (d *differ) affinity(before, after *Affinity) {
	const path = "/spec/affinity"
	switch {
	case after == nil || after.NodeAffinity == nil:
	case before == nil:
		d.add("add", path, after)
	case before.NodeAffinity == nil:
		d.add("add", path+"/nodeAffinity", after.NodeAffinity)
	default:
		diffList(d, path+"/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution",
			before.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, after.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// diffList patches a list that has grown at its end.
func diffList[T any](d *differ, path string, before, after []T) {
	switch {
	case len(after) <= len(before):
	case before == nil:
		d.add("add", path, after)
	default:
		for _, v := range after[len(before):] {
			d.add("add", path+"/-", v)
		}
	}
}

func (d *differ) containers(path string, before, after []Container) {
	for i := range after {
		d.resources(path+strconv.Itoa(i)+"/resources", before[i].Resources, after[i].Resources)
	}
}

// resources patches entries that stay, entry by entry.
func (d *differ) resources(path string, before, after *Resources) {
	switch {
	case after == nil:
	case before == nil:
		d.add("add", path, after)
	default:
		diffMap(d, path+"/limits", before.Limits, after.Limits)
		diffMap(d, path+"/requests", before.Requests, after.Requests)
	}
}

// diffMap patches one map. A map that stays is changed key by key, in sorted
// order; one that appears or disappears is a single operation.
func diffMap[M ~map[K]V, K, V ~string](d *differ, path string, before, after M) {
	switch {
	case len(after) == 0 && before == nil:
		return
	case len(after) == 0 && len(before) > 0:
		d.add("remove", path, nil)
		return
	case before == nil:
		d.add("add", path, after)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[k]; !ok {
			d.add("remove", path+"/"+escape(string(k)), nil)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(after)) {
		old, ok := before[k]
		switch {
		case !ok:
			d.add("add", path+"/"+escape(string(k)), after[k])
		case old != after[k]:
			d.add("replace", path+"/"+escape(string(k)), after[k])
		}
	}
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// escape makes a key a JSON pointer token (RFC 6901).
func escape(key string) string { return pointerEscaper.Replace(key) }
