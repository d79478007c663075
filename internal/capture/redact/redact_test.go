package redact_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/redact"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/capturetest"
	"packetwalk.dev/internal/writers"
)

var book = writers.Book(&snapshot.Objects{})

var testKey = []byte("a key that the tests have, so that they can compare")

const worldA = "../testdata/world-a.pwcap.tar.gz"

// small has one host with one link.
func small() *capturetest.Content {
	return &capturetest.Content{
		Hosts: []*capture.Raw{{Name: "node/n1", Outputs: map[string]capture.Output{
			"ip-link.json": {Command: "ip -d -j link show", Data: []byte(`[{"ifindex":1,"ifname":"lo","flags":["UP"],"mtu":65536}]`)},
		}}},
		Lists: map[string][]byte{"nodes.json": []byte(`{"items":[{"metadata":{"name":"n1"}}]}`)},
	}
}

func redacted(t testing.TB, c *capturetest.Content) *capturetest.Content {
	t.Helper()
	head, origin, _, err := redact.Capture(c.Head, c.Origin(), book, testKey)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	taken, err := capture.Take(t.Context(), origin, &file, head)
	if err != nil {
		t.Fatal(err)
	}
	if len(taken.Notes) != len(c.Notes) {
		t.Errorf("notes %q", taken.Notes)
	}
	read, err := capturetest.Read(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func redaction(t testing.TB, c *capturetest.Content) redact.Redaction {
	t.Helper()
	r, err := redact.RedactionOf(c.Origin(), book, testKey)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestQuotedComments: names are replaced in comments with quotes and backslashes, also of rules that are not parsed. The rules stay the
// same otherwise.
func TestQuotedComments(t *testing.T) {
	for _, comment := range []string{`name: "acme-net" id: "acme-4711"`, `acme-net" id: "acme-4711`, `acme\`, `\" -j acme`} {
		for _, match := range []string{"", " -m newmodule --strange 1"} {
			dump := "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -m comment --comment " + iptables.Quote(comment) + match +
				" -j DROP\nCOMMIT\n"
			c := small()
			c.Hosts[0].Outputs["iptables-save.txt"] = capture.Output{Command: "iptables-save", Data: []byte(dump)}
			text := redacted(t, c).Hosts[0].Outputs["iptables-save.txt"].Data
			tables, err := iptables.Parse(text)
			if err != nil {
				t.Errorf("%q: %v", text, err)
				continue
			}
			rule := tables[0].Chains[0].Rules[0]
			lowered, err := iptables.Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT)
			if err != nil {
				t.Fatal(err)
			}
			got := lowered[0].Chains[0].Rules[0].Comment
			if strings.Contains(string(text), "acme") || got == "" || !regexp.MustCompile(strings.Replace(match, " 1", ` text-\w+`, 1)+" -j DROP$").MatchString(rule.Text) {
				t.Errorf("%q becomes %q, with comment %q", dump, text, got)
			}
		}
	}
}

// TestOriginals: what a redaction has replaced is found by what stands there now, and nothing that is not.
func TestOriginals(t *testing.T) {
	c := small()
	c.Hosts[0].Outputs["ip-link.json"] = capture.Output{Data: []byte(`[{"ifindex":2,"ifname":"acme0","address":"02:00:5e:10:00:01","flags":["UP"]}]`)}
	c.Hosts[0].Outputs["iptables-save.txt"] = capture.Output{Data: []byte("*filter\n:ACME - [0:0]\n-A ACME -s 203.0.113.7/32 -j DROP\nCOMMIT\n")}
	head, origin, originals, err := redact.Capture(c.Head, c.Origin(), book, testKey)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := capture.Take(t.Context(), origin, &file, head); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(originals)
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Addresses, MACs, Names map[string]string }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	r := redaction(t, c)
	for replaced, want := range map[string]string{
		strings.TrimPrefix(r.Host("node/n1"), "node/"): "n1", r.Link("acme0"): "acme0", r.Chain("ACME"): "ACME", "lo": "", "DROP": "",
	} {
		if got := all.Names[replaced]; got != want {
			t.Errorf("%s was %q, want %q: %s", replaced, got, want, text)
		}
	}
	if got := all.Addresses[r.Addr(netip.MustParseAddr("203.0.113.7")).String()]; got != "203.0.113.7" || len(all.MACs) != 1 {
		t.Errorf("address %q, %d MAC addresses: %s", got, len(all.MACs), text)
	}
}

// TestAddressesKeepTheirPrefixes: as many leading bits as two addresses share, as many do their replacements.
func TestAddressesKeepTheirPrefixes(t *testing.T) {
	r := redaction(t, small())
	random := rand.New(rand.NewPCG(1, 2))
	base := [][]byte{netip.MustParseAddr("10.13.76.4").AsSlice(), netip.MustParseAddr("198.51.100.10").AsSlice(),
		netip.MustParseAddr("2001:db8::1").AsSlice(), netip.MustParseAddr("fe80::1").AsSlice(), netip.MustParseAddr("168.63.129.16").AsSlice()}
	moved := 0
	for range 3000 {
		raw := base[random.IntN(len(base))]
		a, _ := netip.AddrFromSlice(raw)
		other := slices.Clone(raw)
		for i := random.IntN(len(raw)); i < len(raw); i++ {
			other[i] = byte(random.Uint32())
		}
		b, _ := netip.AddrFromSlice(other)
		x, y := r.Addr(a), r.Addr(b)
		if shared(a, b) != shared(x, y) {
			t.Fatalf("%s and %s share %d bits; %s and %s share %d", a, b, shared(a, b), x, y, shared(x, y))
		}
		if y != b {
			moved++
		}
	}
	if moved < 1000 {
		t.Errorf("only %d addresses of 3000 were replaced", moved)
	}
}

func shared(a, b netip.Addr) int {
	for bits := a.BitLen(); ; bits-- {
		if netip.PrefixFrom(a, bits).Masked() == netip.PrefixFrom(b, bits).Masked() {
			return bits
		}
	}
}

func TestAddressesThatStay(t *testing.T) {
	r := redaction(t, small())
	for _, a := range []string{"0.0.0.0", "127.0.0.1", "127.9.9.9", "169.254.169.254", "168.63.129.16", "224.0.0.1", "255.255.255.255", "::",
		"::1", "ff02::1"} {
		if addr := netip.MustParseAddr(a); r.Addr(addr) != addr {
			t.Errorf("%s became %s", a, r.Addr(addr))
		}
	}
	for _, p := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fe80::/64", "fc00::/7"} {
		prefix := netip.MustParsePrefix(p)
		if a := r.Addr(prefix.Addr().Next()); !prefix.Contains(a) || a == prefix.Addr().Next() {
			t.Errorf("%s, inside %s, became %s", prefix.Addr().Next(), p, a)
		}
	}
}

