package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"packetwalk.dev/internal/answer/explain/foreign"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// signatures are what the writers of rules say of them, with what the objects of a cluster add.
type signatures struct {
	*attribution.Book
	mu   sync.Mutex
	said map[*netfilter.Chain]attribution.Fields // what all rules of a chain that is one thing's say
	// numbered are the rules of policies in chains.
	numbered map[*netfilter.Chain]policyRules
}

// policyRules are the numbers of a policy's rules, by the rules of its chain.
type policyRules struct {
	numbers []int
	count   int
}

func sign(o *Owners) *signatures {
	s := &signatures{Book: &attribution.Book{}, said: map[*netfilter.Chain]attribution.Fields{},
		numbered: map[*netfilter.Chain]policyRules{}}
	if o.book != nil {
		s.Writers = o.book.Writers
	}
	s.Name = func(endpoint string) string {
		end, _ := netip.ParseAddrPort(endpoint)
		owner, _ := o.Address(end.Addr(), 0, 0)
		return owner.String()
	}
	return s
}

func family(c *netfilter.Chain) attribution.Family {
	if c.Table.Family == netfilter.Bridge {
		return attribution.Bridge
	}
	return attribution.IP
}

// role returns what there is to know of a chain; none for an unknown chain, or none.
func (s *signatures) role(c *netfilter.Chain) attribution.Role {
	if c == nil || c.Table == nil {
		return attribution.NoRole
	}
	if of := s.Chain(family(c), c.Table.Name, c.Name); of != nil {
		return of.Role
	}
	return attribution.NoRole
}

// pattern returns the writer's name for all chains like this one, its own name where there is none.
func (s *signatures) pattern(c *netfilter.Chain) string {
	if of := s.Chain(family(c), c.Table.Name, c.Name); of != nil {
		return of.Name
	}
	return c.Name
}

