//go:build linux

package nftables

import (
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// frame returns what elements are in and lead to: all sets, and all chains, those that others lead to first.
func (s *State) frame() (sets []nf.Set, chains []nf.Chain) {
	sets = s.w.sets()
	clients := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.named)) {
		f := s.named[name]
		if f.choosesSticky() && !clients[f.clients(f.policy)] {
			clients[f.clients(f.policy)] = true
			sets = append(sets, s.w.clients(&f))
		}
		if f.hasSet() {
			sets = append(sets, *s.set(name))
		}
		if !f.isLasting() {
			chains = append(chains, s.w.fan(&f))
		}
	}
	for of := range fewEndpoints {
		chains = append(chains, s.w.fan(&fan{way: internal, of: of + 1}))
	}
	return sets, append(chains, s.w.chains(s.fanSets())...)
}

// comparison finds the steps from what a table holds to a state.
type comparison struct {
	*State
	held  Elements // what is not compared yet
	steps []Step
}

// Compare gives the steps from what a table holds to the state: its elements, and clients of service ports with session affinity that are
// with other endpoints than those. What is left over goes last. It writes all chains and sets, and uses held up.
func (s *State) Compare(held Elements) Changes {
	s.total, s.heldFans = 0, fanSetsOf(held)
	sets, chains := s.frame()
	c := comparison{s, held, []Step{{Sets: sets, Chains: chains}}}
	c.share(setNodeIPs)
	c.share(setHairpin)
	for _, key := range slices.SortedFunc(maps.Keys(s.services), service.CompareKeys) {
		for _, st := range s.services[key] {
			c.service(st)
		}
	}
	c.share(setClusterIPs) // last: until all of its ports are there, none is an unused one
	c.deleteUnknown()
	return Changes{Steps: slices.DeleteFunc(c.steps, func(s Step) bool { return s.isZero() })}
}

// replace gives the steps from a table to the state as Compare does, and what is left over. Service ports whose fan goes are led to by it
// until all of them have another; and a table begins to drop what is for unallocated addresses when it knows those that are allocated.
func (s *State) replace(h heldTable) Changes {
	var gone []fan
	for name, elements := range h.elements {
		f, ok := fanOfSet(name)
		hook, there := h.hooks[name]
		if _, wanted := s.named[name]; ok && !wanted && there && hook == "" && len(elements) > 0 {
			gone = append(gone, f)
		}
	}
	c := s.Compare(h.elements)
	c.leftOver(h)
	chains := c.Steps[0].Chains
	var last []nf.Chain
	until := func(chain nf.Chain) {
		at := slices.IndexFunc(chains, func(c nf.Chain) bool { return c.Name == chain.Name })
		last = append(last, chains[at])
		chains[at] = chain
	}
	if len(gone) > 0 {
		until(s.w.services(s.fanSets(gone...)))
	}
	if len(s.w.ServiceCIDRs) > 0 && !strings.Contains(h.chains[chainForward], whyUnallocated) {
		open := *s.w
		open.ServiceCIDRs = nil
		for _, chain := range open.hooks() {
			until(chain)
		}
	}
	if len(last) > 0 {
		c.Steps = append(c.Steps, Step{Chains: last})
	}
	return c
}

// together is how many changes that need not go together are one step.
const together = 1000

// share compares a set of which service ports share keys.
func (c *comparison) share(set string) {
	c.steps = append(c.steps, Step{})
	for _, key := range slices.Sorted(maps.Keys(c.shared[set])) {
		c.compare(c.lastStep(), &item{set: set, key: key})
	}
}

// lastStep returns the last step, or a new one if that is large.
func (c *comparison) lastStep() *Step {
	if c.steps[len(c.steps)-1].elements() >= together {
		c.steps = append(c.steps, Step{})
	}
	return &c.steps[len(c.steps)-1]
}

// service compares what a service port has.
func (c *comparison) service(st *portRecord) {
	part := c.newPart(st)
	var step Step
	for _, n := range part.named {
		if c.has(n.name) != st {
			continue
		}
		for i := range n.elements {
			c.compare(&step, &n.elements[i])
		}
		for _, row := range n.endpoints {
			for i := range row.slots {
				e := row.at(i)
				c.compare(&step, &e)
			}
		}
		c.unwanted(&step, n.name)
	}
	forgot := map[string]bool{}
	for i := range part.fans {
		if f := &part.fans[i]; f.choosesSticky() && !forgot[f.clients(f.policy)] {
			forgot[f.clients(f.policy)] = true
			step.Forget = append(step.Forget, forget(f, part))
		}
	}
	if !step.isZero() {
		c.steps = append(c.steps, step)
	}
}

// unwanted deletes what is held of a name after it was compared, and decides about its packets.
func (c *comparison) unwanted(step *Step, n name) {
	sets := append(c.leads(n.at), setRefused[n.at], setDropped[n.at], mapPolicies[n.at][0], mapPolicies[n.at][1])
	if n.at == byAddress {
		sets = append(sets, setFirewalled)
	}
	for _, set := range sets {
		if has, there := c.held[set][n.key]; there {
			c.delete(step, &item{set: set, key: n.key, value: has.Value})
			delete(c.held[set], n.key)
		}
	}
}

// compare adds the change of one key that the state has.
func (c *comparison) compare(step *Step, want *item) {
	c.total++
	has, there := c.held[want.set][want.key]
	delete(c.held[want.set], want.key)
	if there && has == (Value{want.value, want.comment}) {
		return
	}
	if there {
		c.delete(step, &item{set: want.set, key: want.key, value: has.Value})
	}
	c.add(step, want)
}

// deleteUnknown deletes the keys that the state does not have: first those that refuse unused ports, then those that lead to others.
func (c *comparison) deleteUnknown() {
	c.steps = append(c.steps, Step{})
	sets := slices.Clone(c.order)
	for _, name := range c.heldFans {
		sets = append(sets, c.set(name))
	}
	turn := func(set *nf.Set) int {
		switch {
		case set.Name == setClusterIPs:
			return 0
		case set.Verdicts || isFanSet(set.Name):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(sets, func(a, b *nf.Set) int { return turn(a) - turn(b) })
	for _, set := range sets {
		for _, key := range slices.Sorted(maps.Keys(c.held[set.Name])) {
			c.delete(c.lastStep(), &item{set: set.Name, key: key, value: c.held[set.Name][key].Value})
		}
	}
}
