// Command packetwalk-node is the node agent: the service proxy, the ip-masq-agent and Calico's pools. It runs in each of the lab's nodes
// and, as the same program, on the nodes of a real cluster. The main holds flags and exit codes only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"packetwalk.dev/internal/node/agent"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
)

// version is set when the program is built: -ldflags "-X main.version=…".
var version = "development"

func main() {
	// The agent's own data is small and long-lived: collecting early costs little and keeps many agents on one machine small.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	o, showVersion, err := flags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "packetwalk-node: %v\n", err)
		return 2
	case showVersion:
		fmt.Println("packetwalk-node", version)
		return 0
	}
	if err := o.Validate(); err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(os.Stderr, "packetwalk-node: %s\n", strings.TrimSuffix(line, "\n"))
		}
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := agent.Run(ctx, o, log.New(os.Stderr, "", log.LstdFlags|log.Lmicroseconds)); err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node: %v\n", err)
		return 1
	}
	return 0
}

// flags reads the command line, with kube-proxy's names where it has the setting.
func flags(args []string) (agent.Options, bool, error) {
	o := agent.Defaults()
	o.Version = version
	f := flag.NewFlagSet("packetwalk-node", flag.ContinueOnError)
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; without one, the service account of the pod")
	f.StringVar(&o.NodeName, "node-name", "", "`name` of this node in the API; the host's name by default")
	f.StringVar(&o.NodeName, "hostname-override", "", "the same as --node-name, as kube-proxy calls it")
	f.StringVar(&o.HealthzAddress, "healthz-bind-address", o.HealthzAddress, "`address` of /healthz and /livez; empty: none")
	f.StringVar(&o.MetricsAddress, "metrics-bind-address", o.MetricsAddress, "`address` of /metrics; empty: none")
	f.BoolVar(&o.WatchKernel, "watch-rules", o.WatchKernel, "put deleted rules back at once, on the kernel's notice (nft variant of iptables)")
	proxyFlags(f, &o)
	masqueradeFlags(f, &o)
	showVersion := f.Bool("version", false, "print the version and exit")
	f.SetOutput(io.Discard) // an error is one line, printed by the caller
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(os.Stdout)
			fmt.Println("Usage: packetwalk-node [flags]")
			f.PrintDefaults()
		}
		return o, false, err
	}
	if f.NArg() > 0 {
		return o, false, fmt.Errorf("unexpected argument %q; all settings are flags", f.Arg(0))
	}
	return o, *showVersion, nil
}

// proxyFlags are the service proxy's.
func proxyFlags(f *flag.FlagSet, o *agent.Options) {
	f.BoolVar(&o.ServiceProxy, "service-proxy", o.ServiceProxy,
		"be the service proxy; false beside another one, such as kube-proxy, for what the other flags ask for")
	f.Func("ip-families", "IPv4, IPv6 or both, by commas (default IPv4)", func(s string) error { return families(&o.Families, s) })
	f.Func("cluster-cidr", "`range` of the pods, one a family, by commas; traffic to services from elsewhere is masqueraded",
		prefixes(&o.ClusterCIDRs))
	f.StringVar(&o.PodInterface, "pod-interface", "", "instead of --cluster-cidr: the interface of local pods, or a prefix and +")
	f.StringVar(&o.Rules, "proxy-rules", o.Rules, "the rule set of a Kubernetes version: "+strings.Join(serviceproxy.Ages(), ", ")+" (1.35)")
	f.StringVar(&o.Backend, "proxy-backend", o.Backend, "what the rules are made of: iptables or nftables")
	f.StringVar(&o.Backend, "proxy-mode", o.Backend, "the same as --proxy-backend, as kube-proxy calls it")
	f.IntVar(&o.MasqueradeBit, "iptables-masquerade-bit", o.MasqueradeBit, "`bit` of the packet mark that asks for source NAT")
	f.BoolVar(&o.MasqueradeAll, "masquerade-all", o.MasqueradeAll, "masquerade everything sent to a cluster IP")
	f.Func("nodeport-addresses", "`ranges` of the node's addresses that answer on node ports, by commas; all by default",
		prefixes(&o.NodePortCIDRs))
	f.BoolVar(&o.LocalhostPorts, "iptables-localhost-nodeports", o.LocalhostPorts,
		"let node ports answer on 127.0.0.1 (sets net.ipv4.conf.all.route_localnet)")
	f.DurationVar(&o.SyncPeriod, "iptables-sync-period", o.SyncPeriod, "how often all rules are compared with the kernel's")
	f.DurationVar(&o.MinSyncPeriod, "iptables-min-sync-period", o.MinSyncPeriod, "least time between two syncs")
	f.DurationVar(&o.CloseWait, "conntrack-tcp-timeout-close-wait", o.CloseWait,
		"how long conntrack keeps half-closed TCP connections; 0: leave as is")
	f.DurationVar(&o.Established, "conntrack-tcp-timeout-established", o.Established,
		"how long conntrack keeps idle TCP connections; 0: leave as is")
}

// masqueradeFlags are those of the other parts, which decide whose address destinations see.
func masqueradeFlags(f *flag.FlagSet, o *agent.Options) {
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
	f.BoolVar(&o.IPMasqAgent, "ip-masq-agent", o.IPMasqAgent, "keep the ip-masq-agent's rules, of ConfigMaps in kube-system")
	f.StringVar((*string)(&o.MasqForm), "ip-masq-format", "",
		"form of its configuration: v1 (kubernetes-sigs) or v2 (Azure); by default that of --proxy-rules")
	f.Func("ip-masq-configmaps", "`names` of its ConfigMaps, by commas (default "+strings.Join(o.MasqConfigMaps, ",")+")",
		func(s string) error {
			o.MasqConfigMaps = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
			return nil
		})
	f.DurationVar(&o.MasqResync, "ip-masq-resync-interval", o.MasqResync,
		"how often its configuration is read again; form v1 has it in the configuration")
	f.BoolVar(&o.CalicoPools, "calico-pools", o.CalicoPools,
		"keep the IP sets and nat chains of Calico's IPPools (crd.projectcalico.org/v1), as its agent felix does; not on a node with felix")
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
