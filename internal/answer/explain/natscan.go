package explain

import (
	"cmp"
	"slices"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
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
			text := ref + " does not apply" + paren(cmp.Or(p.why(v, p.packet), ruleWithoutComments(r)))
			p.exemptions = append(p.exemptions, exemption{p.host, ref, text, atStep(p.at) + 1, onHost(p.host, ref)})
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
