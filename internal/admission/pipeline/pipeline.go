// Package pipeline asks the features about one pod, in a fixed order, and says what becomes of the pod. The webhook, the preview and the
// playground run the same one. It does no I/O but what the features do.
package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Outcome is what became of a feature's decision. It is a metric label.
type Outcome string

// The outcomes.
const (
	OutcomeApplied   Outcome = "applied"   // the pod was changed
	OutcomeUnchanged Outcome = "unchanged" // the pod already is as it should be
	OutcomeAudited   Outcome = "audited"   // the pod would have been changed
	OutcomeSkipped   Outcome = "skipped"   // the feature has nothing to do with the pod
	OutcomeError     Outcome = "error"     // the feature failed; the pod passed without it
	OutcomePanic     Outcome = "panic"     // the feature panicked; the pod passed without it
	OutcomeDropped   Outcome = "dropped"   // the API server would refuse the pod; the pod passed without the feature
	OutcomeWaiting   Outcome = "waiting"   // the pod keeps its scheduling gate until the leader has a seat for it
)

// FeatureResult is what one feature did with one pod.
type FeatureResult struct {
	Feature string
	Outcome Outcome
	Summary string
	Pool    *feature.Pool // see [feature.Decision]
	Err     error         // set if the outcome is an error or a panic
}

// Result is the pipeline's answer for one pod.
type Result struct {
	Patch    podpatch.Patch // empty if the pod stays as it is
	Warnings []string
	Events   []feature.Event
	Features []FeatureResult // empty if no feature was asked
	// LeftAlone says why no feature was asked, if none was.
	LeftAlone string
}

// Pool returns the pool that the pod goes to, or nil if no feature chose one.
func (r *Result) Pool() *feature.Pool {
	for _, f := range r.Features {
		if f.Pool != nil {
			return f.Pool
		}
	}
	return nil
}

// Pipeline asks each feature in a fixed order.
type Pipeline struct {
	features []feature.Feature
	scope    *scope.Scope
}

// New returns a pipeline that asks the features in this order.
func New(s *scope.Scope, features ...feature.Feature) *Pipeline {
	return &Pipeline{features: features, scope: s}
}

// Run decides about one pod. It does not modify the pod and never fails: what
// went wrong is in the result.
func (p *Pipeline) Run(ctx context.Context, req feature.Request) Result {
	var res Result

	// 1. See whether Stowage may look at the pod.
	if err := req.Pod.CheckItems(); err != nil {
		res.LeftAlone = err.Error()
		res.Warn("stowage: the pod was left as it is: " + err.Error())
		return res // with its gate: the API server has not checked the pod yet
	}
	original, wanted := req.Pod, req.Pod
	gated := original.Gated(stowage.SeatGate)
	waits := gated && p.scope.Waits(original) // rather than being created without a decision
	mode, why := p.mode(ctx, req, waits, &res)

	// 2. Ask each feature. The next one sees the pod as this one wants it. An audit
	// leaves no traces, like a dry run.
	if mode != stowage.ModeOff {
		waits = waits && mode == stowage.ModeEnforce
		why = p.ask(ctx, mode, waits, &req, &res)
	}
	if mode == stowage.ModeEnforce {
		wanted = req.Pod
	}

	// 3. The gate goes, whatever the mode is, unless the pod is to wait for the leader.
	switch {
	case gated && waits && why != nil:
		res.Warn(fmt.Sprintf("stowage: the pod waits at the gate %s: %v", stowage.SeatGate, why))
		res.Features = append(res.Features, FeatureResult{Feature: "gate", Outcome: OutcomeWaiting})
	case gated:
		res.Features = append(res.Features, FeatureResult{Feature: "gate", Outcome: OutcomeApplied, Summary: "one without the gate " + stowage.SeatGate})
		wanted = wanted.Clone()
		wanted.Ungate(stowage.SeatGate)
	}

	// 4. Say what changed.
	if wanted != original {
		res.Patch = podpatch.Diff(original, wanted)
	}
	return res
}

// ask asks each feature in turn. It returns why a pod that may wait at the gate is to wait, or nil.
func (p *Pipeline) ask(ctx context.Context, mode stowage.Mode, waits bool, req *feature.Request, res *Result) (why error) {
	req.Audit = mode == stowage.ModeAudit
	res.Features = make([]FeatureResult, 0, len(p.features)+1)
	for _, f := range p.features {
		decision, fr := decide(ctx, f, *req)
		_, givesSeats := f.(feature.SeatGiver)
		if givesSeats {
			why = whyWaits(&fr, &decision)
		}
		switch {
		case givesSeats && waits && why != nil: // the pod is not created without a seat
		case fr.Err != nil:
			res.Warn(fmt.Sprintf("stowage: %s failed and was left out: %v", f.Name(), fr.Err))
			res.Events = append(res.Events, feature.Event{Reason: stowage.EventFailedOpen, Note: fmt.Sprintf("%s failed, so a pod was admitted without it: %v", f.Name(), fr.Err)})
		case fr.Outcome == OutcomeDropped:
			text := fmt.Sprintf("%s was left out: with its annotations, the pod would have more than the 256 KiB of annotations that the API server accepts", f.Name())
			res.Warn("stowage: " + text)
			res.Events = append(res.Events, feature.Event{Reason: stowage.EventFailedOpen, Note: text})
		}
		if fr.Outcome == OutcomeApplied {
			res.take(mode, req, &fr, decision)
		}
		res.Features = append(res.Features, fr)
	}
	return why
}

