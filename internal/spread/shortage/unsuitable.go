package shortage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// A policy is for workloads whose authors may not know of it. So a pool is unsuitable for a workload if no node of it could take one of
// its pods. That is found out where a pod has waited for a while, by reading one pod.
//
// The pods of a StatefulSet with volumes move only while their claims are not bound. Such a pool stays unsuitable, because volumes
// would not come back with it.

const (
	// judgeAfter is how long a pod must have waited. Nodes that start have taints, and lack devices, for some seconds.
	judgeAfter = 15 * time.Second
	// A pool in which pods wait is looked at again after judgeAgain, and so is an unsuitable pool after rejudge. Both are looked at earlier, if
	// nodes of the pool change.
	judgeAgain = time.Minute
	rejudge    = 10 * time.Minute
	// longestBlind is for how long an answer stays that cannot be looked at again.
	longestBlind = time.Hour
	// prunedFor is for how long nothing is asked whose answer the API server does not store.
	prunedFor = 5 * time.Minute
)

// So many pods are read for that in a second, and at once. Namespaces share them.
const (
	judgeRate  = 1
	judgeBurst = 20
)

// judged is when it was found out whether a pool is suitable, and for which owner of pods and which policy.
type judged struct {
	poolroom.Checkpoint
	owner  types.UID
	policy ledger.Source
}

// judges reports whether pools may be unsuitable by a policy. Pods run outside a pool in which they cannot run, if they may.
func judges(p *policy.Policy) bool { return p.Policy != nil && !p.Preferred }

// judge returns the unsuitable pools of a workload, as they are to be stored.
func (r *run) judge(ctx context.Context, v *picture, m *memory) []stowage.UnsuitablePool {
	if !judges(v.policy) || len(v.members) == 0 {
		return nil
	}
	// What was found for another policy, or another version of it, says nothing.
	maps.DeleteFunc(m.judged, func(_ string, j judged) bool { return j.policy != v.policy.From })
	var out []stowage.UnsuitablePool
	for i := range v.policy.Len() {
		pool := v.policy.Pool(i)
		entry := storedUnsuitable(v.state, pool.Labels)
		if r.judgeNow(v, m, i) && r.looks.Allow(m.workload.Namespace, v.Now) {
			now := r.Room.Checkpoint(pool.Labels)
			why, known, template, err := r.unsuitable(ctx, v, i)
			last := m.judged[pool.Name]
			switch {
			case err != nil:
				r.Log.Error(err, "whether pods can run in a pool is not known", append(m.workload.LogKeys(), "pool", pool.Name)...)
			case !known:
			case why == "" && template && last.owner == v.members[0].UID:
				// A pod was the reason. What other webhooks write into it is not in the template.
			case why == "":
				entry = nil
			case entry == nil:
				entry = &stowage.UnsuitablePool{Name: pool.Name, NodeLabel: pool.Labels, Since: metav1.NewTime(v.Now.Truncate(time.Second)), Why: why}
			default:
				entry.Why = why
			}
			m.judged[pool.Name] = judged{now, v.members[0].UID, v.policy.From}
		}
		if entry != nil {
			out = append(out, *entry)
		}
	}
	return out
}

// unsuitable says why no pod of the newest owner can run in a pool, or "". It reports whether that is known, and whether only by the
// template.
func (r *run) unsuitable(ctx context.Context, v *picture, pool int) (why string, known, template bool, err error) {
	pod, err := r.exampleIn(ctx, v, pool)
	if pod == nil || err != nil {
		return "", false, false, err
	}
	if bound, err := r.bound(ctx, pod); bound || err != nil {
		return "", false, false, err
	}
	tolerations := v.policy.TolerationsOf(pool)
	if seat, ok := v.policy.PoolKeyed(ledger.PoolOf(pod.Labels[stowage.PoolLabel], pod.Annotations[stowage.ClaimAnnotation])); ok {
		own := v.policy.TolerationsOf(seat) // which it has because of that pool
		pod.Spec.Tolerations = slices.DeleteFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return slices.Contains(own, t) })
	}
	why, err = r.Room.Unsuitable(ctx, v.policy.Pool(pool).Labels, placement.Successor(pod, v.policy.Whole(), pool, -1, tolerations, false))
	return why, err == nil, pod.UID == "", err
}

// mostClaims is how many claims of a pod are looked at. A pod with more stays where it runs.
const mostClaims = 16

// bound reports whether a pod uses a PersistentVolumeClaim that has its volume, or one that is not there. The volume decides where
// the pod runs.
func (r *run) bound(ctx context.Context, pod *corev1.Pod) (bool, error) {
	claims := 0
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		if claims++; claims > mostClaims {
			return true, nil
		}
		var found corev1.PersistentVolumeClaimList // to list them is all that Stowage may
		err := r.Uncached.List(ctx, &found, client.InNamespace(pod.Namespace), client.MatchingFields{metav1.ObjectNameField: volume.PersistentVolumeClaim.ClaimName})
		if err != nil || len(found.Items) == 0 || found.Items[0].Spec.VolumeName != "" {
			return true, err
		}
	}
	return false, nil
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
func (r *run) judgeNow(v *picture, m *memory, pool int) bool {
	last, known := m.judged[v.policy.Pool(pool).Name]
	age := v.Now.Sub(last.At)
	changed := !known || last.owner != v.members[0].UID || age >= newNodesAfter && r.Room.NodesChanged(last.Checkpoint)
	switch {
	case v.Now.Sub(r.pruned) < prunedFor:
		return false
	case !v.policy.Suits(pool):
		return !v.members[0].Volumes && (changed || age >= rejudge)
	}
	return waitsIn(v, pool) != nil && (changed || age >= judgeAgain)
}

