package main

import (
	"slices"
	"strings"
	"testing"
)

func TestMutate(t *testing.T) {
	source := `package p

func (b *box[T]) f(n int) (ok bool) {
	if n < 3 && !b.full {
		n += 2
		b.add(n)
		ok = true
	}
	return ok
}

func (b box) String() string { return "a" + "b" }
`
	got, err := mutate("p/p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{ // by what changes
		"&& to || #1": "n < 3 || !b.full", "< to <= #1": "n <= 3", "3 plus 1 #1": "n < 4", "! removed #1": "&& b.full", "+= to -= #1": "n -= 2",
		"2 plus 1 #1": "n += 3", "call removed #1": "\t\t\n", "assignment removed #1": "_ = ok", "true to false #1": "ok = false",
	}
	for _, m := range got {
		what, _ := strings.CutPrefix(m.name, "p/p.go box.f: ")
		if text, ok := want[what]; !ok || !strings.Contains(string(m.source), text) {
			t.Errorf("%s: %s", m.name, m.source)
		}
		delete(want, what)
	}
	for what := range want {
		t.Errorf("there is no mutant %q", what)
	}
	if !slices.IsSortedFunc(got, func(a, b mutant) int { return strings.Compare(a.file, b.file) }) {
		t.Error("files are out of order")
	}
}
