package proof

import (
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// captured returns a datagram of the probe's, or one that echoes it.
func captured(out bool, link, source, destination string) witness.CapturedPacket {
	from, to := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	return witness.CapturedPacket{Out: out, Link: link, Packet: packet.Packet{TTL: 64, Tuple: tupleOf(uint8(packet.UDP), from, to)},
		Transport: []byte("UDPhead.probe")}
}

// TestEcho: the answer of a pod to itself by its service, with the payload of the datagram that it answers, is not taken for that.
func TestEcho(t *testing.T) {
	const client, vip, pod, node = "10.0.0.9:4000", "10.200.0.1:7", "10.0.0.9:7", "10.0.0.2:34351"
	sender := &Host{Packets: []witness.CapturedPacket{
		captured(true, "eth0", client, vip), captured(false, "eth0", node, pod),
		captured(true, "eth0", pod, node), captured(false, "eth0", vip, client),
	}}
	router := &Host{Packets: []witness.CapturedPacket{
		captured(false, "veth", client, vip), captured(true, "veth", node, pod),
		captured(false, "veth", pod, node), captured(true, "veth", vip, client),
	}}
	id := &identity{request: sender.Packets[0].Packet.Tuple, payload: []byte("probe")}
	if got := lastSeen(sender, id).Packet.SourceEnd(); got != node {
		t.Errorf("the packet came from %s, not %s", got, node)
	}
	flows := crossed(router, id, false)
	if len(flows) != 1 || flows[0].Original.SourceEnd() != client || flows[0].Reply.DestinationEnd() != node {
		t.Errorf("the node's connections are %+v", flows)
	}
	// A packet to its own port has itself for its reply.
	own := &Host{Packets: []witness.CapturedPacket{captured(true, "lo", pod, pod), captured(false, "lo", pod, pod)}}
	if got := lastSeen(own, id).Packet.SourceEnd(); got != pod {
		t.Errorf("the packet to itself came from %s", got)
	}
}

// TestSettledBehindBridge: a packet that leaves by a bridge and then by its port is translated when it leaves by the port.
func TestSettledBehindBridge(t *testing.T) {
	const client, vip, pod, node = "10.0.0.1:4000", "10.200.0.1:53", "10.0.0.9:53", "10.0.0.2:34351"
	h := &Host{Packets: []witness.CapturedPacket{
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
