package world

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// Snapshot is the world as decisions see it at one moment. The objects it returns are shared and must not be changed; they
// hold only the fields that their method names.
type Snapshot interface {
	// Namespace returns a namespace with its labels and the annotation of its mode, or nil if
	// there is none of that name.
	Namespace(ctx context.Context, name string) (*corev1.Namespace, error)
	// LimitRanges returns the namespace's LimitRanges with their limits.
	LimitRanges(ctx context.Context, namespace string) ([]corev1.LimitRange, error)
	// ResourceQuotas returns the namespace's ResourceQuotas with their specs.
	ResourceQuotas(ctx context.Context, namespace string) ([]corev1.ResourceQuota, error)
	// Workload returns what makes pods, or what makes that, or nil if there is none
	// of that name or if we may not read it.
	Workload(ctx context.Context, namespace string, ref Ref) (*Workload, error)
	// PodOwners returns the ReplicaSets and StatefulSets whose pods belong to a workload: itself, or what it made.
	PodOwners(ctx context.Context, namespace string, top Ref) ([]*Workload, error)
	// MayRead reports whether Stowage can tell that a namespace has no object of a name and kind. Where it
	// may not read the kind, [Snapshot.Workload] returning nil says nothing.
	MayRead(namespace string, ref Ref) bool
	// PodDistributor returns the PodDistributor that targets one of some objects of a namespace, with its spec, or nil if none
	// does. Of several, [Wins] tells which.
	PodDistributor(ctx context.Context, namespace string, targets []Ref) (*versprei.PodDistributor, error)
	// Policies returns the SpreadPolicies of a namespace or, where that is empty, the ClusterSpreadPolicies, with their specs. It is the
	// same value until one of them changes, and nil if there are none.
	Policies(ctx context.Context, namespace string) (*Policies, error)
	// PoolState returns what is known of pools without room for the pods of a workload, or nil if nothing is.
	PoolState(ctx context.Context, namespace string, workload types.UID) (*stowage.PoolState, error)
	// Node returns a node with its labels, annotations, taints, conditions and allocatable
	// resources, or nil if there is none of that name.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// Volumes returns the PersistentVolumes that are bound to some claims of a namespace, with where they can be. It returns false if that
	// is not known yet.
	Volumes(ctx context.Context, namespace string, claims []string) (volumes []corev1.PersistentVolume, known bool, err error)
	// PriorityClass returns what pods of a PriorityClass have, or nil if there is none of that name.
	PriorityClass(ctx context.Context, name string) (*PriorityClass, error)
	// Template returns a FlexDaemonsetTemplate, or nil if there is none of that name.
	Template(ctx context.Context, name string) (*flexdaemonsets.FlexDaemonsetTemplate, error)
}

// PriorityClass is what pods of a PriorityClass have. Both are nil where they are not known.
type PriorityClass struct {
	Value            *int32
	PreemptionPolicy *corev1.PreemptionPolicy
}

// Policies are the policies of a namespace, or of the cluster, at one moment.
type Policies struct {
	Namespaced []*stowage.SpreadPolicy
	Cluster    []*stowage.ClusterSpreadPolicy
}

// Objects are a world that does not change, such as what files hold, or what was listed.
type Objects struct {
	Namespaces      []corev1.Namespace
	LimitRanges     []corev1.LimitRange
	ResourceQuotas  []corev1.ResourceQuota
	Workloads       []*Workload
	PodDistributors []versprei.PodDistributor
	Policies        Policies
	Nodes           []corev1.Node
	Templates       []flexdaemonsets.FlexDaemonsetTemplate
	PoolStates      []stowage.PoolState
	Volumes         []corev1.PersistentVolume
	VMCatalogs      []stowage.VMCatalog
	// PriorityClasses are the names of those that there are. If there are none, each is taken to be there.
	PriorityClasses []string
}
