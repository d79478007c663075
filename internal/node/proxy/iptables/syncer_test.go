package iptables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
)

func testPort(name string, endpoints ...string) service.Port {
	p := service.Port{
		Name: service.Name{Namespace: "default", Service: name}, Protocol: service.TCP,
		ClusterIP: netip.MustParseAddr("10.0.0.1").Next(), Port: 80, NodePort: 30080,
	}
	for _, e := range endpoints {
		p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true})
	}
	p.ForCluster = p.Endpoints
	return p
}

func testSyncer(t *testing.T, rules string, kernel Applier) *Syncer {
	t.Helper()
	s, err := NewSyncer(proxy.Config{Family: service.IPv4, Rules: rules, MasqueradeBit: 14}, kernel)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (n *namespaceApplier) must(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := n.run(t.Context(), []byte(input), args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (n *namespaceApplier) nat(t *testing.T) string {
	return n.must(t, "", "iptables-save", "-t", "nat")
}

func mustSync(t *testing.T, s *Syncer, ports ...service.Port) proxy.Result {
	t.Helper()
	r, err := s.Sync(t.Context(), ports)
	if err != nil {
		t.Fatal(err)
	}
	if r.CleanupErr != nil {
		t.Fatal(r.CleanupErr)
	}
	return r
}

// eachRuleSet runs a test for every rule set there is, in a namespace of its own.
func eachRuleSet(t *testing.T, test func(t *testing.T, rules string, kernel *namespaceApplier)) {
	t.Helper()
	for _, rules := range RuleSetVersions() {
		t.Run(rules, func(t *testing.T) { test(t, rules, newNamespace(t, service.IPv4)) })
	}
}

func TestPartialSyncWritesOnlyWhatChanged(t *testing.T) { eachRuleSet(t, partialSync) }

func partialSync(t *testing.T, rules string, kernel *namespaceApplier) {
	s := testSyncer(t, rules, kernel)
	a, b := testPort("a", "10.1.0.1:80", "10.1.0.2:80"), testPort("b", "10.1.0.3:80")
	if r := mustSync(t, s, a, b); !r.Full || r.Written["nat"] < r.Total["nat"] {
		t.Errorf("first sync: %+v; want all rules written", r)
	}
	// Packets already counted stay counted where nothing changes.
	kernel.must(t, "*nat\n:KUBE-MARK-MASQ - [0:0]\n[7:420] -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n", "iptables-restore",
		"--noflush", "--counters")
	b = testPort("b", "10.1.0.4:80")
	r := mustSync(t, s, a, b)
	// b's service chain (one balancing rule) and its new endpoint's chain (two rules).
	if r.Full || r.Written["nat"] != 3 || r.Written["filter"] != 0 {
		t.Errorf("second sync: %+v; want 3 nat rules", r)
	}
	if dump := kernel.nat(t); strings.Contains(dump, "10.1.0.3") || !strings.Contains(dump, "10.1.0.4:80") ||
		!strings.Contains(dump, "10.1.0.1:80") {
		t.Errorf("kernel holds:\n%s", dump)
	}
	if out := kernel.must(t, "", "iptables-save", "-c", "-t", "nat"); !strings.Contains(out, "[7:420] -A KUBE-MARK-MASQ") {
		t.Error("counters of an unchanged chain were lost")
	}
	if r := mustSync(t, s); strings.Contains(kernel.nat(t), "KUBE-SVC-") || r.Full {
		t.Error("chains of deleted services stay")
	}
}

func TestRepairPutsBackOnlyWhatIsGone(t *testing.T) { eachRuleSet(t, repair) }

func repair(t *testing.T, rules string, kernel *namespaceApplier) {
	s := testSyncer(t, rules, kernel)
	mustSync(t, s, testPort("a", "10.1.0.1:80", "10.1.0.2:80"))
	whole := kernel.nat(t)
	kernel.must(t, `*nat
:FOREIGN - [0:0]
-A FOREIGN -s 192.0.2.1/32 -j RETURN
-A PREROUTING -j FOREIGN
-D KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-D OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
COMMIT
`, "iptables-restore", "--noflush")
	names, err := s.Repair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"nat/KUBE-MARK-MASQ", "nat/OUTPUT"}; !slices.Equal(names, want) {
		t.Errorf("repaired %v, want %v", names, want)
	}
	got := kernel.nat(t)
	for line := range strings.Lines(whole) {
		if strings.HasPrefix(line, "-A") && !strings.Contains(got, line) {
			t.Errorf("not put back: %s", line)
		}
	}
	for _, line := range []string{"-A FOREIGN -s 192.0.2.1/32 -j RETURN", "-A PREROUTING -j FOREIGN"} {
		if !strings.Contains(got, line) {
			t.Errorf("foreign rule lost: %s", line)
		}
	}
	kernel.must(t, "", "iptables", "-t", "mangle", "-X")
	if there, err := s.Canary(t.Context()); err != nil || there {
		t.Errorf("canary after a flush: %v, %v", there, err)
	}
}

// TestChangeOfRuleSet goes from each rule set to each other, as a restart with other flags does: what a fresh start makes is there, and of the
// other only the chains that the kubelet shares.
func TestChangeOfRuleSet(t *testing.T) {
	fresh := map[string]map[string][]string{}
	eachRuleSet(t, func(t *testing.T, rules string, kernel *namespaceApplier) {
		mustSync(t, testSyncer(t, rules, kernel), testPort("a", "10.1.0.1:80"))
		fresh[rules] = ownRules(kernel.must(t, "", "iptables-save"))
	})
	kernel, at := newNamespace(t, service.IPv4), ""
	change := func(to string) {
		if to == at {
			return
		}
		mustSync(t, testSyncer(t, to, kernel), testPort("a", "10.1.0.1:80"))
		if diff := cmp.Diff(fresh[to], ownRules(kernel.must(t, "", "iptables-save"))); diff != "" {
			t.Fatalf("from %q to %s (-fresh start +after the change):\n%s", at, to, diff)
		}
		at = to
	}
	for _, from := range RuleSetVersions() {
		for _, to := range RuleSetVersions() {
			change(from)
			change(to)
		}
	}
}

// ownRules returns a dump's rules by table and chain. It leaves out the rules of KUBE-MARK-DROP and of KUBE-FIREWALL and the jumps to that,
// which are the kubelet's too and stay. It sorts the jumps of built-in chains: those that two versions share stay in their place.
func ownRules(dump string) map[string][]string {
	chains, table := map[string][]string{}, ""
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, "*") {
			table = strings.TrimSpace(line[1:])
		}
		if strings.HasPrefix(line, "-A ") && !strings.Contains(line, chainFirewall) && !strings.Contains(line, chainMarkDrop) {
			chain := table + " " + strings.Fields(line)[1]
			chains[chain] = append(chains[chain], line)
		}
	}
	for chain, lines := range chains {
		if !strings.Contains(chain, "KUBE-") {
			slices.Sort(lines)
		}
	}
	return chains
}

