package vnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// SecurityGroup is a network security group: rules for the flows of the NICs that name it, and of those in the subnets that do.
type SecurityGroup struct {
	Name  string
	Rules []SecurityRule // without DefaultSecurityRules, which every group has too
}

// SecurityRule lets flows of one direction begin, or does not. An empty list holds everything.
type SecurityRule struct {
	Name             string
	Priority         int    // 100 to 4096; the lowest that matches decides
	Direction        string // DirectionInbound or DirectionOutbound, seen from the machine
	Access           string // AccessAllow or AccessDeny
	Protocol         string // ProtocolTCP, ProtocolUDP, ProtocolICMP or Any
	Sources          []string
	SourcePorts      []PortRange
	Destinations     []string // prefixes, addresses, service tags or Any
	DestinationPorts []PortRange
}

// Values of a security rule, as Azure writes them.
const (
	DirectionInbound  = "Inbound"
	DirectionOutbound = "Outbound"
	AccessAllow       = "Allow"
	AccessDeny        = "Deny"
	ProtocolICMP      = "Icmp"
	ProtocolESP       = "Esp"
	ProtocolAH        = "Ah"
	Any               = "*"
)

// Service tags that a rule can name. Of Azure's others the lab has nothing ("Azure service tags overview", learn.microsoft.com).
const (
	// TagVirtualNetwork is the NIC's virtual network, those peered with it, Azure's host, and the prefixes of its subnet's user-defined
	// routes.
	TagVirtualNetwork = "VirtualNetwork"
	// TagInternet is what is public and in no virtual network that the NIC's knows.
	TagInternet = "Internet"
	// TagAzureLoadBalancer is where health probes come from.
	TagAzureLoadBalancer = "AzureLoadBalancer"
)

// The service tags of what Azure's host serves. A lab's rules cannot name them.
const (
	tagPlatformDNS  = "AzurePlatformDNS"
	tagPlatformIMDS = "AzurePlatformIMDS"
)

// Bounds of a security rule's priority.
const (
	minSecurityPriority = 100
	MaxSecurityPriority = 4096
)

// PortRange is a range of ports, both ends within.
type PortRange struct{ First, Last uint16 }

