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

// ask finds the host that answers for an address on a link, as an ARP request or neighbour solicitation does. It also notes what the hosts
// learn from it: the sender learns the address, and bridges on the way learn where both hosts are. Where no host answers, it returns the
// end of the packet that waits for the answer.
func (t *transit) ask(l *fib.Link, a netip.Addr) (ResolveStep, *End) {
	t.m.meets(snapshot.Neighbours)
	noAnswer := t.end(Dropped, fmt.Sprintf("no host on %s answers for %s", l.Name, a))
	noAnswer.Reject = "icmp-host-unreachable"
	if !l.HasCarrier() {
		noAnswer.Why += ": it has no carrier"
	}
	if _, port := t.m.bridgeOf(l); port {
		return ResolveStep{}, noAnswer // the bridge receives the answer, not its port
	}
	q := query{asker: t, address: a, sender: t.senderAddress(l.Name, a), mac: l.MAC}
	if !q.sender.IsValid() && a.Is6() && t.m.isKnown(snapshot.Addresses) {
		return ResolveStep{}, noAnswer // a solicitation needs an address to come from (ndisc_send_ns)
	}
	r, ok := q.askerResponse(t.m, l)
	switch {
	case q.stopped != nil && (!ok || q.stopped.Kind == Undecided): // a bridge sends copies to others, which may be dropped
		noAnswer.Kind, noAnswer.Why = q.stopped.Kind, noAnswer.Why+": "+q.stopped.Why
		return ResolveStep{}, noAnswer
	case !ok && q.hidden != "":
		noAnswer.Kind = Undecided
		noAnswer.Why = fmt.Sprintf("no known host on %s answers for %s, but others may: %s", l.Name, a, q.hidden)
		return ResolveStep{}, noAnswer
	case !ok && (!q.left || !q.unconfirmed && t.m.hasFailedEntry(l.Name, a) && !t.decide(silentNeighbour{l.Name, a}, "it does now", "it does not")):
		return ResolveStep{}, noAnswer
	}
	step := ResolveStep{Link: l.Name, Address: a.String(), MAC: r.mac, By: "asked", Answerer: r.who}
	if !ok {
		t.m.assume(fmt.Sprintf("the owner of %s on %s is not in the snapshot; assuming it answers", a, l.Name))
		step.By = "not known"
	}
	t.m.learn(l.Name, a, r.mac)
	return step, nil
}

// learn notes a neighbour's link-layer address.
func (m *machine) learn(link string, a netip.Addr, mac packet.MAC) {
	if m.neighbours == nil {
		m.neighbours = map[neighbour]packet.MAC{}
	}
	m.neighbours[neighbour{link, a}] = mac
}

// silentNeighbour asks whether a neighbour answers of which the last that is known is that it did not. It may have been away for a while;
// the kernel asks again for the next packet.
type silentNeighbour struct {
	link string
	who  netip.Addr
}

func (s silentNeighbour) String() string {
	return fmt.Sprintf("whether %s answers on %s, which it did not when it was last asked", s.who, s.link)
}

// hasFailedEntry reports whether the machine has asked for the address before without an answer.
func (m *machine) hasFailedEntry(link string, a netip.Addr) bool {
	n := m.FIB.Neighbour(link, a)
	return n != nil && n.State == "FAILED"
}

// senderAddress returns the address that a request says it comes from (arp_solicit with arp_announce 0, ndisc_solicit): the packet's own
// source where it is the machine's, otherwise one of the link, in IPv6 the link-local one; zero where it has none.
func (t *transit) senderAddress(link string, a netip.Addr) netip.Addr {
	own := t.m.FIB.HasAddress(t.p.Source)
	switch {
	case own != nil && own.Prefix.Addr().Is4() == a.Is4() && (a.Is4() || own.Link == link):
		return t.p.Source
	case a.Is4():
		return t.m.FIB.SelectSource(link, a)
	}
	for _, own := range t.m.FIB.AddressesOf(link) {
		if own.Prefix.Addr().IsLinkLocalUnicast() {
			return own.Prefix.Addr()
		}
	}
	return netip.Addr{}
}

