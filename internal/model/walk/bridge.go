package walk

import (
	"cmp"
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// bridge is a machine's layer 2 at one of its bridges: which stations are behind which port, and between which ports frames go. Of a frame
// it knows the link-layer addresses.
type bridge struct {
	m *machine
	*fib.Link
}

// bridgeOf returns the bridge that a link is a port of; false where it is none.
func (m *machine) bridgeOf(port *fib.Link) (bridge, bool) { return m.bridge(port.Master) }

// bridge returns the bridge of a name; false where no bridge is called so.
func (m *machine) bridge(name string) (bridge, bool) {
	l := m.FIB.Link(name)
	return bridge{m, l}, l != nil && l.Kind == "bridge"
}

// notWalked returns what the bridge does that no walk follows; "" where there is nothing.
func (b bridge) notWalked() string {
	if b.Bridge != nil && b.Bridge.VLANFiltering {
		return b.Name + " filters VLANs, which is not walked"
	}
	if tracked, _ := b.m.Rules.Tracks(netfilter.Bridge); tracked { // nf_conntrack_bridge
		return b.Name + " tracks connections, which is not walked"
	}
	return ""
}

// forwarding reports whether frames pass a port. One without a carrier is disabled (br_port_carrier_check).
func forwarding(port *fib.Link) bool {
	if port.Port == nil || port.Port.State == "" {
		return port.HasCarrier()
	}
	return port.Port.State == "forwarding"
}

func hairpin(port *fib.Link) bool { return port.Port != nil && port.Port.Hairpin }

// learn notes that a station is behind a port, unless the port does not learn (br_fdb_update).
func (b bridge) learn(mac packet.MAC, port *fib.Link) {
	if port.Port != nil && !port.Port.Learning || mac.IsMulticast() || mac.IsZero() {
		return
	}
	if e := b.m.FIB.FDBEntry(b.Name, mac, 0); e != nil && (e.Local || e.Static) {
		return
	}
	if b.m.stations == nil {
		b.m.stations = map[station]string{}
	}
	b.m.stations[station{b.Name, mac}] = port.Name
}

// port finds the port behind which a station is, and the entry that tells it: the bridge's own name for the machine's own addresses, ""
// where it is unknown.
func (b bridge) port(mac packet.MAC) (string, *fib.FDBEntry) {
	e := b.m.FIB.FDBEntry(b.Name, mac, 0)
	if b.MAC == mac || e != nil && e.Local {
		return b.Name, e
	}
	if port, ok := b.m.stations[station{b.Name, mac}]; ok {
		return port, nil
	}
	if e != nil {
		return e.Port, e
	}
	for _, p := range b.ports() {
		if p.MAC == mac {
			return b.Name, nil
		}
	}
	return "", nil
}

func (b bridge) ports() []*fib.Link { return b.m.FIB.Ports(b.Name) }

// passes reports whether the bridge's ports and its table of stations take a frame for a station from one port out of another: "" stands for
// the machine itself (should_deliver, br_flood).
func (b bridge) passes(to packet.MAC, in, out string) bool {
	if out == "" {
		return true
	}
	if b.isolated(in) && b.isolated(out) {
		return false
	}
	port := b.m.FIB.Link(out).Port
	if port == nil {
		port = &fib.Port{Flood: true, BroadcastFlood: true, MulticastFlood: true}
	}
	switch {
	case to == packet.Broadcast:
		return port.BroadcastFlood
	case to.IsMulticast():
		return port.MulticastFlood
	}
	if known, _ := b.port(to); known != "" {
		return known == out
	}
	return port.Flood
}

// refuses tells why a frame that came in by one port, or is the machine's own, does not go out of another (should_deliver); "" where it
// does.
func (b bridge) refuses(in string, out *fib.Link) string {
	switch {
	case !forwarding(out):
		return b.notForwarding(out)
	case out.Port == nil || in == "":
		return ""
	case out.Name == in && !out.Port.Hairpin:
		return fmt.Sprintf("the frame would leave by port %s, where it came in: hairpin is off", out.Name)
	case out.Port.Isolated && b.isolated(in):
		return fmt.Sprintf("ports %s and %s are isolated from each other", in, out.Name)
	}
	return ""
}

func (b bridge) notForwarding(port *fib.Link) string {
	if !port.HasCarrier() {
		return fmt.Sprintf("port %s of %s is not forwarding: it has no carrier", port.Name, b.Name)
	}
	return fmt.Sprintf("port %s of %s is not forwarding: its state is %s", port.Name, b.Name, port.Port.State)
}

func (b bridge) isolated(port string) bool {
	l := b.m.FIB.Link(port)
	return l != nil && l.Port != nil && l.Port.Isolated
}

// flooded returns the ports out of which a frame goes that came in by one, or with "" is the machine's own, for an unknown station.
func (b bridge) flooded(in string) []string {
	var names []string
	for _, p := range b.ports() {
		if (p.Name != in || hairpin(p)) && forwarding(p) && (p.Port == nil || p.Port.Flood) {
			names = append(names, p.Name)
		}
	}
	return names
}

// inListOrder returns ports in the order of the bridge's list, in which copies are made: the one that joined last comes first (br_add_if).
// It is assumed to be the last one made.
func (b bridge) inListOrder(ports []string) []string {
	index := func(port string) int { return b.m.FIB.Link(port).Index }
	return slices.SortedFunc(slices.Values(ports), func(p, q string) int { return cmp.Compare(index(q), index(p)) })
}

// callsIP reports whether the bridge's IP packets go through the IP hooks (bridge-nf-call-iptables, -ip6tables; net.bridge.… per namespace,
// or the bridge's own switch).
func (b bridge) callsIP(ipv6 bool) bool {
	key := "net.bridge.bridge-nf-call-iptables"
	if ipv6 {
		key = "net.bridge.bridge-nf-call-ip6tables"
	}
	if !b.m.isKnown(snapshot.Sysctls) {
		b.m.assumeMissing(snapshot.Sysctls, "sysctls unknown; assuming "+key+" is 1")
		return true
	}
	own := b.Bridge != nil && (ipv6 && b.Bridge.CallIP6Tables || !ipv6 && b.Bridge.CallIPTables)
	return b.m.sysctl(false, key) || own
}

// reaches reports whether a station is behind a link: at its other end, or behind a bridge there. depth bounds rings of bridges.
func (m *machine) reaches(link string, mac packet.MAC, depth int) bool {
	far, l := m.otherEnd(link)
	if l == nil || depth == 0 {
		return false
	}
	if l.Master == "" {
		return l.MAC == mac
	}
	b, ok := far.bridgeOf(l)
	if !ok {
		return false
	}
	if port, _ := b.port(mac); port != "" {
		return port != l.Name
	}
	return slices.ContainsFunc(b.ports(), func(p *fib.Link) bool { return p.Name != l.Name && far.reaches(p.Name, mac, depth-1) })
}

// leadsAway reports whether frames that leave by a link can leave the snapshot: at its other end, or behind a bridge there.
func (m *machine) leadsAway(l *fib.Link, depth int) bool {
	if _, ok := m.peer(l.Name); !ok || depth == 0 {
		return m.leadsOut(l)
	}
	far, end := m.otherEnd(l.Name)
	if far == nil {
		return true // it is not read
	}
	if end == nil || end.Master == "" {
		return false
	}
	return slices.ContainsFunc(far.FIB.Ports(end.Master), func(p *fib.Link) bool { return p.Name != end.Name && far.leadsAway(p, depth-1) })
}

// otherEnd returns the machine at the other end of a link, and that end. It is nil if that is not in the snapshot, or not read.
func (m *machine) otherEnd(link string) (*machine, *fib.Link) {
	peer, ok := m.peer(link)
	if !ok {
		return nil, nil
	}
	h, err := m.run.host(peer.Host)
	if err != nil {
		return nil, nil
	}
	far := m.run.machine(h)
	if far.whyUnread(always...) != "" || far.whyUnread(routing...) != "" || far.whyUnread(snapshot.Neighbours, snapshot.Wires) != "" {
		return nil, nil
	}
	return far, h.FIB.Link(peer.PeerLink)
}
