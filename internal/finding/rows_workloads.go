package finding

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
	"github.com/stowage-dev/stowage/internal/refusal"
)

// of returns an example about a workload.
func of(v Values) Finding {
	return Finding{Namespace: "shop", Kind: "Deployment", Name: "web", Values: v}
}

// The states of the node of a pod that is not gone, as [PodNotDeleted] has them in Text.
const (
	NodeGone     = "is gone"
	NodeNotReady = "is not ready"
	NodeReady    = "has not ended it"
)

// ofWorkloads are the rows about the pods of a workload.
var ofWorkloads = map[Reason]row{
	NotYetObserved: {
		severity: Passing, means: "The last change of a Deployment or a StatefulSet has no effect yet.",
		sentence: func(f *Finding) string {
			return "kube-controller-manager has not acted on the last change of this " + f.Kind + " yet: wait"
		},
		example: of(Values{}),
	},
	RolloutPaused: {
		means: "A Deployment is paused, and its rollout has not ended.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("is paused in its rollout: %d of %d pods are of the newest revision", f.Count, f.Of)
		},
		remedy:  func(f *Finding) string { return f.resume() },
		example: of(Values{Count: 3, Of: 10}),
	},
	BeingDeleted: {
		means: "A Deployment or a StatefulSet is being deleted, and something holds it.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("has been in deletion since %s%s", f.Since, ifElse(f.Objects == "", "", ": it is held by the "+f.plural("finalizer")))
		},
		remedy: func(f *Finding) string {
			return "find out what is to remove the " + ifElse(f.Several, "finalizers", "finalizer") + " and does not; until then its controller creates no pods"
		},
		example: of(Values{Since: "2026-01-02T15:04:05Z", Objects: "example.com/backup"}),
	},
	PodNotDeleted: {
		means: "A pod is not gone after its grace period, and its owner creates no other one before.",
		sentence: func(f *Finding) string {
			by := "node " + f.Other + " " + f.Text
			if f.Objects != "" {
				by = "it is held by the " + f.plural("finalizer")
			}
			return "waits for the end of a pod whose grace period is over: " + by
		},
		remedy: func(f *Finding) string {
			switch {
			case f.Objects != "":
				return "find out what is to remove the " + ifElse(f.Several, "finalizers", "finalizer") + " and does not, or remove it from the pod"
			case f.Text == NodeNotReady || f.Text == NodeGone:
				return "bring the node back; once its machine is known to be off, delete the pod with --force --grace-period=0"
			}
			return "see the log of the kubelet on node " + f.Other
		},
		example: Finding{Namespace: "shop", Kind: "StatefulSet", Name: "db", Values: Values{Other: "node-1", Text: NodeNotReady}},
	},
	PodsPending: {
		severity: Passing, means: "Pods wait for a node.",
		sentence: func(f *Finding) string { return f.Text + " wait for a node" },
		example:  of(Values{Text: "2 pod(s) of pool spot"}),
	},
	NodesGone: {
		severity: Passing, means: "Pods are bound to nodes that do not exist any more.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d of %d pods are on nodes that do not exist any more, and do not count as ready: Kubernetes removes them, and their owner creates others", f.Count, f.Of)
		},
		example: of(Values{Count: 200, Of: 260}),
	},
	PoolExhausted: {
		means:    "A pool has no room, and other pools take the pods that wait for it.",
		sentence: func(f *Finding) string { return f.Text },
		remedy:   always("add nodes to the pool; Stowage tries it again by itself"),
		example:  of(Values{Text: "pool spot has had no room since 2026-01-02T15:04:05Z, and keeps at most 3 pod(s); other pools take the pods that wait for it"}),
	},
	PodsRefused: {
		means:    "The API server refuses to create pods. Where its message names what Stowage adds to them, the finding says so.",
		sentence: (*Finding).refused,
		remedy:   (*Finding).afterRefusal,
		example: of(Values{Count: 2, Of: 5, Text: "ValidatingAdmissionPolicy 'tenants' with binding 'tenants' denied request: node selectors are not for tenants", Refusal: refusal.Ours, Source: "SpreadPolicy web", ByPolicy: true,
			Objects: "the node selector type=spot or type=default (SpreadPolicy web)", Fix: "set enforcement: Preferred, with which pods prefer their pool by node affinity"}),
	},
	NotReached: {
		means:    "An owner of pods has had fewer or more pods than it asks for, for minutes.",
		sentence: func(f *Finding) string { return f.Text },
		example:  of(Values{Text: "ReplicaSet web-1 asks for 5 pods and has had 3 for minutes; those are put in order, and none is evicted"}),
	},
	Progressing: {
		severity: Passing, means: "Pods are being created or removed, or a rollout goes on.",
		sentence: func(f *Finding) string {
			if f.Text != "" {
				return f.Text
			}
			if f.Count == f.Of {
				return "pods are being created or removed"
			}
			return fmt.Sprintf("%d pods exist, and %d are asked for", f.Count, f.Of)
		},
		example: of(Values{Count: 3, Of: 5}),
	},
	OutsidePool: {
		means: "Pods are not in the pool of their seat.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) are outside the pool of their seat", f.Count) + ifElse(f.Preferred, ", as enforcement Preferred allows", ": the labels of pools or nodes, or the order of pools, have changed") + ifElse(f.Text == "", "", ", "+f.Text)
		},
		remedy: func(f *Finding) string {
			return ifElse(f.Preferred && f.closed() == "", "make room in the pool, and ", "") + f.rollOut()
		},
		example: of(Values{Count: 2}),
	},
	OverTarget: {
		means: "A pool has too many pods.",
		sentence: func(f *Finding) string {
			text := fmt.Sprintf("pool %s has %d pods and should have %d", f.Pool, f.Count, f.Of)
			if f.Adopted > 0 {
				text += fmt.Sprintf(": %d of them were there before Stowage divided them", f.Adopted)
			}
			return text
		},
		remedy: func(f *Finding) string {
			return ifElse(f.Evicts(f.Kind), f.wait(), f.rollOut()+f.orEvict())
		},
		example: of(Values{Pool: "spot", Count: 5, Of: 3, Source: "PodDistributor web"}),
	},
	JobUneven: {
		severity: Note, means: "A pool has more than its share of the pods of a Job that are left, because others have ended.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("pool %s has %d pods and should have %d of those that are left: pods that have ended are not counted, in whatever pool they were", f.Pool, f.Count, f.Of)
		},
		remedy:  always("none is needed: Stowage evicts none of a Job's pods, and divides those that it still creates"),
		example: Finding{Namespace: "shop", Kind: "Job", Name: "report", Values: Values{Pool: "spot", Count: 3, Of: 1}},
	},
	PoolRemoved: {
		means: "Pods have their seat in a pool that the strategy does not have any more.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) are in a pool that was removed from the strategy", f.Count) + ifElse(f.Pool == "", "", ": "+f.Pool)
		},
		remedy: func(f *Finding) string {
			return ifElse(f.Evicts(f.Kind), f.wait(), f.rollOut()+f.orEvict())
		},
		example: of(Values{Count: 2, Pool: "spot", Source: "PodDistributor web"}),
	},
	WithoutSeat: {
		means: "Pods have no seat.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) have no seat: they were created before the %s, or bypassed the webhook", f.Count, f.Source) + ifElse(f.Text == "", "", ", "+f.Text)
		},
		remedy: func(f *Finding) string {
			text := "wait: Stowage gives them a seat or recreates them, unless its controllers are down"
			if f.NoMoves {
				text = "first correct the problem that stops Stowage; then wait: it gives them a seat or recreates them"
			}
			if !f.Recreates {
				text = f.rollOut() + ifElse(f.ByPolicy, "", fmt.Sprintf(", or set %s to %s", stowage.RepairAnnotation, stowage.RepairRecreate))
			}
			return text + ifElse(f.Staying > 0, "; "+f.kept(), "")
		},
		example: of(Values{Count: 3, Source: "PodDistributor web"}),
	},
	NotReady: {
		severity: Passing, means: "Pods are not ready.",
		sentence: func(f *Finding) string { return fmt.Sprintf("%d of %d pods are ready", f.Count, f.Of) },
		example:  of(Values{Count: 2, Of: 3}),
	},
	PoolsFull: {
		severity: Note, means: "Every pool has its maximum.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) have no seat, because every pool has its maximum", f.Count)
		},
		example: of(Values{Count: 2}),
	},
	OverInDomain: {
		severity: Note, means: "A domain, such as a zone, has too many of its pool's pods.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) are in a domain that has too many of their pool", f.Count)
		},
		remedy:  func(f *Finding) string { return f.rollOut() + f.orEvict() },
		example: of(Values{Count: 1, Evict: true}),
	},
	PoolsPreferred: {
		severity: Note, means: "Pods of a revision may run outside of their pools, because nothing else could be found for them.",
		sentence: func(f *Finding) string {
			return "pods of this revision prefer their pools, and may run outside of them: " + f.Text
		},
		remedy:  always("correct what keeps the pods from the pools; the next revision is tried anew"),
		example: of(Values{Text: "the pods claim devices"}),
	},
	FitsNoPool: {
		means: "Pods wait for a node, and can run in none of the pools of their policy, so that they are not divided.",
		sentence: func(f *Finding) string {
			text := "the pods can run in none of the pools of " + f.Source + ", so they are not divided: " + f.Text
			if f.Count > 0 {
				text += fmt.Sprintf("; %d pod(s) wait for a node", f.Count)
			}
			return text
		},
		remedy:  always("correct what the pods ask for, or the nodes or the pools"),
		example: of(Values{Source: "SpreadPolicy web", Text: "pool on-demand: the pods are too large; pool spot: the pods are too large", Count: 2}),
	},
	PoolUnsuitable: {
		severity: Note, means: "No node of a pool, or of a domain of it, can take pods of the workload.",
		sentence: func(f *Finding) string { return "no pod can run in pool " + f.Text + "; the others get them all" },
		remedy:   always("give the pods what they lack, such as a toleration, or leave the workload out of the pool"),
		example:  of(Values{Text: "spot in eu-1c: the pods do not tolerate the taint arch=arm64:NoSchedule"}),
	},
	HeldByVolume: {
		severity: Note, means: "Pods run where their volumes are, and not where they would be due.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) are held in another pool or domain than is due, because their volumes do not reach that; the others are divided around them", f.Count)
		},
		remedy:  always("none is needed; to move a pod, delete its claims, and then the pod"),
		example: of(Values{Count: 2}),
	},
	LackSettings: {
		severity: Note, means: "Pods lack what their pool gives to new pods, such as a label or a PriorityClass.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) lack what their pool gives to new pods (pool %s: %s): they were adopted, waited at the gate, or are older than that", f.Count, f.Pool, f.Text)
		},
		remedy:  func(f *Finding) string { return "none is needed; to have them get it, " + f.rollOut() },
		example: of(Values{Count: 2, Pool: "spot", Text: "label capacity"}),
	},
	PodsStay: {
		severity: Note, means: "Pods stay where they run, outside of the pools, and the others are divided without them.",
		sentence: func(f *Finding) string { return f.Text },
		remedy:   always("none is needed; the next pods are divided"),
		example:  of(Values{Text: "1 pod(s) that should be elsewhere stay where they run, such as web-1: no pool has a node that reaches its volume"}),
	},
	ForeignCost: {
		severity: Note, means: "Somebody else writes or removes the deletion cost of pods, and scale-downs keep the division all the same.",
		sentence: func(f *Finding) string { return f.foreignCosts() + "; scale-downs remove the lowest first" },
		example:  of(Values{Count: 2}),
	},
	CostsUneven: {
		means: "Somebody else writes or removes the deletion cost of pods, and scale-downs do not keep the division.",
		sentence: func(f *Finding) string {
			return f.foreignCosts() + "; so the next scale-down does not keep the division"
		},
		remedy: func(f *Finding) string {
			if f.Several {
				return "turn off Karpenter's feature gate PodDeletionCostManagement, or install the admission policy of docs/karpenter.md"
			}
			return "stop the other writer and remove the annotation " + corev1.PodDeletionCost + " from these pods: Stowage writes its own again, unless " + stowage.RepairAnnotation + " is " + string(stowage.RepairOff)
		},
		example: of(Values{Count: 2, Other: "karpenter", Several: true}),
	},
	SourceGone: {
		means: "Pods wait for a node of a pool, and the strategy that gave it to them is gone or does not count any more.",
		sentence: func(f *Finding) string {
			return "no strategy divides these pods any more, and they still wait for a node of pool " + f.Pool + ", which their seat has them select"
		},
		remedy: func(f *Finding) string {
			if f.Kind == "Job" {
				return "create the Job again, because it counts a pod that is deleted as failed, or write its strategy again; Stowage recreates the pods only of a Job that is not Indexed and whose podFailurePolicy ignores disruptions"
			}
			others := "delete these pods, so that their owner creates others without a pool, or write the strategy again"
			if !f.Recreates {
				return others + "; Stowage does not recreate them"
			}
			return f.noMoves("recreating pods") + "wait: Stowage recreates them, unless " + stowage.RepairAnnotation + " is " + string(stowage.RepairOff) + " or " + stowage.ModeKey + " is not " + string(stowage.ModeEnforce) + "; or " + others
		},
		example: Finding{Namespace: "shop", Kind: "StatefulSet", Name: "db", Values: Values{Pool: "spot", Recreates: true}},
	},
	PinsLeft: {
		severity: Note, means: "Pods run where a strategy put them that is gone or does not count any more, and still select the nodes of their pool.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("no strategy divides these pods any more, and %d of them still select the nodes of their pools: %s", f.Count, f.Pool)
		},
		remedy:  func(f *Finding) string { return "to have pods run anywhere again, " + f.rollOut() },
		example: of(Values{Count: 12, Pool: "4 in pool on-demand, 8 in pool spot"}),
	},
	NoRoomInPool: {
		means:    "Pods wait for a node of their pool, and none has room.",
		sentence: func(f *Finding) string { return "no room in pool " + f.Pool },
		remedy: func(f *Finding) string {
			const keep = "; to keep them in the pool, add nodes to it"
			switch {
			case f.Objects != "":
				return "make room in the pool, or change the strategy: other pools do not take all of the pods, because " + f.Objects
			case f.Several:
				return "wait: other pools take the pods, unless room is on its way" + keep
			case f.At != "":
				return "other pools take the pods from " + f.At + " on" + keep
			}
			return "make room in the pool, change the strategy, or let other pools take the pods (spill)"
		},
		example: of(Values{Pool: "spot"}),
	},
	PoolNotForPods: {
		means:    "Pods wait for a pool whose nodes could not take them, even if they were empty.",
		sentence: func(f *Finding) string { return "no node of pool " + f.Pool + " could take them: " + f.Text },
		remedy: func(f *Finding) string {
			switch f.Filter {
			case "TaintToleration":
				return "add a toleration of the taint to the pool in the " + f.Source + " or to the pod template, or remove the taint"
			case "NodeResourcesFit":
				return "lower what the pods ask for, or add larger nodes to the pool"
			case "VolumeBinding":
				return "add a node to the pool that reaches the volume; or, if what it holds may be lost, delete the claim, and then the pod"
			}
			return "correct the pod template, or the nodes of the pool"
		},
		example: of(Values{Pool: "spot", Filter: "TaintToleration", Source: "PodDistributor web", Text: "the pods do not tolerate the taint arch=arm64:NoSchedule"}),
	},
	NodesCordoned: {
		means:    "Pods wait for a pool whose nodes are all cordoned.",
		sentence: func(f *Finding) string { return fmt.Sprintf("all %d node(s) of pool %s are cordoned", f.Count, f.Pool) },
		remedy:   always("kubectl uncordon them, or add nodes to the pool"),
		example:  of(Values{Pool: "spot", Count: 3}),
	},
	BeingAdopted: {
		severity: Passing, means: "Pods that were there before get their seat where they run.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) have no seat yet, and get one where they run", f.Count) + ifElse(f.NoMoves, " once the problem of Stowage itself is corrected", "")
		},
		example: of(Values{Count: 80}),
	},
	FitsNoNode: {
		means: "No node is as a pod asks.",
		sentence: func(f *Finding) string {
			switch {
			case f.Objects != "":
				return fmt.Sprintf("the pods ask for nodes with %s, as pool %s had them when the pods were created, and no node has these labels", f.Objects, f.Pool)
			case f.Labels != "":
				return fmt.Sprintf("no node has the labels of pool %s (%s)", f.Pool, f.Labels)
			case f.Missing && f.Pool != "":
				return fmt.Sprintf("no node of pool %s is as the pods ask, and their pod template does not ask for nodes", f.Pool)
			case f.Missing:
				return "the pods choose nodes that are not there, and their pod template does not ask for nodes"
			case f.Pool != "":
				return fmt.Sprintf("no node of pool %s has what the node selector or affinity of the pod template asks for", f.Pool)
			case f.VM:
				return "no node is as the node selector or affinity of the pod asks"
			}
			return "the pod template chooses nodes itself, and no node is as it asks"
		},
		remedy: func(f *Finding) string {
			switch {
			case f.Objects != "":
				return "delete the pods, so that their owner creates others by the strategy as it is now; Stowage does so itself unless repair or the mode of the namespace is Off, or the owner creates no others"
			case f.Labels != "":
				return fmt.Sprintf("correct the labels of pool %s in the %s, or add nodes with these labels (a node autoscaler may be at its limit)", f.Pool, f.Source)
			case f.Missing:
				return f.adding()
			case f.Pool != "":
				return "correct the pod template, or label nodes of the pool"
			case f.VM:
				return "correct them in the pod template" + ifElse(f.Other == "", "", " and in RuntimeClass "+f.Other+" (scheduling)") + ", or label nodes"
			}
			return "remove its node selector and affinity, so that the strategy divides its pods, or correct them"
		},
		example: of(Values{Pool: "spot", Labels: "type=spot", Source: "PodDistributor web"}),
	},
}

// foreignCosts says how many pods have a deletion cost that is not from Stowage, or none, and who may have written it.
func (f *Finding) foreignCosts() string {
	text := fmt.Sprintf("%d pod(s) have no pod-deletion-cost, or one that is not from Stowage", f.Count)
	if f.Other != "" {
		text += ", but from " + bounded.Name(f.Other)
	}
	if f.Several {
		text += "; it is negative and the same for all pods of a node, as Karpenter's PodDeletionCostManagement writes it"
	}
	return text
}
