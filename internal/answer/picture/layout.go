package picture

import (
	"slices"

	"packetwalk.dev/internal/model/snapshot"
)

// Lengths, in CSS pixels.
const (
	margin    = 20
	gutter    = 36 // between two columns: room for wires
	hostW     = 172
	hostH     = 52
	routerW   = 96
	azureW    = 224
	frontendH = 46
	header    = 52                  // of a box that holds others
	passH     = subnetTop + hostH/2 // where a wire passes through a box, from its top: on the level of a subnet's first machine
	podW      = 206
	podH      = 46
	gap       = 10
	lane      = 14 // above a row of pods: room for their wires
	pad       = 14
	nodeGap   = 28
	subnetTop = 34 // the title of a subnet
)

// Options say what to draw differently from the default.
type Options struct {
	// Open are the groups whose pods are drawn one by one.
	Open []string
	// Previous is the last picture of the same network: what stays keeps its place. Nil for none.
	Previous *Picture
	// Status has what is known of boxes at this moment, by their ids; of front ends by their addresses.
	Status map[string]Status
}

// Status is the state of a box in a few characters, with more to read.
type Status struct {
	Text  string
	Alert bool
	Facts []Fact
}

// New draws the network of a snapshot.
func New(source snapshot.Source, o Options) *Picture {
	l := layout{picture: &Picture{Boxes: []Box{}, Wires: []Wire{}, slots: slots{}}}
	var crowded map[string]bool
	if o.Previous != nil {
		l.before, crowded = o.Previous.slots, o.Previous.crowded
	}
	inv := take(source, o.Open, crowded)
	inv.addStatus(o.Status)
	l.picture.crowded = inv.crowded
	l.draw(&inv)
	return l.picture
}

// layout places boxes column by column, from left to right.
type layout struct {
	picture *Picture
	before  slots
	x       int // where the next column begins
	// exit is where wires leave Azure, or the room that stands for it, to the right.
	exit  Point
	from  string // the box with the exit
	trunk int    // x of the vertical part of wires to nodes
}

// nameWidth and detailWidth are the widths of a character of a box's name and of the line below it, in tenths of a pixel.
const (
	nameWidth   = 86
	detailWidth = 73
)

// top is the upper edge of all columns. Above it is room for wires that pass over a column.
const top = margin + 24

func (l *layout) draw(inv *inventory) {
	l.x = margin
	l.internet(inv)
	l.azure(inv)
	l.trunk = l.x - gutter/2
	for i := range inv.subnets {
		l.subnet(&inv.subnets[i], l.subnetY(i > 0), false)
	}
	if len(inv.vmSubnets) > 0 {
		over := len(inv.subnets) > 0
		if over {
			l.nextColumn()
		}
		for i := range inv.vmSubnets {
			l.subnet(&inv.vmSubnets[i], l.subnetY(i > 0), over)
		}
	}
	p := l.picture
	for i := range p.Boxes {
		p.Width, p.Height = max(p.Width, p.Boxes[i].X+p.Boxes[i].W+margin), max(p.Height, p.Boxes[i].Y+p.Boxes[i].H+margin)
	}
	for _, w := range p.Wires {
		for _, at := range w.Points {
			p.Width, p.Height = max(p.Width, at[0]+margin), max(p.Height, at[1]+margin)
		}
	}
}

// add adds a box of a machine.
func (l *layout) add(m *machine, parent string, x, y, w, h int) {
	indent := pad
	if m.kind == Node {
		indent += lane // the wire to its pods stands before the name
	}
	room := w - indent - gap
	l.picture.Boxes = append(l.picture.Boxes, Box{
		ID: m.id, Kind: m.kind, Parent: parent, Title: m.title, Label: abbreviate(m.title, room*10/nameWidth),
		Detail: abbreviate(m.detail, (room*10-statusRoom(m.status.Text))/detailWidth), Status: m.status.Text, Alert: m.status.Alert, X: x, Y: y, W: w, H: h, Indent: indent, Members: m.members, End: m.end, Facts: m.facts,
		Now: m.status.Facts,
	})
}

// statusRoom returns the width of a status with a gap before it, in tenths of a pixel.
func statusRoom(text string) int {
	if text == "" {
		return 0
	}
	return (len([]rune(text)) + 2) * detailWidth
}

