package resize

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
)

// warn publishes an event on a pod's DaemonSet. Those of one reason are counted under the
// first one's text for some minutes, so there is not one for each pod.
func (r *run) warn(pod *corev1.Pod, reason stowage.EventReason, note string) {
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil {
		return
	}
	about := &corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: pod.Namespace, Name: o.Name, UID: o.UID}
	r.Events.Warn(about, reason, events.Resize, "%s", note)
}
