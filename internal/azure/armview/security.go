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
			lb := f.LoadBalancers[pool[:max(0, strings.Index(pool, "/backendaddresspools/"))]]
			basic = basic && lb != nil && strings.EqualFold(lb.SKU.Name, "Basic")
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
	if direction == vnet.DirectionOutbound {
		f.platformRules(c, g, subnet)
	}
	rules := g.sorted(direction)
	space, _ := f.tagSpace(subnet)
	comparable := comparableRules(rules)
	for i, r := range rules {
		f.securityRule(c, r, subnet)
		switch d := space.DoubtOf(comparable, i); d {
		case vnet.DoubtRule:
			f.writeRule(c, r, subnet, d)
		case vnet.DoubtAccess:
			f.writeRule(c, r, subnet, d, internetDoubt)
		}
	}
	return c
}

// internetDoubt is the question that all rules ask whose tag Internet may hold an address, so that one answer holds for all.
var internetDoubt = maybe("%s", vnet.InternetDoubt)

// comparableRules returns the rules as vnet compares them. What is not understood gets a form that vnet takes for unknown.
func comparableRules(rules []SecurityRule) []vnet.SecurityRule {
	var all []vnet.SecurityRule
	for _, r := range rules {
		c := vnet.SecurityRule{
			Name: r.Name, Priority: r.Priority, Direction: r.Direction, Access: canonical(r.Access, vnet.AccessAllow, vnet.AccessDeny),
			Protocol:     canonical(cmp.Or(r.Protocol, vnet.Any), vnet.Any, vnet.ProtocolTCP, vnet.ProtocolUDP, vnet.ProtocolICMP),
			Sources:      comparableEnds(join(r.SourceAddressPrefix, r.SourceAddressPrefixes), r.SourceGroups),
			Destinations: comparableEnds(join(r.DestinationAddressPrefix, r.DestinationAddressPrefixes), r.DestinationGroups),
		}
		var known, sourcesKnown bool
		c.SourcePorts, sourcesKnown = portRanges(join(r.SourcePortRange, r.SourcePortRanges))
		c.DestinationPorts, known = portRanges(join(r.DestinationPortRange, r.DestinationPortRanges))
		if !known || !sourcesKnown {
			c.Protocol, c.SourcePorts, c.DestinationPorts = "unknown", nil, nil
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

func comparableEnds(list []string, groups []ref) []string {
	var all []string
	for _, s := range list {
		if !strings.Contains(s, ":") { // of IPv6 nothing is walked
			all = append(all, canonical(s, vnet.TagVirtualNetwork, vnet.TagInternet, vnet.TagAzureLoadBalancer, vnet.Any))
		}
	}
	for _, g := range groups {
		all = append(all, g.id())
	}
	if len(all) == 0 && len(list) > 0 {
		return []string{"IPv6"}
	}
	return all
}

// The service tags of what Azure's host serves.
const (
	tagPlatformDNS  = "AzurePlatformDNS"
	tagPlatformIMDS = "AzurePlatformIMDS"
)

// platformRules: about what Azure's host serves only the rules are asked that name its service tags ("Azure network security groups
// overview", Azure platform considerations, learn.microsoft.com). Whether others before them count then is not documented.
func (f *fabric) platformRules(c *netfilter.Chain, g *SecurityGroup, subnet string) {
	var before []SecurityRule
	for _, r := range g.sorted(vnet.DirectionOutbound) {
		var doubt []netfilter.Statement
		if slices.ContainsFunc(before, func(b SecurityRule) bool { return !strings.EqualFold(b.Access, r.Access) }) {
			doubt = append(doubt, maybe("no rule before it is asked about Azure's host"))
		}
		list := join(r.DestinationAddressPrefix, r.DestinationAddressPrefixes)
		for _, tag := range list {
			r.DestinationAddressPrefix, r.DestinationAddressPrefixes = tag, nil
			switch {
			case strings.EqualFold(tag, tagPlatformDNS):
				f.securityRule(c, r, subnet, append(doubt, ports(false, netfilter.PortRange{Low: 53, High: 53}))...)
				f.securityRule(c, r, subnet, ports(false, netfilter.PortRange{High: 52}, netfilter.PortRange{Low: 54, High: 65535}),
					maybe("service tag %s holds all that Azure's host serves, not DNS alone", tagPlatformDNS))
			case strings.EqualFold(tag, tagPlatformIMDS):
				f.securityRule(c, r, subnet, doubt...)
			}
		}
		if slices.ContainsFunc(list, mayHoldPlatform) {
			before = append(before, r)
		}
	}
	add(c, "what Azure's host serves", addresses(false, false, platform...), decide(netfilter.Return))
}

// mayHoldPlatform reports whether a destination that does not name Azure's host may hold it.
func mayHoldPlatform(destination string) bool {
	if strings.EqualFold(destination, tagPlatformDNS) || strings.EqualFold(destination, tagPlatformIMDS) {
		return false
	}
	p, ok := parse(destination)
	return !ok || slices.ContainsFunc(platform, p.Overlaps)
}

// sorted returns the rules of a direction in the order in which they are asked, the group's defaults last.
func (g *SecurityGroup) sorted(direction string) []SecurityRule {
	defaults := g.Defaults
	if len(defaults) == 0 {
		for _, r := range vnet.DefaultSecurityRules() {
			d := SecurityRule{Resource: Resource{Name: r.Name}, Priority: r.Priority, Direction: r.Direction, Access: r.Access, Protocol: r.Protocol,
				SourceAddressPrefixes: r.Sources, DestinationAddressPrefixes: r.Destinations}
			defaults = append(defaults, d)
		}
	}
	all := slices.DeleteFunc(slices.Concat(g.Rules, defaults), func(r SecurityRule) bool { return !strings.EqualFold(r.Direction, direction) })
	slices.SortStableFunc(all, func(a, b SecurityRule) int { return a.Priority - b.Priority })
	return all
}

// maxTags bounds how often one rule is written.
const maxTags = 1000

// securityRule writes a rule, as often as its lists have to be told apart: what they hold for certain, and what only may be. What the tag
// Internet only may hold is not among it.
func (f *fabric) securityRule(c *netfilter.Chain, r SecurityRule, subnet string, tests ...netfilter.Statement) {
	f.writeRule(c, r, subnet, vnet.NoDoubt, tests...)
}

func (f *fabric) writeRule(c *netfilter.Chain, r SecurityRule, subnet string, doubt vnet.Doubt, tests ...netfilter.Statement) {
	why := doubt.Comment(fmt.Sprintf("%s (%d)", title(r.Resource), r.Priority))
	verdict := decide(netfilter.Return)
	switch {
	case strings.EqualFold(r.Access, vnet.AccessDeny):
		verdict = decide(netfilter.Drop)
	case !strings.EqualFold(r.Access, vnet.AccessAllow):
		verdict = unknown("a rule with access %q", plain(r.Access))
	}
	rest, ok := r.otherTests()
	rest = append(rest, tests...)
	if !ok {
		rest = append(rest, maybe("rule %s holds: its protocol or ports are not understood", title(r.Resource)))
	}
	sources := f.holds(true, join(r.SourceAddressPrefix, r.SourceAddressPrefixes), r.SourceGroups, subnet, doubt)
	destinations := f.holds(false, join(r.DestinationAddressPrefix, r.DestinationAddressPrefixes), r.DestinationGroups, subnet, doubt)
	if len(sources)*len(destinations) > maxTags {
		add(c, why, maybe("rule %s holds: it has too many service tags", title(r.Resource)), verdict)
		return
	}
	for _, s := range sources {
		for _, d := range destinations {
			add(c, why, with(slices.Concat(s, d, rest), verdict)...)
		}
	}
}

func join(one string, more []string) []string {
	if one == "" {
		return more
	}
	return append([]string{one}, more...)
}

// holds returns the tests for a list of addresses, tags and application security groups, any of which may hold. With a doubt, the tag
// Internet holds what it may hold, too.
func (f *fabric) holds(source bool, list []string, groups []ref, subnet string, doubt vnet.Doubt) [][]netfilter.Statement {
	var all [][]netfilter.Statement
	var prefixes []netip.Prefix
	if len(list)+len(groups) == 0 {
		return [][]netfilter.Statement{nil}
	}
	for _, s := range list {
		p, ok := parse(s)
		switch {
		case s == vnet.Any, ok && p.Bits() == 0, strings.EqualFold(s, "any"):
			return [][]netfilter.Statement{nil}
		case ok:
			prefixes = append(prefixes, p)
		case strings.EqualFold(s, vnet.TagVirtualNetwork):
			space, unread := f.tagSpace(subnet)
			networks := space.VirtualNetwork()
			prefixes = append(prefixes, networks...)
			if f.hasGateway(subnet) {
				all = append(all, f.learnt(source, networks))
			}
			if unread != "" {
				all = append(all, []netfilter.Statement{addresses(source, true, networks...), maybe("%s in %s", end(source), unread)})
			}
			for _, tag := range f.routedTags(subnet) {
				all = append(all, []netfilter.Statement{addresses(source, true, slices.Concat(networks, private, notPublic)...), f.inTag(source, tag)})
			}
		case strings.EqualFold(s, vnet.TagAzureLoadBalancer), strings.EqualFold(s, tagPlatformDNS):
			prefixes = append(prefixes, platform[0])
		case strings.EqualFold(s, tagPlatformIMDS):
			prefixes = append(prefixes, platform[1])
		case strings.EqualFold(s, vnet.TagInternet):
			space, _ := f.tagSpace(subnet)
			not, doubtful := space.NotInternet()
			if doubt == vnet.NoDoubt {
				not = append(not, doubtful...)
			}
			all = append(all, []netfilter.Statement{addresses(source, true, not...)})
		case !strings.Contains(s, ":"): // of IPv6 nothing is walked
			all = append(all, []netfilter.Statement{
				addresses(source, true, slices.Concat(private, notPublic)...), f.inTag(source, s),
			})
		}
	}
	prefixes = append(prefixes, f.groupMembers(groups)...)
	for _, g := range groups {
		all = append(all, f.unreadMembers(source, g, subnet))
	}
	if len(prefixes) > 0 {
		all = append([][]netfilter.Statement{{addresses(source, false, prefixes...)}}, all...)
	}
	return all
}

// learnt tests for what the virtual network gateway has learnt, which VirtualNetwork holds, too. A destination is that where the packet
// was sent to the gateway for it.
func (f *fabric) learnt(source bool, known []netip.Prefix) []netfilter.Statement {
	if source {
		return []netfilter.Statement{addresses(true, true, known...), maybe("source in what the virtual network gateway has learnt")}
	}
	m := uint32(f.beyond(gatewayLink))
	return []netfilter.Statement{&netfilter.MatchMark{Value: m, Mask: ^uint32(0)}}
}

func end(source bool) string {
	if source {
		return "source"
	}
	return "destination"
}

// groupMembers returns the addresses of application security groups, as far as interfaces were read.
func (f *fabric) groupMembers(groups []ref) []netip.Prefix {
	var all []netip.Prefix
	for _, n := range f.nics {
		for _, c := range n.configs {
			for _, g := range c.ApplicationGroups {
				if slices.ContainsFunc(groups, func(r ref) bool { return r.id() == g.id() }) {
					all = append(all, netip.PrefixFrom(c.address, 32))
				}
			}
		}
	}
	return all
}

// unreadMembers tests for members of an application security group that were not read: none of the known addresses, and within
// the virtual network or its peers, where these are known.
func (f *fabric) unreadMembers(source bool, group ref, subnet string) []netfilter.Statement {
	var known []netip.Prefix
	for _, n := range f.nics {
		for _, c := range n.configs {
			known = append(known, netip.PrefixFrom(c.address, 32))
		}
	}
	tests := []netfilter.Statement{addresses(source, true, known...)}
	if v := f.VNets[vnetOf(subnet)]; v != nil && v.ID != "" {
		space, sure := parseAll(v.AddressSpace.AddressPrefixes...), true
		for i := range v.Peerings {
			far := f.remote(&v.Peerings[i])
			space, sure = append(space, far...), sure && len(far) > 0
		}
		if sure {
			tests = append(tests, addresses(source, false, space...))
		}
	}
	return append(tests, maybe("%s is a member of application security group %s", end(source), plain(last(group.ID))))
}

// otherTests returns a rule's protocol and ports; false where they are not understood.
func (r SecurityRule) otherTests() ([]netfilter.Statement, bool) {
	var all []netfilter.Statement
	numbers := map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP, "icmp": packet.ICMP, "esp": 50, "ah": 51}
	name := strings.ToLower(r.Protocol)
	if name != vnet.Any && name != "" {
		n, ok := numbers[name]
		if !ok {
			return nil, false
		}
		all = append(all, protocol(n))
	}
	for _, side := range []struct {
		source bool
		list   []string
	}{{true, join(r.SourcePortRange, r.SourcePortRanges)}, {false, join(r.DestinationPortRange, r.DestinationPortRanges)}} {
		ranges, ok := portRanges(side.list)
		if !ok {
			return nil, false
		}
		var matched []netfilter.PortRange
		for _, p := range ranges {
			matched = append(matched, netfilter.PortRange{Low: p.First, High: p.Last})
		}
		if len(matched) > 0 {
			all = append(all, ports(side.source, matched...))
		}
	}
	return all, true
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
