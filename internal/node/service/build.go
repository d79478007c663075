package service

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"
)

// LabelProxyName marks a service that another service proxy handles (k8s.io/kubernetes pkg/proxy/apis/well_known_labels.go).
const LabelProxyName = "service.kubernetes.io/service-proxy-name"

// Build makes the service ports of one family as one node sees them, sorted by name and protocol; see Of.
func Build(family Family, node Node, services []*corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) []Port {
	byService := map[Key][]*discoveryv1.EndpointSlice{}
	for _, slice := range endpointSlices {
		key := OfSlice(slice)
		byService[key] = append(byService[key], slice)
	}
	all := NewPorts()
	for _, s := range services {
		key := Key{s.Namespace, s.Name}
		if _, seen := all.byService[key]; !seen {
			all.Put(key, Of(family, node, s, byService[key]))
		}
	}
	return all.All()
}

// OfSlice names the service that an EndpointSlice is of; without a name there is none.
func OfSlice(slice *discoveryv1.EndpointSlice) Key {
	return Key{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
}

// Of makes the service ports of one service and its EndpointSlices in one family as one node sees them, sorted by name and protocol.
// Headless services, services of type ExternalName, services that another proxy handles and services without a cluster IP of the family
// make none. Where several slices hold the same address and port, a copy that is local to the node wins, as in kube-proxy; copies that
// differ in nothing but their state are merged (see compareCopies).
func Of(family Family, node Node, s *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) []Port {
	if s == nil {
		return nil
	}
	ip := clusterIP(family, s)
	if !ip.IsValid() {
		return nil
	}
	endpoints := gatherEndpoints(family, node, endpointSlices)
	ports := make([]Port, len(s.Spec.Ports))
	for i := range ports {
		p := &ports[i]
		*p = makePort(family, s, &s.Spec.Ports[i], ip)
		for j := range endpoints {
			if endpoints[j].name == p.Name.Port && endpoints[j].protocol == p.Protocol {
				p.Endpoints = endpoints[j].list
			}
		}
		choose(p, node)
		if p.HealthCheckNodePort != 0 {
			p.LocalReady = localReady(endpoints)
		}
	}
	slices.SortFunc(ports, func(a, b Port) int { return ComparePorts(&a, &b) })
	return ports
}

// clusterIP returns the service's cluster IP of the family, invalid when this proxy has nothing to do for the service.
func clusterIP(family Family, s *corev1.Service) netip.Addr {
	if s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return netip.Addr{}
	}
	if _, ok := s.Labels[LabelProxyName]; ok {
		return netip.Addr{}
	}
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	if ips := addresses(family, all); len(ips) > 0 {
		return ips[0]
	}
	return netip.Addr{}
}

// addresses parses those of the family and leaves out the rest: the API server has validated them.
func addresses(family Family, texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, ok := parseAddr(text); ok && family.Of(a) {
			out = append(out, a)
		}
	}
	return out
}

// parseAddr reads all forms that the API server accepts: with leading zeros in decimal numbers, and IPv4 as mapped into IPv6
// (k8s.io/apimachinery pkg/util/validation/ip.go, IsValidIPForLegacyField).
func parseAddr(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		var ok bool
		if a, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(text)); !ok {
			return netip.Addr{}, false
		}
	}
	return a.Unmap(), a.Zone() == ""
}

// ParsePrefix reads a range in all forms that the API server accepts an address in, and clears the bits beyond its length.
func ParsePrefix(text string) (netip.Prefix, bool) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(network.IP)
	bits, all := network.Mask.Size()
	if a.Is4In6() { // no shorter than 96 bits, or the mask would have cleared what marks it
		a, bits = a.Unmap(), bits-(all-32)
	}
	return netip.PrefixFrom(a, bits), true
}

