package picture

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// Caption holds the texts of a drawing: the question above the network, the answer and notes below it.
type Caption struct {
	Title, Answer string
	Notes         []string // "node n1: DNAT 10.244.0.6"
}

const svgStyle = `
svg { --ink: #1b2430; --soft: #5b6675; --line: #c3cad4; --ground: #ffffff; --band: #f5f7fa; --box: #ffffff; --azure: #eaf2fb; --node: #f0f6ee; --way: #b8430a }
@media (prefers-color-scheme: dark) {
svg { --ink: #e6eaf0; --soft: #a3adba; --line: #46505e; --ground: #14181e; --band: #1a2028; --box: #232a34; --azure: #1b2a3c; --node: #1e2a22; --way: #ff9d5c }
}
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink) }
.name { font-weight: 600 }
.detail, .kind { font-size: 12px; fill: var(--soft) }
.detail { font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace }
.answer { font-size: 15px; font-weight: 600 }
.note { fill: var(--way) }
.ground { fill: var(--ground) }
.box { fill: var(--box); stroke: var(--line) }
.subnet { fill: var(--band); stroke: var(--line); stroke-dasharray: 4 3 }
.azure { fill: var(--azure) }
.node { fill: var(--node) }
.group { stroke-dasharray: 2 2 }
.wire { fill: none; stroke: var(--line); stroke-width: 1.5 }
.met { stroke: var(--way); stroke-width: 2 }
.way { fill: none; stroke: var(--way); stroke-width: 3; stroke-linejoin: round; marker-end: url(#arrow) }
.head { fill: var(--way) }
`

// wrapAt is the length of a line of the answer, in pixels of a character of the answer's font.
const wrapAt = 8

// SVG writes a picture with a way as a drawing that stands alone. A way without points is not drawn.
func (p *Picture) SVG(w io.Writer, way Way, c Caption) error {
	out := bufio.NewWriter(w)
	width := max(p.Width, 640)
	answer := wrap(c.Answer, (width-2*margin)/wrapAt)
	const titleH = 30
	notes := p.Height + titleH + len(answer)*22
	height := notes + len(c.Notes)*20 + margin
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		width, height, width, height, escape(c.Title+": "+c.Answer))
	fmt.Fprintf(out, "<style>%s</style>\n", svgStyle)
	fmt.Fprintln(out, `<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="4" markerHeight="4" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>`)
	fmt.Fprintf(out, `<rect class="ground" width="%d" height="%d"/>`+"\n", width, height)
	fmt.Fprintf(out, `<text class="name" x="%d" y="%d">%s</text>`+"\n<g transform=\"translate(0 %d)\">\n", margin, margin+8, escape(c.Title), titleH)
	for i := range p.Boxes {
		p.Boxes[i].svg(out, p.isOn(&p.Boxes[i], way))
	}
	for _, wire := range p.Wires {
		fmt.Fprintf(out, `<path class="wire" d="%s"/>`+"\n", pathData(wire.Points))
	}
	if len(way.Points) > 1 {
		fmt.Fprintf(out, `<path class="way" d="%s"/>`+"\n", pathData(way.Points))
	}
	for i := range p.Boxes {
		p.Boxes[i].labels(out)
	}
	fmt.Fprintln(out, "</g>")
	for i, line := range answer {
		fmt.Fprintf(out, `<text class="answer" x="%d" y="%d">%s</text>`+"\n", margin, p.Height+titleH+(i+1)*22, escape(line))
	}
	for i, note := range c.Notes {
		fmt.Fprintf(out, `<text class="note" x="%d" y="%d">%s</text>`+"\n", margin, notes+(i+1)*20, escape(note))
	}
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}

// isOn reports whether a way visits a box.
func (p *Picture) isOn(b *Box, way Way) bool {
	for _, stop := range way.Stops {
		if stop < len(way.Points) && b.Kind != Subnet && onEdge(b, way.Points[stop]) {
			return true
		}
	}
	return false
}

// onEdge reports whether a point is on the edge of a box.
func onEdge(b *Box, at Point) bool {
	inside := b.X <= at[0] && at[0] <= b.X+b.W && b.Y <= at[1] && at[1] <= b.Y+b.H
	return inside && (at[0] == b.X || at[0] == b.X+b.W || at[1] == b.Y || at[1] == b.Y+b.H)
}

func (b *Box) svg(out io.Writer, met bool) {
	class := "box " + string(b.Kind)
	if met {
		class += " met"
	}
	fmt.Fprintf(out, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n", class, b.X, b.Y, b.W, b.H)
}

func (b *Box) labels(out io.Writer) {
	if b.Kind == Subnet {
		fmt.Fprintf(out, `<text class="kind" x="%d" y="%d">%s</text>`+"\n", b.X+b.Indent, b.Y+22, escape(b.Label))
		return
	}
	fmt.Fprintf(out, `<text class="name" x="%d" y="%d">%s</text>`+"\n", b.X+b.Indent, b.Y+20, escape(b.Label))
	if b.Detail != "" {
		fmt.Fprintf(out, `<text class="detail" x="%d" y="%d">%s</text>`+"\n", b.X+b.Indent, b.Y+38, escape(b.Detail))
	}
	if b.Status != "" {
		class := "detail"
		if b.Alert {
			class = "detail note"
		}
		fmt.Fprintf(out, `<text class="%s" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", class, b.X+b.W-gap, b.Y+38, escape(b.Status))
	}
}

// pathData returns the attribute d of a path along points.
func pathData(points []Point) string {
	var b strings.Builder
	for i, p := range points {
		fmt.Fprintf(&b, "%c%d %d", "ML"[min(i, 1)], p[0], p[1])
	}
	return b.String()
}

// escape returns a text for an XML document. Characters that XML does not allow are replaced.
func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder does not fail
	return b.String()
}

// wrap splits a text at spaces into lines of at most n characters.
func wrap(text string, n int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		if last := len(lines) - 1; last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= n {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
