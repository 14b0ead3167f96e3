// Package sequence decides which node pool the next pod of a workload belongs to.
//
// The nouns, in order: a [Strategy] is an ordered list of [Pool]s. It hands out seats in a fixed order, its sequence:
// first each pool's base, then the rest by weight. A seat is a pool and an ordinal: the k-th pod of a pool has
// ordinal k. Its rank is its place in the sequence. target(n) is how many of the first n seats each pool has.
//
// The weighted part is Tijdeman's chairman assignment (R. Tijdeman, "The chairman
// assignment problem", Discrete Mathematics 32, 1980). It promises that
//   - target(n+1) is target(n) and one seat more, so growing moves no pod and
//     shrinking by rank leaves exactly target(m) for every m;
//   - with k pools of positive weight, no pool is ever more than 1 - 1/(2k-2) pods
//     from its share of the weighted pods, and no sequence does better;
//   - one period, the sum of the weights over their greatest common divisor, has
//     each pool exactly as often as its weight says.
//
// The answer depends only on the strategy and on the seats that are held. So replicas that are given the same seats
// give the same answer. Arithmetic is on integers. The package reads no cluster state and keeps none.
package sequence
