// Package events publishes Kubernetes events with typed reasons.
//
// It promises that no event is refused for its length. Which events there are stands in
// package api/stowage/v1alpha1.
package events

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// maxNote is the length, in bytes, beyond which the API server refuses an event's note.
const maxNote = 1024

// Action says what Stowage was doing when an event happened.
type Action string

// The actions.
const (
	Admit     Action = "Admit"
	Repair    Action = "Repair"
	Spill     Action = "Spill"
	Resize    Action = "Resize"
	Advertise Action = "Advertise"
	Configure Action = "Configure"
	Supply    Action = "Supply"
)

// Recorder publishes events.
type Recorder struct{ events.EventRecorder }

// Normal publishes an event of type Normal about an object.
func (r Recorder) Normal(about runtime.Object, reason stowage.EventReason, action Action, format string, args ...any) {
	r.publish(about, nil, corev1.EventTypeNormal, reason, action, fmt.Sprintf(format, args...))
}

// Warn publishes an event of type Warning about an object.
func (r Recorder) Warn(about runtime.Object, reason stowage.EventReason, action Action, format string, args ...any) {
	r.publish(about, nil, corev1.EventTypeWarning, reason, action, fmt.Sprintf(format, args...))
}

// WarnRelated is Warn for an event that another object causes. Related may be nil.
func (r Recorder) WarnRelated(about runtime.Object, related *corev1.ObjectReference, reason stowage.EventReason, action Action, note string) {
	r.publish(about, related, corev1.EventTypeWarning, reason, action, note)
}

// NormalRelated is Normal for an event that concerns another object, too.
func (r Recorder) NormalRelated(about runtime.Object, related *corev1.ObjectReference, reason stowage.EventReason, action Action, note string) {
	r.publish(about, related, corev1.EventTypeNormal, reason, action, note)
}

func (r Recorder) publish(about runtime.Object, related *corev1.ObjectReference, kind string, reason stowage.EventReason, action Action, note string) {
	// Without a version, equal events about an object become one series as the object changes.
	if o, ok := about.(metav1.Object); ok && o.GetResourceVersion() != "" {
		about = about.DeepCopyObject()
		about.(metav1.Object).SetResourceVersion("")
	}
	var cause runtime.Object // a nil reference in an interface is not nil
	if related != nil {
		cause = related
	}
	r.Eventf(about, cause, kind, string(reason), string(action), "%s", bounded.Text(note, maxNote))
}
