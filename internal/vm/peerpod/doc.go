// Package peerpod turns a pod that runs in a VM outside its node into one that the stock scheduler accounts for
// correctly. Such a peer pod, of Kata Containers' remote hypervisor, takes no cpu, memory or device of the node, but
// one VM of the node's quota.
//
// [Config.Convert] is the whole decision. It promises that
//   - the VM's size is the pod's total as it first reached us, and each container
//     that was injected since counts once;
//   - its own output, also as changed by a LimitRange, is a fixed point;
//   - an annotation that the user set stays.
//
// The package reads no cluster state and keeps none: package scope knows
// about namespaces, and package admit writes the answer into the pod.
package peerpod
