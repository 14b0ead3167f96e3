package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// writeAPI writes the reference of our kinds as Markdown, from the CRDs in a directory. Their texts are the comments of
// the Go types.
func writeAPI(w io.Writer, crds string) error {
	all, err := readCRDs(crds)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(`# API reference

<!-- Generated from api/ by make generate. -->

`)
	for _, crd := range all {
		for _, v := range crd.Spec.Versions {
			root := v.Schema.OpenAPIV3Schema
			fmt.Fprintf(&b, "## %s\n\n%s/%s, %s. %s\n\n", crd.Spec.Names.Kind, crd.Spec.Group, v.Name, strings.ToLower(string(crd.Spec.Scope)), oneLine(root.Description))
			b.WriteString("| field | type | required | meaning |\n| --- | --- | --- | --- |\n")
			for _, name := range slices.Sorted(maps.Keys(root.Properties)) {
				if !slices.Contains([]string{"apiVersion", "kind", "metadata"}, name) {
					field := root.Properties[name]
					writeField(&b, name, &field, slices.Contains(root.Required, name))
				}
			}
			b.WriteString("\n")
		}
	}
	_, err = io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

// writeField writes a row for a field, and rows for the fields in it.
func writeField(b *strings.Builder, path string, s *apiextensions.JSONSchemaProps, required bool) {
	kind, inner := typeOf(s)
	need := ""
	if required {
		need = "yes"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", path, kind, need, strings.ReplaceAll(strings.Join(append([]string{oneLine(s.Description)}, limits(s)...), " "), "|", `\|`))
	if strings.HasSuffix(path, "conditions") { // Kubernetes' own type, the same everywhere
		return
	}
	if s.Items != nil {
		path += "[]"
	}
	for _, name := range slices.Sorted(maps.Keys(inner.Properties)) {
		field := inner.Properties[name]
		writeField(b, path+"."+name, &field, slices.Contains(inner.Required, name))
	}
}

// typeOf names the type of a field, and returns the schema that has the fields in it.
func typeOf(s *apiextensions.JSONSchemaProps) (name string, inner *apiextensions.JSONSchemaProps) {
	switch {
	case s.XIntOrString:
		return "integer or string", s
	case s.Items != nil && s.Items.Schema != nil:
		name, inner = typeOf(s.Items.Schema)
		return "list of " + name, inner
	case s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
		name, inner = typeOf(s.AdditionalProperties.Schema)
		return "map of string to " + name, inner
	case s.Format != "" && s.Type == "string":
		return s.Format, s
	}
	return s.Type, s
}

// limits says in sentences what the API server demands of a field.
func limits(s *apiextensions.JSONSchemaProps) (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if s.Default != nil {
		add("Default: `%s`.", s.Default.Raw)
	}
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
		}
		add("One of %s.", strings.Join(values, ", "))
	}
	if s.Minimum != nil {
		add("At least %v.", *s.Minimum)
	}
	if s.Maximum != nil {
		add("At most %v.", *s.Maximum)
	}
	if s.MaxItems != nil {
		add("At most %d items.", *s.MaxItems)
	}
	if s.MaxLength != nil {
		add("At most %d characters.", *s.MaxLength)
	}
	if s.Pattern != "" {
		add("Pattern: `%s`.", s.Pattern)
	}
	for _, rule := range s.XValidations {
		if rule.Message != "" {
			add("Checked: %s.", strings.TrimSuffix(oneLine(rule.Message), "."))
		}
	}
	return out
}

// oneLine joins the lines of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
