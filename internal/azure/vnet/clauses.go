package vnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// What a security group does with new flows is written here, once: as clauses. The fabric's rules (nsg_nft.go), the walk's statements
// (armview) and [Network.Decide] are made from them.

// Ends are addresses that a rule names. An address is one of them if it is in one of the prefixes In, where there are any, in none of
// NotIn, and if what is unknown is true.
type Ends struct {
	In, NotIn []netip.Prefix
	Unknown   string // a predicate that resources do not tell, "in service tag Storage"; "" for none
	// Learnt says that the predicate is about what the virtual network gateway has learnt. Of a destination, its route tells.
	Learnt bool
}

// spans returns the ranges of the addresses, without regard to what is unknown.
func (e Ends) spans() []span {
	in := []span{spanOf(anywhere)}
	if len(e.In) > 0 {
		in = merge(spansOf(e.In))
	}
	return subtract(in, merge(spansOf(e.NotIn)))
}

func (e Ends) isEverything() bool { return len(e.In)+len(e.NotIn) == 0 && e.Unknown == "" }

// A SecurityClause is one row of what a group does with new flows of a direction. The rows are asked in order, and the first that holds a
// flow decides: it lets the flow begin, or does not, as its rule says.
type SecurityClause struct {
	Rule                  SecurityRule
	Sources, Destinations []Ends // alternatives
	// Ports are the destination's beside those of the rule; none stands for all.
	Ports []PortRange
	// Unknown are questions that resources do not answer. The clause holds a flow only if the answer to each is yes.
	Unknown []string
	// Doubt says what depends on the reading of the tag Internet: the clause holds flows by the wide reading only.
	Doubt Doubt
	// Platform says that the clause is not a rule's: it lets through what Azure's host serves.
	Platform bool
}

// String returns the clause's name and priority, with its doubt: the comment of rules that are made from it.
func (c SecurityClause) String() string {
	if c.Platform {
		return "what Azure's host serves"
	}
	return c.Doubt.Comment(fmt.Sprintf("%s (%d)", c.Rule.Name, c.Rule.Priority))
}

// NotUnderstood is the Protocol of a rule whose protocol or ports are not understood. Whether it holds a flow is unknown.
const NotUnderstood = "unknown"

// SecurityClauses returns what a group's rules of one direction do. The rules are in the order in which they are asked, Azure's own last.
func SecurityClauses(rules []SecurityRule, direction string, t TagSpace) []SecurityClause {
	var all []SecurityClause
	if direction == DirectionOutbound {
		all = t.platformClauses(rules)
	}
	for i, r := range rules {
		all = append(all, t.clause(r, narrow))
		if d := t.DoubtOf(rules, i); d != NoDoubt {
			doubted := t.clause(r, wide)
			doubted.Doubt = d
			all = append(all, doubted)
		}
	}
	return all
}

func (t TagSpace) clause(r SecurityRule, by internetReading) SecurityClause {
	c := SecurityClause{Rule: r, Sources: t.ends(r.Sources, by), Destinations: t.ends(r.Destinations, by)}
	if r.Protocol == NotUnderstood {
		c.Unknown = []string{fmt.Sprintf("rule %s holds: its protocol or ports are not understood", r.Name)}
	}
	return c
}

// Platform lists the addresses at which Azure's host answers by itself ("What is IP address 168.63.129.16?" and "Azure Instance Metadata
// Service", learn.microsoft.com).
var Platform = []netip.Prefix{host(ProbeSource), host(MetadataService)}

// platformClauses returns what rules do about what Azure's host serves. Only those are asked that name its service tags ("Azure network
// security groups overview", Azure platform considerations, learn.microsoft.com). Whether others before them count then is not documented.
func (t TagSpace) platformClauses(rules []SecurityRule) []SecurityClause {
	var all []SecurityClause
	var before []SecurityRule
	for _, r := range rules {
		var doubt []string
		if slices.ContainsFunc(before, func(b SecurityRule) bool { return b.Access != r.Access }) {
			doubt = []string{"no rule before it is asked about Azure's host"}
		}
		for _, tag := range r.Destinations {
			if tag != tagPlatformDNS && tag != tagPlatformIMDS {
				continue
			}
			c := t.clause(r, narrow)
			c.Destinations, c.Unknown = t.ends([]string{tag}, narrow), slices.Concat(doubt, c.Unknown)
			if tag == tagPlatformIMDS {
				all = append(all, c)
				continue
			}
			others := c
			c.Ports, others.Ports = []PortRange{{53, 53}}, []PortRange{{0, 52}, {54, 65535}}
			others.Unknown = slices.Concat([]string{"service tag AzurePlatformDNS holds all that Azure's host serves, not DNS alone"}, c.Unknown[len(doubt):])
			all = append(all, c, others)
		}
		if len(r.Destinations) == 0 || slices.ContainsFunc(r.Destinations, mayHoldPlatform) {
			before = append(before, r)
		}
	}
	return append(all, SecurityClause{Rule: SecurityRule{Access: AccessAllow, Protocol: Any}, Destinations: []Ends{{In: Platform}}, Platform: true,
		Sources: []Ends{{}}})
}

