package impact

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/placement"
)

// unrecorded is [policy.Policy.Unrecorded], of a workload that Stowage may change.
func (d *decided) unrecorded() bool {
	return d.policy != nil && d.policy.Unrecorded() && d.leftAlone == ""
}

// count counts the pods of a workload: where they are, and where they will be.
func (c *comparison) count(p *plan) {
	p.Pods = int64(len(p.pods))
	vms := VMChange{}
	p.place = make([]int, len(p.pods))
	for i, pod := range p.pods {
		vms.Now += pod.vms
		p.place[i] = outside
		if pod.node == "" {
			p.place[i] = nowhere
			p.Unscheduled++
		} else if at := c.poolOf(p, pod); at >= 0 {
			p.place[i] = at
		}
	}
	if p.is != nil {
		p.Replicas, p.WithoutSeat, vms.Then = p.is.replicas, p.is.replicas, p.is.vms
		if p.is.vms > 0 {
			vms.Size = sizeOf(p.is.vm)
		}
	}
	if vms.Now+vms.Then > 0 {
		p.VMs = &vms
	}
	if p.strategy == nil {
		return
	}
	divides := p.is != nil && p.is.seats != nil
	if p.is != nil {
		p.WithoutSeat = p.is.without
		for i, pod := range p.pods {
			if pod.volume && p.is.policy != nil && p.is.policy.KeepsVolumes && p.place[i] != nowhere {
				p.KeptByVolume++
			}
		}
		if !divides {
			p.LeftAlone = c.whyAlone(p)
		}
		for i, why := range p.is.policyUnsuitable() {
			if why != "" {
				p.Unsuitable = append(p.Unsuitable, p.strategy.Pool(i).Name+": "+why)
			}
		}
	}
	now := make([]int64, p.strategy.Len())
	cells := map[[2]int]int64{}
	for i, at := range p.place {
		switch {
		case at >= 0:
			now[at]++
			cells[[2]int{at, p.strategy.DomainOfNode(c.nodes[p.pods[i].node])}]++
		case at == outside && divides:
			p.Outside++
		}
	}
	for i := range now {
		pool := WorkloadPool{Name: p.strategy.Pool(i).Name, Now: now[i], Soon: now[i], Then: 0}
		if divides {
			pool.Then = p.is.seats[i]
			p.InPlace += min(pool.Now, pool.Then)
			p.InOtherPool += max(0, pool.Now-pool.Then)
		}
		if across := p.strategy.Across(); across != nil {
			surplus := int64(0)
			for n, in := range across.Domains {
				domain := WorkloadDomain{Name: in.Value, Now: cells[[2]int{i, n}]}
				if divides && p.is.domains != nil {
					domain.Then = p.is.domains[i][n]
					surplus += max(0, domain.Now-domain.Then)
				}
				pool.Domains = append(pool.Domains, domain)
			}
			if divides {
				p.InOtherDomain += max(0, surplus-max(0, pool.Now-pool.Then))
			}
		}
		p.Pools = append(p.Pools, pool)
	}
	if divides {
		p.countMoves()
	} else {
		p.InPlace = p.Pods - p.Unscheduled // nobody asks them to be elsewhere
	}
}

// sizeOf is the size of a VM, as far as its pod asks for one.
func sizeOf(vm preview.VM) string {
	var parts []string
	for _, part := range []struct{ amount, unit string }{{vm.VCPUs, " CPU"}, {vm.Memory, " MiB"}, {vm.GPUs, " GPU"}} {
		if part.amount != "" {
			parts = append(parts, part.amount+part.unit)
		}
	}
	return strings.Join(parts, ", ")
}

// countMoves counts the pods that are adopted or evicted before the next rollout, and those that it moves.
func (p *plan) countMoves() {
	of := p.is.policy
	// More pods may be in a pool than there are to be, because there are to be fewer in all.
	gone := max(0, p.Pods-p.Replicas)
	p.Moved = max(0, p.InOtherPool+p.InOtherDomain+p.Outside-gone)
	for i, pod := range p.pods {
		if at := p.place[i]; at >= 0 && (!pod.seated || pod.pool != p.strategy.Pool(at).Name) && of.Repair != stowage.RepairOff {
			p.Adopted++
		}
	}
	switch {
	case p.is.job(): // it may lose work
	case of.Evict:
		p.Evicted = p.Moved
	case of.Repair == stowage.RepairRecreate && of.Policy == nil:
		p.Evicted = min(p.Outside, p.Moved)
	}
	p.countSoon(max(0, p.Replicas-p.Pods)+p.Evicted, gone)
}

