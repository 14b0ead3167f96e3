// Command karpenter runs Karpenter with its kwok provider for tests: nodes that it makes are objects, which kwok
// plays. A ConfigMap can take away capacity of chosen offerings, so that launches fail for lack of it.
//
// Settings are Karpenter's environment variables, such as KUBECONFIG and FEATURE_GATES.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/utils/disruption"
	"sigs.k8s.io/yaml"
)

// clockDivisor is the variable that shortens Karpenter's waits: 15 s before it validates a consolidation.
const clockDivisor = "CLOCK_DIVISOR"

func main() {
	var err error
	switch command := append(os.Args[1:], "")[0]; command {
	case "":
		err = run()
	case "crds":
		err = printCRDs()
	case "eviction-cost":
		printEvictionCosts(os.Args[2:])
	default:
		err = fmt.Errorf("there is no command %q; it is crds, eviction-cost, or none to run Karpenter", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, op := operator.NewOperator()
	if text := os.Getenv(clockDivisor); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%s is %q; it must be a whole number from 1", clockDivisor, text)
		}
		op.Clock = fastClock{divisor: time.Duration(n)}
	}
	instanceTypes, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		return fmt.Errorf("instance types: %w", err)
	}
	provider := newProvider(ctx, op.GetClient(), op.InstanceTypeStore, instanceTypes)
	decorated := overlay.Decorate(provider, op.GetClient(), op.InstanceTypeStore)
	repairs, err := health.NewRepairPolicyMatcher(ctx, decorated)
	if err != nil {
		return fmt.Errorf("repair policies: %w", err)
	}
	cluster := state.NewCluster(op.Clock, op.GetClient(), decorated, state.WithRepairPolicyMatcher(repairs))
	log.FromContext(ctx).Info("starting", "instanceTypes", len(instanceTypes))
	op.WithControllers(ctx, controllers.NewControllers(ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder,
		decorated, provider, cluster, op.InstanceTypeStore, op.PredictionStore)...).Start(ctx)
	return nil
}

// fastClock is the real time, with waits that are shorter by a divisor. Karpenter compares the time itself with
// that of the API server, so the time stays real.
type fastClock struct {
	clock.RealClock
	divisor time.Duration
}

// After implements clock.Clock.
func (c fastClock) After(d time.Duration) <-chan time.Time { return c.RealClock.After(d / c.divisor) }

// printCRDs prints the CustomResourceDefinitions of Karpenter and of its kwok provider.
func printCRDs() error {
	for _, crd := range append(apis.CRDs, kwokapis.CRDs...) {
		text, err := yaml.Marshal(crd)
		if err != nil {
			return err
		}
		fmt.Printf("---\n%s", text)
	}
	return nil
}

// printEvictionCosts prints what Karpenter takes pods with the given deletion costs for, a line each. With other feature gates
// than the default ones, Karpenter does not read these costs.
func printEvictionCosts(costs []string) {
	ctx := options.ToContext(context.Background(), &options.Options{FeatureGates: options.DefaultFeatureGates()})
	for _, cost := range costs {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.PodDeletionCost: cost}}}
		fmt.Println(disruption.EvictionCost(ctx, pod))
	}
}
