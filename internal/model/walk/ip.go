package walk

import (
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// decision is a route with the way that was chosen.
type decision struct {
	answer  fib.Answer
	link    string
	gateway netip.Addr // zero for a destination on the link
}

// nextHop is whose link-layer address the packet needs.
func (d *decision) nextHop(destination netip.Addr) netip.Addr {
	if d.gateway.IsValid() {
		return d.gateway
	}
	return destination
}

// lookUp finds the packet's route as it is now.
func (r *run) lookUp(in string) *decision {
	p := &r.p
	a := r.m.FIB.Lookup(fib.Query{
		Source: p.Source, Destination: p.Destination, In: in, Mark: p.Mark, TOS: p.TOS,
		Protocol: p.Protocol, SourcePort: p.SourcePort, DestinationPort: p.DestinationPort, UID: p.UID,
	})
	d := &decision{answer: a, link: a.Link, gateway: a.Gateway}
	if len(a.Ways) > 1 {
		way := a.Ways[r.choose(netfilter.Hash, nextHopTo{p.Destination}, ways(a.Ways))]
		d.link, d.gateway = way.Link, way.Gateway
		if way.Source.IsValid() {
			d.answer.Source = way.Source
		}
	}
	return d
}

func ways(nexthops []fib.Nexthop) []netfilter.Option {
	options := make([]netfilter.Option, len(nexthops))
	for i, n := range nexthops {
		options[i] = netfilter.Option{Label: "dev " + n.Link, Weight: uint64(max(n.Weight, 1))}
		if n.Gateway.IsValid() {
			options[i].Label = "via " + n.Gateway.String() + " " + options[i].Label
		}
	}
	return options
}

// receiveIP is a packet that came up from interface In (ip_rcv).
func (r *run) receiveIP() stage {
	if r.p.Cast == packet.OtherHost {
		return r.finish(Dropped, fmt.Sprintf("the frame is for %s, which is not this host's", r.p.EtherDestination))
	}
	// A frame that a bridge's netfilter has already taken through prerouting does not see it again (ip_sabotage_in).
	if r.via.bridge == nil && !r.hook(family(&r.p), netfilter.Prerouting) {
		return nil
	}
	return (*run).routeIn
}

// routeIn finds out where a received packet goes (ip_route_input_slow).
func (r *run) routeIn() stage {
	if !r.m.knows(snapshot.Routes) {
		return r.routeUnknown()
	}
	d := r.via.route
	if d == nil {
		if why := r.martian(); why != "" {
			return r.finish(Dropped, why)
		}
		r.findSocket()
		d = r.lookUp(r.p.In)
		r.via.route = d
	}
	r.step(Step{Stage: Routed, Route: &d.answer})
	if d.answer.Unknown != "" {
		return r.finish(Undecided, "the route depends on what is not understood: "+d.answer.Unknown)
	}
	switch d.answer.Type {
	case "local", "anycast":
		if why := r.validateSource(d); why != "" {
			return r.finish(Dropped, why)
		}
		return (*run).input
	case "unicast":
		return r.routedOn(d)
	case "broadcast", "multicast":
		return r.finish(Undecided, "how "+d.answer.Type+" packets go on is not walked")
	case "blackhole":
		return r.finish(Dropped, "the route is a blackhole")
	}
	return r.unreachable(d)
}

// findSocket gives an answer the socket that it is for, which the kernel looks for before the route (net.ipv4.ip_early_demux): rules at the
// input hook see whose it is.
func (r *run) findSocket() {
	asked := &r.steps[0]
	if !r.answering || !r.p.Protocol.HasPorts() || asked.Stage != Sent || asked.Host != r.m.Name ||
		!r.m.sysctl(true, "net.ipv4.ip_early_demux") {
		return
	}
	if want := asked.Packet.Reply(); sameEnds(&r.p.Tuple, &want) {
		r.p.HasOwner, r.p.UID, r.p.GID = asked.Packet.HasOwner, asked.Packet.UID, asked.Packet.GID
	}
}

// routedOn is a packet whose route leads out again (__mkroute_input).
func (r *run) routedOn(d *decision) stage {
	if !r.m.forwards(r.p.In, r.p.IsIPv6()) {
		return r.finish(Dropped, fmt.Sprintf("%s is not an address of this host, and it does not forward (%s is 0)", r.p.Destination,
			forwardingSetting(r.p.In, r.p.IsIPv6())))
	}
	if why := r.validateSource(d); why != "" {
		return r.finish(Dropped, why)
	}
	return (*run).forward
}

// routeUnknown is routing without knowing the routes: what is one of the machine's addresses, as far as they are known, is delivered, and
// everything else forwarded.
func (r *run) routeUnknown() stage {
	if r.isOwn() {
		return (*run).input
	}
	r.m.assume("its routes are not known: packets that are not for itself are taken to be forwarded")
	r.via.route = &decision{answer: fib.Answer{Type: "unicast"}}
	return (*run).forward
}

// unreachable is a packet that has no route: the sender is told, in IPv4 if the machine forwards at all (ip_error).
func (r *run) unreachable(d *decision) stage {
	routeType := d.answer.Type
	why := map[string]string{
		"none": "there is no route to it", "unreachable": "the route is of type unreachable", "prohibit": "the route is of type prohibit",
	}[routeType]
	if why == "" {
		why = "the route is of type " + routeType
	}
	if !r.p.IsIPv6() && !r.m.forwards(r.p.In, false) { // IPv6 tells the sender all the same (ip6_pkt_discard)
		return r.finish(Dropped, why)
	}
	r.finish(Rejected, why)
	r.end.Reject = map[string]string{"none": "icmp-net-unreachable", "unreachable": "icmp-host-unreachable",
		"prohibit": "icmp-admin-prohibited"}[routeType]
	if routeType == "unreachable" && (d.answer.Route == nil || r.p.IsIPv6()) {
		r.end.Reject = "icmp-net-unreachable" // a policy rule's means the network (fib4_rule_action), and IPv6 knows no other (ip6_pkt_discard)
	}
	return nil
}

// martian tells of addresses that never come in by a wire (ip_route_input_slow, RFC 1812 section 5.3.7).
func (r *run) martian() string { return r.m.martian(&r.p) }

func (m *machine) martian(p *packet.Packet) string {
	if p.IsIPv6() {
		if p.Source.IsMulticast() || p.Source.IsLoopback() || p.Destination.IsLoopback() {
			return "the address never comes in by a wire (ip6_rcv_core)"
		}
		return ""
	}
	zero := p.Source.As4()[0] == 0
	switch local := m.confEither(p.In, "route_localnet"); {
	case p.Source.IsMulticast() || p.Source == broadcast:
		return fmt.Sprintf("martian source %s", p.Source)
	case zero:
		return fmt.Sprintf("martian source %s (RFC 1122: this network)", p.Source)
	case p.Source.IsLoopback() && !local:
		return fmt.Sprintf("martian source %s (net.ipv4.conf.%s.route_localnet is 0)", p.Source, p.In)
	case p.Destination.IsLoopback() && !local:
		return fmt.Sprintf("martian destination %s (net.ipv4.conf.%s.route_localnet is 0)", p.Destination, p.In)
	case p.Destination.IsUnspecified():
		return "martian destination 0.0.0.0"
	}
	return ""
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// validateSource is the check of the source address: the machine's own addresses do not come in from outside, and with rp_filter the way
// back must lead out where the packet came in (fib_validate_source). IPv6 has no such check.
func (r *run) validateSource(d *decision) string {
	if r.via.loopback {
		return ""
	}
	return r.m.validateSource(&r.p, d)
}

func (m *machine) validateSource(p *packet.Packet, d *decision) string {
	if p.IsIPv6() || p.In == "" {
		return ""
	}
	mode := m.confMax(p.In, "rp_filter")
	acceptLocal := m.confEither(p.In, "accept_local")
	if mode == 0 && (acceptLocal || !m.ownAddress(p.Source) && !m.customLocal()) {
		return ""
	}
	back := fib.Query{Source: p.Destination, Destination: p.Source, In: "lo", TOS: p.TOS}
	if m.FIB.Dissects() { // the ports are those of an answer (__fib_validate_source)
		back.Protocol, back.SourcePort, back.DestinationPort = p.Protocol, p.DestinationPort, p.SourcePort
	}
	if m.confEither(p.In, "src_valid_mark") {
		back.Mark = p.Mark
	}
	if d.answer.Type != "local" {
		back.In = d.link
	}
	a := m.FIB.Lookup(back)
	switch {
	case a.Type == "none" || a.Type == "blackhole" || a.Type == "unreachable" || a.Type == "prohibit":
		return filtered(mode, p, "there is no route back to it")
	case a.Type == "local" && !acceptLocal:
		return fmt.Sprintf("martian source %s: it is this host's own address (net.ipv4.conf.%s.accept_local is 0)", p.Source, p.In)
	case a.Type != "unicast" && a.Type != "local":
		return fmt.Sprintf("martian source %s: the route back is of type %s", p.Source, a.Type)
	case leadsTo(&a, p.In) || a.Type == "local" && m.localLink(&a, p.Source) == p.In:
		return ""
	case len(m.FIB.AddressesOf(p.In)) == 0:
		return filtered(mode, p, "the interface has no address")
	case mode == 1:
		return filtered(mode, p, "the route back leads to "+a.Link)
	}
	return ""
}

func filtered(mode int, p *packet.Packet, why string) string {
	if mode == 0 {
		return ""
	}
	return fmt.Sprintf("source %s is filtered on %s: %s (rp_filter %d)", p.Source, p.In, why, mode)
}

func leadsTo(a *fib.Answer, link string) bool {
	for _, w := range a.Ways {
		if w.Link == link {
			return true
		}
	}
	return a.Link == link
}

// localLink is the link whose local route an address is on: packets to it go by lo, but the route names the link that has the address.
func (m *machine) localLink(a *fib.Answer, address netip.Addr) string {
	if a.Route != nil && a.Route.Link != "" {
		return a.Route.Link
	}
	if own := m.FIB.HasAddress(address); own != nil {
		return own.Link
	}
	return ""
}

func (m *machine) ownAddress(a netip.Addr) bool { return m.FIB.HasAddress(a) != nil }

// customLocal tells whether the kernel looks closer than for own addresses because somebody changed policy rules
// (fib4_has_custom_rules).
func (m *machine) customLocal() bool {
	for i := range m.FIB.Rules {
		r := &m.FIB.Rules[i]
		usual := r.Priority == 0 && r.Table == fib.TableLocal || r.Priority == 32766 && r.Table == fib.TableMain || r.Priority == 32767 &&
			r.Table == fib.TableDefault
		if !r.IPv6 && !usual {
			return true
		}
	}
	return false
}

// input delivers a packet to the machine (ip_local_deliver).
func (r *run) input() stage {
	if r.p.Out = ""; r.waits("the host waits for all of a packet (ip_local_deliver)") {
		return nil
	}
	if !r.hook(family(&r.p), netfilter.Input) {
		return nil
	}
	return (*run).deliver
}

// deliver finds who takes the packet.
func (r *run) deliver() stage {
	p, m := &r.p, r.m
	r.finish(Delivered, "")
	r.end.Link = p.In
	switch {
	case r.answering:
		r.takeAnswer()
		return nil
	case !p.Protocol.HasPorts():
		return nil
	}
	if !m.knows(snapshot.Listeners) {
		m.assume("its sockets are not known: somebody is taken to listen on " + p.DestinationEnd())
		return nil
	}
	r.end.Refused = true
	for _, l := range m.Listeners {
		if l.Protocol == p.Protocol && l.Local.Port() == p.DestinationPort.Number && takes(l.Local.Addr(), p.Destination) {
			r.end.Refused, r.end.Listener, r.end.owner = false, l.Process, l.Owner
			break
		}
	}
	return nil
}

// takes tells whether a socket that is bound to one address takes packets for another. A socket on [::] takes IPv4's too.
func takes(bound, a netip.Addr) bool {
	return bound.Unmap() == a || bound.IsUnspecified() && (bound.Is6() || a.Is4())
}

// takeAnswer tells whether the socket that sent the request takes the answer: it is connected, and takes packets only from where it sent
// to, and errors only about what it sent.
func (r *run) takeAnswer() {
	asked := &r.steps[0]
	if asked.Stage != Sent || asked.Host != r.m.Name {
		return // what came from outside is answered there
	}
	got, want := r.p.Tuple, asked.Packet.Reply()
	if r.p.About != nil {
		got, want = *r.p.About, asked.Packet.Tuple
	}
	switch {
	case sameEnds(&got, &want):
		return
	case r.p.About != nil:
		r.end.Why = fmt.Sprintf("the error is about %s, and the program sent %s: no socket takes it", got, want)
	default:
		r.end.Why = fmt.Sprintf("the answer is %s, and the program waits for %s: no socket takes it", got, want)
	}
	r.end.Refused = true
}

func sameEnds(a, b *packet.Tuple) bool {
	return sameEnd(a.Source, b.Source, a.SourcePort, b.SourcePort) &&
		sameEnd(a.Destination, b.Destination, a.DestinationPort, b.DestinationPort)
}

// sameEnd compares ends. A port out of a range, which a translation gave and nothing took back, is another one than the program's: that it
// is the same by chance is not considered.
func sameEnd(a, b netip.Addr, p, q packet.Port) bool { return a == b && p == q }

// forward takes a packet on its way through the machine (ip_forward).
func (r *run) forward() stage {
	p := &r.p
	if p.TTL <= 1 {
		r.finish(Rejected, "its TTL has run out")
		r.end.Reject = "icmp-time-exceeded"
		return nil
	}
	before := *p
	p.TTL--
	r.step(Step{Stage: Checked, Changes: packet.Changes(&before, p), Why: "forwarded"})
	p.Out = r.via.route.link
	if !r.hook(family(p), netfilter.Forward) {
		return nil
	}
	return (*run).postrouting
}

// send is a packet of a socket of the machine (ip_queue_xmit): a route, with it a source, and the packet.
func (r *run) send() stage {
	p, m := &r.p, r.m
	if p.TTL == 0 {
		p.TTL = m.ttl(p.IsIPv6())
	}
	if p.SourcePort == (packet.Port{}) && p.About == nil &&
		(p.Protocol.HasPorts() || p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6) {
		low, high := m.localPorts()[0], m.localPorts()[1]
		p.SourcePort = packet.OneOf(low, high, low+(high-low)/3)
	}
	if p.Length == 0 && !r.answering && p.TCPFlags == packet.SYN {
		p.Length = m.synLength(p.IsIPv6())
	}
	if !r.answering {
		p.HasOwner = true // root's, unless the request says whose
	}
	if p.Destination.IsUnspecified() && !r.answering {
		p.Destination = r.itself()
	}
	if !m.knows(snapshot.Routes) {
		return r.sendUnrouted()
	}
	d := r.lookUp("")
	if !p.Source.IsValid() {
		p.Source = d.answer.Source
		if p.Source.IsValid() && p.About == nil && (!p.IsIPv6() || p.Protocol == packet.ICMPv6) {
			d = r.lookUp("") // now with its source (ip_route_connect; rawv6_sendmsg)
		}
	}
	if !p.Source.IsValid() && p.Destination.Is4() && m.knows(snapshot.Addresses) {
		p.Source = netip.IPv4Unspecified() // the host has no address at all
	}
	r.via.route = d
	r.step(Step{Stage: Sent})
	r.step(Step{Stage: Routed, Route: &d.answer})
	switch {
	case d.answer.Unknown != "":
		return r.finish(Undecided, "the route depends on what is not understood: "+d.answer.Unknown)
	case p.Source.Is4() && p.Source.IsLoopback() && d.answer.Type == "unicast" && d.link != "lo" && !m.confEither(d.link, "route_localnet"):
		// __mkroute_output
		r.finish(Dropped, fmt.Sprintf("source %s does not leave the host (net.ipv4.conf.%s.route_localnet is 0)", p.Source, d.link))
		r.end.Unsent = true
		return nil
	case d.answer.Type == "multicast" || d.answer.Type == "broadcast":
		return r.finish(Undecided, "how "+d.answer.Type+" packets go on is not walked")
	case d.answer.Type != "unicast" && d.answer.Type != "local":
		r.finish(Dropped, "the host has no route to it: the program gets an error (route type "+d.answer.Type+")")
		r.end.Unsent = true
		return nil
	}
	p.Out = d.outLink()
	return (*run).output
}

// itself is what the kernel takes for a destination that is not specified: the sender (ip_route_output_key_hash_rcu, tcp_v6_connect).
func (r *run) itself() netip.Addr {
	switch p := &r.p; {
	case p.Destination.Is6():
		return netip.IPv6Loopback()
	case p.Source.IsValid() && !p.Source.IsUnspecified():
		return p.Source
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// outLink is the interface that local output names: loopback for what stays here.
func (d *decision) outLink() string {
	if d.answer.Type == "local" {
		return "lo"
	}
	return d.link
}

// sendUnrouted sends without knowing the routes.
func (r *run) sendUnrouted() stage {
	p := &r.p
	if r.routeOwn(); r.via.route.answer.Type == "local" {
		if p.Out = "lo"; !p.Source.IsValid() {
			p.Source = p.Destination
		}
	}
	if !p.Source.IsValid() {
		p.Source, _ = r.ownAddress("its addresses are not known: it sends from one of them")
	}
	r.step(Step{Stage: Sent})
	return (*run).output
}

// isOwn tells whether the packet is for the machine, as far as its addresses are known. One that nobody knows is what it sent from, or
// redirected to.
func (r *run) isOwn() bool {
	a := r.p.Destination
	return a.IsLoopback() || r.m.FIB.HasAddress(a) != nil || a == packet.UnknownAddress(a.Is6())
}

// routeOwn is the route of what the machine sends without knowing the routes.
func (r *run) routeOwn() {
	r.via.route = &decision{answer: fib.Answer{Type: "local"}}
	if !r.isOwn() {
		r.m.assume("its routes are not known: what it sends is taken to leave it")
		r.via.route.answer.Type = "unicast"
	}
}

// output takes a packet of the machine's own to the hooks (ip_local_out).
func (r *run) output() stage {
	r.p.In = ""
	if !r.hook(family(&r.p), netfilter.Output) {
		return nil
	}
	if d := r.via.route; d.link != "" || d.answer.Type == "local" {
		r.p.Out = d.outLink()
	}
	return (*run).postrouting
}

// reroute looks the route up again because a rule changed what routing looks at (ip_route_me_harder). The chains that are still to come at
// this hook see the interface of the first route (struct nf_hook_state).
func (r *run) reroute() bool {
	if !r.m.knows(snapshot.Routes) {
		r.routeOwn()
		return true
	}
	p := r.p
	if r.m.FIB.HasAddress(p.Source) == nil {
		r.p.Source = netip.Addr{} // a foreign source does not choose the route
	}
	d := r.lookUp("")
	r.p.Source = p.Source
	r.via.route = d
	r.step(Step{Stage: Routed, Route: &d.answer, Why: "looked up again: a rule changed what routing looks at"})
	if d.answer.Type != "unicast" && d.answer.Type != "local" {
		r.finish(Dropped, "the host has no route to its new destination (route type "+d.answer.Type+")")
		return false
	}
	return true
}

// postrouting is the last hook (ip_output), then the wire.
func (r *run) postrouting() stage {
	if !r.hook(family(&r.p), netfilter.Postrouting) {
		return nil
	}
	if r.p.Out == "lo" {
		return (*run).loopback
	}
	if r.p.Out == "" {
		r.finish(Left, "by an interface that is not known")
		return nil
	}
	return (*run).resolve
}

// loopback gives a packet back to the machine that sent it. It keeps its flow and its route, but not its socket (loopback_xmit:
// skb_orphan).
func (r *run) loopback() stage {
	r.p.In, r.p.Out = "lo", ""
	r.p.HasOwner, r.p.SomeOwner, r.p.KernelMade = false, false, false
	r.via.loopback = true
	r.step(Step{Stage: Received, Why: "on lo"})
	if !r.hook(family(&r.p), netfilter.Prerouting) {
		return nil
	}
	return (*run).input
}
