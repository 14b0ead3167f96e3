package world

import "strings"

// shortKinds are kubectl's short names of kinds.
var shortKinds = map[string]string{
	"deploy": "Deployment", "rs": "ReplicaSet", "sts": "StatefulSet", "ds": "DaemonSet", "rc": "ReplicationController", "cj": "CronJob",
	"po": "Pod", "no": "Node", "pd": "PodDistributor", "fdt": "FlexDaemonsetTemplate", "sp": "SpreadPolicy", "csp": "ClusterSpreadPolicy", "sdp": "ScaleDownPolicy", "csdp": "ClusterScaleDownPolicy",
	"vmc": "VMCatalog",
}

// SameKind reports whether text is a way to write a kind: in any case, in the plural, in short, or with its group, as kubectl get -o name writes it.
func SameKind(kind, text string) bool {
	text, _, _ = strings.Cut(text, ".")
	if short, ok := shortKinds[strings.ToLower(text)]; ok {
		text = short
	}
	plural := kind + "s"
	if stem, y := strings.CutSuffix(kind, "y"); y {
		plural = stem + "ies"
	}
	return strings.EqualFold(kind, text) || strings.EqualFold(plural, text)
}
