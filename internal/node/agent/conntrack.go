package agent

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
)

// staleFlows is the condition for deletion in netlink's terms.
type staleFlows struct{ *serviceproxy.UDPFlows }

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	destination, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	replier, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return ok && ok2 && s.Stale(
		netip.AddrPortFrom(destination.Unmap(), flow.Forward.DstPort),
		netip.AddrPortFrom(replier.Unmap(), flow.Reverse.SrcPort))
}

// deleteStaleFlows deletes the UDP flows that lead to endpoints which serve no more, and tells how many.
func deleteStaleFlows(f service.Family, flows *serviceproxy.UDPFlows) (int, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if f == service.IPv6 {
		family = unix.AF_INET6
	}
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, staleFlows{flows})
	if err != nil {
		return int(n), fmt.Errorf("delete conntrack entries of stale UDP flows: %w", err)
	}
	return int(n), nil
}

// udpState tells two lists of service ports apart where their UDP flows may differ.
func udpState(ports []service.Port) string {
	var b []byte
	for i := range ports {
		p := &ports[i]
		if p.Protocol != service.UDP {
			continue
		}
		b = fmt.Appendf(b, "%s %s %d %d %v %v", p.Name, p.ClusterIP, p.Port, p.NodePort, p.LoadBalancerIPs, p.ExternalIPs)
		for _, e := range p.Endpoints {
			if e.Serving {
				b = append(b, ' ')
				b = e.Addr.AppendTo(b)
			}
		}
		b = append(b, '\n')
	}
	return string(b)
}
