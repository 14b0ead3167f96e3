// Package podpatch holds the part of a pod that Stowage reads and may change,
// and turns a change into the smallest JSON patch (RFC 6902).
//
// It promises that
//   - a pod's fields that [Pod] does not name are never in a patch, so fields
//     of a newer Kubernetes survive;
//   - a map or list that existed is changed entry by entry, never replaced;
//   - the same change gives the same bytes.
//
// What to change is decided elsewhere: in packages placement, sizing and peerpod.
package podpatch
