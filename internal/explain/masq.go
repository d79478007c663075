package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/ipmasq"
	"packetwalk.dev/internal/netfilter"
)

// masqAgent explains a rule of the ip-masq-agent's chain by the line of its configuration that it is there for.
func (o *Owners) masqAgent(v *netfilter.Visit) string {
	m := destination.FindStringSubmatch(v.Rule.Text)
	if v.Verdict.Kind != netfilter.Return || m == nil {
		return "ip-masq-agent: outside nonMasqueradeCIDRs" + o.masqConfigs()
	}
	cidr, err := netip.ParsePrefix(m[1])
	if err != nil {
		return "ip-masq-agent: nonMasqueradeCIDRs " + m[1]
	}
	entries, faulty := o.masqEntries(cidr)
	switch {
	case len(entries) > 0:
		return fmt.Sprintf("ip-masq-agent: %s of %s", cidr, strings.Join(entries, " and "))
	case cidr == netip.MustParsePrefix("169.254.0.0/16"):
		return "ip-masq-agent: masqLinkLocal is false"
	case cidr == netip.MustParsePrefix("fe80::/10"):
		return "ip-masq-agent: masqLinkLocalIPv6 is false"
	case faulty != "":
		return fmt.Sprintf("ip-masq-agent: nonMasqueradeCIDRs %s, of a configuration before the present one, which is not applied (%s)", cidr, faulty)
	case o != nil && len(o.objects.ConfigMaps) > 0:
		return fmt.Sprintf("ip-masq-agent: nonMasqueradeCIDRs %s, which no ConfigMap has now", cidr)
	}
	return fmt.Sprintf("ip-masq-agent: nonMasqueradeCIDRs %s", cidr)
}

// masqEntries are the entries of the ConfigMaps that name a range, and the first fault that keeps a ConfigMap from being applied.
func (o *Owners) masqEntries(cidr netip.Prefix) (entries []string, faulty string) {
	if o == nil {
		return nil, ""
	}
	for _, c := range o.objects.ConfigMaps {
		config, problems := ipmasq.Parse(ipmasq.Options{Form: ipmasq.FormV2, IPv6: true}, files(c.Namespace+"/"+c.Name, c.Data))
		if config == nil {
			first := problems[slices.IndexFunc(problems, func(p ipmasq.Problem) bool { return p.Severity == ipmasq.Error })]
			if faulty == "" {
				faulty = "ConfigMap " + first.ConfigMap + ", " + first.String()
			}
			continue
		}
		for _, r := range config.NonMasquerade {
			for _, from := range r.From {
				if r.Prefix == cidr {
					entries = append(entries, from.Entry+" in ConfigMap "+from.ConfigMap)
				}
			}
		}
	}
	return entries, faulty
}

// files are a ConfigMap's data. Form v2 reads form v1's keys, too; those that it does not know do not matter here.
func files(configMap string, data map[string]string) []ipmasq.File {
	var files []ipmasq.File
	for key, text := range data {
		files = append(files, ipmasq.File{ConfigMap: configMap, Key: key, Text: text})
	}
	return files
}

// masqConfigs names the ConfigMaps there are, after " of"; "" where none is known.
func (o *Owners) masqConfigs() string {
	if o == nil || len(o.objects.ConfigMaps) == 0 {
		return ""
	}
	var names []string
	for _, c := range o.objects.ConfigMaps {
		names = append(names, "ConfigMap "+c.Namespace+"/"+c.Name)
	}
	return " of " + strings.Join(names, " and ")
}
