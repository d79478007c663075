package netfilter

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
)

// syn returns a packet to test with; more changes it.
func syn(more func(p *packet.Packet)) *packet.Packet {
	p := &packet.Packet{TCPFlags: packet.SYN, TTL: 64, TOS: 0x28, Length: 60, Tuple: packet.Tuple{
		Protocol: packet.TCP, Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.1.2"),
		SourcePort: packet.Exactly(40000), DestinationPort: packet.Exactly(80),
	}}
	p.In, p.Mark = "eth0", 0x4001
	if more != nil {
		more(p)
	}
	return p
}

// answerOf returns a test's answer: "yes", "no", or the kind of the question that it asks.
func answerOf(t *testing.T, s Statement, h Hook, p *packet.Packet) string {
	t.Helper()
	chooser := &countingChooser{}
	c := &Context{Packet: p, Hook: h, Host: testHost{}, Chooser: chooser, Chain: &Chain{Table: &Table{}}}
	v := s.Eval(c)
	switch {
	case len(chooser.asked) == 1:
		return chooser.asked[0].Kind.String()
	case v.Kind == Continue:
		return "yes"
	case v.Kind == Break:
		return "no"
	}
	return v.Kind.String()
}

// testHost knows a little of a machine.
type testHost struct{}

func (testHost) Recent(string) (RecentList, bool) { return nil, false }
func (testHost) IPSet(name string) (*Set, bool)   { return nil, false }

func (testHost) AddressType(a netip.Addr, link string) (AddressType, bool) {
	switch a.String() {
	case "10.0.1.2":
		if link != "" && link != "eth1" {
			return UnicastAddress, true
		}
		return LocalAddress, true
	case "10.0.0.1":
		return UnicastAddress, true
	case "fd00::1":
		return LocalAddress, true
	case "fd00::2":
		return UnicastAddress, true
	}
	return Unspec, false
}

func (testHost) Route(q RouteQuery) (RouteAnswer, bool) {
	switch q.Destination.String() {
	case "10.0.0.1":
		return RouteAnswer{Type: UnicastAddress, Link: "eth0"}, true
	case "10.0.0.2":
		return RouteAnswer{Type: UnicastAddress, Link: "eth1"}, true
	case "10.0.0.3":
		return RouteAnswer{Type: LocalAddress, Link: "lo"}, true
	case "10.0.0.4":
		return RouteAnswer{Type: UnreachableAddress}, true
	}
	return RouteAnswer{}, false
}

