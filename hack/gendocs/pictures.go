package main

import (
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/stowage-dev/stowage/internal/spread/sequence"
)

// pictures are the drawings of docs/concepts.md, by file name. Their pods are divided by package sequence.
var pictures = map[string]func(io.Writer) error{
	"sequence.svg": drawSequence,
	"burst.svg":    drawBurst,
	"rollout.svg":  drawRollout,
	"outage.svg":   drawOutage,
}

// The strategy of the pictures, and the look of its pools. The colours are of M. Okabe and K. Ito, "Color Universal
// Design", 2008.
const (
	onDemand, spot = 0, 1
	waiting        = 2 // no pool: pods that wait for a node
)

var (
	poolNames = []string{onDemand: "on-demand", spot: "spot", waiting: "waits for a node"}
	fills     = []string{onDemand: "#0072b2", spot: "#e69f00", waiting: "#d0d7de"}
	inks      = []string{onDemand: "#ffffff", spot: "#000000", waiting: "#000000"}
)

func exampleStrategy(base int64) (*sequence.Strategy, error) {
	return sequence.New([]sequence.Pool{
		{Name: poolNames[onDemand], Base: base, Weight: 20, Labels: map[string]string{"type": "default"}},
		{Name: poolNames[spot], Weight: 80, Labels: map[string]string{"type": "spot"}},
	}, sequence.EarlierWins)
}

// canvas is a picture in the making. Lengths are in pixels.
type canvas struct{ body strings.Builder }

const cell = 24 // the side of a pod's square, with its margin

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(&c.body, format+"\n", args...) }

// text writes a line; class is one of those in [canvas.write].
func (c *canvas) text(class string, x, y int, format string, args ...any) {
	c.add(`<text class="%s" x="%d" y="%d">%s</text>`, class, x, y, html.EscapeString(fmt.Sprintf(format, args...)))
}

func (c *canvas) rect(x, y, width, height int, fill string) {
	c.add(`<rect x="%d" y="%d" width="%d" height="%d" rx="3" fill="%s"/>`, x, y, width, height, fill)
}

func (c *canvas) line(class string, x1, y1, x2, y2 int) {
	c.add(`<line class="%s" x1="%d" y1="%d" x2="%d" y2="%d"/>`, class, x1, y1, x2, y2)
}

// pod draws one pod of a pool, with its number.
func (c *canvas) pod(pool, number, x, y int) {
	c.rect(x, y, cell-4, cell-4, fills[pool])
	c.add(`<text class="center" x="%d" y="%d" fill="%s">%d</text>`, x+cell/2-2, y+cell/2+2, inks[pool], number)
}

// legend explains the colours of some pools.
func (c *canvas) legend(x, y int, pools ...int) {
	for _, pool := range pools {
		c.rect(x, y-12, 14, 14, fills[pool])
		c.text("note", x+20, y, "%s", poolNames[pool])
		x += 40 + 8*len(poolNames[pool])
	}
}

