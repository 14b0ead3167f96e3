package podpatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	return encode(p)
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
	d.priority(&before.Spec, &after.Spec)
	scalar(&d, "/spec/terminationGracePeriodSeconds", before.Spec.TerminationGracePeriodSeconds, after.Spec.TerminationGracePeriodSeconds)
	d.gates(before.Spec.SchedulingGates, after)
	d.constraints(before.Spec.TopologySpreadConstraints, after.Spec.TopologySpreadConstraints)
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
	return encode(map[string]any{"metadata": mergeMetadata(before, after, resourceVersion)})
}

// Strategic returns the strategic merge patch that turns before into after. It is for a pod that waits at a scheduling gate.
// Of such a pod, the API server lets these change in one write: metadata, node selector, affinity, tolerations and gates. The patch holds
// for one resource version of the pod with this UID, and leaves other gates alone.
func Strategic(before, after *Pod, uid types.UID, resourceVersion string) ([]byte, error) {
	metadata := mergeMetadata(before, after, resourceVersion)
	metadata["uid"] = uid
	spec := map[string]any{}
	if changed := mergeMap(before.Spec.NodeSelector, after.Spec.NodeSelector); len(changed) > 0 {
		spec["nodeSelector"] = changed
	}
	if b, a := before.Spec.Affinity, after.Spec.Affinity; a != nil && a.NodeAffinity != nil && !reflect.DeepEqual(b, a) {
		spec["affinity"] = a // terms of pods are not in it, and stay
	}
	if len(after.Spec.Tolerations) > len(before.Spec.Tolerations) {
		spec["tolerations"] = after.Spec.Tolerations // the list is replaced as a whole
	}
	var gates []map[string]string
	for _, g := range before.Spec.SchedulingGates {
		if !after.Gated(g.Name) {
			gates = append(gates, map[string]string{"$patch": "delete", "name": g.Name})
		}
	}
	if len(gates) > 0 {
		spec["schedulingGates"] = gates
	}
	return encode(map[string]any{"metadata": metadata, "spec": spec})
}

func mergeMetadata(before, after *Pod, resourceVersion string) map[string]any {
	metadata := map[string]any{"resourceVersion": resourceVersion}
	if changed := mergeMap(before.Metadata.Labels, after.Metadata.Labels); len(changed) > 0 {
		metadata["labels"] = changed
	}
	if changed := mergeMap(before.Metadata.Annotations, after.Metadata.Annotations); len(changed) > 0 {
		metadata["annotations"] = changed
	}
	return metadata
}

// mergeMap returns the merge patch of one map.
func mergeMap(before, after map[string]string) map[string]any {
	changed := map[string]any{}
	for k, v := range after {
		if was, ok := before[k]; !ok || was != v {
			changed[k] = v
		}
	}
	for k := range before {
		if _, ok := after[k]; !ok {
			changed[k] = nil
		}
	}
	return changed
}

func encode(patch any) ([]byte, error) {
	data, err := json.Marshal(patch)
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
		d.required(path+"/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution",
			before.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, after.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		diffList(d, path+"/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution",
			before.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, after.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// required patches a required node affinity. Of terms that stay, only lists that have grown are patched.
func (d *differ) required(path string, before, after *corev1.NodeSelector) {
	switch {
	case reflect.DeepEqual(before, after):
	case after == nil:
		d.add("remove", path, nil)
	case before == nil || len(before.NodeSelectorTerms) != len(after.NodeSelectorTerms):
		d.add("add", path, after)
	default:
		for i := range after.NodeSelectorTerms {
			was, is := before.NodeSelectorTerms[i].MatchExpressions, after.NodeSelectorTerms[i].MatchExpressions
			at := fmt.Sprintf("%s/nodeSelectorTerms/%d/matchExpressions", path, i)
			if len(is) < len(was) {
				d.add("add", at, is) // in place of the list that is there
			} else {
				diffList(d, at, was, is)
			}
		}
	}
}

// priority patches a PriorityClass with what follows from it.
func (d *differ) priority(before, after *Spec) {
	if before.PriorityClassName != after.PriorityClassName {
		d.add("add", "/spec/priorityClassName", after.PriorityClassName)
	}
	scalar(d, "/spec/priority", before.Priority, after.Priority)
	scalar(d, "/spec/preemptionPolicy", before.PreemptionPolicy, after.PreemptionPolicy)
}

// scalar patches a field that may be absent.
func scalar[T comparable](d *differ, path string, before, after *T) {
	switch {
	case after != nil && (before == nil || *before != *after):
		d.add("add", path, *after)
	case before != nil && after == nil:
		d.add("remove", path, nil)
	}
}

// constraints patches how many domains each constraint asks for at least.
func (d *differ) constraints(before, after []SpreadConstraint) {
	for i := range after {
		path := fmt.Sprintf("/spec/topologySpreadConstraints/%d/minDomains", i)
		switch was, is := before[i].MinDomains, after[i].MinDomains; {
		case was != nil && is == nil:
			d.add("remove", path, nil)
		case is != nil && (was == nil || *was != *is):
			d.add("add", path, *is)
		}
	}
}

// gates patches a list from which gates were removed, from its end so that the other indexes hold.
func (d *differ) gates(before []corev1.PodSchedulingGate, after *Pod) {
	const path = "/spec/schedulingGates"
	if len(before) > 0 && len(after.Spec.SchedulingGates) == 0 {
		d.add("remove", path, nil)
		return
	}
	for i, g := range slices.Backward(before) {
		if !after.Gated(g.Name) {
			d.add("remove", path+"/"+strconv.Itoa(i), nil)
		}
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
		for _, e := range after[i].Env {
			if e.Value != nil {
				d.add("replace", path+strconv.Itoa(i)+"/env/"+strconv.Itoa(e.Index), corev1.EnvVar{Name: e.Name, Value: *e.Value})
			}
		}
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
