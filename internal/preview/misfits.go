package preview

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/nodeset"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// place is where the pods of a workload get seats.
type place struct {
	*Workload
	pool, domain string
}

// placeOf is the place of a pod; it has no pool if the pod has no seat.
func placeOf(a *Admitted) place {
	return place{a.Workload, a.Pod.Labels[stowage.PoolLabel], a.Pod.Labels[stowage.DomainLabel]}
}

// examples are the first pod of each workload in each place.
type examples struct {
	of   map[place]bool
	pods []Admitted
}

func (e *examples) add(a *Admitted) {
	if at := placeOf(a); !e.of[at] {
		e.of[at] = true
		e.pods = append(e.pods, *a)
	}
}

// misfits says for which pools none of the input's nodes could take the pods that get a seat there, by one pod of each workload in each
// place. Where the input has no nodes, nothing is said.
func (p *Preview) misfits(ctx context.Context, pods []Admitted) (texts []string, err error) {
	if len(p.in.Objects.Nodes) == 0 {
		return nil, nil
	}
	for i := range pods {
		a := &pods[i]
		in := placeOf(a)
		if in.pool == "" {
			continue
		}
		found, err := p.Policy(ctx, a.Workload)
		if err != nil {
			return nil, err
		}
		if found == nil || found.Layout == nil || found.Preferred {
			continue
		}
		pool, known := found.PoolNamed(in.pool)
		domain, named := found.Whole().DomainNamed(in.domain)
		if !known || !named {
			continue
		}
		at := sequence.Cell{Pool: pool, Domain: domain}
		if why := p.judge(a.Pod, found.NodesOf(at)); why != "" {
			texts = append(texts, fmt.Sprintf("%s: no node of pool %s in the input takes its pods: %s", a.Workload, spill.PlaceOf(found.Whole(), at), why))
		}
	}
	return texts, nil
}

// judge says why no node of a cell could take a pod that has a seat there, or "".
func (p *Preview) judge(pod *corev1.Pod, cell nodeset.Set) string {
	nodes := p.in.nodesWith(cell)
	answer := nodefit.Judge(pod, nodefit.Volumes{}, &nodes)
	if answer.Verdict != nodefit.Never {
		return ""
	}
	return answer.Why
}
