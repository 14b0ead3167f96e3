package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// MaxBodyBytes is the largest request body that is read. The API server takes
// objects of up to 3 MiB and sends at most two of them in a review; the rest of
// a review is smaller than 1 MiB.
const MaxBodyBytes = 7 << 20

// readTimeout bounds how long a client may take to send a body. The API server
// gives up on a webhook after 30 s at the latest.
const readTimeout = 30 * time.Second

// Handler answers AdmissionReviews (v1 and v1beta1) about pods over HTTP.
//
// A request that is not an AdmissionReview gets an HTTP error, which the API
// server treats as a failed webhook. Everything else is allowed.
type Handler struct {
	Pipeline *Pipeline
	Metrics  *Metrics
	Log      logr.Logger
	Events   events.EventRecorder
	// EventLimit drops events beyond a rate: whoever reaches our port can ask
	// for one.
	EventLimit flowcontrol.PassiveRateLimiter
	Clock      clock.PassiveClock
}

var _ http.Handler = &Handler{}

// review is the part of an AdmissionReview that we read. The object is decoded
// together with the rest, in one pass over the body: that pass is most of the
// time that a decision takes.
type review[Object any] struct {
	metav1.TypeMeta `json:",inline"`
	Request         *request[Object] `json:"request"`
}

type request[Object any] struct {
	UID         types.UID               `json:"uid"`
	Kind        metav1.GroupVersionKind `json:"kind"`
	SubResource string                  `json:"subResource"`
	Namespace   string                  `json:"namespace"`
	Operation   string                  `json:"operation"`
	DryRun      bool                    `json:"dryRun"`
	Object      Object                  `json:"object"`

	undecodable error // why the object could not be decoded
}

// response is an AdmissionReview as we write it. It is the v1 type, which
// v1beta1 equals in everything that we set.
type response struct {
	metav1.TypeMeta `json:",inline"`
	Response        answer `json:"response"`
}

type answer struct {
	UID       types.UID              `json:"uid"`
	Allowed   bool                   `json:"allowed"`
	PatchType *admissionv1.PatchType `json:"patchType,omitempty"`
	Patch     []byte                 `json:"patch,omitempty"`
	Warnings  []string               `json:"warnings,omitempty"`
}

// httpError is an answer below the admission protocol.
type httpError struct {
	status int
	err    error
}

func (e *httpError) Error() string { return e.err.Error() }

