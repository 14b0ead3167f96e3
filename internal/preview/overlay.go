package preview

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
)

// Inputs may also be a live cluster, with manifests laid over it. Nothing of such inputs is validated: the API server did.

// Add adds a live object that makes pods, if it is of a kind that a preview knows. An object of another project is an
// unstructured one.
func (in *Inputs) Add(ctx context.Context, obj object, gvk schema.GroupVersionKind) (bool, error) {
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	if isThirdParty(gvk) {
		data, err := json.Marshal(obj)
		if err != nil {
			return false, err
		}
		l := newLoader(ctx, Source{Namespace: obj.GetNamespace()})
		l.in = in
		l.thirdParty(source{}, gvk.Kind+" "+obj.GetName(), gvk, data)
		l.settle()
		_, err = l.done()
		return err == nil, err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok && scheme.Recognizes(gvk) {
		typed, err := scheme.New(gvk)
		if err != nil {
			return false, err
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
			return false, err
		}
		if obj, ok = typed.(object); !ok {
			return false, nil
		}
		obj.GetObjectKind().SetGroupVersionKind(gvk)
	}
	w, ok := newWorkload(obj)
	if ok {
		in.add(w, obj)
	}
	return ok, nil
}

// Knows reports whether objects of a kind make pods by a template that a preview reads.
func Knows(gvk schema.GroupVersionKind) bool {
	if isThirdParty(gvk) {
		return true
	}
	obj, err := scheme.New(gvk)
	if err != nil {
		return false
	}
	_, ok := newWorkload(obj)
	return ok
}

// add adds a workload with the objects between it and its pods.
func (in *Inputs) add(w Workload, obj object) {
	w.made = w.objects(obj)
	in.Workloads = append(in.Workloads, w)
	in.Objects.Workloads = append(in.Objects.Workloads, w.made...)
}

// Clone returns inputs that can be changed without the others.
func (in *Inputs) Clone() *Inputs {
	out := *in
	out.Workloads, out.RuntimeClasses, out.Warnings = slices.Clone(in.Workloads), slices.Clone(in.RuntimeClasses), slices.Clone(in.Warnings)
	o := &out.Objects
	o.Namespaces, o.LimitRanges, o.ResourceQuotas = slices.Clone(o.Namespaces), slices.Clone(o.LimitRanges), slices.Clone(o.ResourceQuotas)
	o.Workloads, o.PodDistributors, o.Nodes = slices.Clone(o.Workloads), slices.Clone(o.PodDistributors), slices.Clone(o.Nodes)
	o.Policies = world.Policies{Namespaced: slices.Clone(o.Policies.Namespaced), Cluster: slices.Clone(o.Policies.Cluster)}
	o.Templates, o.PoolStates, o.PriorityClasses = slices.Clone(o.Templates), slices.Clone(o.PoolStates), slices.Clone(o.PriorityClasses)
	o.VMCatalogs = slices.Clone(o.VMCatalogs)
	return &out
}

// Overlay lays manifests over the inputs, as kubectl apply does. An object that is there keeps its identity, and its replica count if the
// manifest says nothing of it. Now is when the others are created.
func (in *Inputs) Overlay(change *Inputs, now time.Time) {
	for i := range change.Workloads {
		in.overlayWorkload(change.Workloads[i], now)
	}
	o, c, created := &in.Objects, &change.Objects, metav1.NewTime(now)
	for _, ns := range c.Namespaces {
		if was := find(o.Namespaces, &ns); was != nil {
			last := lastApplied(was.Annotations)
			ns.Labels, ns.Annotations = last.labels(was.Labels, ns.Labels), last.annotations(was.Annotations, ns.Annotations)
		}
		ns.Labels = merged(ns.Labels, map[string]string{corev1.LabelMetadataName: ns.Name})
		o.Namespaces = put(o.Namespaces, ns)
	}
	for _, n := range c.Nodes {
		if was := find(o.Nodes, &n); was != nil {
			n = mergedNode(*was, n)
		}
		o.Nodes = put(o.Nodes, complete(n))
	}
	for _, l := range c.LimitRanges {
		o.LimitRanges = put(o.LimitRanges, l)
	}
	for _, d := range c.PodDistributors {
		if was := find(o.PodDistributors, &d); was != nil {
			keepIdentity(&d, was)
		} else {
			d.CreationTimestamp = created
		}
		o.PodDistributors = put(o.PodDistributors, d)
	}
	for _, t := range c.Templates {
		if was := find(o.Templates, &t); was != nil {
			keepIdentity(&t, was)
		}
		o.Templates = put(o.Templates, t)
	}
	for _, v := range c.VMCatalogs {
		if was := find(o.VMCatalogs, &v); was != nil {
			keepIdentity(&v, was)
			v.Status = was.Status
		} else {
			v.CreationTimestamp = created
		}
		o.VMCatalogs = put(o.VMCatalogs, v)
	}
	if len(o.PriorityClasses) > 0 { // else each is taken to be there
		o.PriorityClasses = append(o.PriorityClasses, c.PriorityClasses...)
	}
	for _, r := range change.RuntimeClasses {
		in.RuntimeClasses = put(in.RuntimeClasses, r)
	}
	o.Policies.Namespaced = overlaid(o.Policies.Namespaced, c.Policies.Namespaced, keyOf, created)
	o.Policies.Cluster = overlaid(o.Policies.Cluster, c.Policies.Cluster, (*stowage.ClusterSpreadPolicy).GetName, created)
}

// overlaid returns policies with copies of those of a change.
func overlaid[P copied[P]](policies, change []P, name func(P) string, created metav1.Time) []P {
	for _, p := range change {
		p = p.DeepCopy()
		at := slices.IndexFunc(policies, func(was P) bool { return name(was) == name(p) })
		if at < 0 {
			p.SetCreationTimestamp(created)
			policies = append(policies, p)
			continue
		}
		keepIdentity(p, policies[at])
		policies[at] = p
	}
	return policies
}

// overlayWorkload lays the manifest of a workload over the inputs.
func (in *Inputs) overlayWorkload(w Workload, now time.Time) {
	if in.made(&w) {
		return // whoever made it keeps it as it is
	}
	made := make([]*world.Workload, len(w.made)) // the change may be laid over others, too
	for i := range w.made {
		copied := *w.made[i]
		made[i] = &copied
	}
	w.made = made
	at := slices.IndexFunc(in.Workloads, func(was Workload) bool { return was.GroupKind() == w.GroupKind() && was.key() == w.key() })
	if at >= 0 && len(made) > 0 {
		was := &in.Workloads[at]
		in.Objects.Workloads = slices.DeleteFunc(in.Objects.Workloads, func(o *world.Workload) bool { return slices.Contains(was.made, o) })
		if w.unsized {
			w.replicas = was.replicas
		}
		last := lastApplied(was.meta.Annotations)
		w.meta.UID, w.meta.CreationTimestamp = was.meta.UID, was.meta.CreationTimestamp
		w.meta.Annotations, w.meta.Labels = last.annotations(was.meta.Annotations, w.meta.Annotations), last.labels(was.meta.Labels, w.meta.Labels)
		w.template.Annotations = applied(was.template.Annotations, w.template.Annotations, last.Spec.Template.Metadata.Annotations)
		top := made[0]
		top.UID, top.Created, top.Controller = was.made[0].UID, was.made[0].Created, was.made[0].Controller
		top.Annotations = last.annotations(was.made[0].Annotations, top.Annotations)
	} else if len(made) > 0 {
		made[0].Created = now
	}
	if len(made) > 0 {
		bottom := made[len(made)-1]
		if bottom.TemplateAnnotations != nil || bottom.HasTemplate() {
			bottom.TemplateAnnotations = w.template.Annotations
		}
	}
	if len(made) > 1 { // its UID follows from that of what made it
		owner, _ := w.owner()
		made[1].Ref, made[1].Controller = world.RefOf(&owner), &made[0].Ref
	}
	if at >= 0 {
		in.Workloads[at] = w
	} else {
		in.Workloads = append(in.Workloads, w)
	}
	in.Objects.Workloads = append(in.Objects.Workloads, made...)
}

// made reports whether another workload of the inputs made a workload.
func (in *Inputs) made(w *Workload) bool {
	c := metav1.GetControllerOfNoCopy(&w.meta)
	if c == nil {
		return false
	}
	if w.Kind == "Pod" { // what made it may be a ReplicaSet, which the inputs do not have
		return true
	}
	ref := world.RefOf(c)
	kind := schema.GroupKind{Group: ref.Group(), Kind: ref.Kind}
	return kind != w.GroupKind() && slices.ContainsFunc(in.Workloads, func(other Workload) bool {
		return other.GroupKind() == kind && other.Namespace == w.Namespace && other.meta.Name == ref.Name && other.meta.UID == ref.UID
	})
}

// PoolState returns what is known of pools for a workload, to be changed before a preview is made of the inputs. It is added if it is
// not there.
func (in *Inputs) PoolState(namespace string, workload types.UID) *stowage.PoolState {
	o := &in.Objects
	at := slices.IndexFunc(o.PoolStates, func(s stowage.PoolState) bool { return s.Namespace == namespace && s.Name == string(workload) })
	if at < 0 {
		at = len(o.PoolStates)
		o.PoolStates = append(o.PoolStates, stowage.PoolState{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: string(workload)}})
	}
	return &o.PoolStates[at]
}

