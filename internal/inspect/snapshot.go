package inspect

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/scope"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/podstatus"
)

// snapshot has what was listed at the beginning. It reads other kinds from the API server.
type snapshot struct {
	apiReader
	// namespace is the one that the report is about, or empty for all of them.
	namespace  string
	namespaces map[string]*corev1.Namespace

	byUID  map[types.UID]*cluster.Workload
	byName map[objectName]*cluster.Workload
	// owners are what makes pods, with the pods of the report that they made.
	owners      []*podOwner
	ownersByUID map[types.UID]*podOwner
	// created is the template of the pods of each workload that makes some: its metadata,
	// and what in it chooses nodes.
	created     map[types.UID]corev1.PodTemplateSpec
	deployments []deployment
	daemonSets  map[types.UID]*appsv1.DaemonSet

	podDistributors map[string][]versprei.PodDistributor // by namespace
	poolStates      map[types.UID]*stowage.PoolState     // by the UID of the uppermost workload
	// templates are by name; nil where they may not be listed.
	templates map[string]*flexdaemonsets.FlexDaemonsetTemplate
	// registration is nil where there is none, and where it may not be read: then hiddenRegistration
	// is set.
	registration       *scope.Registration
	hiddenRegistration bool

	// pods are the pods that have not ended, of all namespaces or, where those may not be listed, of
	// the report's: then podsOfNamespace is set.
	pods            []*corev1.Pod
	podsOfNamespace bool
}

// objectName names an object whatever its API version.
type objectName struct{ group, kind, namespace, name string }

func nameOf(namespace string, ref cluster.Ref) objectName {
	return objectName{ref.Group(), ref.Kind, namespace, ref.Name}
}

// deployment is what is kept of a Deployment.
type deployment struct {
	*cluster.Workload
	annotations map[string]string // of its pods
	asks        bool              // for a pod
	seen        bool              // by its controller, as it is now
}

// podOwner is what makes pods, with those that have a seat, and how many have none.
type podOwner struct {
	*cluster.Workload
	pods     []*corev1.Pod
	unseated int64
}

// busy reports whether it has pods, or asks for some.
func (m *podOwner) busy() bool { return m.Replicas != 0 || len(m.pods) > 0 }

var _ cluster.Reader = &snapshot{}

// reports reports whether the report is about a namespace.
func (s *snapshot) reports(namespace string) bool {
	return s.namespace == "" || s.namespace == namespace
}

// Workload implements [cluster.Reader].
func (s *snapshot) Workload(ctx context.Context, namespace string, ref cluster.Ref) (*cluster.Workload, error) {
	w := s.byUID[ref.UID]
	if ref.UID == "" {
		w = s.byName[nameOf(namespace, ref)]
	}
	if w != nil && w.Namespace == namespace && w.Is(ref) {
		return w, nil
	}
	if s.reports(namespace) && ref.Group() == appsv1.GroupName && slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"}, ref.Kind) {
		return nil, nil
	}
	return s.apiReader.Workload(ctx, namespace, ref)
}

// PodDistributors implements [cluster.Reader].
func (s *snapshot) PodDistributors(_ context.Context, namespace string) ([]versprei.PodDistributor, error) {
	return s.podDistributors[namespace], nil
}

// PoolState implements [cluster.Reader].
func (s *snapshot) PoolState(_ context.Context, namespace string, workload types.UID) (*stowage.PoolState, error) {
	if state := s.poolStates[workload]; state != nil && state.Namespace == namespace {
		return state, nil
	}
	return nil, nil
}

// Namespace implements [cluster.Reader].
func (s *snapshot) Namespace(_ context.Context, name string) (*corev1.Namespace, error) {
	return s.namespaces[name], nil
}

// Template implements [cluster.Reader].
func (s *snapshot) Template(_ context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error) {
	return s.templates[name], nil
}

// snapshot lists what the report on a namespace depends on.
func (i *Inspector) snapshot(ctx context.Context, namespace string, r *Report) (*snapshot, error) {
	s := &snapshot{
		apiReader: i.apiReader(), namespace: namespace, namespaces: map[string]*corev1.Namespace{},
		byUID: map[types.UID]*cluster.Workload{}, byName: map[objectName]*cluster.Workload{}, ownersByUID: map[types.UID]*podOwner{},
		created: map[types.UID]corev1.PodTemplateSpec{}, daemonSets: map[types.UID]*appsv1.DaemonSet{}, podDistributors: map[string][]versprei.PodDistributor{},
		poolStates: map[types.UID]*stowage.PoolState{},
	}
	if err := i.listWorkloads(ctx, s); err != nil {
		return nil, forbidden("workloads and PodDistributors", err)
	}
	if err := i.listNamespaces(ctx, s, r); err != nil {
		return nil, err
	}
	if err := i.listTemplates(ctx, s, r); err != nil {
		return nil, err
	}
	if err := i.listPods(ctx, s, r); err != nil {
		return nil, forbidden("pods", err)
	}
	s.assignPods()
	return s, nil
}