func badRequest(format string, args ...any) error {
	return &httpError{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// ServeHTTP reads a review, decides and answers.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// 1. Read the review. Nothing decoded refers to the buffer.
	start := h.Clock.Now()
	body := buffers.Get().(*bytes.Buffer)
	defer putBuffer(body)
	rev, err := readReview[*podpatch.Pod](h.Clock, w, r, body)
	if err != nil {
		refuse(h.Log, w, r, err)
		return
	}
	h.Metrics.step("read", h.Clock.Since(start))

	// 2. Decide. The server ends every request's context when it begins to shut
	// down; a decision under way must still come to its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), budget(r))
	defer cancel()
	ans := h.answerSafely(ctx, rev.Request)

	// 3. Answer in the version of the question.
	reply(h.Log, w, r, response{TypeMeta: rev.TypeMeta, Response: ans})
}

// reply writes the answer.
func reply(log logr.Logger, w http.ResponseWriter, r *http.Request, res response) {
	data, err := json.Marshal(res)
	if err != nil {
		refuse(log, w, r, &httpError{http.StatusInternalServerError, err})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(data); err != nil {
		log.V(1).Info("answer was not read", "uid", res.Response.UID, "error", err.Error())
	}
}

// budget is how long a decision may take: what the API server says it waits for
// an answer (it sends the registration's timeoutSeconds as ?timeout=5s), less
// what the way back takes.
func budget(r *http.Request) time.Duration {
	const fallback, margin = 5 * time.Second, 200 * time.Millisecond
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= margin || timeout > readTimeout {
		return fallback
	}
	return timeout - margin
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// putBuffer gives a buffer back, unless one large request has blown it up.
func putBuffer(b *bytes.Buffer) {
	const keep = 256 << 10
	if b.Cap() <= keep {
		b.Reset()
		buffers.Put(b)
	}
}

// readReview checks the request and decodes the review.
func readReview[Object any](clock clock.PassiveClock, w http.ResponseWriter, r *http.Request, body *bytes.Buffer) (*review[Object], error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &httpError{http.StatusMethodNotAllowed, fmt.Errorf("method %s: an AdmissionReview is sent with POST", r.Method)}
	}
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, &httpError{http.StatusUnsupportedMediaType, fmt.Errorf("content type %q: an AdmissionReview is sent as application/json", r.Header.Get("Content-Type"))}
	}
	// Not every ResponseWriter has deadlines (a test's recorder has none); the
	// server's does.
	_ = http.NewResponseController(w).SetReadDeadline(clock.Now().Add(readTimeout))
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, MaxBodyBytes)); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return nil, &httpError{http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than the limit of %d bytes", tooLarge.Limit)}
		}
		return nil, badRequest("read the body: %w", err)
	}
	if body.Len() == 0 {
		return nil, badRequest("the body is empty; expected an AdmissionReview")
	}
	rev, err := decodeReview[Object](body.Bytes())
	if err != nil {
		return nil, badRequest("decode the AdmissionReview: %w", err)
	}
	switch {
	case rev.Kind != "AdmissionReview",
		rev.APIVersion != admissionv1.SchemeGroupVersion.String() && rev.APIVersion != admissionv1beta1.SchemeGroupVersion.String():
		return nil, badRequest("got apiVersion %q, kind %q; expected an AdmissionReview of %s or %s",
			rev.APIVersion, rev.Kind, admissionv1.SchemeGroupVersion, admissionv1beta1.SchemeGroupVersion)
	case rev.Request == nil:
		return nil, badRequest("the AdmissionReview has no request")
	}
	return rev, nil
}

// decodeReview decodes a review. A review whose object we cannot read is still a
// review: its object is then marked as undecodable.
func decodeReview[Object any](body []byte) (*review[Object], error) {
	var rev review[Object]
	objectErr := jsonv2.Unmarshal(body, &rev, podpatch.DecodeOptions)
	if objectErr == nil {
		return &rev, nil
	}
	var envelope review[jsontext.Value]
	if err := jsonv2.Unmarshal(body, &envelope, podpatch.DecodeOptions); err != nil {
		return nil, err
	}
	rev = review[Object]{TypeMeta: envelope.TypeMeta}
	if e := envelope.Request; e != nil {
		rev.Request = &request[Object]{
			UID: e.UID, Kind: e.Kind, SubResource: e.SubResource, Namespace: e.Namespace,
			Operation: e.Operation, DryRun: e.DryRun, undecodable: objectErr,
		}
	}
	return &rev, nil
}

// refuse answers a request that is no proper AdmissionReview.
func refuse(log logr.Logger, w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	if he := (*httpError)(nil); errors.As(err, &he) {
		status = he.status
	}
	log.Error(err, "request refused", "path", r.URL.Path, "status", status, "client", r.RemoteAddr)
	http.Error(w, "stowage: "+err.Error(), status)
}

