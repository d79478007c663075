package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// TestForwarder shows where a walk ends at a firewall or gateway outside the snapshot. A stateful one drops a reply of TCP whose request it
// has not seen; what it does with one of another protocol is unknown.
func TestForwarder(t *testing.T) {
	firewall := netip.MustParseAddr("10.9.0.4")
	for name, c := range map[string]struct {
		stateful             bool
		protocol             packet.Protocol // TCP where there is none
		arrives, from, to    string
		end, forwarder       string
		backEnd, backForward string
	}{
		"request through the forwarder": {stateful: true, to: "198.51.100.80:443", end: "left", forwarder: "appliance 10.9.0.4",
			backEnd: "delivered"},
		"request to the forwarder": {stateful: true, to: "10.9.0.4:443", end: "left", backEnd: "delivered"},
		"reply to a request that came by another way": {stateful: true, arrives: "inet", from: "198.51.100.80:40000", to: "10.0.0.4:80",
			end: "delivered", backEnd: "dropped", backForward: "appliance 10.9.0.4"},
		"reply of UDP to a request that came by another way": {stateful: true, protocol: packet.UDP, arrives: "inet", from: "198.51.100.80:40000",
			to: "10.0.0.4:80", end: "delivered", backEnd: "unknown", backForward: "appliance 10.9.0.4"},
		"reply of ICMP to a request that came by another way": {stateful: true, protocol: packet.ICMP, arrives: "inet", from: "198.51.100.80:0",
			to: "10.0.0.4:0", end: "delivered", backEnd: "unknown", backForward: "appliance 10.9.0.4"},
		"reset to a request that came by another way": {stateful: true, arrives: "inet", from: "198.51.100.80:40000", to: "10.0.0.4:81",
			end: "delivered", backEnd: "dropped", backForward: "appliance 10.9.0.4"},
		"reply of UDP to a request that came through the forwarder": {stateful: true, protocol: packet.UDP, arrives: "fw",
			from: "198.51.100.80:40000", to: "10.0.0.4:80", end: "delivered", backEnd: "left", backForward: "appliance 10.9.0.4"},
		"reply to a request that came through the forwarder": {stateful: true, arrives: "fw", from: "198.51.100.80:40000", to: "10.0.0.4:80",
			end: "delivered", backEnd: "left", backForward: "appliance 10.9.0.4"},
		"stateless": {arrives: "inet", from: "198.51.100.80:40000", to: "10.0.0.4:80", end: "delivered", backEnd: "left",
			backForward: "appliance 10.9.0.4"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			h := n.host("node/a")
			h.link(fib.Link{Name: "fw", Type: "none"})
			h.link(fib.Link{Name: "inet", Type: "none"})
			h.address("fw", "10.0.0.4/32")
			h.route("0.0.0.0/0 dev fw")
			h.listen(packet.TCP, "0.0.0.0:80")
			h.listen(packet.UDP, "0.0.0.0:80")
			h.Forwarders = map[string]snapshot.Forwarder{
				"fw": {Name: "appliance 10.9.0.4", Addresses: []netip.Addr{firewall}, Stateful: c.stateful},
			}
			p := syn(c.from, c.to)
			if c.protocol != 0 {
				p.Protocol, p.TCPFlags = c.protocol, 0
			}
			if c.protocol == packet.ICMP {
				p.Type, p.SourcePort, p.DestinationPort = 8, packet.Port{}, packet.Port{}
			}
			r := n.walk(Request{Host: "node/a", Packet: p, Forwarded: c.arrives != "", Arrives: c.arrives})
			o := r.Outcomes[0]
			if string(o.End.Kind) != c.end || o.End.Forwarder != c.forwarder {
				t.Errorf("end %s, forwarder %q, want %s, %q", o.End.Kind, o.End.Forwarder, c.end, c.forwarder)
			}
			if o.BackEnd == nil || string(o.BackEnd.Kind) != c.backEnd || o.BackEnd.Forwarder != c.backForward {
				t.Fatalf("reply's end %+v, want %s, %q", o.BackEnd, c.backEnd, c.backForward)
			}
			lost := c.backEnd == "dropped" || c.backEnd == "unknown"
			if asymmetric := strings.HasPrefix(o.BackEnd.Why, "asymmetric routing"); asymmetric != lost {
				t.Errorf("reply's end: %s", o.BackEnd.Why)
			}
		})
	}
}
