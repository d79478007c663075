package iptables

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// lowerRule lowers one rule of the filter table, and gives its statements.
func lowerRule(t testing.TB, spec string) []netfilter.Statement {
	t.Helper()
	dump := "*filter\n:INPUT ACCEPT [0:0]\n:NEXT - [0:0]\n-A INPUT " + spec + "\nCOMMIT\n"
	tables, err := Parse([]byte(dump))
	if err != nil {
		t.Fatal(err)
	}
	lowered, err := Lower(tables, netfilter.IPv4, netfilter.IPTablesLegacy)
	if err != nil {
		t.Fatal(err)
	}
	r := lowered[0].Chain("INPUT").Rules[0]
	if r.Text != spec {
		t.Errorf("text %q, want %q", r.Text, spec)
	}
	return r.Statements
}

func words(statements []netfilter.Statement) string {
	var parts []string
	for _, s := range statements {
		parts = append(parts, s.String())
	}
	return strings.Join(parts, "; ")
}

func TestRulesInWords(t *testing.T) {
	for _, test := range []struct{ spec, want string }{
		{"-s 10.0.0.0/8 ! -d 10.0.0.1/32 -i eth0 ! -o veth+ -p tcp -j ACCEPT",
			"source in 10.0.0.0/8; destination is not 10.0.0.1; came in by eth0; does not go out of veth+; protocol tcp; accept"},
		{"! -f -j DROP", "is whole or a first fragment; drop"},
		{"-p tcp -m tcp --sport 1:1023 ! --dport 80 -j NEXT", "protocol tcp; source port 1-1023; destination port not 80; jump to chain NEXT"},
		{"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -g NEXT", "protocol tcp; opens a TCP connection (SYN); go to chain NEXT"},
		{"-p udp -m multiport --dports 53,1000:2000 -j RETURN", "protocol udp; destination port 53,1000-2000; return"},
		{"-p icmp -m icmp --icmp-type 3/1 -j ACCEPT", "protocol icmp; icmp type 3 code 1; accept"},
		{"-p icmp -m icmp --icmp-type any -j ACCEPT", "protocol icmp; icmp type any; accept"},
		{"-m mark ! --mark 0x4000/0x4000 -j RETURN", "mark lacks 0x4000; return"},
		{"-m connmark --mark 0x1 -j RETURN", "connection mark is 0x1; return"},
		{"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "connection state ESTABLISHED,RELATED; accept"},
		{"-m conntrack ! --ctstate DNAT --ctdir REPLY --ctorigdst 10.0.0.0/8 --ctorigdstport 80 -j ACCEPT",
			"connection state not DNAT, direction reply, connection's original destination in 10.0.0.0/8, connection's original destination port 80; accept"},
		{"-m addrtype ! --src-type LOCAL --dst-type LOCAL,BROADCAST --limit-iface-in -j ACCEPT",
			"source is not LOCAL on the incoming interface; destination is LOCAL or BROADCAST on the incoming interface; accept"},
		{"-m set ! --match-set foo src,dst -j ACCEPT", "source and destination not in set foo; accept"},
		{"-m statistic --mode random --probability 0.50000000000 -j ACCEPT", "at random, with probability 0.5; accept"},
		{"-m statistic --mode nth --every 3 --packet 0 -j ACCEPT", "one packet of every 3; accept"},
		{"-m physdev ! --physdev-is-in -j ACCEPT", "did not come in by a bridge port; accept"},
		{"-m physdev --physdev-in veth+ -j ACCEPT", "came in by bridge port veth+; accept"},
		{"-m owner --uid-owner 1000-2000 ! --gid-owner 5 -j ACCEPT", "sent by user 1000-2000 and group not 5; accept"},
		{"-m mac --mac-source 00:11:22:33:44:55 -j ACCEPT", "frame's source is 00:11:22:33:44:55; accept"},
		{"-m pkttype ! --pkt-type multicast -j ACCEPT", "frame is not multicast; accept"},
		{"-m length --length 0:84 -j ACCEPT", "length 0-84 bytes; accept"},
		{"-m devgroup --src-group default ! --dst-group default/0xf -j ACCEPT",
			"incoming interface in group 0x0; outgoing interface not in group 0x0/0xf; accept"},
		{"-m devgroup --src-group defaults -j ACCEPT", "not understood: -m devgroup --src-group defaults; accept"},
		{"-m ttl --ttl-lt 5 -j ACCEPT", "TTL 0-4; accept"},
		{"-m dscp --dscp 0x0a -j ACCEPT", "DSCP 0x0a; accept"},
		{"-m tos --tos 0x10/0x3f -j ACCEPT", "TOS 0x10/0x3f; accept"},
		{"-m iprange ! --dst-range 168.63.129.16-168.63.129.16 -j ACCEPT", "destination is not 168.63.129.16; accept"},
		{"-m iprange --src-range 10.0.0.1-10.0.0.9 -j ACCEPT", "source in 10.0.0.1-10.0.0.9; accept"},
		{"-m limit --limit 5/min -j ACCEPT", "by what came before: limit --limit 5/min; accept"},
		{"-m recent --set --name L --mask 255.255.255.255 --rsource -m tcp -j ACCEPT", "note the source in list L; accept"},
		{"-m recent --rcheck --seconds 10800 --reap --name L --mask 255.255.255.255 --rsource -j ACCEPT",
			"the source is in list L, seen in the last 10800 s; accept"},
		{"-m recent ! --update --seconds 60 --hitcount 4 --rttl --rdest -j DROP",
			"the destination is not in list DEFAULT, seen in the last 60 s, 4 times, with the same TTL; note it if so; drop"},
		{"-m recent --remove --name L -j DROP", "take the source out of list L, where it is in it; drop"},
		{"-m recent ! --set --name L -j DROP", "note the source in list L; never matches; drop"},
		{"-m nfacct --nfacct-name  x -j DROP", "count in accounting object x (assumed to have no quota); drop"},
		{"-m rpfilter --invert --loose -j DROP", "answers would not go back; drop"},
		{"-m helper --helper ftp -j ACCEPT", "connection was expected by helper ftp; accept"},
		{"-m comment --comment \"only a note\"", ""},
		{"-j MARK --set-xmark 0x4000/0x4000", "set bits 0x4000 in the mark"},
		{"-j MARK --set-xmark 0x0/0xffff00ff", "clear bits 0xffff00ff in the mark"},
		{"-j MARK --set-mark 0x1/0x2", "clear bits 0x3 in the mark and flip 0x1"},
		{"-j MARK --and-mark 0xff", "clear bits 0xffffff00 in the mark"},
		{"-j MARK --xor-mark 0x4000", "flip bits 0x4000 in the mark"},
		{"-j CONNMARK --save-mark --nfmask 0xff --ctmask 0xff00", "copy the mark to the connection mark (masks 0xff and 0xff00)"},
		{"-j CONNMARK --restore-mark", "copy the connection mark to the mark"},
		{"-j CONNMARK --set-xmark 0x5/0xffffffff", "set the connection mark to 0x5"},
		{"-j MASQUERADE --random-fully", "translate the source to the address of the outgoing interface, port at random"},
		{"-p tcp -j MASQUERADE --to-ports 1024-2048",
			"protocol tcp; translate the source to the address of the outgoing interface ports 1024-2048"},
		{"-p tcp -j SNAT --to-source 1.2.3.4-1.2.3.6:5-9", "protocol tcp; translate the source to 1.2.3.4-1.2.3.6 ports 5-9"},
		{"-p tcp -j DNAT --to-destination 10.0.0.1:80", "protocol tcp; translate the destination to 10.0.0.1 port 80"},
		{"-p tcp -j DNAT --to-destination :80 --persistent",
			"protocol tcp; translate the destination to port 80, the same for every connection of a client"},
		{"-p tcp -j REDIRECT --to-ports 8080", "protocol tcp; translate the destination to this machine port 8080"},
		{"-j NETMAP --to 10.1.0.0/16", "translate the destination to the same host of 10.1.0.0-10.1.255.255"},
		{"-j LOG --log-prefix x", "log"},
		{"-j REJECT --reject-with tcp-reset", "reject with tcp-reset"},
		{"-j NFQUEUE --queue-num 3", "hand to the reader of queue 3"},
		{"-j TTL --ttl-inc 1", "raise the TTL by 1"},
		{"-j DSCP --set-dscp 0x0a", "set DSCP to 0x0a"},
		{"-j TOS --set-tos 0x10/0x3f", "set TOS to 0x10/0x3f"},
		{"-j CT --notrack", "do not track the connection"},
		{"-j CT --zone 7", "track the connection in zone 7"},
		{"-j CT --zone-orig 7", "track the connection in zone 7 in the direction of requests"},
		{"-j CT --zone-reply mark", "track the connection in the zone of the mark"},
		{"-j CLASSIFY --set-class 0001:0010", "set the class to 1:10"},
		{"-j SET --add-set foo src --exist", "add the src to set foo"},
		{"-p tcp -j TPROXY --on-port 80 --on-ip 127.0.0.1 --tproxy-mark 0x1/0x1",
			"protocol tcp; hand to the transparent socket 127.0.0.1 port 80"},
		// What people, older versions and other systems write.
		{"-p ipencap -j ACCEPT", "protocol ipencap; accept"},
		{"-p vrrp -j ACCEPT", "protocol vrrp; accept"},
		{"-p ospfigp -j ACCEPT", "protocol ospf; accept"},
		{"-p TCP --dport http -j ACCEPT", "protocol tcp; destination port 80; accept"},
		{"-p tcp -m multiport --destination-ports ssh,8000:8010 -j ACCEPT", "protocol tcp; destination port 22,8000-8010; accept"},
		{"-p ! tcp -d ! 10.0.0.0/255.0.0.0 -i ! eth0 -j DROP",
			"destination not in 10.0.0.0/8; did not come in by eth0; protocol is not tcp; drop"},
		{"-p tcp -m tcp --dport ! 80 -j DROP", "protocol tcp; destination port not 80; drop"},
		{"-p tcp --source 10.0.0.1 --destination-port 80 --jump ACCEPT", "source is 10.0.0.1; protocol tcp; destination port 80; accept"},
		{"-p ipv6-icmp --icmpv6-type 135 -j ACCEPT", "protocol ipv6-icmp; ipv6-icmp type 135; accept"},
		{"-m conntrack --ctdir Reply -j ACCEPT", "direction reply; accept"},
		{"-m addrtype --dst-type local -j ACCEPT", "destination is LOCAL; accept"},
		{"-m set --set foo src -j DROP", "source in set foo; drop"},
		{"-m set --match-set foo src ! --update-counters -j DROP", "source in set foo; drop"},
		{"-m comment --comment kubernetes service portals -j NEXT", "jump to chain NEXT"},
		{"-p tcp -j DNAT --to 10.0.0.1:80", "protocol tcp; translate the destination to 10.0.0.1 port 80"},
		{"-p tcp -j REDIRECT --to-port 8080", "protocol tcp; translate the destination to this machine port 8080"},
		{"-j AUDIT --type drop", "write an audit record"},
		{"-j TEE --gateway 10.0.0.9", "send a copy elsewhere"},
		{"-j TCPOPTSTRIP --strip-options 2,3", "strip TCP options"},
		{"-j SECMARK --selctx system_u:object_r:ssh_server_packet_t:s0", "set the security mark"},
		{"-j CONNSECMARK --save", "copy the security mark"},
		{"-j ECN --ecn-tcp-remove", "clear the ECN bits of TCP"},
		// What is not understood.
		{"-m policy --dir in --pol ipsec --reqid 1 --proto esp -j ACCEPT",
			"not understood: -m policy --dir in --pol ipsec --reqid 1 --proto esp; accept"},
		{"-m policy --dir in --proto esp -m foo -j ACCEPT", "not understood: -m policy --dir in --proto esp; not understood: -m foo; accept"},
		{"-m foo --proto http --bar --proto tcp -j DROP", "not understood: -m foo --proto http --bar --proto tcp; drop"},
		{"-j ECN --ecn-tcp-cwr 1", "not understood: -j ECN --ecn-tcp-cwr 1"},
		{"-j SNAT --to-source 10.0.0.1 --rand", "not understood: -j SNAT --to-source 10.0.0.1 --rand"}, // --random or --random-fully
		{"-m string --string x --algo bm --to 65535 -j DROP", "not understood: -m string --string x --algo bm --to 65535; drop"},
		{"-m foo --bar 1 -s 10.0.0.0/8 -m tcp --dport 80 -j DROP",
			"source in 10.0.0.0/8; destination port 80; not understood: -m foo --bar 1; drop"},
		{"-p tcp --dport 80 --odd 1 -j ACCEPT", "protocol tcp; not understood: --dport 80 --odd 1; accept"},
		{"-s 10.0.0.0/8 -j FOO --bar 1", "source in 10.0.0.0/8; not understood: -j FOO --bar 1"},
		{"-m foo ! --bar \"a b\" --jump ACCEPT", `not understood: -m foo ! --bar "a b"; accept`},
		{"! -d 10.0.0.1/255.255.0.255 -j ACCEPT", "destination is not 10.0.0.1 under mask 255.255.0.255; accept"},
		{"-j DROP -m foo --bar 1 -p tcp -m tcp --dport 80", "protocol tcp; destination port 80; not understood: -m foo --bar 1; drop"},
		{"-j MISSING", "jump to chain MISSING"},
		{"-m comment --comment a\"b -j ACCEPT",
			"not understood: -m comment --comment a\"b -j ACCEPT; not understood: -m comment --comment a\"b -j ACCEPT"},
		{"-p tcp -j DNAT --to-destination 10.0.0.1:99999", "protocol tcp; not understood: -j DNAT --to-destination 10.0.0.1:99999"},
		{"-m ttl --ttl-eq 300 -j DROP", "not understood: -m ttl --ttl-eq 300; drop"},
	} {
		if got := words(lowerRule(t, test.spec)); got != test.want {
			t.Errorf("%s\n got %s\nwant %s", test.spec, got, test.want)
		}
	}
}

func TestTranslationRanges(t *testing.T) {
	for _, test := range []struct{ option, want string }{
		{"10.0.0.1", "10.0.0.1-10.0.0.1 0-0/0"},
		{"10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9 0-0/0"},
		{"10.0.0.1:80", "10.0.0.1-10.0.0.1 80-80/0"},
		{"10.0.0.1:80-90/8080", "10.0.0.1-10.0.0.1 80-90/8080"},
		{":80-90", "invalid IP-invalid IP 80-90/0"},
		{"fd00::1", "fd00::1-fd00::1 0-0/0"},
		{"fd00::1-fd00::9", "fd00::1-fd00::9 0-0/0"},
		{"[fd00::1]:80", "fd00::1-fd00::1 80-80/0"},
		{"[fd00::1-fd00::9]:80-90", "fd00::1-fd00::9 80-90/0"},
		{"", ""}, {":", ""}, {"x", ""}, {"10.0.0.1:", ""}, {"10.0.0.1-fd00::1", ""}, {"[fd00::1", ""}, {"[fd00::1]80", ""}, {"10.0.0.1:80/x", ""},
		{"10.0.0.1:1-2-3", ""},
	} {
		var n packet.Translation
		got := ""
		if natRange(&n, test.option) {
			got = fmt.Sprintf("%s-%s %d-%d/%d", n.Low, n.High, n.PortLow, n.PortHigh, n.PortBase)
		}
		if got != test.want {
			t.Errorf("%q: %q, want %q", test.option, got, test.want)
		}
	}
}

// isUnknown tells of statements that stand for what was not understood.
func isUnknown(s netfilter.Statement) bool {
	switch s.(type) {
	case *netfilter.UnknownTest, *netfilter.UnknownEffect:
		return true
	}
	return false
}

func checkKnown(t *testing.T, family netfilter.Family, where, dump string, but func(text string) bool) (rules int) {
	t.Helper()
	tables, err := Parse([]byte(dump))
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	lowered, err := Lower(tables, family, netfilter.IPTablesNFT)
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	for _, table := range lowered {
		for _, chain := range table.Chains {
			for _, r := range chain.Rules {
				rules++
				for _, s := range r.Statements {
					if isUnknown(s) && (but == nil || !but(r.Text)) {
						t.Errorf("%s: %s: %s", where, r.Text, s)
					}
				}
			}
		}
	}
	return rules
}

func TestDumpIsUnderstood(t *testing.T) {
	dump, err := os.ReadFile("testdata/syntax.save")
	if err != nil {
		t.Fatal(err)
	}
	strange := func(text string) bool { return strings.Contains(text, "newmodule") }
	if n := checkKnown(t, netfilter.IPv4, "syntax.save", string(dump), strange); n < 40 {
		t.Errorf("only %d rules", n)
	}
}

// TestServiceProxyRulesAreUnderstood reads every rule of the service proxy's golden files.
func TestServiceProxyRulesAreUnderstood(t *testing.T) {
	files, err := filepath.Glob("../../node/proxy/iptables/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		var rules []string
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "-A ") {
				rules = append(rules, lines.Text())
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		family := netfilter.IPv4
		if strings.Contains(file, "ipv6") {
			family = netfilter.IPv6
		}
		checkKnown(t, family, file, tableOf(rules), nil)
	}
}

// tableOf makes a table of rules that stand alone.
func tableOf(rules []string) string {
	var chains, lines strings.Builder
	seen := map[string]bool{}
	for _, r := range rules {
		chain, _, _ := strings.Cut(strings.TrimPrefix(r, "-A "), " ")
		if !seen[chain] {
			seen[chain] = true
			fmt.Fprintf(&chains, ":%s -\n", chain)
		}
		fmt.Fprintln(&lines, r)
	}
	return "*nat\n" + chains.String() + lines.String() + "COMMIT\n"
}

// TestArticlesRulesAreUnderstood reads the rules that the articles about the node network show.
func TestArticlesRulesAreUnderstood(t *testing.T) {
	text, err := os.ReadFile("testdata/articles.rules")
	if err != nil {
		t.Fatal(err)
	}
	rules := strings.Split(strings.TrimSpace(string(text)), "\n")
	if n := checkKnown(t, netfilter.IPv4, "articles.rules", tableOf(rules), nil); n < 50 {
		t.Errorf("only %d rules", n)
	}
}

func TestBaseChains(t *testing.T) {
	dump := "*mangle\n:OUTPUT ACCEPT\n*nat\n"
	dump = strings.Replace(dump, "*nat", "COMMIT\n*nat", 1) +
		":INPUT ACCEPT\n:PREROUTING DROP\n:POSTROUTING ACCEPT\n:X -\nCOMMIT\n*raw\n:OUTPUT ACCEPT\nCOMMIT\n"
	tables, err := Parse([]byte(dump))
	if err != nil {
		t.Fatal(err)
	}
	lowered, err := Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, table := range lowered {
		for _, c := range table.Chains {
			base := "-"
			if c.Base != nil {
				base = fmt.Sprint(c.Base.Type, " ", c.Base.Hook, " ", c.Base.Priority)
			}
			got = append(got, fmt.Sprintf("%s %s: %s, %s", table.Name, c.Name, base, c.Policy))
		}
	}
	want := `mangle OUTPUT: route output -150, accept
nat INPUT: nat input 100, accept
nat PREROUTING: nat prerouting -100, drop
nat POSTROUTING: nat postrouting 100, accept
nat X: -, return
raw OUTPUT: filter output -300, accept`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// randomly chooses by a seed.
type randomly struct{ *rand.Rand }

func (r randomly) Choose(c netfilter.Choice) int { return r.IntN(len(c.Options)) }

func FuzzLower(f *testing.F) {
	for _, file := range []string{"testdata/syntax.save", "testdata/articles.rules"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), uint64(1))
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "-A ") {
				f.Add("*nat\n:INPUT ACCEPT\n-A INPUT "+strings.SplitN(line, " ", 3)[2]+"\nCOMMIT\n", uint64(2))
			}
		}
	}
	f.Add("*filter\n:INPUT ACCEPT\n:A -\n:B -\n-A INPUT -j A\n-A A -g B\n-A B -j A\nCOMMIT\n", uint64(3))
	f.Fuzz(func(t *testing.T, dump string, seed uint64) {
		tables, err := Parse([]byte(dump))
		if err != nil {
			return
		}
		random := rand.New(rand.NewPCG(seed, 0))
		family := netfilter.Family(random.IntN(2))
		lowered, err := Lower(tables, family, netfilter.IPTablesLegacy)
		if err != nil {
			return
		}
		rules := netfilter.Ruleset{Tables: lowered}
		rules.Index()
		for hook := netfilter.Prerouting; hook <= netfilter.Postrouting; hook++ {
			for _, chain := range rules.Hook(family, hook) {
				p := packet.Packet{TTL: 64, Tuple: packet.Tuple{
					Protocol: packet.Protocol([]int{1, 6, 17, 58, 132}[random.IntN(5)]),
					Source:   netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2"),
					SourcePort: packet.OneOf(1024, 2048, 1500), DestinationPort: packet.Exactly(80),
				}}
				if family == netfilter.IPv6 {
					p.Source, p.Destination = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
				}
				c := netfilter.Context{Packet: &p, Family: family, Hook: hook, Chooser: randomly{random}, EveryRule: random.IntN(2) == 0}
				if _, err := chain.Run(&c); err != nil {
					t.Log(err)
				}
			}
		}
	})
}
