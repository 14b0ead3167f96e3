package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
)

func (f *vmFacts) describe(a *Aspect) {
	switch {
	case f.Unreadable != "":
		a.say("The annotation %s is not readable: %s.", stowage.OriginalResourcesAnnotation, f.Unreadable)
	case f.NotConverted != nil:
		a.missed(*f.NotConverted, "converted to a peer pod")
	case f.Size != nil:
		a.Changed, a.Summary = true, fmt.Sprintf("one %s, for a VM outside the node", f.Resource)
		f.Size.describe(a)
		if f.Offer != nil {
			for _, sentence := range f.Offer.Sentences() {
				a.say("%s", sentence)
			}
		}
		if f.Type != "" {
			a.say("Its type of VM is %s.", f.Type)
		}
		a.say("The entries were taken out, so that the scheduler counts one %s and not the node's cpu and memory.", f.Resource)
	case f.RuntimeClass == "":
		a.say("It has no RuntimeClass; the pods of %s run in VMs.", strings.Join(f.Classes, ", "))
	default:
		a.say("Its RuntimeClass is %s; the pods of %s run in VMs.", f.RuntimeClass, strings.Join(f.Classes, ", "))
	}
}

func (s *vmSize) describe(a *Aspect) {
	for _, asked := range s.Asked {
		who := "Container " + asked.Container
		if asked.Container == "" {
			who = "The pod as a whole"
		}
		a.say("%s asked for %s.", who, cmp.Or(asked.text(), "nothing"))
	}
	var size []string
	if s.VCPUs > 0 {
		size = append(size, fmt.Sprintf("%s cpu is %d vCPU", s.CPU, s.VCPUs))
	}
	if s.MemoryMiB > 0 {
		size = append(size, fmt.Sprintf("%s of memory is %d MiB", s.Memory, s.MemoryMiB))
	}
	if s.GPUs > 0 {
		size = append(size, fmt.Sprintf("%d GPU", s.GPUs))
	}
	if len(size) > 0 {
		a.say("Together, each with its limit or else its request, rounded up: %s.", strings.Join(size, ", "))
	}
	for _, kept := range s.Kept {
		a.say("The annotation %s was there already, and stays %s.", kept.Key, kept.Value)
	}
}

func (f askedFacts) text() string {
	var parts []string
	for _, list := range []struct {
		name string
		of   podpatch.ResourceList
	}{{"requests", f.Requests}, {"limits", f.Limits}} {
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
