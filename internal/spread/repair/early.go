package repair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
)

// goEarlyFor is how long after its policy a pod that was created before it may go because of that. A pod that is not ready later may
// have been in use.
const goEarlyFor = 2 * time.Minute

// seeAge fills in whether a pod was created before what divides it. That counts only for the pods of a workload that was created with them: of an
// older one, a pod that is not ready may be of a rollout. A ClusterSpreadPolicy evicts nothing. Of policies, it notes the first pod that has its seat
// by it.
func (s *sight) seeAge(pod *corev1.Pod, view *planner.Pod) {
	p := s.policy
	if (p.Policy == nil || p.EvictEarly) && podstatus.CreatedBefore(p.WorkloadCreated(), s.since) {
		view.BeforePolicy = !view.Claimed && !view.Full && podstatus.CreatedBefore(view.Created, s.since) && s.Time.Since(s.since) < goEarlyFor
	}
	if p.Policy == nil {
		return
	}
	if first := s.first.IsZero() || view.Created.Before(s.first); first && view.Claimed && carries(pod, s.policy) {
		s.first = view.Created
	}
}

// young reports whether pods may go that are ready: their workload was created moments ago. What would not be finished in that time does not begin,
// since some pods would go and the division would not be exact. What has begun is finished.
func (s *sight) young() bool {
	if s.replacingReady(s.owner.Key()) {
		return true // until [goEarlyFor]
	}
	left := podstatus.PolicyGrace - s.Time.Since(s.policy.WorkloadCreated()) // the list has just told the time
	if left <= 0 {
		return false
	}
	settled := *s.state
	settled.Settled, settled.Young = true, true
	plan := planner.Make(settled)
	return time.Duration(plan.Distance())*2*s.Timing.Quiet <= left // a successor has to come, and some quiet, before the next pod goes
}

// leastWait returns how long pods wait, at least, before a policy has other pools take them; 0 is for ever.
func leastWait(p *policy.Policy) (least time.Duration) {
	for _, rule := range p.Spill {
		if rule.After > 0 {
			least = sooner(least, rule.After)
		}
	}
	return least
}

// leaveEarlier leaves alone the pods without a seat that were there before a policy selected them, unless they run in one of its
// pools, or a SpreadPolicy came a moment after them. So nothing is evicted because a policy is created or a namespace gets a label.
// First is when the first pod was created that got a seat by the policy, or zero. Only where the policy asks for eviction do those go
// that run in no pool. Those that have waited for a node for so long as other pods wait before they move go, too; 0 is for ever. Soon
// is after how long the first of the others may go, or 0.
func leaveEarlier(s *planner.State, first time.Time, after time.Duration) (soon time.Duration) {
	recreates, moves := s.Mode == stowage.RepairRecreate, false
	for _, pod := range neverSeated(s) {
		if pod.NodePool >= 0 || s.GoesEarly(pod) {
			continue // it is adopted, or was created a moment ago
		}
		earlier := first.IsZero() || !pod.Created.After(first)
		left, waits := leftToWait(pod, after)
		switch {
		case pod.NodePool == planner.OtherNode:
			pod.Ours = pod.Ours && (s.Evict || !earlier)
		case waits && left <= 0:
			moves = moves || pod.Ours
		default:
			pod.Ours = pod.Ours && recreates && !earlier
			if waits {
				soon = sooner(soon, left)
			}
		}
	}
	if moves && !recreates && !s.Evict {
		leaveRunning(s)
	}
	if (s.Evict || moves) && s.Mode == stowage.RepairAdopt {
		s.Mode = stowage.RepairRecreate
	}
	return soon
}

// leftToWait returns how much longer a pod may wait for room before it moves, as other pods do. It returns false if it does not wait for room.
func leftToWait(pod *planner.Pod, after time.Duration) (left time.Duration, waits bool) {
	return after - pod.Waits, after > 0 && pod.Waits > 0 && !pod.Volume
}

// sooner returns the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// neverSeated returns the pods that have no seat and had none.
func neverSeated(s *planner.State) (out []*planner.Pod) {
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.Seat.Pool < 0 && !pod.Foreign {
			out = append(out, pod)
		}
	}
	return out
}

// leaveRunning leaves alone the pods that never had a seat and run in no pool. They do not go with those that wait.
func leaveRunning(s *planner.State) {
	for _, pod := range neverSeated(s) {
		if pod.NodePool == planner.OtherNode {
			pod.Ours = false
		}
	}
}
