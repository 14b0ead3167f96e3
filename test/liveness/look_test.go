package liveness

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/test/controlplane"
	"github.com/stowage-dev/stowage/test/suite"
)

// situation is all that the filters read, at one time.
type situation struct {
	pods    []*corev1.Pod // active ones of the world's namespace
	nodes   []*corev1.Node
	others  []runtime.Object // pods of other namespaces, volumes, claims, classes, namespaces
	volumes []runtime.Object // those of them that say where volumes are
}

// look reads the situation, and notes in which cells pods have a node.
func (w *world) look() *situation {
	w.t.Helper()
	s := &situation{}
	for _, list := range []client.ObjectList{
		&corev1.NodeList{}, &corev1.PodList{}, &corev1.NamespaceList{}, &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}, &storagev1.StorageClassList{},
	} {
		suite.Must(w.t, w.List(w.t.Context(), list))
		objects, err := runtimeObjects(list)
		suite.Must(w.t, err)
		for _, o := range objects {
			s.add(w.Namespace, o)
		}
	}
	for _, p := range s.pods {
		if c, ok := cellOf(p); ok && p.Spec.NodeName != "" {
			app := p.Labels["app"]
			if w.evidence[app] == nil {
				w.evidence[app] = map[cell]bool{}
			}
			w.evidence[app][c] = true
		}
	}
	return s
}

func (s *situation) add(namespace string, o runtime.Object) {
	switch o := o.(type) {
	case *corev1.Node:
		s.nodes = append(s.nodes, o)
	case *corev1.Pod:
		if o.Namespace == namespace && podstatus.Active(o) {
			s.pods = append(s.pods, o)
		} else {
			s.others = append(s.others, o) // one that ends still has its node
		}
	case *corev1.Namespace:
		s.others = append(s.others, o)
	default:
		s.others = append(s.others, o)
		s.volumes = append(s.volumes, o)
	}
}

// runtimeObjects returns the objects of a list, each with its kind.
func runtimeObjects(list client.ObjectList) ([]runtime.Object, error) {
	objects, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		gvk, err := apiutil.GVKForObject(o, controlplane.Scheme)
		if err != nil {
			return nil, err
		}
		o.GetObjectKind().SetGroupVersionKind(gvk)
	}
	return objects, nil
}

// all returns every object of the situation.
func (s *situation) all() []runtime.Object {
	out := slices.Clone(s.others)
	for _, n := range s.nodes {
		out = append(out, n)
	}
	for _, p := range s.pods {
		out = append(out, p)
	}
	return out
}

// places says which pods there are, and where.
func (s *situation) places() string {
	var out []string
	for _, p := range s.pods {
		out = append(out, string(p.UID)+"@"+p.Spec.NodeName)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// uids names the pods.
func (s *situation) uids() string {
	var out []string
	for _, p := range s.pods {
		out = append(out, string(p.UID))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// waiting returns the pods without a node.
func (s *situation) waiting() (out []*corev1.Pod) {
	for _, p := range s.pods {
		if p.Spec.NodeName == "" {
			out = append(out, p)
		}
	}
	return out
}

// yamlOf writes objects without what nobody reads.
func yamlOf(objects ...client.Object) string {
	var out strings.Builder
	for _, o := range objects {
		o = o.DeepCopyObject().(client.Object)
		o.SetManagedFields(nil)
		if gvk, err := apiutil.GVKForObject(o, controlplane.Scheme); err == nil {
			o.GetObjectKind().SetGroupVersionKind(gvk)
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			text = fmt.Appendf(nil, "# %v\n", err)
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	return out.String()
}

// report writes the world as it is: sources, workloads, nodes, pods, claims and volumes.
func (w *world) report(s *situation) string {
	var out strings.Builder
	for _, n := range s.nodes {
		if n.Labels[ownLabel] == w.Namespace {
			fmt.Fprintf(&out, "# node %s: pool %s, zone %s, %s CPU, unschedulable %t, taints %v\n", n.Name,
				strings.TrimPrefix(n.Labels[poolLabel], w.Namespace+"."), n.Labels[corev1.LabelTopologyZone], n.Status.Allocatable.Cpu(), n.Spec.Unschedulable, n.Spec.Taints)
		}
	}
	for _, p := range s.pods {
		c, _ := cellOf(p)
		fmt.Fprintf(&out, "# pod %s: cell %s, node %q, created %s\n", p.Name, c, p.Spec.NodeName, p.CreationTimestamp.UTC().Format("15:04:05"))
	}
	objects := slices.Clone(w.made)
	for _, of := range w.workloads {
		objects = append(objects, of.object)
	}
	out.WriteString(yamlOf(objects...))
	for _, o := range s.volumes {
		switch o := o.(type) {
		case *corev1.PersistentVolumeClaim:
			if o.Namespace == w.Namespace {
				fmt.Fprintf(&out, "# claim %s: %s, volume %q\n", o.Name, o.Status.Phase, o.Spec.VolumeName)
			}
		case *corev1.PersistentVolume:
			if o.Spec.ClaimRef != nil && o.Spec.ClaimRef.Namespace == w.Namespace && o.Spec.NodeAffinity != nil {
				fmt.Fprintf(&out, "# volume %s: %v\n", o.Name, o.Spec.NodeAffinity.Required.NodeSelectorTerms)
			}
		}
	}
	return out.String()
}
