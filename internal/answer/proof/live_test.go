package proof_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/answer/proof/local"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// world is a few namespaces, by the names of their hosts.
type world struct {
	t     testing.TB
	hosts map[string]*netns.Namespace
}

func newWorld(t testing.TB, hosts ...string) *world {
	t.Helper()
	kerneltest.NeedRoot(t)
	w := &world{t: t, hosts: map[string]*netns.Namespace{}}
	dir := t.TempDir()
	for i, h := range hosts {
		ns, err := netns.Create(fmt.Sprintf("%s/%d", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Remove() })
		w.hosts[h] = ns
	}
	return w
}

// wire joins two hosts: "a eth0" and "b eth1".
func (w *world) wire(a, b string) {
	w.t.Helper()
	end := func(s string) netns.LinkEnd {
		host, link, _ := strings.Cut(s, " ")
		return netns.LinkEnd{Namespace: w.hosts[host], Name: link}
	}
	if err := netns.EnsureVeth(end(a), end(b), 1500); err != nil {
		w.t.Fatal(err)
	}
	for _, e := range []netns.LinkEnd{end(a), end(b)} { // until then packets are lost
		netnstest.WaitUp(w.t, e.Namespace, e.Name)
	}
}

func (w *world) sh(host, script string) {
	w.t.Helper()
	cmd := exec.Command("sh", "-e")
	cmd.Stdin = strings.NewReader(script)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.hosts[host].Do(cmd.Run); err != nil {
		w.t.Fatalf("%s: %v: %s", host, err, out.String())
	}
}

