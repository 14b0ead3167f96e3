package apisupport

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
)

// server is an API server that serves some resources.
type server struct {
	discovery.DiscoveryInterface
	version   string
	resources []metav1.APIResource
	err       error
}

func (s *server) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: s.version}, nil
}

func (s *server) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	return &metav1.APIResourceList{APIResources: s.resources}, s.err
}

func TestDiscover(t *testing.T) {
	old, err := Discover(&server{version: "v1.30.14", resources: []metav1.APIResource{{Name: "pods"}, {Name: "pods/status"}}})
	if err != nil || old.Resize || len(old.Missing()) != 1 || !strings.Contains(old.Missing()[0], "Kubernetes v1.30.14 does not resize running pods") {
		t.Errorf("without pods/resize: %+v, %v, %q", old, err, old.Missing())
	}
	between, err := Discover(&server{version: "v1.33.13", resources: []metav1.APIResource{{Name: "pods/resize"}}})
	if err != nil || between.LowerMemory || len(between.Missing()) != 1 || !strings.Contains(between.Missing()[0], "Kubernetes v1.33.13 does not lower memory limits") {
		t.Errorf("before 1.34: %+v, %v, %q", between, err, between.Missing())
	}
	current, err := Discover(&server{version: "v1.34.0-rc.1+dirty", resources: []metav1.APIResource{{Name: "pods"}, {Name: "pods/resize"}}})
	if err != nil || !current.Resize || len(current.Missing()) != 0 {
		t.Errorf("with pods/resize: %+v, %v, %q", current, err, current.Missing())
	}
	if _, err := Discover(&server{err: errors.New("away")}); err == nil {
		t.Error("an API server that does not answer is no error")
	}
}
