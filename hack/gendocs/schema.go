package main

import (
	"encoding/json"
	"io"
	"reflect"
	"strings"

	"github.com/stowage-dev/stowage/internal/impact"
)

// writeImpactSchema writes the JSON schema of the reports of `stowage impact -o json`.
func writeImpactSchema(w io.Writer) error {
	schema := schemaOf(reflect.TypeFor[impact.Report]())
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "Impact, " + impact.Version
	schema["properties"].(map[string]any)["apiVersion"] = map[string]any{"const": impact.Version}
	schema["properties"].(map[string]any)["kind"] = map[string]any{"const": "Impact"}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(schema)
}

// schemaOf returns the JSON schema of what encoding/json makes of a type. It knows the kinds of types that reports have.
func schemaOf(t reflect.Type) map[string]any {
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		addFields(t, properties, &required)
		return map[string]any{"type": "object", "additionalProperties": false, "properties": properties, "required": required}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	}
	panic("a report has a field of type " + t.String())
}

// addFields adds the fields of a struct, and those of what it embeds.
func addFields(t reflect.Type, properties map[string]any, required *[]string) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			addFields(f.Type, properties, required)
		case f.IsExported():
			properties[name] = schemaOf(f.Type)
			if !strings.Contains(options, "omitempty") {
				*required = append(*required, name)
			}
		}
	}
}
