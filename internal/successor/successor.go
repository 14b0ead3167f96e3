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

// Of returns what an owner creates in the place of a pod that is evicted. Of a Job that does not ignore evictions there is none: the Job
// counts the pod as one that failed. What it says of a Job never changes, so each Job is read once.
func (f *Finder) Of(ctx context.Context, namespace string, owner world.Ref) (Kind, error) {
	if !owner.IsJob() {
		if owner.Recreates() {
			return Another, nil
		}
		return None, nil
	}
	f.mu.Lock()
	known, ok := f.jobs[owner.UID]
	f.mu.Unlock()
	if ok {
		return known, nil
	}
	job := &batchv1.Job{}
	if err := f.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, job); err != nil || job.UID != owner.UID {
		return None, client.IgnoreNotFound(err)
	}
	switch {
	case !world.IgnoresEvictions(job):
	case ptr.Deref(job.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion:
		known = Indexed
	default:
		known = Another
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.jobs) >= mostJobs {
		clear(f.jobs)
	}
	f.jobs[owner.UID] = known
	return known, nil
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
