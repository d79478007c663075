package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// meddlingKernel is the kernel, but calls before ahead of each transaction. before may act as another writer or refuse the transaction.
type meddlingKernel struct {
	Kernel
	before func(messages []netlink.Message) error
	asked  []string
}

func (m *meddlingKernel) Commit(ctx context.Context, messages []netlink.Message, generation uint32) error {
	if m.before != nil {
		if err := m.before(messages); err != nil {
			return err
		}
	}
	return m.Kernel.Commit(ctx, messages, generation)
}

func (m *meddlingKernel) Ask(ctx context.Context, request netlink.Message) ([]netlink.Message, error) {
	m.asked = append(m.asked, question(request))
	return m.Kernel.Ask(ctx, request)
}

func meddledIn(t testing.TB, ns *netns.Namespace, c proxy.Config) (*Syncer, *meddlingKernel) {
	m := &meddlingKernel{Kernel: nftablesIn(t, ns)}
	return NewSyncer(c, NewRules(m)), m
}

// stickyPort returns a service port with session affinity.
func stickyPort(hosts ...byte) service.Port {
	p := service.Port{Name: service.Name{Namespace: "ns", Service: "sticky"}, Protocol: service.TCP, Port: 80,
		ClusterIP: netip.MustParseAddr("10.0.0.9"), AffinitySeconds: 1000}
	for _, h := range hosts {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, h}), 8080)
		p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	p.ForCluster = p.Endpoints
	return p
}

const clientsOfSticky = "affinity/cluster/1000/ns/sticky/tcp/"

func applyNFT(t *testing.T, ns *netns.Namespace, format string, args ...any) {
	t.Helper()
	if err := ruleset.ApplyNFT(t.Context(), ns, fmt.Sprintf(format, args...)); err != nil {
		t.Fatal(err)
	}
}

// TestForeignKeys: elements of sets of another making are no keys of ours, and go.
func TestForeignKeys(t *testing.T) {
	state := NewState(many, nil)
	held := Elements{}
	for _, set := range state.order {
		held[set.Name] = map[string]Value{"": {}, "abcd": {}}
	}
	if c := state.Compare(held); c.elements() != 2*len(state.order) {
		t.Errorf("%d elements go, of %d", c.elements(), 2*len(state.order))
	}
}

// TestLongNames: the name of a service port can be longer than a comment.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	p := stickyPort(1, 2)
	p.AffinitySeconds = 0
	p.Name = service.Name{Namespace: long, Service: long, Port: long}
	ns := namespace(t, "ns")
	s := syncerIn(t, ns, many)
	mustSync(t, s, []service.Port{p})
	s.generation = 0 // compare
	if names, err := s.Repair(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("repaired what is whole: %v, %v", names, err)
	}
	p.ForCluster = []service.Endpoint{p.Endpoints[1], p.Endpoints[0]}
	if r := mustSync(t, syncerIn(t, ns, many), []service.Port{p}); r.Written[TableName] != 0 {
		t.Errorf("endpoints lost their slots by a restart: %+v", r)
	}
}

