package peerpod

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// record is the value of the original-resources annotation: what the pod asked for before its entries were removed.
// It makes a second pass possible. A container that is in it has been counted, whatever a LimitRange filled in since;
// one that is not is new.
type record struct {
	// Pod holds the entries of spec.resources, if the pod had any.
	Pod *podpatch.Resources `json:"pod,omitempty"`
	// Containers holds the entries of each container and init container. Their
	// names are unique within a pod.
	Containers map[string]*podpatch.Resources `json:"containers"`
	// Kept lists the sizing annotations that another client set.
	Kept []string `json:"kept,omitempty"`
	// Machine and Model are the type of VM, and the model of its GPUs, that were chosen from a catalog for what Asks says.
	Machine string `json:"machine,omitempty"`
	Model   string `json:"model,omitempty"`
	Asks    string `json:"asks,omitempty"`
	// Mark makes the text another one where the pod came with a copied record.
	Mark bool `json:"mark,omitempty"`
}

// readRecord returns what an earlier pass recorded, or nil.
func readRecord(pod *podpatch.Pod) (*record, error) {
	value, ok := pod.Metadata.Annotations[stowage.OriginalResourcesAnnotation]
	if !ok {
		return nil, nil
	}
	var r record
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return nil, err
	}
	if r.Containers == nil {
		return nil, errors.New("it names no containers")
	}
	return &r, r.possible()
}

// possible returns an error for a record of entries that no pod can have had.
func (r *record) possible() error {
	for _, name := range slices.Sorted(maps.Keys(r.Containers)) {
		if err := eachEntry(r.Containers[name], parses); err != nil {
			return fmt.Errorf("container %.64q: %w", name, err)
		}
	}
	if err := eachEntry(r.Pod, parses); err != nil {
		return fmt.Errorf("spec.resources: %w", err)
	}
	return nil
}

func parses(q podpatch.Quantity) error {
	if _, err := q.Parse(); err != nil {
		return err
	}
	return notNegative(q)
}

// notNegative returns an error for a negative quantity, without the cost of reading it.
func notNegative(q podpatch.Quantity) error {
	if strings.HasPrefix(string(q), "-") {
		return fmt.Errorf("%.64q is negative", string(q))
	}
	return nil
}

// eachEntry checks the entries, limits first, up to an error.
func eachEntry(r *podpatch.Resources, check func(podpatch.Quantity) error) error {
	if r == nil {
		return nil
	}
	for _, list := range []struct {
		name    string
		entries podpatch.ResourceList
	}{{"limits", r.Limits}, {"requests", r.Requests}} {
		for name, q := range list.entries {
			if err := check(q); err != nil {
				return fmt.Errorf("%s: %s: %w", list.name, name, err)
			}
		}
	}
	return nil
}

// String is the record as its annotation holds it. The keys are sorted, so the
// same record is always the same text.
func (r *record) String() string {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return string(data)
}

// container returns what was recorded of a container.
func (r *record) container(name string) (*podpatch.Resources, bool) {
	if r == nil {
		return nil, false
	}
	res, ok := r.Containers[name]
	return res, ok
}

// entriesOf returns what was recorded of a container, or nil.
func (r *record) entriesOf(c *podpatch.Container) *podpatch.Resources { return r.Containers[c.Name] }

// refreshed returns what was recorded of a container, with the entries of some resources
// as they are now.
func refreshed(recorded, now *podpatch.Resources, names []corev1.ResourceName) *podpatch.Resources {
	if recorded == nil {
		recorded = &podpatch.Resources{}
	}
	if now == nil {
		now = &podpatch.Resources{}
	}
	out := &podpatch.Resources{Requests: maps.Clone(recorded.Requests), Limits: maps.Clone(recorded.Limits)}
	for _, name := range names {
		for _, list := range []struct {
			to   *podpatch.ResourceList
			from podpatch.ResourceList
		}{{&out.Requests, now.Requests}, {&out.Limits, now.Limits}} {
			q, ok := list.from[name]
			switch {
			case !ok:
				delete(*list.to, name)
			case *list.to == nil:
				*list.to = podpatch.ResourceList{name: q}
			default:
				(*list.to)[name] = q
			}
		}
	}
	return out
}