func (w *world) listen(host, address string) {
	w.t.Helper()
	l, err := w.hosts[host].Listen(w.t.Context(), "tcp", address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
}

func (w *world) source() snapshot.Source {
	d := dump.Dumper{Hosts: map[string]string{}}
	origin := capture.Origin{Hosts: map[string]capture.NetNS{}, Fetch: func(name string) (*capture.Raw, error) {
		return d.All(w.t.Context(), name, w.hosts[name])
	}}
	for name, ns := range w.hosts {
		origin.Hosts[name], d.Hosts[name] = capture.NetNS{Inode: ns.Inode()}, ns.Path()
	}
	return capture.NewSource(origin)
}

func (w *world) place(host string) (proof.Place, error) {
	if ns, ok := w.hosts[host]; ok {
		return local.Place(ns), nil
	}
	return nil, fmt.Errorf("host %s: %w", host, fs.ErrNotExist)
}

func (w *world) live(source snapshot.Source, host string, p packet.Packet) (*walk.Result, proof.Report) {
	w.t.Helper()
	result, report, err := proof.Once(w.t.Context(), source, w.place, walk.Request{Host: host, Packet: p}, true)
	if err != nil {
		w.t.Fatal(err)
	}
	return result, report
}

// agree checks that prediction and kernel agree in every step.
func (w *world) agree(host string, p packet.Packet) proof.Report {
	w.t.Helper()
	result, report := w.live(w.source(), host, p)
	if !report.Complete() || report.Steps == 0 {
		w.t.Errorf("%s", report)
		w.show(result, report)
	}
	return report
}

func (w *world) show(result *walk.Result, report proof.Report) {
	o := result.Outcomes[report.Outcome]
	for _, s := range append(append([]walk.Step{}, o.There...), o.Back...) {
		what := s.Why
		if s.Visit != nil {
			what = s.Visit.Chain.Ref(s.Visit.Rule) + ": " + s.Visit.Verdict.Kind.String()
		}
		w.t.Logf("%s %s %s->%s %s ttl %d mark %#x: %s", s.Host, s.Stage, s.Packet.In, s.Packet.Out, s.Packet.Tuple, s.Packet.TTL, s.Packet.Mark,
			what)
	}
	for _, a := range result.Assumed {
		w.t.Logf("assumed of %s: %s", a.Host, a.What)
	}
}

func to(protocol packet.Protocol, address string) packet.Packet {
	a := netip.MustParseAddrPort(address)
	return packet.Packet{Tuple: packet.Tuple{Protocol: protocol, Destination: a.Addr(), DestinationPort: packet.Exactly(a.Port())}}
}

// routed returns a client, a router that translates, and a server.
func routed(t testing.TB) *world {
	w := newWorld(t, "vm/client", "node/router", "vm/server")
	w.wire("vm/client eth0", "node/router c")
	w.wire("node/router s", "vm/server eth0")
	w.sh("vm/client", "ip addr add 10.1.0.2/24 dev eth0; ip route add default via 10.1.0.1")
	w.sh("vm/server", "ip addr add 10.2.0.2/24 dev eth0; ip route add default via 10.2.0.1")
	w.sh("node/router", `
ip addr add 10.1.0.1/24 dev c; ip addr add 10.2.0.1/24 dev s
echo 1 > /proc/sys/net/ipv4/ip_forward
iptables-nft -t nat -N SVC
iptables-nft -t nat -N MARK-MASQ
iptables-nft -t nat -A MARK-MASQ -j MARK --or-mark 0x4000
iptables-nft -t nat -A PREROUTING -m comment --comment services -j SVC
iptables-nft -t nat -A SVC -d 10.0.0.10/32 -p tcp --dport 80 -j MARK-MASQ
iptables-nft -t nat -A SVC -d 10.0.0.10/32 -p tcp --dport 80 -j DNAT --to-destination 10.2.0.2:8080
iptables-nft -t nat -A POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
iptables-nft -t nat -A POSTROUTING -j MARK --xor-mark 0x4000
iptables-nft -t nat -A POSTROUTING -j MASQUERADE --random-fully
iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables-nft -A FORWARD -d 10.2.0.2/32 -p tcp --dport 99 -j REJECT --reject-with icmp-port-unreachable
iptables-nft -A FORWARD -d 10.2.0.2/32 -p tcp --dport 98 -j REJECT --reject-with tcp-reset
iptables-nft -A FORWARD -d 10.2.0.2/32 -p tcp --dport 97 -j DROP
iptables-nft -A FORWARD -d 10.2.0.2/32 -p udp -m comment --comment counted
`)
	w.listen("vm/server", "10.2.0.2:8080")
	return w
}

func TestLiveRouted(t *testing.T) {
	t.Parallel()
	w := routed(t)
	for _, c := range []struct {
		name   string
		p      packet.Packet
		answer witness.Answer
		source string
	}{
		{"service", to(packet.TCP, "10.0.0.10:80"), witness.Connected, "10.2.0.1:"},
		{"direct", to(packet.TCP, "10.2.0.2:8080"), witness.Connected, "10.1.0.2:"},
		{"no listener", to(packet.TCP, "10.2.0.2:81"), witness.Refused, "10.1.0.2:"},
		{"icmp rejection", to(packet.TCP, "10.2.0.2:99"), witness.Refused, ""},
		{"reset", to(packet.TCP, "10.2.0.2:98"), witness.Refused, ""},
		{"dropped", to(packet.TCP, "10.2.0.2:97"), witness.TimedOut, ""},
		{"udp refused", to(packet.UDP, "10.2.0.2:5"), witness.Refused, "10.1.0.2:"},
		{"echo", to(packet.ICMP, "10.2.0.2:0"), witness.Answered, "10.1.0.2"},
		{"router", to(packet.TCP, "10.1.0.1:22"), witness.Refused, "10.1.0.2:"},
		{"no route", to(packet.TCP, "10.3.0.1:22"), witness.Unreachable, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			begin := time.Now()
			r := w.agree("vm/client", c.p)
			t.Logf("%s; source %q, took %s of %s", r, r.Received.SourceEnd(), r.Took, time.Since(begin))
			if r.Answer.Answer != c.answer || !strings.HasPrefix(r.Received.SourceEnd(), c.source) {
				t.Errorf("answer %s, source %q, want %s, %s", r.Answer.Answer, r.Received.SourceEnd(), c.answer, c.source)
			}
		})
	}
}