// waitsIn returns the name of a pod of the newest owner that has waited in a pool for a while, or nil.
func waitsIn(v *picture, pool int) *types.NamespacedName {
	one := v.members[0]
	for i := range one.spillPods {
		if p := &one.spillPods[i]; p.Seat.Pool == pool && p.Waits >= judgeAfter {
			return &types.NamespacedName{Namespace: one.Pods[i].Namespace, Name: one.Pods[i].Name}
		}
	}
	return nil
}

// exampleIn returns a pod of the newest owner: one that waits in a pool, or any other one, or the pod of the template. It is nil if
// nothing can be read.
func (r *run) exampleIn(ctx context.Context, v *picture, pool int) (*corev1.Pod, error) {
	key := waitsIn(v, pool)
	if newest := v.members[0]; key == nil && len(newest.Pods) > 0 {
		key = &types.NamespacedName{Namespace: newest.Pods[0].Namespace, Name: newest.Pods[0].Name}
	}
	if key == nil {
		if pod, err := r.unseated(ctx, v.members[0].Workload); pod != nil || err != nil {
			return pod, err
		}
		return r.ofTemplate(ctx, v.members[0].Workload)
	}
	pod := &corev1.Pod{}
	if err := r.Uncached.Get(ctx, *key, pod); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return pod, nil
}

// unseated returns one of an owner's pods, where none of them has a seat. It returns nil if the owner has no pod.
func (r *run) unseated(ctx context.Context, w *world.Workload) (*corev1.Pod, error) {
	scale, err := worldapi.ReadScale(ctx, r.Uncached, w.Namespace, w.Ref)
	if err != nil || scale == nil {
		return nil, err
	}
	selector, err := labels.Parse(scale.Selector)
	if err != nil || selector.Empty() {
		return nil, err
	}
	var pods corev1.PodList
	if err := r.Uncached.List(ctx, &pods, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.Limit(20)); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if c := metav1.GetControllerOfNoCopy(&pods.Items[i]); c != nil && c.UID == w.UID {
			return &pods.Items[i], nil
		}
	}
	return nil, nil
}

// ofTemplate returns the pod of a workload's template.
func (r *run) ofTemplate(ctx context.Context, w *world.Workload) (*corev1.Pod, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.FromAPIVersionAndKind(w.APIVersion, w.Kind))
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Name}, u); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	template, _, _ := unstructured.NestedMap(u.Object, "spec", "template")
	var pod corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &pod); err != nil {
		return nil, fmt.Errorf("the pod template of %s %s: %w", w.Kind, w.Name, err)
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Labels: pod.Labels}, Spec: pod.Spec}, nil
}

// staysUnsuitable reports whether the record of a workload stays though no owner of pods is known. Where no pool suits, no pod has a seat,
// and the owners of some kinds are known by such pods alone.
func (r *run) staysUnsuitable(ctx context.Context, w world.Object) (bool, error) {
	state, err := r.World.PoolState(ctx, w.Namespace, w.UID)
	if state == nil || len(state.Unsuitable) == 0 || err != nil || w.Watched() {
		return false, err
	}
	if r.Clock.Since(state.Unsuitable[0].Since.Time) >= longestBlind {
		return false, nil
	}
	there, err := r.World.Workload(ctx, w.Namespace, w.Ref)
	return there != nil && there.UID == w.UID, err
}

// tellUnsuitable says what was found out about pools.
func (r *run) tellUnsuitable(w world.Object, v *picture, is []stowage.UnsuitablePool) {
	about := w.Reference()
	for i := range v.policy.Len() {
		pool := v.policy.Pool(i)
		now := slices.IndexFunc(is, func(u stowage.UnsuitablePool) bool { return maps.Equal(u.NodeLabel, pool.Labels) })
		switch {
		case now >= 0 && v.policy.Suits(i):
			r.Events.Warn(about, stowage.EventPoolUnsuitable, events.Spill, "no pod can run in pool %s: %s. The pool gets no pods of this workload", pool.Name, is[now].Why)
		case now < 0 && !v.policy.Suits(i):
			r.Events.Normal(about, stowage.EventPoolSuitable, events.Spill, "pods can run in pool %s now, so it gets its share of the next ones", pool.Name)
		}
	}
}

// unsuitableMoves returns the pods of an owner that wait in unsuitable pools, by their index. Their successors get a seat elsewhere or, if no
// other pool may have one more, none.
func unsuitableMoves(v *picture, one *member) (out []int) {
	for i := range one.spillPods {
		p := &one.spillPods[i]
		if v.policy.Suits(p.Seat.Pool) || p.Waits == 0 {
			continue
		}
		if one.ordinals && !v.policy.Nowhere() { // its volume may keep it there
			if own, err := v.policy.OfOrdinal(rankInName(one, i)); err == nil && own.Pool == p.Seat.Pool {
				continue
			}
		}
		out = append(out, i)
	}
	return out
}

// rankInName returns the rank of a StatefulSet's pod, from 1, or 0 if its name does not say it.
func rankInName(one *member, i int) int64 {
	n, err := strconv.ParseInt(placement.OrdinalInName(one.Pods[i].Name), 10, 64)
	if err != nil {
		return 0
	}
	return n - one.FirstOrdinal + 1
}
