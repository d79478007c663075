package walk

import (
	"testing"

	"packetwalk.dev/internal/model/netfilter"
)

// TestBridgedDNATWithoutRoute: IPv6's half of br_netfilter drops what it translated to where no route leads, before the bridge's input and
// without a word; IPv4's gives it to the host, which answers (br_nf_pre_routing_finish_ipv6, br_nf_pre_routing_finish).
func TestBridgedDNATWithoutRoute(t *testing.T) {
	for _, route := range []string{"", "unreachable ", "prohibit ", "blackhole "} {
		n := newNetwork(t)
		client, node := n.host("client"), n.host("node")
		n.wire(client, "eth0", node, "eth0")
		node.bridge("br0", "eth0")
		for _, h := range []*host{client, node} {
			h.Sysctls["net.bridge.bridge-nf-call-ip6tables"], h.Sysctls["net.ipv6.conf.all.forwarding"] = "1", "1"
		}
		client.address("eth0", "fd00:1::1/64")
		node.address("br0", "fd00:1::2/64")
		if route != "" {
			node.route(route + "fd00:9::/64")
		}
		node.rules(netfilter.IPv6, nat("-A PREROUTING -p tcp -j DNAT --to-destination [fd00:9::1]:80"))
		o := n.walk(Request{Host: "client", Packet: syn("[fd00:1::1]:4000", "[fd00:1::2]:80")}).Outcomes[0]
		if o.End.Kind != Dropped || o.End.Host != "node" || o.Back != nil {
			t.Errorf("%q: %s", route, ends(o))
		}
		for _, s := range o.There {
			if s.Bridge != nil {
				t.Errorf("%q: it went on to %v", route, s.Bridge.Ports)
			}
		}
	}
}

// TestNoRouteOnHost: a machine that does not forward tells the sender that there is no route in IPv6 only (ip6_pkt_discard, ip_error).
func TestNoRouteOnHost(t *testing.T) {
	for _, c := range []struct {
		own, other, to string
		want           EndKind
	}{{"10.1.0.1", "10.1.0.2", "10.9.0.1:80", Dropped}, {"fd00:1::1", "fd00:1::2", "[fd00:9::1]:80", Rejected}} {
		n := newNetwork(t)
		client, other := n.host("client"), n.host("other")
		n.wire(client, "eth0", other, "eth0")
		bits := map[EndKind]string{Dropped: "/24", Rejected: "/64"}[c.want]
		client.address("eth0", c.own+bits)
		other.address("eth0", c.other+bits)
		other.Sysctls["net.ipv4.conf.eth0.forwarding"], other.Sysctls["net.ipv6.conf.all.forwarding"] = "0", "0"
		client.route(map[EndKind]string{Dropped: "10.9.0.0/16", Rejected: "fd00:9::/64"}[c.want] + " via " + c.other + " dev eth0")
		o := n.tcp("client", c.to).Outcomes[0]
		if o.End.Kind != c.want || o.End.Host != "other" || (o.Back != nil) != (c.want == Rejected) {
			t.Errorf("%s: %s", c.to, ends(o))
		}
	}
}

// TestBridgeTracksConnections: a bridge whose rules ask for connections tracks them itself, which no walk follows.
func TestBridgeTracksConnections(t *testing.T) {
	n := newNetwork(t)
	client, node := n.host("client"), n.host("node")
	n.wire(client, "eth0", node, "eth0")
	node.bridge("br0", "eth0")
	client.address("eth0", "10.1.0.1/24")
	node.address("br0", "10.1.0.2/24")
	table := &netfilter.Table{Family: netfilter.Bridge, Name: "t"}
	table.Chains = []*netfilter.Chain{{Table: table, Name: "c", Policy: netfilter.Return, Rules: []netfilter.Rule{{Number: 1,
		Statements: []netfilter.Statement{&netfilter.MatchConntrack{}}}}}}
	node.Rules.Tables = append(node.Rules.Tables, table)
	node.Rules.Index()
	undecided(t, "ct", n.tcp("client", "10.1.0.2:80"), "br0 tracks connections")
}
