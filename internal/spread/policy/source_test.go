package policy

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// Specs of the worst shapes allocate 4 MiB at most, whatever their size, and small ones 1 MiB and 64 bytes for each of theirs: anyone on the pod network
// can send them.
func TestSpecIsBoundedBeforeItIsDecoded(t *testing.T) {
	kinds := map[string][2]string{"PodDistributor": {"versprei.versprei.io", "distribution"}, "SpreadPolicy": {"stowage.dev", "pools"}, "ClusterSpreadPolicy": {"stowage.dev", "pools"}}
	shapes := map[string]func(pools string, size int) string{
		"empty pools":         func(pools string, size int) string { return list(pools, "{}", size) },
		"pools with an error": func(pools string, size int) string { return list(pools, `{"maxReplicas":"x"}`, size) },
		"repeated lists": func(pools string, size int) string {
			return "{" + strings.TrimSuffix(strings.Repeat(`"`+pools+`":[{},{},{}],`, size/24), ",") + "}"
		},
		"tolerations": func(pools string, size int) string {
			return `{"` + pools + `":[` + list("tolerations", "{}", size) + "]}"
		},
		"expressions": func(pools string, size int) string {
			return `{"` + pools + `":[` + list("matchExpressions", `{"values":[""]}`, size) + "]}"
		},
		"lists within lists": func(pools string, size int) string {
			return `{"` + pools + `":` + strings.Repeat("[", size/2) + strings.Repeat("]", size/2) + "}"
		},
		"one long text": func(pools string, size int) string {
			return `{"` + pools + `":[{"name":"` + strings.Repeat("a", size) + `"}]}`
		},
		"text that is not JSON": func(pools string, size int) string { return list(pools, "{}", size) + "}" },
	}
	for name, of := range map[string]struct{ before, item, after string }{
		"many node labels":        {`{"POOLS":[{"LABELS":{`, `"k%d":"1"`, `}}]}`},
		"many bad node labels":    {`{"POOLS":[{"LABELS":{`, `"!%d":"!"`, `}}]}`},
		"many bad pod labels":     {`{"POOLS":[{"podLabels":{`, `"!%d":"!"`, `}}]}`},
		"many bad annotations":    {`{"POOLS":[{"podAnnotations":{`, `"!%d":""`, `}}]}`},
		"bad pods labels, pools":  {`{"POOLS":[`, `{"podLabels":{"!%d":"!"}}`, `]}`},
		"many bad labels":         {`{"selector":{"matchLabels":{`, `"!%d":"!"`, `}}}`},
		"many bad requirements":   {`{"selector":{"matchExpressions":[`, `{"x":%d}`, `]}}`},
		"many bad values":         {`{"selector":{"matchExpressions":[{"key":"a","operator":"In","values":[`, `"!%d"`, `]}]}}`},
		"many bad namespaces":     {`{"namespaceSelector":{"matchLabels":{`, `"!%d":"!"`, `}}}`},
		"many domains":            {`{"across":{"topologyKey":"a","domains":[`, `{"value":"%d"}`, `]}}`},
		"many kinds":              {`{"kinds":[`, `{"kind":"%d"}`, `]}`},
		"pools again, after null": {`{`, `"POOLS":[{},{},{},{},{},{},{},{}],"POOLS":null,"x%d":0`, `}`},
		"pools in other letters":  {`{`, `"POOLS":[{},{},{},{},{},{},{},{}],"Pools":null,"DisTribution":null,"x%d":0`, `}`},
	} {
		shapes[name] = func(pools string, size int) string {
			labels := map[string]string{"pools": "nodeSelector", "distribution": "nodeLabel"}[pools]
			names := strings.NewReplacer("POOLS", pools, "LABELS", labels)
			var b strings.Builder
			b.WriteString(names.Replace(of.before))
			item, size := names.Replace(of.item), min(size, 250<<10)
			for i := 0; b.Len() < size-len(of.after); i++ {
				if i > 0 {
					b.WriteString(",")
				}
				fmt.Fprintf(&b, item, i)
			}
			return b.String() + of.after
		}
	}
	for name, shape := range shapes {
		for kind, of := range kinds {
			for _, size := range []int{3 << 10, 10 << 10, 30 << 10, 60 << 10, 250 << 10, 6 << 20} {
				spec := []byte(shape(of[1], size))
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				compiled, known := CompileSpec(of[0], kind, spec)
				runtime.ReadMemStats(&after)
				if got, most := after.TotalAlloc-before.TotalAlloc, uint64(min(4<<20, 1<<20+64*size)); got > most {
					t.Errorf("%s of a %s in %d KiB allocate %d KiB", name, kind, size>>10, got>>10)
				}
				if known && compiled.Err == nil {
					t.Errorf("%s of a %s in %d KiB are valid", name, kind, size>>10)
				}
				if known && len(compiled.Err.Error()) > 64<<10 {
					t.Errorf("%s of a %s in %d KiB have an error of %d KiB", name, kind, size>>10, len(compiled.Err.Error())>>10)
				}
			}
		}
	}
}

// list is an object with a list of equal items that has about so many bytes.
func list(field, item string, size int) string {
	return fmt.Sprintf("{%q:[%s]}", field, strings.TrimSuffix(strings.Repeat(item+",", size/(len(item)+1)), ","))
}

// What the API server may store is decoded.
func TestLargestSpecIsDecoded(t *testing.T) {
	var pools []string
	for i := range sequence.MaxPools {
		pools = append(pools, fmt.Sprintf(`{"name":"pool-%d","weight":1,"nodeSelector":{"pool":"p%d"},"podAnnotations":{"example.com/a":%q}}`, i, i, strings.Repeat("a", 1<<10)))
	}
	if compiled, known := CompileSpec("stowage.dev", "SpreadPolicy", []byte(`{"pools":[`+strings.Join(pools, ",")+`]}`)); !known || compiled.Err != nil {
		t.Errorf("it is known %v, with the error %v", known, compiled.Err)
	}
	if compiled, _ := CompileSpec("stowage.dev", "SpreadPolicy", []byte(`{"pools":[`+strings.Join(append(pools, pools[0]), ",")+`]}`)); compiled.Err == nil {
		t.Error("there may be one pool more")
	}
}
