package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Carry is what a pool gives to its new pods, beside their seat and tolerations.
type Carry struct {
	Labels, Annotations map[string]string // of which a pod gets those that it lacks
	PriorityClass       string            // in place of the pod's own
	// Priority and Preemption follow from the PriorityClass, where it is known: see [podpatch.Pod.SetPriorityClass].
	Priority    *int32
	Preemption  *corev1.PreemptionPolicy
	GracePeriod *int64 // in seconds, if that is shorter than the pod's own
}

// Empty reports whether the pool gives nothing.
func (c *Carry) Empty() bool {
	return c == nil || len(c.Labels)+len(c.Annotations) == 0 && c.PriorityClass == "" && c.GracePeriod == nil
}

// ForOwner returns what a pod gets whose owner selects it by some keys of labels. A label of such a key would have the pod leave its owner, which
// would make pods without end. Where the keys are not known, which is nil, no label is added. Left are the keys that are not added.
func (c Carry) ForOwner(keys []string) (out Carry, left []string) {
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		if keys == nil || slices.Contains(keys, key) {
			left = append(left, key)
		}
	}
	if len(left) > 0 {
		c.Labels = maps.Clone(c.Labels)
		for _, key := range left {
			delete(c.Labels, key)
		}
	}
	return c, left
}

// defaultGracePeriod is what the API server gives to a pod without one (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/).
const defaultGracePeriod = corev1.DefaultTerminationGracePeriodSeconds

// Apply gives a new pod what the pool gives. To do it twice changes nothing.
func (c *Carry) Apply(pod *podpatch.Pod) {
	for k, v := range c.Labels {
		if _, has := pod.Metadata.Labels[k]; !has {
			pod.SetLabel(k, v)
		}
	}
	for k, v := range c.Annotations {
		if _, has := pod.Metadata.Annotations[k]; !has {
			pod.SetAnnotation(k, v)
		}
	}
	if c.PriorityClass != "" && (c.PriorityClass != pod.Spec.PriorityClassName || pod.Spec.Priority == nil) {
		pod.SetPriorityClass(c.PriorityClass, c.Priority, c.Preemption)
	}
	if c.shortens(pod.Spec.TerminationGracePeriodSeconds) {
		seconds := *c.GracePeriod
		pod.Spec.TerminationGracePeriodSeconds = &seconds
	}
}

// Bytes is how many bytes of annotations a pod gets.
func (c *Carry) Bytes(pod *podpatch.Pod) (n int) {
	for k, v := range c.Annotations {
		if _, has := pod.Metadata.Annotations[k]; !has {
			n += len(k) + len(v)
		}
	}
	return n
}

func (c *Carry) shortens(own *int64) bool {
	if c.GracePeriod == nil {
		return false
	}
	if own == nil {
		return *c.GracePeriod < defaultGracePeriod
	}
	return *c.GracePeriod < *own
}

// Lacks reports whether a pod has not what the pool gives to new pods. It was adopted, or was let through by the gate, or is older than what the
// pool gives.
func (c *Carry) Lacks(pod *corev1.Pod) bool {
	if c.Empty() {
		return false
	}
	for k := range c.Labels {
		if _, has := pod.Labels[k]; !has {
			return true
		}
	}
	for k := range c.Annotations {
		if _, has := pod.Annotations[k]; !has {
			return true
		}
	}
	otherClass := c.PriorityClass != "" && c.PriorityClass != pod.Spec.PriorityClassName && pod.Spec.SchedulingGroup == nil
	return otherClass || c.shortens(pod.Spec.TerminationGracePeriodSeconds)
}

// String says what the pool gives, for people. It is empty for nothing.
func (c *Carry) String() string {
	if c.Empty() {
		return ""
	}
	var parts []string
	list := func(what string, of map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(of)) {
			parts = append(parts, what+" "+k)
		}
	}
	list("label", c.Labels)
	list("annotation", c.Annotations)
	if c.PriorityClass != "" {
		parts = append(parts, "PriorityClass "+c.PriorityClass)
	}
	if c.GracePeriod != nil {
		parts = append(parts, fmt.Sprintf("at most %d s to end", *c.GracePeriod))
	}
	return strings.Join(parts, ", ")
}