// TestRedactLeavesNothing: no name and no address of world A is in its redacted capture, which still reads without complaint.
func TestRedactLeavesNothing(t *testing.T) {
	secret := regexp.MustCompile(`10\.13\.|10\.0\.(2|248)|198\.51\.100|203\.0\.113|whereami|nginx|aks-node|31351229|testvm|ifconfig|00:0d:3a|20d:3a|client|westeurope`)
	before := capturetest.Open(t, worldA)
	if !secret.Match(before.Lists["pods.json"]) {
		t.Fatal("the test looks for what is not there")
	}
	read := redacted(t, before)
	if !read.Redacted {
		t.Error("it does not say that it is redacted")
	}
	for _, h := range read.Hosts {
		if secret.MatchString(h.Name) {
			t.Errorf("host %s", h.Name)
		}
		for name, out := range h.Outputs {
			if at := secret.FindIndex(out.Data); at != nil {
				t.Errorf("%s %s: …%s…", h.Name, name, out.Data[max(0, at[0]-40):min(len(out.Data), at[1]+40)])
			}
			if out.Error != "" {
				t.Errorf("%s %s: %s", h.Name, name, out.Error)
			}
		}
	}
	for name, list := range read.Lists {
		if at := secret.Find(list); at != nil {
			t.Errorf("%s: %s", name, at)
		}
	}
	s := capture.NewSource(read.Origin())
	for _, name := range s.Names() {
		h, err := s.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		for part, why := range h.Unread {
			t.Errorf("%s: %s: %s", name, part, why)
		}
	}
}

