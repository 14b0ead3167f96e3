package vm

import (
	"strings"
	"testing"

	"github.com/stowage-dev/stowage/internal/vm/peerpod"
)

// Only a daemon in a namespace that an administrator named can decide where VMs are.
func TestWhenReadyNeedsANamespace(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		fails  bool
	}{
		"without a namespace":        {func(*Options) {}, true},
		"with one":                   {func(o *Options) { o.Capacity.DaemonNamespace = "confidential-containers-system" }, false},
		"with one that cannot exist": {func(o *Options) { o.Capacity.DaemonNamespace = "A b" }, true},
		"without peer pods":          {func(o *Options) { o.Feature.Enabled = false }, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			o.Capacity.Mode = peerpod.CapacityWhenReady
			tc.change(&o)
			if err := o.Validate(); (err != nil && strings.Contains(err.Error(), "--peerpods-daemon-namespace")) != tc.fails {
				t.Errorf("%v", err)
			}
		})
	}
}
