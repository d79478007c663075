package walk

import (
	"fmt"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// ipvsLink is the link that kube-proxy's mode ipvs gives the addresses of services (kubernetes: pkg/proxy/ipvs, defaultDummyDevice).
const ipvsLink = "kube-ipvs0"

// virtualService ends the way of a packet that a service of IPVS may take: what that makes of it is not walked (ip_vs_in_hook).
func (t *transit) virtualService(_ netfilter.Family, h netfilter.Hook) *End {
	if end := t.needs(snapshot.IPVS); end != nil {
		return end
	}
	if t.m.VirtualServices == nil {
		if t.m.Missing[snapshot.IPVS] != "" {
			t.m.assumeMissing(snapshot.IPVS, "IPVS services unknown; assuming the packet is for none")
		}
		if !t.ofIPVSLink(h) {
			return nil
		}
		return t.end(Undecided, fmt.Sprintf("the host has IPVS' services (%s), which are not read: %s may be one", ipvsLink,
			t.p.DestinationEnd()))
	}
	for i := range t.m.VirtualServices {
		if s := &t.m.VirtualServices[i]; t.heldBy(s) {
			return t.end(Undecided, fmt.Sprintf("IPVS may take it for its %s, which is not walked", s))
		}
	}
	return nil
}

// heldBy reports whether a service may take the packet. Its mark is as rules left it, where those are known.
func (t *transit) heldBy(s *snapshot.VirtualService) bool {
	p := &t.p
	if s.Mark != 0 {
		known := t.m.isKnown(snapshot.Rules) && t.m.isKnown(snapshot.RulesIPv6) && t.m.isKnown(snapshot.NFT)
		return p.Protocol.HasPorts() && (p.Mark == s.Mark || !known)
	}
	low, high := p.DestinationPort.Span()
	port := s.Local.Port()
	return s.Protocol == p.Protocol && s.Local.Addr() == p.Destination && (port == 0 || low <= port && port <= high)
}

// ofIPVSLink tells of a packet that may be for a service of IPVS where those were not read: for an address of ipvsLink, or for a port where
// nothing listens, as node ports are.
func (t *transit) ofIPVSLink(h netfilter.Hook) bool {
	if t.m.FIB.Link(ipvsLink) == nil {
		return false
	}
	if own := t.m.FIB.HasAddress(t.p.Destination); own != nil && own.Link == ipvsLink {
		return true
	}
	if h == netfilter.Output {
		return false // what stays here comes to the hook input, too
	}
	_, listens := t.socket()
	carries, _ := t.tunnel()
	return t.inReplyTo == nil && t.p.Protocol.HasPorts() && !listens && carries == nil
}