// Policy returns the policy of the workload's next pods, or nil. It may be one that does not divide them: see
// [policy.Finder.FindSelected].
func (p *Preview) Policy(ctx context.Context, w *Workload) (*policy.Policy, error) {
	if w.Kind == "Pod" {
		return nil, nil
	}
	owner, _ := w.owner()
	return p.policies.FindSelected(ctx, policy.Pod{Namespace: w.Namespace, Owner: world.RefOf(&owner), Annotations: w.template.Annotations})
}

// complete fills in what a manifest of a node leaves out, so that the node takes pods.
func complete(n corev1.Node) corev1.Node {
	if n.Status.Allocatable == nil {
		n.Status.Allocatable = n.Status.Capacity
	}
	if n.Status.Conditions == nil {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	return n
}

// keepIdentity makes an object the next generation of another one.
func keepIdentity(is, was metav1.Object) {
	is.SetUID(was.GetUID())
	is.SetCreationTimestamp(was.GetCreationTimestamp())
	is.SetGeneration(was.GetGeneration() + 1)
}

// pointerTo is a pointer to an object with metadata.
type pointerTo[T any] interface {
	*T
	metav1.Object
}

// copied is an object with metadata that can be copied.
type copied[P any] interface {
	metav1.Object
	DeepCopy() P
}

// keyOf names an object within its kind.
func keyOf[P metav1.Object](o P) string { return o.GetNamespace() + "/" + o.GetName() }

// find returns the object of a list with the name of another one, or nil.
func find[T any, P pointerTo[T]](list []T, like P) *T {
	for i := range list {
		if keyOf(P(&list[i])) == keyOf(like) {
			return &list[i]
		}
	}
	return nil
}

// put adds an object, in the place of one of the same name.
func put[T any, P pointerTo[T]](list []T, o T) []T {
	if was := find(list, P(&o)); was != nil {
		*was = o
		return list
	}
	return append(list, o)
}
