package status

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/nodefit"
	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/placement"
	"github.com/stowage-dev/stowage/internal/spread/poolroom"
	"github.com/stowage-dev/stowage/internal/spread/seats"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// audit is the pods of an owner, as they were when it was looked at.
type audit struct {
	at    time.Time
	shown [2]int64 // the replica counts that the cache showed
	// nodes are how many pods run on each node, and waiting have none.
	nodes   map[string]int32
	waiting int32
	// example is what decides in which pools one of the pods can run. Unsuitable is why such pods cannot, by a generation of a policy.
	example    *corev1.Pod
	unsuitable map[generation][]string
}

// generation is one version of a policy.
type generation struct {
	uid    types.UID
	number int64
}

// unsuitableFor returns for each cell of a policy why the pods of an owner cannot run there, or "".
func (r *policyRun) unsuitableFor(ctx context.Context, t *tally, a *audit) ([]string, error) {
	if a.example == nil || t.compiled.Preferred {
		return nil, nil
	}
	key := generation{t.of.UID, t.of.Generation}
	if known, ok := a.unsuitable[key]; ok {
		return known, nil
	}
	strategy, of := t.compiled.Strategy, t.compiled.Cells()
	why, some := make([]string, of.Len()), false
	for i := range why {
		at := of.At(i)
		pod := placement.InCell(a.example, strategy, at, t.compiled.TolerationsOf(at.Pool))
		answer, err := r.Room.Judge(ctx, poolroom.Question{Set: strategy.NodesOf(at), Pod: pod, Proven: a.ranIn(strategy, at, func(node string) map[string]string { return r.World.NodeLabels(ctx, node) })})
		if err != nil {
			return nil, err
		}
		if answer.Verdict == nodefit.Never {
			why[i], some = answer.Why, true
		}
	}
	if !some {
		why = nil
	}
	a.unsuitable[key] = why
	return why, nil
}

// ranIn says whether the pods run in a cell. Revisions are not told apart.
func (a *audit) ranIn(s *sequence.Strategy, at sequence.Cell, labelsOf func(node string) map[string]string) nodefit.Evidence {
	for node := range a.nodes {
		if labels := labelsOf(node); s.HasNode(at.Pool, labels) && s.DomainOfNode(labels) == at.Domain {
			return nodefit.RanAlike
		}
	}
	return nodefit.NoEvidence
}

// auditFor counts the pods of an owner that a policy in Audit would divide, as they were when somebody last looked.
func (r *policyRun) auditFor(ctx context.Context, t *tally, w *world.Workload, chain world.Chain, top world.Object) error {
	a := r.audits[seats.OwnerOf(w).Key()]
	if a == nil || a.shown != [2]int64{w.Replicas, w.Current} || r.Clock.Since(a.at) > auditAgain {
		r.due[seats.OwnerOf(w).Key()] = w
	}
	if a == nil || t.compiled.Written == nil {
		t.unseen[top] = true
		return nil
	}
	why, err := r.unsuitableFor(ctx, t, a)
	if err != nil {
		t.unseen[top] = true
		return err
	}
	t.audited[top] = true
	t.noteUnsuitable(top, why)
	s := r.Find.Forecast(t.compiled, w.Namespace, chain, why)
	if s.Nowhere() {
		return nil // the policy would not divide it
	}
	domains := s.Domains()
	have, in := make([]int32, s.Len()), make([][]int32, s.Len()) // by pool, and by pool and domain
	sum := &t.audit
	sum.Waiting += a.waiting
	pods := a.waiting
	for node, n := range a.nodes {
		pods += n
		labels := r.World.NodeLabels(ctx, node)
		i := s.PoolOfNode(labels)
		if i < 0 {
			sum.Outside += n
			continue
		}
		have[i] += n
		if domains != nil {
			if in[i] == nil {
				in[i] = make([]int32, domains.Len())
			}
			in[i][s.DomainOfNode(labels)] += n
		}
	}
	sum.Pods += pods
	for i := range have {
		should := int32(s.Target(i, int64(pods)))
		elsewhere := -max(0, have[i]-should) // those are counted for their pool
		for k, n := range in[i] {
			elsewhere += max(0, n-int32(domains.Given(i, k, int64(should))))
		}
		elsewhere = max(0, elsewhere) // it has no domains
		sum.InPlace += min(have[i], should) - elsewhere
		sum.InOtherDomain += elsewhere
		sum.InOtherPool += max(0, have[i]-should)
		pool := t.pools[s.Pool(i).Name]
		pool.Current += have[i]
		pool.Desired += should
		t.shares[pool.Name] += s.Share(i, int64(pods))
	}
	if at := metav1.NewTime(a.at.Truncate(time.Minute)); sum.Oldest == nil || at.Before(sum.Oldest) {
		sum.Oldest = &at
	}
	return nil
}

// nextDue takes the workload to look at next: the one that was looked at longest ago, or never.
func (r *policyRun) nextDue() *world.Workload {
	var next *world.Workload
	var at time.Time
	for key, w := range r.due {
		seen := r.looked[key]
		if next == nil || seen.Before(at) {
			next, at = w, seen
		}
	}
	if next != nil {
		key := seats.OwnerOf(next).Key()
		delete(r.due, key)
		r.looked[key] = r.Clock.Now() // also if that fails
	}
	return next
}

// audit looks at one workload of a policy in Audit that is due. Its pods have no seat, so no watch shows them.
func (r *policyRun) audit(ctx context.Context) {
	w := r.nextDue()
	if w == nil {
		return
	}
	if err := r.auditWorkload(ctx, w); err != nil {
		r.Log.Error(err, "the pods of a workload were not listed for a policy in Audit", (world.Object{Namespace: w.Namespace, Ref: w.Ref}).LogKeys()...)
	}
	if len(r.due) == 0 {
		r.changed()
	}
}

func (r *policyRun) auditWorkload(ctx context.Context, w *world.Workload) error {
	scale, err := worldapi.ReadScale(ctx, r.Uncached, w.Namespace, w.Ref)
	if err != nil || scale == nil || scale.Selector == "" {
		return err
	}
	selector, err := labels.Parse(scale.Selector)
	if err != nil {
		return err
	}
	a := &audit{at: r.Clock.Now(), shown: [2]int64{w.Replicas, w.Current}, nodes: map[string]int32{}, unsuitable: map[generation][]string{}}
	err = worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, func(pod *corev1.Pod) error {
		if c := metav1.GetControllerOfNoCopy(pod); c == nil || c.UID != w.UID || !podstatus.Active(pod) {
			return nil
		}
		if a.example == nil {
			a.example = nodefit.Shape(pod)
		}
		if pod.Spec.NodeName == "" {
			a.waiting++
		} else {
			a.nodes[strings.Clone(pod.Spec.NodeName)]++
		}
		return nil
	}, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return err
	}
	r.audits[seats.OwnerOf(w).Key()] = a
	return nil
}
