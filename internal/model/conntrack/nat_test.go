package conntrack

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/model/packet"
)

var defaults = Settings{TCPLoose: true, LocalPorts: [2]uint16{32768, 60999}}

func syn(t packet.Tuple) packet.Packet { return packet.Packet{Tuple: t, TCPFlags: packet.SYN, TTL: 64} }

// send takes a packet through one machine: conntrack, destination and source translation, confirmation.
func send(t *testing.T, v *View, p *packet.Packet, dnat, snat *packet.Translation) {
	t.Helper()
	v.Track(p)
	bind := func(n *packet.Translation, source bool) {
		if p.Track.State == packet.New && p.Track.Flow.Status&done(source) == 0 {
			if n == nil {
				v.Null(p, source)
			} else if ok, why := v.Translate(p, *n); !ok {
				t.Fatalf("%v: %s", p.Tuple, why)
			}
		}
		v.Apply(p, source)
	}
	if p.Track.Flow == nil {
		return
	}
	bind(dnat, false)
	bind(snat, true)
	if !v.Confirm(p) {
		t.Fatalf("%v: not confirmed", p.Tuple)
	}
}

// answer returns the packet that the receiver sends back.
func answer(p *packet.Packet, flags packet.TCPFlags) packet.Packet {
	return packet.Packet{Tuple: p.Reply(), TCPFlags: flags, TTL: 64}
}

func snat(a string) *packet.Translation {
	return &packet.Translation{Source: true, Low: addr(a), High: addr(a)}
}

func dnat(a string, port uint16) *packet.Translation {
	return &packet.Translation{Low: addr(a), High: addr(a), PortLow: port, PortHigh: port}
}

// TestPorts has the kernel's choices of ports (net/netfilter/nf_nat_core.c: get_unique_tuple, nf_nat_l4proto_unique_tuple).
func TestPorts(t *testing.T) {
	taken := []packet.Flow{ // 10.0.0.2:port > 10.9.0.1:80, seen from there as 192.168.0.1:port
		flow(tuple(packet.TCP, "10.0.0.2", 4000, "10.9.0.1", 80), tuple(packet.TCP, "10.9.0.1", 80, "192.168.0.1", 4000)),
		flow(tuple(packet.TCP, "10.0.0.2", 100, "10.9.0.1", 80), tuple(packet.TCP, "10.9.0.1", 80, "192.168.0.1", 100)),
		flow(tuple(packet.TCP, "10.0.0.2", 700, "10.9.0.1", 80), tuple(packet.TCP, "10.9.0.1", 80, "192.168.0.1", 700)),
		flow(tuple(packet.TCP, "10.0.0.2", 5000, "10.8.0.1", 80), tuple(packet.TCP, "10.9.0.2", 81, "10.0.0.2", 5000)),
	}
	ranged := func(n *packet.Translation, low, high uint16) *packet.Translation {
		n.PortLow, n.PortHigh = low, high
		return n
	}
	random := func(n *packet.Translation) *packet.Translation {
		n.Random = true
		return n
	}
	for _, c := range []struct {
		name       string
		port, to   uint16
		dnat, snat *packet.Translation
		want       packet.Port
	}{
		{"kept where it is free", 4001, 80, nil, snat("192.168.0.1"), packet.Exactly(4001)},
		{"kept where only another destination has it", 4000, 443, nil, snat("192.168.0.1"), packet.Exactly(4000)},
		{"taken: any unprivileged one", 4000, 80, nil, snat("192.168.0.1"), packet.OneOf(1024, 65535, 1024)},
		{"taken below 512: privileged", 100, 80, nil, snat("192.168.0.1"), packet.OneOf(1, 511, 1)},
		{"taken below 1024: from 600", 700, 80, nil, snat("192.168.0.1"), packet.OneOf(600, 1023, 600)},
		{"random", 4001, 80, nil, random(snat("192.168.0.1")), packet.OneOf(1024, 65535, 4001)},
		{"in the range", 4001, 80, nil, ranged(snat("192.168.0.1"), 4000, 5000), packet.Exactly(4001)},
		{"not in the range", 6000, 80, nil, ranged(snat("192.168.0.1"), 4000, 5000), packet.OneOf(4000, 5000, 4001)},
		{"a range of one is taken as it is", 6000, 80, nil, ranged(snat("192.168.0.1"), 4001, 4001), packet.Exactly(4001)},
	} {
		v := NewView(NewTable(taken), defaults)
		p := syn(tuple(packet.TCP, "10.0.0.1", c.port, "10.9.0.1", c.to))
		send(t, v, &p, c.dnat, c.snat)
		if p.SourcePort != c.want || p.Source != addr("192.168.0.1") {
			t.Errorf("%s: source %v %+v, want %+v", c.name, p.Source, p.SourcePort, c.want)
		}
	}
}

