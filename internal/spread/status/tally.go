package status

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
	"github.com/stowage-dev/stowage/internal/world"
)

// tally is what is counted of one policy. Workloads are told apart by what keeps their pod template.
type tally struct {
	of       *policy.SpreadPolicy
	compiled policy.Compiled
	was, is  client.Object // the policy before, and with the status that is filled in
	status   *stowage.SpreadPolicyStatus
	fields   []string

	divided                           map[world.Object]*division.Division // by this policy
	audited                           map[world.Object]bool               // with the pods in [tally.audit]
	unseen                            map[world.Object]bool               // of a policy in Audit, and not looked at yet
	shadowed, notReached, keptInPlace map[world.Object]bool
	unsuitable                        map[world.Object]bool // a pool of this policy is not for its pods
	audit                             stowage.PolicyAuditStatus
	pools                             map[string]*stowage.PolicyPoolStatus
	shares                            map[string]float64 // of pods, by pool
	balanced                          int32
}

// newTally returns a tally of a policy, whose status is that of an object to be written.
func newTally(of *policy.SpreadPolicy, compiled policy.Compiled, was, is client.Object, status *stowage.SpreadPolicyStatus, spec any) *tally {
	t := &tally{
		of: of, compiled: compiled, was: was, is: is, status: status, fields: fieldsOf(spec),
		divided: map[world.Object]*division.Division{}, audited: map[world.Object]bool{}, unseen: map[world.Object]bool{},
		shadowed: map[world.Object]bool{}, notReached: map[world.Object]bool{}, keptInPlace: map[world.Object]bool{}, unsuitable: map[world.Object]bool{},
		pools: map[string]*stowage.PolicyPoolStatus{}, shares: map[string]float64{},
	}
	*status = stowage.SpreadPolicyStatus{Conditions: status.Conditions}
	for _, p := range of.Spec.Pools {
		t.pools[p.Name] = &stowage.PolicyPoolStatus{Name: p.Name}
	}
	return t
}

// noteUnsuitable notes for each cell why the pods of a workload cannot run there, or "".
func (t *tally) noteUnsuitable(top world.Object, why []string) {
	for i := range why {
		if why[i] == "" {
			continue
		}
		t.unsuitable[top] = true
		text := fmt.Sprintf("pool %s for %s %s/%s: %s", spill.PlaceOf(t.compiled.Strategy, t.compiled.Cells().At(i)), top.Kind, top.Namespace, top.Name, why[i])
		if t.status.UnsuitableExample == "" || text < t.status.UnsuitableExample {
			t.status.UnsuitableExample = text
		}
	}
}

// noteShadowed notes that another source divides the pods of a workload.
func (t *tally) noteShadowed(top world.Object, source string) {
	t.shadowed[top] = true
	if by := fmt.Sprintf("%s (%s %s/%s)", source, top.Kind, top.Namespace, top.Name); t.status.ShadowedBy == "" || by < t.status.ShadowedBy {
		t.status.ShadowedBy = by
	}
}

// describe fills in the status.
func (t *tally) describe(nodes []corev1.Node) {
	st := t.status
	st.ObservedGeneration, st.ObservedFields = t.of.Generation, t.fields
	st.Shadowed, st.NotReached, st.KeptByVolume = int32(len(t.shadowed)), int32(len(t.notReached)), int32(len(t.keptInPlace))
	st.Workloads, st.Unsuitable = int32(len(t.divided)), int32(len(t.unsuitable))
	for _, d := range t.divided {
		t.add(d)
	}
	if t.of.Spec.Mode == stowage.PolicyAudit {
		t.audit.Workloads = int32(len(t.audited))
		for top := range t.unseen {
			t.audited[top] = true
		}
		st.Workloads, st.Pods, st.Audit = int32(len(t.audited)), t.audit.Pods, &t.audit
	} else if st.Workloads > 0 {
		st.Balanced = fmt.Sprintf("%d/%d", t.balanced, st.Workloads)
	}
	t.setConditions(t.describePools(nodes))
}