// TestForeignReferenceDoesNotStopTheProxy checks that a chain cannot be deleted while another writer's rule jumps to it, and that
// everything else goes on.
func TestForeignReferenceDoesNotStopTheProxy(t *testing.T) {
	kernel := newNamespace(t, service.IPv4)
	s := testSyncer(t, RulesCurrent, kernel)
	mustSync(t, s, testPort("a", "10.1.0.1:80"))
	chain := prefixEndpoint + hash("default/a", "tcp", "10.1.0.1:80")
	kernel.must(t, "*nat\n:FOREIGN - [0:0]\n-A FOREIGN -j "+chain+"\nCOMMIT\n", "iptables-restore", "--noflush")
	r, err := s.Sync(t.Context(), []service.Port{testPort("a", "10.1.0.2:80")})
	if err != nil {
		t.Fatal(err)
	}
	if r.CleanupErr == nil {
		t.Error("deleting a chain in use succeeded")
	}
	if dump := kernel.nat(t); !strings.Contains(dump, "10.1.0.2:80") {
		t.Error("the new endpoint is not there")
	}
}

type brokenApplier struct {
	Applier
	broken bool
}

func (b *brokenApplier) Restore(ctx context.Context, input []byte) error {
	if b.broken {
		return errors.New("out of order")
	}
	return b.Applier.Restore(ctx, input)
}

