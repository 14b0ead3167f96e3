package main

import (
	"slices"
	"strings"
	"testing"
)

// Each package with tests runs in one part alone, and what needs no control plane leaves the processors to what needs one.
func TestArrange(t *testing.T) {
	all := []string{"x/stowage/hack/counts", "x/stowage/internal/size", "x/stowage/test/e2e", "x/stowage/test/situations", "x/stowage/test/karpenter", "x/stowage/test/permissions"}
	packages := func(s step) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(s.args), func(arg string) bool { return !strings.HasPrefix(arg, "x/") }), " ")
	}
	for only, want := range map[string]struct {
		lanes []string // the packages of each
		last  string   // the last step of the first lane
	}{
		"":        {[]string{"x/stowage/test/e2e", "x/stowage/hack/counts x/stowage/internal/size"}, "suites"},
		"unit":    {[]string{"x/stowage/hack/counts x/stowage/internal/size"}, "kube-scheduler and the ReplicaSet controller"},
		"cluster": {[]string{"x/stowage/test/e2e"}, "suites"},
		"more":    {[]string{"x/stowage/test/situations", ""}, "permissions"},
	} {
		t.Run("only="+only, func(t *testing.T) {
			p := arrange(only, nil, all)
			if compiled := strings.Fields(packages(*p.compile)); !slices.Equal(slices.Sorted(slices.Values(compiled)), slices.Sorted(slices.Values(strings.Fields(strings.Join(want.lanes, " "))))) {
				t.Errorf("compiled are %q, and the lanes have %q", compiled, want.lanes)
			}
			var got []string
			for i, lane := range p.lanes {
				got = append(got, packages(lane[0]))
				if suites := lane[0].name == "suites"; lane[0].yields == suites {
					t.Errorf("lane %d yields: %v", i, lane[0].yields)
				}
			}
			if !slices.Equal(got, want.lanes) {
				t.Errorf("the lanes have %q, want %q", got, want.lanes)
			}
			if first := p.lanes[0]; first[len(first)-1].name != want.last {
				t.Errorf("the first lane ends with %q, want %q", first[len(first)-1].name, want.last)
			}
		})
	}
	if p := arrange("more", []string{"-short"}, all); len(p.lanes[0]) != 1 || p.compile != nil {
		t.Error("permissions are asked for where flags leave tests out, or something is compiled without the flags")
	}
}
