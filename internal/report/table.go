// Package report prints what commands show: tables for a terminal, and one page of HTML with the same parts.
//
// It knows nothing of what it prints: its callers have the facts, and decide which rows there are.
package report

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/stowage-dev/stowage/internal/platform/bounded"
)

// Table is rows below a head, all with as many cells.
type Table struct {
	Head []string
	Rows [][]string
	// Note stands below the rows, in lines.
	Note string
	// Links are the addresses that texts of the column Linked have on a page. A cell is one such text, or several after commas.
	Linked string
	Links  map[string]string
}

// DropEmpty leaves out the columns in which each cell is the text that stands for nothing.
func (t *Table) DropEmpty(nothing string) {
	for at := range slices.Backward(t.Head) {
		if slices.ContainsFunc(t.Rows, func(row []string) bool { return row[at] != nothing }) {
			continue
		}
		t.Head = slices.Delete(t.Head, at, at+1)
		for i := range t.Rows {
			t.Rows[i] = slices.Delete(t.Rows[i], at, at+1)
		}
	}
}

// LinkReasons makes the cells of a column links to what docs/reasons.md says of these reasons.
func (t *Table) LinkReasons(column string, reasons ...string) {
	if t.Linked = column; t.Links == nil {
		t.Links = map[string]string{}
	}
	for _, reason := range reasons {
		t.Links[reason] = "https://github.com/stowage-dev/stowage/blob/main/docs/reasons.md#" + strings.ToLower(reason)
	}
}

// CellPart is a part of a cell on a page, with its address, which may be empty.
type CellPart struct{ Text, Address string }

// CellParts are those of a cell on a page.
func (t *Table) CellParts(column int, cell string) (out []CellPart) {
	if column >= len(t.Head) || t.Head[column] != t.Linked {
		return []CellPart{{Text: cell}}
	}
	for part := range strings.SplitSeq(cell, ", ") {
		out = append(out, CellPart{part, t.Links[part]})
	}
	return out
}

// WithoutEmpty returns the table without the columns that are empty in every row. A dash is empty.
func (t Table) WithoutEmpty() Table {
	if len(t.Rows) == 0 {
		return t
	}
	out := Table{Rows: make([][]string, len(t.Rows)), Note: t.Note}
	for i, head := range t.Head {
		if !slices.ContainsFunc(t.Rows, func(row []string) bool { return row[i] != "" && row[i] != "-" }) {
			continue
		}
		out.Head = append(out.Head, head)
		for n, row := range t.Rows {
			out.Rows[n] = append(out.Rows[n], row[i])
		}
	}
	return out
}

// Text lines the cells up. A table without rows is its note alone; spaces at the end of a line are cut.
func (t *Table) Text() string {
	if len(t.Rows) == 0 {
		return t.Note
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		cells := make([]string, len(row))
		for i := range row {
			cells[i] = bounded.Printable(row[i]) // a line break or a tab would make rows and columns of its own
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // a Builder takes everything
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + t.Note
}