func (testHost) Link(name string) (Link, bool) { return Link{Group: 5}, name == "eth0" }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestMatches(t *testing.T) {
	flow := func(change func(f *packet.Flow)) func(p *packet.Packet) {
		return func(p *packet.Packet) {
			f := &packet.Flow{Mark: 0x10, Original: p.Tuple, Reply: p.Reply()}
			if change != nil {
				change(f)
			}
			p.Track = packet.Track{Flow: f, State: packet.New}
		}
	}
	fragment := func(p *packet.Packet) { p.Offset = 8 }
	udp := func(p *packet.Packet) { p.Protocol = packet.UDP }
	icmp := func(p *packet.Packet) { p.Protocol, p.Type, p.Code = packet.ICMP, 3, 1 }
	from := func(a string) func(p *packet.Packet) {
		return func(p *packet.Packet) { p.Source = netip.MustParseAddr(a) }
	}
	to := func(a string) func(p *packet.Packet) {
		return func(p *packet.Packet) { p.Destination = netip.MustParseAddr(a) }
	}
	picked := func(p *packet.Packet) { p.SourcePort = packet.OneOf(1024, 2048, 1500) }
	in := func(name string) func(p *packet.Packet) { return func(p *packet.Packet) { p.In = name } }
	snat, dnat := &MatchStates{SNAT: true}, &MatchStates{DNAT: true}
	states := func(not bool, s packet.TrackState) *MatchConntrack {
		return &MatchConntrack{States: &MatchStates{Not: not, States: s}}
	}
	ports := func(side PortSide, not bool, r ...PortRange) *MatchPort {
		return &MatchPort{Side: side, Not: not, Protocol: packet.TCP, Ranges: r}
	}
	for _, test := range []struct {
		name string
		s    Statement
		hook Hook
		p    func(p *packet.Packet)
		want string
	}{
		{"source in", &MatchAddress{Source: true, Prefix: prefix("10.0.0.0/24")}, 0, nil, "yes"},
		{"source not in", &MatchAddress{Source: true, Not: true, Prefix: prefix("10.0.0.0/24")}, 0, nil, "no"},
		{"destination", &MatchAddress{Prefix: prefix("10.0.1.2/32")}, 0, nil, "yes"},
		{"other family", &MatchAddress{Prefix: prefix("::/0")}, 0, nil, "no"},
		{"mask with holes", &MatchAddress{Prefix: prefix("10.7.1.2/32"), Mask: netip.MustParseAddr("255.0.255.255")}, 0, nil, "yes"},
		{"mask with holes, missed", &MatchAddress{Prefix: prefix("10.7.1.3/32"), Mask: netip.MustParseAddr("255.0.255.255")}, 0, nil, "no"},
		{"range", &MatchRange{Low: netip.MustParseAddr("10.0.1.0"), High: netip.MustParseAddr("10.0.1.2")}, 0, nil, "yes"},
		{"range, not", &MatchRange{Not: true, Low: netip.MustParseAddr("10.0.1.0"), High: netip.MustParseAddr("10.0.1.2")}, 0, nil, "no"},

		{"in", NewMatchInterface(false, false, "eth0"), Prerouting, nil, "yes"},
		{"in is no prefix", NewMatchInterface(false, false, "eth"), Prerouting, nil, "no"},
		{"in eth+", NewMatchInterface(false, false, "eth+"), Prerouting, nil, "yes"},
		{"in eth0+", NewMatchInterface(false, false, "eth0+"), Prerouting, nil, "yes"},
		{"in +", NewMatchInterface(false, false, "+"), Prerouting, in(""), "yes"},
		{"in unknown", NewMatchInterface(false, false, "eth0"), Prerouting, in(""), "unknown"},
		{"no in at output", NewMatchInterface(false, false, "eth0"), Output, in(""), "no"},
		{"not in at output", NewMatchInterface(false, true, "eth0"), Output, in(""), "yes"},
		{"no out at input", NewMatchInterface(true, false, "eth0"), Input, nil, "no"},
		{"out unknown", NewMatchInterface(true, false, "eth0"), Forward, nil, "unknown"},

		{"protocol", &MatchProtocol{Protocol: packet.TCP}, 0, nil, "yes"},
		{"protocol, not", &MatchProtocol{Not: true, Protocol: packet.TCP}, 0, nil, "no"},
		{"fragment", &MatchFragment{}, 0, fragment, "yes"},
		{"not a fragment", &MatchFragment{Not: true}, 0, nil, "yes"},

		{"port", ports(DestinationPort, false, PortRange{80, 80}), 0, nil, "yes"},
		{"port, not", ports(DestinationPort, true, PortRange{80, 80}), 0, nil, "no"},
		{"port range", ports(SourcePort, false, PortRange{1, 100}, PortRange{40000, 50000}), 0, nil, "yes"},
		{"either port", ports(EitherPort, false, PortRange{80, 80}), 0, nil, "yes"},
		{"neither port", ports(EitherPort, true, PortRange{80, 80}), 0, nil, "no"},
		{"port of a fragment", ports(DestinationPort, false, PortRange{0, 65535}), 0, fragment, "no"},
		{"not port of a fragment", ports(DestinationPort, true, PortRange{80, 80}), 0, fragment, "no"},
		{"port of another protocol", ports(DestinationPort, true, PortRange{1, 2}), 0, udp, "no"},
		{"port that the kernel picks, outside", ports(SourcePort, false, PortRange{1, 1023}), 0, picked, "no"},
		{"port that the kernel picks, inside", ports(SourcePort, false, PortRange{1024, 65535}), 0, picked, "yes"},
		{"port that the kernel picks, straddling", ports(SourcePort, false, PortRange{2000, 3000}), 0, picked, "unknown"},
		{"port that the kernel picks, in two pieces", ports(SourcePort, false, PortRange{1024, 1500}, PortRange{1501, 2048}), 0, picked, "yes"},
		{"multiport on ICMP", &MatchPort{Not: true, Ranges: []PortRange{{1, 2}}}, 0, icmp, "no"},

		{"syn", &MatchTCPFlags{Mask: packet.SYN | packet.ACK, Set: packet.SYN}, 0, nil, "yes"},
		{"not syn", &MatchTCPFlags{Not: true, Mask: packet.SYN | packet.ACK, Set: packet.SYN}, 0, nil, "no"},
		{"flags of UDP", &MatchTCPFlags{Not: true, Mask: packet.SYN, Set: packet.SYN}, 0, udp, "no"},
		{"ICMP type", &MatchICMP{Protocol: packet.ICMP, Type: 3, CodeHigh: 255}, 0, icmp, "yes"},
		{"ICMP code", &MatchICMP{Protocol: packet.ICMP, Type: 3, CodeLow: 2, CodeHigh: 2}, 0, icmp, "no"},
		{"ICMP, not", &MatchICMP{Not: true, Protocol: packet.ICMP, Type: 3, CodeLow: 2, CodeHigh: 2}, 0, icmp, "yes"},
		{"ICMP any", &MatchICMP{Protocol: packet.ICMP, Any: true}, 0, icmp, "yes"},
		{"ICMP of TCP", &MatchICMP{Not: true, Protocol: packet.ICMP}, 0, nil, "no"},

		{"mark", &MatchMark{Value: 0x4000, Mask: 0x4000}, 0, nil, "yes"},
		{"mark, not", &MatchMark{Not: true, Value: 0x4000, Mask: 0x4000}, 0, nil, "no"},
		{"mark beyond its mask", &MatchMark{Value: 0x4001, Mask: 0x4000}, 0, nil, "no"},
		{"connection mark", &MatchMark{Connection: true, Value: 0x10, Mask: 0xff}, 0, flow(nil), "yes"},
		{"connection mark, untracked", &MatchMark{Connection: true, Not: true, Value: 0x10, Mask: 0xff}, 0, nil, "no"},

		{"state", states(false, packet.New|packet.Related), 0, flow(nil), "yes"},
		{"state, not", states(true, packet.New), 0, flow(nil), "no"},
		{"state of what conntrack has not seen", states(false, packet.Invalid), 0, nil, "yes"},
		{"untracked", states(false, packet.Untracked), 0, func(p *packet.Packet) { p.Track.State = packet.Untracked }, "yes"},
		{"SNAT", &MatchConntrack{States: snat}, 0, flow(func(f *packet.Flow) { f.Status = packet.SNAT }), "yes"},
		{"DNAT", &MatchConntrack{States: dnat}, 0, flow(func(f *packet.Flow) { f.Status = packet.SNAT }), "no"},
		{"direction", &MatchConntrack{Direction: &MatchDirection{Reply: true}}, 0, flow(nil), "no"},
		{"direction, not", &MatchConntrack{Direction: &MatchDirection{Not: true, Reply: true}}, 0, flow(nil), "yes"},
		{"direction, untracked", &MatchConntrack{Direction: &MatchDirection{Not: true, Reply: true}}, 0, nil, "no"},
		{"state and more, untracked", &MatchConntrack{States: &MatchStates{States: packet.Invalid}, Direction: &MatchDirection{Reply: true}}, 0,
			nil, "yes"},
		{"original destination", &MatchConntrack{Addresses: []MatchFlowAddress{{OriginalDestination, false, prefix("10.0.1.0/24")}}}, 0,
			flow(nil), "yes"},
		{"reply destination port", &MatchConntrack{Ports: []MatchFlowPort{{ReplyDestination, true, PortRange{40000, 40000}}}}, 0, flow(nil),
			"no"},
		{"status", &MatchConntrack{Status: &MatchStatus{Status: packet.Assured}}, 0, flow(func(f *packet.Flow) { f.Status = packet.Assured }),
			"yes"},
		{"status NONE never holds", &MatchConntrack{Status: &MatchStatus{}}, 0, flow(nil), "no"},
		{"expiry", &MatchConntrack{Expires: "1:10"}, 0, flow(nil), "unknown"},
		{"expiry, but another state", &MatchConntrack{States: dnat, Expires: "1:10"}, 0, flow(nil), "no"},
		{"helper", &MatchHelper{Not: true}, 0, flow(nil), "yes"},
		{"helper of an expected connection", &MatchHelper{}, 0, flow(func(f *packet.Flow) { f.Status = packet.Expected }), "unknown"},

		{"address type", &MatchAddressType{Types: []AddressType{LocalAddress}}, 0, nil, "yes"},
		{"address type, not", &MatchAddressType{Source: true, Not: true, Types: []AddressType{LocalAddress}}, 0, nil, "yes"},
		{"address type on an interface", &MatchAddressType{Types: []AddressType{LocalAddress}, Limit: InLink}, 0, nil, "no"},
		{"unknown address type", &MatchAddressType{Types: []AddressType{LocalAddress}}, 0, to("10.9.9.9"), "unknown"},
		{"multicast needs no host", &MatchAddressType{Not: true, Types: []AddressType{MulticastAddress}}, 0, to("224.0.0.1"), "no"},
		{"broadcast needs no host", &MatchAddressType{Types: []AddressType{LocalAddress, BroadcastAddress}}, 0, to("255.255.255.255"), "yes"},
		{"IPv6 local", &MatchAddressType{Types: []AddressType{LocalAddress}}, 0, to("fd00::1"), "yes"},
		{"IPv6 unicast is not local", &MatchAddressType{Types: []AddressType{LocalAddress}}, 0, to("fd00::2"), "no"},
		{"IPv6 unicast is every unicast", &MatchAddressType{Types: []AddressType{UnicastAddress}}, 0, to("fd00::1"), "yes"},
		{"IPv6 types have to hold together", &MatchAddressType{Types: []AddressType{UnicastAddress, MulticastAddress}}, 0, to("fd00::1"), "no"},

		{"half", &MatchRandom{Probability: 1 << 30}, 0, nil, "random"},
		{"never", &MatchRandom{}, 0, nil, "no"},
		{"always", &MatchRandom{Not: true}, 0, nil, "yes"},
		{"certainly", &MatchRandom{Probability: 1 << 31}, 0, nil, "yes"},
		{"nth", &MatchNth{Every: 3}, 0, nil, "counter"},
		{"every one", &MatchNth{Every: 1}, 0, nil, "yes"},
		{"not every one", &MatchNth{Not: true, Every: 1}, 0, nil, "no"},
		{"history", &MatchHistory{}, 0, nil, "history"},

		{"bridge port", NewMatchBridgePort(BridgePortIn, false, "veth+"), 0, func(p *packet.Packet) { p.BridgeIn = "veth3" }, "yes"},
		{"bridge port without a bridge", NewMatchBridgePort(BridgePortIn, false, "+"), 0, nil, "no"},
		{"not a bridge port", NewMatchBridgePort(HasBridgeIn, true, ""), 0, nil, "yes"},
		{"bridged", NewMatchBridgePort(IsBridged, false, ""), 0, func(p *packet.Packet) { p.BridgeIn = "a" }, "no"},
		{"group", &MatchLinkGroup{Group: 5, Mask: ^uint32(0)}, 0, nil, "yes"},
		{"group of an unknown interface", &MatchLinkGroup{Out: true, Group: 5, Mask: ^uint32(0)}, 0, nil, "unknown"},

		{"owner", &MatchOwner{UID: &IDRange{Low: 5, High: 9}}, Output, func(p *packet.Packet) { p.HasOwner, p.UID = true, 7 }, "yes"},
		{"owner, not", &MatchOwner{UID: &IDRange{Not: true, Low: 5, High: 9}}, Output, func(p *packet.Packet) { p.HasOwner, p.UID = true, 7 },
			"no"},
		{"unknown owner", &MatchOwner{UID: &IDRange{}}, Output, func(p *packet.Packet) { p.In, p.SomeOwner = "", true }, "unknown"},
		{"owner of what the kernel sends", &MatchOwner{UID: &IDRange{}}, Output, func(p *packet.Packet) { p.In, p.KernelMade = "", true }, "no"},
		{"no owner of what the kernel sends", &MatchOwner{GID: &IDRange{Not: true}}, Output,
			func(p *packet.Packet) { p.In, p.KernelMade = "", true }, "yes"},
		{"socket of what the kernel sends", &MatchOwner{SocketExists: true}, Output, func(p *packet.Packet) { p.In, p.KernelMade = "", true },
			"unknown"},
		{"owner of forwarded", &MatchOwner{UID: &IDRange{}}, Postrouting, nil, "no"},
		{"no owner of forwarded", &MatchOwner{UID: &IDRange{Not: true}}, Postrouting, nil, "yes"},

		{"MAC", &MatchMAC{MAC: packet.MAC{2}}, Prerouting, func(p *packet.Packet) { p.Frame.Source = packet.MAC{2} }, "yes"},
		{"MAC, not", &MatchMAC{Not: true, MAC: packet.MAC{2}}, Prerouting, func(p *packet.Packet) { p.Frame.Source = packet.MAC{2} }, "no"},
		{"MAC on lo", &MatchMAC{Not: true}, Prerouting, in("lo"), "no"},
		{"MAC unknown", &MatchMAC{}, Prerouting, nil, "unknown"},
		{"cast", &MatchCast{Not: true, Cast: packet.OtherHost}, 0, nil, "yes"},
		{"length", &MatchLength{Low: 60, High: 60}, 0, nil, "yes"},
		{"length unknown", &MatchLength{Low: 60, High: 60}, 0, func(p *packet.Packet) { p.Length = 0 }, "unknown"},
		{"TTL", &MatchTTL{Not: true, Low: 0, High: 63}, 0, nil, "yes"},
		{"TTL of an answer from beyond", &MatchTTL{Low: 0, High: 63}, 0, func(p *packet.Packet) { p.SomeTTL = true }, "unknown"},
		{"any TTL", &MatchTTL{Low: 0, High: 255}, 0, func(p *packet.Packet) { p.SomeTTL = true }, "yes"},
		{"DSCP", &MatchTOS{Value: 0x28, Mask: 0xfc}, 0, nil, "yes"},

		{"reverse path", &MatchReversePath{}, Prerouting, nil, "yes"},
		{"reverse path elsewhere", &MatchReversePath{}, Prerouting, from("10.0.0.2"), "no"},
		{"reverse path elsewhere, loose", &MatchReversePath{Loose: true}, Prerouting, from("10.0.0.2"), "yes"},
		{"reverse path to this machine", &MatchReversePath{}, Prerouting, from("10.0.0.3"), "no"},
		{"reverse path to this machine, accepted", &MatchReversePath{Loose: true, AcceptLocal: true}, Prerouting, from("10.0.0.3"), "yes"},
		{"no reverse path, inverted", &MatchReversePath{Invert: true}, Prerouting, from("10.0.0.4"), "yes"},
		{"reverse path unknown", &MatchReversePath{}, Prerouting, from("10.0.0.5"), "unknown"},
		{"reverse path of lo", &MatchReversePath{}, Prerouting, in("lo"), "yes"},
		{"reverse path of 0.0.0.0", &MatchReversePath{}, Prerouting, func(p *packet.Packet) {
			p.Source, p.Destination = netip.IPv4Unspecified(), broadcast
		}, "yes"},
		{"set that is not there", &MatchSet{Name: "x", Sources: []bool{true}}, 0, nil, "unknown"},
		{"not understood", &UnknownTest{}, 0, nil, "unknown"},
		{"never", &MatchNever{}, 0, nil, "no"},
	} {
		if got := answerOf(t, test.s, test.hook, syn(test.p)); got != test.want {
			t.Errorf("%s: %s, want %s (%s)", test.name, got, test.want, test.s)
		}
	}
}

