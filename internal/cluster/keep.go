package cluster

import (
	"math"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// keeper keeps of objects what decisions read, and once the texts that several objects have.
type keeper struct {
	texts *bounded.Cache[string, string]
}

const (
	sharedTexts   = 8 << 20 // bytes
	worthSharing  = 128     // bytes
	sharedForever = time.Duration(math.MaxInt64)
)

func newKeeper() *keeper {
	return &keeper{texts: bounded.New[string, string](sharedTexts, clock.RealClock{})}
}

func (k *keeper) workload(obj any) (any, error) {
	m := obj.(*metav1.PartialObjectMetadata)
	return &metav1.PartialObjectMetadata{TypeMeta: m.TypeMeta, ObjectMeta: k.identity(m.ObjectMeta)}, nil
}

func (k *keeper) replicaSet(obj any) (any, error) {
	rs := obj.(*appsv1.ReplicaSet)
	kept := &appsv1.ReplicaSet{ObjectMeta: k.identity(rs.ObjectMeta)}
	kept.Spec.Replicas, kept.Status.Replicas = rs.Spec.Replicas, rs.Status.Replicas
	if text := failureOf(rs); text != "" {
		kept.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: text}}
	}
	kept.Spec.Template.Annotations = k.share(ofTemplate(rs.Spec.Template.Annotations))
	kept.Spec.Template.Spec.NodeName = rs.Spec.Template.Spec.NodeName
	return kept, nil
}

// maxFailure is how many bytes are kept of why a ReplicaSet gets no pods. Webhooks and quotas of tenants have a say in that text.
const maxFailure = 256

func failureOf(rs *appsv1.ReplicaSet) string {
	for i := range rs.Status.Conditions {
		if c := &rs.Status.Conditions[i]; c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			return strings.ToValidUTF8(strings.Clone(c.Message[:min(len(c.Message), maxFailure)]), "")
		}
	}
	return ""
}

func (k *keeper) statefulSet(obj any) (any, error) {
	s := obj.(*appsv1.StatefulSet)
	kept := &appsv1.StatefulSet{ObjectMeta: k.identity(s.ObjectMeta)}
	kept.Spec.Replicas, kept.Status.Replicas = s.Spec.Replicas, s.Status.Replicas
	kept.Spec.Ordinals = s.Spec.Ordinals
	kept.Spec.Template.Annotations = k.share(ofTemplate(s.Spec.Template.Annotations))
	kept.Spec.Template.Spec.NodeName = s.Spec.Template.Spec.NodeName
	return kept, nil
}

// maxSelector is how many bytes the selector of a DaemonSet may have to be kept.
const maxSelector = 4 << 10

func (k *keeper) daemonSet(obj any) (any, error) {
	d := obj.(*appsv1.DaemonSet)
	kept := &appsv1.DaemonSet{ObjectMeta: k.identity(d.ObjectMeta)}
	if d.Spec.Selector.Size() <= maxSelector {
		kept.Spec.Selector = d.Spec.Selector
	}
	kept.Spec.Template.Annotations = k.share(ofTemplate(d.Spec.Template.Annotations, stowage.ModeKey))
	kept.Spec.Template.Labels = Pick(d.Spec.Template.Labels, stowage.ModeKey)
	kept.Spec.Template.Spec.HostNetwork = d.Spec.Template.Spec.HostNetwork
	kept.Status.CurrentNumberScheduled, kept.Status.DesiredNumberScheduled = d.Status.CurrentNumberScheduled, d.Status.DesiredNumberScheduled
	kept.Status.UpdatedNumberScheduled, kept.Status.NumberReady = d.Status.UpdatedNumberScheduled, d.Status.NumberReady
	return kept, nil
}

