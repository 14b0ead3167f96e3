package costs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterscaledownpolicies/status;scaledownpolicies/status,verbs=patch,roleName=stowage-scale-down-controllers

// How often statuses are written while pods change: each of them, and all together.
const (
	statusEvery = 2 * time.Second
	mostWritten = 20 // in a pass
)

// statuses is when what was written of statuses.
type statuses struct {
	due     bool
	last    time.Time
	written map[types.UID]time.Time
}

// tally is what a policy's status says, while it is counted.
type tally struct {
	stowage.ScaleDownPolicyStatus
	kept       int32
	unfinished int32
	disturbed  int32
	refusing   int32
	refusal    string
	not        map[stowage.NotConcernedReason]*stowage.NotConcerned
}

// writeStatuses counts for all policies, in one pass over the owners, and writes each status that is not as it should be.
func (r *run) writeStatuses(ctx context.Context, now time.Time) {
	if !r.status.due || now.Sub(r.status.last) < statusEvery {
		return
	}
	r.status.due, r.status.last = false, now
	r.pods.mu.Lock()
	tallies := r.tally()
	r.pods.mu.Unlock()
	published, writes := map[of]counts{}, 0
	// The status that was written longest ago comes first.
	order := slices.SortedFunc(slices.Values(r.sorted), func(a, b *policies.Policy) int {
		return r.status.written[a.UID].Compare(r.status.written[b.UID])
	})
	for _, p := range order {
		t := tallies[p]
		published[of{p.Namespace, p.Name}] = counts{t.Workloads - t.kept, t.refusing}
		if writes >= mostWritten {
			r.status.due = true
			continue
		}
		wrote, err := r.writeStatus(ctx, p, t)
		if wrote {
			writes++
			r.status.written[p.UID] = now
		}
		if err != nil {
			r.status.due = true
			r.Log.Error(err, "the status of a policy was not written; this is tried again", "policy", p.String(), "namespace", p.Namespace)
		}
	}
	for uid, at := range r.status.written {
		if now.Sub(at) > time.Hour {
			delete(r.status.written, uid)
		}
	}
	r.Metrics.set(published)
}

// tally counts the owners for the policies that select them.
func (r *run) tally() map[*policies.Policy]*tally {
	all := map[*policies.Policy]*tally{}
	for _, p := range r.sorted {
		all[p] = &tally{not: map[stowage.NotConcernedReason]*stowage.NotConcerned{}}
	}
	for _, o := range r.pods.owners {
		if t := all[o.winner]; t != nil {
			t.add(o)
		}
		for _, p := range o.plan.others {
			if t := all[p]; t != nil {
				name := fmt.Sprintf("%s, for %s %s/%s", o.winner, o.ref.Kind, o.namespace, o.ref.Name)
				if t.Shadowed++; t.ShadowedBy == "" || name < t.ShadowedBy { // the same one each time
					t.ShadowedBy = name
				}
			}
		}
	}
	return all
}

// add counts an owner for the policy that wins.
func (t *tally) add(o *owner) {
	if o.not != "" {
		n := t.not[o.not]
		if n == nil {
			n = &stowage.NotConcerned{Reason: o.not}
			t.not[o.not] = n
		}
		n.Workloads++
		if text := fmt.Sprintf("%s %s/%s: %s", o.ref.Kind, o.namespace, o.ref.Name, o.why); n.Example == "" || text < n.Example {
			n.Example = text
		}
		return
	}
	t.Workloads++
	t.Pods += int32(o.result.pods)
	t.Written += int32(o.written)
	t.OtherCosts += int32(o.result.others)
	first := func(have *string, text string) {
		if text != "" && (*have == "" || text < *have) {
			*have = text
		}
	}
	first(&t.OtherCostsExample, o.example)
	first(&t.Uneven, o.uneven)
	first(&t.refusal, o.refusal)
	count := func(n *int32, is bool) {
		if is {
			*n++
		}
	}
	count(&t.kept, o.uneven == "")
	count(&t.unfinished, o.unfinished)
	count(&t.disturbed, o.disturbed)
	count(&t.refusing, o.refusal != "")
}