// TestRedactedWalksAlike: packets between all kinds of ends go the same ways through the redacted capture, step by step.
func TestRedactedWalksAlike(t *testing.T) {
	plain := capturetest.Open(t, worldA)
	r := redaction(t, plain)
	a := capture.NewSource(plain.Origin())
	b := capture.NewSource(redacted(t, plain).Origin())
	var to []netip.AddrPort
	for _, s := range a.Objects().Services {
		for _, p := range s.Ports {
			for _, ip := range slices.Concat(s.ClusterIPs, s.External) {
				to = append(to, netip.AddrPortFrom(ip, p.Port))
			}
			to = append(to, p.Endpoints...)
			to = append(to, netip.AddrPortFrom(a.Objects().Nodes[0].IPs[0], p.NodePort))
		}
	}
	to = append(to, netip.MustParseAddrPort("198.51.100.80:80"), netip.MustParseAddrPort("10.13.1.4:22"),
		netip.MustParseAddrPort("10.99.0.1:80"))
	walked := 0
	for _, host := range a.Names() {
		for _, end := range to {
			want := ways(t, a, host, end, r.Addr, r.Host, r.Link)
			same := func(a netip.Addr) netip.Addr { return a }
			name := func(s string) string { return s }
			got := ways(t, b, r.Host(host), netip.AddrPortFrom(r.Addr(end.Addr()), end.Port()), same, name, name)
			if !slices.Equal(want, got) {
				t.Fatalf("from %s to %s:\nbefore, names replaced:\n%s\nredacted:\n%s", host, end, strings.Join(want, "\n"), strings.Join(got, "\n"))
			}
			walked += len(want)
		}
	}
	if walked < 200 {
		t.Errorf("only %d ways were walked", walked)
	}
}

// ways returns the outcomes of a walk as sorted lines, with addresses, hosts and links as they are after redaction.
func ways(t *testing.T, s snapshot.Source, from string, to netip.AddrPort, addr func(netip.Addr) netip.Addr, host,
	link func(string) string) []string {
	t.Helper()
	p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Destination: to.Addr(), DestinationPort: packet.Exactly(to.Port()),
		SourcePort: packet.Exactly(40000)}}
	p.TCPFlags = packet.SYN
	result, err := walk.Walk(s, walk.Request{Host: from, Packet: p})
	if err != nil {
		t.Fatalf("from %s to %s: %v", from, to, err)
	}
	replaced := func(a netip.Addr) string {
		if !a.IsValid() {
			return "?"
		}
		return addr(a).String()
	}
	var lines []string
	for _, o := range result.Outcomes {
		var b strings.Builder
		fmt.Fprintf(&b, "%v %s at %s:", o.Probability, o.End.Kind, host(o.End.Host))
		for _, step := range slices.Concat(o.There, o.Back) {
			fmt.Fprintf(&b, " [%s %s %s>%s %s:%s>%s:%s", host(step.Host), step.Stage, link(step.Packet.In), link(step.Packet.Out),
				replaced(step.Packet.Source), step.Packet.SourcePort, replaced(step.Packet.Destination), step.Packet.DestinationPort)
			if v := step.Visit; v != nil && v.Rule != nil {
				fmt.Fprintf(&b, " %s %d %s", v.Chain.Table.Name, v.Rule.Number, v.Verdict.Kind)
			}
			b.WriteByte(']')
		}
		lines = append(lines, b.String())
	}
	slices.Sort(lines)
	return lines
}

// FuzzRedactAddresses: whatever stands around addresses, replacing them is repeatable and leaves words without any alone.
func FuzzRedactAddresses(f *testing.F) {
	for _, s := range []string{"-s 10.0.0.0/8 -d fd00::/8", "10.0.0.1-10.0.0.9:80-90", "10.0.0.0/255.0.0.0", "[::ffff:1.2.3.4]:80",
		"00:0d:3a:00:00:01/ff:ff:ff:00:00:00",
		"see 10.0.0.1. and ::1:", "1.2.3.4.5", "a::b::c", "fe80::1%eth0", "12:34:56", "10.0.0.1/33"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := redaction(t, small())
		once := r.Text(s)
		if again := r.Text(s); again != once {
			t.Fatalf("%q became %q, then %q", s, once, again)
		}
		if !strings.ContainsAny(s, ".:") && once != s {
			t.Fatalf("%q became %q", s, once)
		}
	})
}

