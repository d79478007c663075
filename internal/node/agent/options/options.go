// Package options has the settings of a node's agent: their defaults, their validation, and a configuration file of kube-proxy as settings.
package options

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxyconfig"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Options holds the agent's settings. Names and defaults are those of kube-proxy where it has the setting.
type Options struct {
	Version    string // shown in logs and to the API server
	Server     string // the API server's URL; empty: as Kubeconfig says
	Kubeconfig string // empty: the pod's service account
	QPS        float32
	Burst      int        // of requests to the API server, with QPS as many a second on average; 0: the defaults
	NodeName   string     // empty: the host's name
	NodeIP     netip.Addr // invalid: as the API says
	Families   []service.Family

	ServiceProxy    bool           // be the service proxy; without it only what is beside it
	ClusterCIDRs    []netip.Prefix // at most one a family: the range of the pods
	PodInterface    string         // instead of ClusterCIDRs: the interface of local pods, or a prefix and "+"
	PodsOfNode      bool           // instead of both: the ranges that the node's object has for its pods
	Rules           string         // iptablesproxy.Ages
	Backend         string         // BackendIPTables or BackendNFTables
	MasqueradeBit   int
	MasqueradeAll   bool
	NodePortCIDRs   []netip.Prefix // empty: node ports answer on every address of the node
	NodePortPrimary bool           // instead: on its own address alone
	LocalhostPorts  bool           // node ports answer on 127.0.0.1; sets route_localnet
	SyncPeriod      time.Duration  // how often everything is compared with the kernel
	MinSyncPeriod   time.Duration  // least from one sync's end to the next; with iptables one second is so on average

	// Of the machine; what is zero stays as it is.
	CloseWait        time.Duration // conntrack: how long a half-closed connection is kept
	Established      time.Duration // conntrack: how long an idle connection is kept
	UDPTimeout       time.Duration // conntrack: how long a flow without answers is kept
	UDPStreamTimeout time.Duration // conntrack: how long a flow with answers is kept
	BeLiberal        bool          // conntrack: take TCP packets outside of the window
	ConntrackPerCore int           // conntrack: how many flows for each processor
	ConntrackMin     int           // with ConntrackPerCore: how many flows at least
	OOMScore         *int32        // the process's oom_score_adj

	HealthzAddress string                     // empty: none
	MetricsAddress string                     // empty: none
	Pod            string                     // NAMESPACE/NAME of the pod that it runs in, whose condition it sets; empty: it sets none
	PodUID         string                     // of the pod that it runs in, by which Livez finds the agent; empty: it does not answer Livez
	BindHardFail   bool                       // end when one of these cannot be listened on, instead of trying again
	Configz        *proxyconfig.Configuration // what /configz says; nil: nothing

	NodeMasquerade []netip.Prefix // destinations that the node's own masquerade rule leaves alone; empty: no such rule
	NonMasquerade  netip.Prefix   // instead of NodeMasquerade: what kubenet's masquerade rule leaves alone; 0.0.0.0/0: no such rule
	DockerBridge   netip.Prefix   // source range of docker0's masquerade rule, made with NodeMasquerade and NonMasquerade
	// BlockWireServer drops pods' packets to the wire server, as AKS's nodes do.
	BlockWireServer bool
	// IMDSRestriction drops pods' packets to the Instance Metadata Service, with AKS's rule for this address of the node. The unspecified
	// address removes such a rule.
	IMDSRestriction netip.Addr
	LocalDNS        []netip.Addr  // addresses of the node's DNS cache, whose queries are not tracked
	IPMasqAgent     bool          // keep the ip-masq-agent's rules
	MasqForm        ipmasq.Form   // of its configuration; empty: that of the version of the rules
	MasqConfigMaps  []string      // of kube-system, that hold it
	MasqKeep        bool          // where it is not there the last one holds, or the rules as they were found, in place of the defaults
	MasqResync      time.Duration // how often it is read and compared with the kernel; form v1 has it in the configuration
	RepairRules     bool          // put back rules of Services that others deleted or changed
	WatchKernel     bool          // repair at once on the kernel's notice of a deleted rule

	// IPTablesVariant is which of iptables' programs are run: those of a node's own distribution by default.
	IPTablesVariant string

	// CleanupOnDelete is the DaemonSet, NAMESPACE/NAME, whose deletion is the end of the service proxy's rules, too; empty: none is followed.
	CleanupOnDelete string
}

