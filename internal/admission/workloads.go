package admission

import (
	"bytes"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/flowcontrol"
)

// WorkloadHandler answers AdmissionReviews about objects that make pods. It warns whoever
// writes one of a strategy that is wrong. It denies nothing.
type WorkloadHandler struct {
	Log      logr.Logger
	LogLimit flowcontrol.PassiveRateLimiter // see [Handler]
	Intake   *Intake
	// Check returns what is wrong with the annotations of an object or its template.
	Check func(annotations map[string]string) []string
}

var _ http.Handler = &WorkloadHandler{}

// workload is the part of an object that makes pods where a strategy may stand.
type workload struct {
	Metadata annotated `json:"metadata"`
	Spec     struct {
		Template struct {
			Metadata annotated `json:"metadata"`
		} `json:"template"`
	} `json:"spec"`
}

type annotated struct {
	Annotations map[string]string `json:"annotations"`
}

// ServeHTTP reads a review and answers.
func (h *WorkloadHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := arrive(r)
	defer cancel()
	body := buffers.Get().(*bytes.Buffer)
	defer putBuffer(body)
	rev, room, err := readReview[*workload](ctx, h.Intake, w, r, body)
	defer room.release()
	if err != nil {
		refuse(strangerLog{h.Log, h.LogLimit}, w, r, err)
		return
	}
	var res Result
	if o := rev.Request.Object; o != nil {
		for _, text := range h.Check(o.Metadata.Annotations) {
			res.warn("stowage: metadata.annotations: " + text)
		}
		for _, text := range h.Check(o.Spec.Template.Metadata.Annotations) {
			res.warn("stowage: spec.template.metadata.annotations: " + text)
		}
	}
	reply(strangerLog{h.Log, h.LogLimit}, w, r, response{TypeMeta: rev.TypeMeta, Response: answer{UID: rev.Request.UID, Allowed: true, Warnings: res.Warnings}})
}
