package walk

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/ebtables"
	"packetwalk.dev/internal/writers"
)

// TestFarEndNotInSnapshot covers a link that leads out of the snapshot. Whether a host there answers is unknown, and the walk does not say
// that none does.
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

// TestTTLFromBeyond covers an answer from outside the snapshot. The number of routers that it passed is unknown until a rule sets its TTL.
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

// TestOwnerOfAnswer checks that an answer of the kernel has no owner, and that the owner of a program's answer is unknown.
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
		p.HasOwner, p.AssumedGroup, p.GID = true, true, 7
		if s := assumptions(n.walk(Request{Host: "client", Packet: p})); strings.Contains(s, "group of the sending user is unknown, and a rule tests it; assuming 7") !=
			strings.HasPrefix(name, "nft's") {
			t.Errorf("%s, of which the group is assumed: %q", name, s)
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

// partialNetwork is a network of which some hosts are not read.
type partialNetwork struct {
	*network
	unread string
}

// Host implements snapshot.Source.
func (n *partialNetwork) Host(name string) (*snapshot.Host, error) {
	if name == n.unread {
		return nil, &snapshot.UnreadError{Host: name, Err: errors.New("its pod does not run")}
	}
	h, err := n.network.Host(name)
	if err == nil {
		h.FIB.Index()
		h.Rules.Index()
	}
	return h, err
}

// TestUnread: an outcome that comes to a host which is not read ends there undecided, and the other outcomes are what they are. Of a sender
// that is not read there is no walk.
func TestUnread(t *testing.T) {
	n, a, b := clusterOf(t)
	b.listen(packet.TCP, "0.0.0.0:80")
	a.listen(packet.TCP, "0.0.0.0:80")
	a.rules(netfilter.IPv4, `*nat
:OUTPUT ACCEPT [0:0]
-A OUTPUT -d 10.96.0.1/32 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.0.5:80
-A OUTPUT -d 10.96.0.1/32 -p tcp -j DNAT --to-destination 10.0.0.4:80
COMMIT
`)
	n.known.Pods = append(n.known.Pods, snapshot.Pod{Name: "connector", Node: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}})
	n.known.Nodes = append(n.known.Nodes, snapshot.Node{Name: "virtual", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}})
	request := Request{Host: "node/a", Packet: syn("", "10.96.0.1:80")}
	r, err := Walk(&partialNetwork{n, "node/b"}, request)
	if err != nil || len(r.Outcomes) != 2 {
		t.Fatalf("%d outcomes, %v", len(r.Outcomes), err)
	}
	if e := &r.Outcomes[0].End; e.Kind != Undecided || !e.Unread || e.Host != "node/b" || e.Packet.DestinationEnd() != "10.0.0.5:80" ||
		e.Why != "node/b is not read: its pod does not run" || r.Outcomes[0].Probability == nil {
		t.Errorf("one that is not read: %s", ends(r.Outcomes[0]))
	}
	if e := &r.Outcomes[1].End; e.Kind != Delivered || e.Unread || e.Host != "node/a" {
		t.Errorf("one that is: %s", ends(r.Outcomes[1]))
	}
	var unread *snapshot.UnreadError
	if _, err := Walk(&partialNetwork{n, "node/a"}, request); !errors.As(err, &unread) || unread.Host != "node/a" {
		t.Errorf("the sender is not read: %v", err)
	}
	request.Packet = syn("", "10.0.0.77:80")
	if r, err = Walk(&partialNetwork{n, "node/virtual"}, request); err != nil || r.Outcomes[0].End.Unread {
		t.Errorf("a virtual node's connector is not the virtual node: %s, %v", ends(r.Outcomes[0]), err)
	}
}

// TestUnreadWire: the other end of a wire that is not read may answer for an address, and gets what is sent to it.
func TestUnreadWire(t *testing.T) {
	n, client, _, _ := chain(t)
	r, err := Walk(&partialNetwork{n, "router"}, Request{Host: "client", Packet: syn("", "10.2.0.2:80")})
	if err != nil || r.Outcomes[0].End.Kind != Undecided || !strings.Contains(r.Outcomes[0].End.Why, "the state of router is not read") {
		t.Errorf("without a neighbour: %s, %v", ends(r.Outcomes[0]), err)
	}
	client.FIB.Neighbours = []fib.Neighbour{{Link: "eth0", Address: netip.MustParseAddr("10.1.0.1"), MAC: packet.MAC{2, 9}, State: "STALE"}}
	r, err = Walk(&partialNetwork{n, "router"}, Request{Host: "client", Packet: syn("", "10.2.0.2:80")})
	if err != nil || !r.Outcomes[0].End.Unread || r.Outcomes[0].End.Host != "router" {
		t.Errorf("with one: %s, %v", ends(r.Outcomes[0]), err)
	}
}

