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

// TunnelStep is how a frame got into a packet of VXLAN, or out of it.
type TunnelStep struct {
	Link  string // of kind vxlan
	VNI   uint32
	Entry *fib.FDBEntry // that told the remote machine; nil where the frame came out
}

// String returns "VXLAN 1 of flannel.1".
func (s *TunnelStep) String() string { return fmt.Sprintf("VXLAN %d of %s", s.VNI, s.Link) }

// encapsulate sends a frame out of a link of kind vxlan: it becomes the payload of a packet of the machine's own (vxlan_xmit,
// drivers/net/vxlan/vxlan_core.c), which keeps its mark and its socket, but not its connection (iptunnel_xmit: skb_scrub_packet).
func (t transit) encapsulate(l *fib.Link) passage {
	v, entry, end := t.remote(l)
	if end != nil {
		return t.over(end)
	}
	step := &TunnelStep{Link: l.Name, VNI: cmp.Or(entry.VNI, v.VNI), Entry: entry}
	t.p = t.carrier(v, step)
	d := t.m.FIB.Lookup(fib.Query{
		Source: t.p.Source, Destination: t.p.Destination, Out: entry.Link, Mark: t.p.Mark, TOS: t.p.TOS, Protocol: packet.UDP,
		SourcePort: t.p.SourcePort, DestinationPort: t.p.DestinationPort, PortIn: t.portIn,
	})
	if len(d.Ways) > 1 {
		d = d.Take(t.choose(netfilter.Hash, nextHopTo{t.p.Destination}, ways(d.Ways)))
	}
	if t.route, t.bridge = &d, nil; !t.p.Source.IsValid() {
		t.p.Source = d.Source
	}
	t.p.SourcePort = t.seenPort()
	t.p.Tunnel.Summed = t.p.Tuple
	t.p.Out = d.Link
	t.note(Step{Stage: Encapsulated, Tunnel: step})
	t.note(Step{Stage: Routed, Route: t.route})
	switch {
	case d.Unknown != "":
		return t.finish(Undecided, "the route depends on what is not understood: "+d.Unknown)
	case d.Type == "local":
		return t.finish(Undecided, "the far end of "+l.Name+" is on the host itself, which is not walked")
	case d.Type != "unicast":
		return t.finish(Dropped, fmt.Sprintf("no route leads to the far end of %s (route type %s)", l.Name, d.Type))
	case d.Link == l.Name:
		return t.finish(Dropped, "the route to the far end of "+l.Name+" leads by "+l.Name+" itself")
	}
	return t.to(transit.output)
}

// remote finds the machine to which a link of kind vxlan sends the packet's frame.
func (t *transit) remote(l *fib.Link) (*fib.VXLAN, *fib.FDBEntry, *End) {
	if end := t.needs(append(routing, snapshot.FDB)...); end != nil {
		return nil, nil, end
	}
	v, station := l.VXLAN, t.p.Frame.Destination
	switch {
	case v == nil:
		return nil, nil, t.end(Undecided, "the settings of "+l.Name+", which is of kind vxlan, are not known")
	case v.Unknown != "":
		return nil, nil, t.end(Undecided, fmt.Sprintf("%s is a vxlan with what is not walked: %s", l.Name, v.Unknown))
	case !t.m.isKnown(snapshot.FDB):
		return nil, nil, t.end(Undecided, "the forwarding database of "+l.Name+" is not known")
	case !t.m.isKnown(snapshot.Routes):
		return nil, nil, t.end(Undecided, "the routes are not known, by which what "+l.Name+" sends leaves")
	}
	if e := t.m.remotes[remoteStation{l.Name, station}]; e != nil {
		return v, e, nil
	}
	switch entries := t.m.FIB.Remotes(l.Name, station); {
	case len(entries) == 0:
		return nil, nil, t.end(Dropped, fmt.Sprintf("%s knows no machine behind which %s is (vxlan_xmit)", l.Name, station))
	case len(entries) > 1:
		return nil, nil, t.end(Undecided, fmt.Sprintf("%s sends it to %d machines, which is not walked", l.Name, len(entries)))
	case entries[0].Unknown != "":
		return nil, nil, t.end(Undecided, fmt.Sprintf("%s sends it by what is not walked: %s", l.Name, entries[0].Unknown))
	case entries[0].Remote.IsMulticast():
		return nil, nil, t.end(Undecided, fmt.Sprintf("%s sends it to the group %s, which is not walked", l.Name, entries[0].Remote))
	default:
		return v, entries[0], nil
	}
}

