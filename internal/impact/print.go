package impact

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/stowage-dev/stowage/internal/report"
)

// Formats are the output formats of [Report.Print].
var Formats = []string{"text", "json", "yaml", "html"}

// shown is how many workloads a text shows unless it is to show all.
const shown = 20

// Print writes the report. A text shows the workloads first for which the change changes most. With all, every workload with a policy
// is listed.
func (r *Report) Print(out io.Writer, format string, all bool) error {
	if all {
		r.ListAll()
	}
	switch format {
	case "text":
		_, err := io.WriteString(out, r.text(all))
		return err
	case "html":
		return r.page().HTML(out)
	}
	return report.Object(out, format, r)
}

func (r *Report) text(all bool) string {
	most := shown
	if all {
		most = len(r.Workloads) + len(r.DaemonSets)
	}
	var b strings.Builder
	b.WriteString(r.summary())
	for _, t := range r.tables(most) {
		if len(t.Rows) > 0 {
			b.WriteString("\n" + t.Text())
		}
	}
	return b.String()
}

// page is the report as a page. It shows all rows, because a reader sorts them.
func (r *Report) page() *report.Page {
	p := &report.Page{Title: "Stowage: impact", Summary: strings.Split(strings.TrimSpace(r.summary()), "\n"), Warnings: r.Warnings}
	titles := []string{"Policies", "Pools", "Workloads", "DaemonSet sizes"}
	for i, t := range r.tables(len(r.Workloads) + len(r.DaemonSets)) {
		if titles[i] == "Workloads" {
			r.addReasons(&t)
		}
		if len(t.Rows) > 0 {
			p.Parts = append(p.Parts, report.Part{Title: titles[i], Table: &t})
		}
	}
	if picture, ok := r.picture(); ok {
		p.Parts = append([]report.Part{picture}, p.Parts...)
	}
	return p
}

// addReasons adds a column to the table of all workloads. It links to what a reason means, and what its remedy is.
func (r *Report) addReasons(t *report.Table) {
	t.Head = append(t.Head, "REASON")
	for i := range t.Rows {
		var names []string
		for _, reason := range r.Workloads[i].Reasons {
			names = append(names, string(reason))
		}
		t.Rows[i] = append(t.Rows[i], cmp.Or(strings.Join(names, ", "), "-"))
		t.LinkReasons("REASON", names...)
	}
}

// tables are those of the report, with so many workloads and DaemonSets at most.
func (r *Report) tables(most int) []report.Table {
	policies := report.Table{Head: []string{"POLICY", "CHANGE", "WORKLOADS", "PODS", "IN PLACE", "MOVED", "EVICTED", "ADOPTED", "KEPT", "WAITING", "UNSURE"}}
	for i := range r.Policies {
		p := &r.Policies[i]
		row := []string{p.Source, cmp.Or(p.Change, "-")}
		for _, n := range []int64{int64(p.Workloads), p.Pods, p.InPlace, p.Moved, p.Evicted, p.Adopted, p.KeptByVolume, p.Waiting, int64(p.Unsure)} {
			row = append(row, fmt.Sprint(n))
		}
		policies.Rows = append(policies.Rows, row)
	}
	pools := report.Table{Head: []string{"POOL", "LABELS", "NODES", "PODS NOW", "THEN", "ESTIMATE"}}
	for i := range r.Pools {
		p := &r.Pools[i]
		then := fmt.Sprint(p.Then)
		if r.Cluster.Replicas > 0 && r.Cluster.WithoutSeat == r.Cluster.Replicas {
			then = "-" // the scheduler decides
		}
		pools.Rows = append(pools.Rows, []string{p.Name, p.Labels, fmt.Sprint(p.Nodes), fmt.Sprint(p.Now), then, p.text()})
	}
	workloads := report.Table{Head: []string{"WORKLOAD", "PODS", "MOVED", "EVICTED", "NOW → THEN", "NOTE"}}
	for i := range min(most, len(r.Workloads)) {
		workloads.Rows = append(workloads.Rows, r.Workloads[i].row())
	}
	if rest := len(r.Workloads) - most; rest > 0 {
		workloads.Note = fmt.Sprintf("and %d more; --all shows them\n", rest)
	}
	sizes := report.Table{Head: []string{"DAEMONSET", "PODS", "CHANGED", "CPU NOW", "THEN", "MEMORY NOW", "THEN"}}
	for _, d := range r.DaemonSets[:min(most, len(r.DaemonSets))] {
		sizes.Rows = append(sizes.Rows, []string{d.Namespace + "/" + d.Name, fmt.Sprint(d.Pods), fmt.Sprint(d.Changed), d.CPUNow, d.CPUThen, d.MemoryNow, d.MemoryThen})
	}
	return []report.Table{policies, pools, workloads, sizes}
}

