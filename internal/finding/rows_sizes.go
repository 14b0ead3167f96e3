package finding

import (
	"fmt"

	flexdaemonsets "github.com/stowage-dev/stowage/api/flexdaemonsets/v1alpha1"
	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// ofDaemonSets are the rows about the sizes of DaemonSets' pods. Other is the FlexDaemonsetTemplate.
var ofDaemonSets = map[Reason]row{
	InvalidTemplate: {
		means:    "A FlexDaemonsetTemplate is invalid, so that it sizes no pods.",
		sentence: func(f *Finding) string { return "is invalid, so that it sizes no pods: " + f.Text },
		remedy:   always("correct its spec"),
		example:  Finding{Kind: "FlexDaemonsetTemplate", Name: "tenth", Values: Values{Text: "spec.cpuPercentage: is 120"}},
	},
	TemplateMissing: {
		means: "A DaemonSet names a FlexDaemonsetTemplate that does not exist.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("names FlexDaemonsetTemplate %s, which does not exist: its pods keep the size that they declare", f.Other)
		},
		remedy:  always("create the template, or correct the annotation " + flexdaemonsets.TemplateAnnotation),
		example: Finding{Namespace: "logging", Kind: "DaemonSet", Name: "agent", Values: Values{Other: "tenth"}},
	},
	NotSized: {
		means: "Pods of a DaemonSet with a FlexDaemonsetTemplate have no size.",
		sentence: func(f *Finding) string {
			if f.Text != "" {
				return "no size, and a pod that is created now gets none: " + f.Text
			}
			return fmt.Sprintf("no size: created before FlexDaemonsetTemplate %s, or the webhook was bypassed, or a LimitRange refuses the size", f.Other)
		},
		remedy: func(f *Finding) string {
			if f.Text != "" {
				return "correct that in the DaemonSet or in the template; a rollout alone changes nothing"
			}
			return ifElse(f.NoWebhook, "have the webhook answer, and then ", "") + fmt.Sprintf("kubectl -n %s rollout restart daemonset/%s", f.Namespace, f.argument())
		},
		example: Finding{Namespace: "logging", Kind: "DaemonSet", Name: "agent", Values: Values{Other: "tenth"}},
	},
	OffSize: {
		means:    "Pods do not have the size that their FlexDaemonsetTemplate gives.",
		sentence: func(f *Finding) string { return f.Text },
		remedy: func(f *Finding) string {
			reason := stowage.ConditionReason(f.Other)
			created := reason == stowage.ReasonAwaitsNewPods || reason == stowage.ReasonUnsupported
			return ifElse(f.NoWebhook && created, "have the webhook answer, and then ", "") + offSizeRemedies[reason]
		},
		example: Finding{Kind: "FlexDaemonsetTemplate", Name: "tenth", Values: Values{
			Text: "2 of another size: the nodes have no room to resize them", Other: string(stowage.ReasonDeferred),
		}},
	},
	NoRoomForSize: {
		means:    "A DaemonSet's pod waits, because its node has no room for the size.",
		sentence: always("no room for the size"),
		remedy: func(f *Finding) string {
			return "lower the percentages or minimums of FlexDaemonsetTemplate " + f.Other + ", and then delete the pods that wait: a pod without a node keeps the size that it was created with"
		},
		example: Finding{Namespace: "logging", Kind: "DaemonSet", Name: "agent", Values: Values{Other: "tenth"}},
	},
	NodeRefuses: {
		means: "A DaemonSet's pod waits, and its node has room for the size.",
		sentence: func(f *Finding) string {
			return "node " + f.Other + " has room for the size, and something else keeps the pod from it"
		},
		remedy:  always("correct what the scheduler says, such as a port that another pod of the node has"),
		example: Finding{Namespace: "logging", Kind: "DaemonSet", Name: "agent", Values: Values{Other: "node-1"}},
	},
	PlanDiffers: {
		means:    "Karpenter plans another size for a DaemonSet's pod than it takes.",
		sentence: func(f *Finding) string { return f.Text },
		remedy:   always("run one DaemonSet for each class of nodes, as kubectl stowage split prints them: docs/karpenter.md"),
		example: Finding{Namespace: "logging", Kind: "DaemonSet", Name: "agent", Values: Values{
			Text: "Karpenter plans 400m CPU and 1Gi for its pod on c5.large, where it takes 200m and 512Mi",
		}},
	},
}

// offSizeRemedies are what to do about pods that do not get the size of their template. Where there is nothing, they are on their
// way to it.
var offSizeRemedies = map[stowage.ConditionReason]string{
	stowage.ReasonAwaitsNewPods: "roll out its DaemonSets, or set updatePolicy: InPlace",
	stowage.ReasonDeferred:      "make room on the nodes, or lower the percentages; the kubelet tries it again by itself",
	stowage.ReasonInfeasible:    "lower the percentages, or set a maximum",
	stowage.ReasonRefused:       "change what refuses the size, such as a ResourceQuota or a LimitRange",
	stowage.ReasonUnsupported:   "roll out its DaemonSets, or run a Kubernetes that resizes pods in place",
	stowage.ReasonFailed:        "see the events of the pods; the kubelet tries it again by itself",
}

