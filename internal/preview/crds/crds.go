package preview

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/config/crd"
	"github.com/stowage-dev/stowage/internal/spread/policy"
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
	files, err := fs.Glob(crd.Bases, "bases/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		data, err := fs.ReadFile(crd.Bases, name)
		if err != nil {
			return nil, err
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &definition); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for i := range definition.Spec.Versions {
			version := &definition.Spec.Versions[i]
			r, err := newCustomResource(version.Schema.OpenAPIV3Schema)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out[schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind}] = r
		}
	}
	return out, nil
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

// completeCustomResource returns an object of one of Stowage's kinds with its defaults, and false if the API
// server would refuse it. Objects of other kinds are returned as they are.
func (l *loader) completeCustomResource(where string, gvk schema.GroupVersionKind, data []byte) ([]byte, bool) {
	resources, err := customResources()
	if err != nil {
		l.fail("%s: %w", where, err)
		return nil, false
	}
	r := resources[gvk]
	if r == nil {
		return data, true
	}
	var object map[string]any
	if err := utiljson.Unmarshal(data, &object); err != nil {
		l.fail("%s: %w", where, err)
		return nil, false
	}
	// A status is what a controller writes, perhaps a predecessor's, with fields of its own.
	delete(object, "status")
	errs := r.complete(l.ctx, object)
	for _, err := range errs {
		l.fail("%s: %w", where, err)
	}
	var d versprei.PodDistributor
	if len(errs) > 0 && gvk == versprei.GroupVersion.WithKind("PodDistributor") && runtime.DefaultUnstructuredConverter.FromUnstructured(object, &d) == nil {
		if p := policy.Compile(&d); p.Err != nil { // it names what a rule cannot, such as the pools that share a name
			l.fail("%s: %w", where, p.Err)
		}
	}
	if len(errs) == 0 {
		data, err = json.Marshal(object)
		if err != nil {
			l.fail("%s: %w", where, err)
		}
	}
	return data, len(errs) == 0 && err == nil
}