// errTooLarge is why a pod waits whose annotations would be too large with a seat.
var errTooLarge = fmt.Errorf("%w: with a seat, its annotations would be too large", feature.ErrUndecidable)

// whyWaits returns why a pod at the gate gets no seat now, or nil if that is decided.
func whyWaits(fr *FeatureResult, d *feature.Decision) error {
	if fr.Outcome == OutcomeDropped {
		return errTooLarge
	}
	return cmp.Or(fr.Err, d.Wait)
}

// mode returns how far Stowage may go with the pod, and why that is not known.
func (p *Pipeline) mode(ctx context.Context, req feature.Request, waits bool, res *Result) (stowage.Mode, error) {
	a, err := p.scope.Of(ctx, req.Namespace, req.Pod)
	for _, text := range a.Warnings {
		res.Warn("stowage: " + text)
	}
	res.LeftAlone = a.LeftAlone
	if err != nil {
		res.Features = append(res.Features, FeatureResult{Feature: "mode", Outcome: OutcomeError, Err: err})
	}
	if err != nil && !waits {
		res.Warn("stowage: the pod was left as it is: " + a.LeftAlone)
		res.Events = append(res.Events, feature.Event{Reason: stowage.EventFailedOpen, Note: fmt.Sprintf("a pod was admitted as it was written: %v", err)})
	}
	return a.Mode, err
}

// take adds a decision to the result, and passes the decided pod on to the next feature.
func (r *Result) take(mode stowage.Mode, req *feature.Request, fr *FeatureResult, d feature.Decision) {
	if len(podpatch.Diff(req.Pod, d.Pod)) == 0 {
		fr.Outcome = OutcomeUnchanged
	} else if mode == stowage.ModeAudit {
		fr.Outcome = OutcomeAudited
		r.Warn(fmt.Sprintf("stowage (audit): %s would make this pod %s", fr.Feature, d.Summary))
	}
	req.Pod = d.Pod
	if d.Sized != nil {
		req.Sized = d.Sized
	}
	prefix := "stowage: "
	if mode == stowage.ModeAudit {
		prefix = "stowage (audit): "
	} else {
		r.Events = append(r.Events, d.Events...)
	}
	for _, w := range d.Warnings {
		r.Warn(prefix + w)
	}
}

// decide asks one feature and turns its error or panic into a result.
func decide(ctx context.Context, f feature.Feature, req feature.Request) (d feature.Decision, fr FeatureResult) {
	fr = FeatureResult{Feature: f.Name(), Outcome: OutcomeSkipped}
	defer func() {
		if cause := recover(); cause != nil {
			d = feature.Decision{}
			fr.Outcome, fr.Err = OutcomePanic, &PanicError{Cause: cause, Stack: debug.Stack()}
		}
	}()
	d, err := f.Decide(ctx, req)
	switch {
	case err != nil:
		fr.Outcome, fr.Err = OutcomeError, err
	case d.Pod != nil && podpatch.FreeAnnotations(d.Pod.Metadata.Annotations) < 0 && podpatch.FreeAnnotations(req.Pod.Metadata.Annotations) >= 0:
		d, fr.Outcome = feature.Decision{}, OutcomeDropped
	case d.Pod != nil:
		fr.Outcome, fr.Summary, fr.Pool = OutcomeApplied, d.Summary, d.Pool
	}
	return d, fr
}

// PanicError carries a panic's stack to the log; its text stays short, because it
// is shown to users.
type PanicError struct {
	Cause any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("internal error (panic): %v", e.Cause) }

// MaxWarning is the length, in bytes, beyond which the API server may cut a
// warning (API documentation of AdmissionResponse.warnings).
const MaxWarning = 256

// maxWarnings is how many warnings a pod gets. The API server passes on 4096 bytes.
const maxWarnings = 16

// Warn adds a warning for whoever creates the pod, as far as the API server passes it on.
func (r *Result) Warn(text string) {
	if len(r.Warnings) >= maxWarnings {
		return
	}
	// The API server drops a warning with control characters in it.
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, text)
	r.Warnings = append(r.Warnings, bounded.Text(text, MaxWarning))
}
