package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/node/ipmasq"
)

// masqAgent explains a rule of the ip-masq-agent's chain by the line of its configuration that it is there for.
func (o *Owners) masqAgent(v *netfilter.Visit, p *packet.Packet) string {
	known := o.masqConfig()
	m := destination.FindStringSubmatch(v.Rule.Text)
	if v.Verdict.Kind != netfilter.Return || m == nil {
		return "ip-masq-agent: " + known.outside(p.Destination)
	}
	cidr, err := netip.ParsePrefix(m[1])
	if err != nil {
		return "ip-masq-agent: nonMasqueradeCIDRs " + m[1]
	}
	return "ip-masq-agent: " + known.inside(cidr)
}

// masqConfig is what is known of the ip-masq-agent's configuration.
type masqConfig struct {
	maps   []string      // the ConfigMaps, as "ConfigMap namespace/name"
	ranges []ipmasq.CIDR // of all that can be applied
	faulty string        // why the present configuration is not applied; empty: it is
}

func (o *Owners) masqConfig() masqConfig {
	var known masqConfig
	if o == nil {
		return known
	}
	for _, c := range o.objects.ConfigMaps {
		known.maps = append(known.maps, "ConfigMap "+c.Namespace+"/"+c.Name)
		config, problems := ipmasq.Parse(ipmasq.Options{Form: ipmasq.FormV2, IPv6: true}, files(c.Namespace+"/"+c.Name, c.Data))
		switch {
		case config != nil && !config.Default:
			known.ranges = append(known.ranges, config.NonMasquerade...)
		case config == nil && known.faulty == "":
			first := problems[slices.IndexFunc(problems, func(p ipmasq.Problem) bool { return p.Severity == ipmasq.Error })]
			known.faulty = "ConfigMap " + first.ConfigMap + ", " + first.String()
		}
	}
	return known
}

// inside explains the RETURN rule of a range.
func (k masqConfig) inside(cidr netip.Prefix) string {
	var entries []string
	for _, r := range k.ranges {
		for _, from := range r.From {
			if r.Prefix == cidr {
				entries = append(entries, from.Entry+" in ConfigMap "+from.ConfigMap)
			}
		}
	}
	switch {
	case len(entries) > 0:
		return fmt.Sprintf("%s of %s", cidr, strings.Join(entries, " and "))
	case cidr == netip.MustParsePrefix("169.254.0.0/16"):
		return "masqLinkLocal is false"
	case cidr == netip.MustParsePrefix("fe80::/10"):
		return "masqLinkLocalIPv6 is false"
	case k.faulty != "":
		return fmt.Sprintf("nonMasqueradeCIDRs %s, of a configuration before the present one, which is not applied (%s)", cidr, k.faulty)
	case len(k.maps) > 0:
		return fmt.Sprintf("nonMasqueradeCIDRs %s, which no ConfigMap has now", cidr)
	}
	return fmt.Sprintf("nonMasqueradeCIDRs %s", cidr)
}

// outside explains the rule at the end of the chain: that nothing before it took the destination.
func (k masqConfig) outside(destination netip.Addr) string {
	if k.faulty != "" {
		return fmt.Sprintf("outside the nonMasqueradeCIDRs in force; the present configuration is not applied (%s)", k.faulty)
	}
	for _, r := range k.ranges {
		if r.Prefix.Contains(destination) && len(r.From) > 0 {
			return fmt.Sprintf("no rule for %s of %s in ConfigMap %s, which the node's agent has not applied", r.Prefix, r.From[0].Entry, r.From[0].ConfigMap)
		}
	}
	maps := strings.Join(k.maps, " and ")
	switch {
	case maps == "":
		return "outside nonMasqueradeCIDRs"
	case len(k.ranges) == 0:
		return "nonMasqueradeCIDRs is empty in " + maps
	}
	return "outside nonMasqueradeCIDRs of " + maps
}

// files are a ConfigMap's data. Form v2 reads form v1's keys, too; those that it does not know do not matter here.
func files(configMap string, data map[string]string) []ipmasq.File {
	var files []ipmasq.File
	for key, text := range data {
		files = append(files, ipmasq.File{ConfigMap: configMap, Key: key, Text: text})
	}
	return files
}
