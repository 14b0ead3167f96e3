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
	"k8s.io/apimachinery/pkg/labels"

	"github.com/stowage-dev/stowage/internal/spread/policy"
	"github.com/stowage-dev/stowage/internal/world"
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
			p, err := v.policies.Find(ctx, policy.Pod{Namespace: pod.Namespace, Owner: world.RefOf(owner), Annotations: pod.Annotations})
			if err != nil {
				return nil, err
			}
			if p == nil || p.Strategy == nil {
				continue
			}
			out = append(out, Plan{Workload: last, Policy: p})
		}
		if n := len(out); n > 0 && out[n-1].Workload == last {
			out[n-1].Pools = append(out[n-1].Pools, poolOf(&pods[i], out[n-1].Policy))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no workload of the input that has a pod has a strategy; there is nothing to draw")
	}
	return out, nil
}

// poolOf is the pool that a pod goes to, or would go to in mode Audit; -1 if it has none.
func poolOf(a *Admitted, p *policy.Policy) int {
	if chosen := a.Result.Pool(); chosen != nil {
		if pool, ok := p.PoolNamed(chosen.Name); ok {
			return pool
		}
	}
	return -1
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
