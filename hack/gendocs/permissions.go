package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// purposes are what Stowage needs each permission for. The keys are resource, API group and name, as in
// "leases.coordination.k8s.io stowage-leader", after the role if others have the resource, too.
var purposes = map[string]string{
	"stowage pods":                                     "whether the pod of the leader is gone",
	"events":                                           "scale-ups by the cluster autoscaler, while pods wait for a pool with `spill`",
	"stowage-sizing limitranges":                       "the defaults and limits of a namespace",
	"stowage-peerpods-webhook limitranges":             "warnings about peer pods that a LimitRange may refuse",
	"stowage-sizing resourcequotas":                    "limits that a quota demands of sized pods",
	"stowage-peerpods-webhook resourcequotas":          "warnings about peer pods that a quota may refuse",
	"namespaces":                                       "mode and labels of namespaces",
	"stowage-spread-controllers nodes":                 "which nodes a pool has, and what room they have",
	"stowage-sizing nodes":                             "sizes of nodes",
	"stowage-capacity-controllers nodes":               "nodes that may have VMs; `patch` notes which VMs Stowage advertised",
	"nodes/status":                                     "the VMs that a node advertises",
	"stowage-spread pods":                              "pods with a seat",
	"stowage-spread-controllers pods":                  "seats for pods that bypassed the webhook, and deletion costs",
	"stowage-sizing-controllers pods":                  "pods with a size; `patch` notes the size that a pod had before",
	"stowage-capacity-controllers pods":                "pods that use VMs or make them",
	"stowage-peerpods-controllers pods":                "which VMs there are, and which cannot be made; `get` is of a pod before it is evicted",
	"stowage-peerpods-controllers nodes":               "in which zone a VM cannot be made",
	"stowage-peerpods-controllers pods/eviction":       "pods whose VM cannot be made",
	"stowage-peerpods-controllers jobs.batch":          "whether a Job counts evicted pods as failed",
	"stowage-scale-down-controllers pods":              "pods of workloads; `patch` is of deletion costs",
	"stowage-scale-down-controllers nodes":             "zones, hosts and other domains of pods",
	"clusterscaledownpolicies.stowage.dev":             "ClusterScaleDownPolicies",
	"scaledownpolicies.stowage.dev":                    "ScaleDownPolicies",
	"clusterscaledownpolicies/status.stowage.dev":      "the status of ClusterScaleDownPolicies",
	"scaledownpolicies/status.stowage.dev":             "the status of ScaleDownPolicies",
	"configmaps stowage-scale-down":                    "for the next leader: whether pods may have deletion costs of policies that are gone",
	"vmcatalogs.stowage.dev":                           "VMCatalogs",
	"vmcatalogs/status.stowage.dev":                    "the status of VMCatalogs",
	"pods/resize":                                      "`updatePolicy: InPlace`",
	"stowage-spread-controllers pods/eviction":         "repair, `rebalance: Evict` and `spill`",
	"stowage-sizing-controllers pods/eviction":         "DaemonSet pods created just before their template, if they cannot be resized",
	"replicationcontrollers":                           "strategies of ReplicationControllers",
	"*/scale.*":                                        "how many pods an owner asks for",
	"stowage-spread daemonsets.apps":                   "whether the target of a PodDistributor exists",
	"stowage-sizing daemonsets.apps":                   "DaemonSets that a FlexDaemonsetTemplate sizes",
	"stowage-peerpods-webhook daemonsets.apps":         "annotations that a pod template has copied from a pod; DaemonSets that make VMs",
	"deployments.apps":                                 "strategies of Deployments",
	"stowage-spread replicasets.apps":                  "strategies of ReplicaSets, and how many pods they ask for",
	"stowage-peerpods-webhook replicasets.apps":        "annotations that a pod template has copied from a pod",
	"stowage-spread statefulsets.apps":                 "strategies of StatefulSets, and how many pods they ask for",
	"stowage-peerpods-webhook statefulsets.apps":       "annotations that a pod template has copied from a pod",
	"clonesets.apps.kruise.io":                         "strategies of OpenKruise CloneSets",
	"daemonsets.apps.kruise.io":                        "OpenKruise DaemonSets that a FlexDaemonsetTemplate sizes",
	"statefulsets.apps.kruise.io":                      "strategies of OpenKruise StatefulSets",
	"rollouts.argoproj.io":                             "strategies of Argo Rollouts",
	"jobs.batch":                                       "`spill`: whether a Job counts evicted pods as failed",
	"events.events.k8s.io":                             "events about what Stowage does",
	"flexdaemonsettemplates.flexdaemonsets.xai":        "FlexDaemonsetTemplates",
	"flexdaemonsettemplates/status.flexdaemonsets.xai": "the status of FlexDaemonsetTemplates",
	"persistentvolumeclaims":                           "which pods of a StatefulSet have volumes from before a policy came, and whether a pod that is to move has volumes",
	"storageclasses.storage.k8s.io":                    "where a volume can be that is still to be made",
	"persistentvolumes":                                "where the volumes of a pod can be that is created or is to move",
	"poolstates.stowage.dev":                           "pools without room",
	"poolstates/status.stowage.dev":                    "what keeps pods from moving",
	"poddisruptionbudgets.policy":                      "which of them refuse an eviction; asked when one was refused",
	"seatledgers.stowage.dev":                          "seats of pods that were admitted and are not created yet",
	"priorityclasses.scheduling.k8s.io":                "whether the PriorityClass exists that a pool gives its pods",
	"clusterspreadpolicies.stowage.dev":                "ClusterSpreadPolicies",
	"spreadpolicies.stowage.dev":                       "SpreadPolicies",
	"clusterspreadpolicies/status.stowage.dev":         "the status of ClusterSpreadPolicies",
	"spreadpolicies/status.stowage.dev":                "the status of SpreadPolicies",
	"poddistributors.versprei.versprei.io":             "PodDistributors",
	"poddistributors/status.versprei.versprei.io":      "the status of PodDistributors",
	"stowage-spread-controllers mutatingwebhookconfigurations.admissionregistration.k8s.io stowage": "which pods the webhook is asked about",
	"mutatingwebhookconfigurations.admissionregistration.k8s.io stowage":                            "the CA bundle of Stowage's own webhook",
	"validatingwebhookconfigurations.admissionregistration.k8s.io stowage":                          "the CA bundle of the webhook that checks strategies in annotations",
	"tokenreviews.authentication.k8s.io":                                                            "who reads the metrics",
	"subjectaccessreviews.authorization.k8s.io":                                                     "whether the reader may",
	"nodeclaims.karpenter.sh":                                                                       "nodes that Karpenter is making",
	"nodepools.karpenter.sh":                                                                        "NodePools at their limit",
	"configmaps cluster-autoscaler-status":                                                          "node groups in back-off or at their maximum",
	"configmaps peer-pods-cm":                                                                       "how many VMs a node may have",
	"configmaps stowage-repair":                                                                     "for the next leader: how long repair waits after evictions that won nothing, and since when pods at the gate cannot be decided about",
	"configmaps stowage-config":                                                                     "settings that change without a restart",
	"stowage-spread-controllers secrets":                                                            "creation of the Secret below",
	"stowage-certificate-controllers secrets":                                                       "creation of the Secret below",
	"secrets stowage-seats":                                                                         "the key that signs seats",
	"secrets stowage-webhook-cert":                                                                  "the serving certificate",
	"leases.coordination.k8s.io":                                                                    "creation of the Leases of the two parts",
	"leases.coordination.k8s.io stowage-webhook":                                                    "election of the replica that stays in the Service, whatever its watch of pods shows",
	"leases.coordination.k8s.io stowage-leader":                                                     "election of the leader, and how far its watch of pods is behind",
	"endpointslices.discovery.k8s.io":                                                               "whether another replica is ready, before one leaves the Service",
}