// What rules are made of.
const (
	BackendIPTables = "iptables"
	BackendNFTables = "nftables"
)

// DefaultMinSyncPeriod is kube-proxy's default for the least time between two syncs with iptables.
const DefaultMinSyncPeriod = time.Second

// Defaults returns kube-proxy's defaults without IPv6, which some nodes lack (SupportedFamilies).
func Defaults() Options {
	return Options{
		Families:       []service.Family{service.IPv4},
		ServiceProxy:   true,
		Rules:          iptablesproxy.RulesCurrent,
		Backend:        BackendIPTables,
		MasqueradeBit:  14,
		LocalhostPorts: true,
		SyncPeriod:     30 * time.Second,
		MinSyncPeriod:  DefaultMinSyncPeriod,
		CloseWait:      time.Hour,
		Established:    24 * time.Hour,
		HealthzAddress: "0.0.0.0:10256",
		MetricsAddress: "127.0.0.1:10249",
		DockerBridge:   netip.MustParsePrefix("172.17.0.0/16"),
		MasqConfigMaps: []string{ipmasq.UserConfigMap, ipmasq.ReconciledConfigMap},
		MasqResync:     ipmasq.DefaultResyncInterval,
		RepairRules:    true,
		WatchKernel:    true,
	}
}

// Validate completes the options and reports everything that is wrong with them, each with its flag.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			bad("--node-name: not given, and %v", err)
		}
		o.NodeName = strings.ToLower(name)
	}
	if o.Backend != BackendIPTables && o.Backend != BackendNFTables {
		bad("--proxy-backend: no backend %q; there are %s and %s", o.Backend, BackendIPTables, BackendNFTables)
	}
	if o.Backend == BackendNFTables && o.Rules != iptablesproxy.RulesCurrent {
		bad("--proxy-rules: %s; older rule sets are made of iptables only", o.Rules)
	}
	if !slices.Contains(iptablesproxy.RuleSetVersions(), o.Rules) {
		bad("--proxy-rules: no rule set %q; there are %s", o.Rules, strings.Join(iptablesproxy.RuleSetVersions(), ", "))
	}
	if o.MasqueradeBit < 0 || o.MasqueradeBit > 31 {
		bad("--iptables-masquerade-bit: %d; want 0 to 31", o.MasqueradeBit)
	}
	if len(o.Families) == 0 {
		bad("--ip-families: empty; want IPv4, IPv6 or both")
	}
	for _, f := range o.Families {
		n := 0
		for _, c := range o.ClusterCIDRs {
			if f.Of(c.Addr()) {
				n++
			}
		}
		if n > 1 {
			bad("--cluster-cidr: %d ranges of %s; want at most one", n, f)
		}
	}
	if o.SyncPeriod <= 0 {
		bad("--iptables-sync-period: %v; want more than 0", o.SyncPeriod)
	}
	if o.MinSyncPeriod < 0 || o.MinSyncPeriod > o.SyncPeriod {
		bad("--iptables-min-sync-period: %v; want 0 to --iptables-sync-period", o.MinSyncPeriod)
	}
	for _, c := range o.NodeMasquerade {
		if !c.Addr().Is4() {
			bad("--node-masquerade-exclude: %s is not an IPv4 range", c)
		}
	}
	if o.NonMasquerade.IsValid() && !o.NonMasquerade.Addr().Is4() {
		bad("--non-masquerade-cidr: %s is not an IPv4 range", o.NonMasquerade)
	}
	if o.NonMasquerade.IsValid() && len(o.NodeMasquerade) > 0 {
		bad("--non-masquerade-cidr: not together with --node-masquerade-exclude")
	}
	if o.IPMasqAgent {
		o.validateMasq(bad)
	}
	if !slices.Contains([]string{iptablescmd.VariantInstalled, iptablescmd.VariantNFT, iptablescmd.VariantLegacy, iptablescmd.VariantDetect}, o.IPTablesVariant) {
		bad("--iptables-variant: no variant %q; there are nft, legacy and detect", o.IPTablesVariant)
	}
	for flag, value := range map[string]string{"--cleanup-on-delete": o.CleanupOnDelete, "--pod": o.Pod} {
		if namespace, name, _ := strings.Cut(value, "/"); value != "" && (namespace == "" || name == "" || strings.Contains(name, "/")) {
			bad("%s: %q is not NAMESPACE/NAME", flag, value)
		}
	}
	return errors.Join(errs...)
}