// String returns "80" or "8000-8999".
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// ParsePortRange reads "80" or "8000-8999".
func ParsePortRange(s string) (PortRange, error) {
	var r PortRange
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return r, fmt.Errorf("invalid port or port range %q", s)
	}
	b, err := strconv.ParseUint(last, 10, 16)
	if err != nil || b < a {
		return r, fmt.Errorf("invalid port or port range %q", s)
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// DefaultSecurityRules returns those that every group ends with ("Azure network security groups overview", default security rules,
// learn.microsoft.com; names as the network resource provider writes them).
func DefaultSecurityRules() []SecurityRule {
	rule := func(name string, priority int, direction, access string, from, to []string) SecurityRule {
		return SecurityRule{Name: name, Priority: priority, Direction: direction, Access: access, Protocol: Any, Sources: from, Destinations: to}
	}
	vnets := []string{TagVirtualNetwork}
	return []SecurityRule{
		rule("AllowVnetInBound", 65000, DirectionInbound, AccessAllow, vnets, vnets),
		rule("AllowAzureLoadBalancerInBound", 65001, DirectionInbound, AccessAllow, []string{TagAzureLoadBalancer}, nil),
		rule("DenyAllInBound", 65500, DirectionInbound, AccessDeny, nil, nil),
		rule("AllowVnetOutBound", 65000, DirectionOutbound, AccessAllow, vnets, vnets),
		rule("AllowInternetOutBound", 65001, DirectionOutbound, AccessAllow, nil, []string{TagInternet}),
		rule("DenyAllOutBound", 65500, DirectionOutbound, AccessDeny, nil, nil),
	}
}

// SortedSecurityRules returns the rules of a direction, with Azure's own, in the order in which they are asked.
func SortedSecurityRules(rules, defaults []SecurityRule, direction string) []SecurityRule {
	all := slices.DeleteFunc(slices.Concat(rules, defaults), func(r SecurityRule) bool { return r.Direction != direction })
	return sortedBy(all, func(r SecurityRule) int { return r.Priority })
}

// clauses returns what the group does with new flows of a direction.
func (g SecurityGroup) clauses(direction string, t TagSpace) []SecurityClause {
	return SecurityClauses(SortedSecurityRules(g.Rules, DefaultSecurityRules(), direction), direction, t)
}

// SecurityGroup finds a group; the pointer is into the network.
func (n *Network) SecurityGroup(name string) (*SecurityGroup, bool) {
	for i := range n.SecurityGroups {
		if n.SecurityGroups[i].Name == name {
			return &n.SecurityGroups[i], true
		}
	}
	return nil, false
}

// securityGroups returns those that a NIC's flows meet, in their order: inbound its subnet's and then its own, outbound the other way round
// ("How network security groups filter network traffic", learn.microsoft.com).
func (n *Network) securityGroups(nic NIC, direction string) []SecurityGroup {
	subnet, _ := n.Subnet(nic.VNet, nic.Subnet)
	names := []string{subnet.SecurityGroup, nic.SecurityGroup}
	if direction == DirectionOutbound {
		slices.Reverse(names)
	}
	var all []SecurityGroup
	for _, name := range names {
		if g, ok := n.SecurityGroup(name); ok {
			all = append(all, *g)
		}
	}
	return all
}

// A SecurityFlow is what rules look at of a flow's first packet: outbound before any translation, inbound after all of them. Ports count
// for TCP and UDP only.
type SecurityFlow struct {
	Protocol            uint8 // IPPROTO_…
	Source, Destination netip.AddrPort
}

// SecurityDecision is what one group decides of a flow, and by which of its rules.
type SecurityDecision struct {
	Group string
	Rule  SecurityRule
	// Doubt is whether it is unknown that Azure decides by this rule, see [InternetDoubt].
	Doubt Doubt
}

// Allowed reports whether the rule lets the flow begin.
func (d SecurityDecision) Allowed() bool { return d.Rule.Access == AccessAllow }

// String returns "NSG web rule AllowVnetInBound (65000) allows".
func (d SecurityDecision) String() string {
	does := "denies"
	if d.Allowed() {
		does = "allows"
	}
	return fmt.Sprintf("NSG %s rule %s %s", d.Group, SecurityClause{Rule: d.Rule, Doubt: d.Doubt}, does)
}

// Decide gives what each security group says of a new flow of the NIC, in their order, up to the first that denies. A flow that none denies
// passes, and so do its later packets and their answers: rules are asked once. What the host itself serves (DNS, DHCP, the wire server) no
// rule is asked about ("Azure platform considerations", learn.microsoft.com). Where Azure's decision is unknown, it is the lab's, by the
// wide reading of the tag Internet.
func (n *Network) Decide(nic NIC, direction string, f SecurityFlow) []SecurityDecision {
	return n.decide(nic, direction, f, wide)
}

// IsUnknown reports whether it is unknown if Azure lets a new flow of the NIC begin: the readings of the tag Internet differ.
func (n *Network) IsUnknown(nic NIC, direction string, f SecurityFlow) bool {
	allowed := func(r internetReading) bool {
		all := n.decide(nic, direction, f, r)
		return len(all) == 0 || all[len(all)-1].Allowed()
	}
	return allowed(wide) != allowed(narrow)
}

func (n *Network) decide(nic NIC, direction string, f SecurityFlow, by internetReading) []SecurityDecision {
	tags := n.tagSpace(n.scopeOf(nic))
	var all []SecurityDecision
	for _, g := range n.securityGroups(nic, direction) {
		clauses := g.clauses(direction, tags)
		i := slices.IndexFunc(clauses, func(c SecurityClause) bool { return (by == wide || c.Doubt == NoDoubt) && c.holds(f) })
		if c := clauses[i]; !c.Platform { // the last one holds everything
			all = append(all, SecurityDecision{Group: g.Name, Rule: c.Rule, Doubt: c.Doubt})
		}
		if clauses[i].Rule.Access == AccessDeny {
			break
		}
	}
	return all
}

// probePort stands for the source port of a probe, which Azure chooses.
const probePort = 49152

// ProbeDenial returns the decision that keeps a load balancer's probe from a member's machine; false where none does.
func (n *Network) ProbeDenial(t ProbeTarget) (SecurityDecision, bool) {
	lb, ok := n.LoadBalancer(t.LoadBalancer)
	nic, there := n.NIC(t.Member.NIC)
	if !ok || !there {
		return SecurityDecision{}, false
	}
	probe := slices.IndexFunc(lb.Probes, func(p Probe) bool { return p.Name == t.Probe })
	config := slices.IndexFunc(nic.IPConfigs, func(c IPConfig) bool { return c.Name == t.Member.IPConfig })
	if probe < 0 || config < 0 {
		return SecurityDecision{}, false
	}
	decisions := n.Decide(nic, DirectionInbound, SecurityFlow{
		Protocol: 6, Source: netip.AddrPortFrom(ProbeSource, probePort),
		Destination: netip.AddrPortFrom(nic.IPConfigs[config].Address, lb.Probes[probe].Port),
	})
	if len(decisions) == 0 || decisions[len(decisions)-1].Allowed() {
		return SecurityDecision{}, false
	}
	return decisions[len(decisions)-1], true
}

func holdsPort(ranges []PortRange, port uint16, has bool) bool {
	return anyPort(ranges) || has && slices.ContainsFunc(ranges, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}

func anyPort(ranges []PortRange) bool {
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(r PortRange) bool { return r.First == 0 && r.Last == 65535 })
}

// scope is what decides what service tags hold: a virtual network, and the route table of a subnet of it.
type scope struct{ vnet, table string }

func (n *Network) scopeOf(nic NIC) scope {
	s, _ := n.Subnet(nic.VNet, nic.Subnet)
	return scope{nic.VNet, s.RouteTable}
}

// span is a range of addresses, both ends within.
type span struct{ first, last netip.Addr }

func spanOf(p netip.Prefix) span { return span{p.Masked().Addr(), LastOf(p)} }

// String returns a prefix where the range is one.
func (s span) String() string {
	if s.first == s.last {
		return s.first.String()
	}
	for bits := range 32 {
		if p := netip.PrefixFrom(s.first, bits); p.Masked() == p && LastOf(p) == s.last {
			return p.String()
		}
	}
	return s.first.String() + "-" + s.last.String()
}

// merge sorts ranges and joins those that touch.
func merge(spans []span) []span {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last)) })
	var all []span
	for _, s := range spans {
		if k := len(all) - 1; k >= 0 && addressNumber(s.first) <= addressNumber(all[k].last)+1 {
			if s.last.Compare(all[k].last) > 0 {
				all[k].last = s.last
			}
			continue
		}
		all = append(all, s)
	}
	return all
}

