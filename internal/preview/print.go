package preview

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/stowage-dev/stowage/internal/admission/pipeline"
	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/vm/catalog"
)

// Formats are the output formats: that of [Summary.Print], those of [PodList], "svg", which is that of [SVG], and "html", which is that of [HTML].
var Formats = []string{"table", "yaml", "json", "svg", "html"}

// podList is a v1 List.
type podList struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Items      []*corev1.Pod `json:"items"`
}

// PodList is a v1 List of Pods as text. It keeps the text of each pod and not the pod, which takes several times as much.
type PodList struct {
	format string
	items  bytes.Buffer
	// head and tail are the text around the items, and between the one between two of them.
	head, between, tail string
}

// NewPodList returns a list of no pods, which is printed as yaml or json.
func NewPodList(format string) *PodList {
	if format == "yaml" {
		return &PodList{format: format, head: "apiVersion: v1\nitems:\n", tail: "kind: List\n"}
	}
	return &PodList{format: format, head: "{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"List\",\n  \"items\": [\n", between: ",\n", tail: "\n  ]\n}\n"}
}

// Add adds a pod.
func (l *PodList) Add(pod *corev1.Pod) error {
	var text bytes.Buffer
	if err := report.Object(&text, l.format, podList{"v1", "List", []*corev1.Pod{pod}}); err != nil {
		return err
	}
	item, ok := strings.CutPrefix(text.String(), l.head)
	item, ends := strings.CutSuffix(item, l.tail)
	if !ok || !ends {
		return fmt.Errorf("a List in %s has another form than expected", l.format)
	}
	if l.items.Len() > 0 {
		l.items.WriteString(l.between)
	}
	l.items.WriteString(item)
	return nil
}

