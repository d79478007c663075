package oracle

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/node/service"
)

// kind is what a packet's destination is.
type kind string

const (
	clusterIP    kind = "cluster IP"
	externalIP   kind = "external IP"
	balancerIP   kind = "load balancer IP"
	nodePort     kind = "node port"
	unallocated  kind = "unallocated cluster IP"
	unusedOfIP   kind = "unused port of a cluster IP"
	unusedOthers kind = "unused port"
)

// probe is a flow's first packet.
type probe struct {
	kind     kind
	owner    service.Name // of a service port; zero for none
	protocol corev1.Protocol
	source   netip.Addr
	to       netip.AddrPort
	arrives  string // by this link; "" for the node's own
}

// String names it in words.
func (p *probe) String() string {
	by := "by " + p.arrives
	if p.arrives == "" {
		by = "from the node itself"
	}
	return fmt.Sprintf("%s %s > %s %s (%s %s)", strings.ToLower(string(p.protocol)), p.source, p.to, by, p.kind, p.owner)
}

var protocols = map[corev1.Protocol]packet.Protocol{
	corev1.ProtocolTCP: packet.TCP, corev1.ProtocolUDP: packet.UDP, corev1.ProtocolSCTP: packet.SCTP,
}

const sourcePort = 40000

func (p *probe) request() walk.Request {
	r := walk.Request{Host: nodeHost, OneWay: true, Arrives: p.arrives, Forwarded: p.arrives != "", Packet: packet.Packet{Tuple: packet.Tuple{
		Protocol: protocols[p.protocol], Source: p.source, Destination: p.to.Addr(), SourcePort: packet.Exactly(sourcePort),
		DestinationPort: packet.Exactly(p.to.Port())}}}
	if r.Packet.Protocol == packet.TCP {
		r.Packet.TCPFlags = packet.SYN
	}
	return r
}

// draw puts packets into an order that hangs on nothing but themselves and the number, so that smaller worlds keep theirs.
func (p *probe) draw(number uint32) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, p, number)
	return h.Sum64()
}

// target is where packets go to: a name of a service port, or an address or port that belongs to none.
type target struct {
	kind     kind
	owner    service.Name
	protocol corev1.Protocol
	to       netip.AddrPort
}

// probes returns up to n of all packets to everything that a world's services have, and to what is beside it. It leaves out and counts
// names that two service ports want: which of them has it, upstream leaves to the order of a Go map.
func probes(v Settings, w World, n int) (drawn []probe, ambiguous int) {
	a := addressesOf(v)
	all, ambiguous := targets(v, a, w.watched())
	endpoints := endpointsOf(v, w)
	var every []probe
	for _, t := range all {
		p := probe{kind: t.kind, owner: t.owner, protocol: t.protocol, to: t.to}
		from := func(link string, sources ...netip.Addr) {
			for _, p.source = range sources {
				p.arrives = link
				every = append(every, p)
			}
		}
		own := a.node[0]
		if t.to.Addr() == a.loopback || t.to.Addr() == a.vip || slices.Contains(a.node, t.to.Addr()) {
			own = t.to.Addr()
		}
		from("", own)
		if t.to.Addr() == a.loopback {
			continue // from elsewhere it is a martian
		}
		from(outside, append(slices.Clone(a.outside), a.remotePod)...)
		from(podLink(v), append(slices.Clone(endpoints[t.owner]), a.pod, a.outside[len(a.outside)-1])...)
	}
	if len(every) == 0 {
		return nil, ambiguous
	}
	most := uint64(math.MaxUint64)
	if len(every) > n {
		most = most / uint64(len(every)) * uint64(n)
	}
	for i := range every {
		if every[i].draw(w.Draw) <= most {
			drawn = append(drawn, every[i])
		}
	}
	return drawn, ambiguous
}

