package noderules

import (
	"fmt"
	"net/netip"
	"slices"
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
			case "imds":
				table, chain, rules = iptables.Filter, forward, []iptables.Rule{RestrictMetadata(ranges[0].Addr())}
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

// TestForward: the node's rules come to stand in their order at the end of the chain, with an IMDS restriction of the node's present address or
// with none, and no rule of others is removed.
func TestForward(t *testing.T) {
	const (
		plugin = "-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 32526 -j DROP\n"
		http   = "-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 80 -j DROP\n"
		other  = "-A FORWARD -j KUBE-FORWARD\n"
		imds   = "-A FORWARD ! -s 10.224.0.4/32 -d 169.254.169.254/32 -p tcp -m tcp --dport 80 -m comment --comment " +
			`"AKS managed: added by AgentBaker ensureIMDSRestriction for IMDS restriction feature" -j DROP` + "\n"
	)
	gone := func(rule string) string { return "-D" + rule[2:] }
	earlier := strings.Replace(imds, "10.224.0.4", "10.224.0.9", 1)
	restriction := RestrictMetadata(netip.MustParseAddr("10.224.0.4"))
	unsaid, closed, open := Rules{Forward: WireServer()}, Rules{Forward: append([]iptables.Rule{restriction}, WireServer()...)},
		Rules{Forward: WireServer(), OpenMetadata: true}
	for name, c := range map[string]struct {
		rules      Rules
		dump, want string
	}{
		"none yet":                 {unsaid, "", plugin + http},
		"one is missing":           {unsaid, other + http, gone(http) + plugin + http},
		"all there":                {unsaid, plugin + http + other, ""},
		"nothing said of IMDS":     {unsaid, imds + plugin + http, ""},
		"restriction":              {closed, "", imds + plugin + http},
		"restriction switched on":  {closed, other + plugin + http, gone(plugin) + gone(http) + imds + plugin + http},
		"restriction there":        {closed, imds + plugin + http, ""},
		"of another address":       {closed, earlier + plugin + http, gone(earlier) + gone(plugin) + gone(http) + imds + plugin + http},
		"restriction switched off": {open, other + imds + plugin + http, gone(imds)},
		"off and never on":         {open, other + plugin + http, ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.want
			if want != "" {
				want = "*filter\n" + want + "COMMIT\n"
			}
			edit := c.rules.Edit(iptables.Filter, []byte("*filter\n:FORWARD ACCEPT [0:0]\n"+c.dump+"COMMIT\n"))
			if d := cmp.Diff(want, string(iptables.AppendRestore(nil, []iptables.Edit{edit}))); d != "" {
				t.Error(d)
			}
		})
	}
	if got := (Rules{OpenMetadata: true}).Tables(); !slices.Equal(got, []string{iptables.Filter}) {
		t.Errorf("tables %s", got)
	}
}

// TestSkipConntrack: eight rules, in the order in which AKS's script appends them.
func TestSkipConntrack(t *testing.T) {
	rules := Rules{Untracked: SkipConntrack(netip.MustParseAddr("169.254.10.10"), netip.MustParseAddr("169.254.10.11"))}
	var want strings.Builder
	for _, chain := range []string{"OUTPUT", "PREROUTING"} {
		for _, address := range []string{"169.254.10.10", "169.254.10.11"} {
			for _, protocol := range []string{"tcp", "udp"} {
				fmt.Fprintf(&want, `-A %s -d %s/32 -p %s -m comment --comment "localdns: skip conntrack" -m %s --dport 53 -j NOTRACK`+"\n",
					chain, address, protocol, protocol)
			}
		}
	}
	edit := rules.Edit(iptables.Raw, []byte("*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"))
	if d := cmp.Diff("*raw\n"+want.String()+"COMMIT\n", string(iptables.AppendRestore(nil, []iptables.Edit{edit}))); d != "" {
		t.Error(d)
	}
	if edit = rules.Edit(iptables.Raw, []byte("*raw\n"+want.String()+"COMMIT\n")); !edit.IsZero() {
		t.Errorf("rules that are there: %s", iptables.AppendRestore(nil, []iptables.Edit{edit}))
	}
}
