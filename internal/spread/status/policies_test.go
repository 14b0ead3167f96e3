package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientsetfake "k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/layout"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/world"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/internal/world/readable"
	"github.com/stowage-dev/stowage/test/testkit"
)

// shown are informers that show some ClusterSpreadPolicies.
type shown struct {
	crcache.Informers
	policies []*stowage.ClusterSpreadPolicy
}

type shownKind struct {
	crcache.Informer
	policies []*stowage.ClusterSpreadPolicy
}

func (s *shown) GetInformer(_ context.Context, o client.Object, _ ...crcache.InformerGetOption) (crcache.Informer, error) {
	if _, ok := o.(*stowage.ClusterSpreadPolicy); ok {
		return &shownKind{policies: s.policies}, nil
	}
	return &shownKind{}, nil
}

func (s *shownKind) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	for _, p := range s.policies {
		h.OnAdd(p, true)
	}
	return s, nil
}

func (*shownKind) HasSynced() bool { return true }

func (*shownKind) HasSyncedChecker() toolscache.DoneChecker { return nil }

// progress is a repair for which the volumes of one owner's pods are elsewhere, and which sees that pods of others choose their nodes themselves.
type progress struct {
	calm
	elsewhere types.UID
	pinned    map[types.UID]int64
}

func (p progress) Hindrances(owner ledger.OwnerKey) []stowage.Hindrance {
	if n := p.pinned[owner.UID]; n > 0 {
		return []stowage.Hindrance{{Reason: stowage.HindrancePinned, Count: n}}
	}
	return nil
}

func (p progress) Elsewhere(owner ledger.OwnerKey) (e layout.Elsewhere) {
	if owner.UID == p.elsewhere {
		e.Others = 1
	}
	return e
}

