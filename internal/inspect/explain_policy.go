package inspect

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versprei "github.com/stowage-dev/stowage/api/versprei/v1beta1"
	"github.com/stowage-dev/stowage/internal/world"
)

// explainDistributor explains the pods of a PodDistributor's target.
func (i *Inspector) explainDistributor(ctx context.Context, namespace, name string) (*WorkloadExplanation, error) {
	d := &versprei.PodDistributor{}
	if err := i.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, d); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("PodDistributor %s, in namespace %s: %w", name, namespace, ErrNotFound)
	} else if err != nil {
		return nil, forbidden("PodDistributor "+name, err)
	}
	target := world.TargetOf(d)
	e, err := i.explainPods(ctx, namespace, target.Kind, target.Name)
	if !errors.Is(err, ErrNotFound) {
		return e, err
	}
	report, err := i.Status(ctx, namespace)
	if err != nil {
		return nil, err
	}
	report.Only([]string{"PodDistributor/" + name})
	return &WorkloadExplanation{
		Namespace: namespace, Kind: "PodDistributor", Name: name, Problems: report.Problems, Groups: []Group{},
		Facts: []string{fmt.Sprintf("It divides the pods of %s %s, which was not found.", target.Kind, target.Name)},
	}, nil
}

// explainPolicy says what a policy divides.
func (i *Inspector) explainPolicy(ctx context.Context, namespace, kind, name string) (*WorkloadExplanation, error) {
	report, err := i.Status(ctx, namespace)
	if err != nil {
		return nil, err
	}
	report.Only([]string{kind + "/" + name})
	if len(report.Policies) == 0 {
		return nil, fmt.Errorf("%s %s, in namespace %s: %w", kind, name, namespace, ErrNotFound)
	}
	p := &report.Policies[0]
	e := &WorkloadExplanation{Namespace: p.Namespace, Kind: p.Kind, Name: p.Name, Problems: report.Problems, Groups: []Group{}}
	e.Facts = append(e.Facts, fmt.Sprintf("Its mode is %s, and it divides %d workload(s) with %d pod(s).", p.Mode, p.Workloads, p.Pods))
	for _, pool := range p.Pools {
		e.Facts = append(e.Facts, fmt.Sprintf("Pool %s has %d of their pods, and should have %d.", pool.Name, pool.Current, pool.Desired))
	}
	if p.Note != "" {
		e.Facts = append(e.Facts, "To know: "+p.Note+".")
	}
	return e, nil
}
