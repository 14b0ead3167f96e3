package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/size/sizing"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// snapshot is the world of a report, with what only reports look at.
type snapshot struct {
	*worldapi.Snapshot
	// objects are the world while it is listed.
	objects world.Objects
	// owners are what makes pods, with the pods of the report that they made.
	owners      []*podOwner
	ownersByUID map[types.UID]*podOwner
	// created is the template of the pods of each workload that makes some: its metadata,
	// and what in it chooses nodes.
	created     map[types.UID]corev1.PodTemplateSpec
	deployments []deployment
	jobs        []job // that have not ended
	// others are further objects that there are, as kind/name. They make no pods themselves, or no more.
	others []string
	// rollouts are those of Deployments and StatefulSets.
	rollouts   map[types.UID]rollout
	written    []written
	daemonSets map[types.UID]*appsv1.DaemonSet
	// edited is when somebody but a controller last wrote the settings of an object.
	edited map[types.UID]time.Time

	// gateTemplates are the objects whose pod template has the gate, as namespace/kind/name. One may be there several times.
	gateTemplates []string

	// hiddenTemplates and hiddenVolumes say that the FlexDaemonsetTemplates, and the PersistentVolumes, may not be listed.
	hiddenTemplates, hiddenVolumes bool
	// registration is nil where there is none, and where it may not be read: then hiddenRegistration
	// is set.
	registration       *selection.Registration
	hiddenRegistration bool
	// noMoves says that Stowage moves no pods, because of a problem of its own.
	noMoves bool

	// pods are the pods that have not ended, of all namespaces or, where those may not be listed, of
	// the report's: then podsOfNamespace is set.
	pods            []*corev1.Pod
	podsOfNamespace bool
	// ended are those that have ended, and should be gone.
	ended []*corev1.Pod
	nodes nodeLabels
	cells *cells
	// answered are when the pods were created that the webhook changed, by namespace. Unanswered are when those were created that
	// it should have changed.
	answered   map[string][]time.Time
	unanswered []time.Time
}

func (s *snapshot) hasTemplate(name string) bool {
	return slices.ContainsFunc(s.objects.Templates, func(t flexdaemonsets.FlexDaemonsetTemplate) bool { return t.Name == name })
}

// templateOf returns the name of the FlexDaemonsetTemplate that a DaemonSet names, or "".
func (s *snapshot) templateOf(d *appsv1.DaemonSet) string {
	return sizing.TemplateName(d.Spec.Template.Annotations[flexdaemonsets.TemplateAnnotation], d.Annotations)
}

// deployment is what is kept of a Deployment.
type deployment struct {
	*world.Workload
	template corev1.PodTemplateSpec // of its pods, as in snapshot.created
}

// job is what is kept of a Job.
type job struct {
	*world.Workload
	template corev1.PodTemplateSpec // of its pods, as in snapshot.created
}

// written is an object with settings that somebody wrote.
type written struct {
	world.Object
	own      feature.Metadata
	template *feature.Metadata
}

// note keeps the settings of an object, if it has some and nothing made it.
func (s *snapshot) note(gvk schema.GroupVersionKind, obj client.Object, template *corev1.PodTemplateSpec) {
	s.edited[obj.GetUID()] = editedAt(obj)
	w := written{Object: world.Object{Namespace: obj.GetNamespace(), Ref: world.Ref{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: obj.GetName()}}}
	w.own = feature.Metadata{Annotations: obj.GetAnnotations(), Labels: obj.GetLabels()}
	lists := []map[string]string{w.own.Annotations, w.own.Labels}
	if template != nil {
		w.template = &feature.Metadata{Annotations: template.Annotations, Labels: template.Labels}
		lists = append(lists, template.Annotations, template.Labels)
	}
	if metav1.GetControllerOfNoCopy(obj) == nil && slices.ContainsFunc(lists, policy.Mentions) {
		s.written = append(s.written, w)
	}
}

// editedAt is when an object was created, or when somebody but a controller last wrote its spec or its metadata.
func editedAt(obj client.Object) time.Time {
	last := obj.GetCreationTimestamp().Time
	for _, f := range obj.GetManagedFields() {
		if f.Subresource == "" && f.Manager != "kube-controller-manager" && f.Time != nil {
			last = later(last, f.Time.Time)
		}
	}
	return last
}

