package sequence

import "strconv"

// What becomes of a rank stands in this file, because one order ties it. The ranks of the sequence come before those of the
// overflow, and these before NoRank. A pod's deletion cost falls as the rank grows, so a ReplicaSet removes the highest rank
// first.
const (
	// OverflowRank is the rank after which the overflow's seats come, or later where the sequence goes on to higher ranks.
	// It is so low that overflow seats still have deletion costs of their own.
	OverflowRank = 5_000_000

	// NoRank is the rank of a seat that is not in the sequence. An example is a second seat in a pool with a base of one
	// and no weight. Such pods go before all others that have a seat.
	NoRank = 10_000_000

	// costBase is the deletion cost of a rank plus that rank. It is small, because Karpenter takes a pod's
	// deletion cost for the cost of evicting the pod: 1 + cost/2^27, at most 10. With costs near 2^31, each
	// pod would be ten times as dear, and Karpenter would hardly consolidate.
	costBase = NoRank

	// MovedOrdinals keeps the ordinals, in their pool, of StatefulSets' pods from other pools apart from the pool's own. It is
	// so high that a ledger's book counts such seats without keeping a table up to them.
	MovedOrdinals = 1 << 20
)

// RankOrNone returns a seat's rank, or NoRank.
func (s *Strategy) RankOrNone(seat Seat) int64 {
	if rank, ok := s.Rank(seat); ok {
		return min(rank, NoRank)
	}
	return NoRank
}

// DeletionCost returns the cost with which a ReplicaSet removes the highest rank first, and pods without
// a rank, whose cost is 0, before that. It is at least 1.
func DeletionCost(rank int64) string {
	return strconv.FormatInt(max(1, costBase-rank), 10)
}

// RankOfCost returns the rank for which Stowage wrote a pod's deletion cost, or 0 if somebody else wrote the cost. The
// rank of the pod's seat is own, and signed is the rank in the pod's claim, or 0 if the claim has none.
func RankOfCost(cost string, own, signed int64) int64 {
	switch {
	case isCost(cost, own):
		return own
	case signed > 0 && isCost(cost, signed):
		return signed
	}
	return 0
}

// isCost reports whether a text is [DeletionCost] of a rank, without making that text: views ask it of each pod.
func isCost(cost string, rank int64) bool {
	var text [20]byte
	return string(strconv.AppendInt(text[:0], max(1, costBase-rank), 10)) == cost
}
