package probe_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/kernel/probe"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/testing/netnstest"
)

// carried returns the payload of a UDP datagram of VXLAN with a TCP segment in it.
func carried(t packet.Tuple, flags packet.TCPFlags) []byte {
	b := make([]byte, 8+14) // VXLAN's header, Ethernet's
	b[0] = 0x08             // it has a VNI
	if t.Source.Is4() {
		binary.BigEndian.PutUint16(b[20:], uint16(packet.EtherIPv4))
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, 64, byte(packet.TCP)
		copy(ip[12:], t.Source.AsSlice())
		copy(ip[16:], t.Destination.AsSlice())
		b = append(b, ip...)
	} else {
		binary.BigEndian.PutUint16(b[20:], uint16(packet.EtherIPv6))
		ip := make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, byte(packet.TCP), 64
		copy(ip[8:], t.Source.AsSlice())
		copy(ip[24:], t.Destination.AsSlice())
		b = append(b, ip...)
	}
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, t.SourcePort.Number)
	binary.BigEndian.PutUint16(tcp[2:], t.DestinationPort.Number)
	tcp[12], tcp[13] = 5<<4, byte(flags)
	return append(b, tcp...)
}

// TestFiltersByContent: of datagrams with the same tuple a trace and a capture show those alone that carry what is asked for: on a node
// with an overlay all traffic with another node has one tuple, but for a port that a hash chooses.
func TestFiltersByContent(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, b, "nft add table inet t; nft add chain inet t in '{ type filter hook input priority 0; policy drop; }'")
	outer := packet.Tuple{Protocol: packet.UDP, Destination: netip.MustParseAddr("10.9.0.2"), DestinationPort: packet.Exactly(8472)}
	inner := tcpTuple("10.244.1.2:4000", "10.244.2.2:80")
	other, six := tcpTuple("10.244.1.2:4001", "10.244.2.2:80"), tcpTuple("[fd00::1]:4000", "[fd00::2]:80")
	ranged := inner
	ranged.SourcePort = packet.OneOf(3999, 4000, 3999)
	wanted := inner
	for name, c := range map[string]struct {
		filter witness.PacketFilter
		sent   [][]byte
		want   []int // of what is sent
	}{
		"payload": {witness.PacketFilter{Tuple: outer, Payload: []byte("abcdefgh")},
			[][]byte{[]byte("abcdxyz"), []byte("abcx"), []byte("abc")}, []int{0}},
		"carried": {witness.PacketFilter{Tuple: outer, Carried: &wanted},
			[][]byte{carried(other, packet.SYN), carried(inner, packet.SYN), carried(inner, packet.ACK), carried(six, packet.SYN), {1, 2, 3}},
			[]int{1}},
		"one of several ports": {witness.PacketFilter{Tuple: outer, Carried: &ranged},
			[][]byte{carried(other, packet.SYN), carried(inner, packet.RST|packet.ACK)}, []int{1}},
		"IPv6": {witness.PacketFilter{Tuple: outer, Carried: &six}, [][]byte{carried(inner, packet.SYN), carried(six, packet.SYN)}, []int{1}},
		"any address": {witness.PacketFilter{Tuple: packet.Tuple{Protocol: packet.UDP, Source: netip.IPv4Unspecified()}, Payload: []byte("abc")},
			[][]byte{[]byte("abcd"), []byte("xyz")}, []int{0}},
		"all": {witness.PacketFilter{Tuple: outer}, [][]byte{{1}, {2}}, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			trace, err := probe.OpenTrace(b, []witness.PacketFilter{c.filter}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer trace.Close()
			capture, err := probe.OpenCapture(b, []witness.PacketFilter{c.filter})
			if err != nil {
				t.Fatal(err)
			}
			defer capture.Close()
			conn, err := a.Dial(t.Context(), "udp", "10.9.0.2:8472")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for _, payload := range c.sent {
				if _, err := conn.Write(payload); err != nil {
					t.Fatal(err)
				}
			}
			var captured []int
			for _, p := range readCapture(t, capture) {
				captured = append(captured, slices.IndexFunc(c.sent, func(s []byte) bool { return string(s) == string(p.Transport[8:]) }))
			}
			entered := 0
			for _, line := range lines(readTrace(t, trace)) {
				if line[:len("inet entered")] == "inet entered" {
					entered++
				}
			}
			if got := fmt.Sprint(captured); got != fmt.Sprint(c.want) || entered != len(c.want) {
				t.Errorf("captured %s, traced %d, want %v", got, entered, c.want)
			}
		})
	}
}
