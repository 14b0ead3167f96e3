// Package admission answers the API server's question about one new pod.
//
// A request flows one way:
//
//	HTTP body ─▶ Handler ─▶ podpatch.Pod ─▶ Pipeline ─▶ patch and warnings ─▶ HTTP body
//	                                          │
//	                                          └─ each Feature in turn sees the pod
//	                                             as the features before it left it
//
// It promises that
//   - a fault of ours (an error, a panic, an unreadable namespace) never denies a
//     pod: the answer is "allowed", with a warning that names the cause;
//   - a second pass over a pod that it has answered for changes nothing, also
//     after a LimitRange or a sidecar injector has changed that pod;
//   - a pod in mode Audit or Off, or in a system namespace, is not changed.
//
// Features are in package feature; the pure rules that they use are in spread, sizing and
// peerpod. What they read of the cluster comes through package cluster. Offline decisions
// (package preview) use the same Pipeline.
package admission
