package impact

import (
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/preview"
)

// readRegistration reads what the webhook is asked about.
func (r *reader) readRegistration() error {
	var registration admissionregistrationv1.MutatingWebhookConfiguration
	err := r.Client.Get(r.ctx, client.ObjectKey{Name: r.Registration}, &registration)
	switch {
	case apierrors.IsNotFound(err):
		r.absent = true
		return nil
	case apierrors.IsForbidden(err):
		r.blind = append(r.blind, "the registration of the webhook")
		return nil
	case err != nil:
		return err
	}
	r.registration = selection.Compile(&registration)
	if err := r.registration.Err(); err != nil {
		r.blind = append(r.blind, fmt.Sprintf("what the registration of the webhook selects (%v)", err))
	}
	return nil
}

// reaches returns a function that reports whether the API server asks the webhook about a pod, or nil if that is taken for granted.
func (l *live) reaches(in *preview.Inputs) func(*corev1.Pod) bool {
	if l.registration == nil {
		return nil
	}
	labels := map[string]map[string]string{}
	for i := range in.Objects.Namespaces {
		labels[in.Objects.Namespaces[i].Name] = in.Objects.Namespaces[i].Labels
	}
	return func(p *corev1.Pod) bool {
		sent, _ := l.registration.Sent(labels[p.Namespace], p)
		return sent != selection.No
	}
}
