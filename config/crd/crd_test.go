package crd_test

import (
	"io/fs"
	"regexp"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

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

// Every text in the spec of a kind that tenants write has a greatest length: each replica keeps the object.
func TestTextsHaveALimit(t *testing.T) {
	for _, file := range []string{"versprei.versprei.io_poddistributors.yaml", "stowage.dev_spreadpolicies.yaml", "stowage.dev_clusterspreadpolicies.yaml"} {
		t.Run(file, func(t *testing.T) { textsHaveALimit(t, file) })
	}
}

func textsHaveALimit(t *testing.T, file string) {
	data, err := crd.Bases.ReadFile("bases/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var kind apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &kind); err != nil {
		t.Fatal(err)
	}
	var check func(path string, s *apiextensionsv1.JSONSchemaProps)
	check = func(path string, s *apiextensionsv1.JSONSchemaProps) {
		if s.Type == "string" && s.MaxLength == nil && len(s.Enum) == 0 {
			t.Errorf("%s has no maxLength", path)
		}
		for name, p := range s.Properties {
			check(path+"."+name, &p)
		}
		if s.Items != nil && s.Items.Schema != nil {
			check(path+"[]", s.Items.Schema)
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			check(path+"{}", s.AdditionalProperties.Schema)
		}
	}
	spec := kind.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	check("spec", &spec)
}

// Kubernetes 1.33 and older estimate a rule on a value that is a number or a string at 3 MB for each item of a list, and refuse the kind of a
// long list. In such a list, a string with a pattern stands in the place of the rule.
func TestLongListsHaveNoRulesOnNumbersOrStrings(t *testing.T) {
	const long = 32 // items
	files, err := fs.Glob(crd.Bases, "bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		data, err := crd.Bases.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var kind apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &kind); err != nil {
			t.Fatal(err)
		}
		var check func(path string, s *apiextensionsv1.JSONSchemaProps, items int64)
		check = func(path string, s *apiextensionsv1.JSONSchemaProps, items int64) {
			if s.XIntOrString && len(s.XValidations) > 0 && items > long {
				t.Errorf("%s: %s has a rule on a number or a string in a list of %d", file, path, items)
			}
			for name, p := range s.Properties {
				check(path+"."+name, &p, items)
			}
			if s.Items != nil && s.Items.Schema != nil {
				if s.MaxItems != nil {
					items *= *s.MaxItems
				}
				check(path+"[]", s.Items.Schema, items)
			}
		}
		check("", kind.Spec.Versions[0].Schema.OpenAPIV3Schema, 1)
	}
}
