package main

import (
	"encoding"
	"encoding/json"
	"io"
	"reflect"
	"strings"

	"github.com/stowage-dev/stowage/internal/impact"
	"github.com/stowage-dev/stowage/internal/policytest"
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

// schemaOf returns the JSON schema of what encoding/json makes of a type, without comments.
func schemaOf(t reflect.Type) map[string]any { return commented(nil).schemaOf(t) }

// commented are comments of fields, by Type.Field, which become descriptions.
type commented map[string]string

// schemaOf returns the JSON schema of what encoding/json makes of a type. It knows the kinds of types that reports and test files have.
func (c commented) schemaOf(t reflect.Type) map[string]any {
	if t == reflect.TypeFor[policytest.Quantity]() { // it reads both
		return map[string]any{"type": []string{"string", "number"}}
	}
	if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return c.schemaOf(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": c.schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": c.schemaOf(t.Elem())}
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		c.addFields(t, properties, &required)
		return map[string]any{"type": "object", "additionalProperties": false, "properties": properties, "required": required}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	}
	panic("a report has a field of type " + t.String())
}

// addFields adds the fields of a struct, and those of what it embeds.
func (c commented) addFields(t reflect.Type, properties map[string]any, required *[]string) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			c.addFields(f.Type, properties, required)
		case f.IsExported() && name != "-":
			schema := c.schemaOf(f.Type)
			if text := c[t.Name()+"."+f.Name]; text != "" {
				schema["description"] = text
			}
			properties[name] = schema
			if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
				*required = append(*required, name)
			}
		}
	}
}