func flow(original, reply packet.Tuple) packet.Flow {
	f := packet.Flow{Original: original, Reply: reply, Status: confirmed | packet.SeenReply, State: "ESTABLISHED"}
	if reply.Destination != original.Source {
		f.Status |= packet.SNAT
	}
	if reply.Source != original.Destination {
		f.Status |= packet.DNAT
	}
	return f
}

// TestDestinationPorts: without --random a range of destination ports begins at its first (nf_nat_l4proto_unique_tuple since
// "netfilter: nat: restore default DNAT behavior"), and a base shifts it.
func TestDestinationPorts(t *testing.T) {
	for _, c := range []struct {
		name string
		n    packet.Translation
		to   uint16
		want packet.Port
	}{
		{"kept", packet.Translation{}, 80, packet.Exactly(80)},
		{"one", packet.Translation{PortLow: 8080, PortHigh: 8080}, 80, packet.Exactly(8080)},
		{"a range's first", packet.Translation{PortLow: 9000, PortHigh: 9010}, 80, packet.Exactly(9000)},
		{"in the range already", packet.Translation{PortLow: 70, PortHigh: 90}, 80, packet.Exactly(80)},
		{"random", packet.Translation{PortLow: 9000, PortHigh: 9010, Random: true}, 80, packet.OneOf(9000, 9010, 9000)},
		{"shifted", packet.Translation{PortLow: 5000, PortHigh: 5100, PortBase: 2000}, 2007, packet.Exactly(5007)},
		{"shifted round", packet.Translation{PortLow: 5000, PortHigh: 5009, PortBase: 2000}, 2013, packet.Exactly(5003)},
	} {
		c.n.Low, c.n.High = addr("10.1.0.5"), addr("10.1.0.5")
		v := NewView(nil, defaults)
		p := syn(tuple(packet.TCP, "10.0.0.1", 4000, "10.9.0.1", c.to))
		send(t, v, &p, &c.n, nil)
		if p.DestinationPort != c.want || p.Destination != addr("10.1.0.5") {
			t.Errorf("%s: %+v", c.name, p.DestinationPort)
		}
	}
}

// TestPortsUsedUp: a new flow for which no port of the range is left does not get through (__nf_conntrack_confirm); one port that is free,
// or another destination, and it does.
func TestPortsUsedUp(t *testing.T) {
	n := packet.Translation{Source: true, Low: addr("203.0.113.10"), High: addr("203.0.113.10"), PortLow: 1024, PortHigh: 1027}
	for _, c := range []struct {
		used        []uint16
		destination uint16
		want        packet.Port
		passes      bool
	}{
		{[]uint16{1024, 1025, 1026, 1027}, 80, packet.Exactly(1024), false},
		{[]uint16{1024, 1025, 1027}, 80, packet.OneOf(1024, 1027, 1026), true},
		{[]uint16{1024, 1025, 1026, 1027}, 81, packet.OneOf(1024, 1027, 1024), true},
	} {
		var flows []packet.Flow
		for _, port := range c.used {
			flows = append(flows, flow(tuple(packet.TCP, "10.0.0.1", 40000+port, "10.9.0.1", 80),
				tuple(packet.TCP, "10.9.0.1", 80, "203.0.113.10", port)))
		}
		v := NewView(NewTable(flows), defaults)
		p := syn(tuple(packet.TCP, "10.0.0.1", 5000, "10.9.0.1", c.destination))
		v.Track(&p)
		if ok, why := v.Translate(&p, n); !ok {
			t.Fatal(why)
		}
		if passes := v.Confirm(&p); passes != c.passes || p.SourcePort != c.want {
			t.Errorf("used %v, to port %d: %+v, passes %v", c.used, c.destination, p.SourcePort, passes)
		}
	}
}

// TestPicksUsedUp: flows whose ports are only known to be of a range use it up as others do.
func TestPicksUsedUp(t *testing.T) {
	n := packet.Translation{Source: true, Low: addr("203.0.113.10"), High: addr("203.0.113.10"), PortLow: 1024, PortHigh: 1027}
	v := NewView(NewTable(nil), defaults)
	for i := range uint16(5) {
		p := syn(tuple(packet.TCP, "10.0.0.1", 5000+i, "10.9.0.1", 80))
		v.Track(&p)
		if ok, why := v.Translate(&p, n); !ok {
			t.Fatal(why)
		}
		if passes := v.Confirm(&p); passes != (i < 4) {
			t.Errorf("flow %d of 4 ports: %+v, passes %v", i+1, p.SourcePort, passes)
		}
	}
}

