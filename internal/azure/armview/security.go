package armview

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// securityOut asks the sender's network security groups about new flows: the interface's, then the subnet's.
func (f *fabric) securityOut(c *netfilter.Chain) {
	for _, n := range f.nics {
		for _, a := range f.areas(n) {
			tests := []netfilter.Statement{states(packet.New), in(n.link), addresses(true, false, a.ranges...)}
			f.ask(c, n.SecurityGroup.id(), a.subnet, vnet.DirectionOutbound, tests)
			f.askSubnet(c, a.subnet, vnet.DirectionOutbound, tests)
		}
		pods := f.clusterOf(n).podRanges()
		if len(pods) > 0 {
			f.addHomeQuestions(c, n, addresses(true, false, pods...))
		}
		for _, a := range f.areas(n) {
			pods = append(pods, a.ranges...)
		}
		others := addresses(true, true, pods...)
		f.askDoubt(c, n, true, states(packet.New), others)
		if n.EnableIPForwarding {
			f.addHomeQuestions(c, n, others)
		}
	}
}

// addHomeQuestions adds the tests for senders of the interface's own subnet and group: pods, and hosts that it forwards for.
func (f *fabric) addHomeQuestions(c *netfilter.Chain, n *nic, sender netfilter.Statement) {
	home, tests := n.configs[0].Subnet.id(), []netfilter.Statement{states(packet.New), in(n.link), sender}
	f.ask(c, n.SecurityGroup.id(), home, vnet.DirectionOutbound, tests)
	f.askSubnet(c, home, vnet.DirectionOutbound, tests)
}

// securityIn asks the receiver's: the subnet's, then the interface's.
func (f *fabric) securityIn(c *netfilter.Chain) {
	add(c, "the flow has begun", states(packet.Established|packet.Related|packet.Untracked|packet.Invalid), decide(netfilter.Accept))
	for _, n := range f.nics {
		areas := f.areas(n)
		for i, a := range areas {
			tests := []netfilter.Statement{out(n.link)}
			if i > 0 { // what has another destination, as with floating IP, is for the primary address
				tests = append(tests, addresses(false, false, a.ranges...))
			} else if others := otherRanges(areas); len(others) > 0 {
				tests = append(tests, addresses(false, true, others...))
			}
			f.askSubnet(c, a.subnet, vnet.DirectionInbound, tests)
			f.ask(c, n.SecurityGroup.id(), a.subnet, vnet.DirectionInbound, tests)
			if s := f.subnets[a.subnet]; s != nil && s.SecurityGroup.id() == "" && n.SecurityGroup.id() == "" {
				f.closed(c, n, tests)
			}
		}
	}
}

func otherRanges(areas []area) []netip.Prefix {
	var all []netip.Prefix
	for _, a := range areas[1:] {
		all = append(all, a.ranges...)
	}
	return all
}

// askSubnet asks a subnet's group. A subnet that was not read is not one without a group.
func (f *fabric) askSubnet(c *netfilter.Chain, subnet, direction string, tests []netfilter.Statement) {
	s := f.subnets[subnet]
	if s == nil {
		add(c, "a subnet that was not read", with(tests,
			unknown("a network security group may be there: %s", f.UnreadResource(subnet)))...)
		return
	}
	f.ask(c, s.SecurityGroup.id(), subnet, direction, tests)
}

// closed: Standard public addresses let nothing in where no security group does ("Public IP addresses", SKU, learn.microsoft.com).
func (f *fabric) closed(c *netfilter.Chain, n *nic, tests []netfilter.Statement) {
	basic := true
	for _, x := range n.configs {
		for _, pool := range x.pools {
			lb := f.balancers[balancerOf(pool)]
			basic = basic && lb != nil && lb.SKU == vnet.SKUBasic
		}
		if p := f.PublicIPs[f.ownID(x)]; p != nil {
			basic = basic && strings.EqualFold(p.SKU.Name, "Basic")
		}
	}
	if !basic {
		add(c, "a Standard public address is closed without a network security group", with(tests, in(uplink), decide(netfilter.Drop))...)
	}
}

// ask jumps to a group's chain; there is none for "".
func (f *fabric) ask(c *netfilter.Chain, group, subnet, direction string, tests []netfilter.Statement) {
	if group == "" {
		return
	}
	chain := f.group(group, subnet, direction)
	add(c, "network security group "+plain(last(group)), with(tests, to(chain, true))...)
}