// add adds a workload; with the template of its pods, if it makes pods.
func (s *snapshot) add(kind string, obj client.Object, template *corev1.PodTemplateSpec, replicas *int32) {
	w := cluster.NewWorkload(appsv1.SchemeGroupVersion.WithKind(kind), obj)
	w.UID = obj.GetUID()
	s.byUID[w.UID], s.byName[nameOf(w.Namespace, w.Ref)] = &w, &w
	if template == nil {
		return
	}
	w.Replicas = int64(ptr.Deref(replicas, 1))
	s.addOwner(&w, corev1.PodTemplateSpec{ObjectMeta: template.ObjectMeta, Spec: corev1.PodSpec{
		NodeName: template.Spec.NodeName, NodeSelector: template.Spec.NodeSelector, Affinity: template.Spec.Affinity,
	}})
}

func (s *snapshot) addOwner(w *cluster.Workload, created corev1.PodTemplateSpec) *podOwner {
	m := &podOwner{Workload: w}
	s.ownersByUID[w.UID], s.created[w.UID] = m, created
	s.owners = append(s.owners, m)
	return m
}

// listWorkloads lists workloads and PodDistributors.
func (i *Inspector) listWorkloads(ctx context.Context, s *snapshot) error {
	in := client.InNamespace(s.namespace)
	for _, err := range []error{
		each(ctx, i, &appsv1.DeploymentList{}, func(o *appsv1.Deployment) {
			s.add("Deployment", o, nil, nil)
			s.deployments = append(s.deployments, deployment{
				Workload: s.byUID[o.UID], annotations: o.Spec.Template.Annotations,
				asks: o.Spec.Replicas == nil || *o.Spec.Replicas > 0, seen: o.Status.ObservedGeneration >= o.Generation,
			})
		}, in),
		each(ctx, i, &appsv1.ReplicaSetList{}, func(o *appsv1.ReplicaSet) { s.add("ReplicaSet", o, &o.Spec.Template, o.Spec.Replicas) }, in),
		each(ctx, i, &appsv1.StatefulSetList{}, func(o *appsv1.StatefulSet) { s.add("StatefulSet", o, &o.Spec.Template, o.Spec.Replicas) }, in),
		each(ctx, i, &appsv1.DaemonSetList{}, func(o *appsv1.DaemonSet) {
			s.add("DaemonSet", o, nil, nil)
			s.daemonSets[o.UID] = o
		}, in),
		each(ctx, i, &versprei.PodDistributorList{}, func(d *versprei.PodDistributor) {
			s.podDistributors[d.Namespace] = append(s.podDistributors[d.Namespace], *d)
		}, in),
		each(ctx, i, &stowage.PoolStateList{}, func(o *stowage.PoolState) { s.poolStates[types.UID(o.Name)] = o }, in),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// listNamespaces lists the namespaces of the report: by their labels, strategies count or not, and Stowage may do
// more or less.
func (i *Inspector) listNamespaces(ctx context.Context, s *snapshot, r *Report) error {
	var err error
	if s.namespace == "" {
		err = each(ctx, i, &corev1.NamespaceList{}, func(ns *corev1.Namespace) { s.namespaces[ns.Name] = ns })
	} else {
		ns := &corev1.Namespace{}
		err = i.Client.Get(ctx, client.ObjectKey{Name: s.namespace}, ns)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("namespace %s: %w", s.namespace, ErrNoNamespace)
		}
		if err == nil {
			s.namespaces[ns.Name] = ns
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		r.Warnings = append(r.Warnings, fmt.Sprintf("namespaces are taken as if they said nothing about Stowage: %v", err))
	case err != nil:
		return fmt.Errorf("namespaces: %w", err)
	}
	return nil
}

// listTemplates lists the FlexDaemonsetTemplates, which may be hidden from who looks at one namespace.
func (i *Inspector) listTemplates(ctx context.Context, s *snapshot, r *Report) error {
	if !i.Sizing {
		return nil
	}
	s.templates = map[string]*flexdaemonsets.FlexDaemonsetTemplate{}
	err := each(ctx, i, &flexdaemonsets.FlexDaemonsetTemplateList{}, func(t *flexdaemonsets.FlexDaemonsetTemplate) { s.templates[t.Name] = t })
	switch {
	case apierrors.IsForbidden(err):
		s.templates = nil
		r.Warnings = append(r.Warnings, fmt.Sprintf("FlexDaemonsetTemplates are left out: %v", err))
	case err != nil:
		return fmt.Errorf("FlexDaemonsetTemplates: %w", err)
	}
	return nil
}

// assignPods gives the pods of the report to what made them, which may be of a kind that was not listed.
func (s *snapshot) assignPods() {
	for _, pod := range s.pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || !s.reports(pod.Namespace) || !podstatus.Active(pod) {
			continue
		}
		m := s.ownersByUID[owner.UID]
		if !proven(pod) || pod.Labels[stowage.SeatLabel] == "" { // a proof alone says that every pool was full
			if m != nil {
				m.unseated++
			}
			continue
		}
		if m == nil {
			w := &cluster.Workload{Ref: cluster.RefOf(owner), Namespace: pod.Namespace, Replicas: -1, Current: -1}
			m = s.addOwner(w, corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta})
		}
		m.pods = append(m.pods, pod)
	}
}
