package walk

import (
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// TestMasqueradeWithoutAddress: what a host without an address sends is left as it is; one that has an address elsewhere cannot masquerade.
func TestMasqueradeWithoutAddress(t *testing.T) {
	n := newNetwork(t)
	client, server := n.host("client"), n.host("server")
	n.wire(client, "eth0", server, "eth0")
	server.address("eth0", "10.1.0.1/24")
	client.FIB.Addresses, client.FIB.Routes = nil, nil
	client.route("default dev eth0")
	client.iptables(nat("-A POSTROUTING -o eth0 -j MASQUERADE"))
	for _, s := range n.tcp("client", "10.1.0.1:80").Outcomes[0].There {
		if s.Visit != nil && s.Visit.Rule != nil && s.Visit.Verdict.Kind != netfilter.Accept {
			t.Errorf("%s: %s", s.Visit.Rule.Text, s.Visit.Verdict.Kind)
		}
		if s.Host == "client" && s.Packet.Source != netip.IPv4Unspecified() {
			t.Errorf("source %s", s.Packet.Source)
		}
	}
}

// TestMasqueradeByIPv6NextHop: an IPv4 packet whose next hop is IPv6 is masqueraded with an IPv4 address (rt_nexthop), and the next hop is
// asked from an IPv6 one.
func TestMasqueradeByIPv6NextHop(t *testing.T) {
	n, _, router, _ := chain(t)
	server := n.host("far")
	n.wire(router, "up", server, "eth0")
	router.address("up", "10.3.0.1/32")
	router.address("up", "fe80::1/64")
	server.address("eth0", "fe80::ff/64")
	server.address("lo", "203.0.113.9/32")
	server.route("default via fe80::1 dev eth0")
	server.listen(packet.TCP, "0.0.0.0:443")
	router.route("203.0.113.0/24 via fe80::ff dev up")
	router.iptables(nat("-A POSTROUTING -o up -j MASQUERADE"))
	r := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "203.0.113.9:443")})
	want(t, r, "1 delivered at far: tcp 10.3.0.1:4000 > 203.0.113.9:443 ttl 63; back delivered at client: tcp 203.0.113.9:443 > 10.1.0.2:4000 ttl 63")
	for _, s := range r.Outcomes[0].There {
		if s.Resolve != nil && s.Host == "router" && s.Resolve.Answerer != "far" {
			t.Errorf("%+v", s.Resolve)
		}
	}
	q := (&transit{m: &machine{Host: router.Host}, p: packet.Packet{Tuple: packet.Tuple{Source: netip.MustParseAddr("10.3.0.1")}}})
	if got := q.senderAddress("up", netip.MustParseAddr("fe80::ff")); got != netip.MustParseAddr("fe80::1") {
		t.Errorf("asked from %s", got)
	}
}

// TestForgetsByChance: where a rule that decides by chance has the acknowledgement leave by another interface, the connection may end.
func TestForgetsByChance(t *testing.T) {
	n, _, router, server := chain(t)
	n.wire(router, "other", server, "eth1")
	router.address("other", "10.3.0.1/24")
	server.address("eth1", "10.3.0.2/24")
	router.iptables(nat("-A POSTROUTING -j MASQUERADE"))
	router.iptables("*mangle\n:PREROUTING ACCEPT [0:0]\n" +
		"-A PREROUTING -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m statistic --mode random --probability 0.1 -j MARK --set-xmark 0x1/0x1\n" +
		"COMMIT\n")
	router.policy(fib.Rule{Priority: 100, From: netip.MustParsePrefix("10.1.0.0/24"), Mark: 1, Mask: 1, Table: 100})
	router.FIB.Routes = append(router.FIB.Routes, fib.Route{Table: 100, Type: "unicast", Destination: netip.MustParsePrefix("0.0.0.0/0"),
		Gateway: netip.MustParseAddr("10.3.0.2"), Link: "other"})
	r := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")})
	ends, always, err := Forgets(n, r.Request, &r.Outcomes[0])
	if err != nil || always || len(ends) != 1 || ends[0].Host != "router" {
		t.Errorf("forgets: %+v, always %t, %v", ends, always, err)
	}
}

// TestErrorsTrack: an error about a datagram that no socket takes belongs to no connection yet when it meets NOTRACK; that of a rule does.
func TestErrorsTrack(t *testing.T) {
	for _, rejected := range []bool{false, true} {
		n, _, _, server := chain(t)
		rules := "*raw\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -p icmp -j NOTRACK\nCOMMIT\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -m conntrack --ctstate INVALID -j DROP\n"
		if rejected {
			rules += "-A INPUT -p udp -j REJECT --reject-with icmp-port-unreachable\n"
		}
		server.iptables(rules + "COMMIT\n")
		p := syn("10.1.0.2:4000", "10.2.0.2:81")
		p.Protocol, p.TCPFlags = packet.UDP, 0
		o := n.walk(Request{Host: "client", Packet: p}).Outcomes[0]
		state := packet.Untracked
		if rejected {
			state = packet.Related
		}
		for _, s := range o.Back {
			if s.Host == "server" && s.Stage == Transmit && s.Packet.Track.State != state {
				t.Errorf("rejected %v: the error is %s", rejected, s.Packet.Track.State)
			}
		}
	}
}

// TestIdentifier covers an echo whose identifier was changed by an unknown translation. A packet that comes in has its identifier changed
// at once; one that is sent has it changed last.
func TestIdentifier(t *testing.T) {
	for _, c := range []struct {
		from, source string
		hook         netfilter.Hook
	}{{"client", "10.1.0.2", netfilter.Prerouting}, {"router", "10.2.0.1", netfilter.Postrouting}} {
		n, _, router, _ := chain(t)
		router.iptables(nat("-A POSTROUTING -o nosuch -j MASQUERADE"))
		flows, err := conntrack.Parse([]byte("ipv4     2 icmp     1 29 src=" + c.source +
			" dst=10.2.0.2 type=8 code=0 id=7 [UNREPLIED] src=10.2.0.2 dst=" + c.source + " type=0 code=0 id=9 mark=0 use=1\n"))
		if err != nil || len(flows) != 1 || !flows[0].Identifier {
			t.Fatalf("%+v, %v", flows, err)
		}
		router.Flows = conntrack.NewTable(flows)
		o := n.walk(Request{Host: c.from, OneWay: true, Packet: packet.Packet{Tuple: packet.Tuple{
			Protocol: packet.ICMP, Source: netip.MustParseAddr(c.source), Destination: netip.MustParseAddr("10.2.0.2"), Type: 8,
			SourcePort: packet.Exactly(7),
		}}}).Outcomes[0]
		found := false
		for _, s := range o.There {
			if s.Host == "router" && s.Stage == Translated {
				found = true
				if s.Hook != c.hook || s.Packet.SourcePort != packet.Exactly(9) {
					t.Errorf("from %s: identifier %s at %s", c.from, s.Packet.SourcePort, s.Hook)
				}
			}
		}
		if !found {
			t.Errorf("from %s: not translated: %s", c.from, ends(o))
		}
	}
}
