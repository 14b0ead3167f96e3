// Package apisupport finds out what the Kubernetes of a cluster lacks that Stowage can use.
package apisupport

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
)

// Server is what is known of an API server.
type Server struct {
	// Version is its release, such as v1.36.1.
	Version string
	// Resize says that it resizes running pods (KEP-1287): it serves pods/resize, as it does by default
	// since Kubernetes 1.33.
	Resize bool
	// LowerMemory says that it lowers memory limits of running pods, as it does since Kubernetes 1.34.
	LowerMemory bool
}

// Discover asks an API server for its version and for what it serves.
func Discover(d discovery.DiscoveryInterface) (Server, error) {
	version, err := d.ServerVersion()
	if err != nil {
		return Server{}, fmt.Errorf("the version of the API server: %w", err)
	}
	core, err := d.ServerResourcesForGroupVersion("v1")
	if err != nil {
		return Server{}, fmt.Errorf("what the API server serves: %w", err)
	}
	release, _ := utilversion.ParseGeneric(version.GitVersion)
	return Server{
		Version:     version.GitVersion,
		Resize:      slices.ContainsFunc(core.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/resize" }),
		LowerMemory: release == nil || release.AtLeast(utilversion.MustParseGeneric("1.34")), // discovery does not say
	}, nil
}

// Missing says what Stowage cannot do with this API server, a sentence for each thing.
func (s Server) Missing() (missing []string) {
	if !s.Resize {
		missing = append(missing, fmt.Sprintf("Kubernetes %s does not resize running pods (pods/resize, since 1.33): "+
			"pods of a DaemonSet get a new size only when they are recreated", s.Version))
	}
	if s.Resize && !s.LowerMemory {
		missing = append(missing, fmt.Sprintf("Kubernetes %s does not lower memory limits of running pods (since 1.34): "+
			"pods of a DaemonSet get a smaller memory limit only when they are recreated", s.Version))
	}
	return missing
}
