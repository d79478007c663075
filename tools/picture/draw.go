package main

import (
	"fmt"
	"html"
	"strings"

	"packetwalk.dev/internal/answer/explain"
)

// Lengths are in user units of the SVG, about pixels.
const (
	width   = 920
	margin  = 20
	boxW    = 150
	boxH    = 46
	gap     = 16
	wire    = 62 // between two rows: room for what is on the wire
	barH    = 58
	changeH = 38
	vmsW    = boxW + 2*gap
)

const style = `
  text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2937 }
  .mono { font: 12px ui-monospace, Menlo, "DejaVu Sans Mono", monospace }
  .small { font-size: 12px; fill: #6b7280 }
  .bold { font-weight: 600 }
  .way { stroke: #c2410c; stroke-width: 2.5; fill: none; marker-end: url(#arrow) }
  .packet { fill: #c2410c }
  .zone { fill: #f3f4f6; stroke: #d1d5db }
  .azure { fill: #e0ecf9; stroke: #9dbfe3 }
  .node { fill: #eef5ec; stroke: #a9caa0 }
  .box { fill: #ffffff; stroke: #9ca3af }
  .met { stroke: #c2410c; stroke-width: 2 }
`

// A canvas gathers the shapes, and those that lie above them all.
type canvas struct{ shapes, above strings.Builder }

func (c *canvas) box(class string, x, y, w, h int) {
	fmt.Fprintf(&c.shapes, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", class, x, y, w, h)
}

func (c *canvas) text(class string, x, y int, text string) {
	fmt.Fprintf(&c.above, "<text class=%q x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, html.EscapeString(text))
}

func (c *canvas) way(points ...[2]int) {
	var d strings.Builder
	for i, p := range points {
		fmt.Fprintf(&d, "%c%d %d", "ML"[min(i, 1)], p[0], p[1])
	}
	fmt.Fprintf(&c.above, "<path class=\"way\" d=%q/>\n", d.String())
}

// host draws a machine or pod; met is one that the packet comes by.
func (c *canvas) host(h host, x, y int, met bool) {
	class := "box"
	if met {
		class = "box met"
	}
	c.box(class, x, y, boxW, boxH)
	c.text("bold", x+10, y+19, h.name())
	c.text("mono", x+10, y+37, h.address)
}

// draw gives the picture: the internet above, Azure's network below it, then nodes with their pods, and virtual machines beside them.
func draw(l lab, outcome explain.OutcomeDoc) string {
	c := &canvas{}
	way := 0 // where the packet comes down
	c.box("zone", margin, margin, width-2*margin, boxH+2*gap)
	c.text("small", width-margin-100, margin+20, "the internet")
	for i, h := range l.internet {
		x := margin + gap + i*(boxW+gap)
		on := h.id == outcome.Results[0].Node
		c.host(h, x, margin+gap, on)
		if on {
			way = x + boxW/2
		}
	}

	azure := margin + boxH + 2*gap + wire
	nodes := azure + barH + wire
	c.box("azure", margin, azure, width-2*margin, barH)
	c.text("bold", way+gap, azure+25, "Azure's network")
	c.text("small", way+gap, azure+45, "load balancer: "+strings.Join(l.frontends, ", "))
	c.way([2]int{way, azure - wire - gap}, [2]int{way, nodes})
	c.text("mono packet", way+gap, azure-wire/2+4, onWire(leaving(outcome, outcome.Results[0].Node)))
	c.text("mono packet", way+gap, nodes-wire/2+4, onWire(leaving(outcome, "fabric")))

	bottom := nodes
	for _, n := range l.nodes {
		bottom = c.node(n, bottom, way, outcome) + gap
	}
	c.machines(l.vms, nodes, bottom-gap-nodes)
	c.text("bold packet", margin, bottom+gap, answer(outcome))
	return c.svg(bottom + gap + margin)
}

// machines draws the virtual machines in a column on the right.
func (c *canvas) machines(vms []host, y, h int) {
	x := width - margin - vmsW
	c.box("zone", x, y, vmsW, h)
	c.text("small", x+gap, y+20, "virtual machines")
	for i, vm := range vms {
		c.host(vm, x+gap, y+32+i*(boxH+gap), false)
	}
}

// node draws a node from y on, the changes that its rules make along the packet's way, and its pods below. It gives where the box ends.
func (c *canvas) node(n host, y, way int, outcome explain.OutcomeDoc) int {
	const w = width - 2*margin - vmsW - gap
	changes := changesAt(outcome, n.id)
	pods := y + 52 + len(changes)*changeH + wire
	c.box("node", margin, y, w, pods+boxH+gap-y)
	c.text("bold", way+gap, y+22, "node "+n.name())
	c.text("mono", way+gap, y+40, "eth0 "+n.address)
	for i, change := range changes {
		at := y + 52 + i*changeH
		fmt.Fprintf(&c.above, "<circle cx=\"%d\" cy=\"%d\" r=\"5\" fill=\"#c2410c\"/>\n", way, at+12)
		c.text("mono packet", way+gap, at+16, change.what)
		c.text("mono small", way+gap, at+31, "by "+change.rule)
	}
	for i, p := range n.pods {
		x := margin + gap + i*(boxW+gap)
		if x+boxW+gap > margin+w { // the others do not fit
			break
		}
		on := p.id == outcome.End.Node
		c.host(p, x, pods, on)
		if on {
			turn := pods - wire/2
			c.way([2]int{way, y}, [2]int{way, turn}, [2]int{x + boxW/2, turn}, [2]int{x + boxW/2, pods})
			c.text("mono packet", way+gap, turn-8, onWire(outcome.End.Packet))
		}
	}
	return pods + boxH + gap
}

// answer returns the picture's last line.
func answer(outcome explain.OutcomeDoc) string {
	sees := outcome.Sees
	if len(sees.Translations) == 0 {
		return "the destination sees " + sees.SrcIP + ", the sender's own address"
	}
	last := sees.Translations[len(sees.Translations)-1]
	return "the destination sees " + sees.SrcIP + ", because of " + last.Rule
}

func (c *canvas) svg(height int) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="a lab, and a packet's way through it">
<style>%s</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#c2410c"/></marker></defs>
<rect width="%[1]d" height="%[2]d" rx="8" fill="#ffffff"/>
%[4]s%[5]s</svg>
`, width, height, style, c.shapes.String(), c.above.String())
}
