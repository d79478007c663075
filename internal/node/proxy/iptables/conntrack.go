package iptables

import (
	"net/netip"
	"slices"

	"packetwalk.dev/internal/node/service"
)

// UDPFlows knows which UDP flows through services still lead to a serving endpoint. A UDP flow's translation lives as long as packets
// come, so one to an endpoint that is gone has to be deleted for the client to reach another.
type UDPFlows struct {
	byAddr map[netip.AddrPort]map[netip.AddrPort]bool
	byPort map[uint16]map[netip.AddrPort]bool // node ports
}

// NewUDPFlows reads the service ports. Ports without a serving endpoint are left out, as in kube-proxy: their flows can go nowhere else.
func NewUDPFlows(ports []service.Port) *UDPFlows {
	f := &UDPFlows{byAddr: map[netip.AddrPort]map[netip.AddrPort]bool{}, byPort: map[uint16]map[netip.AddrPort]bool{}}
	for i := range ports {
		p := &ports[i]
		if p.Protocol != service.UDP {
			continue
		}
		serving := map[netip.AddrPort]bool{}
		for _, e := range p.Endpoints {
			if e.Serving {
				serving[e.Addr] = true
			}
		}
		if len(serving) == 0 {
			continue
		}
		for _, ip := range slices.Concat(p.LoadBalancerIPs, p.ExternalIPs, []netip.Addr{p.ClusterIP}) {
			f.byAddr[netip.AddrPortFrom(ip, p.Port)] = serving
		}
		if p.NodePort != 0 {
			f.byPort[p.NodePort] = serving
		}
	}
	return f
}

// Empty tells that there is no UDP service with endpoints, so no flow to look at.
func (f *UDPFlows) Empty() bool { return len(f.byAddr) == 0 }

// Stale reports whether a UDP flow goes to a service but is not answered by one of its serving endpoints: destination is that of the flow's
// original direction, replier the source of its reply direction.
func (f *UDPFlows) Stale(destination, replier netip.AddrPort) bool {
	if serving, ok := f.byAddr[destination]; ok && !serving[replier] {
		return true
	}
	serving, ok := f.byPort[destination.Port()]
	return ok && !serving[replier]
}
