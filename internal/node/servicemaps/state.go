package servicemaps

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// State is what the table is to hold. It is not safe for concurrent use.
type State struct {
	w     *writer
	sets  map[string]*nf.Set // those that are always there
	order []*nf.Set          // of changes
	// places are those of the sets whose keys begin with a service port's name.
	places map[string]place
	parts  map[string]*stored
	// claims are what service ports want of each set's keys. Where several want one name of a service port, the first by id has it, with
	// all that belongs to it; see effective.
	claims map[string]map[string]claims
	names  map[name][]*stored
	fans   map[fan]int    // how many parts want each
	named  map[string]fan // those that are wanted, by chain
	// held are elements that the table had before, of which endpoints keep their slots.
	held Elements
}

// stored is what is kept of a part, which can be made of it again.
type stored struct {
	id    string
	port  service.Port
	slots slots
}

type claim struct {
	owner   *stored
	value   string
	comment string
}

type claims []claim

// name is how packets name a service port: a place and the key there.
type name struct {
	at  place
	key string
}

// nameOf is the service port's name that a key of a set begins with; ok is false for sets that service ports share.
func (s *State) nameOf(set, key string) (n name, ok bool) {
	at, ok := s.places[set]
	length := 8 // protocol and port
	if at == byAddress {
		length += int(s.w.address.Len)
	}
	if !ok || len(key) < length { // a table of another making may have other keys
		return name{}, false
	}
	return name{at, key[:length]}, true
}

