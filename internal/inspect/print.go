package inspect

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stowage-dev/stowage/internal/finding"
	"github.com/stowage-dev/stowage/internal/platform/fair"
	"github.com/stowage-dev/stowage/internal/report"
)

// Formats are the output formats of [Report.Print].
var Formats = []string{"table", "wide", "json", "yaml", "html"}

// Layout is how a report is printed.
type Layout struct {
	// Format is one of [Formats].
	Format string
	// AllNamespaces says that the report is about all of them, so that namespaces are told.
	AllNamespaces bool
	// All prints every problem and the rows of every workload, however many there are.
	All bool
	// Width is how many characters a line has; 0 is no limit.
	Width int
	// Color marks what is not as it should be with the colors of a terminal.
	Color bool
}

// Print writes the report.
func (r *Report) Print(out io.Writer, l Layout) error {
	if l.Format == "json" || l.Format == "yaml" {
		return report.Object(out, l.Format, struct {
			OK bool `json:"ok"`
			*Report
		}{r.OK(), r})
	}
	if l.Format == "html" {
		return r.page(l).HTML(out)
	}
	sections := r.head(l)
	head := len(sections)
	parts := []string{r.problemText(l)}
	for _, t := range r.tables(l) {
		parts = append(parts, t.Text())
	}
	sections = append(sections, slices.DeleteFunc(parts, func(text string) bool { return text == "" })...)
	if len(sections) == head && !r.named {
		sections = append(sections, nothing+"\n")
	} else {
		sections = append(sections, l.mark(r.OK(), r.Verdict())+"\n")
	}
	_, err := io.WriteString(out, strings.Join(sections, "\n"))
	return err
}

// nothing is what a report is that has nothing to show.
const nothing = "There is no workload with a strategy, no FlexDaemonsetTemplate and no peer-pod VM."

// head is what a report begins with, in sections.
func (r *Report) head(l Layout) (sections []string) {
	if text := r.pausedText(); text != "" {
		sections = append(sections, text)
	}
	if r.Stowage != nil && !r.named {
		sections = append(sections, r.Stowage.text())
	}
	if r.Gate != nil && !r.named {
		sections = append(sections, r.Gate.text(l, r.at))
	}
	return sections
}

// tables are those of a report.
func (r *Report) tables(l Layout) []report.Table {
	return []report.Table{r.workloadTable(l), r.policyTable(l), r.scaleDownTable(l), r.templateTable(), r.planTable(), r.vmTable(l.Format != "table"), r.vmTypeTable()}
}

// page is the report as a page. It shows all rows, because a reader sorts them.
func (r *Report) page(l Layout) *report.Page {
	l.All, l.Width, l.Color = true, 0, false
	p := &report.Page{Title: "Stowage: status", Warnings: r.Warnings}
	for _, section := range r.head(l) {
		p.Summary = append(p.Summary, strings.TrimSpace(section))
	}
	p.Summary = append(p.Summary, r.Verdict())
	problems := report.Table{Head: []string{"NAMESPACE", "OBJECT", "PROBLEM", "WHAT TO DO", "REASON"}}
	var reasons []string
	for _, of := range r.Problems {
		reasons = append(reasons, string(of.Reason))
		problems.Rows = append(problems.Rows, []string{of.Namespace, of.Object, of.Problem, of.Action, string(of.Reason)})
	}
	problems.LinkReasons("REASON", reasons...)
	add := func(title string, t report.Table) {
		if len(t.Rows) > 0 {
			p.Parts = append(p.Parts, report.Part{Title: title, Table: &t})
		}
	}
	add("Problems", problems)
	if picture, ok := r.picture(); ok {
		p.Parts = append(p.Parts, picture)
	}
	titles := []string{"Workloads", "Policies", "Scale-downs", "DaemonSet sizes", "Sizes that Karpenter plans", "Peer pods", "VMs of peer pods, by namespace and type"}
	for i, t := range r.tables(l) {
		add(titles[i], t)
	}
	return p
}

// mark gives a text the color of what is as it should be, or of what is not.
func (l Layout) mark(ok bool, text string) string {
	switch {
	case !l.Color:
		return text
	case ok:
		return "\x1b[32m" + text + "\x1b[0m"
	}
	return "\x1b[1;31m" + text + "\x1b[0m"
}

// wrap breaks a text into lines of the layout's width. Each line but the first begins with the indent.
func (l Layout) wrap(text, indent string) string {
	if l.Width == 0 {
		return text
	}
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+length > l.Width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += length
	}
	return b.String()
}

// fewProblems is how many problems of one reason are printed, where many workloads have the same. The others are counted.
const fewProblems = 5

