package controller

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/policy"
)

// The reasons of the conditions.
const (
	ReasonFound       = "Found"
	ReasonNotFound    = "NotFound"
	ReasonSuperseded  = "Superseded"
	ReasonInvalid     = "Invalid"
	ReasonNoTarget    = "NoTarget"
	ReasonBalanced    = "Balanced"
	ReasonProgressing = "Progressing"
	ReasonOverTarget  = "OverTarget"
	ReasonNoSeat      = "PodsWithoutSeat"
)

// resyncStatuses looks at the PodDistributors that were edited and at those in whose
// namespace pods have changed, until some time after that; and, once in a resync, at all.
func (s *Spread) resyncStatuses(ctx context.Context) {
	list, err := s.Cluster.PodDistributors(ctx, metav1.NamespaceAll)
	if err != nil {
		s.Log.Error(err, "PodDistributors were not listed")
		return
	}
	now := s.Clock.Now()
	s.mu.Lock()
	all := now.Sub(s.allStatuses) >= s.Timing.Resync
	if all {
		s.allStatuses = now
	}
	dirty := map[string]bool{}
	for namespace, t := range s.dirty {
		dirty[namespace] = true
		if now.Sub(t) > s.Timing.Quiet+2*s.Timing.Status {
			delete(s.dirty, namespace)
		}
	}
	s.mu.Unlock()
	for i := range list {
		if d := &list[i]; all || dirty[d.Namespace] || d.Status.ObservedGeneration != d.Generation {
			add(s.statuses, client.ObjectKeyFromObject(d))
		}
	}
}

// status brings the status of one PodDistributor up to date.
func (s *Spread) status(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	list, err := s.Cluster.PodDistributors(ctx, key.Namespace)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(list, func(d versprei.PodDistributor) bool { return d.Name == key.Name })
	if i < 0 {
		return 0, nil
	}
	d := list[i].DeepCopy()
	before := d.DeepCopy()
	if err := s.describe(ctx, d, list); err != nil {
		return 0, err
	}
	if reflect.DeepEqual(before.Status, d.Status) {
		return 0, nil
	}
	return 0, client.IgnoreNotFound(s.Live.Status().Patch(ctx, d, client.MergeFrom(before)))
}

