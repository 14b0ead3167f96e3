package serving

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/suite"
)

// The MutatingAdmissionPolicy puts back the costs that somebody else writes on pods with a seat, and no others. It refuses no write.
func TestDeletionCostsByPolicy(t *testing.T) {
	suite.NeedsVersion(t, "1.36", "MutatingAdmissionPolicy v1")
	suite.Applied(t, "config/deletioncosts/policy.yaml")
	n := newTenant(t)
	must(t, n.Create(t.Context(), n.Deployment("web", 10, annotated(eightyOf))))
	own := n.Deployment("own", 1, annotated(eightyOf))
	own.Spec.Template.Annotations = map[string]string{corev1.PodDeletionCost: "5"}
	must(t, n.Create(t.Context(), own))
	must(t, n.Create(t.Context(), n.Deployment("plain", 1, nil)))
	n.Spreads(t, "web", 10, strategyOf(t, eightyOf))
	n.CostsAgree(t, "web", strategyOf(t, eightyOf))
	seated, foreign, plain := n.Ready(t, "web", 10)[0], n.Ready(t, "own", 1)[0], n.Ready(t, "plain", 1)[0]
	ours := seated.Annotations[corev1.PodDeletionCost]

	cost := func(value string) string { return fmt.Sprintf(`{%q:%s}`, corev1.PodDeletionCost, value) }
	claimed := func(claim string) string {
		return fmt.Sprintf(`{"stowage.dev/claim":%q,%q:"-3"}`, claim, corev1.PodDeletionCost)
	}
	// try returns the cost that a pod would have after a patch of its annotations.
	try := func(c client.Client, pod *corev1.Pod, annotations string, status bool) (string, bool, error) {
		obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":`+annotations+`}}`))
		var err error
		if status {
			err = c.Status().Patch(t.Context(), obj, patch, client.DryRunAll)
		} else {
			err = c.Patch(t.Context(), obj, patch, client.DryRunAll)
		}
		got, has := obj.Annotations[corev1.PodDeletionCost]
		return got, has, err
	}
	eventually(t, "the policy is in force", func() (bool, error) {
		got, _, err := try(n, &seated, cost(`"-3"`), false)
		return got == ours, err
	})
	for name, tc := range map[string]struct {
		pod         *corev1.Pod
		by          client.Client // nil is somebody
		annotations string
		status      bool
		want        string // empty is no cost
	}{
		"a change":                                   {pod: &seated, annotations: cost(`"-3"`), want: ours},
		"a removal":                                  {pod: &seated, annotations: cost(`null`), want: ours},
		"a change through the status":                {pod: &seated, annotations: cost(`"-3"`), status: true, want: ours},
		"a removal through the status":               {pod: &seated, annotations: cost(`null`), status: true, want: ours},
		"a higher cost":                              {pod: &seated, annotations: cost(`"2147483647"`), want: ours},
		"another annotation":                         {pod: &seated, annotations: `{"a":"b"}`, want: ours},
		"by the controllers":                         {pod: &seated, by: asStowage(t, "stowage-controllers"), annotations: cost(`"7"`), want: "7"},
		"a pod that was created with a cost":         {pod: &foreign, annotations: cost(`"-3"`), want: "-3"},
		"the removal of such a cost":                 {pod: &foreign, annotations: cost(`null`)},
		"a pod without a seat":                       {pod: &plain, annotations: cost(`"-3"`), want: "-3"},
		"the claim is removed, too":                  {pod: &seated, annotations: `{"stowage.dev/claim":null,"` + corev1.PodDeletionCost + `":null}`},
		"all annotations are removed":                {pod: &seated, annotations: `null`},
		"a claim of the last rank":                   {pod: &seated, annotations: claimed("cX~10000000.y"), want: "1"},
		"a claim of a rank after that":               {pod: &seated, annotations: claimed("cX~999999999.y"), want: "1"},
		"a claim with a position and a source":       {pod: &seated, annotations: claimed("cX~7~5!h:u:1.y"), want: "9999993"},
		"a claim with a position and without a rank": {pod: &seated, annotations: claimed("cX~0~5.y"), want: "-3"},
		"a claim without a rank":                     {pod: &seated, annotations: claimed("cX!h:u:1.y"), want: "-3"},
		"a claim of too many digits":                 {pod: &seated, annotations: claimed("cX~99999999999999999999.y"), want: "-3"},
		"a claim that is none":                       {pod: &seated, annotations: claimed("~~.~"), want: "-3"},
	} {
		if tc.by == nil {
			tc.by = n
		}
		got, has, err := try(tc.by, tc.pod, tc.annotations, tc.status)
		if err != nil || got != tc.want || has != (tc.want != "") {
			t.Errorf("%s: the cost is %q, %t, want %q, %v", name, got, has, tc.want, err)
		}
	}

	// Karpenter repeats its write each minute. The API server stores the repetition of a write that changes nothing no more.
	var versions []string
	for range 3 {
		n.MergePatch(t, &seated, `{"metadata":{"annotations":`+cost(`"-3"`)+`}}`)
		if got := seated.Annotations[corev1.PodDeletionCost]; got != ours {
			t.Errorf("the cost is %q, want %q", got, ours)
		}
		versions = append(versions, seated.ResourceVersion)
	}
	if versions[1] != versions[2] {
		t.Errorf("the same write again is stored: the pod has the versions %v", versions)
	}
}
