package vnet

import (
	"fmt"
	"slices"
	"strings"
)

// How security groups stand in the fabric's table. A flow's first packet meets its sender's groups in chain lb, before any translation, and
// its receiver's in chain nsg-in, after all of them. A group is a chain for each direction and scope (what its tags hold): the rule that
// decides returns, or drops. Later packets and answers are not asked about: conntrack knows their flow.
//
// What stays inside virtual networks is not tracked where every group lets all of it pass anyway. Where one may not, packets get insideMark
// and are tracked, but neither translated nor balanced. Such flows that began untracked, or were idle for too long, go on as what conntrack
// calls invalid: a TCP packet that begins nothing.

// insideMark is the bit of a packet's mark, beside a NIC's ID, of what is tracked inside virtual networks.
const insideMark = 0x10000

// nicMask are the bits of a packet's mark that are a NIC's ID.
const nicMask = 0xffff

// firewall is what the network's security groups are for the table.
type firewall struct {
	n        Network
	filtered map[string]bool    // links of NICs with any group
	guarded  map[string]bool    // links of NICs with a group that may deny what stays inside virtual networks
	inside   bool               // whether anything inside virtual networks is tracked
	scopes   []scope            // of filtered NICs, in the NICs' order
	chains   map[string]bool    // written
	uses     map[string][]scope // of a group, by its name: those of the NICs that it filters
	// toFrontend and answers are rules for what goes to internal front ends, and what comes back from them.
	toFrontend, answers []string
	// fromBackEnd is a rule for answers that have a front end's address, "" where no route leads to an appliance.
	fromBackEnd string
}

func newFirewall(n Network) *firewall {
	f := &firewall{n: n, filtered: map[string]bool{}, guarded: map[string]bool{}, chains: map[string]bool{},
		uses: map[string][]scope{}}
	forwards := false
	for _, nic := range n.NICs {
		forwards = forwards || nic.IPForwarding
		groups := n.securityGroups(nic, DirectionInbound)
		if len(groups) == 0 {
			continue
		}
		f.filtered[nic.Link()] = true
		if s := n.scopeOf(nic); !slices.Contains(f.scopes, s) {
			f.scopes = append(f.scopes, s)
		}
		for _, g := range groups {
			if s := n.scopeOf(nic); !slices.Contains(f.uses[g.Name], s) {
				f.uses[g.Name] = append(f.uses[g.Name], s)
			}
			if g.guards(n.tagSpace(n.scopeOf(nic))) {
				f.guarded[nic.Link()] = true
			}
		}
	}
	f.inside = len(f.guarded) > 0 || len(f.filtered) > 0 && forwards || len(n.plainEnds()) > 0
	f.toFrontend, f.answers = frontendRules(n)
	return f
}

// guards reports whether the group may deny a flow between two addresses that its tag VirtualNetwork holds.
func (g SecurityGroup) guards(t TagSpace) bool {
	inside := t.spans([]string{TagVirtualNetwork}, wide)
	meets := func(list []string) bool {
		spans := t.spans(list, wide)
		return !slices.Equal(subtract(spans, inside), spans)
	}
	return slices.ContainsFunc(g.Rules, func(r SecurityRule) bool {
		return r.Access == AccessDeny && meets(r.Sources) &&
			meets(r.Destinations)
	})
}

func (f *firewall) any() bool { return len(f.filtered) > 0 }

// id names the scope in names of sets and chains.
func (s scope) id() string {
	if s.table == "" {
		return nftName(s.vnet)
	}
	return nftName(s.vnet) + "/" + nftName(s.table)
}

// tagSet returns the set of a tag's ranges.
func (s scope) tagSet(tag string, by internetReading) string {
	if tag == TagInternet && by == wide {
		tag += "-and-routes"
	}
	return "tag/" + tag + "/" + s.id()
}

// scopeTags are the tags whose ranges are sets.
var scopeTags = []struct {
	name string
	by   internetReading
}{{TagVirtualNetwork, narrow}, {TagInternet, narrow}, {TagInternet, wide}}

