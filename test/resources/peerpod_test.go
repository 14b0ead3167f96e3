package resources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// expectPeerPod checks a pod's size and that one VM is all that it takes.
func expectPeerPod(t *testing.T, p *corev1.Pod, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, suite.VMSize(p)); diff != "" {
		t.Errorf("sizing (-want +got):\n%s", diff)
	}
	if p.Spec.Resources != nil {
		t.Errorf("spec.resources is %v", p.Spec.Resources)
	}
	one := testkit.ResourceList(stowage.DefaultVMResource + "=1")
	for i := range p.Spec.Containers {
		r, entries := &p.Spec.Containers[i].Resources, corev1.ResourceList(nil)
		if i == 0 {
			entries = one
		}
		if !equalLists(r.Requests, entries) || !equalLists(r.Limits, entries) {
			t.Errorf("container %q has requests %v and limits %v", p.Spec.Containers[i].Name, r.Requests, r.Limits)
		}
	}
	for i := range p.Spec.InitContainers {
		if r := &p.Spec.InitContainers[i].Resources; len(r.Requests)+len(r.Limits) > 0 {
			t.Errorf("init container %q has requests %v and limits %v", p.Spec.InitContainers[i].Name, r.Requests, r.Limits)
		}
	}
}

func equalLists(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, q := range a {
		if o, ok := b[name]; !ok || q.Cmp(o) != 0 {
			return false
		}
	}
	return true
}

// expectWarning checks that exactly one warning has come, if any should.
func (n *tenant) expectWarning(t *testing.T, part string) {
	t.Helper()
	got := n.Warnings.Take()
	if part == "" && len(got) > 0 || part != "" && (len(got) != 1 || !strings.Contains(got[0], part)) {
		t.Errorf("warnings are %q, want %q", got, part)
	}
}

func TestDocumentedPeerPod(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	objects, err := controlplane.ReadObjects(filepath.Join(repo, "config", "samples", "peerpod.yaml"))
	must(t, err)
	for _, o := range objects {
		if o.GetKind() == "Deployment" {
			o.SetNamespace(n.Namespace)
		}
		must(t, cluster.Apply(t.Context(), o))
	}
	var got corev1.Pod
	eventually(t, "the pod is created", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "peer-pod")
		if len(pods) == 1 {
			got = pods[0]
		}
		return len(pods) == 1, err
	})
	expectPeerPod(t, &got, "1", "2048", "")
	if !equalLists(got.Spec.Overhead, testkit.ResourceList("cpu=250m,memory=120Mi")) {
		t.Errorf("the overhead is %v", got.Spec.Overhead)
	}
	eventually(t, "the pod runs", func() (bool, error) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(&got), &got)
		return got.Status.Phase == corev1.PodRunning, err
	})
}

