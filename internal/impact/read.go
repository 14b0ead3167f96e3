package impact

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// Options say where to look, and how Stowage is set up there.
type Options struct {
	Client client.Reader
	// DryRun has the API server admit a pod in a dry run; nil asks nothing.
	DryRun func(ctx context.Context, pod *corev1.Pod) error
	// Namespace is the one whose workloads the report is about; empty is all of them.
	Namespace string
	// Registration is the name of the webhook's registration.
	Registration string
	Settings     preview.Settings
	Clock        clock.PassiveClock

	read atomic.Int64
}

// Read returns how many objects were read so far.
func (o *Options) Read() int64 { return o.read.Load() }

// key names a workload: what a user writes, and not what stands between it and its pods.
type key struct {
	schema.GroupKind
	namespace, name string
}

func keyOf(w *preview.Workload) key { return key{w.GroupKind(), w.Namespace, w.Name} }

func (k key) String() string { return fmt.Sprintf("%s %s/%s", k.Kind, k.namespace, k.name) }

// live is a cluster as it is.
type live struct {
	in *preview.Inputs
	// pods are the active pods of each workload, and others those of nothing that makes pods by a template.
	pods   map[key][]*pod
	others []*pod
	// status says for workloads why a restart may not end now.
	status map[key][]doubt
	// registration is nil where there is none. Absent says so, and otherwise it may not be read.
	registration *selection.Registration
	absent       bool
	makers       []karpenter.NodePool
	// hidden is what may not be read, and blind what decisions depend on of that.
	hidden, blind []string
	// noRoom says that the room on nodes is not known.
	noRoom bool
}

// doubt is why counts may come out otherwise, with the reason that it has in docs/reasons.md, if it has one.
type doubt struct {
	reason finding.Reason
	text   string
}

// pod is what is kept of a pod: there may be many.
type pod struct {
	observed.Pod
	pool     string // the name of its seat's, or empty
	ordinal  int64  // of a StatefulSet's pod, or -1
	volume   bool   // it uses a PersistentVolumeClaim
	daemon   bool
	vms      int64
	class    string // RuntimeClass of a peer pod
	machine  string // type of its VM
	requests corev1.ResourceList
	chooses  []string // the keys of labels by which it chooses nodes, without those of its seat
}

