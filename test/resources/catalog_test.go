package resources

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
	"github.com/stowage-dev/stowage/test/testkit"
)

// catalogOf creates a catalog for the pods of [suite.TypedClass], which every replica knows when it returns.
func catalogOf(t *testing.T, n *tenant, vmTypes ...stowage.VMType) *stowage.VMCatalog {
	t.Helper()
	o := &stowage.VMCatalog{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec:       stowage.VMCatalogSpec{RuntimeClasses: []string{suite.TypedClass}, Types: vmTypes, FailAfter: "30s"},
	}
	must(t, cluster.Client.Create(t.Context(), o))
	t.Cleanup(func() { _ = cluster.Client.Delete(context.Background(), o) })
	for _, r := range cluster.Replicas() {
		eventually(t, "a replica knows the catalog", func() (bool, error) {
			p := typed("").Container("a", "", "cpu=1m").Namespace(n.Namespace).Obj()
			answer, err := suite.Review(r, p)
			return err == nil && strings.Contains(string(answer.Patch), "machine_type"), err
		})
	}
	return o
}

func vmType(name string, vcpus int32, memory, price string) stowage.VMType {
	return stowage.VMType{Name: name, VCPUs: vcpus, Memory: resource.MustParse(memory), PricePerHour: price}
}

// typed begins a pod that gets a type.
func typed(name string) *testkit.PodBuilder {
	return testkit.Pod(name + "p").RuntimeClass(suite.TypedClass)
}

func TestVMTypes(t *testing.T) {
	n := newTenant(t)
	gpu := vmType("gpu", 8, "32Gi", "3")
	gpu.GPUs, gpu.GPUModel = 1, "tesla"
	small, zonal := vmType("small", 2, "4Gi", "0.1"), vmType("zonal", 2, "8Gi", "0.12")
	small.Zones, zonal.Zones = []string{"zone-y"}, []string{"zone-z"}
	o := catalogOf(t, n, vmType("large", 8, "16Gi", "0.4"), small, vmType("memory", 2, "16Gi", "0.15"), vmType("nameless-price", 64, "256Gi", ""), gpu, zonal)
	for name, tc := range map[string]struct {
		pod     *testkit.PodBuilder
		zone    string
		want    string
		warning string
	}{
		"one that fits in small":       {pod: typed("").Container("a", "", "cpu=1,memory=1Gi"), want: "small"},
		"exactly small":                {pod: typed("").Container("a", "", "cpu=2,memory=4Gi"), want: "small"},
		"more memory":                  {pod: typed("").Container("a", "", "cpu=2,memory=4100Mi"), want: "zonal"},
		"more CPU":                     {pod: typed("").Container("a", "", "cpu=2001m"), want: "large"},
		"a zone":                       {pod: typed("").Container("a", "", "cpu=1"), zone: "zone-z", want: "zonal"},
		"another zone":                 {pod: typed("").Container("a", "", "cpu=1"), zone: "zone-y", want: "small"},
		"a type without a price":       {pod: typed("").Container("a", "", "cpu=20"), want: "nameless-price"},
		"a GPU":                        {pod: typed("").Container("a", "", "nvidia.com/gpu=1"), want: "gpu"},
		"a GPU of another model":       {pod: typed("").Container("a", "", "nvidia.com/gpu=1").Annotation(stowage.GPUModelAnnotation, "l4"), warning: "no type has 1 GPU(s) of the model l4"},
		"too large":                    {pod: typed("").Container("a", "", "cpu=100,memory=1Gi"), warning: "the nearest type, nameless-price, lacks 36 CPU"},
		"nothing":                      {pod: typed("").Container("a", "", "")},
		"the user's own":               {pod: typed("").Container("a", "", "cpu=1").Annotation(stowage.MachineTypeAnnotation, "mine"), want: "mine", warning: "does not have"},
		"the user's own vCPUs":         {pod: typed("").Container("a", "", "cpu=1,memory=1Gi").Annotation(stowage.DefaultVCPUsAnnotation, "4"), want: "large"},
		"a class that has no catalog":  {pod: suite.PeerPod().Container("a", "", "cpu=1")},
		"its size beside another user": {pod: typed("").Container("a", "", "cpu=1,memory=1Gi").Container("b", "cpu=1,memory=3Gi", ""), want: "small"},
	} {
		t.Run(name, func(t *testing.T) {
			p := tc.pod.Namespace(n.Namespace).Obj()
			p.Name, p.GenerateName = "", "p-"
			if tc.zone != "" {
				p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: tc.zone}
			}
			must(t, n.Create(t.Context(), p, client.DryRunAll))
			n.expectWarning(t, tc.warning)
			if got := p.Annotations[stowage.MachineTypeAnnotation]; got != tc.want {
				t.Errorf("the pod has type %q, want %q", got, tc.want)
			}
			wantModel := p.Annotations[stowage.GPUModelAnnotation]
			if tc.want == "gpu" && wantModel != "tesla" {
				t.Errorf("the model is %q", wantModel)
			}
		})
	}
	// What a container reads of a limit that is not set is what the VM has.
	p := typed("").Container("a", "cpu=1,memory=5Gi", "").Namespace(n.Namespace).Obj()
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}}}
	must(t, n.Create(t.Context(), p, client.DryRunAll))
	if got := p.Spec.Containers[0].Env[0].Value; got != "2" {
		t.Errorf("the container reads %q CPUs, want 2 of type zonal", got)
	}
	// What people see of a pod with a type.
	shown := n.CreatePod(t, typed("shown").Container("a", "", "cpu=2,memory=6Gi"))
	out, _, _ := suite.CLI(t, cluster, "explain", "pod", shown.Name, "-n", n.Namespace, "--target-runtimeclass", suite.TypedClass)
	for _, want := range []string{
		"Its type is zonal, at 0.12 an hour.",
		"these fit 2 CPU, 6Gi of memory, the cheapest first: zonal (2 vCPUs, 8Gi, 0.12 an hour), memory (2 vCPUs, 16Gi, 0.15 an hour), large (8 vCPUs, 16Gi, 0.4 an hour), gpu (8 vCPUs, 32Gi, 1 GPU, 3 an hour), and 1 more.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("explain does not say %q:\n%s", want, out)
		}
	}
	eventually(t, "status counts the VM", func() (bool, error) {
		out, _, _ = suite.CLI(t, cluster, "status", "-n", n.Namespace, "--target-runtimeclass", suite.TypedClass)
		return strings.Contains(out, n.Namespace+"  zonal  1    2      8Gi     0.12"), nil
	})
	eventually(t, "the catalog holds", func() (bool, error) {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		return len(o.Status.Conditions) == 1 && o.Status.Conditions[0].Status == metav1.ConditionTrue && o.Status.ObservedGeneration == o.Generation, err
	})
}

