package admission

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	cradmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	stowageevents "github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/platform/metrics"
	"github.com/stowage-dev/stowage/internal/podpatch"
	vmadmit "github.com/stowage-dev/stowage/internal/vm/admit"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// BenchmarkHandler compares our handler, from HTTP body to HTTP body, with a
// plain controller-runtime handler that does the same to the same pods the usual
// way: decode, deep-copy, marshal, diff. `make bench` prints the ratios.
func BenchmarkHandler(b *testing.B) {
	ctrl.SetLogger(logr.Discard()) // what a plain handler logs to
	for _, size := range []string{"typical", "large"} {
		for _, kind := range []string{"other", "peer"} {
			body := benchReview(b, size == "large", kind == "peer")
			for _, impl := range []struct {
				name    string
				handler http.Handler
			}{
				{"stowage", newTestHandler(b, manifests.New(world.Objects{}))},
				{"plain", plainHandler()},
			} {
				b.Run(fmt.Sprintf("pod=%s/size=%s/impl=%s", kind, size, impl.name), func(b *testing.B) {
					b.SetBytes(int64(len(body)))
					serve(b, impl.handler, body, http.StatusOK)
				})
			}
		}
	}
}

// serve has a handler answer a review with a status, again and again.
func serve(b *testing.B, handler http.Handler, body []byte, status int) {
	b.ReportAllocs()
	for b.Loop() {
		w := &discard{header: http.Header{}}
		r := httptest.NewRequest(http.MethodPost, "/mutate-v1-pod", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		handler.ServeHTTP(w, r)
		if is := cmp.Or(w.status, http.StatusOK); is != status {
			b.Fatalf("status %d, want %d", is, status)
		}
	}
}

// BenchmarkLeftAlone measures pods that Stowage does not change.
func BenchmarkLeftAlone(b *testing.B) {
	for name, mode := range map[string]stowage.Mode{"Off": stowage.ModeOff, "Audit": stowage.ModeAudit} {
		pod := benchPod(false, true)
		pod.Labels[stowage.ModeKey] = string(mode)
		body := benchReviewOf(b, pod)
		handler := newTestHandler(b, manifests.New(world.Objects{}))
		b.Run("mode="+name, func(b *testing.B) {
			serve(b, handler, body, http.StatusOK)
		})
	}
}

// BenchmarkRefused measures what a stranger can make a replica do with requests that it refuses, and a tenant with pods that it does not look at.
func BenchmarkRefused(b *testing.B) {
	huge := benchPod(false, false)
	huge.Spec.Tolerations = make([]corev1.Toleration, 3000)
	review := benchReview(b, true, false)
	for name, tc := range map[string]struct {
		body   []byte
		status int
	}{
		"no JSON":     {[]byte("pod: web"), http.StatusBadRequest},
		"no review":   {[]byte(`{"kind":"Pod","apiVersion":"v1"}`), http.StatusBadRequest},
		"half":        {review[:len(review)/2], http.StatusBadRequest},
		"too large":   {bytes.Repeat([]byte(" "), maxBodyBytes+1), http.StatusRequestEntityTooLarge},
		"tolerations": {benchReviewOf(b, huge), http.StatusOK},
	} {
		handler := newTestHandler(b, manifests.New(world.Objects{}))
		b.Run("request="+strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			serve(b, handler, tc.body, tc.status)
		})
	}
}

