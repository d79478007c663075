package probe

import (
	"bytes"
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/witness"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// FuzzMessages: no message of the kernel, however cut or nested, makes a reader panic.
func FuzzMessages(f *testing.F) {
	a := func(kind uint16, value any) nf.Attr { return nf.Attr{Kind: kind, Value: value} }
	attributes := func(list ...nf.Attr) []byte { return nf.Attrs(list).Append([]byte{2, 0, 0, 0}) }
	f.Add(attributes(
		a(unix.NFTA_TRACE_ID, uint32(7)), a(unix.NFTA_TRACE_TABLE, "nat"), a(unix.NFTA_TRACE_CHAIN, "OUTPUT"),
		a(unix.NFTA_TRACE_TYPE, uint32(unix.NFT_TRACETYPE_RULE)),
		a(unix.NFTA_TRACE_VERDICT, nf.Attrs{a(unix.NFTA_VERDICT_CODE, uint32(1<<32-3)), a(unix.NFTA_VERDICT_CHAIN, "KUBE-SERVICES")}),
		a(unix.NFTA_TRACE_NETWORK_HEADER, ipHeader), a(unix.NFTA_TRACE_TRANSPORT_HEADER, tcpHeader), a(unix.NFTA_TRACE_MARK, uint32(0x4000)),
	))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseTrace(netlink.Message{Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE}, Data: data})
		if err == nil {
			if n := len(witness.GroupTrace([]witness.TraceEvent{*e, *e})); e.Packet == nil && n != 1 || e.Packet != nil && n != 2 {
				t.Errorf("%d traversals", n)
			}
		}
		offender(data)
	})
}

var (
	ipHeader  = []byte{0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	ip6Header = append([]byte{0x60, 0, 0, 0, 0, 20, 17, 64}, make([]byte, 32)...)
	tcpHeader = []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0xfa, 0xf0, 0, 0, 0, 0}
)

// FuzzHeaders: whatever a captured packet is, reading it takes what there is and no more, and what is cut off is not made up.
func FuzzHeaders(f *testing.F) {
	f.Add(append(bytes.Clone(ipHeader), tcpHeader...), 30)
	f.Add(append(bytes.Clone(ip6Header), tcpHeader...), 45)
	unreachable := bytes.Clone(ipHeader)
	unreachable[9] = 1
	quoted := append(append(bytes.Clone(unreachable), 3, 1, 0, 0, 0, 0, 0, 0), append(bytes.Clone(ipHeader), tcpHeader[:8]...)...)
	f.Add(quoted, 50)
	f.Add(append(bytes.Clone(unreachable), 8, 0, 0, 0, 0, 7, 0, 1), 24)
	f.Fuzz(func(t *testing.T, frame []byte, cut int) {
		read := func(b []byte) packet.Packet {
			return witness.Headers{Network: b, Transport: b[witness.HeaderLength(b):]}.Parse()
		}
		p := read(frame)
		_ = p.String()
		chosen(&p, packet.Tuple{Protocol: p.Protocol, Source: p.Source, Type: p.Type})
		if p.Source.Is4() != p.Destination.Is4() || p.Source.IsValid() != p.Destination.IsValid() || p.Source.IsValid() && p.Frame.Type == 0 {
			t.Errorf("a packet of two families: %s", p)
		}
		if icmp := p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6; p.About != nil && !icmp || (p.SourcePort != packet.Port{}) &&
			!icmp && !p.Protocol.HasPorts() {
			t.Errorf("%s has %v and port %s", p.Protocol, p.About, p.SourcePort)
		}
		if cut < 0 || cut >= len(frame) {
			return
		}
		less := read(frame[:cut])
		if (less.Source != netip.Addr{} && less.Source != p.Source) || less.SourcePort != (packet.Port{}) && less.SourcePort != p.SourcePort ||
			less.TCPFlags != 0 && less.TCPFlags != p.TCPFlags || less.About != nil &&
			(p.About == nil || less.About.Destination != p.About.Destination) {
			t.Errorf("cut after %d bytes %s is read as %s", cut, p, less)
		}
	})
}
