package report

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	table := Table{Head: []string{"A", "LONG"}, Rows: [][]string{{"a", ""}, {"bb", "c"}}, Note: "a note\n"}
	if got, want := table.Text(), "A   LONG\na\nbb  c\na note\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (&Table{Head: []string{"A"}}).Text(); got != "" {
		t.Errorf("%q of no rows", got)
	}
}

// What comes from a cluster cannot become a part of the page.
func TestHTMLEscapes(t *testing.T) {
	const foreign = `<script>alert("1")</script>`
	page := Page{Title: foreign, Summary: []string{foreign}, Warnings: []string{foreign}, Parts: []Part{
		{Title: foreign, Table: &Table{Head: []string{foreign}, Rows: [][]string{{foreign}, {"██▒░"}}, Note: foreign}, Text: foreign},
		{Picture: "<svg></svg>"},
	}}
	var out strings.Builder
	if err := page.HTML(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), foreign) || strings.Count(out.String(), "&lt;script&gt;") != 9 || strings.Count(out.String(), "<script>") != 1 {
		t.Errorf("the page has\n%s", &out)
	}
	for _, part := range []string{`<td class="bar"><i class="there"></i><i class="there"></i><i class="more"></i><i class="missing"></i></td>`, "<svg></svg>"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%s is missing", part)
		}
	}
	for _, fetch := range []string{"http:", "https:", "src=", "url(", "import "} {
		if strings.Contains(out.String(), fetch) {
			t.Errorf("the page has %q, so that it may ask somebody for something", fetch)
		}
	}
}
