package admit

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
	"github.com/stowage-dev/stowage/test/testkit"
)

// broken cannot read one kind of object.
type broken struct {
	*manifests.Snapshot // of objects; see ready
	objects             world.Objects
	kind                string
}

var errNoAnswer = errors.New("no answer")

func (b *broken) fails(kind string) error {
	if b.kind == kind {
		return errNoAnswer
	}
	return nil
}

func (b *broken) Workload(ctx context.Context, ns string, ref world.Ref) (*world.Workload, error) {
	if err := b.fails("DaemonSet"); err != nil {
		return nil, err
	}
	return b.Snapshot.Workload(ctx, ns, ref)
}

func (b *broken) Template(ctx context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error) {
	if err := b.fails("template"); err != nil {
		return nil, err
	}
	return b.Snapshot.Template(ctx, name)
}

func (b *broken) Node(ctx context.Context, name string) (*corev1.Node, error) {
	if err := b.fails("node"); err != nil {
		return nil, err
	}
	return b.Snapshot.Node(ctx, name)
}

func (b *broken) LimitRanges(ctx context.Context, ns string) ([]corev1.LimitRange, error) {
	if err := b.fails("LimitRange"); err != nil {
		return nil, err
	}
	return b.Snapshot.LimitRanges(ctx, ns)
}

func (b *broken) ResourceQuotas(ctx context.Context, ns string) ([]corev1.ResourceQuota, error) {
	if err := b.fails("ResourceQuota"); err != nil {
		return nil, err
	}
	return b.Snapshot.ResourceQuotas(ctx, ns)
}

func template(edit func(*flexdaemonsets.FlexDaemonsetTemplateSpec)) flexdaemonsets.FlexDaemonsetTemplate {
	t := flexdaemonsets.FlexDaemonsetTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tenth"}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{CPUPercentage: new(int32(10))}}
	if edit != nil {
		edit(&t.Spec)
	}
	return t
}

func static() *broken {
	ds := world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "uid"}, Namespace: "default"}
	ds.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: "tenth"}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	node.Status.Allocatable = testkit.ResourceList("cpu=4,memory=16Gi")
	return &broken{objects: world.Objects{
		Workloads: []*world.Workload{&ds}, Nodes: []corev1.Node{node}, Templates: []flexdaemonsets.FlexDaemonsetTemplate{template(nil)},
	}}
}

// ready returns it with the objects as they are now.
func (b *broken) ready() *broken {
	b.Snapshot = manifests.New(b.objects)
	return b
}

func agent(t *testing.T, edit func(*corev1.Pod)) *podpatch.Pod {
	t.Helper()
	p := testkit.Pod("agent-x").Container("c", "cpu=100m", "").Obj()
	p.Spec.NodeName = "n4"
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "uid", Controller: new(true)}}
	if edit != nil {
		edit(p)
	}
	return testkit.View(t, p)
}

