package placement

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// A pod gets what it lacks. Its own labels, annotations and a shorter grace period stay, and a second call changes nothing.
func TestCarry(t *testing.T) {
	carry := Carry{Labels: map[string]string{"tier": "spot", "app": "x"}, Annotations: map[string]string{"note": "spot"}, PriorityClass: "low", Priority: new(int32(-10)), Preemption: new(corev1.PreemptNever), GracePeriod: new(int64(10))}
	for name, tc := range map[string]struct{ was, want podpatch.Pod }{
		"a pod without any": {
			podpatch.Pod{Spec: podpatch.Spec{Priority: new(int32(7))}},
			podpatch.Pod{Metadata: podpatch.Metadata{Labels: map[string]string{"tier": "spot", "app": "x"}, Annotations: map[string]string{"note": "spot"}}, Spec: podpatch.Spec{PriorityClassName: "low", Priority: new(int32(-10)), PreemptionPolicy: new(corev1.PreemptNever), TerminationGracePeriodSeconds: new(int64(10))}},
		},
		"its own stay": {
			podpatch.Pod{Metadata: podpatch.Metadata{Labels: map[string]string{"tier": "", "app": "web"}, Annotations: map[string]string{"note": "mine"}}, Spec: podpatch.Spec{PriorityClassName: "high", TerminationGracePeriodSeconds: new(int64(5))}},
			podpatch.Pod{Metadata: podpatch.Metadata{Labels: map[string]string{"tier": "", "app": "web"}, Annotations: map[string]string{"note": "mine"}}, Spec: podpatch.Spec{PriorityClassName: "low", Priority: new(int32(-10)), PreemptionPolicy: new(corev1.PreemptNever), TerminationGracePeriodSeconds: new(int64(5))}},
		},
		"the API server has not set its priority": {
			podpatch.Pod{Spec: podpatch.Spec{PriorityClassName: "low", TerminationGracePeriodSeconds: new(int64(60))}},
			podpatch.Pod{Metadata: podpatch.Metadata{Labels: map[string]string{"tier": "spot", "app": "x"}, Annotations: map[string]string{"note": "spot"}}, Spec: podpatch.Spec{PriorityClassName: "low", Priority: new(int32(-10)), PreemptionPolicy: new(corev1.PreemptNever), TerminationGracePeriodSeconds: new(int64(10))}},
		},
	} {
		for range 2 {
			carry.Apply(&tc.was)
			if diff := cmp.Diff(&tc.want, &tc.was); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

// A label by which an owner selects its pods is not set, nor any where that is not known.
func TestCarryForOwner(t *testing.T) {
	carry := Carry{Labels: map[string]string{"tier": "spot", "app": "x"}, PriorityClass: "low"}
	for name, tc := range map[string]struct {
		keys, left []string
		want       map[string]string
	}{
		"none of them":  {[]string{"name"}, nil, map[string]string{"tier": "spot", "app": "x"}},
		"one of them":   {[]string{"app", "name"}, []string{"app"}, map[string]string{"tier": "spot"}},
		"not known":     {nil, []string{"app", "tier"}, map[string]string{}},
		"it names none": {[]string{}, nil, map[string]string{"tier": "spot", "app": "x"}},
	} {
		got, left := carry.ForOwner(tc.keys)
		if diff := cmp.Diff(tc.want, got.Labels); diff != "" || !slices.Equal(left, tc.left) || got.PriorityClass != "low" || len(carry.Labels) != 2 {
			t.Errorf("%s: %v are left (-want +got):\n%s", name, left, diff)
		}
	}
}

func TestCarryLacks(t *testing.T) {
	carry := Carry{Labels: map[string]string{"tier": "spot"}, Annotations: map[string]string{"note": "x"}, PriorityClass: "low", GracePeriod: new(int64(10))}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"tier": "any"}, Annotations: map[string]string{"note": ""}}}
		p.Spec.PriorityClassName, p.Spec.TerminationGracePeriodSeconds = "low", new(int64(10))
		change(p)
		return p
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"it has all":    {func(*corev1.Pod) {}, false},
		"no label":      {func(p *corev1.Pod) { p.Labels = nil }, true},
		"no annotation": {func(p *corev1.Pod) { p.Annotations = nil }, true},
		"another class": {func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }, true},
		"another class of a group": {func(p *corev1.Pod) {
			p.Spec.PriorityClassName, p.Spec.SchedulingGroup = "high", &corev1.PodSchedulingGroup{}
		}, false},
		"a longer grace period": {func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil }, true},
	} {
		if got := carry.Lacks(pod(tc.change)); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if (&Carry{}).Lacks(&corev1.Pod{}) || (&Carry{}).String() != "" || carry.String() != "label tier, annotation note, PriorityClass low, at most 10 s to end" {
		t.Errorf("it gives %q", carry.String())
	}
}
