package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Formats are the output formats of [Report.Print].
var Formats = []string{"table", "wide", "json", "yaml"}

// Print writes the report. Namespaces are told where it is about all of them.
func (r *Report) Print(out io.Writer, format string, allNamespaces bool) error {
	if format == "json" || format == "yaml" {
		return printObject(out, format, struct {
			OK bool `json:"ok"`
			*Report
		}{r.OK(), r})
	}
	var sections []string
	if r.Stowage != nil {
		sections = append(sections, r.Stowage.text())
	}
	head := len(sections)
	for _, text := range []string{r.problemTable(), r.workloadTable(format == "wide", allNamespaces), r.templateTable(), r.planTable(), r.vmTable(format == "wide")} {
		if text != "" {
			sections = append(sections, text)
		}
	}
	if len(sections) == head {
		sections = append(sections, "There is no workload with a strategy, no FlexDaemonsetTemplate and no peer-pod VM.\n")
	} else {
		sections = append(sections, r.Verdict()+"\n")
	}
	_, err := io.WriteString(out, strings.Join(sections, "\n"))
	return err
}

func printObject(out io.Writer, format string, object any) error {
	data, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
	} else {
		data = append(data, '\n')
	}
	_, err = out.Write(data)
	return err
}

// Verdict says what is not as it should be.
func (r *Report) Verdict() string {
	var parts []string
	count := func(n int, noun string) {
		if n == 1 {
			parts = append(parts, "1 "+noun)
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", n, noun))
		}
	}
	workloads, templates, nodes := 0, 0, 0
	for _, w := range r.Workloads {
		if !w.OK {
			workloads++
		}
	}
	for _, t := range r.Templates {
		if !t.OK {
			templates++
		}
	}
	if r.VMs != nil {
		for _, n := range r.VMs.Nodes {
			if !n.OK {
				nodes++
			}
		}
	}
	count(len(r.Problems), "problem")
	count(workloads, "workload")
	count(templates, "template")
	count(nodes, "node")
	if len(parts) == 0 {
		return "Everything is as it should be."
	}
	return "Not as it should be: " + strings.Join(parts, ", ") + "."
}

// table lines its cells up. Rows have as many cells as the head; spaces at the end of a
// line are cut.
func table(head []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a Builder takes everything
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// problemTable has the problems, each with what to do about it.
func (r *Report) problemTable() string {
	var rows [][]string
	for _, p := range r.Problems {
		object := p.Object
		if p.Namespace != "" {
			object = p.Namespace + "/" + object
		}
		rows = append(rows, []string{object, p.Problem, p.Action})
	}
	return table([]string{"OBJECT", "PROBLEM", "WHAT TO DO"}, rows)
}

func (r *Report) workloadTable(wide, allNamespaces bool) string {
	head := []string{"WORKLOAD", "POOL", "SHARE", "TARGET", "CURRENT", "READY", "PENDING", "DIFF"}
	if allNamespaces {
		head = append([]string{"NAMESPACE"}, head...)
	}
	if wide {
		head = append(head, "NODE LABELS", "POLICY")
	}
	head = append(head, "", "NOTE")
	var rows [][]string
	for _, w := range r.Workloads {
		add := func(note string, cells ...string) {
			row := append([]string{w.Kind + "/" + w.Name}, cells...)
			if allNamespaces {
				row = append([]string{w.Namespace}, row...)
			}
			rows = append(rows, append(row, note))
		}
		if len(w.Pools) == 0 {
			cells := []string{"-", "-", "-", "-", "-", "-", "-"}
			if wide {
				cells = append(cells, "-", w.Policy)
			}
			add(w.Note, append(cells, "")...)
		}
		most := int64(0)
		for _, p := range w.Pools {
			most = max(most, p.Target, p.Current)
		}
		for i, p := range w.Pools {
			cells := []string{
				p.Name, strconv.FormatFloat(p.Share, 'f', 1, 64), fmt.Sprint(p.Target), fmt.Sprint(p.Current), fmt.Sprint(p.Ready), fmt.Sprint(p.Pending),
				signed(p.Difference),
			}
			if wide {
				cells = append(cells, p.Labels, w.Policy)
			}
			note := ""
			if i == 0 {
				note = w.Note
			}
			add(note, append(cells, bar(p.Current, p.Target, most))...)
		}
	}
	return table(head, rows)
}

func signed(n int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%+d", n)
}

// barWidth is the most characters that a bar has. Up to it, each stands for a pod.
const barWidth = 24

// bar draws the pods that a pool has, those that it lacks and those that it has too many.
func bar(current, target, most int64) string {
	scaled := func(n int64) int {
		if most <= barWidth {
			return int(n)
		}
		return int((n*barWidth + most - 1) / most)
	}
	have, want := scaled(current), scaled(target)
	return strings.Repeat("█", min(have, want)) + strings.Repeat("▒", max(0, have-want)) + strings.Repeat("░", max(0, want-have))
}

func (r *Report) templateTable() string {
	var rows [][]string
	for _, t := range r.Templates {
		nodes := "-"
		if t.Nodes != nil {
			nodes = fmt.Sprint(*t.Nodes)
		}
		rows = append(rows, []string{t.Name, t.UpdatePolicy, fmt.Sprint(t.DaemonSets), nodes, fmt.Sprint(t.Pods), fmt.Sprint(t.OffSize), t.Note})
	}
	return table([]string{"TEMPLATE", "UPDATE", "DAEMONSETS", "NODES", "PODS", "OFF SIZE", "NOTE"}, rows)
}

func (r *Report) planTable() string {
	var rows [][]string
	for _, p := range r.Plans {
		rows = append(rows, []string{p.Namespace + "/" + p.DaemonSet, p.NodeClass, fmt.Sprint(p.Nodes), p.PlannedCPU, p.CPU, p.PlannedMemory, p.Memory})
	}
	return table([]string{"DAEMONSET", "NODE CLASS", "NODES", "PLANNED CPU", "CPU", "PLANNED MEMORY", "MEMORY"}, rows)
}

// vmTable has the nodes that have VMs, or all that may have some.
func (r *Report) vmTable(all bool) string {
	if r.VMs == nil || len(r.VMs.Nodes) == 0 {
		return ""
	}
	var rows [][]string
	idle := 0
	for _, n := range r.VMs.Nodes {
		if n.Used == 0 && !all {
			idle++
			continue
		}
		note := ""
		if !n.OK {
			note = "more than it may have"
		}
		rows = append(rows, []string{n.Name, fmt.Sprint(n.Capacity), fmt.Sprint(n.Used), fmt.Sprint(n.Free), note})
	}
	note := ""
	if idle > 0 {
		note = fmt.Sprintf("with %d node(s) without one", idle)
	}
	rows = append(rows, []string{"all", fmt.Sprint(r.VMs.Capacity), fmt.Sprint(r.VMs.Used), fmt.Sprint(r.VMs.Free), note})
	return table([]string{"NODE", strings.ToUpper(r.VMs.Resource), "USED", "FREE", ""}, rows)
}