// query is a question on the wire: who has an address. It belongs to a packet that waits for the answer.
type query struct {
	asker           *transit
	address, sender netip.Addr
	mac             packet.MAC // the asker's
	left            bool       // the question left the snapshot: an unknown host there may answer
	unconfirmed     bool       // no answer to an earlier question tells nothing about that host: see broadcasts
	hidden          string     // why an unknown station may answer; "" where none may
	stopped         *End       // what a rule made of a question or of its answer
}

// response is who answered a question, with which link-layer address, and the answer on the wire.
type response struct {
	mac   packet.MAC
	who   string
	frame packet.Packet
}

// askerResponse returns the question and its answer as the one who asks has them.
func (q *query) askerResponse(m *machine, l *fib.Link) (response, bool) {
	if !q.sends(m, q.frame(), l.Name) {
		return response{}, false
	}
	r, ok := q.out(m, l, 8)
	return r, ok && q.takes(m, r.frame, l.Name)
}

// out sends the question out of a link of m; depth bounds rings of bridges.
func (q *query) out(m *machine, l *fib.Link, depth int) (response, bool) {
	if depth == 0 || !l.HasCarrier() {
		return response{}, false
	}
	if b, ok := m.bridge(l.Name); ok {
		q.hide(m.programAt(l, true))
		if !q.passesAt(m, q.frame(), q.asker.m.Name, l, netfilter.Egress) {
			return response{}, false
		}
		return q.ports(b, "", depth)
	}
	if _, ok := m.peer(l.Name); !ok {
		q.left = q.left || m.leadsOut(l)
		q.hide(m.notWalked(l))
		return response{}, false
	}
	far, end := m.otherEnd(l.Name)
	if far == nil {
		peer, _ := m.peer(l.Name)
		q.hide("the state of " + peer.Host + " is not read")
		return response{}, false
	}
	if end == nil || !end.HasCarrier() || !q.passesAt(m, q.frame(), q.asker.m.Name, l, netfilter.Egress) ||
		!q.passesAt(far, q.frame(), q.asker.m.Name, end, netfilter.Ingress) {
		return response{}, false
	}
	q.hide(m.programAt(l, true), far.programAt(end, false), far.enslaved(end))
	r, ok := q.at(far, end, depth)
	return r, ok && q.passesAt(far, r.frame, r.who, end, netfilter.Egress) && q.passesAt(m, r.frame, r.who, l, netfilter.Ingress)
}

// hide notes the first reason why an unknown station may answer.
func (q *query) hide(reasons ...string) { q.hidden = cmp.Or(append([]string{q.hidden}, reasons...)...) }

// ports sends the question out of the ports of a bridge, all of them: the first answer counts.
func (q *query) ports(b bridge, except string, depth int) (first response, answered bool) {
	q.hide(b.m.whyUnread(snapshot.FDB))
	for _, p := range b.ports() {
		if p.Port != nil && (p.Port.NeighbourSuppression || p.Port.ProxyARP) {
			q.stopped = &End{Kind: Undecided, Why: fmt.Sprintf("port %s of %s answers for others, which is not walked", p.Name, b.Name)}
			return response{}, false
		}
		if p.Name == except && !hairpin(p) || !forwarding(p) || !b.passes(q.group(), except, p.Name) ||
			!q.crosses(b, q.frame(), except, p.Name) {
			continue
		}
		q.unconfirmed = q.unconfirmed || q.broadcasts(b, p)
		r, ok := q.out(b.m, p, depth-1)
		if ok && !answered && b.passes(q.mac, p.Name, except) && q.crosses(b, r.frame, p.Name, except) {
			b.learn(r.mac, p)
			first, answered = r, true
		}
	}
	return first, answered
}

