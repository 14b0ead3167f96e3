package podpatch

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
)

// The most that is decoded of a pod. The API server checks a pod only after admission, so anybody can send any number of items.
// An empty item takes 3 bytes of JSON and up to 80 of memory, so decoding ends at the first item beyond these.
const (
	// mostItems is how many items a list or a map of a pod has at most. Stowage looks at no pod with more owners, containers, tolerations
	// and terms of affinity together.
	mostItems = 2000
	// mostResources is how many requests, limits and claims a container has at most, of each. There may be mostItems containers.
	mostResources = 100
	// mostAffinity is how many commas and brackets a node affinity has at most. Each term, requirement and value takes one.
	mostAffinity = 4 * mostItems
	// mostTogether is how many commas and brackets an affinity to pods has that is decoded: some ten terms. A warning is all that is lost of a larger one.
	mostTogether = 100
)

// List is a list of at most mostItems items. Decoding one that is longer fails at once.
type List[T any] []T

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *List[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, mostItems, l)
}

// Strings is a map of at most mostItems entries. Decoding one that is larger fails at once.
type Strings map[string]string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (m *Strings) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeMap(dec, mostItems, (*map[string]string)(m), readText)
}

// readText reads a string, or null, which is none.
func readText(dec *jsontext.Decoder) (string, error) {
	switch kind := dec.PeekKind(); kind {
	case '"', 'n':
		token, err := dec.ReadToken()
		if kind == 'n' {
			return "", err
		}
		return token.String(), err
	case jsontext.KindInvalid:
		_, err := dec.ReadToken()
		return "", err
	default:
		return "", fmt.Errorf("%s is a %s and not a string", dec.StackPointer(), kind)
	}
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It fails at once beyond mostResources entries.
func (m *ResourceList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeMap(dec, mostResources, m, readQuantity)
}

// Claims is a list of at most mostResources claims. Decoding one that is longer fails at once.
type Claims []Claim

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *Claims) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, mostResources, l)
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It fails, before any term is decoded, beyond mostAffinity commas and brackets.
func (a *Affinity) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeItems(dec, 8, '{', a.NodeAffinity != nil || a.Together != nil, func() {}, func() error { // there are three kinds of affinity
		token, err := dec.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		if name != "nodeAffinity" && name != "podAffinity" {
			return dec.SkipValue()
		}
		value, err := dec.ReadValue()
		if err != nil || value.Kind() == 'n' {
			return err
		}
		if name == "podAffinity" {
			return a.decodeTogether(value, dec)
		}
		if a.NodeAffinity != nil {
			return fmt.Errorf("%s is there twice", dec.StackPointer())
		}
		if marks(value) > mostAffinity {
			return fmt.Errorf("%s has over %d terms, requirements and values", dec.StackPointer(), mostAffinity)
		}
		return json.Unmarshal(value, &a.NodeAffinity, dec.Options())
	})
}

// marks is how many commas and opening brackets JSON has, those within texts included.
func marks(value []byte) int {
	return bytes.Count(value, []byte{','}) + bytes.Count(value, []byte{'{'}) + bytes.Count(value, []byte{'['})
}

// required is in the JSON of an affinity to pods of which a part is required.
var required = []byte(`"requiredDuringSchedulingIgnoredDuringExecution"`)

// decodeTogether decodes an affinity to pods, if it is small and a part of it is required. It fails on a second one.
func (a *Affinity) decodeTogether(value jsontext.Value, dec *jsontext.Decoder) error {
	if !bytes.Contains(value, required) || marks(value) > mostTogether {
		return nil
	}
	if a.Together != nil {
		return fmt.Errorf("%s is there twice", dec.StackPointer())
	}
	var of struct {
		Required []corev1.PodAffinityTerm `json:"requiredDuringSchedulingIgnoredDuringExecution"`
	}
	err := json.Unmarshal(value, &of, dec.Options())
	a.Together = of.Required
	return err
}

// ofResources is in the JSON of what refers to a resource of a container.
var ofResources = []byte(`"resourceFieldRef"`)

// HasResources is whether a part of a pod refers to resources of a container.
type HasResources bool

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (h *HasResources) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	value, err := dec.ReadValue()
	*h = HasResources(bytes.Contains(value, ofResources))
	return err
}

// EnvOfResources are the entries of a container's environment that refer to resources of a container. Few pods have any, so the others are
// not decoded.
type EnvOfResources []EnvVar

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *EnvOfResources) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	value, err := dec.ReadValue()
	if err != nil || !bytes.Contains(value, ofResources) {
		return err
	}
	if *l != nil {
		return fmt.Errorf("%s is there twice", dec.StackPointer())
	}
	var all List[struct {
		Name      string `json:"name"`
		ValueFrom *struct {
			Ref *ResourceRef `json:"resourceFieldRef"`
		} `json:"valueFrom"`
	}]
	if err := json.Unmarshal(value, &all, dec.Options()); err != nil {
		return err
	}
	*l = EnvOfResources{}
	for i := range all {
		if from := all[i].ValueFrom; from != nil && from.Ref != nil {
			*l = append(*l, EnvVar{Index: i, Name: all[i].Name, Ref: *from.Ref})
		}
	}
	return nil
}

// decodeList decodes a list of at most so many items.
func decodeList[L ~[]T, T any](dec *jsontext.Decoder, most int, l *L) error {
	return decodeItems(dec, most, '[', *l != nil, func() { *l = L{} }, func() error {
		*l = append(*l, *new(T))
		return json.UnmarshalDecode(dec, &(*l)[len(*l)-1]) // where it is kept
	})
}

// decodeMap decodes an object of at most so many entries. Value reads one of them.
func decodeMap[M ~map[K]V, K, V ~string](dec *jsontext.Decoder, most int, m *M, value func(*jsontext.Decoder) (V, error)) error {
	return decodeItems(dec, most, '{', *m != nil, func() { *m = M{} }, func() error {
		key, err := dec.ReadToken()
		if err != nil {
			return err
		}
		name := K(key.String())
		(*m)[name], err = value(dec)
		return err
	})
}

// decodeItems decodes a list or an object, which begins with open, of at most so many items. One that comes again fails, because it
// would have as many items again; an API server writes none twice.
func decodeItems(dec *jsontext.Decoder, most int, open jsontext.Kind, again bool, begin func(), item func() error) error {
	if again {
		return fmt.Errorf("%s is there twice", dec.StackPointer())
	}
	switch first, err := dec.ReadToken(); {
	case err != nil:
		return err
	case first.Kind() == 'n':
		return nil
	case first.Kind() != open:
		return fmt.Errorf("%s is a %s", dec.StackPointer(), first.Kind())
	}
	begin()
	for n := 0; ; n++ {
		switch kind := dec.PeekKind(); {
		case kind == ']' || kind == '}':
			_, err := dec.ReadToken()
			return err
		case n == most:
			return fmt.Errorf("%s has over %d items", dec.StackPointer().Parent(), most)
		}
		if err := item(); err != nil {
			return err
		}
	}
}
