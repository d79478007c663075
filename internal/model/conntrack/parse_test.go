package conntrack

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

var compareAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func tuple(p packet.Protocol, from string, fromPort uint16, to string, toPort uint16) packet.Tuple {
	return packet.Tuple{
		Protocol: p, Source: addr(from), Destination: addr(to), SourcePort: packet.Exactly(fromPort), DestinationPort: packet.Exactly(toPort),
	}
}

const confirmed = packet.Confirmed | packet.SNATDone | packet.DNATDone

func TestParse(t *testing.T) {
	echo := packet.Tuple{Protocol: packet.ICMP, Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), SourcePort: packet.Exactly(7),
		Type: 8}
	echo6 := packet.Tuple{Protocol: packet.ICMPv6, Source: addr("fd00::1"), Destination: addr("fd00::2"), SourcePort: packet.Exactly(7),
		Type: 128}
	web := tuple(packet.TCP, "10.0.0.1", 4000, "10.0.0.9", 80)
	for _, c := range []struct {
		name, text string
		want       packet.Flow
	}{
		{"ICMP, with counters and times", "icmp     1 29 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=7 packets=1 bytes=84 [UNREPLIED] " +
			"src=10.0.0.2 dst=10.0.0.1 type=0 code=0 id=7 packets=0 bytes=0 mark=0 delta-time=3 [start=Sat Nov 21 14:29:13 2026] use=1 id=2601415003",
			packet.Flow{Original: echo, Reply: echo.Reply(), Status: confirmed, Timeout: 29}},
		{"ICMPv6, extended", "ipv6     10 icmpv6   58 9 src=fd00::1 dst=fd00::2 type=128 code=0 id=7 src=fd00::2 dst=fd00::1 type=129 code=0 id=7 mark=0 use=1",
			packet.Flow{Original: echo6, Reply: echo6.Reply(), Status: confirmed | packet.SeenReply, Timeout: 9}},
		{"TCP to a service, masqueraded", "tcp      6 86399 ESTABLISHED src=10.0.0.1 dst=10.0.0.9 sport=4000 dport=80 " +
			"src=10.1.0.5 dst=10.0.0.254 sport=8080 dport=61000 [ASSURED] mark=0x4000 secctx=system_u:object_r:unlabeled_t:s0 zone=3 use=2",
			packet.Flow{Original: web, Reply: tuple(packet.TCP, "10.1.0.5", 8080, "10.0.0.254", 61000), Zone: packet.Zone{ID: 3}, Mark: 0x4000,
				State:  "ESTABLISHED",
				Status: confirmed | packet.SeenReply | packet.Assured | packet.SNAT | packet.DNAT, Timeout: 86399}},
		{"/proc, offloaded: no timeout",
			"ipv4     2 tcp      6 src=10.0.0.1 dst=10.0.0.9 sport=4000 dport=80 src=10.0.0.9 dst=10.0.0.1 sport=80 dport=4000 " +
				"[OFFLOAD] mark=0 zone=0 use=3",
			packet.Flow{Original: web, Reply: web.Reply(), Status: confirmed | packet.SeenReply | packet.Offload}},
		{"a zone for the original direction", "udp      17 99 src=10.0.0.1 dst=10.0.0.3 sport=1 dport=2 zone-orig=4 [UNREPLIED] " +
			"src=1.2.3.4 dst=10.0.0.1 sport=2 dport=1 mark=0 use=1",
			packet.Flow{Original: tuple(packet.UDP, "10.0.0.1", 1, "10.0.0.3", 2), Reply: tuple(packet.UDP, "1.2.3.4", 2, "10.0.0.1", 1),
				Zone:   packet.Zone{ID: 4, Only: packet.ZoneOriginal},
				Status: confirmed | packet.DNAT, Timeout: 99}},
		{"a protocol without a name", "unknown  89 9 src=fd00::1 dst=fd00::2 [UNREPLIED] src=fd00::2 dst=fd00::1 mark=0 use=1",
			packet.Flow{Original: packet.Tuple{Protocol: 89, Source: addr("fd00::1"), Destination: addr("fd00::2")},
				Reply: packet.Tuple{Protocol: 89, Source: addr("fd00::2"), Destination: addr("fd00::1")}, Status: confirmed, Timeout: 9}},
	} {
		got, err := Parse([]byte(c.text + "\nconntrack v1.4.7 (conntrack-tools): 1 flow entries have been shown.\n"))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if d := cmp.Diff([]packet.Flow{c.want}, got, compareAddresses); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestParseErrors(t *testing.T) {
	good := "udp      17 99 src=10.0.0.1 dst=10.0.0.3 sport=1 dport=2 src=10.0.0.3 dst=10.0.0.1 sport=2 dport=1 mark=0 use=1\n"
	for _, c := range []struct{ line, want string }{
		{"tcp 6", "no connection"},
		{"tcp six 10 src=10.0.0.1", "protocol number"},
		{"tcp 6 10 SYN_SENT src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2", "two tuples"},
		{"tcp 6 10 sport=5 src=10.0.0.1 dst=10.0.0.2", "before the first src"},
		{"udp 17 10 src=10.0.0.1 dst=10.0.0.2 sport=70000 dport=2 src=10.0.0.2 dst=10.0.0.1", "number expected"},
		{"udp 17 10 src=10.0.0.1 dst=10.0.0.2 src=fd00::1 dst=fd00::2", "both families"},
		{"udp 17 10 src=10.0.0.1 dst=10.0.0.2 src=10.0.0.2 dst=10.0.0.1 src=10.0.0.1", "more than two"},
		{"udp 17 10 src=10.0.0.1 dst=10.0.0.2 [WHAT] src=10.0.0.2 dst=10.0.0.1", "not understood"},
	} {
		_, err := Parse([]byte(good + "\n" + c.line + "\n"))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "line 3") {
			t.Errorf("%s: error %v, want one with %q and the line", c.line, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("tcp      6 99 SYN_SENT src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2 src=10.0.0.2 dst=10.0.0.1 sport=2 dport=1 [ASSURED] mark=6 zone=3 use=1\n"))
	f.Add([]byte("icmpv6   58 9 src=fd00::1 dst=fd00::2 type=128 code=0 id=7 [UNREPLIED] src=fd00::2 dst=fd00::1 type=129 code=0 id=7 mark=0 use=1"))
	f.Add([]byte("ipv4     2 udp      17 99 src=10.0.0.1 dst=10.0.0.3 sport=1 dport=2 zone-orig=4 [UNREPLIED] src=1.2.3.4 dst=10.0.0.1 sport=2 dport=1 mark=0 helper=x use=2"))
	f.Add([]byte("gre      47 9 src=10.0.0.1 dst=10.0.0.2 srckey=0x1 dstkey=0x2 src=10.0.0.2 dst=10.0.0.1 srckey=0x2 dstkey=0x1 [HW_OFFLOAD] mark=0 use=1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		flows, err := Parse(text)
		if err != nil {
			return
		}
		printed := print(flows)
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("what was printed is not read: %v\n%s", err, printed)
		}
		if d := cmp.Diff(flows, again, compareAddresses, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("print∘parse (-first +second):\n%s%s", d, printed)
		}
		if !bytes.Equal(printed, print(again)) {
			t.Fatalf("printed again it differs:\n%s%s", printed, print(again))
		}
	})
}

func print(flows []packet.Flow) []byte {
	var b []byte
	for i := range flows {
		b = append(appendFlow(b, &flows[i]), '\n')
	}
	return b
}
