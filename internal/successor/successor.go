// Package successor says whether the owner of a pod creates another one after an eviction. Stowage asks before each eviction.
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

// Owners returns the object that a reference is to, or nil if it does not exist or may not be read.
type Owners func(ctx context.Context, namespace string, ref world.Ref) (*world.Workload, error)

// Finder finds out about owners. Its methods may be called concurrently.
type Finder struct {
	client client.Reader
	owners Owners

	mu   sync.Mutex
	jobs map[types.UID]Kind
}

// New returns a finder. The client is not a cached one; the owners may come from caches.
func New(c client.Reader, owners Owners) *Finder {
	return &Finder{client: c, owners: owners, jobs: map[types.UID]Kind{}}
}

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
// counts the pod as a failure. The answer for a Job's UID never changes, so the Job is read once, also if it is gone.
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

// Lost returns why no other pod would be created in the place of an evicted one, or "". It reads the pod, because callers may know only its name and
// UID.
func (f *Finder) Lost(ctx context.Context, pod *corev1.Pod) (why string, err error) {
	whole := &corev1.Pod{}
	if err := f.client.Get(ctx, client.ObjectKeyFromObject(pod), whole); err != nil || whole.UID != pod.UID {
		return "", client.IgnoreNotFound(err) // it is gone
	}
	if why := Never(whole); why != "" {
		return why, nil
	}
	ref := world.RefOf(metav1.GetControllerOfNoCopy(whole))
	switch owner, err := f.owners(ctx, whole.Namespace, ref); {
	case err != nil:
		return "", err
	case owner != nil && owner.Is(ref) && owner.Deleting:
		return fmt.Sprintf("%s %s is being deleted, and creates no other pods", ref.Kind, ref.Name), nil
	}
	next, err := f.Of(ctx, whole.Namespace, ref)
	if err != nil || next != None {
		return "", err
	}
	return fmt.Sprintf("Job %s would count it as a failure, because its podFailurePolicy does not ignore evictions", ref.Name), nil
}

// Never returns why nobody creates another pod in the place of this one, or "". Of a pod of a Job, the Job may still say so.
func Never(pod *corev1.Pod) (why string) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return "pods without a controller stay"
	}
	ref, restarts := world.RefOf(owner), pod.Spec.RestartPolicy
	switch {
	case podstatus.Grouped(pod):
		return "pods of a group stay"
	case ref.IsJob():
		return ""
	case !ref.Recreates():
		return fmt.Sprintf("%s %s may create no other pods in their place", ref.Kind, ref.Name)
	case restarts != "" && restarts != corev1.RestartPolicyAlways:
		return "pods with restartPolicy " + string(restarts) + " stay"
	}
	return ""
}
