package preview

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stowage-dev/stowage/internal/report"
)

// The text of a list is that of its pods together.
func TestPodList(t *testing.T) {
	pods := []*corev1.Pod{{TypeMeta: podType}, {TypeMeta: podType}, {TypeMeta: podType}}
	for i, name := range []string{"a", "b", "c"} {
		pods[i].Name = name
		pods[i].Annotations = map[string]string{"long": strings.Repeat("some words ", 30), "lines": "kind: List\n\n  items:\n- one\n", "json": `{"items": [` + "\n  ]\n}\n"}
	}
	for _, format := range []string{"yaml", "json"} {
		for n := range len(pods) + 1 {
			var want, got strings.Builder
			if err := report.Object(&want, format, podList{"v1", "List", pods[:n]}); err != nil {
				t.Fatal(err)
			}
			l := NewPodList(format)
			for _, pod := range pods[:n] {
				if err := l.Add(pod); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Print(&got); err != nil || got.String() != want.String() {
				t.Errorf("%d pods in %s, %v:\n%s, want\n%s", n, format, err, &got, &want)
			}
		}
	}
}
