package preview

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
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

// The measures of a picture, in pixels.
const (
	seatWidth, seatHeight = 34, 26
	seatGap               = 4
	seatsInRow            = 5
	baySeats              = seatsInRow*(seatWidth+seatGap) + seatGap // the width of a pool's seats
	poolGap               = 28
	rowWidth              = 1000 // pools beyond it begin a new row
	margin                = 20
	lineHeight            = 18
	headHeight            = 2*lineHeight + 10 // above a pool's seats
	letterWidth           = 7
)

// SVG draws the plans: pools are columns, and each seat has the number of the pod that
// took it. The picture has a background of its own, so that it is readable on any page.
func SVG(out io.Writer, plans []Plan) error {
	d := &drawing{}
	y := margin
	for i := range plans {
		y = d.plan(&plans[i], y) + margin
	}
	_, err := fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" font-family="system-ui, sans-serif" font-size="12">
<title>Where the pods go</title>
<style>
.title { font-weight: 600; font-size: 14px; fill: #1f2328; }
.note { fill: #59636e; }
.bay { fill: #f6f8fa; stroke: #8b949e; }
</style>
<rect width="100%%" height="100%%" rx="6" fill="#ffffff"/>
%s</svg>
`, d.width+margin, y, d.body.String())
	return err
}

// mostBoxes is how many boxes a plan has at most, so that a picture of many pods fits a page.
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

// plan draws one plan from y on, and returns where it ends.
func (d *drawing) plan(plan *Plan, y int) int {
	y += lineHeight
	d.text("title", margin, y, "%s: %s", plan.Workload, podCount(len(plan.Pools)))
	y += lineHeight
	each := max(1, (len(plan.Pools)+mostBoxes-1)/mostBoxes) // pods of a box
	if each == 1 {
		d.text("note", margin, y, "%s", plan.Policy.Source)
	} else {
		d.text("note", margin, y, "%s; a box is %d pods of its pool, and has the number of the first", plan.Policy.Source, each)
	}
	y += lineHeight / 2

	bays, pods := plan.bays(), map[bay][]int{} // with the numbers of the pods
	unseated := 0
	for number, pool := range plan.Pools {
		if pool < 0 {
			unseated++
			continue
		}
		in := plan.bayOf(number)
		pods[in] = append(pods[in], number+1)
	}
	for next := 0; next < len(bays); {
		// Those that fit side by side are one row. The domains of the next pool begin a new one.
		x, most, end := margin, 1, next
		var at []int
		for ; end < len(bays); end++ {
			wide := bayWidth(plan, bays[end])
			if end > next && (x+wide > rowWidth || bays[end].domain == 0) {
				break
			}
			at = append(at, x)
			x += wide + poolGap
			most = max(most, (len(pods[bays[end]])+seatsInRow*each-1)/(seatsInRow*each))
		}
		height := most*(seatHeight+seatGap) + seatGap
		for i, x := range at {
			in := bays[next+i]
			d.bay(plan, in, pods[in], each, x, y, height)
		}
		next = end
		y += headHeight + height
		if next < len(bays) {
			y += lineHeight / 2
		}
	}
	if unseated > 0 {
		y += lineHeight
		d.text("note", margin, y, "%s without a seat", podCount(unseated))
	}
	return y
}

// bay draws a bay and its pods, each so many in one box. Seats are taken from the bottom.
func (d *drawing) bay(plan *Plan, in bay, pods []int, each, x, y, height int) {
	d.text("title", x, y+lineHeight, "%s: %s", bayName(plan, in), podCount(len(pods)))
	d.text("note", x, y+2*lineHeight, "%s", bayLabels(plan, in))
	y += headHeight
	d.width = max(d.width, x+baySeats)
	fmt.Fprintf(&d.body, "<rect class=\"bay\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/>\n", x, y, baySeats, height)
	c := colorOf(in.pool)
	for first := 0; first < len(pods); first += each {
		n, number := first/each, pods[first]
		px := x + seatGap + n%seatsInRow*(seatWidth+seatGap)
		py := y + height - (n/seatsInRow+1)*(seatHeight+seatGap)
		fmt.Fprintf(&d.body, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" fill=%q/><text x=\"%d\" y=\"%d\" fill=%q text-anchor=\"middle\">%d</text>\n",
			px, py, seatWidth, seatHeight, c, px+seatWidth/2, py+seatHeight/2+4, c.text(), number)
	}
}

// bayLabels are the node labels of a bay. Those of a pool that is divided stand at its first domain.
func bayLabels(plan *Plan, in bay) string {
	set := labels.Set(plan.Policy.Strategy.Pool(in.pool).Labels).String()
	switch {
	case in.domain < 0:
		return set
	case in.domain > 0:
		return ""
	}
	return set + ", over " + plan.Policy.Strategy.Across().Key
}

// bayWidth is how wide a bay is, in pixels. The labels of a divided pool may reach over its other domains.
func bayWidth(plan *Plan, in bay) int {
	if in.domain >= 0 {
		return max(baySeats, letterWidth*len(bayName(plan, in)+": 1000 pods"))
	}
	return max(baySeats, letterWidth*len(bayLabels(plan, in)))
}

// bayName names a bay.
func bayName(plan *Plan, in bay) string {
	name := "pool " + plan.Policy.Strategy.Pool(in.pool).Name
	if in.domain >= 0 {
		name += ", " + plan.Policy.Whole.DomainName(in.domain)
	}
	return name
}
