package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
)

// manyPorts are service ports with three endpoints each.
func manyPorts(n int) []service.Port {
	ports := make([]service.Port, 0, n)
	for i := range n {
		p := testPort(fmt.Sprintf("s%06d", i))
		p.ClusterIP, p.NodePort = netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), 0
		for j := 3 * i; j < 3*i+3; j++ {
			at := netip.AddrFrom4([4]byte{10, 128 + byte(j>>16), byte(j >> 8), byte(j)})
			p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(at, 80), Ready: true, Serving: true})
		}
		p.ForCluster = p.Endpoints
		ports = append(ports, p)
	}
	return ports
}

// BenchmarkChange is what the agent computes for a change of one service among 10,000.
func BenchmarkChange(b *testing.B) {
	config := proxy.Config{Family: service.IPv4, Rules: RulesCurrent, MasqueradeBit: 14}
	ports := manyPorts(10_000)
	from, err := newState(config, ports, nil)
	if err != nil {
		b.Fatal(err)
	}
	changed := slices.Clone(ports)
	changed[5000].ForCluster = changed[5000].ForCluster[:2]
	b.ReportAllocs()
	for b.Loop() {
		to, err := newState(config, changed, from)
		if err != nil {
			b.Fatal(err)
		}
		to.count()
		if p := difference(from, to, 1500); len(p.steps) != 1 || p.rules["nat"] != 2 {
			b.Fatalf("%+v", p)
		}
	}
}