// broadcasts reports whether the bridge's rules make a broadcast of an ARP answer that comes in by a port, as Azure CNI's do. Such an answer
// tells the address, but not that it still holds (arp_process): an entry in use is asked about, answered, and fails all the same.
func (q *query) broadcasts(b bridge, p *fib.Link) bool {
	if !q.address.Is4() || !b.m.leadsOut(p) {
		return false
	}
	answer := q.arpAnswer(packet.MAC{2})
	answer.In, answer.BridgeIn, answer.Cast = p.Name, p.Name, packet.OtherHost
	t := q.in(b.m, answer)
	v, _ := t.arpRules(netfilter.Bridge, netfilter.Prerouting, b.m.Rules.Hook(netfilter.Bridge, netfilter.Prerouting))
	return v.Kind == netfilter.Accept && t.p.Frame.Destination == packet.Broadcast
}

// at returns the question at an interface: a bridge's rules may answer it, the machine itself, or whoever is behind the bridge's other
// ports.
func (q *query) at(m *machine, l *fib.Link, depth int) (response, bool) {
	b, isPort := m.bridgeOf(l)
	if !isPort {
		return q.ownResponse(m, l)
	}
	if !forwarding(l) {
		return response{}, false
	}
	b.learn(q.mac, l)
	if mac, answered := q.arpReply(m, l); answered {
		return response{mac, m.Name, q.arpAnswer(mac)}, !mac.IsZero()
	}
	others, answered := q.ports(b, l.Name, depth)
	q.hide(m.programAt(b.Link, false))
	if q.crosses(b, q.frame(), l.Name, "") && q.passesAt(m, q.frame(), q.asker.m.Name, b.Link, netfilter.Ingress) {
		if r, ok := q.ownResponse(m, b.Link); ok && b.passes(q.mac, "", l.Name) && q.crosses(b, r.frame, "", l.Name) {
			return r, true
		}
	}
	return others, answered
}

// ownResponse returns the machine's own answer to a question that came in by a link.
func (q *query) ownResponse(m *machine, l *fib.Link) (response, bool) {
	if l.NoARP && q.address.Is4() { // arp_rcv
		return response{}, false
	}
	if !m.answersFor(l, q) || !q.takes(m, q.frame(), l.Name) {
		m.overhear(l.Name, q)
		return response{}, false
	}
	m.learnAsker(l.Name, q)
	r := response{mac: l.MAC, who: m.Name}
	if r.frame = q.arpAnswer(l.MAC); q.address.Is6() {
		r.frame = q.advertisement(m, l.Name, l.MAC)
	}
	return r, q.sends(m, r.frame, l.Name)
}

// learnAsker notes who asked: who answers a question knows the one who asked from then on (arp_process, ndisc_recv_ns).
func (m *machine) learnAsker(link string, q *query) {
	if !q.sender.IsValid() || q.sender.IsUnspecified() {
		return
	}
	if n := m.FIB.Neighbour(link, q.sender); n == nil || n.State != "PERMANENT" {
		m.learn(link, q.sender, q.mac)
	}
}

// overhear notes who asked where the machine has asked for that host itself: an ARP request for another brings its entry up to
// date, also one that FAILED, but makes none (arp_process; arp_accept).
func (m *machine) overhear(link string, q *query) {
	if q.address.Is4() && m.FIB.HasAddress(q.address) == nil && m.FIB.Neighbour(link, q.sender) != nil {
		m.learnAsker(link, q)
	}
}

// answersFor reports whether the machine answers a request on a link: for an address of its own, or as a proxy for one that it would route
// out of another link. The question itself must be one that routing would take (arp_process, arp_fwd_proxy). In IPv6 an anycast address of
// the link, as the subnet's routers have, is answered for, too (ndisc_recv_ns: ipv6_chk_acast_addr).
func (m *machine) answersFor(l *fib.Link, q *query) bool {
	if !q.address.Is4() {
		has := func(a *fib.Address) bool { return a.Prefix.Addr() == q.address }
		return slices.ContainsFunc(m.FIB.AddressesOf(l.Name), has) || m.FIB.HasAnycast(l.Name, q.address) ||
			m.FIB.ProxyNeighbour(l.Name, q.address) != nil &&
				m.sysctl(false, snapshot.SysctlKey("net", "ipv6", "conf", l.Name, "proxy_ndp"))
	}
	own := m.FIB.HasAddress(q.address)
	if !m.isKnown(snapshot.Routes) {
		return own != nil && !m.ignoresARP(l.Name, own, q)
	}
	question := packet.Packet{Tuple: packet.Tuple{Source: q.sender, Destination: q.address}, Local: packet.Local{In: l.Name}}
	d := m.FIB.Lookup(fib.Query{Source: q.sender, Destination: q.address, In: l.Name})
	if q.sender.IsValid() && (m.martian(&question) != "" || m.validateSource(&question, &d, nil) != "") {
		return false
	}
	switch {
	case d.Type == "local":
		return own == nil || !m.ignoresARP(l.Name, own, q)
	case d.Type != "unicast" || !m.forwards(l.Name, false):
		return false
	}
	return d.Link != l.Name && (m.FIB.ProxyNeighbour(l.Name, q.address) != nil || m.confEither(l.Name, "proxy_arp"))
}

