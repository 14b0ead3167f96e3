package shortage

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
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
	// The pods of an Indexed Job stay in any case, because their index determines their seat.
	m.jobs[ref.UID] = world.IgnoresEvictions(job) && ptr.Deref(job.Spec.CompletionMode, batchv1.NonIndexedCompletion) != batchv1.IndexedCompletion
	return m.jobs[ref.UID], nil
}
