package admission

import (
	"context"
	"net/http"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// WorkloadHandler answers AdmissionReviews about objects that make pods, about Namespaces, and about what divides pods. It warns whoever writes one of
// settings that are wrong or have no effect. It denies nothing.
type WorkloadHandler struct {
	Log      logr.Logger
	LogLimit flowcontrol.PassiveRateLimiter // see [Handler]
	Intake   *Intake
	// Check returns what is wrong with the settings of an object.
	Check func(ctx context.Context, w feature.Written) ([]string, error)
}

var _ http.Handler = &WorkloadHandler{}

// workload is the part of an object that makes pods where a strategy may stand.
type workload struct {
	Metadata settings       `json:"metadata"`
	Spec     jsontext.Value `json:"spec"`

	template *settings // of its pods; nil until Size, or where the object has none
}

// Size decodes the template, and returns about how many bytes of memory the entries of all maps take.
func (w *workload) Size() int64 {
	const entry = 128 // nobody copies them
	n := len(w.Metadata.Annotations) + len(w.Metadata.Labels)
	if w.template = w.decodeTemplate(); w.template != nil {
		n += len(w.template.Annotations) + len(w.template.Labels)
	}
	return int64(entry * n)
}

// decodeTemplate returns the metadata of the pods' template, or nil if the object has none.
func (w *workload) decodeTemplate() *settings {
	var spec struct {
		Template *struct {
			Metadata settings `json:"metadata"`
		} `json:"template"`
	}
	if jsonv2.Unmarshal(w.Spec, &spec, podpatch.DecodeOptions) != nil || spec.Template == nil {
		return nil
	}
	return &spec.Template.Metadata
}

// settings is the metadata where settings stand, with a bound for each map.
type settings struct {
	Name        string           `json:"name"`
	Annotations podpatch.Strings `json:"annotations"`
	Labels      podpatch.Strings `json:"labels"`
}

func (s *settings) metadata() feature.Metadata {
	return feature.Metadata{Annotations: s.Annotations, Labels: s.Labels}
}

// ServeHTTP reads a review and answers.
func (h *WorkloadHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := arrive(r, 0)
	defer cancel()
	rev, room, err := readReview[*workload](ctx, h.Intake, w, r)
	defer room.release()
	if err != nil {
		refuse(strangerLog{h.Log, h.LogLimit}, w, r, err)
		return
	}
	var res pipeline.Result
	if o := rev.Request.Object; o != nil {
		written := feature.Written{Kind: rev.Request.Kind, Namespace: rev.Request.Namespace, Name: o.Metadata.Name, Own: o.Metadata.metadata(), Spec: o.Spec}
		if t := o.template; t != nil {
			template := t.metadata()
			written.Template = &template
		}
		texts, err := h.Check(ctx, written)
		if err != nil {
			strangerLog{h.Log, h.LogLimit}.error(err, "the settings of an object were not checked", "namespace", written.Namespace, "kind", written.Kind.Kind, "name", written.Name)
		}
		for _, text := range texts {
			res.Warn("stowage: " + text)
		}
	}
	reply(strangerLog{h.Log, h.LogLimit}, w, r, response{TypeMeta: rev.TypeMeta, Response: answer{UID: rev.Request.UID, Allowed: true, Warnings: res.Warnings}})
}