// group returns the chain of a security group for a subnet, on which depends what its tags hold.
func (f *fabric) group(id, subnet, direction string) *netfilter.Chain {
	scope := f.shortName(vnetOf(subnet))
	if s := f.subnets[subnet]; s != nil && s.RouteTable != nil {
		scope += "-" + f.shortName(s.RouteTable.id())
	}
	c, fresh := f.chain(fmt.Sprintf("nsg/%s/%s/%s", f.shortName(id), strings.ToLower(strings.TrimSuffix(direction, "bound")), scope))
	if !fresh {
		return c
	}
	g := f.SecurityGroups[id]
	if g == nil {
		add(c, "a network security group that was not read", unknown("%s", f.UnreadResource(id)))
		return c
	}
	for _, clause := range vnet.SecurityClauses(g.sorted(direction), direction, f.tagSpace(subnet)) {
		f.writeClause(c, clause)
	}
	return c
}

// internetDoubt is the question that all rules ask whose tag Internet may hold an address, so that one answer holds for all.
var internetDoubt = maybe("%s", vnet.InternetDoubt)

// sorted returns the rules of a direction as vnet reads them, in the order in which they are asked. Where the group's defaults were not
// read, they are those that every group has.
func (g *SecurityGroup) sorted(direction string) []vnet.SecurityRule {
	defaults := vnet.DefaultSecurityRules()
	if len(g.Defaults) > 0 {
		defaults = readRules(g.Defaults)
	}
	return vnet.SortedSecurityRules(readRules(g.Rules), defaults, direction)
}

// readRules returns the rules as vnet has them, whatever the case of their words.
func readRules(rules []SecurityRule) []vnet.SecurityRule {
	var all []vnet.SecurityRule
	for _, r := range rules {
		c := vnet.SecurityRule{
			Name: title(r.Resource), Priority: r.Priority, Direction: canonical(r.Direction, vnet.DirectionInbound, vnet.DirectionOutbound),
			Access: canonical(r.Access, vnet.AccessAllow, vnet.AccessDeny),
			Protocol: canonical(cmp.Or(r.Protocol, vnet.Any), vnet.Any, vnet.ProtocolTCP, vnet.ProtocolUDP, vnet.ProtocolICMP, vnet.ProtocolESP,
				vnet.ProtocolAH),
			Sources:      readEnds(join(r.SourceAddressPrefix, r.SourceAddressPrefixes), r.SourceGroups),
			Destinations: readEnds(join(r.DestinationAddressPrefix, r.DestinationAddressPrefixes), r.DestinationGroups),
		}
		var known, sourcesKnown bool
		c.SourcePorts, sourcesKnown = portRanges(join(r.SourcePortRange, r.SourcePortRanges))
		c.DestinationPorts, known = portRanges(join(r.DestinationPortRange, r.DestinationPortRanges))
		if _, understood := protocolNumber(c.Protocol); !understood || !known || !sourcesKnown {
			c.Protocol, c.SourcePorts, c.DestinationPorts = vnet.NotUnderstood, nil, nil
		}
		all = append(all, c)
	}
	return all
}

// canonical returns the word as it is written among some, whatever its case; another one as it is.
func canonical(word string, words ...string) string {
	for _, w := range words {
		if strings.EqualFold(w, word) {
			return w
		}
	}
	return word
}

// readEnds returns the words of a rule's list, with the ids of its application security groups.
func readEnds(list []string, groups []ref) []string {
	var all []string
	for _, s := range list {
		p, isPrefix := parse(s)
		word := canonical(s, append(vnet.ServiceTags(), vnet.Any, "any")...)
		switch {
		case word == "any", isPrefix && p.Bits() == 0:
			word = vnet.Any
		case isPrefix:
			word = p.String()
		case word != vnet.Any && !strings.Contains(word, ":"):
			word = plain(word)
		}
		all = append(all, word)
	}
	for _, g := range groups {
		all = append(all, g.id())
	}
	return all
}

// maxTags bounds how often one rule is written.
const maxTags = 1000

