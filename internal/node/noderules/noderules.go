// Package noderules has the iptables rules that AKS's node image sets up beside Kubernetes' own: the masquerade rules in nat POSTROUTING of
// a node without an ip-masq-agent, the rules in filter FORWARD that keep pods from Azure's wire server and Instance Metadata Service, and
// the rules in raw that keep queries to LocalDNS out of conntrack. It is pure.
package noderules

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/iptables"
)

// wireServer is the address of Azure's platform services, which know a VM only by its own address. metadata is the Instance Metadata
// Service's.
var (
	wireServer = netip.MustParsePrefix("168.63.129.16/32")
	metadata   = netip.MustParsePrefix("169.254.169.254/32")
)

// Rules are the node's rules by the chain that they are appended to.
type Rules struct {
	Postrouting []iptables.Rule // nat POSTROUTING
	Forward     []iptables.Rule // filter FORWARD
	Untracked   []iptables.Rule // raw OUTPUT, and the same in raw PREROUTING
	// OpenMetadata removes the rule of an IMDS restriction.
	OpenMetadata bool
}

// Tables returns the tables that hold the rules.
func (r Rules) Tables() (tables []string) {
	if len(r.Postrouting) > 0 {
		tables = append(tables, iptables.NAT)
	}
	if len(r.Forward) > 0 || r.OpenMetadata {
		tables = append(tables, iptables.Filter)
	}
	if len(r.Untracked) > 0 {
		tables = append(tables, iptables.Raw)
	}
	return tables
}

const restrictionComment = "AKS managed: added by AgentBaker ensureIMDSRestriction for IMDS restriction feature"

// RestrictMetadata drops what pods send to the Instance Metadata Service (AgentBaker: ensure_imds_restriction.sh). The node is the node's
// primary address.
func RestrictMetadata(node netip.Addr) iptables.Rule {
	from := iptables.Host(node)
	from.Not = true
	return iptables.Rule{
		Source: from, Destination: iptables.AddressMatch{Prefix: metadata}, Protocol: iptables.NameMatch{Name: "tcp"},
		Matches: []iptables.Match{
			{Module: "tcp", Options: []iptables.Option{iptables.Opt("dport", "80")}}, iptables.CommentMatch(restrictionComment),
		},
		Target: iptables.Jump("DROP"),
	}
}

// SkipConntrack keeps DNS queries to LocalDNS's addresses out of conntrack, over TCP and UDP (AgentBaker: localdns.sh).
func SkipConntrack(listeners ...netip.Addr) (rules []iptables.Rule) {
	for _, a := range listeners {
		for _, protocol := range []string{"tcp", "udp"} {
			rules = append(rules, iptables.Rule{
				Destination: iptables.Host(a), Protocol: iptables.NameMatch{Name: protocol},
				Matches: []iptables.Match{
					iptables.CommentMatch("localdns: skip conntrack"),
					{Module: protocol, Options: []iptables.Option{iptables.Opt("dport", "53")}},
				},
				Target: iptables.Jump("NOTRACK"),
			})
		}
	}
	return rules
}

// WireServer drops what pods send to the ports of the wire server that give out a VM's settings and secrets: TCP 80 (HTTP) and 32526
// (HostGAPlugin), in the order in which the kernel has them on AKS's nodes (AgentBaker: block_wireserver.sh).
func WireServer() []iptables.Rule {
	var rules []iptables.Rule
	for _, port := range []string{"32526", "80"} {
		rules = append(rules, iptables.Rule{
			Destination: iptables.AddressMatch{Prefix: wireServer}, Protocol: iptables.NameMatch{Name: "tcp"},
			Matches: []iptables.Match{{Module: "tcp", Options: []iptables.Option{iptables.Opt("dport", port)}}},
			Target:  iptables.Jump("DROP"),
		})
	}
	return rules
}

