package inspect

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// sizeFacts are what is known of how big a pod is.
type sizeFacts struct {
	Owner *objectName `json:"owner,omitempty"` // what controls the pod
	// SizedBy is the FlexDaemonsetTemplate whose label the pod carries, and Template the one that is named for it now.
	SizedBy  string `json:"sizedBy,omitempty"`
	Template string `json:"template,omitempty"`
	// NoTemplate says that no annotation names a template for the pod now. Then the rest is not known.
	NoTemplate bool     `json:"noTemplate,omitempty"`
	Warnings   []string `json:"warnings,omitempty"`
	// Now is what the pod would become if it were created now.
	Now string `json:"now,omitempty"`
	// NotSized is why a pod with a template is not sized.
	NotSized *bypass      `json:"notSized,omitempty"`
	Shares   []shareFacts `json:"shares,omitempty"`
	// Overhead is what the pod's RuntimeClass adds to its shares.
	Overhead string `json:"overhead,omitempty"`
	// Excluded are containers that keep what they declare. Ceiling says that the pod gets no more than its DaemonSet declares.
	Excluded []string      `json:"excluded,omitempty"`
	Ceiling  bool          `json:"ceiling,omitempty"`
	Resizes  []resizeFacts `json:"resizes,omitempty"`
	// OffSize says that the pod has another size than Now, InPlace that Stowage resizes it, and Refused why that failed.
	OffSize bool   `json:"offSize,omitempty"`
	InPlace bool   `json:"inPlace,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// shareFacts are a pod's share of a resource of its node.
type shareFacts struct {
	Resource corev1.ResourceName `json:"resource"`
	// Because is how the share comes about, as [sizing.Share.Explain] has it.
	Because string `json:"because,omitempty"`
	// Requested is what the pod requests. InForce is another amount that the kubelet has.
	Requested string `json:"requested,omitempty"`
	InForce   string `json:"inForce,omitempty"`
	// Moved says that the VM's size has it: the pod is a peer pod and requests nothing of its node.
	Moved bool `json:"moved,omitempty"`
}

// resizeFacts are what a kubelet says about a resize.
type resizeFacts struct {
	State   resizeState `json:"state"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
}

type resizeState string

const (
	resizing         resizeState = "InProgress"
	resizeFailed     resizeState = "Failed" // the kubelet tries again
	resizeWaits      resizeState = "Pending"
	resizeImpossible resizeState = "Infeasible"
)

// sizing looks how big the pod is, and why.
func (s *subject) sizing(ctx context.Context, f *sizeFacts) error {
	// 1. What would it become if it were created now?
	if s.owner != nil {
		f.Owner = &objectName{s.owner.Kind, s.owner.Name}
	}
	label, sized := s.pod.Labels[stowage.SizedByLabel]
	f.SizedBy = label
	d, err := (&sizeadmit.Feature{World: s.reader}).Decide(ctx, feature.Request{Namespace: s.pod.Namespace, Pod: s.view})
	if err != nil {
		return err
	}
	if f.NoTemplate = d.Pod == nil; f.NoTemplate {
		return nil
	}
	f.Warnings, f.Now = d.Warnings, d.Summary
	if !sized {
		if len(d.Sized) > 0 {
			f.NotSized = new(s.bypass())
		}
		return nil
	}

	// 2. The arithmetic, as far as the template and the node still say it.
	name := s.pod.Annotations[flexdaemonsets.TemplateAnnotation]
	if len(s.roots) > 0 {
		name = sizing.TemplateName(name, s.roots[0].Annotations)
	}
	object, err := s.reader.Template(ctx, name)
	if err != nil || object == nil {
		return err // a warning above says so
	}
	f.Template = object.Name
	t, err := sizing.Compile(object)
	if err != nil {
		return nil //nolint:nilerr // a warning above says so
	}
	f.Shares, f.Overhead = s.shares(ctx, t), sizing.Overhead(s.pod)
	for c := range s.view.AllContainers() {
		if slices.Contains(t.Excluded, c.Name) {
			f.Excluded = append(f.Excluded, c.Name)
		}
	}
	f.Ceiling = t.Ceiling

	// 3. Is it resized?
	f.Resizes = resizesOf(s.pod)
	f.OffSize, f.InPlace = !sizing.SameSize(s.view, d.Pod), t.InPlace
	if c := notUpToDate(object); c != nil && f.OffSize && f.InPlace {
		f.Refused = c.Message // by the API server; a kubelet's conditions are above
	}
	return nil
}

// shares are the pod's shares of its node, by a template, as far as the node may be read.
func (s *subject) shares(ctx context.Context, t *sizing.Template) (out []shareFacts) {
	var allocatable corev1.ResourceList
	if node, err := s.reader.Node(ctx, sizing.NodeOf(s.view)); err == nil && node != nil {
		allocatable = node.Status.Allocatable
	}
	_, moved := s.pod.Labels[stowage.PeerPodLabel]
	for n := range t.Shares {
		share := &t.Shares[n]
		if because := share.Explain(allocatable); because != "" {
			facts := shareFacts{Resource: share.Resource, Because: because, Moved: moved}
			facts.Requested, facts.InForce = requested(s.pod, share.Resource)
			out = append(out, facts)
		}
	}
	return out
}

// resizesOf returns what the conditions of a kubelet mean for the size of a pod.
func resizesOf(pod *corev1.Pod) (out []resizeFacts) {
	for n := range pod.Status.Conditions {
		c := &pod.Status.Conditions[n]
		if c.Status != corev1.ConditionTrue || c.Type != corev1.PodResizePending && c.Type != corev1.PodResizeInProgress {
			continue
		}
		f := resizeFacts{State: resizing, Reason: c.Reason, Message: c.Message}
		switch {
		case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
			f.State = resizeImpossible
		case c.Type == corev1.PodResizePending:
			f.State = resizeWaits
		case c.Reason == corev1.PodReasonError:
			f.State = resizeFailed
		}
		out = append(out, f)
	}
	return out
}

// requested is what a pod requests of a resource, with what is in force where the kubelet has another amount.
func requested(pod *corev1.Pod, r corev1.ResourceName) (spec, inForce string) {
	q := sizing.Requested(podpatch.FromPod(pod), r)
	if q == nil {
		return "", ""
	}
	actual := pod.DeepCopy()
	for _, list := range []struct {
		containers []corev1.Container
		statuses   []corev1.ContainerStatus
	}{{actual.Spec.Containers, pod.Status.ContainerStatuses}, {actual.Spec.InitContainers, pod.Status.InitContainerStatuses}} {
		for c := range list.containers {
			container := &list.containers[c]
			n := slices.IndexFunc(list.statuses, func(s corev1.ContainerStatus) bool { return s.Name == container.Name })
			if n >= 0 && list.statuses[n].Resources != nil { // else it is not known
				container.Resources = *list.statuses[n].Resources
			}
		}
	}
	if now := sizing.Requested(podpatch.FromPod(actual), r); now != nil && now.Cmp(*q) != 0 {
		inForce = now.String()
	}
	return q.String(), inForce
}

func (f resizeFacts) text() string {
	text := map[resizeState]string{
		resizing:         "The kubelet is resizing the pod",
		resizeFailed:     "The kubelet tried to resize the pod and failed; it tries again",
		resizeWaits:      "The node has no room to resize the pod now (" + f.Reason + ")",
		resizeImpossible: "The node cannot resize the pod (Infeasible)",
	}[f.State]
	if f.Message != "" {
		text += ": " + f.Message
	}
	return text
}
