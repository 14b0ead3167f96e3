package status

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	divisions "github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// inWords names pools without room.
func inWords(shortages []spill.Shortage) string {
	short := make([]string, len(shortages))
	for i, s := range shortages {
		short[i] = s.String()
	}
	return strings.Join(short, "; ")
}

// balanced returns the condition Balanced of a workload: whether each pool has the pods that it should have, and what is the cause and the remedy
// if not.
func balanced(p *policy.Policy, d *divisions.Division, said said) (metav1.ConditionStatus, stowage.ConditionReason, string) {
	status := metav1.ConditionFalse
	reason, text := causeOf(p, d, said)
	if reason == stowage.ReasonBalanced {
		status = metav1.ConditionTrue
	}
	if said.held != "" {
		text += "; " + said.held
	}
	if n := d.ForeignCosts; n > 0 {
		text += fmt.Sprintf("; %d pod(s) have a pod-deletion-cost that is not from Stowage: scale-downs remove the lowest first", n)
	}
	return status, reason, text
}

// causeOf returns the first cause that a division is not as it should be.
func causeOf(p *policy.Policy, d *divisions.Division, said said) (stowage.ConditionReason, string) {
	switch d.Cause() {
	case divisions.PodsWait:
		return stowage.ReasonPodsPending, waiting(d) + " wait for a node"
	case divisions.Spilled:
		return stowage.ReasonSpilled, "other pools have taken pods of a pool without room: " + inWords(d.Shortages)
	case divisions.NotReached:
		return stowage.ReasonNotReached, said.stuck
	case divisions.Progressing:
		return stowage.ReasonProgressing, "pods are being created or removed"
	case divisions.OutsidePool:
		if p.Preferred {
			return stowage.ReasonOutsidePool, fmt.Sprintf("%d pod(s) are outside the pool of their seat, as enforcement Preferred allows", d.Outside())
		}
		return stowage.ReasonOutsidePool, fmt.Sprintf("%d pod(s) are outside the pool of their seat: its node labels, the labels of nodes or the order of the pools have changed; roll out", d.Outside())
	case divisions.OverTarget:
		return stowage.ReasonOverTarget, "pool " + d.Over().Name + " has too many pods" + remedyOfOver(p, said)
	case divisions.FormerPools:
		text := fmt.Sprintf("%d pod(s) have their seat in a pool that was removed from the distribution", d.Former)
		if others := d.Unseated - d.Former; others > 0 {
			text += fmt.Sprintf("; %d more have no seat", others)
		}
		return stowage.ReasonWithoutSeat, text
	case divisions.WithoutSeat:
		return stowage.ReasonWithoutSeat, fmt.Sprintf("%d pod(s) have no seat: they bypassed the webhook, choose their nodes themselves, or have no room for more annotations", d.Unseated)
	}
	text := "each pool has the pods that it should have"
	if n := d.DomainSurplus(); n > 0 {
		text += fmt.Sprintf("; %d pod(s) are in a domain that has too many of their pool: roll out", n)
		if !p.Evict {
			text += ", or set rebalance to Evict"
		}
	}
	return stowage.ReasonBalanced, text
}

// remedyOfOver says what becomes of the pods of a pool that has too many. Pods that are held have their own text.
func remedyOfOver(p *policy.Policy, said said) string {
	switch {
	case said.held != "":
		return ""
	case p.Evict:
		return "; pods are evicted one at a time, into nodes that have room"
	}
	return "; roll out, or set rebalance to Evict"
}

// waiting counts the pods that wait, by pool.
func waiting(d *divisions.Division) string {
	var parts []string
	for i := range d.Pools {
		if pool := &d.Pools[i]; pool.Waiting > 0 {
			parts = append(parts, fmt.Sprintf("%d pod(s) of pool %s", pool.Waiting, pool.Name))
		}
	}
	return strings.Join(parts, " and ")
}