// What a container reads of its own size is the VM's, and not the node's.
func TestPeerPodEnvironment(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	p := suite.PeerPod().Container("app", "cpu=1,memory=2Gi", "cpu=2,memory=4Gi").Container("plain", "", "").Obj()
	p.Namespace = n.Namespace
	ref := func(name, container, what, divisor string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: container, Resource: what, Divisor: resource.MustParse(divisor)}}}
	}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OTHER", Value: "x"}, ref("GOMEMLIMIT", "", "limits.memory", "0"), ref("GOMAXPROCS", "app", "limits.cpu", "1"), ref("MEM", "", "requests.memory", "1Mi")}
	p.Spec.Containers[1].Env = []corev1.EnvVar{ref("CPU", "", "limits.cpu", "1m")}
	p.Spec.Volumes = []corev1.Volume{{Name: "podinfo", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "app", Resource: "limits.cpu", Divisor: resource.MustParse("1m")}}},
	}}}}
	must(t, n.Create(t.Context(), p))
	want := [][]corev1.EnvVar{{{Name: "OTHER", Value: "x"}, {Name: "GOMEMLIMIT", Value: "4294967296"}, {Name: "GOMAXPROCS", Value: "2"}, {Name: "MEM", Value: "2048"}}, {{Name: "CPU", Value: "2000"}}}
	for i := range want {
		if diff := cmp.Diff(want[i], p.Spec.Containers[i].Env); diff != "" {
			t.Errorf("container %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestPeerPodShapes(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	cases := map[string]struct {
		pod     *testkit.PodBuilder
		want    []string
		warning string
	}{
		"init containers":               {pod: suite.PeerPod().Container("a", "", "cpu=1,memory=1Gi").InitContainer("i", "", "cpu=2,memory=2Gi"), want: []string{"3", "3072", ""}},
		"sidecars":                      {pod: suite.PeerPod().Container("a", "", "cpu=1,memory=1Gi").Sidecar("s", "cpu=500m,memory=1Gi", ""), want: []string{"2", "2048", ""}},
		"GPUs of several vendors":       {pod: suite.PeerPod().Container("a", "", "nvidia.com/gpu=1").Container("b", "", "amd.com/gpu=1,gpu.intel.com/i915=2"), want: []string{"", "", "4"}},
		"hugepages":                     {pod: suite.PeerPod().Container("a", "", "hugepages-2Mi=4Mi,cpu=1,memory=1Gi"), want: []string{"1", "1024", ""}, warning: "hugepages-2Mi (4Mi) is left out"},
		"ephemeral storage":             {pod: suite.PeerPod().Container("a", "ephemeral-storage=1Gi", "ephemeral-storage=2Gi"), want: []string{"", "", ""}},
		"pod-level resources":           {pod: suite.PeerPod().Container("a", "", "cpu=1,memory=1Gi").PodResources("cpu=2,memory=2Gi", "cpu=2,memory=3Gi"), want: []string{"2", "3072", ""}},
		"requests without limits":       {pod: suite.PeerPod().Container("a", "cpu=2,memory=2Gi", ""), want: []string{"2", "2048", ""}},
		"limits without requests":       {pod: suite.PeerPod().Container("a", "", "cpu=2,memory=2Gi"), want: []string{"2", "2048", ""}},
		"a limit here, a request there": {pod: suite.PeerPod().Container("a", "cpu=1", "cpu=8").Container("b", "cpu=2", ""), want: []string{"10", "", ""}},
		"fractions and odd units":       {pod: suite.PeerPod().Container("a", "cpu=1500m,memory=1G", "").Container("b", "cpu=1m,memory=1", ""), want: []string{"2", "954", ""}},
		"zero and absent values":        {pod: suite.PeerPod().Container("a", "cpu=0", "").Container("b", "", ""), want: []string{"", "", ""}},
		"a user's annotation":           {pod: suite.PeerPod().Container("a", "", "cpu=1,memory=1Gi").Annotation(stowage.DefaultVCPUsAnnotation, "6"), want: []string{"6", "1024", ""}},
		"the other target class":        {pod: suite.PeerPod().RuntimeClass("kata-other").Container("a", "", "cpu=1"), want: []string{"1", "", ""}},
		"an FPGA":                       {pod: suite.PeerPod().Container("a", "", "vendor.example/fpga=1,cpu=1"), want: []string{"1", "", ""}, warning: "vendor.example/fpga (1) is left out"},
		"a claimed device":              {pod: suite.PeerPod().Container("a", "cpu=1", "").Claim("gpu"), want: []string{"1", "", ""}, warning: "keeps its resources.claims"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "pod-level resources", "a claimed device":
				suite.NeedsVersion(t, "1.34", name)
			}
			p := tc.pod.Namespace(n.Namespace).Obj()
			p.Name, p.GenerateName = "", "p-"
			must(t, n.Create(t.Context(), p))
			expectPeerPod(t, p, tc.want...)
			n.expectWarning(t, tc.warning)
			if name == "a claimed device" && len(p.Spec.Containers[0].Resources.Claims) != 1 {
				t.Error("the claim is gone")
			}
			for _, resource := range []string{"hugepages-2Mi", "ephemeral-storage"} {
				if strings.Contains(fmt.Sprint(tc.pod.Obj().Spec.Containers), resource) && !strings.Contains(p.Annotations[stowage.OriginalResourcesAnnotation], resource) {
					t.Errorf("%s is not in %s", resource, p.Annotations[stowage.OriginalResourcesAnnotation])
				}
			}
		})
	}
	t.Run("a class that is no target", func(t *testing.T) {
		p := n.CreatePod(t, testkit.Pod("plain").RuntimeClass("runc").Container("a", "cpu=1", "cpu=1"))
		if !equalLists(p.Spec.Containers[0].Resources.Limits, testkit.ResourceList("cpu=1")) || len(p.Annotations) > 0 {
			t.Errorf("the pod was changed: %v, %v", p.Spec.Containers[0].Resources, p.Annotations)
		}
	})
}