// abbreviate returns a name of at most n characters. The middle goes, because names of pods differ at their ends.
func abbreviate(name string, n int) string {
	r := []rune(name)
	if len(r) <= n || n < 3 {
		return name
	}
	tail := (n - 1) / 2
	return string(r[:n-1-tail]) + "…" + string(r[len(r)-tail:])
}

func (l *layout) wire(from, to string, points ...Point) {
	l.picture.Wires = append(l.picture.Wires, Wire{from, to, straightened(points)})
}

// straightened returns points without those that lie on the line between their neighbours.
func straightened(points []Point) []Point {
	var kept []Point
	for _, p := range points {
		if n := len(kept); n > 0 && kept[n-1] == p {
			continue
		}
		if n := len(kept); n > 1 && (kept[n-2][0] == kept[n-1][0] && kept[n-1][0] == p[0] && between(kept[n-2][1], kept[n-1][1], p[1]) ||
			kept[n-2][1] == kept[n-1][1] && kept[n-1][1] == p[1] && between(kept[n-2][0], kept[n-1][0], p[0])) {
			kept[n-1] = p
			continue
		}
		kept = append(kept, p)
	}
	return kept
}

// between reports whether b lies between a and c.
func between(a, b, c int) bool { return a <= b && b <= c || a >= b && b >= c }

// nextColumn moves on to the column to the right of all boxes.
func (l *layout) nextColumn() {
	for i := range l.picture.Boxes {
		l.x = max(l.x, l.picture.Boxes[i].X+l.picture.Boxes[i].W+gutter)
	}
}

// internet draws the internet's hosts, one below the other, and the router to their right.
func (l *layout) internet(inv *inventory) {
	const first = top + subnetTop
	y := first
	for i := range inv.internet {
		l.add(&inv.internet[i], "", l.x, y, hostW, hostH)
		y += hostH + gap
	}
	if len(inv.internet) > 0 {
		l.x += hostW + gutter
	}
	if inv.router == nil {
		return
	}
	l.add(inv.router, "", l.x, top, routerW, passH+pad)
	entry := Point{l.x, top + passH}
	for i := range inv.internet {
		middle := first + i*(hostH+gap) + hostH/2
		turn := l.x - gutter/2
		l.wire(inv.internet[i].id, inv.router.id, Point{l.x - gutter, middle}, Point{turn, middle}, Point{turn, entry[1]}, entry)
	}
	l.x += routerW + gutter
}

// azure draws Azure's network with the front ends of its load balancer.
func (l *layout) azure(inv *inventory) {
	if inv.azure == nil {
		l.exit = Point{l.x - gutter, top + passH}
		if inv.router != nil {
			l.from = inv.router.id
		}
		return
	}
	h := passH + pad
	if n := len(inv.frontends); n > 0 {
		h += n*(frontendH+gap) - gap + pad
	}
	l.add(inv.azure, "", l.x, top, azureW, h)
	for i := range inv.frontends {
		l.add(&inv.frontends[i], inv.azure.id, l.x+pad, top+passH+pad+i*(frontendH+gap), azureW-2*pad, frontendH)
	}
	if inv.router != nil {
		l.wire(inv.router.id, inv.azure.id, Point{l.x - gutter, top + passH}, Point{l.x, top + passH})
	}
	l.from, l.exit = inv.azure.id, Point{l.x + azureW, top + passH}
	l.x += azureW + gutter
}

// subnetY returns where the next subnet of the column begins.
func (l *layout) subnetY(below bool) int {
	y := top
	if below {
		for i := range l.picture.Boxes {
			if b := &l.picture.Boxes[i]; b.Kind == Subnet && b.X == l.x {
				y = max(y, b.Y+b.H+nodeGap)
			}
		}
	}
	return y
}

