package support

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
	resources []metav1.APIResource
	err       error
}

func (s *server) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: "v1.30.14"}, nil
}

func (s *server) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	return &metav1.APIResourceList{APIResources: s.resources}, s.err
}

func TestDiscover(t *testing.T) {
	old, err := Discover(&server{resources: []metav1.APIResource{{Name: "pods"}, {Name: "pods/status"}}})
	if err != nil || old.Resize || len(old.Missing()) != 1 || !strings.Contains(old.Missing()[0], "Kubernetes v1.30.14 does not resize running pods") {
		t.Errorf("without pods/resize: %+v, %v, %q", old, err, old.Missing())
	}
	current, err := Discover(&server{resources: []metav1.APIResource{{Name: "pods"}, {Name: "pods/resize"}}})
	if err != nil || !current.Resize || len(current.Missing()) != 0 {
		t.Errorf("with pods/resize: %+v, %v, %q", current, err, current.Missing())
	}
	if _, err := Discover(&server{err: errors.New("away")}); err == nil {
		t.Error("an API server that does not answer is no error")
	}
}
