package policytest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/internal/preview"
)

// Decided returns what was decided, in the form of what is expected.
func Decided(pods []preview.Admitted, warnings []string, err error, vmResource string) Expect {
	if err != nil {
		return Expect{Error: err.Error()}
	}
	out := Expect{Warnings: warnings}
	places := map[string]int{}
	for i := range pods {
		a := &pods[i]
		name := a.Workload.String()
		at, ok := places[name]
		if !ok {
			at = len(out.Workloads)
			places[name] = at
			out.Workloads = append(out.Workloads, Workload{Workload: name, Pods: new(0), Decisions: map[string]int{}})
		}
		out.Workloads[at].add(a, vmResource)
	}
	return out
}

func (w *Workload) add(a *preview.Admitted, vmResource string) {
	*w.Pods++
	w.Decisions[a.Decision()]++
	if pool := a.Result.Pool(); pool != nil {
		if w.Pools == nil {
			w.Pools = map[string]int{}
		}
		w.Pools[pool.Name]++
	}
	if node, requests, ok := a.Size(); ok {
		if w.Sizes == nil {
			w.Sizes = map[string]corev1.ResourceList{}
		}
		w.Sizes[node] = requests
	}
	vm, count := a.VM(vmResource)
	if count == 0 {
		return
	}
	if i := slices.IndexFunc(w.VMs, func(v VMs) bool { return v.VM == vm }); i >= 0 {
		w.VMs[i].Count += count
		return
	}
	w.VMs = append(w.VMs, VMs{Count: count, VM: vm})
}

// Compare returns what differs, as lines that begin with "- " where they were expected and with "+ " where they were
// decided. A case that expects nothing differs from all that was decided. Renewed is what the case has to expect to
// pass. It has the workloads and fields that the case names, or all of them if nothing of these was decided.
func Compare(expected, decided Expect) (differences []string, renewed Expect) {
	renewed = decided
	if !expected.empty() {
		renewed = project(decided, expected)
	}
	want, got := expected.lines(), renewed.lines()
	for _, l := range want {
		if !slices.Contains(got, l) {
			differences = append(differences, "- "+l)
		}
	}
	for _, l := range got {
		if !slices.Contains(want, l) {
			differences = append(differences, "+ "+l)
		}
	}
	// Lines about one thing stand together.
	slices.SortStableFunc(differences, func(a, b string) int { return cmp.Compare(subject(a), subject(b)) })
	if renewed.empty() {
		renewed = decided
	}
	return differences, renewed
}

func (e Expect) empty() bool { return len(e.Workloads) == 0 && len(e.Warnings) == 0 && e.Error == "" }

// subject is what a line of a difference is about.
func subject(line string) string {
	text, _, _ := strings.Cut(line[2:], " = ")
	return text
}

// project returns the parts of what was decided that are expected at all.
func project(decided, like Expect) Expect {
	out := Expect{Error: known(decided.Error, []string{like.Error})}
	for _, w := range decided.Warnings {
		if text := known(w, like.Warnings); !slices.Contains(out.Warnings, text) {
			out.Warnings = append(out.Warnings, text)
		}
	}
	for _, l := range like.Workloads {
		i := slices.IndexFunc(decided.Workloads, func(d Workload) bool { return d.Workload == l.Workload })
		if i < 0 {
			continue
		}
		d := decided.Workloads[i]
		w := Workload{Workload: d.Workload}
		if l.Pods != nil {
			w.Pods = d.Pods
		}
		if l.Decisions != nil {
			w.Decisions = d.Decisions
		}
		if l.Pools != nil {
			w.Pools = d.Pools
		}
		if l.Sizes != nil {
			w.Sizes = d.Sizes
		}
		if l.VMs != nil {
			w.VMs = d.VMs
		}
		out.Workloads = append(out.Workloads, w)
	}
	return out
}

// known returns the part of a text that is expected, or the whole text if none is.
func known(text string, parts []string) string {
	for _, part := range parts {
		if part != "" && strings.Contains(text, part) {
			return part
		}
	}
	return text
}

// lines says each thing that is expected in a line of its own.
func (e Expect) lines() []string {
	var out []string
	add := func(subject string, value any) { out = append(out, fmt.Sprintf("%s = %v", subject, value)) }
	for _, w := range e.Workloads {
		out = append(out, w.Workload)
		if w.Pods != nil {
			add(w.Workload+": pods", *w.Pods)
		}
		for _, counts := range []struct {
			what string
			of   map[string]int
		}{{"decision", w.Decisions}, {"pool", w.Pools}} {
			for _, name := range slices.Sorted(maps.Keys(counts.of)) {
				if n := counts.of[name]; n != 0 {
					add(fmt.Sprintf("%s: pods of %s %s", w.Workload, counts.what, name), n)
				}
			}
		}
		for _, node := range slices.Sorted(maps.Keys(w.Sizes)) {
			for _, name := range slices.Sorted(maps.Keys(w.Sizes[node])) {
				add(fmt.Sprintf("%s: %s on node %s", w.Workload, name, node), amount(name, w.Sizes[node][name]))
			}
		}
		for _, v := range w.VMs {
			gpus := ""
			if v.GPUs != "" {
				gpus = " and " + v.GPUs + " GPUs"
			}
			add(fmt.Sprintf("%s: VMs of %s vCPUs, %s MiB%s", w.Workload, v.VCPUs, v.Memory, gpus), v.Count)
		}
	}
	for _, w := range e.Warnings {
		out = append(out, "warning: "+w)
	}
	if e.Error != "" {
		out = append(out, "error: "+e.Error)
	}
	return out
}

// amount writes equal quantities of a resource in one way: 1Gi, 1024Mi and 1073741824 bytes are equal.
func amount(name corev1.ResourceName, q resource.Quantity) string {
	if name == corev1.ResourceCPU {
		return resource.NewMilliQuantity(q.MilliValue(), resource.DecimalSI).String()
	}
	return resource.NewQuantity(q.Value(), resource.BinarySI).String()
}