func makePort(family Family, s *corev1.Service, sp *corev1.ServicePort, ip netip.Addr) Port {
	p := Port{
		Name:         Name{s.Namespace, s.Name, sp.Name},
		Protocol:     protocolOf(sp.Protocol),
		ClusterIP:    ip,
		Port:         uint16(sp.Port),
		NodePort:     uint16(sp.NodePort),
		ExternalIPs:  addresses(family, s.Spec.ExternalIPs),
		SourceRanges: sourceRanges(family, s.Spec.LoadBalancerSourceRanges),
	}
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
			p.LoadBalancerIPs = append(p.LoadBalancerIPs, addresses(family, []string{ingress.IP})...)
		}
	}
	if externalLocal(s) {
		p.ExternalPolicy = Local
	}
	if policy := s.Spec.InternalTrafficPolicy; policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal {
		p.InternalPolicy = Local
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		p.AffinitySeconds = affinitySeconds(s)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && p.ExternalPolicy == Local {
		p.HealthCheckNodePort = uint16(s.Spec.HealthCheckNodePort)
	}
	return p
}

func protocolOf(p corev1.Protocol) Protocol {
	if p == "" {
		return TCP
	}
	return Protocol(p)
}

// externalLocal holds for services that can be reached from outside only (k8s.io/kubernetes pkg/api/v1/service/util.go).
func externalLocal(s *corev1.Service) bool {
	reachable := s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
	return reachable && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func affinitySeconds(s *corev1.Service) int {
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return int(*c.ClientIP.TimeoutSeconds)
	}
	return int(corev1.DefaultClientIPServiceAffinitySeconds)
}

// sourceRanges returns those of the family; a range that holds every address is the same as no restriction. Blanks around a range pass the
// API server's validation, so they are cut.
func sourceRanges(family Family, texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		prefix, ok := ParsePrefix(strings.TrimSpace(text))
		if !ok || !family.Of(prefix.Addr()) {
			continue
		}
		if prefix.Bits() == 0 {
			return nil
		}
		out = append(out, prefix)
	}
	return out
}

// portEndpoints are the endpoints of one port of a service's slices.
type portEndpoints struct {
	name     string
	protocol Protocol
	list     []Endpoint
}

// gatherEndpoints returns those of a service's slices, by port.
func gatherEndpoints(family Family, node Node, endpointSlices []*discoveryv1.EndpointSlice) (all []portEndpoints) {
	most := 0
	for _, slice := range endpointSlices {
		most += len(slice.Endpoints)
	}
	for _, slice := range endpointSlices {
		if string(slice.AddressType) != family.String() {
			continue
		}
		for i := range slice.Ports {
			port := &slice.Ports[i]
			if port.Name == nil || port.Port == nil || *port.Port == 0 {
				continue
			}
			protocol := TCP
			if port.Protocol != nil {
				protocol = protocolOf(*port.Protocol)
			}
			at := slices.IndexFunc(all, func(p portEndpoints) bool { return p.name == *port.Name && p.protocol == protocol })
			if at < 0 {
				at, all = len(all), append(all, portEndpoints{*port.Name, protocol, make([]Endpoint, 0, most)})
			}
			all[at].list = addEndpoints(all[at].list, family, node, slice.Endpoints, uint16(*port.Port))
		}
	}
	for i := range all {
		all[i].list = sorted(all[i].list)
	}
	return all
}

func addEndpoints(all []Endpoint, family Family, node Node, endpoints []discoveryv1.Endpoint, port uint16) []Endpoint {
	for i := range endpoints {
		e := &endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		ip, ok := parseAddr(e.Addresses[0]) // the first is all there is: discovery/v1 says that consumers use only it
		if !ok || !family.Of(ip) {
			continue
		}
		made := Endpoint{
			Addr:        netip.AddrPortFrom(ip, port),
			Local:       node.Name != "" && e.NodeName != nil && *e.NodeName == node.Name,
			Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
			Serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
			Terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
		}
		if e.Hints != nil {
			for _, zone := range e.Hints.ForZones {
				made.ZoneHints = append(made.ZoneHints, zone.Name)
			}
			for _, n := range e.Hints.ForNodes {
				made.NodeHints = append(made.NodeHints, n.Name)
			}
		}
		all = append(all, made)
	}
	return all
}

