// Package scope answers which pods Stowage may look at, and how far it may go with them.
//
// Two things limit it: namespaces that are always excluded, and the mode of a pod or its namespace ([Scope.Of]). What the webhook's
// registration selects is a third (package selection). The webhook, the controllers, status and explain
// ask here, so that a pod which is left alone is left alone by all of them.
package scope

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// systemNamespaces are never touched: a fault there can keep a cluster from
// repairing itself.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// Namespaces reads namespaces. A [world.Snapshot] is one.
type Namespaces interface {
	// Namespace returns a namespace with its labels and annotations, or nil if there is
	// none of that name.
	Namespace(ctx context.Context, name string) (*corev1.Namespace, error)
}

// Scope knows the excluded namespaces and reads modes.
type Scope struct {
	namespaces Namespaces
	excluded   []string
	// PeerPods are the RuntimeClasses of peer pods, if Stowage makes any.
	PeerPods []string

	paused atomic.Bool // the whole cluster is
}

// New returns a scope that excludes the system namespaces and the one that Stowage runs in.
func New(namespaces Namespaces, own string) *Scope {
	return &Scope{namespaces: namespaces, excluded: append(slices.Clone(systemNamespaces), own)}
}

// Answer is how far Stowage may go with one pod.
type Answer struct {
	Mode stowage.Mode
	// Where is what has the mode: "the pod", or a namespace. It is empty where nothing has one.
	Where string
	// LeftAlone says why the mode is Off, for people.
	LeftAlone string
	// Warnings are about values that are no mode.
	Warnings []string
}

// PausedWait is after how long a controller looks again at what is paused.
const PausedWait = 5 * time.Second

// Pause has the whole cluster paused, or not.
func (s *Scope) Pause(on bool) { s.paused.Store(on) }

// PausedEverywhere reports whether the whole cluster is paused.
func (s *Scope) PausedEverywhere() bool { return s.paused.Load() }

// Paused reports whether pods of a namespace that exist are neither changed nor evicted, because the cluster or the namespace is paused. It is so where the
// namespace cannot be read.
func (s *Scope) Paused(ctx context.Context, namespace string) bool {
	if s.PausedEverywhere() {
		return true
	}
	ns, err := s.namespaces.Namespace(ctx, namespace)
	return err != nil || ns != nil && IsPaused(ns)
}

// IsPaused reports whether a namespace is paused by itself.
func IsPaused(ns *corev1.Namespace) bool { return ns.Labels[stowage.PausedLabel] == stowage.PausedOn }

// Excludes reports whether a namespace is never touched.
func (s *Scope) Excludes(namespace string) bool { return slices.Contains(s.excluded, namespace) }

// Waits reports whether a pod may wait at the gate [stowage.SeatGate]. A new node may need the pod of a DaemonSet to become ready. A
// static pod runs already. A peer pod that came without Stowage must be created again anyway.
func (s *Scope) Waits(pod *podpatch.Pod) bool {
	owner := pod.Controller()
	return owner != nil && !owner.ChoosesNodes() && !slices.Contains(s.PeerPods, pod.Spec.RuntimeClassName)
}

// Of returns how far Stowage may go with a pod: by the pod's mode, or else by its namespace's. A value that is no mode is taken as
// Audit, because whoever wrote it did not ask for the default. On a
// pod, such a value does not overrule a namespace that is Off. If the namespace
// cannot be read, the mode is Off, because changing a pod that somebody may have excluded is worse than leaving one
// alone.
func (s *Scope) Of(ctx context.Context, namespace string, pod *podpatch.Pod) (Answer, error) {
	var a Answer
	if s.Excludes(namespace) {
		return Answer{Mode: stowage.ModeOff, LeftAlone: fmt.Sprintf("namespace %s is never touched", namespace)}, nil
	}
	own := a.read(pod.Metadata.Annotations, pod.Metadata.Labels, "the pod")
	if own && len(a.Warnings) == 0 {
		return a, nil
	}
	ns, err := s.namespaces.Namespace(ctx, namespace)
	if err != nil {
		a.Mode, a.LeftAlone = stowage.ModeOff, err.Error()
		return a, err
	}
	of := Answer{Mode: stowage.ModeEnforce}
	if ns != nil {
		of.read(ns.Annotations, ns.Labels, "namespace "+ns.Name)
	}
	if own && of.Mode != stowage.ModeOff {
		return a, nil
	}
	of.Warnings = append(a.Warnings, of.Warnings...)
	return of, nil
}

// Text says which mode holds and why, for people.
func (a Answer) Text() string {
	is := "is"
	if len(a.Warnings) > 0 {
		is = "is taken as" // what is written is no mode
	}
	return fmt.Sprintf("%s %s %s on %s", stowage.ModeKey, is, a.Mode, a.Where)
}

// Enforces reports whether Stowage may change a pod.
func (s *Scope) Enforces(ctx context.Context, namespace string, pod *podpatch.Pod) bool {
	a, err := s.Of(ctx, namespace, pod)
	return err == nil && a.Mode == stowage.ModeEnforce
}

// read takes the mode from an object's annotations or labels, if one of them has it.
func (a *Answer) read(annotations, labels map[string]string, where string) bool {
	value, ok := annotations[stowage.ModeKey]
	if !ok {
		value, ok = labels[stowage.ModeKey]
	}
	if !ok {
		return false
	}
	for _, m := range []stowage.Mode{stowage.ModeEnforce, stowage.ModeAudit, stowage.ModeOff} {
		if strings.EqualFold(value, string(m)) {
			a.Mode, a.Where = m, where
			if m == stowage.ModeOff {
				a.LeftAlone = a.Text()
			}
			return true
		}
	}
	a.Mode, a.Where = stowage.ModeAudit, where
	a.Warnings = append(a.Warnings, fmt.Sprintf("%s on %s is %q and is taken as %s; it must be %s, %s or %s",
		stowage.ModeKey, where, value, stowage.ModeAudit, stowage.ModeEnforce, stowage.ModeAudit, stowage.ModeOff))
	return true
}