// A policy's status counts the workloads that it divides, and those that it does not, with the reason. One in Audit counts what would become of
// their pods. A status that has not changed is not written again.
func TestCountPolicies(t *testing.T) {
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	key := make(ledger.Key, ledger.KeySize)
	spec := func(mode stowage.PolicyMode, tier string) stowage.ClusterSpreadPolicySpec {
		return stowage.ClusterSpreadPolicySpec{SpreadPolicySpec: stowage.SpreadPolicySpec{
			Mode: mode, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"tier": versprei.LabelValue(tier)}},
			Pools: []stowage.PolicyPool{
				{Name: "od", NodeSelector: map[string]versprei.LabelValue{"p": "od"}, Weight: 1}, {Name: "spot", NodeSelector: map[string]versprei.LabelValue{"p": "spot"}, Weight: 1},
			},
		}}
	}
	enforce := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "enforce", UID: "enforce", Generation: 1}, Spec: spec(stowage.PolicyEnforce, "a")}
	audits := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "audits", UID: "audits", Generation: 1}, Spec: spec(stowage.PolicyAudit, "b")}
	invalid := &stowage.ClusterSpreadPolicy{ObjectMeta: metav1.ObjectMeta{Name: "invalid", UID: "invalid", Generation: 1}, Spec: spec(stowage.PolicyEnforce, "c")}
	half, one := intstr.FromString("50%"), intstr.FromInt32(1)
	invalid.Spec.Pools[1].MaxReplicas, invalid.Spec.Pools[1].Spill = &half, &versprei.Spill{After: "1m", MaxSpill: &one} // both are too much
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		Name: "pods", NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"sent": "yes"}},
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "who", Expression: `authorizer.group("").resource("pods").check("create").allowed()`}},
	}}}
	objects := []client.Object{enforce, audits, invalid, registration,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"sent": "yes"}}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "od-1", Labels: map[string]string{"p": "od"}}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "spot-1", Labels: map[string]string{"p": "spot"}}},
	}
	workload := func(namespace, name, tier string, replicas int32, strategy string) {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
		rs.Spec.Replicas, rs.Status.Replicas = &replicas, replicas
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		rs.Spec.Template.Labels = map[string]string{"tier": tier, "app": name}
		if strategy != "" {
			rs.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: strategy}
		}
		objects = append(objects, rs)
	}
	workload("ns", "even", "a", 2, "")
	workload("ns", "missing", "a", 3, "")
	workload("ns", "elsewhere", "a", 2, "")
	workload("ns", "chooses", "a", 2, "")
	workload("ns", "shadowed", "a", 1, "p=x,weight=1")
	workload("other", "unreached", "a", 1, "")
	workload("ns", "web", "b", 3, "")
	workload("ns", "lost", "c", 1, "")
	compiled := policy.CompilePolicy(policy.FromClusterSpreadPolicy(enforce))
	var pods []any
	pod := func(owner, pool string, ordinal int64, node string) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint(owner, pool, ordinal), UID: types.UID(fmt.Sprint(owner, pool, ordinal)), Labels: map[string]string{"app": owner}, CreationTimestamp: metav1.Unix(1e9-3600, 0),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: new(true)}},
		}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
		if pool == "" {
			objects = append(objects, p)
			return
		}
		at, _ := compiled.PoolNamed(pool)
		seat := ledger.Seat{Pool: compiled.PoolKey(at), Ordinal: ordinal}
		p.Labels[stowage.PoolLabel], p.Labels[stowage.SeatLabel] = pool, fmt.Sprint(ordinal)
		p.Annotations = map[string]string{stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, ledger.WithSource(p.Name, seat.Pool, compiled.From), ledger.Holder{Namespace: "ns", Owner: owner}, seat)}
		objects, pods = append(objects, p), append(pods, p)
	}
	for _, owner := range []string{"even", "missing"} {
		pod(owner, "od", 1, "od-1")
		pod(owner, "spot", 1, "spot-1")
	}
	pod("elsewhere", "od", 1, "od-1")
	for i := range 3 {
		pod("web", "", int64(i), "od-1")
	}

	c := testkit.Indexed(fake.NewClientBuilder().WithScheme(scheme)).WithObjects(objects...).WithStatusSubresource(enforce).WithInterceptorFuncs(interceptor.Funcs{SubResourceGet: testkit.ReplicaSetScale}).Build()
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	reader := worldcache.New(c, c, clock, worldcache.ForAdmission())
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(stowage.GroupVersion.WithKind("ClusterSpreadPolicy"), meta.RESTScopeRoot)
	if _, err := reader.FollowPolicies(t.Context(), mapper, &shown{policies: []*stowage.ClusterSpreadPolicy{enforce, audits, invalid}}); err != nil {
		t.Fatal(err)
	}
	set := metrics.NewSet(prometheus.NewRegistry())
	service := seats.New(seats.Options{Key: key, Writer: "w", Clock: clock, Log: logr.Discard(), Metrics: seats.NewMetrics(set)})
	if err := service.Pods().Replace(pods, "1"); err != nil {
		t.Fatal(err)
	}
	writes, clientset := fair.NewLimiter[string](1000, 1000), clientsetfake.NewClientset()
	r := &policyRun{
		Policies: &Policies{
			Controller: &Controller{
				Find:   owners.New(policy.NewFinder(reader, policy.Settings{}), service.Pods().NameOf, c, clock),
				Cached: c, Uncached: c, World: reader, Seats: service, Scope: scope.New(reader, "stowage-system"), Progress: progress{elsewhere: "elsewhere", pinned: map[types.UID]int64{"chooses": 2, "missing": 0, "even": 1}}, Clock: clock, Time: clock,
				Timing: Timing{Every: time.Second, All: 30 * time.Second, Rate: 50, Quiet: 2 * time.Second}, Writes: writes, Log: logr.Discard(),
			},
			Registrations: &selection.Reader{Reader: c, Name: "stowage"},
			Room:          poolroom.New(c, c, clock, clock), Metrics: NewMetrics(set),
			Kinds: readable.New(clientset.Discovery(), clientset.AuthorizationV1().SelfSubjectAccessReviews(), clock),
		},
		changes: make(chan struct{}, 1), audits: map[ledger.OwnerKey]*audit{}, due: map[ledger.OwnerKey]*world.Workload{}, looked: map[ledger.OwnerKey]time.Time{},
	}
	status := func(name string) stowage.SpreadPolicyStatus {
		t.Helper()
		p := &stowage.ClusterSpreadPolicy{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, p); err != nil {
			t.Fatal(err)
		}
		return p.Status
	}
	r.count(t.Context())
	if st := status("invalid"); st.Workloads != 0 || !meta.IsStatusConditionTrue(st.Conditions, stowage.ConditionStalled) {
		t.Errorf("the invalid policy: %+v", st)
	}
	st := status("enforce")
	if st.Workloads != 4 || st.Balanced != "2/4" || st.Pods != 9 || st.WithoutSeat != 1 || st.ChooseNodes != 2 || st.Shadowed != 1 || st.NotReached != 1 || st.KeptByVolume != 1 || st.Audit != nil {
		t.Errorf("the status is %+v", st)
	}
	if len(st.Pools) != 2 || st.Pools[0].Name != "od" || st.Pools[0].Nodes != 1 || st.Pools[0].Current != 3 || st.Pools[1].Current != 2 {
		t.Errorf("the pools are %+v", st.Pools)
	}
	if !meta.IsStatusConditionTrue(st.Conditions, stowage.ConditionReady) {
		t.Errorf("the conditions are %+v", st.Conditions)
	}

	// What a policy in Audit would do is known once its workloads were looked at.
	if st := status("audits"); st.Audit == nil || st.Audit.Pods != 0 || st.Workloads != 1 {
		t.Errorf("before a look, the audit is %+v", st.Audit)
	}
	r.audit(t.Context())
	r.count(t.Context())
	if st := status("audits"); st.Audit == nil || st.Audit.Workloads != 1 || st.Audit.Pods != 3 || st.Audit.InPlace+st.Audit.InOtherPool != 3 || st.Audit.InOtherPool < 1 {
		t.Errorf("the audit is %+v", st.Audit)
	}

	// Nothing has changed: nothing is counted, and what is counted anyway is not written.
	before := &stowage.ClusterSpreadPolicy{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "enforce"}, before); err != nil {
		t.Fatal(err)
	}
	r.counted = time.Time{}
	r.changed()
	r.count(t.Context())
	after := &stowage.ClusterSpreadPolicy{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "enforce"}, after); err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the status was written again, %v", err)
	}
	counted := r.counted
	clock.Step(time.Second)
	r.count(t.Context())
	if !r.counted.Equal(counted) {
		t.Error("it is counted again though nothing changed")
	}
}

