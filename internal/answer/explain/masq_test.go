package explain

import (
	"fmt"
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// masqObjects returns ConfigMaps of the ip-masq-agent.
func masqObjects(texts ...string) snapshot.Objects {
	var o snapshot.Objects
	for i, text := range texts {
		o.ConfigMaps = append(o.ConfigMaps,
			snapshot.ConfigMap{Namespace: "kube-system", Name: fmt.Sprintf("config-%d", i), Data: map[string]string{"ip-masq-agent": text}})
	}
	return o
}

// TestMasqOutside checks the reason why the ip-masq-agent translates a destination: it is in none of the agent's ranges. A destination that
// should be in a range gets a different reason.
func TestMasqOutside(t *testing.T) {
	for name, test := range map[string]struct {
		objects snapshot.Objects
		want    string
	}{
		"nothing known": {snapshot.Objects{}, "outside nonMasqueradeCIDRs"},
		"outside":       {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16]"), "outside nonMasqueradeCIDRs of ConfigMap kube-system/config-0"},
		"emptied":       {masqObjects("nonMasqueradeCIDRs: []"), "nonMasqueradeCIDRs is empty in ConfigMap kube-system/config-0"},
		"not applied": {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16]", "nonMasqueradeCIDRs: [10.1.0.0/16, ten]"),
			"outside the nonMasqueradeCIDRs in force; the present configuration is not applied (ConfigMap kube-system/config-1, key ip-masq-agent, " +
				`nonMasqueradeCIDRs[1]: "ten" is not a range; write it as 10.0.0.0/8)`},
		"no rule yet": {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16, 10.1.0.0/16]"),
			"no rule for 10.1.0.0/16 of nonMasqueradeCIDRs[1] in ConfigMap kube-system/config-0, which the node's agent has not applied"},
	} {
		p := packet.Packet{}
		p.Destination = netip.MustParseAddr("10.1.1.4")
		if got := whyOf(test.objects, `-A IP-MASQ-AGENT -j MASQUERADE`, netfilter.Accept, &p); got != "ip-masq-agent: "+test.want {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, test.want)
		}
	}
}

// whyOf returns the reason of one rule of table nat.
func whyOf(objects snapshot.Objects, rule string, verdict netfilter.VerdictKind, p *packet.Packet) string {
	for _, c := range chains(netfilter.IPv4, "nat", rule) {
		if len(c.Rules) > 0 {
			return newReasoner(ownersOf(objects)).why("", &netfilter.Visit{Chain: c, Rule: &c.Rules[0], Verdict: netfilter.Verdict{Kind: verdict}}, p)
		}
	}
	return ""
}

// TestKeptByPools: why Calico does not translate.
func TestKeptByPools(t *testing.T) {
	pool := func(name, cidr string, nat bool) snapshot.Pool {
		return snapshot.Pool{Name: name, CIDR: netip.MustParsePrefix(cidr), NATOutgoing: nat}
	}
	ours, theirs := pool("ours", "10.240.0.0/16", true), pool("theirs", "172.17.0.0/16", false)
	for _, test := range []struct {
		name  string
		pools []snapshot.Pool
		to    string
		want  string
	}{
		{"another pool", []snapshot.Pool{ours, theirs}, "172.17.0.4", "Calico pool theirs holds the destination"},
		{"the same pool", []snapshot.Pool{ours, theirs}, "10.240.0.97", "Calico pool ours holds the destination, too"},
		{"a narrower pool without natOutgoing", []snapshot.Pool{ours, pool("block", "10.240.0.0/24", false)}, "10.240.0.97",
			"Calico pool block holds the destination"},
		{"no source of Calico's", []snapshot.Pool{theirs}, "172.17.0.4", "Calico: no pool with natOutgoing holds the source"},
		{"sets that are not the pools'", []snapshot.Pool{ours}, "8.8.8.8",
			"Calico pool ours has natOutgoing and no pool holds the destination: the node's IP sets do not say what the pools do"},
		{"unknown pools", nil, "172.17.0.4", "Calico: from no pool with natOutgoing, or to one of the pools"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := packet.Packet{}
			p.Source, p.Destination = netip.MustParseAddr("10.240.0.5"), netip.MustParseAddr(test.to)
			rule := `-A cali-nat-outgoing -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE`
			if got := whyOf(snapshot.Objects{Pools: test.pools}, rule, netfilter.Break, &p); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}