// problemText has the problems, each with what to do about it.
func (r *Report) problemText(l Layout) string {
	var b strings.Builder
	more, printed := map[finding.Reason]int{}, r.printed(l)
	for i := range r.Problems {
		p := &r.Problems[i]
		if !printed[i] {
			more[p.Reason]++
			continue
		}
		object := p.where() // one word, which wrap leaves as it is
		text := strings.TrimPrefix(l.wrap(object+": "+p.Problem, "  "), object)
		b.WriteString(l.mark(false, object) + text + "\n")
		b.WriteString("  " + l.wrap("→ "+p.Action, "    ") + "\n")
	}
	for _, reason := range slices.Sorted(maps.Keys(more)) {
		b.WriteString(l.mark(false, fmt.Sprintf("%d more like these (%s); --all shows them.", more[reason], reason)) + "\n")
	}
	return b.String()
}

// printed says which problems are printed. Of a reason with many, each namespace has its first before any has its second, so that no tenant takes
// the places of the others.
func (r *Report) printed(l Layout) []bool {
	turns := fair.Turns(len(r.Problems), func(i int) string { return string(r.Problems[i].Reason) + " " + r.Problems[i].Namespace })
	printed, seen := make([]bool, len(r.Problems)), map[finding.Reason]int{}
	for _, i := range turns {
		reason := r.Problems[i].Reason
		seen[reason]++
		printed[i] = seen[reason] <= fewProblems || l.All || r.named
	}
	return printed
}

// fewRows are so many that the rows of all workloads are printed.
const fewRows = 20

// mostRows is how many rows workloads have that are not as they should be. The others are counted.
const mostRows = 40

// shown returns the workloads that have rows. It also returns how many have none because they are as they should be, and how many
// because there are too many that are not.
func (r *Report) shown(l Layout) (shown []Workload, sound, more int) {
	rows := 0
	for _, w := range r.Workloads {
		rows += max(1, len(w.Pools))
	}
	if l.All || r.named || rows <= fewRows {
		return r.Workloads, 0, 0
	}
	ill := slices.DeleteFunc(slices.Clone(r.Workloads), func(w Workload) bool { return w.OK })
	rows = 0
	has := make([]bool, len(ill))
	for _, i := range fair.Turns(len(ill), func(i int) string { return ill[i].Namespace }) {
		rows += max(1, len(ill[i].Pools))
		has[i] = rows <= mostRows
	}
	for i := range ill {
		if has[i] {
			shown = append(shown, ill[i])
		}
	}
	return shown, len(r.Workloads) - len(ill), len(ill) - len(shown)
}

// poolRow is a row of the table of workloads: a workload with one of its pools, or with an empty one if it has none.
type poolRow struct {
	of    *Workload
	pool  *Pool
	first bool // row of the workload
}

// column is a column that the table of workloads may have.
type column struct {
	head  string
	shown bool
	cell  func(poolRow) string
}

// ofPool is the cells of a column about pools. A workload without pools has none.
func ofPool(cell func(*Pool) string) func(poolRow) string {
	return func(r poolRow) string {
		if len(r.of.Pools) == 0 {
			return "-"
		}
		return cell(r.pool)
	}
}

// workloadColumns are the columns of the table of some rows, in which a pool has or should have so many pods at most.
func workloadColumns(l Layout, rows []poolRow, most int64) []column {
	wide := l.Format != "table"
	divided := slices.ContainsFunc(rows, func(r poolRow) bool { return len(r.pool.Domains) > 0 })
	waits := slices.ContainsFunc(rows, func(r poolRow) bool { return r.pool.Pending > 0 })
	noted := slices.ContainsFunc(rows, func(r poolRow) bool { return r.of.Note != "" })
	return []column{
		{"NAMESPACE", l.AllNamespaces, func(r poolRow) string { return r.of.Namespace }},
		{"WORKLOAD", true, func(r poolRow) string { return finding.Object(r.of.Kind, r.of.Name) }},
		{"POOL", true, ofPool(func(p *Pool) string { return p.Name })},
		{"SHARE", wide, ofPool(func(p *Pool) string { return strconv.FormatFloat(p.Share, 'f', 1, 64) })},
		{"TARGET", true, ofPool(func(p *Pool) string { return fmt.Sprint(p.Target) })},
		{"CURRENT", true, ofPool(func(p *Pool) string { return fmt.Sprint(p.Current) })},
		{"READY", true, ofPool(func(p *Pool) string { return fmt.Sprint(p.Ready) })},
		{"PENDING", waits || wide, ofPool(func(p *Pool) string { return fmt.Sprint(p.Pending) })},
		{"DIFF", wide, ofPool(func(p *Pool) string { return signed(p.Difference) })},
		{"NODE LABELS", wide, ofPool(func(p *Pool) string { return p.Labels })},
		{"POLICY", wide, func(r poolRow) string { return r.of.Policy }},
		{"DOMAINS", divided, func(r poolRow) string { return r.pool.domains() }},
		{"PODS", true, func(r poolRow) string { return bar(r.pool, r.of.wanted(r.pool), most) }},
		{"NOTE", noted, func(r poolRow) string {
			if !r.first {
				return ""
			}
			return r.of.Note
		}},
	}
}

