package layers

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Pod is a pod of one owner that is on a node and does not end.
type Pod struct {
	// Name is unique among the pods of the owner.
	Name string
	// Values are what its node has for each key, in the order of [Sort]. All pods have as many, and at least one.
	Values []string
	// Layer is what is written on the pod, or zero.
	Layer int
	// Stays: another writer gave the pod a cost that is higher than all of ours. It has no layer, and is below those of the others.
	Stays bool
}

// Write is a layer that a pod is to have.
type Write struct {
	Pod   int // its index
	Layer int
	// Moves: the pod has another layer already. It is on top of its zone, and one below is free.
	Moves bool
}

// Plan returns the layers to write, from the lowest to the highest. Afterwards the n pods of a zone, or of another value of the first key, have the layers
// 1 to n without gaps; pods that stay take the lowest of them. A pod is written only if it has no layer, shares one with another pod, or is above n. It gets
// a free layer, the lowest first. The further keys decide which pod is next: the one whose values have the fewest pods below.
//
// Each pod is written once, and once more if it moves down to a layer that no new pod fills.
func Plan(pods []Pod) []Write {
	byFirst := map[string][]int{}
	for i, p := range pods {
		byFirst[p.Values[0]] = append(byFirst[p.Values[0]], i)
	}
	index := indexes(pods)
	var writes []Write
	for k, value := range slices.Sorted(maps.Keys(byFirst)) {
		d := domain{pods: pods, index: index, shift: k}
		writes = d.plan(byFirst[value], writes)
	}
	slices.SortStableFunc(writes, func(a, b Write) int { return cmp.Compare(a.Layer, b.Layer) })
	return writes
}

// indexes returns the place of each value of the second key among all of them, by name.
func indexes(pods []Pod) map[string]int {
	index := map[string]int{}
	for _, p := range pods {
		if len(p.Values) > 1 {
			index[p.Values[1]] = 0
		}
	}
	for i, v := range slices.Sorted(maps.Keys(index)) {
		index[v] = i
	}
	return index
}

// domain plans the pods of one value of the first key.
type domain struct {
	pods  []Pod
	index map[string]int
	// shift is where the order of the second key's values begins. It differs from zone to zone, so that a step that
	// takes one pod of each zone does not take all from the same value.
	shift int
}

// group are the pods of a domain that need a layer and have the same values of all keys.
type group struct {
	values []string // of the further keys
	pods   []int    // by name
}

// plan appends the layers that pods of the domain are to get.
func (d *domain) plan(pods []int, writes []Write) []Write {
	slices.SortFunc(pods, func(a, b int) int { return cmp.Compare(d.pods[a].Name, d.pods[b].Name) })
	stay, kept, waiting := d.sort(pods)
	below := make([]map[string]int, len(d.pods[pods[0]].Values)-1)
	for k := range below {
		below[k] = map[string]int{}
	}
	count := func(i int) {
		for k := range below {
			below[k][d.pods[i].Values[k+1]]++
		}
	}
	for _, i := range stay {
		count(i)
	}
	for layer := len(stay) + 1; len(waiting) > 0; layer++ {
		i, taken := kept[layer]
		if !taken {
			best := slices.MinFunc(waiting, func(a, b *group) int { return d.compare(a.values, b.values, below) })
			i, best.pods = best.pods[0], best.pods[1:]
			if len(best.pods) == 0 {
				waiting = slices.DeleteFunc(waiting, func(g *group) bool { return g == best })
			}
			writes = append(writes, Write{Pod: i, Layer: layer, Moves: d.pods[i].Layer > 0})
		}
		count(i)
	}
	return writes
}

// sort divides the pods of the domain: those that another writer keeps, those that keep their layer, by layer, and those that need one, in groups.
func (d *domain) sort(pods []int) (stay []int, kept map[int]int, waiting []*group) {
	for _, i := range pods {
		if d.pods[i].Stays {
			stay = append(stay, i)
		}
	}
	kept = map[int]int{}
	groups := map[string]*group{}
	for _, i := range pods {
		p := d.pods[i]
		if p.Stays {
			continue
		}
		if _, taken := kept[p.Layer]; !taken && p.Layer > len(stay) && p.Layer <= len(pods) {
			kept[p.Layer] = i
			continue
		}
		name := strings.Join(p.Values, "/")
		g := groups[name]
		if g == nil {
			g = &group{values: p.Values[1:]}
			groups[name] = g
			waiting = append(waiting, g)
		}
		g.pods = append(g.pods, i)
	}
	return stay, kept, waiting
}

// compare says which of two pods is to be the lower one, by the values of the further keys and by how many pods with each value are below: the one
// with fewer. Of the second key's values that have equally many, each domain begins with another one.
func (d *domain) compare(a, b []string, below []map[string]int) int {
	for k := range below {
		if c := cmp.Compare(below[k][a[k]], below[k][b[k]]); c != 0 {
			return c
		}
		if k == 0 && a[k] != b[k] {
			return cmp.Compare(d.placeOf(a[k]), d.placeOf(b[k]))
		}
	}
	return 0
}

// placeOf returns the place of a value of the second key in the order of this domain.
func (d *domain) placeOf(value string) int {
	return (d.index[value] + d.shift) % len(d.index)
}