// TestLiveOwner shows that the packet of a sidecar's user goes past the rules that catch all others', in prediction and kernel, and takes the
// route of a policy rule for its user.
func TestLiveOwner(t *testing.T) {
	t.Parallel()
	w := routed(t)
	w.sh("vm/client", `
iptables-nft -t nat -N ISTIO_OUTPUT
iptables-nft -t nat -A OUTPUT -p tcp -j ISTIO_OUTPUT
iptables-nft -t nat -A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
iptables-nft -t nat -A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
iptables-nft -t nat -A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001
nft 'add table ip t; add chain ip t o { type filter hook output priority 5; }; add rule ip t o meta skuid 1338 tcp dport 8080 drop'
ip route add table 99 unreachable 10.2.0.0/24
ip rule add uidrange 1400-1400 lookup 99`)
	w.listen("vm/client", "0.0.0.0:15001")
	for _, c := range []struct {
		name     string
		uid, gid uint32
		answer   witness.Answer
		received string // its destination
	}{
		{"root", 0, 0, witness.Connected, "127.0.0.1:15001"},
		{"sidecar", 1337, 0, witness.Connected, "10.2.0.2:8080"},
		{"its group", 1, 1337, witness.Connected, "10.2.0.2:8080"},
		{"another", 1338, 0, witness.Connected, "127.0.0.1:15001"},
		{"dropped", 1338, 1337, witness.TimedOut, ""},
		{"unreachable", 1400, 1337, witness.Unreachable, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			p := to(packet.TCP, "10.2.0.2:8080")
			p.HasOwner, p.UID, p.GID = true, c.uid, c.gid
			r := w.agree("vm/client", p)
			if r.Answer.Answer != c.answer || c.received != "" && r.Received.DestinationEnd() != c.received {
				t.Errorf("answer %s, received by %s, want %s, %s", r.Answer.Answer, r.Received.DestinationEnd(), c.answer, c.received)
			}
		})
	}
}

// A datagram that comes back as it was sent, from a program that echoes it, is the answer: its addresses tell.
func TestLiveEcho(t *testing.T) {
	t.Parallel()
	w := routed(t)
	w.sh("node/router", "iptables-nft -t nat -A SVC -d 10.0.0.10/32 -p udp --dport 7 -j DNAT --to-destination 10.2.0.2:7")
	for host, address := range map[string]string{"vm/server": "10.2.0.2:7", "vm/client": "127.0.0.1:7"} {
		c, err := w.hosts[host].ListenPacket(t.Context(), "udp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			buffer := make([]byte, 1500)
			for {
				n, from, err := c.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(buffer[:n], from)
			}
		}()
	}
	for _, address := range []string{"10.2.0.2:7", "10.0.0.10:7", "127.0.0.1:7"} {
		t.Run(address, func(t *testing.T) {
			w.t = t
			if r := w.agree("vm/client", to(packet.UDP, address)); r.Answer.Answer != witness.Answered || r.Unanswered {
				t.Errorf("%s: %s", r, r.Answer.Answer)
			}
		})
	}
}

// A rule that changes between the snapshot and the packet is the first difference, with what was there and what is.
func TestLiveFindsWhatChanged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, predicted, observed string }{
		"other translation": {"iptables-nft -t nat -R SVC 2 -d 10.0.0.10/32 -p tcp --dport 80 -j DNAT --to-destination 10.2.0.2:8081",
			"--to-destination 10.2.0.2:8080", "10.2.0.2:8081"},
		"new rule":   {"iptables-nft -I FORWARD 1 -p tcp --dport 8080 -j DROP", "filter FORWARD policy: accept", "tcp dport 8080 counter"},
		"rule taken": {"iptables-nft -t nat -D POSTROUTING 3", "nat POSTROUTING 3: accept", "nat POSTROUTING policy: accept"},
		"policy":     {"iptables-nft -P FORWARD DROP", "filter FORWARD policy: accept", "filter FORWARD policy: drop"},
		"another table": {"nft 'add table ip new; add chain ip new c { type filter hook forward priority -10; }; add rule ip new c tcp dport 8080 drop'",
			"filter FORWARD", "tcp dport 8080 drop"},
	} {
		t.Run(name, func(t *testing.T) {
			w := routed(t)
			w.listen("vm/server", "10.2.0.2:8081")
			source := w.source()
			for _, host := range source.Names() { // read now
				if _, err := source.Host(host); err != nil {
					t.Fatal(err)
				}
			}
			w.sh("node/router", c.change)
			_, r := w.live(source, "vm/client", to(packet.TCP, "10.0.0.10:80"))
			d := r.First
			if d == nil || d.Host != "node/router" || !strings.Contains(d.Predicted, c.predicted) || !strings.Contains(d.Observed, c.observed) {
				t.Errorf("%s", r)
			}
		})
	}
}

