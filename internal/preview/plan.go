package preview

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	stowage "github.com/stowage-dev/stowage/api/stowage/v1alpha1"
	"github.com/stowage-dev/stowage/internal/cluster"
	"github.com/stowage-dev/stowage/internal/policy"
)

// Plan is where the pods of one workload go.
type Plan struct {
	Workload *Workload
	Policy   *policy.Policy
	// Pools are the pool of each pod, in the order in which the pods come; -1 is none.
	Pools []int
}

// Plans returns the plans of those workloads that have a strategy. There must be one.
func (v *Preview) Plans(ctx context.Context, pods []Admitted) ([]Plan, error) {
	var out []Plan
	var last *Workload
	for i := range pods {
		pod := pods[i].Pod
		if pods[i].Workload != last {
			last = pods[i].Workload
			owner := metav1.GetControllerOfNoCopy(pod)
			if owner == nil {
				continue
			}
			p, err := v.policies.Find(ctx, policy.Pod{Namespace: pod.Namespace, Owner: cluster.RefOf(owner), Annotations: pod.Annotations})
			if err != nil {
				return nil, err
			}
			if p == nil || p.Strategy == nil {
				continue
			}
			out = append(out, Plan{Workload: last, Policy: p})
		}
		if n := len(out); n > 0 && out[n-1].Workload == last {
			out[n-1].Pools = append(out[n-1].Pools, poolOf(pod, out[n-1].Policy))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no workload of the input that has a pod has a strategy; there is nothing to draw")
	}
	return out, nil
}

func poolOf(pod *corev1.Pod, p *policy.Policy) int {
	name, ok := pod.Labels[stowage.PoolLabel]
	if !ok {
		return -1
	}
	pool, ok := p.Pool(name)
	if !ok {
		return -1
	}
	return pool
}

// What a plot is made of: at most so many lines, and so many characters in a bar.
const (
	plotLines = 25
	plotWidth = 60
)

// letter stands for a pool in a plot. There are at most 32 pools.
func letter(pool int) string { return string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"[pool]) }

// Plot draws how each plan grows with the replica count, up to the pods that there are.
func Plot(out io.Writer, plans []Plan) error {
	var b strings.Builder
	for n, plan := range plans {
		s := plan.Policy.Strategy
		if n > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s, by the %s\n", plan.Workload, plan.Policy.Source)
		head := []string{"PODS"}
		for i := range s.Len() {
			pool := s.Pool(i)
			fmt.Fprintf(&b, "  %s  %s\n", letter(i), poolText(pool.Name, pool.Labels, pool.Base, pool.Weight, pool.Max))
			head = append(head, letter(i))
		}
		b.WriteString("\n")
		most := max(1, len(plan.Pools))
		step := (most + plotLines - 1) / plotLines
		var counts []int
		for c := step; c < most; c += step {
			counts = append(counts, c)
		}
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "%s\t\n", strings.Join(head, "\t"))
		for _, c := range append(counts, most) {
			row, bar := []string{strconv.Itoa(c)}, ""
			for i := range s.Len() {
				target := int(s.Target(i, int64(c)))
				row = append(row, strconv.Itoa(target))
				wide := target
				if most > plotWidth {
					wide = (target*plotWidth + most/2) / most
				}
				bar += strings.Repeat(letter(i), wide)
			}
			fmt.Fprintf(w, "%s\t  %s\n", strings.Join(row, "\t"), bar)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func poolText(name string, set map[string]string, base, weight, most int64) string {
	text := fmt.Sprintf("%s (%s): base %d, weight %d", name, labels.Set(set), base, weight)
	if most > 0 {
		text += fmt.Sprintf(", at most %d", most)
	}
	return text
}

// palette is eight colours that people with any colour vision tell apart (M. Okabe and
// K. Ito, "Color Universal Design", 2008), with the colour of the text on them. Pools are
// told apart by their columns, too.
var palette = []struct{ fill, text string }{
	{"#0072b2", "#fff"}, {"#e69f00", "#000"}, {"#009e73", "#fff"}, {"#cc79a7", "#000"},
	{"#56b4e9", "#000"}, {"#d55e00", "#fff"}, {"#f0e442", "#000"}, {"#555555", "#fff"},
}

// The measures of a picture, in pixels.
const (
	seatWidth, seatHeight = 34, 26
	seatGap               = 4
	seatsInRow            = 5
	poolGap               = 28
	margin                = 20
	lineHeight            = 18
	letterWidth           = 7
)

// SVG draws the plans: pools are columns, and each seat has the number of the pod that
// took it. It is readable on light and on dark pages.
func SVG(out io.Writer, plans []Plan) error {
	var body strings.Builder
	width, y := 0, margin
	for _, plan := range plans {
		w, bottom := drawPlan(&body, &plan, y)
		width, y = max(width, w), bottom+margin
	}
	_, err := fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" font-family="system-ui, sans-serif" font-size="12">
<title>Where the pods go</title>
<style>
.title { font-weight: 600; font-size: 14px; fill: #1f2328; }
.note { fill: #59636e; }
.bay { fill: none; stroke: #8b949e; }
@media (prefers-color-scheme: dark) { .title { fill: #f0f6fc; } .note { fill: #9198a1; } }
</style>
%s</svg>
`, width+2*margin, y, body.String())
	return err
}

// drawPlan draws one plan from y on, and returns its width and where it ends.
func drawPlan(b *strings.Builder, plan *Plan, y int) (width, bottom int) {
	s := plan.Policy.Strategy
	text := func(class string, x, y int, format string, args ...any) {
		line := fmt.Sprintf(format, args...)
		width = max(width, x-margin+letterWidth*len(line))
		fmt.Fprintf(b, "<text class=%q x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, html.EscapeString(line))
	}
	y += lineHeight
	text("title", margin, y, "%s: %s", plan.Workload, count(len(plan.Pools), "pod"))
	y += lineHeight
	text("note", margin, y, "%s", plan.Policy.Source)
	y += lineHeight / 2

	const seats = seatsInRow*(seatWidth+seatGap) + seatGap
	rows := 1
	counts := make([]int, s.Len())
	for _, pool := range plan.Pools {
		if pool >= 0 {
			counts[pool]++
			rows = max(rows, (counts[pool]+seatsInRow-1)/seatsInRow)
		}
	}
	top := y + 3*lineHeight
	bottom = top + rows*(seatHeight+seatGap) + seatGap
	x := margin
	at := make([]int, s.Len())
	for i := range at {
		pool := s.Pool(i)
		name, labels := pool.Name, labels.Set(pool.Labels).String()
		at[i] = x
		text("title", x, y+lineHeight, "%s: %d", name, counts[i])
		text("note", x, y+2*lineHeight, "%s", labels)
		fmt.Fprintf(b, "<rect class=\"bay\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/>\n", x, top, seats, bottom-top)
		x += max(seats, letterWidth*len(labels)) + poolGap
	}
	width = max(width, x-poolGap-margin)
	taken := make([]int, s.Len())
	unseated := 0
	for number, pool := range plan.Pools {
		if pool < 0 {
			unseated++
			continue
		}
		// Seats are taken from the bottom, as a hold is filled.
		n := taken[pool]
		taken[pool]++
		px := at[pool] + seatGap + n%seatsInRow*(seatWidth+seatGap)
		py := bottom - (n/seatsInRow+1)*(seatHeight+seatGap)
		c := palette[pool%len(palette)]
		fmt.Fprintf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" fill=%q/><text x=\"%d\" y=\"%d\" fill=%q text-anchor=\"middle\">%d</text>\n",
			px, py, seatWidth, seatHeight, c.fill, px+seatWidth/2, py+seatHeight/2+4, c.text, number+1)
	}
	if unseated > 0 {
		bottom += lineHeight
		text("note", margin, bottom, "%s without a seat", count(unseated, "pod"))
	}
	return width, bottom
}
