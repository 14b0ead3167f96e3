package policy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
	"github.com/stowage-dev/stowage/internal/world/manifests"
)

// What a policy adds to pods is what a seat and its pool write into them.
func TestAdds(t *testing.T) {
	d := distributor("d", "Deployment", "web", 0)
	spot := versprei.Pool{
		Name: "spot", NodeLabel: map[string]versprei.LabelValue{"type": "spot"}, Weight: 1, PriorityClassName: "low", TerminationGracePeriodSeconds: new(int64(5)),
		PodLabels: map[string]versprei.LabelValue{"tier": "cheap", "app": "x"}, PodAnnotations: map[string]versprei.AnnotationValue{"a": "b"}, Tolerations: []versprei.Toleration{{Key: "example.com/spot", Value: "yes"}},
	}
	spot.MaxReplicas = new(intstr.FromInt32(3))
	plain := d.DeepCopy()
	d.Spec.Distribution = append(d.Spec.Distribution, spot)
	preferred, expressions, across := plain.DeepCopy(), plain.DeepCopy(), plain.DeepCopy()
	preferred.Spec.Enforcement = versprei.EnforcementPreferred
	expressions.Spec.Distribution[0].MatchExpressions = []versprei.NodeRequirement{{Key: "gpu", Operator: corev1.NodeSelectorOpDoesNotExist}}
	across.Spec.Across = &versprei.Across{TopologyKey: corev1.LabelTopologyZone, Domains: []versprei.Domain{{Value: "x"}, {Value: "y"}}}
	const own, marks = "the labels stowage.dev/pool, stowage.dev/seat", "the annotations stowage.dev/claim, controller.kubernetes.io/pod-deletion-cost and mutated-by (PodDistributor d)"
	for name, tc := range map[string]struct {
		of   *versprei.PodDistributor
		want string
	}{
		"a selector":          {plain, "the node selector type=a, " + own + " and mutated-by, " + marks},
		"pools are preferred": {preferred, "the node affinity type=a, " + own + " and mutated-by, " + marks},
		"expressions":         {expressions, "the node affinity type=a,!gpu, " + own + " and mutated-by, " + marks},
		"domains":             {across, "the node selector type=a,topology.kubernetes.io/zone, " + own + ", stowage.dev/domain and mutated-by, " + marks},
		"all that pools give": {&d, "the node selector type=a or type=spot, the toleration example.com/spot=yes, the labels tier=cheap, stowage.dev/pool, stowage.dev/seat and mutated-by, the annotations a=b, stowage.dev/claim, controller.kubernetes.io/pod-deletion-cost and mutated-by, the PriorityClass low, a shorter grace period (PodDistributor d)"},
	} {
		t.Run(name, func(t *testing.T) {
			up := ref("Deployment", "web")
			rs := &world.Workload{Ref: ref("ReplicaSet", "web-1"), Namespace: "ns", Controller: &up, SelectorKeys: []string{"app"}}
			o := world.Objects{PodDistributors: []versprei.PodDistributor{*tc.of}, Workloads: []*world.Workload{{Ref: up, Namespace: "ns"}, rs}}
			p, err := NewFinder(manifests.New(o), Settings{}).Find(t.Context(), Pod{Namespace: "ns", Owner: rs.Ref})
			if err != nil || p == nil || p.Err != nil {
				t.Fatalf("%+v, %v", p, err)
			}
			if got := p.Adds().String(); got != tc.want {
				t.Errorf("it adds\n%s, want\n%s", got, tc.want)
			}
		})
	}
	if got := (&Policy{}).Adds(); got != nil {
		t.Errorf("an invalid policy adds %s", got)
	}
}
