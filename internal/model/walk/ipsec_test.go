package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// TestIPsec: what a policy of IPsec may encrypt, or wants encrypted, is undecided; what none holds, and what stays on the host, is not.
func TestIPsec(t *testing.T) {
	prefix := netip.MustParsePrefix
	left, right := prefix("10.1.0.0/16"), prefix("10.2.0.0/16")
	policy := func(direction string, from, to netip.Prefix) snapshot.IPsecPolicy {
		return snapshot.IPsecPolicy{Direction: direction, Source: from, Destination: to}
	}
	datagrams, marked := policy("out", left, right), policy("out", left, right)
	datagrams.Protocol, marked.Mark, marked.Mask = packet.UDP, 1, 1
	for name, c := range map[string]struct {
		at   func(client, router, server *host) *host
		p    snapshot.IPsecPolicy
		want string
	}{
		"sent":             {func(c, _, _ *host) *host { return c }, policy("out", left, right), "client"},
		"forwarded out":    {func(_, r, _ *host) *host { return r }, policy("out", left, right), "router"},
		"forwarded":        {func(_, r, _ *host) *host { return r }, policy("fwd", left, right), "router"},
		"come in":          {func(_, _, s *host) *host { return s }, policy("in", left, right), "server"},
		"not for this":     {func(_, r, _ *host) *host { return r }, policy("in", left, right), ""},
		"others":           {func(_, r, _ *host) *host { return r }, policy("out", right, right), ""},
		"another protocol": {func(_, r, _ *host) *host { return r }, datagrams, ""},
		"another mark":     {func(_, r, _ *host) *host { return r }, marked, ""},
		"translated": {func(_, r, _ *host) *host {
			r.iptables(nat("-A POSTROUTING -o right -j SNAT --to-source 10.2.0.1"))
			return r
		}, policy("out", right, right), "router"},
		"come in before it was translated": {func(_, r, _ *host) *host {
			r.iptables(nat("-A PREROUTING -d 10.2.0.2/32 -p tcp -j DNAT --to-destination 10.2.0.2:80"))
			return r
		}, policy("fwd", left, prefix("10.2.0.2/32")), "router"},
		"come in for another": {func(_, r, _ *host) *host {
			r.iptables(nat("-A PREROUTING -d 10.2.0.2/32 -p tcp -j DNAT --to-destination 10.1.0.2:80"))
			return r
		}, policy("fwd", left, prefix("10.2.0.2/32")), "router"},
	} {
		n, client, router, server := chain(t)
		h := c.at(client, router, server)
		h.IPsec = []snapshot.IPsecPolicy{c.p}
		o := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}).Outcomes[0]
		switch {
		case c.want == "" && o.End.Kind != Delivered:
			t.Errorf("%s: %s", name, ends(o))
		case c.want != "" && (o.End.Kind != Undecided || o.End.Host != c.want || !strings.Contains(o.End.Why, "IPsec")):
			t.Errorf("%s: %s", name, ends(o))
		}
	}
	n, client, _, _ := chain(t)
	all := prefix("0.0.0.0/0")
	client.IPsec = []snapshot.IPsecPolicy{{Direction: "out", Source: all, Destination: all}, {Direction: "in", Source: all, Destination: all}}
	client.listen(packet.TCP, "0.0.0.0:80")
	if o := n.tcp("client", "10.1.0.2:80").Outcomes[0]; o.End.Kind != Delivered {
		t.Errorf("to itself: %s", ends(o))
	}
}
