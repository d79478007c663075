package walk

import (
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// In IPv6 the question is an IPv6 packet, a neighbour solicitation, and so is the answer, a neighbour advertisement (RFC 4861, sections 4.3
// and 4.4): both pass the rules of those who send and take them (net/ipv6/ndisc.c: ndisc_send_skb, ndisc_rcv), untracked.

// discoveryLength is that of either with its one option, the sender's link-layer address, in bytes.
const discoveryLength = 40 + 8 + 16 + 8

// Types of ICMPv6 messages (RFC 4861).
const (
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
)

// solicitation asks for the address: it goes to the group of those whose addresses end alike.
func (q *query) solicitation() packet.Packet {
	a := q.address.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
	p := discovery(neighbourSolicitation, q.sender, group)
	p.Frame.Source, p.Frame.Destination = q.mac, q.group()
	p.Cast = packet.MulticastFrame
	return p
}

// advertisement returns the answer that m gives on a link. It comes from the address itself if the link has it. For an anycast address, and
// as a proxy, the machine chooses the source (ndisc_send_na).
func (q *query) advertisement(m *machine, link string, mac packet.MAC) packet.Packet {
	source := q.address
	if !slices.ContainsFunc(m.FIB.AddressesOf(link), func(a *fib.Address) bool { return a.Prefix.Addr() == source }) {
		source = m.FIB.SelectSource(link, q.sender)
	}
	p := discovery(neighbourAdvertisement, source, q.sender)
	p.Frame.Source, p.Frame.Destination = mac, q.mac
	return p
}

func discovery(kind uint8, from, to netip.Addr) packet.Packet {
	return packet.Packet{
		Tuple: packet.Tuple{Protocol: packet.ICMPv6, Source: from, Destination: to, Type: kind},
		TTL:   255, Length: discoveryLength, Frame: packet.Frame{Type: packet.EtherIPv6}, Local: packet.Local{KernelMade: true},
	}
}

// sends reports whether the rules of m let its question or answer out by a link. Routing may change its mind about an answer.
func (q *query) sends(m *machine, p packet.Packet, link string) bool {
	if p.Frame.ARP != nil {
		return true
	}
	p.Out, p.Cast = link, packet.Unicast // what is sent has no such kind yet
	t := q.in(m, p)
	t.route = &fib.Answer{Type: "unicast", Link: link}
	return q.passed(t, t.hook(netfilter.IPv6, netfilter.Output)) && t.route.Link == link &&
		q.passed(t, t.hook(netfilter.IPv6, netfilter.Postrouting))
}

// takes reports whether the rules of m let a question or an answer in by a link.
func (q *query) takes(m *machine, p packet.Packet, link string) bool {
	if p.Frame.ARP != nil {
		return true
	}
	p.In, p.KernelMade = link, false
	t := q.in(m, p)
	return q.passed(t, t.hook(netfilter.IPv6, netfilter.Prerouting)) && q.passed(t, t.hook(netfilter.IPv6, netfilter.Input))
}

// passed keeps what stopped a question or an answer.
func (q *query) passed(t *transit, end *End) bool {
	if end == nil {
		return true
	}
	if what := map[uint8]string{neighbourSolicitation: "solicitation", neighbourAdvertisement: "advertisement"}[t.p.Type]; q.stopped == nil {
		q.stopped = end
		q.stopped.Why = "the neighbour " + what + " is " + end.Why + " on " + t.m.Name
	}
	return false
}
