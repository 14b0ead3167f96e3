package soak

import (
	"context"
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/test/suite"
)

// However many large policies a tenant has, and writes all the time, each pod of another namespace gets its seat by a policy of its own.
func TestManyPoliciesOfATenant(t *testing.T) {
	counts := []int{100}
	if *minutes > 0 { // it takes minutes to make them
		counts = append(counts, 1000)
	}
	for _, policies := range counts {
		t.Run(fmt.Sprint(policies), func(t *testing.T) {
			greedy, other := suite.NewTenant(t), suite.NewTenant(t)
			own := &stowage.SpreadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: other.Namespace, Name: "own"}, Spec: stowage.SpreadPolicySpec{
				Mode: stowage.PolicyEnforce, Selector: stowage.Selector{MatchLabels: map[string]versprei.LabelValue{"app": "web"}},
				Pools: []stowage.PolicyPool{
					{Name: "default", NodeSelector: map[string]versprei.LabelValue{"type": "default"}, Weight: 80},
					{Name: "spot", NodeSelector: map[string]versprei.LabelValue{"type": "spot"}, Weight: 20},
				},
			}}
			suite.Must(t, other.Create(t.Context(), own))
			other.Follows(t, map[string]string{"app": "web"}, own.UID, own.Generation)

			ctx, stop := context.WithCancel(t.Context())
			var writes sync.WaitGroup
			end := sync.OnceFunc(func() { stop(); writes.Wait() })
			defer end()
			writes.Go(func() { writePolicies(ctx, greedy, policies) })
			suite.EventuallyWithin(t, 8*suite.WaitTimeout, "the policies are there", func() (bool, error) {
				var list metav1.PartialObjectMetadataList
				list.SetGroupVersionKind(stowage.GroupVersion.WithKind("SpreadPolicyList"))
				err := greedy.List(t.Context(), &list, client.InNamespace(greedy.Namespace))
				return len(list.Items) == policies, err
			})

			d := other.Deployment("web", 0, nil)
			suite.Must(t, other.Create(t.Context(), d))
			without, created := 0, 0
			for _, replicas := range []int{20, 0, 40, 0, 60} {
				other.Scale(t, d, replicas)
				pods := other.Ready(t, "web", replicas)
				for i := range pods {
					if created++; !seated(&pods[i]) {
						without++
					}
				}
			}
			resident := 0.0
			for _, r := range suite.Cluster.Processes() {
				resident = max(resident, suite.MetricAt(t, r.MetricsURL, "process_resident_memory_bytes")/(1<<20))
			}
			t.Logf("%d policies of another namespace: %d of %d pods came without a seat; a process has %.0f MiB at most", policies, without, created, resident)
			if without > 0 {
				t.Errorf("%d of %d pods came without a seat", without, created)
			}
			end()
			suite.Must(t, greedy.DeleteAllOf(context.WithoutCancel(t.Context()), &stowage.SpreadPolicy{}, client.InNamespace(greedy.Namespace)))
		})
	}
}
