package ippool

import (
	"slices"

	"packetwalk.dev/internal/syntax/ipset"
	"packetwalk.dev/internal/syntax/iptables"
)

// Steps are the contents that the plan's sets get, one after the other, from those that the kernel has; a set changes whole, but no two at
// once. The set of all pools first holds its old and its new ranges, then the set of sources becomes what it is to be, then the old ranges
// go. Each state on the way translates nothing but what the old one or the new one does, and everything that both do:
//
//	(all, masq) → (all ∪ all', masq) → (all ∪ all', masq') → (all', masq')
//
// The rules come after the sets that they look into.
func (p *Plan) Steps(have []ipset.Set) []ipset.Set {
	all, masq := p.All.IPSet(), p.Masq.IPSet()
	both := all
	both.Members = slices.Clone(all.Members)
	for i := range have {
		h := &have[i]
		if h.Name != all.Name || h.Type != all.Type || h.Option("family") != all.Option("family") {
			continue
		}
		for _, m := range h.Members {
			if m.Options == "" && !slices.Contains(both.Members, m) { // with an option, such as nomatch, it is none of ours
				both.Members = append(both.Members, m)
			}
		}
	}
	return []ipset.Set{both, masq, all}
}

// Edit is what brings table nat, which may be nil, to the plan: its own chains where they differ, and the jumps to them at their places.
// What others have there stays.
func (p *Plan) Edit(nat *iptables.Table) iptables.Edit {
	edit := iptables.Edit{Table: iptables.NAT}
	if nat == nil {
		nat = &iptables.Table{}
	}
	for _, c := range p.Chains {
		if got := nat.Chain(c.Name); got == nil ||
			!slices.EqualFunc(got.Rules, c.Rules, func(a iptables.Rule, b Rule) bool { return a.Spec() == b.Spec() }) {
			edit.Replace = append(edit.Replace, c.iptables())
		}
	}
	for _, jump := range p.Jumps {
		in, place := nat.Chain(jump.Chain), 0
		if p.Append && in != nil {
			place = len(in.Rules) - 1
		}
		stray, there := in.Settle(jump, func(i int) bool { return i == place })
		edit.Remove = append(edit.Remove, stray...)
		switch {
		case there:
		case p.Append:
			edit.Append = append(edit.Append, jump)
		default:
			edit.Insert = append(edit.Insert, jump)
		}
	}
	return edit
}

func (c *Chain) iptables() iptables.Chain {
	out := iptables.Chain{Name: c.Name}
	for _, r := range c.Rules {
		out.Rules = append(out.Rules, r.Rule)
	}
	return out
}

// Idle is the plan with chains that translate nothing, for the time in which its sets have to be made anew.
func (p *Plan) Idle() *Plan {
	idle := *p
	idle.Chains = slices.Clone(p.Chains)
	for i := range idle.Chains {
		if idle.Chains[i].Name == chainNATOutgoing {
			idle.Chains[i].Rules = nil
		}
	}
	return &idle
}

// Prepared is the plan with the rule that translates, whether pools ask for it or not. With empty sets it translates nothing.
func (p *Plan) Prepared() *Plan {
	ready := *p
	ready.Chains = slices.Clone(p.Chains)
	for i := range ready.Chains {
		if c := &ready.Chains[i]; c.Name == chainNATOutgoing {
			c.Rules = []Rule{{Rule: masquerade(p.Masq.Name, p.All.Name)}}
			comment(c.Name, c.Rules)
		}
	}
	return &ready
}

// Holds tells whether the kernel has the plan's sets as they are to be.
func (p *Plan) Holds(have []ipset.Set) bool {
	for _, want := range []ipset.Set{p.All.IPSet(), p.Masq.IPSet()} {
		i := slices.IndexFunc(have, func(h ipset.Set) bool { return h.Name == want.Name })
		if i < 0 || !ipset.SameMembers(have[i].Members, want.Members) {
			return false
		}
	}
	return true
}

// SameRules tells whether two plans have the same chains and jumps.
func (p *Plan) SameRules(other *Plan) bool {
	return p.Append == other.Append && slices.EqualFunc(p.Chains, other.Chains, func(a, b Chain) bool {
		return a.Name == b.Name && slices.EqualFunc(a.Rules, b.Rules, func(x, y Rule) bool { return x.Spec() == y.Spec() })
	})
}
