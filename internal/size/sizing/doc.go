// Package sizing decides how big a DaemonSet's pod is, from its template and the node
// that it runs on.
//
// The nouns, in order. A [Template] gives each pod a share of what its node has allocatable. The share of the pod is
// its total, which is divided among the pod's containers ([Split]). The pod keeps what it declared before it was
// sized, so that its size never depends on a size that it had before:
//
//	size = f(what was declared, template, allocatable)
//
// Hence sizing a pod again changes nothing, whatever happened to it in between. A running pod can be brought to what
// a changed template or node gives it. All arithmetic is on integers: thousandths of a CPU, and bytes.
//
// The package reads no cluster state: package admit finds the template and the
// node, and package resize resizes running pods.
package sizing
