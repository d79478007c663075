package walk

import (
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// device gives a host a chain of one rule at a hook of links, nil for what is not known.
func (h *host) device(hook netfilter.Hook, links []string, statements ...netfilter.Statement) {
	t := &netfilter.Table{Family: netfilter.Netdev, Name: "wires", Dialect: netfilter.NFTables}
	t.Chains = []*netfilter.Chain{{
		Table: t, Name: hook.String(), Base: &netfilter.Base{Type: "filter", Hook: hook, Devices: links}, Policy: netfilter.Accept,
		Rules: []netfilter.Rule{{Number: 1, Statements: statements}},
	}}
	h.Rules.Tables = append(h.Rules.Tables, t)
}

var (
	drop  = &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Drop}}
	isTCP = &netfilter.MatchProtocol{Protocol: packet.TCP}
)

// TestDeviceHooks: chains at a link see what comes in and goes out by it alone, questions for neighbours too; where it is not known at
// which links a chain hangs, both is walked.
func TestDeviceHooks(t *testing.T) {
	delivered := "delivered at server: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 63; back delivered at client: tcp 10.2.0.2:80 > 10.1.0.2:4000 ttl 63"
	frameType, _ := netfilter.Meta("protocol")
	isARP := &netfilter.Compare{Left: frameType, Op: netfilter.Equal, Right: []netfilter.Span{netfilter.Number(uint64(packet.EtherARP))},
		Words: "arp"}
	for name, c := range map[string]struct {
		hook  netfilter.Hook
		links []string
		test  netfilter.Statement
		want  []string
	}{
		"in": {netfilter.Ingress, []string{"left"}, isTCP,
			[]string{"1 dropped at router: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 64 (dropped by wires ingress 1)"}},
		"out": {netfilter.Egress, []string{"right"}, isTCP,
			[]string{"1 dropped at router: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 63 (dropped by wires egress 1)"}},
		"back": {netfilter.Egress, []string{"left"}, isTCP,
			[]string{"1 delivered at server: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 63; back dropped at router: tcp 10.2.0.2:80 > 10.1.0.2:4000 ttl 63 (dropped by wires egress 1)"}},
		"neither": {netfilter.Egress, []string{"other"}, isTCP, []string{"1 " + delivered}},
		"question": {netfilter.Ingress, []string{"left"}, isARP,
			[]string{"1 dropped at client: tcp 10.1.0.2:4000 > 10.2.0.2:80 ttl 64 (no host on eth0 answers for 10.1.0.1)"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, router, _ := chain(t)
			router.device(c.hook, c.links, c.test, drop)
			want(t, n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}), c.want...)
		})
	}
	n, _, router, _ := chain(t)
	router.device(netfilter.Egress, nil, isTCP, drop)
	// at right, at left, at both, at none
	if got := len(n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.2.0.2:80")}).Outcomes); got != 4 {
		t.Errorf("%d outcomes where the chain's hook is unknown", got)
	}
}
