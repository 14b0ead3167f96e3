package capacity

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// lookAgain is how often the pods of a node are listed while some of them take VMs and lack the label, and when a node is
// looked at again after its amount was written.
const lookAgain = 5 * time.Minute

// unlabelled is how many VMs the pods of a node take that do not have the label of peer pods.
type unlabelled struct {
	vms int64
	at  time.Time // of the list
}

// usedOf returns how many VMs the pods of a node take. Pods with the label of peer pods are watched. Others, which a
// predecessor converted or their author wrote so, are found by a list of the node's pods. That is once for each node
// that advertises VMs, and then every few minutes while there are some.
func (r *run) usedOf(ctx context.Context, node *corev1.Node, advertises bool) (used int64, again time.Duration) {
	labelled, err := r.pods.GetIndexer().ByIndex(byNode, node.Name)
	if err != nil {
		r.Log.Error(err, "peer pods were not counted", "kind", "Node", "name", node.Name)
	}
	for _, obj := range labelled {
		used += peerpod.VMsOf(obj.(*corev1.Pod), string(r.Resource))
	}
	r.mu.Lock()
	others, known := r.others[node.Name]
	r.mu.Unlock()
	if !known && !advertises {
		return used, 0
	}
	now := r.Clock.Now()
	if !known || others.vms > 0 && now.Sub(others.at) >= lookAgain {
		pods, err := worldapi.PodsOn(ctx, r.Uncached, node.Name, true)
		if err != nil {
			r.Log.Error(err, "the pods of a node were not listed", "kind", "Node", "name", node.Name)
			return used + others.vms, lookAgain
		}
		others = unlabelled{at: now}
		for i := range pods {
			pod := &pods[i]
			if _, counted := pod.Labels[stowage.PeerPodLabel]; !counted && !podstatus.Ended(pod) {
				others.vms += peerpod.VMsOf(pod, string(r.Resource))
			}
		}
		r.mu.Lock()
		r.others[node.Name] = others
		r.mu.Unlock()
	}
	if others.vms > 0 {
		again = max(time.Second, lookAgain-now.Sub(others.at))
	}
	return used + others.vms, again
}
