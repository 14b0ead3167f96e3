package admission

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Feature decides one aspect of a pod.
type Feature interface {
	// Name is the feature's name in metrics, logs and warnings.
	Name() string
	// Decide says what the pod should become. It must not modify the pod. Its
	// answer for its own output must be that output again.
	Decide(ctx context.Context, req Request) (Decision, error)
}

// Request is one pod that is about to be created.
type Request struct {
	Namespace string
	Pod       *podpatch.Pod
	DryRun    bool
	// Sized is, by container, the resources whose entries an earlier feature has just
	// decided; "" stands for spec.resources.
	Sized map[string][]corev1.ResourceName
}

// Decision is a feature's answer for one pod.
type Decision struct {
	// Pod is the pod as the feature wants it. It is nil if the feature has
	// nothing to do with this pod; then the other fields are empty.
	Pod *podpatch.Pod
	// Sized is for the features after this one: see [Request].
	Sized map[string][]corev1.ResourceName
	// Summary says in a few words what the pod becomes.
	Summary string
	// Warnings are for the user who creates the pod.
	Warnings []string
	// Events are for the pod's owner, who may have nobody to warn.
	Events []Event
}

// Event is a Kubernetes event of type Warning on a pod's owner.
type Event struct {
	Reason string
	Note   string
	// Related is the object that is the cause, if there is one.
	Related *corev1.ObjectReference
}

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
)

// FeatureResult is what one feature did with one pod.
type FeatureResult struct {
	Feature string
	Outcome Outcome
	Summary string
	Err     error // set if the outcome is an error or a panic
}

// Result is the pipeline's answer for one pod.
type Result struct {
	Patch    podpatch.Patch // empty if the pod stays as it is
	Warnings []string
	Events   []Event
	Features []FeatureResult // empty if no feature was asked
	// LeftAlone says why no feature was asked, if none was.
	LeftAlone string
}

// Pipeline asks each feature in a fixed order.
type Pipeline struct {
	Features []Feature
	Cluster  cluster.Reader
	// Excluded are the namespaces whose pods are never looked at.
	Excluded []string
}

// SystemNamespaces are never touched: a fault there can keep a cluster from
// repairing itself.
var SystemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// Run decides about one pod. It does not modify the pod and never fails: what
// went wrong is in the result.
func (p *Pipeline) Run(ctx context.Context, req Request) Result {
	var res Result

	// 1. See whether the pod is ours to look at.
	if slices.Contains(p.Excluded, req.Namespace) {
		res.LeftAlone = fmt.Sprintf("namespace %s is never touched", req.Namespace)
		return res
	}
	mode := p.mode(ctx, req, &res)
	if mode == stowage.ModeOff {
		return res
	}

	// 2. Ask each feature. The next one sees the pod as this one wants it. An audit
	// leaves no traces, like a dry run.
	original := req.Pod
	req.DryRun = req.DryRun || mode == stowage.ModeAudit
	res.Features = make([]FeatureResult, 0, len(p.Features))
	for _, f := range p.Features {
		decision, fr := decide(ctx, f, req)
		if fr.Err != nil {
			res.warn(fmt.Sprintf("stowage: %s failed and was left out: %v", f.Name(), fr.Err))
			res.Events = append(res.Events, Event{Reason: ReasonFailedOpen, Note: fmt.Sprintf("%s failed, so a pod was admitted without it: %v", f.Name(), fr.Err)})
		}
		if fr.Outcome == OutcomeApplied {
			if len(podpatch.Diff(req.Pod, decision.Pod)) == 0 {
				fr.Outcome = OutcomeUnchanged
			} else if mode == stowage.ModeAudit {
				fr.Outcome = OutcomeAudited
				res.warn(fmt.Sprintf("stowage (audit): %s would make this pod %s", f.Name(), decision.Summary))
			}
			req.Pod = decision.Pod
			if decision.Sized != nil {
				req.Sized = decision.Sized
			}
			prefix := "stowage: "
			if mode == stowage.ModeAudit {
				prefix = "stowage (audit): "
			} else {
				res.Events = append(res.Events, decision.Events...)
			}
			for _, w := range decision.Warnings {
				res.warn(prefix + w)
			}
		}
		res.Features = append(res.Features, fr)
	}

	// 3. Say what changed.
	if mode != stowage.ModeAudit && req.Pod != original {
		res.Patch = podpatch.Diff(original, req.Pod)
	}
	return res
}