// securitySets writes the tags, and which NICs are asked about.
func (w *nftWriter) securitySets(f *firewall) {
	for _, s := range f.scopes {
		t := f.n.tagSpace(s)
		for _, tag := range scopeTags {
			spans := t.spans([]string{tag.name}, tag.by)
			if tag.by == wide && slices.Equal(spans, t.spans([]string{tag.name}, narrow)) {
				continue
			}
			var ranges []string
			for _, r := range spans {
				ranges = append(ranges, r.String())
			}
			w.set("set", s.tagSet(tag.name, tag.by), "ipv4_addr", "interval", ranges)
		}
	}
	if !f.inside {
		return
	}
	for _, s := range []struct {
		name string
		of   map[string]bool
	}{{"filtered", f.filtered}, {"guarded", f.guarded}} {
		var links, addresses []string
		flags := ""
		for _, nic := range f.n.NICs {
			if !s.of[nic.Link()] {
				continue
			}
			links = append(links, fmt.Sprintf("%q", nic.Link()))
			for _, c := range nic.IPConfigs {
				addresses = append(addresses, c.Address.String())
			}
			if nic.Overlay.IsValid() {
				addresses, flags = append(addresses, nic.Overlay.String()), "interval"
			}
		}
		w.set("set", s.name, "ifname", "", links)
		w.set("set", s.name+"-to", "ipv4_addr", flags, addresses)
	}
	for _, s := range f.scopes {
		var links []string
		for _, nic := range f.n.NICs {
			if f.n.scopeOf(nic) == s {
				links = append(links, fmt.Sprintf("%q", nic.Link()))
			}
		}
		w.set("set", "scope/"+s.id(), "ifname", "", links)
	}
	mark := fmt.Sprintf("meta mark set meta mark | %#x", insideMark)
	w.chain("inside", "", because("iifname . ip saddr @own "+mark+" accept", "the sender's own address; tracked"),
		fromPods(f.n, mark+" accept", "; tracked"), because("iifname @forwarders "+mark+" accept", "the sender forwards for others; tracked"), notOwn)
	w.chain("untracked", "", append(f.untracked(), notOwn)...)
}

const notOwn = `drop comment "not the NIC's address"`

// Why packets inside virtual networks are tracked.
const (
	askSender   = "tracked, for the network security groups of the sender"
	askReceiver = "tracked, for the network security groups of the receiver"
)

// What a machine may send as its own or forward.
var (
	fromOwn        = because("iifname . ip saddr @own notrack accept", "the sender's own address")
	fromForwarders = because("iifname @forwarders notrack accept", "the sender forwards for others")
)

// untracked returns the rules that let through what a machine may send, and do not track it.
func (f *firewall) untracked() []string {
	return []string{fromOwn, fromPods(f.n, "notrack accept", ""), fromForwarders}
}

// toOwner returns the rules for what goes to an address of a machine in a virtual network, or of a pod in the overlay.
func (f *firewall) toOwner() []string {
	if !f.inside {
		return append(f.untracked(), notOwn)
	}
	var rules []string
	if len(f.guarded) > 0 {
		rules = append(rules, because("iifname @guarded goto inside", askSender), because("ip daddr @guarded-to goto inside", askReceiver))
	}
	return append(rules, fromOwn, fromPods(f.n, "notrack accept", ""), because("iifname @filtered goto inside", askSender),
		because("ip daddr @filtered-to goto inside", askReceiver), fromForwarders, notOwn)
}

// toHop returns the rules for what a user-defined route sends to an appliance. Between NICs of one scope its tags hold both addresses: the
// route's prefix is among them.
func (f *firewall) toHop(nic NIC) []string {
	switch {
	case !f.inside:
		return f.untracked()
	case f.guarded[nic.Link()]:
		return []string{because("goto inside", askReceiver)}
	case !f.filtered[nic.Link()]:
		return append([]string{because("iifname @filtered goto inside", askSender)}, f.untracked()...)
	}
	s := f.n.scopeOf(nic)
	var rules []string
	if len(f.guarded) > 0 {
		rules = append(rules, because("iifname @guarded goto inside", askSender))
	}
	return append(rules, because(fmt.Sprintf("iifname @scope/%s ip saddr @%s goto untracked", s.id(), s.tagSet(TagVirtualNetwork, narrow)),
		"the network security groups on its way let all of this through"), because("goto inside", askReceiver))
}

// acceptInside returns a rule that lets through what is tracked inside virtual networks, "" when nothing is.
func (f *firewall) acceptInside() string {
	if !f.inside {
		return ""
	}
	return fmt.Sprintf(`meta mark & %#x != 0 accept comment "inside virtual networks"`, insideMark)
}

// outboundRules returns the rules for chain lb: what the groups of a new flow's sender say.
func (f *firewall) outboundRules() []string {
	if !f.any() {
		return nil
	}
	rules := []string{
		`ct state != new accept comment "the flow has begun"`,
		because(fmt.Sprintf("ip daddr != { %s, %s } iifname vmap @nsg-out", ProbeSource, MetadataService), "the network security groups of the sender"),
	}
	if f.inside {
		rules = append(rules, f.acceptInside())
	}
	return rules
}