// keepPodDistributor keeps the spec and the status, whose texts the kind's schema bounds.
func keepPodDistributor(obj any) (any, error) {
	d := obj.(*versprei.PodDistributor)
	kept := &versprei.PodDistributor{ObjectMeta: identity(d.ObjectMeta, false), Spec: d.Spec, Status: d.Status}
	kept.CreationTimestamp, kept.Generation = d.CreationTimestamp, d.Generation
	return kept, nil
}

func (k *keeper) identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	kept := workloadIdentity(m)
	kept.Annotations = k.share(kept.Annotations)
	return kept
}

// share replaces texts by the copy that another object has, as a ReplicaSet has the annotations of its Deployment.
func (k *keeper) share(annotations map[string]string) map[string]string {
	for key, text := range annotations {
		if len(text) < worthSharing {
			continue
		}
		if known, ok := k.texts.Get(text); ok {
			annotations[key] = known
		} else {
			k.texts.Add(text, text, int64(len(text)), sharedForever)
		}
	}
	return annotations
}

var (
	// settingKeys are the annotations, of a workload or of its pod template, that say what Stowage does with its pods.
	settingKeys = []string{
		stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation, stowage.SpreadStrategyAliasAnnotation,
		stowage.RebalanceAnnotation, stowage.RepairAnnotation, stowage.SpillAnnotation, flexdaemonsets.TemplateAnnotation,
	}
	// workloadKeys are the annotations of a workload that Stowage reads.
	workloadKeys = slices.Concat(settingKeys, []string{deploymentRevision, rolloutRevision})
	// recordKeys are Stowage's own records, which somebody may have copied into a pod template.
	recordKeys = []string{stowage.DeclaredResourcesAnnotation, stowage.OriginalResourcesAnnotation}
)

// ofTemplate returns the annotations of a pod template that Stowage reads.
func ofTemplate(all map[string]string, more ...string) map[string]string {
	kept := Pick(all, slices.Concat(settingKeys, more)...)
	for _, key := range recordKeys {
		if text, ok := all[key]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = podpatch.KeepRecord(text)
		}
	}
	return kept
}

// longestStrategy is how many bytes a strategy in an annotation may have: the MaxText of package sequence.
const longestStrategy = 8 << 10

// longest is how many bytes a value may have to mean anything.
func longest(key string) int {
	switch key {
	case stowage.SpreadStrategyAnnotation, stowage.SpreadStrategyAliasAnnotation:
		return longestStrategy
	}
	return 1 << 10
}

// Pick returns the entries with these keys; nil if there are none. A value that is too long to mean anything is cut to
// one byte more than the longest that does, so its readers refuse it.
func Pick(all map[string]string, keys ...string) (kept map[string]string) {
	for _, key := range keys {
		v, ok := all[key]
		if !ok {
			continue
		}
		if most := longest(key); len(v) > most {
			v = strings.Clone(v[:most+1]) // and not the rest
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = v
	}
	return kept
}

// workloadIdentity keeps what a [Workload] has.
func workloadIdentity(m metav1.ObjectMeta) metav1.ObjectMeta {
	kept := identity(m, false)
	kept.CreationTimestamp = m.CreationTimestamp
	kept.Annotations = Pick(m.Annotations, workloadKeys...)
	if c := metav1.GetControllerOfNoCopy(&m); c != nil && Plausible(c) {
		kept.OwnerReferences = []metav1.OwnerReference{{APIVersion: c.APIVersion, Kind: c.Kind, Name: c.Name, UID: c.UID, Controller: c.Controller}}
	}
	return kept
}

// Plausible reports whether an owner reference can be of an object. The API server does not check its length.
func Plausible(o *metav1.OwnerReference) bool {
	return max(len(o.APIVersion), len(o.Kind), len(o.Name), len(o.UID)) <= validation.DNS1123SubdomainMaxLength
}

// bytes is about what a workload takes in memory.
func (w *Workload) bytes() int64 {
	if w == nil {
		return 0
	}
	n := int64(1 << 10)
	for k, v := range w.Annotations {
		n += int64(len(k) + len(v))
	}
	return n
}
