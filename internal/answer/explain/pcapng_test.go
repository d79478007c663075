package explain

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// TestPcapng writes a walk and reads it back, by hand and by tcpdump.
func TestPcapng(t *testing.T) {
	var b bytes.Buffer
	e := fromInternet(t)
	if err := Pcapng(&b, e.result, Options{Owners: ownersOf(e.objects), Time: time.Unix(1_700_000_000, 0)}); err != nil {
		t.Fatal(err)
	}
	names, packets := readPcapng(t, b.Bytes())
	if names[0] != "internet/client/eth0" || names[5] != "node/aks-nodepool1-31351229-0/eth0" {
		t.Errorf("interfaces %q", names)
	}
	var atPod *readPacket
	for i := range packets {
		if i > 0 && packets[i].micros <= packets[i-1].micros {
			t.Errorf("packet %d is not later than the one before", i)
		}
		if names[packets[i].link] == "node/aks-nodepool1-31351229-0/azv706a95a035c" && atPod == nil {
			atPod = &packets[i]
		}
	}
	for _, want := range []string{
		"outcome 1 of 2: request transmitted by node/aks-nodepool1-31351229-0",
		"nat KUBE-SEP-EEKBNNDWJBHLLPWP 2: destination 203.0.113.11:80 → 10.13.76.7:80 (default/whereami: pod default/whereami-58ffd64b78-65fpd)",
		"nat KUBE-POSTROUTING 3: source 198.51.100.10:40000 → 10.13.76.4:1024-65535",
	} {
		if atPod == nil || !strings.Contains(atPod.comment, want) {
			t.Fatalf("at the pod's interface: %+v; want %q", atPod, want)
		}
	}
	text := tcpdump(t, b.Bytes())
	for _, want := range []string{"10.13.76.4.40000 > 10.13.76.7.80: Flags [S], cksum", "203.0.113.11.80 > 198.51.100.10.40000: Flags [S.]"} {
		if !strings.Contains(text, want) {
			t.Errorf("tcpdump does not say %q:\n%s", want, text)
		}
	}
}

