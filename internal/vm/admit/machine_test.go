package admit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
	"github.com/stowage-dev/stowage/test/testkit"
)

// twoTypes is a catalog of a small and a large type; the small one is as closed says.
func twoTypes(closed ...stowage.ClosedVMType) []*catalog.Catalog {
	return []*catalog.Catalog{catalog.Compile(&stowage.VMCatalog{
		ObjectMeta: metav1.ObjectMeta{Name: "two"},
		Spec: stowage.VMCatalogSpec{FailAfter: "5m", Types: []stowage.VMType{
			{Name: "small", VCPUs: 2, Memory: resource.MustParse("4Gi"), PricePerHour: "0.1"}, {Name: "large", VCPUs: 8, Memory: resource.MustParse("16Gi"), PricePerHour: "0.4"},
		}},
		Status: stowage.VMCatalogStatus{Closed: closed},
	})}
}

func featureWith(catalogs []*catalog.Catalog, err error) *Feature {
	return &Feature{
		Config: peerpod.DefaultConfig(), World: manifests.New(world.Objects{}), Tries: NewTries(clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))),
		Catalogs: func(context.Context) ([]*catalog.Catalog, error) { return catalogs, err },
	}
}

func decide(t *testing.T, f *Feature, pod *podpatch.Pod, change func(*feature.Request)) feature.Decision {
	t.Helper()
	req := feature.Request{Namespace: "default", Pod: pod}
	if change != nil {
		change(&req)
	}
	d, err := f.Decide(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func typeOf(d feature.Decision) string {
	return d.Pod.Metadata.Annotations[stowage.MachineTypeAnnotation]
}

// A second pass keeps the type while the pod asks for the same, whatever has become of the catalog; and chooses anew for what was injected since.
func TestSecondPass(t *testing.T) {
	pod := testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "", "cpu=2,memory=2Gi").View(t)
	first := decide(t, featureWith(twoTypes(), nil), pod, nil)
	if got := typeOf(first); got != "small" {
		t.Fatalf("the pod gets type %q", got)
	}
	closed := twoTypes(stowage.ClosedVMType{Type: "small", Namespace: "default", Phase: stowage.VMTypeClosed})
	trying := twoTypes(stowage.ClosedVMType{Type: "small", Namespace: "default", Phase: stowage.VMTypeTrying})
	for name, f := range map[string]*Feature{
		"the same catalog": featureWith(twoTypes(), nil), "its type is tried": featureWith(trying, nil), "no catalog": featureWith(nil, nil), "none that can be read": featureWith(nil, errors.New("no answer")),
	} {
		again := decide(t, f, first.Pod, nil)
		if patch := podpatch.Diff(first.Pod, again.Pod); len(patch) > 0 {
			t.Errorf("%s: the second pass changes %v", name, patch)
		}
	}
	if got := typeOf(decide(t, featureWith(closed, nil), first.Pod, nil)); got != "large" { // a copy, in a template that Stowage does not know
		t.Errorf("with its type closed, the pod gets type %q", got)
	}
	inZone := testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "", "cpu=2,memory=2Gi").View(t)
	inZone.Spec.NodeSelector = map[string]string{"topology.kubernetes.io/zone": "a"}
	inZone = decide(t, featureWith(twoTypes(), nil), inZone, nil).Pod
	for zone, want := range map[string]string{"a": "large", "b": "small", "": "small"} {
		elsewhere := twoTypes(stowage.ClosedVMType{Type: "small", Namespace: "default", Zone: zone, Phase: stowage.VMTypeClosed})
		if got := typeOf(decide(t, featureWith(elsewhere, nil), inZone, nil)); got != want {
			t.Errorf("with its type closed in zone %q, the pod of zone a gets type %q", zone, got)
		}
	}
	elsewhere := first.Pod.Clone()
	elsewhere.Metadata.Annotations[stowage.DefaultVCPUsAnnotation] = "5" // by another webhook
	if got := typeOf(decide(t, featureWith(twoTypes(), nil), elsewhere, nil)); got != "large" {
		t.Errorf("with other vCPUs, the pod gets type %q", got)
	}
	withModel := testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "", "cpu=2,memory=2Gi").Annotation(stowage.GPUModelAnnotation, "l4").View(t)
	once := decide(t, featureWith(twoTypes(), nil), withModel, nil)
	if patch := podpatch.Diff(once.Pod, decide(t, featureWith(nil, errors.New("no answer")), once.Pod, nil).Pod); typeOf(once) != "small" || len(patch) > 0 {
		t.Errorf("with a model, the pod gets type %q, and the second pass changes %v", typeOf(once), patch)
	}
	injected := first.Pod.Clone()
	injected.Spec.Containers = append(injected.Spec.Containers, podpatch.Container{Name: "sidecar", Resources: &podpatch.Resources{Limits: podpatch.ResourceList{"cpu": "1"}}})
	if got := typeOf(decide(t, featureWith(twoTypes(), nil), injected, nil)); got != "large" {
		t.Errorf("with a sidecar, the pod gets type %q", got)
	}
}

