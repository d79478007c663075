package vnet

import (
	"net/netip"
	"slices"
)

// EffectiveGroup is a security group that a NIC's flows meet.
type EffectiveGroup struct {
	Name            string
	OfNIC, OfSubnet bool
	Rules           []EffectiveRule // inbound, then outbound, in the order in which they are asked
}

// EffectiveRule is a rule with what the service tags that it names stand for in the NIC's subnet; nil for a list without tags.
type EffectiveRule struct {
	SecurityRule
	ExpandedSources, ExpandedDestinations []netip.Prefix
}

// EffectiveSecurityGroups returns the groups of a NIC and of its subnet, that of the NIC first.
func (n *Network) EffectiveSecurityGroups(nic NIC) []EffectiveGroup {
	subnet, _ := n.Subnet(nic.VNet, nic.Subnet)
	tags := n.tagSpace(n.scopeOf(nic))
	var all []EffectiveGroup
	for _, g := range n.securityGroups(nic, DirectionOutbound) {
		e := EffectiveGroup{Name: g.Name, OfNIC: g.Name == nic.SecurityGroup, OfSubnet: g.Name == subnet.SecurityGroup}
		if slices.ContainsFunc(all, func(o EffectiveGroup) bool { return o.Name == e.Name }) {
			continue // the subnet has the NIC's
		}
		for _, direction := range []string{DirectionInbound, DirectionOutbound} {
			for _, c := range g.clauses(direction, tags) {
				if c.Platform {
					continue
				}
				rule := EffectiveRule{c.Rule, expanded(c.Rule.Sources, c.Sources), expanded(c.Rule.Destinations, c.Destinations)}
				if c.Doubt != NoDoubt { // the rule once more, with all that its tags may hold
					e.Rules = e.Rules[:len(e.Rules)-1]
				}
				e.Rules = append(e.Rules, rule)
			}
		}
		all = append(all, e)
	}
	return all
}

func expanded(list []string, ends []Ends) []netip.Prefix {
	if !slices.ContainsFunc(list, IsServiceTag) {
		return nil
	}
	all := []netip.Prefix{}
	for _, s := range spansOfEnds(ends) {
		all = append(all, s.prefixes()...)
	}
	return all
}

// prefixes returns the fewest prefixes that hold the range.
func (s span) prefixes() []netip.Prefix {
	var all []netip.Prefix
	for at, end := addressNumber(s.first), addressNumber(s.last); at <= end; {
		bits := 32
		for bits > 0 && at%(1<<(33-bits)) == 0 && at+1<<(33-bits)-1 <= end {
			bits--
		}
		all = append(all, netip.PrefixFrom(addressAt(at), bits))
		at += 1 << (32 - bits)
	}
	return all
}