// localReady returns the distinct addresses of ready endpoints on this node, over all ports of a service's slices.
func localReady(endpoints []portEndpoints) (all []netip.Addr) {
	for _, port := range endpoints {
		for i := range port.list {
			if e := &port.list[i]; e.Local && e.Ready {
				all = append(all, e.Addr.Addr())
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// compareCopies orders copies of one endpoint in different slices, as when a controller moves it: local first, then ready, serving, not
// terminating. Upstream takes whichever its map yields last; a fixed order keeps the result independent of the order of the input.
func compareCopies(a, b *Endpoint) int {
	for _, c := range [...][2]bool{{a.Local, b.Local}, {a.Ready, b.Ready}, {a.Serving, b.Serving}, {b.Terminating, a.Terminating}} {
		if c[0] && !c[1] {
			return -1
		}
		if c[1] && !c[0] {
			return 1
		}
	}
	return cmp.Or(slices.Compare(a.ZoneHints, b.ZoneHints), slices.Compare(a.NodeHints, b.NodeHints))
}

// sorted sorts endpoints by their texts, and leaves of several copies the best.
func sorted(all []Endpoint) []Endpoint {
	type sortItem struct {
		text []byte
		*Endpoint
	}
	list := make([]sortItem, len(all))
	texts := make([]byte, 0, len(all)*len("255.255.255.255:65535"))
	for i := range all {
		start := len(texts)
		texts = all[i].Addr.AppendTo(texts)
		list[i] = sortItem{texts[start:], &all[i]}
	}
	slices.SortFunc(list, func(a, b sortItem) int {
		if c := bytes.Compare(a.text, b.text); c != 0 {
			return c
		}
		return compareCopies(a.Endpoint, b.Endpoint)
	})
	inOrder := make([]Endpoint, 0, len(all))
	for i := range list {
		if i == 0 || list[i].Addr != list[i-1].Addr {
			inOrder = append(inOrder, *list[i].Endpoint)
		}
	}
	return inOrder
}

// choose fills ForCluster and ForLocal (k8s.io/kubernetes pkg/proxy/topology.go, 1.35).
func choose(p *Port, node Node) {
	hinted := hintFilter(p.Endpoints, node)
	p.ForCluster = firstNonEmpty(p.Endpoints,
		func(e *Endpoint) bool { return e.Ready && hinted(e) },
		func(e *Endpoint) bool { return e.Serving && e.Terminating })
	p.ForLocal = firstNonEmpty(p.Endpoints,
		func(e *Endpoint) bool { return e.Local && e.Ready },
		func(e *Endpoint) bool { return e.Local && e.Serving && e.Terminating })
}

func firstNonEmpty(endpoints []Endpoint, wanted ...func(*Endpoint) bool) []Endpoint {
	for _, want := range wanted {
		n := 0
		for i := range endpoints {
			if want(&endpoints[i]) {
				n++
			}
		}
		if n == len(endpoints) {
			return endpoints
		}
		if n == 0 {
			continue
		}
		out := make([]Endpoint, 0, n)
		for i := range endpoints {
			if want(&endpoints[i]) {
				out = append(out, endpoints[i])
			}
		}
		return out
	}
	return nil
}

// hintFilter tells which ready endpoints the topology hints leave for this node: hints for nodes, if every ready endpoint has some and one
// names this node; else hints for zones by the same condition; else all.
func hintFilter(endpoints []Endpoint, node Node) func(*Endpoint) bool {
	usable := func(value string, hints func(*Endpoint) []string) bool {
		here := false
		for i := range endpoints {
			e := &endpoints[i]
			if !e.Ready {
				continue
			}
			if len(hints(e)) == 0 {
				return false
			}
			here = here || slices.Contains(hints(e), value)
		}
		return here && value != ""
	}
	nodeHints := func(e *Endpoint) []string { return e.NodeHints }
	zoneHints := func(e *Endpoint) []string { return e.ZoneHints }
	switch {
	case usable(node.Name, nodeHints):
		return func(e *Endpoint) bool { return slices.Contains(e.NodeHints, node.Name) }
	case usable(node.Zone, zoneHints):
		return func(e *Endpoint) bool { return slices.Contains(e.ZoneHints, node.Zone) }
	}
	return func(*Endpoint) bool { return true }
}
