package fair

import (
	"slices"
	"testing"
)

func TestTurns(t *testing.T) {
	users := "aaabbc"
	got := Turns(len(users), func(i int) byte { return users[i] })
	if want := []int{0, 3, 5, 1, 4, 2}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
