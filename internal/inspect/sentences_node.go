package inspect

import (
	"fmt"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// sentences are the facts of a node in words.
func (f *nodeFacts) sentences() (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if f.VMs != nil {
		say("It advertises %d %s, and its pods request %d.", f.VMs.Advertised, f.VMs.Resource, f.VMs.Used)
		for _, user := range f.VMs.Users {
			say("Pod %s/%s takes %d.", user.Namespace, user.Pod, user.VMs)
		}
		if f.VMs.Limit != nil {
			out = append(out, f.VMs.Limit.sentences()...)
		}
	}
	for _, p := range f.Sized {
		var parts []string
		for _, r := range p.Resources {
			parts = append(parts, fmt.Sprintf("%s %s", r.Resource, r.amount()))
		}
		say("Pod %s/%s is sized by FlexDaemonsetTemplate %s: %s.", p.Namespace, p.Pod, p.SizedBy, strings.Join(parts, ", "))
	}
	for _, p := range f.Pools {
		say("%d of the pods of %s %s/%s in pool %s.", p.Pods, bounded.Name(p.Kind), p.Namespace, bounded.Name(p.Owner), p.Pool)
	}
	if len(out) == 0 {
		say("Stowage decided nothing about it: it has no VMs, no sized pod and no pod with a seat.")
	}
	return out
}

func (f *limitFacts) sentences() (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case f.NotSelected:
		say("It may have none: --peerpods-node-selector does not select it.")
	case f.Own != "":
		say("Its own limit is %s, by the annotation %s.", f.Own, stowage.PeerPodsLimitAnnotation)
	case f.OfAll != nil:
		say("The limit of all nodes is %d (ConfigMap %s, or the flag --peerpods-limit-per-node).", *f.OfAll, f.ConfigMap)
	default:
		say("The limit of all nodes is invalid, so the node keeps the last valid one.")
	}
	switch f.Daemon {
	case daemonReady:
		say("Its daemon is Ready, so it advertises that many.")
	case daemonAbsent:
		say("It has no daemon that makes VMs, so it advertises none.")
	}
	for _, w := range f.Warnings {
		say("%s.", w)
	}
	return out
}

// amount is what a pod requests, with what is in force where that differs.
func (f shareFacts) amount() string {
	if f.InForce != "" {
		return fmt.Sprintf("%s (in force: %s)", f.Requested, f.InForce)
	}
	return f.Requested
}
