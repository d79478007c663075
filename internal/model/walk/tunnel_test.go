package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// overlay returns two nodes at one router, with a VXLAN between them as flannel makes it, and a listener on the second's own end of it.
func overlay(t *testing.T) (n *network, a, b *host) {
	n = newNetwork(t)
	a, b = n.host("node/a"), n.host("node/b")
	router := n.host("router")
	for i, h := range []*host{a, b} {
		number := string("12"[i])
		n.wire(h, "eth0", router, "to"+number)
		h.address("eth0", "10.1."+number+".4/24")
		router.address("to"+number, "10.1."+number+".1/24")
		h.route("default via 10.1." + number + ".1 dev eth0")
		h.link(fib.Link{Name: "flannel.1", Kind: "vxlan",
			VXLAN: &fib.VXLAN{VNI: 1, Port: 8472, Local: netip.MustParseAddr("10.1." + number + ".4")}})
		h.address("flannel.1", "10.244."+number+".0/32")
	}
	for _, ends := range [][2]*host{{a, b}, {b, a}} {
		own, far := ends[0], ends[1]
		mac, address := far.FIB.Links[2].MAC, far.FIB.Addresses[2].Prefix.Addr()
		own.FIB.Neighbours = append(own.FIB.Neighbours, fib.Neighbour{Link: "flannel.1", Address: address, MAC: mac, State: "PERMANENT"})
		own.FIB.FDB = append(own.FIB.FDB, fib.FDBEntry{Port: "flannel.1", MAC: mac, Remote: far.FIB.Addresses[1].Prefix.Addr(), Local: true})
		own.FIB.Routes = append(own.FIB.Routes, fib.Route{Table: fib.TableMain, Type: "unicast",
			Destination: netip.PrefixFrom(address, 24).Masked(), Gateway: address, Link: "flannel.1", OnLink: true, Scope: "global"})
	}
	b.listen(packet.TCP, "0.0.0.0:80")
	return n, a, b
}

// TestTunnel: a frame becomes the payload of a packet of the node's own, which meets rules and routers as such, and comes out on the other
// node with the TTL that it went in with.
func TestTunnel(t *testing.T) {
	n, a, _ := overlay(t)
	a.iptables("*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -p udp -m udp --dport 8472 -j ACCEPT\nCOMMIT\n")
	r := n.walk(Request{Host: "node/a", Packet: syn("10.244.1.0:4000", "10.244.2.0:80")})
	want(t, r, "1 delivered at node/b: tcp 10.244.1.0:4000 > 10.244.2.0:80 ttl 64; back delivered at node/a: tcp 10.244.2.0:80 > 10.244.1.0:4000 ttl 64")
	var way []string
	for _, s := range r.Outcomes[0].There {
		switch s.Stage {
		case Transmit, Encapsulated, Received, Decapsulated:
			way = append(way, s.Host+" "+string(s.Stage)+" "+s.Packet.Tuple.String())
		}
	}
	const outer, inner = "udp 10.1.1.4:32768-60998 > 10.1.2.4:8472", "tcp 10.244.1.0:4000 > 10.244.2.0:80"
	wanted := []string{
		"node/a transmitted " + inner, "node/a encapsulated " + outer, "node/a transmitted " + outer, "router received " + outer,
		"router transmitted " + outer, "node/b received " + outer, "node/b decapsulated " + inner, "node/b received " + inner,
	}
	if strings.Join(way, "\n") != strings.Join(wanted, "\n") {
		t.Errorf("it went\n%s", strings.Join(way, "\n"))
	}
}

