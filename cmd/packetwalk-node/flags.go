package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/takeover"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxyconfig"
	"packetwalk.dev/internal/node/service"
)

// command is what the command line asks for.
type command struct {
	options.Options
	configFile, writeTo      string
	strict, showVersion      bool
	cleanup, initOnly        bool
	proxy                    proxyconfig.Configuration // of the flags of kube-proxy, or of the file
	shared                   proxyconfig.NFTables      // of the flags that are for both modes
	hostname                 string
	healthzPort, metricsPort uint16          // of addresses without one; 0: no such address
	kubeProxys               map[string]bool // flags that a file stands in for
	notes                    []string        // about what has no effect
}

// Flags of kube-proxy that packetwalk-node takes and does nothing with (k8s.io/kubernetes cmd/kube-proxy/app/options.go,
// k8s.io/component-base/logs/api/v1, github.com/google/cadvisor/machine); noValue may stand without a value.
var (
	withoutEffect = strings.Fields(`boot-id-file config-sync-period feature-gates ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler
		ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout kube-api-content-type log-flush-frequency
		log-json-info-buffer-size log-text-info-buffer-size logging-format machine-id-file show-hidden-metrics-for-version v vmodule`)
	noValue = strings.Fields("ipvs-strict-arp log-json-split-stream log-text-split-stream profiling")
)

// parse reads the command line, with kube-proxy's names where it has the setting, and the configuration file that it names.
func parse(args []string) (*command, error) {
	c := &command{Options: options.Defaults(), kubeProxys: map[string]bool{}}
	c.Version = version
	f := c.flags()
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			fmt.Printf("Usage: packetwalk-node [flags]\n%sFlags of kube-proxy without effect: --%s\n", f.FlagUsages(),
				strings.Join(slices.Concat(withoutEffect, noValue), ", --"))
			for _, name := range slices.Sorted(maps.Keys(checks)) {
				fmt.Printf("packetwalk-node %s [flags]: %s\n", name, checks[name].help)
			}
			fmt.Printf("packetwalk-node %s [flags]: %s\n", removeAll, removeAllHelp)
		}
		return nil, err
	}
	for _, arg := range f.Args() {
		if arg != "" {
			return nil, fmt.Errorf("unexpected argument %q; all settings are flags", arg)
		}
	}
	if err := c.configure(f); err != nil || c.showVersion {
		return c, err
	}
	if c.strict && len(c.notes) > 0 {
		return nil, fmt.Errorf("%s; --strict-config allows none of it", strings.Join(c.notes, "; "))
	}
	return c, nil
}

// flags defines all flags: first kube-proxy's that a file stands in for, with its defaults. As there, names may have _ for -.
func (c *command) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("packetwalk-node", pflag.ContinueOnError)
	f.Usage = func() {} // parse prints it
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	c.proxy.Default()
	c.proxy.OOMScoreAdj, c.proxy.Conntrack.MaxPerCore = nil, nil // who asks for neither changes nothing of the machine
	c.shared.SyncPeriod = c.proxy.NFTables.SyncPeriod
	c.shared.MinSyncPeriod.Duration = -1
	c.apiFlags(f)
	c.proxyFlags(f)
	c.conntrackFlags(f)
	c.unusedFlags(f)
	f.VisitAll(func(one *pflag.Flag) { c.kubeProxys[one.Name] = true })

	f.StringVar(&c.configFile, "config", "", "configuration `file` of kube-proxy (KubeProxyConfiguration v1alpha1), in place of its flags")
	f.StringVar(&c.writeTo, "write-config-to", "", "write the configuration to a `file`, as --config takes it, and end")
	f.BoolVar(&c.strict, "strict-config", false,
		"fail on fields and flags without effect, and on unknown fields; otherwise they are one warning")
	f.StringVar(&c.hostname, "hostname-override", "", "`name` of this node in the API; the host's name by default")
	f.StringVar(&c.hostname, "node-name", "", "the same as --hostname-override")
	f.StringVar(&c.Server, "master", "", "`URL` of the API server, whatever the kubeconfig file says")
	f.StringVar(&c.CleanupOnDelete, "cleanup-on-delete", "",
		"when told to end do --cleanup after 20s if this DaemonSet, `NAMESPACE/NAME`, has been deleted; otherwise rules stay")
	f.BoolVar(&c.cleanup, "cleanup", false, "remove the service proxy's rules of --proxy-mode, or of the file's, of both families, and end (see also "+removeAll+")")
	podUID(f, &c.PodUID)
	f.StringVar(&c.Pod, "pod", "", "`NAMESPACE/NAME` of the pod that this runs in: it gets the condition "+takeover.ConditionType)
	f.BoolVar(&c.initOnly, "init-only", false, "set the machine's sysctls, and end: without them CAP_NET_ADMIN is enough")
	f.BoolFunc("version", "print the version and exit", func(s string) (err error) {
		if c.showVersion = s == "raw"; !c.showVersion {
			c.showVersion, err = strconv.ParseBool(s)
		}
		return err
	})
	c.ownFlags(f)
	c.masqueradeFlags(f)
	return f
}

