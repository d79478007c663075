package walk

import (
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// TestUnreadPart checks that a walk ends undecided where it comes to need a part of a host's state that could not be read, with the reason.
// Nothing is assumed of such a part, and a packet that does not need it goes its way.
func TestUnreadPart(t *testing.T) {
	const why = "nft was killed by SIGSEGV"
	routed := func(t *testing.T) (*network, *host, Request) {
		n, _, router, _ := chain(t)
		return n, router, Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}
	}
	sender := func(t *testing.T) (*network, *host, Request) {
		n, client, _, _ := chain(t)
		return n, client, Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}
	}
	receiver := func(t *testing.T) (*network, *host, Request) {
		n, _, _, server := chain(t)
		return n, server, Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80"), OneWay: true}
	}
	bridged := func(t *testing.T) (*network, *host, Request) {
		n, node := bridgedNode(t)
		return n, node, Request{Host: "pod1", Packet: syn("10.1.0.5:4000", "10.1.0.6:80"), OneWay: true}
	}
	tracked := func(t *testing.T) (*network, *host, Request) {
		n, router, r := routed(t)
		router.iptables("*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n")
		return n, router, r
	}
	for _, c := range []struct {
		name  string
		part  snapshot.Part
		world func(*testing.T) (*network, *host, Request)
		met   bool
	}{
		{"links", snapshot.Links, routed, true},
		{"sysctls", snapshot.Sysctls, routed, true},
		{"addresses of a router", snapshot.Addresses, routed, true},
		{"routes of a router", snapshot.Routes, routed, true},
		{"routes of the sender", snapshot.Routes, sender, true},
		{"policy rules of the sender", snapshot.Policy, sender, true},
		{"policy rules of a router", snapshot.Policy, routed, true},
		{"neighbours", snapshot.Neighbours, sender, true},
		{"neighbours of a router", snapshot.Neighbours, routed, true},
		{"iptables rules", snapshot.Rules, routed, true},
		{"ip6tables rules", snapshot.RulesIPv6, routed, false},
		{"nftables rules", snapshot.NFT, routed, true},
		{"nftables rules of the receiver", snapshot.NFT, receiver, true},
		{"nftables rules of the sender", snapshot.NFT, sender, true},
		{"ebtables rules without a bridge", snapshot.Bridge, routed, false},
		{"ebtables rules", snapshot.Bridge, bridged, true},
		{"nftables rules of a bridge", snapshot.NFT, bridged, true},
		{"forwarding database without a bridge", snapshot.FDB, routed, false},
		{"forwarding database", snapshot.FDB, bridged, true},
		{"connections that nothing tracks", snapshot.Flows, routed, false},
		{"connections", snapshot.Flows, tracked, true},
		{"listening sockets of a router", snapshot.Listeners, routed, false},
		{"listening sockets", snapshot.Listeners, receiver, true},
		{"other ends of wires", snapshot.Wires, sender, true},
		{"programs at links", snapshot.Programs, routed, true},
		{"services of IPVS", snapshot.IPVS, receiver, true},
		{"policies of IPsec", snapshot.IPsec, routed, true},
		{"ipsets that no rule asks", snapshot.IPSets, routed, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, _, request := c.world(t)
			whole := n.walk(request)
			if len(whole.Outcomes) != 1 || whole.Outcomes[0].End.Kind != Delivered {
				t.Fatalf("the whole state does not suffice: %s", ends(whole.Outcomes[0]))
			}
			n, at, request := c.world(t)
			if at.Unread = map[snapshot.Part]string{c.part: why}; c.part == snapshot.Wires {
				at.Peers = nil // what a failed dump leaves
			}
			r := n.walk(request)
			o := r.Outcomes[0]
			unknown := o.End.Kind == Undecided || o.BackEnd != nil && o.BackEnd.Kind == Undecided
			if len(r.Outcomes) != 1 || unknown != c.met {
				t.Errorf("%d outcomes, the first %s", len(r.Outcomes), ends(o))
			}
			said := o.End.Why
			if o.BackEnd != nil && o.End.Kind != Undecided {
				said = o.BackEnd.Why
			}
			if c.met && !strings.Contains(said, why) && !strings.Contains(said, "not read") {
				t.Errorf("the reason is %q", said)
			}
			if s := assumptions(r); strings.Contains(s, string(c.part)) {
				t.Errorf("assumed: %s", s)
			}
		})
	}
}

// TestUnreadSet checks that a rule which asks a set that could not be read may apply or not.
func TestUnreadSet(t *testing.T) {
	n, _, router, _ := chain(t)
	router.iptables("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m set --match-set some dst -j DROP\nCOMMIT\n")
	router.Unread = map[snapshot.Part]string{snapshot.IPSets: "ipset save: program not found"}
	var kinds []EndKind
	for _, o := range n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80"), OneWay: true}).Outcomes {
		kinds = append(kinds, o.End.Kind)
	}
	if !slices.Equal(kinds, []EndKind{Dropped, Delivered}) {
		t.Errorf("outcomes %v", kinds)
	}
}

// TestUnreadTunnel checks that a station behind a VXLAN link is not guessed where the forwarding database could not be read.
func TestUnreadTunnel(t *testing.T) {
	l := fib.Link{Name: "flannel.1", Kind: "vxlan", Up: true, VXLAN: &fib.VXLAN{VNI: 1}}
	m := &machine{Host: &snapshot.Host{Name: "n", FIB: &fib.State{Links: []fib.Link{l}},
		Unread: map[snapshot.Part]string{snapshot.FDB: "bridge: program not found"}}, run: newRun(&walker{}, nil)}
	p := packet.Packet{Frame: packet.Frame{Destination: packet.MAC{2, 1}}}
	if _, _, end := (&transit{run: m.run, m: m, p: p}).remote(&l); end == nil || end.Kind != Undecided || !strings.Contains(end.Why, "bridge") {
		t.Errorf("end %+v", end)
	}
}
