package pastedtext

import (
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
)

// tablesOf reads a text, as iptables-save would print it.
func tablesOf(t *testing.T, text string) (f Contents, saved string) {
	t.Helper()
	f, err := everywhere.parse("", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f, string(iptables.AppendSave(nil, f.Tables))
}

func TestUnannotated(t *testing.T) {
	for line, want := range map[string]string{
		"-A X -j DROP   <--- here":                                   "-A X -j DROP",
		"-A X -j DROP ← this one":                                    "-A X -j DROP",
		"-A X -j DROP # why?":                                        "-A X -j DROP",
		"[1:60] -A X -j DROP <== 60 bytes":                           "[1:60] -A X -j DROP",
		`-A X -m comment --comment "a <- b # c" -j DROP`:             `-A X -m comment --comment "a <- b # c" -j DROP`,
		"DROP  all  --  0.0.0.0/0  0.0.0.0/0  /* a <- b */ <-- this": "DROP  all  --  0.0.0.0/0  0.0.0.0/0  /* a <- b */",
		"default via 10.0.0.1 dev eth0   <-- the gateway":            "default via 10.0.0.1 dev eth0",
		"/ # ip route": "/ # ip route",
		"# a comment":  "# a comment",
		"<--- above":   "<--- above",
	} {
		if got := unannotated(line); got != want {
			t.Errorf("%q: got %q", line, got)
		}
	}
}

func TestLinesOf(t *testing.T) {
	for text, want := range map[string]string{
		"1:*nat\n2:-A A -j B\n3:COMMIT\n":                                                         "*nat\n-A A -j B\nCOMMIT\n",
		"     9\t*nat\n    10\t-A A -j B\n":                                                       "*nat\n-A A -j B\n",
		"17 *nat\n18 -A A -j B\n":                                                                 "*nat\n-A A -j B\n",
		"2026-11-02T10:11:12Z *nat\n2026-11-02T10:11:13Z -A A -j B\n":                             "*nat\n-A A -j B\n",
		"[10:11:12.123] *nat\n[10:11:13.001] -A A -j B\n":                                         "*nat\n-A A -j B\n",
		"0:\tfrom all lookup local\n32766:\tfrom all lookup main\n":                               "0:\tfrom all lookup local\n32766:\tfrom all lookup main\n",
		"1: lo: <LOOPBACK> mtu 65536\n    inet 127.0.0.1/8\n":                                     "1: lo: <LOOPBACK> mtu 65536\n    inet 127.0.0.1/8\n",
		"-A A -m comment --comment &quot;a&quot; -j B\n":                                          "-A A -m comment --comment \"a\" -j B\n",
		"-A A -m comment –comment “a – b” —dport 80 -j B\n":                                       "-A A -m comment --comment \"a – b\" --dport 80 -j B\n",
		"10.0.0.0/24 dev eth0\n10.1.0.0/24 dev eth1\n":                                            "10.0.0.0/24 dev eth0\n10.1.0.0/24 dev eth1\n",
		"1. -A A -s 10.0.0.1 -j B\n2. -A A -j B\n":                                                "-A A -s 10.0.0.1 -j B\n-A A -j B\n",
		">> -A A -j B\n>> -A A -j C\n":                                                            "-A A -j B\n-A A -j C\n",
		"[pod/cni-x/y] *nat\n[pod/cni-x/y] -A A -j B\n":                                           "*nat\n-A A -j B\n",
		"2026-11-02T10:11:12.1Z stdout F *nat\n2026-11-02T10:11:12.22Z stdout F -A A -j B\n":      "*nat\n-A A -j B\n",
		"Nov 02 10:11:12 node-1 dump[77]: *nat\nNov 02 10:11:12 node-1 dump[77]: -A A -j B\n":     "*nat\n-A A -j B\n",
		"│ *nat            │\n│ -A A -j B       │\n":                                              "*nat\n-A A -j B\n",
		"  - \"-A A -m comment --comment \\\"x\\\" -j B\"\n  - \"-A A -j B\"\n":                   "-A A -m comment --comment \"x\" -j B\n-A A -j B\n",
		"Rules:\n1. -A A -j B\n2. -A A -j C\n\nWhy?\n":                                            "Rules:\n-A A -j B\n-A A -j C\n\nWhy?\n",
		"\x1b[1mdefault\x1b[0m via \x1b[35m10.0.0.1\x1b[0m dev eth0\n[0;32m*nat[0m\n[KUBE-X] x\n": "default via 10.0.0.1 dev eth0\n*nat\n[KUBE-X] x\n",
	} {
		var lines []string
		for _, line := range linesOf([]byte(text)) {
			lines = append(lines, line.raw)
		}
		if got := strings.Join(lines, "\n"); got != strings.TrimSuffix(want, "\n") {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

// TestProseBelow: a sentence below a rule is none of it, and what a page's width cut off the rule is.
func TestProseBelow(t *testing.T) {
	const rule = "-A POSTROUTING -s 10.0.0.0/8 -j SNAT --to-source 192.0.2.1\n"
	for below, known := range map[string]bool{
		"This is why the firewall sees it.": true,
		"What does the rule do?":            true,
		"I don't see the others.":           true,
		"-j MASQUERADE":                     true, // not read
		"--random-fully":                    true, // cut off
		"requiring SNAT */":                 true, // not read
	} {
		f, _ := tablesOf(t, "$ iptables -t nat -S\n"+rule+below+"\n")
		if understood := f.Tables[0].Chains[0].Rules[0].Unknown == ""; understood != known {
			t.Errorf("above %q the rule is understood: %v", below, understood)
		}
	}
}

func TestTableOfJumps(t *testing.T) {
	for text, want := range map[string]string{
		"-A OUTPUT -p tcp -j A\n-A A -j B\n-A B -j REDIRECT --to-ports 1\n":      "nat",
		"-A FORWARD -j A\n-A A -j REJECT\n":                                      "filter",
		"-A OUTPUT -j A\n*mangle\n-A A -j MARK --set-xmark 0x1/0x1\nCOMMIT\n":    "mangle",
		"-A OUTPUT -j A\n-A A -j ACCEPT\n":                                       "filter", // iptables' own
		"-A PREROUTING -j A\n-A A -j B\n*raw\n-A B -j ACCEPT\nCOMMIT\n":          "raw",
		"-A A -j REJECT\n*nat\n-A A -j RETURN\nCOMMIT\n-A FORWARD -j A\n":        "filter nat", // two chains of one name: each its own
		"-A FORWARD -j A\n*nat\n-A A -j RETURN\nCOMMIT\n*filter\n-A A\nCOMMIT\n": "filter nat",
	} {
		f, saved := tablesOf(t, text)
		var names []string
		for _, table := range f.Tables {
			names = append(names, table.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: tables %s, want %s:\n%s", text, got, want, saved)
		}
	}
}

// TestDoubts: which rules get a question, and which chains may have more rules.
func TestDoubts(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a dead rule", "$ iptables -t nat -L -n\nChain A (1 references)\ntarget prot opt source destination\n" +
			"RETURN all -- 0.0.0.0/0 0.0.0.0/0\nACCEPT all -- 0.0.0.0/0 0.0.0.0/0\n", "A 1"},
		{"the last rule decides", "$ iptables -t nat -L -n\nChain A (0 references)\ntarget prot opt source destination\n" +
			"LOG all -- 0.0.0.0/0 0.0.0.0/0 LOG flags 0 level 4\nACCEPT all -- 0.0.0.0/0 0.0.0.0/0\n", ""},
		{"interfaces are shown", "$ iptables -t raw -S\n-N A\n-A A -j RETURN\n-A A -j ACCEPT\n-A OUTPUT -j A\n", ""},
		{"nothing leads there", "$ iptables -t raw -S A\n-N A\n-A A -j DROP\n", "PREROUTING 1, OUTPUT 1"},
		{"nothing refers to it", "$ iptables -t raw -L A -nv\nChain A (0 references)\n" +
			" pkts bytes target prot opt in out source destination\n 0 0 DROP all -- * * 0.0.0.0/0 0.0.0.0/0\n", ""},
		{"the table is whole", "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:A - [0:0]\n-A A -j DROP\nCOMMIT\n$ ip route\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, saved := tablesOf(t, c.text)
			var doubts []string
			for _, chain := range f.Tables[0].Chains {
				for i := range chain.Rules {
					if chain.Rules[i].Doubt != "" {
						doubts = append(doubts, chain.Name+" "+string(rune('1'+i)))
					}
				}
			}
			if c.name == "a dead rule" { // and nothing leads to it
				doubts = doubts[:1]
			}
			if got := strings.Join(doubts, ", "); got != c.want {
				t.Errorf("asked about %q, want %q:\n%s", got, c.want, saved)
			}
		})
	}
}

// TestWhole: built-in chains that a text does not show may have rules, but for those of a whole iptables-save.
func TestWhole(t *testing.T) {
	const (
		nat    = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n"
		filter = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"
		nft    = "# Generated by iptables-save v1.8.9 (nf_tables) on Tue Mar  7 10:00:00 2023\n"
		file   = "*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"
	)
	for _, c := range []struct {
		name, text string
		partial    int
	}{
		{"one table", nat, 2 + 5 + 3},
		{"all tables", nat + filter, 0},
		{"lines left out, as a comment says", strings.Replace(nat+filter, "COMMIT", "# ... more rules\nCOMMIT", 1), 2 + 5 + 4},
		{"a file for iptables-restore", file, 2 + 5 + 3 + 2},
		{"all that nf_tables has", nft + file, 0},
		{"one table after the other", "$ iptables-save -t nat\n" + nat + "$ iptables-save -t filter\n" + filter, 2 + 5},
		{"added to since", nat + filter + "$ iptables -I FORWARD -j DROP\n", 1},
		{"with others beside", "# Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n" + nat + filter, 2 + 5 + 4 + 3},
		{"single rules", "$ iptables -t nat -S\n-A POSTROUTING -j ACCEPT\n", 2 + 5 + 4 + 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := tablesOf(t, c.text)
			n := 0
			for _, table := range WithUnshown(f.Tables, f.Whole, f.Beside) {
				for _, chain := range table.Chains {
					if chain.Partial {
						n++
					}
				}
			}
			if n != c.partial {
				t.Errorf("%d chains may have other rules, want %d", n, c.partial)
			}
		})
	}
}

func TestIPCommand(t *testing.T) {
	for command, want := range map[string]ipCommand{
		"ip route":                             {},
		"sudo ip -6 route show":                {ipv6: true},
		"ip route show table 2":                {table: "2"},
		"ip r s t vpn":                         {table: "vpn"},
		"/sbin/ip -4 r list table main":        {table: "main"},
		"ip route show table all":              {table: "all"},
		"ip addr":                              {},
		"iptables -t nat -S":                   {},
		"ip netns exec a ip route list tab 10": {table: "10"},
		"ip route show default":                {some: true},
		"ip r ls dev eth0":                     {some: true},
		"ip route show proto bird | head":      {some: true},
		"ip route get 8.8.8.8":                 {some: true, get: true},
		"ip route show vrf blue":               {table: "blue", vrf: true},
		"ip -4 a s dev eth0":                   {some: true},
		"ip addr show":                         {},
		"ip -n blue addr show eth0":            {some: true},
		"ip rule list table 10":                {some: true},
		"ip route > routes.txt":                {},
	} {
		got := parseIP(command)
		if got.lists, got.part = "", ""; got != want {
			t.Errorf("%q: got %+v", command, got)
		}
	}
	text := ipCommand{table: "2"}.withTable("default via 10.0.0.1 dev a\nunreachable 10.1.0.0/16\n10.2.0.0/16 table 3\n\tnexthop dev b\n")
	if want := "default table 2 via 10.0.0.1 dev a\nunreachable 10.1.0.0/16 table 2\n10.2.0.0/16 table 3\n\tnexthop dev b\n"; text != want {
		t.Errorf("with a table: %q", text)
	}
}

// checkLines: every line of a text has exactly one fate, and one that was not read is noted.
func checkLines(t *testing.T, text string) snapshot.Account {
	t.Helper()
	s := scanner{known: everywhere, Fates: Fates{lines: linesOf([]byte(text))}}
	s.scan()
	if lines := strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1; len(s.Account) != lines {
		t.Fatalf("%d lines have a fate, and there are %d", len(s.Account), lines)
	}
	for i, line := range s.Account {
		if line.As == "" {
			t.Fatalf("line %d was taken as nothing", i+1)
		}
	}
	return s.Account
}

// TestAccount: each line is one of read (r), without effect (-) and not read (n).
func TestAccount(t *testing.T) {
	for text, want := range map[string]string{
		"Hello, these are my rules:\n$ iptables -t nat -S\n-A POSTROUTING -j MASQUERADE\nWhat is wrong here?\n":            "-rr-",
		"*nat\n:POSTROUTING ACCEPT [0:0]\n...\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n":                                     "rrnrr",
		"*nat\n:POSTROUTING ACCEPT [0:0]\nwhat is this\nCOMMIT\n":                                                          "rrnr",
		"$ iptables -t nat -S\n-A POSTROUTING -s 10.0.0.0/8\n-j MASQUERADE\n\n$ ip route\ndefault via 10.0.0.1 dev eth0\n": "rrr--r",
		"$ ip route\ndefault via 10.0.0.1 dev eth0\nThe policy of FORWARD is DROP.\n":                                      "-rn",
		"$ ip route del default\n$ ip link set eth0 up\n$ uname -a\n":                                                      "n--",
		"$ ping 8.8.8.8\n64 bytes from 8.8.8.8: icmp_seq=1 ttl=55 time=8.1 ms\n":                                           "--",
		"sudo sysctl -w net.ipv4.ip_forward=1\necho 1 > /proc/sys/net/ipv4/ip_forward\n":                                   "rr",
		"-A PREROUTING -i eth0 -j MINE\n-A FORWARD -j DROP\n":                                                              "rr",
	} {
		var got strings.Builder
		for _, line := range checkLines(t, text) {
			got.WriteByte("r-n"[line.Fate])
		}
		if got.String() != want {
			t.Errorf("%q: %s, want %s", text, got.String(), want)
		}
	}
}

// TestLinesBetween: rules below a sentence within the output of one command are of that output.
func TestLinesBetween(t *testing.T) {
	f, saved := tablesOf(t, "$ iptables -t nat -S\n-P POSTROUTING ACCEPT\n-N A\n-A POSTROUTING -j A\nThis is the rule that I mean.\n-A A -j MASQUERADE\n")
	a := f.Tables[0].Chain("A")
	if a == nil || len(a.Rules) != 1 || !a.Partial {
		t.Errorf("chain A is not read, or thought to be whole:\n%s", saved)
	}
}