// roles are Stowage's roles, each with its file and the heading of its part of the page. What only one of the two Deployments needs
// is in a role of the same name with a suffix.
var roles = []struct{ name, heading, intro, file, who string }{
	{"stowage", "Always", "", ownRoles, ""},
	{"stowage-spread", "Weighted spread", "Not needed with `features.spread=false` of the chart, which is `--spread=false`.", ownRoles, ""},
	{"stowage-sizing", "DaemonSet sizing", "Not needed with `features.sizing=false` of the chart, which is `--sizing=false`.", ownRoles, ""},
	{"stowage-peerpods", "Peer pods", "Not needed with `features.peerPods=false` of the chart, which is `--peer-pods=false`.", ownRoles, ""},
	{"stowage-capacity", "Peer pods: VMs of nodes", "Not needed with `--peerpods-capacity=Off`, or without peer pods.", ownRoles, ""},
	{"stowage-scale-down", "Scale-downs", "Not needed with `features.scaleDown=false` of the chart, which is `--scale-down=false`.", ownRoles, ""},
	{"stowage-certificate", "A certificate of its own", "Not needed with `certs.certManager` or `certs.existingSecret` of the chart, which set `--cert-dir`.", ownRoles, ""},
	{"stowage-karpenter", "With Karpenter", "Optional: `rbac.karpenter` of the chart, or `kubectl apply -k config/karpenter`.", "karpenter/role.yaml", "controllers"},
	{"stowage-metrics-auth", "With authenticated metrics", "Optional: `metrics.auth` of the chart, or `--metrics-auth` and `kubectl apply -k config/metricsauth`.", "metricsauth/role.yaml", ""},
	{"stowage-cluster-autoscaler", "With the cluster autoscaler", "Optional: `rbac.clusterAutoscaler` of the chart, or `kubectl apply -k config/clusterautoscaler`.", "clusterautoscaler/role.yaml", "controllers"},
}