// A workload that cannot be counted has one line in the log until it can be counted again, and a namespace of many such workloads leaves lines for others.
func TestUncountedWorkloadsHaveFewLines(t *testing.T) {
	clock, lines := clocktesting.NewFakeClock(time.Unix(1e9, 0)), map[string]int{}
	log := funcr.New(func(_, args string) {
		for _, namespace := range []string{"tenant", "other"} {
			if strings.Contains(args, `"namespace"="`+namespace+`"`) {
				lines[namespace]++
			}
		}
	}, funcr.Options{})
	r := &policyRun{
		Policies:  &Policies{Controller: &Controller{Clock: clock, Log: log}},
		uncounted: map[ledger.OwnerKey]bool{}, logs: fair.NewLimiter[string](1, 20),
	}
	workload := func(namespace string, i int) *world.Workload {
		w := &world.Workload{Namespace: namespace, Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprint("web-", i)}}
		w.UID = types.UID(fmt.Sprint(namespace, i))
		return w
	}
	failed := errors.New("too many kinds")
	pass := func() {
		for i := range 300 {
			r.noteCounted(workload("tenant", i), failed)
		}
		r.noteCounted(workload("other", 0), failed)
		clock.Step(5 * time.Second)
	}
	for range 12 {
		pass()
	}
	if lines["tenant"] > 80 || lines["tenant"] < 10 || lines["other"] != 1 {
		t.Errorf("in a minute there are %d lines of a namespace with 300 workloads that fail, and %d of another one", lines["tenant"], lines["other"])
	}
	for range 120 {
		pass()
	}
	if lines["tenant"] != 300 || lines["other"] != 1 {
		t.Errorf("in all there are %d and %d lines, of 300 workloads and 1", lines["tenant"], lines["other"])
	}
	r.noteCounted(workload("other", 0), nil)
	pass()
	if lines["other"] != 2 {
		t.Errorf("a workload that fails again has %d lines", lines["other"])
	}
}
