package impact

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/preview"
	"github.com/stowage-dev/stowage/internal/world"
)

// Change is what would be done to a cluster. The zero value is nothing: then the report is about the next rollout of each workload.
type Change struct {
	// Manifests are laid over the cluster, as kubectl apply does; nil is none.
	Manifests *preview.Inputs
	// Remove are objects that would be deleted.
	Remove []Name
	// Replicas are new replica counts.
	Replicas map[Name]int32
	// Exhausted are pools without room, with the pods of each workload for which they still have room.
	Exhausted map[string]int64
	// Enforce has all policies in Audit enforce.
	Enforce bool
}

// Name names an object. Without a group, a kind of Kubernetes counts before one of another project.
type Name struct{ Group, Kind, Namespace, Name string }

func (n Name) groupKind() schema.GroupKind { return schema.GroupKind{Group: n.Group, Kind: n.Kind} }

func (n Name) String() string {
	kind := n.groupKind().String()
	if n.Namespace == "" {
		return kind + " " + n.Name
	}
	return kind + " " + n.Namespace + "/" + n.Name
}

// none reports whether nothing would be done.
func (c *Change) none() bool {
	return c.Manifests == nil && len(c.Remove)+len(c.Replicas)+len(c.Exhausted) == 0 && !c.Enforce
}

// applied returns what there would be after the change. Pools without room are not in it.
func (c *Change) applied(in *preview.Inputs, now time.Time) (*preview.Inputs, error) {
	out := in.Clone()
	if c.Manifests != nil {
		out.Overlay(c.Manifests, now)
	}
	for _, n := range c.Remove {
		if !out.Remove(n.groupKind(), n.Namespace, n.Name) {
			return nil, fmt.Errorf("--remove: there is no %s", n)
		}
	}
	for n, replicas := range c.Replicas {
		if !out.Scale(n.groupKind(), n.Namespace, n.Name, replicas) {
			return nil, fmt.Errorf("--replicas: there is no %s with a replica count", n)
		}
	}
	if c.Enforce && !out.Enforce() {
		return nil, fmt.Errorf("--enforce: no policy is in Audit")
	}
	return out, nil
}

// groups are the kinds that a change may name, with the groups that each may have. Node is of the core group, whose name is empty.
var groups = map[string][]string{
	"Node": nil, "PodDistributor": {versprei.GroupVersion.Group}, "FlexDaemonsetTemplate": {flexdaemonsets.GroupVersion.Group},
	"SpreadPolicy": {stowage.GroupVersion.Group}, "ClusterSpreadPolicy": {stowage.GroupVersion.Group}, "VMCatalog": {stowage.GroupVersion.Group},
	"Deployment": {"apps"}, "StatefulSet": {"apps", "apps.kruise.io"}, "DaemonSet": {"apps", "apps.kruise.io"}, "Job": {"batch"},
	"Rollout": {"argoproj.io"}, "CloneSet": {"apps.kruise.io"},
}

// ParseName reads KIND/NAME, or KIND/NAMESPACE/NAME, where the kind is written as kubectl takes it, also with its group, as in
// statefulset.apps.kruise.io/web. The namespace is that of names that have none.
func ParseName(text, namespace string) (Name, error) {
	word, rest, _ := strings.Cut(text, "/")
	_, group, grouped := strings.Cut(strings.ToLower(word), ".")
	full := ""
	for kind := range groups {
		if world.SameKind(kind, word) {
			full = kind
		}
	}
	if full == "" || grouped && !slices.Contains(groups[full], group) {
		return Name{}, fmt.Errorf("%q has no kind that is known here; write KIND/NAME, such as deployment/web or clusterspreadpolicy/web", text)
	}
	most, parts := 2, strings.Split(rest, "/")
	if full == "Node" || full == "FlexDaemonsetTemplate" || full == "ClusterSpreadPolicy" || full == "VMCatalog" {
		most, namespace = 1, "" // they are in no namespace
	}
	if len(parts) > most || slices.Contains(parts, "") {
		return Name{}, fmt.Errorf("%q is no name; write KIND/NAME or KIND/NAMESPACE/NAME, such as deployment/web", text)
	}
	if len(parts) == 2 {
		namespace = parts[0]
	}
	return Name{group, full, namespace, parts[len(parts)-1]}, nil
}
