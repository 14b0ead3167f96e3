// Package impact says what a change would do to the workloads of a live cluster, before it is made.
//
//	API server ─▶ read ─▶ what there is: inputs of a preview, pods, nodes
//	manifests, flags ─▶ Change ─▶ what there would be
//	both ─▶ outlook (the webhook's own decisions, see package preview) ─▶ compare ─▶ Report ─▶ Print
//
// The counts of a workload are those of package preview, over the cluster's own objects. Two things are not known so well. A workload
// has reasons of its own, so that its counts may come out otherwise: see [Workload.Unsure]. Nodes to come, pods without room, and money
// are estimates: see [Estimate].
//
// The package only reads, with the permissions of its caller. What admission would refuse, it asks by dry runs, which create nothing: see [Options.Refused].
package impact
