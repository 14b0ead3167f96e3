package shortage

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/autoscaler/clusterautoscaler"
)

const (
	// groupsFor is how long a reading of the cluster autoscaler's status holds. The autoscaler writes it every 10 s.
	groupsFor = 10 * time.Second
	// groupsUnreadFor is the wait after a reading that failed.
	groupsUnreadFor = time.Minute
)

// NodeGroups are the node groups of the cluster autoscaler, as the user describes them, and the ConfigMap with the
// autoscaler's status.
type NodeGroups struct {
	Groups []clusterautoscaler.NodeGroup
	Status client.ObjectKey
}

// groups is the cluster autoscaler's status, as last read. Workloads share it.
type groups struct {
	next   time.Time
	status *clusterautoscaler.Status
}

// askClusterAutoscaler reads what the cluster autoscaler says of its node groups. It returns nil if no group is described,
// or if the status cannot be read.
func (r *run) askClusterAutoscaler(ctx context.Context) *clusterautoscaler.Status {
	g := &r.groups
	now := r.Clock.Now()
	if len(r.NodeGroups.Groups) == 0 || now.Before(g.next) {
		return g.status
	}
	var err error
	g.next, g.status = now.Add(groupsFor), nil
	found := &corev1.ConfigMap{}
	if err = r.Uncached.Get(ctx, r.NodeGroups.Status, found); err == nil {
		g.status, err = clusterautoscaler.ParseStatus(found.Data[clusterautoscaler.StatusKey])
	}
	if err != nil {
		g.next = now.Add(groupsUnreadFor)
		r.Log.Error(err, "the status of the cluster autoscaler was not read; pools are taken as if it did nothing. Check the permission (rbac.clusterAutoscaler of the chart, or config/clusterautoscaler) and --cluster-autoscaler-status",
			"namespace", r.NodeGroups.Status.Namespace, "name", r.NodeGroups.Status.Name)
	}
	return g.status
}