// answerSafely allows the pod as it is if answering it panics. A feature's own panic
// does not come this far.
func (h *Handler) answerSafely(ctx context.Context, req *request[*podpatch.Pod]) (ans answer) {
	defer func() {
		if cause := recover(); cause != nil {
			err := &panicError{cause: cause, stack: debug.Stack()}
			h.Metrics.count([]FeatureResult{{Feature: "pipeline", Outcome: OutcomePanic}})
			h.Log.Error(err, "pod admitted as it was", "namespace", req.Namespace, "uid", req.UID, "stack", string(err.stack))
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
		ans.Warnings = []string{fmt.Sprintf("stowage: called for a %q; it only decides about pods, check the webhook's rules", req.Kind.Kind)}
		return ans
	case req.Operation != string(admissionv1.Create), req.SubResource != "":
		return ans // a pod is decided once, when it is created
	case req.undecodable != nil:
		h.Metrics.undecodable()
		h.Log.Error(req.undecodable, "pod not decoded", "namespace", req.Namespace, "uid", req.UID)
		ans.Warnings = []string{fmt.Sprintf("stowage: the pod was left as it is: %v", req.undecodable)}
		return ans
	case req.Object == nil:
		ans.Warnings = []string{"stowage: the request has no object; nothing was decided"}
		return ans
	}

	pod := req.Object
	start := h.Clock.Now()
	res := h.Pipeline.Run(ctx, Request{Namespace: req.Namespace, Pod: pod, DryRun: req.DryRun})
	h.Metrics.step("decide", h.Clock.Since(start))
	h.Metrics.count(res.Features)

	ans.Warnings = res.Warnings
	var err error
	if len(res.Patch) > 0 {
		if ans.Patch, err = res.Patch.JSON(); err != nil {
			res.warn(fmt.Sprintf("stowage: the pod was left as it is: %v", err))
			ans.Warnings = res.Warnings
		} else {
			ans.PatchType = &jsonPatch
		}
	}
	h.report(req, pod, &res, err)
	return ans
}

var (
	podKind   = metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
	jsonPatch = admissionv1.PatchTypeJSONPatch
)

// report writes the log line and the events of one decision.
func (h *Handler) report(req *request[*podpatch.Pod], pod *podpatch.Pod, res *Result, err error) {
	for _, f := range res.Features {
		if f.Err == nil {
			continue
		}
		keys := []any{"feature", f.Feature, "namespace", req.Namespace, "pod", pod.DisplayName(), "uid", req.UID}
		if p := (*panicError)(nil); errors.As(f.Err, &p) {
			keys = append(keys, "stack", string(p.stack))
		}
		h.Log.Error(f.Err, "feature failed; pod admitted without it", keys...)
	}
	if err != nil {
		h.Log.Error(err, "pod admitted as it was", "namespace", req.Namespace, "pod", pod.DisplayName(), "uid", req.UID)
	}

	if log := h.Log; len(res.Patch) > 0 && log.Enabled() {
		keys := []any{"namespace", req.Namespace, "pod", pod.DisplayName(), "operations", len(res.Patch), "dryRun", req.DryRun, "uid", req.UID}
		if owner := pod.Controller(); owner != nil {
			keys = append(keys, "owner", owner.Kind+"/"+owner.Name)
		}
		for _, f := range res.Features {
			if f.Outcome == OutcomeApplied {
				keys = append(keys, f.Feature, f.Summary)
			}
		}
		log.Info("pod changed", keys...)
	} else if log := h.Log.V(1); log.Enabled() {
		log.Info("pod not changed", "namespace", req.Namespace, "pod", pod.DisplayName(), "warnings", len(res.Warnings), "dryRun", req.DryRun, "uid", req.UID)
	}

	if req.DryRun {
		return // an event is a side effect
	}
	if about := subject(req, pod); about != nil {
		for _, e := range res.Events {
			if !h.EventLimit.TryAccept() {
				h.Metrics.droppedEvents.Inc()
				continue
			}
			var related runtime.Object
			if e.Related != nil {
				related = e.Related
			}
			h.Events.Eventf(about, related, corev1.EventTypeWarning, e.Reason, "Admit", "%s", EventNote(e.Note))
		}
	}
}

// EventNote returns a text that the API server takes as an event's note.
func EventNote(text string) string { return cut(text, maxEventNote) }

// maxEventNote is the length, in bytes, beyond which the API server refuses an event.
const maxEventNote = 1024

// subject is the object that an event about a pod is about: its controller, or
// the pod itself, or nothing where neither has a name yet.
func subject(req *request[*podpatch.Pod], pod *podpatch.Pod) *corev1.ObjectReference {
	if o := pod.Controller(); o != nil {
		return &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: req.Namespace, Name: o.Name, UID: types.UID(o.UID)}
	}
	if pod.Metadata.Name != "" {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: req.Namespace, Name: pod.Metadata.Name}
	}
	return nil
}
