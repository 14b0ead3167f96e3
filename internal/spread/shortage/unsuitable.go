package shortage

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// A policy is for workloads whose authors may not know of it. So a pool is unsuitable for a workload if no node of it could take one of
// its pods. That is found out where a pod waits, and costs a request for one pod.

// Who waits in a pool is looked at again after judgeAgain, and so is an unsuitable pool after rejudge. Both are looked at earlier, if
// nodes of the pool change.
const (
	judgeAgain = time.Minute
	rejudge    = 10 * time.Minute
)

// So many pods are read for that in a second, and at once. Namespaces share them.
const (
	judgeRate  = 1
	judgeBurst = 20
)

// judged is when it was found out whether a pool is suitable, and for which owner of pods.
type judged struct {
	poolroom.Checkpoint
	owner types.UID
}

// judges reports whether pools may be unsuitable by a policy. Pods run outside a pool in which they cannot run, if they may.
func judges(p *policy.Policy) bool { return p.Policy != nil && !p.Preferred }

// judge returns the unsuitable pools of a workload, as they are to be stored.
func (r *run) judge(ctx context.Context, v *picture, m *memory) ([]stowage.UnsuitablePool, error) {
	if !judges(v.policy) || len(v.members) == 0 {
		return nil, nil
	}
	var out []stowage.UnsuitablePool
	newest := v.members[0].UID
	for i := range v.policy.Whole.Len() {
		pool := v.policy.Whole.Pool(i)
		entry := storedUnsuitable(v.state, pool.Labels)
		if r.judgeNow(v, m, i, newest) && r.looks.Allow(m.workload.Namespace, v.Now) {
			now := r.Room.Checkpoint(pool.Labels)
			pod, err := r.exampleIn(ctx, v, i)
			if err != nil {
				return nil, err
			}
			if pod != nil {
				why, err := r.Room.Unsuitable(ctx, pool.Labels, placement.Successor(pod, v.policy.Whole, i, v.policy.TolerationsOf(i), false))
				switch {
				case err != nil:
					return nil, err
				case why == "":
					entry = nil
				case entry == nil:
					entry = &stowage.UnsuitablePool{Name: pool.Name, NodeLabel: pool.Labels, Since: metav1.NewTime(v.Now.Truncate(time.Second)), Why: why}
				default:
					entry.Why = why
				}
				m.judged[pool.Name] = judged{now, newest}
			}
		}
		if entry != nil {
			out = append(out, *entry)
		}
	}
	return out, nil
}

// storedUnsuitable returns a copy of what is stored of an unsuitable pool, or nil.
func storedUnsuitable(state *stowage.PoolState, labels map[string]string) *stowage.UnsuitablePool {
	if state == nil {
		return nil
	}
	if i := slices.IndexFunc(state.Unsuitable, func(u stowage.UnsuitablePool) bool { return maps.Equal(u.NodeLabel, labels) }); i >= 0 {
		return state.Unsuitable[i].DeepCopy()
	}
	return nil
}

// judgeNow reports whether to find out now whether a pool is suitable.
func (r *run) judgeNow(v *picture, m *memory, pool int, newest types.UID) bool {
	last, known := m.judged[v.policy.Whole.Pool(pool).Name]
	age := v.Now.Sub(last.At)
	changed := !known || age >= newNodesAfter && r.Room.NodesChanged(last.Checkpoint)
	if v.unsuitable[pool] {
		return changed || age >= rejudge || last.owner != newest
	}
	return waitsIn(v, pool) != nil && (changed || age >= judgeAgain)
}

// waitsIn returns the name of a pod that waits in a pool, or nil.
func waitsIn(v *picture, pool int) *types.NamespacedName {
	for _, one := range v.members {
		for i := range one.pods {
			if p := &one.pods[i]; p.Seat.Pool == pool && p.Waits > 0 {
				return &types.NamespacedName{Namespace: one.records[i].Namespace, Name: one.records[i].Name}
			}
		}
	}
	return nil
}

// exampleIn returns a pod of the workload: one that waits in a pool, or any other one, or the pod of the newest template. It is nil if
// nothing can be read.
func (r *run) exampleIn(ctx context.Context, v *picture, pool int) (*corev1.Pod, error) {
	if key := waitsIn(v, pool); key != nil {
		pod := &corev1.Pod{}
		if err := r.Uncached.Get(ctx, *key, pod); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return pod, nil
	}
	pod, err := r.anyPod(ctx, v)
	if pod != nil || err != nil {
		return pod, err
	}
	return r.ofTemplate(ctx, v.members[0].Workload)
}

// ofTemplate returns the pod of a workload's template.
func (r *run) ofTemplate(ctx context.Context, w *world.Workload) (*corev1.Pod, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.FromAPIVersionAndKind(w.APIVersion, w.Kind))
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, u); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	template, _, _ := unstructured.NestedMap(u.Object, "spec", "template")
	data, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	var pod corev1.PodTemplateSpec
	if json.Unmarshal(data, &pod) != nil {
		return nil, nil // not a template of pods
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Labels: pod.Labels}, Spec: pod.Spec}, nil
}

// tellUnsuitable says what was found out about pools.
func (r *run) tellUnsuitable(w world.Object, v *picture, is []stowage.UnsuitablePool) {
	about := w.Reference()
	for i := range v.unsuitable {
		pool := v.policy.Whole.Pool(i)
		now := slices.IndexFunc(is, func(u stowage.UnsuitablePool) bool { return maps.Equal(u.NodeLabel, pool.Labels) })
		switch {
		case now >= 0 && !v.unsuitable[i]:
			r.Events.Warn(about, stowage.EventPoolUnsuitable, events.Spill, "no pod can run in pool %s: %s. The pool gets no pods of this workload", pool.Name, is[now].Why)
		case now < 0 && v.unsuitable[i]:
			r.Events.Normal(about, stowage.EventPoolSuitable, events.Spill, "pods can run in pool %s now, so it gets its share of the next ones", pool.Name)
		}
	}
}

// closed returns the states of pools for moves: an unsuitable pool is one without any room.
func closed(v *picture, next []spill.Pool) []spill.Pool {
	out := slices.Clone(next)
	for i := range out {
		if v.unsuitable[i] {
			out[i].Phase, out[i].Max = spill.Exhausted, 0
		}
	}
	return out
}

// unsuitableMoves returns the pods of an owner that wait in unsuitable pools, by their index. It is for pods with an ordinal of their
// own, and for workloads that no pool suits. Their successors need no place in another pool.
func unsuitableMoves(v *picture, one *member) (out []int) {
	for i := range one.pods {
		p := &one.pods[i]
		if !v.unsuitable[p.Seat.Pool] || p.Waits == 0 {
			continue
		}
		if one.ordinals && !v.policy.Nowhere() { // its volume may keep it there
			if own, err := v.policy.SeatAt(rankInName(one, i)); err != nil || own.Pool == p.Seat.Pool {
				continue
			}
		}
		out = append(out, i)
	}
	return out
}

// rankInName returns the rank of a StatefulSet's pod, from 1, or 0 if its name does not say it.
func rankInName(one *member, i int) int64 {
	n, err := strconv.ParseInt(placement.OrdinalInName(one.records[i].Name), 10, 64)
	if err != nil {
		return 0
	}
	return n - one.FirstOrdinal + 1
}
