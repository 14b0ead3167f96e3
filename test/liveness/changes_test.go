package liveness

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/test/suite"
)

// maintenance is a taint that nobody tolerates, and that goes again.
var maintenance = corev1.Taint{Key: "maintenance", Effect: corev1.TaintEffectNoSchedule}

// change does one thing that happens to clusters.
func (w *world) change() {
	w.changed = "nothing"
	if len(w.nodes) == 0 {
		return
	}
	victim := pick(w, w.nodes...)
	same := slices.DeleteFunc(slices.Clone(w.nodes), func(n *corev1.Node) bool { return n.Labels[poolLabel] != victim.Labels[poolLabel] })
	switch w.IntN(7) {
	case 0:
		w.changed = "a node comes"
		w.node("spot", pick(w, w.zones...), 16)
	case 1:
		w.changed = "node " + victim.Name + " goes"
		w.drain(victim)
		suite.Must(w.t, w.Delete(w.t.Context(), victim))
		w.nodes = slices.DeleteFunc(w.nodes, func(n *corev1.Node) bool { return n == victim })
	case 2:
		w.changed = "maintenance of the nodes of " + victim.Labels[poolLabel]
		w.maintain(same)
	case 3:
		w.changed = "a cordon and a drain of " + victim.Name
		patch(w.t, w.Tenant, victim, `{"spec":{"unschedulable":true}}`)
		w.drain(victim)
	case 4, 5:
		w.scale()
	case 6:
		w.rollOut()
	}
	w.since = time.Now()
}

// maintain keeps pods from some nodes for longer than it takes to judge a pool, and drains the nodes.
func (w *world) maintain(nodes []*corev1.Node) {
	setTaints(w, nodes, maintenance)
	w.drain(nodes...)
	began := time.Now()
	suite.EventuallyEvery(w.t, time.Second, time.Minute, "the maintenance is over", func() (bool, error) {
		w.look() // evidence
		return time.Since(began) > 25*time.Second, nil
	})
	setTaints(w, nodes)
}

// setTaints gives nodes the taints that they came with, and some more.
func setTaints(w *world, nodes []*corev1.Node, more ...corev1.Taint) {
	for _, node := range nodes {
		suite.Eventually(w.t, "the node has its taints", func() (bool, error) {
			now := &corev1.Node{}
			if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(node), now); err != nil {
				return false, err
			}
			now.Spec.Taints = slices.DeleteFunc(now.Spec.Taints, func(t corev1.Taint) bool { return t.Key == maintenance.Key })
			now.Spec.Taints = append(now.Spec.Taints, more...)
			err := w.Update(w.t.Context(), now)
			return err == nil, err
		})
	}
}

// drain deletes the pods of some nodes.
func (w *world) drain(nodes ...*corev1.Node) {
	for _, p := range w.look().pods {
		if slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName }) {
			suite.Must(w.t, client.IgnoreNotFound(w.Delete(w.t.Context(), p)))
		}
	}
}

// scale gives a workload other replicas.
func (w *world) scale() {
	for _, of := range w.workloads {
		if of.kind == "Job" {
			continue
		}
		replicas := 1 + w.IntN(14)
		w.changed = fmt.Sprintf("%s %s is scaled to %d", of.kind, of.name, replicas)
		w.Scale(w.t, of.object, replicas)
		return
	}
}

// rollOut gives a Deployment another revision.
func (w *world) rollOut() {
	for _, of := range w.workloads {
		if d, ok := of.object.(*appsv1.Deployment); ok {
			w.changed = "a rollout of " + of.name
			w.Revise(w.t, d, "2")
			return
		}
	}
}