// subtract returns the ranges of a that are not in b. Both are merged.
func subtract(a, b []span) []span {
	var all []span
	for _, s := range a {
		at := addressNumber(s.first)
		for _, hole := range b {
			first, last := addressNumber(hole.first), addressNumber(hole.last)
			if last < at || first > addressNumber(s.last) {
				continue
			}
			if at < first {
				all = append(all, span{addressAt(at), addressAt(first - 1)})
			}
			at = last + 1
		}
		if at <= addressNumber(s.last) {
			all = append(all, span{addressAt(at), s.last})
		}
	}
	return all
}

func anyAddress(list []string) bool {
	return len(list) == 0 || slices.Contains(list, Any) || slices.Contains(list, anywhere.String())
}

// ServiceTags returns the tags whose addresses are known.
func ServiceTags() []string {
	return []string{TagVirtualNetwork, TagInternet, TagAzureLoadBalancer, tagPlatformDNS, tagPlatformIMDS}
}

// IsServiceTag reports whether a lab's rule can name the tag.
func IsServiceTag(s string) bool {
	return s == TagVirtualNetwork || s == TagInternet || s == TagAzureLoadBalancer
}

// parseAddressPrefix reads an IPv4 prefix, or an address as one.
func parseAddressPrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
		return host(a), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() {
		return netip.Prefix{}, fmt.Errorf("%q is no IPv4 address or prefix", s)
	}
	return p, nil
}

// securityGroups checks the groups, and that subnets and NICs name some of them.
func (v *validator) securityGroups(n Network) {
	for _, g := range n.SecurityGroups {
		v.unique("security group", g.Name)
		v.check(nftName(g.Name) == g.Name, "security group %s: the name has other characters than letters, digits, -, _ and .", g.Name)
		priorities := map[string]string{}
		for _, r := range g.Rules {
			what := fmt.Sprintf("security rule %s/%s", g.Name, r.Name)
			v.unique("security rule", g.Name+"/"+r.Name)
			v.securityRule(what, r)
			key := fmt.Sprintf("%s %d", r.Direction, r.Priority)
			v.check(priorities[key] == "", "%s: priority %d is %s's", what, r.Priority, priorities[key])
			priorities[key] = r.Name
		}
	}
	for _, net := range n.VNets {
		for _, s := range net.Subnets {
			v.check(s.SecurityGroup == "" || v.names["security group "+s.SecurityGroup], "subnet %s/%s: no security group %s", net.Name, s.Name,
				s.SecurityGroup)
		}
	}
	for _, nic := range n.NICs {
		v.check(nic.SecurityGroup == "" || v.names["security group "+nic.SecurityGroup], "NIC %s: no security group %s", nic.Name,
			nic.SecurityGroup)
	}
}

func (v *validator) securityRule(what string, r SecurityRule) {
	v.check(len(r.Name) <= 80 && nftName(r.Name) == r.Name, "%s: a name has at most 80 letters, digits, -, _ and .", what)
	v.check(r.Priority >= minSecurityPriority && r.Priority <= MaxSecurityPriority, "%s: priority %d is not from %d to %d",
		what, r.Priority, minSecurityPriority, MaxSecurityPriority)
	v.check(r.Direction == DirectionInbound || r.Direction == DirectionOutbound, "%s: unknown direction %q", what, r.Direction)
	v.check(r.Access == AccessAllow || r.Access == AccessDeny, "%s: unknown access %q", what, r.Access)
	known := slices.Contains([]string{ProtocolTCP, ProtocolUDP, ProtocolICMP, Any}, r.Protocol)
	v.check(known, "%s: unknown protocol %q", what, r.Protocol)
	v.check(r.Protocol != ProtocolICMP || anyPort(r.SourcePorts) && anyPort(r.DestinationPorts), "%s: %s has no ports", what, ProtocolICMP)
	for _, a := range slices.Concat(r.Sources, r.Destinations) {
		_, err := parseAddressPrefix(a)
		v.check(a == Any || IsServiceTag(a) || err == nil, "%s: %q is no IPv4 prefix and no service tag of the lab", what, a)
	}
	for _, p := range slices.Concat(r.SourcePorts, r.DestinationPorts) {
		v.check(p.First <= p.Last, "%s: ports %d-%d: the last is less than the first", what, p.First, p.Last)
	}
}