// ignoresARP reports whether arp_ignore keeps the machine from answering (Documentation/networking/ip-sysctl.rst).
func (m *machine) ignoresARP(link string, own *fib.Address, q *query) bool {
	switch m.confMax(link, "arp_ignore") {
	case 1:
		return own.Link != link
	case 2:
		return own.Link != link || !own.Prefix.Masked().Contains(q.sender)
	case 3:
		return own.Scope == "host"
	case 8:
		return true
	}
	return false
}

// group returns the destination of the question: the broadcast address, or in IPv6 the solicited-node group of the address. RFC 2464
// section 7 and RFC 4291 section 2.7.1 define the group.
func (q *query) group() packet.MAC {
	if q.address.Is4() {
		return packet.Broadcast
	}
	a := q.address.As16()
	return packet.MAC{0x33, 0x33, 0xff, a[13], a[14], a[15]}
}

// frame returns the question on the wire.
func (q *query) frame() packet.Packet {
	if q.address.Is6() {
		return q.solicitation()
	}
	return packet.Packet{
		Frame: packet.Frame{Source: q.mac, Destination: packet.Broadcast, Type: packet.EtherARP,
			ARP: &packet.ARP{SenderMAC: q.mac, Sender: q.sender, Target: q.address}},
		Local: packet.Local{Cast: packet.BroadcastFrame}, Length: arpLength,
	}
}

// arpAnswer returns the frame that comes back to an ARP request.
func (q *query) arpAnswer(mac packet.MAC) packet.Packet {
	return packet.Packet{
		Frame: packet.Frame{Source: mac, Destination: q.mac, Type: packet.EtherARP,
			ARP: &packet.ARP{Reply: true, SenderMAC: mac, Sender: q.address, TargetMAC: q.mac, Target: q.sender}}, Length: arpLength,
	}
}

// arpLength is that of a question or an answer about an IPv4 address, without the frame's header (RFC 826).
const arpLength = 28

// passesAt runs the chains that hang at a link over a question or an answer, which a machine of that name made. Going out, a frame has a
// kind (pkttype) if it came in before.
func (q *query) passesAt(m *machine, p packet.Packet, by string, l *fib.Link, h netfilter.Hook) bool {
	link := l.Name
	p.In, p.Cast = link, p.Frame.CastFor(l.MAC)
	if h == netfilter.Egress {
		p.In, p.Out = "", link
		if by == m.Name {
			p.Cast = packet.Unicast
		}
	}
	t := q.in(m, p)
	if p.Frame.ARP == nil {
		return q.passed(t, t.deviceHook(link, h))
	}
	at := slices.DeleteFunc(slices.Clone(m.Rules.Hook(netfilter.Netdev, h)), func(c *netfilter.Chain) bool { return !t.attachedTo(c, link) })
	return q.arpPasses(t, netfilter.Netdev, h, at)
}

// in returns a question or an answer in a machine on its way.
func (q *query) in(m *machine, p packet.Packet) *transit {
	a := q.asker
	return &transit{run: a.run, m: m, p: p, inReplyTo: a.inReplyTo, before: a.before + len(a.steps)}
}

