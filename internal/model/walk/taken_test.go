package walk

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
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

// unknownARP is a bridge's rule whose effect on ARP requests is unknown.
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
