package comparison

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"

	"github.com/stowage-dev/stowage/hack/controlplane/kubernetes/filters"
	"github.com/stowage-dev/stowage/internal/nodefit"
)

// cell is what the filters say of the nodes of a pod's cell.
type cell struct {
	nodes []corev1.Node
	// passes and empty say that one passes as it is, and without pods and what passes; forGood that all refuse for good; and starts that one may
	// still get what it lacks.
	passes, empty, forGood, starts bool
}

func (c *compared) itsCell() *cell {
	of := &cell{forGood: true}
	for _, n := range c.nodes {
		if !c.pin.Has(n.Labels) {
			continue
		}
		of.nodes = append(of.nodes, n)
		of.passes = of.passes || c.withOthers[n.Name].Passes()
		of.empty = of.empty || c.empty[n.Name].Passes()
		of.starts = of.starts || c.starts(&n)
		of.forGood = of.forGood && !c.lastingly[n.Name].Passes()
	}
	return of
}

// compareCell compares the answers about a pod and the nodes of its cell. The best answer of all nodes is that of the cell, unless a constraint asks
// for more domains than they have.
func (c *compared) compareCell(ctx context.Context) error {
	of := c.itsCell()
	if len(of.nodes) == 0 || len(c.unknown) > 0 { // what is unknown is compared by pairs
		return nil
	}
	got := c.judge(c.pod, of.nodes, append([]corev1.Pod{}, c.there...))
	never := got.Verdict == nodefit.Never
	few := never && got.Filter == nodefit.BySpread && c.judge(withoutMinDomains(c.pod), of.nodes, nil).Verdict != nodefit.Never
	c.check(c.pod, of.nodes, got,
		claim{"a cell's nodes refuse for good, and not Never", of.forGood && !never && !of.starts},
		claim{"one of a cell passes, and not Takes", of.passes && got.Verdict != nodefit.Takes && !few},
		claim{"one of a cell passes when it is empty, and Never", of.empty && never && !few},
	)
	if of.forGood || of.starts {
		return nil
	}
	return c.minDomains(ctx, of.nodes, few)
}

// minDomains compares what the two say of each constraint that asks for a number of domains. The scheduler compares the number once maxSkew pods are
// in each domain: then it refuses on each node for good, or on none.
func (c *compared) minDomains(ctx context.Context, nodes []corev1.Node, few bool) error {
	explained := false
	for i := range c.pod.Spec.TopologySpreadConstraints {
		constraint := &c.pod.Spec.TopologySpreadConstraints[i]
		if constraint.WhenUnsatisfiable != corev1.DoNotSchedule || constraint.MinDomains == nil {
			continue
		}
		c.sum.constraints++
		pod := withOneConstraint(c.pod, i)
		got := c.judge(pod, nodes, nil)
		never := got.Verdict == nodefit.Never
		explained = explained || never
		f, err := filters.Only([]string{names.PodTopologySpread}, c.objects(c.lasting, c.inEachDomain(pod, i))...)
		if err != nil {
			return err
		}
		answers, err := f.Passes(ctx, pod)
		if err != nil {
			return err
		}
		refused := !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return c.lastingly[n.Name].Passes() && answers[n.Name].Passes() })
		// The domains of a constraint that does not honour the pod's selector may be those of other cells, which Judge does not see.
		elsewhere := ptr.Deref(constraint.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyIgnore
		c.check(pod, nodes, got,
			claim{"enough domains, and Never", never && !refused},
			claim{"too few domains, and not Never", refused && !never && !elsewhere},
		)
	}
	c.check(c.pod, nodes, nodefit.Answer{}, claim{"too few domains for no constraint by itself", few && !explained})
	return nil
}

// inEachDomain returns pods with the labels of this one: maxSkew of them in each domain of a constraint.
func (c *compared) inEachDomain(pod *corev1.Pod, i int) (out []corev1.Pod) {
	constraint, done := &pod.Spec.TopologySpreadConstraints[i], map[string]bool{}
	for j := range c.lasting {
		node := &c.lasting[j]
		value := node.Labels[constraint.TopologyKey]
		if done[value] || !counts(pod, constraint, node) {
			continue
		}
		done[value] = true
		for k := range constraint.MaxSkew {
			p := corev1.Pod{ObjectMeta: *pod.ObjectMeta.DeepCopy()}
			p.Name = fmt.Sprint(node.Name, "-", k)
			p.UID, p.Spec.NodeName = "", node.Name
			out = append(out, p)
		}
	}
	return out
}

// counts reports whether the scheduler counts the pods of a node for a constraint.
func counts(pod *corev1.Pod, of *corev1.TopologySpreadConstraint, node *corev1.Node) bool {
	for _, c := range pod.Spec.TopologySpreadConstraints {
		if _, has := node.Labels[c.TopologyKey]; !has && c.WhenUnsatisfiable == corev1.DoNotSchedule {
			return false
		}
	}
	if ptr.Deref(of.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor {
		if selected, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !selected {
			return false
		}
	}
	if ptr.Deref(of.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyIgnore {
		return true
	}
	_, refuses := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, false)
	return !refuses
}

// withoutMinDomains returns the pod without minimums of domains.
func withoutMinDomains(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for i := range pod.Spec.TopologySpreadConstraints {
		pod.Spec.TopologySpreadConstraints[i].MinDomains = nil
	}
	return pod
}

// withOneConstraint returns the pod with one constraint as it is. The others only have nodes count that have their keys.
func withOneConstraint(pod *corev1.Pod, i int) *corev1.Pod {
	pod = pod.DeepCopy()
	for j := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[j]; j != i {
			c.MinDomains, c.MaxSkew = nil, 1000
		}
	}
	return pod
}
