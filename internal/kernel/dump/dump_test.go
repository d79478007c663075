package dump_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/probe"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestDump takes the state of two joined namespaces and reads it back.
func TestDump(t *testing.T) {
	kerneltest.NeedRoot(t)
	a, b := netnstest.Create(t, filepath.Join(t.TempDir(), "ns")), netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	if err := netns.EnsureVeth(netns.LinkEnd{Namespace: a, Name: "to.b"}, netns.LinkEnd{Namespace: b, Name: "to-a"}, 1500); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		"ip link add br0 type bridge && ip link set br0 up && ip addr add 10.9.0.1/24 dev br0",
		"ip link set to.b up && ip addr add 10.8.0.1/24 dev to.b && ip route add 10.7.0.0/16 via 10.8.0.2 table 77 && ip rule add fwmark 7 table 77",
		"ip neigh add proxy 10.8.0.9 dev to.b",
		"echo 1 > /proc/sys/net/ipv4/conf/to.b/proxy_arp",
		"iptables-nft -t nat -A POSTROUTING -s 10.9.0.0/24 -j MASQUERADE",
		"ipset create pool hash:net && ipset add pool 10.9.0.0/24",
		"nft add table ip own '{ chain c { type filter hook forward priority 0; ip daddr 10.7.0.0/16 accept; }; }'",
	} {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Stderr = os.Stderr
		if err := a.Do(cmd.Run); err != nil {
			t.Fatalf("%s: %v", script, err)
		}
	}
	l, err := a.Listen(t.Context(), "tcp", "10.9.0.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := &dump.Dumper{Hosts: map[string]string{"node/a": a.Path(), "node/b": b.Path()}}
	raw, err := d.All(t.Context(), "node/a", a)
	if err != nil {
		t.Fatal(err)
	}
	for file, out := range raw.Outputs {
		if out.Error != "" {
			t.Errorf("%s: %s", file, out.Error)
		}
	}
	if len(raw.Outputs) != len(capture.Dumps) {
		t.Errorf("%d outputs for %d rows", len(raw.Outputs), len(capture.Dumps))
	}
	h := capture.NewLoader(raw.Name).Load(raw)
	if len(h.Unread) > 0 {
		t.Errorf("missing: %v", h.Unread)
	}
	if want := (snapshot.Peer{Link: "to.b", Host: "node/b", PeerLink: "to-a"}); len(h.Peers) != 1 || h.Peers[0] != want {
		t.Errorf("peers %+v, want %+v", h.Peers, want)
	}
	if v, ok := h.Sysctl("net", "ipv4", "conf", "to.b", "proxy_arp"); !ok || v != "1" {
		t.Errorf("proxy_arp of to.b is %q", v)
	}
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Listeners) != 1 || h.Listeners[0].Local.String() != "10.9.0.1:8080" || h.Listeners[0].Process != strings.TrimSpace(string(name)) {
		t.Errorf("listeners %+v", h.Listeners)
	}
	if h.IPSets["pool"] == nil || len(h.IPSets["pool"].Elements) != 1 {
		t.Errorf("set pool: %+v", h.IPSets["pool"])
	}
	if own := h.Rules.Table(netfilter.IPv4, "own"); own == nil || len(own.Chain("c").Rules) != 1 {
		t.Errorf("table own: %+v", own)
	}
	nat := h.Rules.Table(netfilter.IPv4, "nat")
	if nat == nil || nat.Dialect != netfilter.IPTablesNFT || len(nat.Chain("POSTROUTING").Rules) != 1 ||
		nat.Chain("POSTROUTING").Rules[0].Handle == 0 {
		t.Errorf("table nat: %+v", nat)
	}
	route, proxy, rule := false, false, false
	for _, r := range h.FIB.Routes {
		route = route || r.Table == 77 && r.Destination.String() == "10.7.0.0/16" && r.Link == "to.b"
	}
	for _, n := range h.FIB.Neighbours {
		proxy = proxy || n.Proxy && n.Address.String() == "10.8.0.9"
	}
	for _, r := range h.FIB.Rules {
		rule = rule || r.Mark == 7 && r.Table == 77
	}
	if !route || !proxy || !rule {
		t.Errorf("route %v, proxy neighbour %v, policy rule %v: want all", route, proxy, rule)
	}
}

