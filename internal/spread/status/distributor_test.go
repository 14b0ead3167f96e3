package status

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stowage-dev/stowage/api"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/owners"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
	"github.com/stowage-dev/stowage/test/testkit"
)

// site is a Deployment that a PodDistributor divides in halves over the pools a and b.
type site struct {
	distributor *versprei.PodDistributor
	deployment  *appsv1.Deployment
	objects     []client.Object // beside them
	pods        []any
	progress    Progress
	running     map[string]int64 // pods by pool, for the ordinals of their seats
}

func newSite() *site {
	in := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web"}
	d := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d", CreationTimestamp: metav1.Unix(1e9, 0)}}
	d.Spec.Target = versprei.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	for _, pool := range []versprei.LabelValue{"a", "b"} {
		d.Spec.Distribution = append(d.Spec.Distribution, versprei.Pool{Name: string(pool), NodeLabel: map[string]versprei.LabelValue{"p": pool}, Weight: 1})
	}
	return &site{distributor: d, deployment: &appsv1.Deployment{ObjectMeta: in}, progress: calm{}, running: map[string]int64{}}
}

// revision adds a ReplicaSet of the Deployment, which asks for some pods and has them: so many in pool a, and so many in pool b.
func (s *site) revision(name string, number int, replicas int32, a, b int, edit func(*appsv1.ReplicaSet)) {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), Annotations: map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(number)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: new(true)}},
	}}
	rs.Spec.Replicas, rs.Status.Replicas = &replicas, replicas
	if edit != nil {
		edit(rs)
	}
	s.objects = append(s.objects, rs)
	s.seat("ReplicaSet", name, "a", a)
	s.seat("ReplicaSet", name, "b", b)
}

// seat adds pods with a seat in a pool.
func (s *site) seat(kind, owner, pool string, n int) {
	key := make(ledger.Key, ledger.KeySize)
	for range n {
		s.running[pool]++
		name := fmt.Sprintf("%s-%s%d", owner, pool, s.running[pool])
		seat := ledger.Seat{Pool: pool, Ordinal: s.running[pool]}
		s.pods = append(s.pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{stowage.PoolLabel: pool, stowage.SeatLabel: fmt.Sprint(seat.Ordinal)},
				Annotations:     map[string]string{stowage.ClaimAnnotation: key.Sign(ledger.OriginClaimed, name, ledger.Holder{Namespace: "ns", Owner: owner}, seat)},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: types.UID(owner), Controller: new(true)}},
			},
			Spec:   corev1.PodSpec{NodeName: "node-" + pool},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
}

// records adds what is recorded of the Deployment.
func (s *site) records(state stowage.PoolState) {
	state.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "web"}
	s.objects = append(s.objects, &state)
}

// status returns the status of the PodDistributor.
func (s *site) status(t *testing.T) versprei.PodDistributorStatus {
	t.Helper()
	scheme, err := api.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	all := append([]client.Object{s.distributor, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}}, s.objects...)
	if s.deployment != nil {
		all = append(all, s.deployment)
	}
	for _, pool := range []string{"a", "b"} {
		all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + pool, Labels: map[string]string{"p": pool}}})
	}
	c := testkit.Indexed(fake.NewClientBuilder().WithScheme(scheme)).WithObjects(all...).WithStatusSubresource(s.distributor).WithInterceptorFuncs(interceptor.Funcs{SubResourceGet: deploymentScale}).Build()
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	service := seats.New(seats.Options{Key: make(ledger.Key, ledger.KeySize), Writer: "w", Clock: clock, Log: logr.Discard(), Metrics: seats.NewMetrics(metrics.NewSet(prometheus.NewRegistry()))})
	if err := service.Pods().Replace(s.pods, "1"); err != nil {
		t.Fatal(err)
	}
	reader := worldcache.New(c, c, clock, worldcache.ForAdmission())
	r := (&Controller{
		Cached: c, Uncached: c, World: reader, Seats: service, Scope: scope.New(reader, "stowage-system"), Find: owners.New(policy.NewFinder(reader, policy.Settings{}), service.Pods().NameOf, c, clock),
		Progress: s.progress, Clock: clock, Time: clock, Timing: Timing{Every: time.Second, All: 30 * time.Second, Rate: 50, Quiet: 2 * time.Second}, Writes: fair.NewLimiter[string](50, 100), Log: logr.Discard(),
	}).NewRun()
	if _, err := r.Reconcile(t.Context(), client.ObjectKeyFromObject(s.distributor)); err != nil {
		t.Fatal(err)
	}
	d := &versprei.PodDistributor{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(s.distributor), d); err != nil {
		t.Fatal(err)
	}
	return d.Status
}

