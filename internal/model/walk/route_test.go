package walk

import (
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// policy gives a host policy rules beside the usual ones; -1 for what suppresses nothing.
func (h *host) policy(rules ...fib.Rule) {
	rules = append(rules, fib.Rule{Priority: 0, Table: fib.TableLocal}, fib.Rule{Priority: 32766, Table: fib.TableMain})
	for _, r := range rules {
		r.Action, r.SuppressPrefixLength, r.SuppressGroup = "lookup", -1, -1
		h.FIB.Rules = append(h.FIB.Rules, r)
	}
}

// TestReversePathPorts: policy rules see the look-up of the way back with the ports of an answer, if one of them is not for local output
// only.
func TestReversePathPorts(t *testing.T) {
	request, reply := fib.RulePorts{First: 80, Last: 80}, fib.RulePorts{First: 4000, Last: 4000}
	for name, c := range map[string]struct {
		rule   fib.Rule
		passes bool
	}{
		"destination port of the answer": {fib.Rule{Protocol: packet.TCP, DestinationPorts: reply}, true},
		"destination port of the packet": {fib.Rule{Protocol: packet.TCP, DestinationPorts: request}, false},
		"for local output":               {fib.Rule{In: "lo", Protocol: packet.TCP, DestinationPorts: reply}, false},
	} {
		n, _, router, _ := chain(t)
		router.Sysctls["net.ipv4.conf.all.rp_filter"] = "1"
		c.rule.Priority, c.rule.Table = 100, 100
		router.policy(c.rule)
		router.FIB.Routes = append(router.FIB.Routes, fib.Route{Table: 100, Type: "unicast", Destination: netip.MustParsePrefix("10.2.0.9/32"),
			Link: "left", Scope: "link"})
		for to, local := range map[string]bool{"10.2.0.2:80": false, "10.1.0.1:80": true} {
			o := n.walk(Request{Host: "router", Forwarded: true, Arrives: "left", Packet: syn("10.2.0.9:4000", to), OneWay: true}).Outcomes[0]
			if (o.End.Kind != Dropped) != c.passes {
				t.Errorf("%s, local %v: %s", name, local, ends(o))
			}
		}
	}
}

// TestPolicyRuleOfPortByChance: a policy rule that asks for a port which the kernel chose by chance decides both ways, the same each time.
func TestPolicyRuleOfPortByChance(t *testing.T) {
	n, _, router, server := chain(t)
	router.iptables(nat("-A POSTROUTING -p tcp -j MASQUERADE --random"))
	server.policy(fib.Rule{Priority: 100, Table: 100, Protocol: packet.TCP, DestinationPorts: fib.RulePorts{First: 8080, Last: 8080}})
	server.FIB.Routes = append(server.FIB.Routes, fib.Route{Table: 100, Type: "blackhole", Destination: netip.MustParsePrefix("0.0.0.0/0")})
	outcomes := n.tcp("client", "10.2.0.2:80").Outcomes
	if len(outcomes) != 2 || outcomes[0].BackEnd.Kind != Dropped || outcomes[1].BackEnd.Kind != Delivered {
		for _, o := range outcomes {
			t.Error(ends(o))
		}
	}
}