// BenchmarkCatalog compares the admission of a peer pod without a VMCatalog and with one of 500 types, of which the pod gets the last.
func BenchmarkCatalog(b *testing.B) {
	o := stowage.VMCatalog{}
	for i := range 500 {
		o.Spec.Types = append(o.Spec.Types, stowage.VMType{Name: fmt.Sprintf("type-%d", i), VCPUs: 1, Memory: resource.MustParse("512Mi"), PricePerHour: fmt.Sprintf("0.%03d", i+1)})
	}
	o.Spec.Types[499].VCPUs, o.Spec.Types[499].Memory = 64, resource.MustParse("256Gi")
	catalogs := []*catalog.Catalog{catalog.Compile(&o)}
	for _, size := range []string{"typical", "large"} {
		body := benchReview(b, size == "large", true)
		for _, with := range []bool{false, true} {
			f := defaultFeature(manifests.New(world.Objects{})).(*vmadmit.Feature)
			if with {
				f.Catalogs = func(context.Context) ([]*catalog.Catalog, error) { return catalogs, nil }
				f.Tries = vmadmit.NewTries(clock.RealClock{})
			}
			handler := newTestHandler(b, manifests.New(world.Objects{}), f)
			b.Run(fmt.Sprintf("size=%s/catalog=%t", size, with), func(b *testing.B) {
				serve(b, handler, body, http.StatusOK)
			})
		}
	}
}

// BenchmarkDecode compares the decoder that we use with the API machinery's, on the
// same review and the same type.
func BenchmarkDecode(b *testing.B) {
	for _, size := range []string{"typical", "large"} {
		body := benchReview(b, size == "large", false)
		for _, impl := range []struct {
			name   string
			decode func([]byte) error
		}{
			{"stowage", func(data []byte) error {
				_, err := decodeReview[*podpatch.Pod](data)
				return err
			}},
			{"plain", func(data []byte) error {
				var r review[*podpatch.Pod]
				return kjson.UnmarshalCaseSensitivePreserveInts(data, &r)
			}},
		} {
			b.Run(fmt.Sprintf("pod=decode-only/size=%s/impl=%s", size, impl.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := impl.decode(body); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// discard is a response writer that costs next to nothing.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header           { return d.header }
func (d *discard) WriteHeader(status int)        { d.status = status }
func (d *discard) Write(p []byte) (int, error)   { return len(p), nil }
func (*discard) SetReadDeadline(time.Time) error { return nil } // as the server's has

func newTestHandler(tb testing.TB, c world.Snapshot, features ...feature.Feature) *Handler {
	tb.Helper()
	if features == nil {
		features = []feature.Feature{defaultFeature(c)}
	}
	return &Handler{
		Pipeline:   pipeline.New(scope.New(c, "stowage-system"), features...),
		Metrics:    NewMetrics(metrics.NewSet(prometheus.NewRegistry())),
		Log:        logr.Discard(),
		Events:     stowageevents.Recorder{EventRecorder: &events.FakeRecorder{}},
		EventLimit: fair.NewLimiter[string](1e9, 1e9), Pulse: NewPulse(clock.RealClock{}),
		Intake: NewIntake(clock.RealClock{}),
		Clock:  clock.RealClock{},
	}
}

// defaultFeature is that of a handler for which a test asks for none.
func defaultFeature(c world.Snapshot) feature.Feature {
	return &vmadmit.Feature{Config: peerpod.DefaultConfig(), World: c}
}

// plainHandler is the usual mutating webhook.
func plainHandler() http.Handler {
	scheme := runtime.NewScheme()
	_ = corev1.AddToScheme(scheme)
	decoder := cradmission.NewDecoder(scheme)
	return &cradmission.Webhook{Handler: cradmission.HandlerFunc(func(_ context.Context, req cradmission.Request) cradmission.Response {
		pod := &corev1.Pod{}
		if err := decoder.Decode(req, pod); err != nil {
			return cradmission.Errored(http.StatusBadRequest, err)
		}
		out := pod.DeepCopy()
		if pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName == stowage.DefaultRuntimeClass {
			var cpu, memory resource.Quantity
			for _, list := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
				for i := range list {
					cpu.Add(*list[i].Resources.Limits.Cpu())
					memory.Add(*list[i].Resources.Limits.Memory())
					list[i].Resources = corev1.ResourceRequirements{}
				}
			}
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[stowage.DefaultVCPUsAnnotation] = fmt.Sprint(cpu.Value())
			out.Annotations[stowage.DefaultMemoryAnnotation] = fmt.Sprint(memory.Value() >> 20)
			one := corev1.ResourceList{stowage.DefaultVMResource: resource.MustParse("1")}
			out.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		}
		data, err := json.Marshal(out)
		if err != nil {
			return cradmission.Errored(http.StatusInternalServerError, err)
		}
		return cradmission.PatchResponseFromRaw(req.Object.Raw, data)
	})}
}

// benchReview is a review as the API server sends it for a pod of a Deployment:
// about 4 KiB of pod, or one with 20 containers and 200 variables.
func benchReview(tb testing.TB, large, peer bool) []byte {
	tb.Helper()
	return benchReviewOf(tb, benchPod(large, peer))
}

func benchReviewOf(tb testing.TB, pod *corev1.Pod) []byte {
	tb.Helper()
	dryRun := false
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:             "a3f0c9c0-7a43-4d5f-8f68-0f4f3d1e2b11",
			Kind:            metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource:        metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			RequestKind:     &metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			RequestResource: &metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace:       pod.Namespace,
			Operation:       admissionv1.Create,
			Object:          runtime.RawExtension{Raw: marshal(tb, pod)},
			DryRun:          &dryRun,
			Options:         runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)},
		},
	}
	review.Request.UserInfo.Username = "system:serviceaccount:kube-system:replicaset-controller"
	review.Request.UserInfo.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
	return marshal(tb, review)
}

