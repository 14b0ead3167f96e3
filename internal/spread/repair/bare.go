package repair

import (
	"cmp"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/repair/planner"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// bare are pods from which somebody has taken the labels and the claim of their seat. What is left is the node selector, which the pod's own
// template may have, too. It is ours if the deletion cost is that of a seat in the pool, or if a pod of that template got a seat. No
// pod of a template that chooses nodes does.
type bare struct {
	pods     []barePod
	admitted map[string]bool // templates with a pod that got its seat from the webhook
}

type barePod struct {
	at             int // index in planner.State.Pods
	template, cost string
}

// note notes a pod as a plan is to see it. Sent says that the API server sends such a pod to the webhook.
func (b *bare) note(at int, pod *corev1.Pod, created *podpatch.Pod, view *planner.Pod, p *policy.Policy, sent bool) {
	template := templateOf(pod)
	switch {
	case view.Claimed:
		if b.admitted == nil {
			b.admitted = map[string]bool{}
		}
		b.admitted[template] = true
	case view.Seat.Pool >= 0, view.Ours, view.NodePool < 0, !sent: // it has a seat, will be adopted anyway, or is not to be
	case ofCell(pod, created, p, view.NodePool, view.NodeDomain):
		b.pods = append(b.pods, barePod{at, template, pod.Annotations[corev1.PodDeletionCost]})
	}
}

// settle has the pods that are ours adopted.
func (b *bare) settle(state *planner.State, p *policy.Policy) {
	for _, one := range b.pods {
		pod := &state.Pods[one.at]
		rank := rankOfSeatIn(p.Strategy, one.cost, pod.NodePool)
		if pod.Ours = rank > 0 || b.admitted[one.template]; pod.Ours {
			pod.Rank = rank
		}
	}
}

// ofCell reports whether a pod chooses just the nodes of the pool and domain that it runs in.
func ofCell(pod *corev1.Pod, created *podpatch.Pod, p *policy.Policy, pool, domain int) bool {
	own := p.Nodes(pool, domain)
	if !nodeset.PinsOf(&pod.Spec).AskFor(own) {
		return false
	}
	_, pinned := placement.Pinned(created, p.Strategy, own)
	return !pinned
}

// templateOf tells the templates of an owner's pods apart.
func templateOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Labels[appsv1.ControllerRevisionHashLabelKey], pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey])
}

// rankOfSeatIn returns the rank for which a deletion cost was written, if its seat is in a pool, or 0.
func rankOfSeatIn(s *sequence.Strategy, cost string, pool int) int64 {
	n, err := strconv.ParseInt(cost, 10, 64)
	rank := sequence.NoRank - n
	if err != nil || rank < 1 || sequence.DeletionCost(rank) != cost {
		return 0
	}
	if seat, err := s.SeatAt(rank); err != nil || seat.Pool != pool {
		return 0
	}
	return rank
}
