package costs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/scaledown/policies"
)

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterscaledownpolicies/status;scaledownpolicies/status,verbs=patch,roleName=stowage-scale-down-controllers

// How often statuses are counted while pods change, and how many of them are written then.
const (
	statusEvery   = 2 * time.Second
	mostWritten   = 20
	statusTimeout = 5 * time.Second
	// statusAgain is after how long a status is tried again that was refused, and the longest time that policies which come and go hold up all statuses.
	statusAgain  = 30 * time.Second
	mostUnjudged = 10 * time.Second
)

// statuses is when what was written of statuses, or failed.
type statuses struct {
	last            time.Time
	written, failed map[types.UID]time.Time
}

// tally is what a policy's status says, while it is counted.
type tally struct {
	stowage.ScaleDownPolicyStatus
	kept, lacking, disturbed, notReady int32 // workloads
	refusing                           int32
	refusal                            string
	not                                map[stowage.NotConcernedReason]*stowage.NotConcerned
}

// writeStatuses counts for all policies, in one pass over the owners, and writes each status that is not as it should be.
func (r *run) writeStatuses(ctx context.Context) {
	now := r.Clock.Now()
	r.pods.mu.Lock()
	if !r.due || !r.pods.synced.Load() || len(r.unjudged) > 0 && now.Sub(r.statuses.last) < mostUnjudged {
		r.pods.mu.Unlock()
		return
	}
	r.due = false
	order, tallies := r.sorted, r.tally()
	r.pods.mu.Unlock()
	r.statuses.last = now
	published, writes := map[of]counts{}, 0
	for _, p := range order {
		t := tallies[p.UID]
		published[of{p.Namespace, p.Name}] = counts{t.Workloads - t.kept, t.refusing}
	}
	r.Metrics.set(published)
	again := false
	for _, p := range r.statuses.turns(order) {
		if r.Scope.Excludes(p.Namespace) {
			continue // Stowage may write nothing there
		}
		if writes >= mostWritten || now.Before(r.statuses.failed[p.UID]) {
			again = true
			continue
		}
		wrote, err := r.writeStatus(ctx, p, tallies[p.UID])
		if wrote {
			writes++
			r.statuses.written[p.UID] = now
		}
		delete(r.statuses.failed, p.UID)
		if err != nil {
			again = true
			r.statuses.failed[p.UID] = now.Add(statusAgain)
			r.Log.Error(err, "the status of a policy was not written; this is tried again", "policy", p.String(), "namespace", p.Namespace)
		}
	}
	if again {
		r.markDue()
	}
}

func (r *run) markDue() {
	r.pods.mu.Lock()
	defer r.pods.mu.Unlock()
	r.due = true
}

// turns returns policies in the order in which their statuses are written: namespaces in turn, and in each the one first that was written longest ago. It
// forgets those that are gone.
func (s *statuses) turns(sorted []*policies.Policy) []*policies.Policy {
	there := map[types.UID]bool{}
	for _, p := range sorted {
		there[p.UID] = true
	}
	gone := func(uid types.UID, _ time.Time) bool { return !there[uid] }
	maps.DeleteFunc(s.written, gone)
	maps.DeleteFunc(s.failed, gone)
	order := slices.SortedStableFunc(slices.Values(sorted), func(a, b *policies.Policy) int { return s.written[a.UID].Compare(s.written[b.UID]) })
	out := make([]*policies.Policy, 0, len(order))
	for _, i := range fair.Turns(len(order), func(i int) string { return order[i].Namespace }) {
		out = append(out, order[i])
	}
	return out
}

