package capacity

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/events"
	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// configured takes the limit from the ConfigMap, or the default where there is no ConfigMap (nil). An invalid
// limit is refused, and the last valid one stays.
func (r *run) configured(cm *corev1.ConfigMap) {
	if cm == nil {
		r.setLimit(r.Default)
		return
	}
	text, ok := cm.Data[stowage.PeerPodsLimitKey]
	if !ok {
		r.setLimit(r.Default)
		return
	}
	limit, err := peerpod.ParseLimit(text)
	if err != nil {
		r.Metrics.invalid.Set(1)
		r.Log.Error(err, "limit refused", "namespace", r.ConfigMap.Namespace, "kind", "ConfigMap", "name", r.ConfigMap.Name, "key", stowage.PeerPodsLimitKey)
		r.Events.Warn(cm, stowage.EventInvalidLimit, events.Configure,
			"%s: %v; the last good value holds", stowage.PeerPodsLimitKey, err)
		return
	}
	r.setLimit(limit)
}

func (r *run) setLimit(limit int64) {
	r.Metrics.invalid.Set(0)
	r.mu.Lock()
	changed := r.limit != limit
	r.limit = limit
	r.mu.Unlock()
	if changed {
		r.enqueueAll()
	}
}

// enqueueAll has all nodes reconciled.
func (r *run) enqueueAll() {
	var list corev1.NodeList
	if err := r.Informers.List(r.term, &list, client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error(err, "nodes were not listed")
		return
	}
	for i := range list.Items {
		r.nodes.Add(list.Items[i].Name)
	}
}

// desired is how many VMs a node should advertise, and false while that is not known.
func (r *run) desired(node *corev1.Node) (limit int64, known bool) {
	if !r.Nodes.Matches(labels.Set(node.Labels)) || r.byDaemon() && !r.daemonReady(node.Name) {
		return 0, true
	}
	if text, ok := node.Annotations[stowage.PeerPodsLimitAnnotation]; ok {
		limit, err := peerpod.ParseLimit(text)
		if err == nil {
			return limit, true
		}
		r.Events.Warn(node, stowage.EventInvalidLimit, events.Configure,
			"annotation %s: %v; the limit of the other nodes holds", stowage.PeerPodsLimitAnnotation, err)
	}
	r.mu.Lock()
	limit = r.limit
	r.mu.Unlock()
	if limit != peerpod.None {
		return limit, true
	}
	// The ConfigMap has been invalid since before this replica led. What the node was
	// told last is the last good value; one that was told nothing waits.
	limit, err := peerpod.ParseLimit(node.Annotations[stowage.PeerPodsCapacityAnnotation])
	return limit, err == nil
}
