package walk

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// ask finds who answers for an address on a link, as an ARP request or neighbour solicitation does, and what everybody learns from it: the
// sender the address, bridges on the way where both are.
func (r *run) ask(link string, a netip.Addr) (ResolveStep, bool) {
	l := r.m.FIB.Link(link)
	if r.m.isBridge(l.Master) {
		return ResolveStep{}, false // the answer comes in by the bridge, and is taken to be the bridge's
	}
	q := query{
		address: a, link: link,
		sender: r.senderAddress(link, a), mac: l.MAC,
	}
	if !q.sender.IsValid() && a.Is6() && r.m.knows(snapshot.Addresses) {
		return ResolveStep{}, false // a solicitation needs an address to come from (ndisc_send_ns)
	}
	mac, who, ok := r.askOut(r.m, l, &q, 8)
	if !ok && (!q.left || r.m.askedInVain(link, a)) {
		return ResolveStep{}, false
	}
	step := ResolveStep{Link: link, Address: a.String(), MAC: mac, By: "asked", Answerer: who}
	if !ok {
		r.m.assume(fmt.Sprintf("who answers for %s on %s is not in the snapshot: somebody is taken to", a, link))
		step.By = "not known"
	}
	if r.m.neighbours == nil {
		r.m.neighbours = map[neighbour]packet.MAC{}
	}
	r.m.neighbours[neighbour{link, a}] = mac
	return step, true
}

// askedInVain tells that the machine itself has asked before, and nobody answered.
func (m *machine) askedInVain(link string, a netip.Addr) bool {
	n := m.FIB.Neighbour(link, a)
	return n != nil && n.State == "FAILED"
}

// senderAddress is the address that a request says it comes from (arp_solicit with arp_announce 0, ndisc_solicit): the packet's own source
// where it is the machine's, otherwise one of the link, in IPv6 the link-local one; zero where it has none.
func (r *run) senderAddress(link string, a netip.Addr) netip.Addr {
	own := r.m.FIB.HasAddress(r.p.Source)
	switch {
	case own != nil && (a.Is4() || own.Link == link):
		return r.p.Source
	case a.Is4():
		return r.m.FIB.SelectSource(link, a)
	}
	for _, own := range r.m.FIB.AddressesOf(link) {
		if own.Prefix.Addr().IsLinkLocalUnicast() {
			return own.Prefix.Addr()
		}
	}
	return netip.Addr{}
}

// query is a question on the wire.
type query struct {
	address, sender netip.Addr
	link            string
	mac             packet.MAC // of the one who asks
	left            bool       // the question went out of what is known: somebody there may answer
}

// askOut sends the question out of a link of m; depth bounds rings of bridges.
func (r *run) askOut(m *machine, l *fib.Link, q *query, depth int) (packet.MAC, string, bool) {
	if depth == 0 || !l.Up {
		return packet.MAC{}, "", false
	}
	if l.Kind == "bridge" {
		if !r.arpAt(m, q.frame(), l.Name, netfilter.Egress) {
			return packet.MAC{}, "", false
		}
		return r.askPorts(m, l.Name, "", q, depth)
	}
	peer, ok := m.peer(l.Name)
	if !ok {
		q.left = q.left || m.leadsOut(l)
		return packet.MAC{}, "", false
	}
	h, err := r.host(peer.Host)
	if err != nil {
		return packet.MAC{}, "", false
	}
	far := r.machine(h)
	pl := h.FIB.Link(peer.PeerLink)
	if pl == nil || !pl.Up {
		return packet.MAC{}, "", false
	}
	if !r.arpAt(m, q.frame(), l.Name, netfilter.Egress) || !r.arpAt(far, q.frame(), pl.Name, netfilter.Ingress) {
		return packet.MAC{}, "", false
	}
	mac, who, ok := r.asked(far, pl, q, depth)
	return mac, who, ok && r.arpAt(far, q.answer(mac), pl.Name, netfilter.Egress) && r.arpAt(m, q.answer(mac), l.Name, netfilter.Ingress)
}

// askPorts sends the question out of the ports of a bridge.
func (r *run) askPorts(m *machine, bridge, except string, q *query, depth int) (packet.MAC, string, bool) {
	for _, p := range m.FIB.Ports(bridge) {
		if p.Name == except && (p.Port == nil || !p.Port.Hairpin) || !forwarding(p) {
			continue
		}
		if !m.bridges(bridge, q.group(), except, p.Name) || !r.arpPasses(m, q.frame(), except, p.Name) {
			continue
		}
		mac, who, ok := r.askOut(m, p, q, depth-1)
		if ok && m.bridges(bridge, q.mac, p.Name, except) && r.arpPasses(m, q.answer(mac), p.Name, except) {
			m.learnStation(bridge, mac, p)
			return mac, who, true
		}
	}
	return packet.MAC{}, "", false
}

