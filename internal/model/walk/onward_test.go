package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// clusterOf returns nodes a and b, each with a card that has its address, and nothing between the two.
func clusterOf(t *testing.T) (n *network, a, b *host) {
	n = newNetwork(t)
	for i, h := range []**host{&a, &b} {
		name := "ab"[i : i+1]
		*h = n.host("node/" + name)
		(*h).link(fib.Link{Name: "eth0"})
		address := netip.MustParseAddr("10.0.0.4")
		if i == 1 {
			address = address.Next()
		}
		(*h).address("eth0", address.String()+"/24")
		(*h).route("default via 10.0.0.1 dev eth0")
		n.known.Nodes = append(n.known.Nodes, snapshot.Node{Name: name, IPs: []netip.Addr{address}})
	}
	return n, a, b
}

// TestEntrance: the interface by which a packet comes in to the next node is one that can have a wire, and is told as an assumption; where
// the node's address is on none, the packet has left what is known.
func TestEntrance(t *testing.T) {
	for _, c := range []struct {
		kind, linkType string
		goesOn         bool
	}{
		{"", "", true}, {"veth", "", true}, {"bond", "", true}, {"vlan", "", true},
		{"", "loopback", false}, {"dummy", "", false}, {"ipvlan", "", false},
	} {
		n, _, b := clusterOf(t)
		b.link(fib.Link{Name: "main", Kind: c.kind, Type: c.linkType})
		b.FIB.Addresses[1].Link = "main"
		b.listen(packet.TCP, "0.0.0.0:2379")
		r := n.tcp("node/a", "10.0.0.5:2379")
		o := r.Outcomes[0]
		switch {
		case c.goesOn && (o.End.Host != "node/b" || !strings.Contains(assumptions(r), "and comes in there by main")):
			t.Errorf("%+v: %s\n%s", c, ends(o), assumptions(r))
		case !c.goesOn && (o.End.Host != "node/a" || o.End.Kind != Left):
			t.Errorf("%+v: %s", c, ends(o))
		}
	}
}

// TestForeignSource: that the network takes a packet whose source is not the sending node's address is an assumption. Azure drops it
// without IP forwarding.
func TestForeignSource(t *testing.T) {
	const want = "assuming the network accepts it from 10.244.0.7, which is not an address of node/a"
	for name, c := range map[string]struct {
		source, in string // in: "" for the node's own packet
		assumed    bool
	}{
		"a pod's": {"10.244.0.7", "cni0", true}, "the node's": {"10.0.0.4", "", false}, "another of the link's": {"10.0.0.44", "", false},
		"another link's": {"10.244.0.7", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			n, a, b := clusterOf(t)
			a.address("eth0", "10.0.0.44/24")
			if a.link(fib.Link{Name: "cni0"}); c.in == "" {
				a.address("cni0", "10.244.0.7/24")
			} else {
				a.route("10.244.0.0/24 dev cni0")
			}
			b.listen(packet.TCP, "0.0.0.0:80")
			r := n.walk(Request{Host: "node/a", Forwarded: c.in != "", Arrives: c.in, Packet: syn(c.source+":40000", "10.0.0.5:80"), OneWay: true})
			if got := assumptions(r); strings.Contains(got, want) != c.assumed || !strings.Contains(got, "reaches node/b") {
				t.Errorf("%s; assumed: %s", ends(r.Outcomes[0]), got)
			}
		})
	}
}

// TestExternalAddress: a node's address that it does not have itself is the network's to translate, whichever way a packet for it leaves.
func TestExternalAddress(t *testing.T) {
	for _, route := range []string{"", "203.0.113.0/24 dev eth0"} {
		n, a, b := clusterOf(t)
		if route != "" {
			a.route(route)
		}
		n.known.Nodes[1].IPs = append(n.known.Nodes[1].IPs, netip.MustParseAddr("203.0.113.5"))
		b.listen(packet.TCP, "0.0.0.0:80")
		if o := n.tcp("node/a", "203.0.113.5:80").Outcomes[0]; o.End.Kind != Left || o.End.Host != "node/a" {
			t.Errorf("%q: %s", route, ends(o))
		}
	}
}

// TestPodHereWithoutRoute: a pod of this node that its routes do not know (macvlan, ipvlan, one that is being made) is not behind the card.
func TestPodHereWithoutRoute(t *testing.T) {
	n, a, _ := clusterOf(t)
	n.known.Pods = []snapshot.Pod{
		{Namespace: "x", Name: "p", Node: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}},
		{Namespace: "x", Name: "host", Node: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.78")}, HostNetwork: true},
	}
	a.link(fib.Link{Name: "eth1"})
	a.FIB.Routes[len(a.FIB.Routes)-1].Link = "eth1"
	q := snapshot.Pod{Namespace: "x", Name: "q", Node: "a", IPs: []netip.Addr{netip.MustParseAddr("10.9.0.77")}}
	n.known.Pods = append(n.known.Pods, q)
	undecided(t, "by a default route", n.tcp("node/a", "10.9.0.77:80"), "pod x/q is on this node, but its route leads out of it")
	for _, from := range []string{"node/a", "node/b"} {
		undecided(t, from, n.tcp(from, "10.0.0.77:80"), "pod x/p is on this node, but its route leads out of it")
	}
	if o := n.tcp("node/a", "10.0.0.78:80").Outcomes[0]; o.End.Kind != Left {
		t.Errorf("the node's own address: %s", ends(o))
	}
}

// TestPodHereNotCaptured checks that a packet that leaves by the wire of an uncaptured pod gets to that pod.
func TestPodHereNotCaptured(t *testing.T) {
	n, a, _ := clusterOf(t)
	n.known.Pods = []snapshot.Pod{{Namespace: "x", Name: "p", Node: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}}}
	a.link(fib.Link{Name: "azv1", Kind: "veth"})
	a.route("10.0.0.77/32 dev azv1")
	if o := n.tcp("node/a", "10.0.0.77:80").Outcomes[0]; o.End.Kind != Left || o.End.Link != "azv1" {
		t.Error(ends(o))
	}
}