// TestSameSource: another flow from the same source and port keeps what the first got (find_appropriate_src).
func TestSameSource(t *testing.T) {
	v := NewView(nil, defaults)
	first := syn(tuple(packet.TCP, "10.0.0.1", 4000, "10.9.0.1", 80))
	n := snat("192.168.0.1")
	n.PortLow, n.PortHigh = 10000, 20000
	send(t, v, &first, nil, n)
	if first.SourcePort != packet.OneOf(10000, 20000, 10000) {
		t.Fatalf("first: %+v", first.SourcePort)
	}
	second := syn(tuple(packet.TCP, "10.0.0.1", 4000, "10.9.0.2", 80))
	send(t, v, &second, nil, n)
	if second.SourcePort != first.SourcePort {
		t.Errorf("second: %+v, first: %+v", second.SourcePort, first.SourcePort)
	}
	third := syn(tuple(packet.TCP, "10.0.0.1", 4001, "10.9.0.2", 80))
	send(t, v, &third, nil, n)
	if third.SourcePort != packet.OneOf(10000, 20000, 10001) {
		t.Errorf("third: %+v", third.SourcePort)
	}
}

// TestNullBinding: a flow that no rule translates gets another port when its answers would be another flow's
// (nf_nat_alloc_null_binding): here 10.0.0.9:5000 is already what 10.0.0.1:5000 is seen as.
func TestNullBinding(t *testing.T) {
	v := NewView(nil, defaults)
	masqueraded := syn(tuple(packet.TCP, "10.0.0.1", 5000, "10.9.0.1", 80))
	send(t, v, &masqueraded, nil, snat("10.0.0.9"))
	own := syn(tuple(packet.TCP, "10.0.0.9", 5000, "10.9.0.1", 80))
	send(t, v, &own, nil, nil)
	if own.SourcePort != packet.OneOf(1024, 65535, 1024) || own.Track.Flow.Status&packet.SNAT == 0 {
		t.Errorf("source port %+v, status %#x", own.SourcePort, own.Track.Flow.Status)
	}
	back := answer(&own, packet.SYN|packet.ACK)
	send(t, v, &back, nil, nil)
	if back.DestinationPort != packet.Exactly(5000) || back.Track.State != packet.Established {
		t.Errorf("answer to %+v, %v", back.DestinationPort, back.Track.State)
	}
}

// TestThereAndBack: whatever translations, the answer comes to the sender from the address that it sent to, and the next packet goes the
// same way.
func TestThereAndBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	protocols := []packet.Protocol{packet.TCP, packet.UDP, packet.ICMP, packet.SCTP, 89}
	v := NewView(nil, defaults)
	for i := range 3000 {
		p := syn(tuple(protocols[r.IntN(5)], "10.0.0.1", uint16(r.IntN(65535)+1), "10.9.0.1", uint16(r.IntN(3)+80)))
		if p.Protocol == packet.ICMP {
			p.Type, p.DestinationPort = 8, packet.Port{}
		}
		p.Tuple = identity(p.Tuple)
		sent := p
		var d, s *packet.Translation
		if r.IntN(2) == 0 {
			d = dnat("10.1.0.5", 0)
			if p.Protocol.HasPorts() && r.IntN(2) == 0 {
				d = dnat("10.1.0.5", 8080)
			}
		}
		if r.IntN(2) == 0 {
			s = snat("192.168.0.1")
			s.Random = r.IntN(2) == 0
		}
		if v.Track(&p); p.Track.State != packet.New {
			continue // the same ports again
		}
		p.Track = packet.Track{}
		send(t, v, &p, d, s)
		back := answer(&p, packet.SYN|packet.ACK)
		send(t, v, &back, nil, nil)
		if back.Track.State != packet.Established || !back.Track.Reply || back.Tuple != sent.Reply() {
			t.Fatalf("%d: sent %v, arrived %v, answered %v: %v %v", i, sent.Tuple, p.Tuple, p.Reply(), back.Tuple, back.Track.State)
		}
		again := sent
		again.TCPFlags = packet.ACK
		send(t, v, &again, nil, nil)
		if again.Track.State != packet.Established || again.Tuple != p.Tuple {
			t.Fatalf("%d: next packet %v, first %v", i, again.Tuple, p.Tuple)
		}
	}
}

