package finding

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// Rollout is what keeps a rollout from creating all pods of a workload again.
type Rollout struct {
	// Paused says that the Deployment is, and OnDelete that the StatefulSet replaces only pods that somebody deletes.
	Paused, OnDelete bool
	// Partition is that of the StatefulSet: a rollout leaves pods with lower ordinals as they are.
	Partition int64
}

// RolloutOf returns what a Deployment or a StatefulSet says of its rollouts. Of another object it is zero.
func RolloutOf(object any) (r Rollout) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		r.Paused = o.Spec.Paused
	case *appsv1.StatefulSet:
		r.OnDelete = o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType
		if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil && !r.OnDelete {
			r.Partition = int64(*u.Partition)
		}
	}
	return r
}

// And returns what keeps rollouts of either of two objects.
func (r Rollout) And(other Rollout) Rollout {
	return Rollout{r.Paused || other.Paused, r.OnDelete || other.OnDelete, max(r.Partition, other.Partition)}
}

// rollOut is how to have all pods of a workload created again.
func (f *Finding) rollOut() string {
	if f.Kind == "Job" {
		return "let the Job end, or create it again: Stowage evicts none of its pods"
	}
	if closed := f.closed(); closed != "" {
		return closed + "; then " + f.restart()
	}
	return f.restart()
}

// closed is what to do first where a pool takes no new pods, or "".
func (f *Finding) closed() string {
	wait := ifElse(f.Preferred, "", ", so that new pods wait unless a node autoscaler makes one")
	switch {
	case f.NoNodes != "":
		return fmt.Sprintf("first correct the labels of pool %s, or add nodes with them: no node has them%s", f.NoNodes, wait)
	case f.Cordoned != "":
		return fmt.Sprintf("first kubectl uncordon nodes of pool %s, or add others: all are cordoned%s", f.Cordoned, wait)
	}
	return ""
}

// restart is how to roll out, where there are nodes for the new pods.
func (f *Finding) restart() string {
	if f.NoWebhook {
		return "have the webhook answer, and then " + f.recreate()
	}
	return f.recreate()
}

// recreate is how to roll out while the webhook answers.
func (f *Finding) recreate() string {
	if f.Paused {
		return f.resume() + ", and roll out"
	}
	if f.OnDelete {
		return "delete its pods one after the other, because its update strategy is OnDelete"
	}
	if f.Partition > 0 {
		return fmt.Sprintf("set the partition of the StatefulSet to 0, because with %d a rollout leaves pods with lower ordinals as they are, and roll out (kubectl -n %s rollout restart statefulset/%s)", f.Partition, f.Namespace, f.Name)
	}
	if f.Kind == "Deployment" || f.Kind == "StatefulSet" {
		return fmt.Sprintf("roll out (kubectl -n %s rollout restart %s/%s)", f.Namespace, strings.ToLower(f.Kind), f.argument())
	}
	return "roll out: have its pods created again"
}

// resume is how to end the pause of a Deployment.
func (f *Finding) resume() string {
	return fmt.Sprintf("resume the Deployment (kubectl -n %s rollout resume deployment/%s)", f.Namespace, f.argument())
}

// argument is the object's name in a command for a shell, which may take other characters than those of names for commands.
func (f *Finding) argument() string {
	if strings.Trim(f.Name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return "NAME"
	}
	return f.Name
}