// effective is the claim that has a key of a set.
func (s *State) effective(set, key string) (claim, bool) {
	all := s.claims[set][key]
	n, named := s.nameOf(set, key)
	if !named || len(all) == 0 {
		return append(all, claim{})[0], len(all) > 0
	}
	has := s.names[n][0]
	i := slices.IndexFunc(all, func(c claim) bool { return c.owner == has })
	if i < 0 {
		return claim{}, false
	}
	return all[i], true
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
func NewState(c serviceproxy.Config, held Elements) *State {
	s := &State{w: newWriter(c), sets: map[string]*nf.Set{}, parts: map[string]*stored{}, claims: map[string]map[string]claims{},
		names: map[name][]*stored{}, fans: map[fan]int{}, named: map[string]fan{}, held: held,
		places: map[string]place{setFirewalled: byAddress, setSources: byAddress}}
	for at := range places {
		for _, set := range []string{mapServices[at], mapRefused[at], mapAffinity[at], mapEndpoints[at][0], mapEndpoints[at][1],
			mapPolicies[at][0], mapPolicies[at][1]} {
			s.places[set] = at
		}
	}
	sets := s.w.sets()
	for i := range sets {
		s.sets[sets[i].Name] = &sets[i]
		s.claims[sets[i].Name] = map[string]claims{}
		s.order = append(s.order, &sets[i])
	}
	for _, ip := range c.NodePortIPs {
		if !ip.IsLoopback() {
			s.claims[setNodeIPs][addressField(ip)] = claims{{}}
		}
	}
	return s
}

// pair is a part's change; either may be nil.
type pair struct {
	before, after *part
	owner         *stored // of after
}

// Update takes the state to other service ports, which service.Build returns sorted, and gives the steps to it.
func (s *State) Update(ports []service.Port) Changes {
	u := update{State: s, before: map[[2]string]*claim{}, touched: map[name][]item{}, fans: map[string]fan{},
		changed: map[*stored]bool{}, rivals: map[*stored]bool{}}
	seen := make(map[string]bool, len(ports))
	var pairs []pair
	for i := range ports {
		p := &ports[i]
		id := id(p)
		seen[id] = true
		old := s.parts[id]
		if old != nil && same(&old.port, p) {
			continue
		}
		pairs = append(pairs, u.replace(old, &stored{id: id, port: *p}))
	}
	if len(s.parts) > len(seen) {
		for id, old := range s.parts {
			if !seen[id] {
				pairs = append(pairs, u.replace(old, nil))
			}
		}
	}
	s.held = nil
	return u.changes(pairs)
}

// update is one Update, and what keys and chains were before it.
type update struct {
	*State
	before  map[[2]string]*claim // by set and key; nil where there was none
	touched map[name][]item      // the keys of each name
	fans    map[string]fan       // by chain
	changed map[*stored]bool     // parts that are new
	rivals  map[*stored]bool     // that want a name which a part that has changed wants, too
}

// replace withdraws a part and claims another.
func (u *update) replace(old, new *stored) (p pair) {
	var was slots
	if old != nil {
		p.before, was = newPart(u.w, &old.port, old.slots), old.slots
		u.rival(old, p.before)
		delete(u.parts, old.id)
		for i := range p.before.elements {
			u.touch(&p.before.elements[i])
		}
		for i := range p.before.elements {
			u.withdraw(old, &p.before.elements[i])
		}
	}
	if new != nil {
		if old == nil {
			was = u.adopt(&new.port)
		}
		new.slots = slots{arrange(was[0], new.port.ForCluster), arrange(was[1], new.port.ForLocal)}
		p.after = newPart(u.w, &new.port, new.slots)
		u.parts[new.id], u.changed[new], p.owner = new, true, new
		u.rival(new, p.after)
		for i := range p.after.elements {
			u.touch(&p.after.elements[i])
		}
		for i := range p.after.elements {
			u.claim(new, &p.after.elements[i])
		}
	}
	for i, part := range []*part{p.before, p.after} {
		if part == nil {
			continue
		}
		for _, f := range part.fans {
			u.count(f, 2*i-1)
		}
	}
	return p
}

// touch notes what has a key before the update.
func (u *update) touch(e *item) {
	at := [2]string{e.set, e.key}
	if _, touched := u.before[at]; touched {
		return
	}
	if n, named := u.nameOf(e.set, e.key); named {
		u.touched[n] = append(u.touched[n], *e)
	}
	u.before[at] = nil
	if has, ok := u.effective(e.set, e.key); ok {
		u.before[at] = &has
	}
}

// rival notes what others have that want a name of a part: it may become another's.
func (u *update) rival(owner *stored, p *part) {
	for i := range p.elements {
		n, named := u.nameOf(p.elements[i].set, p.elements[i].key)
		if !named {
			continue
		}
		for _, other := range u.names[n] {
			if other == owner || u.rivals[other] || u.changed[other] {
				continue
			}
			u.rivals[other] = true
			theirs := newPart(u.w, &other.port, other.slots)
			for j := range theirs.elements {
				u.touch(&theirs.elements[j])
			}
		}
	}
}

func (u *update) withdraw(owner *stored, e *item) {
	all := u.claims[e.set][e.key]
	if i := slices.IndexFunc(all, func(c claim) bool { return c.owner == owner }); i >= 0 {
		all = slices.Delete(all, i, i+1)
	}
	if u.claims[e.set][e.key] = all; len(all) == 0 {
		delete(u.claims[e.set], e.key)
	}
	if n, named := u.nameOf(e.set, e.key); named {
		if i := slices.Index(u.names[n], owner); i >= 0 {
			u.names[n] = slices.Delete(u.names[n], i, i+1)
		}
		if len(u.names[n]) == 0 {
			delete(u.names, n)
		}
	}
}

func (u *update) claim(owner *stored, e *item) {
	all := u.claims[e.set][e.key]
	at, _ := slices.BinarySearchFunc(all, owner.id, func(c claim, id string) int { return strings.Compare(c.owner.id, id) })
	u.claims[e.set][e.key] = slices.Insert(all, at, claim{owner, e.value, e.comment})
	n, named := u.nameOf(e.set, e.key)
	if at, there := slices.BinarySearchFunc(u.names[n], owner.id, func(s *stored, id string) int {
		return strings.Compare(s.id, id)
	}); named && !there {
		u.names[n] = slices.Insert(u.names[n], at, owner)
	}
}

func (u *update) count(f fan, by int) {
	name := f.chain()
	if _, touched := u.fans[name]; !touched {
		u.fans[name] = u.named[name]
	}
	if u.State.fans[f] += by; u.State.fans[f] > 0 {
		u.named[name] = f
		return
	}
	delete(u.State.fans, f)
	if u.named[name] == f {
		delete(u.named, name)
	}
}

// changes are the steps of all pairs; what several share is in the first that has it.
func (u *update) changes(pairs []pair) (c Changes) {
	was, is := map[string]bool{}, map[string]bool{} // maps of clients
	for _, f := range u.fans {
		if f.choosesSticky() {
			was[f.clients(f.policy)] = true
		}
	}
	for _, p := range pairs {
		var step Step
		u.elements(&step, p.owner, p.after)
		u.elements(&step, p.owner, p.before)
		u.chains(&step, p.after, was, is)
		if !step.isZero() {
			c.Steps = append(c.Steps, step)
		}
	}
	for name, before := range u.fans {
		if _, wanted := u.named[name]; !wanted && before != (fan{}) {
			c.GoneChains = append(c.GoneChains, name)
		}
	}
	for name := range was {
		if !is[name] {
			c.GoneSets = append(c.GoneSets, name)
		}
	}
	slices.Sort(c.GoneChains)
	slices.Sort(c.GoneSets)
	return c
}

// chains adds the chains and maps of clients that a part needs to a step.
func (u *update) chains(step *Step, p *part, was, is map[string]bool) {
	if p == nil {
		return
	}
	for i := range p.fans {
		f := &p.fans[i]
		if f.choosesSticky() {
			u.clients(step, f, p, was, is)
		}
		name := f.chain()
		if before, touched := u.fans[name]; touched && u.named[name] == *f && before != *f {
			step.Chains = append(step.Chains, u.w.fan(f))
			delete(u.fans, name)
		}
	}
}

// clients adds a map of clients that is new to a step, or what one that was there is to forget.
func (u *update) clients(step *Step, f *fan, p *part, was, is map[string]bool) {
	switch clients := f.clients(f.policy); {
	case is[clients]:
		return
	case was[clients]:
		step.Forget = append(step.Forget, forget(f, p))
	default:
		step.Sets = append(step.Sets, u.w.clients(f))
	}
	is[f.clients(f.policy)] = true
}

func forget(f *fan, p *part) Forget {
	keep := make(map[string]bool, f.of)
	for _, a := range p.slots[f.policy] {
		keep[endpointField(a)] = true
	}
	return Forget{f.clients(f.policy), keep}
}

// elements adds the changes of a part's keys to a step. All keys of a name go together, in the step of the part that has it now, which
// makes the chains that they lead to.
func (u *update) elements(step *Step, owner *stored, p *part) {
	if p == nil {
		return
	}
	for i := range p.elements {
		e := &p.elements[i]
		n, named := u.nameOf(e.set, e.key)
		if !named {
			u.element(step, e)
			continue
		}
		if has := u.names[n]; len(has) > 0 && has[0] != owner && u.changed[has[0]] {
			continue
		}
		for j := range u.touched[n] {
			u.element(step, &u.touched[n][j])
		}
		delete(u.touched, n)
	}
}

// element adds the change of a key to a step, once.
func (u *update) element(step *Step, e *item) {
	at := [2]string{e.set, e.key}
	before, touched := u.before[at]
	if !touched {
		return
	}
	delete(u.before, at)
	after, there := u.effective(e.set, e.key)
	if before != nil && there && before.value == after.value && before.comment == after.comment {
		return
	}
	set := u.sets[e.set]
	if before != nil {
		step.Delete = append(step.Delete, Change{set, element(set, e.key, before.value, "")})
	}
	if there {
		step.Add = append(step.Add, Change{set, element(set, e.key, after.value, after.comment)})
	}
}

func element(set *nf.Set, key, value, comment string) nf.Element {
	if set.Ranges {
		return nf.Element{Key: key, End: value}
	}
	return nf.Element{Key: key, Value: value, Comment: comment}
}

// adopt are the slots that endpoints of a service port have in the table already.
func (u *update) adopt(p *service.Port) (s slots) {
	if u.held == nil {
		return s
	}
	b := part{port: p}
	keys := []string{b.key(byAddress, p.ClusterIP)}
	for _, ip := range externalIPs(p) {
		keys = append(keys, b.key(byAddress, ip))
	}
	names := []name{{byNodePort, b.key(byNodePort, netip.Addr{})}}
	for _, key := range keys {
		names = append(names, name{byAddress, key})
	}
	for policy := range s {
		for _, n := range names {
			if u.held[mapServices[n.at]][n.key].Comment == comment(p) && s[policy] == nil {
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
func (s *State) Without() (internal, external int) {
	for _, st := range s.parts {
		p := &st.port
		if len(p.ForCluster) == 0 || len(p.ForLocal) > 0 {
			continue
		}
		if p.InternalPolicy == service.Local {
			internal++
		}
		if p.ExternalPolicy == service.Local {
			external++
		}
	}
	return internal, external
}
