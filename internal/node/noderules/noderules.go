// Package noderules has the iptables rules that AKS's node image sets up beside Kubernetes' own: the masquerade rules in nat POSTROUTING of
// a node without an ip-masq-agent, and the rules in filter FORWARD that keep pods from Azure's wire server. It is pure.
package noderules

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/iptables"
)

// wireServer is the address of Azure's platform services, which know a VM only by its own address.
var wireServer = netip.MustParsePrefix("168.63.129.16/32")

// Rules are the node's rules by the chain that they are appended to.
type Rules struct {
	Postrouting []iptables.Rule // nat POSTROUTING
	Forward     []iptables.Rule // filter FORWARD
}

// Tables returns the tables that hold the rules.
func (r Rules) Tables() (tables []string) {
	if len(r.Postrouting) > 0 {
		tables = append(tables, iptables.NAT)
	}
	if len(r.Forward) > 0 {
		tables = append(tables, iptables.Filter)
	}
	return tables
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

// Edit returns what a table lacks of the rules. The dump is iptables-save's of that table. In nat it also removes the masquerade rules of
// an agent that had other ranges.
func (r Rules) Edit(table string, dump []byte) iptables.Edit {
	if table == iptables.Filter {
		return iptables.Edit{Table: table, Append: missing(dump, forward, r.Forward)}
	}
	edit := iptables.Edit{Table: table, Append: missing(dump, postrouting, r.Postrouting)}
	if len(r.Postrouting) == 0 {
		return edit
	}
	for line := range strings.Lines(string(dump)) {
		text, in := strings.CutPrefix(strings.TrimSpace(line), "-A "+postrouting+" ")
		if rule, ok := iptables.ParseSpec(text); in && ok && isMasquerade(rule) && !slices.ContainsFunc(r.Postrouting, same(rule)) {
			edit.Remove = append(edit.Remove, iptables.SharedRule{Chain: postrouting, Rule: rule})
		}
	}
	return edit
}

// missing returns those of the rules that a chain in a dump does not have.
func missing(dump []byte, chain string, rules []iptables.Rule) (placed []iptables.SharedRule) {
	for _, r := range rules {
		if !strings.Contains(string(dump), "\n"+string(iptables.AppendRule(nil, chain, &r))+"\n") {
			placed = append(placed, iptables.SharedRule{Chain: chain, Rule: r})
		}
	}
	return placed
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

func hasKubenetComment(r iptables.Rule) bool {
	return slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		c, ok := m.Option("comment")
		return ok && m.Module == "comment" && slices.Equal(c.Args, []string{kubenetComment})
	})
}

const (
	postrouting = "POSTROUTING"
	forward     = "FORWARD"
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

// Signed says what the rules are there for, of Azure's nodes and of kubelet as well as ours.
func Signed() attribution.Writer {
	wire := wireServer.Addr().String()
	return attribution.Writer{
		Name: "node", File: "internal/node/noderules/noderules.go",
		Chains: append(attribution.In(iptables.NAT, attribution.Chain{Name: postrouting, For: "gives pods the node's address towards what is outside a range",
			Rules: []attribution.Line{
				{To: "MASQUERADE", Text: "! -o docker0", For: "Docker: its containers' network"},
				{To: "MASQUERADE", Comment: kubenetComment, Text: "! -d {range}", For: "kubenet: SNAT for destinations outside {range}"},
				{To: "MASQUERADE", Text: "! -d {range} -m iprange ! --dst-range " + wire + "-" + wire, For: "AKS node: destinations outside {range}"},
				{To: "MASQUERADE", Text: "! -d {range} *--dst-range " + wire + "-" + wire,
					For: "AKS node: destinations outside {range} and its other ranges"},
				{To: "MASQUERADE", Text: "! -d " + wireServer.String() + " *", For: "AKS node: destinations outside its ranges"},
			}}), attribution.In(iptables.Filter, attribution.Chain{Name: forward, For: "decides what the node forwards",
			Rules: []attribution.Line{
				{To: "DROP", Text: "-d " + wireServer.String() + " *--dport {port}",
					For: "AKS node: pods may not reach Azure's wire server, port {port}"},
			}})...),
	}
}
