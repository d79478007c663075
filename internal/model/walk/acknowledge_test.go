package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
)

// TestAcknowledge: the acknowledgement has no mark of the nat chains; where that makes it leave by another interface, a masqueraded
// connection ends.
func TestAcknowledge(t *testing.T) {
	for _, away := range []bool{false, true} {
		n, _, router, server := chain(t)
		n.wire(router, "other", server, "eth1")
		router.address("other", "10.3.0.1/24")
		server.address("eth1", "10.3.0.2/24")
		router.iptables(nat(
			"-A PREROUTING -d 10.9.9.9/32 -j MARK --set-xmark 0x4000/0x4000",
			"-A PREROUTING -d 10.9.9.9/32 -p tcp -j DNAT --to-destination 10.2.0.2:80",
			"-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE"))
		if away {
			router.policy(fib.Rule{Priority: 100, From: netip.MustParsePrefix("10.1.0.0/24"), Mask: 0x4000, Table: 100})
			router.FIB.Routes = append(router.FIB.Routes,
				fib.Route{Table: 100, Type: "unicast", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.3.0.2"),
					Link: "other"})
		}
		r := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.9.9.9:80")})
		want(t, r, "1 delivered at server: tcp 10.2.0.1:4000 > 10.2.0.2:80 ttl 63; back delivered at client: tcp 10.9.9.9:80 > 10.1.0.2:4000 ttl 63")
		next, err := Acknowledge(n, r.Request, &r.Outcomes[0])
		if err != nil || len(next.Outcomes) != 1 {
			t.Fatalf("%+v, %v", next, err)
		}
		end := &next.Outcomes[0].End
		forgets, always, err := Forgets(n, r.Request, &r.Outcomes[0])
		if err != nil || always != away || len(forgets) > 0 != away || away && (forgets[0].Host != "router" || forgets[0].Why == "") {
			t.Errorf("forgets: %+v, always %t, %v", forgets, always, err)
		}
		if away && (end.Kind != Dropped || end.Host != "router" || !end.Forgotten || !strings.Contains(end.Why, "masqueraded for right")) {
			t.Errorf("by another interface: %s", ends(next.Outcomes[0]))
		}
		if !away && (end.Kind != Delivered || end.Packet.Source != netip.MustParseAddr("10.2.0.1") || end.Forgotten) {
			t.Errorf("by the same interface: %s", ends(next.Outcomes[0]))
		}
	}
}

// TestNoAcknowledgement: a refusal has none.
func TestNoAcknowledgement(t *testing.T) {
	n, _, _, _ := chain(t)
	r := n.tcp("client", "10.2.0.2:81")
	if next, err := Acknowledge(n, r.Request, &r.Outcomes[0]); next != nil || err != nil {
		t.Errorf("of a refusal: %+v, %v", next, err)
	}
}
