package firewall_test

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/firewall"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/testing/goldentest"
	"packetwalk.dev/internal/testing/kerneltest"
)

var rules = []firewall.Rule{
	{Name: "web", Protocol: "tcp", Port: 80, To: netip.MustParseAddrPort("10.224.0.100:8080")},
	{Name: "dns", Protocol: "udp", Port: 53, To: netip.MustParseAddrPort("10.224.0.101:53")},
}

// TestGolden: the rules of a firewall with two DNAT rules.
func TestGolden(t *testing.T) {
	goldentest.File(t, "testdata/firewall.txt", firewall.Script(netip.MustParseAddr("172.20.0.4"), rules))
}

// TestScript: nft takes the rules, also over those of before.
func TestScript(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(t.TempDir() + "/ns")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Remove()
	for _, r := range [][]firewall.Rule{rules, nil, rules[:1]} {
		script := firewall.Script(netip.MustParseAddr("172.20.0.4"), r)
		if err := ruleset.ApplyNFT(t.Context(), ns, script); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(script, "DNAT rule "); got != len(r) {
			t.Errorf("%d DNAT rules, want %d", got, len(r))
		}
	}
}
