package inspect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/world"
)

// Which pods what makes pods has made.

// addUnseated adds a pod without a seat, if it is known what made it.
func (m *podOwner) addUnseated(pod *corev1.Pod) {
	if m == nil {
		return
	}
	m.unseated++
	m.bare = append(m.bare, pod)
	if stays(pod) {
		m.held = append(m.held, pod)
	}
	if !proven(pod) && !hasGate(&pod.Spec) {
		m.unanswered = append(m.unanswered, pod.CreationTimestamp.Time)
	}
}

// assignPods gives the pods of the report to what made them, which may be of a kind that was not listed.
func (i *Inspector) assignPods(s *snapshot) {
	var strangers []*corev1.Pod // without a seat, of kinds that were not listed
	for _, pod := range s.pods {
		if proven(pod) && !adopted(pod) || i.PeerPods.Targets(runtimeClass(pod)) && i.vmsOf(pod) > 0 {
			s.answered[pod.Namespace] = append(s.answered[pod.Namespace], pod.CreationTimestamp.Time)
		}
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || !s.Covers(pod.Namespace) || !podstatus.Active(pod) {
			continue
		}
		m := s.ownersByUID[owner.UID]
		if !proven(pod) || pod.Labels[stowage.SeatLabel] == "" { // a proof alone says that every pool was full
			if m == nil {
				strangers = append(strangers, pod)
			}
			m.addUnseated(pod)
			continue
		}
		if m == nil {
			m = s.addOwnerOf(pod, corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta})
		}
		m.pods = append(m.pods, pod)
	}
	s.assignStrangers(strangers)
}

// addOwnerOf adds what made a pod, of a kind that was not listed.
func (s *snapshot) addOwnerOf(pod *corev1.Pod, created corev1.PodTemplateSpec) *podOwner {
	w := &world.Workload{Ref: world.RefOf(metav1.GetControllerOfNoCopy(pod)), Namespace: pod.Namespace, Replicas: -1, Current: -1}
	return s.addOwner(w, created)
}

// assignStrangers gives pods without a seat to what made them. It is added where none of its pods has a seat, one waits, and a policy names its kind. Stowage
// has changed nothing in such a pod, so that this is as its template.
func (s *snapshot) assignStrangers(pods []*corev1.Pod) {
	named := s.namedKinds()
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if _, waits := podstatus.Unschedulable(pod); waits && s.ownersByUID[owner.UID] == nil && named(pod.Namespace, world.RefOf(owner)) {
			s.addOwnerOf(pod, createdBy(&corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}))
		}
	}
	for _, pod := range pods {
		s.ownersByUID[metav1.GetControllerOfNoCopy(pod).UID].addUnseated(pod)
	}
}

// namedKinds returns a function that reports whether a policy of a namespace, or of the cluster, names the kind of an object. A kind that Stowage may not
// read has a problem of its own, and one without a scale is no kind of workload.
func (s *snapshot) namedKinds() func(namespace string, of world.Ref) bool {
	type kindIn struct {
		namespace string // or "" for all
		stowage.OwnerKind
	}
	named := map[kindIn]bool{}
	add := func(namespace string, kinds []stowage.OwnerKind, st *stowage.SpreadPolicyStatus) {
		for _, k := range kinds {
			if !slices.ContainsFunc(st.Unreadable, func(u stowage.UnreadableKind) bool { return u.OwnerKind == k }) {
				named[kindIn{namespace, k}] = true
			}
		}
	}
	for _, p := range s.objects.Policies.Namespaced {
		add(p.Namespace, p.Spec.Kinds, &p.Status)
	}
	for _, p := range s.objects.Policies.Cluster {
		add("", p.Spec.Kinds, &p.Status)
	}
	return func(namespace string, of world.Ref) bool {
		k := stowage.OwnerKind{Group: of.Group(), Kind: of.Kind}
		return named[kindIn{namespace, k}] || named[kindIn{"", k}]
	}
}
