// Package selection answers what the registration of the webhook selects: about which pods the API server asks the webhook. The
// controllers and the views ask it, so that they expect nothing of a pod that the webhook never saw.
package selection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Registration is what the registration of a webhook selects. The zero value selects nothing, as where there is none.
type Registration struct {
	webhooks []webhook
	note     func(pod *corev1.Pod, why error) // is called for the first pod of which the answer is not known, or nil
	noted    sync.Once
}

type webhook struct {
	namespaces, objects labels.Selector
	conditions          []condition
}

// condition is a match condition, or why it cannot be evaluated here.
type condition struct {
	name    string
	program cel.Program
	err     error
}

// Sent is whether the API server asks the webhook about a pod.
type Sent int

// The answers. Some match conditions cannot be evaluated here: one may ask for the user that creates the pod, or the authorizer.
const (
	No Sent = iota
	Yes
	Unknown
)

// environmentForConditions is the API server's own CEL environment, with the variables of match
// conditions (KEP-3716). A condition that asks the authorizer does not compile here, because the user that creates the pod is not known.
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

// Compile reads a registration. What of it cannot be evaluated here, [Registration.Err] says.
func Compile(config *admissionregistrationv1.MutatingWebhookConfiguration) *Registration {
	r := &Registration{}
	for i := range config.Webhooks {
		w := &config.Webhooks[i]
		out := webhook{}
		var errs [2]error
		out.namespaces, errs[0] = selector(w.NamespaceSelector)
		out.objects, errs[1] = selector(w.ObjectSelector)
		if err := errors.Join(errs[:]...); err != nil { // the API server accepts no such selector
			out.conditions = append(out.conditions, condition{err: fmt.Errorf("the selectors of webhook %q: %w", w.Name, err)})
		}
		for _, c := range w.MatchConditions {
			program, err := compile(c.Expression)
			if err != nil {
				err = fmt.Errorf("matchCondition %q of webhook %q: %w", c.Name, w.Name, err)
			}
			out.conditions = append(out.conditions, condition{c.Name, program, err})
		}
		r.webhooks = append(r.webhooks, out)
	}
	return r
}

// Err returns which match conditions cannot be evaluated here for any pod, or nil.
func (r *Registration) Err() error {
	var errs []error
	for _, w := range r.webhooks {
		for _, c := range w.conditions {
			errs = append(errs, c.err)
		}
	}
	return errors.Join(errs...)
}

// selector returns what a selector selects: everything, if it is not there or is none.
func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Everything(), err
	}
	return out, nil
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

// Sent returns whether the API server asks the webhook when this pod is created in a namespace with these labels. The pod must be as its owner
// made it: without the node that the scheduler chose since. The error says why the answer is [Unknown].
func (r *Registration) Sent(namespaceLabels map[string]string, pod *corev1.Pod) (Sent, error) {
	var object map[string]any // made once, and only where a condition asks for it
	var unknown error
	for i := range r.webhooks {
		w := &r.webhooks[i]
		if !w.selects(namespaceLabels, pod.Labels) {
			continue
		}
		if len(w.conditions) > 0 && object == nil {
			var err error
			if object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(pod); err != nil {
				return Unknown, err
			}
		}
		switch sent, err := w.matches(object, pod.Namespace); sent {
		case Yes:
			return Yes, nil
		case Unknown:
			unknown = errors.Join(unknown, err)
		}
	}
	if unknown == nil {
		return No, nil
	}
	if r.note != nil {
		r.noted.Do(func() { r.note(pod, unknown) })
	}
	return Unknown, unknown
}

// SentByLabels reports whether the selectors let a pod with these labels through, in a namespace with these,
// whatever the match conditions.
func (r *Registration) SentByLabels(namespaceLabels, podLabels map[string]string) bool {
	return slices.ContainsFunc(r.webhooks, func(w webhook) bool { return w.selects(namespaceLabels, podLabels) })
}

func (w *webhook) selects(namespaceLabels, podLabels map[string]string) bool {
	return w.namespaces.Matches(labels.Set(namespaceLabels)) && w.objects.Matches(labels.Set(podLabels))
}

// matches evaluates the match conditions. As in the API server, one that is false decides,
// whatever error another one has.
func (w *webhook) matches(object map[string]any, namespace string) (Sent, error) {
	vars := map[string]any{"object": object, "oldObject": nil, "request": map[string]any{
		"operation": "CREATE", "namespace": namespace, "dryRun": false,
		"kind":     map[string]any{"group": "", "version": "v1", "kind": "Pod"},
		"resource": map[string]any{"group": "", "version": "v1", "resource": "pods"},
	}}
	var failed []error
	for _, c := range w.conditions {
		if c.err != nil {
			failed = append(failed, c.err)
			continue
		}
		out, _, err := c.program.Eval(vars)
		if err != nil {
			failed = append(failed, fmt.Errorf("matchCondition %q: %w", c.name, err))
			continue
		}
		if matches, ok := out.Value().(bool); !ok || !matches {
			return No, nil
		}
	}
	if len(failed) > 0 {
		return Unknown, errors.Join(failed...)
	}
	return Yes, nil
}

// Reader reads the registration of the webhook, and compiles each version of it once. Several goroutines may use it.
type Reader struct {
	client.Reader
	Name string
	Log  logr.Logger

	mu       sync.Mutex
	version  string
	compiled *Registration
}

// Read returns the registration as it is now. Where there is none, nothing is sent. The first answer that is not known is logged, once for each
// version of the registration.
func (r *Reader) Read(ctx context.Context) (*Registration, error) {
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := r.Get(ctx, client.ObjectKey{Name: r.Name}, &config); err != nil {
		if apierrors.IsNotFound(err) {
			return &Registration{}, nil
		}
		return nil, fmt.Errorf("read the webhook's registration: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.compiled == nil || r.version != config.ResourceVersion {
		r.compiled, r.version = Compile(&config), config.ResourceVersion
		r.compiled.note = func(pod *corev1.Pod, why error) {
			r.Log.Error(why, "it is not known whether the API server sends a pod to the webhook. Such pods are not repaired, and at the gate they get seats",
				"namespace", pod.Namespace, "pod", pod.Name, "kind", "MutatingWebhookConfiguration", "registration", r.Name)
		}
	}
	return r.compiled, nil
}
