package walk

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
)

// below puts a link of a host and its address below a bridge.
func (h *host) below(bridge, link string) {
	h.FIB.Routes, h.FIB.Addresses = append(h.FIB.Routes[:0:0], h.FIB.Routes...), append(h.FIB.Addresses[:0:0], h.FIB.Addresses...)
	for i := range h.FIB.Routes {
		if h.FIB.Routes[i].Link == link {
			h.FIB.Routes[i].Link = bridge
		}
	}
	for i := range h.FIB.Addresses {
		if h.FIB.Addresses[i].Link == link {
			h.FIB.Addresses[i].Link = bridge
		}
	}
	h.bridge(bridge, link)
}

// TestSpoiledChecksum checks carriers of VXLAN that are translated before the payload's checksum is computed: receivers find the carrier's
// checksum wrong once a device has computed that of the payload.
func TestSpoiledChecksum(t *testing.T) {
	const translate = "-p udp -m udp --dport 8472 -j SNAT --to-source 10.1.1.9"
	inBridge := func(router *host) { router.below("br2", "to2") }
	translated := func(h *host) { h.iptables(nat("-A POSTROUTING " + translate)) }
	const delivered, dropped = "delivered at node/b: tcp", "dropped at node/b: udp"
	for name, c := range map[string]struct {
		change func(a, router, b *host)
		packet packet.Packet
		ends   []string
	}{
		"not translated":            {change: func(_, router, _ *host) { inBridge(router) }, ends: []string{delivered}},
		"left to a device":          {change: func(a, _, _ *host) { translated(a) }, ends: []string{delivered}},
		"translated, then computed": {change: func(a, router, _ *host) { translated(a); inBridge(router) }, ends: []string{dropped}},
		"computed, then translated": {change: func(a, router, _ *host) { a.below("br0", "eth0"); translated(router) }, ends: []string{delivered}},
		"no checksum": {change: func(a, router, _ *host) {
			translated(a)
			inBridge(router)
			a.FIB.Links[2].VXLAN.NoChecksum = true
		}, ends: []string{delivered}},
		"redirected to the host itself": {change: func(a, _, _ *host) {
			a.iptables(nat("-A OUTPUT -p udp -m udp --dport 8472 -j REDIRECT --to-ports 5000"))
		}, ends: []string{"dropped at node/a: udp 10.1.1.4:32768-60998 > 127.0.0.1:5000 ttl 64 (its UDP checksum is wrong"}},
		"another device": {change: func(a, router, _ *host) { translated(a); router.FIB.Links[2].Kind = "" }, ends: []string{dropped, delivered}},
		"a segment that a program made": {change: func(a, router, _ *host) { translated(a); inBridge(router) },
			packet: packet.Packet{TCPFlags: packet.ACK}, ends: []string{dropped, delivered}},
		"an echo": {change: func(a, router, _ *host) { translated(a); inBridge(router) },
			packet: packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Type: 8}}, ends: []string{"delivered at node/b: icmp"}},
		"tracked": {change: func(a, router, b *host) {
			translated(a)
			inBridge(router)
			b.iptables(nat("-A PREROUTING -p udp -j DNAT --to-destination 10.1.2.9"))
			b.iptables("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n")
		}, ends: []string{"dropped at node/b: udp 10.1.1.9:32768-60998 > 10.1.2.4:8472 ttl 63 (dropped by filter INPUT 1)"}},
		"tracked without a look at checksums": {change: func(a, router, b *host) {
			translated(a)
			inBridge(router)
			b.iptables("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n")
			b.Sysctls["net.netfilter.nf_conntrack_checksum"] = "0"
		}, ends: []string{"dropped at node/b: udp 10.1.1.9:32768-60998 > 10.1.2.4:8472 ttl 63 (its UDP checksum is wrong"}},
		"rejected without an error": {change: func(a, router, b *host) {
			translated(a)
			inBridge(router)
			b.iptables("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p udp -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n")
		}, ends: []string{"dropped at node/b: udp 10.1.1.9:32768-60998 > 10.1.2.4:8472 ttl 63 (dropped by filter INPUT 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, a, b := overlay(t)
			c.change(a, &host{n, n.hosts["router"]}, b)
			p := syn("10.244.1.0:4000", "10.244.2.0:80")
			switch {
			case c.packet.Protocol != 0:
				p.Tuple = packet.Tuple{Protocol: c.packet.Protocol, Type: c.packet.Type, Source: p.Source, Destination: p.Destination}
				p.TCPFlags = 0
			case c.packet.TCPFlags != 0:
				p.TCPFlags = c.packet.TCPFlags
			}
			r := n.walk(Request{Host: "node/a", Packet: p, OneWay: true})
			if len(r.Outcomes) != len(c.ends) {
				t.Fatalf("%d outcomes, want %d\n%s", len(r.Outcomes), len(c.ends), steps(r))
			}
			for i, o := range r.Outcomes {
				if got := ends(o); !strings.HasPrefix(got, c.ends[i]) {
					t.Errorf("%s, want %s\n%s", got, c.ends[i], steps(r))
				}
			}
		})
	}
}
