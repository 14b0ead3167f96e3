package finding

import (
	"fmt"
	"strings"
	"time"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
)

// OfHindrance returns the finding about what keeps a workload's pods from moving. It names no workload.
func OfHindrance(h *stowage.Hindrance) Finding {
	v := Values{Count: h.Count, Other: h.Pod, Objects: strings.Join(h.Objects, " and "), Several: len(h.Objects) > 1, Text: h.Message}
	if !h.Since.IsZero() {
		v.Since = h.Since.UTC().Format(time.RFC3339)
	}
	return Finding{Reason: Reason(h.Reason), Values: v}
}

// tooMany is how many pods a pool has more than it should have, at the beginning of a sentence. It is empty where that is not the matter.
func (f *Finding) tooMany() string {
	if f.Pool == "" {
		return ""
	}
	return fmt.Sprintf("pool %s has %d pods and should have %d: ", f.Pool, f.Count, f.Of)
}

// since is since when it is so, as a part of a sentence.
func (f *Finding) since() string { return ifElse(f.Since == "", "", " since "+f.Since) }

// plural is a noun for the objects.
func (f *Finding) plural(noun string) string {
	return ifElse(f.Several, noun+"s ", noun+" ") + f.Objects
}

// ofHindrances are the rows about what keeps Stowage from moving pods that it should move. Other is a pod, and Objects are what hinders.
var ofHindrances = map[Reason]row{
	EvictionRefused: {
		means: "The API server refuses to evict a pod that is to move.",
		sentence: func(f *Finding) string {
			by := "by " + f.plural("PodDisruptionBudget")
			if f.Objects == "" {
				by = f.Text
			}
			return fmt.Sprintf("%sthe eviction of pod %s has been refused%s: %s", f.tooMany(), f.Other, f.since(), by)
		},
		remedy: func(f *Finding) string {
			switch {
			case f.Several:
				return "have one PodDisruptionBudget select the pods, because the API server evicts no pod that two select; or " + f.rollOut()
			case f.Objects != "":
				return "wait until it allows a disruption, or change it; or " + f.rollOut()
			}
			return "correct what refuses evictions, or " + f.rollOut()
		},
		example: of(Values{Pool: "spot", Count: 5, Of: 3, Other: "web-1", Objects: "web", Since: "2026-01-02T15:04:05Z"}),
	},
	NoRoomForRebalance: {
		means: "No node has room for the successor of a pod that is to move.",
		sentence: func(f *Finding) string {
			if f.Text != "" {
				return fmt.Sprintf("%sno node of %s takes such a pod%s, so none is evicted: %s", f.tooMany(), f.plural("pool"), f.since(), f.Text)
			}
			return fmt.Sprintf("%sno node of %s has had room for another pod%s, so none is evicted", f.tooMany(), f.plural("pool"), f.since())
		},
		remedy: func(f *Finding) string {
			return ifElse(f.Text == "", "add nodes to that pool, or make room there", "correct that, or add other nodes to the pool") + "; Stowage looks again by itself"
		},
		example: of(Values{Pool: "spot", Count: 5, Of: 3, Objects: "on-demand", Since: "2026-01-02T15:04:05Z"}),
	},
	NotAllReady: {
		means: "Pods are not ready, and no pod that runs is evicted until all are.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%snone is evicted while a pod such as %s is not ready%s", f.tooMany(), f.Other, f.since())
		},
		remedy: func(f *Finding) string {
			return fmt.Sprintf("find out why it is not ready: kubectl -n %s describe pod %s; Stowage goes on by itself once all pods are ready", f.Namespace, f.Other)
		},
		example: of(Values{Pool: "spot", Count: 5, Of: 3, Other: "web-1", Since: "2026-01-02T15:04:05Z"}),
	},
	RolloutUnfinished: {
		severity: Passing, means: "Two revisions of a workload have pods, so none is evicted.",
		sentence: func(f *Finding) string {
			return f.tooMany() + "two revisions have had pods" + f.since() + ", and none is evicted until the rollout ends"
		},
		remedy: func(f *Finding) string {
			return ifElse(f.Paused, f.rollOut(), "end the rollout, or undo it; a Deployment that is paused has to be resumed first")
		},
		example: of(Values{Pool: "spot", Count: 5, Of: 3, Since: "2026-01-02T15:04:05Z"}),
	},
	RepairInVain: {
		means: "An eviction has won nothing, so the next one waits longer.",
		sentence: func(f *Finding) string {
			return f.tooMany() + "the last eviction has won nothing, so that the next one is at " + f.Text + " at the earliest"
		},
		remedy:  func(f *Finding) string { return "see the events of the workload, or " + f.rollOut() },
		example: of(Values{Pool: "spot", Count: 5, Of: 3, Text: "2026-01-02T15:14:05Z"}),
	},
	UpdateRefused: {
		means: "The API server refuses to update pods, so that they get no seat, or keep one that is not right.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%sthe API server has refused to give pods such as %s a seat%s: %s", f.tooMany(), f.Other, f.since(), f.Text)
		},
		remedy:  always("correct what the message names, such as an admission policy or a webhook, or apply the ClusterRoles of this version again"),
		example: of(Values{Other: "web-1", Text: `pods "web-1" is forbidden: no label may be added`, Since: "2026-01-02T15:04:05Z"}),
	},
	WebhookNotProven: {
		means: "Pods without a seat are not recreated, because no later pod has got one from the webhook, which may not be reached.",
		sentence: func(f *Finding) string {
			return fmt.Sprintf("%d pod(s) such as %s have no seat, and none is recreated before the webhook has given one to a later pod, of any workload", f.Count, f.Other)
		},
		remedy:  always("see whether the webhook answers: kubectl stowage check; if it does and nothing creates pods, restart a workload with a strategy"),
		example: of(Values{Count: 3, Other: "web-1"}),
	},
	PodsChooseNodes: {
		means: "Pods have no seat, because they choose their nodes themselves.",
		sentence: func(f *Finding) string {
			text := fmt.Sprintf("%d pod(s) such as %s have no seat, because they choose their nodes themselves, by %s", f.Count, f.Other, f.Objects)
			switch {
			case f.Missing && f.Pool != "":
				return text + ", which their pod template does not have, and which is that of pool " + f.Pool
			case f.Missing:
				return text + ", which their pod template does not have"
			}
			return text
		},
		remedy: func(f *Finding) string {
			switch {
			case f.Missing && f.Pool != "":
				return f.adding() + "; if somebody has removed the labels or the claim of their seat, delete these pods one after the other"
			case f.Missing:
				return f.adding()
			}
			return "remove that from the pod template, or from what adds it to pods, such as an admission policy or the namespace's node selector"
		},
		example: of(Values{Count: 3, Other: "web-1", Objects: "node label type"}),
	},
	PodHeld: {
		means:    "Pods that should be elsewhere stay where they run, because a volume, an annotation or their scheduling group holds them.",
		sentence: func(f *Finding) string { return f.tooMany() + f.Text },
		remedy:   func(f *Finding) string { return "none is needed; to move them, " + f.rollOut() },
		example:  of(Values{Pool: "spot", Count: 5, Of: 3, Text: "2 pod(s) that should be elsewhere stay where they run, such as web-1: the annotation karpenter.sh/do-not-disrupt protects it"}),
	},
}
