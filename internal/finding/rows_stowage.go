package finding

import (
	"fmt"
	"slices"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// registration is an example of what findings about the registration are about.
var registration = Finding{Kind: "MutatingWebhookConfiguration", Name: "stowage", Values: Values{In: "stowage", Other: "stowage"}}

// ofStowage are the rows about Stowage itself. Other is its Deployment, and In its namespace.
var ofStowage = map[Reason]row{
	ReplicasNotReady: {
		means: "Replicas of Stowage are not ready.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d of %d replicas are ready%s", f.Count, f.Of, ifElse(f.Count == 0, ": "+f.Text, ""))
		},
		remedy:  func(f *Finding) string { return describePods(f.Namespace, f.Name) },
		example: Finding{Namespace: "stowage", Kind: "Deployment", Name: "stowage", Values: Values{Count: 1, Of: 2}},
	},
	InvalidConfig: {
		means:    "The ConfigMap of Stowage is invalid.",
		sentence: func(f *Finding) string { return "is invalid, and the last valid settings hold: " + f.Text },
		remedy:   always("correct it: a replica that starts now refuses it"),
		example:  Finding{Namespace: "stowage", Kind: "ConfigMap", Name: "stowage", Values: Values{Text: "spread: unknown field"}},
	},
	NoLeader: {
		means:    "No replica runs the controllers.",
		sentence: always("no replica of Stowage leads: nothing is repaired, resized or advertised, no status is written, and what keeps pods from moving is not known"),
		remedy: func(f *Finding) string {
			return fmt.Sprintf("see whether Stowage runs: kubectl -n %s get pods", f.Namespace)
		},
		example: Finding{Namespace: "stowage", Kind: "Lease", Name: "stowage-leader"},
	},
	NoCertificate: {
		means:    "The API server cannot verify the webhook's certificate.",
		sentence: always("its caBundle has no valid certificate, so that the API server does not reach the webhook"),
		remedy: func(f *Finding) string {
			return fmt.Sprintf("see the log of Stowage: kubectl -n %s logs deployment/%s", f.In, f.Other)
		},
		example: registration,
	},
	MissingRights: {
		means:    "A replica may not read or write what it has to.",
		sentence: func(f *Finding) string { return lacking(f.Text) },
		remedy:   always("apply the ClusterRoles and their bindings of this version again, such as by helm upgrade: docs/reference/permissions.md"),
		example:  Finding{Namespace: "stowage", Kind: "Pod", Name: "stowage-1", Values: Values{Text: "nodes, patch pods"}},
	},
	NotRegistered: {
		means:    "The API server does not know the webhook.",
		sentence: always("does not exist, so that pods are created as they are written"),
		remedy:   always("install Stowage, or remove its policies and its CustomResourceDefinitions"),
		example:  registration,
	},
	WithoutWebhook: {
		means: "Stowage is installed without its webhook, and there are policies that need it.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("does not exist, because Stowage is installed without its webhook, and %d workloads, policies or templates need it: their pods are created as they are written", f.Count)
		},
		remedy:  always("helm upgrade with --set webhook.enabled=true, or kubectl apply -k config/default; or remove these policies: ScaleDownPolicies need no webhook"),
		example: Finding{Kind: registration.Kind, Name: registration.Name, Values: Values{In: "stowage", Other: "stowage", Count: 2}},
	},
	NotInstalled: {
		means: "Stowage is not installed in the cluster of the context.",
		sentence: func(f *Finding) string {
			return "Stowage is not installed in " + f.Text + ": neither this nor any of its kinds (CustomResourceDefinitions) exists, " +
				ifElse(f.Missing, "and no", "and whether there is a") + " Deployment " + f.Other + " in namespace " + f.In + ifElse(f.Missing, "", " may not be read")
		},
		remedy:  always("name another context with --context (kubectl config get-contexts lists them), or install Stowage"),
		example: Finding{Kind: registration.Kind, Name: registration.Name, Values: Values{In: "stowage-system", Other: "stowage", Text: "context staging", Missing: true}},
	},
	KindsMissing: {
		means: "The API server lacks kinds of Stowage.",
		sentence: func(f *Finding) string {
			text := "does not exist"
			if f.Several {
				text = "is one of the kinds of Stowage that do not exist (" + f.Objects + ")"
			}
			return text + ", in " + f.Other + ": " + f.Text
		},
		remedy:  always("apply the CustomResourceDefinitions of this version, " + applyKinds + ", and write again what was in them"),
		example: Finding{Kind: "CustomResourceDefinition", Name: "poolstates.stowage.dev", Values: Values{Other: "context staging", Text: "Stowage evicts no pods"}},
	},
	KindsOlder: {
		means: "The API server has kinds of Stowage that lack fields, and drops these from what is written without a word.",
		sentence: func(f *Finding) string {
			return "is older than this command, and lacks " + f.Objects + ": the API server drops " + ifElse(f.Several, "them", "it") + " from what is written without a word"
		},
		remedy: func(f *Finding) string {
			return "apply the CustomResourceDefinitions of this version, " + applyKinds + ", and write again the objects that have " + ifElse(f.Several, "these fields", "this field")
		},
		example: Finding{Kind: "CustomResourceDefinition", Name: "spreadpolicies.stowage.dev", Values: Values{Objects: "spec.rebalance"}},
	},
	NoAnswer: {
		means: "No replica of the webhook answered.",
		sentence: func(f *Finding) string {
			switch {
			case f.Text != "":
				return f.Text
			case f.Missing:
				return "does not exist, and the registration names it"
			case f.Kind == "Service":
				return fmt.Sprintf("none of the %d pod(s) behind it is ready", f.Of)
			case f.Kind == "Deployment":
				return "nothing is wrong with what can be read, and no replica answered in time"
			}
			return fmt.Sprintf("no replica answered in the last %s: %d pod(s) were created without an answer", f.Other, f.Count)
		},
		remedy: func(f *Finding) string {
			switch {
			case f.Text != "":
				return "see whether Stowage runs, and whether the API server reaches the port of its pods"
			case f.Missing:
				return "install it again, or correct the registration"
			case f.Kind == "Service":
				return describePods(f.Namespace, f.Other)
			case f.Kind == "Deployment":
				return fmt.Sprintf("see the API server's log and apiserver_admission_webhook_fail_open_count, the NetworkPolicies of namespace %s, and whether the replicas are of an older version", f.Namespace)
			}
			return "find out why: kubectl stowage check"
		},
		example: Finding{Kind: registration.Kind, Name: registration.Name, Values: Values{Count: 3, Other: "4m"}},
	},
	UnknownGate: {
		means:    "Pods wait at a gate with Stowage's prefix that nobody removes.",
		sentence: func(f *Finding) string { return "waits at the gate " + f.Text + ", which nobody removes" },
		remedy:   always("write " + stowage.SeatGate + " in the pod template, or remove the gate"),
		example:  Finding{Namespace: "shop", Kind: "ReplicaSet", Name: "web-1", Values: Values{Text: "stowage.dev/seats"}},
	},
	PodsGated: {
		means: "Pods wait for their seat at the gate.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("has waited at the gate %s for %s, with %d other pod(s)", stowage.SeatGate, f.Text, f.Count)
		},
		remedy:  always("see why the leader does not seat it: kubectl stowage status; kubectl stowage ungate lets pods through without a seat"),
		example: Finding{Namespace: "shop", Kind: "Pod", Name: "web-1", Values: Values{Text: "5m", Count: 2}},
	},
}

// lacking says what a replica may not do, and what comes of that. The rights to write begin with their verb, and follow those to read.
func lacking(rights string) string {
	all := strings.Split(rights, ", ")
	first := slices.IndexFunc(all, func(right string) bool {
		verb, _, _ := strings.Cut(right, " ")
		return slices.Contains([]string{"create", "update", "patch", "delete"}, verb)
	})
	if first < 0 {
		first = len(all)
	}
	var out []string
	if first > 0 {
		out = append(out, "may not read "+strings.Join(all[:first], ", ")+": it decides by what it has read before, or leaves pods as they are")
	}
	if first < len(all) {
		out = append(out, "may not "+strings.Join(all[first:], ", ")+": what it is to do by that stays undone, and what its reports say may be old")
	}
	return strings.Join(out, "; and ")
}

// applyKinds is how to apply the CustomResourceDefinitions.
const applyKinds = "by helm upgrade, the install.yaml of its release, or kubectl apply --server-side -k config/crd"

func describePods(namespace, app string) string {
	return fmt.Sprintf("kubectl -n %s describe pods -l app.kubernetes.io/name=%s", namespace, app)
}
