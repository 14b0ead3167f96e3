package resize

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// How long a pod waits before it is asked to become something, after what became of the
// wishes before.
func TestResizeBackoff(t *testing.T) {
	const minute = time.Minute
	type ask struct {
		patch, refused string
		forLong        bool
		pending        bool // whether the node has not granted the wish before
	}
	cases := map[string]struct {
		asks    []ask
		patch   string
		pending bool
		want    time.Duration
	}{
		"nothing was asked":            {patch: "a"},
		"the last wish came true":      {asks: []ask{{patch: "a"}, {patch: "b"}, {patch: "c"}}, patch: "d"},
		"the node has not granted it":  {asks: []ask{{patch: "a"}}, patch: "b", pending: true, want: minute},
		"nor the ones after it":        {asks: []ask{{patch: "a"}, {patch: "b", pending: true}, {patch: "c", pending: true}}, patch: "d", pending: true, want: 4 * minute},
		"good wishes cost nothing":     {asks: []ask{{patch: "a"}, {patch: "b"}, {patch: "c"}, {patch: "d"}}, patch: "e", pending: true, want: minute},
		"refused":                      {asks: []ask{{patch: "a", refused: "no"}}, patch: "a", want: minute},
		"refused again and again":      {asks: []ask{{patch: "a", refused: "no"}, {patch: "a", refused: "no"}, {patch: "a", refused: "no"}}, patch: "a", want: 4 * minute},
		"at most the longest wait":     {asks: []ask{{patch: "a", refused: "no"}, {patch: "a", refused: "no"}, {patch: "a", refused: "no"}, {patch: "a", refused: "no"}, {patch: "a", refused: "no"}}, patch: "a", want: 10 * minute},
		"refused as invalid":           {asks: []ask{{patch: "a", refused: "no", forLong: true}}, patch: "a", want: 10 * minute},
		"another wish after a refusal": {asks: []ask{{patch: "a", refused: "no", forLong: true}}, patch: "b", want: minute},
		"a refusal of something else":  {asks: []ask{{patch: "a", refused: "no"}, {patch: "b", refused: "no"}}, patch: "b", want: minute},
		"a good one ends the refusals": {asks: []ask{{patch: "a", refused: "no"}, {patch: "b"}}, patch: "a"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Unix(0, 0))
			s := &run{
				Controller: &Controller{Clock: clock, Timing: Timing{Backoff: minute, MaxBackoff: 10 * minute}},
				tries:      map[types.UID]*tries{},
			}
			pod := func(pending bool) *corev1.Pod {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}}
				if pending {
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue}}
				}
				return p
			}
			for _, a := range tc.asks {
				s.asked(pod(a.pending), a.patch, a.refused, a.forLong)
			}
			if got := s.waitFor(pod(tc.pending), tc.patch); got != tc.want {
				t.Errorf("it waits %s, want %s", got, tc.want)
			}
			clock.Step(tc.want)
			if got := s.waitFor(pod(tc.pending), tc.patch); got != 0 {
				t.Errorf("after that it waits %s", got)
			}
			s.forget("pod")
			if got := s.waitFor(pod(true), tc.patch); got != 0 {
				t.Errorf("forgotten, it waits %s", got)
			}
		})
	}
}
