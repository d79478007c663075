package walk

import (
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// A host that carries a packet in VXLAN computes the carrier's UDP checksum at once, as if the payload had its own one already (local checksum
// offload: Documentation/networking/checksum-offloads.rst). Linux takes that of the carrier for one that a device is still to compute, so
// address translation makes it wrong (inet_proto_csum_replace4). Receivers notice when a device has computed the payload's one.

const whyWrong = "address translation spoiled it, as the payload's own one was not computed yet"

// sumBySocket returns what is known of the checksum of a packet that a program sends. TCP's sockets leave it to a device, UDP's do where the
// device can do it, as each of those that are walked.
func sumBySocket(p *packet.Packet) packet.Sum {
	switch {
	case p.Protocol == packet.UDP, p.Protocol == packet.TCP && p.TCPFlags&^(packet.ECE|packet.CWR) == packet.SYN:
		return packet.SumLater
	case p.Protocol == packet.TCP:
		return packet.SumUnknown
	}
	return packet.SumRight
}

// sumAt computes the checksums that were left to a device, at a link that the packet leaves by. A veth leaves them to the next device. A
// bridge, a VXLAN link and lo do so unless the packet carries another one (net_device.hw_enc_features). What other devices can do is unknown.
func (t *transit) sumAt(l *fib.Link) {
	p := &t.p
	left := p.Sum == packet.SumLater || p.Sum == packet.SumUnknown
	software := l.Kind == "bridge" || l.Kind == "vxlan" || l.Type == "loopback"
	if !left || l.Kind == "veth" || p.Tunnel == nil && software {
		return
	}
	spoiled := p.Tunnel != nil && p.Tuple != p.Tunnel.Summed
	switch {
	case spoiled && software && p.Sum == packet.SumLater:
		p.Sum = packet.SumWrong
	case spoiled:
		p.Sum = packet.SumDoubtful
	case software:
		p.Sum = packet.SumRight
	default:
		p.Sum = packet.SumUnknown
	}
}

// SpoiledSum asks whether a carrier's checksum is wrong: whether a device has computed the payload's one shows only on the wire.
type SpoiledSum struct{ Carrier packet.Tuple }

// String returns the question and its cause.
func (s SpoiledSum) String() string {
	return "whether the UDP checksum of " + s.Carrier.String() + " is wrong, as " + whyWrong + " or was"
}

// sumIsWrong reports whether a receiver finds the packet's checksum wrong. If that is unknown, the walk takes both ways.
func (t *transit) sumIsWrong() bool {
	if t.p.Sum == packet.SumDoubtful {
		t.p.Sum = packet.SumRight
		if t.choose(netfilter.Unknown, SpoiledSum{t.p.Tuple}, []netfilter.Option{{Label: "it is"}, {Label: "it is not"}}) == 0 {
			t.p.Sum = packet.SumWrong
		}
	}
	return t.p.Sum == packet.SumWrong
}
