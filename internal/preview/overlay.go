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
	"github.com/stowage-dev/stowage/internal/podstatus"
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
		l.resolve()
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
	o.Templates, o.PoolStates = slices.Clone(o.Templates), slices.Clone(o.PoolStates)
	return &out
}

// Overlay lays manifests over the inputs, as kubectl apply does. An object that is there keeps its identity, and its replica count if the
// manifest says nothing of it. Now is when the others are created.
func (in *Inputs) Overlay(change *Inputs, now time.Time) {
	for i := range change.Workloads {
		in.overlayWorkload(change.Workloads[i], now)
	}
	o, c, created := &in.Objects, &change.Objects, metav1.NewTime(now)
	for i := range c.Namespaces {
		ns := c.Namespaces[i]
		if at := indexOf(o.Namespaces, keyOf(&ns), keyOf); at >= 0 {
			last := lastApplied(o.Namespaces[at].Annotations)
			ns.Labels, ns.Annotations = last.labels(o.Namespaces[at].Labels, ns.Labels), last.annotations(o.Namespaces[at].Annotations, ns.Annotations)
		}
		ns.Labels = merged(ns.Labels, map[string]string{corev1.LabelMetadataName: ns.Name})
		o.Namespaces = put(o.Namespaces, ns, keyOf)
	}
	for i := range c.Nodes {
		n := c.Nodes[i]
		if at := indexOf(o.Nodes, keyOf(&n), keyOf); at >= 0 {
			n = mergedNode(o.Nodes[at], n)
		}
		o.Nodes = put(o.Nodes, complete(n), keyOf)
	}
	for i := range c.LimitRanges {
		o.LimitRanges = put(o.LimitRanges, c.LimitRanges[i], keyOf)
	}
	for i := range c.PodDistributors {
		d := c.PodDistributors[i]
		if at := indexOf(o.PodDistributors, keyOf(&d), keyOf); at >= 0 {
			keepIdentity(&d.ObjectMeta, &o.PodDistributors[at].ObjectMeta)
		} else {
			d.CreationTimestamp = created
		}
		o.PodDistributors = put(o.PodDistributors, d, keyOf)
	}
	for i := range c.Templates {
		t := c.Templates[i]
		if at := indexOf(o.Templates, keyOf(&t), keyOf); at >= 0 {
			keepIdentity(&t.ObjectMeta, &o.Templates[at].ObjectMeta)
		}
		o.Templates = put(o.Templates, t, keyOf)
	}
	for i := range change.RuntimeClasses {
		in.RuntimeClasses = put(in.RuntimeClasses, change.RuntimeClasses[i], keyOf)
	}
	for _, p := range c.Policies.Namespaced {
		p = p.DeepCopy()
		at := slices.IndexFunc(o.Policies.Namespaced, func(was *stowage.SpreadPolicy) bool { return keyOf(was) == keyOf(p) })
		if at < 0 {
			p.CreationTimestamp = created
			o.Policies.Namespaced = append(o.Policies.Namespaced, p)
			continue
		}
		keepIdentity(&p.ObjectMeta, &o.Policies.Namespaced[at].ObjectMeta)
		o.Policies.Namespaced[at] = p
	}
	for _, p := range c.Policies.Cluster {
		p = p.DeepCopy()
		at := slices.IndexFunc(o.Policies.Cluster, func(was *stowage.ClusterSpreadPolicy) bool { return was.Name == p.Name })
		if at < 0 {
			p.CreationTimestamp = created
			o.Policies.Cluster = append(o.Policies.Cluster, p)
			continue
		}
		keepIdentity(&p.ObjectMeta, &o.Policies.Cluster[at].ObjectMeta)
		o.Policies.Cluster[at] = p
	}
}

// overlayWorkload lays the manifest of a workload over the inputs.
func (in *Inputs) overlayWorkload(w Workload, now time.Time) {
	made := make([]*world.Workload, len(w.made)) // the change may be laid over others, too
	for i := range w.made {
		copied := *w.made[i]
		made[i] = &copied
	}
	w.made = made
	at := slices.IndexFunc(in.Workloads, func(was Workload) bool { return was.GroupKind() == w.GroupKind() && was.String() == w.String() })
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
	if len(made) > 1 {
		made[1].Controller = &made[0].Ref
	}
	if at >= 0 {
		in.Workloads[at] = w
	} else {
		in.Workloads = append(in.Workloads, w)
	}
	in.Objects.Workloads = append(in.Objects.Workloads, made...)
}

