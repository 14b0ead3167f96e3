package finding

// adding is how to find what has had pods choose nodes that their template leaves open. Fix is their RuntimeClass, if they have one.
func (f *Finding) adding() string {
	class := ifElse(f.Fix == "", "", "RuntimeClass "+f.Fix+" (scheduling), ")
	return "correct what adds it to pods at admission: " + class + "an admission policy or webhook, or the namespace's node selector"
}

// ofWaitingPods are the rows about pods that wait for something else than room.
var ofWaitingPods = map[Reason]row{
	NodesClosed: {
		means:    "Pods wait for a pool whose nodes take no new pods now, even with room.",
		sentence: func(f *Finding) string { return "no node of pool " + f.Pool + " takes new pods: " + f.Text },
		remedy:   always("uncordon nodes, see why others are not ready, give the pods a toleration, or add nodes to the pool"),
		example:  of(Values{Pool: "spot", Text: "2 cordoned, 1 not ready"}),
	},
	SchedulerDecides: {
		means: "Pods wait for a node of their pool, and something else than their size may be the cause.",
		sentence: func(f *Finding) string {
			return "no node of pool " + f.Pool + " is found for them, and whether room is the cause is not known, because " + f.Text
		},
		remedy:  always("correct what the scheduler says, or make room in the pool"),
		example: of(Values{Pool: "spot", Text: "the pods claim devices"}),
	},
	ConstraintUnmet: {
		means:    "Pods wait because of a constraint of theirs that contradicts the division, so that no room in the pool helps.",
		sentence: func(f *Finding) string { return f.Text + " (pool " + f.Pool + ")" },
		remedy:   func(f *Finding) string { return f.Fix },
		example: of(Values{Pool: "spot", Text: "the topology spread constraint over topology.kubernetes.io/zone counts the nodes of all pools (nodeAffinityPolicy: Ignore), so pods may wait although their pool has room",
			Fix: "set nodeAffinityPolicy to Honor"}),
	},
	NotScheduled: {
		means: "No scheduler has looked for a node for pods.",
		sentence: func(f *Finding) string {
			switch {
			case f.Objects != "":
				return "waits at the scheduling " + f.plural("gate")
			case f.Text != "":
				return "the scheduler " + f.Other + " has found no node: " + f.Text
			}
			return "no scheduler has looked for a node; the pods are for the scheduler " + f.Other
		},
		remedy: func(f *Finding) string {
			switch {
			case f.Objects != "":
				return "see what is to remove the " + ifElse(f.Several, "gates", "gate") + ", which is not of Stowage"
			case f.Text != "":
				return "correct what it says"
			}
			return "see whether that scheduler runs, or correct schedulerName in the pod template"
		},
		example: of(Values{Other: "default-scheduler"}),
	},
	WaitsWithoutSeat: {
		means:    "Pods of a workload with a strategy wait for a node, and have no seat for a reason of their own.",
		sentence: func(f *Finding) string { return f.Text },
		remedy:   func(f *Finding) string { return f.Fix },
		example:  of(Values{Text: "every pool has its maximum, so these pods have no seat, and no node takes them", Fix: "raise maxReplicas of a pool, add nodes, or ask for fewer pods"}),
	},
	VolumeMissing: {
		means: "Pods wait for a PersistentVolumeClaim that does not exist or has no volume.",
		sentence: func(f *Finding) string {
			switch {
			case f.Missing:
				return "PersistentVolumeClaim " + f.Other + " does not exist"
			case f.Text != "":
				return "PersistentVolume " + f.Text + " of PersistentVolumeClaim " + f.Other + " does not exist any more"
			}
			return "PersistentVolumeClaim " + f.Other + " has no volume yet, and is to have one before the pods have a node"
		},
		remedy: func(f *Finding) string {
			switch {
			case f.Missing:
				return "create it, or correct the pod template"
			case f.Text != "":
				return "delete the claim, and then the pods, to have a new volume"
			}
			return "see its events: kubectl -n " + f.Namespace + " describe pvc " + f.Other
		},
		example: of(Values{Other: "data", Missing: true}),
	},
	VolumeOutOfReach: {
		means: "Pods wait for a volume that no node reaches.",
		sentence: func(f *Finding) string {
			return "no node reaches the volume of PersistentVolumeClaim " + f.Other + ", which is for nodes with " + f.Labels
		},
		remedy:  always("bring such a node back; or, if what the volume holds may be lost, delete the claim, and then the pod, to have a new volume"),
		example: Finding{Namespace: "shop", Kind: "StatefulSet", Name: "db", Values: Values{Other: "data-db-0", Labels: "kubernetes.io/hostname=node-1"}},
	},
}
