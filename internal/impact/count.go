package impact

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// count counts the pods of a workload: where they are, and where they will be.
func (c *comparison) count(p *plan) {
	p.Pods = int64(len(p.pods))
	p.VMs = c.vmsOf(p)
	p.place = make([]cell, len(p.pods))
	for i, pod := range p.pods {
		p.place[i] = c.placeOf(p, pod)
		switch {
		case pod.Node == "":
			p.Unscheduled++
		case !c.there(pod):
			p.Drained++
		}
	}
	if p.is != nil {
		p.Replicas, p.WithoutSeat, p.KeptByVolume = p.is.replicas, p.is.without.count, p.is.held
		if p.KeptByVolume > 0 {
			p.because(finding.HeldByVolume)
		}
		if p.is.failed != nil {
			p.WithoutSeat = 0 // it is not known
		}
	}
	if p.strategy != nil {
		c.countPools(p)
	}
	if p.is.divides() {
		c.countMoves(p)
		return
	}
	p.Stay = min(p.Pods-p.Unscheduled-p.Drained, p.Replicas) // nobody asks them to be elsewhere
	p.InPlace = p.Stay
	if p.is != nil && p.strategy != nil {
		var reason finding.Reason
		p.LeftAlone, reason = whyAlone(p.is)
		p.because(reason)
	}
}

// there reports whether the node of a pod stays.
func (c *comparison) there(pod *pod) bool { return len(c.nodes) == 0 || c.stays[pod.Node] }

// placeOf returns where a pod is. Where nodes may not be read, it is the cell of its seat.
func (c *comparison) placeOf(p *plan, pod *pod) cell {
	at := cell{pool: outside}
	if pod.Node == "" {
		at.pool = nowhere
	}
	if p.strategy == nil || pod.Node == "" {
		return at
	}
	if has, known := c.nodes[pod.Node]; known {
		seat, seated := p.strategy.PoolNamed(pod.pool)
		if !seated {
			seat = -1
		}
		if pool := p.strategy.PoolOf(seat, has); pool >= 0 {
			return cell{pool, max(0, p.strategy.DomainOfNode(has))}
		}
		return at
	}
	for i := range p.strategy.Len() {
		if domain, known := p.strategy.DomainNamed(pod.Domain); pod.pool != "" && known && len(c.nodes) == 0 && p.strategy.Pool(i).Name == pod.pool {
			return cell{i, domain}
		}
	}
	return at
}

// countPools counts the pods of each pool and domain.
func (c *comparison) countPools(p *plan) {
	now := map[cell]int64{}
	for _, at := range p.place {
		now[at]++
	}
	domains := 1
	if across := p.strategy.Across(); across != nil {
		domains = len(across.Domains)
	}
	for i := range p.strategy.Len() {
		pool := WorkloadPool{Name: p.strategy.Pool(i).Name}
		if p.is != nil && p.is.policy != nil {
			carry := p.is.policy.CarryOf(i)
			pool.Gives = carry.String()
		}
		for n := range domains {
			at := cell{i, n}
			in := WorkloadDomain{Name: p.strategy.DomainName(n), Now: now[at]}
			if p.is != nil && p.is.cells[at] != nil {
				in.Then = p.is.cells[at].count
			}
			pool.Now, pool.Then = pool.Now+in.Now, pool.Then+in.Then
			if p.strategy.Across() != nil {
				pool.Domains = append(pool.Domains, in)
			}
		}
		pool.Soon = pool.Now
		p.Pools = append(p.Pools, pool)
	}
	if p.is != nil && p.is.policy != nil {
		for i, why := range p.is.policy.Unsuitable() {
			if why != "" {
				p.Unsuitable = append(p.Unsuitable, spill.PlaceOf(p.strategy, p.strategy.Cells().At(i))+": "+why)
				p.because(finding.PoolUnsuitable)
			}
		}
	}
}

// countMoves counts the pods that stay, that are adopted or evicted before the next rollout, and those that it moves.
func (c *comparison) countMoves(p *plan) {
	lack, lackInPool := map[cell]int64{}, map[int]int64{} // how many more pods may be where they are
	for at, g := range p.is.cells {
		lack[at] += g.count
		lackInPool[at.pool] += g.count
	}
	placed := int64(0) // on nodes that stay
	for i, pod := range p.pods {
		at := p.place[i]
		if pod.Node == "" || !c.there(pod) {
			continue
		}
		placed++
		if p.adopts(pod, at) {
			p.Adopted++
		}
		here, inPool := lack[at] > 0, at.pool >= 0 && lackInPool[at.pool] > 0
		if p.is.ordinals != nil { // each pod has a place of its own
			own := p.is.ordinalsCell(pod.ordinal)
			here, inPool = own == at, at.pool >= 0 && own.pool == at.pool
		}
		switch {
		case at.pool < 0:
			p.Outside++
		case inPool:
			p.InPlace++
			lackInPool[at.pool]--
		default:
			p.InOtherPool++
		}
		if here {
			p.Stay++
			lack[at]--
		} else if inPool {
			p.InOtherDomain++
		}
	}
	gone := max(0, p.Pods-p.Replicas-p.Unscheduled-p.Drained) // because there are to be fewer in all
	if p.is.ordinals == nil {
		gone += p.WithoutSeat
	}
	p.Moved = max(0, placed-p.Stay-gone)
	p.Evicted = p.evicts()
	p.countSoon(max(0, p.Replicas-p.Pods)+p.Evicted+p.Drained, gone)
}

