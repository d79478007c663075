package picture

// Picture is a network as boxes and wires. Lengths are in CSS pixels.
type Picture struct {
	Width  int `json:"width"`
	Height int `json:"height"`
	// Boxes are in the order of reading. A box comes after the box that holds it.
	Boxes []Box  `json:"boxes"`
	Wires []Wire `json:"wires"`
	slots slots
	// crowded are the nodes whose pods are folded because there are many.
	crowded map[string]bool
}

// Kind says what a box shows.
type Kind string

// The kinds.
const (
	Internet     Kind = "internet"     // a host of the internet
	Router       Kind = "router"       // between the internet's hosts and Azure
	Azure        Kind = "azure"        // Azure's network, which has the load balancer
	Frontend     Kind = "frontend"     // a public address of a Service
	Subnet       Kind = "subnet"       // machines whose addresses have one prefix
	Node         Kind = "node"         //
	Pod          Kind = "pod"          //
	Group        Kind = "group"        // pods that are folded into one box
	VM           Kind = "vm"           //
	Machine      Kind = "machine"      // another host
	ControlPlane Kind = "controlplane" //
)

// Box is a rectangle with a title.
type Box struct {
	ID     string `json:"id"` // of a host its name in the snapshot: "node/NAME"
	Kind   Kind   `json:"kind"`
	Parent string `json:"parent,omitempty"`
	Title  string `json:"title"`            // the full name
	Label  string `json:"label"`            // the name as it fits into the box
	Detail string `json:"detail,omitempty"` // the line below it
	Status string `json:"status,omitempty"` // at the end of that line: "2/2 healthy"
	Alert  bool   `json:"alert,omitempty"`  // the status is bad
	X      int    `json:"x"`
	Y      int    `json:"y"`
	W      int    `json:"w"`
	H      int    `json:"h"`
	Indent int    `json:"indent"` // of the name from the left edge
	// Members are the hosts of a group.
	Members []string `json:"members,omitempty"`
	// End names the box as an end of a walk; "" for a box that is none.
	End   string `json:"end,omitempty"`
	Facts []Fact `json:"facts,omitempty"`
	Now   []Fact `json:"now,omitempty"` // of this moment
}

// Fact is something known about a box: its addresses, its labels.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Point is a place in the picture.
type Point [2]int

// Wire connects two boxes by horizontal and vertical lines.
type Wire struct {
	From   string  `json:"from"`
	To     string  `json:"to"`
	Points []Point `json:"points"`
}

// box returns the box that shows a host: its own, or the group that holds it; nil if there is none.
func (p *Picture) box(host string) *Box {
	for i := range p.Boxes {
		if p.Boxes[i].ID == host {
			return &p.Boxes[i]
		}
	}
	for i := range p.Boxes {
		for _, m := range p.Boxes[i].Members {
			if m == host {
				return &p.Boxes[i]
			}
		}
	}
	return nil
}
