// Package world is the one model of what Stowage decides about. It has workloads and what makes their pods, and the policies,
// states, namespaces and nodes beside them.
//
// The types need no client. A [Snapshot] answers what decisions ask. It has three sources: package cache answers from
// informers, package api from one reading of the API server, and package manifests from files. Pods and nodes are those of Kubernetes' own API
// everywhere; what makes pods, and what made that, is a [Workload].
package world
