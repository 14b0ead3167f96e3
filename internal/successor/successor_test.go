package successor

import (
	"context"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/world"
)

// jobs are the Jobs of a namespace, by name, and a pod.
type jobs struct {
	client.Reader
	all  map[string]*batchv1.Job
	pod  *corev1.Pod
	read int // Jobs
}

func (j *jobs) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if pod, is := obj.(*corev1.Pod); is {
		j.pod.DeepCopyInto(pod)
		return nil
	}
	j.read++
	job := j.all[key.Name]
	if job == nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: "batch", Resource: "jobs"}, key.Name)
	}
	job.DeepCopyInto(obj.(*batchv1.Job))
	return nil
}

// A pod may be evicted only if its owner creates another one. Kinds are compared with their groups.
func TestLost(t *testing.T) {
	ignores := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:          batchv1.PodFailurePolicyActionIgnore,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}}}
	job := func(name string, policy *batchv1.PodFailurePolicy, mode batchv1.CompletionMode) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: batchv1.JobSpec{PodFailurePolicy: policy, CompletionMode: &mode}}
	}
	all := &jobs{all: map[string]*batchv1.Job{
		"counts": job("counts", nil, batchv1.NonIndexedCompletion), "ignores": job("ignores", ignores, batchv1.NonIndexedCompletion),
		"indexed": job("indexed", ignores, batchv1.IndexedCompletion),
	}}
	owners := func(_ context.Context, _ string, ref world.Ref) (*world.Workload, error) {
		if strings.HasPrefix(ref.Name, "hidden") {
			return nil, nil
		}
		return &world.Workload{Ref: ref, Deleting: strings.HasPrefix(ref.Name, "ends")}, nil
	}
	f := New(all, owners)
	for name, tc := range map[string]struct {
		version, kind, owner string
		restart              corev1.RestartPolicy
		change               func(*corev1.Pod)
		why                  string
	}{
		"a ReplicaSet's":                        {version: "apps/v1", kind: "ReplicaSet"},
		"a StatefulSet's":                       {version: "apps/v1", kind: "StatefulSet"},
		"a DaemonSet's":                         {version: "apps/v1", kind: "DaemonSet"},
		"a ReplicationController's":             {version: "v1", kind: "ReplicationController"},
		"a CloneSet's":                          {version: "apps.kruise.io/v1alpha1", kind: "CloneSet"},
		"Kruise's StatefulSet's":                {version: "apps.kruise.io/v1beta1", kind: "StatefulSet"},
		"a ReplicaSet's that is being deleted":  {version: "apps/v1", kind: "ReplicaSet", owner: "ends", why: "ReplicaSet ends is being deleted"},
		"a CloneSet's that is being deleted":    {version: "apps.kruise.io/v1alpha1", kind: "CloneSet", owner: "ends", why: "CloneSet ends is being deleted"},
		"a Job's that is being deleted":         {version: "batch/v1", kind: "Job", owner: "ends", why: "Job ends is being deleted"},
		"one whose owner is not known":          {version: "apps/v1", kind: "ReplicaSet", owner: "hidden"},
		"a Job's that ignores evictions":        {version: "batch/v1", kind: "Job", owner: "ignores", restart: corev1.RestartPolicyNever},
		"an Indexed Job's that ignores them":    {version: "batch/v1", kind: "Job", owner: "indexed", restart: corev1.RestartPolicyOnFailure},
		"a Job's that counts them":              {version: "batch/v1", kind: "Job", owner: "counts", restart: corev1.RestartPolicyNever, why: "podFailurePolicy"},
		"a Job's that is gone":                  {version: "batch/v1", kind: "Job", owner: "gone", why: "podFailurePolicy"},
		"a Workflow's":                          {version: "argoproj.io/v1alpha1", kind: "Workflow", restart: corev1.RestartPolicyNever, why: "Workflow o may create no other pod"},
		"a TaskRun's":                           {version: "tekton.dev/v1", kind: "TaskRun", why: "TaskRun o"},
		"a runner's":                            {version: "actions.github.com/v1alpha1", kind: "EphemeralRunner", why: "EphemeralRunner o"},
		"a RayCluster's":                        {version: "ray.io/v1", kind: "RayCluster", why: "RayCluster o"},
		"Volcano's Job's":                       {version: "batch.volcano.sh/v1alpha1", kind: "Job", owner: "ignores", why: "Job ignores may create no other pod"},
		"somebody else's ReplicaSet's":          {version: "example.org/v1", kind: "ReplicaSet", why: "ReplicaSet o"},
		"a Node's":                              {version: "v1", kind: "Node", why: "Node o"},
		"nobody's":                              {why: "without a controller"},
		"one that is done once":                 {version: "apps.kruise.io/v1alpha1", kind: "CloneSet", restart: corev1.RestartPolicyNever, why: "restartPolicy Never"},
		"one of a LeaderWorkerSet":              {version: "apps/v1", kind: "StatefulSet", change: labelled("leaderworkerset.sigs.k8s.io/name"), why: "group"},
		"one of a JobSet":                       {version: "batch/v1", kind: "Job", owner: "ignores", change: labelled("jobset.sigs.k8s.io/jobset-name"), why: "group"},
		"one of a scheduling group":             {version: "apps/v1", kind: "ReplicaSet", change: func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }, why: "group"},
		"one of an owner that is no controller": {version: "apps/v1", kind: "ReplicaSet", change: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, why: "without a controller"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.restart}}
		if tc.kind != "" {
			owner := tc.owner
			if owner == "" {
				owner = "o"
			}
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: tc.version, Kind: tc.kind, Name: owner, UID: types.UID(owner), Controller: new(true)}}
		}
		if tc.change != nil {
			tc.change(pod)
		}
		pod.UID, all.pod = "pod", pod
		why, err := f.Lost(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}}) // callers may know no more of it
		if err != nil || (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
			t.Errorf("%s: %q, %v; want %q", name, why, err, tc.why)
		}
	}
	before := all.read
	for _, name := range []string{"ignores", "gone"} {
		all.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: types.UID(name), Controller: new(true)}}}}
		if _, err := f.Lost(t.Context(), &corev1.Pod{}); err != nil || all.read != before {
			t.Errorf("Job %s was read again, %v", name, err)
		}
	}
	if why, err := f.Lost(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "former"}}); why != "" || err != nil {
		t.Errorf("a pod that is gone is lost: %s, %v", why, err)
	}
}

func labelled(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: "x"} }
}
