package walk

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// arrive is the start of a walk for a packet that came from outside.
func (r *run) arrive() stage {
	if r.p.In = r.req.Arrives; r.p.In == "" {
		r.p.In = r.wayBack()
	}
	if r.p.TTL == 0 {
		r.p.TTL = 64
	}
	return (*run).receiveFromOutside
}

// wayBack is the interface by which the machine's routes lead to the packet's sender; "" where they do not tell one.
func (r *run) wayBack() string {
	if !r.m.knows(snapshot.Routes) {
		return ""
	}
	a := r.m.FIB.Lookup(fib.Query{Destination: r.p.Source, Protocol: r.p.Protocol})
	l := r.m.FIB.Link(a.Link)
	if a.Type != "unicast" || a.Unknown != "" || l == nil || !l.Up || len(a.Ways) > 0 {
		return ""
	}
	r.m.assume("the interface that the packet comes in by is not known: it is taken to be " + l.Name +
		", by which its routes lead to the sender")
	return l.Name
}

// receiveFromOutside is a packet from beyond the snapshot. Unless it is an answer to a frame that was seen, its frame is for this host.
func (r *run) receiveFromOutside() stage {
	l := r.m.FIB.Link(r.p.In)
	if l != nil && r.p.EtherDestination.IsZero() && l.Type == "ether" {
		r.p.EtherDestination = l.MAC
		if l.Master != "" {
			r.p.EtherDestination = r.bridgeMAC(l)
		}
	}
	return r.receive()
}

// receive is a packet that comes in by interface In.
func (r *run) receive() stage {
	p := &r.p
	r.step(Step{Stage: Received})
	l := r.m.FIB.Link(p.In)
	if l == nil {
		if p.In != "" && r.m.knows(snapshot.Links) {
			return r.finish(Dropped, fmt.Sprintf("the host has no interface %s", p.In))
		}
		what := "its interfaces are not known: the packet is taken to come in by one that is no bridge port"
		if r.m.knows(snapshot.Links) {
			what = "the interface that the packet comes in by is not known: it is taken to be no bridge port"
		}
		r.m.assume(what)
		return (*run).receiveIP
	}
	if !l.Up {
		return r.finish(Dropped, "interface "+l.Name+" is down")
	}
	if !r.deviceHook(l.Name, netfilter.Ingress) {
		return nil
	}
	p.EtherType = etherType(p)
	if master := r.m.FIB.Link(l.Master); master != nil {
		if master.Kind == "bridge" {
			return r.bridgeIn(l)
		}
		return r.finish(Undecided, fmt.Sprintf("interface %s belongs to %s of kind %s, which is not walked", l.Name, master.Name, master.Kind))
	}
	p.Cast = packet.Unicast
	if l.Type == "ether" && p.EtherDestination != l.MAC && !p.EtherDestination.IsZero() {
		p.Cast = packet.OtherHost
		switch {
		case p.EtherDestination == packet.Broadcast:
			p.Cast = packet.BroadcastFrame
		case p.EtherDestination.IsMulticast():
			p.Cast = packet.MulticastFrame
		}
	}
	return (*run).receiveIP
}

// bridgeMAC is the link-layer address that a neighbour on the wire of a bridge port sends to: the bridge's.
func (r *run) bridgeMAC(port *fib.Link) packet.MAC {
	if b := r.m.FIB.Link(port.Master); b != nil {
		return b.MAC
	}
	return port.MAC
}

func etherType(p *packet.Packet) packet.EtherType {
	if p.IsIPv6() {
		return packet.EtherIPv6
	}
	return packet.EtherIPv4
}

// deviceHook runs the chains that hang at one interface, at hook Ingress or Egress.
func (r *run) deviceHook(link string, h netfilter.Hook) bool {
	chains := slices.Concat(r.m.Rules.Hook(netfilter.Netdev, h), r.m.Rules.Hook(netfilter.Inet, h))
	slices.SortStableFunc(chains, func(a, b *netfilter.Chain) int { return cmp.Compare(a.Base.Priority, b.Base.Priority) })
	for _, c := range chains {
		if !r.hangsAt(c, link) {
			continue
		}
		if v, ok := r.evaluate(c, c.Table.Family, h, nil); !ok || !r.goesOn(v) {
			return false
		}
	}
	return true
}