// never is later than every pod.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// onSince returns since when a namespace is known to be on: since the webhook changed the first pod after the namespace was last
// edited. It returns never if it changed none. That edit alone proves nothing: who only removes a label (a mode, say) leaves no time in
// the managed fields, but who sets one does.
func (s *snapshot) onSince(ns *corev1.Namespace) time.Time {
	first := never
	for _, at := range s.answered[ns.Name] {
		if at.After(s.edited[ns.UID]) && at.Before(first) {
			first = at
		}
	}
	return first
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// podOwner is what makes pods, with those that have a seat, and how many have none. Unanswered are when those were created that the
// webhook did not see.
type podOwner struct {
	*world.Workload
	pods       []*corev1.Pod
	unseated   int64
	bare       []*corev1.Pod // they themselves
	held       []*corev1.Pod // of them, those for which [stays] is true
	unanswered []time.Time
	// root is the workload that it belongs to, and names are those from it up to the uppermost object, as kind/name.
	root   world.Ref
	names  []string
	policy *policy.Policy // nil if its pods have none
	asked  int64          // how many pods it asks for, if a policy divides them
	why    noSeats
}

// noSeats says why pods without a seat get none: the mode leaves them alone, the template chooses nodes by a key, or every pool has its maximum. OutOfReach
// are the waiting pods whose volumes no pool reaches.
type noSeats struct {
	leftAlone  bool
	choosesBy  string
	beyond     bool
	outOfReach []*corev1.Pod
}

// busy reports whether it has pods, or asks for some.
func (m *podOwner) busy() bool { return m.Replicas != 0 || len(m.pods) > 0 }

// snapshot lists what the report on a namespace depends on.
func (i *Inspector) snapshot(ctx context.Context, namespace string, r *Report) (*snapshot, error) {
	s := &snapshot{ownersByUID: map[types.UID]*podOwner{}, created: map[types.UID]corev1.PodTemplateSpec{}, daemonSets: map[types.UID]*appsv1.DaemonSet{}, cells: i.newCells(), edited: map[types.UID]time.Time{}, rollouts: map[types.UID]rollout{}, answered: map[string][]time.Time{}}
	if err := i.readKinds(); err != nil {
		return nil, err
	}
	if err := i.listWorkloads(ctx, s, namespace); err != nil {
		return nil, forbidden("workloads and PodDistributors", err)
	}
	if err := i.listNamespaces(ctx, s, namespace, r); err != nil {
		return nil, err
	}
	if err := i.listClusterPolicies(ctx, s, r); err != nil {
		return nil, err
	}
	if err := i.listPriorityClasses(ctx, s); err != nil {
		return nil, fmt.Errorf("PriorityClasses: %w", err)
	}
	if err := i.listTemplates(ctx, s, r); err != nil {
		return nil, err
	}
	if err := i.listPods(ctx, s, namespace, r); err != nil {
		return nil, forbidden("pods", err)
	}
	if i.Spread {
		var err error
		if s.nodes, err = i.nodeLabels(ctx); err != nil {
			if !apierrors.IsForbidden(err) {
				return nil, fmt.Errorf("nodes: %w", err)
			}
			r.hide("the labels of nodes (so each pod counts in the pool of its seat)")
		}
	}
	if err := i.listVolumes(ctx, s); err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	s.Snapshot = worldapi.NewSnapshot(i.live(), namespace, s.objects)
	i.assignPods(s)
	return s, nil
}

// listPriorityClasses lists the names of PriorityClasses if a pool gives one to its pods, and if they may be read.
func (i *Inspector) listPriorityClasses(ctx context.Context, s *snapshot) error {
	o := &s.objects
	named := slices.ContainsFunc(o.PodDistributors, func(d versprei.PodDistributor) bool {
		return slices.ContainsFunc(d.Spec.Distribution, func(p versprei.Pool) bool { return p.PriorityClassName != "" })
	})
	ofPolicy := func(p stowage.PolicyPool) bool { return p.PriorityClassName != "" }
	for _, p := range o.Policies.Namespaced {
		named = named || slices.ContainsFunc(p.Spec.Pools, ofPolicy)
	}
	for _, p := range o.Policies.Cluster {
		named = named || slices.ContainsFunc(p.Spec.Pools, ofPolicy)
	}
	if !named {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schedulingv1.SchemeGroupVersion.WithKind("PriorityClassList"))
	return readable(each(ctx, i, list, func(m *metav1.PartialObjectMetadata) { o.PriorityClasses = append(o.PriorityClasses, m.Name) }))
}

// lacksClass reports whether there is no PriorityClass of a name, as far as they may be read.
func (s *snapshot) lacksClass(name string) bool {
	return name != "" && len(s.objects.PriorityClasses) > 0 && !slices.Contains(s.objects.PriorityClasses, name)
}

// missingClasses are findings about pools that give their pods a PriorityClass that does not exist.
func (s *snapshot) missingClasses(c *policy.Compiled) (out []finding.Values) {
	for i := range c.Carries {
		if name := c.Carries[i].PriorityClass; s.lacksClass(name) {
			out = append(out, finding.Values{Pool: c.Pool(i).Name, Other: name})
		}
	}
	return out
}

// listVolumes lists the PersistentVolumes where a pod may be held by one. Without the right to read them, it is not known where
// volumes are, and the report says of such pods that they may stay where they run.
func (i *Inspector) listVolumes(ctx context.Context, s *snapshot) error {
	if !i.Spread || !slices.ContainsFunc(s.pods, func(pod *corev1.Pod) bool {
		return len(podstatus.VolumeClaims(&pod.Spec)) > 0
	}) {
		return nil
	}
	err := each(ctx, i, &corev1.PersistentVolumeList{}, func(v *corev1.PersistentVolume) {
		if v.Status.Phase == corev1.VolumeBound {
			s.objects.Volumes = append(s.objects.Volumes, *v)
		}
	})
	s.hiddenVolumes = apierrors.IsForbidden(err)
	return readable(err)
}

// add adds a workload; with the template of its pods, if it makes pods.
func (s *snapshot) add(kind string, obj client.Object, template *corev1.PodTemplateSpec) *world.Workload {
	w := world.New(appsv1.SchemeGroupVersion.WithKind(kind), obj)
	s.objects.Workloads = append(s.objects.Workloads, w)
	if template == nil {
		return w
	}
	s.note(appsv1.SchemeGroupVersion.WithKind(kind), obj, template)
	s.addOwner(w, createdBy(template))
	return w
}

// createdBy is what is kept of the template of pods: see snapshot.created.
func createdBy(template *corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: template.ObjectMeta, Spec: corev1.PodSpec{
		NodeName: template.Spec.NodeName, NodeSelector: template.Spec.NodeSelector, Affinity: template.Spec.Affinity, RuntimeClassName: template.Spec.RuntimeClassName,
	}}
}

