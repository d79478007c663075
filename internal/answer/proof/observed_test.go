package proof

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// TestQuotes: a trace shows 20 bytes of an ICMP error, 12 of them of the packet it is about: enough to tell a SYN from what an older
// connection still sends, whose error comes the same way.
func TestQuotes(t *testing.T) {
	const (
		syn   = "0b00403400000000451c003ccb79400001069a0d0a01000a0a03000cc16a138823a8b5c500000000a002faf0"
		older = "0b00813600000000451c0034cd3f40000106984f0a01000a0a03000c001ac1fdb11ecd875a67fe3f80100040"
		udp   = "0b00000000000000451c003ccb79400001119a0d0a01000a0a03000cc16a138823a8b5c500000000"
	)
	decode := func(text string) []byte {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	segment := decode(syn)[28:]
	port := packet.Exactly(0xc16a)
	request := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, SourcePort: port}, TCPFlags: packet.SYN}
	o := &Observation{Answer: witness.Result{Tuple: request.Tuple},
		Hosts: map[string]*Host{"a": {Trace: []witness.TraceEvent{{Packet: &request, Transport: segment[:14], Label: 0xcb79}}}}}
	id := identify(o, &walk.Request{Host: "a", Packet: request})
	for _, c := range []struct {
		name, transport string
		bytes           int
		want            direction
	}{
		{"the request's, whole", syn, len(segment) + 28, there}, {"the request's, cut", syn, 20, there}, {"nothing of it", syn, 8, there},
		{"an older connection's, whole", older, len(segment) + 28, foreign}, {"an older connection's, cut", older, 20, foreign},
		{"another protocol's, cut", udp, 20, foreign},
	} {
		if got := id.quotes(decode(c.transport)[:c.bytes]); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestLaterSegments: what a connection sends after its SYN is answered is no second answer, though it may acknowledge the same byte: a
// keep-alive of the server (RFC 9293, section 3.8.4).
func TestLaterSegments(t *testing.T) {
	tuple := packet.Tuple{Protocol: packet.TCP, SourcePort: packet.Exactly(4000), DestinationPort: packet.Exactly(80)}
	segment := func(seq, ack uint32, flags packet.TCPFlags) []byte {
		b := binary.BigEndian.AppendUint32(make([]byte, 4, 20), seq)
		b = append(binary.BigEndian.AppendUint32(b, ack), make([]byte, 8)...)
		b[13] = byte(flags)
		return b
	}
	request := packet.Packet{Tuple: tuple, TCPFlags: packet.SYN}
	o := &Observation{Answer: witness.Result{Tuple: tuple}, Hosts: map[string]*Host{"a": {Packets: []witness.CapturedPacket{
		{Packet: request, Transport: segment(1000, 0, packet.SYN)},
	}}}}
	id := identify(o, &walk.Request{Host: "a", Packet: request})
	for name, c := range map[string]struct {
		seq, ack uint32
		flags    packet.TCPFlags
		want     direction
	}{
		"the SYN-ACK":            {5000, 1001, packet.SYN | packet.ACK, back},
		"a reset":                {0, 1001, packet.RST | packet.ACK, back},
		"a keep-alive":           {5000, 1001, packet.ACK, foreign},
		"a FIN":                  {5001, 1001, packet.FIN | packet.ACK, foreign},
		"another connection's":   {5000, 1002, packet.SYN | packet.ACK, foreign},
		"a reset that was later": {5001, 0, packet.RST, foreign},
	} {
		t.Run(name, func(t *testing.T) {
			if got := id.of(&packet.Packet{Tuple: tuple.Reply(), TCPFlags: c.flags}, segment(c.seq, c.ack, c.flags), expectNone); got != c.want {
				t.Errorf("direction %d, want %d", got, c.want)
			}
		})
	}
}

// TestCarrierAnswers: a program may get the packet of VXLAN that carries the probe's. Its answer is a datagram, though the probe is none.
func TestCarrierAnswers(t *testing.T) {
	const ip, udp, vxlan, ether = 20, 8, 8, 14
	request := packet.Packet{TCPFlags: packet.SYN, Tuple: packet.Tuple{Protocol: packet.TCP, SourcePort: packet.Exactly(4000)}}
	segment := binary.BigEndian.AppendUint32([]byte{4000 >> 8, 4000 & 0xff, 0, 80}, 1000)
	segment = append(segment, make([]byte, 12)...)
	segment[13] = byte(packet.SYN)
	header := func(protocol packet.Protocol) []byte {
		h := make([]byte, ip)
		h[0], h[9], h[15], h[19] = 0x45, byte(protocol), 1, 2
		return h
	}
	frame := slices.Concat(make([]byte, ether-2), []byte{8, 0}, header(packet.TCP), segment)
	payload := slices.Concat([]byte{8}, make([]byte, vxlan-1), frame)
	datagram := func(payload []byte) []byte { return append(make([]byte, udp), payload...) }
	carrying := packet.Packet{Tuple: packet.Tuple{Protocol: packet.UDP, SourcePort: packet.Exactly(5000), DestinationPort: packet.Exactly(4789)}}
	answering := packet.Packet{Tuple: carrying.Reply()}
	o := &Observation{Answer: witness.Result{Tuple: request.Tuple}, Hosts: map[string]*Host{"a": {Packets: []witness.CapturedPacket{
		{Packet: request, Transport: segment}, {Packet: carrying, Transport: datagram(payload)},
	}}}}
	id := identify(o, &walk.Request{Host: "a", Packet: request})
	for _, c := range []struct {
		name    string
		p       *packet.Packet
		payload []byte
		want    direction
	}{
		{"the carrier", &carrying, payload, there}, {"its answer", &answering, complement(payload), back},
		{"another one's answer", &answering, complement(payload[1:]), foreign}, {"nothing", &answering, nil, foreign},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := id.of(c.p, datagram(c.payload), expectNone); got != c.want {
				t.Errorf("direction %d, want %d", got, c.want)
			}
			if c.want == there {
				return // quotesCarrier tells of errors about carriers
			}
			about := slices.Concat(make([]byte, udp), header(packet.UDP), datagram(c.payload))
			if got := id.quotes(about); got != c.want {
				t.Errorf("an error about it: direction %d, want %d", got, c.want)
			}
		})
	}
}
