package division

import (
	"cmp"
	"slices"
)

// Costs is what deletion costs that Stowage did not write, or that are gone, do to scale-downs.
type Costs struct {
	Foreign int64 // pods with such a cost
	// Uneven says that scale-downs by the costs do not keep the division.
	Uneven bool
	// ByNode says that each foreign cost is negative and that of all such pods on its node, as Karpenter's PodDeletionCostManagement writes them.
	ByNode bool
}

// costsOf looks at the pods of one owner, all of whose pools the strategy has. A ReplicaSet removes the lowest cost first. So a scale-down to any
// number keeps the division if the pools follow each other as they do by rank. Pods of equal cost go in an order that is not known here.
func costsOf(pods []Pod) (c Costs) {
	if !slices.ContainsFunc(pods, func(p Pod) bool { return p.ForeignCost }) {
		return c // repair keeps the order of Stowage's own costs
	}
	byCost := slices.SortedFunc(slices.Values(pods), func(a, b Pod) int { return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(b.Rank, a.Rank)) })
	byRank := slices.SortedFunc(slices.Values(pods), func(a, b Pod) int { return cmp.Compare(b.Rank, a.Rank) })
	c.ByNode = true
	ofNode := map[string]int64{}
	for i, pod := range byCost {
		tied := i > 0 && byCost[i-1].Cost == pod.Cost && byCost[i-1].Pool != pod.Pool
		c.Uneven = c.Uneven || tied || pod.Pool != byRank[i].Pool
		if !pod.ForeignCost {
			continue
		}
		c.Foreign++
		if first, seen := ofNode[pod.NodeName]; pod.Cost > 0 || seen && first != pod.Cost {
			c.ByNode = false
		}
		if pod.Cost < 0 {
			ofNode[pod.NodeName] = pod.Cost
		}
	}
	c.ByNode = c.ByNode && len(ofNode) > 0
	return c
}

// add adds those of another owner.
func (c *Costs) add(of Costs) {
	c.ByNode = of.Foreign > 0 && of.ByNode && (c.Foreign == 0 || c.ByNode) || of.Foreign == 0 && c.ByNode
	c.Foreign += of.Foreign
	c.Uneven = c.Uneven || of.Uneven
}
