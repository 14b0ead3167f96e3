package impact

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// doubt notes why the counts of a workload may come out otherwise.
func (c *comparison) doubt(p *plan, was *decided) {
	add := func(ok bool, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); ok && !slices.Contains(p.Unsure, text) {
			p.Unsure = append(p.Unsure, text)
		}
	}
	if p.is == nil || p.is.seats == nil && !p.is.unrecorded() {
		if !slices.ContainsFunc(p.pods, func(pod *pod) bool { return pod.seated }) {
			p.Unsure = nil // no pod has a seat or gets one, whatever becomes of it
		}
		return
	}
	of := p.is.policy
	switch p.Kind {
	case "Deployment", "StatefulSet", "Rollout":
	case "ReplicaSet", "Job", "CronJob":
		add(true, "nothing replaces the pods of a %s, so that only new ones follow", p.Kind)
	default:
		add(true, "how a %s replaces its pods is not known", p.Kind)
	}
	add(of.Unrecorded() || of.KeepsVolumes, "it is older than the policy, and each pod keeps the pool of its volume")
	add(!of.Unrecorded() && !of.KeepsVolumes && p.is.workload.Volumes() && p.InOtherPool+p.Outside > 0, "the volumes of its pods may be bound to where they are")
	add(of.Preferred, "its pools are only preferred, so that pods may run elsewhere")
	add(len(p.is.noSpill) > 0, "its pods for pool %s would wait", strings.Join(p.is.noSpill, ", "))
	if of.State != nil {
		for i, room := range spill.MergeCells(spill.FromPoolState(of.State, of.Whole), spill.CellsOfPool(of.Whole)) {
			name := of.Whole.Pool(i).Name
			if _, asked := c.closed[name]; room.Phase != spill.Available && room.Phase != "" && !asked {
				add(true, "pool %s has no room now, and may have some by then", name)
			}
		}
	}
	for name := range c.closed {
		if _, ok := of.PoolNamed(strings.SplitN(name, "/", 2)[0]); ok && (p.Kind != "Deployment" && p.Kind != "Rollout") {
			add(true, "which of its pods wait for pool %s first is not known", name)
		}
	}
	for _, pod := range p.pods {
		for _, k := range pod.chooses {
			if _, own := p.is.workload.Template().Spec.NodeSelector[k]; !own && of.ChoosesBy(k) && !was.choosesBy(k) {
				add(true, "another webhook writes the node label %s into its pods", k)
			}
		}
	}
	if !p.is.job() && p.is.workload.Kind == "StatefulSet" && of.Keeping() {
		add(true, "volumes keep some of its pods")
	}
}

// choosesBy reports whether a policy chooses nodes by a label.
func (d *decided) choosesBy(label string) bool {
	return d != nil && d.policy != nil && d.policy.Whole != nil && d.policy.ChoosesBy(label)
}
