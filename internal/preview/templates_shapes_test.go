package preview

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
)

// This file makes manifests of the shapes that public repositories have, and notes what they ask for in numbers of its own.

// fields are those of an object in a manifest.
type fields = map[string]any

// amount is a quantity as a manifest writes it, and what that is in thousandths: of a CPU, a byte or a device.
type amount struct {
	text  any
	milli int64
}

// Ascending, as people write them.
var (
	cpus = []amount{{"50m", 50}, {0.1, 100}, {"250m", 250}, {"0.5", 500}, {"500m", 500}, {0.75, 750}, {1, 1000}, {"1", 1000}, {"1001m", 1001}, {"1.5", 1500}, {2, 2000}, {"3500m", 3500}}
	mems = []amount{
		{"64Mi", 64 << 20 * 1000}, {"100M", 100e6 * 1000}, {"128Mi", 128 << 20 * 1000}, {134217729, 134217729 * 1000}, {"256000Ki", 256000 << 10 * 1000}, {"0.5Gi", 512 << 20 * 1000},
		{"600e6", 600e6 * 1000}, {"0.7Gi", 751619276800}, {"1G", 1e9 * 1000}, {"1Gi", 1 << 30 * 1000}, {"1.5Gi", 1536 << 20 * 1000}, {"2G", 2e9 * 1000}, {"2Gi", 2 << 30 * 1000}, {"5000M", 5e9 * 1000},
	}
	disks = []amount{{"500M", 500e6 * 1000}, {"1Gi", 1 << 30 * 1000}, {"10Gi", 10 << 30 * 1000}}
)

// amounts are by resource.
type amounts map[string]amount

func (a amounts) manifest() fields {
	out := fields{}
	for name, of := range a {
		out[name] = of.text
	}
	return out
}

// with returns the amounts with another one.
func (a amounts) with(name string, of amount) amounts {
	if a == nil {
		a = amounts{}
	}
	a[name] = of
	return a
}

// box is a container.
type box struct {
	name             string
	requests, limits amounts
	sidecar          bool // among the init containers
}

func (b *box) manifest() fields {
	out := fields{"name": b.name, "image": "registry.example/" + b.name + ":1"}
	resources := fields{}
	if b.requests != nil {
		resources["requests"] = b.requests.manifest()
	}
	if b.limits != nil {
		resources["limits"] = b.limits.manifest()
	}
	if len(resources) > 0 {
		out["resources"] = resources
	}
	if b.sidecar {
		out["restartPolicy"] = "Always"
	}
	return out
}

// share is a pool of a strategy.
type share struct {
	labels       map[string]string
	base, weight int64
}

// shape is a workload.
type shape struct {
	kind, name string
	replicas   int
	class      string // of the runtime
	init, main []box
	pools      []share
	pinned     bool
	template   *percentages // of a DaemonSet
	pod        fields       // the spec of its pods
	selector   map[string]string
	tolerates  bool // the taint of the node that has one
}

// shapes makes workloads by a generator whose seed is fixed.
type shapes struct{ *rand.Rand }

// one of n times it is true.
func (s shapes) oneIn(n int) bool { return s.IntN(n) == 0 }

// resources asks for amounts in one of the ways that people do: both, one of them, or none.
func (s shapes) resources(b *box) {
	way := s.IntN(6)
	for _, of := range []struct {
		name    string
		amounts []amount
	}{{"cpu", cpus}, {"memory", mems}} {
		most := s.IntN(len(of.amounts))
		if way != 0 && way != 2 {
			b.requests = b.requests.with(of.name, of.amounts[s.IntN(most+1)])
		}
		if way != 0 && way != 1 && (way != 3 || of.name == "memory") {
			b.limits = b.limits.with(of.name, of.amounts[most])
		}
	}
	if way == 4 {
		b.requests = b.requests.with("ephemeral-storage", disks[s.IntN(len(disks))])
	}
}

// workload makes the i-th workload.
func (s shapes) workload(i int) shape {
	w := shape{kind: []string{"Deployment", "StatefulSet", "Deployment", "Job", "DaemonSet"}[i%5], name: fmt.Sprintf("app-%d", i), replicas: 1 + s.IntN(12), pod: fields{}}
	w.class = []string{"", "", "sandbox", "kata-remote", "kata-remote"}[s.IntN(5)]
	for n := range 1 + s.IntN(3) {
		w.main = append(w.main, box{name: fmt.Sprintf("main-%d", n)})
	}
	for n := range s.IntN(3) {
		w.init = append(w.init, box{name: fmt.Sprintf("init-%d", n), sidecar: s.oneIn(2)})
	}
	for _, list := range [][]box{w.init, w.main} {
		for n := range list {
			s.resources(&list[n])
		}
	}
	if first := &w.main[0]; w.kind != "DaemonSet" && s.oneIn(4) {
		first.limits = first.limits.with("nvidia.com/gpu", amount{1 + i%3, int64(1+i%3) * 1000})
	}
	s.placement(&w)
	if w.kind == "DaemonSet" {
		w.template = &templates[s.IntN(len(templates))]
	} else {
		s.strategy(&w)
	}
	s.fill(&w)
	return w
}