// Masquerade returns an AKS node's own rules in nat POSTROUTING: docker0's, and the one that gives pods the node's address towards
// everything outside the excluded destinations. The wire server is always among those; the first one stands as -d, the others as ranges.
func Masquerade(exclude []netip.Prefix, docker netip.Prefix) []iptables.Rule {
	if len(exclude) == 0 {
		return nil
	}
	var rules []iptables.Rule
	if docker.IsValid() {
		rules = append(rules, Docker(docker))
	}
	outside := iptables.Rule{
		Destination: iptables.AddressMatch{Not: true, Prefix: exclude[0].Masked()},
		Target:      iptables.Jump("MASQUERADE"),
	}
	seen := map[netip.Prefix]bool{exclude[0].Masked(): true}
	for _, p := range append(exclude[1:len(exclude):len(exclude)], wireServer) {
		if p = p.Masked(); seen[p] {
			continue
		}
		seen[p] = true
		outside.Matches = append(outside.Matches, iptables.Match{Module: "iprange", Options: []iptables.Option{
			iptables.NotOpt("dst-range", p.Addr().String()+"-"+packet.LastOf(p).String()),
		}})
	}
	outside.Matches = append(outside.Matches, iptables.Match{Module: "addrtype", Options: []iptables.Option{iptables.NotOpt("dst-type",
		"LOCAL")}})
	return append(rules, outside)
}

// Docker returns Docker's masquerade rule for its containers' range.
func Docker(docker netip.Prefix) iptables.Rule {
	return iptables.Rule{
		Source: iptables.AddressMatch{Prefix: docker.Masked()},
		Out:    iptables.NameMatch{Not: true, Name: "docker0"},
		Target: iptables.Jump("MASQUERADE"),
	}
}

const kubenetComment = "kubenet: SNAT for outbound traffic from cluster"

// Kubenet returns kubelet's rule with the network plugin kubenet (pkg/kubelet/dockershim/network/kubenet upstream, ensureMasqRule), which
// has none when its --non-masquerade-cidr is 0.0.0.0/0.
func Kubenet(exclude netip.Prefix) iptables.Rule {
	return iptables.Rule{
		Destination: iptables.AddressMatch{Not: true, Prefix: exclude.Masked()},
		Matches: []iptables.Match{
			iptables.CommentMatch(kubenetComment),
			{Module: "addrtype", Options: []iptables.Option{iptables.NotOpt("dst-type", "LOCAL")}},
		},
		Target: iptables.Jump("MASQUERADE"),
	}
}

// Edit returns what a table lacks of the rules. The dump is iptables-save's of that table. It removes the masquerade rules of an agent that
// had other ranges, and an IMDS restriction that is off or of another address.
func (r Rules) Edit(table string, dump []byte) iptables.Edit {
	edit := iptables.Edit{Table: table}
	switch table {
	case iptables.Raw:
		edit.Append = append(missing(dump, output, r.Untracked), missing(dump, prerouting, r.Untracked)...)
	case iptables.Filter:
		restricts := r.OpenMetadata || slices.ContainsFunc(r.Forward, isRestriction)
		edit.Append = missing(dump, forward, r.Forward)
		own := func(rule iptables.Rule) bool { return slices.ContainsFunc(r.Forward, same(rule)) }
		edit.Remove = among(dump, forward, func(rule iptables.Rule) bool {
			return restricts && isRestriction(rule) && !own(rule) || len(edit.Append) > 0 && own(rule) // to stand in order behind the missing ones
		})
		if len(edit.Append) > 0 {
			edit.Append = placed(forward, r.Forward)
		}
	case iptables.NAT:
		edit.Append = missing(dump, postrouting, r.Postrouting)
		edit.Remove = among(dump, postrouting, func(rule iptables.Rule) bool {
			return len(r.Postrouting) > 0 && isMasquerade(rule) && !slices.ContainsFunc(r.Postrouting, same(rule))
		})
	}
	return edit
}

// among returns those of a chain's rules in a dump that unwanted reports.
func among(dump []byte, chain string, unwanted func(iptables.Rule) bool) (rules []iptables.SharedRule) {
	for line := range strings.Lines(string(dump)) {
		text, in := strings.CutPrefix(strings.TrimSpace(line), "-A "+chain+" ")
		if rule, ok := iptables.ParseSpec(text); in && ok && unwanted(rule) {
			rules = append(rules, iptables.SharedRule{Chain: chain, Rule: rule})
		}
	}
	return rules
}

func placed(chain string, rules []iptables.Rule) (all []iptables.SharedRule) {
	for _, r := range rules {
		all = append(all, iptables.SharedRule{Chain: chain, Rule: r})
	}
	return all
}

// missing returns those of the rules that a chain in a dump does not have.
func missing(dump []byte, chain string, rules []iptables.Rule) []iptables.SharedRule {
	return placed(chain, slices.DeleteFunc(slices.Clone(rules), func(r iptables.Rule) bool {
		return strings.Contains(string(dump), "\n"+string(iptables.AppendRule(nil, chain, &r))+"\n")
	}))
}

