// Package comparison compares Stowage's table of what nodes take a pod, [nodefit.Judge], with the filters of kube-scheduler itself, over random pods
// and nodes.
package comparison

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/stowage-dev/stowage/hack/controlplane/kubernetes/filters"
	"github.com/stowage-dev/stowage/internal/nodefit"
)

var (
	pairs = flag.Int("pairs", 10_000, "How many pairs of a pod and a node are compared")
	seed  = flag.Uint64("seed", 1, "The seed of the random pods and nodes")
	first = flag.Uint64("world", 0, "The number of the first world: with -pairs 1, the only one")
)

// byNode are the plugins by which an empty node refuses a pod for good: Judge must say Never where one of them refuses. Without pods,
// PodTopologySpread only refuses a node that lacks the key of a constraint.
var byNode = []string{
	names.NodeName, names.NodeAffinity, names.TaintToleration, names.NodeResourcesFit, names.VolumeBinding, names.VolumeZone, names.PodTopologySpread,
}

// byRoom are those by which a node has no room. Of the plugins that may refuse where Judge says Takes they are before the others.
var byRoom = append([]string{names.NodeUnschedulable, names.NodePorts}, byNode[:len(byNode)-1]...)

// decidedElsewhere are the rows of the table that may say Unknown.
var decidedElsewhere = []string{nodefit.ByScheduler, nodefit.ByVolume, nodefit.ByDevice}

// mostShown is how many disagreements of a kind are shown whole.
const mostShown = 2

// tally is what a comparison has come to.
type tally struct {
	worlds, pairs, constraints int
	verdicts                   map[nodefit.Verdict]int
	unknown                    map[string]int
	refused                    map[string]int
	disagreements              map[string]int
	shown                      []string
}

func newTally() *tally {
	return &tally{verdicts: map[nodefit.Verdict]int{}, unknown: map[string]int{}, refused: map[string]int{}, disagreements: map[string]int{}}
}