// A closed type goes to one pod for each try; none of a dry run or an audit takes it.
func TestTries(t *testing.T) {
	trying := twoTypes(stowage.ClosedVMType{Type: "small", Namespace: "default", Phase: stowage.VMTypeTrying, Since: metav1.NewTime(time.Unix(1000, 0))})
	f := featureWith(trying, nil)
	clock := f.Tries.clock.(*clocktesting.FakePassiveClock)
	pod := func() *podpatch.Pod {
		return testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "", "cpu=2").View(t)
	}
	for name, change := range map[string]func(*feature.Request){"dry run": func(r *feature.Request) { r.DryRun = true }, "audit": func(r *feature.Request) { r.Audit = true }} {
		if got := typeOf(decide(t, f, pod(), change)); got != "large" {
			t.Errorf("%s: the pod gets type %q", name, got)
		}
	}
	var mu sync.Mutex
	count := map[string]int{}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			d := decide(t, f, pod(), nil)
			mu.Lock()
			defer mu.Unlock()
			count[typeOf(d)]++
		})
	}
	all.Wait()
	if count["small"] != 1 || count["large"] != 49 {
		t.Errorf("the types are %v", count)
	}
	clock.SetTime(clock.Now().Add(5 * time.Minute)) // the pod may never have come to be
	if got := typeOf(decide(t, f, pod(), nil)); got != "small" {
		t.Errorf("after failAfter, the pod gets type %q", got)
	}
}

func TestWarningsOfTypes(t *testing.T) {
	closed := stowage.ClosedVMType{Type: "small", Namespace: "default", Phase: stowage.VMTypeClosed}
	for name, tc := range map[string]struct {
		feature *Feature
		limits  string
		want    string
		warning string
	}{
		"it fits":                          {featureWith(twoTypes(), nil), "cpu=1", "small", ""},
		"none fits":                        {featureWith(twoTypes(), nil), "cpu=9", "", "the nearest type, large, lacks 1 CPU"},
		"a cheaper one closed":             {featureWith(twoTypes(closed), nil), "cpu=1", "large", "because VMs of small, which cost less, could not be made"},
		"all closed":                       {featureWith(twoTypes(closed, stowage.ClosedVMType{Type: "large", Namespace: "default", Phase: stowage.VMTypeClosed}), nil), "cpu=1", "small", "it gets small (2 vCPUs, 4Gi) and may wait"},
		"closed for another":               {featureWith(twoTypes(stowage.ClosedVMType{Type: "small", Namespace: "other", Phase: stowage.VMTypeClosed}), nil), "cpu=1", "small", ""},
		"catalogs unreadable":              {featureWith(nil, errors.New("no answer")), "cpu=1", "", "cannot be read: no answer"},
		"another RuntimeClass":             {featureWith([]*catalog.Catalog{catalog.Compile(&stowage.VMCatalog{Spec: stowage.VMCatalogSpec{RuntimeClasses: []string{"other"}}})}, nil), "cpu=1", "", ""},
		"its own type":                     {featureWith(twoTypes(), nil), "cpu=1,own=large", "large", ""},
		"its own type, which is too small": {featureWith(twoTypes(), nil), "cpu=4,own=small", "small", "a VM of that type is too small"},
		"its own type, of no catalog":      {featureWith(twoTypes(), nil), "cpu=4,own=other", "other", "which VMCatalog two does not have"},
		"its own vCPUs":                    {featureWith(twoTypes(), nil), "cpu=4,vcpus=2", "small", ""},
		"it asks for no amount":            {featureWith(twoTypes(), nil), "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			limits, own, _ := strings.Cut(tc.limits, ",own=")
			limits, vcpus, _ := strings.Cut(limits, ",vcpus=")
			pod := testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "", limits)
			if own != "" {
				pod.Annotation(stowage.MachineTypeAnnotation, own)
			}
			if vcpus != "" {
				pod.Annotation(stowage.DefaultVCPUsAnnotation, vcpus)
			}
			d := decide(t, tc.feature, pod.View(t), nil)
			if got := typeOf(d); got != tc.want {
				t.Errorf("the pod gets type %q, want %q", got, tc.want)
			}
			text := strings.Join(d.Warnings, "\n")
			if tc.warning == "" && text != "" || !strings.Contains(text, tc.warning) {
				t.Errorf("warnings are %q, want %q", text, tc.warning)
			}
		})
	}
}
