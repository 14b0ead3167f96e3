package admit

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
	"github.com/stowage-dev/stowage/test/testkit"
)

type unreadable struct{ *manifests.Snapshot }

func (unreadable) LimitRanges(context.Context, string) ([]corev1.LimitRange, error) {
	return nil, errors.New("no answer")
}

func (unreadable) ResourceQuotas(context.Context, string) ([]corev1.ResourceQuota, error) {
	return nil, errors.New("no answer")
}

func TestDecide(t *testing.T) {
	limit := func(item corev1.LimitRangeItem) *manifests.Snapshot {
		return manifests.New(world.Objects{LimitRanges: []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}}})
	}
	quota := func(hard string, scopes ...corev1.ResourceQuotaScope) *manifests.Snapshot {
		return manifests.New(world.Objects{ResourceQuotas: []corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"}, Spec: corev1.ResourceQuotaSpec{Hard: testkit.ResourceList(hard), Scopes: scopes}}}})
	}
	kata := func() *testkit.PodBuilder { return testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass) }
	for name, tc := range map[string]struct {
		pod      *testkit.PodBuilder
		cluster  world.Snapshot
		vcpus    string
		warnings []string
		events   int
	}{
		"another RuntimeClass":      {pod: testkit.Pod("p").RuntimeClass("runc").Container("c", "cpu=1", "")},
		"no containers":             {pod: kata()},
		"a peer pod":                {pod: kata().Container("c", "cpu=1", "cpu=1500m"), vcpus: "2"},
		"a peer pod without a size": {pod: kata().Container("c", "", "")},
		"a LimitRange's minimum":    {pod: kata().Container("c", "cpu=1", ""), cluster: limit(corev1.LimitRangeItem{Type: "Container", Min: testkit.ResourceList("cpu=1")}), vcpus: "1", warnings: []string{"min.cpu (Container)"}, events: 1},
		"a LimitRange's ratio":      {pod: kata().Container("c", "cpu=1", ""), cluster: limit(corev1.LimitRangeItem{Type: "Pod", MaxLimitRequestRatio: testkit.ResourceList("cpu=2")}), vcpus: "1", warnings: []string{"maxLimitRequestRatio.cpu (Pod)"}, events: 1},
		"bounds on volumes":         {pod: kata().Container("c", "cpu=1", ""), cluster: limit(corev1.LimitRangeItem{Type: "PersistentVolumeClaim", Max: testkit.ResourceList("storage=1")}), vcpus: "1"},
		"a quota on cpu":            {pod: kata().Container("c", "cpu=1", ""), cluster: quota("requests.cpu=1"), vcpus: "1", warnings: []string{"in place of requests.cpu"}},
		"a quota on best effort":    {pod: kata().Container("c", "cpu=1", ""), cluster: quota("pods=1", corev1.ResourceQuotaScopeBestEffort), vcpus: "1"},
		"nothing can be looked up":  {pod: kata().Container("c", "cpu=1", ""), cluster: &unreadable{}, vcpus: "1", warnings: []string{"whether a LimitRange", "whether a ResourceQuota"}},
		"a device that is no GPU":   {pod: kata().Container("c", "cpu=1,vendor.example/nic=1", ""), vcpus: "1", warnings: []string{"vendor.example/nic"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.cluster == nil {
				tc.cluster = manifests.New(world.Objects{})
			}
			f := &Feature{Config: peerpod.DefaultConfig(), World: tc.cluster}
			pod := tc.pod.View(t)
			d, err := f.Decide(t.Context(), feature.Request{Namespace: "default", Pod: pod})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if d.Pod != nil {
				got = d.Pod.Metadata.Annotations[stowage.DefaultVCPUsAnnotation]
			}
			if got != tc.vcpus || len(d.Warnings) != len(tc.warnings) || len(d.Events) != tc.events {
				t.Errorf("%q vCPUs, warnings %q, %d events", got, d.Warnings, len(d.Events))
			}
			for i, w := range tc.warnings {
				if i < len(d.Warnings) && !strings.Contains(d.Warnings[i], w) {
					t.Errorf("warning %q, want %q", d.Warnings[i], w)
				}
			}
			if d.Pod == nil {
				return
			}
			again, err := f.Decide(t.Context(), feature.Request{Namespace: "default", Pod: d.Pod})
			if err != nil || len(podpatch.Diff(d.Pod, again.Pod)) > 0 {
				t.Errorf("a second pass: %v, changes %+v", err, podpatch.Diff(d.Pod, again.Pod))
			}
		})
	}
}

// Whoever copies a running pod into a template copies its record; it says nothing of the new pods.
func TestRecordInTemplate(t *testing.T) {
	record := `{"containers":{"c":{"limits":{"cpu":"64"}}}}`
	owner := world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "uid"}, Namespace: "default"}
	for name, tc := range map[string]struct {
		template map[string]string
		vcpus    string
		warnings int
	}{
		"in the template":     {map[string]string{stowage.OriginalResourcesAnnotation: record}, "2", 1},
		"not in the template": {nil, "64", 0}, // an earlier pass wrote it
	} {
		t.Run(name, func(t *testing.T) {
			owner.TemplateAnnotations = tc.template
			f := &Feature{Config: peerpod.DefaultConfig(), World: manifests.New(world.Objects{Workloads: []*world.Workload{&owner}})}
			p := testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "", "cpu=2").Annotation(stowage.OriginalResourcesAnnotation, record).Obj()
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "uid", Controller: new(true)}}
			d, err := f.Decide(t.Context(), feature.Request{Namespace: "default", Pod: podpatch.FromPod(p)})
			if err != nil {
				t.Fatal(err)
			}
			if got := d.Pod.Metadata.Annotations[stowage.DefaultVCPUsAnnotation]; got != tc.vcpus || len(d.Warnings) != tc.warnings || len(d.Events) != tc.warnings {
				t.Errorf("%s vCPUs, warnings %q, events %v", got, d.Warnings, d.Events)
			}
		})
	}
}

func TestBadRecord(t *testing.T) {
	pod := testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "cpu=1", "").View(t)
	pod.Spec.Containers[0].Resources.Requests["cpu"] = "1e99"
	if _, err := (&Feature{Config: peerpod.DefaultConfig(), World: manifests.New(world.Objects{})}).Decide(t.Context(), feature.Request{Namespace: "default", Pod: pod}); err == nil {
		t.Error("a quantity that can't be parsed is no error")
	}
}
