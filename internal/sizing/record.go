package sizing

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// sizeable are the resources that a template can size.
var sizeable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// record is the value of the declared-resources annotation: the entries of [sizeable]
// that the pod had before it was sized. A container that is in it is never read again,
// whatever a LimitRange or the peer pods made of it since; one that is not is new.
type record struct {
	// Pod holds the entries of spec.resources, if the pod had any.
	Pod *podpatch.Resources `json:"pod,omitempty"`
	// Containers holds the entries of each container and init container. Their names
	// are unique within a pod.
	Containers map[string]*podpatch.Resources `json:"containers"`
}

// declaredBy returns what a pod declared before it was sized. The note says what is
// wrong with the record that it carries, if that is no record.
func declaredBy(pod *podpatch.Pod) (_ *record, note string) {
	var r record
	if text, ok := pod.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]; ok {
		err := json.Unmarshal([]byte(text), &r)
		if err == nil && r.Containers == nil {
			err = errors.New("it names no containers")
		}
		if err != nil {
			note = fmt.Sprintf("annotation %s is not ours and is replaced: %v", stowage.DeclaredResourcesAnnotation, err)
			r = record{}
		}
	}
	if r.Containers == nil {
		r.Containers = map[string]*podpatch.Resources{}
		r.Pod = relevant(pod.Spec.Resources)
	}
	for c := range pod.AllContainers() {
		if r.Containers[c.Name] != nil {
			continue
		}
		if r.Containers[c.Name] = relevant(c.Resources); r.Containers[c.Name] == nil {
			r.Containers[c.Name] = &podpatch.Resources{}
		}
	}
	return &r, note
}

// String is the record as its annotation holds it. The keys are sorted, so the same
// record is always the same text.
func (r *record) String() string {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return string(data)
}

// relevant returns the entries that a template can size.
func relevant(r *podpatch.Resources) *podpatch.Resources {
	if r == nil {
		return nil
	}
	out := &podpatch.Resources{}
	for _, name := range sizeable {
		if q, ok := r.Requests[name]; ok {
			out.Requests = with(out.Requests, name, q)
		}
		if q, ok := r.Limits[name]; ok {
			out.Limits = with(out.Limits, name, q)
		}
	}
	return out
}

// request returns what a container declared to need of a resource, in units.
func (r *record) request(c *podpatch.Container, name corev1.ResourceName) (int64, error) {
	declared := r.Containers[c.Name]
	if _, ok := declared.Requests[name]; !ok {
		return r.limit(c, name) // what the API server makes the request, too
	}
	return parse(c, "requests", declared.Requests, name)
}

// limit returns the limit that a container declared, in units.
func (r *record) limit(c *podpatch.Container, name corev1.ResourceName) (int64, error) {
	return parse(c, "limits", r.Containers[c.Name].Limits, name)
}

func parse(c *podpatch.Container, field string, list podpatch.ResourceList, name corev1.ResourceName) (int64, error) {
	text, ok := list[name]
	if !ok {
		return 0, nil
	}
	q, err := text.Parse()
	if err != nil {
		return 0, fmt.Errorf("container %q: %s: %s: %w", c.Name, field, name, err)
	}
	return units(name, q), nil
}

// has reports whether there is an entry of a resource.
func has(r *podpatch.Resources, name corev1.ResourceName) bool {
	if r == nil {
		return false
	}
	_, requested := r.Requests[name]
	_, limited := r.Limits[name]
	return requested || limited
}
