package fair

import "slices"

// Turns returns the indexes of some things in the order in which their users have turns: the first of each user, then the second of each, and
// so on. Within a turn they stay in their order.
func Turns[User comparable](n int, user func(i int) User) []int {
	had, turn, out := map[User]int{}, make([]int, n), make([]int, n)
	for i := range n {
		u := user(i)
		turn[i], out[i] = had[u], i
		had[u]++
	}
	slices.SortStableFunc(out, func(a, b int) int { return turn[a] - turn[b] })
	return out
}
