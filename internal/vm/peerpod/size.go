package peerpod

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Size is what a peer pod's VM must have.
type Size struct {
	VCPUs     int64 // whole virtual CPUs, rounded up
	MemoryMiB int64 // whole mebibytes, rounded up
	GPUs      int64 // whole devices of any vendor
}

// mebibyte is the unit in which Kata Containers reads a VM's memory, in thousandths of a byte: 0.2Gi is no whole number of bytes, and the sum of five
// is.
const mebibyte = 1000 << 20

// amounts are what one container, or a whole pod, asks for, before rounding.
// The values saturate at their type's maximum: a hostile quantity must not wrap
// around to a small VM.
type amounts struct {
	nanoCPU    saturating
	memory     saturating // thousandths of a byte
	gpus       saturating
	cpuIsSet   bool
	memIsSet   bool
	gpusAreSet bool
}

// saturating is a sum that stops at math.MaxInt64 instead of overflowing.
type saturating int64

func (s saturating) plus(o saturating) saturating {
	if s > math.MaxInt64-o {
		return math.MaxInt64
	}
	return s + o
}

func (a amounts) plus(b amounts) amounts {
	a.nanoCPU = a.nanoCPU.plus(b.nanoCPU)
	a.memory = a.memory.plus(b.memory)
	a.gpus = a.gpus.plus(b.gpus)
	return a
}

func (a amounts) max(b amounts) amounts {
	a.nanoCPU = max(a.nanoCPU, b.nanoCPU)
	a.memory = max(a.memory, b.memory)
	a.gpus = max(a.gpus, b.gpus)
	return a
}

// within applies pod-level resources to the containers' sum: a limit is the total; a
// request without one is the least. The API server may have derived the request from
// the containers' requests (KEP-2837), which says nothing about their limits.
func (a amounts) within(limits, requests amounts) amounts {
	pick := func(isSet bool, limit, sum, request saturating) saturating {
		if isSet {
			return limit
		}
		return max(sum, request)
	}
	a.nanoCPU = pick(limits.cpuIsSet, limits.nanoCPU, a.nanoCPU, requests.nanoCPU)
	a.memory = pick(limits.memIsSet, limits.memory, a.memory, requests.memory)
	a.gpus = pick(limits.gpusAreSet, limits.gpus, a.gpus, requests.gpus)
	return a
}

func (a amounts) size() Size {
	return Size{
		VCPUs:     ceilDiv(int64(a.nanoCPU), 1e9),
		MemoryMiB: ceilDiv(int64(a.memory), mebibyte),
		GPUs:      int64(a.gpus),
	}
}

func ceilDiv(n, d int64) int64 {
	q := n / d
	if n%d > 0 {
		q++
	}
	return q
}

// amountsOf sums one set of resource entries: each resource counts its limit, or
// its request where it sets no limit.
func (c *Config) amountsOf(r *podpatch.Resources) (amounts, error) {
	var a amounts
	if r == nil {
		return a, nil
	}
	if err := c.add(&a, r.Limits, nil); err != nil {
		return a, fmt.Errorf("limits: %w", err)
	}
	if err := c.add(&a, r.Requests, r.Limits); err != nil {
		return a, fmt.Errorf("requests: %w", err)
	}
	return a, nil
}

// add adds the entries of list to a, without those that are also in except.
func (c *Config) add(a *amounts, list, except podpatch.ResourceList) error {
	for name, q := range list {
		if _, ok := except[name]; ok {
			continue
		}
		var err error
		switch {
		case name == corev1.ResourceCPU:
			a.nanoCPU, err = valueAt(q, resource.Nano)
			a.cpuIsSet = true
		case name == corev1.ResourceMemory:
			a.memory, err = valueAt(q, resource.Milli)
			a.memIsSet = true
		case c.isGPU(name):
			var gpus saturating
			gpus, err = valueAt(q, 0)
			a.gpus = a.gpus.plus(gpus)
			a.gpusAreSet = true
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// valueAt returns a quantity in units of 10^scale, rounded up. Negative
// quantities, which the API server refuses later, count as nothing.
func valueAt(q podpatch.Quantity, scale resource.Scale) (saturating, error) {
	v, err := q.Parse()
	if err != nil {
		return 0, err
	}
	if v.Sign() <= 0 {
		return 0, nil
	}
	// ScaledValue cannot represent a quantity beyond an int64 and returns a
	// wrapped number; compare first.
	if v.Cmp(*resource.NewScaledQuantity(math.MaxInt64, scale)) >= 0 {
		return math.MaxInt64, nil
	}
	return saturating(v.ScaledValue(scale)), nil
}

// isGPU reports whether a resource is one of the configured GPUs.
func (c *Config) isGPU(name corev1.ResourceName) bool {
	for _, pattern := range c.GPUResources {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			if strings.HasPrefix(string(name), prefix) {
				return true
			}
		} else if string(name) == pattern {
			return true
		}
	}
	return false
}

// total returns what a pod asks for. The entries come from entriesOf, which
// returns nil for a container that does not count.
func (c *Config) total(pod *podpatch.Pod, podLevel *podpatch.Resources, entriesOf func(*podpatch.Container) *podpatch.Resources) (amounts, error) {
	// Sum is sidecars + plain + containers. The scheduler's rule (KEP-753) needs the peak. Sidecars start in the
	// order of the init containers and keep running. So an init container runs beside the sidecars before it, and the
	// containers beside all of them.
	var sidecars, plain, containers, peak amounts
	for i := range pod.Spec.InitContainers {
		ic := &pod.Spec.InitContainers[i]
		a, err := c.amountsOf(entriesOf(ic))
		if err != nil {
			return amounts{}, fmt.Errorf("init container %q: %w", ic.Name, err)
		}
		if ic.IsSidecar() {
			sidecars = sidecars.plus(a)
			peak = peak.max(sidecars)
		} else {
			plain = plain.plus(a)
			peak = peak.max(sidecars.plus(a))
		}
	}
	for i := range pod.Spec.Containers {
		a, err := c.amountsOf(entriesOf(&pod.Spec.Containers[i]))
		if err != nil {
			return amounts{}, fmt.Errorf("container %q: %w", pod.Spec.Containers[i].Name, err)
		}
		containers = containers.plus(a)
	}
	var limits, requests amounts
	if podLevel != nil {
		if err := c.add(&limits, podLevel.Limits, nil); err != nil {
			return amounts{}, fmt.Errorf("spec.resources.limits: %w", err)
		}
		if err := c.add(&requests, podLevel.Requests, nil); err != nil {
			return amounts{}, fmt.Errorf("spec.resources.requests: %w", err)
		}
	}
	sum := sidecars.plus(containers)
	if c.Sizing == SizingEffective {
		sum = sum.max(peak)
	} else {
		sum = sum.plus(plain)
	}
	return sum.within(limits, requests), nil
}