// unusedFlags defines those of kube-proxy that do nothing, and two that it has for old command lines.
func (c *command) unusedFlags(f *pflag.FlagSet) {
	f.Uint16Var(&c.healthzPort, "healthz-port", proxyconfig.HealthzPort, "")
	f.Uint16Var(&c.metricsPort, "metrics-port", proxyconfig.MetricsPort, "")
	ignored := func(string) error { return nil }
	for _, name := range withoutEffect {
		short := ""
		if len(name) == 1 {
			short = name
		}
		f.FuncP(name, short, "", ignored)
	}
	for _, name := range noValue {
		f.BoolFunc(name, "", ignored)
	}
	for _, name := range slices.Concat(withoutEffect, noValue, []string{"healthz-port", "metrics-port"}) {
		f.Lookup(name).Hidden = true
	}
}

// configure makes the options of the flags, or of the file and those flags that hold beside it.
func (c *command) configure(f *pflag.FlagSet) error {
	var nothing, beside []string
	families := false
	f.Visit(func(one *pflag.Flag) {
		families = families || one.Name == "ip-families"
		ignored := slices.Contains(withoutEffect, one.Name) || slices.Contains(noValue, one.Name)
		switch {
		case !ignored && c.configFile != "" && c.kubeProxys[one.Name]:
			beside = append(beside, "--"+one.Name)
		case ignored, one.Name == "healthz-port" && !c.port(&c.proxy.HealthzBindAddress, c.healthzPort),
			one.Name == "metrics-port" && !c.port(&c.proxy.MetricsBindAddress, c.metricsPort):
			nothing = append(nothing, "--"+one.Name)
		}
	})
	note := func(what string, names []string) {
		if len(names) > 0 {
			c.notes = append(c.notes, what+": "+strings.Join(names, ", "))
		}
	}
	note("without effect", nothing)
	if c.configFile == "" {
		c.share()
	} else {
		if err := c.readConfig(note); err != nil {
			return fmt.Errorf("--config %s: %w", c.configFile, err)
		}
		note("ignored beside --config, as by kube-proxy", beside)
	}
	if c.hostname != "" {
		c.proxy.HostnameOverride = c.hostname
	}
	if err := c.Apply(&c.proxy); err != nil {
		return err
	}
	alone := c.ServiceProxy && !c.IPMasqAgent // what masquerades beside it does so for IPv6 where that is asked for
	if !families && (c.configFile != "" || alone) {
		c.Families = c.SupportedFamilies()
	}
	return nil
}

// port gives an address the port of a deprecated flag if it has none; with 0 there is no such address (k8s.io/kubernetes
// cmd/kube-proxy/app/options.go, addressFromDeprecatedFlags). It reports whether that is another address.
func (c *command) port(address *string, port uint16) bool {
	before := *address
	switch {
	case c.writeTo != "":
	case port == 0:
		*address = ""
	default:
		*address = proxyconfig.WithPort(before, int(port))
	}
	return *address != before
}