// Print writes the list.
func (l *PodList) Print(out io.Writer) error {
	if l.items.Len() == 0 {
		return report.Object(out, l.format, podList{"v1", "List", []*corev1.Pod{}})
	}
	for _, text := range [][]byte{[]byte(l.head), l.items.Bytes(), []byte(l.tail)} {
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// row is a line of the table: pods of one workload that were decided alike.
type row struct {
	workload, decision string
	pool               string
	order              int    // of the workload
	node               string // of a pod with a size
	cpu, memory        string // of each pod with a size, or of its VM
	storage, gpus      string
	vms                int64  // of each pod
	machine, price     string // the type of its VM, and what one costs in an hour
	pods               int
}

// HTML writes the decisions about pods as a page: pictures of the plans, which may be none, and the table.
func HTML(out io.Writer, of *Summary, plans []Plan, warnings []string) error {
	t, summary := of.table()
	p := report.Page{Title: "Stowage: preview", Summary: []string{summary}, Warnings: warnings}
	if len(plans) > 0 {
		var plot strings.Builder
		if err := Plot(&plot, plans); err != nil {
			return err
		}
		p.Parts = append(p.Parts, report.Picture("Where the pods go", pictures(plans), ""), report.Part{Title: "How the division grows", Text: plot.String()})
	}
	p.Parts = append(p.Parts, report.Part{Title: "Decisions", Table: &t})
	if len(of.ScaleDowns) > 0 {
		downs := ScaleDownTable(of.ScaleDowns)
		p.Parts = append(p.Parts, report.Part{Title: "Scale-downs", Table: &downs})
	}
	return p.HTML(out)
}

// Summary sums up pods, for the table of decisions. It keeps none.
type Summary struct {
	// ScaleDowns are what policies of scale-downs mean for the workloads.
	ScaleDowns []ScaleDown

	vmResource    string
	rows          []row
	known         map[row]int // the places of rows, by what makes pods alike
	pods, changed int
	vms           int64
	last          *Workload
	order         int
	price         int64    // of all VMs in an hour, in millionths
	offers        []string // what catalogs have for the pods, once each
}

// NewSummary returns a summary of no pods.
func NewSummary(vmResource string) *Summary {
	return &Summary{vmResource: vmResource, known: map[row]int{}}
}

// Add adds the next pod.
func (s *Summary) Add(a *Admitted) {
	if s.pods > 0 && a.Workload != s.last {
		s.order++
	}
	s.last = a.Workload
	s.pods++
	r := rowOf(a, s.vmResource)
	if len(a.Result.Patch) > 0 {
		s.changed++
	}
	s.vms += r.vms
	if a.Offer != nil {
		s.addOffer(a.Offer)
	}
	alike := r
	alike.node = "" // a large cluster has many nodes of a size
	at, ok := s.known[alike]
	if !ok {
		at = len(s.rows)
		s.known[alike] = at
		r.order = s.order
		s.rows = append(s.rows, r)
	}
	s.rows[at].pods++
}

// Print writes the table. It has a row for each workload, or, where its pods differ, for each kind of pod.
func (s *Summary) Print(out io.Writer) error {
	t, text := s.table()
	text += "\n"
	if len(s.ScaleDowns) > 0 {
		downs := ScaleDownTable(s.ScaleDowns)
		text += "\n" + downs.Text()
	}
	_, err := io.WriteString(out, Printable(t.Text()+"\n"+text))
	return err
}

// table returns the table of decisions, and what they are in all.
func (s *Summary) table() (t report.Table, text string) {
	// Workloads stay in order, and the pools of one are sorted.
	rows := slices.SortedStableFunc(slices.Values(s.rows), func(a, b row) int { return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.pool, b.pool)) })
	t.Head = []string{"WORKLOAD", "PODS", "DECISION", "POOL", "NODE", "CPU", "MEMORY", "STORAGE", "GPUS", "VMS", "TYPE", "PRICE/H"}
	for _, r := range rows {
		each, node := "-", r.node
		if r.vms != 0 {
			each = strconv.FormatInt(r.vms, 10)
		}
		if node != "-" && r.pods > 1 {
			node = fmt.Sprintf("%s and %d more", node, r.pods-1)
		}
		t.Rows = append(t.Rows, []string{r.workload, strconv.Itoa(r.pods), r.decision, r.pool, node, r.cpu, r.memory, r.storage, r.gpus, each, cmp.Or(r.machine, "-"), cmp.Or(r.price, "-")})
	}
	t.DropEmpty("-")
	text = fmt.Sprintf("%s, %d changed", report.Pods(s.pods), s.changed)
	if s.vms > 0 {
		text += fmt.Sprintf("; they take %d %s", s.vms, s.vmResource)
	}
	text += "."
	if slices.Contains(t.Head, "CPU") || slices.Contains(t.Head, "MEMORY") {
		text += " Sizes are of each pod: its share of the node, or its VM."
	}
	if s.price > 0 {
		text += fmt.Sprintf(" The VMs cost %s an hour, by their VMCatalogs.", catalog.Money(s.price))
	}
	for _, offer := range s.offers {
		text += "\n" + line(offer)
	}
	return t, text
}

// mostOffers is how many kinds of pods a summary explains the types of.
const mostOffers = 20

// addOffer adds what a catalog has for the next pod.
func (s *Summary) addOffer(o *catalog.Offer) {
	s.price += o.PricePerHour.Micros
	if text := strings.Join(o.Sentences(), " "); len(s.offers) < mostOffers && !slices.Contains(s.offers, text) {
		s.offers = append(s.offers, text)
	}
}

func rowOf(a *Admitted, vmResource string) row {
	r := row{workload: a.Workload.String(), decision: line(a.Decision()), pool: line(pool(&a.Result)), node: "-", cpu: "-", memory: "-", storage: "-", gpus: "-"}
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
	r.machine, r.price = vm.Type, vm.PricePerHour.String()
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
	return fmt.Sprintf("%s (%s)", p.Name, p.Nodes)
}
