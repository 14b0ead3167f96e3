package layers_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/stowage-dev/stowage/internal/scaledown/layers"
)

var walks = flag.Int("walks", 2000, "How many random walks TestWalks plays")

// pods has one pod for each word: its name, the values of its node, and its layer ("+" for a pod that another writer keeps), as in a@zone/host:1.
func pods(t *testing.T, words string) (list []layers.Pod) {
	t.Helper()
	for word := range strings.FieldsSeq(words) {
		name, rest, _ := strings.Cut(word, "@")
		values, layer, _ := strings.Cut(rest, ":")
		p := layers.Pod{Name: name, Values: strings.Split(values, "/"), Stays: layer == "+"}
		if layer != "" && layer != "+" {
			if _, err := fmt.Sscan(layer, &p.Layer); err != nil {
				t.Fatal(err)
			}
		}
		list = append(list, p)
	}
	return list
}

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name, pods, want string
	}{
		{"the pods of each zone have layers of their own", "p1@a p2@a p3@b", "p1=1 p3=1 p2=2"},
		{"what is written stays", "p1@a:2 p2@a:1 p3@b:1", ""},
		{"a new pod is on top", "p1@a:1 p2@a:2 p3@a", "p3=3"},
		{"a new pod fills what is free, so nothing moves", "p1@a:1 p2@a:3 p3@a", "p3=2"},
		{"the highest moves down if no pod is new", "p1@a:1 p2@a:3 p3@a:4", "p3>2"},
		{"of two pods with one layer, the second by name is written", "p2@a:1 p1@a:1", "p2>2"},
		{"a zone without its first pods", "p1@a:5 p2@a:6 p3@b:1", "p1>1 p2>2"},
		{"pods that another writer keeps are below", "k@a:+ p1@a p2@a:1 p3@b", "p3=1 p1=2 p2>3"},
		{"a pod on the first layer above them stays", "k@a:+ p1@a:2", ""},
		{"a layer below one is none", "p1@a:-3 p2@a:2", "p1=1"},
		{"hosts in turn", "p1@a/x p2@a/x p3@a/x p4@a/y p5@a/y p6@a/z", "p1=1 p4=2 p6=3 p2=4 p5=5 p3=6"},
		{"the host with the fewest below is next", "p1@a/x:1 p2@a/x:2 p3@a/x p4@a/y", "p4=3 p3=4"},
		{"a host whose pod another writer keeps has one below", "k@a/x:+ p1@a/x p2@a/y", "p2=2 p1=3"},
		{"pods above do not count", "p1@a/x:3 p2@a/x:4 p3@a/x p4@a/y", "p3=1 p4=2"},
		{"types that cross zones begin with another one in each", "p1@a/od p2@a/spot p3@b/od p4@b/spot p5@c/od p6@c/spot", "p1=1 p4=1 p5=1 p2=2 p3=2 p6=2"},
		{"the third key, among hosts of one type", "p1@a/od/x p2@a/od/x p3@a/od/y p4@a/spot/z", "p1=1 p4=2 p3=3 p2=4"},
		{"none", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := pods(t, tt.pods)
			var got []string
			for _, w := range layers.Plan(list) {
				sign := "="
				if w.Moves {
					sign = ">"
				}
				got = append(got, fmt.Sprintf("%s%s%d", list[w.Pod].Name, sign, w.Layer))
			}
			if diff := gocmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// walk is one owner whose pods come, go and are removed by cost.
type walk struct {
	*rand.Rand
	pods         []layers.Pod
	keys         []int // how many values each key has
	made         int
	fresh, moved int
	holes        int
}

func (w *walk) add(n int) {
	for range n {
		w.made++
		p := layers.Pod{Name: fmt.Sprintf("p%05d", w.made)}
		for k, values := range w.keys {
			p.Values = append(p.Values, fmt.Sprintf("%d-%d", k, w.IntN(values)))
		}
		w.pods = append(w.pods, p)
	}
}

// write writes what is planned; without moves only what has no layer.
func (w *walk) write(moves bool) {
	for _, write := range layers.Plan(w.pods) {
		switch {
		case !write.Moves:
			w.fresh++
		case moves:
			w.moved++
		default:
			continue
		}
		w.pods[write.Pod].Layer = write.Layer
	}
}

// lose removes random pods, as a drain does.
func (w *walk) lose(n int) {
	w.Shuffle(len(w.pods), func(i, j int) { w.pods[i], w.pods[j] = w.pods[j], w.pods[i] })
	n = min(n, len(w.pods))
	w.pods = w.pods[n:]
	w.holes += n
}

// step removes n pods, those with the lowest cost first and in any order among equals.
func (w *walk) step(n int) {
	w.Shuffle(len(w.pods), func(i, j int) { w.pods[i], w.pods[j] = w.pods[j], w.pods[i] })
	slices.SortStableFunc(w.pods, func(a, b layers.Pod) int { return cmp.Compare(b.Layer, a.Layer) })
	w.pods = w.pods[min(n, len(w.pods)):]
}

// counts returns how many pods each value of the first key has.
func counts(pods []layers.Pod) map[string]int {
	n := map[string]int{}
	for _, p := range pods {
		n[p.Values[0]]++
	}
	return n
}

// leveled reports whether a step took only from the values that had most: there is a level that those with more have come down to, or to one more, and
// those with less have what they had.
func leveled(before, after map[string]int) bool {
	level := -1
	for v, n := range before {
		if after[v] < n && (level < 0 || after[v] < level) {
			level = after[v]
		}
	}
	for v, n := range before {
		if level >= 0 && after[v] > level+1 || after[v] > n || level < 0 && after[v] != n {
			return false
		}
	}
	return true
}

// Whatever comes and goes: once all is written, the layers of each value have no gaps, a step of any size leaves the values level, and the
// writes are one for each pod and at most one for each pod that was lost otherwise.
func TestWalks(t *testing.T) {
	for seed := range uint64(*walks) {
		w := &walk{Rand: rand.New(rand.NewPCG(seed, 79))}
		for range 1 + w.IntN(3) {
			w.keys = append(w.keys, 1+w.IntN(5))
		}
		for range 12 {
			switch w.IntN(4) {
			case 0:
				w.lose(w.IntN(5))
				w.write(w.IntN(2) == 0)
			case 1:
				w.add(w.IntN(10))
				w.write(false)
			default:
				w.add(w.IntN(20))
			}
			w.write(true)
			if rest := layers.Plan(w.pods); len(rest) > 0 {
				t.Fatalf("seed %d: after all was written, %d pods are to be written again", seed, len(rest))
			}
			before := counts(w.pods)
			seen := map[string]bool{}
			for _, p := range w.pods {
				place := fmt.Sprintf("%s:%d", p.Values[0], p.Layer)
				if seen[place] || p.Layer < 1 || p.Layer > before[p.Values[0]] {
					t.Fatalf("seed %d: %s has layer %d of %d", seed, p.Name, p.Layer, before[p.Values[0]])
				}
				seen[place] = true
			}
			w.step(w.IntN(len(w.pods) + 1))
			if after := counts(w.pods); !leveled(before, after) {
				t.Fatalf("seed %d: a step down from %v left %v", seed, before, after)
			}
		}
		if w.fresh != w.made || w.moved > w.holes {
			t.Fatalf("seed %d: %d pods were made and had %d first writes; %d were lost, and %d moved", seed, w.made, w.fresh, w.holes, w.moved)
		}
	}
}

// While new pods are written one by one, a pod is written once: nothing moves because another pod came.
func TestNewPodsMoveNothing(t *testing.T) {
	w := &walk{Rand: rand.New(rand.NewPCG(1, 79)), keys: []int{3, 7}}
	for range 200 {
		w.add(1)
		w.write(true)
	}
	if w.fresh != 200 || w.moved != 0 {
		t.Errorf("%d first writes and %d moves for 200 pods", w.fresh, w.moved)
	}
}