func TestVMCatalogIsChecked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*stowage.VMCatalog)
		want   string
	}{
		"no types":           {func(o *stowage.VMCatalog) { o.Spec.Types = nil }, "spec.types"},
		"two of one name":    {func(o *stowage.VMCatalog) { o.Spec.Types = append(o.Spec.Types, o.Spec.Types[0]) }, "Duplicate value"},
		"a price":            {func(o *stowage.VMCatalog) { o.Spec.Types[0].PricePerHour = "$1" }, "pricePerHour"},
		"no memory":          {func(o *stowage.VMCatalog) { o.Spec.Types[0].Memory = resource.MustParse("0") }, "spec.types[0].memory"},
		"a model of no GPU":  {func(o *stowage.VMCatalog) { o.Spec.Types[0].GPUModel = "tesla" }, "gpuModel needs gpus"},
		"no vCPU":            {func(o *stowage.VMCatalog) { o.Spec.Types[0].VCPUs = 0 }, "vcpus"},
		"a negative reserve": {func(o *stowage.VMCatalog) { o.Spec.Reserved.CPU = new(resource.MustParse("-1")) }, "cpu is a quantity that is not negative"},
		"too soon":           {func(o *stowage.VMCatalog) { o.Spec.FailAfter = "5s" }, "failAfter is a duration from 30s to 1h"},
		"no duration":        {func(o *stowage.VMCatalog) { o.Spec.FailAfter = "soon" }, "failAfter is a duration"},
		"too many": {func(o *stowage.VMCatalog) {
			for i := range 500 {
				o.Spec.Types = append(o.Spec.Types, vmType(fmt.Sprintf("t%d", i), 1, "1Gi", "1"))
			}
		}, "spec.types"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &stowage.VMCatalog{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Spec: stowage.VMCatalogSpec{Types: []stowage.VMType{vmType("a", 1, "1Gi", "0.1")}}}
			must(t, cluster.Client.Create(t.Context(), o.DeepCopy(), client.DryRunAll))
			tc.change(o)
			if err := cluster.Client.Create(t.Context(), o, client.DryRunAll); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// A type of which no VM can be made is closed for the namespace and the zone whose pods wait, and their successors get the next cheapest one. Pods that
// run, pods of other namespaces and zones, pods that nobody creates again and pods of a Job that would count as failed stay. Once VMs of the type can be made
// again, new pods get it.
func TestVMTypeCloses(t *testing.T) {
	n, other := newTenant(t), newTenant(t)
	a := suite.NewAdaptor(t, time.Second)
	o := catalogOf(t, n, vmType("cheap", 2, "4Gi", "0.1"), vmType("middle", 4, "8Gi", "0.2"), vmType("dear", 8, "16Gi", "0.4"))
	deploy := func(n *tenant, name string, replicas int) *appsv1.Deployment {
		d := n.Deployment(name, replicas, nil)
		d.Spec.Template = typedTemplate(a, name)
		must(t, n.Create(t.Context(), d))
		return d
	}
	deploy(n, "runs", 2)
	running := map[types.UID]bool{}
	for _, p := range n.Ready(t, "runs", 2) {
		running[p.UID] = true
	}
	a.Refuse("cheap", true)
	d := deploy(n, "web", 4)
	bare := typed("bare").Container("a", "", "cpu=1").Namespace(n.Namespace).Label(controlplane.AdaptorLabel, a.Name()).Obj()
	bare.Spec.NodeSelector = inZone("zone-a")
	must(t, n.Create(t.Context(), bare))
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "job"}, Spec: batchv1.JobSpec{Template: typedTemplate(a, "job")}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	must(t, n.Create(t.Context(), job))
	ignoring := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "ignoring"}, Spec: batchv1.JobSpec{Template: typedTemplate(a, "ignoring"), PodFailurePolicy: &batchv1.PodFailurePolicy{
		Rules: []batchv1.PodFailurePolicyRule{{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}},
	}}}
	ignoring.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	must(t, n.Create(t.Context(), ignoring))

	typesOf := func(n *tenant, app string) (map[string]int, error) {
		pods, err := n.Pods(t.Context(), app)
		have := map[string]int{}
		for i := range pods {
			have[pods[i].Annotations[stowage.MachineTypeAnnotation]+" "+string(pods[i].Status.Phase)]++
		}
		return have, err
	}
	have := func(n *tenant, app string, want map[string]int) {
		t.Helper()
		var got map[string]int
		defer func() {
			if !maps.Equal(got, want) {
				n.LogPods(t, app)
				t.Logf("%s has %v", app, got)
			}
		}()
		suite.EventuallyWithin(t, 2*suite.WaitTimeout, fmt.Sprintf("%s has %v", app, want), func() (bool, error) {
			var err error
			got, err = typesOf(n, app)
			return maps.Equal(got, want), err
		})
	}
	// Said at once: the type is tried again after a while.
	suite.EventuallyWithin(t, 2*suite.WaitTimeout, "the status says that the type is closed", func() (bool, error) {
		out, _, _ := suite.CLI(t, cluster, "status", "-n", n.Namespace, "--target-runtimeclass", suite.TypedClass)
		return strings.Contains(out, "no VM of type cheap can be made for namespace "+n.Namespace+": it is closed in zone zone-a"), nil
	})
	must(t, cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	if len(o.Status.Closed) != 1 || o.Status.Closed[0].Type != "cheap" || o.Status.Closed[0].Namespace != n.Namespace || o.Status.Closed[0].Zone != "zone-a" {
		t.Errorf("closed are %+v", o.Status.Closed)
	}
	// A new pod that may run in the zone is told, and gets the next type at once. A pod of another zone or namespace is not concerned.
	for name, tc := range map[string]struct {
		of            *tenant
		selects       map[string]string
		want, warning string
	}{
		"of the zone":          {n, inZone("zone-a"), "middle", "gets a VM of type middle (4 vCPUs, 8Gi), because VMs of cheap, which cost less, could not be made"},
		"of all zones":         {n, nil, "middle", "gets a VM of type middle"},
		"of another zone":      {n, inZone("zone-b"), "cheap", ""},
		"of another namespace": {other, inZone("zone-a"), "cheap", ""},
	} {
		p := typed("").Container("a", "", "cpu=1").Namespace(tc.of.Namespace).Obj()
		p.GenerateName, p.Name, p.Spec.NodeSelector = "p-", "", tc.selects
		tc.of.Warnings.Take()
		must(t, tc.of.Create(t.Context(), p, client.DryRunAll))
		tc.of.expectWarning(t, tc.warning)
		if got := p.Annotations[stowage.MachineTypeAnnotation]; got != tc.want {
			t.Errorf("a pod %s has type %q, want %q", name, got, tc.want)
		}
	}

	have(n, "web", map[string]int{"middle Running": 4})
	// The Job controller waits before it creates a pod again (newBackoffRecord of its package), which is not of interest here.
	eventually(t, "the pod of the Job that ignores evictions is gone", func() (bool, error) {
		got, err := typesOf(n, "ignoring")
		return got["cheap Pending"] == 0, err
	})
	must(t, n.Get(t.Context(), client.ObjectKeyFromObject(ignoring), ignoring))
	if ignoring.Status.Failed != 0 {
		t.Errorf("the Job has %d failed pods", ignoring.Status.Failed)
	}
	have(n, "job", map[string]int{"cheap Pending": 1})
	have(n, "runs", map[string]int{"cheap Running": 2})
	if got := n.Ready(t, "runs", 2); !running[got[0].UID] || !running[got[1].UID] {
		t.Error("a pod that runs was replaced")
	}
	must(t, n.Get(t.Context(), client.ObjectKeyFromObject(bare), bare))
	must(t, n.Delete(t.Context(), ignoring, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	// The status counts, and so does the metric.
	eventually(t, "the VMs are counted", func() (bool, error) {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		want := []stowage.VMTypeStatus{{Name: "cheap", VMs: 4, VCPUs: 8, Memory: "16Gi", PricePerHour: "0.4"}, {Name: "middle", VMs: 4, VCPUs: 16, Memory: "32Gi", PricePerHour: "0.8"}}
		return cmp.Equal(want, o.Status.Types) && o.Status.VMs == 8 && o.Status.PricePerHour == "1.2", err
	})
	eventually(t, "the leader publishes what they cost", func() (bool, error) {
		for _, r := range cluster.Controllers() {
			if metric(t, r, "stowage_peerpods_price_per_hour", `namespace="`+n.Namespace+`",type="middle"`) == 0.8 {
				return true, nil
			}
		}
		return false, nil
	})

	// VMs can be made again: a new pod finds out, and the next ones follow.
	a.Refuse("cheap", false)
	suite.EventuallyWithin(t, 2*suite.WaitTimeout, "the type is open", func() (bool, error) {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		return len(o.Status.Closed) == 0, err
	})
	n.Scale(t, d, 5)
	have(n, "web", map[string]int{"middle Running": 4, "cheap Running": 1})
}

func inZone(zone string) map[string]string { return map[string]string{corev1.LabelTopologyZone: zone} }

// typedTemplate is a template of pods of zone-a that get a type, and whose VMs an adaptor makes.
func typedTemplate(a *suite.Adaptor, app string) corev1.PodTemplateSpec {
	template := podTemplate(app)
	template.Spec.RuntimeClassName, template.Spec.NodeSelector = new(suite.TypedClass), inZone("zone-a")
	template.Spec.Containers[0].Resources.Limits = testkit.ResourceList("cpu=1,memory=2Gi")
	a.Own(&template)
	return template
}

// A template that was copied from a pod with a type gets the type of its own size.
func TestCopiedVMType(t *testing.T) {
	n := newTenant(t)
	catalogOf(t, n, vmType("small", 2, "4Gi", "0.1"), vmType("large", 8, "16Gi", "0.4"))
	first := n.CreatePod(t, typed("first").Container("a", "", "cpu=4"))
	if got := first.Annotations[stowage.MachineTypeAnnotation]; got != "large" {
		t.Fatalf("the pod has type %q", got)
	}
	d := n.Deployment("copy", 1, nil)
	d.Spec.Template.Annotations = first.Annotations
	d.Spec.Template.Spec.RuntimeClassName = new(suite.TypedClass)
	d.Spec.Template.Spec.Containers[0].Resources.Limits = testkit.ResourceList("cpu=1")
	must(t, n.Create(t.Context(), d))
	eventually(t, "the pod has the type of its own size", func() (bool, error) {
		pods, err := n.Pods(t.Context(), "copy")
		return len(pods) == 1 && pods[0].Annotations[stowage.MachineTypeAnnotation] == "small", err
	})
}

func TestVMCatalogSamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(repo, "config", "samples", "vmcatalogs", "*.yaml"))
	must(t, err)
	if len(files) != 3 {
		t.Fatalf("the samples are %v", files)
	}
	for _, file := range files {
		objects, err := controlplane.ReadObjects(file)
		must(t, err)
		for _, o := range objects {
			must(t, cluster.Client.Create(t.Context(), o, client.DryRunAll))
		}
	}
}
