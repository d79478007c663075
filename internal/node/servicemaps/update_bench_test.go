package servicemaps

import (
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/node/service"
)

// BenchmarkUpdate is what is computed when one of the 2,000 endpoints of a service port with a load balancer and a node port goes, and
// comes again.
func BenchmarkUpdate(b *testing.B) {
	all := portOf(0, 0)
	all.NodePort, all.LoadBalancerIPs = 30080, []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	for i := range 2000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		all.Endpoints = append(all.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 80), Ready: true, Serving: true})
	}
	all.ForCluster = all.Endpoints
	less := all
	less.ForCluster = slices.Delete(slices.Clone(all.ForCluster), 700, 701)
	state := NewState(many, nil)
	state.Update(byService([]service.Port{all}))
	b.ReportAllocs()
	for b.Loop() {
		for _, port := range []service.Port{less, all} {
			state.Update(byService([]service.Port{port}))
		}
	}
}
