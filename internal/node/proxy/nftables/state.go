//go:build linux

package nftables

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// State is what the table is to hold. It is not safe for concurrent use.
type State struct {
	w        *writer
	sets     map[string]*nf.Set // those that are always there, and those of fans; see set
	order    []*nf.Set          // of changes
	services map[service.Key][]*portRecord
	// names are the service ports that want a name of a service port: the first has it, with all that belongs to it.
	names   map[name][]*portRecord
	shared  map[string]map[string]int // by set and key: how many want it
	fans    map[fan]int               // how many service ports want each
	named   map[string]fan            // those that are wanted, by chain
	without [2]int
	total   int // elements
	// held are elements that the table had before, of which endpoints keep their slots.
	held Elements
	// heldFans are the sets of fans that the table had before.
	heldFans []string
}

// portRecord is what is kept of a part, which can be made of it again.
type portRecord struct {
	port  *service.Port
	slots slots
}

// name holds what selects a service port: which fields, and their values.
type name struct {
	at  matchKind
	key string
}

// has returns the service port that has a name; nil where none wants it.
func (s *State) has(n name) *portRecord {
	if all := s.names[n]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// Elements are a table's elements: by set, then by key.
type Elements map[string]map[string]Value

// Value is what an element has beside its key: of a map its value, of a range its last key.
type Value struct{ Value, Comment string }

// Changes are what takes a table from one state to another. Steps can be made in one transaction or in several.
type Changes struct {
	Steps []Step
	// GoneChains and GoneSets are those that nothing leads to after the steps.
	GoneChains, GoneSets []string
}

// Step belongs together: in between, a packet would find half of a service port.
type Step struct {
	Sets        []nf.Set
	Chains      []nf.Chain // with all of their rules
	Delete, Add []Change
	Forget      []Forget
}

// Change is an element that comes or goes.
type Change struct {
	Set     *nf.Set
	Element nf.Element
}

// Forget asks to delete the clients, of a map of clients, that are with other endpoints than those that it has.
type Forget struct {
	Set  string
	Keep map[string]bool
}

func (s *Step) isZero() bool {
	return len(s.Sets)+len(s.Chains)+len(s.Delete)+len(s.Add)+len(s.Forget) == 0
}

// NewState makes the state without service ports. held is what the table holds already, if that is known.
func NewState(c proxy.Config, held Elements) *State {
	s := &State{w: newWriter(c), sets: map[string]*nf.Set{}, services: map[service.Key][]*portRecord{}, names: map[name][]*portRecord{},
		shared: map[string]map[string]int{setClusterIPs: {}, setHairpin: {}, setNodeIPs: {}}, fans: map[fan]int{}, named: map[string]fan{},
		held: held, heldFans: fanSetsOf(held)}
	sets := s.w.sets()
	for i := range sets {
		s.sets[sets[i].Name] = &sets[i]
		s.order = append(s.order, &sets[i])
	}
	for _, ip := range c.NodePortIPs {
		if !ip.IsLoopback() {
			s.shared[setNodeIPs][addressField(ip)] = 1
			s.total = len(s.shared[setNodeIPs])
		}
	}
	return s
}

// fanSetsOf returns the sets of fans that a table has, sorted.
func fanSetsOf(held Elements) (sets []string) {
	for _, set := range slices.Sorted(maps.Keys(held)) {
		if _, ok := fanOfSet(set); ok {
			sets = append(sets, set)
		}
	}
	return sets
}

// set returns one that is always there, or of a fan.
func (s *State) set(name string) *nf.Set {
	if s.sets[name] == nil {
		set := s.w.fanSet(name)
		s.sets[name] = &set
	}
	return s.sets[name]
}

// fanSets returns the fans that have a set, and some more, those with few endpoints first.
func (s *State) fanSets(more ...fan) []fan {
	fans := more
	for _, f := range s.named {
		if f.hasSet() {
			fans = append(fans, f)
		}
	}
	slices.SortFunc(fans, func(a, b fan) int { return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.chain(), b.chain())) })
	return fans
}

// leads returns the sets and maps, of those that a table held, by which a name leads somewhere.
func (s *State) leads(at matchKind) []string {
	if at == byAddress {
		return append(s.heldFans[:len(s.heldFans):len(s.heldFans)], mapServices[at])
	}
	return []string{mapServices[at]}
}

func element(set *nf.Set, key, value, comment string) nf.Element {
	if set.Ranges {
		return nf.Element{Key: key, End: value}
	}
	return nf.Element{Key: key, Value: value, Comment: comment}
}

// adopt returns the slots that endpoints of a service port have in the table already.
func (u *update) adopt(p *service.Port) (s slots) {
	if u.held == nil {
		return s
	}
	b := part{port: p}
	names := []name{b.key(byNodePort, netip.Addr{}), b.key(byAddress, p.ClusterIP)}
	for _, ip := range externalIPs(p) {
		names = append(names, b.key(byAddress, ip))
	}
	for policy := range s {
		for _, n := range names {
			isOurs := func(set string) bool { return u.held[set][n.key].Comment == comment(p) }
			if s[policy] == nil && slices.ContainsFunc(u.leads(n.at), isOurs) {
				s[policy] = u.heldSlots(mapEndpoints[n.at][policy], n.key)
			}
		}
	}
	return s
}

func (u *update) heldSlots(set, key string) (slots []netip.AddrPort) {
	for {
		value, ok := u.held[set][key+slotField(len(slots))]
		if !ok {
			return slots
		}
		slots = append(slots, u.w.parseEndpoint(value.Value))
	}
}

// parseEndpoint reads endpointField; the zero AddrPort where it is none.
func (w *writer) parseEndpoint(field string) netip.AddrPort {
	n := int(w.address.Len)
	if len(field) != n+4 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice([]byte(field[:n]))
	return netip.AddrPortFrom(a, uint16(field[n])<<8|uint16(field[n+1]))
}

// Without counts service ports with a policy Local that have endpoints, but none on this node: by their cluster IPs, and by others.
func (s *State) Without() (internal, external int) { return s.without[0], s.without[1] }
