package report

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
)

// Page is a report as one page of HTML, which needs nothing beside it and asks nothing of anybody.
type Page struct {
	Title string
	// Summary is what a reader wants to know first, in lines. Warnings are about the report itself.
	Summary  []string
	Warnings []string
	Parts    []Part
}

// Part is a part of a page: a table, a text or a picture.
type Part struct {
	Title string
	Table *Table
	Text  string // in the lines in which it comes
	// Picture is an SVG. It must come from this program, with all foreign text in it escaped.
	Picture string
}

// page.html is the layout of a page.
//
//go:embed page.html
var layout string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bars": bars, "picture": func(svg string) template.HTML { return template.HTML(svg) }, //nolint:gosec // see [Part]
	"lines": func(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") },
}).Parse(layout))

// HTML writes the page.
func (p *Page) HTML(out io.Writer) error { return pageTemplate.Execute(out, p) }

// bar is a run of boxes of a bar: pods that are there, too many or missing.
type bar struct {
	Class string
	Boxes []struct{}
}

// classes are what the characters of a bar mean.
var classes = map[rune]string{'█': "there", '▒': "more", '░': "missing"}

// bars returns the runs of a cell that is a bar, or nil if it is a text.
func bars(cell string) (out []bar) {
	for _, c := range cell {
		class, ok := classes[c]
		if !ok {
			return nil
		}
		if n := len(out); n == 0 || out[n-1].Class != class {
			out = append(out, bar{Class: class})
		}
		last := &out[len(out)-1]
		last.Boxes = append(last.Boxes, struct{}{})
	}
	return out
}