// ownRoles is the file that controller-gen writes.
const ownRoles = "rbac/role.yaml"

// role is a Role, or a ClusterRole, which has no namespace.
type role struct {
	Metadata struct{ Name, Namespace string } `json:"metadata"`
	Rules    []rbacv1.PolicyRule              `json:"rules"`
}

// writePermissions writes the permissions of Stowage's ServiceAccount as Markdown, from the roles themselves. It is an
// error if a permission has no purpose, or a purpose has no permission.
func writePermissions(w io.Writer, config string) error {
	var b strings.Builder
	b.WriteString(`# Permissions reference

Generated by ` + "`make generate`" + ` from the roles in ` + "`config`" + `; do not edit.

These are all permissions of Stowage's two ServiceAccounts: ` + "`stowage`" + ` of the webhook, and
` + "`stowage-controllers`" + `. A verb in bold letters writes. A test fails if one of the accounts never uses a permission of its own. [Security](../../SECURITY.md) says what follows from them. The roles for people, ` + "`stowage-view`" + ` and ` + "`stowage-inspect`" + `,
only read ([operating](../operating.md#why-a-pod-looks-the-way-it-does-stowage-explain)).
`)
	used, known := map[string]bool{}, map[string]bool{}
	for _, part := range roles {
		data, err := os.ReadFile(filepath.Join(config, part.file))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n## %s\n\n", part.heading)
		if part.intro != "" {
			fmt.Fprintf(&b, "%s\n\n", part.intro)
		}
		b.WriteString("| resource | verbs | where | of | purpose |\n| --- | --- | --- | --- | --- |\n")
		for _, of := range []struct{ suffix, who string }{{"", part.who}, {"-webhook", "webhook"}, {"-controllers", "controllers"}} {
			for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
				var r role
				if err := yaml.Unmarshal(document, &r); err != nil {
					return fmt.Errorf("%s: %w", part.file, err)
				}
				is := r.Metadata.Name == part.name+of.suffix
				known[r.Metadata.Name] = known[r.Metadata.Name] || part.file != ownRoles || is
				if !is {
					continue
				}
				if err := writeRules(&b, &r, cmp.Or(of.who, "both"), used); err != nil {
					return fmt.Errorf("%s: %w", part.file, err)
				}
			}
		}
	}
	var wrong []error
	for key := range purposes {
		if !used[key] {
			wrong = append(wrong, fmt.Errorf("the purpose of %s is of no permission", key))
		}
	}
	for name, is := range known {
		if !is {
			wrong = append(wrong, fmt.Errorf("the role %s has no part of the page", name))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeRules writes one row for each resource of a role, and notes whose purposes it has used.
func writeRules(b *strings.Builder, r *role, who string, used map[string]bool) error {
	where := "cluster"
	if r.Metadata.Namespace != "" {
		where = "namespace `" + r.Metadata.Namespace + "`"
	}
	for _, rule := range r.Rules {
		for _, resource := range rule.Resources {
			if group := rule.APIGroups[0]; group != "" {
				resource += "." + group
			}
			key, shown := resource, "`"+resource+"`"
			if len(rule.ResourceNames) > 0 {
				key += " " + rule.ResourceNames[0]
				shown += " named `" + rule.ResourceNames[0] + "`"
			}
			if of := r.Metadata.Name + " " + key; purposes[of] != "" {
				key = of
			}
			purpose, ok := purposes[key]
			if !ok {
				return fmt.Errorf("the permission for %s has no purpose in hack/gendocs/permissions.go", key)
			}
			used[key] = true
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", shown, verbs(rule.Verbs), where, who, purpose)
		}
	}
	return nil
}

// verbs lists verbs, those that write in bold letters.
func verbs(of []string) string {
	out := make([]string, len(of))
	for i, verb := range of {
		if out[i] = verb; !slices.Contains([]string{"get", "list", "watch"}, verb) {
			out[i] = "**" + verb + "**"
		}
	}
	return strings.Join(out, ", ")
}
