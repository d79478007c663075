package walk

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/node/proxy"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// nodeRules returns the iptables-save of a node with Services of three endpoints each: our service proxy's rules of today.
func nodeRules(tb testing.TB, services int) []byte {
	tb.Helper()
	var ports []service.Port
	for i := range services {
		p := service.Port{
			Name: service.Name{Namespace: "default", Service: fmt.Sprintf("service-%05d", i)}, Protocol: service.TCP,
			ClusterIP: serviceIP(i), Port: 80, NodePort: uint16(30000 + i%2767),
		}
		if i >= 2767 {
			p.NodePort = 0 // there are no more
		}
		for e := range 3 {
			at := netip.AddrFrom4([4]byte{10, 244, byte((3*i + e) >> 8), byte(3*i + e)})
			p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(at, 8080), Ready: true, Serving: true})
		}
		p.ForCluster, p.ForLocal = p.Endpoints, p.Endpoints
		ports = append(ports, p)
	}
	set, err := iptablesproxy.Generate(proxy.Config{
		Rules: iptablesproxy.RulesCurrent, MasqueradeBit: 14, Detector: proxy.Detector{CIDR: netip.MustParsePrefix("10.244.0.0/16")},
	}, ports)
	if err != nil {
		tb.Fatal(err)
	}
	return iptables.AppendSave(nil, withBuiltins(set))
}

func serviceIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

// withBuiltins puts the jumps into the built-in chains, as the agent does.
func withBuiltins(set *iptablesproxy.RuleSet) []iptables.Table {
	builtins := map[string][]string{
		iptables.NAT: {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}, iptables.Filter: {"INPUT", "FORWARD", "OUTPUT"},
		iptables.Mangle: {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	}
	var tables []iptables.Table
	for _, t := range set.Tables {
		var chains []iptables.Chain
		for _, name := range builtins[t.Name] {
			c := iptables.Chain{Name: name, Policy: "ACCEPT"}
			for _, j := range set.Jumps {
				if j.Table == t.Name && j.Chain == name {
					c.Rules = append([]iptables.Rule{j.Rule}, c.Rules...)
				}
			}
			chains = append(chains, c)
		}
		t.Chains = append(chains, t.Chains...)
		tables = append(tables, t)
	}
	return tables
}

// loadRules does what a walk does with a dump before it begins.
func loadRules(tb testing.TB, dump []byte) *netfilter.Ruleset {
	tb.Helper()
	tables, err := iptables.Parse(dump)
	if err != nil {
		tb.Fatal(err)
	}
	lowered, err := iptables.Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT)
	if err != nil {
		tb.Fatal(err)
	}
	rs := &netfilter.Ruleset{Tables: lowered}
	rs.Index()
	return rs
}

// serviceNode returns a node that forwards between a client's network and its pods'.
func serviceNode(tb testing.TB, services int) *network {
	n := &network{hosts: map[string]*snapshot.Host{}}
	node := n.host("node")
	for _, name := range []string{"eth0", "cni0"} {
		node.link(fib.Link{Name: name, Kind: "veth"})
	}
	node.address("eth0", "10.1.0.4/24")
	node.address("cni0", "10.244.0.1/16")
	node.FIB.Neighbours = nil
	for e := range 4 * services {
		node.FIB.Neighbours = append(node.FIB.Neighbours, fib.Neighbour{
			Link: "cni0", Address: netip.AddrFrom4([4]byte{10, 244, byte(e >> 8), byte(e)}), MAC: packet.MAC{2, 1, 0, 0, byte(e >> 8), byte(e)},
			State: "PERMANENT"})
	}
	node.Rules = loadRules(tb, nodeRules(tb, services))
	node.FIB.Index()
	return n
}

// one requests a walk of one packet with its endpoint pinned: the request alone, from a client through the node to a pod.
func one(services int, every bool) Request {
	p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, SourcePort: packet.Exactly(40000), DestinationPort: packet.Exactly(80)},
		TCPFlags: packet.SYN, TTL: 64}
	p.Source, p.Destination = netip.MustParseAddr("10.1.0.9"), serviceIP(services/2)
	return Request{Host: "node", Forwarded: true, Arrives: "eth0", Packet: p, OneWay: true, Pin: []int{1, 0}, EveryRule: every}
}

func timeWalk(b *testing.B, n *network, req Request, times int) time.Duration {
	b.Helper()
	start := time.Now()
	for range times {
		r, err := Walk(n, req)
		if err != nil || len(r.Outcomes) != 1 || r.Outcomes[0].End.Kind != Left {
			b.Fatal(err, r.Outcomes[0].End)
		}
	}
	return time.Since(start) / time.Duration(times)
}

// BenchmarkWalk takes one packet through a node with 100 and with 10,000 services of three endpoints, with the chains' indexes and, for the
// latter, rule after rule; all outcomes are the three endpoints, request and reply. Figures in one run: microseconds a walk, and ratios.
func BenchmarkWalk(b *testing.B) {
	small, large := serviceNode(b, 100), serviceNode(b, 10000)
	rules := 0
	for _, t := range large.hosts["node"].Rules.Tables {
		for _, c := range t.Chains {
			rules += len(c.Rules)
		}
	}
	for b.Loop() {
		few, many := timeWalk(b, small, one(100, false), 3000), timeWalk(b, large, one(10000, false), 3000)
		plain := timeWalk(b, large, one(10000, true), 3)
		all := one(10000, false)
		all.Pin, all.OneWay = nil, false
		start := time.Now()
		for range 500 {
			if r, err := Walk(large, all); err != nil || len(r.Outcomes) != 3 {
				b.Fatal(err, len(r.Outcomes))
			}
		}
		b.ReportMetric(float64(many.Nanoseconds())/1e3, "µs/walk")
		b.ReportMetric(float64(few.Nanoseconds())/1e3, "µs/walk-100-services")
		b.ReportMetric(float64(many)/float64(few), "×-of-100-services")
		b.ReportMetric(float64(plain)/float64(many), "×-faster-than-plain")
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/500e3, "µs/3-outcomes-and-replies")
		b.ReportMetric(float64(rules), "rules")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkLoad reads the iptables-save of that node: parse, lower, index.
func BenchmarkLoad(b *testing.B) {
	dump := nodeRules(b, 10000)
	b.SetBytes(int64(len(dump)))
	for b.Loop() {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		rs := loadRules(b, dump)
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6, "MB-allocated")
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB-kept")
		runtime.KeepAlive(rs)
	}
}