func TestWeightsAreTheKernels(t *testing.T) {
	for _, test := range []struct {
		s           Statement
		yes, no     uint64
		description string
	}{
		{&MatchRandom{Probability: 715827883}, 715827883, 1<<31 - 715827883, "at random, with probability 0.333333"},
		{&MatchRandom{Not: true, Probability: 1 << 29}, 3 << 29, 1 << 29, "at random, not with probability 0.25"},
		{&MatchNth{Every: 5}, 1, 4, "one packet of every 5"},
		{&MatchNth{Not: true, Every: 5}, 4, 1, "not one packet of every 5"},
		{&MatchHistory{Words: "limit"}, 0, 0, "limit"},
	} {
		chooser := &countingChooser{}
		test.s.Eval(&Context{Packet: syn(nil), Chooser: chooser})
		q := chooser.asked[0]
		if q.Options[0].Weight != test.yes || q.Options[1].Weight != test.no || q.What != test.description {
			t.Errorf("%s: %+v", test.s, q)
		}
	}
}

// TestKeysHoldWhereTestsDo: a packet that a test holds for has one of the test's key values.
func TestKeysHoldWhereTestsDo(t *testing.T) {
	for _, s := range []KeyedTest{
		&MatchAddress{Source: true, Prefix: prefix("10.0.0.0/24")}, &MatchAddress{Prefix: prefix("10.0.1.2/32")},
		NewMatchInterface(false, false, "eth0"), NewMatchInterface(false, false, "et+"), &MatchProtocol{Protocol: packet.TCP},
		&MatchPort{Side: DestinationPort, Ranges: []PortRange{{70, 85}}},
		&MatchPort{Side: SourcePort, Ranges: []PortRange{{1, 2}, {40000, 40000}}},
		&MatchMark{Value: 0x4000, Mask: 0x4000}, &MatchRange{Low: netip.MustParseAddr("10.0.1.2"), High: netip.MustParseAddr("10.0.1.2")},
	} {
		c := &Context{Packet: syn(nil), Hook: Prerouting}
		key, values, ok := s.Key()
		v, known := key.Field.value(c)
		found := false
		for _, w := range values {
			found = found || w == v.and(key.Mask)
		}
		if !ok || !known || !found || s.Eval(c).Kind != Continue {
			t.Errorf("%s: key %v, values %v, packet's %v", s, key, values, v)
		}
	}
	for _, s := range []KeyedTest{
		&MatchAddress{Not: true, Prefix: prefix("10.0.0.0/24")}, &MatchAddress{Prefix: prefix("0.0.0.0/0")},
		NewMatchInterface(false, true, "eth0"),
		NewMatchInterface(false, false, "+"), &MatchProtocol{Not: true}, &MatchPort{Side: EitherPort, Ranges: []PortRange{{1, 1}}},
		&MatchPort{Not: true, Ranges: []PortRange{{1, 1}}}, &MatchPort{Ranges: []PortRange{{1, 17}}}, &MatchMark{Connection: true, Mask: 1},
		&MatchMark{Not: true, Mask: 1}, &MatchMark{Value: 3, Mask: 1}, &MatchMark{},
	} {
		if key, values, ok := s.Key(); ok && key.Mask != (Value{}) {
			t.Errorf("%s has a key %v %v", s, key, values)
		}
	}
}

