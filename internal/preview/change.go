package preview

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
)

// Remove leaves out an object, and reports whether there is one of that name. The kind is one of those that a change may have; see
// [Inputs.find] for one without a group.
func (in *Inputs) Remove(kind schema.GroupKind, namespace, name string) bool {
	o, before := &in.Objects, in.objects()
	key := namespace + "/" + name
	switch kind.Kind {
	case "Node":
		o.Nodes = slices.DeleteFunc(o.Nodes, func(n corev1.Node) bool { return n.Name == name })
	case "PodDistributor":
		o.PodDistributors = slices.DeleteFunc(o.PodDistributors, func(d versprei.PodDistributor) bool { return keyOf(&d) == key })
	case "FlexDaemonsetTemplate":
		o.Templates = slices.DeleteFunc(o.Templates, func(t flexdaemonsets.FlexDaemonsetTemplate) bool { return keyOf(&t) == "/"+name })
	case "VMCatalog":
		o.VMCatalogs = slices.DeleteFunc(o.VMCatalogs, func(c stowage.VMCatalog) bool { return c.Name == name })
	case "SpreadPolicy":
		o.Policies.Namespaced = slices.DeleteFunc(o.Policies.Namespaced, func(p *stowage.SpreadPolicy) bool { return keyOf(p) == key })
	case "ClusterSpreadPolicy":
		o.Policies.Cluster = slices.DeleteFunc(o.Policies.Cluster, func(p *stowage.ClusterSpreadPolicy) bool { return p.Name == name })
	default:
		if at := in.find(kind, key); at >= 0 {
			made := in.Workloads[at].made
			o.Workloads = slices.DeleteFunc(o.Workloads, func(w *world.Workload) bool { return slices.Contains(made, w) })
			in.Workloads = slices.Delete(in.Workloads, at, at+1)
		}
	}
	return in.objects() < before
}

// find returns the place of a workload, or -1. Without a group, a kind of Kubernetes counts before one of another project: the StatefulSets of
// OpenKruise have the name of their kind from Kubernetes.
func (in *Inputs) find(kind schema.GroupKind, key string) (at int) {
	at = -1
	for i := range in.Workloads {
		w := &in.Workloads[i]
		if w.Kind != kind.Kind || w.key() != key || kind.Group != "" && w.GroupKind() != kind {
			continue
		}
		if at = i; !isThirdParty(w.GroupVersionKind) {
			break
		}
	}
	return at
}

// objects counts what [Inputs.Remove] may remove.
func (in *Inputs) objects() int {
	o := &in.Objects
	return len(o.Nodes) + len(o.PodDistributors) + len(o.Templates) + len(o.VMCatalogs) + len(o.Policies.Namespaced) + len(o.Policies.Cluster) + len(in.Workloads)
}

// Scale gives a workload another replica count, and reports whether there is one of that name. See [Inputs.find] for a kind without a
// group.
func (in *Inputs) Scale(kind schema.GroupKind, namespace, name string, replicas int32) bool {
	key := namespace + "/" + name
	at := in.find(kind, key)
	if at < 0 || in.Workloads[at].replicasPath == nil || kind.Kind == "DaemonSet" || kind.Kind == "Pod" {
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
