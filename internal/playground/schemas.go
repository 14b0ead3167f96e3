package playground

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	openapierrors "k8s.io/kube-openapi/pkg/validation/errors"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/config/crd"
)

// schemas check Stowage's kinds by the schemas of their CustomResourceDefinitions, without the rules in CEL: the libraries of CEL would be
// half of the page. They implement [preview.Schemas].
type schemas struct{}

// customResources are the schemas of Stowage's kinds.
var customResources = sync.OnceValues(func() (map[schema.GroupVersionKind]*spec.Schema, error) {
	out := map[schema.GroupVersionKind]*spec.Schema{}
	err := crd.Each(func(data []byte) error {
		var definition struct {
			Spec struct {
				Group string `json:"group"`
				Names struct {
					Kind string `json:"kind"`
				} `json:"names"`
				Versions []struct {
					Name   string `json:"name"`
					Schema struct {
						OpenAPIV3Schema spec.Schema `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(data, &definition); err != nil {
			return err
		}
		for i := range definition.Spec.Versions {
			version := &definition.Spec.Versions[i]
			of := &version.Schema.OpenAPIV3Schema
			prepare(of)
			out[schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind}] = of
		}
		return nil
	})
	return out, err
})

// prepare leaves the formats out that the API server does not check, in a schema and in its parts.
func prepare(s *spec.Schema) {
	if s.Format != "int32" && s.Format != "int64" {
		s.Format = ""
	}
	for name := range s.Properties {
		part := s.Properties[name]
		prepare(&part)
		s.Properties[name] = part
	}
	if items := itemsOf(s); items != nil {
		prepare(items)
	}
	if values := s.AdditionalProperties; values != nil && values.Schema != nil {
		prepare(values.Schema)
	}
}

// itemsOf returns the schema of the items of a list, or nil.
func itemsOf(s *spec.Schema) *spec.Schema {
	if s.Items == nil {
		return nil
	}
	return s.Items.Schema
}

// Complete implements [preview.Schemas].
func (schemas) Complete(_ context.Context, gvk schema.GroupVersionKind, object map[string]any) (field.ErrorList, bool, error) {
	all, err := customResources()
	if err != nil {
		return nil, false, err
	}
	s := all[gvk]
	if s == nil {
		return nil, false, nil
	}
	complete(object, s)
	var errs field.ErrorList
	for _, err := range validate.NewSchemaValidator(s, nil, "", strfmt.Default).Validate(object).Errors {
		errs = append(errs, refusal(err))
	}
	errs = append(errs, duplicates(nil, object, s)...)
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) }) // maps have no order
	for _, err := range errs {
		err.Detail = strings.TrimPrefix(err.Detail, err.Field+" in body ")
	}
	return errs, true, nil
}

// complete drops nulls that the API server drops, and sets defaults.
func complete(value any, s *spec.Schema) {
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			if part, ok := s.Properties[name]; ok && v == nil && !part.Nullable {
				delete(value, name)
			}
		}
		for name := range s.Properties {
			part := s.Properties[name]
			if _, there := value[name]; !there && part.Default != nil {
				value[name] = clone(part.Default)
			}
			complete(value[name], &part)
		}
		if values := s.AdditionalProperties; values != nil && values.Schema != nil {
			for name := range value {
				complete(value[name], values.Schema)
			}
		}
	case []any:
		if items := itemsOf(s); items != nil {
			for _, item := range value {
				complete(item, items)
			}
		}
	}
}

// clone copies a value of JSON, with whole numbers as the API server reads them.
func clone(value any) any {
	data, err := json.Marshal(value)
	if err != nil {
		return value
	}
	var out any
	if number := json.Number(data); json.Unmarshal(data, &out) == nil {
		if n, err := number.Int64(); err == nil {
			return n
		}
	}
	return out
}

// refusal words what a schema refuses as the API server does.
func refusal(err error) *field.Error {
	v, ok := err.(*openapierrors.Validation) //nolint:errorlint // the validator returns it bare
	if !ok {
		return field.Invalid(nil, "", err.Error())
	}
	var path *field.Path
	if name := strings.TrimPrefix(v.Name, "."); name != "" {
		path = field.NewPath(name)
	}
	number := func(n any) int {
		if i, ok := n.(int64); ok {
			return int(i)
		}
		return -1
	}
	value := v.Value
	if value == nil {
		value = ""
	}
	switch v.Code() {
	case openapierrors.RequiredFailCode:
		return field.Required(path, "")
	case openapierrors.EnumFailCode:
		var allowed []string
		for _, a := range v.Values {
			allowed = append(allowed, fmt.Sprint(a))
		}
		return field.NotSupported(path, v.Value, allowed)
	case openapierrors.TooLongFailCode:
		return field.TooLong(path, "", number(v.Valid))
	case openapierrors.MaxItemsFailCode, openapierrors.TooManyPropertiesCode:
		return field.TooMany(path, number(v.Value), number(v.Valid))
	case openapierrors.InvalidTypeCode:
		return field.TypeInvalid(path, value, err.Error())
	}
	return field.Invalid(path, value, err.Error())
}

// duplicates returns the items of lists that are there twice, where a list is a set or a map.
func duplicates(path *field.Path, value any, s *spec.Schema) (errs field.ErrorList) {
	switch value := value.(type) {
	case map[string]any:
		for name := range s.Properties {
			part := s.Properties[name]
			errs = append(errs, duplicates(path.Child(name), value[name], &part)...)
		}
	case []any:
		kind, _ := s.Extensions.GetString("x-kubernetes-list-type")
		keys, _ := s.Extensions.GetStringSlice("x-kubernetes-list-map-keys")
		seen := map[string]bool{}
		for i, item := range value {
			var key any
			switch kind {
			case "set":
				key = item
			case "map":
				named := map[string]any{}
				if object, ok := item.(map[string]any); ok {
					for _, k := range keys {
						named[k] = object[k]
					}
				}
				key = named
			}
			if data, err := json.Marshal(key); err == nil && kind != "" && kind != "atomic" {
				if seen[string(data)] {
					errs = append(errs, field.Duplicate(path.Index(i), key))
				}
				seen[string(data)] = true
			}
			if items := itemsOf(s); items != nil {
				errs = append(errs, duplicates(path.Index(i), item, items)...)
			}
		}
	}
	return errs
}