func limitRange(item corev1.LimitRangeItem) *corev1.LimitRange {
	return &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}
}

// The LimitRanger fills containers in before us and, because we changed the pod,
// once more after us; then we are called again.
func TestPeerPodsAndLimitRangeDefaults(t *testing.T) {
	t.Parallel()
	three := func(name string) *testkit.PodBuilder {
		return testkit.Pod(name).RuntimeClass("kata-remote").
			Container("a", "cpu=1,memory=1Gi", "cpu=1,memory=1Gi").
			Container("b", "cpu=500m,memory=512Mi", "cpu=500m,memory=512Mi").
			InitContainer("i", "cpu=2,memory=2Gi", "cpu=2,memory=2Gi")
	}
	plain := newTenant(t)
	expectPeerPod(t, plain.CreatePod(t, three("three")), "4", "3584", "")

	limited := newTenant(t)
	lr := limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: testkit.ResourceList("cpu=1,memory=512Mi"), DefaultRequest: testkit.ResourceList("cpu=250m,memory=256Mi")})
	lr.Namespace = limited.Namespace
	must(t, limited.Create(t.Context(), lr))
	eventually(t, "the LimitRange is in force", func() (bool, error) {
		p := testkit.Pod("probe").Namespace(limited.Namespace).Container("a", "", "").Obj()
		err := limited.Create(t.Context(), p, client.DryRunAll)
		return len(p.Spec.Containers[0].Resources.Limits) > 0, err
	})
	expectPeerPod(t, limited.CreatePod(t, three("three")), "4", "3584", "")
	// A pod that asks for nothing gets the namespace's defaults as its size.
	expectPeerPod(t, limited.CreatePod(t, testkit.Pod("nothing").RuntimeClass("kata-remote").Container("a", "", "")), "1", "512", "")
	limited.expectWarning(t, "")
}

func TestPeerPodsThatALimitRangeRefuses(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]corev1.LimitRangeItem{
		"min.cpu (Pod)":       {Type: corev1.LimitTypePod, Min: testkit.ResourceList("cpu=100m")},
		"max.cpu (Pod)":       {Type: corev1.LimitTypePod, Max: testkit.ResourceList("cpu=8")},
		"min.cpu (Container)": {Type: corev1.LimitTypeContainer, Min: testkit.ResourceList("cpu=100m")},
		"max.cpu (Container)": {Type: corev1.LimitTypeContainer, Max: testkit.ResourceList("cpu=8")},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTenant(t)
			lr := limitRange(item)
			lr.Namespace = n.Namespace
			must(t, n.Create(t.Context(), lr))
			eventually(t, "Stowage has seen the LimitRange", func() (bool, error) {
				n.Warnings.Take()
				err := n.Create(t.Context(), suite.PeerPod().Namespace(n.Namespace).Container("a", "cpu=1", "cpu=1").Obj(), client.DryRunAll)
				if !apierrors.IsForbidden(err) {
					return false, err
				}
				return strings.Contains(strings.Join(n.Warnings.Take(), "\n"), name), nil
			})

			// Nobody reads the warning that a controller gets; its workload has
			// an event.
			rs := suite.ReplicaSet(n.Namespace, "refused", suite.PeerPod().Container("a", "cpu=1", "cpu=1"), 1)
			must(t, n.Create(t.Context(), rs))
			eventually(t, "the ReplicaSet has an event that explains it", func() (bool, error) {
				events, err := cluster.Clientset.EventsV1().Events(n.Namespace).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false, err
				}
				for _, e := range events.Items {
					if e.Reason == "LimitRangeRefusesPeerPod" && e.Regarding.Kind == "ReplicaSet" && e.Regarding.Name == rs.Name && strings.Contains(e.Note, name) {
						return true, nil
					}
				}
				return false, nil
			})
		})
	}
}