// Remove leaves out an object, and reports whether there is one of that name. The kind is one of those that a change may have.
func (in *Inputs) Remove(kind, namespace, name string) bool {
	o, before := &in.Objects, in.objects()
	here := func(m metav1.Object) bool { return m.GetName() == name && m.GetNamespace() == namespace }
	switch kind {
	case "Node":
		o.Nodes = slices.DeleteFunc(o.Nodes, func(n corev1.Node) bool { return n.Name == name })
	case "PodDistributor":
		o.PodDistributors = without(o.PodDistributors, keyOf, namespace, name)
	case "FlexDaemonsetTemplate":
		o.Templates = without(o.Templates, keyOf, "", name)
	case "SpreadPolicy":
		o.Policies.Namespaced = slices.DeleteFunc(o.Policies.Namespaced, func(p *stowage.SpreadPolicy) bool { return here(p) })
	case "ClusterSpreadPolicy":
		o.Policies.Cluster = slices.DeleteFunc(o.Policies.Cluster, func(p *stowage.ClusterSpreadPolicy) bool { return p.Name == name })
	default:
		for _, w := range in.Workloads {
			if w.Kind == kind && w.Namespace == namespace && w.Name == name {
				o.Workloads = slices.DeleteFunc(o.Workloads, func(made *world.Workload) bool { return slices.Contains(w.made, made) })
			}
		}
		in.Workloads = slices.DeleteFunc(in.Workloads, func(w Workload) bool { return w.Kind == kind && w.Namespace == namespace && w.Name == name })
	}
	return in.objects() < before
}

// objects counts what [Inputs.Remove] may remove.
func (in *Inputs) objects() int {
	o := &in.Objects
	return len(o.Nodes) + len(o.PodDistributors) + len(o.Templates) + len(o.Policies.Namespaced) + len(o.Policies.Cluster) + len(in.Workloads)
}

// Scale gives a workload another replica count, and reports whether there is one of that name.
func (in *Inputs) Scale(kind, namespace, name string, replicas int32) bool {
	at := slices.IndexFunc(in.Workloads, func(w Workload) bool { return w.Kind == kind && w.Namespace == namespace && w.Name == name })
	if at < 0 || in.Workloads[at].replicasPath == nil || kind == "DaemonSet" || kind == "Pod" {
		return false
	}
	in.Workloads[at].replicas = replicas
	return true
}

// Enforce has all policies in Audit enforce, and reports whether there were any.
func (in *Inputs) Enforce() (some bool) {
	for i, p := range in.Objects.Policies.Namespaced {
		if p.Spec.Mode == stowage.PolicyAudit {
			p, some = p.DeepCopy(), true
			p.Spec.Mode, p.Generation = stowage.PolicyEnforce, p.Generation+1
			in.Objects.Policies.Namespaced[i] = p
		}
	}
	for i, p := range in.Objects.Policies.Cluster {
		if p.Spec.Mode == stowage.PolicyAudit {
			p, some = p.DeepCopy(), true
			p.Spec.Mode, p.Generation = stowage.PolicyEnforce, p.Generation+1
			in.Objects.Policies.Cluster[i] = p
		}
	}
	return some
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

// Replicas is how many pods the workload asks for; of no meaning for a DaemonSet.
func (w *Workload) Replicas() int64 { return int64(w.replicas) }

// Template is that of its pods. It must not be changed.
func (w *Workload) Template() *corev1.PodTemplateSpec { return &w.template }

// UID is that of the object, or one that follows from its name.
func (w *Workload) UID() types.UID { return w.uid() }

// Volumes reports whether its pods have claims of volumes: their own, or those of the template.
func (w *Workload) Volumes() bool {
	return len(w.volumeClaims) > 0 || len(podstatus.VolumeClaims(&w.template.Spec)) > 0
}

// Holds says why a restart would not replace all pods of the workload, for people. It returns "" if it would.
func (w *Workload) Holds() string { return w.holds }

// FirstPod returns the workload's first pod as its controller makes it, before admission. Of a DaemonSet it is that of the first node that
// it runs on; without such a node, or without replicas, it is nil.
func (w *Workload) FirstPod(nodes []corev1.Node) *corev1.Pod {
	made := w.pods(min(1, w.replicas), nodes)
	if w.Kind != "DaemonSet" && len(made) == 0 {
		made = w.pods(1, nil)
	}
	if len(made) == 0 {
		return nil
	}
	return made[0]
}

// FirstOrdinal is the ordinal of the first pod of a StatefulSet.
func (w *Workload) FirstOrdinal() int64 { return w.firstOrdinal }

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

func keepIdentity(is, was *metav1.ObjectMeta) {
	is.UID, is.CreationTimestamp, is.Generation = was.UID, was.CreationTimestamp, was.Generation+1
}

// pointerTo is a pointer to an object with metadata.
type pointerTo[T any] interface {
	*T
	metav1.Object
}

// keyOf names an object within its kind.
func keyOf[T any, P pointerTo[T]](o P) string { return o.GetNamespace() + "/" + o.GetName() }

func indexOf[T any](list []T, key string, of func(*T) string) int {
	return slices.IndexFunc(list, func(o T) bool { return of(&o) == key })
}

// put adds an object, in the place of one of the same name.
func put[T any](list []T, o T, of func(*T) string) []T {
	if at := indexOf(list, of(&o), of); at >= 0 {
		list[at] = o
		return list
	}
	return append(list, o)
}

func without[T any](list []T, of func(*T) string, namespace, name string) []T {
	return slices.DeleteFunc(list, func(o T) bool { return of(&o) == namespace+"/"+name })
}
