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
	if object, ok := root.(map[string]any); ok {
		for _, k := range slices.Sorted(maps.Keys(object)) {
			out = append(out, badIn(field.NewPath(k), k, object[k])...)
		}
	}
	return out
}

// badIn is [badValues] of the value of a field, and of what is in it.
func badIn(path *field.Path, name string, v any) (out []string) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out = append(out, badEntry(path, name, k, v[k])...)
		}
	case []any:
		for i := range v {
			out = append(out, badIn(path.Index(i), "", v[i])...)
		}
	}
	return out
}

// badEntry is [badValues] of an entry of a field that is a map or an object.
func badEntry(path *field.Path, name, key string, v any) []string {
	if slices.Contains(textMaps, name) {
		switch v.(type) {
		case bool, json.Number:
			return []string{fmt.Sprintf("%s is %v, and a text is expected; write it in quotes (YAML takes Off, yes and 1 for other values than texts)", path.Key(key), v)}
		}
		return nil // its key may be called as a quantity is
	}
	switch {
	case slices.Contains(quantityMaps, name):
		return badQuantity(path.Key(key), v)
	case slices.Contains(quantityFields, key):
		return badQuantity(path.Child(key), v)
	}
	return badIn(path.Child(key), key, v)
}

// badQuantity says what is wrong with a quantity. If it is no text and no number, the decoder says that.
func badQuantity(path *field.Path, v any) []string {
	switch v.(type) {
	case string, json.Number:
		if _, err := podpatch.Quantity(fmt.Sprint(v)).Parse(); err != nil {
			return []string{fmt.Sprintf("%s: %v; write it like 500m, 2 or 1Gi", path, err)}
		}
	}
	return nil
}

// quantityFields are the fields of those kinds that are a quantity.
var quantityFields = []string{"sizeLimit", "divisor"}

// quantityMaps are the fields of those kinds whose values are quantities.
var quantityMaps = []string{
	"limits", "requests", "overhead", "podFixed", "hard", "capacity", "allocatable",
	"default", "defaultRequest", "max", "min", "maxLimitRequestRatio",
}
