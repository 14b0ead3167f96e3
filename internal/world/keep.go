package world

import (
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// Keep returns an object with what a [Workload] has of it. An object of another kind than those that Stowage watches keeps its
// metadata alone.
func Keep(obj metav1.Object) metav1.Object {
	switch o := obj.(type) {
	case *appsv1.ReplicaSet:
		return keepReplicaSet(o)
	case *appsv1.StatefulSet:
		return keepStatefulSet(o)
	case *appsv1.DaemonSet:
		return keepDaemonSet(o)
	case *metav1.PartialObjectMetadata:
		return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: workloadIdentity(o.ObjectMeta)}
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: workloadIdentity(metav1.ObjectMeta{
		Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(), CreationTimestamp: obj.GetCreationTimestamp(), DeletionTimestamp: obj.GetDeletionTimestamp(),
		Annotations: obj.GetAnnotations(), OwnerReferences: obj.GetOwnerReferences(),
	})}
}

func keepReplicaSet(rs *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	kept := &appsv1.ReplicaSet{ObjectMeta: workloadIdentity(rs.ObjectMeta)}
	kept.Spec.Replicas, kept.Status.Replicas = rs.Spec.Replicas, rs.Status.Replicas
	if text := failureOf(rs); text != "" {
		kept.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: text}}
	}
	kept.Spec.Template.Annotations = ofTemplate(rs.Spec.Template.Annotations, stowage.ModeKey)
	kept.Spec.Template.Labels = TemplateLabels(rs.Spec.Template.Labels)
	kept.Spec.Template.Spec.NodeName, kept.Spec.Selector = rs.Spec.Template.Spec.NodeName, selectorKeys(rs.Spec.Selector)
	return kept
}

// selectorKeys returns the keys that a selector names, as a selector that only names them. It is nil where there are too many to be kept.
func selectorKeys(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil || s.Size() > maxSelector {
		return nil
	}
	kept := &metav1.LabelSelector{}
	for _, key := range SelectorKeys(s) {
		kept.MatchExpressions = append(kept.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpExists})
	}
	return kept
}

// SelectorKeys returns the keys that a selector names in any way, in order.
func SelectorKeys(s *metav1.LabelSelector) []string {
	if s == nil {
		return nil
	}
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for i := range s.MatchExpressions {
		keys = append(keys, s.MatchExpressions[i].Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// How many labels of a pod template are kept, and how many bytes of them.
const (
	maxTemplateLabels = 64
	maxTemplateBytes  = 4 << 10
)

// TemplateLabels returns the labels of a pod template, by which policies select. Of too many it keeps that of the mode, and the first
// ones in the order of their keys.
func TemplateLabels(all map[string]string) map[string]string {
	bytes := 0
	for key, value := range all {
		bytes += len(key) + len(value)
	}
	if len(all) <= maxTemplateLabels && bytes <= maxTemplateBytes {
		return all
	}
	kept := Pick(all, stowage.ModeKey)
	if kept == nil {
		kept = map[string]string{}
	}
	bytes = 0
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if bytes += len(key) + len(all[key]); len(kept) == maxTemplateLabels || bytes > maxTemplateBytes {
			break
		}
		kept[key] = all[key]
	}
	return kept
}

// maxFailure is how many bytes are kept of why a ReplicaSet gets no pods. Webhooks and quotas of tenants have a say in that text.
const maxFailure = 512

func failureOf(rs *appsv1.ReplicaSet) string {
	for i := range rs.Status.Conditions {
		if c := &rs.Status.Conditions[i]; c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			return strings.ToValidUTF8(strings.Clone(bounded.Text(c.Message, maxFailure)), "")
		}
	}
	return ""
}

func keepStatefulSet(s *appsv1.StatefulSet) *appsv1.StatefulSet {
	kept := &appsv1.StatefulSet{ObjectMeta: workloadIdentity(s.ObjectMeta)}
	kept.Spec.Replicas, kept.Status.Replicas = s.Spec.Replicas, s.Status.Replicas
	kept.Spec.Ordinals, kept.Spec.UpdateStrategy = s.Spec.Ordinals, s.Spec.UpdateStrategy
	if len(s.Spec.VolumeClaimTemplates) > 0 {
		kept.Spec.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, 1) // that there are some
	}
	kept.Spec.Template.Annotations = ofTemplate(s.Spec.Template.Annotations, stowage.ModeKey)
	kept.Spec.Template.Labels = TemplateLabels(s.Spec.Template.Labels)
	kept.Spec.Template.Spec.NodeName, kept.Spec.Selector = s.Spec.Template.Spec.NodeName, selectorKeys(s.Spec.Selector)
	return kept
}

// maxSelector is how many bytes a selector may have to be kept.
const maxSelector = 4 << 10

func keepDaemonSet(d *appsv1.DaemonSet) *appsv1.DaemonSet {
	kept := &appsv1.DaemonSet{ObjectMeta: workloadIdentity(d.ObjectMeta)}
	if d.Spec.Selector.Size() <= maxSelector {
		kept.Spec.Selector = d.Spec.Selector
	}
	kept.Spec.Template.Annotations = ofTemplate(d.Spec.Template.Annotations, stowage.ModeKey)
	kept.Spec.Template.Labels = Pick(d.Spec.Template.Labels, stowage.ModeKey)
	kept.Spec.Template.Spec.HostNetwork = d.Spec.Template.Spec.HostNetwork
	kept.Status.CurrentNumberScheduled, kept.Status.DesiredNumberScheduled = d.Status.CurrentNumberScheduled, d.Status.DesiredNumberScheduled
	kept.Status.UpdatedNumberScheduled, kept.Status.NumberReady = d.Status.UpdatedNumberScheduled, d.Status.NumberReady
	return kept
}

var (
	// settingKeys are the annotations, of a workload or of its pod template, that say what Stowage does with its pods.
	settingKeys = []string{
		stowage.SpreadSwitchAnnotation, stowage.SpreadStrategyAnnotation, stowage.SpreadStrategyAliasAnnotation,
		stowage.RebalanceAnnotation, stowage.RepairAnnotation, stowage.SpillAnnotation, stowage.AcrossAnnotation, flexdaemonsets.TemplateAnnotation,
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

// Settings returns the annotations, of a workload or of its pod template, that say what Stowage does with its pods. Others may be large.
func Settings(all map[string]string) map[string]string { return Pick(all, settingKeys...) }

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
	kept := Identity(m)
	kept.CreationTimestamp, kept.DeletionTimestamp, kept.Generation = m.CreationTimestamp, m.DeletionTimestamp, m.Generation
	kept.Annotations = Pick(m.Annotations, workloadKeys...)
	if c := metav1.GetControllerOfNoCopy(&m); c != nil && Plausible(c) {
		kept.OwnerReferences = []metav1.OwnerReference{{APIVersion: c.APIVersion, Kind: c.Kind, Name: c.Name, UID: c.UID, Controller: c.Controller}}
	}
	return kept
}

// Identity keeps of an object's metadata what tells it from others.
func Identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion}
}