// bridged returns a node with two pods on a bridge, as Azure CNI's bridge mode has it, whose frames go through ebtables and iptables.
func bridged(t testing.TB) *world {
	w := newWorld(t, "node/n", "pod/a", "pod/b")
	w.wire("pod/a eth0", "node/n veth-a")
	w.wire("pod/b eth0", "node/n veth-b")
	for i, pod := range []string{"pod/a", "pod/b"} {
		w.sh(pod, fmt.Sprintf("ip addr add 10.5.0.%d/24 dev eth0; ip route add default via 10.5.0.1", i+2))
	}
	w.sh("node/n", `
ip link add azure0 type bridge
for v in veth-a veth-b; do ip link set $v master azure0; bridge link set dev $v hairpin on; done
ip addr add 10.5.0.1/24 dev azure0; ip link set azure0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
ebtables-nft -t nat -A PREROUTING -p IPv4 -i veth-a --ip-dst 10.5.0.3 -j mark --mark-set 0x1 --mark-target CONTINUE
iptables-nft -t nat -A PREROUTING -d 10.0.0.10/32 -p tcp --dport 80 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.5.0.3:8080
iptables-nft -t nat -A PREROUTING -d 10.0.0.10/32 -p tcp --dport 80 -j DNAT --to-destination 10.5.0.2:8080
iptables-nft -t nat -A POSTROUTING -s 10.5.0.2/32 -d 10.5.0.2/32 -j MASQUERADE
iptables-nft -A FORWARD -m physdev --physdev-in veth-a -m comment --comment from-a
`)
	w.listen("pod/a", "10.5.0.2:8080")
	w.listen("pod/b", "10.5.0.3:8080")
	return w
}

func TestLiveBridged(t *testing.T) {
	t.Parallel()
	w := bridged(t)
	for name, p := range map[string]packet.Packet{
		"pod to pod": to(packet.TCP, "10.5.0.3:8080"), "pod to node": to(packet.TCP, "10.5.0.1:22"), "echo": to(packet.ICMP, "10.5.0.3:0"),
		"udp refused": to(packet.UDP, "10.5.0.3:9"),
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			t.Log(w.agree("pod/a", p))
		})
	}
	t.Run("service", func(t *testing.T) { // by each endpoint, one of them the sender itself
		w.t = t
		taken := map[int]bool{}
		for i := 0; i < 30 && len(taken) < 2; i++ {
			taken[w.agree("pod/a", to(packet.TCP, "10.0.0.10:80")).Outcome] = true
		}
		if len(taken) != 2 {
			t.Errorf("outcomes taken: %v", taken)
		}
	})
	t.Run("node", func(t *testing.T) {
		w.t = t
		w.agree("node/n", to(packet.TCP, "10.5.0.3:8080"))
		w.agree("node/n", to(packet.TCP, "10.5.0.1:8080"))
	})
}

// A packet that would go round without end is not sent.
func TestLiveEndless(t *testing.T) {
	t.Parallel()
	w := routed(t)
	w.sh("node/router", "ip route add 10.9.0.0/16 via 10.2.0.2; iptables-nft -t mangle -A PREROUTING -j TTL --ttl-inc 2")
	w.sh("vm/server", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	result, report := w.live(w.source(), "vm/client", to(packet.TCP, "10.9.0.1:80"))
	if len(result.Outcomes) != 1 || result.Outcomes[0].End.Kind != walk.Looped || report.NotSent == "" || report.Complete() {
		t.Errorf("%+v: %s", result.Outcomes[0].End, report)
	}
	w.hosts["node/router"].Do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/dev")
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if sent, _ := strconv.Atoi(fields[min(10, len(fields)-1)]); fields[0] == "s:" && sent > 20 { // a few are the link's own
				t.Errorf("%d packets were sent to the server", sent)
			}
		}
		return err
	})
}