// asked is the question at an interface: a bridge's rules may answer it, the machine itself, or whoever is behind the bridge's other ports.
func (r *run) asked(m *machine, l *fib.Link, q *query, depth int) (packet.MAC, string, bool) {
	on := l
	if master := m.FIB.Link(l.Master); master != nil && master.Kind == "bridge" {
		if !forwarding(l) {
			return packet.MAC{}, "", false
		}
		m.learnStation(master.Name, q.mac, l)
		if mac, answered := r.arpReply(m, q, l); answered {
			return mac, m.Name, !mac.IsZero()
		}
		on = master
	}
	arrives := on == l || r.arpPasses(m, q.frame(), l.Name, "") && r.arpAt(m, q.frame(), on.Name, netfilter.Ingress)
	if arrives && m.answersFor(on, q) {
		m.learnNeighbour(on.Name, q)
		return on.MAC, m.Name, on == l || m.bridges(on.Name, q.mac, "", l.Name) && r.arpPasses(m, q.answer(on.MAC), "", l.Name)
	}
	if on != l {
		return r.askPorts(m, on.Name, l.Name, q, depth)
	}
	return packet.MAC{}, "", false
}

// learnNeighbour notes who asked: who answers a question knows the one who asked from then on (arp_process, ndisc_recv_ns).
func (m *machine) learnNeighbour(link string, q *query) {
	if !q.sender.IsValid() || q.sender.IsUnspecified() {
		return
	}
	if n := m.FIB.Neighbour(link, q.sender); n != nil && n.State == "PERMANENT" {
		return
	}
	if m.neighbours == nil {
		m.neighbours = map[neighbour]packet.MAC{}
	}
	m.neighbours[neighbour{link, q.sender}] = q.mac
}

// answersFor tells whether the machine answers a request on a link: for an address of its own, or as a proxy for one that it would route
// out of another link. The question itself must be one that routing would take (arp_process, arp_fwd_proxy).
func (m *machine) answersFor(l *fib.Link, q *query) bool {
	if !q.address.Is4() {
		has := func(a *fib.Address) bool { return a.Prefix.Addr() == q.address }
		return slices.ContainsFunc(m.FIB.AddressesOf(l.Name), has) || m.FIB.ProxyNeighbour(l.Name, q.address) != nil &&
			m.sysctl(false, snapshot.SysctlKey("net", "ipv6", "conf", l.Name, "proxy_ndp"))
	}
	own := m.FIB.HasAddress(q.address)
	if !m.knows(snapshot.Routes) {
		return own != nil && !m.ignoresARP(l.Name, own, q)
	}
	question := packet.Packet{Tuple: packet.Tuple{Source: q.sender, Destination: q.address}, Local: packet.Local{In: l.Name}}
	d := decision{answer: m.FIB.Lookup(fib.Query{Source: q.sender, Destination: q.address, In: l.Name})}
	d.link = d.answer.Link
	if q.sender.IsValid() && (m.martian(&question) != "" || m.validateSource(&question, &d) != "") {
		return false
	}
	switch {
	case d.answer.Type == "local":
		return own == nil || !m.ignoresARP(l.Name, own, q)
	case d.answer.Type != "unicast" || !m.forwards(l.Name, false):
		return false
	}
	return d.link != l.Name && (m.FIB.ProxyNeighbour(l.Name, q.address) != nil || m.confEither(l.Name, "proxy_arp"))
}

// ignoresARP is arp_ignore (Documentation/networking/ip-sysctl.rst).
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

// group is whom the question is for: everybody, or in IPv6 the solicited-node group of the address (RFC 2464 section 7, RFC 4291 section
// 2.7.1).
func (q *query) group() packet.MAC {
	if q.address.Is4() {
		return packet.Broadcast
	}
	a := q.address.As16()
	return packet.MAC{0x33, 0x33, 0xff, a[13], a[14], a[15]}
}

