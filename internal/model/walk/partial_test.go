package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/ebtables"
)

// TestFarEndNotInSnapshot: what leads out of a snapshot leads somewhere: that nobody there answers is not known, and not said.
func TestFarEndNotInSnapshot(t *testing.T) {
	for name, wire := range map[string]func(h *host){
		"a card": func(h *host) { h.link(fib.Link{Name: "eth0"}) },
		"a wire to a host left out": func(h *host) {
			h.link(fib.Link{Name: "eth0", Kind: "veth"})
			h.Peers = []snapshot.Peer{{Link: "eth0", Host: "other", PeerLink: "eth0"}}
		},
		"half of a pair, unknown to": func(h *host) { h.link(fib.Link{Name: "eth0", Kind: "veth"}) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			node := n.host("node")
			wire(node)
			node.address("eth0", "10.1.0.4/24")
			for _, to := range []string{"10.1.0.77:80", "10.9.9.9:80"} {
				r := n.tcp("node", to)
				if o := r.Outcomes[0]; len(r.Outcomes) != 1 || to == "10.1.0.77:80" &&
					(o.End.Kind != Left || o.End.Link != "eth0" || o.BackEnd.Kind != Delivered) {
					t.Errorf("%s: %s", to, ends(o))
				}
				if to == "10.1.0.77:80" && !strings.Contains(assumptions(r), "the owner of 10.1.0.77 on eth0 is not in the snapshot") {
					t.Errorf("assumed: %s", assumptions(r))
				}
			}
			node.FIB.Neighbours = []fib.Neighbour{{Link: "eth0", Address: node.FIB.Addresses[1].Prefix.Addr().Next(), State: "FAILED"}}
			r := n.tcp("node", "10.1.0.5:80")
			if len(r.Outcomes) != 2 || r.Outcomes[0].End.Kind != Left || r.Outcomes[1].End.Kind != Dropped {
				t.Errorf("asked in vain: %d outcomes, %s", len(r.Outcomes), ends(r.Outcomes[0]))
			}
		})
	}
}

// TestBridgeLeadsOut: a frame for a station that no known host has leaves by the bridge's port that leads out.
func TestBridgeLeadsOut(t *testing.T) {
	n, _ := bridgedNode(t)
	delete(n.hosts, "client") // behind eth0 of the node
	r := n.walk(Request{Host: "pod1", Packet: syn("10.1.0.5:4000", "10.1.0.77:80")})
	want(t, r, "1 left at node: tcp 10.1.0.5:4000 > 10.1.0.77:80 ttl 64 (through eth0); "+
		"back delivered at pod1: tcp 10.1.0.77:80 > 10.1.0.5:4000 ttl 64")
}

// TestAnswersBroadcast: where a node's rules make broadcasts of ARP answers, as Azure CNI's do, a pod's neighbours fail each time that they
// are asked about while they are in use, and answer all the same: that one FAILED tells nothing.
func TestAnswersBroadcast(t *testing.T) {
	for rules, outcomes := range map[string]int{
		"": 2,
		"*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n-A PREROUTING -p ARP -i eth0 --arp-op Reply -j dnat " +
			"--to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT\n": 1,
	} {
		n, node := bridgedNode(t)
		delete(n.hosts, "client") // behind eth0 of the node
		pod := n.hosts["pod1"]
		pod.FIB.Neighbours = []fib.Neighbour{{Link: "eth0", Address: netip.MustParseAddr("10.1.0.77"), State: "FAILED"}}
		e, err := ebtables.Parse([]byte(rules))
		if err != nil {
			t.Fatal(err)
		}
		tables, err := ebtables.Lower(e)
		if err != nil {
			t.Fatal(err)
		}
		node.Rules.Tables = append(node.Rules.Tables, tables...)
		if r := n.tcp("pod1", "10.1.0.77:80"); len(r.Outcomes) != outcomes || r.Outcomes[0].End.Kind != Left {
			t.Errorf("%q: %d outcomes, the first %s", rules, len(r.Outcomes), ends(r.Outcomes[0]))
		}
	}
}

// TestUnknownTestOfAnswer: that a test did not hold for a packet says nothing about the answer to it.
func TestUnknownTestOfAnswer(t *testing.T) {
	n, _, router, _ := chain(t)
	router.iptables("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m foo --bar 1 -j DROP\nCOMMIT\n")
	var got []string
	for _, o := range n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}).Outcomes {
		text := string(o.End.Kind)
		if o.BackEnd != nil {
			text += "," + string(o.BackEnd.Kind)
		}
		got = append(got, text)
	}
	if s := strings.Join(got, " "); s != "dropped delivered,dropped delivered,delivered" {
		t.Error(s)
	}
}

// TestTTLFromBeyond: how many routers an answer has passed that comes from where nobody looked is not known, until a rule sets its TTL.
func TestTTLFromBeyond(t *testing.T) {
	for rules, wanted := range map[string]int{
		"*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -i out -m ttl --ttl-gt 60 -j DROP\nCOMMIT\n": 2,
		"*mangle\n:PREROUTING ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n-A PREROUTING -i out -j TTL --ttl-set 9\n" +
			"-A FORWARD -i out -m ttl --ttl-gt 60 -j DROP\nCOMMIT\n": 1,
	} {
		n, _, router, _ := chain(t)
		router.link(fib.Link{Name: "out"})
		router.address("out", "10.3.0.1/24")
		router.iptables(rules)
		if r := n.tcp("client", "10.3.0.2:80"); len(r.Outcomes) != wanted || r.Outcomes[0].End.Kind != Left {
			t.Errorf("%s%d outcomes, the first %s", rules, len(r.Outcomes), ends(r.Outcomes[0]))
		}
	}
}