// TestICMPError shows the example of nf_conntrack_inet_error: an error about a masqueraded packet (nf_nat_icmp_reply_translation).
func TestICMPError(t *testing.T) {
	v := NewView(nil, defaults)
	sent := tuple(packet.UDP, "10.0.0.1", 4000, "10.9.0.1", 53)
	p := packet.Packet{Tuple: sent}
	send(t, v, &p, dnat("10.1.0.5", 5353), snat("192.168.0.1"))
	quoted := p.Tuple
	e := packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Type: 3, Code: 3, Source: addr("10.1.0.5"),
		Destination: addr("192.168.0.1")}, About: &quoted}
	send(t, v, &e, nil, nil)
	if e.Track.State != packet.Related || !e.Track.Reply {
		t.Fatalf("%v, reply %v", e.Track.State, e.Track.Reply)
	}
	if e.Source != addr("10.9.0.1") || e.Destination != addr("10.0.0.1") || *e.About != sent {
		t.Errorf("%v about %v, want it about %v", e.Tuple, e.About, sent)
	}
	if quoted != p.Tuple {
		t.Error("the sender's copy of the quoted packet was changed")
	}
	stray := packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Type: 3, Source: addr("10.1.0.5"), Destination: addr("192.168.0.77")},
		About: &quoted}
	if v.Track(&stray); stray.Track.State != packet.Invalid {
		t.Errorf("an error to somewhere else is %v", stray.Track.State)
	}
}

// TestTCPStates has the states of a flow and of its packets (tcp_conntracks, net/netfilter/nf_conntrack_proto_tcp.c).
func TestTCPStates(t *testing.T) {
	type segment struct {
		reply bool
		flags packet.TCPFlags
		want  packet.TrackState
		state string
	}
	const synAck, finAck = packet.SYN | packet.ACK, packet.FIN | packet.ACK
	for _, c := range []struct {
		name     string
		settings Settings
		segments []segment
	}{
		{"open and close", defaults, []segment{
			{false, packet.SYN, packet.New, "SYN_SENT"}, {true, synAck, packet.Established, "SYN_RECV"},
			{false, packet.ACK, packet.Established, "ESTABLISHED"}, {true, packet.ACK | packet.PSH, packet.Established, "ESTABLISHED"},
			{false, finAck, packet.Established, "FIN_WAIT"}, {true, packet.ACK, packet.Established, "CLOSE_WAIT"},
			{true, finAck, packet.Established, "LAST_ACK"}, {false, packet.ACK, packet.Established, "TIME_WAIT"},
			{false, packet.SYN, packet.New, "SYN_SENT"},
		}},
		{"refused", defaults, []segment{
			{false, packet.SYN, packet.New, "SYN_SENT"}, {true, packet.RST | packet.ACK, packet.Established, "CLOSE"}}},
		{"a second SYN", defaults, []segment{{false, packet.SYN, packet.New, "SYN_SENT"}, {false, packet.SYN, packet.New, "SYN_SENT"}}},
		{"ACK before the answer", defaults, []segment{{false, packet.SYN, packet.New, "SYN_SENT"}, {false, packet.ACK, packet.Invalid, ""}}},
		{"picked up", defaults, []segment{{false, packet.ACK, packet.New, "ESTABLISHED"}}},
		{"not picked up", Settings{}, []segment{{false, packet.ACK, packet.Invalid, ""}}},
		{"SYN-ACK out of nothing", defaults, []segment{{false, synAck, packet.Invalid, ""}}},
		{"no such flags", defaults, []segment{{false, packet.SYN | packet.FIN, packet.Invalid, ""}, {false, 0, packet.Invalid, ""}}},
	} {
		v := NewView(nil, c.settings)
		there := tuple(packet.TCP, "10.0.0.1", 4000, "10.9.0.1", 80)
		for i, s := range c.segments {
			p := packet.Packet{Tuple: there, TCPFlags: s.flags}
			if s.reply {
				p.Tuple = there.Reply()
			}
			send(t, v, &p, nil, nil)
			state := ""
			if p.Track.Flow != nil {
				state = p.Track.Flow.State
			}
			if p.Track.State != s.want || state != s.state {
				t.Errorf("%s, segment %d: %v %s, want %v %s", c.name, i, p.Track.State, state, s.want, s.state)
			}
		}
	}
}