// writeStatus writes the status of a policy, if it has changed.
func (r *run) writeStatus(ctx context.Context, p *policies.Policy, t *tally) (wrote bool, err error) {
	var was, is client.Object
	key := client.ObjectKey{Namespace: p.Namespace, Name: p.Name}
	var status *stowage.ScaleDownPolicyStatus
	if p.Kind == policies.Kind {
		have := &stowage.ScaleDownPolicy{}
		if err := r.Cached.Get(ctx, key, have); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		with := have.DeepCopy()
		was, is, status = have, with, &with.Status
	} else {
		have := &stowage.ClusterScaleDownPolicy{}
		if err := r.Cached.Get(ctx, key, have); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		with := have.DeepCopy()
		was, is, status = have, with, &with.Status
	}
	if is.GetUID() != p.UID || is.GetGeneration() != p.Generation {
		return false, nil // the watch tells of another version
	}
	conditions := status.Conditions
	*status = t.ScaleDownPolicyStatus
	status.Conditions, status.ObservedGeneration = conditions, p.Generation
	if t.Workloads > 0 {
		status.NextStep = fmt.Sprintf("%d/%d", t.kept, t.Workloads)
	}
	for _, n := range t.not {
		status.NotConcerned = append(status.NotConcerned, *n)
	}
	slices.SortFunc(status.NotConcerned, func(a, b stowage.NotConcerned) int { return cmp.Compare(a.Reason, b.Reason) })
	for _, c := range t.conditions(p) {
		c.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&status.Conditions, c)
	}
	if equality.Semantic.DeepEqual(was, is) {
		return false, nil
	}
	err = r.Uncached.Status().Patch(ctx, is, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		r.status.due = true
		err = nil
	}
	return true, client.IgnoreNotFound(err)
}

// conditions says in words what was counted.
func (t *tally) conditions(p *policies.Policy) []metav1.Condition {
	is := func(kind string, status metav1.ConditionStatus, reason stowage.ConditionReason, format string, args ...any) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: string(reason), Message: fmt.Sprintf(format, args...)}
	}
	broken := func(reason stowage.ConditionReason, text string) []metav1.Condition {
		return []metav1.Condition{
			is(stowage.ConditionReady, metav1.ConditionFalse, reason, "%s", text), is(stowage.ConditionStalled, metav1.ConditionTrue, reason, "%s", text),
			is(stowage.ConditionKept, metav1.ConditionFalse, reason, "%s", text),
		}
	}
	switch {
	case p.Err != nil:
		return broken(stowage.ReasonInvalid, "the policy concerns no pods: "+p.Err.Error())
	case p.TooMany:
		return broken(stowage.ReasonTooMany, policies.TooManyText())
	}
	kept := func() metav1.Condition {
		switch {
		case t.refusing > 0:
			return is(stowage.ConditionKept, metav1.ConditionFalse, stowage.ReasonRefused, "the API server refuses the deletion costs of %d workloads, such as of %s", t.refusing, t.refusal)
		case !p.Enforces():
			return is(stowage.ConditionKept, metav1.ConditionUnknown, stowage.ReasonAudit, "in mode Audit nothing is written; Enforce would write %d pods", t.Pods-t.Written-t.OtherCosts)
		case t.disturbed > 0:
			return is(stowage.ConditionKept, metav1.ConditionFalse, stowage.ReasonOtherCosts, "%d pods have a deletion cost that another writer has set, such as %s; %d workloads lose their spread at the next step, such as %s", t.OtherCosts, t.OtherCostsExample, t.disturbed, t.Uneven)
		case t.unfinished > 0 || t.kept < t.Workloads:
			return is(stowage.ConditionKept, metav1.ConditionUnknown, stowage.ReasonWriting, "pods of %d workloads do not have their deletion cost yet", max(t.unfinished, t.Workloads-t.kept))
		}
		return is(stowage.ConditionKept, metav1.ConditionTrue, stowage.ReasonKept, "a step down to half leaves each workload spread as well as its pods allow")
	}
	return []metav1.Condition{
		is(stowage.ConditionReady, metav1.ConditionTrue, stowage.ReasonCounted, "the policy concerns %d workloads", t.Workloads),
		is(stowage.ConditionStalled, metav1.ConditionFalse, stowage.ReasonCounted, "the policy is valid"), kept(),
	}
}
