// Package scaledown plays scale-downs with the ReplicaSet controller's own order of pods, [controller.ActivePodsWithRanks], and the
// layers that Stowage writes as deletion costs.
package scaledown

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/controller"

	"github.com/stowage-dev/stowage/internal/scaledown/layers"
)

var (
	walks = flag.Int("walks", 2000, "How many random walks are played")
	seed  = flag.Uint64("seed", 1, "The seed of the first")
)

const (
	zone = corev1.LabelTopologyZone
	host = corev1.LabelHostname
	kind = "capacity-type"
)

// pairs are the keys of the templates, in the order in which these name them.
var pairs = [][]layers.Key{
	{{Name: zone, Hard: true}},
	{{Name: host, Hard: true}},
	{{Name: zone, Hard: true}, {Name: host}},
	{{Name: host}, {Name: zone, Hard: true}},
	{{Name: zone}, {Name: host, Hard: true}},
	{{Name: host, Hard: true}, {Name: zone}},
	{{Name: zone, Hard: true}, {Name: host, Hard: true}},
	{{Name: host, Hard: true}, {Name: zone, Hard: true}},
	{{Name: zone, Hard: true}, {Name: kind, Hard: true}},
	{{Name: kind, Hard: true}, {Name: zone, Hard: true}},
	{{Name: zone}, {Name: kind}, {Name: host}},
	{{Name: zone}, {Name: host, Hard: true, Single: true}},
}

// world is a cluster with the pods of one ReplicaSet.
type world struct {
	*rand.Rand
	keys  []layers.Key // sorted
	nodes []map[string]string
	pods  []*corev1.Pod
	now   time.Time
	made  int
	// writes of pods without a layer, and of pods that move. Of the pods that went otherwise than by a step down, each may cost one.
	fresh, moved, lost int
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 18)), now: time.Unix(1_800_000_000, 0)}
	for z := range 2 + w.IntN(3) {
		for range 1 + w.IntN(5) {
			w.addNode(z)
		}
	}
	w.keys = slices.Clone(pairs[w.IntN(len(pairs))])
	w.sortKeys()
	return w
}

func (w *world) addNode(z int) {
	w.nodes = append(w.nodes, map[string]string{
		zone: fmt.Sprintf("z%d", z), host: fmt.Sprintf("n%d", len(w.nodes)), kind: []string{"spot", "on-demand"}[w.IntN(2)],
	})
}

func (w *world) sortKeys() {
	values := map[string]int{}
	for _, k := range w.keys {
		seen := map[string]bool{}
		for _, n := range w.nodes {
			seen[n[k.Name]] = true
		}
		values[k.Name] = len(seen)
	}
	layers.Sort(w.keys, values)
}

func (w *world) node(p *corev1.Pod) map[string]string {
	for _, n := range w.nodes {
		if n[host] == p.Spec.NodeName {
			return n
		}
	}
	return nil
}

// count returns how many pods each value of a key has.
func (w *world) count(key string) map[string]int {
	n := map[string]int{}
	for _, p := range w.pods {
		n[w.node(p)[key]]++
	}
	return n
}

// add creates pods and schedules each by its constraints with maxSkew 1: a hard one keeps nodes out, all others are a score. It returns
// how many had a node.
func (w *world) add(n int) int {
	for made := range n {
		at := w.choose()
		if at == nil {
			return made
		}
		w.made++
		w.now = w.now.Add(time.Duration(1+w.IntN(100)) * time.Second)
		name := fmt.Sprintf("web-%06d", w.IntN(1_000_000))
		w.pods = append(w.pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name + strconv.Itoa(w.made), UID: types.UID(name), CreationTimestamp: metav1.NewTime(w.now), Annotations: map[string]string{}},
			Spec:       corev1.PodSpec{NodeName: at[host]},
			Status: corev1.PodStatus{
				Phase:      corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)}},
			},
		})
	}
	return n
}

func (w *world) choose() (best map[string]string) {
	counts := make([]map[string]int, len(w.keys))
	least := make([]int, len(w.keys))
	for i, k := range w.keys {
		counts[i] = w.count(k.Name)
		least[i] = len(w.pods)
		for _, n := range w.nodes {
			least[i] = min(least[i], counts[i][n[k.Name]])
		}
	}
	score := 0
	for _, i := range w.Perm(len(w.nodes)) {
		n, s, fits := w.nodes[i], 0, true
		for j, k := range w.keys {
			c := counts[j][n[k.Name]]
			s += c
			fits = fits && !(k.Single && c > 0) && !(k.Hard && !k.Single && c > least[j])
		}
		if fits && (best == nil || s < score) {
			best, score = n, s
		}
	}
	return best
}

func layerOf(p *corev1.Pod) int {
	cost, _ := strconv.Atoi(p.Annotations[corev1.PodDeletionCost])
	return -cost
}

// plan returns what is to be written now.
func (w *world) plan() []layers.Write {
	var pods []layers.Pod
	for _, p := range w.pods {
		q := layers.Pod{Name: p.Name, Layer: layerOf(p)}
		for _, k := range w.keys {
			q.Values = append(q.Values, w.node(p)[k.Name])
		}
		pods = append(pods, q)
	}
	return layers.Plan(pods)
}

// write writes the first of what is planned, and all if most is less than zero.
func (w *world) write(most int) {
	for _, p := range w.plan() {
		if most == 0 {
			return
		}
		most--
		if p.Moves {
			w.moved++
		} else {
			w.fresh++
		}
		w.pods[p.Pod].Annotations[corev1.PodDeletionCost] = strconv.Itoa(-p.Layer)
	}
}

