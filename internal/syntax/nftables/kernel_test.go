package nftables

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/ruletest"
)

// ownNamespace moves the test to a network namespace of its own, which ends with its thread.
func ownNamespace(t *testing.T) {
	t.Helper()
	kerneltest.NeedRoot(t)
	runtime.LockOSThread() // for ever: the thread is of no use to others
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, input string, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", args, err, &errs, input)
	}
	return out.Bytes()
}

// tests are rules' tests; N stands for a number near the packet's values, P for a port, A and B for addresses of both families.
var tests = []string{
	"ip saddr A", "ip daddr A", "ip saddr != A", "ip daddr A/29", "ip saddr != A/30", "ip saddr { A, A, A }", "ip daddr { A/31, A }",
	"ip saddr A-A2", "ip saddr & 0.0.0.N == 0.0.0.N", "ip saddr . ip daddr { A . A, A/30 . A/29 }",
	"ip saddr . th dport { A . P, A/29 . P-P2 }",
	"ip6 saddr B", "ip6 daddr != B", "ip6 saddr B/125", "ip6 saddr . udp dport { B . P, B . P }", "ip6 nexthdr udp", "ip6 hoplimit > N",
	"ip6 length < N", "ip6 dscp N",
	"ip saddr . ip daddr vmap { A . A : continue, A . A/29 : continue }", "udp dport vmap { P : continue, P-P2 : continue }",
	"udp dport P", "udp dport != P", "udp sport P-P2", "udp dport { P, P, P-P2 }", "udp dport != { P, P }", "udp dport >= P", "udp sport < P",
	"udp length > N", "tcp dport P", "tcp dport != P", "tcp flags syn", "th dport P", "th sport != P", "@th,16,16 P", "icmp type echo-request",
	"meta l4proto udp", "meta l4proto { tcp, icmp }", "meta l4proto != tcp", "ip protocol udp", "ip protocol != { tcp, udp }",
	"meta nfproto ipv4", "meta nfproto ipv6", "meta protocol ip", "meta mark N", "meta mark & 0xN == 0xN", "meta mark != N", "meta mark < N",
	"meta mark { N, N-N2 }", "meta mark 0-N", "meta mark | 0xN == 0xN", "meta mark ^ 0xN == 0xN", "meta length > N", "meta pkttype host",
	"iifname lo", "iifname != lo", `iifname "l*"`, `iifname { "lo", "x*" }`, "iif lo", "oifname lo", "iiftype loopback", "oifname \"\"",
	"ct state new", "ct state established,related", "ct state != new", "ct state { new, invalid }", "ct mark N", "ct mark != N",
	"ct mark & 0xN != 0",
	"ct direction original", "ct direction reply", "ct status dnat", "ct status ! dnat", "ct status & snat == 0", "ct original ip saddr A",
	"ct original ip6 daddr B", "ct reply ip saddr != A", "meta l4proto udp ct original proto-dst P", "ct protocol udp", "ct l3proto ipv4",
	"ct zone 0",
	"ip ttl 64", "ip ttl > N", "ip dscp N", "ip dscp != N", "ip ecn ce", "ip version 4", "ip frag-off & 0x1fff == 0",
	"ip frag-off & 0x2000 != 0",
	"jhash ip saddr . ip daddr mod 4 seed 0x1N C", "jhash ip saddr . ip daddr . ip protocol . th sport . th dport mod 4 seed 0x617a C",
	"jhash ip saddr mod 4 seed 0x1N offset 3 C", "jhash udp sport mod 4 seed 0x1N C",
	"jhash ip6 saddr . ip6 daddr . udp dport mod 4 seed 0x1N C",
	"jhash ip saddr . ip daddr mod 5 seed 0x1N vmap { 0 : continue, 1-2 : continue }",
	"fib daddr type local", "fib daddr type != local", "numgen random mod 1 0", "numgen inc mod 1 offset 4 C",
	"meta mark set meta mark | 0xN meta mark N", "meta mark set N meta mark set meta mark & 0xN | 0x2 meta mark { N, N }",
	"meta mark set ct mark meta mark N", "ct mark set meta mark ct mark N", "meta mark set ct mark map { N : N, N-N2 : N } meta mark N",
	"ip ttl set N ip ttl N", "udp dport set P udp dport P", "ip dscp set N ip dscp N",
	"meta mark set jhash ip saddr . ip daddr mod 3 seed 0x1N map { 0 : N, 1 : N, 2 : N } meta mark N",
}

