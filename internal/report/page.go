package report

import (
	_ "embed"
	"html/template"
	"io"
	"regexp"
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
	// Legend says what the boxes of the picture mean. It stands above the picture.
	Legend []Key
	// Picture is an SVG. It must come from this program, with all foreign text in it escaped.
	Picture string
}

// Key says what a box of a picture means.
type Key struct {
	State SeatState
	Text  string
}

// Class is the look of the box.
func (k Key) Class() string { return seatClasses[k.State] }

// page.html is the layout of a page.
//
//go:embed page.html
var layout string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bars": bars, "picture": func(svg string) template.HTML { return template.HTML(svg) }, //nolint:gosec // see [Part]
	"number": isNumber,
}).Parse(layout))

// HTML writes the page. It says how it was made if the output is one of [Describe].
func (p *Page) HTML(out io.Writer) error {
	data := struct {
		*Page
		About *About
	}{Page: p}
	if d, ok := out.(described); ok {
		data.About = &d.about
	}
	return pageTemplate.Execute(out, data)
}

// number is a cell that is a number or an amount, such as 3, +2, 66.7, 10%, 500m or 1.5 GiB.
var number = regexp.MustCompile(`^[-+]?\d+(\.\d+)?( ?(%|m|[kMGTPE]i?B?|B))?$`)

// isNumber reports whether a cell is a number, and no prose that begins with one.
func isNumber(cell string) bool { return number.MatchString(cell) }

// bar is a run of boxes of a bar: pods that are there, that wait for a node, that are too many or that are missing.
type bar struct {
	Class string
	Boxes []struct{}
}

// classes are what the characters of a bar mean.
var classes = map[rune]string{'█': "there", '▄': "waits", '▒': "more", '░': "missing"}

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