// commonFields returns the fields of what a chain was made for: those that no two of its rules differ in. Chains with a name that stands
// for nothing have none.
func (s *signatures) commonFields(c *netfilter.Chain) attribution.Fields {
	if c == nil || !strings.Contains(s.pattern(c), "{") {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all, known := s.said[c]
	if known {
		return all
	}
	all = attribution.Fields{}
	differ := map[string]bool{}
	for i := range c.Rules {
		for k, v := range s.Said(&attribution.Rule{Family: family(c), Table: c.Table.Name, Chain: c.Name, Text: c.Rules[i].Text,
			Comment: comment(&c.Rules[i])}) {
			before, said := all[k]
			differ[k] = differ[k] || said && before != v
			all[k] = v
		}
	}
	for k := range differ {
		if differ[k] {
			delete(all, k)
		}
	}
	s.said[c] = all
	return all
}

// policies returns the chains of the policies that a chain asks before a rule, in its order, those of the groups that it leads to included.
// Those of earlier tiers are left out: before a rule that drops what no policy allowed, or that begins a tier. There are none in other
// chains.
func (s *signatures) policies(c *netfilter.Chain, before *netfilter.Rule) (asked []*netfilter.Chain) {
	if s.role(c) != attribution.PolicyList {
		return nil
	}
	add := func(to *netfilter.Chain) {
		if s.policy(to) != "" {
			asked = append(asked, to)
		}
	}
	for i := range c.Rules {
		switch rule := &c.Rules[i]; {
		case rule == before:
			return asked
		case drops(rule), foreign.BeginsTier(comment(rule)):
			asked = nil
		default:
			for _, to := range jumps(rule) {
				add(to)
				if s.role(to) == attribution.PolicyList {
					for j := range to.Rules {
						for _, grouped := range jumps(&to.Rules[j]) {
							add(grouped)
						}
					}
				}
			}
		}
	}
	return asked
}

// jumps returns the chains to which a rule leads.
func jumps(r *netfilter.Rule) (to []*netfilter.Chain) {
	for _, statement := range r.Statements {
		if jump, ok := statement.(*netfilter.JumpTo); ok && jump.Chain != nil {
			to = append(to, jump.Chain)
		}
	}
	return to
}

// drops reports whether a rule drops what it applies to.
func drops(r *netfilter.Rule) bool {
	return slices.ContainsFunc(r.Statements, func(s netfilter.Statement) bool {
		d, ok := s.(*netfilter.Decision)
		return ok && d.Kind == netfilter.Drop
	})
}

// policy returns the name of the policy that a chain was made for, "" for none.
func (s *signatures) policy(c *netfilter.Chain) string {
	return foreign.PolicyName(s.commonFields(c)["policy"])
}

// reasoner gives rules their reasons, in the order in which a packet meets them: what a rule says holds in the chain that it leads to.
type reasoner struct {
	owners *Owners
	*signatures
	called map[*netfilter.Chain]attribution.Fields // by the last jump to a chain
	drawn  map[*netfilter.Rule]string              // numbers that rules had drawn by chance
}

func newReasoner(o *Owners) *reasoner {
	return &reasoner{owners: o, signatures: o.signatures(), called: map[*netfilter.Chain]attribution.Fields{}, drawn: map[*netfilter.Rule]string{}}
}

// reason returns why a rule of a host, or a chain's policy, exists and which component writes such rules. For a rule that no writer signs,
// it returns the comment. p is the packet as the rule left it.
func (t *reasoner) reason(host string, v *netfilter.Visit, p *packet.Packet) attribution.Reason {
	c, to := v.Chain, v.Verdict.Chain
	if c.Table == nil {
		return attribution.Reason{For: comment(v.Rule)}
	}
	r := attribution.Rule{
		Family: family(c), Table: c.Table.Name, Chain: c.Name, Comment: comment(v.Rule), Text: "policy " + v.Verdict.Kind.String(),
		Passed: v.Verdict.Kind == netfilter.Break, Source: p.Source, Destination: p.Destination, Known: attribution.Fields{},
	}
	r.Protocol = strings.ToLower(p.Protocol.String())
	if to := p.DestinationPort; to.Low == to.High {
		r.Port = to.Number
	}
	if v.Rule != nil {
		r.Text, r.Drawn = v.Rule.Text, t.drawn[v.Rule]
	}
	for _, change := range v.Changes {
		switch change.Field {
		case "source":
			r.Source = endAddress(change.From)
		case "destination":
			r.Translated = change.To
		}
	}
	t.owners.addService(&r)
	if host != "" {
		r.Known["machine"] = hostName(host)
	}
	if e := v.Verdict.Element; e != nil {
		if r.Known["element"] = e.Comment; v.Verdict.Kind == netfilter.Drop {
			r.To = "drop"
		}
	}
	for _, fields := range []attribution.Fields{t.commonFields(to), t.commonFields(c), t.called[c]} {
		for k, v := range fields {
			if _, known := r.Known[k]; !known {
				r.Known[k] = v
			}
		}
	}
	if v.Rule != nil && t.policy(c) != "" {
		if n, of := t.policyRule(c, v.Rule); n > 0 { // of Calico's; others number none
			r.Known["number"], r.Known["rules"] = strconv.Itoa(n), strconv.Itoa(of)
		}
	}
	if asked := t.policies(c, v.Rule); len(asked) > 0 {
		var names []string
		for _, policy := range asked {
			names = append(names, t.policy(policy))
		}
		r.Known["policies"] = inWords("policy", "policies", names)
		r.Known["flow"] = flow(p)
		r.Known["sender"], r.Known["receiver"] = t.end(p.Source, p), t.end(p.Destination, p)
	}
	if to != nil {
		r.To = to.Name
	}
	why, ok := t.Sign(&r)
	if !ok {
		why = attribution.Reason{For: r.Comment, Fields: r.Known}
	}
	if to != nil {
		t.called[to] = why.Fields
	}
	return why
}

// RuleReason returns why a rule exists and which component writes such rules, as far as the rule set and Kubernetes objects say it, whatever
// packet meets it. For a rule that no writer signs, it returns the comment.
func (o *Owners) RuleReason(c *netfilter.Chain, rule *netfilter.Rule) attribution.Reason {
	s := o.signatures()
	r := attribution.Rule{
		Family: family(c), Table: c.Table.Name, Chain: c.Name, Comment: comment(rule), Text: rule.Text, Known: attribution.Fields{},
	}
	var to *netfilter.Chain
	if all := jumps(rule); len(all) == 1 {
		to, r.To = all[0], all[0].Name
	}
	for _, fields := range []attribution.Fields{s.commonFields(to), s.commonFields(c)} {
		for k, v := range fields {
			if _, known := r.Known[k]; !known {
				r.Known[k] = v
			}
		}
	}
	if why, ok := s.Sign(&r); ok {
		return why
	}
	writer, _ := o.ChainPurpose(c)
	return attribution.Reason{Writer: writer, For: r.Comment}
}

// ChainPurpose returns who writes a chain, and what it is there for; "" where that is unknown.
func (o *Owners) ChainPurpose(c *netfilter.Chain) (writer, purpose string) {
	return o.signatures().Describe(family(c), c.Table.Name, c.Name)
}

// Jumps returns the chains to which a rule leads.
func Jumps(r *netfilter.Rule) []*netfilter.Chain { return jumps(r) }

// policyRule returns which of a policy's rules a rule of its chain belongs to, and how many the chain has; 0 for none.
func (s *signatures) policyRule(c *netfilter.Chain, rule *netfilter.Rule) (n, of int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, known := s.numbered[c]
	if !known {
		texts := make([]string, len(c.Rules))
		for i := range c.Rules {
			texts[i] = c.Rules[i].Text
		}
		all.numbers, all.count = foreign.PolicyRules(texts)
		s.numbered[c] = all
	}
	for i := range c.Rules {
		if &c.Rules[i] == rule {
			return all.numbers[i], all.count
		}
	}
	return 0, all.count
}

// mostPolicies is the most policies that one reason names.
const mostPolicies = 8

// inWords returns "policy a", or "policies a, b and c", of many the first.
func inWords(one, several string, names []string) string {
	last := len(names) - 1
	switch {
	case last == 0:
		return one + " " + names[0]
	case last >= mostPolicies:
		return fmt.Sprintf("%s %s and %d more", several, strings.Join(names[:mostPolicies], ", "), len(names)-mostPolicies)
	}
	return several + " " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// flow returns "tcp 5432", or the protocol alone where a packet has no known port.
func flow(p *packet.Packet) string {
	if to := p.DestinationPort; to.Low == to.High && to.Number != 0 {
		return fmt.Sprintf("%s %d", p.Protocol, to.Number)
	}
	return p.Protocol.String()
}

// end returns the owner of an address, or the address where the owner is unknown.
func (t *reasoner) end(a netip.Addr, p *packet.Packet) string {
	if owner, ok := t.owners.Address(a, p.Protocol, 0); ok && owner.Kind != "fabric" {
		return owner.String()
	}
	return a.String()
}

// why returns the reason in words; "" where it is unknown.
func (t *reasoner) why(host string, v *netfilter.Visit, p *packet.Packet) string {
	return t.reason(host, v, p).For
}

// endAddress returns the address of an end as packet prints it.
func endAddress(s string) netip.Addr {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a
	}
	if i := strings.LastIndexByte(s, ':'); i > 0 { // a port that is a span
		a, _ := netip.ParseAddr(strings.Trim(s[:i], "[]"))
		return a
	}
	return netip.Addr{}
}
