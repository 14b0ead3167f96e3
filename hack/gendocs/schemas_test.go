package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"
)

// schemas returns the schemas by the names of their files.
func schemas(t *testing.T) map[string]*spec.Schema {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "schemas")
	if err := writeSchemas(dir, "../.."); err != nil {
		t.Fatal(err)
	}
	out := map[string]*spec.Schema{}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if text := string(data); strings.Contains(text, "x-kubernetes") || strings.Contains(text, `"nullable"`) {
			t.Errorf("%s has what only the API server knows", file.Name())
		}
		schema := &spec.Schema{}
		if err := json.Unmarshal(data, schema); err != nil {
			t.Fatal(err)
		}
		out[file.Name()] = schema
	}
	return out
}

// check returns what is wrong with an object by its schema, as kubeconform finds that. It is nil for an object of other kinds.
func check(all map[string]*spec.Schema, object map[string]any) (known bool, err error) {
	kind, _ := object["kind"].(string)
	version, _ := object["apiVersion"].(string)
	schema := all[schemaFile(kind, filepath.Base(version))]
	if schema == nil {
		return false, nil
	}
	return true, errors.Join(validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(object).Errors...)
}

// The manifests that we show to people are valid, and all kinds are among them.
func TestSchemasTakeOurExamples(t *testing.T) {
	all, seen := schemas(t), map[string]bool{}
	for _, dir := range []string{"../../config/samples", "../../docs/examples", "../../docs/playground/examples"} {
		err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(file) != ".yaml" {
				return err
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			documents := utilyaml.NewYAMLToJSONDecoder(strings.NewReader(string(data)))
			for {
				object := map[string]any{}
				if err := documents.Decode(&object); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				known, err := check(all, object)
				if known {
					seen[object["kind"].(string)] = true
				}
				if err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range append([]string{"PolicyTest"}, published...) {
		if !seen[kind] {
			t.Errorf("there is no example of %s", kind)
		}
	}
}

// What is misspelt or out of its bounds is named.
func TestSchemasRefuse(t *testing.T) {
	all := schemas(t)
	if len(all) != len(published)+1 {
		t.Errorf("there are %d schemas", len(all))
	}
	const distributor = "{apiVersion: versprei.versprei.io/v1beta1, kind: PodDistributor, metadata: {name: a}, "
	const sizes = "{apiVersion: flexdaemonsets.xai/v1alpha1, kind: FlexDaemonsetTemplate, metadata: {name: a}, "
	const policy = "{apiVersion: stowage.dev/v1alpha1, kind: SpreadPolicy, metadata: {name: a}, "
	const test = "{apiVersion: cli.stowage.dev/v1alpha1, kind: PolicyTest, "
	for manifest, want := range map[string]string{
		distributor + "spec: {target: {apiVersion: apps/v1, kind: Deployment, name: a}, distribution: [{name: a, nodeLabel: {a: b}, weight: 1}]}}":  "",
		distributor + "status: {}, spec: {target: {apiVersion: apps/v1, kind: Deployment, name: a}, distribution: [{name: a, nodeLabel: {a: b}}]}}": "",
		distributor + "spec: {target: {apiVersion: apps/v1, kind: Deployment, name: a}, distribution: [{name: a, nodeLabel: {a: b}, wieght: 1}]}}":  "wieght",
		distributor + "spec: {target: {apiVersion: apps/v1, kind: Deployment, name: a}, distribution: [{name: a, nodeLabel: {a: b}, weight: -1}]}}": "weight",
		distributor + "spec: {target: {kind: Deployment, name: a}, distribution: []}}":                                                              "apiVersion",
		"{apiVersion: other/v1beta1, kind: PodDistributor, metadata: {name: a}, spec: {}}":                                                          "apiVersion",
		"{kind: PodDistributor, apiVersion: versprei.versprei.io/v1beta1, spec: {}}":                                                                "metadata",
		sizes + "spec: {cpuPercentage: 10, minMemory: 1Gi, maxCPU: 2}}":                                                                             "",
		sizes + "spec: {cpuPercentage: 101}}":              "cpuPercentage",
		sizes + "spec: {cpuPercentage: 10, limits: Some}}": "limits",
		sizes + "specs: {cpuPercentage: 10}}":              "specs",
		policy + "spec: {mode: Audit, selector: {matchLabels: {a: b}}, pools: [{name: a, nodeSelector: {a: b}, weight: 1}]}}":                          "",
		policy + "spec: {mode: On, selector: {matchLabels: {a: b}}, pools: [{name: a, nodeSelector: {a: b}, weight: 1}]}}":                             "mode",
		test + "cases: [{name: a, replicas: 3, expect: {workloads: [{workload: Deployment a/b, sizes: {n: {cpu: 1, memory: 1Gi}}, pools: {a: 1}}]}}]}": "",
		test + "cases: [{name: a}]}": "",
		test + "cases: [{name: a, expect: {workloads: [{workload: Deployment a/b, pool: {a: 1}}]}}]}": "pool",
		test + "cases: [{replicas: 3}]}":         "name",
		test + "metadata: {name: a}, cases: []}": "metadata",
	} {
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
			t.Fatal(err)
		}
		known, err := check(all, object)
		if !known || (err == nil) != (want == "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", manifest, want, err)
		}
	}
}

// The fields of a PolicyTest are described by their comments.
func TestPolicyTestSchemaIsDescribed(t *testing.T) {
	schema := schemas(t)["policytest_v1alpha1.json"]
	item := schema.Properties["cases"].Items.Schema
	if text := item.Properties["exhausted"].Description; !strings.HasPrefix(text, "Exhausted are pools without room") {
		t.Errorf("exhausted is described by %q", text)
	}
	vms := item.Properties["expect"].Properties["workloads"].Items.Schema.Properties["vms"].Items.Schema
	if text := vms.Properties["memoryMiB"].Description; text != "Memory is in MiB." {
		t.Errorf("memoryMiB, of an embedded type, is described by %q", text)
	}
}