// placement says where the pods may run, and what they mount.
func (s shapes) placement(w *shape) {
	if s.oneIn(3) {
		w.selector = map[string]string{"disk": "ssd"}
	}
	if s.oneIn(3) {
		w.tolerates = true
		w.pod["tolerations"] = []fields{{"key": "dedicated", "operator": "Equal", "value": "batch", "effect": "NoSchedule"}}
	}
	if s.oneIn(4) {
		w.pod["affinity"] = fields{
			"podAntiAffinity": fields{"preferredDuringSchedulingIgnoredDuringExecution": []fields{
				{"weight": 100, "podAffinityTerm": fields{"topologyKey": "kubernetes.io/hostname", "labelSelector": fields{"matchLabels": fields{"app": w.name}}}},
			}},
			"nodeAffinity": fields{"preferredDuringSchedulingIgnoredDuringExecution": []fields{
				{"weight": 1, "preference": fields{"matchExpressions": []fields{{"key": "type", "operator": "In", "values": []string{"spot"}}}}},
			}},
		}
	}
	if s.oneIn(4) {
		w.pod["topologySpreadConstraints"] = []fields{{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": fields{"matchLabels": fields{"app": w.name}}}}
	}
	if s.oneIn(5) {
		w.pod["hostNetwork"] = true
	}
	if s.oneIn(3) {
		w.pod["volumes"] = []fields{{"name": "cache", "emptyDir": fields{"sizeLimit": "1Gi"}}, {"name": "config", "configMap": fields{"name": "config"}}, {"name": "host", "hostPath": fields{"path": "/var/log"}}}
	}
}

// strategy divides the pods over two to four pools, unless they choose their nodes themselves.
func (s shapes) strategy(w *shape) {
	if s.oneIn(6) {
		return
	}
	w.pools = append(w.pools, share{labels: map[string]string{"type": "od"}, base: s.Int64N(4), weight: s.Int64N(3)})
	for n := range 1 + s.IntN(3) {
		w.pools = append(w.pools, share{labels: map[string]string{"type": "spot", "size": fmt.Sprint("s", n)}, base: s.Int64N(3), weight: 1 + s.Int64N(9)})
	}
	switch s.IntN(10) {
	case 2:
		for n := range w.pools { // bases alone; the pods beyond them have no seat
			w.pools[n].weight = 0
		}
		w.pools[0].base++
	case 0:
		w.selector, w.pinned = map[string]string{"type": "od"}, true
	case 1:
		w.pinned = true
		w.pod["affinity"] = fields{"nodeAffinity": fields{"requiredDuringSchedulingIgnoredDuringExecution": fields{
			"nodeSelectorTerms": []fields{{"matchExpressions": []fields{{"key": "size", "operator": "Exists"}}}},
		}}}
	}
}

// annotation is the strategy as a text.
func (w *shape) annotation() string {
	var parts []string
	for _, p := range w.pools {
		text := "type=" + p.labels["type"]
		if size := p.labels["size"]; size != "" {
			text += ",size=" + size
		}
		if p.base > 0 {
			text += fmt.Sprint(",base=", p.base)
		}
		parts = append(parts, fmt.Sprint(text, ",weight=", p.weight))
	}
	return strings.Join(parts, ":")
}

// fill writes what a shape says into the spec of its pods.
func (s shapes) fill(w *shape) {
	if w.class != "" {
		w.pod["runtimeClassName"] = w.class
	}
	if w.selector != nil {
		w.pod["nodeSelector"] = maps.Clone(w.selector)
	}
	if w.kind == "Job" {
		w.pod["restartPolicy"] = "Never"
	}
	for _, list := range []struct {
		name  string
		boxes []box
	}{{"initContainers", w.init}, {"containers", w.main}} {
		var out []fields
		for n := range list.boxes {
			out = append(out, list.boxes[n].manifest())
		}
		if out != nil {
			w.pod[list.name] = out
		}
	}
}

// manifest is the whole object.
func (w *shape) manifest(i int) fields {
	labels := fields{"app": w.name}
	own, ofPod := fields{}, fields{}
	if w.pools != nil {
		annotations := fields{"custom-pod-schedule-strategy": w.annotation()}
		if i%2 == 0 {
			annotations = fields{"UseCustomKubeScheduler": "true", "CustomPodScheduleStrategy": w.annotation()}
		}
		if i%3 == 0 {
			ofPod = annotations
		} else {
			own = annotations
		}
	}
	if w.template != nil {
		own["flexdaemonsets.xai/resource-template"] = w.template.name
	}
	spec := fields{"template": fields{"metadata": fields{"labels": labels, "annotations": ofPod}, "spec": w.pod}}
	version := "apps/v1"
	switch w.kind {
	case "Job":
		version, spec["parallelism"], spec["completions"] = "batch/v1", w.replicas, w.replicas+i%3
	case "DaemonSet":
		spec["selector"] = fields{"matchLabels": labels}
	default:
		spec["selector"], spec["replicas"] = fields{"matchLabels": labels}, w.replicas
		if w.kind == "StatefulSet" {
			spec["serviceName"] = w.name
		}
	}
	return fields{"apiVersion": version, "kind": w.kind, "metadata": fields{"name": w.name, "annotations": own}, "spec": spec}
}
