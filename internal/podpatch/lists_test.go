package podpatch

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// repeated is a pod with an item n times at a place, which is written as %s.
func repeated(place, item string, n int) []byte {
	return fmt.Appendf(nil, place, strings.TrimSuffix(strings.Repeat(item+",", n), ","))
}

// entries is a map's JSON with n different keys.
func entries(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%x":""`, i)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// Each list and each map of a pod ends at its bound while it is decoded, so that memory follows the bytes that were sent. A pod has
// 32 bytes of memory for each byte of JSON at most, garbage included, and some 100 for each empty item up to the bounds.
func TestDecodeIsBounded(t *testing.T) {
	const size = 7 << 20
	const perByte = 32
	nested := fmt.Sprintf(`{"resources":{"limits":%s,"requests":%[1]s,"claims":[%s]}}`, entries(mostResources), strings.TrimSuffix(strings.Repeat("{},", mostResources), ","))
	required := `{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[%s]}}}}}`
	cases := map[string]struct {
		place, item string
		n           int // as many as fill the body, if zero
		decodes     bool
	}{
		"owners":                            {`{"metadata":{"ownerReferences":[%s]}}`, `{}`, 0, false},
		"containers":                        {`{"spec":{"containers":[%s]}}`, `{}`, 0, false},
		"init containers":                   {`{"spec":{"initContainers":[%s]}}`, `{}`, 0, false},
		"tolerations":                       {`{"spec":{"tolerations":[%s]}}`, `{}`, 0, false},
		"constraints":                       {`{"spec":{"topologySpreadConstraints":[%s]}}`, `{}`, 0, false},
		"volumes":                           {`{"spec":{"volumes":[%s]}}`, `{}`, 0, false},
		"gates":                             {`{"spec":{"schedulingGates":[%s]}}`, `{}`, 0, false},
		"terms":                             {required, `{}`, 0, false},
		"requirements of a term":            {strings.Replace(required, "[%s]", `[{"matchExpressions":[%s]}]`, 1), `{}`, 0, false},
		"fields of a term":                  {strings.Replace(required, "[%s]", `[{"matchFields":[%s]}]`, 1), `{}`, 0, false},
		"values of a requirement":           {strings.Replace(required, "[%s]", `[{"matchExpressions":[{"values":[%s]}]}]`, 1), `""`, 0, false},
		"preferences":                       {`{"spec":{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[%s]}}}}`, `{}`, 0, false},
		"claims of a container":             {`{"spec":{"containers":[{"resources":{"claims":[%s]}}]}}`, `{}`, 0, false},
		"claims of the pod":                 {`{"spec":{"resources":{"claims":[%s]}}}`, `{}`, 0, false},
		"containers with many resources":    {`{"spec":{"containers":[%s]}}`, nested, 0, false},
		"the most containers and resources": {`{"spec":{"containers":[%s]}}`, nested, mostItems, true},
		"the most terms":                    {required, `{"matchExpressions":[{}]}`, mostAffinity/4 - 2, true},
		"a list again and again":            {`{"spec":{%s}}`, `"tolerations":[` + strings.TrimSuffix(strings.Repeat("{},", 1000), ",") + `]`, 0, false},
		"a list after null":                 {`{%s}`, `"spec":{"tolerations":[` + strings.TrimSuffix(strings.Repeat("{},", mostItems-1), ",") + `]},"spec":null`, 0, false},
		"a list of the metadata after null": {`{%s}`, `"metadata":{"ownerReferences":[` + strings.TrimSuffix(strings.Repeat("{},", mostItems-1), ",") + `]},"metadata":null`, 0, false},
		"an affinity after null":            {`{"spec":{%s}}`, `"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[` + strings.TrimSuffix(strings.Repeat("{},", mostItems), ",") + `]}},"affinity":null`, 0, false},
		"a node affinity after null":        {`{"spec":{%s}}`, `"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[` + strings.TrimSuffix(strings.Repeat("{},", mostItems), ",") + `]},"nodeAffinity":null}`, 0, false},
		"resources after null":              {`{"spec":{%s}}`, `"resources":{"claims":[` + strings.TrimSuffix(strings.Repeat("{},", mostResources), ",") + `]},"resources":null`, 0, false},
		"an affinity to pods again":         {`{"spec":{%s}}`, `"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[` + strings.TrimSuffix(strings.Repeat("{},", 40), ",") + `]}}`, 0, false},
		"an affinity to pods after null":    {`{"spec":{%s}}`, `"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[` + strings.TrimSuffix(strings.Repeat("{},", 40), ",") + `]},"podAffinity":null},"affinity":null`, 0, false},
		"no affinity to pods, again":        {`{"spec":{%s}}`, `"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":null}}`, 0, true},
		"terms of an affinity to pods":      {`{"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[%s]}}}}`, `{}`, 0, true}, // none is decoded
		"the environment again":             {`{"spec":{"containers":[{%s}]}}`, `"env":[{"valueFrom":{"resourceFieldRef":{}}},` + strings.TrimSuffix(strings.Repeat("{},", mostItems-1), ",") + `]`, 0, false},
		"the most tolerations":              {`{"spec":{"tolerations":[%s]}}`, `{"key":"a-key-as-people-write-it"}`, mostItems, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.n == 0 {
				tc.n = size / (len(tc.item) + 1)
			}
			allocatesAtMost(t, repeated(tc.place, tc.item, tc.n), perByte, tc.decodes)
		})
	}
	for _, place := range []string{
		`{"metadata":{"labels":%s}}`, `{"metadata":{"annotations":%s}}`, `{"spec":{"nodeSelector":%s}}`, `{"spec":{"resources":{"limits":%s}}}`,
		`{"spec":{"containers":[{"resources":{"requests":%s}}]}}`,
	} {
		t.Run(place, func(t *testing.T) {
			allocatesAtMost(t, fmt.Appendf(nil, place, entries(size/10)), perByte, false)
			allocatesAtMost(t, fmt.Appendf(nil, place, entries(mostResources)), 200, true)
		})
	}
}