// countSoon counts the pods of each pool before the next rollout. New ones come where most are lacking, and some go from where most are
// too many.
func (p *plan) countSoon(come, gone int64) {
	leave := gone
	if p.is.policy.Evict {
		leave += p.Evicted - min(p.Evicted, p.Outside)
	}
	lacks := func(w *WorkloadPool) int64 { return w.Then - w.Soon }
	for range leave {
		i := most(p.Pools, func(w *WorkloadPool) int64 { return -lacks(w) })
		if p.Pools[i].Soon == 0 {
			break
		}
		p.Pools[i].Soon--
	}
	for range come {
		i := most(p.Pools, lacks)
		if lacks(&p.Pools[i]) <= 0 {
			break
		}
		p.Pools[i].Soon++
	}
}

// most returns the index of the pool for which a number is largest.
func most(pools []WorkloadPool, of func(*WorkloadPool) int64) (best int) {
	for i := range pools {
		if of(&pools[i]) > of(&pools[best]) {
			best = i
		}
	}
	return best
}

// job reports whether the workload is a Job, whose pods Stowage leaves alone.
func (d *decided) job() bool { return d.workload.Kind == "Job" || d.workload.Kind == "CronJob" }

// policyUnsuitable returns [policy.Policy.Unsuitable].
func (d *decided) policyUnsuitable() []string {
	if d.policy == nil {
		return nil
	}
	return d.policy.Unsuitable
}

// poolOf returns the pool that a pod's node is in, or a negative number. Where nodes may not be read, it is the pool of the seat.
func (c *comparison) poolOf(p *plan, pod *pod) int {
	if p.strategy == nil {
		return outside
	}
	if labels, known := c.nodes[pod.node]; known {
		return p.strategy.PoolOfNode(labels)
	}
	if len(c.nodes) > 0 {
		return outside // the node goes
	}
	for i := range p.strategy.Len() {
		if pod.seated && p.strategy.Pool(i).Name == pod.pool {
			return i
		}
	}
	return outside
}

// compareSizes compares the sizes of a DaemonSet's pods.
func (c *comparison) compareSizes(k key, is, was *decided, pods []*pod) {
	d := DaemonSet{Namespace: k.namespace, Name: k.name, Pods: len(pods)}
	var sums [4]resource.Quantity // CPU and memory, now and then
	for _, pod := range pods {
		then, ok := pod.requests, true
		if is == nil {
			then = nil
		} else if size, sized := is.sizes[pod.node]; sized {
			then = size
		} else if was != nil && was.sizes[pod.node] != nil {
			then, ok = c.unsized(is), true // it goes back to its template
		}
		changed := false
		for i, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			a, b := pod.requests[name], then[name]
			sums[i].Add(a)
			sums[2+i].Add(b)
			changed = changed || a.Cmp(b) != 0
		}
		if changed && ok {
			d.Changed++
		}
	}
	if d.Changed == 0 {
		return
	}
	d.CPUNow, d.MemoryNow, d.CPUThen, d.MemoryThen = sums[0].String(), bytesText(sums[1]), sums[2].String(), bytesText(sums[3])
	c.report.DaemonSets = append(c.report.DaemonSets, d)
}

// unsized returns what the template of a workload requests.
func (c *comparison) unsized(d *decided) corev1.ResourceList {
	return resourcehelper.PodRequests(&corev1.Pod{Spec: d.workload.Template().Spec}, resourcehelper.PodResourcesOptions{})
}

// bytesText is a number of bytes in GiB.
func bytesText(q resource.Quantity) string {
	return fmt.Sprintf("%.1f GiB", float64(q.Value())/(1<<30))
}

// whyAlone says why no pod of a workload with a policy gets a seat.
func (c *comparison) whyAlone(p *plan) string {
	d := p.is
	switch {
	case d.policy == nil:
		return ""
	case d.policy.Err != nil:
		return "the policy is invalid: " + d.policy.Err.Error()
	case d.policy.Nowhere():
		return "its pods can run in no pool"
	case d.unrecorded():
		return "" // there is a better reason
	case d.replicas == 0:
		return "it asks for no pod"
	case d.leftAlone != "":
		return d.leftAlone
	}
	template := d.workload.Template()
	if key, pinned := placement.Pinned(podpatch.FromPod(&corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}), d.policy.Whole, nil); pinned {
		return "its pods choose their nodes themselves, by " + key
	}
	return ""
}
