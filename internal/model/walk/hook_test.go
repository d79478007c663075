package walk

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/ebtables"
	"packetwalk.dev/internal/syntax/nftables"
)

// TestQueue: what a program that reads a queue, or the far side of a fwd, makes of a packet is not known: it is not dropped.
func TestQueue(t *testing.T) {
	const ingress = `"hook": "ingress", "prio": 0, "dev": "left"`
	for name, c := range map[string]struct {
		rule func(h *host)
		want string
	}{
		"NFQUEUE": {func(h *host) {
			h.iptables("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j NFQUEUE --queue-num 100\nCOMMIT\n")
		},
			"what the reader of queue 100 does is not known"},
		"with bypass": {func(h *host) {
			h.iptables("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j NFQUEUE --queue-num 1 --queue-bypass\nCOMMIT\n")
		}, "what the reader of queue 1 does is not known"},
		"QUEUE": {func(h *host) { h.iptables("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j QUEUE\nCOMMIT\n") },
			"what the reader of queue 0 does is not known"},
		"nft's queue": {func(h *host) { nftChain(h, "ip", `"hook": "forward", "prio": 0`, `{"queue": {"num": 3}}`) },
			"what the reader of queue 3 does is not known"},
		"nft's fwd": {func(h *host) { nftChain(h, "netdev", ingress, `{"fwd": {"dev": "right"}}`) }, "fwd to \"right\" does is not known"},
	} {
		n, _, router, _ := chain(t)
		c.rule(router)
		if o := n.tcp("client", "10.2.0.2:80").Outcomes[0]; o.End.Kind != Undecided || !strings.Contains(o.End.Why, c.want) {
			t.Errorf("%s: %s", name, ends(o))
		}
	}
	n, node := bridgedNode(t)
	node.Rules.Tables = append(node.Rules.Tables, unknownARP(t))
	if o := n.tcp("pod1", "10.1.0.6:80").Outcomes[0]; o.End.Kind != Undecided || !strings.Contains(o.End.Why, "is unknown") {
		t.Errorf("a question that a bridge's unknown target gets: %s", ends(o))
	}
}

// nftChain gives a host a table of nft's with one chain, which has one rule.
func nftChain(h *host, family, hook, statement string) {
	h.t.Helper()
	rs, err := nftables.Parse([]byte(`{"nftables": [{"table": {"family": "` + family + `", "name": "t", "handle": 1}},
		{"chain": {"family": "` + family + `", "table": "t", "name": "c", "handle": 1, "type": "filter", ` + hook + `, "policy": "accept"}},
		{"rule": {"family": "` + family + `", "table": "t", "chain": "c", "handle": 2, "expr": [` + statement + `]}}]}`))
	if err != nil {
		h.t.Fatal(err)
	}
	tables, err := nftables.Lower(rs)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Rules.Tables = append(h.Rules.Tables, tables...)
}

// unknownARP returns a bridge's rule whose effect on ARP requests is unknown.
func unknownARP(t *testing.T) *netfilter.Table {
	t.Helper()
	saved, err := ebtables.Parse([]byte("*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n-A PREROUTING -p ARP -j odd\n"))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := ebtables.Lower(saved)
	if err != nil {
		t.Fatal(err)
	}
	return tables[0]
}

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
