package podpatch_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Decisions take plain values and return plain values: the packages that decide
// must not be able to reach a cluster.
func TestDecisionsImportNoClient(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../podpatch", "../peerpod", "../spread", "../sizing", "../repair").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(dep, "k8s.io/client-go") || strings.HasPrefix(dep, "sigs.k8s.io/controller-runtime") {
			t.Errorf("a pure package depends on %s", dep)
		}
	}
}