// A connection that its second packet ends, because that is not marked and leaves by another interface than the masqueraded first one.
func TestLiveEndedLater(t *testing.T) {
	t.Parallel()
	w := routed(t)
	w.wire("node/router s1", "vm/server eth1")
	w.sh("vm/server", "ip addr add 10.3.0.2/24 dev eth1")
	w.sh("node/router", `
ip addr add 10.3.0.1/24 dev s1
ip route add default via 10.3.0.2 table 100
ip rule add from 10.1.0.0/24 fwmark 0/0x4000 table 100
`)
	r := w.agree("vm/client", to(packet.TCP, "10.0.0.10:80"))
	if want := "; the connection does not last: on node/router the connection is masqueraded for s: that a packet of it leaves by s1 ends it"; !strings.Contains(r.String(), want) {
		t.Errorf("%s", r)
	}
	w.sh("node/router", "ip rule del table 100")
	if r := w.agree("vm/client", to(packet.TCP, "10.0.0.10:80")); r.Ends != "" {
		t.Errorf("%s", r)
	}
}

// A chain that comes late to a table that was made early is called first, of those with its priority: that is not in the dump, which the
// walk says, and the kernel's trace shows it.
func TestLiveLateChain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hook, first, late string // the rules of the chain that is there first, of the table made second, and of the one that comes late
		assumed           bool   // because it decides what becomes of the packet
	}{
		"mark":      {"type filter hook forward priority 5", "meta mark 0 meta mark set 7", "meta mark 0 meta mark set 8", false},
		"drop":      {"type filter hook forward priority 5", "meta mark 0 drop", "meta mark set 8", true},
		"mark drop": {"type filter hook forward priority 5", "meta mark 8 drop", "meta mark set 8", true},
		"both drop": {"type filter hook forward priority 5", "drop", "drop", false},
		"nat":       {"type nat hook prerouting priority -101", "ip daddr 10.0.0.77 dnat to 10.2.0.3", "ip daddr 10.0.0.77 dnat to 10.2.0.2", true},
		"no matter": {"type filter hook forward priority 5", "counter", "counter", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := routed(t)
			w.sh("vm/server", "ip addr add 10.2.0.3/24 dev eth0")
			w.listen("vm/server", "10.2.0.3:8080")
			w.sh("node/router", fmt.Sprintf(`
nft 'add table ip early; add table ip later'
nft 'add chain ip later c { %[1]s ; }; add rule ip later c %[2]s'
nft 'add chain ip early c { %[1]s ; }; add rule ip early c %[3]s'
`, c.hook, c.first, c.late))
			p := to(packet.TCP, "10.2.0.2:8080")
			if name == "nat" {
				p = to(packet.TCP, "10.0.0.77:8080")
			}
			asked := p
			asked.TCPFlags = packet.SYN
			plain, err := walk.Walk(w.source(), walk.Request{Host: "vm/client", Packet: asked})
			if err != nil {
				t.Fatal(err)
			}
			const says = "assuming the kernel calls later c first"
			said := slices.ContainsFunc(plain.Assumed, func(a walk.Assumption) bool {
				return a.Host == "node/router" && strings.Contains(a.What, says)
			})
			if said != c.assumed {
				t.Errorf("assumed %v: %v", plain.Assumed, said)
			}
			w.agree("vm/client", p)
			result, _ := w.live(w.source(), "vm/client", p)
			for _, a := range result.Assumed { // what was so, and what was not
				if strings.Contains(a.What, "no listing tells") {
					t.Errorf("still assumed: %v", a)
				}
			}
			late := walk.Call{ChainRef: walk.ChainRef{Family: "ip", Table: "early", Chain: "c"}}
			if early := result.Request.Early["node/router"]; len(early) == 0 || early[0] != late {
				t.Errorf("the kernel called %v", early)
			}
		})
	}
}

// changingSubject is a subject whose router begins to reject a port after the states were read, and before the packet is sent.
type changingSubject struct {
	w       *world
	source  snapshot.Source
	reads   int
	changes int  // that are left
	fixed   bool // the states are not read anew
}

func (c *changingSubject) Source() snapshot.Source { return c.source }

func (c *changingSubject) Walk(_ context.Context, r walk.Request) (*walk.Result, error) {
	result, err := walk.Walk(c.source, r)
	if c.changes > 0 {
		c.changes--
		c.w.sh("node/router", "iptables-nft -I FORWARD -d 10.2.0.2/32 -p tcp --dport 8080 -j REJECT")
	}
	return result, err
}

func (c *changingSubject) Place(host string) (proof.Place, error) { return c.w.place(host) }

func (c *changingSubject) Read(_ context.Context, hosts []string) []string { return hosts }

