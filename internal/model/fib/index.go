package fib

import (
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
)

// index is what makes look-ups fast; made by Index.
type index struct {
	links      map[string]*Link
	addresses  map[netip.Addr]*Address
	onLink     map[string][]*Address
	neighbours map[neighbourKey]*Neighbour
	proxies    map[neighbourKey]*Neighbour
	fdb        map[fdbKey]*FDBEntry
	remotes    map[remoteKey][]*FDBEntry // of links of kind vxlan
	ports      map[string][]*Link
	tables     [2]map[int]*table // by family
	merged     *table            // IPv4's local and main table in one, as the kernel has them while there are no rules of one's own
	// mergeMatters: a route of the main table lies within one of the local table.
	mergeMatters bool
	rules        [2][]*Rule
	customRules  [2]bool
	anyIP        []*Route // of type local, for other addresses than the links have; IPv4
	hasVRF       bool
}

type neighbourKey struct {
	link string
	addr netip.Addr
}

type fdbKey struct {
	bridge string
	mac    packet.MAC
	vlan   int
}

type remoteKey struct {
	link string
	mac  packet.MAC
}

// table is one routing table of one family: its routes by prefix, and the prefix lengths it has, longest first.
type table struct {
	lengths []int
	routes  map[netip.Prefix][]*Route
}

func (t *table) add(r *Route) {
	if _, there := t.routes[r.Destination]; !there && !slices.Contains(t.lengths, r.Destination.Bits()) {
		t.lengths = append(t.lengths, r.Destination.Bits())
	}
	t.routes[r.Destination] = append(t.routes[r.Destination], r)
}

// sort puts the routes of one prefix in the kernel's order. IPv4 (fib_find_alias, net/ipv4/fib_trie.c): TOS from high to low, then
// priority from low to high, then the order in which they were added. IPv6 (fib6_add_rt2node): metric.
func (t *table) sort() {
	slices.SortFunc(t.lengths, func(a, b int) int { return b - a })
	for _, list := range t.routes {
		slices.SortStableFunc(list, func(a, b *Route) int {
			if d := int(b.TOS) - int(a.TOS); d != 0 && a.Destination.Addr().Is4() {
				return d
			}
			return a.Metric - b.Metric
		})
	}
}

func family(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// Index makes look-ups fast. Call it after the last change to the state and before the first look-up; look-ups can then run in parallel.
func (s *State) Index() {
	x := &index{
		links: map[string]*Link{}, addresses: map[netip.Addr]*Address{}, onLink: map[string][]*Address{},
		neighbours: map[neighbourKey]*Neighbour{}, proxies: map[neighbourKey]*Neighbour{}, fdb: map[fdbKey]*FDBEntry{},
		remotes: map[remoteKey][]*FDBEntry{}, ports: map[string][]*Link{}, tables: [2]map[int]*table{{}, {}},
	}
	for i := range s.Links {
		x.addLink(&s.Links[i])
	}
	for i := range s.Addresses {
		a := &s.Addresses[i]
		if _, there := x.addresses[a.Prefix.Addr()]; !there {
			x.addresses[a.Prefix.Addr()] = a
		}
		x.onLink[a.Link] = append(x.onLink[a.Link], a)
	}
	for i := range s.Neighbours {
		n := &s.Neighbours[i]
		into := x.neighbours
		if n.Proxy {
			into = x.proxies
		}
		into[neighbourKey{n.Link, n.Address}] = n
	}
	for i := range s.FDB {
		e := &s.FDB[i]
		if e.Bridge == "" {
			k := remoteKey{e.Port, e.MAC}
			x.remotes[k] = append(x.remotes[k], e)
			continue
		}
		x.fdb[fdbKey{e.Bridge, e.MAC, e.VLAN}] = e
	}
	x.addRoutes(s)
	x.addRules(s.Rules)
	s.index = x
}

func (x *index) addLink(l *Link) {
	x.links[l.Name] = l
	if l.Master != "" && l.Port != nil {
		x.ports[l.Master] = append(x.ports[l.Master], l)
	}
	x.hasVRF = x.hasVRF || l.Kind == "vrf"
}

func (x *index) table(fam, number int) *table {
	t := x.tables[fam][number]
	if t == nil {
		t = &table{routes: map[netip.Prefix][]*Route{}}
		x.tables[fam][number] = t
	}
	return t
}

func (x *index) addRoutes(s *State) {
	for i := range s.Routes {
		r := &s.Routes[i]
		x.table(family(r.Destination.Addr()), r.Table).add(r)
		d := r.Destination.Addr()
		if r.Type == "local" && d.Is4() && !d.IsLoopback() && (r.Destination.Bits() < 32 || x.addresses[d] == nil) {
			x.anyIP = append(x.anyIP, r)
		}
	}
	for fam := range x.tables {
		if x.tables[fam][TableLocal] == nil {
			x.addLocal(fam, s.Addresses)
		}
		for _, t := range x.tables[fam] {
			t.sort()
		}
	}
	x.merged = &table{routes: map[netip.Prefix][]*Route{}}
	for _, number := range []int{TableLocal, TableMain} { // of equal routes, the local table's come first
		if t := x.tables[0][number]; t != nil {
			for _, list := range t.routes {
				for _, r := range list {
					x.merged.add(r)
				}
			}
		}
	}
	x.merged.sort()
	x.mergeMatters = x.tables[0][TableLocal].covers(x.tables[0][TableMain])
}

// covers reports whether a route of t has a shorter prefix that holds one of other's.
func (t *table) covers(other *table) bool {
	if t == nil || other == nil {
		return false
	}
	for p := range other.routes {
		for _, bits := range t.lengths {
			if shorter, err := p.Addr().Prefix(bits); err == nil && bits < p.Bits() && t.routes[shorter] != nil {
				return true
			}
		}
	}
	return false
}

// addLocal makes the local table that the kernel keeps by itself (fib_add_ifaddr, net/ipv4/fib_frontend.c; addrconf.c), for states that
// have addresses but were read without that table, as from a pasted "ip route".
func (x *index) addLocal(fam int, addresses []Address) {
	add := func(kind string, p netip.Prefix, link string, source netip.Addr) {
		r := &Route{Table: TableLocal, Type: kind, Destination: p, Link: link, Scope: "host", Protocol: "kernel"}
		if fam == 0 {
			r.Source = source
		}
		x.table(fam, TableLocal).add(r)
	}
	for i := range addresses {
		a := &addresses[i]
		addr := a.Prefix.Addr()
		if family(addr) != fam {
			continue
		}
		add("local", netip.PrefixFrom(addr, addr.BitLen()), a.Link, addr)
		if addr.Is4() && addr.IsLoopback() {
			add("local", a.Prefix.Masked(), a.Link, addr)
		}
		if a.Broadcast.IsValid() {
			add("broadcast", netip.PrefixFrom(a.Broadcast, 32), a.Link, addr)
		}
		if addr.Is4() && a.Prefix.Bits() < 31 {
			add("broadcast", netip.PrefixFrom(last(a.Prefix), 32), a.Link, addr)
		}
		if addr.Is6() {
			add("multicast", netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xff}), 8), a.Link, addr)
		}
	}
}

