package preview

import "strings"

// percentages are a FlexDaemonsetTemplate.
type percentages struct {
	name     string
	percent  map[string]int64
	min, max amounts
	noLimits bool
}

var templates = []percentages{
	{name: "plain", percent: map[string]int64{"cpu": 10, "memory": 15}},
	{name: "odd", percent: map[string]int64{"cpu": 7, "memory": 13, "ephemeral-storage": 3}},
	{name: "least", percent: map[string]int64{"cpu": 3, "memory": 1}, min: amounts{"cpu": {"150m", 150}, "memory": {"129Mi", 129 << 20 * 1000}}},
	{name: "most", percent: map[string]int64{"cpu": 50, "memory": 33}, max: amounts{"cpu": {"1.234", 1234}, "memory": {"3000M", 3e9 * 1000}}},
	{name: "no-limits", percent: map[string]int64{"memory": 11}, noLimits: true},
}

func (p *percentages) manifest() fields {
	spec := fields{}
	for name, prefix := range map[string]string{"cpu": "CPU", "memory": "Memory", "ephemeral-storage": "Storage"} {
		if n, ok := p.percent[name]; ok {
			spec[strings.ToLower(prefix)+"Percentage"] = n
		}
		if of, ok := p.min[name]; ok {
			spec["min"+prefix] = of.text
		}
		if of, ok := p.max[name]; ok {
			spec["max"+prefix] = of.text
		}
	}
	if p.noLimits {
		spec["limits"] = "None"
	}
	return fields{"apiVersion": "flexdaemonsets.xai/v1alpha1", "kind": "FlexDaemonsetTemplate", "metadata": fields{"name": p.name}, "spec": spec}
}

// machine is a node.
type machine struct {
	name         string
	ssd, tainted bool
	allocatable  amounts
}

var machines = []machine{
	{"small", true, false, amounts{"cpu": {"1930m", 1930}, "memory": {"7097684Ki", 7097684 << 10 * 1000}, "ephemeral-storage": {"18242267924", 18242267924 * 1000}}},
	{"middle", true, false, amounts{"cpu": {"3920m", 3920}, "memory": {"14969Mi", 14969 << 20 * 1000}, "ephemeral-storage": {"95551679124", 95551679124 * 1000}}},
	{"large", false, false, amounts{"cpu": {"15.89", 15890}, "memory": {"62G", 62e9 * 1000}, "ephemeral-storage": {"200Gi", 200 << 30 * 1000}}},
	{"batch", true, true, amounts{"cpu": {"64", 64000}, "memory": {"131071999999", 131071999999 * 1000}, "ephemeral-storage": {"1Ti", 1 << 40 * 1000}}},
}

func (m *machine) manifest() fields {
	labels, spec := fields{"kubernetes.io/hostname": m.name}, fields{}
	if m.ssd {
		labels["disk"] = "ssd"
	}
	if m.tainted {
		spec["taints"] = []fields{{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}}
	}
	return fields{"apiVersion": "v1", "kind": "Node", "metadata": fields{"name": m.name, "labels": labels}, "spec": spec, "status": fields{"allocatable": m.allocatable.manifest()}}
}

// What the RuntimeClasses add.
var (
	overheads     = map[string]amounts{"sandbox": {"cpu": {"250m", 250}, "memory": {"120Mi", 120 << 20 * 1000}}, "kata-remote": {"memory": {"64M", 64e6 * 1000}}}
	classSelector = map[string]map[string]string{"kata-remote": {"kata-runtime": "true"}}
)
