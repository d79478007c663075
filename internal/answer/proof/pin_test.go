package proof

import (
	"net/netip"
	"testing"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/model/packet"
)

// TestSettledBehindBridge: a packet that leaves by a bridge and then by its port is translated when it leaves by the port.
func TestSettledBehindBridge(t *testing.T) {
	captured := func(out bool, link, source, destination string) kernel.Captured {
		from, to := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
		return kernel.Captured{Out: out, Link: link, Packet: packet.Packet{TTL: 64, Tuple: tupleOf(uint8(packet.UDP), from, to)},
			Transport: []byte("UDPhead.probe")}
	}
	const client, vip, pod, node = "10.0.0.1:4000", "10.200.0.1:53", "10.0.0.9:53", "10.0.0.2:34351"
	h := &Host{Packets: []kernel.Captured{
		captured(false, "eth0", client, vip),
		captured(true, "br0", client, pod),
		captured(true, "eth0", node, pod),
	}}
	id := &identity{request: h.Packets[0].Packet.Tuple, payload: []byte("probe")}
	flows := settled(h, id, false)
	if len(flows) != 1 || flows[0].Original.SourceEnd() != client || flows[0].Reply.DestinationEnd() != node {
		t.Errorf("%+v", flows)
	}
}
