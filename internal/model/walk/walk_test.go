package walk

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/ebtables"
)

// TestForward: a router takes one from the TTL, in each direction.
func TestForward(t *testing.T) {
	n, _, _, _ := chain(t)
	want(t, n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}),
		"1 delivered at server: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 63; back delivered at client: tcp 10.2.0.2:80 > 10.1.0.2:4000 ttl 63")
}

// TestSourceIsChosen: the sender's kernel gives the address and a port out of its range.
func TestSourceIsChosen(t *testing.T) {
	n, client, _, _ := chain(t)
	client.Sysctls["net.ipv4.ip_local_port_range"] = "2000\t2999"
	want(t, n.tcp("client", "10.2.0.2:80"),
		"1 delivered at server: tcp 10.1.0.2:2000-2999 > 10.2.0.2:80 ttl 63; back delivered at client: tcp 10.2.0.2:80 > 10.1.0.2:2000-2999 ttl 63")
}

// TestRefused checks that a reset comes back where no process listens, and for UDP an ICMP error about the datagram.
func TestRefused(t *testing.T) {
	n, _, _, _ := chain(t)
	r := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:81")})
	if o := r.Outcomes[0]; !o.End.Refused || o.Back[0].Packet.TCPFlags&packet.RST == 0 {
		t.Errorf("refused %v, answer %v", o.End.Refused, o.Back[0].Packet.TCPFlags)
	}
	p := syn("10.1.0.2:4000", "10.2.0.2:81")
	p.Protocol, p.TCPFlags = packet.UDP, 0
	o := n.walk(Request{Host: "client", Packet: p}).Outcomes[0]
	s := syn("10.1.0.2:4000", "10.2.0.2:81")
	s.Protocol, s.TCPFlags = packet.SCTP, 0
	r = n.walk(Request{Host: "client", Packet: s})
	if b := r.Outcomes[0].BackEnd.Packet; b.Type != 3 || b.Code != 2 || len(r.Assumed) != 1 {
		t.Errorf("answer to SCTP %+v, assumed %v", b, r.Assumed)
	}
	if b := o.BackEnd.Packet; b.Protocol != packet.ICMP || b.Type != 3 || b.Code != 3 || b.About == nil || *b.About != p.Tuple {
		t.Errorf("answer %+v", b)
	}
}

// TestAnswerAstray: an answer that goes to another host than the one that asked, or past the translation of its request, does not get to the
// program that asked, also where a socket takes it.
func TestAnswerAstray(t *testing.T) {
	const away, own = "the host asked for nothing", "the answer is udp 10.2.0.2:80 > 10.1.0.2:443, and the program waits for udp 10.2.0.2:80 > 10.1.0.2:4000"
	for name, c := range map[string]struct {
		protocol packet.Protocol
		source   string // to which the request's is translated
		listens  bool   // a program takes datagrams at that source
		taken    bool
		why      string
	}{
		"echo":                   {packet.ICMP, "10.3.0.2", false, false, away + ": no socket takes it"},
		"datagram":               {packet.UDP, "10.3.0.2:443", false, false, away + ": no socket takes it"},
		"datagram to a program":  {packet.UDP, "10.3.0.2:443", true, true, away + ": another program takes it, server"},
		"segment to a program":   {packet.TCP, "10.3.0.2:443", true, false, away + ": no socket takes it"},
		"to another port":        {packet.UDP, "10.1.0.2:443", false, false, own + ": no socket takes it"},
		"to another port's user": {packet.UDP, "10.1.0.2:443", true, true, own + ": another program takes it, server"},
	} {
		t.Run(name, func(t *testing.T) {
			n, client, router, server := chain(t)
			other := n.host("other")
			n.wire(server, "side", other, "eth0")
			server.address("side", "10.3.0.1/24")
			other.address("eth0", "10.3.0.2/24")
			server.listen(packet.UDP, "0.0.0.0:80")
			router.iptables(nat("-A POSTROUTING -o right -p "+c.protocol.String()+" -j SNAT --to-source "+c.source) +
				"*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i right -j CT --notrack\nCOMMIT\n")
			if c.listens {
				client.listen(c.protocol, "10.1.0.2:443")
				other.listen(c.protocol, "10.3.0.2:443")
			}
			p := syn("10.1.0.2:4000", "10.2.0.2:80")
			if p.Protocol = c.protocol; p.Protocol != packet.TCP {
				p.TCPFlags = 0
			}
			if p.Protocol == packet.ICMP {
				p.Type, p.DestinationPort = 8, packet.Port{}
			}
			end := n.walk(Request{Host: "client", Packet: p}).Outcomes[0].BackEnd
			if end.Kind != Delivered || !end.Refused || end.Taken != c.taken || end.Why != c.why {
				t.Errorf("%s at %s, refused %v, taken %v: %s", end.Kind, end.Host, end.Refused, end.Taken, end.Why)
			}
		})
	}
}