// TestTTLZero: a rule can make the TTL 0, and the packet is not forwarded (ip_forward).
func TestTTLZero(t *testing.T) {
	n, _, router, _ := chain(t)
	router.iptables("*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j TTL --ttl-set 0\nCOMMIT\n")
	if o := n.tcp("client", "10.2.0.2:80").Outcomes[0]; o.End.Kind != Rejected || o.End.Why != "its TTL has run out" {
		t.Error(ends(o))
	}
}

// TestOwnerOfAnswer: nobody owns what the kernel answers; whose a program's answer is, is not known.
func TestOwnerOfAnswer(t *testing.T) {
	n, _, _, server := chain(t)
	server.iptables("*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m owner --uid-owner 0 -j DROP\nCOMMIT\n")
	echo := packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Type: 8}}
	echo.Destination = server.FIB.Addresses[1].Prefix.Addr()
	for name, c := range map[string]struct {
		p    packet.Packet
		want string
	}{
		"echo":     {echo, "delivered"},
		"reset":    {syn("", "10.2.0.2:81"), "delivered"},
		"listener": {syn("", "10.2.0.2:80"), "dropped delivered"},
	} {
		var got []string
		for _, o := range n.walk(Request{Host: "client", Packet: c.p}).Outcomes {
			got = append(got, string(o.BackEnd.Kind))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: the answer is %s, want %s", name, s, c.want)
		}
	}
}

// TestMissingRulesOfFamily: rules that are not known are told of the packet's own family.
func TestMissingRulesOfFamily(t *testing.T) {
	n, client, _, _ := chain(t)
	client.Missing = map[snapshot.Part]string{snapshot.RulesIPv6: "not in the text"}
	if s := assumptions(n.tcp("client", "10.2.0.2:80")); strings.Contains(s, "IPv6") {
		t.Error(s)
	}
	if s := assumptions(n.tcp("client", "[2001:db8::1]:80")); !strings.Contains(s, string(snapshot.RulesIPv6)) {
		t.Errorf("not said: %q", s)
	}
}

// TestMissingPolicyAndBridgeRules: policy rules that are not known are told where a route is looked up, a bridge's where one is crossed.
func TestMissingPolicyAndBridgeRules(t *testing.T) {
	missing := map[snapshot.Part]string{snapshot.Policy: "ip: no", snapshot.Bridge: "ebtables: no"}
	policy, ebtables := "policy rules unknown (ip: no); assuming the usual three", "ebtables rules unknown (ebtables: no); assuming frames meet none"
	n, client, _, _ := chain(t)
	client.Missing = missing
	if s := assumptions(n.tcp("client", "10.2.0.2:80")); !strings.Contains(s, policy) || strings.Contains(s, ebtables) {
		t.Errorf("without a bridge: %q", s)
	}
	client.FIB.Rules = []fib.Rule{{Table: fib.TableMain}}
	if s := assumptions(n.tcp("client", "10.2.0.2:80")); strings.Contains(s, policy) {
		t.Errorf("those of the other family: %q", s)
	}
	n, node := bridgedNode(t)
	node.Missing = missing
	for _, to := range []string{"10.1.0.6:80", "10.1.0.4:80"} {
		if s := assumptions(n.tcp("pod1", to)); !strings.Contains(s, ebtables) {
			t.Errorf("through a bridge to %s: %q", to, s)
		}
	}
	n, node = bridgedNode(t)
	node.Missing = missing
	if s := assumptions(n.tcp("node", "10.1.0.6:80")); !strings.Contains(s, ebtables) || !strings.Contains(s, policy) {
		t.Errorf("out of a bridge: %q", s)
	}
}

// TestSenderAssumed: that the sender is root is said where something asks whose program sends the packet, and not where the request tells.
func TestSenderAssumed(t *testing.T) {
	uids := func(c *host) {
		c.FIB.Rules = []fib.Rule{{Table: fib.TableLocal}, {Priority: 1000, Table: 100, HasUIDs: true, UIDs: [2]uint32{0, 99}},
			{Priority: 32766, Table: fib.TableMain}}
	}
	for name, c := range map[string]struct {
		change func(*host)
		owner  bool
		said   bool
	}{
		"a user": {func(c *host) {
			c.iptables("*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -d 10.2.0.2/32 -m owner --uid-owner 0 -j ACCEPT\nCOMMIT\n")
		}, false, true},
		"a user of another destination": {func(c *host) {
			c.iptables("*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -d 10.2.0.3/32 -m owner --uid-owner 0 -j ACCEPT\nCOMMIT\n")
		}, false, false},
		"a socket": {func(c *host) {
			c.iptables("*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m owner --socket-exists -j ACCEPT\nCOMMIT\n")
		}, false, false},
		"a policy rule": {uids, false, true},
		"one who is known": {func(c *host) {
			uids(c)
			c.iptables("*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m owner --uid-owner 0 -j ACCEPT\nCOMMIT\n")
		}, true, false},
		"nft's": {func(c *host) {
			nftChain(c, "ip", `"hook": "output", "prio": 0`, `{"match": {"op": "==", "left": {"meta": {"key": "skgid"}}, "right": 0}}, {"accept": null}`)
		}, false, true},
	} {
		n, client, _, _ := chain(t)
		c.change(client)
		p := syn("", "10.2.0.2:80")
		p.HasOwner, p.UID = c.owner, 1000
		if s := assumptions(n.walk(Request{Host: "client", Packet: p})); strings.Contains(s, "assuming root") != c.said {
			t.Errorf("%s: assumed %q", name, s)
		}
	}
}

func assumptions(r *Result) string {
	var all []string
	for _, a := range r.Assumed {
		all = append(all, a.What)
	}
	return strings.Join(all, "\n")
}