// subnet draws a subnet with its machines in a grid. With over their wires pass over the column to the left.
func (l *layout) subnet(s *subnet, y int, over bool) {
	columns := 1
	switch n := len(s.machines); {
	case n > 12:
		columns = 4
	case n > 6:
		columns = 3
	case n > 3:
		columns = 2
	}
	title := "subnet " + s.prefix.String()
	if !s.prefix.IsValid() {
		title = "subnet unknown"
	}
	id := "subnet/" + s.machines[0].id
	at := len(l.picture.Boxes)
	box := machine{id: id, kind: Subnet, title: title}
	l.add(&box, "", l.x, y, 0, 0)

	podColumns, w := 0, hostW
	for i := range s.machines {
		podColumns = max(podColumns, columnsOf(l.podSlots(&s.machines[i])))
	}
	if podColumns > 0 {
		w = podColumns*podW + (podColumns-1)*gap + 2*pad + lane
	}
	rowY, bottom := y+subnetTop, y
	for i := range s.machines {
		if i%columns == 0 && i > 0 {
			rowY = bottom + nodeGap
		}
		x := l.x + pad + i%columns*(w+nodeGap)
		h := l.machine(&s.machines[i], id, x, rowY, w, podColumns)
		bottom = max(bottom, rowY+h)
		l.uplink(&s.machines[i], x, rowY, i%columns, over)
	}
	b := &l.picture.Boxes[at]
	n := min(columns, len(s.machines))
	b.W, b.H = 2*pad+n*(w+nodeGap)-nodeGap, bottom+pad-y
	b.Label = abbreviate(title, (b.W-2*pad)*10/detailWidth)
}

// uplink draws the wire from Azure to a machine.
func (l *layout) uplink(m *machine, x, y, column int, over bool) {
	if l.from == "" {
		return
	}
	points := []Point{l.exit}
	trunk := l.trunk
	if over {
		trunk = l.x - gutter/2
		points = append(points, Point{l.trunk - lane/2, l.exit[1]}, Point{l.trunk - lane/2, top - lane}, Point{trunk, top - lane})
	}
	entry := Point{x, y + hostH/2}
	if column > 0 {
		turn := x - nodeGap/2
		above := y - nodeGap/3
		points = append(points, Point{trunk, above}, Point{turn, above}, Point{turn, entry[1]})
	} else {
		points = append(points, Point{trunk, entry[1]})
	}
	if !over {
		points = slices.Insert(points, 1, Point{trunk, l.exit[1]})
	}
	l.wire(l.from, m.id, append(points, entry)...)
}

// machine draws a machine with its pods and returns its height.
func (l *layout) machine(m *machine, parent string, x, y, w, podColumns int) int {
	places := l.podSlots(m)
	h := hostH
	if len(m.pods) > 0 || len(places) > 0 {
		rows := (len(places) + podColumns - 1) / podColumns
		h = header + rows*(podH+lane) + pad
	}
	l.add(m, parent, x, y, w, h)
	for slot, id := range places {
		i := slices.IndexFunc(m.pods, func(p machine) bool { return p.id == id })
		if i < 0 {
			continue
		}
		podX, podY := x+pad+lane+slot%podColumns*(podW+gap), y+header+lane+slot/podColumns*(podH+lane)
		l.add(&m.pods[i], m.id, podX, podY, podW, podH)
		rail, above, middle := x+pad, podY-lane/2, podX+podW/2
		l.wire(m.id, id, Point{x, y + hostH/2}, Point{rail, y + hostH/2}, Point{rail, above}, Point{middle, above}, Point{middle, podY})
	}
	return h
}

func columnsOf(places []string) int {
	switch n := len(places); {
	case n > 12:
		return 4
	case n > 6:
		return 3
	case n > 3:
		return 2
	default:
		return min(n, 1)
	}
}

// slots holds the places of pods on each node: ids in the order of the places, "" for a free one.
type slots map[string][]string

// podSlots returns the places of a node's pods. Pods that were drawn before keep theirs; new ones get the first that are free.
func (l *layout) podSlots(m *machine) []string {
	if places, ok := l.picture.slots[m.id]; ok {
		return places
	}
	var places []string
	for _, id := range l.before[m.id] {
		if !slices.ContainsFunc(m.pods, func(p machine) bool { return p.id == id }) {
			id = ""
		}
		places = append(places, id)
	}
	for _, p := range m.pods {
		if slices.Contains(places, p.id) {
			continue
		}
		if free := slices.Index(places, ""); free >= 0 {
			places[free] = p.id
		} else {
			places = append(places, p.id)
		}
	}
	l.picture.slots[m.id] = places
	return places
}