// summary is what a reader wants to know first.
func (r *Report) summary() string {
	var b strings.Builder
	b.WriteString(r.headline())
	c := &r.Cluster
	if c.Workloads > 0 {
		fmt.Fprintf(&b, "\nBefore their next rollout, %s evicted, and %s a seat where they run.\n", are(c.Evicted, "is", "are"), are(c.Adopted, "gets", "get"))
		fmt.Fprintf(&b, "Of %s after it, %s in place, and %s in another pool or domain.", plural(int(c.Replicas), "pod"), are(c.Stay, "is", "are"), are(c.Moved, "is", "are"))
		if c.WithoutSeat > 0 {
			fmt.Fprintf(&b, " The scheduler places %d of them as it likes.", c.WithoutSeat)
		}
		if c.Drained > 0 {
			fmt.Fprintf(&b, "\n%s now on nodes that go.", are(c.Drained, "pod is", "pods are"))
		}
		if c.Unsure > 0 {
			fmt.Fprintf(&b, "\nThe counts of %s may come out otherwise: see NOTE.", plural(c.Unsure, "workload"))
		}
	}
	for i := range r.Workloads {
		if w := &r.Workloads[i]; w.Refused != "" {
			fmt.Fprintf(&b, "\nRefused: %s %s/%s: %s.", w.Kind, w.Namespace, w.Name, w.Refused)
		}
	}
	if c.PodsWithoutRoom+c.NodesLacking+c.NodesFreed > 0 {
		fmt.Fprintf(&b, "\nEstimate: %s no room on the present nodes, %s would be needed, %s would be without pods.", are(c.PodsWithoutRoom, "pod finds", "pods find"), plural(int(c.NodesLacking), "node"), plural(int(c.NodesFreed), "node"))
	}
	if r.Cost != nil && r.Changes() {
		b.WriteString("\nEstimate: " + r.Cost.text())
	}
	if v := r.VMs; v != nil {
		fmt.Fprintf(&b, "\nPeer pods take %s instead of %d; the nodes may have %d.", plural(int(v.Then), "VM"), v.Now, v.Capacity)
		if v.PriceNow+v.PriceThen != "" {
			unknown := "an amount that is not known"
			fmt.Fprintf(&b, " By their VMCatalogs, these VMs cost %s an hour instead of %s.", cmp.Or(v.PriceThen, unknown), cmp.Or(v.PriceNow, unknown))
		}
	}
	if c.Drift > 0 {
		fmt.Fprintf(&b, "\nThe next rollout of %s changes pods, too, without the change: see kubectl stowage impact without arguments.", plural(c.Drift, "other workload"))
	}
	b.WriteString("\n")
	return b.String()
}

// headline is the first sentence of the summary: what is concerned.
func (r *Report) headline() string {
	of := plural(r.Cluster.Workloads, "workload") + " with " + plural(int(r.Cluster.Pods), "pod")
	switch {
	case !r.Changes() && r.Change:
		return "Nothing changes."
	case !r.Changes():
		return "The next rollout of each workload changes nothing."
	case r.Cluster.Workloads == 0:
		return "The change concerns the sizes of the pods of " + plural(len(r.DaemonSets), "DaemonSet") + "."
	case r.Change:
		return "The change concerns " + of + "."
	}
	return "The next rollout changes " + of + "."
}

func plural(n int, what string) string { return are(int64(n), what, what+"s") }

