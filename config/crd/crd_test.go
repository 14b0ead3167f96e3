package crd_test

import (
	"io/fs"
	"regexp"
	"testing"

	"github.com/stowage-dev/stowage/config/crd"
)

// Kubernetes 1.33 and older estimate that a value which is a number or a string may have 3 MB, whatever its
// maxLength. A rule that compares the type of such a value then costs too much in a list of 32, and these versions
// refuse the kind. `type(self) in [string]` costs less.
func TestRulesDoNotCompareTypes(t *testing.T) {
	files, err := fs.Glob(crd.Bases, "bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	comparison := regexp.MustCompile(`type\([^)]*\) *[!=]=`)
	for _, file := range files {
		data, err := crd.Bases.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range comparison.FindAllString(string(data), -1) {
			t.Errorf("%s: replace %q with `type(...) in [...]`: Kubernetes 1.33 and older refuse it", file, rule)
		}
	}
}