// each calls a function with every object of a list. A kind that the cluster does not have has no objects.
func each[T client.Object](ctx context.Context, o *Options, empty client.ObjectList, use func(T), opts ...client.ListOption) error {
	err := worldapi.Each(ctx, o.Client, empty, func(obj T) error {
		o.read.Add(1)
		use(obj)
		return nil
	}, opts...)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// into returns a function that adds an object to a list.
func into[T any](list *[]T) func(*T) { return func(o *T) { *list = append(*list, *o) } }

// reader reads a cluster.
type reader struct {
	*Options
	*live
	ctx context.Context
	// roots are what a pod's controller belongs to, by its UID.
	roots map[types.UID]metav1.OwnerReference
	known map[types.UID]key // workloads
}

// readCluster reads what a report depends on. What the user may not read of the whole cluster is left out, and named.
func (o *Options) readCluster(ctx context.Context) (*live, error) {
	r := &reader{Options: o, ctx: ctx, roots: map[types.UID]metav1.OwnerReference{}, known: map[types.UID]key{}, live: &live{
		in: &preview.Inputs{}, pods: map[key][]*pod{}, status: map[key][]doubt{},
	}}
	if err := r.readWorkloads(); err != nil {
		return nil, needs("workloads and policies", err)
	}
	if err := r.readPods(); err != nil {
		return nil, needs("pods", err)
	}
	return r.live, r.readRest()
}

// needs explains an error about permissions.
func needs(what string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w\nask for the ClusterRoles view and stowage-inspect, or look at one namespace with -n", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// add adds a workload, if nothing else made it of which a workload is known.
func (r *reader) add(obj client.Object, gvk schema.GroupVersionKind) {
	obj.SetManagedFields(nil)
	if ok, err := r.in.Add(r.ctx, obj, gvk); ok && err == nil {
		r.known[obj.GetUID()] = key{gvk.GroupKind(), obj.GetNamespace(), obj.GetName()}
	}
}

// note notes why a restart of a workload may not end now.
func (r *reader) note(obj client.Object, kind string, reason finding.Reason, format string, args ...any) {
	k := key{schema.GroupKind{Group: appsv1.GroupName, Kind: kind}, obj.GetNamespace(), obj.GetName()}
	r.status[k] = append(r.status[k], doubt{reason, fmt.Sprintf(format, args...)})
}

func (r *reader) readWorkloads() error {
	ctx, in := r.ctx, client.InNamespace(r.Namespace)
	o := &r.in.Objects
	owned := &metav1.PartialObjectMetadataList{}
	owned.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSetList"))
	for _, err := range []error{
		each(ctx, r.Options, &appsv1.DeploymentList{}, func(d *appsv1.Deployment) {
			r.add(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))
			r.judgeDeployment(d)
		}, in),
		each(ctx, r.Options, owned, func(rs *metav1.PartialObjectMetadata) {
			if c := metav1.GetControllerOfNoCopy(rs); c != nil {
				r.roots[rs.UID] = *c
			} // one without a controller is read if it has pods
		}, in),
		each(ctx, r.Options, &appsv1.StatefulSetList{}, func(s *appsv1.StatefulSet) {
			r.add(s, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
			r.judgeStatefulSet(s)
		}, in),
		each(ctx, r.Options, &appsv1.DaemonSetList{}, func(d *appsv1.DaemonSet) {
			r.add(d, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
		}, in),
		each(ctx, r.Options, &batchv1.JobList{}, func(j *batchv1.Job) {
			switch c := metav1.GetControllerOfNoCopy(j); {
			case c != nil:
				r.roots[j.UID] = *c
			case !ended(j):
				r.add(j, batchv1.SchemeGroupVersion.WithKind("Job"))
			}
		}, in),
		each(ctx, r.Options, &versprei.PodDistributorList{}, into(&o.PodDistributors), in),
		each(ctx, r.Options, &stowage.SpreadPolicyList{}, func(p *stowage.SpreadPolicy) {
			o.Policies.Namespaced = append(o.Policies.Namespaced, p.DeepCopy())
		}, in),
		each(ctx, r.Options, &stowage.PoolStateList{}, into(&o.PoolStates), in),
		each(ctx, r.Options, &corev1.LimitRangeList{}, into(&o.LimitRanges), in),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// judgeDeployment notes why the next rollout of a Deployment may not end.
func (r *reader) judgeDeployment(d *appsv1.Deployment) {
	replicas := ptr.Deref(d.Spec.Replicas, 1)
	switch {
	case d.Spec.Strategy.RollingUpdate != nil && d.Status.ReadyReplicas < replicas:
		r.note(d, "Deployment", finding.NotReady, "%d of its %d pods are ready, so that a rollout may not end", d.Status.ReadyReplicas, replicas)
	case d.Status.UpdatedReplicas < replicas || d.Status.ObservedGeneration < d.Generation:
		r.note(d, "Deployment", finding.RolloutUnfinished, "a rollout is under way")
	}
}

// ended reports whether a Job makes no more pods.
func ended(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// judgeStatefulSet notes why the next rollout of a StatefulSet may not end.
func (r *reader) judgeStatefulSet(s *appsv1.StatefulSet) {
	if replicas := ptr.Deref(s.Spec.Replicas, 1); s.Status.ReadyReplicas < replicas {
		r.note(s, "StatefulSet", finding.NotReady, "%d of its %d pods are ready, so that a rollout may not end", s.Status.ReadyReplicas, replicas)
	}
}

// hiddenCatalogs is what is not known to who may not read VMCatalogs.
const hiddenCatalogs = "VMCatalogs"

// readRest reads what is not of a namespace.
func (r *reader) readRest() error {
	o := &r.in.Objects
	hide := func(list *[]string, what string, err error) error {
		if apierrors.IsForbidden(err) {
			*list = append(*list, what)
			return nil
		}
		return err
	}
	nodePools := &unstructured.UnstructuredList{}
	nodePools.SetGroupVersionKind(karpenter.NodePools.GroupVersion().WithKind(karpenter.NodePools.Kind + "List"))
	for _, err := range []error{
		hide(&r.blind, "nodes", each(r.ctx, r.Options, &corev1.NodeList{}, func(n *corev1.Node) {
			o.Nodes = append(o.Nodes, corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels, Annotations: n.Annotations, CreationTimestamp: n.CreationTimestamp},
				Spec:       corev1.NodeSpec{Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable},
				Status:     corev1.NodeStatus{Capacity: n.Status.Capacity, Allocatable: n.Status.Allocatable, Conditions: n.Status.Conditions},
			})
		})),
		hide(&r.blind, "the labels of namespaces", each(r.ctx, r.Options, &corev1.NamespaceList{}, into(&o.Namespaces))),
		hide(&r.blind, "ClusterSpreadPolicies", each(r.ctx, r.Options, &stowage.ClusterSpreadPolicyList{}, func(p *stowage.ClusterSpreadPolicy) {
			o.Policies.Cluster = append(o.Policies.Cluster, p.DeepCopy())
		})),
		hide(&r.hidden, "PersistentVolumes (so it is not known where volumes are)", each(r.ctx, r.Options, &corev1.PersistentVolumeList{}, func(v *corev1.PersistentVolume) {
			if v.Status.Phase == corev1.VolumeBound {
				o.Volumes = append(o.Volumes, *v)
			}
		})),
		hide(&r.hidden, hiddenCatalogs, each(r.ctx, r.Options, &stowage.VMCatalogList{}, into(&o.VMCatalogs))),
		hide(&r.hidden, "FlexDaemonsetTemplates", each(r.ctx, r.Options, &flexdaemonsets.FlexDaemonsetTemplateList{}, into(&o.Templates))),
		hide(&r.hidden, "RuntimeClasses", each(r.ctx, r.Options, &nodev1.RuntimeClassList{}, into(&r.in.RuntimeClasses))),
		hide(&r.hidden, "Karpenter's NodePools (so it is not known which nodes it makes)", each(r.ctx, r.Options, nodePools, func(u *unstructured.Unstructured) {
			if p, err := karpenter.ParseNodePool(u); err == nil {
				r.makers = append(r.makers, p)
			}
		})),
	} {
		if err != nil {
			return err
		}
	}
	r.noRoom = r.noRoom || slices.Contains(r.blind, "nodes")
	if r.Namespace != "" && len(o.Namespaces) == 0 {
		ns := &corev1.Namespace{}
		if err := r.Client.Get(r.ctx, client.ObjectKey{Name: r.Namespace}, ns); err == nil {
			o.Namespaces = append(o.Namespaces, *ns)
			r.blind = slices.DeleteFunc(r.blind, func(what string) bool { return what == "the labels of namespaces" })
		}
	}
	return r.readRegistration()
}