func are(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func (e *Estimate) text() string {
	var parts []string
	if e.PodsWithoutRoom > 0 {
		parts = append(parts, are(e.PodsWithoutRoom, "pod finds", "pods find")+" no room")
	}
	switch {
	case e.NodesLacking > 0:
		parts = append(parts, fmt.Sprintf("%s of %s needed", plural(int(e.NodesLacking), "node"), e.Shape))
	case e.PodsWithoutRoom > 0:
		parts = append(parts, "how many nodes are needed is not known")
	}
	if e.Autoscaled && e.PodsWithoutRoom > 0 {
		parts = append(parts, "Karpenter may make them")
	}
	if e.NodesFreed > 0 {
		parts = append(parts, plural(int(e.NodesFreed), "node")+" without pods")
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// free reports whether the scheduler, or volumes, decide where the pods go, because none has a seat.
func (w *Workload) free() bool {
	return w.Replicas > 0 && !slices.ContainsFunc(w.Pools, func(p WorkloadPool) bool { return p.Then > 0 })
}

// row is a workload as a row of the table.
func (w *Workload) row() []string {
	var pools, notes []string
	free := w.free()
	for _, p := range w.Pools {
		if free {
			pools = append(pools, fmt.Sprintf("%s %d", p.Name, p.Now))
			continue
		}
		text := fmt.Sprintf("%s %d→%d", p.Name, p.Now, p.Then)
		var domains []string
		for _, d := range p.Domains {
			domains = append(domains, fmt.Sprintf("%s %d→%d", d.Name, d.Now, d.Then))
		}
		if len(domains) > 0 {
			text += " (" + strings.Join(domains, ", ") + ")"
		}
		pools = append(pools, text)
	}
	if w.Outside > 0 {
		pools = append(pools, fmt.Sprintf("outside %d→0", w.Outside))
	}
	note := func(ok bool, format string, args ...any) {
		if ok {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	note(w.Policy != "" && w.Former != "", "by %s instead of %s", w.Policy, w.Former)
	note(w.Policy == "" && w.Former != "", "no longer by %s", w.Former)
	note(w.Replicas != w.Pods, "%s instead of %d", plural(int(w.Replicas), "pod"), w.Pods)
	note(w.LeftAlone != "", "left alone: %s", w.LeftAlone)
	for _, why := range w.Unsuitable {
		note(true, "unsuitable: pool %s", why)
	}
	note(w.Refused != "", "refused: see above")
	note(w.Drained > 0, "%s on nodes that go", are(w.Drained, "is", "are"))
	note(w.Adopted > 0, "%s a seat where they run", are(w.Adopted, "gets", "get"))
	note(w.KeptByVolume > 0, "%d kept by volumes", w.KeptByVolume)
	for _, p := range w.Pools {
		note(p.Gives != "", "new pods of pool %s get: %s", p.Name, p.Gives)
	}
	note(w.WithoutSeat > 0 && w.LeftAlone == "" && len(w.Pools) > 0 && !free, "%d without a seat", w.WithoutSeat)
	note(w.VMs != nil, "%s", w.VMs.text())
	for _, why := range w.Unsure {
		note(true, "unsure: %s", why)
	}
	return []string{w.Kind + " " + w.Namespace + "/" + w.Name, fmt.Sprint(w.Pods), fmt.Sprint(w.Moved), fmt.Sprint(w.Evicted), cmp.Or(strings.Join(pools, ", "), "-"), cmp.Or(strings.Join(notes, "; "), "-")}
}

func (v *VMChange) text() string {
	if v == nil {
		return ""
	}
	text := fmt.Sprintf("VMs %d→%d", v.Now, v.Then)
	if v.Size != "" {
		text += " of " + v.Size
	}
	switch {
	case len(v.TypesThen) > 0:
		text += ", type " + strings.Join(slices.Sorted(maps.Keys(v.TypesThen)), " and ")
	case len(v.TypesNow) > 0 && v.Then > 0:
		text += ", of no type of a VMCatalog"
	}
	if v.PriceNow+v.PriceThen != "" {
		text += fmt.Sprintf(", %s→%s an hour", cmp.Or(v.PriceNow, "?"), cmp.Or(v.PriceThen, "?"))
	}
	if o := v.Offer; o != nil && (v.changes() || o.Unfit != "") {
		text += ". " + strings.Join(o.Sentences(), " ")
	}
	return text
}