// ReasonFailedOpen is the reason of the event about a pod that passed without a
// feature that failed.
const ReasonFailedOpen = "FailedOpen"

// decide asks one feature and turns its error or panic into a result.
func decide(ctx context.Context, f Feature, req Request) (d Decision, fr FeatureResult) {
	fr = FeatureResult{Feature: f.Name(), Outcome: OutcomeSkipped}
	defer func() {
		if cause := recover(); cause != nil {
			d = Decision{}
			fr.Outcome, fr.Err = OutcomePanic, &panicError{cause: cause, stack: debug.Stack()}
		}
	}()
	d, err := f.Decide(ctx, req)
	switch {
	case err != nil:
		fr.Outcome, fr.Err = OutcomeError, err
	case d.Pod != nil:
		fr.Outcome, fr.Summary = OutcomeApplied, d.Summary
	}
	return d, fr
}

// panicError carries a panic's stack to the log; its text stays short, because it
// is shown to users.
type panicError struct {
	cause any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("internal error (panic): %v", e.cause) }

// Enforces reports whether a pod of a namespace would be changed where a feature says so.
func (p *Pipeline) Enforces(ctx context.Context, namespace string, pod *podpatch.Pod) bool {
	return !slices.Contains(p.Excluded, namespace) && p.mode(ctx, Request{Namespace: namespace, Pod: pod}, &Result{}) == stowage.ModeEnforce
}

// mode returns how far we may go with the pod: what the pod says, or else its
// namespace. A value that is not a mode is warned of and ignored.
func (p *Pipeline) mode(ctx context.Context, req Request, res *Result) stowage.Mode {
	if m, ok := modeOf(req.Pod.Metadata.Annotations, req.Pod.Metadata.Labels, "the pod", res); ok {
		return m
	}
	ns, err := p.Cluster.Namespace(ctx, req.Namespace)
	if err != nil {
		// Changing a pod that we may have been told to leave alone is worse
		// than leaving one alone.
		res.LeftAlone = err.Error()
		res.warn("stowage: the pod was left as it is: " + res.LeftAlone)
		res.Features = append(res.Features, FeatureResult{Feature: "mode", Outcome: OutcomeError, Err: err})
		res.Events = append(res.Events, Event{Reason: ReasonFailedOpen, Note: fmt.Sprintf("a pod was admitted as it was written: %v", err)})
		return stowage.ModeOff
	}
	if ns != nil {
		if m, ok := modeOf(ns.Annotations, ns.Labels, "namespace "+ns.Name, res); ok {
			return m
		}
	}
	return stowage.ModeEnforce
}

func modeOf(annotations, labels map[string]string, where string, res *Result) (stowage.Mode, bool) {
	value, ok := annotations[stowage.ModeKey]
	if !ok {
		value, ok = labels[stowage.ModeKey]
	}
	if !ok {
		return "", false
	}
	for _, m := range []stowage.Mode{stowage.ModeEnforce, stowage.ModeAudit, stowage.ModeOff} {
		if strings.EqualFold(value, string(m)) {
			if m == stowage.ModeOff {
				res.LeftAlone = fmt.Sprintf("%s is %s on %s", stowage.ModeKey, m, where)
			}
			return m, true
		}
	}
	res.warn(fmt.Sprintf("stowage: %s on %s is %q and was ignored; it must be %s, %s or %s",
		stowage.ModeKey, where, value, stowage.ModeEnforce, stowage.ModeAudit, stowage.ModeOff))
	return "", false
}

// maxWarning is the length, in bytes, beyond which the API server may cut a
// warning (API documentation of AdmissionResponse.warnings).
const maxWarning = 256

// maxWarnings is how many warnings a pod gets. The API server passes on 4096 bytes.
const maxWarnings = 16

func (r *Result) warn(text string) {
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
	r.Warnings = append(r.Warnings, cut(text, maxWarning))
}

// cut shortens a text to a number of bytes, at the end of a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len("...")], "") + "..."
}
