package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// TestVirtualServices: what a service of IPVS may take is neither delivered to the node nor refused, whatever link has the address; what
// none of them takes is.
func TestVirtualServices(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	services := []snapshot.VirtualService{
		{Protocol: packet.TCP, Local: at("10.96.0.10:53")}, {Protocol: packet.TCP, Local: at("10.0.0.4:30080")},
		{Protocol: packet.TCP, Local: at("10.0.0.100:0")}, {Protocol: packet.UDP, Local: at("10.0.0.4:22")}, {Mark: 7},
	}
	for _, c := range []struct {
		to   string
		mark bool
		want EndKind
	}{
		{to: "10.96.0.10:53", want: Undecided}, {to: "10.0.0.4:30080", want: Undecided}, {to: "10.0.0.100:6443", want: Undecided},
		{to: "10.0.0.4:22", want: Delivered}, {to: "10.0.0.4:22", mark: true, want: Undecided},
	} {
		for _, local := range []bool{false, true} {
			n := newNetwork(t)
			node := n.host("node")
			node.link(fib.Link{Name: "eth0"})
			node.address("eth0", "10.0.0.4/24")
			node.link(fib.Link{Name: "kube-dummy-if", Kind: "dummy"})
			node.address("kube-dummy-if", "10.96.0.10/32")
			node.address("eth0", "10.0.0.100/32")
			node.listen(packet.TCP, "0.0.0.0:22")
			node.VirtualServices = services
			if c.mark {
				node.iptables("*mangle\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A PREROUTING -j MARK --set-mark 7\nCOMMIT\n")
			}
			req := Request{Host: "node", Forwarded: true, Arrives: "eth0", Packet: syn("10.0.0.9:4000", c.to)}
			if local {
				req = Request{Host: "node", Packet: syn("", c.to)}
			}
			o := n.walk(req).Outcomes[0]
			if o.End.Kind != c.want || c.want == Undecided && !strings.Contains(o.End.Why, "IPVS may take it for its ") {
				t.Errorf("%s, sent here %t: %s", c.to, local, ends(o))
			}
		}
	}
}

// TestVirtualServiceElsewhere: IPVS takes what the node itself sends before it leaves, though no link has the service's address.
func TestVirtualServiceElsewhere(t *testing.T) {
	n, client, _, _ := chain(t)
	client.VirtualServices = []snapshot.VirtualService{{Protocol: packet.TCP, Local: netip.MustParseAddrPort("10.2.0.2:80")}}
	if o := n.tcp("client", "10.2.0.2:80").Outcomes[0]; o.End.Kind != Undecided || o.End.Host != "client" {
		t.Error(ends(o))
	}
	client.VirtualServices = []snapshot.VirtualService{}
	client.link(fib.Link{Name: ipvsLink, Kind: "dummy"})
	client.address(ipvsLink, "10.96.0.1/32")
	client.listen(packet.TCP, "0.0.0.0:443")
	if o := n.tcp("client", "10.96.0.1:443").Outcomes[0]; o.End.Kind != Delivered {
		t.Errorf("without services: %s", ends(o))
	}
}