func (o *Options) validateMasq(bad func(format string, args ...any)) {
	form, err := ipmasq.FormOf(o.Rules)
	if err != nil && slices.Contains(iptablesproxy.RuleSetVersions(), o.Rules) {
		bad("--ip-masq-agent: %w", err)
	}
	if o.MasqForm == "" {
		o.MasqForm = form
	} else if _, err := ipmasq.ParseForm(string(o.MasqForm)); err != nil {
		bad("--ip-masq-format: %w", err)
	}
	if len(o.MasqConfigMaps) == 0 {
		bad("--ip-masq-configmaps: empty; want the name of a ConfigMap in kube-system, such as azure-ip-masq-agent-config")
	}
	if o.MasqResync < time.Second {
		bad("--ip-masq-resync-interval: %v; want at least 1s", o.MasqResync)
	}
}

// RecognisesNoPods reports whether traffic of local pods cannot be told from other traffic, which is masqueraded on its way to cluster IPs.
func (o *Options) RecognisesNoPods() bool {
	return len(o.ClusterCIDRs) == 0 && o.PodInterface == "" && !o.PodsOfNode && !o.MasqueradeAll
}

// NodeRules returns the node's own rules. With the ip-masq-agent a node has docker0's rule only in POSTROUTING.
func (o *Options) NodeRules() noderules.Rules {
	rules := noderules.Rules{Postrouting: noderules.Masquerade(o.NodeMasquerade, o.DockerBridge)}
	if len(rules.Postrouting) == 0 && (o.IPMasqAgent || o.NonMasquerade.IsValid()) && o.DockerBridge.IsValid() {
		rules.Postrouting = []iptables.Rule{noderules.Docker(o.DockerBridge)}
	}
	if o.NonMasquerade.IsValid() && o.NonMasquerade.Bits() > 0 {
		rules.Postrouting = append(rules.Postrouting, noderules.Kubenet(o.NonMasquerade))
	}
	if a := o.IMDSRestriction; a.IsValid() && !a.IsUnspecified() {
		rules.Forward = []iptables.Rule{noderules.RestrictMetadata(a)}
	}
	if o.BlockWireServer {
		rules.Forward = append(rules.Forward, noderules.WireServer()...)
	}
	rules.OpenMetadata = o.IMDSRestriction.IsUnspecified()
	rules.Untracked = noderules.SkipConntrack(o.LocalDNS...)
	return rules
}

// Config returns what the rules of a family depend on.
func (o *Options) Config(f service.Family) proxy.Config {
	c := proxy.Config{
		Family: f, Rules: o.Rules, MasqueradeBit: o.MasqueradeBit, MasqueradeAll: o.MasqueradeAll,
		Detector: proxy.Detector{Interface: o.PodInterface},
	}
	for _, cidr := range o.ClusterCIDRs {
		if f.Of(cidr.Addr()) {
			c.Detector.CIDR = cidr
		}
	}
	c.LocalhostNodePorts = o.LocalhostPorts && o.Backend == BackendIPTables && f == service.IPv4 && o.loopbackNodePorts()
	return c
}

// loopbackNodePorts reports whether node ports are wanted on 127.0.0.1.
func (o *Options) loopbackNodePorts() bool {
	v4 := false
	for _, c := range o.NodePortCIDRs {
		if c.Addr().Is4() {
			v4 = true
			if c.Overlaps(netip.MustParsePrefix("127.0.0.0/8")) {
				return true
			}
		}
	}
	return !v4
}
