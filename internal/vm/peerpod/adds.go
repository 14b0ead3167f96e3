package peerpod

import (
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// Adds returns what pods of a RuntimeClass get, and what they lose, as peer pods. It is nil for one whose pods are none.
func (c *Config) Adds(runtimeClass string) (out refusal.Added) {
	if !c.Targets(runtimeClass) {
		return nil
	}
	by := "RuntimeClass " + runtimeClass
	out.Add(refusal.Part{Field: refusal.VM, Key: c.VMResource, By: by})
	out.Add(refusal.Part{Field: refusal.Requests, By: by})
	out.Add(refusal.Part{Field: refusal.Label, Key: stowage.PeerPodLabel, Own: true, By: by})
	out.Add(refusal.Part{Field: refusal.Annotation, Key: stowage.OriginalResourcesAnnotation, Own: true, By: by})
	for _, key := range sizingAnnotations {
		if c.writes(key) {
			out.Add(refusal.Part{Field: refusal.Annotation, Key: key, Own: true, By: by})
		}
	}
	out.Add(refusal.Part{Field: refusal.Annotation, Key: stowage.MachineTypeAnnotation, Own: true, By: by})
	return out
}
