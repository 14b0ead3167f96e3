package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stowage-dev/stowage/internal/finding"
)

// rollout is what a Deployment or a StatefulSet says of its rollout. ReplicaSets alone do not show it: while old pods end, each of them may have all the
// pods that it asks for.
type rollout struct {
	kind, name  string
	asked, pods int64
	updated     int64 // of the newest revision
	available   int64 // for minReadySeconds
	seen        bool  // by its controller, as it is now
	// failure is why the API server refuses to create what it asks for, if it does.
	failure    string
	deleted    time.Time // since when it is being deleted, or zero
	finalizers []string
	// waits says that it creates no pod in the place of one that has not ended.
	waits bool
	finding.Rollout
}

func rolloutOf(kind string, o client.Object, observed int64) rollout {
	r := rollout{kind: kind, name: o.GetName(), seen: observed >= o.GetGeneration(), finalizers: o.GetFinalizers(), Rollout: finding.RolloutOf(o)}
	if at := o.GetDeletionTimestamp(); at != nil {
		r.deleted = at.Time
	}
	return r
}

func rolloutOfDeployment(d *appsv1.Deployment) rollout {
	r, st := rolloutOf("Deployment", d, d.Status.ObservedGeneration), &d.Status
	r.asked, r.waits = int64(ptr.Deref(d.Spec.Replicas, 1)), d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
	r.pods, r.updated, r.available = int64(st.Replicas), int64(st.UpdatedReplicas), int64(st.AvailableReplicas)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		refused := c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
		noReplicaSet := c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ReplicaSetCreateError"
		if refused || noReplicaSet {
			r.failure = c.Message
		}
	}
	return r
}

func rolloutOfStatefulSet(o *appsv1.StatefulSet) rollout {
	r, st := rolloutOf("StatefulSet", o, o.Status.ObservedGeneration), &o.Status
	r.asked, r.waits = int64(ptr.Deref(o.Spec.Replicas, 1)), true
	r.pods, r.updated, r.available = int64(st.Replicas), int64(st.UpdatedReplicas), int64(st.AvailableReplicas)
	r.updated += min(r.Partition, r.asked)                     // the ordinals below keep their revision
	if r.OnDelete || st.UpdateRevision == st.CurrentRevision { // updated counts none then, on some versions
		r.updated = max(r.pods, r.asked)
	}
	return r
}

// finding is what is not as it should be. It returns no reason where all is.
func (r *rollout) finding(now time.Time) (reason finding.Reason, v finding.Values) {
	v = finding.Values{Count: r.updated, Of: r.asked}
	old := r.pods - r.updated
	switch {
	case !r.deleted.IsZero() && now.Sub(r.deleted) > patience:
		v.Since, v.Objects, v.Several = r.deleted.UTC().Format(time.RFC3339), strings.Join(r.finalizers, " and "), len(r.finalizers) > 1
		return finding.BeingDeleted, v
	case !r.deleted.IsZero():
		v.Text = "it is being deleted"
	case r.Paused && r.asked > 0 && (old > 0 && r.updated > 0 || r.pods == 0):
		return finding.RolloutPaused, v
	case r.Paused || !r.seen:
		return "", v
	case r.updated < r.asked:
		v.Text = fmt.Sprintf("the rollout goes on: %d of %d pods are of the newest revision", r.updated, r.asked)
	case old > 0:
		v.Text = fmt.Sprintf("the rollout goes on: %d pod(s) of older revisions are left", old)
	case r.available < r.asked:
		v.Text = fmt.Sprintf("%d of %d pods are available", r.available, r.asked)
	default:
		return "", v
	}
	return finding.Progressing, v
}

// addRollouts gives the rollouts of Deployments and StatefulSets to their workloads.
func (all *groups) addRollouts() {
	of := map[types.UID]*group{}
	for _, m := range all.s.owners {
		if g := all.byUID[m.root.UID]; g != nil {
			of[m.UID] = g
			if m.Controller != nil { // a Deployment, which something else may control in turn
				of[m.Controller.UID] = g
			}
		}
	}
	for uid, r := range all.s.rollouts {
		g := of[uid]
		if g == nil {
			continue
		}
		if r.failure != "" && g.failure == "" {
			g.failure = r.failure
		}
		g.unseen, g.Rollout = g.unseen || !r.seen && r.deleted.IsZero() && r.failure == "", g.And(r.Rollout)
		g.rollouts = append(g.rollouts, r)
	}
}

// rolloutFindings are those of the workload's rollouts, sorted, because they come in no order.
func (g *group) rolloutFindings(now time.Time) (out []finding.Finding) {
	slices.SortFunc(g.rollouts, func(a, b rollout) int { return strings.Compare(a.name, b.name) })
	for i := range g.rollouts {
		reason, values := g.rollouts[i].finding(now)
		if refused := g.failure != "" && reason == finding.Progressing; reason != "" && !refused { // refused pods do not come by waiting
			out = append(out, finding.Finding{Reason: reason, Namespace: g.Namespace, Kind: g.rollouts[i].kind, Name: g.rollouts[i].name, Values: values})
		}
	}
	return out
}
