package preview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/stowage-dev/stowage/internal/admission/pipeline"
)

// Formats are the output formats of [Print], and "svg", which is that of [SVG].
var Formats = []string{"table", "yaml", "json", "svg"}

// Print writes the pods as a table or as one v1 List of Pods. The table has a row for each workload, or, where its
// pods differ, for each kind of pod.
func Print(out io.Writer, format string, pods []Admitted, vmResource string) error {
	if format == "table" {
		return printTable(out, pods, vmResource)
	}
	list := struct {
		APIVersion string        `json:"apiVersion"`
		Kind       string        `json:"kind"`
		Items      []*corev1.Pod `json:"items"`
	}{"v1", "List", make([]*corev1.Pod, len(pods))}
	for i := range pods {
		list.Items[i] = pods[i].Pod
	}
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	}
	_, err = fmt.Fprintln(out, string(data))
	return err
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

func printTable(out io.Writer, pods []Admitted, vmResource string) error {
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
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKLOAD\tPODS\tDECISION\tPOOL\tNODE\tCPU\tMEMORY\tSTORAGE\tGPUS\tVMS")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.workload, r.pods, r.decision, r.pool, r.node, r.cpu, r.memory, r.storage, r.gpus, dashIfZero(r.vms))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s, %d changed; they take %d %s. CPU to VMS are of each pod: its share of the node, or its VM.\n", podCount(len(pods)), changed, vms, vmResource)
	return err
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

func dashIfZero(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func podCount(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}
