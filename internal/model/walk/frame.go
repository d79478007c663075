package walk

import (
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// bridgeInfo is what br_netfilter keeps of a frame that it took through the IP hooks (kernel: struct nf_bridge_info).
type bridgeInfo struct {
	bridge bridge
	in     string // port
	routed bool   // by the bridge: its destination was translated
	// firstCopy is the port by which the first copy of a flooded frame leaves; "" where there is one only.
	firstCopy string
}

// bridgeIn handles a frame that came in by a port of a bridge (br_handle_frame).
func (t transit) bridgeIn(b bridge, port *fib.Link) passage {
	t.m.sayMissingBridgeRules()
	if !forwarding(port) {
		return t.finish(Dropped, b.notForwarding(port))
	}
	if why := b.notWalked(); why != "" {
		return t.finish(Undecided, why)
	}
	b.learn(t.p.Frame.Source, port)
	t.p.In, t.p.BridgeIn = port.Name, port.Name
	if t.p.Frame.Destination == b.MAC {
		t.p.Cast = packet.Unicast
	}
	if end := t.hook(netfilter.Bridge, netfilter.Prerouting); end != nil {
		return t.over(end)
	}
	t.p.In = port.Name
	return t.bridgeOn(b)
}

// bridgeOn decides which port a frame goes out of (br_handle_frame_finish).
func (t transit) bridgeOn(b bridge) passage {
	if end := t.needs(snapshot.FDB); end != nil {
		return t.over(end)
	}
	port, entry := b.port(t.p.Frame.Destination)
	step := BridgeStep{Bridge: b.Name, Entry: entry, Ports: []string{port}}
	switch port {
	case b.Name:
		t.note(Step{Stage: Bridged, Bridge: &step, Why: "to the host itself"})
		return t.passUp(b)
	case "":
		return t.flood(b, t.p.BridgeIn)
	}
	t.note(Step{Stage: Bridged, Bridge: &step})
	p := t.bridgeTo(b, t.p.BridgeIn, port)
	if c, ok := t.copyUp(b); ok {
		return p.withCopy(c, b)
	}
	return p
}

// bridgeOut sends the host's own packet, or one that it routed, out of a bridge (br_dev_xmit).
func (t transit) bridgeOut(b bridge) passage {
	t.m.sayMissingBridgeRules()
	if why := b.notWalked(); why != "" {
		return t.finish(Undecided, why)
	}
	if end := t.needs(snapshot.FDB); end != nil {
		return t.over(end)
	}
	port, entry := b.port(t.p.Frame.Destination)
	switch port {
	case "":
		return t.flood(b, "")
	case b.Name:
		return t.finish(Dropped, fmt.Sprintf("the frame is for %s itself", b.Name))
	}
	t.note(Step{Stage: Bridged, Bridge: &BridgeStep{Bridge: b.Name, Ports: []string{port}, Entry: entry}})
	return t.bridgeTo(b, "", port)
}

// flood sends a frame for a station that the bridge has not seen yet out of every port. The copies that reach other stations are dropped
// there; the walk follows the one that reaches the right one.
func (t transit) flood(b bridge, in string) passage {
	t.m.meets(snapshot.FDB)
	ports := b.flooded(in)
	mac, to := t.p.Frame.Destination, ""
	station := "a station that is not known"
	if !mac.IsZero() {
		station = mac.String()
		for _, name := range ports {
			if t.m.reaches(name, mac, 4) {
				to = name
			}
		}
	}
	remembers := t.remembersCopies()
	exact := remembers && !b.Promiscuous // that bridge's host gets a copy last
	t.note(Step{Stage: Bridged, Bridge: &BridgeStep{Bridge: b.Name, Ports: ports, Walked: exact},
		Why: station + " has not been seen: the frame goes out of every port"})
	if to == "" {
		for _, name := range ports {
			if why := t.m.whyHidden(t.m.FIB.Link(name), 4); why != "" {
				return t.finish(Undecided, "the place of the station is unknown: "+why)
			}
		}
		to = t.uplinkPort(b, ports)
	}
	if to == "" && len(ports) == 1 && !mac.IsZero() {
		to = ports[0] // there it is dropped
	}
	copies := b.inListOrder(ports)
	at := len(copies) // which of them is walked
	if to != "" {
		at = slices.Index(copies, to)
	}
	frame := t
	switch {
	case remembers:
		t.copies(&flood{frame, b, in, copies[:at]})
	case t.bridge != nil && len(ports) > 1:
		info := *t.bridge
		info.firstCopy = copies[0]
		t.bridge = &info
	}
	if to == "" {
		return t.finish(Dropped, fmt.Sprintf("no station with the address %s is known behind any port of %s", mac, b.Name))
	}
	p := t.bridgeTo(b, in, to)
	switch rest := (&flood{frame, b, in, copies[min(at+1, len(copies)):]}); {
	case !remembers:
	case exact && p.end == nil:
		p.others = rest
	default:
		p.copies(rest)
	}
	return p
}

// uplinkPort returns the port by which a frame for an unseen station leaves the snapshot; "" where none leads out. The machine's own card
// comes before the halves of pairs, behind which there is one station as a rule.
func (t *transit) uplinkPort(b bridge, ports []string) string {
	var out []netfilter.Option
	for _, name := range ports {
		l := t.m.FIB.Link(name)
		if !t.m.leadsAway(l, 4) {
			continue
		}
		if l.Kind == "" {
			return name
		}
		out = append(out, netfilter.Option{Label: name})
	}
	if len(out) == 0 {
		return ""
	}
	return out[t.choose(netfilter.Unknown, portOf{b.Name, t.p.Destination}, out)].Label
}

// passUp gives a frame to the host's own IP (br_pass_frame_up).
func (t transit) passUp(b bridge) passage {
	t.p.Out = ""
	if end := t.hook(netfilter.Bridge, netfilter.Input); end != nil {
		return t.over(end)
	}
	t.p.In = b.Name
	if end := t.deviceHook(b.Name, netfilter.Ingress); end != nil {
		return t.over(end)
	}
	if t.bridge == nil {
		t.p.BridgeIn = "" // only br_netfilter keeps the port for the rules of IP
	}
	return t.to(transit.receiveIP)
}

// bridgeTo sends a frame out of a port (__br_forward). It came in by another one, or with "" is the host's own.
func (t transit) bridgeTo(b bridge, in, port string) passage {
	l := t.m.FIB.Link(port)
	if l == nil {
		return t.finish(Undecided, "port "+port+" is not known")
	}
	if why := b.refuses(in, l); why != "" {
		return t.finish(Dropped, why)
	}
	hook := netfilter.Forward
	if in == "" {
		hook = netfilter.Output
	}
	t.p.In, t.p.Out = in, port
	if end := t.hook(netfilter.Bridge, hook); end != nil {
		return t.over(end)
	}
	t.p.In, t.p.Out = "", port
	if in == "" {
		t.bridge = nil // a packet that was routed here has seen postrouting
	}
	if end := t.hook(netfilter.Bridge, netfilter.Postrouting); end != nil {
		return t.over(end)
	}
	t.p.Out = port
	return t.to(transit.transmit)
}

// bridgeNetfilterPrerouting takes a bridged IP packet through IP's prerouting (br_nf_pre_routing). One whose destination was translated
// is routed at once: to a station on the same bridge it stays bridged, to anywhere else it goes up to the host.
func (t *transit) bridgeNetfilterPrerouting(netfilter.Family, netfilter.Hook) *End {
	port := t.p.BridgeIn
	b, _ := t.m.bridgeOf(t.m.FIB.Link(port))
	if t.p.Frame.Type == packet.EtherARP || !b.callsIP(t.p.IsIPv6()) {
		return nil
	}
	was := t.p.Destination
	t.p.In, t.bridge = b.Name, &bridgeInfo{bridge: b, in: port}
	if end := t.hookFromBridge(netfilter.Prerouting); end != nil {
		return end
	}
	if t.p.Destination != was {
		if end := t.bridgedDNAT(b); end != nil {
			return end
		}
	}
	t.p.In = port
	return nil
}

// bridgedDNAT routes a bridged packet whose destination was translated (br_nf_pre_routing_finish).
func (t *transit) bridgedDNAT(b bridge) *End {
	if !t.m.isKnown(snapshot.Routes) {
		t.assumeRoute()
		return nil
	}
	if end := t.needs(routing...); end != nil {
		return end
	}
	if why := t.m.martian(&t.p); why != "" {
		return t.end(Dropped, why)
	}
	d := t.lookUp(b.Name)
	t.route, t.bridge.routed = d, true
	// IPv6 looks whether the host forwards only when it does (ip6_forward), IPv4 when it looks for the way.
	onward := d.Type == "unicast" && (t.p.IsIPv6() || t.m.forwards(b.Name, false))
	if d.Unknown != "" {
		t.note(Step{Stage: Routed, Route: d})
		return t.end(Undecided, "the route depends on what is not understood: "+d.Unknown)
	}
	if t.p.IsIPv6() && !d.Forwards() {
		t.note(Step{Stage: Routed, Route: d})
		return t.end(Dropped, "no route leads to its new destination: the bridge drops it silently (br_nf_pre_routing_finish_ipv6)")
	}
	if onward || d.Type == "local" {
		if why := t.m.validateSource(&t.p, d, t.portIn); why != "" {
			return t.end(Dropped, why)
		}
	}
	// Without a route, or without forwarding, the host drops IPv4, or tells the sender (ip_route_input_slow: no_route; ip_error).
	if !onward || d.Link != b.Name {
		before := t.p
		t.p.Frame.Destination, t.p.Cast = b.MAC, packet.Unicast
		t.note(Step{Stage: Bridged, Bridge: &BridgeStep{Bridge: b.Name, Ports: []string{b.Name}}, Changes: packet.Changes(&before, &t.p),
			Why: "its new destination is not on this bridge: up to the host's routing"})
		return nil
	}
	t.note(Step{Stage: Routed, Route: d, Why: "its new destination is on the same bridge: it stays bridged, and keeps its TTL"})
	return t.address(b.Link, d.NextHop(t.p.Destination))
}

// bridgeNetfilterForward takes a bridged IP packet through IP's forward hook (br_nf_forward_ip).
func (t *transit) bridgeNetfilterForward(netfilter.Family, netfilter.Hook) *End {
	if t.bridge == nil {
		return nil
	}
	name, port := t.bridge.bridge.Name, t.p.Out
	t.p.In, t.p.Out, t.p.BridgeOut = name, name, port
	end := t.hookFromBridge(netfilter.Forward)
	t.p.In, t.p.Out = t.bridge.in, port
	return end
}

// bridgeNetfilterPostrouting takes a bridged IP packet through IP's postrouting (br_nf_post_routing).
func (t *transit) bridgeNetfilterPostrouting(netfilter.Family, netfilter.Hook) *End {
	if t.bridge == nil || t.p.BridgeOut == "" {
		return nil
	}
	port := t.p.Out
	t.p.In, t.p.Out = "", t.bridge.bridge.Name
	end := t.hookFromBridge(netfilter.Postrouting)
	t.p.Out = port
	return end
}

// hookFromBridge runs a hook of IP for a bridged frame, which a frame for another station passes as if it were for this one (after
// postrouting, too, it is for another again since Linux 5.10: commit 44f64f23bae2, "netfilter: bridge: reset skb->pkt_type after
// NF_INET_POST_ROUTING traversal").
func (t *transit) hookFromBridge(h netfilter.Hook) *End {
	other := t.p.Cast == packet.OtherHost
	if other {
		t.p.Cast = packet.Unicast
	}
	end := t.hook(family(&t.p), h)
	if other {
		t.p.Cast = packet.OtherHost
	}
	return end
}