// describe fills in a PodDistributor's status.
func (s *Spread) describe(ctx context.Context, d *versprei.PodDistributor, siblings []versprei.PodDistributor) error {
	st := &d.Status
	st.ObservedGeneration = d.Generation
	set := func(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...), ObservedGeneration: d.Generation,
		})
	}
	none := func(reason, format string, args ...any) error {
		st.Current, st.Desired, st.Ready, st.Pools = "", "", "", nil
		set(versprei.ConditionTargetFound, metav1.ConditionFalse, reason, format, args...)
		set(versprei.ConditionBalanced, metav1.ConditionUnknown, ReasonNoTarget, "this object divides no pods")
		return nil
	}

	// 1. Does it divide the pods of something?
	p := policy.Compile(d)
	if p.Err != nil {
		return none(ReasonInvalid, "the distribution is invalid: %v", p.Err)
	}
	target := policy.TargetOf(d)
	for i := range siblings {
		if o := &siblings[i]; o.Name != d.Name && policy.TargetOf(o).SameObject(target) && policy.Older(o, d) {
			return none(ReasonSuperseded, "PodDistributor %q is older and divides the pods of %s %q", o.Name, target.Kind, target.Name)
		}
	}
	owners, found, err := s.ownersOf(ctx, d.Namespace, target)
	if err != nil {
		return err
	}
	if !found {
		return none(ReasonNotFound, "there is no %s %q in namespace %q that Stowage can see", target.Kind, target.Name, d.Namespace)
	}
	set(versprei.ConditionTargetFound, metav1.ConditionTrue, ReasonFound, "the pods of %s %q are divided", target.Kind, target.Name)

	// 2. What there is and what there should be, over all revisions.
	st.Pools = make([]versprei.PoolStatus, p.Strategy.Len())
	for i := range st.Pools {
		st.Pools[i].Name = p.Strategy.Pool(i).Name
	}
	moving, unseated := false, int64(0)
	for _, o := range owners {
		owner := ownerOf(o)
		records := liveRecords(s.Ledger.Pods().Of(owner.Key()))
		seated := int64(0)
		for i := range records {
			if pool, ok := p.Pool(records[i].Pool); ok {
				seated++
				st.Pools[pool].Current++
				if records[i].Ready {
					st.Pools[pool].Ready++
				}
			}
		}
		replicas, current := o.Replicas, o.Current
		if replicas < 0 {
			replicas, current = seated, seated
			if scale, err := s.Ledger.Scale(ctx, owner); err != nil {
				return err
			} else if scale != nil {
				replicas, current = scale.Replicas, scale.Current
			}
		}
		for i := range st.Pools {
			st.Pools[i].Desired += int32(p.Strategy.Target(i, replicas))
		}
		moving = moving || replicas != current || s.moving(owner.Key())
		unseated += max(0, min(replicas, p.Strategy.Capacity())-seated)
	}
	current, desired, ready := make([]string, len(st.Pools)), make([]string, len(st.Pools)), make([]string, len(st.Pools))
	over := ""
	for i, pool := range st.Pools {
		current[i], desired[i], ready[i] = strconv.Itoa(int(pool.Current)), strconv.Itoa(int(pool.Desired)), strconv.Itoa(int(pool.Ready))
		if pool.Current > pool.Desired && over == "" {
			over = pool.Name
		}
	}
	st.Current, st.Desired, st.Ready = strings.Join(current, "/"), strings.Join(desired, "/"), strings.Join(ready, "/")

	switch {
	case st.Current == st.Desired:
		set(versprei.ConditionBalanced, metav1.ConditionTrue, ReasonBalanced, "each pool has the pods that it should have")
	case moving:
		set(versprei.ConditionBalanced, metav1.ConditionFalse, ReasonProgressing, "pods are being created or removed")
	case over != "":
		hint := "; scale up, roll out, or set rebalance to Evict"
		if p.Evict {
			hint = "; pods are evicted one at a time"
		}
		set(versprei.ConditionBalanced, metav1.ConditionFalse, ReasonOverTarget, "pool %s has too many pods%s", over, hint)
	default:
		set(versprei.ConditionBalanced, metav1.ConditionFalse, ReasonNoSeat, "%d pod(s) have no seat: they came past the webhook, or choose their nodes themselves", unseated)
	}
	return nil
}

// ownersOf returns what makes the pods of a target, and whether the target is there.
func (s *Spread) ownersOf(ctx context.Context, namespace string, target cluster.Ref) (owners []*cluster.Workload, found bool, err error) {
	w, err := s.Cluster.Workload(ctx, namespace, target)
	if err != nil {
		return nil, false, err
	}
	makers, err := s.Cluster.Makers(ctx, namespace)
	if err != nil {
		return nil, false, err
	}
	seen := map[types.UID]bool{}
	for _, m := range makers {
		leads, err := s.leadsTo(ctx, namespace, m, target)
		if err != nil {
			return nil, false, err
		}
		if leads {
			owners = append(owners, m)
			seen[m.UID] = true
		}
	}
	// Kinds that are not watched are known by their pods.
	for _, o := range s.Ledger.Pods().Owners() {
		if o.Namespace == namespace && !seen[o.UID] && refOf(o).SameObject(target) {
			owners = append(owners, &cluster.Workload{Ref: refOf(o), Namespace: namespace, Replicas: -1, Current: -1})
		}
	}
	return owners, w != nil || len(owners) > 0, nil
}

// leadsTo reports whether a workload is the target, or was made by it, or by what it made.
func (s *Spread) leadsTo(ctx context.Context, namespace string, w *cluster.Workload, target cluster.Ref) (bool, error) {
	for depth := 0; w != nil && depth < policy.MaxDepth; depth++ {
		if w.SameObject(target) || w.Controller != nil && w.Controller.SameObject(target) {
			return true, nil
		}
		if w.Controller == nil {
			return false, nil
		}
		var err error
		if w, err = s.Cluster.Workload(ctx, namespace, *w.Controller); err != nil {
			return false, err
		}
	}
	return false, nil
}
