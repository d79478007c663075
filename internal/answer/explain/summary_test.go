package explain

import (
	"bytes"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/writers"
)

// sentences returns the last lines of a walk through a text with rules, from an unknown machine.
func sentences(t *testing.T, text, from, to string, pin ...int) string {
	t.Helper()
	return sentencesWith(t, snapshot.Objects{}, text, from, to, pin...)
}

// sentencesWith knows of Kubernetes objects, too.
func sentencesWith(t *testing.T, objects snapshot.Objects, text, from, to string, pin ...int) string {
	t.Helper()
	src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, "n", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := tcp(from, to)
	p.TTL = 64
	r, err := walk.Walk(src, walk.Request{Host: "node/n", Forwarded: true, Packet: p, Pin: pin})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Text(&b, r, Options{Owners: ownersOf(objects), Text: true}); err != nil {
		t.Fatal(err)
	}
	_, last, _ := strings.Cut(b.String(), "\nassumed:\n")
	var lines []string
	for line := range strings.Lines(last) {
		if !strings.HasPrefix(line, " ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// TestRulesThatDoNotApply: that a source is kept is put down to the rules that would have translated it, not to those for other sources.
func TestRulesThatDoNotApply(t *testing.T) {
	const text = `*nat
:POSTROUTING ACCEPT [0:0]
:AGENT - [0:0]
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING ! -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE
-A POSTROUTING -j AGENT
-A AGENT -d 10.13.0.0/16 -j RETURN
-A AGENT -d 10.14.0.0/16 -j MASQUERADE
COMMIT
`
	for _, tt := range []struct{ to, want string }{
		{"10.15.0.1:80", "because no rule translates it\n- nat POSTROUTING 2 does not apply (! -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE)\n- nat AGENT 2 does not apply (-d 10.14.0.0/16 -j MASQUERADE)"},
		{"10.13.0.1:80", "because no rule translates it\n- nat POSTROUTING 2 does not apply (! -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE)\n- nat AGENT 1: -d 10.13.0.0/16 -j RETURN"},
	} {
		if got := sentences(t, text, "10.13.76.7:40000", tt.to); !strings.Contains(got, tt.want+"\n- ") {
			t.Errorf("to %s: got\n%s\nwant\n%s", tt.to, got, tt.want)
		}
	}
}

// TestMarkThatDecides: of several marks the one whose bits the rule tests is named, be it the packet's or the connection's, in any syntax.
func TestMarkThatDecides(t *testing.T) {
	const set = `*mangle
:PREROUTING ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
-A PREROUTING -j MARK --set-xmark 0x4000/0x4000
-A FORWARD -j MARK --set-xmark 0x10000/0x10000
-A FORWARD -j CONNMARK --set-xmark 0x24000/0xffffffff
COMMIT
`
	for post, by := range map[string]string{
		"-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE":                                                                   "0x4000 was set by mangle PREROUTING 1",
		"-A POSTROUTING -m mark --mark 0x10000/0x30000 -j MASQUERADE":                                                                 "0x10000 was set by mangle FORWARD 1",
		"-A POSTROUTING -m mark --mark 0x14000 -j MASQUERADE":                                                                         "0x10000 was set by mangle FORWARD 1",
		"-A POSTROUTING -m connmark --mark 0x20000/0x20000 -j MASQUERADE":                                                             "0x24000 was set by mangle FORWARD 2",
		"-A POSTROUTING -j P\n-A P -m mark ! --mark 0x4000/0x4000 -j RETURN\n-A P -j MARK --set-xmark 0x4000/0x0\n-A P -j MASQUERADE": "0x4000 was set by mangle PREROUTING 1",
		"-A POSTROUTING -p tcp -j MASQUERADE":                                                                                         "",
	} {
		text := set + "*nat\n:POSTROUTING ACCEPT [0:0]\n:P - [0:0]\n" + post + "\nCOMMIT\n"
		got := sentences(t, text, "10.13.76.7:40000", "10.15.0.1:80")
		if by == "" && strings.Contains(got, "- mark") || !strings.Contains(got, "MASQUERADE") || by != "" &&
			!strings.Contains(got, "\n- mark "+by+"\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", post, got, by)
		}
	}
	const nft = `{"nftables": [{"table": {"family": "ip", "name": "t"}},
{"chain": {"family": "ip", "table": "t", "name": "pre", "type": "filter", "hook": "prerouting", "prio": -150, "policy": "accept"}},
{"chain": {"family": "ip", "table": "t", "name": "post", "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}},
{"rule": {"family": "ip", "table": "t", "chain": "pre", "expr": [{"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"meta": {"key": "mark"}}, 16384]}}}]}},
{"rule": {"family": "ip", "table": "t", "chain": "pre", "expr": [{"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"meta": {"key": "mark"}}, 65536]}}}]}},
{"rule": {"family": "ip", "table": "t", "chain": "post", "expr": [{"match": {"op": "!=", "left": {"&": [{"meta": {"key": "mark"}}, 16384]}, "right": 0}}, {"masquerade": null}]}}]}`
	if got := sentences(t, strings.ReplaceAll(nft, "\n", " "), "10.13.76.7:40000", "10.15.0.1:80"); !strings.Contains(got, "\n- mark 0x4000 was set by t pre 1\n") {
		t.Errorf("nft: got\n%s", got)
	}
}

// TestChainsInACircle: chains that lead to one another, until a mark leads out, are told once; so are those that look like the service
// proxy's, whose names are looked for upwards. No kernel loads such rules; a pasted text can have them.
func TestChainsInACircle(t *testing.T) {
	const text = `*nat
:POSTROUTING ACCEPT [0:0]
:X - [0:0]
:Y - [0:0]
-A POSTROUTING -j X
-A X -d 10.14.0.0/16 -j MASQUERADE
-A X -m mark --mark 0x0 -j Y
-A Y -j MARK --set-xmark 0x1/0xffffffff
-A Y -j X
COMMIT
`
	for _, names := range [][2]string{{"X", "Y"}, {"KUBE-SVC-X", "KUBE-SVC-Y"}} {
		text := strings.NewReplacer("X ", names[0]+" ", "X\n", names[0]+"\n", "Y ", names[1]+" ", "Y\n", names[1]+"\n").Replace(text)
		want := "because no rule translates it\n- nat " + names[0] + " 1 does not apply (-d 10.14.0.0/16 -j MASQUERADE)\n- "
		if got := sentences(t, text, "10.13.76.7:40000", "10.15.0.1:80"); !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// TestProvided: what is not known and was taken to be one way or the other stands in the sentences that depend on it, and in no others.
func TestProvided(t *testing.T) {
	const text = `*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A PREROUTING -m bogus --weird 3 -j DNAT --to-destination 10.9.9.9
-A POSTROUTING -o eth0 -j MASQUERADE
COMMIT
`
	all := sentences(t, text, "10.0.0.5:40000", "10.2.2.2:80")
	for _, want := range []string{
		`^1, 3 of 4: .*MASQUERADE\n- provided that nat POSTROUTING 1 matches \(goes out of eth0\)\n- the network beyond .*\n2, 4 of 4: `,
		`\n2, 4 of 4: .*\n- provided that nat POSTROUTING 1 does not match \(goes out of eth0\)\n- the network beyond [^\n]*$`,
	} {
		if !regexp.MustCompile(want).MatchString(all) {
			t.Errorf("got %s\nwant %s", all, want)
		}
	}
	one := sentences(t, text, "10.0.0.5:40000", "10.2.2.2:80", 1, 1)
	const want = "\n- provided that nat PREROUTING 1 does not match (not understood: -m bogus --weird 3)\n- provided that nat POSTROUTING 1 does not match (goes out of eth0)" +
		"\n- the network beyond node n is unknown"
	if !strings.HasSuffix(one, want) {
		t.Errorf("got %q, want the end %q", one, want)
	}
}

// TestCalicoPools: the pool that decided has a name, whether its rule translates or not.
func TestCalicoPools(t *testing.T) {
	const text = `*nat
:POSTROUTING ACCEPT [0:0]
:cali-POSTROUTING - [0:0]
:cali-nat-outgoing - [0:0]
-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
-A cali-POSTROUTING -m comment --comment "cali:nYKhEzDlr11Jccal" -j cali-nat-outgoing
-A cali-nat-outgoing -m comment --comment "cali:flqWnvo8yq4ULQLa" -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE --random-fully
COMMIT

create cali40all-ipam-pools hash:net family inet hashsize 1024 maxelem 1048576
add cali40all-ipam-pools 10.240.0.0/16
add cali40all-ipam-pools 172.17.0.0/16
create cali40masq-ipam-pools hash:net family inet hashsize 1024 maxelem 1048576
add cali40masq-ipam-pools 10.240.0.0/16
`
	pools := snapshot.Objects{Pools: []snapshot.Pool{
		{Name: "default-ipv4-ippool", CIDR: netip.MustParsePrefix("10.240.0.0/16"), NATOutgoing: true},
		{Name: "othervnet", CIDR: netip.MustParsePrefix("172.17.0.0/16")},
	}}
	for to, want := range map[string]string{
		"172.17.0.4:80":  "because no rule translates it\n- nat cali-nat-outgoing 1 does not apply (Calico pool othervnet holds the destination)",
		"10.240.0.97:80": "because no rule translates it\n- nat cali-nat-outgoing 1 does not apply (Calico pool default-ipv4-ippool holds the destination, too)",
		"172.18.0.4:80":  "because nat cali-nat-outgoing 1: MASQUERADE (Calico pool default-ipv4-ippool has natOutgoing, and no pool holds the destination)",
	} {
		if got := sentencesWith(t, pools, text, "10.240.0.5:40000", to); !strings.Contains(got, want) {
			t.Errorf("to %s: got\n%s\nwant\n%s", to, got, want)
		}
	}
}

// TestKeptOnSeveral: of rules that stand in the same place on two machines and did different things there, it is said which one did which.
func TestKeptOnSeveral(t *testing.T) {
	const rule, other = "nat POSTROUTING 3", "nat POSTROUTING 1"
	s := &explanation{exemptions: []exemption{
		{"node/a", other, other + ": RETURN", 1, "", nil}, {"node/a", rule, rule + ": MASQUERADE gives it the address that it has", 2, "", nil},
		{"node/b", other, other + ": RETURN", 3, "", nil}, {"node/b", rule, rule + " does not apply", 4, "", nil},
	}}
	const want = "nat POSTROUTING 1: RETURN; on node a nat POSTROUTING 3: MASQUERADE gives it the address that it has; on node b nat POSTROUTING 3 does not apply"
	if got := strings.Join(summary{conditions: s.exempting()}.words(), "; "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Of those that are not told, nothing needs to be told apart.
	s.exemptions = append(s.exemptions, exemption{"node/b", "nat X 1", "nat X 1: RETURN", 5, "", nil}, exemption{"node/b", "nat X 2", "nat X 2: RETURN", 6, "", nil})
	if got, want := strings.Join(summary{conditions: s.exempting()}.words(), "; "), "nat POSTROUTING 3 does not apply; nat X 1: RETURN; nat X 2: RETURN"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestDependsOnBefore: what hangs on earlier packets is said so once, with the test that asks.
func TestDependsOnBefore(t *testing.T) {
	src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, "n", []byte(`*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -p tcp -m limit --limit 5/min -j DNAT --to-destination 10.13.76.5:80
COMMIT
`))
	if err != nil {
		t.Fatal(err)
	}
	p := tcp("10.9.0.1:40000", "10.0.0.9:80")
	p.TTL = 64
	r, err := walk.Walk(src, walk.Request{Host: "node/n", Forwarded: true, Packet: p, Pin: []int{0}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Text(&b, r, Options{Owners: ownersOf(snapshot.Objects{})}); err != nil {
		t.Fatal(err)
	}
	if want := "[depends on what came before: limit --limit 5/min"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}

// TestUnread: from a capture, a conclusion that rests on something that was not read is conditional, and names it. From a text it does not:
// there most is not read.
func TestUnread(t *testing.T) {
	host := &snapshot.Host{Name: "node/n", FIB: &fib.State{}, Rules: &netfilter.Ruleset{}}
	host.Missing = map[snapshot.Part]string{snapshot.NFT: "nft: Operation not permitted", snapshot.Listeners: "not in the capture",
		snapshot.Bridge: "ebtables-save: not found"}
	host.FIB.Addresses = []fib.Address{{Prefix: netip.MustParsePrefix("10.0.0.4/24"), Scope: "global"}}
	host.FIB.Routes = []fib.Route{{Table: fib.TableLocal, Type: "local", Destination: netip.MustParsePrefix("10.0.0.4/32"), Scope: "host"}}
	host.Flows = conntrack.NewTable(nil)
	host.FIB.Index()
	host.Rules.Index()
	r, err := walk.Walk(singleHost{host}, walk.Request{Host: "node/n", Packet: tcp("10.0.0.4:40000", "10.0.0.4:22")})
	if err != nil {
		t.Fatal(err)
	}
	host.Unread = map[snapshot.Part]string{snapshot.NFT: "nft was killed by SIGSEGV"}
	unread, err := walk.Walk(singleHost{host}, walk.Request{Host: "node/n", Packet: tcp("10.0.0.4:40000", "10.0.0.4:22")})
	if err != nil {
		t.Fatal(err)
	}
	want := "it is unknown whether the destination sees the packet: the nftables rules could not be read: nft was killed by SIGSEGV\n- " +
		"not read on node n: nftables rules"
	if got := (&Options{Owners: ownersOf(snapshot.Objects{})}).explanations(unread)[0].summary().text(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, text := range []bool{false, true} {
		a := (&Options{Owners: ownersOf(snapshot.Objects{}), Text: text}).explanations(r)[0].summary()
		want := "as far as the state was read, the destination sees the sender's own address, 10.0.0.4:40000, because no rule translates it\n- " +
			"not read on node n: nftables rules, listening sockets"
		if text {
			want = "as far as the text shows, the destination sees the sender's own address, 10.0.0.4:40000, because no rule translates it"
		}
		if got := a.text(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

type singleHost struct{ host *snapshot.Host }

func (s singleHost) Host(string) (*snapshot.Host, error) { return s.host, nil }
func (s singleHost) Names() []string                     { return []string{s.host.Name} }
func (s singleHost) Objects() snapshot.Objects           { return snapshot.Objects{} }

// TestTwoTranslations gives each of several translations a line, in the packet's order between what else decided.
func TestTwoTranslations(t *testing.T) {
	p := tcp("203.0.113.10:1024", "198.51.100.80:80")
	first := translation{host: "node/n", ref: "nat POSTROUTING 3", does: "MASQUERADE", why: "outside 10.0.0.0/8", at: atStep(4)}
	marked := first
	marked.mark = &marking{bits: 0x4000, ref: "nat MARK 1", at: atStep(2)}
	second := translation{host: "fabric", ref: "azure out-1-1 1", does: "snat", why: "the front end", at: atStep(8)}
	const seen = "the destination sees 203.0.113.10:1024"
	for _, tt := range []struct {
		name    string
		sources []translation
		want    string
	}{
		{"one", []translation{second}, seen + ", because azure out-1-1 1: snat (the front end)"},
		{"two", []translation{first, second}, seen + ", after 2 translations" +
			"\n- on node n nat POSTROUTING 3: MASQUERADE (outside 10.0.0.0/8)\n- on fabric azure out-1-1 1: snat (the front end)"},
		{"two by a mark", []translation{marked, second}, seen + ", after 2 translations\n- on node n mark 0x4000 was set by nat MARK 1" +
			"\n- on node n nat POSTROUTING 3: MASQUERADE\n- on fabric azure out-1-1 1: snat (the front end)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := &explanation{outcome: &walk.Outcome{End: walk.End{Kind: walk.Delivered, Packet: p}}, sources: tt.sources}
			if got := e.delivered().text(); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// TestUnownedAddress gives the source that packets leave a lab with, where no host of its internet has their destination.
func TestUnownedAddress(t *testing.T) {
	translated := translation{host: "fabric", ref: "azure out 1", does: "snat", why: "the front end", at: atStep(8)}
	for _, tt := range []struct{ name, to, host, reject, want string }{
		{"no route", "8.8.8.8:53", "internet", "icmp-net-unreachable", "the destination sees nothing: no host of the lab's internet has 8.8.8.8; " +
			"a firewall on the way sees 203.0.113.10:1024, because azure out 1: snat (the front end)"},
		{"no neighbour", "8.8.8.8:53", "internet", "icmp-host-unreachable", "the destination sees nothing: no host of the lab's internet has 8.8.8.8; " +
			"a firewall on the way sees 203.0.113.10:1024, because azure out 1: snat (the front end)"},
		{"a private address", "10.0.0.1:53", "internet", "icmp-net-unreachable", "the destination sees nothing: rejected on internet: why"},
		{"elsewhere", "8.8.8.8:53", "node/n", "icmp-net-unreachable", "the destination sees nothing: rejected on node n: why"},
		{"another reason", "8.8.8.8:53", "internet", "icmp-time-exceeded", "the destination sees nothing: rejected on internet: why"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			end := walk.End{Kind: walk.Rejected, Host: tt.host, Reject: tt.reject, Why: "why", Packet: tcp("203.0.113.10:1024", tt.to)}
			e := &explanation{outcome: &walk.Outcome{End: end}, sources: []translation{translated}}
			if got := e.conclusion().text(); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}