func (s *snapshot) addOwner(w *world.Workload, created corev1.PodTemplateSpec) *podOwner {
	m := &podOwner{Workload: w}
	s.ownersByUID[w.UID], s.created[w.UID] = m, created
	s.owners = append(s.owners, m)
	return m
}

// listWorkloads lists workloads and PodDistributors.
func (i *Inspector) listWorkloads(ctx context.Context, s *snapshot, namespace string) error {
	in := client.InNamespace(namespace)
	return cmp.Or(
		each(ctx, i, &appsv1.DeploymentList{}, func(o *appsv1.Deployment) {
			s.note(appsv1.SchemeGroupVersion.WithKind("Deployment"), o, &o.Spec.Template)
			s.deployments = append(s.deployments, deployment{Workload: s.add("Deployment", o, nil), template: createdBy(&o.Spec.Template)})
			s.rollouts[o.UID] = rolloutOfDeployment(o)
			s.noteGate("Deployment", o, &o.Spec.Template.Spec)
		}, in),
		each(ctx, i, &appsv1.ReplicaSetList{}, func(o *appsv1.ReplicaSet) {
			s.add("ReplicaSet", o, &o.Spec.Template)
			if ptr.Deref(o.Spec.Replicas, 1) > 0 { // an old revision makes no pods
				s.noteGate("ReplicaSet", o, &o.Spec.Template.Spec)
			}
		}, in),
		each(ctx, i, &appsv1.StatefulSetList{}, func(o *appsv1.StatefulSet) {
			s.add("StatefulSet", o, &o.Spec.Template)
			s.rollouts[o.UID] = rolloutOfStatefulSet(o)
			s.noteGate("StatefulSet", o, &o.Spec.Template.Spec)
		}, in),
		each(ctx, i, &appsv1.DaemonSetList{}, func(o *appsv1.DaemonSet) {
			s.note(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), o, &o.Spec.Template)
			s.add("DaemonSet", o, nil)
			s.daemonSets[o.UID] = o
			s.noteGate("DaemonSet", o, &o.Spec.Template.Spec)
		}, in),
		i.listJobs(ctx, s, namespace),
		each(ctx, i, &versprei.PodDistributorList{}, func(d *versprei.PodDistributor) {
			s.objects.PodDistributors = append(s.objects.PodDistributors, *d)
		}, in),
		each(ctx, i, &stowage.SpreadPolicyList{}, func(p *stowage.SpreadPolicy) {
			s.objects.Policies.Namespaced = append(s.objects.Policies.Namespaced, p.DeepCopy())
		}, in),
		each(ctx, i, &stowage.PoolStateList{}, func(o *stowage.PoolState) { s.objects.PoolStates = append(s.objects.PoolStates, *o) }, in),
	)
}