// write writes the picture. It has a background of its own, so that it is readable on any page, and is dark where the reader prefers that.
func (c *canvas) write(out io.Writer, title string, width, height int) error {
	_, err := fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%[2]d" height="%[3]d" viewBox="0 0 %[2]d %[3]d" role="img" font-family="system-ui, sans-serif" font-size="12">
<title>%[1]s</title>
<style>
.title { font-weight: 600; font-size: 14px; fill: #1f2328; }
.note { fill: #59636e; }
.right { fill: #59636e; text-anchor: end; }
.middle { fill: #1f2328; text-anchor: middle; stroke: #ffffff; stroke-width: 4; paint-order: stroke; }
.center { text-anchor: middle; }
.axis { stroke: #8b949e; }
.dashed { stroke: #8b949e; stroke-dasharray: 4 4; }
.arrow { stroke: #1f2328; stroke-width: 1.5; marker-end: url(#head); }
.refused { stroke: #cf222e; stroke-width: 1.5; marker-end: url(#red); }
.ground { fill: #ffffff; }
.tip { fill: #1f2328; }
.refusal { fill: #cf222e; }
@media (prefers-color-scheme: dark) {
.title { fill: #e6edf3; }
.note { fill: #9198a1; }
.right { fill: #9198a1; }
.middle { fill: #e6edf3; stroke: #0d1117; }
.axis { stroke: #6e7681; }
.dashed { stroke: #6e7681; }
.arrow { stroke: #e6edf3; }
.refused { stroke: #f85149; }
.ground { fill: #0d1117; }
.tip { fill: #e6edf3; }
.refusal { fill: #f85149; }
}
</style>
<defs>
<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker>
<marker id="red" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="refusal" d="M0 0L8 4L0 8z"/></marker>
</defs>
<rect class="ground" width="100%%" height="100%%" rx="6"/>
%[4]s</svg>
`, html.EscapeString(title), width, height, c.body.String())
	return err
}

// pods draws the first n pods of the sequence from left to right.
func (c *canvas) pods(s *sequence.Strategy, n, x, y int) error {
	for rank := range n {
		seat, err := s.SeatAt(int64(rank + 1))
		if err != nil {
			return err
		}
		c.pod(seat.Pool, rank+1, x+rank*cell, y)
	}
	return nil
}

// counts says how many of n pods each pool has.
func counts(s *sequence.Strategy, n int) string {
	return fmt.Sprintf("%d + %d", s.Target(onDemand, int64(n)), s.Target(spot, int64(n)))
}

// drawSequence shows that each number of pods is a prefix of one order.
func drawSequence(out io.Writer) error {
	s, err := exampleStrategy(2)
	if err != nil {
		return err
	}
	const left, top, most = 90, 66, 17
	c := &canvas{}
	c.text("title", 20, 32, "base 2 on demand, then weights 20 and 80")
	c.legend(390, 32, onDemand, spot)
	y := top
	for _, n := range []int{1, 2, 3, 5, 7, 9, 12, most} {
		c.text("right", left-14, y+15, "%d", n)
		if err := c.pods(s, n, left, y); err != nil {
			return err
		}
		c.text("note", left+most*cell+14, y+15, "%s", counts(s, n))
		y += cell + 2
	}
	c.text("right", left-14, top-8, "pods")
	c.text("note", left, top-8, "in the order of the sequence")
	c.text("note", left+most*cell+14, top-8, "counts")
	c.text("note", left, y+16, "A scale-up adds pods on the right. A scale-down removes pods from the right.")
	return c.write(out, "The sequence of a strategy", left+most*cell+90, y+36)
}

// drawBurst shows two replicas that give seats of one workload at the same time.
func drawBurst(out io.Writer) error {
	s, err := exampleStrategy(2)
	if err != nil {
		return err
	}
	c := &canvas{}
	lanes := []int{90, 300, 510, 720}
	const top, bottom = 50, 370
	for i, name := range []string{"kube-apiserver", "replica A", "replica B", "SeatLedger of the workload"} {
		c.text("middle", lanes[i], 30, "%s", name)
		c.line("axis", lanes[i], top-10, lanes[i], bottom)
	}
	arrow := func(class string, from, to, y int, label string) {
		sign := 1
		if to < from {
			sign = -1
		}
		c.text("middle", (lanes[from]+lanes[to])/2, y-6, "%s", label)
		c.line(class, lanes[from], y, lanes[to]-3*sign, y)
	}
	ledger := func(n, y int) error { return c.pods(s, n, lanes[3]+14, y) }
	arrow("arrow", 0, 1, 70, "3 new pods")
	arrow("arrow", 0, 2, 100, "2 new pods")
	arrow("arrow", 1, 3, 130, "write seats 1 to 3, if version is 7")
	if err := ledger(3, 120); err != nil {
		return err
	}
	arrow("refused", 2, 3, 160, "write seats 1, 2, if version is 7")
	arrow("refused", 3, 2, 190, "conflict: version is 8")
	arrow("arrow", 1, 0, 205, "pods 1 to 3 have their pools")
	arrow("arrow", 3, 2, 240, "read version 8")
	arrow("arrow", 2, 3, 275, "write seats 4, 5, if version is 8")
	if err := ledger(5, 265); err != nil {
		return err
	}
	arrow("arrow", 2, 0, 315, "pods 4 and 5 have their pools")
	c.text("note", 20, bottom+20, "Each replica writes one group of pods at a time. The API server refuses a write that is based on an old version.")
	return c.write(out, "A burst of pods and two replicas", lanes[3]+14+5*cell+20, bottom+40)
}

// drawRollout shows that the revisions of a Deployment have a sequence each.
func drawRollout(out io.Writer) error {
	s, err := exampleStrategy(2)
	if err != nil {
		return err
	}
	c := &canvas{}
	c.text("title", 20, 32, "a rollout of 10 pods: maxSurge and maxUnavailable 25%%")
	c.legend(540, 32, onDemand, spot)
	const left, right = 90, 400
	c.text("note", left, 62, "old revision")
	c.text("note", right, 62, "new revision")
	y := 74
	for _, step := range [][2]int{{10, 0}, {8, 5}, {5, 8}, {3, 10}, {0, 10}} {
		c.text("right", left-14, y+15, "%d, %d", step[0], step[1])
		for i, x := range []int{left, right} {
			if err := c.pods(s, step[i], x, y); err != nil {
				return err
			}
			if step[i] > 0 {
				c.text("note", x+10*cell+8, y+15, "%s", counts(s, step[i]))
			}
		}
		y += cell + 6
	}
	c.text("note", left, y+16, "Each revision has a sequence of its own. So the new revision is divided exactly at its full size.")
	return c.write(out, "A rollout", right+10*cell+70, y+36)
}

// drawOutage shows the pods of docs/spill.md over time: 30 pods, and spot nodes for ten of them.
func drawOutage(out io.Writer) error {
	s, err := exampleStrategy(0)
	if err != nil {
		return err
	}
	const n, room = 30, 10
	short := s.Without([]sequence.Gap{{}, {From: room, Count: sequence.All}})
	const left, top, high, unit = 60, 70, 210, 7 // a pod is unit pixels high
	type span struct {
		from, to int // x
		pods     [3]int
		label    string
	}
	target := func(s *sequence.Strategy) [3]int {
		return [3]int{onDemand: int(s.Target(onDemand, n)), spot: int(s.Target(spot, n))}
	}
	before := target(s)
	during := [3]int{onDemand: before[onDemand], spot: room, waiting: before[spot] - room}
	spans := []span{
		{left, left + 80, before, "before"},
		{left + 80, left + 200, during, "spot nodes are lost"},
		{left + 200, left + 520, target(short), "spot is Exhausted: on-demand has its pods"},
		{left + 520, left + 700, before, "Available"},
	}
	c := &canvas{}
	c.text("title", 20, 32, "30 pods, weights 20 and 80, spill after 2m")
	c.legend(430, 32, onDemand, spot, waiting)
	for i := range spans {
		y := top + high
		for pool, pods := range spans[i].pods {
			y -= pods * unit
			if pods == 0 {
				continue
			}
			c.add(`<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`, spans[i].from, y, spans[i].to-spans[i].from-1, pods*unit, fills[pool])
			c.add(`<text class="center" x="%d" y="%d" fill="%s">%d</text>`, (spans[i].from+spans[i].to)/2, y+pods*unit/2+4, inks[pool], pods)
		}
		c.text("middle", (spans[i].from+spans[i].to)/2, top-8, "%s", spans[i].label)
	}
	c.line("axis", left, top+high, left+700, top+high)
	for _, mark := range []struct {
		x    int
		what [2]string
	}{
		{80, [2]string{"10:00", "14 pods wait"}},
		{200, [2]string{"10:02", "they are evicted"}},
		{310, [2]string{"10:03, 10:07, …", "a pod tries spot"}},
		{430, [2]string{"10:31", "new spot nodes"}},
		{520, [2]string{"10:40", "rollout"}},
	} {
		c.line("dashed", left+mark.x, top, left+mark.x, top+high+6)
		c.text("middle", left+mark.x, top+high+22, "%s", mark.what[0])
		c.text("middle", left+mark.x, top+high+38, "%s", mark.what[1])
	}
	return c.write(out, "A pool without room, and the return", left+720, top+high+56)
}
