package proof

import (
	"encoding/hex"
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
