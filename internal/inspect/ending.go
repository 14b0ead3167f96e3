package inspect

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/nodefit"
)

// lateness is for how long a pod may be there after its grace period: the kubelet reports its end.
const lateness = 30 * time.Second

// overdue reports whether a pod should have been gone for a while. The time of its deletion has the grace period in it.
func (i *Inspector) overdue(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && i.Clock.Since(pod.DeletionTimestamp.Time) > lateness
}

// awaited reports whether what makes a pod of a strategy creates no other one until this one is gone.
func (s *snapshot) awaited(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !s.Covers(pod.Namespace) {
		return false
	}
	m := s.ownersByUID[owner.UID]
	if m == nil || m.policy == nil {
		return false
	}
	return s.rollouts[m.UID].waits || m.Controller != nil && s.rollouts[m.Controller.UID].waits
}

// holdsBack returns what keeps a pod from being gone.
func (c *cells) holdsBack(ctx context.Context, s *snapshot, pod *corev1.Pod) finding.Values {
	if len(pod.Finalizers) > 0 {
		return finding.Values{Objects: strings.Join(pod.Finalizers, " and "), Several: len(pod.Finalizers) > 1}
	}
	return finding.Values{Other: pod.Spec.NodeName, Text: c.stateOf(ctx, s, pod.Spec.NodeName)}
}

// stateOf returns the state of a node, which is read once.
func (c *cells) stateOf(ctx context.Context, s *snapshot, name string) string {
	if state, known := c.states[name]; known {
		return state
	}
	state := finding.NodeReady
	switch node, err := s.Node(ctx, name); {
	case err == nil && node == nil && name != "":
		state = finding.NodeGone
	case err == nil && node != nil && !nodefit.Ready(node):
		state = finding.NodeNotReady
	}
	c.states[name] = state
	return state
}