// step is the ReplicaSet controller's getPodsToDelete (kubernetes v1.37.2, pkg/controller/replicaset/replica_set.go).
func (w *world) step(n int) {
	onNode := map[string]int{}
	for _, p := range w.pods {
		onNode[p.Spec.NodeName]++
	}
	ranks := make([]int, len(w.pods))
	for i, p := range w.pods {
		ranks[i] = onNode[p.Spec.NodeName]
	}
	sort.Sort(controller.ActivePodsWithRanks{Pods: w.pods, Rank: ranks, Now: metav1.NewTime(w.now)})
	w.pods = w.pods[min(n, len(w.pods)):]
}

// drain removes the pods of a node, or some pods anywhere.
func (w *world) drain() {
	before := len(w.pods)
	if w.IntN(2) == 0 {
		name := w.nodes[w.IntN(len(w.nodes))][host]
		w.pods = slices.DeleteFunc(w.pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == name })
	} else {
		w.pods = slices.DeleteFunc(w.pods, func(*corev1.Pod) bool { return w.IntN(8) == 0 })
	}
	w.lost += before - len(w.pods)
}

// after returns the pods that each value that had one has now.
func after(before, now map[string]int) map[string]int {
	all := map[string]int{}
	for v := range before {
		all[v] = now[v]
	}
	return all
}

// At each rest after a step down, the skew of the first key is the least that the pods which were there allow, whatever the order in which the template
// names its keys. New nodes, drains, evictions and steps before all is written come between. The writes are one for each pod, and one for each pod
// that a drain or an early step took out of the order.
func TestWalks(t *testing.T) {
	excess := map[string][]int{}
	made, fresh, moved, lost, rests := 0, 0, 0, 0, 0
	for s := *seed; s < *seed+uint64(*walks); s++ {
		w := newWorld(s)
		w.add(10 + w.IntN(60))
		for range 6 {
			switch w.IntN(6) {
			case 0:
				w.drain()
				w.add(w.IntN(10))
			case 1:
				w.addNode(w.IntN(4))
			case 2: // a step before all is written
				n := len(w.pods)
				w.write(w.IntN(n + 1))
				w.step(w.IntN(n/2 + 1))
				w.lost += n - len(w.pods)
			case 3:
				w.add(w.IntN(30))
			}
			w.write(-1)
			before := map[string]map[string]int{}
			for _, k := range w.keys {
				before[k.Name] = w.count(k.Name)
			}
			w.step(w.IntN(len(w.pods) + 1))
			rests++
			for i, k := range w.keys {
				got, least := layers.Skew(after(before[k.Name], w.count(k.Name))), layers.LeastSkew(before[k.Name], len(w.pods))
				if i > 0 {
					excess[k.Name+" after "+w.keys[0].Name] = append(excess[k.Name+" after "+w.keys[0].Name], got-least)
				} else if got != least {
					t.Fatalf("seed %d: %v: %v became %v, whose skew is %d and not %d", s, w.keys, before[k.Name], w.count(k.Name), got, least)
				}
			}
		}
		if w.moved > w.lost {
			t.Fatalf("seed %d: %d pods moved, though only %d went out of order", s, w.moved, w.lost)
		}
		made, fresh, moved, lost = made+w.made, fresh+w.fresh, moved+w.moved, lost+w.lost
	}
	t.Logf("%d walks, %d rests after a step down: the first key's skew is the least in all", *walks, rests)
	t.Logf("%d pods, %d first writes, %d more for %d pods that drains, evictions and early steps took", made, fresh, moved, lost)
	for _, name := range slices.Sorted(maps.Keys(excess)) {
		e := excess[name]
		slices.Sort(e)
		t.Logf("%s: excess over the least skew of that key alone: median %d, p90 %d, most %d of %d rests", name, e[len(e)/2], e[len(e)*9/10], e[len(e)-1], len(e))
	}
}

// What layers.Step leaves of ready pods is what the ReplicaSet controller leaves, but for pods that are alike in cost and in the pods of their node.
func TestStep(t *testing.T) {
	for s := range uint64(*walks) {
		r := rand.New(rand.NewPCG(s, 80))
		var ranked []layers.Ranked
		onNode := map[string]int{}
		for range 1 + r.IntN(40) {
			ranked = append(ranked, layers.Ranked{Node: fmt.Sprint(r.IntN(6)), Cost: int32(r.IntN(9) - 5)})
			onNode[ranked[len(ranked)-1].Node]++
		}
		sorted := controller.ActivePodsWithRanks{Now: metav1.Now()}
		for _, p := range ranked {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: p.Node}}
			pod.Annotations = map[string]string{corev1.PodDeletionCost: fmt.Sprint(p.Cost)}
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			sorted.Pods, sorted.Rank = append(sorted.Pods, pod), append(sorted.Rank, onNode[p.Node])
		}
		sort.Sort(sorted)
		n := r.IntN(len(ranked) + 1)
		like := func(cost string, on int) string { return fmt.Sprintf("%s with %d on its node", cost, on) }
		want, got := map[string]int{}, map[string]int{}
		for _, p := range sorted.Pods[len(ranked)-n:] {
			want[like(p.Annotations[corev1.PodDeletionCost], onNode[p.Spec.NodeName])]++
		}
		for _, i := range layers.Step(ranked, n) {
			got[like(fmt.Sprint(ranked[i].Cost), onNode[ranked[i].Node])]++
		}
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d: of %v, %d are left: %v, want %v", s, ranked, n, got, want)
		}
	}
}