// targets returns the names that service ports have, each once, and what is beside them.
func targets(v Settings, a addresses, w World) (all []target, ambiguous int) {
	const unusedPort, unusedNodePort = 7, 29999
	owners := map[target]map[service.Name]bool{}
	add := func(t target) {
		owner := t.owner
		t.owner = service.Name{}
		if owners[t] == nil {
			owners[t] = map[service.Name]bool{}
			all = append(all, t)
		}
		owners[t][owner] = true
	}
	for _, key := range slices.Sorted(maps.Keys(w.Services)) {
		s := w.Services[key]
		if s.Spec.Type == corev1.ServiceTypeExternalName || len(familyOf(v, s.Spec.ClusterIPs)) == 0 {
			continue
		}
		for _, p := range s.Spec.Ports {
			name := service.Name{Namespace: s.Namespace, Service: s.Name, Port: p.Name}
			for _, at := range places(v, s) {
				add(target{at.kind, name, p.Protocol, netip.AddrPortFrom(at.ip, uint16(p.Port))})
			}
			for _, ip := range append(slices.Clone(a.node), a.vip, a.loopback) {
				if p.NodePort != 0 {
					add(target{nodePort, name, p.Protocol, netip.AddrPortFrom(ip, uint16(p.NodePort))})
				}
			}
		}
		for _, at := range places(v, s) {
			unused := unusedOthers
			if at.kind == clusterIP {
				unused = unusedOfIP
			}
			add(target{unused, service.Name{}, corev1.ProtocolTCP, netip.AddrPortFrom(at.ip, unusedPort)})
			add(target{unused, service.Name{}, corev1.ProtocolUDP, netip.AddrPortFrom(at.ip, unusedPort)})
		}
	}
	add(target{unallocated, service.Name{}, corev1.ProtocolTCP, netip.AddrPortFrom(a.unallocated, 80)})
	add(target{unallocated, service.Name{}, corev1.ProtocolUDP, netip.AddrPortFrom(a.otherUnallocated, 80)})
	add(target{unusedOthers, service.Name{}, corev1.ProtocolTCP, netip.AddrPortFrom(a.node[0], unusedNodePort)})
	all = slices.DeleteFunc(all, func(t target) bool {
		if len(owners[t]) > 1 {
			ambiguous++
		}
		return len(owners[t]) > 1
	})
	for i := range all {
		for owner := range owners[all[i]] {
			all[i].owner = owner
		}
	}
	return all, ambiguous
}

type frontend struct {
	kind kind
	ip   netip.Addr
}

// places returns the addresses of a service.
func places(v Settings, s *corev1.Service) (all []frontend) {
	all = append(all, frontend{clusterIP, familyOf(v, s.Spec.ClusterIPs)[0]})
	for _, ip := range familyOf(v, s.Spec.ExternalIPs) {
		all = append(all, frontend{externalIP, ip})
	}
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IPMode != nil && *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		for _, ip := range familyOf(v, []string{ingress.IP}) {
			all = append(all, frontend{balancerIP, ip})
		}
	}
	return all
}

func familyOf(v Settings, texts []string) (all []netip.Addr) {
	for _, text := range texts {
		ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
		if ip = ip.Unmap(); ok && ip.Is4() != v.IPv6 {
			all = append(all, ip)
		}
	}
	return all
}

// endpointsOf returns addresses of endpoints by service port, each once.
func endpointsOf(v Settings, w World) map[service.Name][]netip.Addr {
	all := map[service.Name][]netip.Addr{}
	for _, s := range w.Services {
		for _, slice := range w.slicesOf(s.Namespace + "/" + s.Name) {
			for _, e := range w.Slices[slice].Endpoints {
				for _, p := range s.Spec.Ports {
					name := service.Name{Namespace: s.Namespace, Service: s.Name, Port: p.Name}
					all[name] = append(all[name], familyOf(v, e.Addresses[:1])...)
				}
			}
		}
	}
	for name := range all {
		slices.SortFunc(all[name], netip.Addr.Compare)
		all[name] = slices.Compact(all[name])
	}
	return all
}
