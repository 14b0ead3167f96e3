package main

import (
	"slices"
	"strings"
	"testing"
)

func texts(blocks []block) (out []string) {
	for _, b := range blocks {
		out = append(out, b.text)
	}
	return out
}

func TestSentences(t *testing.T) {
	got := sentences("It ends. kwok begins (e.g. here). `a.b. c` is code! Is it? \"Yes.\" Version 1.2 stays")
	want := []string{"It ends.", "kwok begins (e.g. here).", "`code` is code!", "Is it?", "\"Yes.\"", "Version 1.2 stays"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestMistakes(t *testing.T) {
	long := strings.Repeat("word ", maxWords)
	for text, want := range map[string]int{
		"A plain sentence.":                   0,
		long + ".":                            0,
		long + "more.":                        1,
		"The node says how many it has.":      1,
		"The pod gets its wish.":              1,
		"The template tells of " + long + ".": 2,
	} {
		if got := mistakes([]block{{1, text}}, true); len(got) != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	page := slices.Repeat([]block{{1, "The pod is evicted."}}, minSentences)
	if got := mistakes(page, true); len(got) != 1 {
		t.Errorf("a passive page: %v", got)
	}
	if got := mistakes(page, false); len(got) != 0 {
		t.Errorf("the comments of a program: %v", got)
	}
}

func TestReaders(t *testing.T) {
	for name, tc := range map[string]struct {
		read func([]byte) ([]block, error)
		text string
		want []string
	}{
		"page":  {readMarkdown, "# Head\n\nOne `x y` [link](to) and\nmore.\n\n    code here\n\n| a | b |\n| --- | --- |\n| cell | cell |\n\n- item\n", []string{"Head", "One `code` link and more.", "item"}},
		"chart": {readComments, "# -- The first\n# line.\na: 1 # no\n# Another.\nb: 2\n", []string{"The first line.", "Another."}},
		"kind":  {readDescriptions, "  description: One\n    two.\n  x:\n    description: |-\n      Three\n      four.\n    type: string\n", []string{"One two.", " Three four."}},
		"program": {readGo, "// Package p does.\n//\n//\tcode\n//\n// More.\npackage p\n\nvar x = f(\"one two three four five six; seven\", \"short\")\n",
			[]string{"Package p does.", "More.", "one two three four five six", "seven"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.read([]byte(tc.text))
			if err != nil || !slices.Equal(texts(got), tc.want) {
				t.Errorf("%q, %v", texts(got), err)
			}
		})
	}
}
