package preview

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-dev/stowage/internal/report"
	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/spread/sequence"
	"github.com/stowage-dev/stowage/internal/world"
)

// Plan is where the pods of one workload go.
type Plan struct {
	Workload *Workload
	Policy   *policy.Policy
	// Pools are the pool of each pod, in the order in which the pods come; -1 is none. Domains are the domains of the pods, if the
	// strategy has some.
	Pools, Domains []int
}

// cell is a place in a picture of a plan: a pool, or a domain of one. The domain is -1 for a pool that is not divided.
type cell struct{ pool, domain int }

// cells returns all of them.
func (p *Plan) cells() (out []cell) {
	s := p.Policy.Strategy
	for pool := range s.Len() {
		if s.Across() == nil {
			out = append(out, cell{pool, -1})
			continue
		}
		for domain := range s.Across().Domains {
			out = append(out, cell{pool, domain})
		}
	}
	return out
}

// cellOf returns where a pod of the plan is. It must have a pool.
func (p *Plan) cellOf(pod int) cell {
	if p.Policy.Across() == nil {
		return cell{p.Pools[pod], -1}
	}
	return cell{p.Pools[pod], p.Domains[pod]}
}

// SVG draws the plans: each seat has the number of the pod that took it.
func SVG(out io.Writer, plans []Plan) error { return report.SVG(out, pictures(plans)) }

// pictures are those of plans.
func pictures(plans []Plan) []report.Seats {
	out := make([]report.Seats, len(plans))
	for i := range plans {
		out[i] = plans[i].seats()
	}
	return out
}

// seats is the picture of a plan.
func (p *Plan) seats() report.Seats {
	out := report.Seats{Title: fmt.Sprintf("%s: %s", p.Workload, report.Pods(len(p.Pools))), Note: p.Policy.Source}
	numbers := map[cell][]int{}
	for pod, pool := range p.Pools {
		if pool < 0 {
			out.Unseated++
			continue
		}
		in := p.cellOf(pod)
		numbers[in] = append(numbers[in], pod+1)
	}
	for _, in := range p.cells() {
		out.Columns = append(out.Columns, report.Column{
			Name: p.nameOf(in), Count: report.Pods(len(numbers[in])), Labels: p.labelsOf(in), Pool: in.pool, Domain: in.domain,
			Runs: []report.Run{{State: report.Held, Count: int64(len(numbers[in])), Numbers: numbers[in]}},
		})
	}
	return out
}

// labelsOf are the node labels of a cell. Those of a pool that is divided stand at its first domain.
func (p *Plan) labelsOf(in cell) string {
	set := p.Policy.Nodes(in.pool, -1).String()
	switch {
	case in.domain < 0:
		return set
	case in.domain > 0:
		return ""
	}
	return set + ", over " + p.Policy.Strategy.Across().Key
}

// nameOf names a cell.
func (p *Plan) nameOf(in cell) string {
	name := "pool " + p.Policy.Strategy.Pool(in.pool).Name
	if in.domain >= 0 {
		name += ", " + p.Policy.Whole().DomainName(in.domain)
	}
	return name
}

// ErrNoPlan means that there is nothing to draw.
var ErrNoPlan = errors.New("no workload of the input that has a pod has a strategy; there is nothing to draw")

// Planner makes the plans of those workloads that have a strategy, pod by pod.
type Planner struct {
	preview *Preview
	plans   []Plan
	last    *Workload
	divided bool // the last workload
}

// Planner returns one of no pods.
func (v *Preview) Planner() *Planner { return &Planner{preview: v} }

// Add adds the next pod.
func (p *Planner) Add(ctx context.Context, a *Admitted) error {
	if a.Workload != p.last {
		p.last, p.divided = a.Workload, false
		owner := metav1.GetControllerOfNoCopy(a.Pod)
		if owner == nil {
			return nil
		}
		found, err := p.preview.policies.Find(ctx, policy.Pod{Namespace: a.Pod.Namespace, Owner: world.RefOf(owner), Annotations: a.Pod.Annotations})
		if err != nil {
			return err
		}
		if p.divided = found != nil && found.Layout != nil; p.divided {
			p.plans = append(p.plans, Plan{Workload: p.last, Policy: found})
		}
	}
	if p.divided {
		plan := &p.plans[len(p.plans)-1]
		pool, domain := poolOf(a, plan.Policy)
		plan.Pools, plan.Domains = append(plan.Pools, pool), append(plan.Domains, domain)
	}
	return nil
}

// Plans returns the plans. There must be one.
func (p *Planner) Plans() ([]Plan, error) {
	if len(p.plans) == 0 {
		return nil, ErrNoPlan
	}
	return p.plans, nil
}

// Plans returns the plans of some pods. There must be one.
func (v *Preview) Plans(ctx context.Context, pods []Admitted) ([]Plan, error) {
	p := v.Planner()
	for i := range pods {
		if err := p.Add(ctx, &pods[i]); err != nil {
			return nil, err
		}
	}
	return p.Plans()
}

// poolOf is the pool that a pod goes to, or would go to in mode Audit, with its domain; -1 if it has none.
func poolOf(a *Admitted, p *policy.Policy) (pool, domain int) {
	if chosen := a.Result.Pool(); chosen != nil {
		if pool, ok := p.PoolNamed(chosen.Name); ok {
			return pool, p.DomainOfNode(chosen.Nodes.Labels)
		}
	}
	return -1, -1
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
			fmt.Fprintf(&b, "  %s  %s\n", letter(i), poolText(&pool))
			if carry := plan.Policy.CarryOf(i); !carry.Empty() {
				fmt.Fprintf(&b, "     its new pods get: %s\n", carry.String())
			}
			head = append(head, letter(i))
		}
		if across := s.Across(); across != nil {
			values := make([]string, len(across.Domains))
			for i, d := range across.Domains {
				if values[i] = d.Value; d.Weight > 1 {
					values[i] += fmt.Sprintf(" (weight %d)", d.Weight)
				}
			}
			fmt.Fprintf(&b, "  each over %s: %s\n", across.Key, strings.Join(values, " / "))
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
				row = append(row, strconv.Itoa(target)+domainsOf(plan.Policy, i, int64(target)))
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
	_, err := io.WriteString(out, Printable(b.String()))
	return err
}

// domainsOf are how many of a pool's first seats each domain has, or nothing where there are no domains.
func domainsOf(p *policy.Policy, pool int, seats int64) string {
	if p.Domains() == nil {
		return ""
	}
	counts := make([]string, p.Domains().Len())
	for i := range counts {
		counts[i] = strconv.FormatInt(p.Domains().Given(pool, i, seats), 10)
	}
	return " = " + strings.Join(counts, "/")
}

func poolText(p *sequence.Pool) string {
	text := fmt.Sprintf("%s (%s): base %d, weight %d", p.Name, p.Nodes(), p.Base, p.Weight)
	if p.Max > 0 {
		text += fmt.Sprintf(", at most %d", p.Max)
	}
	if p.MaxShare > 0 {
		text += fmt.Sprintf(", at most %d%% of the pods beyond the bases", p.MaxShare)
	}
	return text
}
