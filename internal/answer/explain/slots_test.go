package explain

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/nftables"
	"packetwalk.dev/internal/testing/kerneltest"
)

// one is a source of one host.
type one struct{ host snapshot.Host }

func (o *one) Host(string) (*snapshot.Host, error) { return &o.host, nil }
func (*one) Names() []string                       { return []string{"node/a"} }
func (*one) Objects() snapshot.Objects             { return objects() }

// TestSlots: of our service proxy's nftables backend, a reader learns which slot of how many was drawn, and whose endpoint that is.
func TestSlots(t *testing.T) {
	kerneltest.NeedRoot(t)
	const listing = "../../node/proxy/nftables/testdata/listed/azure-cni.txt"
	if _, err := os.Stat(listing); err != nil {
		t.Fatal(err)
	}
	dump, err := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-ec", `nft -f "$1"; nft -j list ruleset`, "sh", listing).Output()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := nftables.Parse(dump)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := nftables.Lower(rules)
	if err != nil {
		t.Fatal(err)
	}
	node := &one{snapshot.Host{Name: "node/a", Rules: &netfilter.Ruleset{Tables: tables}, Flows: conntrack.NewTable(nil), FIB: &fib.State{
		Links: []fib.Link{{Name: "eth0", Index: 1, Up: true, LowerUp: true, Type: "ether"}},
		Routes: []fib.Route{{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0",
			Scope: "link"}},
	}, Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth0.forwarding": "1"}}}
	node.host.FIB.Index()
	node.host.Rules.Index()
	for to, want := range map[string][]string{
		"10.0.159.58:80": {"default/whereami: slot 0 of 2, endpoint 10.13.76.26:80, pod default/whereami-a",
			"2  10.13.76.7:80, pod default/whereami-b"},
		"10.0.0.1:443": {"slot 0 of 1, endpoint 203.0.113.1:443"},
	} {
		end := netip.MustParseAddrPort(to)
		r, err := walk.Walk(node, walk.Request{Host: "node/a", Arrives: "eth0", Forwarded: true, OneWay: true, Packet: packet.Packet{
			TCPFlags: packet.SYN, Tuple: packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.13.76.9"),
				SourcePort: packet.Exactly(40000), Destination: end.Addr(), DestinationPort: packet.Exactly(end.Port())}}})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := Text(&text, r, Options{Owners: ownersOf(objects())}); err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !strings.Contains(text.String(), line) {
				t.Errorf("to %s: no %q in\n%s", to, line, &text)
			}
		}
	}
}
