package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/testing/netnstest"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/probe"
	"packetwalk.dev/internal/model/packet"
)

func TestProbe(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, a, "ip addr add fd00::1/64 dev eth0 nodad")
	netnstest.Script(t, b, "ip addr add fd00::2/64 dev peer-of-a nodad")
	netnstest.Script(t, b, `
iptables-nft -A INPUT -p tcp --dport 81 -j DROP
iptables-nft -A INPUT -p udp --dport 82 -j REJECT --reject-with icmp-admin-prohibited
iptables-nft -A INPUT -p tcp --dport 83 -j REJECT --reject-with tcp-reset
`)
	netnstest.Script(t, a, "iptables-nft -A OUTPUT -p udp --dport 84 -j DROP")
	for _, address := range []string{"10.9.0.2:80", "[fd00::2]:80"} {
		l, err := b.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	echo, err := b.ListenPacket(t.Context(), "udp", "10.9.0.2:7")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		buf := make([]byte, 100)
		if n, from, err := echo.ReadFrom(buf); err == nil {
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	for _, c := range []struct {
		protocol    packet.Protocol
		destination string
		answer      witness.Answer
		icmp        string
	}{
		{packet.TCP, "10.9.0.2:80", witness.Connected, ""},
		{packet.TCP, "[fd00::2]:80", witness.Connected, ""},
		{packet.TCP, "[fd00::2]:81", witness.Refused, ""},
		{packet.TCP, "10.9.0.2:81", witness.TimedOut, ""},
		{packet.TCP, "10.9.0.2:83", witness.Refused, ""},
		{packet.TCP, "10.10.0.1:80", witness.Unreachable, ""}, // no route
		{packet.UDP, "10.9.0.2:7", witness.Answered, ""},
		{packet.UDP, "10.9.0.2:8", witness.Refused, "10.9.0.2 3/3"},
		{packet.UDP, "10.9.0.2:82", witness.Unreachable, "10.9.0.2 3/13"},
		{packet.UDP, "10.9.0.2:84", witness.NotSent, ""},
		{packet.UDP, "[fd00::2]:8", witness.Refused, "fd00::2 1/4"},
		{packet.ICMP, "10.9.0.2:0", witness.Answered, ""},
		{packet.ICMPv6, "[fd00::2]:0", witness.Answered, ""},
	} {
		t.Run(fmt.Sprintf("%s %s", c.protocol, c.destination), func(t *testing.T) {
			to := netip.MustParseAddrPort(c.destination)
			p := packet.Packet{Tuple: packet.Tuple{Protocol: c.protocol, Destination: to.Addr(), DestinationPort: packet.Exactly(to.Port())}}
			r := send(t, a, p)
			icmp := ""
			if r.ICMP != nil {
				icmp = fmt.Sprintf("%s %d/%d", r.ICMP.From, r.ICMP.Type, r.ICMP.Code)
			}
			if r.Answer != c.answer || icmp != c.icmp {
				t.Errorf("%s (%v), ICMP %q, want %s, %q", r.Answer, r.Err, icmp, c.answer, c.icmp)
			}
			if source := r.Tuple.Source.String(); c.answer == witness.Connected && source != "10.9.0.1" && source != "fd00::1" {
				t.Errorf("local tuple %s", r.Tuple)
			}
		})
	}
}

func send(t testing.TB, ns *netns.Namespace, p packet.Packet) witness.Result {
	t.Helper()
	sent, err := probe.Prepare(ns, p)
	if err != nil {
		t.Fatal(err)
	}
	defer sent.Close()
	if sent.Tuple().SourcePort.Number == 0 {
		t.Error("the local port is not known before the packet is sent")
	}
	before := sent.Tuple().SourcePort
	// A neighbour that does not answer at once is asked again after a second: the kernel joins an IPv6 address's multicast group in a worker
	// (addrconf_dad_start), which on a busy machine is late.
	patience, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r, err := sent.Send(t.Context(), patience)
	if err != nil {
		t.Fatal(err)
	}
	if r.Tuple.SourcePort != before {
		t.Errorf("sent from port %s, promised %s", r.Tuple.SourcePort, before)
	}
	return r
}

func TestProbeGivenHeader(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, a, "ip addr add 10.9.0.7/24 dev eth0")
	p := packet.Packet{Tuple: tcpTuple("10.9.0.7:4711", "10.9.0.2:80"), TTL: 33, TOS: 0x48}
	c := openCapture(t, b, p.Tuple)
	if r := send(t, a, p); r.Answer != witness.Refused {
		t.Errorf("%+v", r)
	}
	got := readCapture(t, c)
	if len(got) != 1 || got[0].Packet.TTL != 33 || got[0].Packet.TOS != 0x48 || got[0].Packet.TCPFlags != packet.SYN || got[0].Out ||
		got[0].Link != "peer-of-a" || got[0].Packet.Tuple != p.Tuple || got[0].Packet.Frame.Source.String() != "00:0d:3a:00:00:01" {
		t.Errorf("got %+v", got)
	}
}

