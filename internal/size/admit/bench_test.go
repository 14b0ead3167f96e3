package admit

import (
	"testing"

	"github.com/stowage-dev/stowage/internal/admission/feature"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/test/testkit"
)

// BenchmarkDecide measures the decision about a DaemonSet's pod that gets a share of its node, with the patch.
func BenchmarkDecide(b *testing.B) {
	f := &Feature{World: static().ready()}
	pod := testkit.Pod("agent-x").Container("c", "cpu=100m", "").View(b)
	pod.Spec.NodeName = "n4"
	pod.Metadata.OwnerReferences = podpatch.List[podpatch.Owner]{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "uid", Controller: true}}
	b.ReportAllocs()
	for b.Loop() {
		d, err := f.Decide(b.Context(), feature.Request{Namespace: "default", Pod: pod})
		if err != nil || d.Pod == nil {
			b.Fatal(d, err)
		}
		if _, err := podpatch.Diff(pod, d.Pod).JSON(); err != nil {
			b.Fatal(err)
		}
	}
}
