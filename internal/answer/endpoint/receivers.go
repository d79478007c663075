package endpoint

import (
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// Receivers returns the hosts that may get a packet in the end, whatever happens to it on the way: those of the endpoints if its
// destination is a Service's address or node port, else the owner of the address. Pods come first.
func Receivers(world World, t packet.Tuple) []string {
	w := world.places()
	endpoints, isService := w.endpoints(t)
	if !isService {
		endpoints = []netip.Addr{t.Destination}
	}
	var pods, others []string
	for _, a := range endpoints {
		switch host := w.owner(a); {
		case !slices.Contains(w.names, host) || slices.Contains(pods, host) || slices.Contains(others, host):
		case slices.ContainsFunc(w.objects.Pods, func(p snapshot.Pod) bool { return w.podHost(p.Namespace, p.Name) == host }):
			pods = append(pods, host)
		default:
			others = append(others, host)
		}
	}
	return append(pods, others...)
}

// endpoints returns the endpoints of the Service that has a packet's destination; isService is false where none has.
func (w *places) endpoints(t packet.Tuple) (addresses []netip.Addr, isService bool) {
	isNode := slices.ContainsFunc(w.objects.Nodes, func(n snapshot.Node) bool { return slices.Contains(n.IPs, t.Destination) })
	for i := range w.objects.Services {
		s := &w.objects.Services[i]
		own := slices.Contains(s.ClusterIPs, t.Destination) || slices.Contains(s.External, t.Destination)
		for _, p := range s.Ports {
			port := t.DestinationPort.Number
			isFor := own && p.Port == port || isNode && p.NodePort == port
			if p.Protocol != t.Protocol || port == 0 || !isFor {
				continue
			}
			isService = true
			for _, e := range p.Endpoints {
				addresses = append(addresses, e.Addr())
			}
		}
	}
	return addresses, isService
}
