package peerpod

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// Convert returns the pod as a peer pod, and what its user should be warned of.
// It does not modify pod, which must have a container. It fails if an entry that
// counts is not a quantity, or one that no machine has.
//
// Of a container that an earlier pass has recorded, only the entries of the resources in sized count as they are now.
// A feature before this one has just decided them. "" stands for spec.resources there. Copied is the record in the
// pod template of the pod's owner, if it has one. A pod with the same text has it from there, and not from an earlier
// pass. Choose chooses the type of VM; nil chooses none.
func (c *Config) Convert(pod *podpatch.Pod, sized map[string][]corev1.ResourceName, copied string, choose Chooser) (converted *podpatch.Pod, warnings []string, err error) {
	// 1. Recall what an earlier pass of ours removed, and record each container that is new.
	seen, wrote, warnings := recall(pod, copied)
	now, err := c.record(pod, seen, sized, &warnings)
	if err != nil {
		return nil, nil, err
	}
	copiedRecord := seen == nil && wrote != nil
	if copiedRecord {
		now.Mark = !wrote.Mark
	}

	// 2. Size the VM, and annotate it where nobody else did.
	out := pod.Clone()
	total, err := c.annotate(out, pod, now, wrote, copiedRecord)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range now.Kept {
		value := pod.Metadata.Annotations[key]
		if key == stowage.DefaultVCPUsAnnotation {
			if _, ok := parseVCPUs(value); !ok {
				warnings = append(warnings, fmt.Sprintf("annotation %s is %q; Kata Containers expects a number there, such as 2 or 0.75", key, value))
			}
		} else if _, err := strconv.ParseUint(value, 10, 32); err != nil {
			warnings = append(warnings, fmt.Sprintf("annotation %s is %q; Kata Containers expects a whole number there", key, value))
		}
	}

	// 3. Choose the type of VM.
	if copiedRecord {
		wrote.Asks = "" // it was another pod that asked
	}
	var machine *catalog.Type
	if choose != nil || wrote != nil && wrote.Machine != "" {
		var told []string
		machine, told = chooseType(out, pod, now, wrote, total.need(pod, now.Kept), choose)
		warnings = append(warnings, told...)
	}

	// 4. Write out what containers read of their resources.
	warnings = append(warnings, writeOut(out, now, sizeOfType(machine, out.Metadata.Annotations))...)

	// 5. Take the entries out and ask for one VM instead.
	out.Spec.Resources = nil
	for ctr := range out.AllContainers() {
		if ctr.Resources != nil {
			ctr.Resources.Requests, ctr.Resources.Limits = nil, nil
		}
	}
	first := &out.Spec.Containers[0]
	if first.Resources == nil {
		first.Resources = &podpatch.Resources{}
	}
	first.Resources.Requests = podpatch.ResourceList{corev1.ResourceName(c.VMResource): "1"}
	first.Resources.Limits = podpatch.ResourceList{corev1.ResourceName(c.VMResource): "1"}

	out.SetAnnotation(stowage.OriginalResourcesAnnotation, now.String())
	out.SetLabel(stowage.PeerPodLabel, "true")
	return out, warnings, nil
}

// recall returns what an earlier pass removed from a pod, or nil. It also returns the record of the pass that wrote
// the sizing annotations: the same one, or one from the template of the pod's owner.
func recall(pod *podpatch.Pod, copied string) (seen, wrote *record, warnings []string) {
	seen, err := readRecord(pod)
	switch {
	case err != nil:
		return nil, nil, []string{fmt.Sprintf("annotation %s is not ours and was replaced: %v", stowage.OriginalResourcesAnnotation, err)}
	case seen != nil && podpatch.IsCopy(pod.Metadata.Annotations[stowage.OriginalResourcesAnnotation], copied):
		return nil, seen, []string{fmt.Sprintf("annotation %s in the pod template is a copy of another pod's and was ignored; remove it, and the annotations %s, from the template",
			stowage.OriginalResourcesAnnotation, strings.Join(sizingAnnotations, ", "))}
	}
	return seen, seen, nil
}

