package shortage

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/spread/ledger"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/spread/shortage/spill"
)

// mostRevisions is of how many older revisions a pod is read to judge a cell.
const mostRevisions = 2

// judgeByEvidence answers a question about a pod of the newest owner. What the nodes of a cell lack in which pods of the workload have had nodes may
// return: see [nodefit.Evidence].
func (r *run) judgeByEvidence(ctx context.Context, v *picture, at sequence.Cell, q poolroom.Question, stored *cellVerdict) (nodefit.Answer, error) {
	answer, err := r.Room.Judge(ctx, q)
	if err != nil {
		return answer, err
	}
	if answer.Verdict != nodefit.Never {
		stored.proven = nil
		return answer, nil
	}
	newest := v.members[0]
	q.Proven = r.evidence(v, at, newest.UID, stored.proven)
	if q.Proven != nodefit.RanAlike {
		alike, err := r.runsAlike(ctx, v, at, q.Pod)
		if err != nil {
			return answer, err
		}
		if alike {
			q.Proven = nodefit.RanAlike
		}
	}
	if q.Proven == nodefit.NoEvidence {
		return answer, nil
	}
	if answer, err = r.Room.Judge(ctx, q); err != nil || answer.Verdict == nodefit.Never {
		return answer, err
	}
	is := v.proven(at)
	if q.Proven == nodefit.RanAlike {
		is.Owner = newest.UID
	}
	if stored.proven == nil || stored.proven.Owner != is.Owner {
		stored.proven = is
	}
	return answer, nil
}

// proven is the entry about a cell in which pods have had nodes.
func (v *picture) proven(at sequence.Cell) *stowage.ProvenPool {
	pool := v.policy.AsWritten().Pool(at.Pool)
	return &stowage.ProvenPool{NodeLabel: pool.Labels, MatchExpressions: pool.Expressions, Domain: v.policy.DomainName(at.Domain), Since: v.second()}
}

// evidence returns what is known of pods of the workload that have had nodes in a cell, for a pod of an owner. Stored is what is recorded, or nil.
func (r *run) evidence(v *picture, at sequence.Cell, owner types.UID, stored *stowage.ProvenPool) nodefit.Evidence {
	cell := ledger.Cell{Pool: v.policy.PoolKey(at.Pool), Domain: v.policy.DomainName(at.Domain)}
	is := nodefit.NoEvidence
	if stored != nil {
		is = nodefit.Ran
	}
	for _, one := range v.members {
		switch had := r.Seats.Pods().Had(seats.OwnerOf(one.Workload).Key(), cell); {
		case one.UID == owner && (had || stored != nil && stored.Owner == owner):
			return nodefit.RanAlike
		case had:
			is = nodefit.Ran
		}
	}
	return is
}

// runsAlike reports whether a pod of another revision runs in a cell that is like one of the newest, which is asked about. One pod of each revision
// is read.
func (r *run) runsAlike(ctx context.Context, v *picture, at sequence.Cell, asked *corev1.Pod) (bool, error) {
	others := v.members[1:]
	for _, one := range others[:min(len(others), mostRevisions)] {
		i := slices.IndexFunc(one.spillPods, func(p spill.Pod) bool { return p.Node && p.Cell() == at })
		if i < 0 {
			continue
		}
		pod, err := r.readPod(ctx, types.NamespacedName{Namespace: one.Pods[i].Namespace, Name: one.Pods[i].Name})
		if err != nil {
			return false, err
		}
		if pod != nil && nodefit.Alike(question(v, at, pod, nodefit.Volumes{}).Pod, asked) {
			return true, nil
		}
	}
	return false, nil
}