// tally counts the owners for the policies that select them.
func (r *run) tally() map[types.UID]*tally {
	all := map[types.UID]*tally{}
	for _, p := range r.sorted {
		all[p.UID] = &tally{not: map[stowage.NotConcernedReason]*stowage.NotConcerned{}}
	}
	for _, o := range r.pods.owners {
		if o.winner == nil {
			continue
		}
		if t := all[o.winner.UID]; t != nil {
			t.add(o)
		}
		for _, p := range o.shadowed {
			if t := all[p.UID]; t != nil {
				t.Shadowed++
				first(&t.ShadowedBy, fmt.Sprintf("%s, for %s %s/%s", o.winner, o.ref.Kind, o.namespace, o.ref.Name))
			}
		}
	}
	return all
}

// first keeps the text that comes first, so that a status names the same one each time.
func first(have *string, text string) {
	if text != "" && (*have == "" || text < *have) {
		*have = text
	}
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
		first(&n.Example, fmt.Sprintf("%s %s/%s: %s", o.ref.Kind, o.namespace, o.ref.Name, o.why))
		return
	}
	t.Workloads++
	t.Pods += int32(o.placed)
	t.Written += int32(o.written)
	t.OtherCosts += int32(o.foreign)
	first(&t.OtherCostsExample, o.example)
	first(&t.Uneven, o.uneven)
	first(&t.refusal, o.refusal)
	count := func(n *int32, is bool) {
		if is {
			*n++
		}
	}
	finished := o.lacking == 0 && o.uneven != ""
	count(&t.kept, o.uneven == "")
	count(&t.lacking, o.lacking > 0)
	count(&t.disturbed, finished && o.foreign > 0)
	count(&t.notReady, finished && o.foreign == 0 && o.notReady > 0)
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
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err = r.Uncached.Status().Patch(ctx, is, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) { // the cache will have the newer version
		r.markDue()
		return true, nil
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
		switch karpenter := t.not[stowage.NotConcernedKarpenter]; {
		case t.refusing > 0:
			return is(stowage.ConditionKept, metav1.ConditionFalse, stowage.ReasonRefused, "the API server refuses the deletion costs of %d workloads, such as of %s", t.refusing, t.refusal)
		case karpenter != nil:
			return is(stowage.ConditionKept, metav1.ConditionFalse, stowage.ReasonKarpenter, "%d workloads are left to another writer, such as %s", karpenter.Workloads, karpenter.Example)
		case !p.Enforces():
			return is(stowage.ConditionKept, metav1.ConditionUnknown, stowage.ReasonAudit, "in mode Audit nothing is written; Enforce would write %d pods", max(0, t.Pods-t.Written-t.OtherCosts))
		case t.disturbed > 0:
			return is(stowage.ConditionKept, metav1.ConditionFalse, stowage.ReasonOtherCosts, "%d pods have a deletion cost that another writer has set, such as %s; %d workloads lose their spread at the next step, such as %s", t.OtherCosts, t.OtherCostsExample, t.disturbed, t.Uneven)
		case t.lacking > 0:
			return is(stowage.ConditionKept, metav1.ConditionUnknown, stowage.ReasonWriting, "pods of %d workloads do not have their deletion cost yet", t.lacking)
		case t.notReady > 0:
			return is(stowage.ConditionKept, metav1.ConditionUnknown, stowage.ReasonNotReady, "%d workloads have pods that are not ready and go first, whatever their cost; a step leaves %s", t.notReady, t.Uneven)
		case t.kept < t.Workloads:
			return is(stowage.ConditionKept, metav1.ConditionUnknown, stowage.ReasonWriting, "a step leaves %d workloads uneven, such as %s", t.Workloads-t.kept, t.Uneven)
		}
		return is(stowage.ConditionKept, metav1.ConditionTrue, stowage.ReasonKept, "a step down to half leaves each workload spread as well as its pods allow")
	}
	return []metav1.Condition{
		is(stowage.ConditionReady, metav1.ConditionTrue, stowage.ReasonCounted, "the policy concerns %d workloads", t.Workloads),
		is(stowage.ConditionStalled, metav1.ConditionFalse, stowage.ReasonCounted, "the policy is valid"), kept(),
	}
}
