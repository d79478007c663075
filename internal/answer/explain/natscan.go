package explain

import (
	"cmp"
	"slices"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// natScan finds the rules of a chain that would have translated the packet's source, and did not apply.
type natScan struct {
	*renderer
	host       string
	packet     *packet.Packet
	at         int // the last step that a rule has; -1 before the first one
	open       []*netfilter.Chain
	exemptions []exemption
}

// through takes a chain's rules, and those of the chains that it led to. Rules for other sources, and Azure's own, tell nothing. Chains
// that are being looked at are not looked at again: jumps can go round.
func (p *natScan) through(c *netfilter.Chain) {
	if c.Table == nil || p.role(c) == attribution.Outbound || c.Table.Family == netfilter.Bridge || slices.Contains(p.open, c) {
		return
	}
	p.open = append(p.open, c)
	defer func() { p.open = p.open[:len(p.open)-1] }()
	for i := range c.Rules {
		r := &c.Rules[i]
		v := p.visits[r]
		if v != nil {
			p.noteStep(p.steps[r])
		}
		switch {
		case v != nil && v.Verdict.Kind == netfilter.Return:
			return
		case v != nil && v.Verdict.Chain != nil && v.Verdict.Kind != netfilter.Break:
			p.through(v.Verdict.Chain)
			if v.Verdict.Kind == netfilter.Goto {
				return
			}
		case (v == nil || v.Verdict.Kind == netfilter.Break) && sourceNAT.MatchString(r.Text) && !otherSource(r, p.packet):
			v = &netfilter.Visit{Chain: c, Rule: r, Verdict: netfilter.Verdict{Kind: netfilter.Break}}
			ref := reference(v)
			text := ref + " does not apply" + paren(cmp.Or(p.why(p.host, v, p.packet), ruleWithoutComments(r)))
			e := exemption{host: p.host, ref: ref, text: text, at: atStep(p.at) + 1, unmatched: onHost(p.host, ref)}
			for _, c := range p.cleared {
				if c.bits&asksMark(r, c.field) != 0 {
					e.cleared = c.text
				}
			}
			p.exemptions = append(p.exemptions, e)
		}
	}
}

// onHost names a rule with its machine.
func onHost(host, ref string) string { return host + " " + ref }

// noteStep notes the step of a rule. Rules that were passed over before the first one stand right before it.
func (p *natScan) noteStep(step int) {
	if p.at < 0 {
		for i := range p.exemptions {
			p.exemptions[i].at = atStep(step) - 1
		}
	}
	p.at = step
}

// bypassed names the rules that would translate the packet if its connection did not exist. The kernel asks nat chains for new ones only.
func (t *renderer) bypassed(st *walk.Step) []string {
	if t.owners == nil || t.owners.States == nil {
		return nil
	}
	h, err := t.owners.States.Host(st.Host)
	if err != nil {
		return nil
	}
	var all []string
	for _, table := range h.Rules.Tables {
		for _, c := range table.Chains {
			if c.Base == nil || c.Base.Type != "nat" || c.Base.Hook != netfilter.Prerouting && c.Base.Hook != netfilter.Postrouting {
				continue
			}
			for i := range c.Rules {
				r := &c.Rules[i]
				failing, known := r.Failing(&netfilter.Context{Packet: &st.Packet, Family: st.Family, Hook: c.Base.Hook, Chain: c, Rule: r})
				translates := slices.ContainsFunc(r.Statements, func(s netfilter.Statement) bool { _, is := s.(*netfilter.Translate); return is })
				if translates && known && len(failing) == 0 {
					all = append(all, ruleRef(c, r)+" translates new connections only")
					break
				}
			}
		}
	}
	return all
}