// TestFrames holds each kind of packet to what tcpdump makes of it.
func TestFrames(t *testing.T) {
	ip := netip.MustParseAddr
	tuple := func(proto packet.Protocol, from, to string, sport, dport uint16, kind uint8) packet.Tuple {
		return packet.Tuple{
			Protocol: proto, Source: ip(from), Destination: ip(to),
			SourcePort: packet.Exactly(sport), DestinationPort: packet.Exactly(dport), Type: kind,
		}
	}
	about := tuple(packet.UDP, "10.0.0.1", "10.0.0.2", 5000, 53, 0)
	for _, test := range []struct {
		name string
		p    packet.Packet
		want []string
	}{
		{"tcp", packet.Packet{Tuple: tuple(packet.TCP, "10.0.0.1", "10.0.0.2", 40000, 80, 0), TTL: 64},
			[]string{"10.0.0.1.40000 > 10.0.0.2.80: Flags [S], cksum", "ttl 64", "(correct)"}},
		{"tcp over IPv6", packet.Packet{Tuple: tuple(packet.TCP, "fd00::1", "fd00::2", 40000, 80, 0), TTL: 63, TCPFlags: packet.SYN | packet.ACK},
			[]string{"fd00::1.40000 > fd00::2.80: Flags [S.], cksum", "hlim 63", "ack 1", "(correct)"}},
		{"udp", packet.Packet{Tuple: tuple(packet.UDP, "10.0.0.1", "10.0.0.2", 40000, 9999, 0), TTL: 64, Length: 61},
			[]string{"[udp sum ok] UDP, length 33"}},
		{"udp over IPv6", packet.Packet{Tuple: tuple(packet.UDP, "fd00::1", "fd00::2", 40000, 9999, 0), TTL: 64, Length: 60},
			[]string{"[udp sum ok] UDP, length 12"}},
		{"ping", packet.Packet{Tuple: tuple(packet.ICMP, "10.0.0.1", "10.0.0.2", 77, 0, 8), TTL: 64, Length: 84},
			[]string{"ICMP echo request, id 77, seq 1, length 64"}},
		{"ping over IPv6", packet.Packet{Tuple: tuple(packet.ICMPv6, "fd00::1", "fd00::2", 77, 0, 129), TTL: 64, Length: 104},
			[]string{"[icmp6 sum ok] ICMP6, echo reply, id 77, seq 1"}},
		{"an error", packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Source: ip("10.0.0.2"), Destination: ip("10.0.0.1"), Type: 3,
			Code: 3}, TTL: 64, About: &about},
			[]string{"ICMP 10.0.0.2 udp port 53 unreachable", "10.0.0.1.5000 > 10.0.0.2.53"}},
		{"a fragment", packet.Packet{Tuple: tuple(packet.UDP, "10.0.0.1", "10.0.0.2", 0, 0, 0), TTL: 64, Offset: 1480, More: true, Length: 1500},
			[]string{"offset 1480, flags [+]"}},
		{"arp", packet.Packet{Frame: packet.Frame{ARP: &packet.ARP{Sender: ip("10.0.0.1"), Target: ip("10.0.0.2")},
			Destination: packet.Broadcast}},
			[]string{"Request who-has 10.0.0.2 tell 10.0.0.1"}},
		{"tos", packet.Packet{Tuple: tuple(packet.TCP, "10.0.0.1", "10.0.0.2", 40000, 80, 0), TTL: 1, TOS: 0xb8}, []string{"tos 0xb8"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.p.In = "eth0"
			result := &walk.Result{Outcomes: []walk.Outcome{{There: []walk.Step{{Host: "vm/a", Stage: walk.Received, Packet: test.p}}}}}
			var b bytes.Buffer
			if err := Pcapng(&b, result, Options{}); err != nil {
				t.Fatal(err)
			}
			text := tcpdump(t, b.Bytes())
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("tcpdump does not say %q:\n%s", want, text)
				}
			}
			for _, bad := range []string{"incorrect", "bad cksum", "wrong icmp cksum", "bad udp", "truncated", "[|"} {
				if strings.Contains(text, bad) {
					t.Errorf("tcpdump says %q:\n%s", bad, text)
				}
			}
		})
	}
}

func tcpdump(t *testing.T, capture []byte) string {
	t.Helper()
	cmd := exec.Command("tcpdump", "-n", "-vvv", "-r", "-")
	cmd.Stdin = bytes.NewReader(capture)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("tcpdump: %v\n%s", err, out)
	}
	return string(out)
}

type readPacket struct {
	link    int
	micros  uint64
	comment string
}

// readPcapng checks the lengths of blocks and reads what the test looks at.
func readPcapng(t *testing.T, b []byte) (names []string, packets []readPacket) {
	t.Helper()
	le := binary.LittleEndian
	for len(b) > 0 {
		n := int(le.Uint32(b[4:]))
		if n%4 != 0 || n > len(b) || int(le.Uint32(b[n-4:])) != n {
			t.Fatalf("a block of %d bytes with %d left", n, len(b))
		}
		body := b[8 : n-4]
		switch le.Uint32(b) {
		case blockInterface:
			names = append(names, readOption(t, body[8:], optIfName))
		case blockPacket:
			size := int(le.Uint32(body[12:]))
			options := body[20+(size+3)/4*4:]
			packets = append(packets, readPacket{
				int(le.Uint32(body)), uint64(le.Uint32(body[4:]))<<32 | uint64(le.Uint32(body[8:])), readOption(t, options, optComment),
			})
		}
		b = b[n:]
	}
	return names, packets
}

func readOption(t *testing.T, b []byte, code uint16) string {
	t.Helper()
	for {
		c, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if c == code {
			return string(b[4 : 4+n])
		}
		if c == 0 {
			t.Fatalf("no option %d", code)
		}
		b = b[4+(n+3)/4*4:]
	}
}
