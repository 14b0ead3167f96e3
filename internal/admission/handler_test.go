package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	stowageevents "github.com/stowage-dev/stowage/internal/platform/events"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	spreadadmit "github.com/stowage-dev/stowage/internal/spread/admit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	vmadmit "github.com/stowage-dev/stowage/internal/vm/admit"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
	"github.com/stowage-dev/stowage/test/testkit"
)

// reviewOf wraps a pod in a review; edit, if not nil, may change it.
func reviewOf(tb testing.TB, pod *corev1.Pod, edit func(*admissionv1.AdmissionReview)) []byte {
	tb.Helper()
	review := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "u-1", Kind: podKind, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace: pod.Namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: marshal(tb, pod)},
		},
	}
	if edit != nil {
		edit(review)
	}
	return marshal(tb, review)
}

// marshal returns an object as JSON.
func marshal(tb testing.TB, object any) []byte {
	tb.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func post(h http.Handler, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/mutate-v1-pod?timeout=5s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// decodeAnswer reads a review that must be well-formed and allowed.
func decodeAnswer(tb testing.TB, w *httptest.ResponseRecorder) *admissionv1.AdmissionReview {
	tb.Helper()
	if w.Code != http.StatusOK {
		tb.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var review admissionv1.AdmissionReview
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&review); err != nil {
		tb.Fatal(err)
	}
	if review.Response == nil || !review.Response.Allowed {
		tb.Fatalf("not allowed: %+v", review.Response)
	}
	if (len(review.Response.Patch) > 0) != (review.Response.PatchType != nil) {
		tb.Fatalf("patch and patch type do not agree: %+v", review.Response)
	}
	return &review
}

func peerPod() *corev1.Pod {
	return testkit.Pod("web").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "cpu=1,memory=1Gi", "cpu=1,memory=2Gi").Obj()
}

func TestHandlerRefusesWhatIsNoReview(t *testing.T) {
	good := reviewOf(t, peerPod(), nil)
	cases := map[string]struct {
		method, contentType string
		body                []byte
		status              int
		text                string
	}{
		"another method":           {method: http.MethodGet, contentType: "application/json", status: http.StatusMethodNotAllowed, text: "POST"},
		"no content type":          {body: good, status: http.StatusUnsupportedMediaType, text: "application/json"},
		"YAML":                     {contentType: "application/yaml", body: good, status: http.StatusUnsupportedMediaType, text: "application/yaml"},
		"an empty body":            {contentType: "application/json", status: http.StatusBadRequest, text: "empty"},
		"no JSON":                  {contentType: "application/json", body: []byte("{"), status: http.StatusBadRequest, text: "decode"},
		"JSON of another kind":     {contentType: "application/json", body: []byte(`[]`), status: http.StatusBadRequest, text: "decode"},
		"two documents":            {contentType: "application/json", body: append(append([]byte{}, good...), good...), status: http.StatusBadRequest, text: "decode"},
		"no review":                {contentType: "application/json", body: []byte(`{"apiVersion":"v1","kind":"Pod"}`), status: http.StatusBadRequest, text: `kind "Pod"`},
		"a review of the future":   {contentType: "application/json", body: []byte(`{"apiVersion":"admission.k8s.io/v9","kind":"AdmissionReview"}`), status: http.StatusBadRequest, text: "admission.k8s.io/v1"},
		"a review with no request": {contentType: "application/json", body: []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`), status: http.StatusBadRequest, text: "no request"},
		"a body over the limit":    {contentType: "application/json", body: bytes.Repeat([]byte(" "), maxBodyBytes+1), status: http.StatusRequestEntityTooLarge, text: "7340032"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.method == "" {
				tc.method = http.MethodPost
			}
			r := httptest.NewRequest(tc.method, "/mutate", bytes.NewReader(tc.body))
			if tc.contentType != "" {
				r.Header.Set("Content-Type", tc.contentType)
			}
			w := httptest.NewRecorder()
			newTestHandler(t, manifests.New(world.Objects{})).ServeHTTP(w, r)
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.text) {
				t.Errorf("got %d %q, want %d with %q", w.Code, w.Body, tc.status, tc.text)
			}
		})
	}
}

// A client that does not send what it has announced does not occupy us for long.
func TestBodyThatDoesNotCome(t *testing.T) {
	h := newTestHandler(t, manifests.New(world.Objects{}))
	// The time to send it is nearly over.
	h.Intake = NewIntake(clocktesting.NewFakePassiveClock(clock.RealClock{}.Now().Add(100*time.Millisecond - 4800*time.Millisecond/2)))
	server := httptest.NewServer(h)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /mutate?timeout=5s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(clock.RealClock{}.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
		t.Errorf("got %q, %v", answer, err)
	}
}

func TestHandlerAllows(t *testing.T) {
	cases := map[string]struct {
		pod     *corev1.Pod // a peer pod if nil
		edit    func(*admissionv1.AdmissionReview)
		patched bool
		warning string // a part of the only warning; "" is no warning
	}{
		"a peer pod":               {patched: true},
		"a peer pod, as a dry run": {patched: true, edit: func(r *admissionv1.AdmissionReview) { yes := true; r.Request.DryRun = &yes }},
		"a pod of no interest":     {pod: testkit.Pod("p").Container("c", "cpu=1", "").Obj()},
		"an update":                {edit: func(r *admissionv1.AdmissionReview) { r.Request.Operation = admissionv1.Update }},
		"a deletion": {edit: func(r *admissionv1.AdmissionReview) {
			r.Request.Operation = admissionv1.Delete
			r.Request.Object.Raw = nil
		}},
		"a subresource": {edit: func(r *admissionv1.AdmissionReview) { r.Request.SubResource = "ephemeralcontainers" }},
		"another kind": {
			edit: func(r *admissionv1.AdmissionReview) {
				r.Request.Kind = metav1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
				r.Request.Object.Raw = []byte(`{"spec":{"containers":"none"}}`)
			},
			warning: `called for a "Deployment"`,
		},
		"no object": {
			edit:    func(r *admissionv1.AdmissionReview) { r.Request.Object.Raw = nil },
			warning: "has no object",
		},
		"an object that is no pod": {
			edit:    func(r *admissionv1.AdmissionReview) { r.Request.Object.Raw = []byte(`{"spec":{"containers":"none"}}`) },
			warning: "the pod was left as it is: ",
		},
		"a quantity that no machine has": {
			edit: func(r *admissionv1.AdmissionReview) {
				r.Request.Object.Raw = bytes.ReplaceAll(r.Request.Object.Raw, []byte(`"2Gi"`), []byte(`"1e999999999"`))
			},
			warning: `peer-pods failed and was left out: container "c": limits: memory: quantity "1e999999999"`,
		},
		"a peer pod without containers": {pod: testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).Obj()},
		"a peer pod in a namespace of the system": {
			pod: testkit.Pod("p").Namespace("kube-system").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "cpu=1", "").Obj(),
		},
	}
	for name, tc := range cases {
		for _, version := range []string{"admission.k8s.io/v1", "admission.k8s.io/v1beta1"} {
			t.Run(name+"/"+version, func(t *testing.T) {
				if tc.pod == nil {
					tc.pod = peerPod()
				}
				body := reviewOf(t, tc.pod, func(r *admissionv1.AdmissionReview) {
					r.APIVersion = version
					if tc.edit != nil {
						tc.edit(r)
					}
				})
				got := decodeAnswer(t, post(newTestHandler(t, manifests.New(world.Objects{})), body))
				if got.APIVersion != version || got.Kind != "AdmissionReview" || got.Response.UID != "u-1" {
					t.Errorf("answered with %s %s %s", got.APIVersion, got.Kind, got.Response.UID)
				}
				if patched := len(got.Response.Patch) > 0; patched != tc.patched {
					t.Errorf("patched is %t: %s", patched, got.Response.Patch)
				}
				switch w := got.Response.Warnings; {
				case tc.warning == "" && len(w) > 0, tc.warning != "" && (len(w) != 1 || !strings.Contains(w[0], tc.warning)):
					t.Errorf("warnings are %q, want one with %q", w, tc.warning)
				}
			})
		}
	}
}

func TestContentTypeWithParameters(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/mutate", bytes.NewReader(reviewOf(t, peerPod(), nil)))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	w := httptest.NewRecorder()
	newTestHandler(t, manifests.New(world.Objects{})).ServeHTTP(w, r)
	if got := decodeAnswer(t, w); len(got.Response.Patch) == 0 {
		t.Error("the pod was not patched")
	}
}

func TestModes(t *testing.T) {
	namespace := func(value string) *manifests.Snapshot {
		return manifests.New(world.Objects{Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{stowage.ModeKey: value}}}}})
	}
	const audit, wrong = "stowage (audit): peer-pods would make this pod a peer pod (1 vCPU, 2048 MiB)", "must be Enforce, Audit or Off"
	cases := map[string]struct {
		cluster *manifests.Snapshot
		pod     func(*corev1.Pod)
		outcome pipeline.Outcome // "" is not asked
		warning string
	}{
		"nothing said":                    {cluster: manifests.New(world.Objects{}), outcome: pipeline.OutcomeApplied},
		"audit, on the namespace":         {cluster: namespace("Audit"), outcome: pipeline.OutcomeAudited, warning: audit},
		"off, on the namespace":           {cluster: namespace("Off")},
		"off, in another case":            {cluster: namespace("off")},
		"no mode, on the namespace":       {cluster: namespace("Maybe"), outcome: pipeline.OutcomeAudited, warning: wrong},
		"off, by the pod's annotation":    {cluster: manifests.New(world.Objects{}), pod: func(p *corev1.Pod) { p.Annotations = map[string]string{stowage.ModeKey: "Off"} }},
		"audit, by the pod's label":       {cluster: namespace("Off"), pod: func(p *corev1.Pod) { p.Labels = map[string]string{stowage.ModeKey: "Audit"} }, outcome: pipeline.OutcomeAudited, warning: audit},
		"the pod overrules its namespace": {cluster: namespace("Off"), pod: func(p *corev1.Pod) { p.Annotations = map[string]string{stowage.ModeKey: "Enforce"} }, outcome: pipeline.OutcomeApplied},
		"annotation before label": {cluster: manifests.New(world.Objects{}), pod: func(p *corev1.Pod) {
			p.Annotations = map[string]string{stowage.ModeKey: "Off"}
			p.Labels = map[string]string{stowage.ModeKey: "Audit"}
		}},
		"no mode on the pod: the ns holds": {cluster: namespace("Off"), pod: func(p *corev1.Pod) { p.Labels = map[string]string{stowage.ModeKey: "x"} }, warning: wrong},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := peerPod()
			if tc.pod != nil {
				tc.pod(pod)
			}
			h := newTestHandler(t, tc.cluster)
			got := decodeAnswer(t, post(h, reviewOf(t, pod, nil)))
			if patched := len(got.Response.Patch) > 0; patched != (tc.outcome == pipeline.OutcomeApplied) {
				t.Errorf("patched is %t", patched)
			}
			if tc.outcome != "" {
				if n := testutil.ToFloat64(h.Metrics.admissions.WithLabelValues("peer-pods", string(tc.outcome))); n != 1 {
					t.Errorf("outcome %s was counted %v times", tc.outcome, n)
				}
			} else if n := testutil.CollectAndCount(h.Metrics.admissions); n != 0 {
				t.Errorf("%d outcomes were counted of a pod that is off", n)
			}
			w := got.Response.Warnings
			if tc.warning == wrong && tc.outcome == pipeline.OutcomeAudited && len(w) == 2 {
				w = w[:1] // the second one is of the audit
			}
			if len(w) > 1 || (len(w) == 1) != (tc.warning != "") || len(w) == 1 && !strings.Contains(w[0], tc.warning) {
				t.Errorf("warnings are %q, want %q", w, tc.warning)
			}
		})
	}
}

// featureFunc is a feature for tests.
type featureFunc func(context.Context, feature.Request) (feature.Decision, error)

func (featureFunc) Name() string { return "faulty" }
func (f featureFunc) Decide(ctx context.Context, r feature.Request) (feature.Decision, error) {
	return f(ctx, r)
}

// brokenCluster cannot be read.
type brokenCluster struct{ manifests.Snapshot }

func (*brokenCluster) Namespace(context.Context, string) (*corev1.Namespace, error) {
	return nil, errors.New("read namespace: timed out")
}

func TestFailOpen(t *testing.T) {
	withOwner := func() *corev1.Pod {
		return testkit.Pod("web-1").Owner("web").RuntimeClass(stowage.DefaultRuntimeClass).Container("c", "cpu=1", "").Obj()
	}
	cases := map[string]struct {
		faulty  featureFunc
		cluster world.Snapshot
		outcome [2]string
		warning string
		patched bool // by the feature that works
	}{
		"a feature fails": {
			faulty: func(context.Context, feature.Request) (feature.Decision, error) {
				return feature.Decision{}, errors.New("no luck")
			},
			outcome: [2]string{"faulty", "error"}, warning: "faulty failed and was left out: no luck", patched: true,
		},
		"a feature panics": {
			faulty: func(context.Context, feature.Request) (feature.Decision, error) {
				var p *int
				return feature.Decision{}, fmt.Errorf("%d", *p)
			},
			outcome: [2]string{"faulty", "panic"}, warning: "internal error (panic): runtime error", patched: true,
		},
		"a feature's annotations are more than the API server accepts": {
			faulty: func(_ context.Context, r feature.Request) (feature.Decision, error) {
				pod := r.Pod.Clone()
				pod.SetAnnotation("large", strings.Repeat("x", 256<<10))
				return feature.Decision{Pod: pod, Summary: "a large one"}, nil
			},
			outcome: [2]string{"faulty", "dropped"}, warning: "faulty was left out", patched: true,
		},
		"the namespace cannot be read": {
			cluster: &brokenCluster{},
			outcome: [2]string{"mode", "error"}, warning: "left as it is: read namespace: timed out",
		},
	}
	for name, tc := range cases {
		for _, dryRun := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/dryRun=%t", name, dryRun), func(t *testing.T) {
				static := tc.cluster
				if static == nil {
					static = manifests.New(world.Objects{})
				}
				h := newTestHandler(t, static)
				if tc.faulty != nil {
					h = newTestHandler(t, static, tc.faulty, defaultFeature(static))
				}
				recorder := events.NewFakeRecorder(10)
				h.Events = stowageevents.Recorder{EventRecorder: recorder}
				body := reviewOf(t, withOwner(), func(r *admissionv1.AdmissionReview) { r.Request.DryRun = &dryRun })
				got := decodeAnswer(t, post(h, body))
				if w := got.Response.Warnings; len(w) != 1 || !strings.Contains(w[0], tc.warning) {
					t.Errorf("warnings are %q, want one with %q", w, tc.warning)
				}
				if patched := len(got.Response.Patch) > 0; patched != tc.patched {
					t.Errorf("patched is %t", patched)
				}
				if n := testutil.ToFloat64(h.Metrics.admissions.WithLabelValues(tc.outcome[0], tc.outcome[1])); n != 1 {
					t.Errorf("%v was counted %v times", tc.outcome, n)
				}
				select {
				case e := <-recorder.Events:
					if dryRun || !strings.Contains(e, string(stowage.EventFailedOpen)) {
						t.Errorf("event %q (dry run: %t)", e, dryRun)
					}
				default:
					if !dryRun {
						t.Error("no event")
					}
				}
			})
		}
	}
}

// seatGiver is a featureFunc that gives seats.
type seatGiver struct{ featureFunc }

func (seatGiver) GivesSeats() {}

// The gate goes in the same create, unless nobody has decided about the pod's seat. Then nothing of the pod is said to be lost.
func TestGate(t *testing.T) {
	seat := func(_ context.Context, r feature.Request) (feature.Decision, error) {
		pod := r.Pod.Clone()
		pod.SetLabel(stowage.SeatLabel, "1")
		return feature.Decision{Pod: pod, Summary: "one with a seat", Pool: &feature.Pool{}}, nil
	}
	fails := func(context.Context, feature.Request) (feature.Decision, error) {
		return feature.Decision{}, errors.New("no luck")
	}
	waits := func(_ context.Context, r feature.Request) (feature.Decision, error) {
		return feature.Decision{Pod: r.Pod, Wait: errors.New("too slow")}, nil
	}
	panics := func(context.Context, feature.Request) (feature.Decision, error) { panic("oh") }
	dropped := func(_ context.Context, r feature.Request) (feature.Decision, error) {
		pod := r.Pod.Clone()
		pod.SetAnnotation("large", strings.Repeat("x", 256<<10))
		return feature.Decision{Pod: pod}, nil
	}
	skipped := func(context.Context, feature.Request) (feature.Decision, error) { return feature.Decision{}, nil }
	mode := func(m stowage.Mode) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{stowage.ModeKey: string(m)} }
	}
	owner := func(apiVersion, kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = apiVersion, kind }
	}
	for name, tc := range map[string]struct {
		decide  featureFunc
		other   featureFunc // that gives no seats
		cluster world.Snapshot
		edit    func(*corev1.Pod)
		stays   bool
		warning string
		event   bool
	}{
		"a seat":                            {decide: seat},
		"nothing to do":                     {decide: skipped},
		"it fails":                          {decide: fails, stays: true, warning: "no luck"},
		"it panics":                         {decide: panics, stays: true, warning: "panic"},
		"it would be too large":             {decide: dropped, stays: true, warning: "too large"},
		"nobody can decide now":             {decide: waits, stays: true, warning: "too slow"},
		"a seat, and something else fails":  {decide: seat, other: fails, warning: "no luck", event: true},
		"the namespace cannot be read":      {decide: seat, cluster: &brokenCluster{}, stays: true, warning: "timed out"},
		"mode Off":                          {decide: fails, edit: mode(stowage.ModeOff)},
		"mode Audit":                        {decide: seat, edit: mode(stowage.ModeAudit), warning: "would make this pod one with a seat"},
		"mode Audit, and it fails":          {decide: fails, edit: mode(stowage.ModeAudit), warning: "no luck", event: true},
		"a DaemonSet's, and it fails":       {decide: fails, edit: owner("apps/v1", "DaemonSet"), warning: "no luck", event: true},
		"a peer pod, and it fails":          {decide: fails, edit: func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("kata-remote") }, warning: "no luck", event: true},
		"a pod of nobody, and it fails":     {decide: fails, edit: func(p *corev1.Pod) { p.OwnerReferences = nil }, warning: "no luck", event: true},
		"more than it looks at":             {decide: seat, edit: func(p *corev1.Pod) { p.Spec.Tolerations = make([]corev1.Toleration, 3000) }, stays: true, warning: "over 2000"},
		"a namespace that is never touched": {decide: seat, edit: func(p *corev1.Pod) { p.Namespace = metav1.NamespaceSystem }},
	} {
		for _, dryRun := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/dryRun=%t", name, dryRun), func(t *testing.T) {
				static := tc.cluster
				if static == nil {
					static = manifests.New(world.Objects{})
				}
				h := newTestHandler(t, static)
				scopes := scope.New(static, "stowage-system")
				scopes.PeerPods = []string{"kata-remote"}
				features := []feature.Feature{seatGiver{tc.decide}}
				if tc.other != nil {
					features = append(features, tc.other)
				}
				h.Pipeline = pipeline.New(scopes, features...)
				recorder := events.NewFakeRecorder(10)
				h.Events = stowageevents.Recorder{EventRecorder: recorder}
				pod := testkit.Pod("web-1").Owner("web").Container("c", "cpu=1", "").Obj()
				pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: stowage.SeatGate}}
				if tc.edit != nil {
					tc.edit(pod)
				}
				got := decodeAnswer(t, post(h, reviewOf(t, pod, func(r *admissionv1.AdmissionReview) { r.Request.DryRun = &dryRun })))
				patch := string(got.Response.Patch)
				if removed := strings.Contains(patch, `{"op":"remove","path":"/spec/schedulingGates/1"}`); removed == tc.stays {
					t.Errorf("the patch is %s", patch)
				}
				if tc.stays && patch != "" {
					t.Errorf("the patch is %s", patch)
				}
				if w := got.Response.Warnings; (len(w) == 1) != (tc.warning != "") || len(w) == 1 && !strings.Contains(w[0], tc.warning) {
					t.Errorf("the warnings are %q", w)
				}
				if got := len(recorder.Events) > 0; got != (tc.event && !dryRun) {
					t.Errorf("there is an event: %t", got)
				}
			})
		}
	}
}

func TestLongWarningIsCut(t *testing.T) {
	f := featureFunc(func(context.Context, feature.Request) (feature.Decision, error) {
		return feature.Decision{}, errors.New(strings.Repeat("ä", 300))
	})
	got := decodeAnswer(t, post(newTestHandler(t, manifests.New(world.Objects{}), f), reviewOf(t, peerPod(), nil)))
	if w := got.Response.Warnings[0]; len(w) > pipeline.MaxWarning || !strings.HasSuffix(w, "ä...") {
		t.Errorf("a warning of %d bytes: %s", len(w), w)
	}
}

func TestPeerPodRefusals(t *testing.T) {
	hard := func(list string, scopes ...corev1.ResourceQuotaScope) []corev1.ResourceQuota {
		return []corev1.ResourceQuota{{
			ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"},
			Spec:       corev1.ResourceQuotaSpec{Hard: testkit.ResourceList(list), Scopes: scopes},
		}}
	}
	limit := func(item corev1.LimitRangeItem) []corev1.LimitRange {
		return []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}}
	}
	cases := map[string]struct {
		cluster world.Objects
		warning string
		events  int
	}{
		"defaults only":              {cluster: world.Objects{LimitRanges: limit(corev1.LimitRangeItem{Type: "Container", Default: testkit.ResourceList("cpu=1")})}},
		"a container minimum":        {cluster: world.Objects{LimitRanges: limit(corev1.LimitRangeItem{Type: "Container", Min: testkit.ResourceList("memory=1,cpu=1")})}, warning: `remove these bounds of LimitRange "l" or use another namespace: min.cpu (Container), min.memory (Container)`, events: 1},
		"a pod maximum":              {cluster: world.Objects{LimitRanges: limit(corev1.LimitRangeItem{Type: "Pod", Max: testkit.ResourceList("cpu=1")})}, warning: "max.cpu (Pod)", events: 1},
		"a ratio":                    {cluster: world.Objects{LimitRanges: limit(corev1.LimitRangeItem{Type: "Container", MaxLimitRequestRatio: testkit.ResourceList("cpu=2")})}, warning: "maxLimitRequestRatio.cpu", events: 1},
		"a bound on volumes":         {cluster: world.Objects{LimitRanges: limit(corev1.LimitRangeItem{Type: "PersistentVolumeClaim", Max: testkit.ResourceList("storage=1")})}},
		"a bound on VMs":             {cluster: world.Objects{LimitRanges: limit(corev1.LimitRangeItem{Type: "Container", Max: testkit.ResourceList(stowage.DefaultVMResource + "=1")})}},
		"a quota on cpu and memory":  {cluster: world.Objects{ResourceQuotas: hard("requests.cpu=1,limits.memory=1")}, warning: `ResourceQuota "q" may refuse this pod, because a peer pod has no requests or limits; use requests.kata.peerpods.io/vm there in place of requests.cpu, limits.memory`},
		"a quota on VMs":             {cluster: world.Objects{ResourceQuotas: hard("requests.kata.peerpods.io/vm=1,pods=3")}},
		"a quota on best effort":     {cluster: world.Objects{ResourceQuotas: hard("pods=1", corev1.ResourceQuotaScopeBestEffort)}},
		"a quota on the others only": {cluster: world.Objects{ResourceQuotas: hard("cpu=1", corev1.ResourceQuotaScopeNotBestEffort)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newTestHandler(t, manifests.New(tc.cluster))
			recorder := events.NewFakeRecorder(10)
			h.Events = stowageevents.Recorder{EventRecorder: recorder}
			got := decodeAnswer(t, post(h, reviewOf(t, peerPod(), nil)))
			if w := got.Response.Warnings; len(w) > 1 || (len(w) == 1) != (tc.warning != "") || len(w) == 1 && !strings.Contains(w[0], tc.warning) {
				t.Errorf("warnings are %q, want %q", w, tc.warning)
			}
			if n := len(recorder.Events); n != tc.events {
				t.Errorf("%d events, want %d", n, tc.events)
			}
		})
	}
}

// everything is a cluster in which each feature has something to do.
func everything() *manifests.Snapshot {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	node.Status.Allocatable = testkit.ResourceList("cpu=4,memory=16Gi,ephemeral-storage=100Gi")
	agent := world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "ds"}, Namespace: "default"}
	agent.Annotations = map[string]string{flexdaemonsets.TemplateAnnotation: "tenth"}
	web := world.Workload{Ref: world.Ref{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs"}, Namespace: "default"}
	return manifests.New(world.Objects{
		Nodes: []corev1.Node{node}, Workloads: []*world.Workload{&agent, &web},
		Templates: []flexdaemonsets.FlexDaemonsetTemplate{{ObjectMeta: metav1.ObjectMeta{Name: "tenth"}, Spec: flexdaemonsets.FlexDaemonsetTemplateSpec{
			CPUPercentage: new(int32(10)), MemoryPercentage: new(int32(15)), MinStorage: "1Gi",
		}}},
		PodDistributors: []versprei.PodDistributor{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d"}, Spec: versprei.PodDistributorSpec{
			Target: versprei.Target{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}, Enforcement: versprei.EnforcementPreferred,
			Distribution: []versprei.Pool{{NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 4, Tolerations: []versprei.Toleration{{Key: "spot", Operator: "Exists"}}}, {NodeLabel: map[string]versprei.LabelValue{"type": "od"}, Weight: 1}},
		}}},
	})
}

// ownedBy makes a pod one of a workload's, or of nobody's.
func ownedBy(pod *corev1.Pod, owner string) {
	controlledBy := func(kind, name, uid string) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(uid), Controller: new(true)}}
	}
	switch owner {
	case "a PodDistributor's":
		controlledBy("ReplicaSet", "web", "rs")
	case "a strategy's":
		controlledBy("ReplicaSet", "other", "other-uid")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, stowage.SpreadStrategyAliasAnnotation, "p=a,base=1:p=b,weight=1")
	case "a StatefulSet's":
		pod.Name = "db-3"
		controlledBy("StatefulSet", "db", "db-uid")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, stowage.SpreadStrategyAliasAnnotation, "p=a,weight=1:p=b,weight=2")
	case "a DaemonSet's":
		controlledBy("DaemonSet", "agent", "ds")
		pod.Spec.NodeName = "n4"
	}
}

// The pipeline with all three features, applied to its own output, changes nothing, whatever the pod.
func TestPipelineIsIdempotent(t *testing.T) {
	static := everything()
	h := newTestHandler(t, static,
		&spreadadmit.Feature{Policies: policy.NewFinder(static, policy.Settings{}), Seats: ledger.NewMemory(), Key: make(ledger.Key, ledger.KeySize), Audits: spreadadmit.NewAudits(clock.RealClock{})},
		&sizeadmit.Feature{World: static},
		&vmadmit.Feature{Config: peerpod.DefaultConfig(), World: static})
	changed := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		b := testkit.Pod("p").RuntimeClass(rapid.SampledFrom([]string{stowage.DefaultRuntimeClass, "runc"}).Draw(rt, "class"))
		owner := rapid.SampledFrom([]string{"nobody's", "a PodDistributor's", "a strategy's", "a StatefulSet's", "a DaemonSet's"}).Draw(rt, "owner")
		entries := rapid.SampledFrom([]string{"", "cpu=1", "memory=1Gi", "cpu=100m,nvidia.com/gpu=1", "vendor.example/nic=1,hugepages-2Mi=2Mi", stowage.DefaultVMResource + "=2"})
		for i := range rapid.IntRange(0, 2).Draw(rt, "init containers") {
			if rapid.Bool().Draw(rt, "sidecar") {
				b.Sidecar(fmt.Sprintf("s%d", i), entries.Draw(rt, "requests"), entries.Draw(rt, "limits"))
			} else {
				b.InitContainer(fmt.Sprintf("i%d", i), entries.Draw(rt, "requests"), entries.Draw(rt, "limits"))
			}
		}
		for i := range rapid.IntRange(1, 3).Draw(rt, "containers") {
			b.Container(fmt.Sprintf("c%d", i), entries.Draw(rt, "requests"), entries.Draw(rt, "limits"))
		}
		if rapid.Bool().Draw(rt, "pod-level") {
			b.PodResources(entries.Draw(rt, "requests"), entries.Draw(rt, "limits"))
		}
		for _, key := range []string{stowage.DefaultVCPUsAnnotation, stowage.DefaultMemAnnotation, stowage.OriginalResourcesAnnotation} {
			if rapid.IntRange(0, 3).Draw(rt, key) == 0 {
				b.Annotation(key, rapid.SampledFrom([]string{"", "2", "x", `{"containers":{"c0":{"limits":{"cpu":"4"}}}}`}).Draw(rt, key+" value"))
			}
		}
		pod := b.Obj()
		ownedBy(pod, owner)
		raw, err := json.Marshal(pod)
		if err != nil {
			rt.Fatal(err)
		}
		for pass := 1; ; pass++ {
			body := reviewOf(t, pod, func(r *admissionv1.AdmissionReview) { r.Request.Object.Raw = raw })
			patch := decodeAnswer(t, post(h, body)).Response.Patch
			if len(patch) == 0 {
				return
			}
			changed[owner]++
			if pass == 2 {
				rt.Fatalf("a second pass over\n%s\nchanges\n%s", raw, patch)
			}
			decoded, err := jsonpatch.DecodePatch(patch)
			if err != nil {
				rt.Fatal(err)
			}
			if raw, err = decoded.Apply(raw); err != nil {
				rt.Fatalf("apply %s: %v", patch, err)
			}
		}
	})
	for _, owner := range []string{"nobody's", "a PodDistributor's", "a strategy's", "a StatefulSet's", "a DaemonSet's"} {
		if changed[owner] == 0 {
			t.Errorf("no pod that is %s was changed", owner)
		}
	}
}

// The same pod gets the same bytes.
func TestAnswerIsDeterministic(t *testing.T) {
	pod := testkit.Pod("p").RuntimeClass(stowage.DefaultRuntimeClass).
		Container("a", "cpu=1,memory=1Gi,vendor.example/x=1,vendor.example/y=1", "cpu=1,memory=2Gi,vendor.example/x=1,vendor.example/y=1").
		Container("b", "cpu=1,memory=1Gi", "").InitContainer("i", "", "cpu=1,memory=1Gi").Obj()
	h := newTestHandler(t, manifests.New(world.Objects{}))
	want := post(h, reviewOf(t, pod, nil)).Body.String()
	for range 20 {
		if diff := cmp.Diff(want, post(h, reviewOf(t, pod, nil)).Body.String()); diff != "" {
			t.Fatalf("another answer (-first +later):\n%s", diff)
		}
	}
}

// A patch touches nothing that it does not have to.
func TestPatchIsSmall(t *testing.T) {
	got := decodeAnswer(t, post(newTestHandler(t, manifests.New(world.Objects{})), reviewOf(t, peerPod(), nil)))
	var ops []struct{ Op, Path string }
	if err := json.Unmarshal(got.Response.Patch, &ops); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, op := range ops {
		paths = append(paths, op.Op+" "+op.Path)
	}
	want := []string{
		"add /metadata/labels",
		"add /metadata/annotations",
		"remove /spec/containers/0/resources/limits/cpu",
		"remove /spec/containers/0/resources/limits/memory",
		"add /spec/containers/0/resources/limits/kata.peerpods.io~1vm",
		"remove /spec/containers/0/resources/requests/cpu",
		"remove /spec/containers/0/resources/requests/memory",
		"add /spec/containers/0/resources/requests/kata.peerpods.io~1vm",
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
}

func TestBudget(t *testing.T) {
	for query, want := range map[string]time.Duration{
		"":               5 * time.Second,
		"?timeout=10s":   9800 * time.Millisecond,
		"?timeout=100ms": 5 * time.Second,
		"?timeout=-1s":   5 * time.Second,
		"?timeout=99h":   5 * time.Second,
		"?timeout=soon":  5 * time.Second,
	} {
		if got := budget(httptest.NewRequest(http.MethodPost, "/mutate"+query, nil)); got != want {
			t.Errorf("%q gives %s, want %s", query, got, want)
		}
	}
}

// FuzzHandler sends bodies that no API server would: nothing may panic, and every
// answer is either an HTTP error or a review that allows.
func FuzzHandler(f *testing.F) {
	f.Add(reviewOf(f, peerPod(), nil))
	f.Add(benchReview(f, false, true))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"","kind":{"version":"v1","kind":"Pod"},"operation":"CREATE","object":{"spec":{"runtimeClassName":"kata-remote","containers":[{}]}}}}`))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"object":[]}}`))
	h := newTestHandler(f, manifests.New(world.Objects{}))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := post(h, body)
		if w.Code != http.StatusOK {
			if w.Code != http.StatusBadRequest {
				t.Fatalf("status %d", w.Code)
			}
			return
		}
		got := decodeAnswer(t, w)
		if p := got.Response.Patch; len(p) > 0 {
			if _, err := jsonpatch.DecodePatch(p); err != nil {
				t.Errorf("the patch is no patch: %v", err)
			}
		}
	})
}

// Lines about decisions are limited, of failures and of changes apart.
func TestLogLinesAreLimited(t *testing.T) {
	for name, f := range map[string]featureFunc{
		"failures": func(context.Context, feature.Request) (feature.Decision, error) {
			return feature.Decision{}, errors.New("no luck")
		},
		"changes": func(_ context.Context, r feature.Request) (feature.Decision, error) {
			pod := r.Pod.Clone()
			pod.SetLabel("a", "b")
			return feature.Decision{Pod: pod}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, lines, longest := newTestHandler(t, manifests.New(world.Objects{}), f), 0, 0
			h.Log = funcr.New(func(_, line string) { lines, longest = lines+1, max(longest, len(line)) }, funcr.Options{})
			h.FailureLimit, h.ChangeLimit = flowcontrol.NewTokenBucketPassiveRateLimiter(0.001, 3), flowcontrol.NewTokenBucketPassiveRateLimiter(0.001, 3)
			pod := peerPod()
			pod.Name, pod.OwnerReferences = strings.Repeat("x", 10000), []metav1.OwnerReference{{Name: strings.Repeat("y", 10000), Controller: new(true)}}
			for range 20 {
				decodeAnswer(t, post(h, reviewOf(t, pod, nil)))
			}
			if lines != 3 || longest > 2000 {
				t.Errorf("20 decisions wrote %d lines of up to %d bytes, want 3 of some hundreds", lines, longest)
			}
		})
	}
}
