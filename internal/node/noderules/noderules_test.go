package noderules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/goldentest"
)

// TestRules: ranges in (kubenet's by its name), the node's own rules to the letter out.
func TestRules(t *testing.T) {
	docker := netip.MustParsePrefix("172.17.0.0/16")
	goldentest.Run(t, "testdata/*.txtar", 1, func(_ *testing.T, in []txtar.File) []txtar.File {
		var out strings.Builder
		for line := range strings.Lines(string(in[0].Data)) {
			var ranges []netip.Prefix
			words := strings.Fields(line)
			for _, s := range words[1:] {
				ranges = append(ranges, netip.MustParsePrefix(s))
			}
			table, chain, rules := iptables.NAT, postrouting, Masquerade(ranges, docker)
			switch words[0] {
			case "kubenet":
				rules = []iptables.Rule{Docker(docker), Kubenet(ranges[0])}
			case "wireserver":
				table, chain, rules = iptables.Filter, forward, WireServer()
			}
			fmt.Fprintf(&out, "# %s*%s\n", line, table)
			for i := range rules {
				fmt.Fprintf(&out, "%s\n", iptables.AppendRule(nil, chain, &rules[i]))
			}
		}
		return []txtar.File{{Name: "rules", Data: []byte(out.String())}}
	})
}

// TestOtherMasquerade checks that an agent with other ranges removes the rule of the agent before it, and no other writer's rule.
func TestOtherMasquerade(t *testing.T) {
	const (
		others  = "-A POSTROUTING ! -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n"
		before  = "-A POSTROUTING ! -d 10.0.0.0/8 -m iprange ! --dst-range 168.63.129.16-168.63.129.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE\n"
		kubenet = `-A POSTROUTING ! -d 192.168.0.0/16 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" -m addrtype ! --dst-type LOCAL -j MASQUERADE` + "\n"
	)
	rules := Rules{Postrouting: Masquerade([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, netip.Prefix{})}
	now := string(iptables.AppendRule(nil, postrouting, &rules.Postrouting[0])) + "\n"
	for _, c := range []struct{ dump, want string }{
		{others + before + kubenet, "*nat\n-D" + before[2:] + "-D" + kubenet[2:] + now + "COMMIT\n"},
		{others + now + before, "*nat\n-D" + before[2:] + "COMMIT\n"},
		{others + now, ""},
	} {
		edit := rules.Edit(iptables.NAT, []byte("*nat\n:POSTROUTING ACCEPT [0:0]\n"+c.dump+"COMMIT\n"))
		if d := cmp.Diff(c.want, string(iptables.AppendRestore(nil, []iptables.Edit{edit}))); d != "" {
			t.Error(d)
		}
	}
}

// TestWireServer: rules that a chain lacks are appended, and no rule of others is removed.
func TestWireServer(t *testing.T) {
	const (
		plugin = "-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 32526 -j DROP\n"
		http   = "-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 80 -j DROP\n"
		other  = "-A FORWARD -j KUBE-FORWARD\n"
	)
	for _, c := range []struct{ dump, want string }{
		{"", "*filter\n" + plugin + http + "COMMIT\n"},
		{other + http, "*filter\n" + plugin + "COMMIT\n"},
		{plugin + http + other, ""},
	} {
		edit := Rules{Forward: WireServer()}.Edit(iptables.Filter, []byte("*filter\n:FORWARD ACCEPT [0:0]\n"+c.dump+"COMMIT\n"))
		if d := cmp.Diff(c.want, string(iptables.AppendRestore(nil, []iptables.Edit{edit}))); d != "" {
			t.Error(d)
		}
	}
}
