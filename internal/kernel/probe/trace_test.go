package probe_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/probe"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"

	"golang.org/x/sys/unix"
)

func openTrace(t testing.TB, ns *netns.Namespace, tuples ...packet.Tuple) *probe.Trace {
	t.Helper()
	trace, err := probe.OpenTrace(ns, witness.Filters(tuples...), tuples)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trace.Close() })
	return trace
}

// readTrace reads until nothing has come for 150 ms. What has come by then is read even if this process has not run meanwhile.
func readTrace(t testing.TB, trace *probe.Trace) []witness.TraceEvent {
	t.Helper()
	var events []witness.TraceEvent
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		e, err := trace.Read(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			if trace.Pending() {
				continue
			}
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
}

func lines(events []witness.TraceEvent) []string {
	var all []string
	for _, e := range events {
		line := fmt.Sprintf("%s %s %s %s %s", e.Family, e.Table, e.Chain, e.Kind, e.Verdict)
		if e.Kind == witness.TraceEntered {
			line = fmt.Sprintf("%s entered %s", e.Family, e.Chain)
		}
		if e.Target != "" {
			line += " " + e.Target
		}
		if e.Mark != 0 {
			line += fmt.Sprintf(" mark %#x", e.Mark)
		}
		if e.Packet != nil {
			line += " | " + e.Packet.String()
		}
		all = append(all, line)
	}
	return all
}

func tcpTuple(source, destination string) packet.Tuple {
	t := packet.Tuple{Protocol: packet.TCP}
	if a, err := netip.ParseAddrPort(source); err == nil {
		t.Source, t.SourcePort = a.Addr(), packet.Exactly(a.Port())
	}
	if a, err := netip.ParseAddrPort(destination); err == nil {
		t.Destination, t.DestinationPort = a.Addr(), packet.Exactly(a.Port())
	}
	return t
}

func TestTraceIPTablesNFT(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, b, `
iptables-nft -t nat -N SVC
iptables-nft -t nat -N MARK-MASQ
iptables-nft -t nat -A PREROUTING -m comment --comment first -j SVC
iptables-nft -t nat -A SVC -p udp -j RETURN
iptables-nft -t nat -A SVC -p tcp --dport 80 -j MARK-MASQ
iptables-nft -t nat -A MARK-MASQ -j MARK --or-mark 0x4000
iptables-nft -t nat -A SVC -p tcp --dport 80 -j DNAT --to-destination 10.9.0.2:8080
iptables-nft -A INPUT -p tcp --dport 8080 -m comment --comment "counts only"
iptables-nft -A INPUT -i peer-of-a -m mark --mark 0x4000/0x4000 -j ACCEPT
`)
	l, err := b.Listen(t.Context(), "tcp", "10.9.0.2:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	request := tcpTuple("", "10.9.0.2:80")
	request.Source = netip.MustParseAddr("10.9.0.1")
	trace := openTrace(t, b, request, tcpTuple("10.9.0.2:8080", ""))
	c, err := a.Dial(t.Context(), "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	port := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
	events := readTrace(t, trace)
	want := []string{
		"inet entered prerouting | tcp 10.9.0.1:%d > 10.9.0.2:80",
		"ip nat PREROUTING rule jump SVC | tcp 10.9.0.1:%d > 10.9.0.2:80",
		"ip nat SVC rule jump MARK-MASQ",
		"ip nat MARK-MASQ rule continue mark 0x4000",
		"ip nat MARK-MASQ return continue mark 0x4000",
		"ip nat SVC rule accept mark 0x4000",
		"ip filter INPUT rule continue mark 0x4000 | tcp 10.9.0.1:%d > 10.9.0.2:8080",
		"ip filter INPUT rule accept mark 0x4000",
		"inet entered output | tcp 10.9.0.2:8080 > 10.9.0.1:%d",
	}
	for i := range want {
		if strings.Contains(want[i], "%d") {
			want[i] = fmt.Sprintf(want[i], port)
		}
	}
	if got := lines(events); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

var traced = packet.Tuple{Protocol: packet.UDP, Destination: netip.MustParseAddr("10.9.0.2"), DestinationPort: packet.Exactly(7)}

func TestTraceLeavesNothing(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, t.TempDir()+"/a")
	if without := openTrace(t, ns, traced); traceTables(t, ns) != 1 {
		t.Errorf("%d tables of the trace, want 1", traceTables(t, ns))
	} else if err := without.Close(); err != nil {
		t.Error(err)
	}
	netnstest.Script(t, ns, "ip link add br0 type bridge")
	before := openSockets(t)
	trace := openTrace(t, ns, traced)
	for fd := range openSockets(t) { // as a program that is being started holds them
		if before[fd] {
			continue
		}
		held, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(held)
	}
	if n := traceTables(t, ns); n != 2 {
		t.Errorf("%d tables of the trace where there is a bridge, want 2", n)
	}
	var listed []byte
	err := ns.Do(func() (err error) { listed, err = exec.Command("nft", "list", "ruleset").Output(); return err })
	rules := strings.Count(string(listed), "nftrace set 1") + strings.Count(string(listed), "limit rate over") +
		strings.Count(string(listed), "chain ") // one guard each
	if signed := strings.Count(string(listed), `comment "packetwalk walk --live: `); err != nil || rules < 4 || signed != rules {
		t.Errorf("%d of %d rules say what they are there for (%v):\n%s", signed, rules, err, listed)
	}
	if err := trace.Close(); err != nil {
		t.Error(err)
	}
	if n := traceTables(t, ns); n != 0 {
		t.Errorf("%d tables are left after Close", n)
	}
}

// openSockets returns the sockets that this process has open, by their file descriptors.
func openSockets(t *testing.T) map[int]bool {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sockets := map[int]bool{}
	for _, e := range entries {
		if target, err := os.Readlink(dir + "/" + e.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			fd, _ := strconv.Atoi(e.Name())
			sockets[fd] = true
		}
	}
	return sockets
}

// traceTables counts the namespace's tables. Not from JSON: nft 1.0.6 breaks off in the middle of it where a table has an owner.
func traceTables(t *testing.T, ns *netns.Namespace) int {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command("nft", "list", "tables")
	cmd.Stdout = &out
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatal(err)
	}
	return strings.Count(out.String(), "table ")
}

// A process that traces and is killed leaves no table. The process is this test binary: see TestMain.
func TestTraceKilled(t *testing.T) {
	kerneltest.NeedRoot(t)
	path := t.TempDir() + "/a"
	ns := netnstest.Create(t, path)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestTraceHold$")
	cmd.Env = append(os.Environ(), traceHold+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "tracing" {
		t.Errorf("the tracing process said %q", lines.Text())
	}
	if n := traceTables(t, ns); n != 1 {
		t.Errorf("%d tables of the trace, want 1", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if n := traceTables(t, ns); n != 0 {
		t.Errorf("%d tables are left after kill -9", n)
	}
}

// traceHold names the namespace in which TestTraceHold, run as a process of its own, traces until it is killed.
const traceHold = "PACKETWALK_TEST_TRACE_HOLD"

func TestTraceHold(t *testing.T) {
	path := os.Getenv(traceHold)
	if path == "" {
		t.Skip("runs for TestTraceKilled")
	}
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	openTrace(t, ns, traced)
	fmt.Println("tracing")
	time.Sleep(5 * time.Minute)
}

func TestTraceBadTuples(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, t.TempDir()+"/a")
	mixed := packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.9.0.2"), Destination: netip.MustParseAddr("fd00::1")}
	for _, tuples := range [][]packet.Tuple{nil, {mixed}} {
		if _, err := probe.OpenTrace(ns, witness.Filters(tuples...), tuples); err == nil {
			t.Errorf("no error for %v", tuples)
		}
	}
}

// TestTraceNFT traces a datagram that no process receives. A map picks its endpoint at random, as in kube-proxy's nftables mode.
func TestTraceNFT(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Script(t, b, `nft -f - <<end
table ip proxy {
	chain endpoint { meta mark set 0x10 meta l4proto udp dnat to 10.9.0.2:9999; }
	chain services { type nat hook prerouting priority dstnat; ip daddr 10.9.0.2 udp dport 7 numgen random mod 1 vmap { 0 : goto endpoint }; }
	chain input { type filter hook input priority filter; policy drop; ct state established accept; udp dport 9999 counter; }
}
end`)
	trace := openTrace(t, b, traced)
	send(t, a, packet.Packet{Tuple: traced})
	got := lines(readTrace(t, trace))
	for i, line := range got {
		got[i], _, _ = strings.Cut(line, " |")
	}
	want := []string{
		"inet entered prerouting",
		"ip proxy services rule goto endpoint",
		"ip proxy endpoint rule accept mark 0x10",
		"ip proxy input rule continue mark 0x10",
		"ip proxy input return continue mark 0x10",
		"ip proxy input policy drop mark 0x10",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A bridge whose frames go through ebtables and, with br_netfilter, through iptables.
func TestTraceBridge(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	a, b, bridge := netnstest.Create(t, dir+"/a"), netnstest.Create(t, dir+"/b"), netnstest.Create(t, dir+"/bridge")
	for i, ns := range []*netns.Namespace{a, b} {
		port := netns.LinkEnd{Namespace: bridge, Name: fmt.Sprintf("port%d", i)}
		if err := netns.EnsureVeth(netns.LinkEnd{Namespace: ns, Name: "eth0"}, port, 1500); err != nil {
			t.Fatal(err)
		}
		netnstest.Script(t, ns, fmt.Sprintf("ip addr add 10.9.0.%d/24 dev eth0", i+1))
	}
	netnstest.Script(t, bridge, `
ip link add br0 type bridge
for i in 0 1; do ip link set port$i master br0; done
ip link set br0 up
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
ebtables-nft -t nat -A PREROUTING -p IPv4 --ip-dst 10.9.0.2 -j mark --mark-set 0x7 --mark-target CONTINUE
iptables-nft -A FORWARD -m physdev --physdev-in port0 -j ACCEPT
`)
	taker, err := b.ListenPacket(t.Context(), "udp", "10.9.0.2:7")
	if err != nil {
		t.Fatal(err)
	}
	defer taker.Close()
	trace := openTrace(t, bridge, traced)
	send(t, a, packet.Packet{Tuple: traced}) // learns the stations, too
	readTrace(t, trace)
	send(t, a, packet.Packet{Tuple: traced})
	events := readTrace(t, trace)
	var got []string
	for _, e := range events {
		if e.Packet != nil && (e.Packet.DestinationPort.Number != 7 || e.Packet.Frame.Source.IsZero() || e.Packet.TTL != 64) {
			t.Errorf("packet %+v", e.Packet)
		}
		line, _, _ := strings.Cut(lines([]witness.TraceEvent{e})[0], " |")
		got = append(got, line)
	}
	want := []string{
		"bridge entered prerouting",
		"bridge nat PREROUTING rule continue mark 0x7",
		"bridge nat PREROUTING return continue mark 0x7",
		"bridge nat PREROUTING policy accept mark 0x7",
		"inet entered prerouting mark 0x7",
		"ip filter FORWARD rule accept mark 0x7",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if groups := witness.GroupTrace(events); len(groups) != 4 || len(groups[1].Events) != 3 {
		t.Errorf("%d traversals", len(groups))
	}
}

func TestRuleHandles(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, t.TempDir()+"/a")
	netnstest.Script(t, ns, "for p in 1 2 3; do iptables-nft -I INPUT -p tcp --dport $p; done; iptables-nft -A FORWARD -j DROP")
	handles, err := ruleset.RuleHandles(ns, "ip", "filter", "INPUT")
	if err != nil || len(handles) != 3 || !slices.IsSortedFunc(handles, func(a, b uint64) int { return int(b) - int(a) }) {
		t.Fatalf("handles %v, %v", handles, err)
	}
	text, err := ruleset.RuleText(t.Context(), ns, "ip", "filter", "INPUT", handles[0])
	if err != nil || !strings.HasPrefix(text, "tcp dport 3") {
		t.Errorf("rule 1 is %q, %v", text, err)
	}
	for _, chain := range []string{"nothing", "OUTPUT"} {
		if handles, err := ruleset.RuleHandles(ns, "ip", "filter", chain); err != nil || len(handles) != 0 {
			t.Errorf("%s: handles %v, %v", chain, handles, err)
		}
	}
	for chain, want := range map[string]bool{"INPUT": true, "OUTPUT": false} {
		if has, err := ruleset.HasChain(ns, "ip", "filter", chain); has != want || err != nil {
			t.Errorf("has %s: %v, %v", chain, has, err)
		}
	}
	if text, err := ruleset.RuleText(t.Context(), ns, "ip", "filter", "INPUT", 999); err != nil || text != "" {
		t.Errorf("no such rule: %q, %v", text, err)
	}
}
