package testkit

import (
	"slices"
	"strings"
	"testing"
)

// PlayHistories plays the random histories of a simulation with the seeds 0 to n-1. A history returns what is wrong in it.
func PlayHistories(t *testing.T, n int, play func(seed uint64) (wrong []string)) {
	t.Helper()
	for seed := range uint64(n) {
		if wrong := play(seed); len(wrong) > 0 {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(wrong, "\n"))
		}
	}
}

// FindBugs plays histories with planted bugs, and fails unless one of the first n histories finds each bug. The map has a text of what is wrong by bug.
func FindBugs[B ~string](t *testing.T, n int, bugs map[B]string, play func(t *testing.T, seed uint64, bug B) (wrong []string)) {
	for bug, text := range bugs {
		t.Run(string(bug), func(t *testing.T) {
			for seed := range uint64(n) {
				if slices.ContainsFunc(play(t, seed, bug), func(w string) bool { return strings.Contains(w, text) }) {
					t.Logf("found with seed %d", seed)
					return
				}
			}
			t.Errorf("not found in %d histories", n)
		})
	}
}
