package impact

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// server plays the API server that is asked in dry runs.
type server struct {
	sent   []*corev1.Pod
	answer func(*corev1.Pod) error
}

func (s *server) dryRun(_ context.Context, pod *corev1.Pod) error {
	s.sent = append(s.sent, pod)
	return s.answer(pod)
}

// denies is the answer of a policy, which refuses some pods.
func denies(text string, refuse func(*corev1.Pod) bool) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if !refuse(pod) {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod.GenerateName, errors.New(text))
	}
}

func selects(pod *corev1.Pod) bool { return pod.Spec.NodeSelector["pool"] != "" }

// Before a change is made, the API server is asked for pods with and without what Stowage would add.
func TestAsk(t *testing.T) {
	mayNot := func(*corev1.Pod) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(`User "viewer" cannot create resource "pods" in API group "" in the namespace "shop"`))
	}
	for name, tc := range map[string]struct {
		answer  func(*corev1.Pod) error
		refused string // the finding about workload web
		warning string
		sent    int
	}{
		"all is accepted":                  {answer: func(*corev1.Pod) error { return nil }, sent: 2},
		"node selectors are refused":       {answer: denies("node selectors are not for tenants", selects), refused: "node selectors are not for tenants; Stowage gives pods the node selector pool=od or pool=spot (ClusterSpreadPolicy even); have what refuses", sent: 2},
		"the pods of one pool are refused": {answer: denies("spot is for batch", func(pod *corev1.Pod) bool { return pod.Spec.NodeSelector["pool"] == "spot" }), refused: "spot is for batch; Stowage gives pods the node selector pool=od or pool=spot, ", sent: 3},
		"the text is about something else": {answer: denies("images are not from here", selects), refused: "images are not from here; Stowage gives pods the node selector pool=od or pool=spot, ", sent: 2},
		"all pods are refused":             {answer: denies("exceeded quota: none", func(*corev1.Pod) bool { return true }), warning: "is not known of 1 workload, because it refuses them without that, too, or did not answer, such as Deployment shop/web: ", sent: 2},
		"the server fails for pods with a seat": {answer: func(pod *corev1.Pod) error {
			if selects(pod) {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			return nil
		}, warning: "or did not answer, such as Deployment shop/web: Internal error occurred", sent: 2},
		"the caller may not create pods": {answer: mayNot, warning: "was not asked in namespace shop, because you may not create pods there", sent: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := plain()
			s.deployment("web", "100m", nil, "od-0", "od-1", "spot-0", "spot-1")
			api := &server{answer: tc.answer}
			s.dryRun = api.dryRun
			r, err := s.of(t, Change{}, even, nil)
			if err != nil || len(r.Workloads) != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			w := r.Workloads[0]
			if (w.Refused == "") != (tc.refused == "") || !strings.Contains(w.Refused, tc.refused) || (r.Cluster.Refused == 1) != (tc.refused != "") {
				t.Errorf("%d are refused: %q, want %q", r.Cluster.Refused, w.Refused, tc.refused)
			}
			if said := strings.Join(r.Warnings, "\n"); !strings.Contains(said, tc.warning) || tc.warning == "" && strings.Contains(said, "refuses") {
				t.Errorf("the warnings are %s", said)
			}
			if text := r.text(false); strings.Contains(text, "\nRefused: Deployment shop/web: the API server accepts new pods only without what Stowage gives them: ") != (tc.refused != "") {
				t.Error(text)
			}
			if len(api.sent) != tc.sent {
				t.Errorf("%d pods were sent, want %d", len(api.sent), tc.sent)
			}
			for _, pod := range api.sent {
				if c := pod.OwnerReferences; pod.Name != "" || pod.Namespace != "shop" || len(c) != 1 || c[0].Name != "stowage-impact" || !*c[0].Controller || pod.Labels["app"] != "web" {
					t.Errorf("a pod that the webhook may divide: %+v", pod.ObjectMeta)
				}
			}
		})
	}
}

// However many workloads there are, few are asked about, and it is said of how many others nothing is known.
func TestAskIsBounded(t *testing.T) {
	s := plain()
	for i := range 25 {
		s.deployment(fmt.Sprintf("web-%02d", i), "100m", nil, "od-0", "spot-0")
	}
	api := &server{answer: denies("node selectors are not for tenants", selects)}
	s.dryRun = api.dryRun
	s.live(t, even)
	o := s.options(t)
	found, warnings, err := o.Refused(t.Context())
	if err != nil || len(found) != mostAsked || found[0].Name != "web-00" || len(api.sent) != 2*mostAsked {
		t.Errorf("%d are refused of %d pods, %v", len(found), len(api.sent), err)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "was asked of 20 workloads, the first by name, and not of 5 others") {
		t.Errorf("the warnings are %q", warnings)
	}
}

// A peer pod is compared with the pod that its owner creates. If Stowage is installed, that pod has the mode Off, so that the webhook leaves it as it is.
func TestAskOfPeerPods(t *testing.T) {
	for name, mode := range map[string]string{"installed": "Off", "not yet": ""} {
		t.Run(name, func(t *testing.T) {
			s := newShop()
			if mode != "" {
				s.add(&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stowage"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "pods"}}})
			}
			api := &server{answer: denies("minimum cpu usage per Container is 1.  No request is specified", func(pod *corev1.Pod) bool {
				_, requests := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
				return !requests
			})}
			s.dryRun = api.dryRun
			found, _, err := s.options(t).Refused(t.Context())
			if err != nil || len(found) != 1 || found[0].Name != "vm" || !strings.Contains(found[0].String(), "Stowage gives pods a VM in place of requests and limits (RuntimeClass kata-remote)") {
				t.Fatalf("%+v, %v", found, err)
			}
			if last := api.sent[len(api.sent)-1]; last.Annotations[stowage.ModeKey] != mode || last.Spec.Containers[0].Resources.Requests.Cpu().String() != "1500m" {
				t.Errorf("the pod without is %+v", last)
			}
		})
	}
}
