package vnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// What a load balancing rule does with new flows is written here, once: as data. The fabric's rules (nft.go, idle.go, internal.go) and the
// walk's statements (armview) are made from it.

// BalancingRule says what a load balancing rule does with new flows to its front end, protocol and port: one of its back ends gets them,
// with floating IP as they are, else with the back end's address and port as destination. Without a back end that is up they are dropped.
type BalancingRule struct {
	Balancer *LoadBalancer
	Rule     Rule
	Frontend Frontend
	Backends []Backend
}

// Backend is a member of a back-end pool.
type Backend struct {
	NIC     string // name
	Link    string // the NIC's end in the fabric
	Mark    int    // the NIC's number in the fabric: its routing table's, and the mark of connections to it
	Address netip.Addr
	Up      bool   // it gets new flows
	Denied  string // which security rule denies its probe, "" for none
	Unknown string // what is not known of it, "" for nothing
}

// Balancing returns what a load balancer's rules do, by the rules' names.
func (lb *LoadBalancer) Balancing(backends func(Rule) []Backend) []BalancingRule {
	var all []BalancingRule
	for _, r := range sortedBy(lb.Rules, func(r Rule) string { return r.Name }) {
		f, _ := find(lb.Frontends, func(f Frontend) bool { return f.Name == r.Frontend })
		all = append(all, BalancingRule{lb, r, f, backends(r)})
	}
	return all
}

// balancing returns what the rules of all load balancers do.
func (n *Network) balancing(h Health) []BalancingRule {
	var all []BalancingRule
	for i := range n.LoadBalancers {
		lb := &n.LoadBalancers[i]
		all = append(all, lb.Balancing(func(r Rule) []Backend {
			var backends []Backend
			for _, m := range lb.poolMembers(*n, r.BackendPool) {
				probe := ProbeTarget{lb.Name, r.Probe, m.ref}
				b := Backend{NIC: m.nic.Name, Link: m.nic.Link(), Mark: m.nic.ID, Address: m.address, Up: r.Probe == "" || h[probe]}
				if d, denied := n.ProbeDenial(probe); denied && !b.Up {
					b.Denied = fmt.Sprintf("%s the probe of %s", d, m.nic.Machine)
				}
				backends = append(backends, b)
			}
			return backends
		})...)
	}
	return all
}

// Up returns the back ends that get new flows.
func (b BalancingRule) Up() []Backend {
	return slices.DeleteFunc(slices.Clone(b.Backends), func(m Backend) bool { return !m.Up })
}

// distributions are the fields that choose a back end, as nft writes them, and in words.
var distributions = map[string]struct{ fields, words string }{
	DistributionDefault:          {"ip saddr . ip daddr . ip protocol . th sport . th dport", "the flow"},
	DistributionSourceIP:         {"ip saddr . ip daddr", "the flow's addresses"},
	DistributionSourceIPProtocol: {"ip saddr . ip daddr . ip protocol", "the flow's addresses and protocol"},
}

// ChosenBy says by what a new flow gets its back end.
func (r Rule) ChosenBy() string {
	return distributions[cmp.Or(r.LoadDistribution, DistributionDefault)].words
}

// hash chooses a back end that is up. The seed is fixed, so that source affinity outlives a change of the rules.
func (b BalancingRule) hash() string {
	fields := distributions[cmp.Or(b.Rule.LoadDistribution, DistributionDefault)].fields
	return fmt.Sprintf("jhash %s mod %d seed 0x617a", fields, len(b.Up()))
}

func (b BalancingRule) id() string { return b.Balancer.Name + "/" + b.Rule.Name }

func (b BalancingRule) chain() string { return "rule/" + nftName(b.id()) }

func (b BalancingRule) l4() string { return strings.ToLower(b.Rule.Protocol) }

func (b BalancingRule) protocol() uint8 {
	if b.Rule.Protocol == ProtocolUDP {
		return 17
	}
	return 6
}

// NoBackEnd is why a rule without a back end that is up drops.
const NoBackEnd = "no back end is up"

// maxComment is the most bytes of a rule's comment that nft takes (NFTNL_UDATA_COMMENT_MAXLEN, with its end).
const maxComment = 127

// whyDown returns that reason, with the first security rule that denies a probe where there is room for its name.
func (b BalancingRule) whyDown() string {
	m, denied := find(b.Backends, func(m Backend) bool { return m.Denied != "" })
	if why := NoBackEnd + ": " + m.Denied; denied && len(why) <= maxComment {
		return why
	}
	return NoBackEnd
}