func TestPeerPodsThatAQuotaRefuses(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	must(t, n.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "compute", Namespace: n.Namespace},
		Spec:       corev1.ResourceQuotaSpec{Hard: testkit.ResourceList("requests.cpu=10,limits.memory=10Gi")},
	}))
	eventually(t, "the refused user is told why", func() (bool, error) {
		n.Warnings.Take()
		err := n.Create(t.Context(), suite.PeerPod().Namespace(n.Namespace).Container("a", "cpu=1,memory=1Gi", "cpu=1,memory=1Gi").Obj(), client.DryRunAll)
		if !apierrors.IsForbidden(err) {
			return false, err
		}
		w := strings.Join(n.Warnings.Take(), "\n")
		return strings.Contains(w, `ResourceQuota "compute" may refuse this pod`) && strings.Contains(w, "use requests.kata.peerpods.io/vm there in place of requests.cpu, limits.memory"), nil
	})
}

// A webhook that comes after ours and injects a container, as service meshes do.
func TestInjectedSidecarIsCountedOnce(t *testing.T) {
	n := newTenant(t, "inject=yes")
	suite.StartInjector(t, n.Tenant)

	got := n.CreatePod(t, suite.PeerPod().Container("a", "cpu=1,memory=1Gi", "cpu=1,memory=1Gi"))
	expectPeerPod(t, got, "2", "1152", "")
	if !strings.Contains(got.Annotations[stowage.OriginalResourcesAnnotation], `"injected":{"requests":{"cpu":"100m","memory":"128Mi"}}`) {
		t.Errorf("the record is %s", got.Annotations[stowage.OriginalResourcesAnnotation])
	}
}

// The stock scheduler does the accounting: a node that may have two VMs runs two
// peer pods.
func TestSchedulerCountsVMs(t *testing.T) {
	n := newTenant(t)
	nodes, err := controlplane.ParseObjects([]byte(`
apiVersion: v1
kind: Node
metadata:
  name: two-vms
  labels: {kubernetes.io/hostname: two-vms}
  annotations: {kwok.x-k8s.io/node: fake}
status:
  capacity: {cpu: "4", memory: 16Gi, pods: "100", kata.peerpods.io/vm: "2"}
  allocatable: {cpu: "4", memory: 16Gi, pods: "100", kata.peerpods.io/vm: "2"}
`))
	must(t, err)
	must(t, cluster.Apply(t.Context(), nodes...))
	t.Cleanup(func() {
		_ = cluster.Client.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two-vms"}})
	})
	pods := make([]*corev1.Pod, 3)
	for i := range pods {
		// Each asks for more than half of the node's cpu, which it does not
		// take: it runs elsewhere.
		p := suite.PeerPod().Namespace(n.Namespace).Container("a", "cpu=3", "cpu=3").Obj()
		p.Name = fmt.Sprintf("p-%d", i)
		p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "two-vms"}
		must(t, n.Create(t.Context(), p))
		pods[i] = p
	}
	running := func() (names []string, waiting *corev1.Pod, err error) {
		var list corev1.PodList
		if err := n.List(t.Context(), &list, client.InNamespace(n.Namespace)); err != nil {
			return nil, nil, err
		}
		for i := range list.Items {
			p := &list.Items[i]
			switch {
			case p.DeletionTimestamp != nil:
			case p.Status.Phase == corev1.PodRunning:
				names = append(names, p.Name)
			default:
				waiting = p
			}
		}
		return names, waiting, nil
	}
	var names []string
	eventually(t, "two pods run and the third waits for a VM", func() (bool, error) {
		var waiting *corev1.Pod
		var err error
		names, waiting, err = running()
		if err != nil || len(names) != 2 || waiting == nil {
			return false, err
		}
		for _, c := range waiting.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "Insufficient "+stowage.DefaultVMResource) {
				return true, nil
			}
		}
		return false, nil
	})
	must(t, n.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: names[0]}}))
	eventually(t, "the third runs in the VM that became free", func() (bool, error) {
		now, waiting, err := running()
		return len(now) == 2 && waiting == nil, err
	})
}

