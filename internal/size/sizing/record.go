package sizing

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// sizeable are the resources that a template can size.
var sizeable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// record is the value of the declared-resources annotation: the entries of [sizeable] that the pod had before it was
// sized. A container that is in it is never read again, whatever a LimitRange or the peer pods made of it since. One
// that is not is new.
type record struct {
	// Pod holds the entries of spec.resources, if the pod had any.
	Pod *podpatch.Resources `json:"pod,omitempty"`
	// Containers holds the entries of each container and init container. Their names
	// are unique within a pod.
	Containers map[string]*podpatch.Resources `json:"containers"`
	// Sized are the resources that were sized at some time. Their entries in the pod are not what it declared, except
	// for the containers that were excluded each time.
	Sized    []corev1.ResourceName `json:"sized,omitempty"`
	Excluded []string              `json:"excluded,omitempty"`
	// Mark makes the text another one where the pod came with a copied record.
	Mark bool `json:"mark,omitempty"`
}

// declaredBy returns what a pod declared before it was sized. The note says what is
// wrong with the record that it carries, if that is no record.
func declaredBy(pod *podpatch.Pod) (_ *record, note string) {
	var r record
	if text, ok := pod.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]; ok {
		var err error
		if r, err = parseRecord(text); err != nil {
			note = fmt.Sprintf("annotation %s is not ours and is replaced: %v", stowage.DeclaredResourcesAnnotation, err)
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

// maxExcluded is how many containers a template can exclude.
const maxExcluded = 64

// parseRecord reads a record. Whoever creates a pod can write one, so it has nothing that Stowage would not have written.
func parseRecord(text string) (record, error) {
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return record{}, err
	}
	if r.Containers == nil {
		return record{}, errors.New("it names no containers")
	}
	if len(r.Sized) > len(sizeable) {
		return record{}, fmt.Errorf("it names %d resources, of which a template can size %d", len(r.Sized), len(sizeable))
	}
	if len(r.Excluded) > maxExcluded {
		return record{}, fmt.Errorf("it excludes %d containers; a template can exclude %d", len(r.Excluded), maxExcluded)
	}
	for _, name := range r.Sized {
		if !slices.Contains(sizeable, name) {
			return record{}, fmt.Errorf("no template sizes %s", name)
		}
	}
	if err := checkEntries(r.Pod); err != nil {
		return record{}, fmt.Errorf("pod: %w", err)
	}
	for name, c := range r.Containers {
		if err := checkEntries(c); err != nil {
			return record{}, fmt.Errorf("container %q: %w", name, err)
		}
	}
	return r, nil
}

// checkEntries reports an entry that a template cannot size, or that is no amount.
func checkEntries(r *podpatch.Resources) error {
	if r == nil {
		return nil
	}
	for _, list := range []podpatch.ResourceList{r.Requests, r.Limits} {
		for name, q := range list {
			if !slices.Contains(sizeable, name) {
				return fmt.Errorf("no template sizes %s", name)
			}
			if _, err := q.Parse(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// restore gives a pod the entries back that it declared, of the resources that were sized.
func (r *record) restore(pod *podpatch.Pod) {
	back := func(to **podpatch.Resources, declared *podpatch.Resources) {
		if declared == nil || *to == nil && len(declared.Requests)+len(declared.Limits) == 0 {
			return
		}
		if *to == nil {
			*to = &podpatch.Resources{}
		}
		for _, name := range r.Sized {
			for _, list := range []struct {
				to   *podpatch.ResourceList
				from podpatch.ResourceList
			}{{&(*to).Requests, declared.Requests}, {&(*to).Limits, declared.Limits}} {
				if q, ok := list.from[name]; ok {
					*list.to = with(*list.to, name, q)
				} else {
					delete(*list.to, name)
				}
			}
		}
	}
	if len(r.Sized) == 0 {
		return
	}
	back(&pod.Spec.Resources, r.Pod)
	for c := range pod.AllContainers() {
		if !slices.Contains(r.Excluded, c.Name) {
			back(&c.Resources, r.Containers[c.Name])
		}
	}
}

// SizedResources returns the resources of a pod that a template decided, by its
// annotations.
func SizedResources(annotations map[string]string) []corev1.ResourceName {
	text, ok := annotations[stowage.DeclaredResourcesAnnotation]
	if !ok {
		return nil
	}
	r, err := parseRecord(text)
	if err != nil {
		return nil
	}
	return r.Sized
}

// Disown removes from a pod a record that is a copy: its owner's pod template has it, too.
// The pod's own record will be another text.
func Disown(pod *podpatch.Pod, copied string) *podpatch.Pod {
	text := pod.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]
	if !podpatch.IsCopy(text, copied) {
		return pod
	}
	r, err := parseRecord(text)
	marked := err == nil && r.Mark
	out := pod.Clone()
	delete(out.Metadata.Annotations, stowage.DeclaredResourcesAnnotation)
	if !marked {
		fresh, _ := declaredBy(out)
		fresh.Mark = true
		out.SetAnnotation(stowage.DeclaredResourcesAnnotation, fresh.String())
	}
	return out
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

// request returns what a container declared to need of a resource, in units; -1 is nothing.
func (r *record) request(c *podpatch.Container, name corev1.ResourceName) (int64, error) {
	e, err := declaredEntries(r.Containers[c.Name], name)
	if err != nil {
		return 0, fmt.Errorf("container %q: %w", c.Name, err)
	}
	return e.request, nil
}

// limit returns the limit that a container declared, in units; -1 is none.
func (r *record) limit(c *podpatch.Container, name corev1.ResourceName) (int64, error) {
	e, err := declaredEntries(r.Containers[c.Name], name)
	if err != nil {
		return 0, fmt.Errorf("container %q: %w", c.Name, err)
	}
	return e.limit, nil
}

// pod returns what the pod as a whole declared of a resource.
func (r *record) pod(name corev1.ResourceName) (entries, error) {
	e, err := declaredEntries(r.Pod, name)
	if err != nil {
		return e, fmt.Errorf("spec.resources: %w", err)
	}
	return e, nil
}

// declaredEntries are the entries of a resource. A limit without a request is the request,
// as the API server makes it.
func declaredEntries(r *podpatch.Resources, name corev1.ResourceName) (entries, error) {
	e, err := entriesOf(r, name)
	if e.request < 0 {
		e.request = e.limit
	}
	return e, err
}

// entries are the request and the limit of one resource, in units; -1 is none.
type entries struct{ request, limit int64 }

func entriesOf(r *podpatch.Resources, name corev1.ResourceName) (entries, error) {
	e := entries{-1, -1}
	if r == nil {
		return e, nil
	}
	for _, one := range []struct {
		field string
		list  podpatch.ResourceList
		to    *int64
	}{{"requests", r.Requests, &e.request}, {"limits", r.Limits, &e.limit}} {
		q, ok := one.list[name]
		if !ok {
			continue
		}
		parsed, err := q.Parse()
		if err != nil {
			return e, fmt.Errorf("%s: %s: %w", one.field, name, err)
		}
		*one.to = units(name, parsed)
	}
	return e, nil
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