// An affinity has as many commas and brackets as its bound says, and not one more. An object that is no affinity has no bound here.
func TestBoundOfAffinity(t *testing.T) {
	affinity := func(n int) string { // n commas and brackets
		const before = 6
		return `{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"values":[` +
			strings.TrimSuffix(strings.Repeat(`"",`, n-before), ",") + `]}]}]}},"podAffinity":null}}}`
	}
	for n, decodes := range map[int]bool{mostAffinity - 1: true, mostAffinity: true, mostAffinity + 1: false} {
		text := affinity(n)
		inner := text[strings.Index(text, `{"requiredDuring`):strings.Index(text, `,"podAffinity`)]
		if have := strings.Count(inner, ",") + strings.Count(inner, "{") + strings.Count(inner, "["); have != n {
			t.Fatalf("the affinity has %d commas and brackets, want %d", have, n)
		}
		pod, err := Decode([]byte(text))
		if (err == nil) != decodes {
			t.Errorf("with %d commas and brackets: %v", n, err)
		}
		if err == nil && len(pod.RequiredTerms()) != 1 {
			t.Errorf("the terms are %+v", pod.RequiredTerms())
		}
	}
	for kinds, decodes := range map[int]bool{8: true, 9: false} {
		var b strings.Builder
		for i := range kinds {
			fmt.Fprintf(&b, `,"%d":1`, i)
		}
		if _, err := Decode([]byte(`{"spec":{"affinity":{` + b.String()[1:] + `}}}`)); (err == nil) != decodes {
			t.Errorf("with %d kinds of affinity: %v", kinds, err)
		}
	}
	for _, list := range []string{"[]", "[{},{}]"} {
		if pod, err := Decode([]byte(`{"spec":{"tolerations":` + list + `}}`)); err != nil || pod.Spec.Tolerations == nil {
			t.Errorf("%s is %v, %v", list, pod, err)
		}
	}
}

// An affinity to pods is decoded if a part of it is required and it has no more commas and brackets than its bound. A larger one is left out, because
// it is only warned of.
func TestBoundOfAffinityToPods(t *testing.T) {
	affinity := func(kind string, n int) string { // n commas and brackets
		const before = 6
		return `{"spec":{"affinity":{"podAffinity":{"` + kind + `":[{"topologyKey":"zone","labelSelector":{},"namespaces":[` +
			strings.TrimSuffix(strings.Repeat(`"",`, n-before), ",") + `]}]},"nodeAffinity":null}}}`
	}
	const required = "requiredDuringSchedulingIgnoredDuringExecution"
	for text, want := range map[string]int{
		affinity(required, mostTogether): 1, affinity(required, mostTogether+1): 0,
		affinity("preferredDuringSchedulingIgnoredDuringExecution", 20): 0,
		`{"spec":{"affinity":{"podAffinity":null}}}`:                    0,
	} {
		pod, err := Decode([]byte(text))
		if err != nil || pod.Spec.Affinity == nil || len(pod.Spec.Affinity.Together) != want {
			t.Errorf("%s: %+v, %v; want %d terms", text, pod, err, want)
			continue
		}
		if want > 0 && pod.Spec.Affinity.Together[0].TopologyKey != "zone" {
			t.Errorf("the term is %+v", pod.Spec.Affinity.Together[0])
		}
		if patch := Diff(pod, pod.Clone()); len(patch) > 0 {
			t.Errorf("a copy differs: %+v", patch)
		}
		changed := pod.Clone() // a patch leaves the affinity to pods as it is
		changed.AddPreference(corev1.PreferredSchedulingTerm{Weight: 1})
		if data, err := Diff(pod, changed).JSON(); err != nil || strings.Contains(string(data), "odAffinity") || strings.Contains(string(data), "ogether") || len(changed.Spec.Affinity.Together) != want {
			t.Errorf("the patch is %s, %v", data, err)
		}
	}
}

