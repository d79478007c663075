package ipmasq

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Names of the chains.
const (
	Chain       = "IP-MASQ-AGENT"
	postrouting = "POSTROUTING"
)

// ruleSetVersion is all that differs between the agents of different times, which are named after the service proxy's rule set of their
// time.
type ruleSetVersion struct {
	form Form
	// jump, local and outbound are the comments of the jump from POSTROUTING, of a RETURN and of the last rule.
	jump, local, outbound string
	// nonLocal: every rule of the chain looks once more that the destination is not the node's own.
	nonLocal bool
}

const (
	jumpComment     = "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom " + Chain + " chain"
	localComment    = "ip-masq-agent: local traffic is not subject to MASQUERADE"
	outboundComment = "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)"
)

// agent20 is kubernetes-incubator/ip-masq-agent v2.0, which the Part 5 article's cluster of Kubernetes 1.12 has.
var agent20 = ruleSetVersion{
	form:     FormV1,
	jump:     jumpComment,
	local:    "ip-masq-agent: cluster-local traffic should not be subject to MASQUERADE",
	outbound: "ip-masq-agent: outbound traffic should be subject to MASQUERADE (this match must come after cluster-local CIDR matches)",
	nonLocal: true,
}

var versions = map[string]ruleSetVersion{
	// Azure/ip-masq-agent-v2. It hands the jump's comment to iptables in quotes, which so are part of it.
	"current": {form: FormV2, jump: `"` + jumpComment + `"`, local: localComment, outbound: outboundComment},
	// kubernetes-sigs/ip-masq-agent v2.5, as AKS had it in 2020.
	"1.19": {form: FormV1, jump: jumpComment, local: localComment, outbound: outboundComment},
	"1.12": agent20,
	"1.11": agent20,
}

// AgentVersions returns the known versions.
func AgentVersions() []string { return slices.Sorted(maps.Keys(versions)) }

// FormOf returns the form of configuration that the agent of a version reads.
func FormOf(name string) (Form, error) {
	a, err := versionOf(name)
	return a.form, err
}

func versionOf(name string) (ruleSetVersion, error) {
	if a, ok := versions[name]; ok {
		return a, nil
	}
	return ruleSetVersion{}, fmt.Errorf("unknown version %q of ip-masq-agent; known: %s", name, strings.Join(AgentVersions(), ", "))
}

// Rule is one rule and the entries of the configuration that it is there for; none for those that every configuration, or the defaults,
// have.
type Rule struct {
	iptables.Rule
	From []Origin
}

// RuleSet is what table nat of one family is to hold.
type RuleSet struct {
	Jump  Rule   // at the end of POSTROUTING
	Chain []Rule // the chain IP-MASQ-AGENT
}

// Rules gives the rules of a configuration for one family.
func Rules(name string, f service.Family, c *Config) (*RuleSet, error) {
	a, err := versionOf(name)
	if err != nil {
		return nil, err
	}
	notLocal := iptables.Match{Module: "addrtype", Options: []iptables.Option{iptables.NotOpt("dst-type", "LOCAL")}}
	rule := func(to netip.Prefix, comment, target string, from []Origin) Rule {
		r := iptables.Rule{Matches: []iptables.Match{iptables.CommentMatch(comment)}, Target: iptables.Jump(target)}
		if to.IsValid() && to.Bits() > 0 { // of a rule for every destination the kernel keeps no -d
			r.Destination.Prefix = to
		}
		if a.nonLocal || target == Chain {
			r.Matches = append(r.Matches, notLocal)
		}
		return Rule{r, from}
	}
	set := &RuleSet{Jump: rule(netip.Prefix{}, a.jump, Chain, nil)}
	linkLocal, masqLinkLocal := linkLocal4, c.MasqLinkLocal
	if f == service.IPv6 {
		linkLocal, masqLinkLocal = linkLocal6, c.MasqLinkLocalIPv6
	}
	if !masqLinkLocal.On {
		set.Chain = append(set.Chain, rule(linkLocal, a.local, "RETURN", masqLinkLocal.From))
	}
	for _, r := range c.NonMasquerade {
		if f.Of(r.Prefix.Addr()) {
			set.Chain = append(set.Chain, rule(r.Prefix, a.local, "RETURN", r.From))
		}
	}
	set.Chain = append(set.Chain, rule(netip.Prefix{}, a.outbound, "MASQUERADE", nil))
	return set, nil
}

// Edit returns what brings table nat to the rule set, zero when it is there: one transaction, so that no packet ever meets the jump without
// the rules, or some of the rules. A chain that has the right rules is left alone, and so are their counters. Jumps to the chain that are
// not the right one, are there twice or stand before a rule of ahead give way to one at the end. nat is nil where there is no table yet.
func (s *RuleSet) Edit(nat *iptables.Table, ahead []iptables.Rule) iptables.Edit {
	edit := iptables.Edit{Table: iptables.NAT}
	var chain, from *iptables.Chain
	if nat != nil {
		chain, from = nat.Chain(Chain), nat.Chain(postrouting)
	}
	if !s.holds(chain) {
		c := iptables.Chain{Name: Chain}
		for _, r := range s.Chain {
			c.Rules = append(c.Rules, r.Rule)
		}
		edit.Replace = []iptables.Chain{c}
	}
	last := -1 // of the rules that are to stand ahead
	if from != nil {
		for i, r := range from.Rules {
			if slices.ContainsFunc(ahead, func(a iptables.Rule) bool { return a.Spec() == r.Spec() }) {
				last = i
			}
		}
	}
	jump := iptables.SharedRule{Chain: postrouting, Rule: s.Jump.Rule}
	stray, there := from.Settle(jump, func(i int) bool { return i > last })
	if edit.Remove = stray; !there {
		edit.Append = []iptables.SharedRule{jump}
	}
	return edit
}

// Remove removes the chain and every jump to it from table nat. It is zero where there is neither. nat may be nil.
func Remove(nat *iptables.Table) iptables.Edit {
	edit := iptables.Edit{Table: iptables.NAT}
	if nat == nil {
		return edit
	}
	for _, c := range nat.Chains {
		for _, r := range c.Rules {
			if r.Target.Name == Chain {
				r.Counters = nil
				edit.Remove = append(edit.Remove, iptables.SharedRule{Chain: c.Name, Rule: r})
			}
		}
	}
	if nat.Chain(Chain) != nil {
		edit.Delete = []string{Chain}
	}
	return edit
}

func (s *RuleSet) holds(chain *iptables.Chain) bool {
	return chain != nil && slices.EqualFunc(chain.Rules, s.Chain, func(a iptables.Rule, b Rule) bool { return a.Spec() == b.Spec() })
}
