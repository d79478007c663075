package ipmasq

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Form is a form of configuration.
type Form string

// The forms.
const (
	// FormV1 is that of kubernetes-sigs/ip-masq-agent: one file, whose keys overlay the defaults.
	FormV1 Form = "v1"
	// FormV2 is that of Azure/ip-masq-agent-v2: every file whose name starts with FilePrefix; ranges are united, switches ORed. Defaults hold
	// only without any such file.
	FormV2 Form = "v2"
)

// Which data keys of ConfigMaps, that is files of /etc/config, are read.
const (
	FileV1     = "ip-masq-agent" // form v1: this one
	filePrefix = "ip-masq"       // form v2: all that start so
)

// AKS's ConfigMaps, in kube-system.
const (
	UserConfigMap       = "azure-ip-masq-agent-config"            // of form v1 the only one; of form v2 the user's
	ReconciledConfigMap = "azure-ip-masq-agent-config-reconciled" // of form v2: AKS's own, that it keeps as it is
)

// The limits and defaults of both.
const (
	DefaultCIDRLimit      = 64 // ranges a file, so that a file that is wrong altogether does not become rules
	DefaultResyncInterval = 60 * time.Second
	minResyncInterval     = time.Second // upstream has no least value, and with 0s spins
)

// LinkLocal are the ranges that masqLinkLocal and masqLinkLocalIPv6 are about (RFC 3927, RFC 4291).
var (
	linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")
	linkLocal6 = netip.MustParsePrefix("fe80::/10")
)

// defaultRanges returns the private ranges of RFC 1918.
func defaultRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16")}
}

// Origin is where something of a configuration stands.
type Origin struct {
	ConfigMap string `json:"configMap"`       // "namespace/name"
	Key       string `json:"key"`             // the data key: the file's name
	Entry     string `json:"entry,omitempty"` // "nonMasqueradeCIDRs[2]", "masqLinkLocal"; empty: the file as a whole
}

// String returns "ConfigMap kube-system/azure-ip-masq-agent-config, key ip-masq-agent, nonMasqueradeCIDRs[2]".
func (o Origin) String() string {
	s := "ConfigMap " + o.ConfigMap
	if o.Key != "" {
		s += ", key " + o.Key
	}
	if o.Entry != "" {
		s += ", " + o.Entry
	}
	return s
}

// File is one data key of a ConfigMap.
type File struct {
	ConfigMap string // "namespace/name"
	Key       string
	Text      string
}

// Config is a configuration that can be applied.
type Config struct {
	// NonMasquerade are the destinations that see a pod's own address, in the order of their rules.
	NonMasquerade []CIDR `json:"nonMasqueradeCIDRs"`
	// MasqLinkLocal and MasqLinkLocalIPv6 take the link-local range off those destinations.
	MasqLinkLocal     Switch `json:"masqLinkLocal"`
	MasqLinkLocalIPv6 Switch `json:"masqLinkLocalIPv6"`
	// CIDRLimit is the most ranges that the file may have (form v1).
	CIDRLimit int `json:"cidrLimit"`
	// ResyncInterval is how often configuration and rules are looked at without a change (form v1; of form v2 it is a flag of the agent).
	ResyncInterval time.Duration `json:"-"`
	// Default: there was no file, these are upstream's defaults.
	Default bool `json:"default,omitempty"`
}

// CIDR is a range, and the entries that name it; none for a default.
type CIDR struct {
	Prefix netip.Prefix `json:"cidr"`
	From   []Origin     `json:"from,omitempty"`
}

// Switch is a boolean, and the entries that set it; none for a default.
type Switch struct {
	On   bool     `json:"on"`
	From []Origin `json:"from,omitempty"`
}

// defaults returns the configuration that holds without any file.
func defaults() *Config {
	c := &Config{CIDRLimit: DefaultCIDRLimit, ResyncInterval: DefaultResyncInterval, Default: true}
	for _, p := range defaultRanges() {
		c.NonMasquerade = append(c.NonMasquerade, CIDR{Prefix: p})
	}
	return c
}

// Text returns a file that says what c says, laid out as AKS's own ConfigMaps are. Form v1 has the keys cidrLimit (where it is not the
// default) and resyncInterval, form v2 does not know them. masqLinkLocalIPv6 stands only where it is true.
func (c *Config) Text(form Form) string {
	var b strings.Builder
	b.WriteString("nonMasqueradeCIDRs:")
	if len(c.NonMasquerade) == 0 {
		b.WriteString(" []")
	}
	for _, r := range c.NonMasquerade {
		fmt.Fprintf(&b, "\n  - %s", r.Prefix)
	}
	fmt.Fprintf(&b, "\nmasqLinkLocal: %v", c.MasqLinkLocal.On)
	if c.MasqLinkLocalIPv6.On {
		b.WriteString("\nmasqLinkLocalIPv6: true")
	}
	if form == FormV1 {
		if c.CIDRLimit != DefaultCIDRLimit {
			fmt.Fprintf(&b, "\ncidrLimit: %d", c.CIDRLimit)
		}
		fmt.Fprintf(&b, "\nresyncInterval: %s", interval(c.ResyncInterval))
	}
	return b.String()
}

// interval returns a duration as people write it here: 60s, not 1m0s.
func interval(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return d.String()
}