// adopts reports whether a pod gets another seat than it has, or one at all, where it runs.
func (p *plan) adopts(pod *pod, at cell) bool {
	return at.pool >= 0 && p.is.policy.Repair != stowage.RepairOff && (pod.pool == "" || pod.pool != p.strategy.Pool(at.pool).Name)
}

// evicts returns how many of the pods that move are evicted before the next rollout.
func (p *plan) evicts() int64 {
	switch of := p.is.policy; {
	case p.Kind == "Job" || p.Kind == "CronJob" || of.Repair == stowage.RepairOff: // a Job may lose work
		return 0
	case of.Evict:
		return p.Moved
	case of.Repair == stowage.RepairRecreate && of.Policy == nil:
		return min(p.Outside, p.Moved)
	}
	return 0
}

// ordinalsCell returns the cell of the pod of a StatefulSet with an ordinal.
func (d *decided) ordinalsCell(ordinal int64) cell {
	if n := ordinal - d.workload.FirstOrdinal(); n >= 0 && n < int64(len(d.ordinals)) {
		return d.ordinals[n]
	}
	return cell{pool: nowhere}
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

// whyAlone says why no pod of a workload with a policy gets a seat, with the reason that its pods would have, if there is one.
func whyAlone(d *decided) (text string, reason finding.Reason) {
	switch {
	case d.policy == nil || d.failed != nil:
		return "", "" // there is nothing to say, or a better reason
	case d.policy.Err != nil:
		return "the policy is invalid: " + d.policy.Err.Error(), finding.InvalidPolicy
	case d.policy.Nowhere():
		return "its pods can run in no pool", finding.PoolUnsuitable
	case d.replicas == 0:
		return "it asks for no pod", ""
	case d.leftAlone == preview.LeftOut:
		return d.leftAlone, finding.LeftOut
	case d.leftAlone != "":
		return d.leftAlone, ""
	}
	template := d.workload.Template()
	if key, pinned := placement.Pinned(podpatch.FromPod(&corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}), d.policy.Whole(), nodeset.Set{}); pinned {
		return "its pods choose their nodes themselves, by " + key, finding.PodsChooseNodes
	}
	return "", ""
}

// compareSizes compares the sizes of a DaemonSet's pods before and after the change. The sums are over all of its pods.
func (c *comparison) compareSizes(k key, is, was *decided, pods []*pod) {
	if is == nil || was == nil || is.sizes == nil && was.sizes == nil {
		return
	}
	d := DaemonSet{Namespace: k.namespace, Name: k.name, Pods: len(pods)}
	sums := map[corev1.ResourceName]*[2]resource.Quantity{corev1.ResourceCPU: {}, corev1.ResourceMemory: {}}
	for _, pod := range pods {
		if !c.there(pod) {
			continue
		}
		changed := false
		for name, sum := range sums {
			now, then := sizeOn(was, pod.Node, name), sizeOn(is, pod.Node, name)
			sum[0].Add(now)
			sum[1].Add(then)
			changed = changed || now.Cmp(then) != 0
		}
		if changed {
			d.Changed++
		}
	}
	if d.Changed == 0 {
		return
	}
	cpu, memory := sums[corev1.ResourceCPU], sums[corev1.ResourceMemory]
	d.CPUNow, d.CPUThen, d.MemoryNow, d.MemoryThen = cpu[0].String(), cpu[1].String(), bytesText(memory[0]), bytesText(memory[1])
	c.report.DaemonSets = append(c.report.DaemonSets, d)
}

// sizeOn returns what the pod of a DaemonSet on a node requests of a resource. Without a share of the node, it is what the DaemonSet asks for.
func sizeOn(d *decided, node string, name corev1.ResourceName) resource.Quantity {
	if q, ok := d.sizes[node][name]; ok {
		return q
	}
	return requestsOf(&corev1.Pod{Spec: d.workload.Template().Spec})[name]
}

// vmsOf returns the VMs of a workload's pods, or nil if it has none.
func (c *comparison) vmsOf(p *plan) *VMChange {
	vms, hidden := &VMChange{}, slices.Contains(c.live.hidden, hiddenCatalogs)
	for _, pod := range p.pods {
		vms.Now += pod.vms
		if pod.machine == "" || hidden {
			continue
		}
		if vms.TypesNow == nil {
			vms.TypesNow = map[string]int64{}
		}
		vms.TypesNow[pod.machine] += pod.vms
		if of := catalog.For(c.catalogs, pod.class); of != nil {
			if t := of.Type(pod.machine); t != nil {
				vms.priceNow += t.Price.Micros * pod.vms
			}
		}
	}
	if p.is != nil && p.is.vms > 0 {
		vms.Then, vms.Size, vms.TypesThen, vms.Offer, vms.priceThen = p.is.vms, sizeOf(p.is.vm), p.is.vmTypes, p.is.offer, p.is.vmPrice
	}
	if vms.Now+vms.Then == 0 {
		return nil
	}
	vms.PriceNow, vms.PriceThen = prices(vms.Now, vms.Then, vms.priceNow, vms.priceThen)
	return vms
}

// prices writes what so many VMs cost now and then, or nothing where that is not known.
func prices(vmsNow, vmsThen, now, then int64) (textNow, textThen string) {
	if now+then == 0 {
		return "", ""
	}
	if now > 0 || vmsNow == 0 {
		textNow = catalog.Money(now)
	}
	if then > 0 || vmsThen == 0 {
		textThen = catalog.Money(then)
	}
	return textNow, textThen
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

// bytesText is a number of bytes in GiB.
func bytesText(q resource.Quantity) string {
	return fmt.Sprintf("%.1f GiB", float64(q.Value())/(1<<30))
}