// TestTunnelNotWalked: what is not known of a tunnel is said, and a remote machine without it refuses what comes.
func TestTunnelNotWalked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a, b *host)
		want   string
	}{
		"settings": {func(a, _ *host) { a.FIB.Links[2].VXLAN = nil }, "unknown at node/a"},
		"external": {func(a, _ *host) { a.FIB.Links[2].VXLAN.Unknown = "external" }, "unknown at node/a"},
		"no entry": {func(a, _ *host) { a.FIB.FDB = nil }, "dropped at node/a"},
		"several remotes": {func(a, _ *host) {
			more := a.FIB.FDB[0]
			more.Remote = netip.MustParseAddr("10.1.2.5")
			a.FIB.FDB = append(a.FIB.FDB, more)
		}, "unknown at node/a"},
		"a group":                  {func(a, _ *host) { a.FIB.FDB[0].Remote = netip.MustParseAddr("239.1.1.1") }, "unknown at node/a"},
		"no neighbour":             {func(a, _ *host) { a.FIB.Neighbours = nil }, "unknown at node/a"},
		"another network":          {func(_, b *host) { b.FIB.Links[2].VXLAN.VNI = 2 }, "dropped at node/b"},
		"no such link":             {func(_, b *host) { b.FIB.Links[2].Up = false }, "delivered at node/b: udp 10.1.1.4:32768-60998 > 10.1.2.4:8472"},
		"links":                    {func(_, b *host) { b.Missing = map[snapshot.Part]string{snapshot.Links: "not captured"} }, "unknown at node/b"},
		"IPVS":                     {func(_, b *host) { b.FIB.Links = append(b.FIB.Links, fib.Link{Name: ipvsLink}); b.Listeners = nil }, "unknown at node/b"},
		"a program at the way out": {func(a, _ *host) { a.FIB.Links[1].ProgramOut = "a filter of tc (bpf)" }, "unknown at node/a"},
		"a program":                {func(_, b *host) { b.FIB.Links[1].Program = "an XDP program (id 3)" }, "unknown at node/b"},
		"another's entry": {func(_, b *host) {
			b.FIB.Links[2].VXLAN.Learning, b.FIB.FDB[0].Remote = true, netip.MustParseAddr("10.1.1.9")
		}, "dropped at node/b"},
	} {
		t.Run(name, func(t *testing.T) {
			n, a, b := overlay(t)
			c.change(a, b)
			r := n.walk(Request{Host: "node/a", Packet: syn("10.244.1.0:4000", "10.244.2.0:80"), OneWay: true})
			if got := ends(r.Outcomes[0]); len(r.Outcomes) != 1 || !strings.HasPrefix(got, c.want) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestTunnelPort: of the carrying packet's port a range is known, or the one that was seen.
func TestTunnelPort(t *testing.T) {
	n, _, _ := overlay(t)
	inner := syn("10.244.1.0:4000", "10.244.2.0:80")
	seen := packet.Tuple{Protocol: packet.UDP, Source: netip.MustParseAddr("10.1.1.4"), SourcePort: packet.Exactly(40000),
		Destination: netip.MustParseAddr("10.1.2.4"), DestinationPort: packet.Exactly(8472)}
	r := n.walk(Request{Host: "node/a", Packet: inner, OneWay: true,
		Carriers: map[string][]Carrier{"node/a": {{seen, syn("", "1.1.1.1:1").Tuple}, {seen, inner.Tuple}}}})
	for _, s := range r.Outcomes[0].There {
		if s.Stage == Encapsulated && s.Packet.Tuple != seen {
			t.Errorf("carried by %s", s.Packet.Tuple)
		}
	}
}

// TestOnward checks that a walk continues between nodes whose wires are not captured. It goes by the cluster's objects, and says so.
func TestOnward(t *testing.T) {
	n := newNetwork(t)
	a, b := n.host("node/a"), n.host("node/b")
	for i, h := range []*host{a, b} {
		number := string("12"[i])
		h.link(fib.Link{Name: "eth0"})
		h.address("eth0", "10.1.0."+number+"/24")
		h.route("default via 10.1.0.9 dev eth0")
		h.link(fib.Link{Name: "cni0"})
		h.address("cni0", "10.244."+number+".1/24")
		n.known.Nodes = append(n.known.Nodes, snapshot.Node{Name: "ab"[i : i+1], IPs: []netip.Addr{h.FIB.Addresses[1].Prefix.Addr()},
			PodCIDRs: []netip.Prefix{h.FIB.Addresses[2].Prefix.Masked()}})
	}
	b.listen(packet.TCP, "0.0.0.0:80")
	for _, to := range []string{"10.1.0.2:80", "10.244.2.1:80"} {
		r := n.tcp("node/a", to)
		o := r.Outcomes[0]
		there, back := o.End.Kind == Delivered && o.End.Host == "node/b", o.BackEnd.Kind == Delivered && o.BackEnd.Host == "node/a"
		if !there || !back || !o.End.Packet.SomeTTL {
			t.Errorf("%s: %s", to, ends(o))
		}
		if !strings.Contains(assumptions(r), "the network behind eth0 is unknown; assuming the packet reaches node/b") {
			t.Errorf("assumed: %s", assumptions(r))
		}
	}
	n.known.Nodes[1].IPs = append(n.known.Nodes[1].IPs, netip.MustParseAddr("203.0.113.2")) // which the network translates
	if o := n.tcp("node/a", "203.0.113.2:80").Outcomes[0]; o.End.Kind != Left {
		t.Errorf("an external address: %s", ends(o))
	}
	if o := n.tcp("node/a", "198.51.100.1:80").Outcomes[0]; o.End.Kind != Left {
		t.Errorf("outside: %s", ends(o))
	}
	n.known.Services = []snapshot.Service{{
		Namespace: "default", Name: "web", External: []netip.Addr{netip.MustParseAddr("203.0.113.3")},
		Ports: []snapshot.ServicePort{{Protocol: packet.TCP, Port: 80}},
	}}
	if o := n.tcp("node/a", "203.0.113.3:80").Outcomes[0]; o.End.Kind != Undecided || !strings.Contains(o.End.Why, "for service default/web") {
		t.Errorf("a service's address: %s: %s", ends(o), o.End.Why)
	}
	ping := Request{Host: "node/a", Packet: packet.Packet{Tuple: packet.Tuple{
		Protocol: packet.ICMP, Type: 8, Destination: netip.MustParseAddr("203.0.113.3"),
	}}}
	if o := n.walk(ping).Outcomes[0]; o.End.Kind != Left {
		t.Errorf("a ping to a service's address: %s: %s", ends(o), o.End.Why)
	}
	delete(n.hosts, "node/b")
	if o := n.tcp("node/a", "10.244.2.1:80").Outcomes[0]; o.End.Kind != Left {
		t.Errorf("a node that is not there: %s", ends(o))
	}
}

// TestOnwardByBridge: the card of a node may be a port of the bridge that has its address, as with Azure CNI.
func TestOnwardByBridge(t *testing.T) {
	n := newNetwork(t)
	var nodes []*host
	for i, name := range []string{"a", "b"} {
		h, number := n.host("node/"+name), string("12"[i])
		h.link(fib.Link{Name: "eth0", Kind: "veth"})
		h.link(fib.Link{Name: "azv1", Kind: "veth"}) // of an uncaptured pod
		h.bridge("azure0", "eth0", "azv1")
		h.FIB.Links[3].MAC = h.FIB.Links[1].MAC
		h.address("azure0", "10.1."+number+".4/24")
		h.route("default via 10.1." + number + ".1 dev azure0")
		h.FIB.Neighbours = []fib.Neighbour{{Link: "azure0", Address: netip.MustParseAddr("10.1." + number + ".1"),
			MAC: packet.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}, State: "REACHABLE"}}
		h.FIB.FDB = []fib.FDBEntry{{Bridge: "azure0", Port: "eth0", MAC: packet.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}}}
		n.known.Nodes = append(n.known.Nodes, snapshot.Node{Name: name, IPs: []netip.Addr{netip.MustParseAddr("10.1." + number + ".4")}})
		nodes = append(nodes, h)
	}
	nodes[1].listen(packet.TCP, "0.0.0.0:80")
	o := n.tcp("node/a", "10.1.2.4:80").Outcomes[0]
	if o.End.Kind != Delivered || o.End.Host != "node/b" || o.BackEnd.Kind != Delivered || o.BackEnd.Host != "node/a" {
		t.Errorf("%s", ends(o))
	}
}
