package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// What a pod with a seat carries, and what its own placement means.
func TestSpreadPod(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	rs := n.BareReplicaSet(t, "owner", 0, annotated(documented))
	first := func(change func(*corev1.Pod)) *corev1.Pod {
		return n.TryPod(t, rs, suite.ReplicaSetKind, change, client.DryRunAll)
	}
	own := map[string]string{"kubernetes.io/os": "linux"}

	t.Run("labels, claim, cost and node selector", func(t *testing.T) {
		pod := first(func(p *corev1.Pod) { p.Spec.NodeSelector = own })
		if diff := cmp.Diff(map[string]string{"kubernetes.io/os": "linux", "nodesize": "od4vcpu16gb"}, pod.Spec.NodeSelector); diff != "" {
			t.Errorf("node selector (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"app": "app", stowage.PoolLabel: "0", stowage.SeatLabel: "1"}, pod.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if cost := pod.Annotations[corev1.PodDeletionCost]; cost != "9999999" || pod.Annotations[stowage.ClaimAnnotation] == "" {
			t.Errorf("annotations are %v", pod.Annotations)
		}
	})
	t.Run("the user's deletion cost stays", func(t *testing.T) {
		pod := first(func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "7"} })
		if pod.Annotations[corev1.PodDeletionCost] != "7" || pod.Labels[stowage.SeatLabel] != "1" {
			t.Errorf("%v, %v", pod.Labels, pod.Annotations)
		}
	})
	required := func(keys ...string) *corev1.Affinity {
		var terms []corev1.NodeSelectorTerm
		for _, k := range keys {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: k, Operator: corev1.NodeSelectorOpExists}}})
		}
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	t.Run("the pool holds beside each term of an affinity", func(t *testing.T) {
		pod := first(func(p *corev1.Pod) { p.Spec.Affinity = required("kubernetes.io/os", "kubernetes.io/arch") })
		if pod.Spec.NodeSelector["nodesize"] == "" || len(pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) != 2 {
			t.Errorf("%+v", pod.Spec)
		}
	})
	for name, change := range map[string]func(*corev1.Pod){
		"a node selector with a pool's key": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"nodesize": "spot4vcpu16gb"} },
		"an affinity with a pool's key":     func(p *corev1.Pod) { p.Spec.Affinity = required("kubernetes.io/os", "nodesize") },
		"a node by its name":                func(p *corev1.Pod) { p.Spec.NodeName = "od4-1" },
		"a node by its name, in an affinity": func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"od4-1"}}}}},
			}}}
		},
		"mode Off": func(p *corev1.Pod) { p.Annotations = map[string]string{stowage.ModeKey: "Off"} },
	} {
		t.Run("left alone: "+name, func(t *testing.T) {
			if pod := first(change); pod.Labels[stowage.SeatLabel] != "" || pod.Annotations[stowage.ClaimAnnotation] != "" {
				t.Errorf("the pod has a seat: %v", pod.Labels)
			}
		})
	}
	t.Run("mode Audit warns and changes nothing", func(t *testing.T) {
		n.Warnings.Take()
		pod := first(func(p *corev1.Pod) { p.Annotations = map[string]string{stowage.ModeKey: "Audit"} })
		if w := n.Warnings.Take(); pod.Labels[stowage.SeatLabel] != "" || len(w) != 1 || !strings.Contains(w[0], "spread would make this pod seat 1 of pool 0 (nodesize=od4vcpu16gb)") {
			t.Errorf("labels %v, warnings %q", pod.Labels, w)
		}
	})
	t.Run("a DaemonSet's pod", func(t *testing.T) {
		template := podTemplate("daemon")
		template.Annotations = annotated(documented)
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "daemon", Annotations: annotated(documented)}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
		}}
		must(t, n.Create(t.Context(), ds))
		eventually(t, "each node has a pod without a seat", func() (bool, error) {
			pods, err := n.Pods(t.Context(), "daemon")
			return len(pods) == 9 && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Labels[stowage.SeatLabel] != "" }), err
		})
	})
	t.Run("a Job's pods", func(t *testing.T) {
		template := podTemplate("job")
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		template.Annotations = annotated(documented)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "job"}, Spec: batchv1.JobSpec{Parallelism: new(int32(3)), Completions: new(int32(3)), Template: template}}
		must(t, n.Create(t.Context(), job))
		eventually(t, "the Job's pods have no seat", func() (bool, error) {
			var list corev1.PodList
			err := n.List(t.Context(), &list, client.InNamespace(n.Namespace), client.MatchingLabels{"app": "job"})
			return len(list.Items) >= 3 && !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.Labels[stowage.SeatLabel] != "" }), err
		})
	})
}