// carrier returns the packet that carries the present one, until its route is known.
func (t *transit) carrier(v *fib.VXLAN, step *TunnelStep) packet.Packet {
	inner := t.p
	inner.Local = packet.Local{}
	outer := packet.Packet{
		Tuple: packet.Tuple{
			Protocol: packet.UDP, Source: v.Local, Destination: step.Entry.Remote,
			DestinationPort: packet.Exactly(cmp.Or(step.Entry.RemotePort, v.Port)),
		},
		TTL: v.TTL, TOS: v.TOS, Tunnel: &packet.Tunnel{VNI: step.VNI, Inner: inner},
		Local: packet.Local{Mark: t.p.Mark, Priority: t.p.Priority, HasOwner: t.p.HasOwner, AssumedOwner: t.p.AssumedOwner,
			AssumedGroup: t.p.AssumedGroup,
			SomeOwner:    t.p.SomeOwner, UID: t.p.UID, GID: t.p.GID},
	}
	outer.KernelMade = !outer.HasOwner && !outer.SomeOwner
	outer.SourcePort = sourcePort(v, t.m.localPorts())
	switch {
	case v.InheritTTL:
		outer.TTL, outer.SomeTTL = inner.TTL, inner.SomeTTL
	case v.TTL == 0:
		outer.TTL = t.m.ttl(outer.IsIPv6())
	}
	if left := inner.Sum == packet.SumLater || inner.Sum == packet.SumUnknown; left && !v.NoChecksum {
		outer.Sum = inner.Sum
	}
	if v.TOS == 1 {
		outer.TOS = inner.TOS
	}
	outer.TOS = outer.TOS&^ecnMask | inner.TOS&ecnMask // ip_tunnel_ecn_encap: INET_ECN_encapsulate
	if inner.TOS&ecnMask == congested {
		outer.TOS = outer.TOS&^ecnMask | capable
	}
	if inner.Length > 0 {
		outer.Length = inner.Length + packet.VXLANOverhead(outer.IsIPv6())
	}
	return outer
}

// The two bits that tell of congestion (RFC 3168).
const (
	ecnMask   = 3
	capable   = 2 // ECT(0)
	congested = 3 // CE
)

// sourcePort returns one that a hash of the packet's flow chooses, with an unknown key (udp_flow_src_port, include/net/udp.h).
func sourcePort(v *fib.VXLAN, local [2]uint16) packet.Port {
	low, high := v.SourcePorts[0], v.SourcePorts[1]
	if low >= high {
		low, high = local[0], local[1]
	}
	return packet.OneOf(low, high-1, low+(high-low)/3)
}

// Carrier is a packet of VXLAN that a host has sent, and what was in it. The ports of that may be spans.
type Carrier struct{ Tuple, Carried packet.Tuple }

// mayCarry reports whether the carrier may have carried a packet.
func (c *Carrier) mayCarry(inner *packet.Tuple) bool {
	seen := c.Carried
	for _, port := range [...]struct {
		seen   *packet.Port
		walked packet.Port
	}{{&seen.SourcePort, inner.SourcePort}, {&seen.DestinationPort, inner.DestinationPort}} {
		if low, high := port.seen.Span(); port.walked.Known() && low <= port.walked.Number && port.walked.Number <= high {
			*port.seen = port.walked
		}
	}
	return seen == *inner
}

// seenPort returns the port from which the packet is known to have been sent, and else what there is of it. What goes round and is carried
// again may have another port then: the ports are in the order in which they were seen.
func (t *transit) seenPort() packet.Port {
	p := &t.p
	low, high := p.SourcePort.Span()
	var seen []packet.Port
	for _, c := range t.run.req.Carriers[t.m.Name] {
		port := c.Tuple.SourcePort
		c.Tuple.SourcePort = p.SourcePort
		if c.Tuple == p.Tuple && c.mayCarry(&p.Tunnel.Inner.Tuple) && low <= port.Number && port.Number <= high && !slices.Contains(seen, port) {
			seen = append(seen, port)
		}
	}
	if len(seen) == 0 {
		return p.SourcePort
	}
	if t.m.carried == nil {
		t.m.carried = map[packet.Tuple]int{}
	}
	round := t.m.carried[p.Tunnel.Inner.Tuple]
	t.m.carried[p.Tunnel.Inner.Tuple]++
	return seen[min(round, len(seen)-1)]
}