func (c *changingSubject) Refresh(_ context.Context, hosts []string) ([]string, error) {
	if c.reads++; c.fixed {
		return nil, nil
	}
	fresh := c.w.source()
	for _, name := range hosts {
		before, err := c.source.Host(name)
		if err != nil {
			return nil, err
		}
		after, err := fresh.Host(name)
		if err != nil {
			return nil, err
		}
		if len(snapshot.Changes(before, after)) > 0 {
			c.source = fresh
			return []string{name + ": rules"}, nil
		}
	}
	return nil, nil
}

// changedSource changes what was read of one host.
type changedSource struct {
	snapshot.Source
	host   string
	change func(*snapshot.Host)
}

func (a changedSource) Host(name string) (*snapshot.Host, error) {
	h, err := a.Source.Host(name)
	if err != nil || name != a.host {
		return h, err
	}
	changed := *h
	state := *h.FIB
	changed.FIB, state.Links = &state, slices.Clone(h.FIB.Links)
	state.Index()
	a.change(&changed)
	return &changed, nil
}

// TestLiveReceiver: the capture at the receiver shows the packet's source there, also where the walk does not know what becomes of the
// packet, or predicts something else.
func TestLiveReceiver(t *testing.T) {
	t.Parallel()
	program := func(h *snapshot.Host) { h.FIB.Link("c").Program = "tc program someone" }
	for name, c := range map[string]struct {
		p                packet.Packet
		change           func(*snapshot.Host)
		script           string // run in the router after it was read
		undecided, parts bool
		source           string // "" where the server gets nothing
	}{
		"undecided":         {to(packet.TCP, "10.0.0.10:80"), program, "", true, false, "10.2.0.1:"},
		"undecided echo":    {to(packet.ICMP, "10.2.0.2:0"), program, "", true, false, "10.1.0.2"},
		"undecided udp":     {to(packet.UDP, "10.2.0.2:5"), program, "", true, false, "10.1.0.2:"},
		"undecided dropped": {to(packet.TCP, "10.2.0.2:97"), program, "", true, false, ""},
		"agrees":            {to(packet.TCP, "10.0.0.10:80"), nil, "", false, false, "10.2.0.1:"},
		"other source": {to(packet.TCP, "10.2.0.2:8080"), nil, "iptables-nft -t nat -I POSTROUTING -j MASQUERADE", false, true,
			"10.2.0.1:"},
		"dropped": {to(packet.TCP, "10.2.0.2:8080"), nil, "iptables-nft -I FORWARD -j DROP", false, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := routed(t)
			subject := &changingSubject{w: w, source: w.source()}
			for _, host := range subject.source.Names() {
				if _, err := subject.source.Host(host); err != nil {
					t.Fatal(err)
				}
			}
			if c.change != nil {
				subject.source = changedSource{subject.source, "node/router", c.change}
			}
			if c.script != "" {
				w.sh("node/router", c.script)
				subject.fixed = true
			}
			_, report, err := proof.Live(t.Context(), subject, walk.Request{Host: "vm/client", Packet: c.p}, []string{"vm/server"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if report.Undecided != c.undecided || (report.First != nil) != c.parts {
				t.Errorf("undecided %v, %s", report.Undecided, report)
			}
			got := report.Receiver == "vm/server" && len(report.Missed) == 0
			missed := report.Receiver == "" && slices.Equal(report.Missed, []string{"vm/server"})
			if got != (c.source != "") || missed == got || !strings.HasPrefix(report.Received.SourceEnd(), c.source) {
				t.Log(report)
				t.Errorf("received by %q from %q, missed by %q, want a source %s…", report.Receiver, report.Received.SourceEnd(), report.Missed, c.source)
			}
		})
	}
}

// TestLiveCandidates: outcomes that differ only where nothing is seen are all kept, and those that something seen rules out are not.
func TestLiveCandidates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p      packet.Packet
		script string // of the router
		server bool   // is watched
		total  int
		kept   int
	}{
		"one of two sources, unseen": {to(packet.TCP, "10.2.0.2:8080"), oneOfTwo, false, 2, 2},
		"one of two sources, seen":   {to(packet.TCP, "10.2.0.2:8080"), oneOfTwo, true, 2, 1},
		"dropped or not, answered":   {to(packet.TCP, "10.2.0.2:8080"), perhapsDropped + " -p tcp -j DROP", false, 2, 1},
		"dropped or lost, unseen":    {to(packet.UDP, "10.2.0.2:7"), perhapsDropped + " -p udp -j DROP", false, 2, 2},
		"dropped or lost, seen":      {to(packet.UDP, "10.2.0.2:7"), perhapsDropped + " -p udp -j DROP", true, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := routed(t)
			w.sh("vm/server", "ip route add 10.1.0.0/24 via 10.2.0.1; iptables-nft -A INPUT -p udp -j DROP")
			w.sh("node/router", "ip addr add 10.2.0.5/24 dev s\n"+c.script)
			places := func(host string) (proof.Place, error) {
				if host == "node/router" || host == "vm/server" && !c.server {
					return nil, fs.ErrNotExist
				}
				return w.place(host)
			}
			result, report, err := proof.Once(t.Context(), w.source(), places, walk.Request{Host: "vm/client", Packet: c.p}, false)
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Outcomes) != c.total || report.First != nil || len(report.Candidates) != c.kept ||
				!slices.Contains(report.Candidates, report.Outcome) {
				t.Errorf("%d outcomes, kept %v, best %d, %s: %s", len(result.Outcomes), report.Candidates, report.Outcome, report.Answer.Answer, report)
			}
		})
	}
}