// A seat that was not given by Stowage, or to another pod, is worth nothing.
func TestSpreadForgedSeat(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	// An owner whose kind has no scale and no controller that would interfere.
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "owner"}}
	must(t, n.Create(t.Context(), owner))
	create := func(change func(*corev1.Pod), opts ...client.CreateOption) *corev1.Pod {
		return n.TryPod(t, owner, metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, func(p *corev1.Pod) {
			p.Annotations = annotated(eightyOf)
			if change != nil {
				change(p)
			}
		}, opts...)
	}
	genuine := create(nil)
	if genuine.Labels[stowage.SeatLabel] != "1" {
		t.Fatalf("labels %v", genuine.Labels)
	}
	forge := func(pool, seat, claim string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels[stowage.PoolLabel], p.Labels[stowage.SeatLabel] = pool, seat
			if claim != "" {
				p.Annotations[stowage.ClaimAnnotation] = claim
			}
		}
	}
	dry := create(nil, client.DryRunAll)
	// With the replicas' own key: as a pod had it whose claim is in no ledger any more.
	key, err := seats.SharedKey(t.Context(), cluster.Client, types.NamespacedName{Namespace: controlplane.StowageNamespace, Name: "stowage-seats"})
	must(t, err)
	spent := key.Sign(ledger.OriginClaimed, "spent", ledger.Holder{Namespace: n.Namespace, Owner: string(owner.UID)}, ledger.Seat{Pool: "1", Ordinal: 1})
	for i, change := range []func(*corev1.Pod){
		forge("1", "1", ""),
		forge("1", "7", "cabc.def"),
		forge("1", "999999999999999999999999", "."),
		forge("0", "1", genuine.Annotations[stowage.ClaimAnnotation]), // of a pod that is there
		forge("0", "2", genuine.Annotations[stowage.ClaimAnnotation]),
		forge(dry.Labels[stowage.PoolLabel], dry.Labels[stowage.SeatLabel], dry.Annotations[stowage.ClaimAnnotation]), // of a dry run
		forge("1", "1", spent),
	} {
		pod := create(change)
		want := strategyOf(t, eightyOf)
		seat, err := want.SeatAt(int64(i + 2))
		must(t, err)
		if pod.Labels[stowage.PoolLabel] != strconv.Itoa(seat.Pool) || pod.Labels[stowage.SeatLabel] != strconv.FormatInt(seat.Ordinal, 10) {
			t.Errorf("forgery %d got seat %s/%s, want %v", i, pod.Labels[stowage.PoolLabel], pod.Labels[stowage.SeatLabel], seat)
		}
	}
	events, err := cluster.Audit()
	must(t, err)
	if !slices.ContainsFunc(events, func(e controlplane.AuditEvent) bool {
		return e.Verb == "get" && e.ObjectRef.Resource == "seatledgers" && e.ObjectRef.Namespace == n.Namespace
	}) {
		t.Error("no replica looked the spent claim up")
	}
}