// maxConfig is how long a configuration file may be, in bytes.
const maxConfig = 1 << 20

func (c *command) readConfig(note func(string, []string)) error {
	text, err := limitio.ReadFile(c.configFile, maxConfig)
	if err != nil {
		return err
	}
	configuration, strange, err := proxyconfig.Read(text)
	if err != nil {
		return err
	}
	note("without effect in "+c.configFile, configuration.WithoutEffect())
	note("wrong in "+c.configFile, strange)
	configuration.Default()
	c.proxy = *configuration
	return nil
}

// share copies the values that both modes share to the configuration of the requested mode. With nftables, the least time between two syncs
// is 0 unless the user sets another.
func (c *command) share() {
	to, ip := c.shared, &c.proxy.IPTables
	if c.proxy.Mode == proxyconfig.ModeNFTables {
		to.MinSyncPeriod.Duration = max(0, to.MinSyncPeriod.Duration)
		c.proxy.NFTables = to
		return
	}
	if to.MinSyncPeriod.Duration >= 0 {
		ip.MinSyncPeriod = to.MinSyncPeriod
	}
	ip.MasqueradeAll, ip.MasqueradeBit, ip.SyncPeriod = to.MasqueradeAll, to.MasqueradeBit, to.SyncPeriod
}

// apiFlags defines the flags about the API server, and about who asks the proxy.
func (c *command) apiFlags(f *pflag.FlagSet) {
	p := &c.proxy
	f.StringVar(&p.ClientConnection.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; without one, the service account of the pod")
	f.Func("kube-api-qps", "`requests` a second to the API server on average (default 5)", func(s string) error {
		n, err := strconv.ParseFloat(s, 32)
		p.ClientConnection.QPS = float32(n)
		return err
	})
	f.Func("kube-api-burst", "`requests` to the API server at once (default 10)", number(&p.ClientConnection.Burst))
	f.StringVar(&p.HealthzBindAddress, "healthz-bind-address", p.HealthzBindAddress, "`address` of /healthz and /livez; empty: none")
	f.StringVar(&p.MetricsBindAddress, "metrics-bind-address", p.MetricsBindAddress,
		"`address` of /metrics, /proxyMode and /configz; empty: none")
	f.BoolVar(&p.BindAddressHardFail, "bind-address-hard-fail", false, "end when one of these cannot be listened on, instead of trying again")
	f.StringVar(&p.BindAddress, "bind-address", p.BindAddress, "the node's own `address`; 0.0.0.0: as the API says")
	f.Func("oom-score-adj", "the process's oom_score_adj; as it is by default", pointer(&p.OOMScoreAdj))
}

// proxyFlags defines the flags that rules depend on.
func (c *command) proxyFlags(f *pflag.FlagSet) {
	p := &c.proxy
	f.StringVar(&p.Mode, "proxy-mode", p.Mode, "what the rules are made of: iptables or nftables")
	f.StringVar(&p.Mode, "proxy-backend", p.Mode, "the same as --proxy-mode")
	f.StringVar(&p.DetectLocalMode, "detect-local-mode", p.DetectLocalMode,
		"how traffic of local pods is recognised, because traffic to services "+
			"from elsewhere is masqueraded: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&p.ClusterCIDR, "cluster-cidr", "", "with ClusterCIDR the `range` of the pods, one a family, by commas")
	f.StringVar(&p.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "with BridgeInterface the `name` of the pods' bridge")
	f.StringVar(&p.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "",
		"with InterfaceNamePrefix what the `names` of the pods' interfaces begin with")
	f.Func("pod-interface", "short for the two before: the `interface` of local pods, or a prefix and +", func(s string) error {
		p.DetectLocalMode, p.DetectLocal.BridgeInterface = proxyconfig.LocalBridgeInterface, s
		if prefix, ok := strings.CutSuffix(s, "+"); ok {
			p.DetectLocalMode, p.DetectLocal.InterfaceNamePrefix = proxyconfig.LocalInterfaceNamePrefix, prefix
		}
		return nil
	})
	c.shared.MasqueradeBit = p.NFTables.MasqueradeBit
	f.Func("iptables-masquerade-bit", "`bit` of the packet mark that asks for source NAT (default 14)", pointer(&c.shared.MasqueradeBit))
	f.BoolVar(&c.shared.MasqueradeAll, "masquerade-all", false, "masquerade everything sent to a cluster IP")
	f.Func("nodeport-addresses", "`ranges` of the node's addresses that answer on node ports, by commas, or primary: the node's own "+
		"(default 0.0.0.0/0,::/0, with nftables primary)", func(s string) error {
		p.NodePortAddresses = append(p.NodePortAddresses, strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })...)
		return nil
	})
	f.BoolVar(p.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", true,
		"let node ports answer on 127.0.0.1, with iptables (sets net.ipv4.conf.all.route_localnet)")
	f.DurationVar(&c.shared.SyncPeriod.Duration, "iptables-sync-period", c.shared.SyncPeriod.Duration,
		"how often all rules are compared with the kernel's")
	f.Func("iptables-min-sync-period", "least `time` between two syncs (default 1s, with nftables 0s)", func(s string) error {
		d, err := time.ParseDuration(s)
		if err == nil && d < 0 {
			err = errors.New("want 0 or more")
		}
		c.shared.MinSyncPeriod.Duration = d
		return err
	})
}

