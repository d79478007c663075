package vnet

import (
	"net/netip"
	"slices"
	"strings"
)

// TagSpace holds what words of rules stand for in one subnet: the service tags VirtualNetwork and Internet, and application security groups.
type TagSpace struct {
	Networks []netip.Prefix // of the subnet's virtual network, of those peered with it, and of the pods' overlay
	Routes   []netip.Prefix // of the subnet's user-defined routes that [InVirtualNetwork] counts
	// What VirtualNetwork holds besides, and is unknown: what a gateway has learnt, a network that was not read (in words, "" for none), and
	// service tags of user-defined routes.
	Gateway    bool
	Unread     string
	RoutedTags []string
	// Members returns the members of an application security group, and which others there may be. It is nil where there are no such groups.
	Members func(id string) (known []netip.Prefix, more Ends)
}

// InVirtualNetwork reports whether the tag VirtualNetwork holds the prefixes of user-defined routes with a next hop of the type. Azure
// documents "address prefixes used on user-defined routes". That was seen of routes to appliances, 0.0.0.0/0 among them.
func InVirtualNetwork(nextHopType string) bool {
	return nextHopType == NextHopAppliance || nextHopType == NextHopVNetLocal
}

// NotPublic are the ranges that are reserved on the internet, besides the private ones (RFC 6890).
var NotPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// VirtualNetwork returns what the tag holds, as far as it is known.
func (t TagSpace) VirtualNetwork() []netip.Prefix {
	return slices.Concat(t.Networks, t.Routes, []netip.Prefix{host(ProbeSource)})
}

// An internetReading is what the tag Internet is assumed to hold. Azure documents "the IP address space that's outside the virtual network
// and reachable by the public internet" ("Virtual network service tags", learn.microsoft.com). It does not document whether public addresses
// are outside where a user-defined route makes them part of the tag VirtualNetwork.
type internetReading bool

const (
	narrow internetReading = false // without the prefixes of user-defined routes
	wide   internetReading = true  // with the public addresses among them
)

// NotInternet returns what the tag Internet does not hold for certain, and what it may not hold beside.
func (t TagSpace) NotInternet() (certain, doubtful []netip.Prefix) {
	return slices.Concat(t.Networks, Private, NotPublic, []netip.Prefix{host(ProbeSource)}), t.Routes
}

// InternetDoubt is why it is unknown whether a rule that names the tag Internet holds a flow.
const InternetDoubt = "service tag Internet holds the public addresses of user-defined routes to appliances: Microsoft does not document it"

// A Doubt says what depends on the reading of the tag Internet for a rule that names it.
type Doubt int

// What depends on it: nothing; which rule decides, but not what; what is decided.
const (
	NoDoubt Doubt = iota
	DoubtRule
	DoubtAccess
)

// Words of a doubt. With the longest name and priority of a rule they are within nft's 128 bytes of a comment.
const (
	ruleDoubted   = ", or a later rule that does the same"
	accessDoubted = ", if Internet holds routed prefixes"
)

// Comment adds the doubt to a rule's comment.
func (d Doubt) Comment(comment string) string {
	return comment + map[Doubt]string{DoubtRule: ruleDoubted, DoubtAccess: accessDoubted}[d]
}

// IsDoubted reports whether a comment of a rule of the fabric's table says that it is unknown if the rule holds.
func IsDoubted(comment string) bool { return strings.HasSuffix(comment, accessDoubted) }

// DoubtOf returns what depends on the reading of the tag Internet where a flow meets rule i of those of a group and direction by the wide
// reading only. The rules are in the order in which they are asked. Where it cannot be shown that a later rule decides the same, the access
// is in doubt.
func (t TagSpace) DoubtOf(rules []SecurityRule, i int) Doubt {
	if len(t.Routes) == 0 {
		return NoDoubt
	}
	doubted := rules[i]
	sources, sourceDoubt := t.uncertainRanges(doubted.Sources)
	destinations, destinationDoubt := t.uncertainRanges(doubted.Destinations)
	switch {
	case !sourceDoubt && !destinationDoubt:
		return NoDoubt
	case sourceDoubt && destinationDoubt: // one of both is doubtful
		sources, destinations = t.widestRanges(doubted.Sources), t.widestRanges(doubted.Destinations)
	}
	for _, later := range rules[i+1:] {
		switch {
		case later.Access != doubted.Access && later.mayMeet(doubted) && t.mayHold(later.Destinations, destinations) &&
			t.mayHold(later.Sources, sources):
			return DoubtAccess
		case later.Access == doubted.Access && later.covers(doubted) && t.holds(later.Destinations, destinations) &&
			t.holds(later.Sources, sources):
			return DoubtRule
		}
	}
	return DoubtAccess
}

