package walk

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/writers"
)

// TestUnshown: an outcome says which parts of the state, and which chains, the request met that are not shown whole.
func TestUnshown(t *testing.T) {
	const (
		whole = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n" +
			"*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"
		nft = "{\"nftables\": []}\n"
		ip  = "$ ip route\ndefault via 10.0.0.1 dev eth0\n10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.4\n" +
			"$ ip addr\n2: eth0: <UP> mtu 1500\n    inet 10.0.0.4/24 scope global eth0\n" +
			"$ ip rule\n0:\tfrom all lookup local\n32766:\tfrom all lookup main\n"
	)
	for _, c := range []struct{ name, text, want string }{
		{"rules alone", whole, "nftables rules, links, routes"},
		{"no rules", ip, "iptables rules, nftables rules, sysctls, other ends of wires"},
		{"a table alone", "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n" + nft + ip,
			"raw PREROUTING, connections, mangle PREROUTING, sysctls, mangle FORWARD, filter FORWARD, mangle POSTROUTING, other ends of wires"},
		{"a chain in part", "$ iptables -t nat -S\n-A POSTROUTING -s 10.9.0.0/16 -j ACCEPT\n$ iptables -t filter -S\n-P FORWARD ACCEPT\n" + nft + ip,
			"raw PREROUTING, connections, mangle PREROUTING, nat PREROUTING, sysctls, mangle FORWARD, mangle POSTROUTING, nat POSTROUTING, other ends of wires"},
		{"a route cut off", whole + nft + strings.Replace(ip, "$ ip addr", "10.7.0.0/16 dev\n$ ip addr", 1), "routes, sysctls, other ends of wires"},
		{"all but the sysctls", whole + nft + ip, "sysctls, other ends of wires"},
		{"all that the packet meets", whole + nft + ip + "$ sysctl net.ipv4.ip_forward\nnet.ipv4.ip_forward = 1\n", "other ends of wires"},
	} {
		t.Run(c.name, func(t *testing.T) {
			src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, "n", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			r, err := Walk(src, Request{Host: "node/n", Forwarded: true, Packet: syn("10.0.0.9:40000", "203.0.113.9:443")})
			if err != nil || len(r.Outcomes) != 1 {
				t.Fatalf("%d outcomes, %v", len(r.Outcomes), err)
			}
			if got := names(r.Outcomes[0].Unshown); got != c.want {
				t.Errorf("the request met, not shown, %s\nwant %s", got, c.want)
			}
		})
	}
}

func names(all []MissingState) string {
	var words []string
	for _, u := range all {
		if u.Chain != nil {
			words = append(words, u.Chain.Table.Name+" "+u.Chain.Name)
		} else {
			words = append(words, string(u.Part))
		}
	}
	return strings.Join(words, ", ")
}
