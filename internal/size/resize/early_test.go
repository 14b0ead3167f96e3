package resize

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
)

// A pod that was created just before its template is remembered, for some minutes.
func TestNoteEarly(t *testing.T) {
	at := func(seconds int) metav1.Time {
		return metav1.NewTime(time.Unix(1000, 0).Add(time.Duration(seconds) * time.Second))
	}
	for name, tc := range map[string]struct {
		pod, template int // seconds
		set           int // when the DaemonSet's annotation was written, or 0
		now           int
		early         bool
	}{
		"just before":                   {pod: 0, template: 5, now: 6, early: true},
		"long before":                   {pod: 0, template: 120, now: 121},
		"after":                         {pod: 60, template: 5, now: 61},
		"just before, but long ago":     {pod: 0, template: 5, now: 1000},
		"just before the annotation":    {pod: 300, template: 5, set: 310, now: 311, early: true},
		"after the annotation, in turn": {pod: 320, template: 5, set: 310, now: 321},
	} {
		t.Run(name, func(t *testing.T) {
			pod := agent("100m")
			pod.CreationTimestamp = at(tc.pod)
			tmpl := template(nil)
			tmpl.CreationTimestamp = at(tc.template)
			b := newBench(t, around(pod, tmpl)...)
			if tc.set > 0 {
				b.clock.SetTime(at(tc.set).Time)
				b.noteTemplateSet("ds")
			}
			b.clock.SetTime(at(tc.now).Time)
			if got := b.noteEarly(pod, daemonSet(), tmpl); got != tc.early || b.isEarly(pod.UID) != tc.early {
				t.Errorf("it is early: %t, remembered: %t", got, b.isEarly(pod.UID))
			}
		})
	}
}

// An early pod that cannot be resized is evicted while it is not in use, one at a time.
func TestRecreate(t *testing.T) {
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	for name, tc := range map[string]struct {
		conditions []corev1.PodCondition
		young      bool
		ending     bool // a sibling is being deleted
		gone       bool
		group      bool // it belongs to a scheduling group
		evicted    bool
		again      bool
		forgotten  bool
	}{
		"not ready":                          {evicted: true},
		"ready, of a young DaemonSet":        {conditions: []corev1.PodCondition{ready}, young: true, evicted: true},
		"ready":                              {conditions: []corev1.PodCondition{ready}, forgotten: true},
		"not ready, and a sibling is ending": {ending: true, again: true},
		"not ready, of a scheduling group":   {group: true, forgotten: true},
		"gone":                               {gone: true, evicted: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := agent("100m", tc.conditions...)
			if tc.group {
				pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")}
			}
			tmpl := template(func(s *flexdaemonsets.FlexDaemonsetTemplateSpec) { s.UpdatePolicy = flexdaemonsets.UpdateOnCreate })
			objects := around(pod, tmpl)
			if tc.gone {
				objects = objects[1:]
			}
			b := newBench(t, objects...)
			b.beforeTemplate[pod.UID] = b.clock.Now()
			if tc.ending {
				sibling := agent("100m")
				sibling.Name, sibling.UID, sibling.DeletionTimestamp = "agent-y", "sibling", &metav1.Time{Time: b.clock.Now()}
				if err := b.pods.Load().GetIndexer().Add(sibling); err != nil {
					t.Fatal(err)
				}
			}
			result, err := b.recreate(t.Context(), pod, &comparison{template: tmpl, early: true, young: tc.young})
			if err != nil || (result.RequeueAfter > 0) != tc.again {
				t.Errorf("again after %s, %v", result.RequeueAfter, err)
			}
			err = b.Uncached.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})
			if apierrors.IsNotFound(err) != tc.evicted {
				t.Errorf("the pod after it: %v", err)
			}
			if b.isEarly(pod.UID) == tc.forgotten {
				t.Errorf("it is remembered: %t", b.isEarly(pod.UID))
			}
		})
	}
}
