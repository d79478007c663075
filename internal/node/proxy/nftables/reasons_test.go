package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/node/service"
)

// TestReasons: a rule's service port is told by the packet, by the rule that led to its chain, or by the chain's name.
func TestReasons(t *testing.T) {
	book := attribution.Book{Writers: []attribution.Writer{Signed([]service.Port{{
		Name: service.Name{Namespace: "a", Service: "web", Port: "http"}, Protocol: service.TCP, Port: 80, NodePort: 30001,
		ClusterIP: netip.MustParseAddr("10.0.0.1"), LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.10")},
	}})}, Name: func(end string) string {
		return map[bool]string{true: "pod a/web-1"}[strings.HasPrefix(end, "10.1.0.2:")]
	}}
	for _, test := range []struct {
		chain, to, text, comment string
		destination              string
		known                    attribution.Fields
		want                     string
		translated, drawn        string
	}{
		{"services", "external/cluster/3", "ip daddr . meta l4proto . th dport vmap @service-ips comment", "", "203.0.113.10:80", nil,
			"a/web:http: by destination and port", "", ""},
		{"services", "external/cluster/3", "meta l4proto . th dport vmap @service-node-ports comment", "", "10.13.76.4:30001", nil,
			"a/web:http: by node port, at an address of the node", "", ""},
		{"services", "internal/cluster/3", "ip daddr . meta l4proto . th dport @internal/cluster/3 goto internal/cluster/3 comment",
			"services with 3 endpoints", "10.0.0.9:80", nil, "Services: by destination and port", "", ""},
		{"filter-input", "reject", "ct state new meta l4proto . th dport @no-endpoint-node-ports reject", "without endpoints",
			"10.13.76.4:30001", nil, "a/web:http: has no endpoints", "", ""},
		{"filter-forward", "drop", "ct state new ip daddr . meta l4proto . th dport @no-local-endpoint-ips drop",
			"without endpoints on this node", "203.0.113.10:80", nil, "a/web:http: no local endpoints", "", ""},
		{"internal/cluster/3", "", "dnat ip to map", "one of 3", "10.1.0.1:8080", attribution.Fields{"port": "a/web:http"},
			"a/web:http: one of 3 endpoints", "", ""},
		{"internal/cluster/3", "", "dnat ip to map", "one of 3", "10.1.0.1:8080", attribution.Fields{"port": "a/web:http"},
			"a/web:http: slot 2 of 3, endpoint 10.1.0.1:8080", "10.1.0.1:8080", "2"},
		{"internal/cluster/3", "", "dnat ip to map", "one of 3", "10.1.0.2:8080", attribution.Fields{"port": "a/web:http"},
			"a/web:http: slot 0 of 3, endpoint 10.1.0.2:8080, pod a/web-1", "10.1.0.2:8080", "0"},
		{"internal/cluster/1", "", "dnat ip to map", "one of 1", "10.1.0.1:8080", attribution.Fields{"port": "a/web:http"},
			"a/web:http: slot 0 of 1, endpoint 10.1.0.1:8080", "10.1.0.1:8080", ""},
		{"local/2/b/dns/udp/", "", "meta l4proto udp dnat ip to map", "where the client is", "10.1.0.2:53", nil,
			"b/dns: endpoint 10.1.0.2:53, pod a/web-1, where the client was last", "10.1.0.2:53", ""},
		{"node-port/external/cluster/2/b/dns/udp/", "", "meta l4proto udp dnat ip to map", "where the client is", "10.1.0.1:53", nil,
			"b/dns: where the client was last", "", ""},
		{"remember/both/b/dns/udp/main", "", "update @affinity", "the client stays", "10.1.0.1:53", nil,
			"b/dns:main: remembers the client, for session affinity", "", ""},
	} {
		to := netip.MustParseAddrPort(test.destination)
		why, ok := book.Sign(&attribution.Rule{Table: TableName, Chain: test.chain, To: test.to, Text: test.text, Comment: test.comment,
			Destination: to.Addr(), Port: to.Port(), Protocol: "tcp", Known: test.known,
			Translated: test.translated, Drawn: test.drawn})
		if !ok || why.For != test.want {
			t.Errorf("%s %s: %q, %v; want %q", test.chain, test.text, why.For, ok, test.want)
		}
	}
}
