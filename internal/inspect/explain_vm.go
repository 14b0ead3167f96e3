package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

// peerPod says what the pod really consumes, and why.
func (s *subject) peerPod(_ context.Context, a *Aspect) error {
	class := s.view.Spec.RuntimeClassName
	account, err := s.PeerPods.Account(s.view)
	if err != nil {
		a.say("The annotation %s is not readable: %v.", stowage.OriginalResourcesAnnotation, err)
		return nil
	}
	switch {
	case account != nil:
	case s.PeerPods.Targets(class):
		a.because(s.past("converted to a peer pod"))
		return nil
	case class == "":
		a.say("It has no RuntimeClass; the pods of %s run in VMs.", strings.Join(s.PeerPods.RuntimeClasses, ", "))
		return nil
	default:
		a.say("Its RuntimeClass is %s; the pods of %s run in VMs.", class, strings.Join(s.PeerPods.RuntimeClasses, ", "))
		return nil
	}
	a.Changed, a.Summary = true, fmt.Sprintf("one %s, for a VM outside the node", s.PeerPods.VMResource)
	for _, name := range slices.Sorted(maps.Keys(account.Entries)) {
		r, who := account.Entries[name], "Container "+name
		if name == "" {
			who = "The pod as a whole"
		}
		if r == nil || len(r.Requests)+len(r.Limits) == 0 {
			a.say("%s asked for nothing.", who)
			continue
		}
		a.say("%s asked for %s.", who, entriesText(r))
	}
	var size []string
	if account.Size.VCPUs > 0 {
		size = append(size, fmt.Sprintf("%s cpu is %d vCPU", account.CPU, account.Size.VCPUs))
	}
	if account.Size.MemoryMiB > 0 {
		size = append(size, fmt.Sprintf("%s of memory is %d MiB", account.Memory, account.Size.MemoryMiB))
	}
	if account.Size.GPUs > 0 {
		size = append(size, fmt.Sprintf("%d GPU", account.Size.GPUs))
	}
	if len(size) > 0 {
		a.say("Together, each with its limit or else its request, rounded up: %s.", strings.Join(size, ", "))
	}
	for _, key := range account.Kept {
		a.say("The annotation %s was there already, and stays %s.", key, s.pod.Annotations[key])
	}
	a.say("The entries were taken out, so that the scheduler counts one %s and not the node's cpu and memory.", s.PeerPods.VMResource)
	return nil
}

func entriesText(r *podpatch.Resources) string {
	var parts []string
	for _, list := range []struct {
		name string
		of   podpatch.ResourceList
	}{{"requests", r.Requests}, {"limits", r.Limits}} {
		var entries []string
		for _, name := range slices.Sorted(maps.Keys(list.of)) {
			entries = append(entries, fmt.Sprintf("%s %s", name, list.of[name]))
		}
		if len(entries) > 0 {
			parts = append(parts, list.name+" "+strings.Join(entries, ", "))
		}
	}
	return strings.Join(parts, "; ")
}