// TestNarrow checks that what the kernel showed is no longer assumed, nor is what only other outcomes assume; what was not seen still is.
func TestNarrow(t *testing.T) {
	t.Parallel()
	missing := func(h *snapshot.Host) { h.Missing = map[snapshot.Part]string{snapshot.Policy: "not read"} }
	for name, c := range map[string]struct {
		p       packet.Packet
		script  string
		unseen  string
		assumed []string // of which hosts
	}{
		"all seen":      {to(packet.TCP, "10.2.0.2:8080"), "", "", nil},
		"router unseen": {to(packet.TCP, "10.2.0.2:8080"), "", "node/router", []string{"node/router"}},
		"server unseen": {to(packet.TCP, "10.2.0.2:8080"), "", "vm/server", []string{"node/router"}},
		"not answered":  {to(packet.UDP, "10.2.0.2:7"), "", "", []string{"node/router"}},
		"another way's own": {to(packet.TCP, "10.1.0.1:9"), "iptables-nft -t nat -I PREROUTING -p tcp --dport 9 -m statistic --mode nth " +
			"--every 2 --packet 1 -j DNAT --to-destination 10.2.0.2:8080", "vm/server", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := routed(t)
			silent, err := w.hosts["vm/server"].ListenPacket(t.Context(), "udp", "10.2.0.2:7") // answers nothing
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			if c.script != "" {
				w.sh("node/router", c.script)
			}
			places := func(host string) (proof.Place, error) {
				if host == c.unseen {
					return nil, fs.ErrNotExist
				}
				return w.place(host)
			}
			source := changedSource{w.source(), "node/router", missing}
			result, report, err := proof.Once(t.Context(), source, places, walk.Request{Host: "vm/client", Packet: c.p}, false)
			if err != nil {
				t.Fatal(err)
			}
			narrow, err := proof.Narrow(source, result, &report)
			if err != nil {
				t.Fatal(err)
			}
			var assumed []string
			for _, a := range narrow.Assumed {
				assumed = append(assumed, a.Host)
			}
			if len(result.Assumed) == 0 || report.First != nil || !slices.Equal(assumed, c.assumed) {
				t.Errorf("assumed %v, of these still %v: %s", result.Assumed, narrow.Assumed, report)
			}
			for _, o := range narrow.Outcomes {
				if len(o.Unshown) != len(c.assumed) {
					t.Errorf("not shown: %v", o.Unshown)
				}
			}
		})
	}
}

