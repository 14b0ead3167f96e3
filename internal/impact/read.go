package impact

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/admission/selection"
	"github.com/stowage-dev/stowage/internal/autoscaler/karpenter"
	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/spread/observed"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// Options say where to look, and how Stowage is set up there.
type Options struct {
	Client client.Reader
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

// readPods reads the pods of all namespaces, because they take room of the same nodes. Where the user may not, it reads those of the
// report's namespace.
func (r *reader) readPods() error {
	unknown := map[world.Object][]*pod{}
	use := func(p *corev1.Pod) { r.readPod(p, unknown) }
	err := each(r.ctx, r.Options, &corev1.PodList{}, use)
	if apierrors.IsForbidden(err) && r.Namespace != "" {
		r.hidden = append(r.hidden, "the pods of other namespaces (so the room on nodes is not known)")
		r.others, r.noRoom = nil, true
		clear(r.pods) // the first pages of the list may have come
		clear(unknown)
		err = each(r.ctx, r.Options, &corev1.PodList{}, use, client.InNamespace(r.Namespace))
	}
	if err != nil {
		return err
	}
	return r.readOwners(unknown)
}

// readPod gives a pod to its workload. A pod of an unknown workload is added to unknown, by its owner.
func (r *reader) readPod(p *corev1.Pod, unknown map[world.Object][]*pod) {
	if podstatus.Ended(p) {
		return
	}
	kept := r.slim(p)
	c := metav1.GetControllerOfNoCopy(p)
	if c == nil || r.Namespace != "" && p.Namespace != r.Namespace || !podstatus.Active(p) {
		r.others = append(r.others, kept)
		return
	}
	ref := *c
	for range world.MaxDepth {
		above, ok := r.roots[ref.UID]
		if _, here := r.known[ref.UID]; here || !ok {
			break
		}
		ref = above
	}
	if owner := (world.Object{Namespace: p.Namespace, Ref: world.RefOf(&ref)}); !r.give(owner, kept) {
		unknown[owner] = append(unknown[owner], kept)
	}
}

// give gives pods to the workload that made them, and reports whether it is known. A tenant chooses the owners of his pods, so that the
// workload must be in their namespace.
func (r *reader) give(owner world.Object, pods ...*pod) bool {
	k, ok := r.known[owner.UID]
	if ok = ok && k.namespace == owner.Namespace; ok {
		r.pods[k] = append(r.pods[k], pods...)
	}
	return ok
}

// readOwners reads what made pods, of kinds that were not listed. It names what it leaves out.
func (r *reader) readOwners(unknown map[world.Object][]*pod) error {
	reads, left := 0, map[string]int{}
	for _, owner := range slices.SortedFunc(maps.Keys(unknown), func(a, b world.Object) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		pods := unknown[owner]
		gvk, ok := owner.GroupVersionKind()
		if known := ok && preview.Knows(gvk); !known || reads == mostOwners {
			if !known && gvk.Kind != "Node" {
				left[owner.Kind] += len(pods)
			}
			r.others = append(r.others, pods...)
			continue
		}
		reads++
		if err := r.readOwner(owner, gvk, pods); err != nil {
			return err
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(left)) {
		r.hidden = append(r.hidden, fmt.Sprintf("what becomes of the pods of a %s (%d)", kind, left[kind]))
	}
	if reads == mostOwners {
		r.hidden = append(r.hidden, fmt.Sprintf("all but %d of the objects of other kinds that made pods", mostOwners))
	}
	return nil
}

// mostOwners is how many objects of kinds that are not listed are read, each by a request. A tenant may create pods with any owners.
const mostOwners = 200

// readOwner reads what made some pods: an object of a kind that was not listed.
func (r *reader) readOwner(owner world.Object, gvk schema.GroupVersionKind, pods []*pod) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	err := r.Client.Get(r.ctx, client.ObjectKey{Namespace: owner.Namespace, Name: owner.Name}, u)
	switch {
	case apierrors.IsForbidden(err):
		r.hidden = append(r.hidden, fmt.Sprintf("%s %s/%s", owner.Kind, owner.Namespace, owner.Name))
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
	case err != nil:
		return fmt.Errorf("read %s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, err)
	case u.GetUID() == owner.UID:
		r.add(u, gvk)
	}
	if !r.give(owner, pods...) {
		r.others = append(r.others, pods...)
	}
	return nil
}

// slim keeps of a pod what a report needs.
func (r *reader) slim(p *corev1.Pod) *pod {
	out := &pod{
		Pod: observed.Unverified(p, ""), ordinal: ordinalOf(p.Name), vms: peerpod.VMsOf(p, r.Settings.PeerPodConfig.VMResource),
		requests: resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true}),
	}
	if out.Ordinal > 0 {
		out.pool = p.Labels[stowage.PoolLabel]
	}
	out.volume = len(podstatus.VolumeClaims(&p.Spec)) > 0
	if c := metav1.GetControllerOfNoCopy(p); c != nil {
		out.daemon = c.Kind == "DaemonSet" || c.Kind == "Node"
	}
	if out.pool == "" {
		out.chooses = slices.Sorted(maps.Keys(p.Spec.NodeSelector))
	}
	return out
}

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