func (c *command) conntrackFlags(f *pflag.FlagSet) {
	p := &c.proxy.Conntrack
	f.Func("conntrack-max-per-core", "at least how many `flows` conntrack keeps for each processor; as it is by default",
		pointer(&p.MaxPerCore))
	f.Func("conntrack-min", "with --conntrack-max-per-core: how many `flows` at least (default 131072)", pointer(&p.Min))
	f.DurationVar(&p.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", p.TCPCloseWaitTimeout.Duration,
		"how long conntrack keeps half-closed TCP connections; 0: leave as is")
	f.DurationVar(&p.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", p.TCPEstablishedTimeout.Duration,
		"how long conntrack keeps idle TCP connections; 0: leave as is")
	f.BoolVar(&p.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "have conntrack take TCP packets that are outside of the window")
	f.DurationVar(&p.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "how long conntrack keeps UDP flows without answers; 0: leave as is")
	f.DurationVar(&p.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "how long conntrack keeps UDP flows; 0: leave as is")
}

// ownFlags defines packetwalk-node's own flags of the service proxy.
func (c *command) ownFlags(f *pflag.FlagSet) {
	f.BoolVar(&c.ServiceProxy, "service-proxy", c.ServiceProxy,
		"be the service proxy; false beside another one, such as kube-proxy, for what the other flags ask for")
	f.Func("ip-families", "IPv4, IPv6 or both, by commas (default all that the node supports; "+
		"IPv4 with --service-proxy=false, and with --ip-masq-agent without --config)",
		func(s string) error { return families(&c.Families, s) })
	f.StringVar(&c.IPTablesVariant, "iptables-variant", "",
		"which of iptables' programs to run: nft, legacy, or detect, the one that the node's kubelet has (default: iptables-save and so on)")
	f.StringVar(&c.Rules, "proxy-rules", c.Rules, "the rule set of a Kubernetes version: "+strings.Join(iptables.RuleSetVersions(), ", ")+" (1.35)")
	f.BoolVar(&c.RepairRules, "repair-rules", c.RepairRules,
		"put back rules of Services that something else deleted or changed; false, for experiments, leaves them until the Service changes")
	f.BoolVar(&c.WatchKernel, "watch-rules", c.WatchKernel, "put deleted rules back at once, on the kernel's notice (nft variant of iptables)")
}

func number(into *int32) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, 10, 32)
		*into = int32(n)
		return err
	}
}

func pointer(into **int32) func(string) error {
	return func(s string) error {
		*into = new(int32)
		return number(*into)(s)
	}
}