func TestDecide(t *testing.T) {
	annotate := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: name}
		}
	}
	for name, tc := range map[string]struct {
		pod     func(*corev1.Pod)
		cluster func(*broken)
		cpu     podpatch.Quantity // "" keeps what it declares
		warning string
		event   stowage.EventReason
		fails   bool
	}{
		"a share of its node":                 {cpu: "400m"},
		"no DaemonSet's pod":                  {pod: func(p *corev1.Pod) { p.OwnerReferences = nil }},
		"an annotation on another pod":        {pod: func(p *corev1.Pod) { p.OwnerReferences = nil; annotate("tenth")(p) }, warning: "for the pods of a DaemonSet"},
		"no template":                         {cluster: func(b *broken) { b.objects.Workloads[0].Annotations = nil }},
		"a DaemonSet that does not exist":     {cluster: func(b *broken) { b.objects.Workloads = nil }, warning: "DaemonSet", event: stowage.EventTemplateMissing},
		"one of a kind that may not be read":  {cluster: func(b *broken) { b.objects.Workloads = nil }, pod: func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "apps.kruise.io/v1alpha1" }},
		"the pod's annotation is enough":      {cluster: func(b *broken) { b.objects.Workloads = nil }, pod: annotate("tenth"), cpu: "400m"},
		"a template that does not exist":      {pod: annotate("none"), warning: `"none"`, event: stowage.EventTemplateMissing},
		"a template's name that can't be one": {pod: annotate("A B"), warning: `"A B"`, event: stowage.EventTemplateMissing},
		"an invalid template": {cluster: func(b *broken) {
			b.objects.Templates[0] = template(func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.CPUPercentage = new(int32(1000)) })
		}, warning: "invalid", event: stowage.EventInvalidTemplate},
		"a node that does not exist": {pod: func(p *corev1.Pod) { p.Spec.NodeName = "gone" }, warning: "does not exist", event: stowage.EventNodeUnknown},
		"no node":                    {pod: func(p *corev1.Pod) { p.Spec.NodeName = "" }, warning: "does not say which node", event: stowage.EventNodeUnknown},
		"no node, but a minimum": {pod: func(p *corev1.Pod) { p.Spec.NodeName = "" }, cluster: func(b *broken) {
			b.objects.Templates[0] = template(func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.MinCPU = "50m" })
		}, cpu: "50m", warning: "gets the minimums", event: stowage.EventNodeUnknown},
		"a LimitRange that refuses it": {cluster: func(b *broken) {
			b.objects.LimitRanges = []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: "small", Namespace: "default"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: "Container", Max: testkit.ResourceList("cpu=200m")}}}}}
		}, warning: "small", event: stowage.EventLimitRangeRefusesSize},
		"a quota on limits": {cluster: func(b *broken) {
			b.objects.ResourceQuotas = []corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"}, Spec: corev1.ResourceQuotaSpec{Hard: testkit.ResourceList("limits.cpu=10")}}}
		}, cpu: "400m"},
		"the DaemonSet can't be read":  {cluster: func(b *broken) { b.kind = "DaemonSet" }, fails: true},
		"the template can't be read":   {cluster: func(b *broken) { b.kind = "template" }, fails: true},
		"the node can't be read":       {cluster: func(b *broken) { b.kind = "node" }, fails: true},
		"LimitRanges can't be read":    {cluster: func(b *broken) { b.kind = "LimitRange" }, fails: true},
		"ResourceQuotas can't be read": {cluster: func(b *broken) { b.kind = "ResourceQuota" }, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := static()
			if tc.cluster != nil {
				tc.cluster(c)
			}
			f := &Feature{World: c.ready()}
			pod := agent(t, tc.pod)
			d, err := f.Decide(t.Context(), feature.Request{Namespace: "default", Pod: pod})
			if (err != nil) != tc.fails {
				t.Fatal(err)
			}
			got := podpatch.Quantity("100m")
			if d.Pod != nil {
				got = d.Pod.Spec.Containers[0].Resources.Requests["cpu"]
			}
			want := tc.cpu
			if want == "" {
				want = "100m"
			}
			if got != want {
				t.Errorf("it requests %s of cpu, want %s", got, want)
			}
			if (len(d.Warnings) > 0) != (tc.warning != "") || tc.warning != "" && !strings.Contains(d.Warnings[0], tc.warning) {
				t.Errorf("warnings %q", d.Warnings)
			}
			if (len(d.Events) > 0) != (tc.event != "") || tc.event != "" && d.Events[0].Reason != tc.event {
				t.Errorf("events %+v", d.Events)
			}
			if d.Pod == nil || tc.fails {
				return
			}
			again, err := f.Decide(t.Context(), feature.Request{Namespace: "default", Pod: d.Pod})
			if err != nil || len(podpatch.Diff(d.Pod, again.Pod)) > 0 {
				t.Errorf("a second pass: %v, changes %+v", err, podpatch.Diff(d.Pod, again.Pod))
			}
		})
	}
}

// A record that the pod template has, too, is a copy of another pod's.
func TestCopiedRecord(t *testing.T) {
	c := static()
	const record = `{"containers":{"c":{"requests":{"cpu":"64"}}}}`
	c.objects.Workloads[0].TemplateAnnotations = map[string]string{stowage.DeclaredResourcesAnnotation: record}
	pod := agent(t, func(p *corev1.Pod) { p.Annotations = map[string]string{stowage.DeclaredResourcesAnnotation: record} })
	d, err := (&Feature{World: c.ready()}).Decide(t.Context(), feature.Request{Namespace: "default", Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Pod.Metadata.Annotations[stowage.DeclaredResourcesAnnotation]; strings.Contains(got, "64") {
		t.Errorf("the copied record was believed: %s", got)
	}
}