// uncertainRanges returns the ranges that a list holds by the wide reading only, and true; where there are none, those that it holds, and
// false.
func (t TagSpace) uncertainRanges(list []string) ([]span, bool) {
	if more := subtract(t.spans(list, wide), t.spans(list, narrow)); len(more) > 0 {
		return more, true
	}
	return t.widestRanges(list), false
}

// widestRanges returns all ranges that a list may hold.
func (t TagSpace) widestRanges(list []string) []span {
	if t.isOpen(list) {
		return []span{spanOf(anywhere)}
	}
	return t.spans(list, wide)
}

// isOpen reports whether a list may hold more than its spans.
func (t TagSpace) isOpen(list []string) bool {
	return slices.ContainsFunc(t.ends(list, wide), func(e Ends) bool { return e.Unknown != "" })
}

// mayHold reports whether a list may hold any of the ranges, by the narrow reading.
func (t TagSpace) mayHold(list []string, ranges []span) bool {
	return t.isOpen(list) || !slices.Equal(subtract(ranges, t.spans(list, narrow)), ranges)
}

// holds reports whether a list surely holds all of the ranges, by the narrow reading.
func (t TagSpace) holds(list []string, ranges []span) bool {
	return len(subtract(ranges, t.spans(list, narrow))) == 0
}

// Protocols are the numbers of the protocols that security rules name.
var Protocols = map[string]uint8{ProtocolICMP: 1, ProtocolTCP: 6, ProtocolUDP: 17, ProtocolESP: 50, ProtocolAH: 51}

// mayMeet reports whether a flow of the other rule may be of this one's protocol and ports.
func (r SecurityRule) mayMeet(other SecurityRule) bool {
	a, b := Protocols[r.Protocol], Protocols[other.Protocol]
	meet := func(a, b []PortRange) bool {
		return anyPort(a) || anyPort(b) || slices.ContainsFunc(a, func(x PortRange) bool {
			return slices.ContainsFunc(b, func(y PortRange) bool { return x.First <= y.Last && y.First <= x.Last })
		})
	}
	return (a == 0 || b == 0 || a == b) && meet(r.SourcePorts, other.SourcePorts) && meet(r.DestinationPorts, other.DestinationPorts)
}

// covers reports whether every flow of the other rule's protocol and ports is of this one's.
func (r SecurityRule) covers(other SecurityRule) bool {
	hold := func(a, b []PortRange) bool {
		a = mergePorts(a)
		return !anyPort(b) && !slices.ContainsFunc(b, func(y PortRange) bool {
			return !slices.ContainsFunc(a, func(x PortRange) bool { return x.First <= y.First && y.Last <= x.Last })
		})
	}
	sameProtocol := Protocols[r.Protocol] != 0 && r.Protocol == other.Protocol
	hasPorts := other.Protocol == ProtocolTCP || other.Protocol == ProtocolUDP || !anyPort(other.SourcePorts) ||
		!anyPort(other.DestinationPorts)
	return (r.Protocol == Any || sameProtocol) &&
		(anyPort(r.SourcePorts) || hasPorts && hold(r.SourcePorts, other.SourcePorts)) &&
		(anyPort(r.DestinationPorts) || hasPorts && hold(r.DestinationPorts, other.DestinationPorts))
}

// tagSpace returns a scope's.
func (n *Network) tagSpace(s scope) (t TagSpace) {
	for _, v := range n.VNets {
		if v.Name == s.vnet || peered(*n, s.vnet, v.Name) {
			t.Networks = append(t.Networks, v.AddressPrefixes...)
		}
	}
	if n.Overlay.IsValid() {
		t.Networks = append(t.Networks, n.Overlay)
	}
	if table, ok := n.RouteTable(s.table); ok {
		for _, r := range table.Routes {
			if InVirtualNetwork(r.NextHopType) {
				t.Routes = append(t.Routes, r.Prefix)
			}
		}
	}
	return t
}

// spans returns the ranges that a rule's list of addresses stands for, as far as that is known.
func (t TagSpace) spans(list []string, by internetReading) []span {
	return spansOfEnds(t.ends(list, by))
}

func spansOfEnds(ends []Ends) []span {
	var all []span
	for _, e := range ends {
		if e.Unknown == "" {
			all = append(all, e.spans()...)
		}
	}
	return merge(all)
}

func spansOf(prefixes []netip.Prefix) (all []span) {
	for _, p := range prefixes {
		all = append(all, spanOf(p))
	}
	return all
}