// allocatesAtMost decodes a pod.
func allocatesAtMost(t *testing.T, data []byte, perByte uint64, decodes bool) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Decode(data)
	runtime.ReadMemStats(&after)
	if (err == nil) != decodes || err != nil && !strings.Contains(err.Error(), "has over ") && !strings.Contains(err.Error(), "twice") {
		t.Errorf("decoding %d bytes: %v", len(data), err)
	}
	const few = 64 << 10 // of the decoder itself
	if got := after.TotalAlloc - before.TotalAlloc; got > few+perByte*uint64(len(data)) {
		t.Errorf("decoding %d bytes allocated %d, %.1f of each", len(data), got, float64(got)/float64(len(data)))
	}
}

// Each list and map that is decoded has a bound. What is below the affinity has one together.
func TestEachListHasABound(t *testing.T) {
	bounded := reflect.TypeFor[json.UnmarshalerFrom]()
	var look func(path string, of reflect.Type)
	look = func(path string, of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer:
			look(path, of.Elem())
		case reflect.Slice, reflect.Map:
			if !reflect.PointerTo(of).Implements(bounded) {
				t.Errorf("%s is a %s, whose length nothing bounds", path, of)
			}
			look(path+"[]", of.Elem())
		case reflect.Struct:
			if reflect.PointerTo(of).Implements(bounded) || path == "pod.Spec.Affinity" {
				return
			}
			for field := range of.Fields() {
				look(path+"."+field.Name, field.Type)
			}
		default:
		}
	}
	look("pod", reflect.TypeFor[Pod]())
	if !reflect.PointerTo(reflect.TypeFor[Affinity]()).Implements(bounded) {
		t.Error("nothing bounds the affinity")
	}
}

// Lists and maps are decoded as the API machinery does it: null is none, an empty one is empty, and the last of two entries wins.
func TestListsAndMaps(t *testing.T) {
	cases := map[string]struct {
		pod     string
		want    Pod
		problem string
	}{
		"null": {pod: `{"metadata":{"labels":null,"ownerReferences":null},"spec":{"containers":null,"affinity":null}}`},
		"an entry twice": {
			pod: `{"metadata":{"labels":{"a":"1","b":"2","a":"3"}}}`, want: Pod{Metadata: Metadata{Labels: Strings{"a": "3", "b": "2"}}},
		},
		"a list twice":         {pod: `{"spec":{"containers":[{"name":"a"}],"containers":[{"name":"c"}]}}`, problem: "/spec/containers is there twice"},
		"a map twice":          {pod: `{"metadata":{"labels":{},"labels":{}}}`, problem: "/metadata/labels is there twice"},
		"an affinity twice":    {pod: `{"spec":{"affinity":{"nodeAffinity":{}},"affinity":{"nodeAffinity":{}}}}`, problem: "/spec/affinity is there twice"},
		"an item that is null": {pod: `{"spec":{"tolerations":[{},null]}}`, problem: "has an item that is null"},
		"a term that is null":  {pod: `{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[null]}}}}}`, problem: "has an item that is null"},
		"null leaves what was before": {
			pod:  `{"metadata":{"name":"a"},"metadata":null,"spec":{"affinity":{"nodeAffinity":{}},"affinity":null,"priority":1,"priority":null},"spec":null}`,
			want: Pod{Metadata: Metadata{Name: "a"}, Spec: Spec{Affinity: &Affinity{NodeAffinity: &corev1.NodeAffinity{}}, Priority: ptr.To[int32](1)}},
		},
		"a large affinity of pods": {pod: `{"spec":{"affinity":{"podAffinity":{"a":[0` + strings.Repeat(",0", 2*mostAffinity) + `]},"nodeAffinity":null}}}`, want: Pod{Spec: Spec{Affinity: &Affinity{}}}},
		"a list for a map":         {pod: `{"metadata":{"labels":[]}}`, problem: "/metadata/labels"},
		"a map for a list":         {pod: `{"spec":{"containers":{}}}`, problem: "/spec/containers"},
		"a number for a text": {
			pod: `{"metadata":{"labels":{"a":1}}}`, problem: "/metadata/labels/a",
		},
		"null and numbers in maps": {
			pod:  `{"metadata":{"labels":{"a":null}},"spec":{"containers":[{"resources":{"limits":{"cpu":2,"memory":"1\u0047i","gpu":null}}}]}}`,
			want: Pod{Metadata: Metadata{Labels: Strings{"a": ""}}, Spec: Spec{Containers: List[Container]{{Resources: &Resources{Limits: ResourceList{"cpu": "2", "memory": "1Gi", "gpu": ""}}}}}},
		},
		"a list for a quantity":  {pod: `{"spec":{"containers":[{"resources":{"limits":{"cpu":[]}}}]}}`, problem: "/limits/cpu"},
		"a text for an affinity": {pod: `{"spec":{"affinity":"none"}}`, problem: "/spec/affinity"},
		"it ends within a list":  {pod: `{"spec":{"containers":[{}`, problem: "unexpected EOF"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Decode([]byte(tc.pod))
			if tc.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tc.problem) {
					t.Errorf("the error is %v, want one with %q", err, tc.problem)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(*got, tc.want) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