const natRules = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
%s
COMMIT
`

func nat(lines ...string) string { return fmt.Sprintf(natRules, strings.Join(lines, "\n")) }

// TestTranslate: destination and source are translated on the way and back again for the reply.
func TestTranslate(t *testing.T) {
	n, _, router, _ := chain(t)
	router.iptables(nat("-A PREROUTING -d 10.9.9.9/32 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.2.0.2:80",
		"-A POSTROUTING -o right -j MASQUERADE"))
	r := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.9.9.9:8080")})
	want(t, r, "1 delivered at server: tcp 10.2.0.1:4000 > 10.2.0.2:80 ttl 63; back delivered at client: tcp 10.9.9.9:8080 > 10.1.0.2:4000 ttl 63")
}

// TestProbability: three endpoints as kube-proxy writes them, each with its exact share.
func TestProbability(t *testing.T) {
	n, _, router, _ := chain(t)
	router.iptables(nat(
		"-A PREROUTING -d 10.9.9.9/32 -p tcp -m statistic --mode random --probability 0.33333333349 -j DNAT --to-destination 10.2.0.2:80",
		"-A PREROUTING -d 10.9.9.9/32 -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.2.0.3:80",
		"-A PREROUTING -d 10.9.9.9/32 -p tcp -j DNAT --to-destination 10.2.0.4:80",
	))
	r := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.9.9.9:80"), OneWay: true})
	sum := new(big.Rat)
	for _, o := range r.Outcomes {
		sum.Add(sum, o.Probability)
	}
	if len(r.Outcomes) != 3 || sum.Cmp(big.NewRat(1, 1)) != 0 || r.Outcomes[0].Probability.Cmp(big.NewRat(715827883, 1<<31)) != 0 {
		t.Errorf("%d outcomes, sum %s, first %s", len(r.Outcomes), sum, r.Outcomes[0].Probability)
	}
	if o := r.Outcomes[0]; o.End.Kind != Delivered {
		t.Error(ends(o))
	}
	pinned := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.9.9.9:80"), OneWay: true, Pin: []int{1, 0}})
	if len(pinned.Outcomes) != 1 ||
		pinned.Outcomes[0].There[len(pinned.Outcomes[0].There)-1].Packet.Destination != netip.MustParseAddr("10.2.0.3") {
		t.Errorf("pinned: %d outcomes", len(pinned.Outcomes))
	}
}

// TestLoop: two routers that give a packet to each other end when its TTL does, and a pair that restores the TTL ends too.
func TestLoop(t *testing.T) {
	n, _, router, server := chain(t)
	router.route("10.3.0.0/16 via 10.2.0.2 dev right")
	if o := n.tcp("client", "10.3.0.1:80").Outcomes[0]; o.End.Kind != Rejected || o.End.Reject != "icmp-time-exceeded" {
		t.Error(ends(o))
	}
	for _, h := range []*host{router, server} {
		h.iptables("*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j TTL --ttl-inc 1\nCOMMIT\n")
	}
	if o := n.tcp("client", "10.3.0.1:80").Outcomes[0]; o.End.Kind != Looped {
		t.Error(ends(o))
	}
}

// TestFilter: dropped and rejected, with the rule's name and the answer.
func TestFilter(t *testing.T) {
	n, _, router, _ := chain(t)
	router.iptables("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -m tcp --dport 80 -j DROP\n-A FORWARD -p tcp -m tcp --dport 81 -j REJECT --reject-with tcp-reset\nCOMMIT\n")
	want(t, n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}),
		"1 dropped at router: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 63 (dropped by filter FORWARD 1)")
	want(t, n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:81")}),
		"1 rejected at router: tcp 10.1.0.2:4000 > 10.2.0.2:81 ttl 63 (rejected with tcp-reset by filter FORWARD 2); back delivered at client: tcp 10.2.0.2:81 > 10.1.0.2:4000 ttl 64")
}

// TestReversePath: strict rp_filter drops what should have come in elsewhere, loose only what has no way back at all.
func TestReversePath(t *testing.T) {
	n, _, router, _ := chain(t)
	req := Request{Host: "router", Forwarded: true, Arrives: "left", Packet: syn("10.2.0.9:4000", "10.2.0.2:80"), OneWay: true}
	for mode, drops := range map[string]bool{"0": false, "1": true, "2": false} {
		router.Sysctls["net.ipv4.conf.all.rp_filter"] = mode
		if o := n.walk(req).Outcomes[0]; (o.End.Kind == Dropped) != drops {
			t.Errorf("rp_filter %s: %s", mode, ends(o))
		}
	}
	router.Sysctls["net.ipv4.conf.all.rp_filter"] = "0"
	req.Packet = syn("10.2.0.1:4000", "10.2.0.2:80")
	if o := n.walk(req).Outcomes[0]; o.End.Kind != Dropped || !strings.Contains(o.End.Why, "own address") {
		t.Errorf("its own address from outside: %s", ends(o))
	}
	// With accept_local it may come in where it is an address of, and with strict rp_filter nowhere else.
	for from, drops := range map[string]bool{"10.1.0.1:4000": false, "10.2.0.1:4000": true} {
		router.Sysctls["net.ipv4.conf.all.rp_filter"], router.Sysctls["net.ipv4.conf.all.accept_local"] = "1", "1"
		req.Packet = syn(from, "10.2.0.2:80")
		if o := n.walk(req).Outcomes[0]; (o.End.Kind == Dropped) != drops {
			t.Errorf("its own address %s, accepted: %s", from, ends(o))
		}
	}
}

// bridged is a node with two pods on a bridge, as Azure CNI's bridge mode makes it, and a client behind the uplink.
func bridgedNode(t *testing.T) (n *network, node *host) {
	n = newNetwork(t)
	client, pod1, pod2 := n.host("client"), n.host("pod1"), n.host("pod2")
	node = n.host("node")
	n.wire(client, "eth0", node, "eth0")
	n.wire(pod1, "eth0", node, "veth1")
	n.wire(pod2, "eth0", node, "veth2")
	node.bridge("azure0", "eth0", "veth1", "veth2")
	node.address("azure0", "10.1.0.4/24")
	client.address("eth0", "10.1.0.1/24")
	pod1.address("eth0", "10.1.0.5/24")
	pod2.address("eth0", "10.1.0.6/24")
	for _, p := range []*host{pod1, pod2} {
		p.route("default via 10.1.0.1 dev eth0")
		p.listen(packet.TCP, "0.0.0.0:80")
	}
	client.route("10.9.9.9/32 via 10.1.0.4 dev eth0")
	return n, node
}

// TestBridgedDNAT: a translated packet for a pod on the same bridge stays bridged and keeps its TTL; the reply finds its way back.
func TestBridgedDNAT(t *testing.T) {
	n, node := bridgedNode(t)
	node.iptables(nat("-A PREROUTING -d 10.9.9.9/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.5:80",
		"-A POSTROUTING -s 10.1.0.1/32 -j MASQUERADE"))
	want(t, n.walk(Request{Host: "client", Packet: syn("10.1.0.1:4000", "10.9.9.9:80")}),
		"1 delivered at pod1: tcp 10.1.0.4:4000 > 10.1.0.5:80 ttl 64; back delivered at client: tcp 10.9.9.9:80 > 10.1.0.1:4000 ttl 64")
}

// TestBridgeWithoutNetfilter: with bridge-nf-call-iptables off, a pod's request to a translated address is not translated by the bridge.
func TestBridgeWithoutNetfilter(t *testing.T) {
	n, node := bridgedNode(t)
	node.iptables(nat("-A PREROUTING -d 10.1.0.6/32 -p tcp -j DNAT --to-destination 10.1.0.4:80"))
	node.Sysctls["net.bridge.bridge-nf-call-iptables"] = "0"
	want(t, n.walk(Request{Host: "pod1", Packet: syn("10.1.0.5:4000", "10.1.0.6:80")}),
		"1 delivered at pod2: tcp 10.1.0.5:4000 > 10.1.0.6:80 ttl 64; back delivered at pod1: tcp 10.1.0.6:80 > 10.1.0.5:4000 ttl 64")
}

// TestARPReply: a bridge's rule answers for a pod, as Azure CNI has it, and another one is not heard.
func TestARPReply(t *testing.T) {
	n, node := bridgedNode(t)
	saved, err := ebtables.Parse([]byte("*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n" +
		"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.1.0.6 -j arpreply --arpreply-mac " + n.hosts["pod2"].FIB.Links[1].MAC.String() +
		"\n" +
		"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.1.0.1 -j DROP\n"))
	if err != nil {
		t.Fatal(err)
	}
	if node.Rules.Tables, err = ebtables.Lower(saved); err != nil {
		t.Fatal(err)
	}
	r := n.walk(Request{Host: "pod1", Packet: syn("10.1.0.5:4000", "10.1.0.6:80")})
	want(t, r, "1 delivered at pod2: tcp 10.1.0.5:4000 > 10.1.0.6:80 ttl 64; back delivered at pod1: tcp 10.1.0.6:80 > 10.1.0.5:4000 ttl 64")
	for _, s := range r.Outcomes[0].There {
		if s.Resolve != nil && s.Resolve.Answerer != "node" {
			t.Errorf("answered by %q", s.Resolve.Answerer)
		}
	}
	if o := n.walk(Request{Host: "pod1", Packet: syn("10.1.0.5:4000", "10.1.0.1:80")}).Outcomes[0]; o.End.Kind != Dropped ||
		!strings.Contains(o.End.Why, "no host on eth0 answers") {
		t.Error(ends(o))
	}
}

// TestHairpin: a pod that reaches itself through a translated address leaves by the port that it came in by.
func TestHairpin(t *testing.T) {
	for _, hairpin := range []bool{true, false} {
		n, node := bridgedNode(t)
		node.iptables(nat("-A PREROUTING -d 10.9.9.9/32 -p tcp -j DNAT --to-destination 10.1.0.5:80",
			"-A POSTROUTING -s 10.1.0.5/32 -d 10.1.0.5/32 -j MASQUERADE"))
		for i := range node.FIB.Links {
			if p := node.FIB.Links[i].Port; p != nil {
				p.Hairpin = hairpin
			}
		}
		n.hosts["pod1"].FIB.Routes = append(n.hosts["pod1"].FIB.Routes, fib.Route{
			Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix("10.9.9.9/32"), Gateway: netip.MustParseAddr("10.1.0.4"),
			Link: "eth0"})
		r := n.walk(Request{Host: "pod1", Packet: syn("10.1.0.5:4000", "10.9.9.9:80")})
		if hairpin {
			want(t, r, "1 delivered at pod1: tcp 10.1.0.4:4000 > 10.1.0.5:80 ttl 64; back delivered at pod1: tcp 10.9.9.9:80 > 10.1.0.5:4000 ttl 64")
		} else if o := r.Outcomes[0]; o.End.Kind != Dropped || !strings.Contains(o.End.Why, "hairpin is off") {
			t.Error(ends(o))
		}
	}
}

// TestProxyARP: a host that is not on the link is reached through the one that answers for it.
func TestProxyARP(t *testing.T) {
	n := newNetwork(t)
	pod, node, other := n.host("pod"), n.host("node"), n.host("other")
	n.wire(pod, "eth0", node, "veth")
	n.wire(node, "eth0", other, "eth0")
	pod.address("eth0", "10.1.0.5/32")
	pod.route("169.254.1.1/32 dev eth0")
	pod.route("default via 169.254.1.1 dev eth0")
	node.address("eth0", "10.1.0.4/24")
	node.route("10.1.0.5/32 dev veth")
	node.route("default via 10.1.0.7 dev eth0")
	other.address("eth0", "10.1.0.7/24")
	other.route("10.1.0.5/32 via 10.1.0.4 dev eth0")
	other.listen(packet.TCP, "0.0.0.0:80")
	if o := n.tcp("pod", "10.1.0.7:80").Outcomes[0]; o.End.Kind != Dropped ||
		!strings.Contains(o.End.Why, "no host on eth0 answers for 169.254.1.1") {
		t.Error(ends(o))
	}
	node.Sysctls["net.ipv4.conf.veth.proxy_arp"] = "1"
	r := n.walk(Request{Host: "pod", Packet: syn("10.1.0.5:4000", "10.1.0.7:80")})
	want(t, r, "1 delivered at other: tcp 10.1.0.5:4000 > 10.1.0.7:80 ttl 63; back delivered at pod: tcp 10.1.0.7:80 > 10.1.0.5:4000 ttl 63")
}

// TestOutputDNAT: what a host sends itself is translated at output, routed anew, and answered.
func TestOutputDNAT(t *testing.T) {
	n, client, _, _ := chain(t)
	client.iptables(nat("-A OUTPUT -d 10.9.9.9/32 -p tcp -j DNAT --to-destination 10.2.0.2:80"))
	want(t, n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.9.9.9:80")}),
		"1 delivered at server: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 63; back delivered at client: tcp 10.9.9.9:80 > 10.1.0.2:4000 ttl 63")
	client.listen(packet.TCP, "0.0.0.0:8080")
	client.Rules = &netfilter.Ruleset{}
	client.iptables(nat("-A OUTPUT -d 10.9.9.9/32 -p tcp -j REDIRECT --to-ports 8080"))
	want(t, n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.9.9.9:80")}),
		"1 delivered at client: tcp 10.1.0.2:4000 > 127.0.0.1:8080 ttl 64; back delivered at client: tcp 10.9.9.9:80 > 10.1.0.2:4000 ttl 64")
}

// TestNothingKnown: a host of which only the rules are known.
func TestNothingKnown(t *testing.T) {
	n := newNetwork(t)
	node := n.host("node")
	node.FIB, node.Sysctls, node.Flows = &fib.State{}, nil, nil
	node.Missing = map[snapshot.Part]string{
		snapshot.Links: "x", snapshot.Addresses: "x", snapshot.Routes: "x", snapshot.Sysctls: "x", snapshot.Flows: "x", snapshot.Listeners: "x",
	}
	node.iptables(nat("-A PREROUTING -d 10.9.9.9/32 -p tcp -j DNAT --to-destination 10.2.0.2:80",
		"-A POSTROUTING -m addrtype ! --dst-type LOCAL -j MASQUERADE"))
	r := n.walk(Request{Host: "node", Forwarded: true, Packet: syn("10.1.0.2:4000", "10.9.9.9:80")})
	want(t, r, "1 left at node: tcp ?:4000 > 10.2.0.2:80 ttl 63 (through an unknown interface); back left at node: tcp 10.9.9.9:80 > 10.1.0.2:4000 ttl 63 (through an unknown interface)")
	if len(r.Assumed) < 3 {
		t.Errorf("assumed %v", r.Assumed)
	}
}

// TestNotForwarding: a host that does not forward is said to be so by the setting that decides it, which may be one of no interface.
func TestNotForwarding(t *testing.T) {
	for _, tt := range []struct{ in, from, to, setting string }{
		{"eth0", "10.0.1.9", "10.0.2.9", "net.ipv4.conf.eth0.forwarding"},
		{"", "10.0.9.9", "10.0.2.9", "net.ipv4.ip_forward"}, // no route leads to the sender
		{"", "10.0.1.9", "10.0.2.9", "net.ipv4.conf.eth0.forwarding"},
		{"eth0", "fd00:1::9", "fd00:2::9", "net.ipv6.conf.all.forwarding"},
	} {
		n := newNetwork(t)
		h := n.host("node/a")
		h.link(fib.Link{Name: "eth0"})
		h.address("eth0", "10.0.1.1/24")
		h.address("eth0", "fd00:1::1/64")
		h.route("default via 10.0.1.2 dev eth0")
		h.route("unreachable 10.0.9.0/24")
		h.route("::/0 via fd00:1::2 dev eth0")
		for key := range h.Sysctls {
			h.Sysctls[key] = "0"
		}
		p := packet.Packet{Tuple: packet.Tuple{
			Protocol: packet.TCP, Source: netip.MustParseAddr(tt.from), Destination: netip.MustParseAddr(tt.to),
			SourcePort: packet.Exactly(40000), DestinationPort: packet.Exactly(80),
		}, TTL: 64}
		r, err := Walk(n, Request{Host: "node/a", Forwarded: true, Arrives: tt.in, Packet: p})
		if err != nil {
			t.Fatal(err)
		}
		if end := r.Outcomes[0].End; end.Kind != Dropped || !strings.Contains(end.Why, "does not forward ("+tt.setting+" is 0)") {
			t.Errorf("in by %q: %s %s", tt.in, end.Kind, end.Why)
		}
	}
}

// TestRouteOfSeveralWays: the step tells the way that the packet takes, not the route's first.
func TestRouteOfSeveralWays(t *testing.T) {
	n, _, router, _ := chain(t)
	for _, end := range []string{"a", "b"} {
		far := n.host("far-" + end)
		n.wire(router, "to-"+end, far, "eth0")
	}
	router.address("to-a", "10.8.0.1/24")
	router.address("to-b", "10.9.0.1/24")
	router.FIB.Routes = append(router.FIB.Routes, fib.Route{Table: fib.TableMain, Type: "unicast",
		Destination: netip.MustParsePrefix("10.7.0.0/16"), Nexthops: []fib.Nexthop{
			{Gateway: netip.MustParseAddr("10.8.0.2"), Link: "to-a", Weight: 1}, {Gateway: netip.MustParseAddr("10.9.0.2"), Link: "to-b", Weight: 1},
		}})
	var got []string
	for _, o := range n.tcp("client", "10.7.0.1:80").Outcomes {
		for _, s := range o.There {
			if s.Route != nil && s.Host == "router" {
				got = append(got, s.Route.Gateway.String()+" dev "+s.Route.Link)
			}
		}
	}
	if !slices.Equal(got, []string{"10.8.0.2 dev to-a", "10.9.0.2 dev to-b"}) {
		t.Errorf("routes by %q", got)
	}
}
