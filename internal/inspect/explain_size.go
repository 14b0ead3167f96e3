package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// sizing says how big the pod is, and why.
func (s *subject) sizing(ctx context.Context, a *Aspect) error {
	f := &sizeadmit.Feature{World: s.reader}
	d, err := f.Decide(ctx, feature.Request{Namespace: s.pod.Namespace, Pod: s.view})
	if err != nil {
		return err
	}
	label, sized := s.pod.Labels[stowage.SizedByLabel]
	if d.Pod == nil {
		switch {
		case sized:
			a.Changed, a.Summary = true, "sized by FlexDaemonsetTemplate "+label
			a.say("Its DaemonSet has no resource template any more; the next pods keep the size that they declare.")
		case s.owner == nil || s.owner.Kind != "DaemonSet":
			a.say("Only the pods of DaemonSets get a share of their node.")
		default:
			a.say("Neither DaemonSet %s nor its pod template has the annotation %s.", s.owner.Name, flexdaemonsets.TemplateAnnotation)
		}
		return nil
	}
	for _, w := range d.Warnings {
		a.say("%s.", w)
	}
	if !sized {
		if len(d.Sized) > 0 {
			a.because(s.past(d.Summary))
		}
		return nil
	}
	a.Changed, a.Summary = true, "a share of its node, by FlexDaemonsetTemplate "+label

	// The arithmetic, as far as the template and the node still say it.
	name := s.pod.Annotations[flexdaemonsets.TemplateAnnotation]
	if len(s.roots) > 0 {
		name = sizing.TemplateName(name, s.roots[0].Annotations)
	}
	object, err := s.reader.Template(ctx, name)
	if err != nil || object == nil {
		return err // a warning above says so
	}
	t, err := sizing.Compile(object)
	if err != nil {
		return nil //nolint:nilerr // a warning above says so
	}
	var allocatable corev1.ResourceList
	if node, err := s.reader.Node(ctx, sizing.NodeOf(s.view)); err == nil && node != nil {
		allocatable = node.Status.Allocatable
	}
	for n := range t.Shares {
		share := &t.Shares[n]
		if text := share.Explain(allocatable); text != "" {
			has := cmp.Or(requestedText(s.pod, share.Resource), "nothing")
			if _, isPeerPod := s.pod.Labels[stowage.PeerPodLabel]; isPeerPod {
				a.say("%s: %s.", share.Resource, text)
			} else {
				a.say("%s: %s; the pod requests %s.", share.Resource, text, has)
			}
		}
	}
	for c := range s.view.AllContainers() {
		if slices.Contains(t.Excluded, c.Name) {
			a.say("Container %s keeps what it declares: the template excludes it.", c.Name)
		}
	}
	if t.Ceiling {
		a.say("It gets no more than its DaemonSet declares (ceiling: Template).")
	}
	for _, c := range s.pod.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) {
			a.say("%s", resizeText(&c))
		}
	}
	if !sizing.SameSize(s.view, d.Pod) {
		if !t.InPlace {
			a.say("Now it would be %s; new pods get that, and this one keeps its size (updatePolicy: OnCreate).", d.Summary)
			return nil
		}
		a.say("Now it would be %s, and Stowage resizes it (updatePolicy: InPlace).", d.Summary)
		// What the API server refused is in the template's status; a kubelet's conditions are above.
		if c := meta.FindStatusCondition(object.Status.Conditions, flexdaemonsets.ConditionUpToDate); c != nil && c.Status == metav1.ConditionFalse {
			a.say("The status of FlexDaemonsetTemplate %s: %s.", object.Name, strings.TrimSuffix(c.Message, "."))
		}
	}
	return nil
}

// resizeText says what a kubelet's condition means for the size of its pod.
func resizeText(c *corev1.PodCondition) string {
	text := "The kubelet is resizing the pod"
	switch {
	case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
		text = "The node cannot resize the pod (Infeasible)"
	case c.Type == corev1.PodResizePending:
		text = "The node has no room to resize the pod now (" + c.Reason + ")"
	case c.Reason == corev1.PodReasonError:
		text = "The kubelet tried to resize the pod and failed; it tries again"
	}
	if c.Message != "" {
		text += ": " + c.Message
	}
	return text + "."
}