// arpReply runs the bridge's prerouting rules over a request. A rule may answer it in the name of its owner (ebtables arpreply). A request
// that is dropped gets no answer: the address is then zero.
func (q *query) arpReply(m *machine, port *fib.Link) (packet.MAC, bool) {
	if !q.address.Is4() {
		return packet.MAC{}, false
	}
	p := q.frame()
	p.In = port.Name
	v, rule := q.in(m, p).arpRules(netfilter.Bridge, netfilter.Prerouting, m.Rules.Hook(netfilter.Bridge, netfilter.Prerouting))
	q.stopUndecided(m, v)
	switch v.Kind {
	case netfilter.Stolen:
		for _, s := range rule.Statements {
			if reply, ok := s.(*netfilter.ARPReply); ok {
				return reply.MAC, true
			}
		}
		return packet.MAC{}, true
	case netfilter.Drop, netfilter.Undecided:
		return packet.MAC{}, true
	}
	return packet.MAC{}, false
}

// arpPasses reports whether a hook's chains let an ARP frame pass.
func (q *query) arpPasses(t *transit, f netfilter.Family, h netfilter.Hook, chains []*netfilter.Chain) bool {
	v, _ := t.arpRules(f, h, chains)
	q.stopUndecided(t.m, v)
	return v.Kind != netfilter.Drop && v.Kind != netfilter.Undecided
}

// stopUndecided ends the query where it is unknown what the rules of m do to an ARP frame.
func (q *query) stopUndecided(m *machine, v netfilter.Verdict) {
	if v.Kind == netfilter.Undecided && q.stopped == nil {
		q.stopped = &End{Kind: Undecided, Why: fmt.Sprintf("what the rules of %s do to it is unknown: %s", m.Name, v.Detail)}
	}
}

// crosses runs the bridge's rules for a question, or an answer, that crosses it from one port to another: "" stands for the machine
// itself. Those at prerouting have seen an ARP request already, when it came in.
func (q *query) crosses(b bridge, p packet.Packet, in, out string) bool {
	hooks := []netfilter.Hook{netfilter.Forward, netfilter.Postrouting}
	switch {
	case in == "":
		hooks[0] = netfilter.Output
	case out == "":
		hooks = []netfilter.Hook{netfilter.Input}
	}
	if in != "" && (p.Frame.ARP == nil || p.Frame.Destination != packet.Broadcast) {
		hooks = append([]netfilter.Hook{netfilter.Prerouting}, hooks...)
	}
	t := q.in(b.m, p)
	if t.p.BridgeIn, t.p.BridgeOut, t.p.Cast = in, out, packet.Unicast; in != "" {
		t.p.Cast = p.Frame.CastFor(b.MAC)
	}
	for _, h := range hooks {
		t.p.In, t.p.Out = in, out
		if h == netfilter.Postrouting {
			t.p.In = ""
		}
		if p.Frame.ARP == nil {
			if !q.passed(t, t.hook(netfilter.Bridge, h)) {
				return false
			}
		} else if !q.arpPasses(t, netfilter.Bridge, h, b.m.Rules.Hook(netfilter.Bridge, h)) {
			return false
		}
	}
	return true
}

// arpRules evaluates chains of one hook, without noting them: a question is not the packet that is walked. It gives the rule that decided,
// if one did.
func (t *transit) arpRules(f netfilter.Family, h netfilter.Hook, chains []*netfilter.Chain) (netfilter.Verdict, *netfilter.Rule) {
	if why := t.m.whyUnread(rules(f)...); why != "" {
		return netfilter.Verdict{Kind: netfilter.Undecided, Detail: why}, nil
	}
	for _, c := range chains {
		ctx := netfilter.Context{Packet: &t.p, Family: f, Hook: h, Host: t.m, Chooser: t}
		v, err := c.Run(&ctx)
		if err != nil {
			return netfilter.Verdict{Kind: netfilter.Drop, Detail: err.Error()}, nil
		}
		if v.Kind != netfilter.Accept {
			return v, ctx.Visits[len(ctx.Visits)-1].Rule
		}
	}
	return netfilter.Verdict{Kind: netfilter.Accept}, nil
}