// One claim and one seat, however often the pod comes back to us: a LimitRange, a
// sidecar that another webhook injects, reinvocation through another replica, a dry run.
func TestSpreadReinvocation(t *testing.T) {
	o := fleet
	o.Replicas = 3
	must(t, cluster.StartStowage(t.Context(), o))
	restoreFleet(t)
	n := newTenant(t, "inject=yes")
	suite.StartInjector(t, n.Tenant)
	must(t, n.Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "defaults"}, Spec: corev1.LimitRangeSpec{
		Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Default: testkit.ResourceList("cpu=1,memory=1Gi"), DefaultRequest: testkit.ResourceList("cpu=1m,memory=1Mi")}},
	}}))
	s := strategyOf(t, documented)
	must(t, n.Create(t.Context(), n.Deployment("web", 40, annotated(documented))))
	n.Spreads(t, "web", 40, s)
	pods, err := n.Pods(t.Context(), "web")
	must(t, err)
	for i := range pods {
		if len(pods[i].Spec.Containers) != 2 || len(pods[i].Spec.NodeSelector) != 1 {
			t.Errorf("pod %s has %d containers and the node selector %v", pods[i].Name, len(pods[i].Spec.Containers), pods[i].Spec.NodeSelector)
		}
	}
	owner := pods[0].OwnerReferences[0]
	var ledger stowage.SeatLedger
	must(t, n.Get(t.Context(), n.Key(string(owner.UID)), &ledger))
	if len(ledger.Claims) != 40 || ledger.OwnerReferences[0].UID != owner.UID || ledger.OwnerReferences[0].BlockOwnerDeletion != nil {
		t.Errorf("the ledger has %d claims (owners %v)", len(ledger.Claims), ledger.OwnerReferences)
	}
	// A dry run sees the next seat and claims none.
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: owner.Name, UID: owner.UID}}
	next, err := s.SeatAt(41)
	must(t, err)
	for range 3 {
		pod := n.TryPod(t, rs, suite.ReplicaSetKind, nil, client.DryRunAll)
		if pod.Labels[stowage.PoolLabel] != strconv.Itoa(next.Pool) || pod.Labels[stowage.SeatLabel] != strconv.FormatInt(next.Ordinal, 10) {
			t.Errorf("a dry run got %v, want %v", pod.Labels, next)
		}
	}
	before := ledger.ResourceVersion
	must(t, n.Get(t.Context(), n.Key(string(owner.UID)), &ledger))
	if ledger.ResourceVersion != before {
		t.Error("a dry run wrote the ledger")
	}
}

// Kinds other than Deployments.
func TestSpreadOwners(t *testing.T) {
	t.Parallel()
	t.Run("a bare ReplicaSet, with the alias in its template", func(t *testing.T) {
		n := newTenant(t)
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "web"}, Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(25)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: podTemplate("web"),
		}}
		rs.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAliasAnnotation: eightyOf}
		must(t, n.Create(t.Context(), rs))
		n.Spreads(t, "web", 25, strategyOf(t, eightyOf))
		n.Scale(t, rs, 7)
		n.Spreads(t, "web", 7, strategyOf(t, eightyOf))
	})
	t.Run("a StatefulSet, whose ordinals begin at 5", func(t *testing.T) {
		n := newTenant(t)
		sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "db", Annotations: annotated(documented)}, Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(10)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: podTemplate("db"),
			PodManagementPolicy: appsv1.ParallelPodManagement, Ordinals: &appsv1.StatefulSetOrdinals{Start: 5},
		}}
		must(t, n.Create(t.Context(), sts))
		s := strategyOf(t, documented)
		n.Spreads(t, "db", 10, s)
		pods, err := n.Pods(t.Context(), "db")
		must(t, err)
		for _, p := range pods {
			ordinal, err := strconv.ParseInt(strings.TrimPrefix(p.Name, "db-"), 10, 64)
			must(t, err)
			seat, err := s.SeatAt(ordinal - 5 + 1)
			must(t, err)
			if p.Labels[stowage.PoolLabel] != strconv.Itoa(seat.Pool) || p.Labels[stowage.SeatLabel] != strconv.FormatInt(seat.Ordinal, 10) || p.Annotations[corev1.PodDeletionCost] != "" {
				t.Errorf("%s has %v and %v, want %v", p.Name, p.Labels, p.Annotations, seat)
			}
		}
		n.Scale(t, sts, 4)
		n.Spreads(t, "db", 4, s)
		if err := n.Get(t.Context(), n.Key(string(sts.UID)), &stowage.SeatLedger{}); client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("a StatefulSet has a ledger (%v)", err)
		}
	})
	t.Run("a custom owner with a scale subresource", testCustomOwner)
}

