package serviceproxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
)

// deleteStaleFlows deletes the UDP flows that lead to endpoints which serve no more, and returns how many.
func deleteStaleFlows(f service.Family, flows *iptables.UDPFlows) (deleted int, _ error) {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	all, err := c.Dump(nil)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, flow := range all {
		to, from := flow.TupleOrig, flow.TupleReply
		if to.Proto.Protocol != unix.IPPROTO_UDP || !f.Of(to.IP.DestinationAddress) || !flows.Stale(
			netip.AddrPortFrom(to.IP.DestinationAddress, to.Proto.DestinationPort),
			netip.AddrPortFrom(from.IP.SourceAddress, from.Proto.SourcePort)) {
			continue
		}
		switch err := c.Delete(flow); {
		case err == nil:
			deleted++
		case !errors.Is(err, unix.ENOENT): // it ended by itself
			errs = append(errs, err)
		}
	}
	return deleted, errors.Join(errs...)
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
