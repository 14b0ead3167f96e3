package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/stowage-dev/stowage/internal/policytest"
)

// published are the kinds of the CRDs that people write. The other kinds are written by Stowage.
var published = []string{"PodDistributor", "SpreadPolicy", "ClusterSpreadPolicy", "ScaleDownPolicy", "ClusterScaleDownPolicy", "FlexDaemonsetTemplate", "VMCatalog"}

// writeSchemas writes a JSON schema for each kind that people write, for editors and for kubeconform, into a directory. The files have the
// names that kubeconform asks for: the kind in lower case and the version.
func writeSchemas(dir, root string) error {
	if err := os.RemoveAll(dir); err != nil { // of kinds that are gone
		return err
	}
	files := map[string]func(io.Writer) error{}
	crds, err := readCRDs(filepath.Join(root, "config", "crd", "bases"))
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if !slices.Contains(published, crd.Spec.Names.Kind) {
			continue
		}
		for _, v := range crd.Spec.Versions {
			schema, err := kindSchema(crd.Spec.Group+"/"+v.Name, crd.Spec.Names.Kind, v.Schema.OpenAPIV3Schema)
			if err != nil {
				return fmt.Errorf("%s: %w", crd.Name, err)
			}
			files[schemaFile(crd.Spec.Names.Kind, v.Name)] = printSchema(schema)
		}
	}
	if len(files) < len(published) {
		return fmt.Errorf("%d of the kinds %s were found", len(files), strings.Join(published, ", "))
	}
	schema, err := policyTestSchema(root)
	if err != nil {
		return err
	}
	files[schemaFile(policytest.Kind, filepath.Base(policytest.APIVersion))] = printSchema(schema)
	return writeFiles(dir, files)
}

func schemaFile(kind, version string) string { return strings.ToLower(kind) + "_" + version + ".json" }

func printSchema(schema map[string]any) func(io.Writer) error {
	return func(w io.Writer) error {
		out := json.NewEncoder(w)
		out.SetEscapeHTML(false)
		out.SetIndent("", "  ")
		return out.Encode(schema)
	}
}

// kindSchema returns the JSON schema of a kind. It is that of the CRD without what only the API server knows: rules in CEL, and the ways in
// which lists are merged. It refuses unknown fields, as kubectl does.
func kindSchema(apiVersion, kind string, of *apiextensions.JSONSchemaProps) (map[string]any, error) {
	data, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	schema := map[string]any{}
	if err := json.Unmarshal(data, &schema); err != nil {
		return nil, err
	}
	plainSchema(schema)
	head(schema, apiVersion, kind, "metadata")
	return schema, nil
}

// head makes a schema the one of a kind. Its version and its name are fixed, and required beside the other names.
func head(schema map[string]any, apiVersion, kind string, others ...string) {
	schema["$schema"], schema["title"] = "http://json-schema.org/draft-07/schema#", kind+", "+apiVersion
	properties := schema["properties"].(map[string]any)
	for name, value := range map[string]string{"apiVersion": apiVersion, "kind": kind} {
		properties[name] = map[string]any{"type": "string", "enum": []any{value}}
	}
	required := append([]string{"apiVersion", "kind"}, others...)
	list, _ := schema["required"].([]any)
	for _, name := range list {
		required = append(required, name.(string))
	}
	slices.Sort(required)
	schema["required"] = slices.Compact(required)
}

// plainSchema makes the schema of a CRD one that other programs understand, in place.
func plainSchema(schema map[string]any) {
	if kind, ok := schema["type"].(string); ok && schema["nullable"] == true {
		schema["type"] = []any{kind, "null"}
	}
	if schema["format"] == "int32" || schema["format"] == "int64" { // no formats of JSON schema
		delete(schema, "format")
	}
	open := schema["x-kubernetes-preserve-unknown-fields"] == true || schema["additionalProperties"] != nil
	for key := range schema {
		if key == "nullable" || strings.HasPrefix(key, "x-kubernetes-") {
			delete(schema, key)
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	for _, inner := range properties {
		plainSchema(inner.(map[string]any))
	}
	if len(properties) > 0 && !open {
		schema["additionalProperties"] = false
	}
	for _, key := range []string{"items", "additionalProperties", "not"} {
		if inner, ok := schema[key].(map[string]any); ok {
			plainSchema(inner)
		}
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		list, _ := schema[key].([]any)
		for _, inner := range list {
			plainBranch(inner.(map[string]any))
		}
	}
}

// plainBranch is plainSchema for a part of anyOf, oneOf or allOf, which names some of the fields only.
func plainBranch(schema map[string]any) {
	plainSchema(schema)
	if schema["additionalProperties"] == false {
		delete(schema, "additionalProperties")
	}
}

// policyTestSchema returns the JSON schema of the files of `stowage test`, with the comments of their fields.
func policyTestSchema(root string) (map[string]any, error) {
	comments, err := fieldComments(filepath.Join(root, "internal", "policytest", "file.go"), filepath.Join(root, "internal", "preview", "outcome.go"))
	if err != nil {
		return nil, err
	}
	schema := commented(comments).schemaOf(reflect.TypeFor[policytest.File]())
	schema["description"] = "The cases of stowage test: manifests, and what Stowage decides about them. It is no object of a cluster."
	required := schema["required"].([]string)
	delete(schema, "required")
	head(schema, policytest.APIVersion, policytest.Kind, required...)
	return schema, nil
}

// fieldComments returns the comments of the fields of structs in some files, by Type.Field.
func fieldComments(files ...string) (map[string]string, error) {
	out := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						out[spec.Name.Name+"."+name.Name] = oneLine(f.Doc.Text())
					}
				}
			}
			return true
		})
	}
	return out, nil
}