func testCustomOwner(t *testing.T) {
	n := newTenant(t)
	must(t, cluster.ApplyYAML(t.Context(), `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gangs.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gangs, singular: gang, kind: Gang, listKind: GangList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
`))
	gang := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Gang",
		"metadata": map[string]any{"namespace": n.Namespace, "name": "gang"}, "spec": map[string]any{"replicas": int64(10)},
	}}
	eventually(t, "the kind is served", func() (bool, error) {
		err := n.Create(t.Context(), gang)
		return err == nil, client.IgnoreNotFound(ignoreNoMatch(err))
	})
	n.Distributor(t, "gang", "gang", func(s *versprei.PodDistributorSpec) {
		s.Target = versprei.Target{APIVersion: "example.com/v1", Kind: "Gang", Name: "gang"}
	})
	known := func(p *corev1.Pod) bool { return p.Labels[stowage.SeatLabel] != "" }
	eventually(t, "the replicas know the PodDistributor", func() (bool, error) {
		for range 8 { // each of the replicas, most likely
			if !known(n.TryPod(t, gang, metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Gang"}, nil, client.DryRunAll)) {
				return false, nil
			}
		}
		return true, nil
	})
	for range 10 {
		n.TryPod(t, gang, metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Gang"}, nil)
	}
	counts := func() map[string]int {
		pods, err := n.Pods(t.Context(), "app")
		must(t, err)
		have := map[string]int{}
		for i := range pods {
			have[pods[i].Labels[stowage.PoolLabel]]++
		}
		return have
	}
	if diff := cmp.Diff(map[string]int{"0": 8, "1": 2}, counts()); diff != "" {
		t.Errorf("pods in pools (-want +got):\n%s", diff)
	}
	// The owner asks for 10: one that is gone leaves its own pool's place.
	pods, err := n.Pods(t.Context(), "app")
	must(t, err)
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels[stowage.PoolLabel] == "1" })
	must(t, n.Delete(t.Context(), &pods[i]))
	n.TryPod(t, gang, metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Gang"}, nil)
	if diff := cmp.Diff(map[string]int{"0": 8, "1": 2}, counts()); diff != "" {
		t.Errorf("pods in pools after a deletion (-want +got):\n%s", diff)
	}
}

