package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
)

// memory is what iptables-restore --noflush and iptables-save do, in memory. A table changes whole or not at all, and a chain that a rule
// leads to cannot be deleted.
type memory struct {
	rules    map[chainKey][]string
	most     int
	restores int
	err      error // of the restore after the next ones
	after    int
	did      func()
}

func newMemory(most int) *memory {
	m := &memory{rules: map[chainKey][]string{}, most: most}
	for _, at := range []chainKey{{"nat", "PREROUTING"}, {"nat", "OUTPUT"}, {"nat", "POSTROUTING"}, {"filter", "INPUT"}, {"filter", "FORWARD"},
		{"filter", "OUTPUT"}} {
		m.rules[at] = nil
	}
	return m
}

func (m *memory) Most(context.Context) int { return m.most }

func (m *memory) Save(_ context.Context, table string) ([]byte, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "*%s\n", table)
	chains := slices.SortedFunc(maps.Keys(m.rules), func(a, b chainKey) int { return strings.Compare(a.chain, b.chain) })
	chains = slices.DeleteFunc(chains, func(at chainKey) bool { return at.table != table })
	for _, at := range chains {
		fmt.Fprintf(&out, ":%s - [0:0]\n", at.chain)
	}
	for _, at := range chains {
		for _, rule := range m.rules[at] {
			out.WriteString("-A " + at.chain + rule + "\n")
		}
	}
	return []byte(out.String() + "COMMIT\n"), nil
}

func (m *memory) Restore(_ context.Context, input []byte) error {
	m.restores++
	if m.did != nil {
		defer m.did()
	}
	if m.after--; m.err != nil && m.after < 0 {
		return m.err
	}
	table, now := "", m.rules
	for line := range strings.Lines(string(input)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line[0] == '*':
			table, now = line[1:], make(map[chainKey][]string, len(m.rules))
			for at, rules := range m.rules {
				now[at] = slices.Clone(rules)
			}
		case line == "COMMIT":
			if err := targets(now); err != nil {
				return err
			}
			m.rules = now
		default:
			if err := command(now, table, line); err != nil {
				return fmt.Errorf("%s: %w", line, err)
			}
		}
	}
	return nil
}

func command(rules map[chainKey][]string, table, line string) error {
	if name, ok := strings.CutPrefix(line, ":"); ok {
		name, _, _ = strings.Cut(name, " ")
		rules[chainKey{table, name}] = nil
		return nil
	}
	name, rule, _ := strings.Cut(line[3:], " ")
	at := chainKey{table, name}
	old, there := rules[at]
	if !there {
		return fmt.Errorf("no chain %s", name)
	}
	switch line[:2] {
	case "-A":
		rules[at] = append(old, " "+rule)
	case "-I":
		number, rest, _ := strings.Cut(rule, " ")
		n, err := strconv.Atoi(number)
		if err != nil || n > len(old)+1 {
			return fmt.Errorf("no place %q among %d rules", number, len(old))
		}
		rules[at] = slices.Insert(old, n-1, " "+rest)
	case "-D":
		i := slices.Index(old, " "+rule)
		if i < 0 {
			return fmt.Errorf("no such rule")
		}
		rules[at] = slices.Delete(old, i, i+1)
	case "-X":
		delete(rules, at)
	}
	return nil
}

// targets tells of rules that lead to a chain that is not there.
func targets(rules map[chainKey][]string) error {
	for at, all := range rules {
		for _, rule := range all {
			if _, to, ok := strings.Cut(rule, "-j KUBE-"); ok {
				if _, there := rules[chainKey{at.table, "KUBE-" + to}]; !there {
					return fmt.Errorf("%s leads to KUBE-%s, which does not exist", at.chain, to)
				}
			}
		}
	}
	return nil
}

// wants holds the kernel's own chains against those that are generated for the ports, and nothing else.
func (m *memory) wants(t *testing.T, c proxy.Config, ports []service.Port) {
	t.Helper()
	set, err := Generate(c, ports)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[chainKey]string{}, map[chainKey]string{}
	for _, chain := range render(set) {
		want[chain.chainKey] = chain.rules
	}
	for at, rules := range m.rules {
		if !strings.HasPrefix(at.chain, "KUBE-") {
			continue
		}
		got[at] = ""
		for _, rule := range rules {
			got[at] += "-A " + at.chain + rule + "\n"
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(chainKey{})); diff != "" {
		t.Fatalf("(-generated +kernel):\n%s", diff)
	}
}

// randomPorts returns a few of many service ports, with few or many endpoints and everything else that rules depend on.
func randomPorts(r *rand.Rand, most int) []service.Port {
	var ports []service.Port
	address := func(net byte) netip.Addr {
		return netip.AddrFrom4([4]byte{10, net, byte(r.IntN(3)), byte(r.IntN(250))})
	}
	for i := range most {
		if r.IntN(4) == 0 {
			continue
		}
		p := testPort(fmt.Sprintf("s%03d", i))
		p.ClusterIP, p.NodePort = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), uint16(r.IntN(2)*(30000+i))
		for range r.IntN(4) {
			p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(address(128), 80), Ready: true})
		}
		p.ForCluster = p.Endpoints
		if len(p.Endpoints) > 0 {
			p.ForLocal = p.Endpoints[:r.IntN(len(p.Endpoints)+1)]
		}
		for range r.IntN(3) {
			p.ExternalIPs, p.LoadBalancerIPs = append(p.ExternalIPs, address(97)), append(p.LoadBalancerIPs, address(98))
		}
		p.ExternalPolicy, p.InternalPolicy = service.Policy(r.IntN(2)), service.Policy(r.IntN(2))
		p.AffinitySeconds, p.HealthCheckNodePort = r.IntN(2)*60, uint16(r.IntN(2)*(31000+i))
		if r.IntN(3) == 0 {
			p.SourceRanges = []netip.Prefix{netip.PrefixFrom(address(99), 24).Masked()}
		}
		ports = append(ports, p)
	}
	return ports
}