func TestEffects(t *testing.T) {
	with := func(mark, flow uint32) *packet.Packet {
		p := syn(nil)
		p.Mark, p.Track.Flow = mark, &packet.Flow{Mark: flow}
		return p
	}
	for _, test := range []struct {
		s          Effect
		mark, flow uint32
	}{
		{&SetMark{Value: 0x4000, Mask: 0x4000}, 0x4f0f, 0xff},
		{&SetMark{Value: 0xf000, Mask: 0}, 0xff0f, 0xff}, // flips
		{&SetMark{Value: 0, Mask: 0xf}, 0x0f00, 0xff},
		{&SetMark{Value: 7, Mask: ^uint32(0)}, 7, 0xff},
		{&SetMark{Connection: true, Value: 0x100, Mask: 0xf}, 0x0f0f, 0x1f0},
		{&CopyMark{Packet: ^uint32(0), Flow: ^uint32(0)}, 0x0f0f, 0x0f0f},
		{&CopyMark{Packet: 0xff, Flow: 0xf0}, 0x0f0f, 0},
		{&CopyMark{Restore: true, Packet: ^uint32(0), Flow: ^uint32(0)}, 0xff, 0xff},
		{&CopyMark{Restore: true, Packet: 0x0f00, Flow: 0xf0}, 0x0f ^ 0xf0, 0xff},
	} {
		p := with(0x0f0f, 0xff)
		if v := test.s.Eval(&Context{Packet: p}); v.Kind != Continue || p.Mark != test.mark || p.Track.Flow.Mark != test.flow {
			t.Errorf("%s: marks %#x and %#x, want %#x and %#x", test.s, p.Mark, p.Track.Flow.Mark, test.mark, test.flow)
		}
		untracked := syn(nil)
		test.s.Eval(&Context{Packet: untracked}) // no connection: no panic
		if test.s.Effect() != Modifies {
			t.Errorf("%s does not say that it modifies", test.s)
		}
	}
	for _, test := range []struct {
		s    Effect
		want func(p *packet.Packet) bool
	}{
		{&SetTTL{Set: true, Value: 9}, func(p *packet.Packet) bool { return p.TTL == 9 }},
		{&SetTTL{Delta: 250}, func(p *packet.Packet) bool { return p.TTL == 255 }},
		{&SetTTL{Delta: -65}, func(p *packet.Packet) bool { return p.TTL == 0 }},
		{&SetTOS{Value: 0x10, Mask: 0x3c}, func(p *packet.Packet) bool { return p.TOS == 0x10 }},
		{&SetPriority{Priority: 0x10002}, func(p *packet.Packet) bool { return p.Priority == 0x10002 }},
		{&SetTracking{NoTrack: true}, func(p *packet.Packet) bool { return p.Untracked && p.Track.State == packet.Untracked }},
		{&SetTracking{Zone: packet.Zone{ID: 3}}, func(p *packet.Packet) bool { return p.Zone.ID == 3 && p.Template }},
		{&Assign{Target: TargetZoneReply, Value: &Constant{Values: []Span{Number(5)}}}, func(p *packet.Packet) bool {
			return p.Zone == packet.Zone{ID: 5, Only: packet.ZoneReply} && p.Template
		}},
		{&SetTracking{ZoneMark: true}, func(p *packet.Packet) bool { return p.Zone.ID == 0x4001 && p.ZoneMark }},
	} {
		p := syn(nil)
		if v := test.s.Eval(&Context{Packet: p}); v.Kind != Continue || !test.want(p) || test.s.Effect() != Modifies {
			t.Errorf("%s: %+v", test.s, p)
		}
	}
}

