package ipmasq

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// ConfigMap is one that an agent may read.
type ConfigMap struct {
	Name string // namespace/name
	Data map[string]string
}

// Signed says what the agent's rules are there for: with the ConfigMaps, for which of their entries, and of a destination that the last
// rule takes whether an entry should have kept it.
func Signed(configs []ConfigMap) attribution.Writer {
	return attribution.Writer{
		Name: "ip-masq-agent", File: "internal/node/ipmasq/rules.go", Know: newConfigMapSet(configs).know, Always: always(),
		Chains: attribution.In(iptables.NAT,
			attribution.Chain{Name: postrouting, For: "where the agent begins", Rules: []attribution.Line{
				{To: Chain, For: "ip-masq-agent: everything that is not for the node itself"},
			}},
			attribution.Chain{Name: Chain, For: "gives what leaves for destinations outside nonMasqueradeCIDRs the node's address", Rules: []attribution.Line{
				{To: "RETURN", Text: "-d {cidr}", For: "ip-masq-agent: [{cidr} of {entries}|{setting} is false|" +
					"nonMasqueradeCIDRs {cidr}, of a configuration before the present one, which is not applied ({fault})|" +
					"nonMasqueradeCIDRs {cidr}, {stale}|nonMasqueradeCIDRs {cidr}]"},
				{To: "RETURN", For: "ip-masq-agent: an entry of nonMasqueradeCIDRs that holds every destination"},
				{To: "MASQUERADE", For: "ip-masq-agent: [outside the nonMasqueradeCIDRs in force; the present configuration is not applied ({fault})|" +
					"no rule for {unapplied}, which the node's agent has not applied|nonMasqueradeCIDRs is empty in {empty}|" +
					"outside nonMasqueradeCIDRs of {maps}|outside nonMasqueradeCIDRs]"},
			}}),
	}
}

// always is the jump that every configuration has.
var always = sync.OnceValue(func() string {
	set, err := Rules("1.19", service.IPv4, defaults())
	if err != nil {
		panic(err) // a version of this package
	}
	return string(iptables.AppendRestore(nil, []iptables.Edit{{
		Table: iptables.NAT, Append: []iptables.SharedRule{{Chain: postrouting, Rule: set.Jump.Rule}},
	}}))
})

// configMapSet is what ConfigMaps say.
type configMapSet struct {
	maps   []string // as "ConfigMap namespace/name"
	ranges []CIDR   // of all that can be applied
	fault  string   // why the present configuration is not applied; empty: it is
}

func newConfigMapSet(configs []ConfigMap) *configMapSet {
	var k configMapSet
	for _, c := range configs {
		k.maps = append(k.maps, "ConfigMap "+c.Name)
		var files []File
		for _, key := range slices.Sorted(maps.Keys(c.Data)) {
			files = append(files, File{c.Name, key, c.Data[key]})
		}
		config, problems := Parse(Options{Form: FormV2, IPv6: true}, files) // which reads form v1's keys, too
		switch {
		case config != nil && !config.Default:
			k.ranges = append(k.ranges, config.NonMasquerade...)
		case config == nil && k.fault == "":
			first := problems[slices.IndexFunc(problems, func(p Problem) bool { return p.Severity == Error })]
			k.fault = "ConfigMap " + first.ConfigMap + ", " + first.String()
		}
	}
	return &k
}

func (k *configMapSet) know(r *attribution.Rule, f attribution.Fields) {
	f.Set("fault", k.fault)
	of := strings.Join(k.maps, " and ")
	f.Set("maps", of)
	if len(k.ranges) == 0 {
		f.Set("empty", of)
	}
	if len(k.maps) > 0 {
		f.Set("stale", "which no ConfigMap has now")
	}
	cidr, err := netip.ParsePrefix(f["cidr"])
	switch {
	case err != nil:
	case cidr == linkLocal4:
		f.Set("setting", "masqLinkLocal")
	case cidr == linkLocal6:
		f.Set("setting", "masqLinkLocalIPv6")
	}
	var entries []string
	for _, c := range k.ranges {
		for _, from := range c.From {
			if entry := from.Entry + " in ConfigMap " + from.ConfigMap; c.Prefix == cidr {
				entries = append(entries, entry)
			} else if c.Prefix.Contains(r.Destination) && f["unapplied"] == "" {
				f.Set("unapplied", c.Prefix.String()+" of "+entry)
			}
		}
	}
	f.Set("entries", strings.Join(entries, " and "))
}