func TestModesInACluster(t *testing.T) {
	t.Parallel()
	audit := newTenant(t, stowage.ModeKey+"=Audit")
	p := audit.CreatePod(t, testkit.Pod("a").RuntimeClass("kata-remote").Container("a", "cpu=1", ""))
	if len(p.Annotations) > 0 || len(p.Spec.Containers[0].Resources.Requests) != 1 {
		t.Errorf("the pod was changed: %v", p)
	}
	audit.expectWarning(t, "would make this pod a peer pod (1 vCPU)")

	off := newTenant(t, stowage.ModeKey+"=Off")
	p = off.CreatePod(t, testkit.Pod("a").RuntimeClass("kata-remote").Container("a", "cpu=1", ""))
	if len(p.Annotations) > 0 {
		t.Errorf("the pod was changed: %v", p)
	}
	off.expectWarning(t, "")
	expectPeerPod(t, off.CreatePod(t, testkit.Pod("b").RuntimeClass("kata-remote").Annotation(stowage.ModeKey, "Enforce").Container("a", "cpu=1", "")), "1", "", "")
}

func TestDryRunAnswersAsForReal(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	p := n.CreatePod(t, suite.PeerPod().Container("a", "cpu=1", ""), client.DryRunAll)
	expectPeerPod(t, p, "1", "", "")
	if err := n.Get(t.Context(), n.Key("p"), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod exists: %v", err)
	}
}

func TestPodInANamespaceThatEnds(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	var ns corev1.Namespace
	must(t, n.Get(t.Context(), client.ObjectKey{Name: n.Namespace}, &ns))
	must(t, n.Delete(t.Context(), &ns))
	err := n.Create(t.Context(), suite.PeerPod().Namespace(n.Namespace).Container("a", "cpu=1", "").Obj())
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		t.Errorf("the API server says %v", err)
	}
	// Asked all the same, about a namespace that is gone, we allow.
	err = directly(t, n.Namespace+"-gone", func(allowed bool) error {
		if !allowed {
			return errors.New("not allowed")
		}
		return nil
	})
	must(t, err)
}

// The offline preview and the cluster agree, for each kind of workload.
func TestPreviewAgreesWithTheCluster(t *testing.T) {
	t.Parallel()
	template := func() *testkit.PodBuilder {
		return suite.PeerPod().Container("a", "cpu=1,memory=1Gi", "cpu=2").Sidecar("s", "", "memory=64Mi").InitContainer("i", "cpu=500m", "")
	}
	for name, make := range map[string]func(rs *appsv1.ReplicaSet) client.Object{
		"ReplicaSet": func(rs *appsv1.ReplicaSet) client.Object { return rs },
		"Deployment": func(rs *appsv1.ReplicaSet) client.Object {
			return &appsv1.Deployment{ObjectMeta: rs.ObjectMeta, Spec: appsv1.DeploymentSpec{Replicas: rs.Spec.Replicas, Selector: rs.Spec.Selector, Template: rs.Spec.Template}}
		},
		"Deployment with a strategy": func(rs *appsv1.ReplicaSet) client.Object {
			rs.Spec.Replicas = new(int32(12))
			rs.Spec.Template.Annotations = annotated(documented)
			return &appsv1.Deployment{ObjectMeta: rs.ObjectMeta, Spec: appsv1.DeploymentSpec{Replicas: rs.Spec.Replicas, Selector: rs.Spec.Selector, Template: rs.Spec.Template}}
		},
		"StatefulSet with a strategy": func(rs *appsv1.ReplicaSet) client.Object {
			rs.Spec.Template.Annotations = annotated(suite.OneToThree)
			return &appsv1.StatefulSet{ObjectMeta: rs.ObjectMeta, Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(5)), Selector: rs.Spec.Selector, Template: rs.Spec.Template, PodManagementPolicy: appsv1.ParallelPodManagement,
			}}
		},
		"StatefulSet": func(rs *appsv1.ReplicaSet) client.Object {
			return &appsv1.StatefulSet{ObjectMeta: rs.ObjectMeta, Spec: appsv1.StatefulSetSpec{
				Replicas: rs.Spec.Replicas, Selector: rs.Spec.Selector, Template: rs.Spec.Template, ServiceName: "web", Ordinals: &appsv1.StatefulSetOrdinals{Start: 3},
			}}
		},
		"DaemonSet": func(rs *appsv1.ReplicaSet) client.Object {
			return &appsv1.DaemonSet{ObjectMeta: rs.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: rs.Spec.Selector, Template: rs.Spec.Template}}
		},
		"Job": func(rs *appsv1.ReplicaSet) client.Object {
			rs.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			return &batchv1.Job{ObjectMeta: rs.ObjectMeta, Spec: batchv1.JobSpec{
				Parallelism: rs.Spec.Replicas, Completions: rs.Spec.Replicas, CompletionMode: new(batchv1.IndexedCompletion), Template: rs.Spec.Template,
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTenant(t)
			workload := make(suite.ReplicaSet(n.Namespace, "web", template(), 2))
			manifest := workload.DeepCopyObject().(client.Object)
			must(t, n.Create(t.Context(), workload))
			offline := preview(t, manifest)
			if len(offline) < 2 {
				t.Fatalf("preview makes %d pods", len(offline))
			}
			var live corev1.PodList
			eventually(t, "the workload has its pods", func() (bool, error) {
				err := n.List(t.Context(), &live, client.InNamespace(n.Namespace))
				return len(live.Items) == len(offline), err
			})
			if diff := cmp.Diff(comparable(live.Items), comparable(offline)); diff != "" {
				t.Errorf("pods (-cluster +preview):\n%s", diff)
			}
		})
	}
}