// TestOtherShape: a table of our name with sets and chains of other kinds is made anew; what it forwards is never nothing.
func TestOtherShape(t *testing.T) {
	const table = "table ip " + TableName
	for _, other := range []string{
		"set cluster-ips { type ipv4_addr; elements = { 192.0.2.1 }; }",
		"set cluster-ips { type inet_service; elements = { 80 }; }",
		"set cluster-ips { type ipv4_addr; size 1; }",
		"set internal/cluster/3 { type ipv4_addr . inet_proto . inet_service; size 9; elements = { 192.0.2.1 . tcp . 80 }; }",
		"map " + clientsOfSticky + " { type ipv4_addr : ipv4_addr . inet_service; flags dynamic,timeout; size 3; timeout 1000s; }",
		"map service-ips { type ipv4_addr : verdict; elements = { 192.0.2.1 : accept }; }",
		"map no-endpoint-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.0.0.9 . tcp . 80 : drop }; }\n" +
			"chain filter-forward { type filter hook forward priority 0; ip daddr . ip protocol . th dport vmap @no-endpoint-ips; }",
		"map affinity-ips { type ipv4_addr . inet_proto . inet_service . ipv4_addr : verdict; }",
		"map " + clientsOfSticky + " { type ipv4_addr : mark; flags dynamic,timeout; size 3; timeout 5s; }",
		"set internal/cluster/3 { type inet_service; elements = { 80 }; }",
		"map internal/cluster/9 { type ipv4_addr : verdict; elements = { 192.0.2.1 : accept }; }",
		"set internal/cluster/8 { type ipv4_addr . inet_proto . inet_service; elements = { 10.0.0.9 . tcp . 80 }; }",
		"chain services { type nat hook prerouting priority -5; }",
		"chain filter-input { type filter hook forward priority -5; policy drop; }",
		"flags dormant;",
		tooDeep(),
	} {
		t.Run(other, func(t *testing.T) {
			ns := namespace(t, "ns")
			applyNFT(t, ns, "%s {\n%s\n}\n", table, other)
			ports := append(manyPorts(2), stickyPort(1, 2, 3))
			mustSync(t, syncerIn(t, ns, many), ports)
			fresh := namespace(t, "fresh")
			mustSync(t, syncerIn(t, fresh, many), ports)
			if got, want := sortedLines(list(t, ns)), sortedLines(list(t, fresh)); !slices.Equal(got, want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// tooDeep returns others' chains that lead to ours through as many chains as the kernel allows (NFT_JUMP_STACK_SIZE).
func tooDeep() string {
	text := "chain theirs0 { type nat hook prerouting priority -5; jump theirs1; }\n"
	for i := range 13 {
		text += fmt.Sprintf("chain theirs%d { jump theirs%d; }\n", i+1, i+2)
	}
	return text + "chain theirs14 { jump services; }\nchain services { }"
}

// TestReadOnce: a look asks the kernel once for each thing.
func TestReadOnce(t *testing.T) {
	ns := namespace(t, "ns")
	s, m := meddledIn(t, ns, many)
	mustSync(t, s, manyPorts(3))
	m.asked = nil
	if _, err := s.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, q := range m.asked {
		if q != question(nf.GetGeneration()) && slices.Contains(m.asked[:i], q) {
			t.Errorf("twice: %s", q)
		}
	}
}

func question(m netlink.Message) string { return fmt.Sprintf("%x %q", uint16(m.Header.Type), m.Data) }

// TestRefusedForAnotherCause: a table of our shape is not made anew, which would forget where clients are, whatever else the kernel finds.
func TestRefusedForAnotherCause(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.EMLINK, unix.ELOOP} {
		ns := namespace(t, "ns")
		mustSync(t, syncerIn(t, ns, many), []service.Port{stickyPort(1, 2)})
		applyNFT(t, ns, "add element ip %s %s { 192.0.2.1 : 10.1.0.1 . 8080 }\n", TableName, clientsOfSticky)
		s, m := meddledIn(t, ns, many)
		times := 0
		m.before = func([]netlink.Message) error {
			if times++; times == 1 {
				return errno
			}
			return nil
		}
		ports := append(manyPorts(1), stickyPort(1, 2))
		if _, err := sync(t.Context(), s, ports); !errors.Is(err, errno) {
			t.Errorf("refused: %v, want %v", err, errno)
		}
		mustSync(t, s, ports)
		if clients, err := s.elements(t.Context(), clientsOfSticky); err != nil || len(clients) != 1 {
			t.Errorf("after %v: clients are %q, %v", errno, clients, err)
		}
	}
}

func sortedLines(text string) []string {
	return slices.Sorted(slices.Values(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune("\n,{}", r) })))
}

// TestDamage: what others do to the table is put back, also when no set or chain is missing.
func TestDamage(t *testing.T) {
	const table = "ip " + TableName
	for _, damage := range []string{
		"add table " + table + " { flags dormant; }",
		"add chain " + table + " filter-input { policy drop; }",
		"add rule " + table + " services accept",
		"flush chain " + table + " nat-output",
		"add chain " + table + " theirs",
		"add set " + table + " theirs { type ipv4_addr; }",
		"add element " + table + " cluster-ips { 192.0.2.1 }",
		"flush map " + table + " service-ips",
		"delete table " + table,
	} {
		t.Run(damage, func(t *testing.T) {
			ns := namespace(t, "ns")
			s := syncerIn(t, ns, many)
			ports := []service.Port{stickyPort(1, 2)}
			mustSync(t, s, ports)
			before := list(t, ns)
			applyNFT(t, ns, "%s\n", damage)
			// Another service's change, with a chain that is new, takes nothing of it for ours.
			if strings.HasPrefix(damage, "add rule") {
				ports = append(ports, manyPorts(1)...)
				mustSync(t, s, ports)
				mustSync(t, s, ports[:1])
			}
			if _, err := s.Repair(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := list(t, ns); !slices.Equal(sortedLines(got), sortedLines(before)) {
				t.Errorf("got:\n%s\nwant:\n%s", got, before)
			}
		})
	}
}

// TestUndisturbed checks that Repair compares nothing as long as no other process writes. Repair also finds what another process writes
// between its reading and its writing.
func TestUndisturbed(t *testing.T) {
	ns := namespace(t, "ns")
	s, m := meddledIn(t, ns, many)
	ports := manyPorts(3)
	mustSync(t, s, ports)
	mustSync(t, s, oneLess(ports))
	m.asked = nil
	if names, err := s.Repair(t.Context()); err != nil || len(names) > 0 || len(m.asked) != 1 {
		t.Errorf("repaired %v, %v, after questions %q", names, err, m.asked)
	}
	applyNFT(t, ns, "add rule ip %s services accept\n", TableName)
	times := 0
	m.before = func([]netlink.Message) error {
		if times++; times == 1 {
			applyNFT(t, ns, "add rule ip %s services drop\n", TableName)
		}
		return nil
	}
	before := list(t, ns)
	if names, err := s.Repair(t.Context()); err != nil || !slices.Equal(names, []string{chainServices}) {
		t.Errorf("repaired %v, %v", names, err)
	}
	if now := list(t, ns); strings.Contains(now, "\t\taccept\n") || strings.Contains(now, "\t\tdrop\n") {
		t.Errorf("before:\n%s\nnow:\n%s", before, now)
	}
}

// TestBothFamilies: what the syncer of one family writes is no cause for the other's to look at its table; what others write is.
func TestBothFamilies(t *testing.T) {
	ns := namespace(t, "ns")
	m := &meddlingKernel{Kernel: nftablesIn(t, ns)}
	rules := NewRules(m)
	ipv6 := many
	ipv6.Family = service.IPv6
	syncers := []*Syncer{NewSyncer(many, rules), NewSyncer(ipv6, rules)}
	ports := [][]service.Port{manyPorts(3), ofIPv6(manyPorts(3))}
	changes := 0
	change := func(family int) {
		t.Helper()
		if changes++; changes%3 == 0 {
			mustSync(t, syncers[family], ports[family])
		} else {
			mustSync(t, syncers[family], ports[family][:changes%3])
		}
	}
	look := func(reads bool) {
		t.Helper()
		for _, s := range syncers {
			m.asked = nil
			if names, err := s.Repair(t.Context()); err != nil || len(names) > 0 || (len(m.asked) > 1) != reads {
				t.Errorf("%s: repaired %v, %v, after %d questions", s.config.Family, names, err, len(m.asked))
			}
		}
	}
	for _, family := range []int{0, 1, 0, 0, 1, 0} {
		change(family)
	}
	look(false)
	applyNFT(t, ns, "add table ip theirs\n")
	look(true)
	change(1)
	look(false)
	applyNFT(t, ns, "add table ip theirs2\n")
	change(0)
	change(1)
	look(true)
	look(false)
}

// ofIPv6 returns service ports with addresses of IPv6 in place of those of IPv4.
func ofIPv6(ports []service.Port) []service.Port {
	for i := range ports {
		p := &ports[i]
		p.ClusterIP = netip.AddrFrom16(p.ClusterIP.As16())
		for j := range p.Endpoints {
			a := p.Endpoints[j].Addr
			p.Endpoints[j].Addr = netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
		}
	}
	return ports
}

// TestExpiringClients: clients of an endpoint that goes are forgotten, even if the time of one of them is over just then.
func TestExpiringClients(t *testing.T) {
	ns := namespace(t, "ns")
	s, m := meddledIn(t, ns, many)
	mustSync(t, s, []service.Port{stickyPort(1, 2)})
	applyNFT(t, ns, "add element ip %s %s { 192.0.2.1 : 10.1.0.1 . 8080, 192.0.2.2 : 10.1.0.1 . 8080, 192.0.2.3 : 10.1.0.2 . 8080 }\n",
		TableName, clientsOfSticky)
	times := 0
	m.before = func([]netlink.Message) error {
		switch times++; times {
		case 1: // while they are forgotten with the endpoint
			applyNFT(t, ns, "delete element ip %s %s { 192.0.2.1 }\n", TableName, clientsOfSticky)
		case 2: // one comes, which is read after the transaction
			applyNFT(t, ns, "add element ip %s %s { 192.0.2.4 : 10.1.0.1 . 8080, 192.0.2.5 : 10.1.0.1 . 8080 }\n", TableName, clientsOfSticky)
		case 3: // and ends
			applyNFT(t, ns, "delete element ip %s %s { 192.0.2.5 }\n", TableName, clientsOfSticky)
		}
		return nil
	}
	if r := mustSync(t, s, []service.Port{stickyPort(2)}); r.Full {
		t.Error("a full sync")
	}
	check := func() {
		t.Helper()
		clients, err := s.elements(t.Context(), clientsOfSticky)
		if err != nil || len(clients) != 1 || clients[0].Value != endpointField(netip.MustParseAddrPort("10.1.0.2:8080")) {
			t.Errorf("clients are %q, %v", clients, err)
		}
	}
	check()
	// One was on its way to the endpoint: the next look finds it.
	applyNFT(t, ns, "add element ip %s %s { 192.0.2.6 : 10.1.0.1 . 8080 }\n", TableName, clientsOfSticky)
	if _, err := s.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	check()
}

// TestRefused: what the kernel refuses leaves the table as it was, and the next sync makes it what it is to be.
func TestRefused(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.ENOSPC, unix.ENFILE, unix.EMSGSIZE, unix.EPERM} {
		t.Run(errno.Error(), func(t *testing.T) {
			ns := namespace(t, "ns")
			s, m := meddledIn(t, ns, many)
			ports := manyPorts(3)
			mustSync(t, s, ports[:2])
			before := list(t, ns)
			m.before = func([]netlink.Message) error { return errno }
			for range 2 { // an update, then a full sync
				if _, err := sync(t.Context(), s, ports); !errors.Is(err, errno) {
					t.Errorf("refused: %v", err)
				}
			}
			if got := list(t, ns); got != before {
				t.Errorf("got:\n%s\nwant:\n%s", got, before)
			}
			m.before = nil
			mustSync(t, s, ports)
			if r := mustSync(t, syncerIn(t, ns, many), ports); r.Written[TableName] != 0 {
				t.Errorf("not converged: %+v", r)
			}
		})
	}
}

// TestSetFull checks a real refusal, by a set with a limit that another process made. Nothing of that set is left after the next sync.
func TestSetFull(t *testing.T) {
	ns := namespace(t, "ns")
	s := syncerIn(t, ns, many)
	ports := manyPorts(3)
	mustSync(t, s, ports[:2])
	applyNFT(t, ns, "delete table ip %s\ntable ip %[1]s { set cluster-ips { type ipv4_addr; size 2; }; }\n", TableName)
	if _, err := s.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := list(t, ns)
	if _, err := sync(t.Context(), s, ports); !errors.Is(err, unix.ENFILE) {
		t.Fatalf("got %v, want ENFILE", err)
	}
	if got := list(t, ns); got != before {
		t.Errorf("got:\n%s\nwant:\n%s", got, before)
	}
	mustSync(t, s, ports)
	if got := list(t, ns); strings.Contains(got, "size 2\n") {
		t.Errorf("got:\n%s", got)
	}
}

// TestStagingTables checks that a table that an ended rebuild left is removed, by its present and its older name, at a start and at the end.
func TestStagingTables(t *testing.T) {
	for _, name := range []string{"packetwalk-services-staging", "packetwalk-services-beside"} {
		for how, remove := range map[string]func(*Syncer) error{
			"sync":   func(s *Syncer) error { _, err := sync(t.Context(), s, manyPorts(2)); return err },
			"remove": func(s *Syncer) error { return s.Remove(t.Context()) },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				ns := namespace(t, "ns")
				applyNFT(t, ns, "table ip %s { chain c { type filter hook forward priority 0; drop; }; }\n", name)
				if err := remove(syncerIn(t, ns, many)); err != nil {
					t.Fatal(err)
				}
				if has, err := ruleset.HasTable(ns, "ip", name); err != nil || has {
					t.Errorf("table %s is left (%v)", name, err)
				}
			})
		}
	}
}

// TestTooLarge: what the kernel does not take in one transaction goes in several.
func TestTooLarge(t *testing.T) {
	ns := namespace(t, "ns")
	s, m := meddledIn(t, ns, many)
	transactions := 0
	m.before = func(messages []netlink.Message) error {
		size := 0
		for _, message := range messages {
			size += len(message.Data)
		}
		if transactions++; size > 1<<17 {
			return unix.EMSGSIZE
		}
		return nil
	}
	ports := manyPorts(2000)
	mustSync(t, s, ports)
	if transactions < 5 {
		t.Errorf("in %d transactions", transactions)
	}
	if r := mustSync(t, syncerIn(t, ns, many), ports); r.Written[TableName] != 0 {
		t.Errorf("not converged: %+v", r)
	}
}
