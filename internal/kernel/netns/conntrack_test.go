package netns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/testing/netnstest"
)

func TestRuleSetsAndFlows(t *testing.T) {
	a, b := netnstest.Pair(t)
	script := "table ip t { chain c { type filter hook prerouting priority 0; ct mark set 7\n }\n }\n"
	if err := ruleset.ApplyNFT(t.Context(), b, script); err != nil {
		t.Fatal(err)
	}
	if err := ruleset.ApplyNFT(t.Context(), b, "flush ruleset\nnonsense\n"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("bad script: %v", err)
	}
	if dump := netnstest.Run(t, b, "nft", "list", "ruleset"); !strings.Contains(dump, "chain c ") {
		t.Errorf("the failed script changed something: %s", dump)
	}
	if err := ruleset.RestoreIPTables(t.Context(), b, "*filter\n-A INPUT -s 1.2.3.4 -j DROP\nCOMMIT\n", true); err != nil {
		t.Fatal(err)
	}
	if dump := netnstest.Run(t, b, "iptables-save"); !strings.Contains(dump, "-A INPUT -s 1.2.3.4/32 -j DROP") {
		t.Error(dump)
	}
	for port := range 3 {
		l, err := b.Listen(t.Context(), "tcp", fmt.Sprintf("10.9.0.2:%d", 8000+port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := a.Dial(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	all, err := b.Flows()
	if err != nil || len(all) != 3 {
		t.Fatalf("%v %v", all, err)
	}
	f := all[0]
	if f.Protocol != 6 || f.Source.Addr().String() != "10.9.0.1" || f.ReplyDestination != f.Source || f.Mark != 7 || f.TimeoutSeconds == 0 ||
		f.Status == 0 {
		t.Errorf("flow %+v", f)
	}
	for _, c := range []struct {
		filter netns.FlowFilter
		want   int
	}{
		{netns.FlowFilter{DestinationPort: 8001, Mark: 8, Mask: 0xff}, 0},
		{netns.FlowFilter{Protocol: 17}, 0},
		{netns.FlowFilter{DestinationPort: 8001, Mark: 7, Mask: 0xff}, 1},
		{netns.FlowFilter{Protocol: 6, Destination: netip.MustParsePrefix("10.9.0.0/24")}, 2},
	} {
		if got, err := b.DeleteFlows(c.filter); err != nil || got != c.want {
			t.Errorf("%+v deleted %d, want %d: %v", c.filter, got, c.want, err)
		}
	}
	if n, err := b.DeleteFlows(); n != 0 || err != nil {
		t.Error(n, err)
	}
}
