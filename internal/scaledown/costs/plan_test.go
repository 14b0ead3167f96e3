package costs

import (
	"testing"

	"github.com/stowage-dev/stowage/internal/scaledown/layers"
	"github.com/stowage-dev/stowage/internal/world"
)

// The status tells of a workload whose next step leaves it more uneven than its pods allow.
func TestNextStep(t *testing.T) {
	key := layers.Key{Name: "zone", MaxSkew: 1}
	for _, tt := range []struct {
		name  string
		costs map[string][]int32 // of ready pods in each zone
		want  string
	}{
		{"layers", map[string][]int32{"a": {-1, -2, -3}, "b": {-1, -2, -3}}, ""},
		{"one zone is protected", map[string][]int32{"a": {7, 7, 7, 7}, "b": {-1, -2, -3}}, "ReplicaSet shop/web from 7 to 3 ready pods: a 3, b 0"},
		{"the zones cannot be even", map[string][]int32{"a": {-1, -2, -3, -4, -5, -6}, "b": {}}, ""},
		{"no pods", nil, ""},
	} {
		o := &owner{ownerKey: ownerKey{namespace: "shop"}, ref: world.Ref{Kind: "ReplicaSet", Name: "web"}}
		var placed []*pod
		values := map[*pod]string{}
		for zone, costs := range tt.costs {
			for _, cost := range costs {
				placed = append(placed, &pod{facts: facts{node: zone, ready: true, carried: carried{cost: cost}}})
				values[placed[len(placed)-1]] = zone
			}
		}
		if o.nextStep(placed, values, &key); o.uneven != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, o.uneven, tt.want)
		}
	}
}