func TestRedactText(t *testing.T) {
	r := redaction(t, small())
	for _, tt := range []struct{ in, like string }{
		{"-s 10.13.0.0/16 -j X", `^-s 10\.\d+\.0\.0/16 -j X$`},
		{"-s 10.13.0.0/255.255.0.0", `^-s 10\.\d+\.0\.0/255\.255\.0\.0$`},
		{"--to 10.13.76.5:80-90", `^--to 10\.[\d.]+:80-90$`},
		{"--dst-range 10.0.0.0-10.255.255.255", `^--dst-range 10\.0\.0\.0-10\.255\.255\.255$`},
		{"-d 168.63.129.16/32", `^-d 168\.63\.129\.16/32$`},
		{"v1.8.9 at 15:12:57, mac aa:bb:cc:dd:ee:ff", `^v1\.8\.9 at 15:12:57, mac ([0-9a-f]{2}:){5}[0-9a-f]{2}$`},
		{"src=10.13.76.5 dst=2001:db8::1 sport=1", `^src=10\.[\d.]+ dst=[23][0-9a-f:]+ sport=1$`},
	} {
		if got := r.Text(tt.in); !regexp.MustCompile(tt.like).MatchString(got) {
			t.Errorf("%q became %q, want it like %s", tt.in, got, tt.like)
		}
	}
}

// TestRedactNames: what tells of an owner is replaced, what tells of a kind stays.
func TestRedactNames(t *testing.T) {
	r := redaction(t, small())
	for _, tt := range []struct {
		how      func(string) string
		in, like string
	}{
		{r.Chain, "KUBE-SVC-2CMXP7HKUVJN7L6M", `^KUBE-SVC-[A-Z2-7]{16}$`},
		{r.Chain, "KUBE-SERVICES", `^KUBE-SERVICES$`},
		{r.Chain, "POSTROUTING", `^POSTROUTING$`},
		{r.Chain, "cali-tw-cali12345678901", `^cali-tw-[a-z2-7]{12}$`},
		{r.Chain, "service-ABCDEFGH-shop/cart/tcp/http", `^service-[A-Z2-7]{8}-ns-\w+/svc-\w+/tcp/http$`},
		{r.Chain, "ACME-BLOCKLIST", `^chain-`},
		{r.Link, "eth0", `^eth0$`},
		{r.Link, "azv6ad0227f766", `^azv[a-z2-7]{8}$`},
		{r.Link, "acme-tunnel", `^if[a-z2-7]{8}$`},
		{r.Host, "node/acme-1", `^node/node-[a-z2-7]{8}$`},
		{r.Host, "pod/acme/cart-0", `^pod/ns-[a-z2-7]{8}/pod-[a-z2-7]{8}$`},
		{r.Host, "fabric", `^fabric$`},
		{r.Comment, "shop/cart:http cluster IP", `^ns-\w+/svc-\w+:http cluster IP$`},
		{r.Comment, "kubernetes service portals", `^kubernetes service portals$`},
		{r.Comment, vnet.DoubtAccess.Comment("acme (300)"), `^text-\w+ \(300\), if Internet holds routed prefixes$`},
		{r.Comment, vnet.DoubtRule.Comment("acme (300)"), `^text-\w+ \(300\), or a later rule that does the same$`},
		{r.Comment, "ticket ACME42: let Bob in", `^text-\w+ text-\w+: text-\w+ text-\w+ in$`},
	} {
		got := tt.how(tt.in)
		if !regexp.MustCompile(tt.like).MatchString(got) {
			t.Errorf("%q became %q, want it like %s", tt.in, got, tt.like)
		}
		if got != tt.how(tt.in) {
			t.Errorf("%q is not always %q", tt.in, got)
		}
	}
}

