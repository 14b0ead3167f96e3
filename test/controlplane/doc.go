// Package controlplane builds and runs a real Kubernetes control plane on this
// machine: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with
// kwok in the place of nodes and kubelets, and Stowage as any number of replicas
// behind one address. Tests and the demo run on it.
//
//	Build ─▶ Start ─▶ Cluster ─▶ StartStowage ─▶ ... ─▶ Stop
//
// It promises that
//   - everything listens on loopback only, on ports that no other cluster of this
//     package uses;
//   - nothing that it started outlives the process that called Start, however
//     that process ends (on Linux);
//   - each Stowage replica has the permissions of config/rbac and no others.
//
// It is no part of the product: only tests and hack/ import it.
package controlplane