// TestUnknownMAC: a text has interfaces without their MAC addresses. Whether a frame is for such an interface is assumed, and said.
func TestUnknownMAC(t *testing.T) {
	n, client, router, _ := chain(t)
	client.FIB.Neighbours = []fib.Neighbour{{Link: "eth0", Address: netip.MustParseAddr("10.1.0.1"), MAC: packet.MAC{2, 9}, State: "STALE"}}
	if o := n.tcp("client", "10.2.0.2:80").Outcomes[0]; o.End.Kind != Dropped || !strings.Contains(o.End.Why, "not this host's") {
		t.Errorf("the frame is for another station: %s", ends(o))
	}
	for i := range router.FIB.Links {
		router.FIB.Links[i].MAC = packet.MAC{}
	}
	r := n.tcp("client", "10.2.0.2:80")
	if words := "the MAC address of left is unknown"; !strings.Contains(assumptions(r), words) || r.Outcomes[0].End.Host != "server" {
		t.Errorf("%s, assumed: %s", ends(r.Outcomes[0]), assumptions(r))
	}
}

// TestUnshown: an outcome says which parts of the state, and which chains, the request met that are not shown whole.
func TestUnshown(t *testing.T) {
	const (
		whole = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n" +
			"*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"
		nft = "{\"nftables\": []}\n"
		ip  = "$ ip route\ndefault via 10.0.0.1 dev eth0\n10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.4\n" +
			"$ ip addr\n2: eth0: <UP> mtu 1500\n    inet 10.0.0.4/24 scope global eth0\n" +
			"$ ip rule\n0:\tfrom all lookup local\n32766:\tfrom all lookup main\n"
	)
	for _, c := range []struct{ name, text, want string }{
		{"rules alone", whole, "nftables rules, links, routes"},
		{"no rules", ip, "iptables rules, nftables rules, sysctls, other ends of wires"},
		{"a table alone", "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n" + nft + ip,
			"raw PREROUTING, connections, mangle PREROUTING, sysctls, mangle FORWARD, filter FORWARD, mangle POSTROUTING, other ends of wires"},
		{"a chain in part", "$ iptables -t nat -S\n-A POSTROUTING -s 10.9.0.0/16 -j ACCEPT\n$ iptables -t filter -S\n-P FORWARD ACCEPT\n" + nft + ip,
			"raw PREROUTING, connections, mangle PREROUTING, nat PREROUTING, sysctls, mangle FORWARD, mangle POSTROUTING, nat POSTROUTING, other ends of wires"},
		{"a route cut off", whole + nft + strings.Replace(ip, "$ ip addr", "10.7.0.0/16 dev\n$ ip addr", 1), "routes, sysctls, other ends of wires"},
		{"all but the sysctls", whole + nft + ip, "sysctls, other ends of wires"},
		{"all that the packet meets", whole + nft + ip + "$ sysctl net.ipv4.ip_forward\nnet.ipv4.ip_forward = 1\n", "other ends of wires"},
	} {
		t.Run(c.name, func(t *testing.T) {
			src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, "n", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			r, err := Walk(src, Request{Host: "node/n", Forwarded: true, Packet: syn("10.0.0.9:40000", "203.0.113.9:443")})
			if err != nil || len(r.Outcomes) != 1 {
				t.Fatalf("%d outcomes, %v", len(r.Outcomes), err)
			}
			if got := names(r.Outcomes[0].Unshown); got != c.want {
				t.Errorf("the request met, not shown, %s\nwant %s", got, c.want)
			}
		})
	}
}

func names(all []MissingState) string {
	var words []string
	for _, u := range all {
		if u.Chain != nil {
			words = append(words, u.Chain.Table.Name+" "+u.Chain.Name)
		} else {
			words = append(words, string(u.Part))
		}
	}
	return strings.Join(words, ", ")
}