// writeClause writes a clause, as often as its lists have to be told apart: what they hold for certain, and what only may be.
func (f *fabric) writeClause(c *netfilter.Chain, clause vnet.SecurityClause) {
	rule, why := clause.Rule, clause.String()
	verdict := decide(netfilter.Return)
	switch rule.Access {
	case vnet.AccessAllow:
	case vnet.AccessDeny:
		verdict = decide(netfilter.Drop)
	default:
		verdict = unknown("a rule with access %q", plain(rule.Access))
	}
	var rest []netfilter.Statement
	if number, known := protocolNumber(rule.Protocol); known && number != 0 {
		rest = append(rest, protocol(number))
	}
	rest = append(rest, portTests(true, rule.SourcePorts)...)
	rest = append(rest, portTests(false, rule.DestinationPorts)...)
	rest = append(rest, portTests(false, clause.Ports)...)
	for _, q := range clause.Unknown {
		rest = append(rest, f.question(q))
	}
	if clause.Doubt == vnet.DoubtAccess {
		rest = append(rest, internetDoubt)
	}
	if len(clause.Sources)*len(clause.Destinations) > maxTags {
		add(c, why, maybe("rule %s holds: it has too many service tags", rule.Name), verdict)
		return
	}
	for _, s := range clause.Sources {
		for _, d := range clause.Destinations {
			add(c, why, with(slices.Concat(f.tests(true, s), f.tests(false, d), rest), verdict)...)
		}
	}
}

func join(one string, more []string) []string {
	if one == "" {
		return more
	}
	return append([]string{one}, more...)
}

// tests returns the statements that test for addresses. A destination that the virtual network gateway has learnt is one whose packet was
// sent there.
func (f *fabric) tests(source bool, e vnet.Ends) []netfilter.Statement {
	if e.Learnt && !source {
		return []netfilter.Statement{&netfilter.MatchMark{Value: uint32(f.beyond(gatewayLink)), Mask: ^uint32(0)}}
	}
	var all []netfilter.Statement
	if len(e.NotIn) > 0 {
		all = append(all, addresses(source, true, e.NotIn...))
	}
	if len(e.In) > 0 {
		all = append(all, addresses(source, false, e.In...))
	}
	switch {
	case e.Unknown != "" && source:
		all = append(all, f.question("source "+e.Unknown))
	case e.Unknown != "":
		all = append(all, f.question("destination "+e.Unknown))
	}
	return all
}

// question returns the test of what is unknown: one statement for each text, so that one answer holds for all rules.
func (f *fabric) question(text string) netfilter.Statement {
	key := strings.ToLower(text)
	if f.questions[key] == nil {
		f.questions[key] = maybe("%s", text)
	}
	return f.questions[key]
}

// groupMembers returns the addresses of an application security group, as far as interfaces were read, and which others there may be: within
// the subnet's virtual network or its peers, where these are known.
func (f *fabric) groupMembers(group, subnet string) (members []netip.Prefix, more vnet.Ends) {
	for _, n := range f.nics {
		for _, c := range n.configs {
			address := netip.PrefixFrom(c.address, 32)
			more.NotIn = append(more.NotIn, address)
			if slices.ContainsFunc(c.ApplicationGroups, func(g ref) bool { return g.id() == group }) {
				members = append(members, address)
			}
		}
	}
	if v := f.VNets[vnetOf(subnet)]; v != nil && v.ID != "" {
		space, sure := parseAll(v.AddressSpace.AddressPrefixes...), true
		for i := range v.Peerings {
			far := f.remote(&v.Peerings[i])
			space, sure = append(space, far...), sure && len(far) > 0
		}
		if sure {
			more.In = space
		}
	}
	more.Unknown = "is a member of application security group " + plain(last(group))
	return members, more
}

// protocolNumber returns 0 for every protocol, and false for a word that is not understood.
func protocolNumber(word string) (packet.Protocol, bool) {
	n, ok := vnet.Protocols[word]
	return packet.Protocol(n), ok || word == vnet.Any
}

func portTests(source bool, ranges []vnet.PortRange) []netfilter.Statement {
	if len(ranges) == 0 {
		return nil
	}
	var matched []netfilter.PortRange
	for _, p := range ranges {
		matched = append(matched, netfilter.PortRange{Low: p.First, High: p.Last})
	}
	return []netfilter.Statement{ports(source, matched...)}
}

// portRanges reads a rule's ports; none stands for every port. It returns false where they are not understood.
func portRanges(list []string) (ranges []vnet.PortRange, ok bool) {
	anyPort := false
	for _, s := range list {
		if s == vnet.Any {
			anyPort = true
			continue
		}
		p, err := vnet.ParsePortRange(s)
		if err != nil {
			return nil, false
		}
		anyPort = anyPort || p.First == 0 && p.Last == 65535
		ranges = append(ranges, p)
	}
	if anyPort {
		return nil, true
	}
	return ranges, true
}
