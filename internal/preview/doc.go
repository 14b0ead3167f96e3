// Package preview makes Stowage's decisions offline: over manifests instead of a
// cluster.
//
//	files ─▶ Load ─▶ Inputs ─▶ Pods (as the controllers would make them)
//	      ─▶ Admit (the API server's own defaults, then the server's Pipeline)
//	      ─▶ Print (tables, YAML, JSON), or Plans ─▶ Plot, SVG (pictures)
//
// The decisions are those of package admission, by the same code. It imitates what surrounds them in a cluster as far
// as decisions depend on it. That is the names, labels and owners that controllers give pods, LimitRange defaults,
// RuntimeClass overhead and scheduling, and reinvocation. Nothing is asked of a cluster.
package preview
