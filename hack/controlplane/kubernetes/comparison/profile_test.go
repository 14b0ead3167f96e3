package comparison

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/stowage-dev/stowage/hack/controlplane/kubernetes/filters"
	"github.com/stowage-dev/stowage/internal/nodefit"
)

// The plugins of the scheduler that no default profile has, because their feature gates are off.
var offByDefault = []string{
	names.DeferredPodScheduling,      // InPlacePodVerticalScalingSchedulerPreemption
	names.GangScheduling,             // GenericWorkload
	names.PodGroupPodsCount,          // TopologyAwareWorkloadScheduling
	names.TopologyPlacementGenerator, // TopologyAwareWorkloadScheduling
}

// noFilters are the plugins of the default profile that refuse no node. SchedulingGates keeps pods from being scheduled at all.
var noFilters = []string{
	names.DefaultBinder, names.DefaultPreemption, names.ImageLocality, names.NodeResourcesBalancedAllocation, names.PrioritySort, names.SchedulingGates,
}

// The table has the Filter plugins of the default profiles of the oldest Kubernetes and of the newest, and no others.
func TestTableHasEachFilter(t *testing.T) {
	f, err := filters.New()
	if err != nil {
		t.Fatal(err)
	}
	newest := f.Plugins()
	// The test of that module writes down what the oldest version has.
	data, err := os.ReadFile("../../versions/v1.30.14/filters.txt")
	if err != nil {
		t.Fatal(err)
	}
	oldest := strings.Fields(string(data))
	if diff := cmp.Diff(sorted(newest, oldest), nodefit.Filters()); diff != "" {
		t.Errorf("the Filter plugins of Kubernetes and those of nodefit.Filters (-want +got):\n%s", diff)
	}
	var all []string
	for name := range plugins.NewInTreeRegistry() {
		all = append(all, name)
	}
	if diff := cmp.Diff(sorted(all), sorted(newest, offByDefault, noFilters)); diff != "" {
		t.Errorf("a plugin of the newest version is in no list here (-want +got):\n%s", diff)
	}
}

// sorted returns each name once.
func sorted(of ...[]string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(of...))))
}
