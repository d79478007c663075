package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/node/service"
)

// large is a service port with 2,000 endpoints, a load balancer and a node port, and the same with an endpoint less.
func large() (all, less service.Port) {
	all = portOf(0, 0)
	all.NodePort, all.LoadBalancerIPs = 30080, []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	for i := range 2000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		all.Endpoints = append(all.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 80), Ready: true, Serving: true})
	}
	all.ForCluster = all.Endpoints
	less = all
	less.ForCluster = slices.Delete(slices.Clone(all.ForCluster), 700, 701)
	return all, less
}

// BenchmarkUpdate is what is computed when one of the endpoints of a large service port goes, and comes again.
func BenchmarkUpdate(b *testing.B) {
	all, less := large()
	state := NewState(many, nil)
	state.Update(byService([]service.Port{all}))
	b.ReportAllocs()
	for b.Loop() {
		for _, port := range []service.Port{less, all} {
			state.Update(byService([]service.Port{port}))
		}
	}
}

// BenchmarkLarge measures such a change, and the comparison of all rules after another process has written. Both include the kernel's part.
func BenchmarkLarge(b *testing.B) {
	all, less := large()
	ports, key := service.NewPorts(), service.Key{Namespace: all.Namespace, Service: all.Service}
	s := syncerIn(b, namespace(b, "ns"), many)
	b.Run("change", func(b *testing.B) {
		each(b, func(i int) {
			ports.Put(key, []service.Port{[]service.Port{all, less}[i%2]})
			if _, err := s.Sync(b.Context(), ports, []service.Key{key}); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("compare", func(b *testing.B) {
		cpu(b, func() {
			s.generation = 0
			if _, err := s.Repair(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	})
}