// last returns a prefix's highest address, of IPv4.
func last(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}

// usualRules are those that every namespace has from its start (fib_default_rules_init, net/ipv4/fib_rules.c; net/ipv6/fib6_rules.c).
var usualRules = [2][]Rule{
	{usualRule(0, TableLocal, false), usualRule(32766, TableMain, false), usualRule(32767, TableDefault, false)},
	{usualRule(0, TableLocal, true), usualRule(32766, TableMain, true)},
}

func usualRule(priority, table int, ipv6 bool) Rule {
	return Rule{Priority: priority, Table: table, Action: "lookup", SuppressPrefixLength: -1, SuppressGroup: -1, IPv6: ipv6}
}

func (x *index) addRules(rules []Rule) {
	for i := range rules {
		fam := 0
		if rules[i].IPv6 {
			fam = 1
		}
		x.rules[fam] = append(x.rules[fam], &rules[i])
	}
	for fam := range x.rules {
		slices.SortStableFunc(x.rules[fam], func(a, b *Rule) int { return a.Priority - b.Priority })
		x.customRules[fam] = len(x.rules[fam]) > 0 &&
			!slices.EqualFunc(x.rules[fam], usualRules[fam], func(r *Rule, u Rule) bool { return *r == u })
	}
}

// indexed returns the index, made now where Index was not called.
func (s *State) indexed() *index {
	if s.index == nil {
		s.Index()
	}
	return s.index
}

// Link finds a link by name; nil for none.
func (s *State) Link(name string) *Link { return s.indexed().links[name] }

// HasAddress finds an address of the machine; nil where it has not got it. Addresses that only a route of type local covers
// (127.0.0.2, AnyIP) are none: see [State.AddressType].
func (s *State) HasAddress(a netip.Addr) *Address { return s.indexed().addresses[a] }

// AddressesOf lists a link's addresses in the kernel's order.
func (s *State) AddressesOf(link string) []*Address { return s.indexed().onLink[link] }

// Neighbour finds the entry of a neighbour on a link; nil for none. Proxy entries are not among them.
func (s *State) Neighbour(link string, a netip.Addr) *Neighbour {
	return s.indexed().neighbours[neighbourKey{link, a}]
}

// ProxyNeighbour finds the proxy entry with which the machine answers for an address on a link; nil for none.
func (s *State) ProxyNeighbour(link string, a netip.Addr) *Neighbour {
	return s.indexed().proxies[neighbourKey{link, a}]
}

// FDBEntry finds where a bridge sends frames for a MAC address; vlan is 0 without VLAN filtering. nil: it floods.
func (s *State) FDBEntry(bridge string, mac packet.MAC, vlan int) *FDBEntry {
	return s.indexed().fdb[fdbKey{bridge, mac, vlan}]
}

// Remotes lists the entries by which a link of kind vxlan sends frames for a station: those of the address, or else those for all that it
// does not know, which are of the address of zeros (vxlan_xmit, drivers/net/vxlan/vxlan_core.c).
func (s *State) Remotes(link string, mac packet.MAC) []*FDBEntry {
	x := s.indexed()
	if own := x.remotes[remoteKey{link, mac}]; own != nil {
		return own
	}
	return x.remotes[remoteKey{link, packet.MAC{}}]
}

// Ports lists a bridge's ports.
func (s *State) Ports(bridge string) []*Link { return s.indexed().ports[bridge] }