// hangsAt tells whether a chain hangs at an interface.
func (r *run) hangsAt(c *netfilter.Chain, link string) bool {
	if c.Base.Devices != nil {
		return slices.Contains(c.Base.Devices, link)
	}
	at := hanging{c, link}
	known, asked := r.m.hangs[at]
	if !asked {
		known = r.choose(netfilter.Unknown, at, []netfilter.Option{{Label: "it does"}, {Label: "it does not"}}) == 0
		if r.m.hangs == nil {
			r.m.hangs = map[hanging]bool{}
		}
		r.m.hangs[at] = known
	}
	return known
}

// resolve finds the link-layer address of the next hop.
func (r *run) resolve() stage {
	l := r.m.FIB.Link(r.p.Out)
	if l == nil {
		return r.finish(Undecided, "interface "+r.p.Out+" is not known")
	}
	if l.Type != "ether" || l.Kind == "tun" {
		return (*run).transmit
	}
	next := r.p.Destination
	if r.via.route != nil {
		next = r.via.route.nextHop(next)
	}
	r.p.EtherSource, r.p.EtherType = l.MAC, etherType(&r.p)
	if !r.address(l.Name, next) {
		return nil
	}
	return (*run).transmit
}

// address puts the next hop's link-layer address on the packet.
func (r *run) address(link string, next netip.Addr) bool {
	answer, ok := r.m.neighbour(link, next)
	if !ok {
		answer, ok = r.ask(link, next)
	}
	if !ok {
		r.finish(Dropped, fmt.Sprintf("nobody on %s answers for %s", link, next))
		r.end.Reject = "icmp-host-unreachable"
		return false
	}
	r.p.EtherDestination = answer.MAC
	r.step(Step{Stage: Resolved, Resolve: &answer})
	return true
}

// usable are the states of a neighbour entry that packets are sent with (NUD_VALID; Documentation/networking).
var usable = map[string]bool{"PERMANENT": true, "REACHABLE": true, "STALE": true, "DELAY": true, "PROBE": true, "NOARP": true}

// neighbour looks the neighbour table up.
func (m *machine) neighbour(link string, a netip.Addr) (ResolveStep, bool) {
	if mac, ok := m.neighbours[neighbour{link, a}]; ok {
		return ResolveStep{Link: link, Address: a.String(), MAC: mac, By: "asked before"}, true
	}
	n := m.FIB.Neighbour(link, a)
	if n == nil || !usable[n.State] {
		return ResolveStep{}, false
	}
	return ResolveStep{Link: link, Address: a.String(), MAC: n.MAC, By: "neighbour entry, " + n.State}, true
}

// transmit sends the packet out of interface Out.
func (r *run) transmit() stage {
	p := &r.p
	l := r.m.FIB.Link(p.Out)
	switch {
	case l == nil:
		return r.finish(Undecided, "interface "+p.Out+" is not known")
	case !l.Up:
		return r.finish(Dropped, "interface "+l.Name+" is down")
	case !r.deviceHook(l.Name, netfilter.Egress):
		return nil
	case l.Kind == "bridge":
		return r.bridgeOut(l.Name)
	}
	r.step(Step{Stage: Transmit})
	peer, ok := r.m.peer(l.Name)
	if !ok {
		if l.Kind != "" && l.Kind != "veth" {
			return r.finish(Undecided, fmt.Sprintf("interface %s is of kind %s, which is not walked", l.Name, l.Kind))
		}
		r.finish(Left, fmt.Sprintf("by %s, whose other end is not in the snapshot", l.Name))
		r.end.Link = l.Name
		return nil
	}
	return r.cross(peer)
}

// bridgeOut sends the host's own packet, or one that it routed, out of a bridge (br_dev_xmit).
func (r *run) bridgeOut(bridge string) stage {
	port, entry := r.m.stationPort(bridge, r.p.EtherDestination)
	switch port {
	case "":
		return r.flood(bridge, false)
	case bridge:
		return r.finish(Dropped, fmt.Sprintf("the frame is for %s itself", bridge))
	}
	r.step(Step{Stage: Bridged, Bridge: &BridgeStep{Bridge: bridge, Ports: []string{port}, Entry: entry}})
	return r.bridgeTo(bridge, port, false)
}

// cross takes the packet through a wire to another interface. What the kernel keeps beside it stays behind (skb_scrub_packet); its mark
// does not where both ends are in one namespace.
func (r *run) cross(peer snapshot.Peer) stage {
	from, mark := r.m.Name, r.p.Mark
	r.enter(peer.Host)
	if r.err != nil {
		return nil
	}
	r.p.Local = packet.Local{In: peer.PeerLink}
	if from == peer.Host {
		r.p.Mark = mark
	}
	return (*run).receive
}
