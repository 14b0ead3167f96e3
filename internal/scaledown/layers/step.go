package layers

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// Ranked is what the ReplicaSet controller looks at before it removes pods that are ready: the cost, and then how many of them share a node.
type Ranked struct {
	Node string
	Cost int32
}

// Step returns the indexes of the pods that a step down to n leaves, as ActivePodsWithRanks of kube-controller-manager orders pods that are ready. The
// numbers of pods on a node are those before the step. Pods that are alike in both are taken as if they were removed in their order.
func Step(pods []Ranked, n int) []int {
	on, order := map[string]int{}, make([]int, len(pods))
	for i, p := range pods {
		on[p.Node]++
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(pods[a].Cost, pods[b].Cost), cmp.Compare(on[pods[b].Node], on[pods[a].Node]))
	})
	return order[max(0, len(order)-n):]
}

// Skew is by how many pods the values of a key differ most. Without values there is none.
func Skew(counts map[string]int) int {
	least, most := math.MaxInt, 0
	for _, n := range counts {
		least, most = min(least, n), max(most, n)
	}
	return max(0, most-least)
}

// LeastSkew returns the least skew that n of these pods can be left with, if a value loses pods only while no other one has more.
func LeastSkew(counts map[string]int, n int) int {
	most := 0
	for _, count := range counts {
		most = max(most, count)
	}
	upTo := func(level int) (sum int) { // pods, if each value has at most so many
		for _, count := range counts {
			sum += min(count, level)
		}
		return sum
	}
	level := sort.Search(most, func(level int) bool { return upTo(level) >= n })
	least := level
	if upTo(level) > n {
		least-- // of some values
	}
	for _, count := range counts {
		least = min(least, count)
	}
	return level - least
}
