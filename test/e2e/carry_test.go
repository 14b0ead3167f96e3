package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// priorityClass makes a PriorityClass of the test's own.
func (n *tenant) priorityClass(t *testing.T, name string, value int32) *schedulingv1.PriorityClass {
	t.Helper()
	never := corev1.PreemptNever
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace + "." + name}, Value: value, PreemptionPolicy: &never}
	must(t, n.Create(t.Context(), class))
	t.Cleanup(func() { _ = client.IgnoreNotFound(n.Delete(context.Background(), class)) })
	return class
}

// carries says of each pod of an app what it has of what its pool gives.
func (n *tenant) carries(ctx context.Context, app string) ([]string, error) {
	var pods corev1.PodList // those of a Job end soon
	err := n.List(ctx, &pods, client.InNamespace(n.Namespace), client.MatchingLabels{"app": app})
	var out []string
	for i := range pods.Items {
		p := &pods.Items[i]
		priority := int32(0)
		if p.Spec.Priority != nil {
			priority = *p.Spec.Priority
		}
		out = append(out, fmt.Sprintf("%s: %q %q %d %d", p.Labels[stowage.PoolLabel], p.Labels["tier"], p.Annotations["note"], priority, *p.Spec.TerminationGracePeriodSeconds))
	}
	slices.Sort(out)
	return out, err
}

// carry has pool spot give to its pods all that a pool can give.
func carry(class string) func(*versprei.PodDistributorSpec) {
	return func(spec *versprei.PodDistributorSpec) {
		p := &spec.Distribution[1]
		p.PodLabels = map[string]versprei.LabelValue{"tier": "spot"}
		p.PodAnnotations, p.PriorityClassName, p.TerminationGracePeriodSeconds = map[string]versprei.AnnotationValue{"note": "may end"}, class, new(int64(5))
	}
}

// New pods get what their pool gives. The API server sets the priority of the class, and the ReplicaSet keeps its pods.
func TestPoolCarries(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "od", "1", 100)
	n.PoolNode(t, "spot", "1", 100)
	low, high := n.priorityClass(t, "low", -10), n.priorityClass(t, "high", 1000)
	d := n.Shortage(t, "web", 10, func(spec *versprei.PodDistributorSpec) {
		carry(low.Name)(spec)
		spec.Distribution[1].PodLabels["app"] = "other" // by which the ReplicaSet selects its pods
	})
	d.Spec.Template.Spec.PriorityClassName, d.Spec.Template.Spec.TerminationGracePeriodSeconds = high.Name, nil
	must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=2 spot=8")
	got, err := n.carries(t.Context(), "web")
	must(t, err)
	want := append(slices.Repeat([]string{`od: "" "" 1000 30`}, 2), slices.Repeat([]string{`spot: "spot" "may end" -10 5`}, 8)...)
	if !slices.Equal(got, want) {
		t.Errorf("the pods have %q", got)
	}
	if n.Seen("web") != 10 {
		t.Errorf("there have been %d pods", n.Seen("web"))
	}

	// Pods of a Job, whose selector is not known, get no label.
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "job"}, Spec: batchv1.JobSpec{Parallelism: new(int32(5)), Completions: new(int32(5)), Template: podTemplate("job")}}
	suite.OneCPU(&job.Spec.Template.Spec)
	job.Spec.Template.Spec.RestartPolicy, job.Spec.Template.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, nil
	pd := &versprei.PodDistributor{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: "job"}, Spec: versprei.PodDistributorSpec{
		Distribution: []versprei.Pool{n.Pool("od", 20), n.Pool("spot", 80)}, Target: versprei.Target{APIVersion: "batch/v1", Kind: "Job", Name: "job"},
	}}
	carry(low.Name)(&pd.Spec)
	job.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/later"}} // one that ends would make room in its pool for the next
	must(t, n.Create(t.Context(), pd))
	must(t, n.Create(t.Context(), job))
	eventually(t, "the Job's pods get the rest", func() (bool, error) {
		got, err := n.carries(t.Context(), "job")
		return slices.Equal(got, append([]string{`od: "" "" 0 30`}, slices.Repeat([]string{`spot: "" "may end" -10 5`}, 4)...)), err
	})

	// Without the class, pods keep theirs, and nobody is refused. An event and status say so.
	must(t, n.Delete(t.Context(), low))
	n.Scale(t, d, 20)
	n.InPools(t, "web", "od=4 spot=16")
	eventually(t, "an event says so", func() (bool, error) {
		var events eventsv1.EventList
		err := n.List(t.Context(), &events, client.InNamespace(n.Namespace))
		return slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool { return e.Reason == string(stowage.EventPriorityClassMissing) }), err
	})
	out, errs, _ := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
	if !strings.Contains(out, "pool spot has priorityClassName "+low.Name+", and there is no such PriorityClass") {
		t.Errorf("status says\n%s%s", out, errs)
	}
}

// Pods that were there before keep what they have, and status counts them.
func TestPoolCarriesNothingToOldPods(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.PoolNode(t, "od", "1", 100)
	n.PoolNode(t, "spot", "1", 100)
	d := n.Shortage(t, "web", 10, nil)
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = nil
	must(t, n.Create(t.Context(), d))
	n.InPools(t, "web", "od=2 spot=8")
	pd := &versprei.PodDistributor{}
	must(t, n.Get(t.Context(), n.Key("web"), pd))
	before := pd.DeepCopy()
	carry("")(&pd.Spec)
	must(t, n.Patch(t.Context(), pd, client.MergeFrom(before)))
	says := func(what string) {
		t.Helper()
		last := ""
		eventually(t, "status says: "+what, func() (bool, error) {
			out, _, exit := suite.CLI(t, cluster, append([]string{"status", "-n", n.Namespace}, suite.SpreadOnly...)...)
			last = out
			return exit == 0 && strings.Contains(out, what), nil
		})
		if t.Failed() {
			t.Log(last)
		}
	}
	says("8 pod(s) lack what their pool gives to new pods (pool spot: label tier, annotation note, at most 5 s to end)")
	n.Revise(t, d, "2")
	n.RolledOut(t, d)
	n.InPools(t, "web", "od=2 spot=8")
	says("Everything is as it should be")
	got, err := n.carries(t.Context(), "web")
	must(t, err)
	if want := append(slices.Repeat([]string{`od: "" "" 0 30`}, 2), slices.Repeat([]string{`spot: "spot" "may end" 0 5`}, 8)...); !slices.Equal(got, want) {
		t.Errorf("the pods have %q", got)
	}
}
