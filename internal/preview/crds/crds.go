// Package crds checks objects of Stowage's own kinds by their CustomResourceDefinitions, with the API server's own libraries, CEL included.
package crds

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/config/crd"
)

// customResource checks the objects of one kind by its CustomResourceDefinition, with the API server's own
// libraries.
type customResource struct {
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *schemacel.Validator
}

// customResources are Stowage's kinds, without those that only Stowage writes.
var customResources = sync.OnceValues(func() (map[schema.GroupVersionKind]*customResource, error) {
	out := map[schema.GroupVersionKind]*customResource{}
	err := crd.Each(func(data []byte) error {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &definition); err != nil {
			return err
		}
		for i := range definition.Spec.Versions {
			version := &definition.Spec.Versions[i]
			r, err := newCustomResource(version.Schema.OpenAPIV3Schema)
			if err != nil {
				return err
			}
			out[schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind}] = r
		}
		return nil
	})
	return out, err
})

func newCustomResource(props *apiextensionsv1.JSONSchemaProps) (*customResource, error) {
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, &internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	return &customResource{structural, validator, schemacel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// complete sets the defaults in an object and returns what the API server would refuse about it.
func (r *customResource) complete(ctx context.Context, object map[string]any) field.ErrorList {
	defaulting.PruneNonNullableNullsWithoutDefaults(object, r.structural)
	defaulting.Default(object, r.structural)
	errs := validation.ValidateCustomResource(nil, object, r.schema)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, r.structural, object)...)
	if len(errs) == 0 && r.rules != nil { // rules may count on the types
		broken, _ := r.rules.Validate(ctx, nil, r.structural, object, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, broken...)
	}
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) }) // maps have no order
	for _, err := range errs {
		// The schema's messages repeat the field.
		err.Detail = strings.TrimPrefix(err.Detail, err.Field+" in body ")
	}
	return errs
}

// Schemas are those of Stowage's kinds, with their rules. They implement [preview.Schemas].
type Schemas struct{}

// Complete implements [preview.Schemas].
func (Schemas) Complete(ctx context.Context, gvk schema.GroupVersionKind, object map[string]any) (field.ErrorList, bool, error) {
	resources, err := customResources()
	if err != nil {
		return nil, false, err
	}
	r := resources[gvk]
	if r == nil {
		return nil, false, nil
	}
	return r.complete(ctx, object), true, nil
}
