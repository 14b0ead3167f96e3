package inspect

import (
	"context"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
	worldapi "github.com/stowage-dev/stowage/internal/world/api"
)

// What makes pods and has none. Only pods show that an object of a kind which is not listed whole makes some.

// asks returns how many pods a Job asks for that has not ended.
func asks(job *batchv1.Job) int64 {
	n := int64(ptr.Deref(job.Spec.Parallelism, 1))
	if job.Spec.Completions != nil {
		n = min(n, int64(*job.Spec.Completions)-int64(job.Status.Succeeded))
	}
	if job.DeletionTimestamp != nil || ptr.Deref(job.Spec.Suspend, false) {
		return 0
	}
	return n
}

// addPodless has Deployments without a ReplicaSet, and Jobs without a pod, be seen as what makes the pods that they ask for.
func (s *snapshot) addPodless() {
	has := map[types.UID]bool{}
	for _, m := range s.owners {
		if m.Controller != nil {
			has[m.Controller.UID] = true
		}
	}
	for i := range s.deployments {
		d := &s.deployments[i]
		if r := s.rollouts[d.UID]; !has[d.UID] && r.asked > 0 {
			w := *d.Workload
			w.Replicas, w.Current, w.Failure = r.asked, 0, r.failure
			s.addOwner(&w, d.template)
		}
	}
	for i := range s.jobs {
		if j := &s.jobs[i]; s.ownersByUID[j.UID] == nil && j.Replicas > 0 {
			s.addOwner(j.Workload, j.template)
		}
	}
}

// addTargets has the targets of PodDistributors be seen as what makes the pods that they ask for, if they are of kinds that are not listed and nothing
// below them is known. It returns those that it has added.
func (i *Inspector) addTargets(ctx context.Context, s *snapshot) (added []*podOwner, _ error) {
	for n := range s.objects.PodDistributors {
		d := &s.objects.PodDistributors[n]
		target := world.TargetOf(d)
		if target.Watched() || target.Group() == batchv1.GroupName || policy.Compile(d).Written == nil || s.known(target) {
			continue
		}
		w, err := s.Workload(ctx, target.Namespace, target.Ref)
		if readable(err) != nil {
			return nil, err
		}
		if err != nil || w == nil {
			continue
		}
		scale, err := worldapi.ReadScale(ctx, i.Client, target.Namespace, w.Ref)
		if readable(err) != nil {
			return nil, err
		}
		if err == nil && scale != nil && scale.Replicas > 0 {
			asking := *w
			asking.Replicas, asking.Current = scale.Replicas, scale.Current
			added = append(added, s.addOwner(&asking, corev1.PodTemplateSpec{}))
		}
	}
	return added, nil
}

// known reports whether an object makes pods, or what it has made does.
func (s *snapshot) known(of world.Object) bool {
	name := of.Kind + "/" + of.Name
	return slices.ContainsFunc(s.owners, func(m *podOwner) bool { return m.Namespace == of.Namespace && slices.Contains(m.names, name) })
}

// mostRefused is of how many objects the events are read.
const mostRefused = 20

// readRefusals reads why the API server refuses the pods of workloads that lack some, where their status does not say so. Controllers say it in
// events, which those who may not read them do without.
func (all *groups) readRefusals(ctx context.Context) error {
	read := 0
	for _, uid := range all.order {
		g := all.byUID[uid]
		for _, owner := range g.lack {
			if g.failure != "" || g.idle != "" || read == mostRefused {
				break
			}
			read++
			var err error
			if g.failure, err = all.refusal(ctx, owner); err != nil {
				return err
			}
		}
	}
	return nil
}

// refusal returns why an object could not create a pod when it last tried, or "".
func (i *Inspector) refusal(ctx context.Context, owner world.Object) (why string, _ error) {
	var last time.Time
	err := each(ctx, i, &corev1.EventList{}, func(e *corev1.Event) {
		refused := strings.HasPrefix(e.Reason, "FailedCreate") && e.Type == corev1.EventTypeWarning
		if at := lastSeen(e); (refused || e.Reason == "SuccessfulCreate") && !at.Before(last) {
			last, why = at, ""
			if refused {
				why = e.Message
			}
		}
	}, client.InNamespace(owner.Namespace), client.MatchingFields{"involvedObject.uid": string(owner.UID)})
	return why, readable(err)
}

// lastSeen is when what an event tells was so last.
func lastSeen(e *corev1.Event) time.Time {
	last := later(later(e.EventTime.Time, e.FirstTimestamp.Time), e.LastTimestamp.Time)
	if e.Series != nil {
		last = later(last, e.Series.LastObservedTime.Time)
	}
	return last
}