func TestFullSyncAfterFailure(t *testing.T) {
	kernel := &brokenApplier{Applier: newNamespace(t, service.IPv4)}
	s := testSyncer(t, RulesCurrent, kernel)
	mustSync(t, s, testPort("a", "10.1.0.1:80"))
	kernel.broken = true
	if _, err := s.Sync(t.Context(), []service.Port{testPort("a", "10.1.0.2:80")}); err == nil {
		t.Fatal("no error")
	}
	kernel.broken = false
	if r := mustSync(t, s, testPort("a", "10.1.0.2:80")); !r.Full {
		t.Error("the sync after a failure is partial")
	}
}

func TestLargeClustersHaveNoEndpointComments(t *testing.T) {
	var endpoints []string
	for i := range largeCluster + 1 {
		endpoints = append(endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80).String())
	}
	for rules, want := range map[string]bool{RulesCurrent: false, rules111: false, rules112: false, rules119: false} {
		set, err := Generate(proxy.Config{Family: service.IPv4, Rules: rules, MasqueradeBit: 14}, []service.Port{testPort("a", endpoints...)})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range set.Tables[2].Chains {
			for _, r := range c.Rules {
				if got := r.Comment() != ""; got != want && (strings.HasPrefix(c.Name, prefixEndpoint) || strings.HasPrefix(c.Name, prefixCluster)) {
					t.Fatalf("%s: %s has a comment: %v", rules, c.Name, got)
				}
			}
		}
	}
}

func TestUnknownRuleSet(t *testing.T) {
	if _, err := NewSyncer(proxy.Config{Rules: "0.9"}, nil); err == nil || err.Error() != `no rule set "0.9"; there are 1.11, 1.12, 1.19, current` {
		t.Errorf("got %v", err)
	}
}

func TestStaleUDPFlows(t *testing.T) {
	at := netip.MustParseAddrPort
	p := testPort("dns", "10.1.0.1:53", "10.1.0.2:53")
	p.Protocol, p.Port, p.ClusterIP, p.LoadBalancerIPs = service.UDP, 53, netip.MustParseAddr("10.0.0.10"),
		[]netip.Addr{netip.MustParseAddr("203.0.113.1")}
	p.Endpoints[1].Serving = false
	none := testPort("none")
	none.Protocol, none.ClusterIP = service.UDP, netip.MustParseAddr("10.0.0.11")
	flows := NewUDPFlows([]service.Port{p, none, testPort("tcp", "10.1.0.3:80")})
	for _, c := range []struct {
		to, from string
		stale    bool
	}{
		{"10.0.0.10:53", "10.1.0.1:53", false},
		{"10.0.0.10:53", "10.1.0.2:53", true},
		{"10.0.0.10:53", "10.1.0.1:54", true},
		{"10.0.0.10:54", "10.1.0.2:53", false}, // not the service's port
		{"203.0.113.1:53", "10.1.0.9:53", true},
		{"10.13.76.4:30080", "10.1.0.9:53", true}, // node port, on any address
		{"10.13.76.4:30080", "10.1.0.1:53", false},
		{"10.0.0.11:80", "10.0.0.11:80", false}, // no endpoints: left alone
		{"8.8.8.8:53", "8.8.8.8:53", false},
	} {
		if got := flows.Stale(at(c.to), at(c.from)); got != c.stale {
			t.Errorf("to %s answered by %s: stale %v, want %v", c.to, c.from, got, c.stale)
		}
	}
}
