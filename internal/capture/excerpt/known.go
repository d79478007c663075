package excerpt

import (
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// knownContents are chains whose rules are always the same: where the text has a chain of "for" (or a jump to it) and not the chain
// itself, it is filled in (kube-proxy pkg/proxy/iptables/proxier.go; kubelet pkg/kubelet/kubelet_network_linux.go; felix rules/nat.go).
var knownContents = []struct {
	table, chain string
	wanted       []place // any of these
	rules        []string
	meaning      string
}{
	{iptables.NAT, "KUBE-MARK-MASQ", []place{{iptables.NAT, "KUBE-MARK-MASQ"}}, []string{"-j MARK --set-xmark 0x4000/0x4000"},
		"taken as kube-proxy's, mark 0x4000"},
	{iptables.NAT, "KUBE-MARK-DROP", []place{{iptables.NAT, "KUBE-MARK-DROP"}}, []string{"-j MARK --set-xmark 0x8000/0x8000"},
		"taken as the kubelet's, mark 0x8000"},
	{iptables.NAT, "KUBE-POSTROUTING",
		[]place{{iptables.NAT, "KUBE-SERVICES"}, {iptables.NAT, "KUBE-MARK-MASQ"}, {iptables.NAT, "KUBE-POSTROUTING"}},
		[]string{`-m comment --comment "kubernetes service traffic requiring SNAT" -m mark --mark 0x4000/0x4000 -j MASQUERADE`},
		"taken as kube-proxy's, which masquerades what has mark 0x4000"},
	{iptables.Filter, "KUBE-FIREWALL", []place{{iptables.NAT, "KUBE-MARK-DROP"}, {iptables.Filter, "KUBE-FIREWALL"}},
		[]string{`-m comment --comment "kubernetes firewall for dropping marked packets" -m mark --mark 0x8000/0x8000 -j DROP`},
		"taken as the kubelet's, which drops what has mark 0x8000"},
	{iptables.NAT, "cali-POSTROUTING", []place{{iptables.NAT, "cali-nat-outgoing"}, {iptables.NAT, "cali-POSTROUTING"}},
		[]string{"-j cali-nat-outgoing"},
		"taken as Calico's, which leads to cali-nat-outgoing"},
}

// knownJumps are the rules that lead to well-known chains, for those that the text has and leads nowhere to. First ones go in front of all
// but Calico's, which felix keeps at the top; the others at the end, as their owners append them.
var knownJumps = []struct {
	table, from, rule string
	first             bool
}{
	{iptables.NAT, "PREROUTING", `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, true},
	{iptables.NAT, "OUTPUT", `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, true},
	{iptables.NAT, "KUBE-SERVICES",
		`-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`, false},
	{iptables.NAT, "POSTROUTING", `-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`, true},
	{iptables.NAT, "POSTROUTING", `-m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT`, false},
	{iptables.NAT, "POSTROUTING", `-j cali-POSTROUTING`, true},
	{iptables.Filter, "INPUT", `-j KUBE-FIREWALL`, true},
	{iptables.Filter, "OUTPUT", `-j KUBE-FIREWALL`, true},
	{iptables.Filter, "FORWARD", `-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, true},
	{iptables.Filter, "OUTPUT", `-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, true},
	{iptables.Filter, "INPUT", `-m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES`, true},
	{iptables.Filter, "FORWARD", `-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`, true},
}

// fillIn adds well-known chains that the text refers to and does not have, and the rules that lead to those that are there.
func (b *builder) fillIn() {
	for i := range knownContents {
		k := &knownContents[i]
		at := place{k.table, k.chain}
		if b.saved[k.table] || b.chains[at] != nil || !slices.ContainsFunc(k.wanted, b.mentioned) {
			continue
		}
		c := &built{known: true}
		for _, text := range k.rules {
			c.rules = append(c.rules, shown{rule: mustSpec(text)})
		}
		b.add(at, c)
		b.assumed = append(b.assumed, assumption{Kind: assumedContents, Table: k.table, Chains: []string{k.chain},
			Text: k.chain + " is not in the text: " + k.meaning})
	}
	from := map[place][]string{}
	var order []place
	for i := range knownJumps {
		k := &knownJumps[i]
		rule := mustSpec(k.rule)
		to, at := place{k.table, rule.Target.Name}, place{k.table, k.from}
		if b.saved[k.table] || b.chains[to] == nil || !b.addJump(at, rule, k.first) {
			continue
		}
		if from[to] == nil {
			order = append(order, to)
		}
		from[to] = append(from[to], k.from)
	}
	for _, to := range order {
		b.assumed = append(b.assumed, assumption{Kind: assumedJump, Table: to.table, Chains: []string{to.chain},
			Text: fmt.Sprintf("the way from %s to %s is not in the text: taken to be there", strings.Join(from[to], " and "), to.chain)})
	}
}

// mentioned tells whether a chain is there or jumped to.
func (b *builder) mentioned(at place) bool {
	if b.chains[at] != nil {
		return true
	}
	for other, c := range b.chains {
		if other.table == at.table && slices.ContainsFunc(c.rules, func(s shown) bool { return s.rule.Target.Name == at.chain }) {
			return true
		}
	}
	return false
}

// addJump puts a rule into a chain, unless the chain is shown whole or leads there already.
func (b *builder) addJump(at place, rule iptables.Rule, first bool) bool {
	c := b.chains[at]
	if c == nil {
		if !slices.Contains(iptables.BuiltIn(at.table), at.chain) {
			return false
		}
		c = &built{known: true}
		b.add(at, c)
	}
	if c.whole || slices.ContainsFunc(c.rules, func(s shown) bool { return s.rule.Target.Name == rule.Target.Name }) {
		return false
	}
	place := len(c.rules)
	if first {
		place = 0
		for !strings.HasPrefix(rule.Target.Name, "cali-") && place < len(c.rules) && strings.HasPrefix(c.rules[place].rule.Target.Name, "cali-") {
			place++
		}
	}
	c.rules = slices.Insert(slices.Clone(c.rules), place, shown{rule: rule})
	return true
}

// mustSpec reads a rule of this file.
func mustSpec(text string) iptables.Rule {
	r, ok := iptables.ParseSpec(text)
	if !ok {
		panic("not understood: " + text)
	}
	return r
}