// record records what each container asked for: as an earlier pass saw it or, of a new one, as it is now. It
// fails for what is negative: the API server is to refuse it, and would not see it any more.
func (c *Config) record(pod *podpatch.Pod, seen *record, sized map[string][]corev1.ResourceName, warnings *[]string) (*record, error) {
	now := &record{Containers: make(map[string]*podpatch.Resources, len(pod.Spec.Containers)+len(pod.Spec.InitContainers))}
	if seen != nil {
		now.Mark = seen.Mark
	}
	switch {
	case seen != nil && seen.Pod != nil:
		now.Pod = seen.Pod
		if names := sized[""]; len(names) > 0 {
			now.Pod = refreshed(seen.Pod, pod.Spec.Resources, names)
		}
	case pod.Spec.Resources != nil:
		now.Pod = c.removable(pod.Spec.Resources)
		if err := eachEntry(now.Pod, notNegative); err != nil {
			return nil, fmt.Errorf("spec.resources: %w", err)
		}
		*warnings = append(*warnings, c.lossWarnings("spec.resources", now.Pod)...)
	}
	for ctr := range pod.AllContainers() {
		r, ok := seen.container(ctr.Name)
		if !ok {
			r = c.removable(ctr.Resources)
			if err := eachEntry(r, notNegative); err != nil {
				return nil, fmt.Errorf("container %q: %w", ctr.Name, err)
			}
			*warnings = append(*warnings, c.lossWarnings("container "+strconv.Quote(ctr.Name), r)...)
		} else if names := sized[ctr.Name]; len(names) > 0 {
			r = refreshed(r, ctr.Resources, names)
		}
		now.Containers[ctr.Name] = r
		if ctr.Resources != nil && len(ctr.Resources.Claims) > 0 {
			*warnings = append(*warnings, fmt.Sprintf(
				"container %q keeps its resources.claims: a device claimed there is attached to the node, not to the peer pod's VM", ctr.Name))
		}
	}
	return now, nil
}

// annotate writes the size of the VM into out, where nobody else wrote one, and notes in now which annotations are
// kept. Wrote is the record of the pass that wrote those of our annotations that the pod has. Where that is a copy
// from another pod, only those that it kept are kept, whatever that pod's containers were. It returns the total.
func (c *Config) annotate(out, pod *podpatch.Pod, now, wrote *record, copied bool) (amounts, error) {
	total, err := c.total(pod, now.Pod, now.entriesOf)
	if err != nil {
		return total, err
	}
	var ours map[string]string
	switch {
	case copied:
		ours = pod.Metadata.Annotations
	case wrote != nil:
		before, err := c.total(pod, wrote.Pod, wrote.entriesOf)
		if err != nil {
			return total, err
		}
		ours = annotationsFor(before.size())
	}
	now.Kept = keptAnnotations(pod.Metadata.Annotations, wrote, ours)
	for key, value := range annotationsFor(total.size()) {
		if slices.Contains(now.Kept, key) {
			continue
		}
		if twin, ok := twins[key]; ok && slices.Contains(now.Kept, twin) {
			value = pod.Metadata.Annotations[twin] // two names of one number must agree
		}
		if value == "" || !c.writes(key) {
			if _, wasOurs := ours[key]; wasOurs {
				delete(out.Metadata.Annotations, key)
			}
			continue
		}
		out.SetAnnotation(key, value)
	}
	return total, nil
}

// Account is how a peer pod's size came about.
type Account struct {
	// Entries are what each container and init container asked for, and "" the whole pod.
	Entries map[string]*podpatch.Resources
	// CPU and Memory are the total before it was rounded up, the latter in bytes.
	CPU, Memory *resource.Quantity
	Size        Size
	// Kept are the sizing annotations that another client set.
	Kept []string
}

// Account returns how the size of a peer pod came about, or nil if the pod is none.
func (c *Config) Account(pod *podpatch.Pod) (*Account, error) {
	r, total, err := c.recorded(pod)
	if r == nil || err != nil {
		return nil, err
	}
	a := &Account{
		Entries: maps.Clone(r.Containers), Size: total.size(), Kept: r.Kept,
		CPU:    resource.NewScaledQuantity(int64(total.nanoCPU), resource.Nano),
		Memory: resource.NewQuantity(ceilDiv(int64(total.memory), 1000), resource.BinarySI),
	}
	if r.Pod != nil {
		a.Entries[""] = r.Pod
	}
	return a, nil
}

