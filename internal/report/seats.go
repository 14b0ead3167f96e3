package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// hues are eight colours that people with any colour vision tell apart (M. Okabe and K. Ito, "Color
// Universal Design", 2008); the last one, black, is a grey here.
var hues = []color{
	{0x00, 0x72, 0xb2}, {0xe6, 0x9f, 0x00}, {0x00, 0x9e, 0x73}, {0xcc, 0x79, 0xa7},
	{0x56, 0xb4, 0xe9}, {0xd5, 0x5e, 0x00}, {0xf0, 0xe4, 0x42}, {0x55, 0x55, 0x55},
}

// shades are how the hues are mixed with white (above 0) or black (below) when the pools are more than the
// hues. A strategy has at most 32 pools, so no colour is used twice.
var shades = []float64{0, 0.55, -0.4, 0.78}

// color is red, green and blue.
type color [3]uint8

func colorOf(pool int) color {
	c, shade := hues[pool%len(hues)], shades[pool/len(hues)%len(shades)]
	for i, v := range c {
		to := 0.0
		if shade > 0 {
			to = 255
		}
		c[i] = uint8(math.Round(float64(v) + (to-float64(v))*math.Abs(shade)))
	}
	return c
}

func (c color) String() string { return fmt.Sprintf("#%02x%02x%02x", c[0], c[1], c[2]) }

// text is the colour of text on this one, black or white, by its luminance (WCAG 2.2, "relative luminance").
func (c color) text() string {
	linear := func(v uint8) float64 {
		x := float64(v) / 255
		if x <= 0.04045 {
			return x / 12.92
		}
		return math.Pow((x+0.055)/1.055, 2.4)
	}
	if 0.2126*linear(c[0])+0.7152*linear(c[1])+0.0722*linear(c[2]) > 0.179 { // where both contrasts are equal
		return "#000"
	}
	return "#fff"
}

// Seats is a picture of where the pods of a workload are. Its pools are columns, and a pod is a box in its pool.
type Seats struct {
	Title, Note string
	Columns     []Column
	Unseated    int // pods without a seat
}

// Column is a pool of a picture, or a domain of one.
type Column struct {
	Name   string
	Count  string // of its pods, with the noun
	Labels string // of its nodes
	Pool   int    // decides the colour
	// Domain counts the domains of the pool from 0, whose columns stand side by side. It is -1 for a pool without domains.
	Domain int
	Runs   []Run
}

// Run is seats in the same state, one after the other.
type Run struct {
	State   SeatState
	Count   int64
	Numbers []int // the places of the first of them in the sequence, from 1; may be fewer than the seats
}

// SeatState is what is in a seat.
type SeatState int

// A seat has a pod, a pod that waits for a node, no pod, or one that is too many in its pool.
const (
	Held SeatState = iota
	Waiting
	Missing
	Extra
)

// seatClasses are the names of the states in styles.
var seatClasses = map[SeatState]string{Held: "held", Waiting: "waiting", Missing: "missing", Extra: "extra"}

// Runs are the seats of a pool that has so many pods, and should have as many as the target. The pods beyond onNodes wait for a node.
// The numbers are those of the first seats.
func Runs(pods, onNodes, target int64, numbers []int) (out []Run) {
	next := int64(0)
	add := func(state SeatState, end int64) {
		if end <= next {
			return
		}
		have := int64(len(numbers))
		out = append(out, Run{State: state, Count: end - next, Numbers: numbers[min(next, have):min(end, have)]})
		next = end
	}
	add(Held, min(pods, target, onNodes))
	add(Waiting, min(pods, target))
	add(Missing, target)
	add(Extra, pods)
	return out
}

// Picture is a part of a page with a picture of workloads, and a text below it.
func Picture(title string, workloads []Seats, text string) Part {
	var picture strings.Builder
	_ = SVG(&picture, workloads) // which does not fail without its writer
	return Part{Title: title, Picture: picture.String(), Text: text}
}

// The measures of a picture, in pixels.
const (
	seatWidth, seatHeight = 34, 26
	seatGap               = 4
	seatsInRow            = 5
	columnSeats           = seatsInRow*(seatWidth+seatGap) + seatGap // the width of a column's seats
	columnGap             = 28
	rowWidth              = 1000 // columns beyond it begin a new row
	margin                = 20
	lineHeight            = 18
	headHeight            = 2*lineHeight + 10 // above a column's seats
	letterWidth           = 7
	titleWidth            = 8 // of a letter
)