// masqueradeFlags defines the flags of the other parts, which decide whose address destinations see.
func (c *command) masqueradeFlags(f *pflag.FlagSet) {
	o := &c.Options
	f.Func("node-masquerade-exclude",
		"set up the masquerade rules of an AKS node; `ranges`, by commas, that pods reach with their own address", prefixes(&o.NodeMasquerade))
	f.Func("non-masquerade-cidr", "set up kubenet's masquerade rule; `range` that pods reach with their own address, 0.0.0.0/0 for every one",
		prefix(&o.NonMasquerade))
	f.Func("docker-bridge-cidr",
		"source `range` of docker0's masquerade rule, part of --node-masquerade-exclude and --non-masquerade-cidr; none: no such rule (default 172.17.0.0/16)",
		func(s string) (err error) {
			o.DockerBridge = netip.Prefix{}
			if s != "" && s != "none" {
				o.DockerBridge, err = netip.ParsePrefix(s) // also the bridge's own address with its length, as Docker's --bip
			}
			return err
		})
	f.BoolVar(&o.BlockWireServer, "block-wire-server", false,
		"drop pods' packets to TCP 80 and 32526 of 168.63.129.16, as an AKS node does")
	f.Func("imds-restriction",
		"drop pods' packets to TCP 80 of 169.254.169.254, as an AKS node with IMDS restriction; `address` of the node's NIC; off: remove the rule",
		func(s string) (err error) {
			if o.IMDSRestriction = netip.IPv4Unspecified(); s != "off" {
				o.IMDSRestriction, err = netip.ParseAddr(s)
			}
			return err
		})
	f.Func("local-dns", "keep DNS queries to the node's cache out of conntrack, as an AKS node with LocalDNS; `addresses`, by commas",
		func(s string) error {
			o.LocalDNS = nil
			for _, text := range strings.Split(s, ",") {
				a, err := netip.ParseAddr(strings.TrimSpace(text))
				if err != nil {
					return err
				}
				o.LocalDNS = append(o.LocalDNS, a)
			}
			return nil
		})
	f.BoolVar(&o.IPMasqAgent, "ip-masq-agent", o.IPMasqAgent, "keep the ip-masq-agent's rules, of ConfigMaps in kube-system")
	f.StringVar((*string)(&o.MasqForm), "ip-masq-format", "",
		"form of its configuration: v1 (kubernetes-sigs) or v2 (Azure); by default that of --proxy-rules")
	f.Func("ip-masq-configmaps", "`names` of its ConfigMaps, by commas (default "+strings.Join(o.MasqConfigMaps, ",")+")",
		func(s string) error {
			o.MasqConfigMaps = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
			return nil
		})
	f.BoolVar(&o.MasqKeep, "ip-masq-keep-config", o.MasqKeep,
		"while none of them is there keep the last configuration, in place of the defaults")
	f.DurationVar(&o.MasqResync, "ip-masq-resync-interval", o.MasqResync,
		"how often its configuration is read again; form v1 has it in the configuration")
}

// prefix reads one range.
func prefix(into *netip.Prefix) func(string) error {
	return func(s string) error {
		var one []netip.Prefix
		if err := prefixes(&one)(s); err != nil {
			return err
		}
		if len(one) != 1 {
			return fmt.Errorf("%q is not one range", s)
		}
		*into = one[0]
		return nil
	}
}

func prefixes(into *[]netip.Prefix) func(string) error {
	return func(s string) error {
		*into = nil
		for _, text := range strings.Split(s, ",") {
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("%q is no range; write it as 10.0.0.0/8", text)
			}
			if p != p.Masked() {
				return fmt.Errorf("%s has bits beyond its length; write %s", p, p.Masked())
			}
			*into = append(*into, p)
		}
		return nil
	}
}

func families(into *[]service.Family, s string) error {
	*into = nil
	for _, text := range strings.Split(s, ",") {
		switch strings.TrimSpace(text) {
		case "IPv4":
			*into = append(*into, service.IPv4)
		case "IPv6":
			*into = append(*into, service.IPv6)
		default:
			return fmt.Errorf("no family %q; want IPv4, IPv6 or both", text)
		}
	}
	return nil
}