// TestRedactKeepsRangesTogether: a range that is no prefix holds the addresses that it held, and NETMAP keeps its host bits. The rest of
// the prefix around a range is replaced all the same.
func TestRedactKeepsRangesTogether(t *testing.T) {
	c := small()
	c.Hosts[0].Outputs["iptables-save.txt"] = capture.Output{Data: []byte("# Generated by iptables-save v1.8.9 (nf_tables) on Sat Nov 21 15:12:57 2026\n*nat\n" +
		":PREROUTING ACCEPT [0:0]\n" +
		"-A PREROUTING -m iprange --dst-range 10.13.76.5-10.13.76.34 -j ACCEPT\n" +
		"-A PREROUTING -m iprange --src-range 172.16.0.0-172.28.255.255 -j ACCEPT\n" +
		"-A PREROUTING -d 192.168.7.0/24 -j NETMAP --to 192.168.8.0/24\nCOMMIT\n")}
	r := redaction(t, c)
	addr := netip.MustParseAddr
	low, high := r.Addr(addr("10.13.76.5")), r.Addr(addr("10.13.76.34"))
	for a := addr("10.13.76.0"); a != addr("10.13.77.0"); a = a.Next() {
		in := a.Compare(addr("10.13.76.5")) >= 0 && a.Compare(addr("10.13.76.34")) <= 0
		if b := r.Addr(a); in != (b.Compare(low) >= 0 && b.Compare(high) <= 0) {
			t.Errorf("%s is now %s, of %s-%s", a, b, low, high)
		}
	}
	stayed := 0
	for i := range 256 { // beside the range, in the prefix around it
		if a := netip.AddrFrom4([4]byte{172, 29, byte(i), 7}); r.Addr(a) == a {
			stayed++
		}
	}
	if stayed > 128 {
		t.Errorf("%d of 256 addresses beside a range are not replaced", stayed)
	}
	from, to := r.Addr(addr("192.168.7.9")).As4(), r.Addr(addr("192.168.8.9")).As4()
	if from[3] != 9 || to[3] != 9 || from[2] == to[2] {
		t.Errorf("host bits of %v and %v", from, to)
	}
}