// SVG draws workloads, one below the other. The picture has a background of its own, so that it is readable on any page, and
// is dark where the reader prefers that.
func SVG(out io.Writer, workloads []Seats) error {
	d := &drawing{}
	y := margin
	for i := range workloads {
		y = d.workload(&workloads[i], y) + margin
	}
	_, err := fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" font-family="system-ui, sans-serif" font-size="12">
<title>Where the pods go</title>
<style>
.ground, .waiting { fill: #ffffff; }
.title { font-weight: 600; font-size: 14px; fill: #1f2328; }
.ink { fill: #1f2328; }
.note { fill: #59636e; }
.bay { fill: #f6f8fa; stroke: #8b949e; }
@media (prefers-color-scheme: dark) {
.ground, .waiting { fill: #0d1117; }
.title, .ink { fill: #e6edf3; }
.note { fill: #9198a1; }
.bay { fill: #151b23; stroke: #6e7681; }
.held { stroke: #8b949e; }
}
</style>
<rect class="ground" width="100%%" height="100%%" rx="6"/>
%s</svg>
`, d.width+margin, y, d.body.String())
	return err
}

// mostBoxes is how many boxes a workload has at most, so that a picture of many pods fits a page.
const mostBoxes = 150

// drawing is a picture in the making.
type drawing struct {
	body  strings.Builder
	width int // how far to the right it reaches
}

func (d *drawing) text(class string, x, y int, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	d.width = max(d.width, x+letterWidth*len(line))
	fmt.Fprintf(&d.body, "<text class=%q x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, html.EscapeString(line))
}

// workload draws one workload from y on, and returns where it ends.
func (d *drawing) workload(s *Seats, y int) int {
	seats, numbered := int64(s.Unseated), false
	for i := range s.Columns {
		for _, r := range s.Columns[i].Runs {
			seats, numbered = seats+r.Count, numbered || len(r.Numbers) > 0
		}
	}
	y += lineHeight
	d.text("title", margin, y, "%s", s.Title)
	y += lineHeight
	each := max(1, (seats+mostBoxes-1)/mostBoxes) // seats of a box
	note := s.Note
	if each > 1 {
		note += fmt.Sprintf("; a box is %d pods of its pool", each)
		if numbered {
			note += ", and has the number of the first"
		}
	}
	d.text("note", margin, y, "%s", note)
	y += lineHeight / 2

	for next := 0; next < len(s.Columns); {
		// Those that fit side by side are one row. The domains of the next pool begin a new one.
		x, most, end := margin, 1, next
		var at []int
		for ; end < len(s.Columns); end++ {
			wide := s.Columns[end].width()
			if end > next && (x+wide > rowWidth || s.Columns[end].Domain == 0) {
				break
			}
			at = append(at, x)
			x += wide + columnGap
			most = max(most, (s.Columns[end].boxes(each)+seatsInRow-1)/seatsInRow)
		}
		height := most*(seatHeight+seatGap) + seatGap
		for i, x := range at {
			d.column(&s.Columns[next+i], each, x, y, height)
		}
		next = end
		y += headHeight + height
		if next < len(s.Columns) {
			y += lineHeight / 2
		}
	}
	if s.Unseated > 0 {
		y += lineHeight
		d.text("note", margin, y, "%s without a seat", Pods(s.Unseated))
	}
	return y
}

// boxes is how many boxes a column has, each of so many seats in one state.
func (c *Column) boxes(each int64) (n int) {
	for _, r := range c.Runs {
		n += int((r.Count + each - 1) / each)
	}
	return n
}

// width is how wide a column is, in pixels. The labels of a divided pool may reach over its other domains.
func (c *Column) width() int {
	if c.Domain >= 0 {
		return max(columnSeats, letterWidth*len(c.Name+": 1000 pods"), letterWidth*len(c.Name+": "+c.Count))
	}
	return max(columnSeats, letterWidth*len(c.Labels), titleWidth*len(c.Name+": "+c.Count))
}

// column draws a column and its boxes, each of so many seats. Seats are taken from the bottom.
func (d *drawing) column(c *Column, each int64, x, y, height int) {
	d.text("title", x, y+lineHeight, "%s: %s", c.Name, c.Count)
	d.text("note", x, y+2*lineHeight, "%s", c.Labels)
	y += headHeight
	d.width = max(d.width, x+columnSeats)
	fmt.Fprintf(&d.body, "<rect class=\"bay\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/>\n", x, y, columnSeats, height)
	n := 0
	for _, r := range c.Runs {
		for first := int64(0); first < r.Count; first += each {
			px := x + seatGap + n%seatsInRow*(seatWidth+seatGap)
			py := y + height - (n/seatsInRow+1)*(seatHeight+seatGap)
			number := 0
			if first < int64(len(r.Numbers)) {
				number = r.Numbers[first]
			}
			d.box(r.State, number, colorOf(c.Pool), px, py)
			n++
		}
	}
}

// box draws one box. The number 0 is none.
func (d *drawing) box(state SeatState, number int, c color, x, y int) {
	look, text := fmt.Sprintf("fill=%q", c), fmt.Sprintf("fill=%q", c.text())
	switch state {
	case Held:
	case Waiting:
		look, text = fmt.Sprintf("stroke=%q stroke-width=\"2\"", c), `class="ink"`
	case Missing:
		look, text = "fill=\"none\" stroke=\"#8b949e\" stroke-dasharray=\"4 3\"", `class="note"`
	case Extra:
		look += " stroke=\"#cf222e\" stroke-width=\"3\""
	}
	fmt.Fprintf(&d.body, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" %s/>", seatClasses[state], x, y, seatWidth, seatHeight, look)
	if number > 0 {
		fmt.Fprintf(&d.body, "<text %s x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>", text, x+seatWidth/2, y+seatHeight/2+4, number)
	}
	d.body.WriteString("\n")
}

// Pods is a count of pods with its noun.
func Pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}
