package iptables_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/listing"
)

// notReadBack are the parts of rules of testdata/listing.save that -L does not show in full.
var notReadBack = []string{"-m policy", "-m string", "-m u32", "-m hashlimit", "255.255.0.255"}

// notReadBackNames are those of which -L without -n shows names that are not read back.
var notReadBackNames = []string{"--tos 0x10", "-j TOS", "--gid-owner 5"}

// TestListingsSayWhatSaveSays loads rules into a namespace and reads them back both ways, with both variants of iptables.
func TestListingsSayWhatSaveSays(t *testing.T) {
	kerneltest.NeedRoot(t)
	rules, err := os.ReadFile("testdata/listing.save")
	if err != nil {
		t.Fatal(err)
	}
	for _, variant := range []string{"nft", "legacy"} {
		for _, flags := range []string{"-nvxL", "-nvL --line-numbers", "-vL", "-nL", "-L --line-numbers"} {
			t.Run(variant+" "+flags, func(t *testing.T) { compareListing(t, rules, variant, flags) })
		}
	}
}

func compareListing(t *testing.T, rules []byte, variant, flags string) {
	const cut = "=== "
	script := fmt.Sprintf(`ipset create foo hash:net && iptables-%[1]s-restore && iptables-%[1]s-save
for t in raw mangle nat filter; do echo "%[3]s$t"; iptables-%[1]s -t $t %[2]s; done`, variant, flags, cut)
	cmd := exec.Command("unshare", "--net", "sh", "-ec", script)
	cmd.Stdin = bytes.NewReader(rules)
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	save, listings, _ := strings.Cut(string(out), cut)
	saved, err := iptables.Parse([]byte(save))
	if err != nil {
		t.Fatal(err)
	}
	verbose, unknown := strings.Contains(flags, "v"), notReadBack
	if option, _, _ := strings.Cut(flags, " "); !strings.Contains(option, "n") {
		unknown = slices.Concat(notReadBack, notReadBackNames)
	}
	compared := 0
	for listed := range strings.SplitSeq(listings, cut) {
		name, text, _ := strings.Cut(listed, "\n")
		table, assumed, err := listing.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		if verbose == (len(assumed) > 0) {
			t.Errorf("%s: assumed %v", name, assumed)
		}
		i := slices.IndexFunc(saved, func(s iptables.Table) bool { return s.Name == name })
		for _, want := range saved[i].Chains {
			got := table.Chain(want.Name)
			if got == nil || got.Policy != want.Policy || len(got.Rules) != len(want.Rules) {
				t.Fatalf("%s %s: %d rules saved, listed: %+v", name, want.Name, len(want.Rules), got)
			}
			for i := range want.Rules {
				compareRule(t, &got.Rules[i], &want.Rules[i], verbose, unknown)
				compared++
			}
		}
	}
	if compared < 150 {
		t.Errorf("%d rules were compared", compared)
	}
}

func compareRule(t *testing.T, got, want *iptables.Rule, verbose bool, unknown []string) {
	saved := want.Spec()
	if slices.ContainsFunc(unknown, func(part string) bool { return strings.Contains(saved, part) }) {
		if got.Unknown == "" {
			t.Errorf("%s: read back as %s, and should be unknown", saved, got.Spec())
		}
		return
	}
	if (got.Counters != nil) != verbose {
		t.Errorf("%s: counters %v", saved, got.Counters)
	}
	w := *want
	if p, err := packet.ParseProtocol(w.Protocol.Name); err == nil {
		w.Protocol.Name = p.String() // iptables 1.8.11 saves numbers where older versions save names
	}
	if !verbose {
		w.In, w.Out = iptables.NameMatch{}, iptables.NameMatch{}
	}
	saved = w.Spec()
	if diff := cmp.Diff(saved, got.Spec()); diff != "" || got.Unknown != "" {
		t.Errorf("saved and listed: %s", diff)
	}
}