// ofPeerPods are the rows about peer pods and the nodes that advertise their VMs.
var ofPeerPods = map[Reason]row{
	WebhookBypassed: {
		means: "A pod of a RuntimeClass for peer pods was created without the webhook.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("RuntimeClass %s without %s: the webhook was bypassed", f.Other, f.Text)
		},
		remedy: func(f *Finding) string {
			return ifElse(f.Kind == "Pod", "delete the pod and create it again", "delete the pods, so that their owner recreates them")
		},
		example: Finding{Namespace: "shop", Kind: "ReplicaSet", Name: "web-1", Values: Values{Other: "kata-remote", Text: "kata.peerpods.io/vm"}},
	},
	NoFreeVM: {
		means:    "A peer pod waits, because no node has a free VM.",
		sentence: always("no free VM"),
		remedy: func(f *Finding) string {
			if f.Objects != "" {
				return fmt.Sprintf("raise the annotation %s of %s, which wins over the ConfigMap, or add nodes", stowage.PeerPodsLimitAnnotation, f.Objects)
			}
			return fmt.Sprintf("raise %s in ConfigMap %s, add nodes, or see why the daemons that make VMs are not Ready", stowage.PeerPodsLimitKey, f.Other)
		},
		example: Finding{Namespace: "shop", Kind: "ReplicaSet", Name: "web-1", Values: Values{Other: "stowage/stowage-peerpods"}},
	},
	InvalidLimit: {
		means: "A limit of VMs is not a number.",
		sentence: func(f *Finding) string {
			if f.Kind == "Node" {
				return fmt.Sprintf("its annotation %s is refused, and the limit of the other nodes holds: %s", stowage.PeerPodsLimitAnnotation, f.Text)
			}
			return "its limit is refused, and the last valid one holds: " + f.Text
		},
		remedy: func(f *Finding) string {
			return ifElse(f.Kind == "Node", "correct or remove the annotation", "correct "+stowage.PeerPodsLimitKey)
		},
		example: Finding{Kind: "Node", Name: "node-1", Values: Values{Text: `"ten" is no number`}},
	},
	DaemonNotReady: {
		means:    "A node's daemon that makes VMs is not Ready.",
		sentence: always("its daemon is not Ready, so it advertises no VMs"),
		remedy:   always("see the pod of the DaemonSet that makes VMs"),
		example:  Finding{Kind: "Node", Name: "node-1"},
	},
	ForeignCapacity: {
		means: "Another client sets how many VMs a node has.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("advertises %d %s, which another client set, and not %d", f.Count, f.Other, f.Of)
		},
		remedy: func(f *Finding) string {
			return fmt.Sprintf("kubectl annotate node %s %s=take-over, or remove the amount", f.Name, stowage.PeerPodsCapacityAnnotation)
		},
		example: Finding{Kind: "Node", Name: "node-1", Values: Values{Count: 5, Of: 10, Other: "kata.peerpods.io/vm"}},
	},
	CatalogUnused: {
		means:    "A VMCatalog holds for no RuntimeClass whose pods run in VMs.",
		sentence: func(f *Finding) string { return "it has no effect: " + f.Text },
		remedy:   always("correct its runtimeClasses, or delete it"),
		example:  Finding{Kind: "VMCatalog", Name: "aws", Values: Values{Text: "older catalogs hold for kata-remote (VMCatalog eu)"}},
	},
	VMTypeClosed: {
		severity: Passing, means: "The VMs of a type could not be made for pods of a namespace, so its new pods get the next cheapest type.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("no VM of type %s can be made for namespace %s: it is %s", f.Other, f.In, f.Text)
		},
		remedy: func(f *Finding) string {
			return fmt.Sprintf("wait: Stowage tries it again; see the log of the program that makes VMs, and whether the cloud has %s and its quota allows it", f.Other)
		},
		example: Finding{Kind: "VMCatalog", Name: "aws", Values: Values{Other: "m5.large", In: "shop", Text: "closed in zone eu-1a, and not tried again before 12:10:00 UTC: 3 pod(s) have waited for a VM for 5m0s"}},
	},
	NoVMType: {
		means: "No type of a VMCatalog is large enough for a pod.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("no type of %s fits %s: %s", f.Source, ifElse(f.Count > 1, fmt.Sprintf("it and %d others", f.Count-1), "it"), f.Text)
		},
		remedy:  always("add a type that fits to the catalog, or change what the pod asks for"),
		example: Finding{Namespace: "shop", Kind: "Pod", Name: "web-1", Values: Values{Count: 1, Source: "VMCatalog aws", Text: "the nearest type, m5.4xlarge, lacks 2Gi of memory"}},
	},
	TypesNotListed: {
		means: "The program that makes VMs refuses types of a VMCatalog, because its own list lacks them.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d type(s) of VMCatalog %s are not in %s, so no VM of them is made: %s", f.Count, f.Name, f.Other, f.Objects)
		},
		remedy:  always("add them to that list, and restart the program that makes VMs; or remove them from the catalog"),
		example: Finding{Kind: "VMCatalog", Name: "aws", Values: Values{Count: 1, Objects: "m5.large", Other: "PODVM_INSTANCE_TYPES of ConfigMap confidential-containers-system/peer-pods-cm"}},
	},
}