// RemoveKubenet removes the rules that Kubenet makes from table nat. It is zero where there are none. nat may be nil.
func RemoveKubenet(nat *iptables.Table) iptables.Edit {
	edit := iptables.Edit{Table: iptables.NAT}
	if nat == nil {
		return edit
	}
	if c := nat.Chain(postrouting); c != nil {
		for _, r := range c.Rules {
			if hasKubenetComment(r) {
				r.Counters = nil
				edit.Remove = append(edit.Remove, iptables.SharedRule{Chain: postrouting, Rule: r})
			}
		}
	}
	return edit
}

func hasKubenetComment(r iptables.Rule) bool { return hasComment(r, kubenetComment) }

func isRestriction(r iptables.Rule) bool { return hasComment(r, restrictionComment) }

func hasComment(r iptables.Rule, text string) bool {
	return slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		c, ok := m.Option("comment")
		return ok && m.Module == "comment" && slices.Equal(c.Args, []string{text})
	})
}

const (
	postrouting = "POSTROUTING"
	forward     = "FORWARD"
	output      = "OUTPUT"
	prerouting  = "PREROUTING"
)

func same(r iptables.Rule) func(iptables.Rule) bool {
	return func(other iptables.Rule) bool { return r.Spec() == other.Spec() }
}

// isMasquerade reports whether Masquerade or Kubenet makes the rule for some range: by kubelet's comment, or by the wire server among the
// destinations that are left out.
func isMasquerade(r iptables.Rule) bool {
	if r.Target.Name != "MASQUERADE" || !r.Destination.Not {
		return false
	}
	if hasKubenetComment(r) {
		return true
	}
	wire := wireServer.Addr().String()
	for _, m := range r.Matches {
		if d, ok := m.Option("dst-range"); ok && d.Not && slices.Equal(d.Args, []string{wire + "-" + wire}) {
			return true
		}
	}
	return false
}

// Signed says what the rules are there for, of Azure's nodes and of kubelet as well as ours. With Cilium, which rewrites table filter, the
// IMDS restriction stands in mangle. Rules of LocalDNS have a writer of their own (explain/foreign).
func Signed() attribution.Writer {
	wire := wireServer.Addr().String()
	restriction := attribution.Line{To: "DROP", Comment: restrictionComment, Text: "! -s {node}/32 *",
		For: "AKS node: pods may not reach the Instance Metadata Service (IMDS restriction)"}
	chain := func(table, name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: table, Name: name, For: purpose, Rules: rules}
	}
	const probes = "azureSLBProbe"
	return attribution.Writer{
		Name: "node", File: "internal/node/noderules/noderules.go",
		Chains: []attribution.Chain{
			chain(iptables.NAT, postrouting, "gives pods the node's address towards what is outside a range",
				attribution.Line{To: "MASQUERADE", Text: "! -o docker0", For: "Docker: its containers' network"},
				attribution.Line{To: "MASQUERADE", Comment: kubenetComment, Text: "! -d {range}", For: "kubenet: SNAT for destinations outside {range}"},
				attribution.Line{To: "MASQUERADE", Text: "! -d {range} -m iprange ! --dst-range " + wire + "-" + wire,
					For: "AKS node: destinations outside {range}"},
				attribution.Line{To: "MASQUERADE", Text: "! -d {range} *--dst-range " + wire + "-" + wire,
					For: "AKS node: destinations outside {range} and its other ranges"},
				attribution.Line{To: "MASQUERADE", Text: "! -d " + wireServer.String() + " *", For: "AKS node: destinations outside its ranges"}),
			chain(iptables.Filter, forward, "decides what the node forwards",
				attribution.Line{To: "DROP", Text: "-d " + wireServer.String() + " *--dport {port}",
					For: "AKS node: pods may not reach Azure's wire server, port {port}"},
				restriction),
			chain(iptables.Mangle, forward, "decides what the node forwards", restriction),
			chain(probes, "prerouting", "probes of Azure's load balancer over IPv6, whose source is link-local",
				attribution.Line{To: "accept", Text: "icmpv6 type *", For: "AKS node: neighbour discovery keeps its addresses"},
				attribution.Line{Text: "ip6 saddr set {address} *", For: "AKS node: a probe of Azure's load balancer gets the source {address}, which pods can answer"}),
			chain(probes, "postrouting", "answers to these probes",
				attribution.Line{Text: "ip6 daddr set {address} *", For: "AKS node: the answer to a probe of Azure's load balancer goes to {address}"}),
		},
	}
}