// TestNarrowKeeps: what the trace of one packet cannot show is still assumed: that programs leave the data of a connection alone, and that
// the sender is in none of the control groups that have some, and what a program of its group does.
func TestNarrowKeeps(t *testing.T) {
	t.Parallel()
	w := routed(t)
	source := changedSource{w.source(), "vm/client", func(h *snapshot.Host) {
		h.Programs = []snapshot.Program{{Attach: "sk_msg", Name: "fast", ID: 9}, {Attach: "egress", Name: "meter", ID: 8, Group: "/a", Some: true},
			{Attach: "egress", Name: "own", ID: 7, Group: "/pod"}, {Attach: "egress", Name: "root", ID: 6, Group: "/"}}
	}}
	result, report, err := proof.Once(t.Context(), source, w.place, walk.Request{Host: "vm/client", Packet: to(packet.TCP, "10.2.0.2:8080")}, false)
	if err != nil || report.First != nil || !slices.Contains(report.Shown, "vm/client") {
		t.Fatalf("%v: %s", err, report)
	}
	narrow, err := proof.Narrow(source, result, &report)
	if err != nil || len(narrow.Assumed) != 2 {
		t.Fatalf("%v: still assumed %v of %v", err, narrow.Assumed, result.Assumed)
	}
	if len(narrow.Outcomes) != 1 || len(narrow.Outcomes[0].Choices) != 1 {
		t.Errorf("%d outcomes, of which the first has the choices %v", len(narrow.Outcomes), narrow.Outcomes[0].Choices)
	}
}

const (
	oneOfTwo = `iptables-nft -t nat -F POSTROUTING
iptables-nft -t nat -A POSTROUTING -m statistic --mode random --probability 0.5 -j SNAT --to-source 10.2.0.5
iptables-nft -t nat -A POSTROUTING -j SNAT --to-source 10.2.0.1`
	perhapsDropped = "iptables-nft -I FORWARD -d 10.2.0.2 -m statistic --mode random --probability 0.5"
)

// TestLiveAgain: a packet is sent again where prediction and kernel part because rules have changed in between, and each walk is announced
// as it was compared.
func TestLiveAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ changes, sent int }{"quiet": {0, 1}, "one change": {1, 2}, "always changing": {5, 3}} {
		t.Run(name, func(t *testing.T) {
			w := routed(t)
			subject := &changingSubject{w: w, source: w.source(), changes: c.changes}
			var announced []*walk.Result
			result, report, err := proof.Live(t.Context(), subject, walk.Request{Host: "vm/client", Packet: to(packet.TCP, "10.2.0.2:8080")},
				nil, func(r *walk.Result, _ []string) { announced = append(announced, r) })
			if err != nil {
				t.Fatal(err)
			}
			if len(announced) != c.sent || announced[c.sent-1] != result {
				t.Errorf("%d walks were announced, want %d, the last of them the result", len(announced), c.sent)
			}
			if len(report.Changed) != c.sent-1 || c.sent > 1 && report.Changed[0] != "node/router: rules" {
				t.Errorf("changes %q", report.Changed)
			}
			if parted := report.First != nil; parted != (c.changes > c.sent) {
				t.Errorf("prediction and kernel part: %v\n%s", parted, report)
			}
		})
	}
}

// TestLiveReadsSenderFirst: the probe's own socket, which takes any datagram until it is connected, is not in the state of its sender.
func TestLiveReadsSenderFirst(t *testing.T) {
	t.Parallel()
	w := routed(t)
	source := w.source()
	w.live(source, "vm/client", to(packet.UDP, "10.2.0.2:5"))
	sender, err := source.Host("vm/client")
	if err != nil {
		t.Fatal(err)
	}
	if len(sender.Listeners) > 0 {
		t.Errorf("the sender's sockets are %v, want none", sender.Listeners)
	}
}

// What is cancelled leaves nothing behind either.
func TestLiveCancelled(t *testing.T) {
	t.Parallel()
	w := routed(t)
	source := w.source()
	for _, host := range source.Names() {
		if _, err := source.Host(host); err != nil {
			t.Fatal(err)
		}
	}
	w.sh("node/router", "iptables-nft -F FORWARD") // what is predicted does not come: it is waited for
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	_, _, err := proof.Once(ctx, source, w.place, walk.Request{Host: "vm/client", Packet: to(packet.TCP, "10.2.0.2:97")}, false)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	for host, ns := range w.hosts {
		var out strings.Builder
		cmd := exec.Command("nft", "list", "tables")
		cmd.Stdout = &out
		if err := ns.Do(cmd.Run); err != nil || strings.Contains(out.String(), "trace") {
			t.Errorf("%s has the tables %s, %v", host, out.String(), err)
		}
	}
}
