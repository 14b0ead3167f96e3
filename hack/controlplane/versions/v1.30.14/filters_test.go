package crds

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

var update = flag.Bool("update", false, "Write filters.txt anew")

// noFilters are the plugins of the default profile that refuse no node. SchedulingGates keeps pods from being scheduled at all. All others are Filter
// plugins: to ask them would take minutes to compile.
var noFilters = []string{
	names.DefaultBinder, names.DefaultPreemption, names.ImageLocality, names.NodeResourcesBalancedAllocation, names.PrioritySort, names.SchedulingGates,
}

// filters.txt has the Filter plugins of the default profile. CinderLimits is not among them, nor is DynamicResources, whose feature is off by default.
// Stowage's table is compared with the file in hack/controlplane/kubernetes, because this module has other libraries than Stowage.
func TestFilters(t *testing.T) {
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range defaults.Profiles[0].Plugins.MultiPoint.Enabled {
		if !slices.Contains(noFilters, p.Name) {
			got = append(got, p.Name)
		}
	}
	slices.Sort(got)
	text := strings.Join(got, "\n") + "\n"
	if *update {
		if err := os.WriteFile("filters.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("filters.txt")
	if err != nil || string(want) != text {
		t.Errorf("filters.txt is not what the default profile has; run this test with -update (%v):\n%s", err, text)
	}
}
