package serviceproxy

import (
	"fmt"
	"net/netip"
	"testing"

	"packetwalk.dev/internal/node/service"
)

// BenchmarkPlan is what the agent computes for one change of a service with 600 endpoints among 100 services with 3.
func BenchmarkPlan(b *testing.B) {
	var ports []service.Port
	for i := range 101 {
		n := 3
		if i == 0 {
			n = 600
		}
		var endpoints []string
		for j := range n {
			endpoints = append(endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j >> 8), byte(j)}), 80).String())
		}
		ports = append(ports, testPort(fmt.Sprint("s", i), endpoints...))
	}
	config := Config{Family: service.IPv4, Rules: RulesCurrent, MasqueradeBit: 14}
	set, err := Generate(config, ports)
	if err != nil {
		b.Fatal(err)
	}
	before := render(set)
	b.ReportAllocs()
	for b.Loop() {
		set, err := Generate(config, ports)
		if err != nil {
			b.Fatal(err)
		}
		if p := planPartial(set, render(set), before); !p.isZero() {
			b.Fatal("something changed")
		}
	}
}
