package ippool

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/ipset"
	"packetwalk.dev/internal/syntax/iptables"
)

// The chains of felix's nat table that have to do with pools. cali-fip-snat and cali-fip-dnat are for OpenStack's floating addresses, and
// empty with Kubernetes.
const (
	chainPrerouting  = "cali-PREROUTING"
	chainOutput      = "cali-OUTPUT"
	chainPostrouting = "cali-POSTROUTING"
	chainNATOutgoing = "cali-nat-outgoing"
	chainFIPDNAT     = "cali-fip-dnat"
	chainFIPSNAT     = "cali-fip-snat"
)

// Member is one range of a set.
type Member struct {
	Prefix netip.Prefix
	Pools  []string // whose it is: one, or several with the same range; sorted
}

// Set is an IP set of type hash:net.
type Set struct {
	Name    string
	Family  service.Family
	Members []Member // sorted by their ranges
}

// The size of felix's sets: what a new hash:net starts with, and felix's maxIpsetSize.
const (
	hashSize = 1024
	maxElem  = 1 << 20
)

// IPSet is the set in the syntax of ipset(8).
func (s Set) IPSet() ipset.Set {
	family := "inet"
	if s.Family == service.IPv6 {
		family = "inet6"
	}
	out := ipset.Set{Name: s.Name, Type: "hash:net", Options: fmt.Sprintf("family %s hashsize %d maxelem %d", family, hashSize, maxElem)}
	for _, m := range s.Members {
		element := m.Prefix.String()
		if m.Prefix.IsSingleIP() {
			element = m.Prefix.Addr().String() // as ipset prints it
		}
		out.Members = append(out.Members, ipset.Member{Element: element})
	}
	return out
}

// Rule is a rule and the pools that it is there for; none for those that every node with Calico has.
type Rule struct {
	iptables.Rule
	Pools []string
}

// Chain is one of felix's chains.
type Chain struct {
	Name  string
	Rules []Rule
}

// Plan is what a node has for its pools, in one family's nat table.
type Plan struct {
	Family service.Family
	All    Set // every pool: destinations that see a pod's own address
	Masq   Set // the pools with natOutgoing: sources that are masqueraded elsewhere
	Chains []Chain
	Jumps  []iptables.Placed // one in each of the kernel's chains
	Append bool              // the jumps stand at the end of their chains, otherwise at the head
}

// Build plans a family's sets and chains. Pools without a usable range are left out; their order does not matter.
func Build(family service.Family, felix Felix, pools []Pool) Plan {
	all := newSet(family, "all-ipam-pools", pools)
	masq := newSet(family, "masq-ipam-pools", slices.DeleteFunc(slices.Clone(pools), func(p Pool) bool { return !p.NATOutgoing }))
	p := Plan{Family: family, All: all, Masq: masq, Append: felix.Append}
	to := func(chain string) Rule { return Rule{Rule: iptables.Rule{Target: iptables.Jump(chain)}} }
	outgoing := Chain{Name: chainNATOutgoing}
	if names := masq.pools(); len(names) > 0 {
		outgoing.Rules = []Rule{{masquerade(masq.Name, all.Name), names}}
	}
	p.Chains = []Chain{
		{chainPrerouting, []Rule{to(chainFIPDNAT)}},
		{chainOutput, []Rule{to(chainFIPDNAT)}},
		{chainPostrouting, []Rule{to(chainFIPSNAT), to(chainNATOutgoing)}},
		outgoing,
		{Name: chainFIPDNAT},
		{Name: chainFIPSNAT},
	}
	for i := range p.Chains {
		comment(p.Chains[i].Name, p.Chains[i].Rules)
	}
	for _, j := range []struct{ from, to string }{{"PREROUTING", chainPrerouting}, {"OUTPUT", chainOutput},
		{"POSTROUTING", chainPostrouting}} {
		jump := []Rule{to(j.to)}
		comment(j.from, jump)
		p.Jumps = append(p.Jumps, iptables.Placed{Chain: j.from, Rule: jump[0].Rule})
	}
	return p
}

// newSet names a set as felix does: "cali", the family, "0" for a set that is not being filled, and what it is (felix/ipsets/defs.go).
func newSet(family service.Family, id string, pools []Pool) Set {
	s := Set{Name: fmt.Sprintf("cali%d0%s", family, id), Family: family}
	sorted := slices.Clone(pools)
	slices.SortFunc(sorted, func(a, b Pool) int {
		if c := a.CIDR.Compare(b.CIDR); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, p := range sorted {
		if !p.CIDR.IsValid() || !family.Of(p.CIDR.Addr()) {
			continue
		}
		if n := len(s.Members); n == 0 || s.Members[n-1].Prefix != p.CIDR {
			s.Members = append(s.Members, Member{Prefix: p.CIDR})
		}
		last := &s.Members[len(s.Members)-1]
		if !slices.Contains(last.Pools, p.Name) {
			last.Pools = append(last.Pools, p.Name)
		}
	}
	return s
}

func (s Set) pools() []string {
	var names []string
	for _, m := range s.Members {
		names = append(names, m.Pools...)
	}
	slices.Sort(names)
	return names
}

func masquerade(sources, exceptTo string) iptables.Rule {
	return iptables.Rule{
		Matches: []iptables.Match{
			{Module: "set", Options: []iptables.Option{iptables.Opt("match-set", sources, "src")}},
			{Module: "set", Options: []iptables.Option{iptables.NotOpt("match-set", exceptTo, "dst")}},
		},
		Target: iptables.Jump("MASQUERADE", iptables.Opt("random-fully")),
	}
}

// comment puts felix's hash in front of each rule of a chain. A rule's hash covers the chain's name and all rules up to it, each as felix
// writes it before it knows the hash (felix/iptables/rules.go).
func comment(chain string, rules []Rule) {
	sum := sha256.Sum224([]byte(chain))
	for i := range rules {
		r := &rules[i].Rule
		text := "-A " + chain + " HASH " + strings.Replace(r.Spec(), "-j ", "--jump ", 1)
		sum = sha256.Sum224(append(sum[:], text...))
		hash := base64.RawURLEncoding.EncodeToString(sum[:])[:16]
		r.Matches = append([]iptables.Match{iptables.CommentMatch("cali:" + hash)}, r.Matches...)
	}
}
