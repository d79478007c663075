package explain

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/writers"
)

// TestWithoutLocalEndpoints: a rule that drops what is for a Service without endpoints on this node names the Service and the policy, and one
// that rejects what is for a Service without any endpoints names the Service, in each form of the rules.
func TestWithoutLocalEndpoints(t *testing.T) {
	const nft = `$ nft list ruleset
table ip kube-proxy {
	map no-endpoint-services {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 203.0.113.10 . tcp . 80 comment "default/web:http" : drop,
			     10.0.0.9 . tcp . 80 comment "default/web:http" : drop,
			     10.0.0.8 . tcp . 80 comment "default/empty" : goto reject-chain }
	}
	chain filter-forward {
		type filter hook forward priority filter; policy accept;
		ct state new jump service-endpoints-check
	}
	chain service-endpoints-check {
		ip daddr . meta l4proto . th dport vmap @no-endpoint-services
	}
	chain reject-chain {
		reject
	}
}
`
	const own = `$ nft list ruleset
table ip packetwalk-services {
	set no-endpoint-ips {
		type ipv4_addr . inet_proto . inet_service
		elements = { 10.0.0.8 . tcp . 80 }
	}
	set no-local-endpoint-ips {
		type ipv4_addr . inet_proto . inet_service
		elements = { 203.0.113.10 . tcp . 80, 10.0.0.9 . tcp . 80 }
	}
	chain filter-forward {
		type filter hook forward priority filter; policy accept;
		ct state new ip daddr . meta l4proto . th dport @no-endpoint-ips reject comment "without endpoints"
		ct state new ip daddr . meta l4proto . th dport @no-local-endpoint-ips drop comment "without endpoints on this node"
	}
}
`
	const iptables = `$ iptables-save
*filter
:FORWARD ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A KUBE-EXTERNAL-SERVICES -d 203.0.113.10/32 -p tcp -m comment --comment "default/web:http has no local endpoints" -m tcp --dport 80 -j DROP
-A KUBE-SERVICES -d 10.0.0.9/32 -p tcp -m comment --comment "default/web:http has no local endpoints" -m tcp --dport 80 -j DROP
-A KUBE-SERVICES -d 10.0.0.8/32 -p tcp -m comment --comment "default/empty has no endpoints" -m tcp --dport 80 -j REJECT
COMMIT
`
	kerneltest.NeedRoot(t)
	load := func(text []byte) ([]byte, error) { return ruleset.LoadNFT(t.Context(), text) }
	ip := netip.MustParseAddr
	http := []snapshot.ServicePort{{Name: "http", Protocol: packet.TCP, Port: 80}}
	known := snapshot.Objects{Services: []snapshot.Service{
		{Namespace: "default", Name: "web", ClusterIPs: []netip.Addr{ip("10.0.0.9")}, External: []netip.Addr{ip("203.0.113.10")}, Local: true,
			InternalLocal: true, Ports: http},
		{Namespace: "default", Name: "empty", ClusterIPs: []netip.Addr{ip("10.0.0.8")},
			Ports: []snapshot.ServicePort{{Protocol: packet.TCP, Port: 80}}},
	}}
	for form, text := range map[string]string{"kube-proxy, nftables": nft, "ours, nftables": own, "iptables": iptables} {
		for to, want := range map[string]string{
			"203.0.113.10:80": "default/web:http: no local endpoints on node n (externalTrafficPolicy: Local)",
			"10.0.0.9:80":     "default/web:http: no local endpoints on node n (internalTrafficPolicy: Local)",
			"10.0.0.8:80":     "default/empty: has no endpoints",
		} {
			src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), load, "n", []byte(routes+text))
			if err != nil {
				t.Fatal(err)
			}
			r, err := walk.Walk(src, walk.Request{Host: "node/n", Arrives: "eth1", Forwarded: true, OneWay: true,
				Packet: tcp("10.13.76.7:41000", to)})
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := Text(&b, r, Options{Owners: ownersOf(known), Text: true}); err != nil {
				t.Fatal(err)
			}
			_, last, _ := strings.Cut(b.String(), "\nassumed:\n")
			if !strings.Contains(last, want) {
				t.Errorf("%s, to %s: no %q in\n%s", form, to, want, b.String())
			}
		}
	}
}