// tunnel returns the link of kind vxlan that takes a packet which was delivered to the machine: nil where none does. end is then how the
// packet ends, nil where no such link receives at its port (vxlan_rcv).
func (t *transit) tunnel() (l *fib.Link, end *End) {
	p := &t.p
	if p.Tunnel == nil || p.Protocol != packet.UDP {
		return nil, nil
	}
	if !t.m.isKnown(snapshot.Links) {
		return nil, t.end(Undecided, "the links are not known, of which one may be of kind vxlan and take it")
	}
	for i := range t.m.FIB.Links {
		l := &t.m.FIB.Links[i]
		v := l.VXLAN
		switch {
		case l.Kind != "vxlan" || !l.Up:
		case v == nil:
			return nil, t.end(Undecided, "the settings of "+l.Name+", which is of kind vxlan, are not known")
		case v.Port != p.DestinationPort.Number || v.Local.IsValid() && v.Local.Is6() != p.IsIPv6():
		case v.Unknown != "":
			return nil, t.end(Undecided, fmt.Sprintf("%s is a vxlan with what is not walked: %s", l.Name, v.Unknown))
		case v.VNI == p.Tunnel.VNI:
			return l, nil
		default:
			end = t.end(Dropped, fmt.Sprintf("no link of the host that is up is of VXLAN %d (vxlan_rcv)", p.Tunnel.VNI))
		}
	}
	return nil, end
}

// decapsulate takes the frame out of a packet: it comes in by the link of kind vxlan, with the mark that the packet had.
func (t transit) decapsulate(l *fib.Link) passage {
	outer := t.p
	t.p, t.route = outer.Tunnel.Inner, nil
	t.p.In, t.p.Mark = l.Name, outer.Mark
	if outer.Sum != packet.SumLater && t.p.Sum == packet.SumLater {
		t.p.Sum = packet.SumUnknown // a device may have computed it
	}
	station := t.p.Frame.Source
	t.note(Step{Stage: Decapsulated, Tunnel: &TunnelStep{Link: l.Name, VNI: outer.Tunnel.VNI}})
	if end := t.needs(snapshot.FDB); end != nil {
		return t.over(end)
	}
	if station == l.MAC {
		return t.finish(Dropped, fmt.Sprintf("the frame comes from %s, which is the address of %s itself (vxlan_set_mac)", station, l.Name))
	}
	if l.VXLAN.Learning && !t.learnRemote(l, station, &outer) {
		return t.finish(Dropped, fmt.Sprintf("%s is to be behind another machine, and that entry is permanent (vxlan_snoop)", station))
	}
	if outer.TOS&ecnMask == congested { // IP_ECN_decapsulate
		if t.p.TOS&ecnMask == 0 {
			return t.finish(Dropped, "the packet that carried it was marked as congested, and it cannot be itself (RFC 6040 section 4.2)")
		}
		t.p.TOS |= congested
	}
	return t.to(transit.receive)
}

// remoteStation is a station behind a link of kind vxlan.
type remoteStation struct {
	link string
	mac  packet.MAC
}

// learnRemote notes behind which machine a station is; false where another is known for good, so that the frame is dropped.
func (t *transit) learnRemote(l *fib.Link, station packet.MAC, outer *packet.Packet) bool {
	for _, e := range t.m.FIB.Remotes(l.Name, station) {
		if e.MAC != station || station.IsZero() {
			continue
		}
		if e.Remote == outer.Source {
			return true
		}
		if e.Local || e.Static {
			return false
		}
	}
	if !t.m.isKnown(snapshot.FDB) {
		t.m.assumeMissing(snapshot.FDB,
			fmt.Sprintf("the forwarding database of %s is unknown; assuming it has no permanent entry for %s", l.Name, station))
	}
	if t.m.remotes == nil {
		t.m.remotes = map[remoteStation]*fib.FDBEntry{}
	}
	t.m.remotes[remoteStation{l.Name, station}] = &fib.FDBEntry{Port: l.Name, MAC: station, Remote: outer.Source}
	return true
}