// TestChangesLeadToWhatIsGenerated: after any change the kernel holds what a first sync into nothing makes, in the same order, whether it
// was written whole, in steps, or rule by rule; what others have changed comes back; a restart writes nothing.
func TestChangesLeadToWhatIsGenerated(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := proxy.Config{Family: service.IPv4, Rules: RuleSetVersions()[r.IntN(len(RuleSetVersions()))], MasqueradeBit: 14}
		if r.IntN(2) == 0 {
			c.Detector.CIDR = netip.MustParsePrefix("10.128.0.0/9")
		}
		kernel := newMemory([]int{0, 20, 200}[r.IntN(3)])
		s := testSyncer(t, c.Rules, kernel)
		s.Configure(c)
		most := []int{3, 40, 120}[r.IntN(3)]
		ports := randomPorts(r, most)
		mustSync(t, s, ports...)
		kernel.wants(t, c, ports)
		for range 12 {
			next := randomPorts(r, most)
			if r.IntN(2) == 0 && len(ports) > 0 && len(next) > 0 { // one service
				one := next[0]
				next = slices.Clone(ports)
				i := r.IntN(len(next))
				one.Name, one.Protocol, one.ClusterIP, one.NodePort = next[i].Name, next[i].Protocol, next[i].ClusterIP, next[i].NodePort
				if next[i] = one; r.IntN(3) == 0 {
					next = slices.Delete(next, i, i+1)
				}
			}
			ports = next
			switch r.IntN(6) {
			case 0:
				c.MasqueradeAll = !c.MasqueradeAll
				s.Configure(c)
			case 1:
				c.NodePortIPs = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
				s.Configure(c)
			case 2:
				s.ForceFull()
			case 3:
				s = testSyncer(t, c.Rules, kernel)
				s.Configure(c)
			case 4: // another process takes rules and a chain away
				for at := range kernel.rules {
					if strings.HasPrefix(at.chain, "KUBE-S") && r.IntN(3) == 0 {
						kernel.rules[at] = nil
					}
				}
				if _, err := s.Repair(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			mustSync(t, s, ports...)
			kernel.wants(t, c, ports)
		}
		kernel.restores = 0
		mustSync(t, testSyncerOf(t, c, kernel), ports...)
		if kernel.restores > 0 {
			t.Errorf("seed %d: a restart writes", seed)
		}
		if err := s.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		for at := range kernel.rules {
			if strings.HasPrefix(at.chain, "KUBE-") && at.chain != chainMarkDrop && at.chain != chainFirewall {
				t.Fatalf("seed %d: %s is left behind", seed, at)
			}
		}
	}
}

func testSyncerOf(t *testing.T, c proxy.Config, kernel Applier) *Syncer {
	t.Helper()
	s := testSyncer(t, c.Rules, kernel)
	s.Configure(c)
	return s
}

// TestOneChangeAmongMany writes the rules of the service that changes, and no chain that all share.
func TestOneChangeAmongMany(t *testing.T) {
	kernel := newMemory(1000)
	s := testSyncer(t, RulesCurrent, kernel)
	ports := manyPorts(1000)
	mustSync(t, s, ports...)
	if kernel.restores < 5 {
		t.Errorf("%d restores; want steps", kernel.restores)
	}
	for what, change := range map[string]func(){
		"an endpoint goes": func() { ports[500].ForCluster = ports[500].ForCluster[:2] },
		"a service goes":   func() { ports = slices.Delete(slices.Clone(ports), 500, 501) },
		"a service comes":  func() { ports = slices.Insert(slices.Clone(ports), 300, manyPorts(1001)[1000]) },
		"no endpoints":     func() { ports[10].ForCluster = nil },
	} {
		change()
		kernel.restores = 0
		r := mustSync(t, s, ports...)
		if r.Full || r.Written["nat"]+r.Written["filter"] > 15 || kernel.restores != 1 {
			t.Errorf("%s: wrote %v in %d restores; want the rules of one service in one", what, r.Written, kernel.restores)
		}
	}
}

// TestEndsBetweenSteps: a sync that is told to stop does not start another step, and the next sync goes on where it was.
func TestEndsBetweenSteps(t *testing.T) {
	kernel := newMemory(300)
	s := testSyncer(t, RulesCurrent, kernel)
	ports := manyPorts(300)
	ctx, cancel := context.WithCancel(t.Context())
	kernel.did = func() {
		if kernel.restores == 2 {
			cancel()
		}
	}
	if _, err := s.Sync(ctx, ports); !errors.Is(err, context.Canceled) || kernel.restores != 2 {
		t.Errorf("%v after %d restores", err, kernel.restores)
	}
	mustSync(t, s, ports...)
	kernel.wants(t, s.config, ports)
}

// TestStepsThatFail: a first sync that breaks off in the middle is gone on with.
func TestStepsThatFail(t *testing.T) {
	kernel := newMemory(300)
	s := testSyncer(t, RulesCurrent, kernel)
	ports := manyPorts(300)
	kernel.err, kernel.after = fmt.Errorf("out of memory"), 3
	if _, err := s.Sync(t.Context(), ports); err == nil {
		t.Fatal("no error")
	}
	if len(kernel.rules[chainKey{"nat", "PREROUTING"}]) > 0 {
		t.Error("half of the services are led to")
	}
	all := kernel.restores
	kernel.err = nil
	if r := mustSync(t, s, ports...); !r.Full || kernel.restores-all < all {
		t.Errorf("%+v after %d and %d restores", r, all, kernel.restores-all)
	}
	kernel.wants(t, s.config, ports)
}

// TestEachLengthOfSteps: wherever a first sync is parted, no step leads to a chain that a later one makes.
func TestEachLengthOfSteps(t *testing.T) {
	ports := manyPorts(10)
	for most := 3; most < 60; most++ {
		kernel := newMemory(most)
		s := testSyncer(t, RulesCurrent, kernel)
		mustSync(t, s, ports...)
		kernel.wants(t, s.config, ports)
	}
}

// TestManyChangesAtOnce checks that many changes are written in steps, as a first sync is.
func TestManyChangesAtOnce(t *testing.T) {
	kernel := newMemory(300)
	s := testSyncer(t, RulesCurrent, kernel)
	few, many := manyPorts(5), manyPorts(300)
	mustSync(t, s, few...)
	for _, ports := range [][]service.Port{many, few} {
		kernel.restores = 0
		r := mustSync(t, s, ports...)
		if r.Full || r.PartialErr != nil || kernel.restores < 5 {
			t.Errorf("to %d services: %+v in %d restores; want steps", len(ports), r, kernel.restores)
		}
		kernel.wants(t, s.config, ports)
	}
}

// TestPartOfAChangeFails checks that the syncer does not repeat the part of a change that iptables-restore made before it failed. Here a
// chain cannot be deleted, because another writer's rule leads to it. The filter table was written before.
func TestPartOfAChangeFails(t *testing.T) {
	kernel := newMemory(0)
	s := testSyncer(t, RulesCurrent, kernel)
	a := testPort("a", "10.1.0.1:80")
	mustSync(t, s, a)
	foreign := chainKey{"nat", "FOREIGN"}
	kernel.rules[foreign] = []string{" -j " + prefixEndpoint + hash("default/a", "tcp", "10.1.0.1:80")}
	r, err := s.Sync(t.Context(), []service.Port{testPort("a")})
	if err != nil || r.PartialErr == nil || r.CleanupErr == nil || !r.Full {
		t.Errorf("%+v, %v", r, err)
	}
	if refuse := kernel.rules[chainKey{"filter", chainServices}]; len(refuse) != 1 {
		t.Errorf("of a service without endpoints there are %d rules: %q", len(refuse), refuse)
	}
	delete(kernel.rules, foreign)
	if _, err := s.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	kernel.wants(t, s.config, []service.Port{testPort("a")})
	mustSync(t, s, a)
	kernel.wants(t, s.config, []service.Port{a})
}

// TestChainsThatOthersUse: without a service proxy, KUBE-MARK-MASQ is there for whoever else marks with it.
func TestChainsThatOthersUse(t *testing.T) {
	for _, jump := range []string{" -j ", " -p tcp -g "} {
		kernel := newMemory(0)
		s := testSyncer(t, RulesCurrent, kernel)
		mustSync(t, s, testPort("a", "10.1.0.1:80"))
		kernel.rules[chainKey{"nat", "CNI-DN-1"}] = []string{jump + chainMarkMasq}
		if err := s.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		for at := range kernel.rules {
			if strings.HasPrefix(at.chain, "KUBE-") && at.chain != chainMarkMasq && at.chain != chainFirewall {
				t.Errorf("%v is left behind", at)
			}
		}
		if _, there := kernel.rules[chainKey{"nat", chainMarkMasq}]; !there {
			t.Errorf("%s%s has nowhere to lead", jump, chainMarkMasq)
		}
	}
}
