// Package selection answers what the registration of the webhook selects: about which pods the API server asks the webhook. The
// controllers and the views ask it, so that they expect nothing of a pod that the webhook never saw.
package selection

import (
	"fmt"
	"slices"
	"sync"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Webhooks are those of a registration, with what they select.
type Webhooks struct {
	webhooks []webhook
}

type webhook struct {
	namespaces, objects labels.Selector
	conditions          []condition
}

type condition struct {
	name    string
	program cel.Program
}

// environmentForConditions is the API server's own CEL environment, with the variables of match
// conditions (KEP-3716). A condition that asks the authorizer does not compile here.
var environmentForConditions = sync.OnceValues(func() (*cel.Env, error) {
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
		},
	})
	if err != nil {
		return nil, err
	}
	return set.Env(environment.StoredExpressions)
})

// Compile reads a registration. It returns an error for a selector or match condition that
// it can't evaluate; the registration then is of no use.
func Compile(config *admissionregistrationv1.MutatingWebhookConfiguration) (*Webhooks, error) {
	r := &Webhooks{}
	for i := range config.Webhooks {
		w := &config.Webhooks[i]
		namespaces, err := selector(w.NamespaceSelector)
		if err != nil {
			return nil, fmt.Errorf("namespaceSelector of webhook %q: %w", w.Name, err)
		}
		objects, err := selector(w.ObjectSelector)
		if err != nil {
			return nil, fmt.Errorf("objectSelector of webhook %q: %w", w.Name, err)
		}
		out := webhook{namespaces: namespaces, objects: objects}
		for _, c := range w.MatchConditions {
			program, err := compile(c.Expression)
			if err != nil {
				return nil, fmt.Errorf("matchCondition %q of webhook %q: %w", c.Name, w.Name, err)
			}
			out.conditions = append(out.conditions, condition{c.Name, program})
		}
		r.webhooks = append(r.webhooks, out)
	}
	return r, nil
}

func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

func compile(expression string) (cel.Program, error) {
	env, err := environmentForConditions()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	return env.Program(ast)
}

// Selects reports whether the API server calls the webhook when this pod is created in a
// namespace with these labels. The pod must be as its owner made it: without the node that
// the scheduler chose since.
func (r *Webhooks) Selects(namespaceLabels map[string]string, pod *corev1.Pod) (bool, error) {
	var object map[string]any // made once, and only where a condition asks for it
	for i := range r.webhooks {
		w := &r.webhooks[i]
		if !w.namespaces.Matches(labels.Set(namespaceLabels)) || !w.objects.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if len(w.conditions) > 0 && object == nil {
			var err error
			if object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(pod); err != nil {
				return false, err
			}
		}
		matches, err := w.matches(object, pod.Namespace)
		if err != nil {
			return false, err
		}
		if matches {
			return true, nil
		}
	}
	return false, nil
}

// SelectsLabels reports whether the selectors let a pod with these labels through, in a namespace with these,
// whatever the match conditions.
func (r *Webhooks) SelectsLabels(namespaceLabels, podLabels map[string]string) bool {
	return slices.ContainsFunc(r.webhooks, func(w webhook) bool {
		return w.namespaces.Matches(labels.Set(namespaceLabels)) && w.objects.Matches(labels.Set(podLabels))
	})
}

// matches evaluates the match conditions. As in the API server, one that is false decides,
// whatever error another one has.
func (w *webhook) matches(object map[string]any, namespace string) (bool, error) {
	vars := map[string]any{"object": object, "oldObject": nil, "request": map[string]any{
		"operation": "CREATE", "namespace": namespace, "dryRun": false,
		"kind":     map[string]any{"group": "", "version": "v1", "kind": "Pod"},
		"resource": map[string]any{"group": "", "version": "v1", "resource": "pods"},
	}}
	var failed error
	for _, c := range w.conditions {
		out, _, err := c.program.Eval(vars)
		if err != nil {
			failed = fmt.Errorf("matchCondition %q: %w", c.name, err)
			continue
		}
		if matches, ok := out.Value().(bool); !ok || !matches {
			return false, nil
		}
	}
	return failed == nil, failed
}

// Compiler compiles a registration once for each version of it. The zero value is ready.
type Compiler struct {
	mu       sync.Mutex
	version  string
	compiled *Webhooks
	err      error
}

// Compile is [Compile]. It also reports whether it sees this version for the first time.
func (c *Compiler) Compile(config *admissionregistrationv1.MutatingWebhookConfiguration) (r *Webhooks, first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first = c.version == "" || c.version != config.ResourceVersion; first {
		c.version = config.ResourceVersion
		c.compiled, c.err = Compile(config)
	}
	return c.compiled, first, c.err
}