// Owners of every kind that the ClusterRole names are read, watched or not.
func TestSpreadKinds(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	custom := func(group, version, plural, kind string) client.Object {
		must(t, cluster.ApplyYAML(t.Context(), fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: %[3]s, singular: %[5]s, kind: %[4]s, listKind: %[4]sList}
  versions:
  - name: %[2]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
`, group, version, plural, kind, strings.ToLower(kind))))
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/" + version, "kind": kind, "spec": map[string]any{"replicas": int64(10)}}}
	}
	selector := map[string]string{"app": "none"}
	for name, tc := range map[string]struct {
		owner client.Object
		kind  metav1.TypeMeta
	}{
		"ReplicationController": {&corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(0)), Selector: selector, Template: new(podTemplate("none"))}}, metav1.TypeMeta{APIVersion: "v1", Kind: "ReplicationController"}},
		"Rollout":               {custom("argoproj.io", "v1alpha1", "rollouts", "Rollout"), metav1.TypeMeta{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout"}},
		"CloneSet":              {custom("apps.kruise.io", "v1alpha1", "clonesets", "CloneSet"), metav1.TypeMeta{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet"}},
		"kruise's StatefulSet":  {custom("apps.kruise.io", "v1beta1", "statefulsets", "StatefulSet"), metav1.TypeMeta{APIVersion: "apps.kruise.io/v1beta1", Kind: "StatefulSet"}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.owner.SetName("owner")
			tc.owner.SetNamespace(n.Namespace)
			tc.owner.SetAnnotations(annotated(documented))
			eventually(t, "the kind is served", func() (bool, error) {
				err := n.Create(t.Context(), tc.owner)
				return err == nil, client.IgnoreNotFound(ignoreNoMatch(err))
			})
			var seated bool
			var warnings string
			eventually(t, "the owner is read in time", func() (bool, error) { // an admission waits for it for two seconds
				pod := n.TryPod(t, tc.owner, tc.kind, func(p *corev1.Pod) { p.GenerateName, p.Name = "", "owner-0" }, client.DryRunAll)
				seated, warnings = pod.Labels[stowage.SeatLabel] == "1", strings.Join(n.Warnings.Take(), " ")
				return seated || !strings.Contains(warnings, "deadline exceeded"), nil
			})
			if !seated {
				t.Errorf("the pod has no seat: warned %s", warnings)
			}
		})
	}
	t.Run("Job, by a PodDistributor", func(t *testing.T) {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "job"}, Spec: batchv1.JobSpec{
			Parallelism: new(int32(5)), Suspend: new(true), Template: podTemplate("job"),
		}}
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		must(t, n.Create(t.Context(), job))
		n.Distributor(t, "job", "job", func(s *versprei.PodDistributorSpec) {
			s.Target = versprei.Target{APIVersion: "batch/v1", Kind: "Job", Name: "job"}
		})
		kind := metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}
		eventually(t, "the PodDistributor is known", func() (bool, error) {
			return n.TryPod(t, job, kind, nil, client.DryRunAll).Labels[stowage.SeatLabel] != "", nil
		})
		if pod := n.TryPod(t, job, kind, nil); pod.Labels[stowage.SeatLabel] == "" {
			t.Error("the pod has no seat")
		}
	})
	t.Run("kruise's DaemonSet, by its template", func(t *testing.T) {
		must(t, cluster.ApplyYAML(t.Context(), fmt.Sprintf("{apiVersion: flexdaemonsets.xai/v1alpha1, kind: FlexDaemonsetTemplate, metadata: {name: %s}, spec: {cpuPercentage: 10}}", n.Namespace)))
		daemonSet := custom("apps.kruise.io", "v1alpha1", "daemonsets", "DaemonSet")
		daemonSet.SetName("daemons")
		daemonSet.SetNamespace(n.Namespace)
		daemonSet.SetAnnotations(map[string]string{flexdaemonsets.TemplateAnnotation: n.Namespace})
		eventually(t, "the kind is served", func() (bool, error) {
			err := n.Create(t.Context(), daemonSet)
			return err == nil, client.IgnoreNotFound(ignoreNoMatch(err))
		})
		eventually(t, "its pod has a size", func() (bool, error) {
			pod := n.TryPod(t, daemonSet, metav1.TypeMeta{APIVersion: "apps.kruise.io/v1alpha1", Kind: "DaemonSet"}, func(p *corev1.Pod) { p.Spec.Affinity = suite.PinnedTo("od4-1") }, client.DryRunAll)
			return !pod.Spec.Containers[0].Resources.Requests.Cpu().IsZero(), nil
		})
	})
	t.Run("a StatefulSet that our watch does not show", func(t *testing.T) {
		// It is asked for before the pod is taken for one without a strategy.
		gone := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "gone", UID: "5f0c52f6-8f8b-4c44-9f33-0a30e1c7a002"}}
		pod := n.TryPod(t, gone, metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}, nil, client.DryRunAll)
		if _, ok := pod.Labels[stowage.SeatLabel]; ok {
			t.Errorf("a pod of nothing has a seat: %v", pod.Labels)
		}
	})
}

// ignoreNoMatch is nil for an error that says that a kind is not served.
func ignoreNoMatch(err error) error {
	if meta.IsNoMatchError(err) {
		return nil
	}
	return err
}

// Which namespaces' annotations are looked at.
func TestSpreadNamespaces(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blocked"}}
	t.Cleanup(func() { // with -count, the next round makes it again
		must(t, client.IgnoreNotFound(cluster.Client.Delete(context.WithoutCancel(t.Context()), namespace)))
		must(t, suite.Poll(context.WithoutCancel(t.Context()), waitInterval, waitTimeout, func() (bool, error) {
			return apierrors.IsNotFound(cluster.Client.Get(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(namespace), namespace)), nil
		}))
	})
	blocked := newTenantIn(t, namespace)
	seated := func(n *tenant, name string) bool {
		rs := n.BareReplicaSet(t, name, 0, annotated(eightyOf))
		return n.TryPod(t, rs, suite.ReplicaSetKind, nil, client.DryRunAll).Labels[stowage.SeatLabel] != ""
	}
	if seated(blocked, "a") {
		t.Error("a pod of a blocklisted namespace has a seat by an annotation")
	}
	// A PodDistributor is looked at everywhere.
	rs := blocked.BareReplicaSet(t, "b", 0, nil)
	blocked.Distributor(t, "b", "b", func(s *versprei.PodDistributorSpec) { s.Target.Kind = "ReplicaSet" })
	eventually(t, "a PodDistributor works in a blocklisted namespace", func() (bool, error) {
		return blocked.TryPod(t, rs, suite.ReplicaSetKind, nil, client.DryRunAll).Labels[stowage.SeatLabel] != "", nil
	})

	o := fleet
	o.Env = append(slices.Clone(fleet.Env), "STOWAGE_SPREAD_NAMESPACE_LABEL=custom-kube-scheduler-webhook=enabled")
	must(t, cluster.StartStowage(t.Context(), o))
	restoreFleet(t)
	if n := newTenant(t); seated(n, "a") {
		t.Error("a pod has a seat in a namespace without the label")
	}
	if n := newTenant(t, "custom-kube-scheduler-webhook=enabled"); !seated(n, "a") {
		t.Error("a pod has no seat in a namespace with the label")
	}
}

// Whoever writes a strategy that is wrong is told so, and so is the pods' owner.
func TestSpreadInvalidStrategy(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const wrong = "nodesize=a,weight=1:nodesize=b,weight=x"
	n.Warnings.Take()
	d := n.Deployment("web", 2, annotated(wrong))
	d.Spec.Template.Annotations = map[string]string{stowage.SpreadStrategyAnnotation: "nodesize=a,weight=1"}
	must(t, n.Create(t.Context(), d))
	want := []string{
		`stowage: metadata.annotations: CustomPodScheduleStrategy: pool 1 ("nodesize=b,weight=x"): weight is "x"; expected a whole number from 0`,
		`stowage: spec.template.metadata.annotations: CustomPodScheduleStrategy has no effect without UseCustomKubeScheduler: 'true'`,
	}
	if diff := cmp.Diff(want, n.Warnings.Take()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	eventually(t, "the pods are admitted untouched", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "web")
		return len(pods) == 2 && pods[0].Labels[stowage.PoolLabel] == "", err
	})
	eventually(t, "there is an event", func() (bool, error) {
		return n.HasEvent(t, "InvalidStrategy", "pool 1"), nil
	})
	must(t, n.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))))
	if w := n.Warnings.Take(); len(w) != 2 {
		t.Errorf("an update is warned of with %q", w)
	}
	must(t, n.Create(t.Context(), n.Deployment("fine", 0, annotated(documented))))
	if w := n.Warnings.Take(); len(w) != 0 {
		t.Errorf("a strategy that is right is warned of: %q", w)
	}
}

// PodDistributors: status, precedence, enforcement, tolerations, limits.
func TestPodDistributor(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	status := func(name string) versprei.PodDistributorStatus {
		var d versprei.PodDistributor
		must(t, n.Get(t.Context(), n.Key(name), &d))
		return d.Status
	}
	condition := func(name, kind string) string {
		c := meta.FindStatusCondition(status(name).Conditions, kind)
		if c == nil {
			return ""
		}
		return fmt.Sprintf("%s %s", c.Status, c.Reason)
	}
	await := func(name, kind, want string) {
		t.Helper()
		got := ""
		eventually(t, fmt.Sprintf("%s of %s is %s", kind, name, want), func() (bool, error) {
			if now := condition(name, kind); now != got {
				got = now
				t.Logf("%s of %s: %s", kind, name, got)
			}
			return got == want, nil
		})
	}

	n.Distributor(t, "nginx", "nginx-deployment", nil)
	await("nginx", versprei.ConditionTargetFound, "False NotFound")
	// It beats an annotation.
	d := n.Deployment("nginx-deployment", 10, annotated(documented))
	must(t, n.Create(t.Context(), d))
	await("nginx", versprei.ConditionTargetFound, "True Found")
	await("nginx", versprei.ConditionBalanced, "True Balanced")
	s := strategyOf(t, eightyOf)
	n.Spreads(t, "nginx-deployment", 10, s)
	eventually(t, "the status counts the pods", func() (bool, error) {
		return cmp.Equal(status("nginx").Pools, []versprei.PoolStatus{{Name: "0", Desired: 8, Current: 8, Ready: 8}, {Name: "1", Desired: 2, Current: 2, Ready: 2}}), nil
	})
	if st := status("nginx"); st.Current != "8/2" || st.Desired != "8/2" || st.ObservedGeneration != 1 {
		t.Errorf("status %+v", st)
	}
	pods, err := n.Pods(t.Context(), "nginx-deployment")
	must(t, err)
	if pods[0].Labels[stowage.MutatedByKey] != stowage.MutatedByValue || pods[0].Annotations[stowage.MutatedByKey] != stowage.MutatedByValue {
		t.Errorf("labels %v", pods[0].Labels)
	}

	// A second one for the same target says that it does nothing.
	n.Distributor(t, "znew", "nginx-deployment", func(s *versprei.PodDistributorSpec) { s.Distribution[0].Weight = 1 })
	await("znew", versprei.ConditionTargetFound, "False Superseded")
	n.Scale(t, d, 25)
	n.Spreads(t, "nginx-deployment", 25, s)

	// In steady state, nothing is written.
	var before versprei.PodDistributor
	await("nginx", versprei.ConditionBalanced, "True Balanced")
	eventually(t, "the status is at rest", func() (bool, error) {
		var now versprei.PodDistributor
		must(t, n.Get(t.Context(), n.Key("nginx"), &now))
		rest := now.ResourceVersion == before.ResourceVersion && now.Status.Pools[0].Ready == 20
		before = now
		return rest, nil
	})

	t.Run("preferred, with tolerations and a limit", func(t *testing.T) {
		n.Distributor(t, "soft", "soft", func(s *versprei.PodDistributorSpec) {
			s.Enforcement = versprei.EnforcementPreferred
			s.Distribution[0].Name, s.Distribution[1].Name = "od", "spot"
			s.Distribution[0].MaxReplicas = new(intstr.FromInt32(1))
			s.Distribution[1].MaxReplicas = new(intstr.FromInt32(2))
			s.Distribution[1].Tolerations = []versprei.Toleration{{Key: "spot", Operator: "Exists", Effect: "NoSchedule"}}
		})
		await("soft", versprei.ConditionTargetFound, "False NotFound")
		must(t, n.Create(t.Context(), n.Deployment("soft", 5, nil)))
		eventually(t, "three of five pods have a pool", func() (bool, error) {
			pods, err := n.Pods(t.Context(), "soft")
			have := map[string]int{}
			for i := range pods {
				p := &pods[i]
				have[p.Labels[stowage.PoolLabel]]++
				tolerates := slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == "spot" })
				prefers := p.Spec.Affinity != nil && len(p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 1
				if tolerates != (p.Labels[stowage.PoolLabel] == "spot") || prefers != (p.Labels[stowage.PoolLabel] != "") || len(p.Spec.NodeSelector) > 0 {
					t.Errorf("pod of pool %q: %+v", p.Labels[stowage.PoolLabel], p.Spec)
				}
			}
			return cmp.Equal(have, map[string]int{"od": 1, "spot": 2, "": 2}), err
		})
		await("soft", versprei.ConditionBalanced, "True Balanced")
	})
}

// The scheduler's topology spread counts the pods of one pool at a time: a pool with nodes in one zone only does not
// change how those of another pool are spread over zones.
func TestTopologySpreadWithinPools(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	for name, zone := range map[string]string{"od.1": "a", "spot.1": "a", "spot.2": "b"} {
		pool, number, _ := strings.Cut(name, ".")
		node := n.PoolNode(t, pool, number, 20)
		must(t, n.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, corev1.LabelTopologyZone, zone))))
	}
	d := n.Shortage(t, "web", 12, func(spec *versprei.PodDistributorSpec) {
		spec.Distribution[0].Weight, spec.Distribution[1].Weight = 1, 1
	})
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
	}}
	must(t, n.Create(t.Context(), d))
	have := map[string]int{}
	for _, pod := range n.Ready(t, "web", 12) {
		have[strings.TrimPrefix(pod.Spec.NodeName, n.Namespace+"-")]++
	}
	if diff := cmp.Diff(map[string]int{"od-1": 6, "spot-1": 3, "spot-2": 3}, have); diff != "" {
		t.Errorf("pods of each node (-want +got):\n%s", diff)
	}
}

// Annotations that leave no room for ours cost a pod its seat, and the API server accepts it.
func TestLargeAnnotations(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	d := n.Deployment("web", 2, annotated(eightyOf))
	d.Spec.Template.Annotations = map[string]string{"large": strings.Repeat("x", 256<<10-20)}
	must(t, n.Create(t.Context(), d))
	pods := n.Ready(t, "web", 2)
	for i := range pods {
		if pods[i].Labels[stowage.SeatLabel] != "" {
			t.Errorf("pod %s has a seat", pods[i].Name)
		}
	}
	eventually(t, "the owner has events", func() (bool, error) {
		return n.HasEvent(t, "FailedOpen", "spread was left out") && n.HasEvent(t, "FailedOpen", "gets no seat"), nil
	})
}

// Where every pool has its maximum, a pod that replaces another gets its seat, and the others carry the proof that no pool may take them.
func TestFullPools(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.Distributor(t, "web", "web", func(s *versprei.PodDistributorSpec) {
		s.Distribution[0].MaxReplicas, s.Distribution[1].MaxReplicas = new(intstr.FromInt32(2)), new(intstr.FromInt32(2))
	})
	must(t, n.Create(t.Context(), n.Deployment("web", 6, nil)))
	for range 5 {
		seated := ""
		eventually(t, "four of six pods have a seat", func() (bool, error) {
			pods, err := n.Pods(t.Context(), "web")
			have := map[string]int{}
			for i := range pods {
				pool := pods[i].Labels[stowage.PoolLabel]
				if pool != "" {
					seated = pods[i].Name
				} else if !strings.HasPrefix(pods[i].Annotations[stowage.ClaimAnnotation], "f") {
					pool = "unproven"
				}
				have[pool]++
			}
			return cmp.Equal(have, map[string]int{"0": 2, "1": 2, "": 2}), err
		})
		must(t, n.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: seated}}))
	}
}
