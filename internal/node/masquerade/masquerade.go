// Package masquerade has a node's own rules in nat POSTROUTING, of a node without an ip-masq-agent: whose address destinations see. It is
// pure.
package masquerade

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/reason"
	"packetwalk.dev/internal/syntax/iptables"
)

// wireServer is the address of Azure's platform services, which know a VM only by its own address.
var wireServer = netip.MustParsePrefix("168.63.129.16/32")

// Rules are an AKS node's own rules in nat POSTROUTING: docker0's, and the one that gives pods the node's address towards
// everything outside the excluded destinations. The wire server is always among those; the first one stands as -d, the others as ranges.
func Rules(exclude []netip.Prefix, docker netip.Prefix) []iptables.Rule {
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

// Docker is what Docker gives its containers' range.
func Docker(docker netip.Prefix) iptables.Rule {
	return iptables.Rule{
		Source: iptables.AddressMatch{Prefix: docker.Masked()},
		Out:    iptables.NameMatch{Not: true, Name: "docker0"},
		Target: iptables.Jump("MASQUERADE"),
	}
}

const kubenetComment = "kubenet: SNAT for outbound traffic from cluster"

// Kubenet is kubelet's with the network plugin kubenet (pkg/kubelet/dockershim/network/kubenet upstream, ensureMasqRule), which has none
// when its --non-masquerade-cidr is 0.0.0.0/0.
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

// Edit appends those of the rules that nat POSTROUTING, in a dump of the table, does not have, and takes out those of an agent that had
// other ranges. It is zero where nothing is to be done.
func Edit(dump []byte, rules []iptables.Rule) iptables.Edit {
	edit := iptables.Edit{Table: iptables.NAT}
	if len(rules) == 0 {
		return edit
	}
	wanted := map[string]bool{}
	for _, r := range rules {
		text := appended(&r)
		wanted[text] = true
		if !strings.Contains(string(dump), "\n"+text+"\n") {
			edit.Append = append(edit.Append, iptables.Placed{Chain: postrouting, Rule: r})
		}
	}
	for line := range strings.Lines(string(dump)) {
		text, in := strings.CutPrefix(strings.TrimSpace(line), "-A "+postrouting+" ")
		if r, ok := iptables.ParseSpec(text); in && ok && masquerades(r) && !wanted[appended(&r)] {
			edit.Remove = append(edit.Remove, iptables.Placed{Chain: postrouting, Rule: r})
		}
	}
	return edit
}

const postrouting = "POSTROUTING"

func appended(r *iptables.Rule) string { return string(iptables.AppendRule(nil, postrouting, r)) }

// masquerades tells whether a rule is one that Rules or Kubenet makes for some range: by kubelet's comment, or by the wire server
// among the destinations that are left out.
func masquerades(r iptables.Rule) bool {
	if r.Target.Name != "MASQUERADE" || !r.Destination.Not {
		return false
	}
	wire := wireServer.Addr().String()
	for _, m := range r.Matches {
		if c, ok := m.Option("comment"); ok && m.Module == "comment" && slices.Equal(c.Args, []string{kubenetComment}) {
			return true
		}
		if d, ok := m.Option("dst-range"); ok && d.Not && slices.Equal(d.Args, []string{wire + "-" + wire}) {
			return true
		}
	}
	return false
}

// Signed says what the rules are there for, of Azure's nodes and of kubelet as well as ours.
func Signed() reason.Writer {
	wire := wireServer.Addr().String()
	return reason.Writer{
		Name: "node", File: "internal/node/masquerade/masquerade.go",
		Chains: reason.In(iptables.NAT, reason.Chain{Name: postrouting, For: "gives pods the node's address towards what is outside a range",
			Rules: []reason.Line{
				{To: "MASQUERADE", Text: "! -o docker0", For: "Docker: its containers' network"},
				{To: "MASQUERADE", Comment: kubenetComment, Text: "! -d {range}", For: "kubenet: SNAT for destinations outside {range}"},
				{To: "MASQUERADE", Text: "! -d {range} -m iprange ! --dst-range " + wire + "-" + wire, For: "AKS node: destinations outside {range}"},
				{To: "MASQUERADE", Text: "! -d {range} *--dst-range " + wire + "-" + wire,
					For: "AKS node: destinations outside {range} and its other ranges"},
				{To: "MASQUERADE", Text: "! -d " + wireServer.String() + " *", For: "AKS node: destinations outside its ranges"},
			}}),
	}
}