// The same, where a PodDistributor says how pods are divided.
func TestPreviewOfPodDistributorAgrees(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	d := n.Distributor(t, "web", "web", func(s *versprei.PodDistributorSpec) { s.Distribution[1].Name = "spot" })
	time.Sleep(time.Second) // each replica learns of it; there is nothing to wait for before a pod comes
	workload := n.Deployment("web", 13, nil)
	manifest := workload.DeepCopyObject().(client.Object)
	must(t, n.Create(t.Context(), workload))
	offline := preview(t, manifest, d)
	var live corev1.PodList
	eventually(t, "the workload has its pods", func() (bool, error) {
		err := n.List(t.Context(), &live, client.InNamespace(n.Namespace))
		return len(live.Items) == 13, err
	})
	if diff := cmp.Diff(comparable(live.Items), comparable(offline)); diff != "" {
		t.Errorf("pods (-cluster +preview):\n%s", diff)
	}
}

// comparable is what decisions and controllers show of pods, in an order that both
// sides have. What is random in a cluster, or is added after admission, is left out.
func comparable(pods []corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		// Random, or copied from the node, or a hash of all defaults.
		delete(p.Annotations, stowage.ClaimAnnotation) // the proof of a seat depends on the owner's UID
		for _, key := range []string{"controller-uid", batchv1.ControllerUidLabel, corev1.LabelTopologyZone, appsv1.DefaultDeploymentUniqueLabelKey, appsv1.ControllerRevisionHashLabelKey, "pod-template-generation"} {
			delete(p.Labels, key)
		}
		p.Spec.Tolerations = slices.DeleteFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.TolerationSeconds != nil })
		if len(p.Spec.Tolerations) == 0 {
			p.Spec.Tolerations = nil
		}
		fields := map[string]any{
			"labels": p.Labels, "annotations": p.Annotations, "owner": p.OwnerReferences[0].Kind, "generated": p.GenerateName != "",
			"class": p.Spec.RuntimeClassName, "overhead": p.Spec.Overhead, "selector": p.Spec.NodeSelector, "tolerations": p.Spec.Tolerations,
			"affinity": p.Spec.Affinity, "hostname": p.Spec.Hostname, "subdomain": p.Spec.Subdomain,
		}
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for _, c := range list {
				fields[c.Name] = c.Resources
			}
		}
		data, err := json.Marshal(fields)
		if err != nil {
			data = []byte(err.Error())
		}
		out = append(out, string(data))
	}
	slices.Sort(out)
	return out
}