// mayHoldPlatform reports whether a destination that does not name Azure's host may hold it.
func mayHoldPlatform(destination string) bool {
	if destination == tagPlatformDNS || destination == tagPlatformIMDS {
		return false
	}
	p, err := parseAddressPrefix(destination)
	return err != nil || slices.ContainsFunc(Platform, p.Overlaps)
}

// holds reports whether the clause surely holds a flow.
func (c SecurityClause) holds(f SecurityFlow) bool {
	r := c.Rule
	if number, known := Protocols[r.Protocol]; known && number != f.Protocol || len(c.Unknown) > 0 {
		return false
	}
	hasPorts := f.Protocol == 6 || f.Protocol == 17
	return holdAddress(c.Sources, f.Source.Addr()) && holdAddress(c.Destinations, f.Destination.Addr()) &&
		holdsPort(r.SourcePorts, f.Source.Port(), hasPorts) && holdsPort(r.DestinationPorts, f.Destination.Port(), hasPorts) &&
		holdsPort(c.Ports, f.Destination.Port(), hasPorts)
}

func holdAddress(ends []Ends, a netip.Addr) bool {
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(ends, func(e Ends) bool {
		return e.Unknown == "" && (len(e.In) == 0 || slices.ContainsFunc(e.In, within)) && !slices.ContainsFunc(e.NotIn, within)
	})
}

// ends returns what a rule's list of addresses, service tags and application security groups stands for. An empty list is every address;
// nothing stands for IPv6 addresses.
func (t TagSpace) ends(list []string, by internetReading) []Ends {
	if anyAddress(list) {
		return []Ends{{}}
	}
	var prefixes []netip.Prefix
	var others []Ends
	for _, s := range list {
		switch {
		case s == TagVirtualNetwork:
			known := t.VirtualNetwork()
			prefixes, others = append(prefixes, known...), append(others, t.unknownNetworks(known)...)
		case s == TagInternet:
			not, doubtful := t.NotInternet()
			if by == narrow {
				not = append(not, doubtful...)
			}
			others = append(others, Ends{NotIn: not})
		case s == TagAzureLoadBalancer || s == tagPlatformDNS:
			prefixes = append(prefixes, host(ProbeSource))
		case s == tagPlatformIMDS:
			prefixes = append(prefixes, host(MetadataService))
		case isGroup(s):
			members, more := t.Members(s)
			prefixes, others = append(prefixes, members...), append(others, more)
		case strings.Contains(s, ":"): // of IPv6 nothing is known
		default:
			if p, err := parseAddressPrefix(s); err == nil {
				prefixes = append(prefixes, p.Masked())
			} else {
				others = append(others, Ends{NotIn: slices.Concat(Private, NotPublic), Unknown: inTag(s)})
			}
		}
	}
	if len(prefixes) > 0 {
		others = slices.Insert(others, 0, Ends{In: prefixes})
	}
	return others
}

// unknownNetworks returns what the tag VirtualNetwork may hold beside what is known of it.
func (t TagSpace) unknownNetworks(known []netip.Prefix) []Ends {
	var all []Ends
	if t.Gateway {
		all = append(all, Ends{NotIn: known, Unknown: "in what the virtual network gateway has learnt", Learnt: true})
	}
	if t.Unread != "" {
		all = append(all, Ends{NotIn: known, Unknown: "in " + t.Unread})
	}
	for _, tag := range t.RoutedTags {
		all = append(all, Ends{NotIn: slices.Concat(known, Private, NotPublic), Unknown: inTag(tag)})
	}
	return all
}

func inTag(tag string) string { return "in service tag " + tag }

// isGroup reports whether a word of a rule is the id of an application security group.
func isGroup(s string) bool { return strings.HasPrefix(s, "/") }
