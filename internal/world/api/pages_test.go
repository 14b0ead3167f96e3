package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/test/testkit"
)

// Lists come in pages, which become smaller where pods are large.
func TestEach(t *testing.T) {
	for name, tc := range map[string]struct {
		pods, bytes int // of each pod
		answers     int64
		fails       bool
	}{
		"none":                        {answers: 1},
		"one page":                    {pods: pageSize, answers: 1},
		"three pages":                 {pods: 2*pageSize + 1, answers: 3},
		"large pods":                  {pods: 100, bytes: 100 << 10, answers: 5}, // one too large, and four of 25
		"a pod that nobody may write": {pods: 1, bytes: 2 * maxAnswer, answers: 4, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			pods := make([]corev1.Pod, tc.pods)
			for i := range pods {
				pods[i].Name = fmt.Sprint("pod-", i)
				pods[i].Annotations = map[string]string{"text": strings.Repeat("x", tc.bytes)}
				if i == 0 {
					pods[i].Labels = map[string]string{"first": "yes"}
				}
			}
			c, answers := testkit.PodServer(t, pods, LimitAnswers)
			seen, first := 0, 0
			err := Each(t.Context(), c, &corev1.PodList{}, func(pod *corev1.Pod) error {
				if pod.Name != fmt.Sprint("pod-", seen) {
					return fmt.Errorf("pod %d is %s", seen, pod.Name)
				}
				seen, first = seen+1, first+len(pod.Labels)
				return nil
			})
			if tc.fails != errors.Is(err, errTooLarge) || !tc.fails && (err != nil || seen != tc.pods || first != min(1, tc.pods)) {
				t.Errorf("%d of %d pods, of which %d are the first, %v", seen, tc.pods, first, err)
			}
			if got := answers.Load(); got != tc.answers {
				t.Errorf("%d answers, want %d", got, tc.answers)
			}
		})
	}
}

// The pods of a node are counted although they are too large for one answer.
func TestPodsOnOfLargePods(t *testing.T) {
	pods := make([]corev1.Pod, 100)
	for i := range pods {
		pods[i].ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Annotations: map[string]string{"text": strings.Repeat("x", 100<<10)}}
		pods[i].Spec.NodeName = "node"
		pods[i].Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: testkit.ResourceList("cpu=1")}}}
	}
	c, _ := testkit.PodServer(t, pods, LimitAnswers)
	got, err := PodsOn(t.Context(), c, "node", true)
	if err != nil || len(got) != len(pods) {
		t.Fatalf("%d pods, %v", len(got), err)
	}
	if cpu := got[0].Spec.Containers[0].Resources.Requests.Cpu().Value(); cpu != 1 || got[0].Annotations != nil {
		t.Errorf("%d CPU, annotations %d", cpu, len(got[0].Annotations))
	}
}