// hiddenClusterPolicies is what is left out for who may not read the ClusterSpreadPolicies.
const hiddenClusterPolicies = "ClusterSpreadPolicies"

// listClusterPolicies lists the ClusterSpreadPolicies, which may be hidden from a user of one namespace.
func (i *Inspector) listClusterPolicies(ctx context.Context, s *snapshot, r *Report) error {
	return r.unlessHidden(hiddenClusterPolicies, each(ctx, i, &stowage.ClusterSpreadPolicyList{}, func(p *stowage.ClusterSpreadPolicy) {
		s.objects.Policies.Cluster = append(s.objects.Policies.Cluster, p.DeepCopy())
	}))
}

// listNamespaces lists the namespaces of the report: by their labels, strategies count or not, and Stowage may do
// more or less.
func (i *Inspector) listNamespaces(ctx context.Context, s *snapshot, namespace string, r *Report) error {
	var err error
	if namespace == "" {
		err = each(ctx, i, &corev1.NamespaceList{}, func(ns *corev1.Namespace) { s.objects.Namespaces = append(s.objects.Namespaces, *ns) })
	} else {
		ns := &corev1.Namespace{}
		err = i.Client.Get(ctx, client.ObjectKey{Name: namespace}, ns)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("namespace %s: %w", namespace, ErrNoNamespace)
		}
		if err == nil {
			s.objects.Namespaces = append(s.objects.Namespaces, *ns)
		}
	}
	for n := range s.objects.Namespaces {
		s.note(corev1.SchemeGroupVersion.WithKind("Namespace"), &s.objects.Namespaces[n], nil)
	}
	switch {
	case apierrors.IsForbidden(err):
		r.hide("what the labels of namespaces say")
	case err != nil:
		return fmt.Errorf("namespaces: %w", err)
	}
	return nil
}

// listTemplates lists the FlexDaemonsetTemplates, which may be hidden from a user of one namespace.
func (i *Inspector) listTemplates(ctx context.Context, s *snapshot, r *Report) error {
	if !i.Sizing {
		return nil
	}
	err := each(ctx, i, &flexdaemonsets.FlexDaemonsetTemplateList{}, func(t *flexdaemonsets.FlexDaemonsetTemplate) {
		s.objects.Templates = append(s.objects.Templates, *t)
	})
	if apierrors.IsForbidden(err) {
		s.objects.Templates, s.hiddenTemplates = nil, true
	}
	return r.unlessHidden("FlexDaemonsetTemplates", err)
}