// TestRedactProblems: what an API server or a resolver says when lists cannot be had names users and machines.
func TestRedactProblems(t *testing.T) {
	for said, wanted := range map[string]string{
		`pods is forbidden: User "alice" cannot list resource "pods" in API group "" at the cluster scope`: `pods is forbidden: User … cannot ` +
			`list resource "pods" in API group "" at the cluster scope`,
		`list services: Get "https://shop-4f2.hcp.westeurope.azmk8s.io:443/api/v1/services": dial tcp: lookup shop-4f2.hcp.westeurope.azmk8s.io ` +
			`on 10.0.0.10:53: no such host`: `list services: Get …: dial tcp: lookup … on ADDRESS:53: no such host`,
		`x509: certificate is valid for kubernetes, shop.example, not db.shop.example`:      `x509: certificate is valid for kubernetes, …, not …`,
		`lookup 4shop-dns-4f2.hcp.westeurope.azmk8s.io on 10.0.0.10:53: server misbehaving`: `lookup … on ADDRESS:53: server misbehaving`,
		`dial tcp: lookup shop-api: no such host`:                                           `dial tcp: lookup …: no such host`,
		`Get api at k8s.corp.lan1 failed`:                                                   `Get api at … failed`,
		`namespaces "acme-team" not found`:                                                  `namespaces … not found`,
		`node/n1: "conntrack": executable file not found`:                                   `node/NODE: "conntrack": executable file not found`,
	} {
		held := small()
		held.Notes = []string{said}
		got := redacted(t, held).Notes[0]
		got = regexp.MustCompile(`node/[\w-]+`).ReplaceAllString(got, "node/NODE")
		got = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+`).ReplaceAllString(got, "ADDRESS")
		if got != wanted {
			t.Errorf("%s\nbecame  %s\nwanted  %s", said, got, wanted)
		}
	}
}

// TestRedactOddTexts: names are found whatever blanks stand around them, and what cannot be read is not quoted.
func TestRedactOddTexts(t *testing.T) {
	for _, tt := range []struct{ file, text, like string }{
		{"ipset.txt", "\ncreate  acme hash:net  family inet\n add acme\t10.0.0.0/8 comment \"acme one\"\n", ""},
		{"ipset.txt", "create acme hash:net\n\nadd  acme  10.13.76.5\n", `^create set-\w+ hash:net\nadd set-\w+ 10\.[\d.]+\n$`},
		{"ebtables-save.txt", " *nat\n :PREROUTING ACCEPT\n  -A PREROUTING -i  acme1 -j  DROP\n",
			`^\*nat\n:PREROUTING ACCEPT\n-A PREROUTING -i if\w+ -j DROP\n$`},
		{"ipsec.json", `[{"dir":"out","src":"10.13.0.0/16","dst":"0.0.0.0/0"}]`, `^\[{"dir":"out","dst":"0\.0\.0\.0/0","src":"10\.\d+\.0\.0/16"}\]$`},
		{"agents.json", `[{"role":"service-proxy"}]`, `^\[{"role":"service-proxy"}\]$`},
		{"ipvs.json", `[{"protocol":6,"local":"10.13.76.5:53"},{"mark":7}]`, `^\[{"local":"10\.[\d.]+:53","protocol":6},{"mark":7}\]$`},
		{"iptables-save.txt", "*nat\n:X - [0:0]\n-A X -i  acme1 --acme-unknown\nCOMMIT\n",
			`^\*nat\n:chain-\w+ - \[0:0\]\n-A chain-\w+ -i if\w+ --acme-unknown\nCOMMIT\n$`},
		{"iptables-save.txt", "*nat\n-A X -m comment --comment \"acme/web\" -j DROP\nCOMMIT\n", ""},
	} {
		c := small()
		c.Hosts[0].Outputs[tt.file] = capture.Output{Data: []byte(tt.text)}
		out := redacted(t, c).Hosts[0].Outputs[tt.file]
		switch {
		case tt.like == "" && (out.Error == "" || strings.Contains(out.Error, "acme")):
			t.Errorf("%q: error %q", tt.text, out.Error)
		case !regexp.MustCompile(tt.like).Match(out.Data):
			t.Errorf("%q became %q, %q", tt.text, out.Data, out.Error)
		}
	}
}

// TestChains checks that a chain's name keeps the part that its writer always uses. The name of a chain without a known writer keeps
// nothing.
func TestChains(t *testing.T) {
	r := redaction(t, small())
	for _, name := range []string{"PREROUTING", "prerouting", "KUBE-SERVICES", "cali-nat-outgoing", "DOCKER-USER", "IP-MASQ-AGENT", "nat-prerouting"} {
		if got := r.Chain(name); got != name {
			t.Errorf("%s became %s", name, got)
		}
	}
	for name, want := range map[string]string{
		"KUBE-SVC-4N57TFCL4MD7ZTDA":                         `KUBE-SVC-[A-Z2-7]{16}`,
		"KUBE-FW-X":                                         `KUBE-FW-[A-Z2-7]{8}`,
		"cali-tw-cali1234567890a":                           `cali-tw-cali[a-z2-7]{8}`,
		"CNI-DN-0123456789abcdef01234":                      `CNI-DN-[a-z2-7]{12}`,
		"service-ULMVA6XW-ns1/svc1/tcp/p80":                 `service-[A-Z2-7]{8}-ns-[a-z2-7]{8}/svc-[a-z2-7]{8}/tcp/port-[a-z2-7]{8}`,
		"endpoint-2CRNCTTE-ns1/svc1/tcp/p80__10.180.0.2/80": `endpoint-[A-Z2-7]{8}-ns-[a-z2-7]{8}/svc-[a-z2-7]{8}/tcp/port-[a-z2-7]{8}__[a-z2-7]{12}/[a-z2-7]{12}`,
		"ACME":           `chain-[a-z2-7]{12}`,
		"KUBE-ACME-CORP": `chain-[a-z2-7]{12}`,
	} {
		if got := r.Chain(name); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("%s became %s", name, got)
		}
	}
}
