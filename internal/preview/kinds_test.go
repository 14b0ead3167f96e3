package preview

import (
	"slices"
	"strings"
	"testing"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/stowage-dev/stowage/test/testkit"
)

// The kinds of Kubernetes are those of client-go. Objects of them are ignored, and not unknown.
func TestKinds(t *testing.T) {
	var lines []string
	for gvk := range clientgoscheme.Scheme.AllKnownTypes() {
		version, kind := gvk.ToAPIVersionAndKind()
		lines = append(lines, version+" "+kind+"\n")
	}
	slices.Sort(lines)
	testkit.Golden(t, "kinds.txt", strings.Join(lines, ""))
}
