// Package crds checks the CustomResourceDefinitions by the code of the oldest Kubernetes that Stowage supports: what it knows of CEL, and
// what an expression may cost there.
package crds

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

func TestCRDs(t *testing.T) {
	files, err := filepath.Glob("../../../../config/crd/bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CustomResourceDefinitions are found: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd v1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			t.Fatalf("%s: %v", filepath.Base(file), err)
		}
		v1.SetDefaults_CustomResourceDefinition(&crd)
		v1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
		var in apiextensions.CustomResourceDefinition
		if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, &in, nil); err != nil {
			t.Fatalf("%s: %v", filepath.Base(file), err)
		}
		in.Status.StoredVersions = []string{in.Spec.Versions[0].Name} // as the API server fills in
		for _, finding := range validation.ValidateCustomResourceDefinition(t.Context(), &in) {
			t.Errorf("%s: %v", filepath.Base(file), finding)
		}
	}
}
