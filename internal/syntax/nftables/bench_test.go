package nftables

import (
	"fmt"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/testing/ruletest"
)

// services is a rule set of kube-proxy's shape with n services of three endpoints each.
func services(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"nftables": [{"table": {"family": "ip", "name": "k"}}, {"chain": {"family": "ip", "table": "k", "name": "nat", "type": "nat", ` +
		`"hook": "prerouting", "prio": -100, "policy": "accept"}}, {"chain": {"family": "ip", "table": "k", "name": "masq"}}`)
	rule := func(chain, expr string) {
		fmt.Fprintf(&b, `, {"rule": {"family": "ip", "table": "k", "chain": "%s", "handle": 7, "expr": [%s]}}`, chain, expr)
	}
	match := func(protocol, field, op, right string) string {
		return fmt.Sprintf(`{"match": {"op": "%s", "left": {"payload": {"protocol": "%s", "field": "%s"}}, "right": %s}}`, op, protocol, field,
			right)
	}
	var elements []string
	for i := range n {
		ip := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		service := fmt.Sprintf("service-%d-default/service/tcp/http", i)
		elements = append(elements, fmt.Sprintf(`[{"concat": ["%s", "tcp", 80]}, {"goto": {"target": "%s"}}]`, ip, service))
		fmt.Fprintf(&b, `, {"chain": {"family": "ip", "table": "k", "name": "%s"}}`, service)
		rule(service, match("ip", "daddr", "==", `"`+ip+`"`)+", "+match("tcp", "dport", "==", "80")+", "+
			match("ip", "saddr", "!=", `{"prefix": {"addr": "10.244.0.0", "len": 16}}`)+`, {"jump": {"target": "masq"}}`)
		var picks []string
		for j := range 3 {
			endpoint := fmt.Sprintf("endpoint-%d-%d-default/service/tcp/http__172.%d.%d.%d/8080", i, j, 16+i>>16, i>>8&255, i&255)
			picks = append(picks, fmt.Sprintf(`[%d, {"goto": {"target": "%s"}}]`, j, endpoint))
			fmt.Fprintf(&b, `, {"chain": {"family": "ip", "table": "k", "name": "%s"}}`, endpoint)
			rule(endpoint, match("ip", "saddr", "==", `"172.16.0.1"`)+`, {"jump": {"target": "masq"}}`)
			rule(endpoint, match("tcp", "dport", "==", "80")+`, {"dnat": {"addr": "172.16.0.1", "port": 8080}}`)
		}
		rule(service, `{"vmap": {"key": {"numgen": {"mode": "random", "mod": 3, "offset": 0}}, "data": {"set": [`+strings.Join(picks, ", ")+
			`]}}}`)
	}
	fmt.Fprintf(&b, `, {"map": {"family": "ip", "name": "ips", "table": "k", "type": ["ipv4_addr", "inet_proto", "inet_service"], "map": "verdict", "elem": [%s]}}`,
		strings.Join(elements, ", "))
	rule("nat", `{"vmap": {"key": {"concat": [{"payload": {"protocol": "ip", "field": "daddr"}}, {"meta": {"key": "l4proto"}}, `+
		`{"payload": {"protocol": "th", "field": "dport"}}]}, "data": "@ips"}}`)
	b.WriteString("]}")
	return []byte(b.String())
}

// BenchmarkServices loads rule sets and walks a packet to one service: load is with the first walk, as a user waits for it, walk without.
func BenchmarkServices(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		data := services(n)
		load := func(b *testing.B) *netfilter.Chain {
			rs, err := Parse(data)
			if err != nil {
				b.Fatal(err)
			}
			tables, err := Lower(rs)
			if err != nil {
				b.Fatal(err)
			}
			all := &netfilter.Ruleset{Tables: tables}
			all.Index()
			return tables[0].Chain("nat")
		}
		var chooser ruletest.Other
		walk := func(b *testing.B, chain *netfilter.Chain) {
			p := tcp("10.13.76.9:1000", "10.0.0.50:80")
			ctx := netfilter.Context{Packet: &p, Hook: netfilter.Prerouting, Chooser: &chooser,
				Translate: func(packet.Translation) netfilter.Verdict { return netfilter.Verdict{Kind: netfilter.Accept} }}
			if _, err := chain.Run(&ctx); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("load/%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				walk(b, load(b))
			}
		})
		b.Run(fmt.Sprintf("walk/%d", n), func(b *testing.B) {
			chain := load(b)
			for b.Loop() {
				walk(b, chain)
			}
		})
	}
}