// workloadTable has a row for each pool of the workloads.
func (r *Report) workloadTable(l Layout) (t report.Table) {
	// 1. The rows, and the longest bar.
	shown, sound, more := r.shown(l)
	var rows []poolRow
	most := int64(0)
	for n := range shown {
		w := &shown[n]
		for p := range w.Pools {
			rows = append(rows, poolRow{w, &w.Pools[p], p == 0})
			most = max(most, w.Pools[p].Target, w.Pools[p].Current)
		}
		if len(w.Pools) == 0 {
			rows = append(rows, poolRow{w, &Pool{}, true})
		}
	}

	// 2. The cells.
	columns := slices.DeleteFunc(workloadColumns(l, rows, most), func(c column) bool { return !c.shown })
	for _, c := range columns {
		t.Head = append(t.Head, c.head)
	}
	for _, row := range rows {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.cell(row))
		}
		t.Rows = append(t.Rows, cells)
	}

	// 3. What the bars mean, and what is not shown.
	if most > 0 {
		waits := ""
		if slices.ContainsFunc(rows, func(r poolRow) bool { return r.pool.Pending > 0 }) {
			waits = "▄ waits for a node, "
		}
		t.Note += fmt.Sprintf("PODS: █ is %s, %s░ is missing, ▒ is too many\n", scale(most), waits)
	}
	if more > 0 {
		t.Note += fmt.Sprintf("%d more workloads are not as they should be; --all shows their rows.\n", more)
	}
	switch {
	case sound == 1:
		t.Note += "1 workload is as it should be; --all shows its rows.\n"
	case sound > 1:
		t.Note += fmt.Sprintf("%d workloads are as they should be; --all shows their rows.\n", sound)
	}
	return t
}

func signed(n int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%+d", n)
}

// barWidth is the most characters that a bar has. Up to it, each stands for a pod.
const barWidth = 20

// scale says for how many pods a character of a bar stands, where the longest stands for most.
func scale(most int64) string {
	if n := (most + barWidth - 1) / barWidth; n > 1 {
		return fmt.Sprintf("up to %d pods", n)
	}
	return "a pod"
}

// bar draws the pods that a pool has, which wait for a node last, those that it lacks and those that it has too many. All bars have one scale.
func bar(p *Pool, target, most int64) string {
	each := max(1, (most+barWidth-1)/barWidth)
	scaled := func(n int64) int { return int((n + each - 1) / each) }
	have, run, want := scaled(p.Current), scaled(p.Current-p.Pending), scaled(target)
	return strings.Repeat("█", min(run, want)) + strings.Repeat("▄", max(0, min(have, want)-run)) + strings.Repeat("▒", max(0, have-want)) + strings.Repeat("░", max(0, want-have))
}

func (r *Report) templateTable() report.Table {
	var rows [][]string
	for _, t := range r.Templates {
		nodes := "-"
		if t.Nodes != nil {
			nodes = fmt.Sprint(*t.Nodes)
		}
		rows = append(rows, []string{t.Name, t.UpdatePolicy, fmt.Sprint(t.DaemonSets), nodes, fmt.Sprint(t.Pods), fmt.Sprint(t.OffSize), t.Note})
	}
	return report.Table{Head: []string{"TEMPLATE", "UPDATE", "DAEMONSETS", "NODES", "PODS", "OFF SIZE", "NOTE"}, Rows: rows}
}

func (r *Report) planTable() report.Table {
	var rows [][]string
	for _, p := range r.Plans {
		rows = append(rows, []string{p.Namespace + "/" + p.DaemonSet, p.NodeClass, fmt.Sprint(p.Nodes), p.PlannedCPU, p.CPU, p.PlannedMemory, p.Memory})
	}
	return report.Table{Head: []string{"DAEMONSET", "NODE CLASS", "NODES", "PLANNED CPU", "CPU", "PLANNED MEMORY", "MEMORY"}, Rows: rows}
}

// vmTable has the nodes that have VMs, or all that may have some.
func (r *Report) vmTable(all bool) report.Table {
	if r.VMs == nil || len(r.VMs.Nodes) == 0 || r.VMs.Used == 0 && !all {
		return report.Table{}
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
	return report.Table{Head: []string{"NODE", strings.ToUpper(r.VMs.Resource), "USED", "FREE", ""}, Rows: rows}
}
