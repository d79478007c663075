package servicemaps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
)

// manyPorts are so many service ports with three endpoints each.
func manyPorts(n int) []service.Port {
	ports := make([]service.Port, n)
	for i := range ports {
		p := &ports[i]
		p.Name, p.Protocol, p.Port = service.Name{Namespace: "ns", Service: fmt.Sprintf("s%06d", i)}, service.TCP, 80
		p.ClusterIP = netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
		for j := range 3 {
			k := i*3 + j
			a := netip.AddrFrom4([4]byte{10, 128 + byte(k>>16), byte(k >> 8), byte(k)})
			p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Ready: true, Serving: true})
		}
		p.ForCluster = p.Endpoints
	}
	return ports
}

// oneLess has an endpoint less in the service port in the middle.
func oneLess(ports []service.Port) []service.Port {
	ports = slices.Clone(ports)
	p := &ports[len(ports)/2]
	p.ForCluster = p.ForCluster[:len(p.ForCluster)-1]
	return ports
}

var many = serviceproxy.Config{Family: service.IPv4, MasqueradeBit: 14}

// TestKernelHoldsMany: of many services, more than go into one message, the kernel holds all, and a change of one endpoint is a few
// elements.
func TestKernelHoldsMany(t *testing.T) {
	ns := namespace(t, "ns")
	s := syncerIn(ns, many)
	ports := manyPorts(2_000)
	mustSync(t, s, ports)
	if r := mustSync(t, s, oneLess(ports)); r.Full || r.Written[TableName] != 4 {
		t.Errorf("a change of one endpoint: %+v", r) // of the service's fan-out two, its slot, its hairpin
	}
	if names, err := s.Repair(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("repaired what is whole: %v, %v", names, err)
	}
	if r := mustSync(t, syncerIn(ns, many), oneLess(ports)); !r.Full || r.Written[TableName] != 0 {
		t.Errorf("a restart: %+v", r)
	}
}

// BenchmarkKernel: the first sync, a change of one endpoint, the look whether anybody wrote, the comparison with the kernel if somebody
// did, and nft loading the same from its own listing.
func BenchmarkKernel(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmark(b, n) })
	}
}

func benchmark(b *testing.B, n int) {
	all := manyPorts(n)
	ports := allOf(all)
	key := service.Key{Namespace: "ns", Service: all[n/2].Service}
	changed := [][]service.Port{oneLess(all)[n/2 : n/2+1], all[n/2 : n/2+1]}
	full := func(b *testing.B, s *Syncer) {
		if _, err := s.Sync(b.Context(), ports, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			full(b, syncerIn(fresh(b), many))
		}
	})
	ns := namespace(b, "ns")
	s := syncerIn(ns, many)
	full(b, s)
	b.Run("change", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			ports.Put(key, changed[i%2])
			if r, err := s.Sync(b.Context(), ports, []service.Key{key}); err != nil || r.Full {
				b.Fatal(r, err)
			}
		}
	})
	for what, undisturbed := range map[string]bool{"look": true, "compare": false} {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				if !undisturbed {
					s.generation = 0
				}
				if _, err := s.Repair(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("nft", func(b *testing.B) {
		text := list(b, ns)
		for b.Loop() {
			if err := fresh(b).ApplyNFT(b.Context(), text); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// fresh is a new namespace, whose making is not measured.
func fresh(b *testing.B) *kernel.Namespace {
	b.StopTimer()
	defer b.StartTimer()
	return namespace(b, fmt.Sprint("n", b.N))
}