// TestDumpChangesNothing: looking makes no tables, neither of nf_tables nor legacy ones.
func TestDumpChangesNothing(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	d := &dump.Dumper{}
	for range 2 {
		raw, err := d.All(t.Context(), "node/a", ns)
		if err != nil {
			t.Fatal(err)
		}
		if out := raw.Outputs["iptables-legacy-save.txt"]; out.Skipped == "" {
			t.Errorf("legacy tables where there are none: %+v", out)
		}
		for _, file := range []string{capture.RulesetFile, "iptables-save.txt", "ip6tables-save.txt", "ebtables-save.txt"} {
			if out := raw.Outputs[file]; out.Skipped == "" {
				t.Errorf("%s where nf_tables has no tables: %+v", file, out)
			}
		}
		if h := capture.NewLoader(raw.Name).Load(raw); len(h.Rules.Tables) != 0 || len(h.Unread) != 0 {
			t.Errorf("%d tables; missing %v", len(h.Rules.Tables), h.Unread)
		}
	}
}

// TestDumpOfLegacyTables: rules of both variants of iptables are there, each with its dialect. The tools are run in a chroot, as they are
// in a privileged pod.
func TestDumpOfLegacyTables(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	for _, program := range []string{"iptables-legacy", "iptables-nft", "ip6tables-legacy"} {
		run(t, ns, program, "-A", "FORWARD", "-j", "DROP")
	}
	d := &dump.Dumper{Root: "/proc/1/root"}
	raw, err := d.All(t.Context(), "node/a", ns)
	if err != nil {
		t.Fatal(err)
	}
	h := capture.NewLoader(raw.Name).Load(raw)
	if len(h.Unread) > 0 {
		t.Errorf("missing: %v", h.Unread)
	}
	dialects := map[string]int{}
	for _, table := range h.Rules.Tables {
		dialects[table.Family.String()+" "+string(table.Dialect)] += len(table.Chain("FORWARD").Rules)
	}
	for _, want := range []string{"ip iptables-legacy", "ip iptables-nft", "ip6 iptables-legacy"} {
		if dialects[want] != 1 {
			t.Errorf("rules by dialect: %v, want 1 of %s", dialects, want)
		}
	}
}