// TestProbeOwner shows that rules take a probe's socket for that of the user and group that it was given, and other sockets for root's.
func TestProbeOwner(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, a, `
iptables-nft -A OUTPUT -m owner --uid-owner 1337 -p udp --dport 81 -j REJECT
iptables-nft -A OUTPUT -m owner --gid-owner 1338 -p udp --dport 82 -j REJECT
iptables-nft -A OUTPUT -m owner --uid-owner 1337 -p icmp -j REJECT
nft 'add table ip t; add chain ip t o { type filter hook output priority 5; }; add rule ip t o meta skuid 1337 meta skgid 1338 tcp dport 80 drop'
ip route add table 99 unreachable 10.9.0.2
ip rule add uidrange 1400-1500 lookup 99
`)
	l, err := b.Listen(t.Context(), "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		protocol packet.Protocol
		port     uint16
		uid, gid uint32
		answer   witness.Answer
	}{
		{packet.UDP, 81, 0, 0, witness.Refused}, // by the receiver
		{packet.UDP, 81, 1336, 1337, witness.Refused},
		{packet.UDP, 81, 1337, 0, witness.NotSent},
		{packet.UDP, 82, 1338, 1337, witness.Refused},
		{packet.UDP, 82, 0, 1338, witness.NotSent},
		{packet.ICMP, 0, 0, 0, witness.Answered},
		{packet.ICMP, 0, 1337, 0, witness.NotSent},
		{packet.TCP, 80, 1337, 0, witness.Connected},
		{packet.TCP, 80, 1337, 1338, witness.TimedOut},
		{packet.TCP, 80, 1399, 0, witness.Connected},
		{packet.TCP, 80, 1400, 0, witness.Unreachable}, // by a policy rule
		{packet.ICMP, 0, 1450, 0, witness.Unreachable},
	} {
		t.Run(fmt.Sprintf("%s %d of %d:%d", c.protocol, c.port, c.uid, c.gid), func(t *testing.T) {
			p := packet.Packet{Tuple: packet.Tuple{Protocol: c.protocol, Destination: netip.MustParseAddr("10.9.0.2"), DestinationPort: packet.Exactly(c.port)}}
			p.HasOwner, p.UID, p.GID = true, c.uid, c.gid
			if r := send(t, a, p); r.Answer != c.answer {
				t.Errorf("%s (%v), want %s", r.Answer, r.Err, c.answer)
			}
			err := a.Do(func() error {
				if uid, _ := unix.SetfsuidRetUid(-1); uid != 0 {
					return fmt.Errorf("the thread is still user %d", uid)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCaptureOfMany: however many packets are named, those alone are captured, also where the kernel has no room for a filter that knows
// all.
func TestCaptureOfMany(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, a, "ip addr add 10.9.0.7/24 dev eth0")
	for i, n := range []int{10, 60, 70, 80, 90, 400} {
		named := tcpTuple(fmt.Sprintf("10.9.0.7:%d", 4000+i), "10.9.0.2:80")
		var tuples []packet.Tuple
		for port := range n {
			tuples = append(tuples, tcpTuple(fmt.Sprintf("10.9.0.7:%d", 10000+port), "10.9.0.2:80"))
		}
		c := openCapture(t, b, append(tuples, named)...)
		send(t, a, packet.Packet{Tuple: named})
		send(t, a, packet.Packet{Tuple: tcpTuple(fmt.Sprintf("10.9.0.7:%d", 5000+i), "10.9.0.2:80")})
		if got := readCapture(t, c); len(got) == 0 || slices.ContainsFunc(got, func(p witness.CapturedPacket) bool {
			return p.Packet.SourcePort != named.SourcePort && p.Packet.DestinationPort != named.SourcePort
		}) {
			t.Errorf("with %d: %+v", n, got)
		}
	}
}

func TestProbeErrors(t *testing.T) {
	a, _ := netnstest.Pair(t)
	for name, c := range map[string]struct {
		p  packet.Packet
		is error
	}{
		"protocol":        {packet.Packet{Tuple: packet.Tuple{Protocol: packet.SCTP, Destination: netip.MustParseAddr("10.9.0.2")}}, nil},
		"families":        {packet.Packet{Tuple: tcpTuple("10.9.0.1:1", "[fd00::1]:80")}, nil},
		"foreign address": {packet.Packet{Tuple: tcpTuple("10.9.0.99:1", "10.9.0.2:80")}, unix.EADDRNOTAVAIL},
		"not an echo": {packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Type: 13, Destination: netip.MustParseAddr("10.9.0.2")}},
			nil},
	} {
		if _, err := probe.Prepare(a, c.p); !errors.Is(err, witness.ErrUnsendable) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
	sender, err := probe.Prepare(a, packet.Packet{Tuple: tcpTuple("", "10.9.0.99:80")})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sender.Send(ctx, ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func openCapture(t testing.TB, ns *netns.Namespace, tuples ...packet.Tuple) *probe.Capture {
	t.Helper()
	c, err := probe.OpenCapture(ns, witness.Filters(tuples...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// readCapture reads until nothing has come for 100 ms. What has come by then is read even if this process has not run meanwhile.
func readCapture(t testing.TB, c *probe.Capture) []witness.CapturedPacket {
	t.Helper()
	var all []witness.CapturedPacket
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		got, err := c.Read(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			if c.Pending() {
				continue
			}
			if lost, err := c.Lost(); lost != 0 || err != nil {
				t.Errorf("lost %d, %v", lost, err)
			}
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got)
	}
}

// What a capture takes and what it leaves, for both families and the errors about a packet.
func TestCaptureChooses(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, a, "ip addr add fd00::1/64 dev eth0 nodad")
	netnstest.Script(t, b, "ip addr add fd00::2/64 dev peer-of-a nodad")
	for _, host := range []string{"10.9.0.2", "fd00::2"} {
		to := netip.MustParseAddr(host)
		from := map[bool]netip.Addr{true: netip.MustParseAddr("10.9.0.1"), false: netip.MustParseAddr("fd00::1")}[to.Is4()]
		udp := func(port uint16) packet.Packet {
			return packet.Packet{Tuple: packet.Tuple{Protocol: packet.UDP, Destination: to, DestinationPort: packet.Exactly(port)}}
		}
		tuple := packet.Tuple{Protocol: packet.UDP, Source: from, Destination: to, DestinationPort: packet.OneOf(9, 11, 10)}
		for _, many := range []int{1, 400} { // 400: more than a filter has room for
			tuples := []packet.Tuple{tuple}
			for i := 1; i < many; i++ {
				other := tuple
				other.DestinationPort = packet.Exactly(uint16(1000 + i))
				tuples = append(tuples, other)
			}
			c := openCapture(t, b, tuples...)
			send(t, a, udp(8))
			send(t, a, udp(9))
			send(t, a, udp(12))
			var got []string
			for _, p := range readCapture(t, c) {
				line := p.Packet.Protocol.String() + " " + p.Packet.DestinationPort.String()
				if p.Packet.About != nil {
					line = fmt.Sprintf("error out=%v about %s", p.Out, p.Packet.About.DestinationPort)
				}
				got = append(got, line)
			}
			if want := []string{"udp 9", "error out=true about 9"}; !slices.Equal(got, want) {
				t.Errorf("%s, %d tuples: got %s", host, many, strings.Join(got, ", "))
			}
		}
	}
}

// Of a traced connection TCP's repeated SYNs are dropped.
func TestTraceDropsRepeats(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, b, "iptables-nft -A INPUT -p tcp --dport 80 -j DROP")
	tuple := tcpTuple("10.9.0.1:4711", "10.9.0.2:80")
	trace, err := probe.OpenTrace(a, witness.Filters(tuple), []packet.Tuple{tuple})
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	c := openCapture(t, b, tuple)
	sender, err := probe.Prepare(a, packet.Packet{Tuple: tuple})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	patience, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if r, err := sender.Send(t.Context(), patience); err != nil || r.Answer != witness.TimedOut {
		t.Fatal(r, err)
	}
	if got := readCapture(t, c); len(got) != 1 {
		t.Errorf("%d packets: %+v", len(got), got)
	}
}

// TestTraceLeavesOthers: where a tuple's port is one of many, connections of others have such tuples, and their packets are let alone.
func TestTraceLeavesOthers(t *testing.T) {
	a, b := netnstest.Pair(t)
	l, err := b.Listen(t.Context(), "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answer := tcpTuple("10.9.0.2:80", "10.9.0.1:1")
	answer.DestinationPort = packet.OneOf(1024, 65535, 40000)
	anyone := answer
	anyone.DestinationPort = packet.Port{}
	openTrace(t, b, answer, anyone)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond) // after a second the answer would be sent again
		c, err := a.Dial(ctx, "tcp", "10.9.0.2:80")
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

// TestFrames: what no socket could send comes in at the other end of the wire, whole, of each protocol and family.
func TestFrames(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, b, "ip addr add fd00::2/64 dev peer-of-a nodad")
	for _, c := range []struct {
		protocol packet.Protocol
		from, to string
	}{
		{packet.TCP, "10.77.0.1:4000", "10.9.0.2:80"}, {packet.UDP, "10.77.0.1:4000", "10.9.0.2:80"},
		{packet.SCTP, "10.77.0.1:4000", "10.9.0.2:80"},
		{packet.ICMP, "10.77.0.1:4000", "10.9.0.2:0"}, {packet.TCP, "[fd77::1]:4000", "[fd00::2]:80"},
		{packet.UDP, "[fd77::1]:4000", "[fd00::2]:80"},
		{packet.SCTP, "[fd77::1]:4000", "[fd00::2]:80"}, {packet.ICMPv6, "[fd77::1]:4000", "[fd00::2]:0"},
	} {
		t.Run(fmt.Sprintf("%s %s", c.protocol, c.to), func(t *testing.T) {
			p := packet.Packet{Tuple: tcpTuple(c.from, c.to), TTL: 33, TOS: 0x48, Frame: packet.Frame{Source: packet.MAC{2, 0, 0, 0, 0, 9},
				Destination: packet.Broadcast}}
			p.Protocol = c.protocol
			sender, err := probe.PrepareFrame(a, "eth0", p)
			if err != nil {
				t.Fatal(err)
			}
			defer sender.Close()
			capture := openCapture(t, b, sender.Tuple())
			patience, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if r, err := sender.Send(t.Context(), patience); err != nil || r.Answer != witness.TimedOut {
				t.Errorf("%+v, %v", r, err)
			}
			got := readCapture(t, capture)
			if len(got) != 1 || got[0].Packet.Tuple != sender.Tuple() || got[0].Packet.TTL != 33 || got[0].Packet.TOS != 0x48 ||
				got[0].Packet.Frame.Source != p.Frame.Source {
				t.Errorf("want %+v, got %+v", p, got)
			}
		})
	}
	if _, err := probe.PrepareFrame(a, "eth0", packet.Packet{Tuple: tcpTuple("", "10.9.0.2:80")}); !errors.Is(err, witness.ErrUnsendable) {
		t.Errorf("without a source: %v", err)
	}
}
