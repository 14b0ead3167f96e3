package policytest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/preview"
)

// Decided returns what was decided, in the form of what is expected. Workloads are those of the input, because some
// have no pods. Written is how the test file writes the paths of its inputs: texts must not depend on where it is.
func Decided(workloads []string, pods []preview.Admitted, warnings []string, err error, vmResource string, written map[string]string) Expect {
	var pairs []string
	for _, path := range slices.SortedFunc(maps.Keys(written), func(a, b string) int { return cmp.Compare(len(b), len(a)) }) {
		pairs = append(pairs, path, written[path]) // the longest first, because one may be the beginning of another
	}
	relative := strings.NewReplacer(pairs...)
	if err != nil {
		return Expect{Error: relative.Replace(err.Error())}
	}
	var out Expect
	for _, w := range warnings {
		out.Warnings = append(out.Warnings, relative.Replace(w))
	}
	places := map[string]int{}
	for _, name := range workloads {
		if _, ok := places[name]; !ok {
			places[name] = len(out.Workloads)
			out.Workloads = append(out.Workloads, Workload{
				Workload: name, Pods: new(0), Decisions: map[string]int{}, Pools: map[string]int{},
				Sizes: map[string]map[corev1.ResourceName]Quantity{}, VMs: []VMs{},
			})
		}
	}
	for i := range pods {
		out.Workloads[places[pods[i].Workload.String()]].add(&pods[i], vmResource)
	}
	return out
}

// AddScaleDowns adds what the policies of scale-downs mean for the workloads.
func (e *Expect) AddScaleDowns(all []preview.ScaleDown) {
	for i := range all {
		if at := slices.IndexFunc(e.Workloads, func(w Workload) bool { return w.Workload == all[i].Workload }); at >= 0 {
			e.Workloads[at].ScaleDown = &all[i]
		}
	}
}

func (w *Workload) add(a *preview.Admitted, vmResource string) {
	*w.Pods++
	w.Decisions[a.Decision()]++
	if pool := a.Result.Pool(); pool != nil {
		w.Pools[pool.Name]++
		if domain := a.Pod.Labels[stowage.DomainLabel]; domain != "" {
			if w.Domains == nil {
				w.Domains = map[string]int{}
			}
			w.Domains[pool.Name+"/"+domain]++
		}
	}
	if node, requests, ok := a.Size(); ok {
		w.Sizes[node] = map[corev1.ResourceName]Quantity{}
		for name, q := range requests {
			w.Sizes[node][name] = Quantity(q.String())
		}
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
// decided. A case that expects nothing differs from all that was decided.
func Compare(expected, decided Expect) (differences []string) {
	want, got := expected.lines(), decided.lines()
	if !expected.empty() {
		got = project(decided, expected).lines()
	}
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
	return differences
}

// Renew returns what a case has to expect to pass. It has the workloads and fields that the case names, with what was
// decided, or everything if the case names none. It is an error if that would remove what the case is about, because the
// inputs are wrong or lack a workload.
func Renew(expected, decided Expect) (Expect, error) {
	if decided.Error != "" && expected.Error == "" {
		return Expect{}, errors.New("the manifests are wrong, and the case does not expect that")
	}
	for _, w := range expected.Workloads {
		if !slices.ContainsFunc(decided.Workloads, func(d Workload) bool { return d.Workload == w.Workload }) {
			return Expect{}, fmt.Errorf("the manifests have no %s", w.Workload)
		}
	}
	if out := project(decided, expected); !expected.empty() && !out.empty() && (expected.Error == "") == (decided.Error == "") {
		return out, nil
	}
	return decided.short(), nil
}

// short leaves out the fields that are empty.
func (e Expect) short() Expect {
	out := e
	out.Workloads = slices.Clone(e.Workloads)
	for i := range out.Workloads {
		w := &out.Workloads[i]
		if len(w.Decisions) == 0 {
			w.Decisions = nil
		}
		if len(w.Pools) == 0 {
			w.Pools = nil
		}
		if len(w.Sizes) == 0 {
			w.Sizes = nil
		}
		if len(w.VMs) == 0 {
			w.VMs = nil
		}
	}
	return out
}

func (e Expect) empty() bool { return len(e.Workloads) == 0 && len(e.Warnings) == 0 && e.Error == "" }

// subject is what a line of a difference is about.
func subject(line string) string {
	text, _, _ := strings.Cut(line[2:], " = ")
	return text
}

// project returns the parts of what was decided that are expected at all.
func project(decided, like Expect) Expect {
	out := Expect{Error: decided.Error}
	if like.Error != "" && strings.Contains(decided.Error, like.Error) {
		out.Error = like.Error
	}
	for _, part := range like.Warnings {
		if slices.ContainsFunc(decided.Warnings, func(w string) bool { return strings.Contains(w, part) }) {
			out.Warnings = append(out.Warnings, part)
		}
	}
	for _, w := range decided.Warnings {
		if !slices.ContainsFunc(like.Warnings, func(part string) bool { return strings.Contains(w, part) }) {
			out.Warnings = append(out.Warnings, w)
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
		if l.Domains != nil {
			w.Domains = d.Domains
		}
		if l.ScaleDown != nil {
			w.ScaleDown = d.ScaleDown
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
		}{{"decision", w.Decisions}, {"pool", w.Pools}, {"domain", w.Domains}} {
			for _, name := range slices.Sorted(maps.Keys(counts.of)) {
				if n := counts.of[name]; n != 0 {
					add(fmt.Sprintf("%s: pods of %s %s", w.Workload, counts.what, name), n)
				}
			}
		}
		if s := w.ScaleDown; s != nil {
			add(w.Workload+": scale-downs", fmt.Sprintf("%s, %s, over [%s]", s.Policy, s.Mode, strings.Join(s.Keys, " "))+why(s.Why))
		}
		for _, node := range slices.Sorted(maps.Keys(w.Sizes)) {
			for _, name := range slices.Sorted(maps.Keys(w.Sizes[node])) {
				add(fmt.Sprintf("%s: %s on node %s", w.Workload, name, node), amount(name, w.Sizes[node][name]))
			}
		}
		for _, v := range w.VMs {
			add(fmt.Sprintf("%s: VMs of %s", w.Workload, textOf(&v.VM)), v.Count)
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

func why(text string) string {
	if text == "" {
		return ""
	}
	return ", because " + text
}

// textOf writes all that a VM is.
func textOf(v *preview.VM) string {
	text := fmt.Sprintf("%s vCPUs, %s MiB", v.VCPUs, v.Memory)
	if v.GPUs != "" {
		text += " and " + v.GPUs + " GPUs"
	}
	if v.Type != "" {
		text += ", type " + v.Type
	}
	if v.PricePerHour.Known {
		text += ", at " + v.PricePerHour.String() + " an hour"
	}
	return text
}

// amount writes equal quantities of a resource in one way: 1Gi, 1024Mi and 1073741824 bytes are equal.
func amount(name corev1.ResourceName, text Quantity) string {
	q, err := resource.ParseQuantity(string(text))
	switch {
	case err != nil:
		return string(text)
	case name == corev1.ResourceCPU:
		return resource.NewMilliQuantity(q.MilliValue(), resource.DecimalSI).String()
	}
	return resource.NewQuantity(q.Value(), resource.BinarySI).String()
}
