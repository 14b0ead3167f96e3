package status

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/spread/seats"
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
}

// auditFor counts the pods of an owner that a policy in Audit would divide, as they were when somebody last looked.
func (r *policyRun) auditFor(ctx context.Context, t *tally, w *world.Workload, top world.Object) {
	a := r.audits[seats.OwnerOf(w).Key()]
	if a == nil || a.shown != [2]int64{w.Replicas, w.Current} || r.Clock.Since(a.at) > auditAgain {
		if !slices.ContainsFunc(r.due, func(d *world.Workload) bool { return d.UID == w.UID }) {
			r.due = append(r.due, w)
		}
	}
	s := t.compiled.Whole
	if a == nil || s == nil {
		t.unseen[top] = true
		return
	}
	t.audited[top] = true
	have := make([]int32, s.Len())
	sum := &t.audit
	sum.Waiting += a.waiting
	pods := a.waiting
	for node, n := range a.nodes {
		pods += n
		i := s.PoolOfNode(r.World.NodeLabels(ctx, node))
		if i < 0 {
			sum.Outside += n
			continue
		}
		have[i] += n
	}
	sum.Pods += pods
	for i := range have {
		should := int32(s.Target(i, int64(pods)))
		sum.InPlace += min(have[i], should)
		sum.InOtherPool += max(0, have[i]-should)
		pool := t.pools[s.Pool(i).Name]
		pool.Current += have[i]
		pool.Desired += should
	}
	if at := metav1.NewTime(a.at.Truncate(time.Minute)); sum.Oldest == nil || at.Before(sum.Oldest) {
		sum.Oldest = &at
	}
}

// audit looks at one workload of a policy in Audit that is due. Its pods have no seat, so no watch shows them.
func (r *policyRun) audit(ctx context.Context) {
	if len(r.due) == 0 {
		return
	}
	w := r.due[0]
	r.due = r.due[1:]
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
	a := &audit{at: r.Clock.Now(), shown: [2]int64{w.Replicas, w.Current}, nodes: map[string]int32{}}
	err = worldapi.Each(ctx, r.Uncached, &corev1.PodList{}, func(pod *corev1.Pod) error {
		if c := metav1.GetControllerOfNoCopy(pod); c == nil || c.UID != w.UID || !podstatus.Active(pod) {
			return nil
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