// add adds how the pods of a workload are divided.
func (t *tally) add(d *division.Division) {
	for i := range d.Pools {
		p := &d.Pools[i]
		if pool := t.pools[p.Name]; pool != nil && !p.Removed {
			pool.Desired, pool.Current, pool.Ready = add(pool.Desired, p.Target), add(pool.Current, p.Current), add(pool.Ready, p.Ready)
			pool.Domains = domainsOf(pool.Domains, p.Domains())
			t.shares[p.Name] += p.Share
		}
	}
	st := t.status
	st.Pods, st.WithoutSeat, st.ChooseNodes = add(st.Pods, d.Replicas), add(st.WithoutSeat, d.Unseated-d.Pinned), add(st.ChooseNodes, d.Pinned)
	if d.Balanced() {
		t.balanced++
	}
}

// describePools fills in the statuses of the pools. It returns those without a node, with their labels.
func (t *tally) describePools(nodes []corev1.Node) (empty []string) {
	st := t.status
	for n := range t.of.Spec.Pools {
		p := &t.of.Spec.Pools[n]
		pool, of := t.pools[p.Name], policy.NodesOf(p)
		for i := range nodes {
			if of.Has(nodes[i].Labels) {
				pool.Nodes++
			}
		}
		if st.Workloads > 0 {
			pool.Share = strconv.FormatFloat(t.shares[p.Name], 'f', 1, 64)
		}
		if pool.Nodes == 0 {
			empty = append(empty, fmt.Sprintf("%s (%s)", p.Name, of))
		}
		st.Pools = append(st.Pools, *pool)
	}
	return empty
}

// setConditions fills in the conditions. Some pools have no node.
func (t *tally) setConditions(empty []string) {
	set := func(kind string, status metav1.ConditionStatus, reason stowage.ConditionReason, format string, args ...any) {
		meta.SetStatusCondition(&t.status.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: string(reason), Message: fmt.Sprintf(format, args...), ObservedGeneration: t.of.Generation,
		})
	}
	switch {
	case t.compiled.Err != nil:
		set(stowage.ConditionReady, metav1.ConditionFalse, stowage.ReasonInvalid, "the policy is invalid and divides no pods: %v", t.compiled.Err)
		set(stowage.ConditionStalled, metav1.ConditionTrue, stowage.ReasonInvalid, "correct the policy: %v", t.compiled.Err)
	case slices.ContainsFunc(t.status.Unreadable, func(u stowage.UnreadableKind) bool { return len(u.Lacks) > 0 }):
		f := finding.Finding{Reason: finding.KindNotReadable, Values: finding.OfUnreadable(t.status.Unreadable)}
		set(stowage.ConditionReady, metav1.ConditionFalse, stowage.ReasonUnreadable, "%s", f.Sentence())
		set(stowage.ConditionStalled, metav1.ConditionTrue, stowage.ReasonUnreadable, "%s", &f)
	case len(t.unseen) > 0:
		set(stowage.ConditionReady, metav1.ConditionFalse, stowage.ReasonCounting, "some workloads were not looked at yet")
		set(stowage.ConditionStalled, metav1.ConditionFalse, stowage.ReasonCounting, "the policy is valid")
	default:
		set(stowage.ConditionReady, metav1.ConditionTrue, stowage.ReasonCounted, "the workloads that the policy selects are counted")
		set(stowage.ConditionStalled, metav1.ConditionFalse, stowage.ReasonCounted, "the policy is valid")
	}
	if len(empty) > 0 {
		then := "its pods wait for one"
		if t.compiled.Preferred {
			then = "its pods run elsewhere, as enforcement Preferred allows"
		}
		set(stowage.ConditionNodesFound, metav1.ConditionFalse, stowage.ReasonNoNodes, "no node has the labels of pool %s; %s", strings.Join(empty, ", nor of pool "), then)
	} else {
		set(stowage.ConditionNodesFound, metav1.ConditionTrue, stowage.ReasonFound, "each pool has a node")
	}
}

// fieldsOf returns the paths of the fields that a spec has.
func fieldsOf(spec any) []string {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil
	}
	var value any
	if json.Unmarshal(data, &value) != nil {
		return nil
	}
	found := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if strings.HasSuffix(path, "matchLabels") || strings.HasSuffix(path, "nodeSelector") || len(v) == 0 {
				found[path] = true
				return
			}
			for key, item := range v {
				walk(strings.TrimPrefix(path+"."+key, "."), item)
			}
		case []any:
			for _, item := range v {
				walk(path+"[]", item)
			}
		default:
			found[path] = true
		}
	}
	walk("", value)
	return slices.Sorted(maps.Keys(found))
}
