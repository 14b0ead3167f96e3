package shortage

import (
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// jobMoves reports whether pods of a Job may be moved.
func (r *run) jobMoves(ctx context.Context, namespace string, ref world.Ref, m *memory) (bool, error) {
	moves, known := m.jobs[ref.UID]
	if known {
		return moves, nil
	}
	job := &batchv1.Job{}
	if err := r.Uncached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, job); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if job.UID != ref.UID {
		return false, nil
	}
	m.jobs[ref.UID] = ignoresEvictions(job)
	return m.jobs[ref.UID], nil
}

// ignoresEvictions reports whether a Job does not count evicted pods as failed. A Job counts each pod that is deleted before
// it has succeeded against its backoffLimit, unless its podFailurePolicy ignores the condition DisruptionTarget. The
// eviction API sets that condition (KEP-3329). The Job controller delays the successors all the same, by up to 10 minutes
// (newBackoffRecord in pkg/controller/job of Kubernetes 1.37). The pods of an Indexed Job stay in any case, because their
// index determines their seat.
func ignoresEvictions(job *batchv1.Job) bool {
	if job.Spec.PodFailurePolicy == nil || ptr.Deref(job.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion {
		return false
	}
	for _, rule := range job.Spec.PodFailurePolicy.Rules { // the first rule that matches decides
		if slices.ContainsFunc(rule.OnPodConditions, func(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return p.Type == corev1.DisruptionTarget && p.Status == corev1.ConditionTrue
		}) {
			return rule.Action == batchv1.PodFailurePolicyActionIgnore
		}
	}
	return false
}