func benchPod(large, peer bool) *corev1.Pod {
	yes, seconds, mode := true, int64(300), int32(0o644)
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    "checkout-5d9c7b9c6f-",
			Namespace:       "shop",
			Labels:          map[string]string{"app": "checkout", "app.kubernetes.io/name": "checkout", "pod-template-hash": "5d9c7b9c6f"},
			Annotations:     map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-11-01T08:00:00Z", "prometheus.io/scrape": "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "checkout-5d9c7b9c6f", UID: "0d7f6b26-5f4e-4a1a-9f27-7f0f5f1c7a55", Controller: &yes, BlockOwnerDeletion: &yes}},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/restartedAt":{},"f:prometheus.io/scrape":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:app.kubernetes.io/name":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"0d7f6b26-5f4e-4a1a-9f27-7f0f5f1c7a55\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c0\"}":{".":{},"f:env":{".":{},"k:{\"name\":\"VAR_0\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"VAR_1\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:httpGet":{".":{},"f:path":{},"f:port":{}}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:cpu":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}`),
			}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, SchedulerName: "default-scheduler",
			ServiceAccountName: "default", DeprecatedServiceAccount: "default", SecurityContext: &corev1.PodSecurityContext{},
			EnableServiceLinks: &yes, TerminationGracePeriodSeconds: &seconds,
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
				{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
			},
			Volumes: []corev1.Volume{{Name: "kube-api-access-x7x2q", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				DefaultMode: &mode,
				Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds, Path: "token"}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
					{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
				},
			}}}},
		},
	}
	if peer {
		class := stowage.DefaultRuntimeClass
		pod.Spec.RuntimeClassName = &class
		pod.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("120Mi")}
	}
	containers, vars := 1, 8
	if large {
		containers, vars = 20, 10
	}
	for i := range containers {
		c := corev1.Container{
			Name: fmt.Sprintf("c%d", i), Image: "registry.example/shop/checkout:v1.42.0", ImagePullPolicy: corev1.PullIfNotPresent,
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("512Mi")},
				Limits:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
			},
			VolumeMounts:             []corev1.VolumeMount{{Name: "kube-api-access-x7x2q", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
			TerminationMessagePath:   "/dev/termination-log",
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}
		for v := range vars {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VAR_%d", v), Value: "some value of the usual length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

// TestBenchInput keeps the benchmark honest about its input's size.
func TestBenchInput(t *testing.T) {
	for _, large := range []bool{false, true} {
		data := marshal(t, benchPod(large, true))
		if n := len(data); !large && (n < 3500 || n > 5000) || large && n < 15000 {
			t.Errorf("large=%t: the pod has %d bytes", large, n)
		}
	}
}
