package inspect

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/nodefit"
	sizeadmit "github.com/stowage-dev/stowage/internal/size/admit"
	"github.com/stowage-dev/stowage/internal/size/sizing"
)

// neverSized returns why a pod like one of a DaemonSet would have no size if it were created now, or "".
func (i *Inspector) neverSized(ctx context.Context, namespace, pod string) string {
	s, err := i.subject(ctx, namespace, pod)
	if err != nil {
		return ""
	}
	d, err := (&sizeadmit.Feature{World: s.reader}).Decide(ctx, feature.Request{Namespace: namespace, Pod: s.view})
	if err != nil || d.Pod == nil || len(d.Sized) > 0 {
		return ""
	}
	return strings.Join(d.Warnings, "; ")
}

// roomOnNode reports whether the node of a DaemonSet's pod that waits has room for the pod. Then something else keeps the pod from it. It is false
// where that is not known.
func (c *cells) roomOnNode(ctx context.Context, pod *corev1.Pod) bool {
	name := daemonNode(pod)
	if name == "" || c.pods == nil {
		return false
	}
	node, err := c.live().Node(ctx, name)
	if err != nil || node == nil {
		return false
	}
	var running []corev1.Pod
	for _, other := range c.pods {
		if other.Spec.NodeName == name {
			running = append(running, *other)
		}
	}
	return nodefit.Count(node, running, pod) > 0
}

// daemonNode returns the node that a DaemonSet's pod is for, or "".
func daemonNode(pod *corev1.Pod) string {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range t.MatchFields {
			if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// mostJudged is how many pods of a namespace are looked at, of which a template may have some of another size.
const mostJudged = 20

// offSizeHere reports whether pods of the report's namespace have another size than a template gives them. Its status counts those of all namespaces.
func (i *Inspector) offSizeHere(ctx context.Context, s *snapshot, template string) bool {
	judged := 0
	for _, pod := range s.pods {
		if !s.Covers(pod.Namespace) || pod.Labels[stowage.SizedByLabel] != sizing.LabelOf(template) {
			continue
		}
		if judged++; judged > mostJudged {
			return true // so many that some may be
		}
		facts := &sizeFacts{}
		of, err := i.subject(ctx, pod.Namespace, pod.Name)
		if err != nil || of.sizing(ctx, facts) != nil || facts.OffSize {
			return true
		}
	}
	return false
}
