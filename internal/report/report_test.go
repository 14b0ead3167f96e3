package report

import (
	"strings"
	"testing"
	"time"
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

// Numbers are aligned to the right, and prose that begins with a digit is not.
func TestNumbersOfPage(t *testing.T) {
	page := Page{Parts: []Part{{Table: &Table{Head: []string{"A"}, Rows: [][]string{{"3"}, {"+2"}, {"66.7"}, {"10%"}, {"500m"}, {"1.5 GiB"}, {"512Mi"}, {"3 pods wait"}, {"2 of 3"}, {"1.2.3"}, {"-"}, {""}}}}}}
	var out strings.Builder
	if err := page.HTML(&out); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"3", "&#43;2", "66.7", "10%", "500m", "1.5 GiB", "512Mi"} {
		if !strings.Contains(out.String(), `<td class="number">`+text+"</td>") {
			t.Errorf("%s is no number", text)
		}
	}
	for _, text := range []string{"3 pods wait", "2 of 3", "1.2.3", "-", ""} {
		if !strings.Contains(out.String(), "<td>"+text+"</td>") {
			t.Errorf("%q is a number", text)
		}
	}
}

// A page says how it was made, what its boxes mean, before them, and where its words are explained.
func TestPageExplainsItself(t *testing.T) {
	part := Picture("Seats", nil, "below")
	part.Legend = []Key{{Extra, "too many"}, {Missing, "lacking"}}
	table := &Table{Head: []string{"OBJECT", "REASON"}, Rows: [][]string{{"Lost", "Lost"}, {"b", "Other"}}, Linked: "REASON", Links: map[string]string{"Lost": "https://example.com/#lost"}}
	page := Page{Title: "T", Parts: []Part{part, {Table: table}}}
	var out strings.Builder
	if err := page.HTML(Describe(&out, About{Made: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)), Command: "stowage status", Version: "v1", Cluster: "prod, https://<host>"})); err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, want := range []string{
		`<dt>Made</dt><dd>2026-01-02 02:04:05 UTC</dd><dt>Cluster</dt><dd>prod, https://&lt;host&gt;</dd><dt>Command</dt><dd>stowage status</dd><dt>Version</dt><dd>v1</dd>`,
		`<li><i class="extra"></i>too many</li><li><i class="missing"></i>lacking</li>`, "<svg", "<pre>below</pre>",
		`<td>Lost</td><td><a href="https://example.com/#lost">Lost</a></td>`, `<td>Other</td>`,
	} {
		at := strings.Index(out.String(), want)
		if at < last {
			t.Errorf("%s is missing, or too early, in\n%s", want, &out)
		}
		last = max(at, last)
	}
	var without strings.Builder
	if err := page.HTML(&without); err != nil || strings.Contains(without.String(), "<dl") {
		t.Errorf("%v: a page without time, command and cluster says\n%s", err, &without)
	}
}