// security writes the groups' chains and where flows are sent to them.
func (w *nftWriter) security(f *firewall) {
	if !f.any() {
		return
	}
	for _, d := range []struct{ direction, name string }{{DirectionOutbound, "nsg-out"}, {DirectionInbound, "nsg-in"}} {
		var elements []string
		both := map[string]string{}
		for _, nic := range f.n.NICs {
			var chains []string
			for _, g := range f.n.securityGroups(nic, d.direction) {
				chains = append(chains, w.group(f, g, d.direction, f.n.scopeOf(nic)))
			}
			switch len(chains) {
			case 0:
				continue
			case 2:
				key := strings.Join(chains, " ")
				if both[key] == "" {
					both[key] = fmt.Sprintf("%s/%d", d.name, len(both)+1)
					w.chain(both[key], "", because("jump "+chains[0], "the first of two groups"), because("jump "+chains[1], "the second of two groups"))
				}
				chains[0] = both[key]
			}
			elements = append(elements, fmt.Sprintf("%q : jump %s", nic.Link(), chains[0]))
		}
		w.set("map", d.name, "ifname : verdict", "", elements)
	}
	w.chain("nsg-in", "type filter hook postrouting priority srcnat + 10; policy accept;",
		`ct state != new accept comment "the flow has begun"`,
		because("oifname vmap @nsg-in", "the network security groups of the receiver"))
}

// group writes the chains of a group for a direction and scope, unless it has, and gives the first one's name.
func (w *nftWriter) group(f *firewall, g SecurityGroup, direction string, s scope) string {
	name := fmt.Sprintf("nsg/%s/%s", g.Name, strings.ToLower(strings.TrimSuffix(direction, "bound")))
	if len(f.uses[g.Name]) > 1 { // its tags hold other ranges in each
		name += "/" + s.id()
	}
	if f.chains[name] {
		return name
	}
	f.chains[name] = true
	parts := groupParts(g.clauses(direction, f.n.tagSpace(s)))
	for i := len(parts) - 1; i >= 0; i-- { // a chain is written before those that lead to it
		next := ""
		if i < len(parts)-1 {
			next = partName(name, i+1, parts)
		}
		w.part(partName(name, i, parts), parts[i], f.tagSets(s), next)
	}
	return name
}

// A groupPart is a row of clauses that are asked one after the other, or, keyed, found by where the flow goes to.
type groupPart struct {
	keyed   bool
	clauses []SecurityClause
}

// minKeyed is how many clauses in a row are worth a map.
const minKeyed = 2

// groupParts cuts clauses into rows. Rules for one port of one address each, as those of Services are, become a map: a row of them costs as
// much as one. Their order among each other means nothing but for those of the same key. The sender's groups are not asked about what
// Azure's host serves (outboundRules), so that clause is not written.
func groupParts(clauses []SecurityClause) []groupPart {
	var parts []groupPart
	for _, c := range clauses {
		if c.Platform {
			continue
		}
		_, keyed := c.Rule.key()
		if k := len(parts) - 1; k >= 0 && parts[k].keyed == keyed {
			parts[k].clauses = append(parts[k].clauses, c)
		} else {
			parts = append(parts, groupPart{keyed, []SecurityClause{c}})
		}
	}
	var joined []groupPart
	for _, p := range parts {
		p.keyed = p.keyed && len(p.clauses) >= minKeyed
		if k := len(joined) - 1; k >= 0 && !joined[k].keyed && !p.keyed {
			joined[k].clauses = append(joined[k].clauses, p.clauses...)
		} else {
			joined = append(joined, p)
		}
	}
	return joined
}

// key returns where a rule's flows go to, if that is one port of one address.
func (r SecurityRule) key() (string, bool) {
	if r.Protocol != ProtocolTCP && r.Protocol != ProtocolUDP || len(r.Destinations) != 1 || len(r.DestinationPorts) != 1 {
		return "", false
	}
	p, err := parseAddressPrefix(r.Destinations[0])
	port := r.DestinationPorts[0]
	if err != nil || !p.IsSingleIP() || port.First != port.Last {
		return "", false
	}
	return fmt.Sprintf("%s . %s . %d", p.Addr(), strings.ToLower(r.Protocol), port.First), true
}

// partName returns the group's own name for its first part, and has the priority of the first rule for the others.
func partName(group string, i int, parts []groupPart) string {
	if i == 0 {
		return group
	}
	return fmt.Sprintf("%s/%d", group, parts[i].clauses[0].Rule.Priority)
}

