package preview

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/spread/policy"
)

// Schemas check objects of Stowage's own kinds as the API server does, by their CustomResourceDefinitions.
type Schemas interface {
	// Complete sets the defaults in an object, and returns what the API server would refuse about it. Known is false of an object of
	// another kind.
	Complete(ctx context.Context, gvk schema.GroupVersionKind, object map[string]any) (refused field.ErrorList, known bool, err error)
}

// completeCustomResource returns an object of one of Stowage's kinds with its defaults, and false if the API
// server would refuse it. Objects of other kinds are returned as they are.
func (l *loader) completeCustomResource(where string, gvk schema.GroupVersionKind, data []byte) ([]byte, bool) {
	if l.schemas == nil {
		return data, true
	}
	var object map[string]any
	if err := utiljson.Unmarshal(data, &object); err != nil {
		l.fail("%s: %w", where, err)
		return nil, false
	}
	// A status is what a controller writes, perhaps a predecessor's, with fields of its own.
	delete(object, "status")
	errs, known, err := l.schemas.Complete(l.ctx, gvk, object)
	if err != nil {
		l.fail("%s: %w", where, err)
	}
	if !known {
		return data, err == nil
	}
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