// deploymentScale answers for the scale of Deployments.
func deploymentScale(ctx context.Context, c client.Client, _ string, obj, into client.Object, _ ...client.SubResourceGetOption) error {
	var d appsv1.Deployment
	if err := c.Get(ctx, client.ObjectKeyFromObject(obj), &d); err != nil {
		return err
	}
	return unstructured.SetNestedField(into.(*unstructured.Unstructured).Object, int64(ptr.Deref(d.Spec.Replicas, 1)), "spec", "replicas")
}

// unsuitable says that no pod can run in pool b, which a PodDistributor's author cannot know.
var unsuitable = stowage.PoolState{Unsuitable: []stowage.UnsuitablePool{{NodeLabel: map[string]string{"p": "b"}, Filter: "VolumeBinding", Why: "its volume is elsewhere"}}}

// The status of a PodDistributor has the policy that the webhook has: with what is recorded of the workload, and with what its annotations say. It does
// not depend on the order in which the owners of the pods are listed.
func TestDistributorStatus(t *testing.T) {
	off := func(rs *appsv1.ReplicaSet) {
		rs.Spec.Template.Labels = map[string]string{stowage.ModeKey: string(stowage.ModeOff)}
	}
	for name, tc := range map[string]struct {
		site            func(*site)
		desired         string
		found, balanced stowage.ConditionReason
		text            string // a part of the condition Balanced or, where the target is not found, of TargetFound
	}{
		"a pool is not for its pods": {
			site:    func(s *site) { s.records(unsuitable); s.revision("web-1", 1, 2, 2, 0, nil) },
			desired: "2/0", found: stowage.ReasonFound, balanced: stowage.ReasonBalanced, text: "its volume is elsewhere",
		},
		"a pool is not for the pods of two revisions": {
			site: func(s *site) {
				s.records(unsuitable)
				s.revision("web-1", 1, 1, 1, 0, nil)
				s.revision("web-2", 2, 1, 1, 0, nil)
			},
			desired: "2/0", found: stowage.ReasonFound, balanced: stowage.ReasonBalanced, text: "its volume is elsewhere",
		},
		"no pool is for its pods": {
			site: func(s *site) {
				nowhere := *unsuitable.DeepCopy()
				nowhere.Unsuitable = append(nowhere.Unsuitable, unsuitable.Unsuitable[0])
				nowhere.Unsuitable[1].NodeLabel = map[string]string{"p": "a"}
				s.records(nowhere)
				s.revision("web-1", 1, 2, 0, 0, nil)
			},
			found: "PoolUnsuitable", balanced: stowage.ReasonNoTarget, text: "its volume is elsewhere",
		},
		"the newest revision prefers its pools": {
			site: func(s *site) {
				s.records(stowage.PoolState{Soft: &stowage.SoftRevision{Owner: "web-2", Why: "nothing takes it"}})
				s.revision("web-1", 1, 2, 1, 1, nil)
				s.revision("web-2", 2, 2, 1, 1, nil)
			},
			desired: "2/2", found: stowage.ReasonFound, balanced: stowage.ReasonBalanced, text: "nothing takes it",
		},
		"an annotation of the Deployment turns repair off": {
			site: func(s *site) {
				s.distributor.Spec.Rebalance = versprei.RebalanceEvict
				s.deployment.Annotations = map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)}
				s.revision("web-1", 1, 2, 2, 0, nil)
			},
			desired: "1/1", found: stowage.ReasonFound, balanced: stowage.ReasonOverTarget, text: "remove the annotation stowage.dev/repair",
		},
		"only the newest revision's template turns repair off": {
			site: func(s *site) {
				s.distributor.Spec.Rebalance = versprei.RebalanceEvict
				s.revision("web-1", 1, 2, 2, 0, nil)
				s.revision("web-2", 2, 2, 2, 0, func(rs *appsv1.ReplicaSet) {
					rs.Spec.Template.Annotations = map[string]string{stowage.RepairAnnotation: string(stowage.RepairOff)}
				})
			},
			desired: "2/2", found: stowage.ReasonFound, balanced: stowage.ReasonOverTarget, text: "remove the annotation stowage.dev/repair",
		},
		"the pods are left alone, and an old revision without pods was not": {
			site: func(s *site) {
				s.revision("web-1", 1, 0, 0, 0, nil)
				s.revision("web-2", 2, 2, 1, 1, off)
			},
			desired: "1/1", found: stowage.ReasonFound, balanced: stowage.ReasonLeftAlone, text: "stowage.dev/mode is Off",
		},
		"the pods of one revision are left alone": {
			site: func(s *site) {
				s.revision("web-1", 1, 2, 1, 1, off)
				s.revision("web-2", 2, 2, 1, 1, nil)
			},
			desired: "2/2", found: stowage.ReasonFound, balanced: stowage.ReasonLeftAlone, text: "stowage.dev/mode is Off",
		},
		"no revision has pods": {
			site: func(s *site) {
				s.revision("web-1", 1, 0, 0, 0, nil)
				s.revision("web-2", 2, 0, 0, 0, nil)
			},
			desired: "0/0", found: stowage.ReasonFound, balanced: stowage.ReasonBalanced,
		},
		"the Deployment has no ReplicaSet": {
			site: func(s *site) { s.deployment.Spec.Replicas = new(int32(3)) }, desired: "2/1", found: stowage.ReasonFound, balanced: stowage.ReasonProgressing,
		},
		"there is no Deployment": {
			site: func(s *site) { s.deployment = nil }, found: stowage.ReasonNotFound, balanced: stowage.ReasonNoTarget, text: "there is no Deployment",
		},
		"a StatefulSet": {
			site: func(s *site) {
				s.distributor.Spec.Target.Kind = "StatefulSet"
				set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web"}}
				set.Spec.Replicas, set.Status.Replicas = new(int32(2)), 2
				s.objects = append(s.objects, set)
				s.records(unsuitable)
				s.seat("StatefulSet", "web", "a", 2)
			},
			desired: "2/0", found: stowage.ReasonFound, balanced: stowage.ReasonBalanced, text: "its volume is elsewhere",
		},
		"an older PodDistributor is for what made the target": {
			site: func(s *site) {
				older := s.distributor.DeepCopy()
				older.Name, older.UID, older.CreationTimestamp = "older", "older", metav1.Unix(1e9-60, 0)
				s.objects = append(s.objects, older)
				s.distributor.Spec.Target.Kind, s.distributor.Spec.Target.Name = "ReplicaSet", "web-1"
				s.revision("web-1", 1, 2, 1, 1, nil)
			},
			found: stowage.ReasonSuperseded, balanced: stowage.ReasonNoTarget, text: `PodDistributor "older" is older`,
		},
		"an older PodDistributor is for one revision": {
			site: func(s *site) {
				older := s.distributor.DeepCopy()
				older.Name, older.UID, older.CreationTimestamp = "older", "older", metav1.Unix(1e9-60, 0)
				older.Spec.Target.Kind, older.Spec.Target.Name = "ReplicaSet", "web-1"
				s.objects = append(s.objects, older)
				s.revision("web-1", 1, 4, 4, 0, nil)
				s.revision("web-2", 2, 2, 1, 1, nil)
			},
			desired: "1/1", found: stowage.ReasonFound, balanced: stowage.ReasonBalanced,
		},
		"an older PodDistributor is for the only revision": {
			site: func(s *site) {
				older := s.distributor.DeepCopy()
				older.Name, older.UID, older.CreationTimestamp = "older", "older", metav1.Unix(1e9-60, 0)
				older.Spec.Target.Kind, older.Spec.Target.Name = "ReplicaSet", "web-1"
				s.objects = append(s.objects, older)
				s.revision("web-1", 1, 2, 1, 1, nil)
			},
			found: stowage.ReasonSuperseded, balanced: stowage.ReasonNoTarget, text: `PodDistributor "older" is older`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for _, order := range []*strings.Replacer{strings.NewReplacer(), strings.NewReplacer("web-1", "web-9")} { // the store lists by name
				s := newSite()
				tc.site(s)
				s.rename(order)
				st := s.status(t)
				found, balanced := meta.FindStatusCondition(st.Conditions, versprei.ConditionTargetFound), meta.FindStatusCondition(st.Conditions, versprei.ConditionBalanced)
				if st.Desired != tc.desired || found.Reason != string(tc.found) || balanced.Reason != string(tc.balanced) || !strings.Contains(found.Message+balanced.Message, tc.text) {
					t.Errorf("desired are %q, TargetFound is %s: %s, Balanced is %s: %s", st.Desired, found.Reason, found.Message, balanced.Reason, balanced.Message)
				}
				texts = append(texts, st.Current, st.Desired, balanced.Message)
			}
			if got := fmt.Sprintf("%q", texts[:3]); got != fmt.Sprintf("%q", texts[3:]) {
				t.Errorf("the order of the owners changes the status: %q", texts)
			}
		})
	}
}

// rename gives the ReplicaSets other names, and thereby another order.
func (s *site) rename(names *strings.Replacer) {
	for _, o := range s.objects {
		switch o := o.(type) {
		case *appsv1.ReplicaSet:
			o.Name = names.Replace(o.Name)
		case *versprei.PodDistributor:
			o.Spec.Target.Name = names.Replace(o.Spec.Target.Name)
		}
	}
	s.distributor.Spec.Target.Name = names.Replace(s.distributor.Spec.Target.Name)
	for _, o := range s.pods {
		pod := o.(*corev1.Pod)
		pod.OwnerReferences[0].Name = names.Replace(pod.OwnerReferences[0].Name)
	}
}
