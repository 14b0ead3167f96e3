// Package layers decides which pods of an owner a scale-down removes, so that what is left is spread over the topology keys
// that the pod template names.
//
// The ReplicaSet controller removes the pods with the lowest controller.kubernetes.io/pod-deletion-cost first. The k-th pod of
// a zone has layer k, and its cost is -k. A step down therefore takes whole layers from the top: a zone with more pods loses
// pods until it has as many as the others, and then all lose in turn. Counts of zones that had enough differ by at most one,
// whatever the step.
//
// The package knows keys ([Template.Keys], [Sort]), layers ([Plan]) and what a step leaves ([Step]). It reads no cluster state and writes nothing.
package layers
