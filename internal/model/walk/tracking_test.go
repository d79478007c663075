package walk

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// TestTracking: whether a host tracks connections depends on what its rules need, and is unknown where that is unknown.
func TestTracking(t *testing.T) {
	dropped := nat("-A PREROUTING -d 10.1.0.2/32 -j DROP")
	const u32 = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -m u32 --u32 0&0xf=0x5 -j ACCEPT\nCOMMIT\n"
	odd := strings.ReplaceAll(u32, "u32 --u32 0&0xf=0x5", "geoip --source-country NL")
	const unknown = "NEW, if the kernel tracks connections"
	other := []packet.Flow{{Original: syn("10.1.0.9:1", "10.1.0.8:2").Tuple}}
	for name, c := range map[string]struct {
		rules string
		flows []packet.Flow
		ends  []EndKind // of the request
		state string    // of its connection; "" where none is tracked
	}{
		"no rules":                        {ends: []EndKind{Delivered}},
		"nat chain alone":                 {rules: dropped, ends: []EndKind{Delivered}},
		"match that needs none":           {rules: dropped + u32, ends: []EndKind{Delivered, Delivered}},
		"unknown match":                   {rules: odd, ends: []EndKind{Delivered, Delivered}, state: unknown},
		"unknown match, nat chain":        {rules: dropped + odd, ends: []EndKind{Dropped, Delivered, Delivered}, state: unknown},
		"unknown match, with connections": {rules: dropped + odd, flows: other, ends: []EndKind{Dropped}, state: "NEW"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			client, node := n.host("client"), n.host("node")
			n.wire(client, "eth0", node, "eth0")
			client.address("eth0", "10.1.0.1/24")
			node.address("eth0", "10.1.0.2/24")
			node.listen(packet.TCP, "10.1.0.2:80")
			node.rules(netfilter.IPv4, c.rules)
			node.Flows = conntrack.NewTable(c.flows)
			r := n.tcp("client", "10.1.0.2:80")
			if len(r.Outcomes) != len(c.ends) {
				t.Fatalf("%d outcomes, want %v", len(r.Outcomes), c.ends)
			}
			for i, o := range r.Outcomes {
				state := ""
				for _, s := range o.There {
					if s.Stage == Tracked {
						state = s.Why
					}
				}
				if o.End.Kind != c.ends[i] || state != c.state {
					t.Errorf("outcome %d: %s, connection %q; want %s, %q", i, ends(o), state, c.ends[i], c.state)
				}
			}
		})
	}
}
