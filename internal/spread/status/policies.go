package status

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/leader"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/division"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// Policies is the controller of the status of SpreadPolicies and ClusterSpreadPolicies. One pass over all workloads counts for all
// policies, because each workload may concern several of them.
type Policies struct {
	*Controller
	Find *policy.Owners
	// Registration is the name of the webhook's registration.
	Registration string
	Metrics      *Metrics
}

// Metrics count what policies divide, and would divide.
type Metrics struct {
	workloads, pods *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(set *metrics.Set) *Metrics {
	return &Metrics{
		workloads: set.GaugeVec("stowage_policy_workloads", "Workloads that a SpreadPolicy or a ClusterSpreadPolicy selects: balanced, unbalanced, audited, shadowed by another source, not_reached by the webhook, or kept by a volume", "kind", "namespace", "name", "state"),
		pods:      set.GaugeVec("stowage_policy_pods", "Pods of these workloads: seated or without_seat; in mode Audit in_place, in_other_pool, outside of all pools, or waiting for a node", "kind", "namespace", "name", "state"),
	}
}

// AddServed registers a metric of whether the API server has the kinds of policies.
func AddServed(set *metrics.Set, served func() bool) {
	set.GaugeFunc("stowage_policy_kinds_served", "1 while the API server has the kinds SpreadPolicy and ClusterSpreadPolicy, 0 while it has not, so that no policy has an effect", func() float64 {
		if served() {
			return 1
		}
		return 0
	})
}

// mostSeries is how many policies have metrics: those of the cluster first. Anybody who may write SpreadPolicies makes more.
const mostSeries = 1000

// set publishes what was counted.
func (m *Metrics) set(tallies map[types.UID]*tally) {
	m.workloads.Reset()
	m.pods.Reset()
	all := slices.SortedFunc(maps.Values(tallies), func(a, b *tally) int {
		return cmp.Or(cmp.Compare(a.of.Kind, b.of.Kind), cmp.Compare(a.of.Namespace, b.of.Namespace), cmp.Compare(a.of.Name, b.of.Name))
	})
	for _, t := range all[:min(len(all), mostSeries)] {
		st := t.status
		workloads := map[string]int32{"shadowed": st.Shadowed, "not_reached": st.NotReached, "kept": st.KeptByVolume}
		pods := map[string]int32{}
		if a := st.Audit; a != nil {
			workloads["audited"] = a.Workloads
			pods["in_place"], pods["in_other_pool"], pods["outside"], pods["waiting"] = a.InPlace, a.InOtherPool, a.Outside, a.Waiting
		} else {
			workloads["balanced"], workloads["unbalanced"] = t.balanced, st.Workloads-t.balanced
			pods["seated"], pods["without_seat"] = st.Pods-st.WithoutSeat, st.WithoutSeat
		}
		for state, n := range workloads {
			m.workloads.WithLabelValues(t.of.Kind, t.of.Namespace, t.of.Name, state).Set(float64(n))
		}
		for state, n := range pods {
			m.pods.WithLabelValues(t.of.Kind, t.of.Namespace, t.of.Name, state).Set(float64(n))
		}
	}
}

// +kubebuilder:rbac:groups=stowage.dev,resources=clusterspreadpolicies/status;spreadpolicies/status,verbs=patch,roleName=stowage-spread-controllers

// How often policies are counted while something changes, and how many workloads of policies in Audit are looked at in a second.
const (
	countEvery = 5 * time.Second
	auditEvery = 500 * time.Millisecond
	// auditAgain is after how long a workload is looked at again though nothing changed.
	auditAgain = 10 * time.Minute
)

var _ leader.Controller = &Policies{}

// Name implements [leader.Controller].
func (*Policies) Name() string { return "policy-status" }

// policyRun is the controller in one term. Only its ticker uses it.
type policyRun struct {
	*Policies
	changes chan struct{}       // has an entry after a change
	counted time.Time           // when all was counted last
	seen    map[types.UID]int64 // the generations of all policies
	// registration is what the webhook is asked about, of a version of the registration.
	registration *scope.Registration
	version      string
	// audits are what was seen of workloads of policies in Audit, and due are those to look at.
	audits map[ledger.OwnerKey]*audit
	due    []*world.Workload
}

// audit is the pods of an owner, as they were when it was looked at.
type audit struct {
	at    time.Time
	shown [2]int64 // the replica counts that the cache showed
	// nodes are how many pods run on each node, and waiting have none.
	nodes   map[string]int32
	waiting int32
}

// Register implements [leader.Controller].
func (c *Policies) Register(t *leader.Term) error {
	r := &policyRun{Policies: c, changes: make(chan struct{}, 1), audits: map[ledger.OwnerKey]*audit{}}
	t.AtEnd(c.Seats.Changes.Add(func(seats.Change) { r.changed() }))
	t.AtEnd(func() { c.Metrics.set(nil) })
	t.Go(func(ctx context.Context) {
		if !toolscache.WaitForNamedCacheSyncWithContext(ctx, c.Seats.Pods().HasSynced) {
			return
		}
		last := time.Time{}
		t.Every(auditEvery, func(ctx context.Context) {
			r.audit(ctx)
			if now := r.Clock.Now(); now.Sub(last) >= countEvery {
				last = now
				r.count(ctx)
			}
		})
	})
	return nil
}

func (r *policyRun) changed() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// tally is what is counted of one policy.
type tally struct {
	of        *policy.Selecting
	compiled  policy.Compiled
	status    *stowage.SpreadPolicyStatus
	workloads map[world.Object]*division.Division // by the uppermost workload
	pools     map[string]*stowage.PolicyPoolStatus
	audited   stowage.PolicyAuditStatus
	balanced  int32
	unseen    int32 // workloads of a policy in Audit that nobody has looked at
}

// count counts for all policies, and writes each status that is not as it should be. Without policies it does nothing.
func (r *policyRun) count(ctx context.Context) {
	all := r.World.AllPolicies()
	generations := map[types.UID]int64{}
	for _, p := range all.Namespaced {
		generations[p.UID] = p.Generation
	}
	for _, p := range all.Cluster {
		generations[p.UID] = p.Generation
	}
	edited := !maps.Equal(generations, r.seen)
	if r.seen = generations; len(generations) == 0 {
		if edited {
			r.Metrics.set(nil)
		}
		return
	}
	now := r.Clock.Now()
	select {
	case <-r.changes:
	default:
		if !edited && now.Sub(r.counted) < r.Timing.All/4 { // labels and nodes change, too
			return
		}
	}
	r.counted = now
	if err := r.countAll(ctx, all); err != nil {
		r.Log.Error(err, "the workloads of policies were not counted")
	}
}

func (r *policyRun) countAll(ctx context.Context, all *world.Policies) error {
	tallies := map[types.UID]*tally{}
	add := func(s *policy.Selecting, before []metav1.Condition) {
		t := &tally{of: s, compiled: r.Find.CompiledPolicy(s), status: &stowage.SpreadPolicyStatus{Conditions: slices.Clone(before)}, workloads: map[world.Object]*division.Division{}, pools: map[string]*stowage.PolicyPoolStatus{}}
		for _, p := range s.Spec.Pools {
			t.pools[p.Name] = &stowage.PolicyPoolStatus{Name: p.Name}
		}
		tallies[s.UID] = t
	}
	// The set of policies does not follow their statuses, but the cache does.
	for _, p := range all.Namespaced {
		var now stowage.SpreadPolicy
		if r.Cached.Get(ctx, client.ObjectKeyFromObject(p), &now) == nil {
			add(policy.OfSpreadPolicy(p), now.Status.Conditions)
		}
	}
	for _, p := range all.Cluster {
		var now stowage.ClusterSpreadPolicy
		if r.Cached.Get(ctx, client.ObjectKeyFromObject(p), &now) == nil {
			add(policy.OfClusterSpreadPolicy(p), now.Status.Conditions)
		}
	}
	if err := r.countWorkloads(ctx, tallies); err != nil {
		return err
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	for _, t := range tallies {
		t.describe(nodes, r.Clock.Now())
	}
	r.Metrics.set(tallies)
	for _, p := range all.Namespaced {
		was, t := &stowage.SpreadPolicy{}, tallies[p.UID]
		if t != nil && r.Cached.Get(ctx, client.ObjectKeyFromObject(p), was) == nil && was.UID == p.UID && !equality.Semantic.DeepEqual(was.Status, *t.status) {
			is := was.DeepCopy()
			is.Status = *t.status
			r.write(ctx, was, is)
		}
	}
	for _, p := range all.Cluster {
		was, t := &stowage.ClusterSpreadPolicy{}, tallies[p.UID]
		if t != nil && r.Cached.Get(ctx, client.ObjectKeyFromObject(p), was) == nil && was.UID == p.UID && !equality.Semantic.DeepEqual(was.Status, *t.status) {
			is := was.DeepCopy()
			is.Status = *t.status
			r.write(ctx, was, is)
		}
	}
	return nil
}

// write writes a status. One that has to wait for its turn is written by a later pass.
func (r *policyRun) write(ctx context.Context, was, is client.Object) {
	if r.Writes.Take(is.GetNamespace(), r.Clock.Now()) > 0 {
		r.changed()
		return
	}
	if err := r.Uncached.Status().Patch(ctx, is, client.MergeFrom(was)); client.IgnoreNotFound(err) != nil {
		r.Log.Error(err, "the status of a policy was not written", "namespace", is.GetNamespace(), "name", is.GetName())
	}
}

// countWorkloads counts the pods of all workloads for the policies that select them.
func (r *policyRun) countWorkloads(ctx context.Context, tallies map[types.UID]*tally) error {
	owners, err := r.World.PodOwnersIn(ctx, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	for _, o := range r.Seats.Pods().Owners() {
		if !seats.Ref(o).MakesPods() {
			owners = append(owners, &world.Workload{Ref: seats.Ref(o), Namespace: o.Namespace, Replicas: -1, Current: -1})
		}
	}
	registration, err := r.registered(ctx)
	if err != nil {
		return err
	}
	r.due = r.due[:0]
	there := map[ledger.OwnerKey]bool{}
	for _, w := range owners {
		if w.Replicas == 0 && w.Current == 0 {
			continue
		}
		there[seats.OwnerOf(w).Key()] = true
		if err := r.countWorkload(ctx, w, registration, tallies); err != nil { // the others are counted
			r.Log.Error(err, "a workload was not counted for the status of policies", (world.Object{Namespace: w.Namespace, Ref: w.Ref}).LogKeys()...)
		}
	}
	for key := range r.audits {
		if !there[key] {
			delete(r.audits, key)
		}
	}
	return nil
}

// countWorkload counts the pods of one owner.
func (r *policyRun) countWorkload(ctx context.Context, w *world.Workload, registration *scope.Registration, tallies map[types.UID]*tally) error {
	chain, err := world.Owners(ctx, r.World, w.Namespace, w.Ref)
	if err != nil {
		return err
	}
	selecting, err := r.Find.Selecting(ctx, w.Namespace, chain)
	if len(selecting) == 0 || err != nil {
		return err
	}
	p, err := r.Find.FindFor(ctx, w.Namespace, w.Ref, w)
	if err != nil {
		return err
	}
	reached, err := r.reaches(ctx, w, chain.Bottom(), registration)
	if err != nil {
		return err
	}
	top := world.Object{Namespace: w.Namespace, Ref: chain.Root()}
	for _, s := range selecting {
		t := tallies[s.UID]
		if t == nil { // it was made just now
			continue
		}
		wins := p == nil || p.Policy != nil && s.Before(p.Policy)
		switch {
		case s.KeepsVolumes(chain.Bottom()):
			t.status.KeptByVolume++
		case !reached:
			t.status.NotReached++
		case p != nil && p.Policy != nil && p.Policy.UID == s.UID:
			if err := r.divideFor(ctx, t, p, w, top); err != nil {
				return err
			}
		case s.Spec.Mode == stowage.PolicyAudit && wins:
			r.auditFor(ctx, t, w, top)
		case p != nil:
			t.status.Shadowed++
			if by := fmt.Sprintf("%s (%s %s/%s)", p.Source, top.Kind, top.Namespace, top.Name); t.status.ShadowedBy == "" || by < t.status.ShadowedBy {
				t.status.ShadowedBy = by
			}
		}
	}
	return nil
}

// reaches reports whether the webhook is asked about the pods of an owner, and may change them.
func (r *policyRun) reaches(ctx context.Context, w, bottom *world.Workload, registration *scope.Registration) (bool, error) {
	if alone, err := r.leftAlone(ctx, w.Namespace, []*world.Workload{bottom}); alone != "" || err != nil {
		return false, err
	}
	ns, err := r.World.Namespace(ctx, w.Namespace)
	if err != nil {
		return false, err
	}
	return ns != nil && registration != nil && registration.SelectsLabels(ns.Labels, bottom.TemplateLabels), nil
}

// divideFor counts the pods of an owner that a policy divides.
func (r *policyRun) divideFor(ctx context.Context, t *tally, p *policy.Policy, w *world.Workload, top world.Object) error {
	d, _, err := r.divide(ctx, p, []*world.Workload{w})
	if err != nil {
		return err
	}
	whole := t.workloads[top]
	if whole == nil {
		t.workloads[top] = &d
		return nil
	}
	whole.Merge(&d)
	return nil
}

// auditFor counts the pods of an owner that a policy in Audit would divide, as they were when somebody last looked.
func (r *policyRun) auditFor(ctx context.Context, t *tally, w *world.Workload, top world.Object) {
	if t.workloads[top] == nil {
		t.workloads[top] = &division.Division{}
	}
	a := r.audits[seats.OwnerOf(w).Key()]
	if a == nil || a.shown != [2]int64{w.Replicas, w.Current} || r.Clock.Since(a.at) > auditAgain {
		if !slices.ContainsFunc(r.due, func(d *world.Workload) bool { return d.UID == w.UID }) {
			r.due = append(r.due, w)
		}
	}
	s := t.compiled.Whole
	if a == nil || s == nil {
		t.unseen++
		return
	}
	have := make([]int32, s.Len())
	sum := &t.audited
	sum.Workloads++
	sum.Waiting += a.waiting
	pods := a.waiting
	for node, n := range a.nodes {
		pods += n
		i := poolOfNode(s.Len(), func(i int) map[string]string { return s.Pool(i).Labels }, r.World.NodeLabels(ctx, node))
		if i < 0 {
			sum.Outside += n
			continue
		}
		have[i] += n
	}
	sum.Pods += pods
	for i := range have {
		should := int32(s.Target(i, int64(pods)))
		sum.InPlace += min(have[i], should)
		sum.InOtherPool += max(0, have[i]-should)
		pool := t.pools[s.Pool(i).Name]
		pool.Current += have[i]
		pool.Desired += should
	}
	if at := metav1.NewTime(a.at.Truncate(time.Minute)); sum.Oldest == nil || at.Before(sum.Oldest) {
		sum.Oldest = &at
	}
}

// poolOfNode returns the first pool whose labels a node has, or -1.
func poolOfNode(pools int, labelsOf func(int) map[string]string, node map[string]string) int {
	for i := range pools {
		if labels.SelectorFromSet(labelsOf(i)).Matches(labels.Set(node)) {
			return i
		}
	}
	return -1
}

// audit looks at one workload of a policy in Audit that is due. Its pods have no seat, so no watch shows them.
func (r *policyRun) audit(ctx context.Context) {
	if len(r.due) == 0 {
		return
	}
	w := r.due[0]
	r.due = r.due[1:]
	if err := r.auditWorkload(ctx, w); err != nil {
		r.Log.Error(err, "the pods of a workload were not listed for a policy in Audit", (world.Object{Namespace: w.Namespace, Ref: w.Ref}).LogKeys()...)
	}
	if len(r.due) == 0 {
		r.changed()
	}
}

func (r *policyRun) auditWorkload(ctx context.Context, w *world.Workload) error {
	scale, err := worldapi.ReadScale(ctx, r.Uncached, w.Namespace, w.Ref)
	if err != nil || scale == nil || scale.Selector == "" {
		return err
	}
	selector, err := labels.Parse(scale.Selector)
	if err != nil {
		return err
	}
	a := &audit{at: r.Clock.Now(), shown: [2]int64{w.Replicas, w.Current}, nodes: map[string]int32{}}
	err = worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, func(pod *corev1.Pod) error {
		if c := metav1.GetControllerOfNoCopy(pod); c == nil || c.UID != w.UID || !podstatus.Active(pod) {
			return nil
		}
		if pod.Spec.NodeName == "" {
			a.waiting++
		} else {
			a.nodes[strings.Clone(pod.Spec.NodeName)]++
		}
		return nil
	}, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return err
	}
	r.audits[seats.OwnerOf(w).Key()] = a
	return nil
}

// registered returns what the webhook is asked about, or nil while there is no registration.
func (r *policyRun) registered(ctx context.Context) (*scope.Registration, error) {
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := r.Uncached.Get(ctx, client.ObjectKey{Name: r.Registration}, &config); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if r.registration == nil || r.version != config.ResourceVersion {
		compiled, err := scope.Compile(&config)
		if err != nil {
			return nil, err
		}
		r.registration, r.version = compiled, config.ResourceVersion
	}
	return r.registration, nil
}

// nodes returns the labels of all nodes.
func (r *policyRun) nodes(ctx context.Context) ([]labels.Set, error) {
	var list corev1.NodeList
	if err := r.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		return nil, err
	}
	out := make([]labels.Set, len(list.Items))
	for i := range list.Items {
		out[i] = list.Items[i].Labels
	}
	return out, nil
}

// describe fills in the status.
func (t *tally) describe(nodes []labels.Set, now time.Time) {
	st := t.status
	st.ObservedGeneration, st.ObservedFields = t.of.Generation, fieldsOf(t.of.Spec)
	st.Workloads = int32(len(t.workloads))
	for _, d := range t.workloads {
		for i := range d.Pools {
			p := &d.Pools[i]
			if p.Removed {
				continue
			}
			if pool := t.pools[p.Name]; pool != nil {
				pool.Desired += int32(p.Target)
				pool.Current += int32(p.Current)
				pool.Ready += int32(p.Ready)
			}
		}
		st.Pods += int32(d.Replicas)
		st.WithoutSeat += int32(d.Unseated)
		if d.Cause() == division.Balanced {
			t.balanced++
		}
	}
	if t.of.Spec.Mode == stowage.PolicyAudit {
		st.Pods, st.Audit = t.audited.Pods, &t.audited
	} else if st.Workloads > 0 {
		st.Balanced = fmt.Sprintf("%d/%d", t.balanced, st.Workloads)
	}
	var empty []string
	for _, p := range t.of.Spec.Pools {
		pool, selector := t.pools[p.Name], labels.Set{}
		for k, v := range p.NodeSelector {
			selector[k] = string(v)
		}
		has := selector.AsSelectorPreValidated()
		for _, node := range nodes {
			if has.Matches(node) {
				pool.Nodes++
			}
		}
		if pool.Nodes == 0 {
			empty = append(empty, fmt.Sprintf("%s (%s)", p.Name, selector))
		}
		st.Pools = append(st.Pools, *pool)
	}
	set := func(kind string, status metav1.ConditionStatus, reason stowage.ConditionReason, format string, args ...any) {
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: string(reason), Message: fmt.Sprintf(format, args...), ObservedGeneration: t.of.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	}
	switch {
	case t.compiled.Err != nil:
		set(stowage.ConditionReady, metav1.ConditionFalse, stowage.ReasonInvalid, "the policy is invalid and divides no pods: %v", t.compiled.Err)
		set(stowage.ConditionStalled, metav1.ConditionTrue, stowage.ReasonInvalid, "correct the policy: %v", t.compiled.Err)
	case t.unseen > 0:
		set(stowage.ConditionReady, metav1.ConditionFalse, stowage.ReasonCounting, "some workloads were not looked at yet")
		set(stowage.ConditionStalled, metav1.ConditionFalse, stowage.ReasonCounting, "the policy is valid")
	default:
		set(stowage.ConditionReady, metav1.ConditionTrue, stowage.ReasonCounted, "the workloads that the policy selects are counted")
		set(stowage.ConditionStalled, metav1.ConditionFalse, stowage.ReasonCounted, "the policy is valid")
	}
	if len(empty) > 0 {
		set(stowage.ConditionNodesFound, metav1.ConditionFalse, stowage.ReasonNoNodes, "no node has the labels of pool %s; its pods wait for one", strings.Join(empty, ", nor of pool "))
	} else {
		set(stowage.ConditionNodesFound, metav1.ConditionTrue, stowage.ReasonFound, "each pool has a node")
	}
}

// fieldsOf returns the paths of the fields that a spec has.
func fieldsOf(spec *stowage.SpreadPolicySpec) []string {
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
	out := make([]string, 0, len(found))
	for path := range found {
		out = append(out, path)
	}
	slices.Sort(out)
	return out
}
