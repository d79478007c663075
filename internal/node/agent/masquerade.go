package agent

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/serviceproxy"
	"packetwalk.dev/internal/syntax/iptables"
)

// wireServer is the address of Azure's platform services, which know a VM only by its own address.
var wireServer = netip.MustParsePrefix("168.63.129.16/32")

// masqueradeRules are an AKS node's own rules in nat POSTROUTING: docker0's, and the one that gives pods the node's address towards
// everything outside the excluded destinations. The wire server is always among those; the first one stands as -d, the others as ranges.
func masqueradeRules(exclude []netip.Prefix, docker netip.Prefix) []iptables.Rule {
	if len(exclude) == 0 {
		return nil
	}
	var rules []iptables.Rule
	if docker.IsValid() {
		rules = append(rules, dockerRule(docker))
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
			iptables.NotOpt("dst-range", p.Addr().String()+"-"+lastAddr(p).String()),
		}})
	}
	outside.Matches = append(outside.Matches, iptables.Match{Module: "addrtype", Options: []iptables.Option{iptables.NotOpt("dst-type", "LOCAL")}})
	return append(rules, outside)
}

// dockerRule is what Docker gives its containers' range.
func dockerRule(docker netip.Prefix) iptables.Rule {
	return iptables.Rule{
		Source: iptables.AddressMatch{Prefix: docker.Masked()},
		Out:    iptables.NameMatch{Not: true, Name: "docker0"},
		Target: iptables.Jump("MASQUERADE"),
	}
}

const kubenetComment = "kubenet: SNAT for outbound traffic from cluster"

// kubenetRule is kubelet's with the network plugin kubenet (pkg/kubelet/dockershim/network/kubenet upstream, ensureMasqRule), which has none when its
// --non-masquerade-cidr is 0.0.0.0/0.
func kubenetRule(exclude netip.Prefix) iptables.Rule {
	return iptables.Rule{
		Destination: iptables.AddressMatch{Not: true, Prefix: exclude.Masked()},
		Matches: []iptables.Match{
			iptables.CommentMatch(kubenetComment),
			{Module: "addrtype", Options: []iptables.Option{iptables.NotOpt("dst-type", "LOCAL")}},
		},
		Target: iptables.Jump("MASQUERADE"),
	}
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// ensureMasquerade appends those of the rules that nat POSTROUTING does not have, takes out those of an agent that had other ranges, and tells
// how many it appended.
func ensureMasquerade(ctx context.Context, applier serviceproxy.Applier, rules []iptables.Rule) (int, error) {
	if len(rules) == 0 {
		return 0, nil
	}
	dump, err := applier.Save(ctx, iptables.NAT)
	if err != nil {
		return 0, err
	}
	edit := iptables.Edit{Table: iptables.NAT}
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
	if edit.IsZero() {
		return 0, nil
	}
	return len(edit.Append), applier.Restore(ctx, iptables.AppendRestore(nil, []iptables.Edit{edit}))
}

const postrouting = "POSTROUTING"

func appended(r *iptables.Rule) string { return string(iptables.AppendRule(nil, postrouting, r)) }

// masquerades tells whether a rule is one that masqueradeRules or kubenetRule makes for some range: by kubelet's comment, or by the wire server
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