// TestWhatStartsNoFlow: ICMP answers and errors out of nothing, and messages that are not tracked at all.
func TestWhatStartsNoFlow(t *testing.T) {
	icmp := func(p packet.Protocol, kind uint8, from, to string) packet.Packet {
		return packet.Packet{Tuple: packet.Tuple{Protocol: p, Type: kind, Source: addr(from), Destination: addr(to)}}
	}
	for _, c := range []struct {
		p    packet.Packet
		want packet.TrackState
	}{
		{icmp(packet.ICMP, 8, "10.0.0.1", "10.0.0.2"), packet.New},
		{icmp(packet.ICMP, 0, "10.0.0.1", "10.0.0.2"), packet.Invalid},
		{icmp(packet.ICMP, 200, "10.0.0.1", "10.0.0.2"), packet.Invalid},
		{icmp(packet.ICMPv6, 128, "fd00::1", "fd00::2"), packet.New},
		{icmp(packet.ICMPv6, 129, "fd00::1", "fd00::2"), packet.Invalid},
		{icmp(packet.ICMPv6, 135, "fe80::1", "ff02::1:ff00:2"), packet.Untracked},
		{packet.Packet{Tuple: tuple(packet.UDP, "10.0.0.1", 1, "10.0.0.2", 2), Local: packet.Local{Untracked: true}}, packet.Untracked},
	} {
		v := NewView(nil, defaults)
		if v.Track(&c.p); c.p.Track.State != c.want {
			t.Errorf("%v type %d is %v, want %v", c.p.Tuple, c.p.Type, c.p.Track.State, c.want)
		}
	}
}

// TestTableStays: a view's packets change its own copies only, and Flows tells what they changed.
func TestTableStays(t *testing.T) {
	there := tuple(packet.UDP, "10.0.0.1", 4000, "10.9.0.1", 53)
	base := []packet.Flow{{Original: there, Reply: there.Reply(), Status: confirmed},
		flow(tuple(packet.UDP, "10.0.0.1", 1, "10.9.0.1", 53), tuple(packet.UDP, "10.9.0.1", 53, "10.0.0.1", 1))}
	table := NewTable(base)
	before := append([]packet.Flow(nil), base...)
	v := NewView(table, defaults)
	for _, u := range []packet.Tuple{there, there.Reply(), base[1].Original} {
		p := packet.Packet{Tuple: u}
		send(t, v, &p, nil, nil)
	}
	if d := cmp.Diff(before, table.Flows, compareAddresses); d != "" {
		t.Errorf("the table changed:\n%s", d)
	}
	changed := v.Flows()
	if len(changed) != 1 || changed[0].Original != there || changed[0].Status&packet.SeenReply == 0 {
		t.Errorf("changed: %+v", changed)
	}
	if other := NewView(table, defaults); len(other.Flows()) != 0 {
		t.Error("another view has flows")
	}
}

// TestAddresses: netmap keeps the host's bits; a range's pick lies in it, and is the same for the same addresses.
func TestAddresses(t *testing.T) {
	v := NewView(nil, defaults)
	p := syn(tuple(packet.TCP, "10.0.3.7", 1, "10.9.0.1", 80))
	send(t, v, &p, nil, &packet.Translation{Source: true, Low: addr("192.168.0.0"), High: addr("192.168.255.255"), Netmap: true})
	if p.Source != addr("192.168.3.7") {
		t.Errorf("netmap gives %v", p.Source)
	}
	for _, c := range []struct{ from, to, low, high string }{
		{"10.0.0.1", "10.9.0.1", "192.168.0.10", "192.168.0.13"}, {"fd00::1", "fd00::9", "fd01::10", "fd01::1f"},
	} {
		for _, source := range []bool{true, false} {
			low, high := addr(c.low), addr(c.high)
			seen := map[netip.Addr]bool{}
			for port := range uint16(20) {
				v := NewView(nil, defaults)
				p := syn(tuple(packet.TCP, c.from, port+1, c.to, 80))
				send(t, v, &p, nil, nil)
				q := syn(tuple(packet.TCP, c.from, port+100, c.to, 80))
				n := &packet.Translation{Source: source, Low: low, High: high}
				chosen := &q.Destination
				if source {
					chosen = &q.Source
					send(t, v, &q, nil, n)
				} else {
					send(t, v, &q, n, nil)
				}
				if chosen.Compare(low) < 0 || chosen.Compare(high) > 0 {
					t.Fatalf("%v is not in %s-%s", chosen, c.low, c.high)
				}
				seen[*chosen] = true
			}
			if len(seen) != 1 {
				t.Errorf("ports count: %v", seen)
			}
		}
	}
}