// frame is the question as a bridge's rules see it.
func (q *query) frame() packet.Packet {
	return packet.Packet{
		EtherSource: q.mac, EtherDestination: packet.Broadcast, EtherType: packet.EtherARP,
		ARP:   &packet.ARP{SenderMAC: q.mac, Sender: q.sender, Target: q.address},
		Local: packet.Local{Cast: packet.BroadcastFrame}, Length: arpLength,
	}
}

// answer is the frame that comes back.
func (q *query) answer(mac packet.MAC) packet.Packet {
	return packet.Packet{
		EtherSource: mac, EtherDestination: q.mac, EtherType: packet.EtherARP,
		ARP: &packet.ARP{Reply: true, SenderMAC: mac, Sender: q.address, TargetMAC: q.mac, Target: q.sender}, Length: arpLength,
	}
}

// arpLength is that of a question or an answer about an IPv4 address, without the frame's header (RFC 826).
const arpLength = 28

// arpAt runs the chains that hang at a link over a question or an answer.
func (r *run) arpAt(m *machine, p packet.Packet, link string, h netfilter.Hook) bool {
	if p.ARP.Target.Is6() || p.ARP.Sender.Is6() {
		return true
	}
	if p.In = link; h == netfilter.Egress {
		p.In, p.Out = "", link
	}
	defer func(asking *machine) { r.m = asking }(r.m)
	r.m = m
	at := slices.DeleteFunc(slices.Clone(m.Rules.Hook(netfilter.Netdev, h)), func(c *netfilter.Chain) bool { return !r.hangsAt(c, link) })
	v, _ := r.arpRules(m, &p, netfilter.Netdev, h, at)
	return v.Kind != netfilter.Drop
}

// arpReply runs the bridge's prerouting rules over a request: one may answer it in the name of its owner (ebtables arpreply). A request
// that is dropped is answered by nobody: the address is then zero.
func (r *run) arpReply(m *machine, q *query, port *fib.Link) (packet.MAC, bool) {
	if !q.address.Is4() {
		return packet.MAC{}, false
	}
	p := q.frame()
	p.In = port.Name
	v, rule := r.arpRules(m, &p, netfilter.Bridge, netfilter.Prerouting, m.Rules.Hook(netfilter.Bridge, netfilter.Prerouting))
	switch v.Kind {
	case netfilter.Stolen:
		for _, s := range rule.Statements {
			if reply, ok := s.(*netfilter.ARPReply); ok {
				return reply.MAC, true
			}
		}
		return packet.MAC{}, true
	case netfilter.Drop:
		return packet.MAC{}, true
	}
	return packet.MAC{}, false
}

// arpPasses runs the bridge's rules for a question, or an answer, that crosses it from one port to another: "" stands for the machine
// itself. Those at prerouting have seen a question already, when it came in.
func (r *run) arpPasses(m *machine, p packet.Packet, in, out string) bool {
	if p.ARP.Target.Is6() || p.ARP.Sender.Is6() {
		return true
	}
	hooks := []netfilter.Hook{netfilter.Forward, netfilter.Postrouting}
	switch {
	case in == "":
		hooks[0] = netfilter.Output
	case out == "":
		hooks = []netfilter.Hook{netfilter.Input}
	}
	if in != "" && p.EtherDestination != packet.Broadcast {
		hooks = append([]netfilter.Hook{netfilter.Prerouting}, hooks...)
	}
	for _, h := range hooks {
		p.In, p.Out = in, out
		if h == netfilter.Postrouting {
			p.In = ""
		}
		if v, _ := r.arpRules(m, &p, netfilter.Bridge, h, m.Rules.Hook(netfilter.Bridge, h)); v.Kind == netfilter.Drop {
			return false
		}
	}
	return true
}

// arpRules evaluates chains of one hook, without noting them: a question is not the packet that is walked. It gives the rule that decided,
// if one did.
func (r *run) arpRules(m *machine, p *packet.Packet, f netfilter.Family, h netfilter.Hook, chains []*netfilter.Chain) (netfilter.Verdict,
	*netfilter.Rule) {
	for _, c := range chains {
		ctx := netfilter.Context{Packet: p, Family: f, Hook: h, Host: m, Chooser: r}
		v, err := c.Run(&ctx)
		if err != nil {
			return netfilter.Verdict{Kind: netfilter.Drop, Detail: err.Error()}, nil
		}
		if v.Kind != netfilter.Accept {
			return v, ctx.Trail[len(ctx.Trail)-1].Rule
		}
	}
	return netfilter.Verdict{Kind: netfilter.Accept}, nil
}
