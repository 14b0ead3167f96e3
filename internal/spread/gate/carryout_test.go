package gate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// A pod whose seat the API server refuses for a minute is let through without one, and so is a pod about which nobody can decide as things
// are. Any other one waits. A claim that no pod got is given back.
func TestPodsThatNobodySeats(t *testing.T) {
	type answer = func(after time.Duration, seat bool) error
	refuses := func(err error) answer {
		return func(_ time.Duration, seat bool) error {
			if seat {
				return err
			}
			return nil
		}
	}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-0", nil)
	during := func(from, to time.Duration, err error) func(time.Duration) error {
		return func(after time.Duration) error {
			if after >= from && after < to {
				return err
			}
			return nil
		}
	}
	for name, tc := range map[string]struct {
		strategy string
		claim    func(after time.Duration) error
		patch    answer
		seconds  int
		want     string
		events   []stowage.EventReason
		because  string // what the last event says
	}{
		"the seat is refused for less than a minute":  {patch: refuses(invalid), seconds: 59, want: "waits"},
		"the seat is refused for a minute":            {patch: refuses(invalid), seconds: 60, want: openedUnseated, events: []stowage.EventReason{stowage.EventPodUngatedWithoutSeat}, because: "is invalid"},
		"the seat is forbidden":                       {patch: refuses(apierrors.NewForbidden(podResource, "web-0", errors.New("no"))), seconds: 60, want: openedUnseated, events: []stowage.EventReason{stowage.EventPodUngatedWithoutSeat}, because: "is forbidden"},
		"the seat is no good request":                 {patch: refuses(apierrors.NewBadRequest("what")), seconds: 60, want: openedUnseated, events: []stowage.EventReason{stowage.EventPodUngatedWithoutSeat}, because: "what"},
		"the pod is too large with a seat":            {patch: refuses(apierrors.NewRequestEntityTooLargeError("large")), seconds: 60, want: openedUnseated, events: []stowage.EventReason{stowage.EventPodUngatedWithoutSeat}, because: "large"},
		"the pod may not lose the gate either":        {patch: func(time.Duration, bool) error { return invalid }, seconds: 300, want: "waits"},
		"the API server is busy, which says nothing":  {patch: refuses(apierrors.NewTooManyRequestsError("busy")), seconds: 300, want: "waits"},
		"the pod has changed each time":               {patch: refuses(apierrors.NewConflict(podResource, "web-0", errors.New("it has changed"))), seconds: 300, want: "waits"},
		"the pod is gone":                             {patch: refuses(apierrors.NewNotFound(podResource, "web-0")), want: "gone"},
		"the seat is not refused any more":            {patch: func(after time.Duration, _ bool) error { return during(0, 30*time.Second, invalid)(after) }, seconds: 59, want: openedSeated},
		"nobody can decide now, however long that is": {claim: during(0, time.Hour, errNoAnswer), seconds: 300, want: "waits"},
		"meanwhile nobody could decide":               {claim: during(50*time.Second, 65*time.Second, errNoAnswer), patch: refuses(invalid), seconds: 100, want: "waits"},
		"an invalid strategy, for less than a minute": {strategy: "p", seconds: 59, want: "waits", events: []stowage.EventReason{stowage.EventInvalidStrategy}},
		"an invalid strategy, for a minute":           {strategy: "p", seconds: 60, want: openedUnseated, events: []stowage.EventReason{stowage.EventInvalidStrategy, stowage.EventPodUngatedWithoutSeat}, because: "is invalid"},
		"nothing is refused":                          {want: openedSeated},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench()
			if tc.claim != nil {
				b.seats.answer = func() error { return tc.claim(b.clock.Since(start)) }
			}
			if tc.patch != nil {
				b.api.refuse = func(seat bool) error { return tc.patch(b.clock.Since(start), seat) }
			}
			strategy := tc.strategy
			if strategy == "" {
				strategy = halves
			}
			pod := gatedPod("web-0", strategy)
			b.comes(pod)
			b.pass(t, tc.seconds)
			if got := b.became(); got != tc.want {
				t.Errorf("it became %s, want %s", got, tc.want)
			}
			kept := 0
			if tc.want == openedSeated {
				kept = 1
			}
			if len(b.seats.back) != b.seats.given-kept {
				t.Errorf("of %d claims %d were given back", b.seats.given, len(b.seats.back))
			}
			if tc.want == openedUnseated {
				if diff := cmp.Diff(ungated(pod), b.api.patches[len(b.api.patches)-1]); diff != "" {
					t.Errorf("the last patch (-want +got):\n%s", diff)
				}
			}
			var reasons []stowage.EventReason
			said := b.noticed()
			for _, e := range said {
				reasons = append(reasons, stowage.EventReason(strings.Fields(e)[1]))
			}
			if diff := cmp.Diff(tc.events, reasons); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if len(said) > 0 && !strings.Contains(said[len(said)-1], tc.because) {
				t.Errorf("the last event does not say %q: %s", tc.because, said[len(said)-1])
			}
		})
	}
}