func TestListedLines(t *testing.T) {
	for line, want := range map[string]string{
		// iptables 1.6 with -v, a target without a name, and blanks squeezed by a page of the web
		"288142 18188250 KUBE-POSTROUTING all -- * * 0.0.0.0/0 0.0.0.0/0 /* kubernetes postrouting rules */":                                                                         `-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`,
		"0 0 MASQUERADE all -- * !docker0 172.17.0.0/16 0.0.0.0/0":                                                                                                                   "-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
		"3260  203K MASQUERADE  all  --  any    any     anywhere            !10.0.0.0/8           destination IP range ! 168.63.129.16-168.63.129.16 ADDRTYPE match dst-type !LOCAL": "! -d 10.0.0.0/8 -m iprange ! --dst-range 168.63.129.16-168.63.129.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE",
		"MARK       all  --  anywhere             anywhere             MARK or 0x4000":                                                                                               "-j MARK --set-xmark 0x4000/0x4000",
		"    0     0            tcp  --  *      *       0.0.0.0/0            0.0.0.0/0":                                                                                              "-p tcp",
		"           all  --  anywhere             anywhere             /* only note */":                                                                                              `-m comment --comment "only note"`,
		"5        0     0 DNAT       tcp  --  *      *       0.0.0.0/0            0.0.0.0/0            tcp to:10.100.0.9:80":                                                         "-p tcp -m tcp -j DNAT --to-destination 10.100.0.9:80",
		"5    ACCEPT  all  --  localhost/8  anywhere":                                                                                                                                "-s 127.0.0.0/8 -j ACCEPT",
		"MASQUERADE  all  --  anywhere anywhere match-set a src ! match-set b dst":                                                                                                   "-m set --match-set a src -m set ! --match-set b dst -j MASQUERADE",
		"ACCEPT     tcp      fd00::/64            ::/0                 tcp dpt:80":                                                                                                   "-s fd00::/64 -p tcp -m tcp --dport 80 -j ACCEPT",
		"    0     0 ACCEPT     ipv6-icmp    eth0   *       ::/0                 ::/0         ipv6-icmptype 128":                                                                     "-i eth0 -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j ACCEPT",
		"ACCEPT     all  --  10.0.0.0/255.0.0.0   anywhere":                                                                                                                          "-s 10.0.0.0/8 -j ACCEPT",
		"X          all  --  anywhere             anywhere            [goto]  /* a */":                                                                                               "-m comment --comment a -g X",
		"ACCEPT     all  --  db.example           anywhere             tcp dpt:5":                                                                                                    "-s db.example -m tcp --dport 5 -j ACCEPT",
		"ACCEPT     all  --  anywhere             !db.example":                                                                                                                       "! -d db.example -j ACCEPT",
		"DROP       tcp  --  anywhere             10.0.0.1             tcp dpt:unheard-of":                                                                                           `-d 10.0.0.1/32 -p tcp -m listed "tcp dpt:unheard-of" -j DROP`,
		"DROP       all  --  anywhere             anywhere             /* x */ policy match dir in":                                                                                  `-m comment --comment x -m listed "policy match dir in" -j DROP`,
		"LOG        all  --  anywhere             anywhere             LOG level warn shape":                                                                                         `-m listed "LOG level warn shape" -j LOG listed "LOG level warn shape"`,
		"DROP       all  --  anywhere             anywhere             recent: CHECK seconds: 5 name: a side: dest":                                                                  "-m recent --rcheck --seconds 5 --name a --rdest -j DROP",
		"ACCEPT     tcp  --  anywhere             anywhere             multiport dports http,https:8443":                                                                             "-p tcp -m multiport --dports 80,443:8443 -j ACCEPT",
		"ACCEPT     all  --  anywhere             anywhere             state RELATED,ESTABLISHED":                                                                                    "-m state --state RELATED,ESTABLISHED -j ACCEPT",
		"REJECT     tcp  --  anywhere  10.0.0.1   /* default/x has no endpoints */ tcp dpt:http reject-with icmp-port-unreachable":                                                   `-d 10.0.0.1/32 -p tcp -m comment --comment "default/x has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable`,
	} {
		l, ok := iptables.ParseListed(strings.TrimSpace(line), iptables.Columns{})
		if got := l.Rule.Spec(); !ok || got != want {
			t.Errorf("%s\n got %s\nwant %s", line, got, want)
		}
	}
	for _, prose := range []string{
		"This marks all -- really all -- traffic that goes out", "tcp and udp are protocols", "all", "0 -- x y", "MARK all -- a", "",
		"target     prot opt source               destination", "Chain of rules (policy or not)",
	} {
		if l, ok := iptables.ParseListed(prose, iptables.Columns{}); ok && l.Rule.Unknown == "" {
			t.Errorf("%q: taken for the rule %s", prose, l.Rule.Spec())
		}
	}
}

func TestListingErrors(t *testing.T) {
	for text, hint := range map[string]string{
		"ACCEPT all -- anywhere anywhere":                                "line 1",
		"Chain X (1 references)\nhello there":                            "line 2",
		"Chain X (1 references)\ntarget prot opt source destination\n-A": "line 3",
	} {
		if _, _, err := listing.Parse(iptables.Filter, text); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: got %v, want an error with %q", text, err, hint)
		}
	}
}

func FuzzParseListing(f *testing.F) {
	f.Add("Chain X (policy ACCEPT 1 packets, 52 bytes)\npkts bytes target prot opt in out source destination\n0 0 DNAT 6 -- * * 0.0.0.0/0 !10.0.0.0/8 tcp dpt:80 to:10.0.0.1:80")
	f.Add("Chain X (1 references)\nLOG all -- anywhere h /* a */ LOG level warn prefix \"a\" recent: SET name: a side: source mask: 5")
	f.Fuzz(func(t *testing.T, text string) {
		table, _, err := listing.Parse(iptables.NAT, text)
		if err != nil {
			return
		}
		once := iptables.AppendSave(nil, []iptables.Table{table})
		again, err := iptables.Parse(once)
		if err != nil {
			t.Fatalf("cannot read what was printed: %v\n%s", err, once)
		}
		if twice := iptables.AppendSave(nil, again); !bytes.Equal(once, twice) {
			t.Fatalf("printed differently:\n%s\n%s", once, twice)
		}
	})
}

// TestChainHeaderInColumns: column(1) widens the spaces of a listing.
func TestChainHeaderInColumns(t *testing.T) {
	c, ok := iptables.ParseChainHeader("Chain                      KUBE-SERVICES  (2   references)")
	if !ok || c.Name != "KUBE-SERVICES" || c.Unused {
		t.Errorf("%+v, %t", c, ok)
	}
}
