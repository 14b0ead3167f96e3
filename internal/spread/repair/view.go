package repair

import (
	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// viewOf is a pod as a plan sees it. Whether the pod was sent to the webhook, and in which pool
// its node is, is not known here.
func viewOf(pod *corev1.Pod, created *podpatch.Pod, owner ledger.Owner, p *policy.Policy, key ledger.Key) planner.Pod {
	view := planner.Pod{Name: pod.Name, Created: pod.CreationTimestamp.Time, Ready: podstatus.Ready(pod), Running: pod.Spec.NodeName != "", NodePool: planner.NoNode, Ours: true}
	view.Seat.Pool = -1
	view.Volume = len(podstatus.VolumeClaims(&pod.Spec)) > 0
	if rank, ok := placement.OwnRank(created, p.FirstOrdinal()); ok {
		view.OwnRank = rank
	}
	if carried, ok := ledger.SeatOf(key, pod.Namespace, owner.UID, pod.Labels, pod.Annotations); ok {
		seen := observed.New(pod, owner.UID, carried)
		seen.ID = carried.ID // also of a pod that has its seat by its own ordinal
		place(&view, p, &seen)
	} else {
		view.Rank = formerRank(pod, owner, p, key)
	}
	if view.Seat.Pool < 0 {
		view.Full = ledger.FoundFull(key, pod.Namespace, owner.UID, pod.Annotations)
		_, pinned := placement.Pinned(created, p.Strategy, nodeset.Set{})
		view.Ours = !pinned
	}
	return view
}

// formerRank returns [planner.Pod.Rank] of a pod whose labels somebody has changed, so that its claim does not prove them.
// The claim proves the seat that the pod had, which follows from the rank of its deletion cost.
func formerRank(pod *corev1.Pod, owner ledger.Owner, p *policy.Policy, key ledger.Key) int64 {
	claim, cost := pod.Annotations[stowage.ClaimAnnotation], pod.Annotations[corev1.PodDeletionCost]
	rank := ledger.CostRank(ledger.UnverifiedID(claim))
	if rank < 1 || rank > sequence.NoRank {
		return 0
	}
	seat, err := p.SeatAt(rank)
	if err != nil {
		return 0
	}
	domains := []string{""}
	if a := p.Across(); a != nil {
		for _, d := range a.Domains {
			domains = append(domains, d.Value)
		}
	}
	holder := ledger.Holder{Namespace: pod.Namespace, Owner: string(owner.UID)}
	for _, domain := range domains {
		if _, _, ok := key.Verify(claim, holder, ledger.Seat{Pool: p.PoolKey(seat.Pool), Ordinal: seat.Ordinal, Domain: domain}); ok {
			return sequence.RankOfCost(cost, rank, rank)
		}
	}
	return 0
}
