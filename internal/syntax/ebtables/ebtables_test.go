package ebtables

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/nftables"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/ruletest"
)

func parsed(t *testing.T, text string) *Tables {
	t.Helper()
	e, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// withoutComments returns a saved text without comments and spaces at line ends.
func withoutComments(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func TestPrint(t *testing.T) {
	text := string(read(t, "testdata/ebtables.txt"))
	if got := withoutComments(parsed(t, text).String()); got != withoutComments(text) {
		t.Errorf("printed differently:\n%s", got)
	}
}

// TestReal: but for names of bridges, which not every kernel can test, what the real tool saves is printed again, and what is printed can
// be restored.
func TestReal(t *testing.T) {
	saved := inNamespace(t, `grep -v -- --logical "$1" | ebtables-restore; ebtables-save`, "testdata/ebtables.txt")
	printed := parsed(t, saved).String()
	if withoutComments(saved) != withoutComments(printed) {
		t.Errorf("saved:\n%s\nprinted:\n%s", saved, printed)
	}
	again := inNamespace(t, `printf %s "$1" | ebtables-restore; ebtables-save -c`, printed)
	e := parsed(t, again)
	for i := range e.Tables {
		for j := range e.Tables[i].Rules {
			r := &e.Tables[i].Rules[j]
			if r.Counters != "[0:0]" {
				t.Errorf("counters of %q: %q", r.Text, r.Counters)
			}
			r.Counters = ""
		}
	}
	if withoutComments(e.String()) != withoutComments(printed) {
		t.Errorf("restored:\n%s\nprinted:\n%s", e, printed)
	}
}

func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		"-A INPUT -j DROP\n":     "line 1: ",
		"*filter\n:INPUT\n":      "line 2: ",
		"*filter\nINPUT -j DROP": "line 2: ",
		"*filter\n-A":            "line 2: ",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"*filter\n:A ACCEPT\n:A ACCEPT\n", "*filter\n:A WHAT\n", "*filter\n-A X -j DROP\n"} {
		if _, err := Lower(parsed(t, text)); err == nil {
			t.Errorf("%q is lowered", text)
		}
	}
}

func mac(s string) packet.MAC {
	v, _ := nftables.ParseValue(s, "ether_addr")
	return v.MAC()
}