const nextRules = "no rule so far: the next ones"

// part writes a part's chain; next is the one that follows, "" for the last, which decides everything.
func (w *nftWriter) part(name string, p groupPart, sets tagSets, next string) {
	var rules []string
	if p.keyed {
		rules = append(rules, because("ip daddr . meta l4proto . th dport vmap @"+w.keyedRules(name, p.clauses, sets, next),
			"rules for one port of one address"))
	} else {
		for _, c := range p.clauses {
			rules = append(rules, sets.nft(c, false)...)
		}
	}
	if next != "" {
		rules = append(rules, because("goto "+next, nextRules))
	}
	w.chain(name, "", rules...)
}

// keyedRules writes a chain for each key and the map to them.
func (w *nftWriter) keyedRules(name string, clauses []SecurityClause, sets tagSets, next string) string {
	byKey := map[string][]string{}
	var keys []string
	for _, c := range clauses {
		k, _ := c.Rule.key()
		if byKey[k] == nil {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], sets.nft(c, true)...)
	}
	var elements []string
	for _, k := range keys {
		chain := name + "/" + strings.ReplaceAll(k, " . ", "-")
		w.chain(chain, "", append(byKey[k], because("goto "+next, nextRules))...)
		elements = append(elements, fmt.Sprintf("%s : goto %s", k, chain))
	}
	w.set("map", name, "ipv4_addr . inet_proto . inet_service : verdict", "", elements)
	return name
}

// tagSets are the names of a scope's sets of addresses, by their ranges.
type tagSets map[string]string

func (f *firewall) tagSets(s scope) tagSets {
	sets := tagSets{}
	for _, tag := range scopeTags {
		key := fmt.Sprint(f.n.tagSpace(s).spans([]string{tag.name}, tag.by))
		if sets[key] == "" {
			sets[key] = s.tagSet(tag.name, tag.by)
		}
	}
	return sets
}

// nft returns a clause as a line, or as none where no flow can fit it; found says that protocol and destination are known to fit.
func (sets tagSets) nft(c SecurityClause, found bool) []string {
	r := c.Rule
	source, fits := sets.addresses("ip saddr", c.Sources)
	match := []string{source}
	if !found {
		destination, ok := sets.addresses("ip daddr", c.Destinations)
		fits = fits && ok
		match = append(match, destination, r.nftProtocol())
	}
	if !fits {
		return nil
	}
	match = append(match, nftPorts("th sport", r.SourcePorts))
	if !found {
		match = append(match, nftPorts("th dport", r.DestinationPorts))
	}
	verdict := "return"
	if r.Access == AccessDeny {
		verdict = "drop"
	}
	match = append(match, fmt.Sprintf(`%s comment "%s"`, verdict, c))
	return []string{strings.Join(slices.DeleteFunc(match, func(s string) bool { return s == "" }), " ")}
}

func (r SecurityRule) nftProtocol() string {
	switch {
	case r.Protocol != Any:
		return "meta l4proto " + strings.ToLower(r.Protocol)
	case !anyPort(r.SourcePorts) || !anyPort(r.DestinationPorts):
		return "meta l4proto { tcp, udp }"
	}
	return ""
}

// addresses tests an address; ok is false when none can fit.
func (sets tagSets) addresses(field string, ends []Ends) (test string, ok bool) {
	spans := spansOfEnds(ends)
	switch name := sets[fmt.Sprint(spans)]; {
	case slices.ContainsFunc(ends, Ends.isEverything):
		return "", true
	case name != "" && len(spans) > 0:
		return field + " @" + name, true
	}
	return field + " " + nftRanges(spans), len(spans) > 0
}

func nftPorts(field string, list []PortRange) string {
	if anyPort(list) {
		return ""
	}
	return field + " " + nftRanges(mergePorts(list))
}

// mergePorts sorts ranges and joins those that touch: a set must not hold a port twice.
func mergePorts(list []PortRange) []PortRange {
	var all []PortRange
	for _, r := range sortedBy(list, func(r PortRange) uint16 { return r.First }) {
		if k := len(all) - 1; k >= 0 && int(r.First) <= int(all[k].Last)+1 {
			all[k].Last = max(all[k].Last, r.Last)
			continue
		}
		all = append(all, r)
	}
	return all
}

// nftRanges returns one value or a set of them.
func nftRanges[T fmt.Stringer](list []T) string {
	var words []string
	for _, x := range list {
		words = append(words, x.String())
	}
	if len(words) == 1 {
		return words[0]
	}
	return "{ " + strings.Join(words, ", ") + " }"
}
