package admission

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Handler answers AdmissionReviews (v1 and v1beta1) about pods over HTTP.
//
// A request that is not an AdmissionReview gets an HTTP error, which the API
// server treats as a failed webhook. Everything else is allowed.
type Handler struct {
	Pipeline *pipeline.Pipeline
	Metrics  *Metrics
	Log      logr.Logger
	Events   events.Recorder
	// EventLimit drops events beyond a rate, which namespaces share: whoever reaches our port can ask for one.
	EventLimit *fair.Limiter[string]
	// LogLimit drops log lines about requests that are refused, for the same reason. FailureLimit drops those about features that
	// failed, and ChangeLimit those about pods that were changed. The metrics count all of them.
	LogLimit, FailureLimit, ChangeLimit flowcontrol.PassiveRateLimiter

	// Replica is the name of this process.
	Replica string
	// Authenticates says that only callers with a certificate come this far.
	Authenticates bool
	// Lacks returns the resources that this process needs for the pods of a namespace and may not read. It may be nil. Any user who can create pods can
	// cause a call.
	Lacks  func(ctx context.Context, namespace string) []string
	Intake *Intake
	Clock  clock.PassiveClock
	Pulse  *Pulse
}

var _ http.Handler = &Handler{}

// ServeHTTP reads a review, decides and answers.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := arrive(r, h.Pulse.age(h.Clock.Now()))
	defer cancel()

	// 1. Read the review.
	start := h.Clock.Now()
	rev, room, err := readReview[*podpatch.Pod](ctx, h.Intake, w, r)
	defer room.release()
	if err != nil {
		refuse(h.strangers(), w, r, err)
		return
	}
	h.Metrics.step("read", h.Clock.Since(start))

	// 2. Decide.
	ans := h.answerSafely(ctx, rev.Request)

	// 3. Answer in the version of the question, unless nobody waits for an answer any more.
	refuseLate(ctx, clock.RealClock{}.Now())
	reply(h.strangers(), w, r, response{TypeMeta: rev.TypeMeta, Response: ans})
}

func (h *Handler) strangers() strangerLog { return strangerLog{h.Log, h.LogLimit} }

func (h *Handler) failures() strangerLog { return strangerLog{h.Log, h.FailureLimit} }

// answerSafely allows the pod as it is if answering it panics. A feature's own panic
// does not come this far.
func (h *Handler) answerSafely(ctx context.Context, req *request[*podpatch.Pod]) (ans answer) {
	defer func() {
		if cause := recover(); cause != nil {
			err := &pipeline.PanicError{Cause: cause, Stack: debug.Stack()}
			h.Metrics.count([]pipeline.FeatureResult{{Feature: "pipeline", Outcome: pipeline.OutcomePanic}})
			h.failures().error(err, "pod admitted as it was", "namespace", bounded.Text(req.Namespace, mostName), "uid", bounded.Text(string(req.UID), mostName), "stack", string(err.Stack))
			ans = answer{UID: req.UID, Allowed: true, Warnings: []string{"stowage: the pod was left as it is: " + err.Error()}}
		}
	}()
	return h.answer(ctx, req)
}

// answer decides about one request. It always allows.
func (h *Handler) answer(ctx context.Context, req *request[*podpatch.Pod]) answer {
	ans := answer{UID: req.UID, Allowed: true}
	switch {
	case req.Kind != podKind:
		ans.Warnings = []string{fmt.Sprintf("stowage: called for a %q; it only decides about pods, check the webhook's rules", bounded.Text(req.Kind.Kind, mostName))}
		return ans
	case req.Operation != string(admissionv1.Create), req.SubResource != "":
		return ans // a pod is decided once, when it is created
	case req.undecodable != nil:
		h.Metrics.undecodable()
		h.strangers().error(req.undecodable, "pod not decoded", "namespace", bounded.Text(req.Namespace, mostName), "uid", bounded.Text(string(req.UID), mostName))
		ans.Warnings = []string{"stowage: the pod was left as it is: " + bounded.Text(req.undecodable.Error(), mostError)}
		return ans
	case req.Object == nil:
		ans.Warnings = []string{"stowage: the request has no object; nothing was decided"}
		return ans
	}

	pod := req.Object
	start := h.Clock.Now()
	res := h.Pipeline.Run(ctx, feature.Request{Namespace: req.Namespace, Pod: pod, DryRun: req.DryRun})
	h.Metrics.step("decide", h.Clock.Since(start))
	h.Metrics.count(res.Features)

	if nonce, ok := pod.Metadata.Annotations[stowage.CheckAnnotation]; ok && req.DryRun {
		res.Warnings = nil // it is the answer that matters
		text := stowage.CheckAnswer + nonce + " replica " + h.Replica
		if h.Lacks != nil {
			if lacks := h.Lacks(ctx, req.Namespace); len(lacks) > mostLacks {
				text += fmt.Sprintf("%s%s and-%d-others", stowage.CheckLacks, strings.Join(lacks[:mostLacks], " "), len(lacks)-mostLacks)
			} else if len(lacks) > 0 {
				text += stowage.CheckLacks + strings.Join(lacks, " ")
			}
		}
		if h.Authenticates {
			text += stowage.CheckAuthenticated
		}
		res.Warn(text)
	}
	var err error
	if len(res.Patch) > 0 {
		if ans.Patch, err = res.Patch.JSON(); err != nil {
			res.Warn(fmt.Sprintf("stowage: the pod was left as it is: %v", err))
		} else {
			ans.PatchType = &jsonPatch
		}
	}
	ans.Warnings = res.Warnings
	h.report(req, pod, &res, err)
	return ans
}

// mostLacks is how many resources an answer names that this process may not read. A warning has 256 bytes.
const mostLacks = 4

var (
	podKind   = metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
	jsonPatch = admissionv1.PatchTypeJSONPatch
)
