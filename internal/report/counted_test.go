package report

import (
	"slices"
	"testing"
)

// A text that is there often is told once, where it was first.
func TestCounted(t *testing.T) {
	texts := append([]string{"first"}, slices.Repeat([]string{"same"}, 1033)...)
	if got, want := Counted(append(texts, "last", "first")), []string{"first (2 times)", "same (1033 times)", "last"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Counted(nil); len(got) > 0 {
		t.Errorf("%q of nothing", got)
	}
}