// recorded returns what an earlier pass recorded of a peer pod, with the total of it. The record is nil if the pod is none.
func (c *Config) recorded(pod *podpatch.Pod) (*record, amounts, error) {
	r, err := readRecord(pod)
	if r == nil || err != nil {
		return nil, amounts{}, err
	}
	total, err := c.total(pod, r.Pod, r.entriesOf)
	return r, total, err
}

// twins are the two names of the VM's memory.
var twins = map[string]string{
	stowage.DefaultMemoryAnnotation: stowage.DefaultMemAnnotation,
	stowage.DefaultMemAnnotation:    stowage.DefaultMemoryAnnotation,
}

// writes reports whether a sizing annotation is written.
func (c *Config) writes(key string) bool {
	return key != stowage.DefaultMemAnnotation || slices.Contains(c.MemoryAnnotations, memoryNames[1])
}

// parseVCPUs returns the vCPUs that an annotation has, rounded up: Kata Containers reads a fraction there, too (setFloat32WithCheck in
// src/runtime/pkg/oci/utils.go of Kata Containers 4.1.0).
func parseVCPUs(text string) (vcpus int64, ok bool) {
	f, err := strconv.ParseFloat(text, 32)
	if err != nil || !(f >= 0 && f <= math.MaxInt32) { // which is not true of what is no number
		return 0, false
	}
	return int64(math.Ceil(f)), true
}

// annotationsFor returns every sizing annotation of a size; a value of zero is
// the empty string, which stands for "not written".
func annotationsFor(s Size) map[string]string {
	return map[string]string{
		stowage.DefaultVCPUsAnnotation:  positive(s.VCPUs),
		stowage.DefaultMemoryAnnotation: positive(s.MemoryMiB),
		stowage.DefaultMemAnnotation:    positive(s.MemoryMiB),
		stowage.DefaultGPUsAnnotation:   positive(s.GPUs),
	}
}

func positive(n int64) string {
	if n <= 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// keptAnnotations lists, sorted, the sizing annotations that are not ours: those
// recorded as such before, and those whose value is not what we wrote.
func keptAnnotations(annotations map[string]string, seen *record, ours map[string]string) []string {
	var kept []string
	for _, key := range sizingAnnotations {
		value, present := annotations[key]
		if !present {
			continue
		}
		if seen != nil && !slices.Contains(seen.Kept, key) {
			if value == ours[key] {
				continue
			}
			if twin, ok := twins[key]; ok && value == annotations[twin] && slices.Contains(seen.Kept, twin) {
				continue
			}
		}
		kept = append(kept, key)
	}
	return kept
}

var sizingAnnotations = slices.Sorted(maps.Keys(annotationsFor(Size{})))

// removable returns a copy of the entries that Convert takes out and that count.
// Our own VM entry is neither.
func (c *Config) removable(r *podpatch.Resources) *podpatch.Resources {
	if r == nil {
		return &podpatch.Resources{}
	}
	return &podpatch.Resources{Requests: c.withoutVM(r.Requests), Limits: c.withoutVM(r.Limits)}
}

func (c *Config) withoutVM(list podpatch.ResourceList) podpatch.ResourceList {
	if _, ok := list[corev1.ResourceName(c.VMResource)]; !ok {
		return list
	}
	list = maps.Clone(list)
	delete(list, corev1.ResourceName(c.VMResource))
	return list
}

// lossWarnings names what the VM will not have: huge pages, and extended resources that are no GPU.
func (c *Config) lossWarnings(where string, r *podpatch.Resources) []string {
	if r == nil {
		return nil
	}
	lost := podpatch.ResourceList{}
	for _, list := range []podpatch.ResourceList{r.Requests, r.Limits} {
		for name, q := range list {
			if isHugePages(name) || isExtendedResource(string(name)) && !c.isGPU(name) {
				lost[name] = q
			}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		why := "a device of the node cannot reach its VM"
		if isHugePages(name) {
			why = "the huge pages are the node's, and its VM has none"
		}
		out = append(out, fmt.Sprintf("%s: %s (%s) is left out of a peer pod: %s", where, name, lost[name], why))
	}
	return out
}

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}