func TestTranslationsGoToTheWalk(t *testing.T) {
	var asked []packet.Translation
	c := &Context{Packet: syn(nil), Translate: func(n packet.Translation) Verdict {
		asked = append(asked, n)
		return Verdict{Kind: Accept}
	}}
	s := &Translate{packet.Translation{Source: true, Chosen: "masquerade", FullyRandom: true}}
	if v := s.Eval(c); v.Kind != Accept || len(asked) != 1 || asked[0] != s.Translation {
		t.Errorf("%v %v", v, asked)
	}
	c.Translate = nil
	if v := s.Eval(c); v.Kind != Undecided || v.Detail == "" {
		t.Errorf("outside of nat chains: %v", v)
	}
}

// TestTranslationTracksItsFamily: nat of one family, in a table of both, has only that one's connections tracked (nft_nat_init).
// TestNetmapByHook: NETMAP translates the source behind routing, and the destination in front of it.
func TestNetmapByHook(t *testing.T) {
	for hook, source := range map[Hook]bool{Prerouting: false, Output: false, Postrouting: true, Input: true} {
		c := &Context{Packet: syn(nil), Hook: hook, Translate: func(n packet.Translation) Verdict {
			if n.Source != source {
				t.Errorf("%s: source %v", hook, n.Source)
			}
			return Verdict{}
		}}
		(&Translate{Translation: packet.Translation{Netmap: true}}).Eval(c)
	}
}

