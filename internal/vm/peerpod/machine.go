package peerpod

import (
	"cmp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/podpatch"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// Chooser chooses the types of VMs from a catalog.
type Chooser interface {
	// Choose returns the type for what a pod asks for, or nil if it gets none, and what the pod's user should be warned of.
	Choose(need *catalog.Need) (t *catalog.Type, warnings []string)
	// Type returns the type of a name, or nil.
	Type(name string) *catalog.Type
	// Closed reports whether no new pod that asks for the same gets a type.
	Closed(name string, need *catalog.Need) bool
	// Check returns what the user of a pod should be warned of that has a type of somebody else's choice.
	Check(name string, need *catalog.Need) (warnings []string)
}

// noCatalog chooses nothing.
type noCatalog struct{}

func (noCatalog) Choose(*catalog.Need) (*catalog.Type, []string) { return nil, nil }
func (noCatalog) Type(string) *catalog.Type                      { return nil }
func (noCatalog) Closed(string, *catalog.Need) bool              { return false }
func (noCatalog) Check(string, *catalog.Need) []string           { return nil }

// chooseType writes the type of VM into out, where nobody else wrote one. It returns the type that the pod has now, or nil if the catalog does not
// have it. A pod that passes again keeps its type as long as it asks for the same, and the type is not closed: the record may be a copy, in the
// template of a workload that Stowage does not know. Without a catalog, choose is nil.
func chooseType(out, pod *podpatch.Pod, now, wrote *record, asks *catalog.Need, choose Chooser) (t *catalog.Type, warnings []string) {
	if choose == nil {
		choose = noCatalog{}
	}
	was := cmp.Or(wrote, &record{})
	machine, model := pod.Metadata.Annotations[stowage.MachineTypeAnnotation], pod.Metadata.Annotations[stowage.GPUModelAnnotation]
	ownModel := model != "" && model != was.Model
	if ownModel {
		asks.Model = model
	}
	asked := asks.String()
	switch {
	case machine != "" && machine != was.Machine: // another client's
		return choose.Type(machine), choose.Check(machine, asks)
	case machine != "" && was.Asks == asked && !choose.Closed(machine, asks):
		now.Machine, now.Model, now.Asks = was.Machine, was.Model, was.Asks
		return choose.Type(machine), nil
	}
	delete(out.Metadata.Annotations, stowage.MachineTypeAnnotation)
	if !ownModel {
		delete(out.Metadata.Annotations, stowage.GPUModelAnnotation)
	}
	if t, warnings = choose.Choose(asks); t == nil {
		return nil, warnings
	}
	now.Machine, now.Asks = t.Name, asked
	out.SetAnnotation(stowage.MachineTypeAnnotation, t.Name)
	if !ownModel && t.Model != "" && asks.GPUs > 0 {
		now.Model = t.Model
		out.SetAnnotation(stowage.GPUModelAnnotation, t.Model)
	}
	return t, warnings
}

// need is what a pod of a total asks for. The size of a VM that another client wrote into annotations counts in place of the total: it is of the
// whole VM.
func (a amounts) need(pod *podpatch.Pod, kept []string) *catalog.Need {
	n := &catalog.Need{NanoCPU: int64(a.nanoCPU), MilliMemory: int64(a.memory), GPUs: int64(a.gpus), Zones: zonesOf(pod)}
	for _, key := range kept {
		if key == stowage.DefaultVCPUsAnnotation {
			if v, ok := parseVCPUs(pod.Metadata.Annotations[key]); ok {
				n.NanoCPU, n.VCPUs = 0, v
			}
			continue
		}
		v, err := strconv.ParseUint(pod.Metadata.Annotations[key], 10, 32)
		if err != nil {
			continue
		}
		switch key {
		case stowage.DefaultMemoryAnnotation, stowage.DefaultMemAnnotation:
			n.MilliMemory, n.Memory = 0, int64(v)<<20
		case stowage.DefaultGPUsAnnotation:
			n.GPUs = int64(v)
		}
	}
	return n
}

// mostZones is how many zones of a pod count. A pod that names more may run everywhere.
const mostZones = 16

// zonesOf returns the zones in which a pod can run, sorted, as far as the pod itself names them; none if it can run everywhere. What a pod
// excludes, and where its volumes are, is not read.
func zonesOf(pod *podpatch.Pod) (zones []string) {
	if zone := pod.Spec.NodeSelector[corev1.LabelTopologyZone]; zone != "" {
		return []string{zone}
	}
	for _, term := range pod.RequiredTerms() { // any of them is enough
		of := zonesOfTerm(&term)
		if len(of) == 0 {
			return nil
		}
		zones = append(zones, of...)
	}
	slices.Sort(zones)
	if zones = slices.Compact(zones); len(zones) > mostZones {
		return nil
	}
	return zones
}

// zonesOfTerm returns the zones that a term names, in each expression of it that names any.
func zonesOfTerm(term *corev1.NodeSelectorTerm) (zones []string) {
	for _, e := range term.MatchExpressions {
		switch {
		case e.Key != corev1.LabelTopologyZone || e.Operator != corev1.NodeSelectorOpIn:
		case zones == nil:
			zones = slices.Clone(e.Values)
		default:
			zones = slices.DeleteFunc(zones, func(zone string) bool { return !slices.Contains(e.Values, zone) })
		}
	}
	return zones
}

// sizeOfType is the size of a VM of a type, or of the one that annotations ask for if that is nil. What they do not say is not in it.
func sizeOfType(t *catalog.Type, annotations map[string]string) corev1.ResourceList {
	vcpus, memory := SizeOf(annotations)
	if t != nil {
		vcpus, memory = t.VCPUs, t.Memory
	}
	out := corev1.ResourceList{}
	if vcpus > 0 {
		out[corev1.ResourceCPU] = *resource.NewQuantity(vcpus, resource.DecimalSI)
	}
	if memory > 0 {
		out[corev1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
	}
	return out
}

// Machine is what is known of the type of VM of a peer pod.
type Machine struct {
	// Type is the type that the pod has, whoever wrote it; "" if it has none. Ours says that Stowage chose it.
	Type string
	Ours bool
	Need *catalog.Need
}

// Machine returns the type of VM of a peer pod and what the pod asked for, or nil if the pod is none.
func (c *Config) Machine(pod *podpatch.Pod) (*Machine, error) {
	r, total, err := c.recorded(pod)
	if r == nil || err != nil {
		return nil, err
	}
	m := &Machine{Type: pod.Metadata.Annotations[stowage.MachineTypeAnnotation], Need: total.need(pod, r.Kept)}
	m.Ours = m.Type != "" && m.Type == r.Machine
	if model := pod.Metadata.Annotations[stowage.GPUModelAnnotation]; model != r.Model {
		m.Need.Model = model
	}
	return m, nil
}

// Offer returns what the catalog for the RuntimeClass of a peer pod has for it, or nil if there is no such catalog, or the pod is none. A record that
// cannot be read is none.
func (c *Config) Offer(all []*catalog.Catalog, pod *podpatch.Pod, namespace string) *catalog.Offer {
	of := catalog.For(all, pod.Spec.RuntimeClassName)
	if of == nil {
		return nil
	}
	m, err := c.Machine(pod)
	if m == nil || err != nil {
		return nil
	}
	return of.Offer(m.Need, namespace, m.Type, m.Type != "" && !m.Ours)
}
