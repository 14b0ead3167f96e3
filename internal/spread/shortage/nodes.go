package shortage

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// newNodesAfter is how long after the last look new nodes of a pool are looked at. They often come in groups.
const newNodesAfter = 5 * time.Second

// lookForRoom counts for how many more pods the nodes of pools or cells without room have room, where something has changed since the
// last look. It returns the looks of now, by the names of pools or cells. They count once what follows from them is stored.
func (r *run) lookForRoom(ctx context.Context, v *picture, m *memory) (map[string]poolroom.Checkpoint, error) {
	looks := map[string]poolroom.Checkpoint{}
	for i := range v.pools {
		at := v.policy.Cells().At(i)
		name, selected := spill.PlaceOf(v.policy.Whole(), at), v.policy.NodesOf(at)
		last, looked := m.looked[name]
		switch {
		case v.pools[i].Phase == spill.Available:
			delete(m.looked, name)
			continue
		case !looked:
			// Pods have just waited in vain for what room there seems to be. Only what changes from now on is evidence.
			m.looked[name] = r.Room.Checkpoint(selected)
			continue
		case !v.pools[i].TakesRoom():
			continue // what has changed is looked at later
		case v.Now.Sub(last.At) >= min(newNodesAfter, r.Timing.Probes.First) && r.Room.NodesChanged(last):
			// A rollout may follow new nodes, and is divided by what is known then.
		case v.Now.Sub(last.At) < r.Timing.Probes.First || !r.Room.PodsLeft(last):
			continue
		}
		if !r.Room.MayLook(m.workload.Namespace) {
			continue // the next look may
		}
		now := r.Room.Checkpoint(selected)
		pod, err := r.anyPod(ctx, v)
		if err != nil {
			return nil, err
		}
		if pod == nil {
			continue // it has gone just now
		}
		if nodefit.Counted(pod) { // otherwise no look proves room: a try is one pod
			if v.Room[i], err = r.Room.Count(ctx, selected, v.policy.InCell(pod, "", at), v.Replicas); err != nil {
				return nil, err
			}
		}
		looks[name] = now
	}
	return looks, nil
}

// anyPod reads a pod of the workload's newest owner that has some, or returns nil.
func (r *run) anyPod(ctx context.Context, v *picture) (*corev1.Pod, error) {
	for _, one := range v.members {
		if len(one.Pods) == 0 {
			continue
		}
		pod := &corev1.Pod{}
		if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: one.Pods[0].Namespace, Name: one.Pods[0].Name}, pod); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return pod, nil
	}
	return nil, nil
}