// TestWalk runs frames through the chains of the test data.
func TestWalk(t *testing.T) {
	tables, err := Lower(parsed(t, string(read(t, "testdata/ebtables.txt"))))
	if err != nil {
		t.Fatal(err)
	}
	rs := &netfilter.Ruleset{Tables: tables}
	rs.Index()
	bridgeMAC := mac("02:00:00:00:00:01")
	host := ruletest.Links{"eth0": {Master: "br0"}, "eth1": {Master: "br1"}, "br0": {MAC: bridgeMAC}}
	ip := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.244.0.1"),
		Destination: netip.MustParseAddr("10.0.0.6"),
		SourcePort:  packet.Exactly(1), DestinationPort: packet.Exactly(85)}, Frame: packet.Frame{Type: packet.EtherIPv4,
		Source: mac("aa:bb:cc:dd:ee:ff"), Destination: mac("aa:00:00:00:00:01")}, Local: packet.Local{In: "eth0"}}
	request := packet.Packet{Frame: packet.Frame{Type: packet.EtherARP, Source: mac("aa:00:00:00:00:02"), Destination: packet.Broadcast,
		ARP: &packet.ARP{SenderMAC: mac("aa:00:00:00:00:02"), Sender: netip.MustParseAddr("10.0.0.9"), Target: netip.MustParseAddr("10.0.0.5")}},
		Local: packet.Local{In: "eth0"}}
	for name, c := range map[string]struct {
		table, chain string
		packet       packet.Packet
		change       func(p *packet.Packet)
		want         netfilter.VerdictKind
		check        func(p *packet.Packet) bool
	}{
		"request answered": {table: "nat", chain: "PREROUTING", packet: request, want: netfilter.Stolen},
		"reply to all": {table: "nat", chain: "PREROUTING", packet: request,
			change: func(p *packet.Packet) { p.Frame.ARP = &packet.ARP{Reply: true} },
			want:   netfilter.Accept, check: func(p *packet.Packet) bool {
				return p.Frame.Destination == packet.Broadcast && p.Cast == packet.BroadcastFrame
			}},
		"pod's frame": {table: "nat", chain: "PREROUTING", packet: ip, want: netfilter.Accept,
			check: func(p *packet.Packet) bool { return p.Frame.Destination == mac("aa:bb:cc:dd:ee:06") }},
		"redirected": {table: "nat", chain: "PREROUTING", packet: ip, change: func(p *packet.Packet) {
			p.Destination, p.Frame.Destination = netip.MustParseAddr("10.0.0.7"), mac("1:2:3:4:5:6")
		}, want: netfilter.Accept, check: func(p *packet.Packet) bool { return p.Frame.Destination == bridgeMAC }},
		"source set, in ARP too": {table: "nat", chain: "POSTROUTING", packet: request,
			change: func(p *packet.Packet) { p.In, p.Out = "", "eth0" },
			want:   netfilter.Accept, check: func(p *packet.Packet) bool {
				return p.Frame.Source == mac("12:34:56:78:9a:bc") && p.Frame.ARP.SenderMAC == p.Frame.Source
			}},
		"gateway's own": {table: "filter", chain: "OUTPUT", packet: ip, change: func(p *packet.Packet) { p.In, p.Out = "", "veth1" },
			want: netfilter.Accept},
		"dedup": {table: "filter", chain: "OUTPUT", packet: ip, change: func(p *packet.Packet) {
			p.In, p.Out, p.Frame.Source, p.Source = "", "veth1", mac("02:00:00:00:00:02"), netip.MustParseAddr("10.0.0.1")
		}, want: netfilter.Drop},
		"dedup, another port": {table: "filter", chain: "OUTPUT", packet: ip, change: func(p *packet.Packet) {
			p.In, p.Out, p.Frame.Source, p.Source = "", "veth1", mac("02:00:00:00:00:02"), netip.MustParseAddr("10.0.0.1")
			p.DestinationPort = packet.Exactly(91)
		}, want: netfilter.Accept},
		"marked": {table: "filter", chain: "INPUT", packet: ip, change: func(p *packet.Packet) { p.Mark, p.Cast = 3, packet.MulticastFrame },
			want: netfilter.Accept, check: func(p *packet.Packet) bool { return p.Mark == 0x13 }},
	} {
		p := c.packet
		if c.change != nil {
			c.change(&p)
		}
		i := slices.IndexFunc(tables, func(t *netfilter.Table) bool { return t.Name == c.table })
		chain := tables[i].Chain(c.chain)
		chooser := &ruletest.First{}
		ctx := &netfilter.Context{Packet: &p, Family: netfilter.Bridge, Hook: chain.Base.Hook, Host: host, Chooser: chooser}
		v, err := chain.Run(ctx)
		if err != nil || v.Kind != c.want || len(chooser.Asked) > 0 {
			t.Errorf("%s: %v %q, %v, asked %q", name, v.Kind, v.Detail, err, chooser.Asked)
		}
		if c.check != nil && !c.check(&p) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestForeign: tables of iptables-nft are recognised, and get their rules from what it saves, with handles.
func TestForeign(t *testing.T) {
	rs := parse(t, read(t, "../nftables/testdata/xtables.json"))
	var names []string
	for _, f := range rs.Foreign() {
		names = append(names, f.Family.String()+" "+f.Name)
	}
	if want := []string{"ip nat", "ip filter", "ip6 filter", "bridge nat", "bridge filter"}; !slices.Equal(names, want) {
		t.Errorf("foreign: %q, want %q", names, want)
	}
	for _, name := range []string{"kube-proxy", "others", "fabric-world-a"} {
		if f := parse(t, read(t, "../nftables/testdata/"+name+".json")).Foreign(); len(f) > 0 {
			t.Errorf("%s: foreign %v", name, f[0].Name)
		}
	}
	out := inNamespace(t, `grep -v -- --logical "$1" | ebtables-restore; nft -j list ruleset; ebtables-save`, "testdata/ebtables.txt")
	dump, saved, _ := strings.Cut(out, "\n")
	rs = parse(t, []byte(dump))
	eb, err := Lower(parsed(t, saved))
	if err != nil {
		t.Fatal(err)
	}
	joined, missing := rs.Join(lower(t, rs), eb)
	if len(missing) > 0 || len(joined) != 2 {
		t.Fatalf("%d tables, missing %q", len(joined), missing)
	}
	listed, rules := strings.Count(dump, `{"rule": `), 0
	for _, table := range joined {
		for _, c := range table.Chains {
			for i := range c.Rules {
				rules++
				if c.Rules[i].Handle == 0 {
					t.Errorf("%s has no handle", c.Ref(&c.Rules[i]))
				}
			}
		}
	}
	if rules != listed {
		t.Errorf("%d rules lowered, %d listed", rules, listed)
	}
	// A table that ebtables has made on demand lacks base chains that ebtables-save prints nevertheless.
	rs = parse(t, read(t, "../nftables/testdata/xtables.json"))
	eb, err = Lower(parsed(t, "*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n"))
	if err != nil {
		t.Fatal(err)
	}
	joined, missing = rs.Join(lower(t, rs), eb)
	if len(missing) != 4 {
		t.Errorf("missing: %q", missing)
	}
	for _, table := range joined {
		if table == eb[0] && (table.Chain("OUTPUT") != nil || table.Chain("PREROUTING") == nil) {
			t.Errorf("joined %v", table.Chains)
		}
	}
}

func inNamespace(t *testing.T, script string, args ...string) string {
	t.Helper()
	kerneltest.NeedRoot(t)
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--net", "sh", "-ec", script, "sh"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, cmd.Stderr)
	}
	return string(out)
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t *testing.T, data []byte) *nftables.Ruleset {
	t.Helper()
	rs, err := nftables.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func lower(t *testing.T, rs *nftables.Ruleset) []*netfilter.Table {
	t.Helper()
	tables, err := nftables.Lower(rs)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}
