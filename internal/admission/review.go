package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podpatch"
	worldcache "github.com/stowage-dev/stowage/internal/world/cache"
)

// wayBack is what the way of an answer back to the API server takes at most.
const wayBack = 200 * time.Millisecond

// longestTimeout is how long an API server waits for a webhook at most.
const longestTimeout = 30 * time.Second

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

// reply writes the answer.
func reply(log strangerLog, w http.ResponseWriter, r *http.Request, res response) {
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

// budget is how long a request may take from its arrival to its answer. It is the time that the API server waits, less what
// the way back takes. The API server sends the registration's timeoutSeconds as ?timeout=5s.
func budget(r *http.Request) time.Duration {
	const fallback = 5 * time.Second
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= wayBack || timeout > longestTimeout {
		return fallback
	}
	return timeout - wayBack
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

// arrive returns the context of a request, which ends when its answer would be too late. The server ends the context of
// every request when it begins to shut down; a request under way must still come to its end. The connection of a request that may be
// older than its deadline ends here, without an answer.
func arrive(r *http.Request, age time.Duration) (context.Context, context.CancelFunc) {
	left := budget(r) - age
	if left <= 0 {
		panic(http.ErrAbortHandler)
	}
	return context.WithTimeout(worldcache.AskedBy(context.WithoutCancel(r.Context()), ClientOf(r.RemoteAddr)), left)
}

// ClientOf is the address of a client, without its port.
func ClientOf(remote string) string {
	address, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return address
}

// sized is an object that knows about how many bytes of memory its items take, beside its texts. Nil takes none.
type sized interface {
	comparable
	Size() int64
}

// readReview checks the request and decodes the review. Nothing decoded refers to the body, whose buffer does not stay. The caller releases the
// room as that of [Intake.read].
func readReview[Object sized](ctx context.Context, in *Intake, w http.ResponseWriter, r *http.Request) (*review[Object], held, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, held{}, &httpError{http.StatusMethodNotAllowed, fmt.Errorf("method %s: an AdmissionReview is sent with POST", r.Method)}
	}
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, held{}, &httpError{http.StatusUnsupportedMediaType, fmt.Errorf("content type %q: an AdmissionReview is sent as application/json", r.Header.Get("Content-Type"))}
	}
	body := buffers.Get().(*bytes.Buffer)
	defer putBuffer(body)
	room, err := in.read(ctx, w, r, body)
	if err != nil {
		return nil, room, err
	}
	rev, err := checkReview[Object](body)
	if err != nil {
		return nil, room, err // it is answered at once
	}
	var items int64
	if object := rev.Request.Object; object != *new(Object) {
		items = object.Size()
	}
	room.decoded(body.Len(), items)
	return rev, room, nil
}

// checkReview decodes a body that must be an AdmissionReview with a request.
func checkReview[Object any](body *bytes.Buffer) (*review[Object], error) {
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
	var envelope review[skipped]
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

// skipped is an object that is not decoded.
type skipped struct{}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (*skipped) UnmarshalJSONFrom(dec *jsontext.Decoder) error { return dec.SkipValue() }

// refuse answers a request that is no proper AdmissionReview.
func refuse(log strangerLog, w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	if he := (*httpError)(nil); errors.As(err, &he) {
		status = he.status
	}
	log.error(err, "request refused", "path", r.URL.Path, "status", status, "client", r.RemoteAddr)
	http.Error(w, "stowage: "+bounded.Text(err.Error(), mostError), status)
}

// mostError is how many bytes of an error are logged or answered. It may quote the request.
const mostError = 1024

// strangerLog is a log for lines that whoever reaches the port can cause: it drops those beyond a
// rate.
type strangerLog struct {
	logr.Logger
	limit flowcontrol.PassiveRateLimiter
}

func (l strangerLog) error(err error, message string, keys ...any) {
	if l.limit == nil || l.limit.TryAccept() {
		l.Error(errors.New(bounded.Text(err.Error(), mostError)), message, keys...)
	}
}