// fill puts values near the packet's into a template.
func fill(r *rand.Rand, template string) string {
	low := r.IntN(8)
	for _, v := range []struct {
		letter string
		value  func() string
	}{
		{"A2", func() string { return fmt.Sprintf("127.0.0.%d", low+r.IntN(4)) }},
		{"P2", func() string { return fmt.Sprint(1000 + low + r.IntN(4)) }},
		{"N2", func() string { return fmt.Sprint(low + 1 + r.IntN(4)) }},
	} {
		template = strings.ReplaceAll(template, v.letter, v.value())
	}
	var b strings.Builder
	for i, c := range template {
		after := byte(' ')
		if i+1 < len(template) {
			after = template[i+1]
		}
		first := low
		if after != '-' {
			first = r.IntN(8)
		}
		switch c {
		case 'A':
			fmt.Fprintf(&b, "127.0.0.%d", first)
		case 'B':
			fmt.Fprintf(&b, "fd00::%d", first)
		case 'P':
			fmt.Fprint(&b, 1000+first)
		case 'N':
			fmt.Fprint(&b, first)
		case 'C':
			fmt.Fprint(&b, r.IntN(5))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// TestKernel: for random rules the kernel's counters tell the same as the evaluation.
func TestKernel(t *testing.T) {
	ownNamespace(t)
	run(t, "", "ip", "link", "set", "lo", "up")
	for i := range 8 {
		run(t, "", "ip", "-6", "addr", "add", fmt.Sprintf("fd00::%d/128", i), "dev", "lo", "nodad")
	}
	matched, missed := 0, 0
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 3))
		mark, connmark := r.Uint32N(8), r.Uint32N(8)
		script := loadable(t, r)
		setup := fmt.Sprintf("flush ruleset\ntable inet a { chain o { type filter hook output priority 0;\nmeta mark set %d ct mark set %d\n}\n"+
			"chain i { type filter hook input priority 0;\nmeta l4proto != udp accept comment \"errors that come back\"\n", mark, connmark)
		for range 4 {
			run(t, setup+script+"}\n}\n", "nft", "-f", "-")
			p := send(t, r, seed%2 == 1)
			p.Mark = mark
			p.Track = packet.Track{State: packet.New, Flow: &packet.Flow{Original: p.Tuple, Reply: p.Reply(), Mark: connmark}}
			m, n := compareCounters(t, p)
			matched, missed = matched+m, missed+n
		}
	}
	if matched < 100 || missed < 100 {
		t.Errorf("%d rules matched, %d did not", matched, missed)
	}
}

// loadable makes rules of each template, leaving out those whose values nft refuses (a range that ends before it starts, an element twice).
func loadable(t *testing.T, r *rand.Rand) string {
	t.Helper()
	var script strings.Builder
	for _, template := range tests {
		for range 4 {
			rule := fill(r, template) + " counter\n"
			cmd := exec.CommandContext(t.Context(), "nft", "-c", "-f", "-")
			cmd.Stdin = strings.NewReader("table inet check { chain i { type filter hook input priority 0;\n" + rule + "}\n}\n")
			if cmd.Run() == nil {
				script.WriteString(rule)
				break
			}
		}
	}
	return script.String()
}

// send sends a packet over the loopback interface, and returns it as it arrives.
func send(t *testing.T, r *rand.Rand, ipv6 bool) packet.Packet {
	t.Helper()
	host := func() netip.Addr {
		if ipv6 {
			return netip.MustParseAddr(fmt.Sprintf("fd00::%d", r.IntN(8)))
		}
		return netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", 1+r.IntN(7)))
	}
	source, destination := netip.AddrPortFrom(host(), 1000+uint16(r.IntN(8))), netip.AddrPortFrom(host(), 1000+uint16(r.IntN(8)))
	// A socket listens, so that no ICMP error comes back through the same chain.
	listener, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(destination))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if source == destination {
		return send(t, r, ipv6)
	}
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(source), net.UDPAddrFromAddrPort(destination))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("1234")); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, "", "conntrack", "-F")
	p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.UDP, Source: source.Addr(), Destination: destination.Addr(),
		SourcePort: packet.Exactly(source.Port()), DestinationPort: packet.Exactly(destination.Port())}, TTL: 64, Length: 32,
		Local: packet.Local{In: "lo"}}
	if ipv6 {
		p.Length = 52
	}
	return p
}

// loopback is a machine with one interface.
type loopback struct{ ruletest.Links }

func (loopback) AddressType(netip.Addr, string) (netfilter.AddressType, bool) {
	return netfilter.LocalAddress, true
}

// compareCounters evaluates the rules and compares what matched with the kernel's counters.
func compareCounters(t *testing.T, p packet.Packet) (matched, missed int) {
	t.Helper()
	rs := parse(t, run(t, "", "nft", "-j", "list", "ruleset"))
	ruleset := &netfilter.Ruleset{Tables: lower(t, rs)}
	ruleset.Index()
	chain := ruleset.Tables[0].Chain("i")
	counts := map[uint64]bool{}
	for _, e := range rulesOf(t, rs) {
		if e.chain().chain != "i" {
			continue
		}
		for _, statement := range e.Body.Get("expr").elements() {
			if c := statement.Get("counter"); c != nil {
				counts[e.Body.number("handle")] = c.number("packets") > 0
			}
		}
	}
	before := p
	chooser := &ruletest.First{}
	ctx := &netfilter.Context{Packet: &p, Family: netfilter.IPv4, Hook: netfilter.Input,
		Host: loopback{ruletest.Links{"lo": {Index: 1, Type: 772}}}, Chooser: chooser,
		EveryRule: true}
	if p.IsIPv6() {
		ctx.Family = netfilter.IPv6
	}
	if _, err := chain.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for _, v := range ctx.Visits {
		if v.Rule == nil {
			continue
		}
		got := v.Verdict.Kind != netfilter.Break
		if got {
			matched++
		} else {
			missed++
		}
		if got != counts[v.Rule.Handle] {
			t.Errorf("%v mark %d: %s: predicted %t, the kernel says %t (%v)", before.Tuple, before.Mark, v.Rule.Text, got, !got, v.Failed)
		}
	}
	for _, what := range chooser.Asked {
		t.Errorf("%v: asked: %s", before.Tuple, what)
	}
	return matched, missed
}