func TestTranslationTracksItsFamily(t *testing.T) {
	to := func(a string) packet.Translation {
		return packet.Translation{Source: true, Low: netip.MustParseAddr(a)}
	}
	for _, test := range []struct {
		s        Statement
		ip4, ip6 bool
	}{
		{&Translate{to("10.0.0.1")}, true, false},
		{&Translate{to("fd00::1")}, false, true},
		{&Translate{packet.Translation{Source: true, Chosen: "masquerade"}}, true, true},
		{&TranslateTo{EtherType: packet.EtherIPv6}, false, true},
		{&TranslateTo{}, true, true},
	} {
		table := &Table{Family: Inet, Name: "t"}
		table.Chains = []*Chain{{Table: table, Name: "c", Base: &Base{Type: "nat", Hook: Postrouting},
			Rules: []Rule{{Statements: []Statement{test.s}}}}}
		rs := &Ruleset{Tables: []*Table{table}}
		rs.Index()
		ip4, known4 := rs.Tracks(IPv4)
		ip6, known6 := rs.Tracks(IPv6)
		if ip4 != test.ip4 || ip6 != test.ip6 || !known4 || !known6 {
			t.Errorf("%s: IPv4 %v, IPv6 %v, known %v and %v", test.s, ip4, ip6, known4, known6)
		}
	}
}

