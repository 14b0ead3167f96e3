// Package api makes every kind that Stowage reads or writes known to a scheme.
package api

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
)

// AddToScheme adds the kinds of Kubernetes and of Stowage to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	return errors.Join(clientgoscheme.AddToScheme(s), stowage.AddToScheme(s), versprei.AddToScheme(s), flexdaemonsets.AddToScheme(s))
}

// NewScheme returns a scheme with the kinds of Kubernetes and of Stowage.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, AddToScheme(s)
}
