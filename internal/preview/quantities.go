package preview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/stowage-dev/stowage/internal/podpatch"
)

// textMaps are the fields of those kinds whose values are texts.
var textMaps = []string{"labels", "annotations", "nodeSelector", "matchLabels", "nodeLabel"}

// badValues finds quantities that do not parse, and values that must be texts: YAML takes Off, yes and 1 without quotes for others.
func badValues(data []byte) []string {
	var root any
	numbers := json.NewDecoder(bytes.NewReader(data))
	numbers.UseNumber()
	if numbers.Decode(&root) != nil {
		return nil
	}
	var out []string
	var walk func(path *field.Path, name string, v any)
	walk = func(path *field.Path, name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				child := path.Child(k)
				if slices.Contains(textMaps, name) {
					switch value := v[k].(type) {
					case bool, json.Number:
						out = append(out, fmt.Sprintf("%s is %v, and a text is expected; write it in quotes (YAML takes Off, yes and 1 for other values than texts)", path.Key(k), value))
						continue
					}
				}
				if isMap := slices.Contains(quantityMaps, name); isMap || slices.Contains(quantityFields, k) {
					if isMap {
						child = path.Key(k)
					}
					var q podpatch.Quantity
					switch value := v[k].(type) {
					case string:
						q = podpatch.Quantity(value)
					case json.Number:
						q = podpatch.Quantity(value)
					default:
						continue // the decoder says what is wrong with it
					}
					if _, err := q.Parse(); err != nil {
						out = append(out, fmt.Sprintf("%s: %v; write it like 500m, 2 or 1Gi", child, err))
					}
					continue
				}
				walk(child, k, v[k])
			}
		case []any:
			for i := range v {
				walk(path.Index(i), "", v[i])
			}
		}
	}
	if object, ok := root.(map[string]any); ok {
		for _, k := range slices.Sorted(maps.Keys(object)) {
			walk(field.NewPath(k), k, object[k])
		}
	}
	return out
}

// quantityFields are the fields of those kinds that are a quantity.
var quantityFields = []string{"sizeLimit", "divisor"}

// quantityMaps are the fields of those kinds whose values are quantities.
var quantityMaps = []string{
	"limits", "requests", "overhead", "podFixed", "hard", "capacity", "allocatable",
	"default", "defaultRequest", "max", "min", "maxLimitRequestRatio",
}
