package impact

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// doubt notes why the counts of a workload may come out otherwise.
func (c *comparison) doubt(p *plan, was *decided) {
	if p.is == nil || p.strategy == nil || !p.seated() {
		return
	}
	add := func(ok bool, reason finding.Reason, format string, args ...any) {
		if !ok {
			return
		}
		p.because(reason)
		if text := fmt.Sprintf(format, args...); !slices.Contains(p.Unsure, text) {
			p.Unsure = append(p.Unsure, text)
		}
	}
	// 1. What holds for any workload.
	add(p.is.failed != nil, "", "its pods cannot be previewed: %v", p.is.failed)
	add(p.is.workload.Holds() != "", "", "%s", p.is.workload.Holds())
	for _, why := range c.live.status[keyOf(p.is.workload)] {
		add(true, why.reason, "%s", why.text)
	}
	for _, what := range c.live.blind {
		add(true, "", "you may not read %s", what)
	}
	of := p.is.policy
	if !laidOut(of) {
		return
	}
	// 2. What holds for its volumes and pools, and who else chooses nodes.
	p.doubtPools(of, add)
	own := p.is.workload.Template().Spec.NodeSelector
	for _, pod := range p.pods {
		for _, k := range pod.chooses {
			_, written := own[k]
			add(!written && of.ChoosesBy(k) && !was.choosesBy(k), finding.PodsChooseNodes, "another webhook writes the node label %s into its pods", k)
		}
	}
}

// seated reports whether pods have seats, or may get some.
func (p *plan) seated() bool {
	return p.is.divides() || p.is.failed != nil || slices.ContainsFunc(p.pods, func(pod *pod) bool { return pod.pool != "" })
}

// doubtPools adds what is not known of a workload's volumes and pools.
func (p *plan) doubtPools(of *policy.Policy, add func(ok bool, reason finding.Reason, format string, args ...any)) {
	volumes := p.is.workload.Volumes() || slices.ContainsFunc(p.pods, func(pod *pod) bool { return pod.volume })
	add(volumes && (p.Moved > 0 || of.Keeping()), finding.HeldByVolume, "the volumes of its pods may be bound to where they are")
	add(!of.Preferred && slices.ContainsFunc(slices.Collect(maps.Values(p.is.cells)), func(g *group) bool { return g.shape != nil && !nodefit.Counted(g.shape) }),
		"", "beside size, also ports, devices, constraints or other pods decide where its pods run")
	add(of.Preferred, "", "its pools are only preferred, so that pods may run elsewhere")
	add(len(p.is.noSpill) > 0, finding.NoRoomInPool, "its pods for pool %s would wait", strings.Join(p.is.noSpill, ", "))
	add(len(p.is.closed) > 0 && p.Kind != "Deployment" && p.Kind != "Rollout", "", "which of its pods wait for a pool without room is not known")
	if of.State == nil {
		return
	}
	for i, room := range spill.MergeCells(spill.FromPoolState(of.State, of.Whole()), of.Whole().Cells()) {
		_, asked := p.is.closed[i]
		add(room.Phase != spill.Available && room.Phase != "" && !asked, finding.PoolExhausted, "pool %s has no room now, and may have some by then", of.Whole().Pool(i).Name)
	}
}

// choosesBy reports whether a policy chooses nodes by a label.
func (d *decided) choosesBy(label string) bool {
	return d != nil && laidOut(d.policy) && d.policy.ChoosesBy(label)
}
