package preview

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/report"
)

// Formats are the output formats of [Print], "svg", which is that of [SVG], and "html", which is that of [HTML].
var Formats = []string{"table", "yaml", "json", "svg", "html"}

// Print writes the pods as a table or as one v1 List of Pods. The table has a row for each workload, or, where its
// pods differ, for each kind of pod.
func Print(out io.Writer, format string, pods []Admitted, vmResource string) error {
	if format == "table" {
		t, summary := tableOf(pods, vmResource)
		_, err := io.WriteString(out, t.Text()+"\n"+summary+"\n")
		return err
	}
	list := struct {
		APIVersion string        `json:"apiVersion"`
		Kind       string        `json:"kind"`
		Items      []*corev1.Pod `json:"items"`
	}{"v1", "List", make([]*corev1.Pod, len(pods))}
	for i := range pods {
		list.Items[i] = pods[i].Pod
	}
	return report.Object(out, format, list)
}

// row is a line of the table: pods of one workload that were decided alike.
type row struct {
	workload, decision string
	pool               string
	order              int    // of the workload
	node               string // of a pod with a size
	cpu, memory        string // of each pod with a size, or of its VM
	storage, gpus      string
	vms                int64 // of each pod
	pods               int
}

// HTML writes the decisions about pods as a page: pictures of the plans, which may be none, and the table.
func HTML(out io.Writer, pods []Admitted, plans []Plan, warnings []string, vmResource string) error {
	t, summary := tableOf(pods, vmResource)
	p := report.Page{Title: "Stowage: preview", Summary: []string{summary}, Warnings: warnings}
	if len(plans) > 0 {
		var plot strings.Builder
		if err := Plot(&plot, plans); err != nil {
			return err
		}
		p.Parts = append(p.Parts, report.Picture("Where the pods go", pictures(plans), ""), report.Part{Title: "How the division grows", Text: plot.String()})
	}
	p.Parts = append(p.Parts, report.Part{Title: "Decisions", Table: &t})
	return p.HTML(out)
}

// tableOf returns the table of decisions, and what they are in all.
func tableOf(pods []Admitted, vmResource string) (t report.Table, summary string) {
	var rows []row
	known := map[row]int{} // the places of rows, by what makes pods alike
	changed, vms, order := 0, int64(0), 0
	for i := range pods {
		if i > 0 && pods[i].Workload != pods[i-1].Workload {
			order++
		}
		r := rowOf(&pods[i], vmResource)
		if len(pods[i].Result.Patch) > 0 {
			changed++
		}
		vms += r.vms
		at, ok := known[r]
		if !ok {
			at = len(rows)
			known[r] = at
			r.order = order
			rows = append(rows, r)
		}
		rows[at].pods++
	}
	// Workloads stay in order, and the pools of one are sorted.
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.pool, b.pool)) })
	t.Head = []string{"WORKLOAD", "PODS", "DECISION", "POOL", "NODE", "CPU", "MEMORY", "STORAGE", "GPUS", "VMS"}
	for _, r := range rows {
		each := "-"
		if r.vms != 0 {
			each = strconv.FormatInt(r.vms, 10)
		}
		t.Rows = append(t.Rows, []string{r.workload, strconv.Itoa(r.pods), r.decision, r.pool, r.node, r.cpu, r.memory, r.storage, r.gpus, each})
	}
	return t, fmt.Sprintf("%s, %d changed; they take %d %s. CPU to VMS are of each pod: its share of the node, or its VM.", report.Pods(len(pods)), changed, vms, vmResource)
}

func rowOf(a *Admitted, vmResource string) row {
	r := row{workload: a.Workload.String(), decision: a.Decision(), pool: pool(&a.Result), node: "-", cpu: "-", memory: "-", storage: "-", gpus: "-"}
	if node, requests, ok := a.Size(); ok {
		r.node = node
		for _, f := range []struct {
			field *string
			name  corev1.ResourceName
			text  func(resource.Quantity) string
		}{{&r.cpu, corev1.ResourceCPU, cpuText}, {&r.memory, corev1.ResourceMemory, bytesText}, {&r.storage, corev1.ResourceEphemeralStorage, bytesText}} {
			if q, ok := requests[f.name]; ok {
				*f.field = f.text(q)
			}
		}
	}
	var vm VM
	vm, r.vms = a.VM(vmResource)
	for _, f := range []struct {
		field       *string
		value, unit string
	}{{&r.cpu, vm.VCPUs, ""}, {&r.memory, vm.Memory, " MiB"}, {&r.gpus, vm.GPUs, ""}} {
		if f.value != "" {
			*f.field = f.value + f.unit
		}
	}
	return r
}

func cpuText(q resource.Quantity) string { return q.String() }

// bytesText is a number of bytes with at most one decimal, in the largest unit of
// which there is at least one.
func bytesText(q resource.Quantity) string {
	n, rest, unit := q.Value(), int64(0), 0
	for ; n >= 1024; unit++ {
		n, rest = n/1024, n%1024
	}
	return fmt.Sprintf("%d.%d %sB", n, rest*10/1024, []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}[unit])
}

// pool is the pool that a pod goes to, with its labels, or a dash.
func pool(res *pipeline.Result) string {
	p := res.Pool()
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%s (%s)", p.Name, labels.Set(p.Labels))
}