// TestDumpWithoutTools checks that the kernel itself says what a namespace does not have, and that the rest is known to be unread.
func TestDumpWithoutTools(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	dir := t.TempDir()
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(ip, filepath.Join(dir, "ip")); err != nil {
		t.Fatal(err)
	}
	tools := map[string]string{}
	for _, name := range []string{"ipset", "iptables-legacy"} {
		if tools[name], err = exec.LookPath(name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	defer func(dirs []string) { *dump.ProgramDirs = dirs }(*dump.ProgramDirs)
	*dump.ProgramDirs = nil
	d := &dump.Dumper{}
	raw, err := d.All(t.Context(), "node/a", ns)
	if err != nil {
		t.Fatal(err)
	}
	h := capture.NewLoader(raw.Name).Load(raw)
	if _, ok := h.Unread[snapshot.Links]; ok || len(h.FIB.Links) == 0 {
		t.Errorf("links: %d, %s", len(h.FIB.Links), h.Unread[snapshot.Links])
	}
	if len(h.Unread) != 1 || !strings.Contains(h.Unread[snapshot.FDB], "program not found") {
		t.Errorf("unread: %v", h.Unread)
	}
	run(t, ns, tools["ipset"], "create", "pool", "hash:net")
	run(t, ns, tools["iptables-legacy"], "-A", "FORWARD", "-j", "DROP")
	if raw, err = d.All(t.Context(), "node/a", ns); err != nil {
		t.Fatal(err)
	}
	h = capture.NewLoader(raw.Name).Load(raw)
	for _, part := range []snapshot.Part{snapshot.IPSets, snapshot.Rules} {
		if !strings.Contains(h.Unread[part], "program not found") {
			t.Errorf("%s: %q", part, h.Unread[part])
		}
	}
}

// TestDumpOfManyChains: where there are many chains, nft is not asked for the rules that iptables-save prints, and what is read of both is
// the same but for the rules' handles.
func TestDumpOfManyChains(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	run(t, ns, "sh", "-ec", `nft add table inet first '{ chain c { type filter hook forward priority 0; ip daddr 10.7.0.0/16 accept; }; }'
		iptables-nft -t nat -N KUBE-X && iptables-nft -t nat -A KUBE-X -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.1.1:80
		iptables-nft -t nat -A PREROUTING -m comment --comment "to X" -j KUBE-X && ip6tables-nft -A FORWARD -j DROP
		nft add table ip last '{ chain c { type nat hook prerouting priority -100; tcp dport 81 redirect to :82; }; }'`)
	load := func() (*snapshot.Host, capture.Output) {
		raw, err := (&dump.Dumper{}).All(t.Context(), "node/a", ns)
		if err != nil {
			t.Fatal(err)
		}
		h := capture.NewLoader(raw.Name).Load(raw)
		if len(h.Unread) > 0 {
			t.Errorf("missing: %v", h.Unread)
		}
		return h, raw.Outputs[capture.RulesetFile]
	}
	whole, _ := load()
	defer func(n int) { *dump.ManyChains = n }(*dump.ManyChains)
	*dump.ManyChains = 3
	parts, out := load()
	want := "nft -j -a list chains; nft -j -a list table inet first; nft -j -a list table ip last"
	if out.Command != want || strings.Contains(string(out.Data), "10.1.1.1") {
		t.Errorf("%s\n%s", out.Command, out.Data)
	}
	if len(whole.Rules.Tables) != len(parts.Rules.Tables) || len(whole.Rules.Tables) != 4 {
		t.Fatalf("%d tables, and %d", len(whole.Rules.Tables), len(parts.Rules.Tables))
	}
	if changed := snapshot.Changes(whole, parts); changed != nil {
		t.Errorf("changed: %v", changed)
	}
	for i, a := range whole.Rules.Tables {
		b := parts.Rules.Tables[i]
		if a.Name != b.Name || a.Family != b.Family || a.Dialect != b.Dialect || len(a.Chains) != len(b.Chains) {
			t.Errorf("table %d is %s %s of %d chains, and %s %s of %d", i, a.Family, a.Name, len(a.Chains), b.Family, b.Name, len(b.Chains))
		}
	}
}

func TestDumpEndsWithItsContext(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&dump.Dumper{}).All(ctx, "node/a", ns); err == nil {
		t.Error("no error of a dump that was called off")
	}
}

// TestDumpDuringTrace checks that a dump during a trace waits until nft can print the rules again.
func TestDumpDuringTrace(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	if err := ruleset.ApplyNFT(t.Context(), ns, "table ip own { chain c { type filter hook forward priority 0; ip daddr 10.7.0.0/16 accept; }; }"); err != nil {
		t.Fatal(err)
	}
	tuples := []packet.Tuple{{Protocol: packet.TCP, Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2")}}
	trace, err := probe.OpenTrace(ns, witness.Filters(tuples...), tuples)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { trace.Close() })
	var d dump.Dumper
	raw, err := d.All(t.Context(), "node/a", ns)
	if err != nil {
		t.Fatal(err)
	}
	host := capture.NewLoader(raw.Name).Load(raw)
	if why, missing := host.Unread[snapshot.NFT]; missing || host.Rules.Table(netfilter.IPv4, "own") == nil {
		t.Errorf("the rules are not known: %s", why)
	}
}

func run(t *testing.T, ns *netns.Namespace, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatalf("%s: %v", args, err)
	}
}

// TestAttached: filters of tc at a link are read, each at its side.
func TestAttached(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	cmd := exec.Command("sh", "-ec", `ip link add in type veth peer name out
		for d in in out; do tc qdisc add dev $d clsact; done
		tc filter add dev in ingress protocol ip u32 match u32 0 0; tc filter add dev out egress protocol ip u32 match u32 0 0`)
	cmd.Stderr = os.Stderr
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatal(err)
	}
	raw, err := new(dump.Dumper).Parts(t.Context(), "node/a", ns, snapshot.Links, snapshot.Programs)
	if err != nil {
		t.Fatal(err)
	}
	host := capture.NewLoader("node/a").Load(raw)
	in, out := host.FIB.Link("in"), host.FIB.Link("out")
	const filter = "filter u32 (preference 49152, parent ffff:fff%d) of qdisc clsact ffff:"
	if in.Program != fmt.Sprintf(filter, 2) || in.ProgramOut != "" || out.Program != "" || out.ProgramOut != fmt.Sprintf(filter, 3) {
		t.Errorf("in: %q, %q; out: %q, %q", in.Program, in.ProgramOut, out.Program, out.ProgramOut)
	}
}
