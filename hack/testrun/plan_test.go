package main

import (
	"slices"
	"strings"
	"testing"
)

// Each package with tests runs in one part alone, and all that needs a control plane begins before what needs none.
func TestArrange(t *testing.T) {
	all := []string{"x/stowage/hack/counts", "x/stowage/internal/size", "x/stowage/test/e2e", "x/stowage/test/situations", "x/stowage/test/karpenter", "x/stowage/test/permissions"}
	packages := func(s step) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(s.args), func(arg string) bool { return !strings.HasPrefix(arg, "x/") }), " ")
	}
	for only, want := range map[string]struct {
		packages string
		lanes    int
		last     string // of the first lane
	}{
		"":        {"x/stowage/test/e2e x/stowage/hack/counts x/stowage/internal/size", 2, "tests"},
		"unit":    {"x/stowage/hack/counts x/stowage/internal/size", 2, "tests"},
		"cluster": {"x/stowage/test/e2e", 1, "tests"},
		"more":    {"x/stowage/test/situations", 2, "permissions"},
	} {
		t.Run("only="+only, func(t *testing.T) {
			p := arrange(only, nil, all)
			if got := packages(p.lanes[0][0]); got != want.packages || len(p.lanes) != want.lanes {
				t.Errorf("%d lanes, and the first has %q; want %d and %q", len(p.lanes), got, want.lanes, want.packages)
			}
			if first := p.lanes[0]; first[len(first)-1].name != want.last {
				t.Errorf("the first lane ends with %q, want %q", first[len(first)-1].name, want.last)
			}
		})
	}
	if p := arrange("more", []string{"-short"}, all); len(p.lanes[0]) != 1 {
		t.Error("permissions are asked for where flags leave tests out")
	}
}