func TestTransparentProxy(t *testing.T) {
	s := &TransparentProxy{To: "port 80", Value: 1, Mask: 1}
	for answer, want := range []VerdictKind{Accept, Drop} {
		p := syn(func(p *packet.Packet) { p.Mark = 4 })
		v := s.Eval(&Context{Packet: p, Chooser: &countingChooser{answer: answer}})
		if v.Kind != want || (p.Mark == 5) != (want == Accept) {
			t.Errorf("answer %d: %s, mark %#x", answer, v.Kind, p.Mark)
		}
	}
}

func TestQuestionsNameWhatTheyAreAbout(t *testing.T) {
	chooser := &countingChooser{}
	c := &Context{Packet: syn(func(p *packet.Packet) { p.Destination = netip.MustParseAddr("10.9.9.9") }), Host: testHost{}, Chooser: chooser}
	(&MatchAddressType{Types: []AddressType{LocalAddress}}).Eval(c)
	if got := chooser.asked[0].What; !strings.Contains(got, "10.9.9.9") {
		t.Errorf("asked %q", got)
	}
}

// TestFirstZoneCounts: what the first rule asks of conntrack counts, and until conntrack looks at the packet rules see a new connection
// without a mark.
func TestFirstZoneCounts(t *testing.T) {
	p := syn(nil)
	for _, s := range []Statement{&SetTracking{Zone: packet.Zone{ID: 3}}, &SetTracking{Zone: packet.Zone{ID: 4}}, &SetTracking{NoTrack: true},
		Untrack{},
		&Assign{Target: TargetZone, Value: &Constant{Values: []Span{Number(5)}}}} {
		s.Eval(&Context{Packet: p})
	}
	if p.Zone.ID != 3 || p.Untracked {
		t.Errorf("%+v", p.Local)
	}
	isNew := &MatchConntrack{States: &MatchStates{States: packet.New}}
	if v := isNew.Eval(&Context{Packet: p}); v.Kind != Continue {
		t.Error("the packet is not taken for that of a new connection")
	}
	marked := &MatchMark{Connection: true, Value: 0, Mask: ^uint32(0)}
	nft := &Chain{Table: &Table{Dialect: NFTables}}
	if v := marked.Eval(&Context{Packet: p}); v.Kind != Continue {
		t.Error("iptables does not see the connection's mark")
	}
	if v := marked.Eval(&Context{Packet: p, Chain: nft}); v.Kind != Break {
		t.Error("nft sees the connection's mark")
	}
	untracked := syn(nil)
	Untrack{}.Eval(&Context{Packet: untracked})
	if (&SetTracking{Zone: packet.Zone{ID: 3}}).Eval(&Context{Packet: untracked}); untracked.Template {
		t.Error("CT puts a packet into a zone that is not to be tracked")
	}
	if (&Assign{Target: TargetZone, Value: &Constant{Values: []Span{Number(5)}}}).Eval(&Context{Packet: untracked}); untracked.Untracked ||
		untracked.Zone.ID != 5 {
		t.Error("nft's zone leaves a packet untracked")
	}
}
