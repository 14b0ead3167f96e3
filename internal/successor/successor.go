// Package successor says whether somebody creates another pod in the place of one that is evicted. Each eviction of Stowage asks it.
package successor

import (
	"context"
	"fmt"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/podstatus"
	"github.com/stowage-dev/stowage/internal/world"
)

// Kind is what an owner creates in the place of a pod that is evicted.
type Kind int

// The kinds.
const (
	None    Kind = iota
	Indexed      // of the same index of a Job
	Another
)

// mostJobs is how many Jobs are remembered.
const mostJobs = 2000

// Finder finds out about owners. Its methods may be called at once.
type Finder struct {
	client client.Reader

	mu   sync.Mutex
	jobs map[types.UID]Kind
}

// New returns a finder. The client is not a cached one.
func New(c client.Reader) *Finder { return &Finder{client: c, jobs: map[types.UID]Kind{}} }

// Known is [Finder.Of] without a request. It returns false of a Job that was not read yet.
func (f *Finder) Known(owner world.Ref) (kind Kind, known bool) {
	switch {
	case owner.Recreates():
		return Another, true
	case !owner.IsJob():
		return None, true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	kind, known = f.jobs[owner.UID]
	return kind, known
}

// Of returns what an owner creates in the place of a pod that is evicted. Of a Job that does not ignore evictions there is none: the Job
// counts the pod as one that failed. Neither that of a Job nor that there is none of a UID changes, so each is read once.
func (f *Finder) Of(ctx context.Context, namespace string, owner world.Ref) (Kind, error) {
	kind, known := f.Known(owner)
	if known {
		return kind, nil
	}
	job := &batchv1.Job{}
	err := f.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, job)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return None, err
	case err != nil || job.UID != owner.UID || !world.IgnoresEvictions(job):
	case ptr.Deref(job.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion:
		kind = Indexed
	default:
		kind = Another
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.jobs) >= mostJobs {
		clear(f.jobs)
	}
	f.jobs[owner.UID] = kind
	return kind, nil
}

// Lost returns why a pod that is evicted would be lost, or "".
func (f *Finder) Lost(ctx context.Context, pod *corev1.Pod) (why string, err error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return "it has no controller", nil
	}
	if podstatus.Grouped(pod) {
		return "it belongs to a group, and would go alone", nil
	}
	ref := world.RefOf(owner)
	next, err := f.Of(ctx, pod.Namespace, ref)
	switch {
	case err != nil:
		return "", err
	case next == None && ref.IsJob():
		return fmt.Sprintf("Job %s would count it as failed: its podFailurePolicy does not ignore evictions", ref.Name), nil
	case next == None:
		return fmt.Sprintf("%s %s may create no other pod in its place", ref.Kind, ref.Name), nil
	case !ref.IsJob() && pod.Spec.RestartPolicy != "" && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways:
		return "its work is done once: its restartPolicy is " + string(pod.Spec.RestartPolicy), nil
	}
	return "", nil
}