// Where the filters refuse a pod for good, Judge says Never; where they pass, it says Takes, and never Never. What the two agree about is in
// docs/design/pins.md.
func TestJudgeAgreesWithKubeScheduler(t *testing.T) {
	begin, sum := time.Now(), newTally()
	for number := *first; sum.pairs < *pairs; number++ {
		if err := newWorld(*seed, number).compare(t.Context(), sum); err != nil {
			t.Fatalf("world %d of seed %d: %v", number, *seed, err)
		}
		sum.worlds++
	}
	unknown := sum.verdicts[nodefit.Unknown]
	t.Logf("%d pairs of a pod and a node in %d worlds, and %d constraints with minDomains, in %s: %d Takes, %d Full, %d Never, %d Unknown (%.1f%%: %v); refused for good by %v",
		sum.pairs, sum.worlds, sum.constraints, time.Since(begin).Round(time.Millisecond), sum.verdicts[nodefit.Takes], sum.verdicts[nodefit.Full], sum.verdicts[nodefit.Never],
		unknown, 100*float64(unknown)/float64(sum.pairs), sum.unknown, sum.refused)
	for _, v := range []nodefit.Verdict{nodefit.Takes, nodefit.Full, nodefit.Never} {
		if sum.verdicts[v]*20 < sum.pairs && sum.pairs >= 10_000 {
			t.Errorf("the pods and nodes compare too little: the verdict %d in %d of %d pairs", v, sum.verdicts[v], sum.pairs)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(sum.disagreements)) {
		t.Errorf("%s: %d times", kind, sum.disagreements[kind])
	}
	for _, text := range sum.shown {
		t.Error(text)
	}
}

// answers are what the filters say of a pod and each node.
type answers map[string]filters.Answer

// compared is one pod, and what the filters say of it.
type compared struct {
	*world
	*asked
	sum *tally
	// lastingly and empty are about nodes without pods, and without what passes, such as a cordon: by the plugins that refuse for good, and by all.
	lastingly, empty answers
	// withOthers is about the nodes as they are, with the pods that are there.
	withOthers answers
}

func (w *world) compare(ctx context.Context, sum *tally) error {
	lastingly, err1 := filters.Only(byNode, w.objects(w.lasting, nil)...)
	empty, err2 := filters.New(w.objects(w.lasting, nil)...)
	withOthers, err3 := filters.New(w.objects(w.nodes, w.there)...)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	for i := range w.asked {
		c := &compared{world: w, asked: &w.asked[i], sum: sum}
		for _, ask := range []struct {
			of *filters.Filters
			to *answers
		}{{lastingly, &c.lastingly}, {empty, &c.empty}, {withOthers, &c.withOthers}} {
			got, err := ask.of.Passes(ctx, c.pod)
			if err != nil {
				return err
			}
			*ask.to = got
		}
		for j := range w.nodes {
			sum.pairs++
			c.pair(&w.nodes[j])
		}
		if err := c.compareCell(ctx); err != nil {
			return err
		}
	}
	return nil
}

// judge returns the verdict about a cell of some nodes.
func (c *compared) judge(pod *corev1.Pod, nodes []corev1.Node, pods []corev1.Pod) nodefit.Answer {
	return nodefit.Judge(pod, c.volumes, &nodefit.Cell{Set: c.pin, Nodes: nodes, Pods: pods, Now: now})
}

// claim is what would be a disagreement.
type claim struct {
	kind  string
	wrong bool
}

func (c *compared) check(about *corev1.Pod, nodes []corev1.Node, got nodefit.Answer, claims ...claim) {
	for _, is := range claims {
		if is.wrong {
			c.disagree(is.kind, about, nodes, got)
		}
	}
}

// disagree counts a disagreement, and shows the first ones.
func (c *compared) disagree(kind string, about *corev1.Pod, nodes []corev1.Node, got nodefit.Answer) {
	if c.sum.disagreements[kind]++; c.sum.disagreements[kind] > mostShown {
		return
	}
	text := fmt.Sprintf("%s: Judge says %v; -seed %d -world %d -pairs 1", kind, got, *seed, *first+uint64(c.sum.worlds))
	for _, n := range nodes {
		text += fmt.Sprintf("\n  for good %+v, empty %+v, with others %+v", c.lastingly[n.Name], c.empty[n.Name], c.withOthers[n.Name])
	}
	c.sum.shown = append(c.sum.shown, text+c.text(about, nodes))
}

// pair compares the answers about a pod and a node. The node is a cell by itself. So a minimum of domains is left out: see [compared.compareCell].
func (c *compared) pair(node *corev1.Node) {
	pod, only := withoutMinDomains(c.pod), []corev1.Node{*node}
	pods := append([]corev1.Pod{}, c.there...) // without pods the answer is never Takes
	got := c.judge(pod, only, pods)
	c.sum.verdicts[got.Verdict]++
	if got.Verdict == nodefit.Unknown {
		c.sum.unknown[got.Filter]++
	}
	refused := c.lastingly[node.Name]
	if !refused.Passes() {
		c.sum.refused[refused.Plugin]++
	}
	known, others := len(c.unknown) == 0, c.withOthers[node.Name]
	c.check(pod, only, got,
		claim{"refused for good by " + refused.Plugin + ", and not Never", known && !refused.Passes() && got.Verdict != nodefit.Never && !c.starts(node)},
		claim{"passes, and not Takes", known && others.Passes() && got.Verdict != nodefit.Takes},
		claim{"its shape has another answer", c.judge(nodefit.Shape(pod), only, pods) != got},
		claim{"no room, and Takes", got.Verdict == nodefit.Takes && slices.Contains(byRoom, others.Plugin)},
		claim{"passes on the empty node, and Never", c.empty[node.Name].Passes() && got.Verdict == nodefit.Never},
		claim{"Unknown without a reason", got.Verdict == nodefit.Unknown && (!c.unknown[got.Filter] || !slices.Contains(decidedElsewhere, got.Filter))},
		claim{"to be Unknown, and it is not", !known && got.Verdict < nodefit.Unknown},
	)
}

// starts reports whether a node may still get a resource that the pod asks for and that it has none of. Then its size is no reason yet.
func (c *compared) starts(node *corev1.Node) bool {
	if c.lastingly[node.Name].Plugin != names.NodeResourcesFit || now.Sub(node.CreationTimestamp.Time) > youngest {
		return false
	}
	for name, q := range resourcehelper.PodRequests(c.pod, resourcehelper.PodResourcesOptions{}) {
		if has := node.Status.Allocatable[name]; q.Sign() > 0 && has.Sign() <= 0 {
			return true
		}
	}
	return false
}

// text returns a pod and nodes as text.
func (c *compared) text(pod *corev1.Pod, nodes []corev1.Node) string {
	text := ""
	for _, o := range []any{pod, c.volumes.Terms, nodes} {
		data, err := json.Marshal(o)
		if err != nil {
			return err.Error()
		}
		text += "\n  " + string(data)
	}
	return text
}
