package scope

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

type namespaces map[string]*corev1.Namespace

func (n namespaces) Namespace(_ context.Context, name string) (*corev1.Namespace, error) {
	if name == "broken" {
		return nil, errors.New("no answer")
	}
	return n[name], nil
}

func TestMode(t *testing.T) {
	all := namespaces{
		"plain": {ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
		"off":   {ObjectMeta: metav1.ObjectMeta{Name: "off", Labels: map[string]string{stowage.ModeKey: "off"}}},
		"audit": {ObjectMeta: metav1.ObjectMeta{Name: "audit", Annotations: map[string]string{stowage.ModeKey: "Audit"}}},
	}
	for name, tc := range map[string]struct {
		namespace string
		pod       podpatch.Metadata
		want      stowage.Mode
		because   string
		warnings  int
		fails     bool
	}{
		"nothing is said":                 {namespace: "plain", want: stowage.ModeEnforce},
		"a namespace that is not known":   {namespace: "new", want: stowage.ModeEnforce},
		"the namespace says Off":          {namespace: "off", want: stowage.ModeOff, because: "namespace off"},
		"the pod wins":                    {namespace: "off", pod: podpatch.Metadata{Annotations: map[string]string{stowage.ModeKey: "enforce"}}, want: stowage.ModeEnforce},
		"the pod's label":                 {namespace: "plain", pod: podpatch.Metadata{Labels: map[string]string{stowage.ModeKey: "OFF"}}, want: stowage.ModeOff, because: "the pod"},
		"a value that is none":            {namespace: "audit", pod: podpatch.Metadata{Labels: map[string]string{stowage.ModeKey: "on"}}, want: stowage.ModeAudit, warnings: 1},
		"a misspelt one does not enforce": {namespace: "plain", pod: podpatch.Metadata{Annotations: map[string]string{stowage.ModeKey: "Audti"}}, want: stowage.ModeAudit, warnings: 1},
		"a system namespace":              {namespace: "kube-system", want: stowage.ModeOff, because: "never touched"},
		"our own namespace":               {namespace: "stowage-system", want: stowage.ModeOff, because: "never touched"},
		"a namespace that can't be read":  {namespace: "broken", want: stowage.ModeOff, because: "no answer", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(all, "stowage-system")
			a, err := s.Of(t.Context(), tc.namespace, &podpatch.Pod{Metadata: tc.pod})
			if a.Mode != tc.want || !strings.Contains(a.LeftAlone, tc.because) || len(a.Warnings) != tc.warnings || (err != nil) != tc.fails {
				t.Errorf("%+v, %v", a, err)
			}
			if got := s.Enforces(t.Context(), tc.namespace, &podpatch.Pod{Metadata: tc.pod}); got != (tc.want == stowage.ModeEnforce) {
				t.Errorf("it enforces: %t", got)
			}
		})
	}
}
