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
// Package pipeline has a pod decided by one feature after the other, and package feature says what a feature is. What features read of the cluster
// comes through package world. Package preview decides offline by the same [pipeline.Pipeline].
package admission
