//go:build linux

package nftables

import (
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// pair is a service port's change; either may be nil.
type pair struct {
	before, after *portRecord
	gone, come    []item // elements that others may want, too
}

// update is one Update, and what was before it: of that, without parts, no more than of chains.
type update struct {
	*State
	pairs  []pair
	parts  map[*portRecord]*part
	had    map[name]*portRecord // who had each name that is touched
	shared map[[2]string]int    // how many wanted each key of a shared set that is touched
	fans   map[string]fan       // by chain
}

// Update takes the state to other ports of some services, sorted as service.Of gives them, and gives the steps to it.
func (s *State) Update(services map[service.Key][]service.Port) Changes {
	return s.apply(services, map[*portRecord]*part{}).changes()
}

// apply changes the state to new ports of some services, and returns the update. parts caches the parts of ports; nil disables that.
func (s *State) apply(services map[service.Key][]service.Port, parts map[*portRecord]*part) *update {
	u := &update{State: s, parts: parts, had: map[name]*portRecord{}, shared: map[[2]string]int{}, fans: map[string]fan{}}
	for _, key := range slices.SortedFunc(maps.Keys(services), service.CompareKeys) {
		u.service(key, services[key])
	}
	for i := range u.pairs {
		p := &u.pairs[i]
		before, after := u.part(p.before), u.part(p.after)
		u.want(p.before, before, -1)
		u.want(p.after, after, 1)
		gone, come := before.shared(after), after.shared(before)
		u.share(gone, -1)
		u.share(come, 1)
		if u.parts != nil {
			p.gone, p.come = gone, come
		}
	}
	s.held = nil
	return u
}

// service takes one service to other ports. Those that need the same as before stay.
func (u *update) service(key service.Key, ports []service.Port) {
	before := slices.Clone(u.services[key])
	var now []*portRecord
	for i := range ports {
		p := &ports[i]
		var old *portRecord
		at := slices.IndexFunc(before, func(st *portRecord) bool { return service.ComparePorts(st.port, p) == 0 })
		if at >= 0 {
			old = before[at]
			before = slices.Delete(before, at, at+1)
		}
		if old != nil && service.SameRules(old.port, p) {
			old.port = p
			now = append(now, old)
			continue
		}
		var was slots
		if old != nil {
			was = old.slots
		} else {
			was = u.adopt(p)
		}
		st := &portRecord{p, slots{arrange(was[0], p.ForCluster), arrange(was[1], p.ForLocal)}}
		u.pairs, now = append(u.pairs, pair{before: old, after: st}), append(now, st)
	}
	for _, old := range before {
		u.pairs = append(u.pairs, pair{before: old})
	}
	if u.services[key] = now; len(now) == 0 {
		delete(u.services, key)
	}
}

// part returns what a service port needs, made once; nil for none.
func (u *update) part(st *portRecord) *part {
	p := u.parts[st]
	if p == nil && st != nil {
		if p = u.newPart(st); u.parts != nil {
			u.parts[st] = p
		}
	}
	return p
}

// want counts what a service port wants, or wanted.
func (u *update) want(st *portRecord, p *part, by int) {
	if st == nil {
		return
	}
	for i := range p.named {
		n := p.named[i].name
		if _, touched := u.had[n]; !touched && u.parts != nil {
			u.had[n] = u.has(n)
		}
		at, there := slices.BinarySearchFunc(u.names[n], st, func(a, b *portRecord) int { return service.ComparePorts(a.port, b.port) })
		switch {
		case by > 0 && (!there || u.names[n][at] != st):
			u.names[n] = slices.Insert(u.names[n], at, st)
		case by < 0 && len(u.names[n]) == 1:
			delete(u.names, n)
		case by < 0:
			u.names[n] = slices.DeleteFunc(u.names[n], func(o *portRecord) bool { return o == st })
		}
	}
	for _, f := range p.fans {
		u.count(f, by)
	}
	for i, without := range []bool{p.noLocalInternal, p.noLocalExternal} {
		if without {
			u.without[i] += by
		}
	}
}

// share counts elements that a service port wants with others, or wanted.
func (u *update) share(elements []item, by int) {
	for i := range elements {
		e := &elements[i]
		at := [2]string{e.set, e.key}
		if _, touched := u.shared[at]; !touched && u.parts != nil {
			u.shared[at] = u.State.shared[e.set][e.key]
		}
		if u.State.shared[e.set][e.key] += by; u.State.shared[e.set][e.key] == 0 {
			delete(u.State.shared[e.set], e.key)
		}
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

// changes returns the steps of all pairs; what several share is in the first that has it, and goes with the last.
func (u *update) changes() (c Changes) {
	steps := make([]Step, len(u.pairs))
	u.elements(steps)
	was, is := map[string]bool{}, map[string]bool{} // maps of clients
	for _, f := range u.fans {
		if f.choosesSticky() {
			was[f.clients(f.policy)] = true
		}
	}
	first, last := u.ends(&c)
	for i, p := range u.pairs {
		if p.after != nil {
			u.chains(&steps[i], u.part(p.after), was, is)
		}
	}
	for i := range steps {
		u.total += len(steps[i].Add) - len(steps[i].Delete)
	}
	steps = slices.Concat([]Step{first}, steps, []Step{last})
	c.Steps = slices.DeleteFunc(steps, func(s Step) bool { return s.isZero() })
	for name, before := range u.fans {
		if _, wanted := u.named[name]; !wanted && before != (fan{}) && !before.isLasting() {
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

// ends returns what comes before all steps, and after them: before, the sets and chains of fans that come, which are then looked into;
// after, those that go are not looked into any more.
func (u *update) ends(c *Changes) (first, last Step) {
	var gone []fan
	for name, before := range u.fans {
		f, wanted := u.named[name]
		switch {
		case !wanted && before.hasSet():
			gone = append(gone, before)
			c.GoneSets = append(c.GoneSets, name)
		case wanted && f.hasSet() && before == (fan{}):
			first.Sets = append(first.Sets, *u.set(name))
			if !f.isLasting() {
				first.Chains = append(first.Chains, u.w.fan(&f))
			}
			delete(u.fans, name)
		}
	}
	slices.SortFunc(first.Sets, func(a, b nf.Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(first.Chains, func(a, b nf.Chain) int { return strings.Compare(a.Name, b.Name) })
	if len(first.Sets) > 0 {
		first.Chains = append(first.Chains, u.w.services(u.fanSets(gone...)))
	}
	if len(gone) > 0 {
		last.Chains = []nf.Chain{u.w.services(u.fanSets())}
	}
	return first, last
}

// elements adds the changes of elements to the steps of pairs. All keys of a name go together, in the step of the service port that has it
// now, which makes the chains that they lead to; if none of them has, in that of one that wanted it. What service ports share comes with
// the first and goes with the last of them; but cluster IPs, unused ports of which are refused, come with the last and go with the first.
func (u *update) elements(steps []Step) {
	for i, p := range u.pairs {
		if p.after != nil {
			for _, n := range u.part(p.after).named {
				if u.has(n.name) == p.after {
					u.name(&steps[i], n.name)
				}
			}
		}
		u.shares(&steps[i], p.come, setHairpin)
		u.shares(&steps[i], p.gone, setClusterIPs)
	}
	for i := len(u.pairs) - 1; i >= 0; i-- {
		p := u.pairs[i]
		if p.before != nil {
			for _, n := range u.part(p.before).named {
				u.name(&steps[i], n.name)
			}
		}
		u.shares(&steps[i], p.gone, setHairpin)
		u.shares(&steps[i], p.come, setClusterIPs)
	}
}

// name adds the changes of a name's keys to a step, once.
func (u *update) name(step *Step, n name) {
	had, touched := u.had[n]
	if !touched {
		return
	}
	delete(u.had, n)
	before, after := u.part(had).of(n), u.part(u.has(n)).of(n)
	was := map[[2]string]*item{}
	for i := range before.elements {
		e := &before.elements[i]
		was[[2]string{e.set, e.key}] = e
	}
	for i := range after.elements {
		e := &after.elements[i]
		at := [2]string{e.set, e.key}
		old := was[at]
		delete(was, at)
		if old != nil && *old == *e {
			continue
		}
		if old != nil {
			u.delete(step, old)
		}
		u.add(step, e)
	}
	for i := range before.elements { // in their order
		if e := &before.elements[i]; was[[2]string{e.set, e.key}] != nil {
			u.delete(step, e)
		}
	}
	for i := range before.endpoints {
		row := &before.endpoints[i]
		row.others(after.row(row.set), func(e *item) { u.delete(step, e) })
	}
	for i := range after.endpoints {
		row := &after.endpoints[i]
		row.others(before.row(row.set), func(e *item) { u.add(step, e) })
	}
}

// shares adds the changes of elements of a set that service ports share to a step, each once.
func (u *update) shares(step *Step, elements []item, set string) {
	for i := range elements {
		e := &elements[i]
		at := [2]string{e.set, e.key}
		was, touched := u.shared[at]
		is := u.State.shared[e.set][e.key]
		if !touched || e.set != set {
			continue
		}
		switch {
		case was == 0 && is > 0:
			u.add(step, e)
		case was > 0 && is == 0:
			u.delete(step, e)
		}
		delete(u.shared, at)
	}
}

func (s *State) add(step *Step, e *item) {
	set := s.set(e.set)
	step.Add = append(step.Add, Change{set, element(set, e.key, e.value, e.comment)})
}

func (s *State) delete(step *Step, e *item) {
	set := s.set(e.set)
	step.Delete = append(step.Delete, Change{set, element(set, e.key, e.value, "")})
}

// chains adds the chains and maps of clients that a part needs to a step.
func (u *update) chains(step *Step, p *part, was, is map[string]bool) {
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
