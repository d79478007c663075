package picture

import "slices"

// Way is a packet's way through a picture: a line, and where on it each machine is that the packet visits.
type Way struct {
	Points []Point `json:"points"`
	// Stops are indexes into Points, one for each machine, in order. A machine without a box has the stop of the one before it.
	Stops []int `json:"stops"`
}

// Way returns the line along the wires between hosts, in the order in which a packet visits them.
func (p *Picture) Way(hosts []string) Way {
	way := Way{Points: []Point{}, Stops: []int{}}
	var last *Box
	for _, host := range hosts {
		box := p.box(host)
		if box == nil || box == last {
			way.Stops = append(way.Stops, max(0, len(way.Points)-1))
			continue
		}
		if last == nil {
			way.Points = append(way.Points, p.start(box, hosts))
		} else {
			way.Points = append(way.Points, p.between(last, box, way.Points[len(way.Points)-1])...)
		}
		way.Stops = append(way.Stops, len(way.Points)-1)
		last = box
	}
	return way
}

// start returns where a way begins: at the end of the wire by which the packet leaves its first machine.
func (p *Picture) start(box *Box, hosts []string) Point {
	for _, host := range hosts {
		if next := p.box(host); next != nil && next != box {
			if w := p.wireOf(box.ID, next.ID); w != nil {
				return w[0]
			}
			break
		}
	}
	return Point{box.X + box.W/2, box.Y + box.H/2}
}

// between returns the points from one box to the next, without the first where the way is there already.
func (p *Picture) between(from, to *Box, at Point) []Point {
	points := p.wireOf(from.ID, to.ID)
	if points == nil { // no wire is known: a line with one bend
		end := Point{to.X, to.Y + min(to.H, hostH)/2}
		points = []Point{at, {at[0], end[1]}, end}
	}
	if points[0] == at {
		return points[1:]
	}
	if points[0][0] != at[0] && points[0][1] != at[1] {
		points = append([]Point{{points[0][0], at[1]}}, points...)
	}
	return points
}

// wireOf returns the points of the wire between two boxes, from the first one; nil if there is none.
func (p *Picture) wireOf(from, to string) []Point {
	for _, w := range p.Wires {
		switch {
		case w.From == from && w.To == to:
			return slices.Clone(w.Points)
		case w.From == to && w.To == from:
			points := slices.Clone(w.Points)
			slices.Reverse(points)
			return points
		}
	}
	return nil
}
