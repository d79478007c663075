package options

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/proxyconfig"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Apply takes the settings of a configuration of kube-proxy's, to which defaults have been added, adds that of nodePortAddresses, and
// reports everything that is wrong with it, each with its path.
func (o *Options) Apply(c *proxyconfig.Configuration) error {
	a := configReader{Options: o}
	o.Kubeconfig, o.QPS, o.Burst = c.ClientConnection.Kubeconfig, c.ClientConnection.QPS, int(c.ClientConnection.Burst)
	if o.Burst < 0 {
		a.bad("clientConnection.burst", "%d; want 0 or more", o.Burst)
	}
	o.NodeName = strings.ToLower(strings.TrimSpace(c.HostnameOverride))
	if c.BindAddress != "" {
		o.NodeIP = a.address("bindAddress", c.BindAddress)
	}
	o.HealthzAddress = a.bind("healthzBindAddress", c.HealthzBindAddress, proxyconfig.HealthzPort)
	o.MetricsAddress = a.bind("metricsBindAddress", c.MetricsBindAddress, proxyconfig.MetricsPort)
	o.BindHardFail, o.OOMScore = c.BindAddressHardFail, c.OOMScoreAdj
	if c.OOMScoreAdj != nil && (*c.OOMScoreAdj < -1000 || *c.OOMScoreAdj > 1000) {
		a.bad("oomScoreAdj", "%d; want -1000 to 1000", *c.OOMScoreAdj)
	}
	a.mode(c)
	a.local(c)
	a.nodePorts(c)
	a.conntrack(&c.Conntrack)
	o.Configz = c
	return errors.Join(a.errs...)
}

// configReader sets Options by a configuration, and collects its errors.
type configReader struct {
	*Options
	errs []error
}

func (a *configReader) bad(path, format string, args ...any) {
	a.errs = append(a.errs, fmt.Errorf(path+": "+format, args...))
}

// address reads an address; one that stands for all is none.
func (a *configReader) address(path, text string) netip.Addr {
	ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	if !ok {
		a.bad(path, "%q is no IP address", text)
	}
	if ip = ip.Unmap(); ip.IsUnspecified() {
		return netip.Addr{}
	}
	return ip
}

func (a *configReader) bind(path, text string, port int) string {
	text = proxyconfig.WithPort(text, port)
	if at, err := netip.ParseAddrPort(text); text != "" && (err != nil || at.Port() == 0) {
		a.bad(path, "%q; want an IP address, with a port or without", text)
	}
	return text
}

func (a *configReader) mode(c *proxyconfig.Configuration) {
	bit := c.IPTables.MasqueradeBit
	switch c.Mode {
	case "", proxyconfig.ModeIPTables:
		a.Backend, a.MasqueradeAll = BackendIPTables, c.IPTables.MasqueradeAll
		a.SyncPeriod, a.MinSyncPeriod = c.IPTables.SyncPeriod.Duration, c.IPTables.MinSyncPeriod.Duration
	case proxyconfig.ModeNFTables:
		a.Backend, a.MasqueradeAll, bit = BackendNFTables, c.NFTables.MasqueradeAll, c.NFTables.MasqueradeBit
		a.SyncPeriod, a.MinSyncPeriod = c.NFTables.SyncPeriod.Duration, c.NFTables.MinSyncPeriod.Duration
	case proxyconfig.ModeIPVS:
		a.bad("mode", "there is no ipvs here; write iptables or nftables, which go past what ipvs was chosen for")
	default:
		a.bad("mode", "%q; want iptables or nftables", c.Mode)
	}
	if bit != nil {
		a.MasqueradeBit = int(*bit)
	}
	if c.IPTables.LocalhostNodePorts != nil {
		a.LocalhostPorts = *c.IPTables.LocalhostNodePorts
	}
}

// local sets how traffic of local pods is recognised.
func (a *configReader) local(c *proxyconfig.Configuration) {
	a.ClusterCIDRs, a.PodInterface, a.PodsOfNode = nil, "", false
	switch c.DetectLocalMode {
	case "", proxyconfig.LocalClusterCIDR:
		if c.ClusterCIDR != "" {
			a.ClusterCIDRs = a.ranges("clusterCIDR", strings.Split(c.ClusterCIDR, ","))
		}
	case proxyconfig.LocalNodeCIDR:
		a.PodsOfNode = true
	case proxyconfig.LocalBridgeInterface:
		if a.PodInterface = c.DetectLocal.BridgeInterface; a.PodInterface == "" {
			a.bad("detectLocal.bridgeInterface", "empty, with detectLocalMode BridgeInterface")
		}
	case proxyconfig.LocalInterfaceNamePrefix:
		if a.PodInterface = c.DetectLocal.InterfaceNamePrefix + "+"; a.PodInterface == "+" {
			a.bad("detectLocal.interfaceNamePrefix", "empty, with detectLocalMode InterfaceNamePrefix")
		}
	default:
		a.bad("detectLocalMode", "%q; want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", c.DetectLocalMode)
	}
}

// ranges reads ranges as leniently as kube-proxy does: bits beyond a range's length do not matter.
func (a *configReader) ranges(path string, texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		r, ok := service.ParsePrefix(strings.TrimSpace(text))
		if !ok {
			a.bad(path, "%q is no range; write it as 10.0.0.0/8", text)
			continue
		}
		all = append(all, r)
	}
	return all
}

// nodePorts sets where node ports answer: with nftables on the node's own address unless something else is said
// (k8s.io/kubernetes cmd/kube-proxy/app/server_linux.go, platformApplyDefaults).
func (a *configReader) nodePorts(c *proxyconfig.Configuration) {
	if c.Mode == proxyconfig.ModeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{proxyconfig.Primary}
	}
	texts := c.NodePortAddresses
	a.NodePortCIDRs, a.NodePortPrimary = nil, len(texts) == 1 && texts[0] == proxyconfig.Primary
	if !a.NodePortPrimary {
		a.NodePortCIDRs = a.ranges("nodePortAddresses", texts)
	}
}

func (a *configReader) conntrack(c *proxyconfig.Conntrack) {
	number := func(path string, of *int32) int {
		if of == nil {
			return 0
		}
		if *of < 0 {
			a.bad("conntrack."+path, "%d; want 0 or more", *of)
		}
		return int(*of)
	}
	duration := func(path string, of metav1.Duration) time.Duration {
		if of.Duration < 0 {
			a.bad("conntrack."+path, "%v; want 0 or more", of.Duration)
		}
		return of.Duration
	}
	a.ConntrackPerCore, a.ConntrackMin = number("maxPerCore", c.MaxPerCore), number("min", c.Min)
	if c.TCPCloseWaitTimeout != nil {
		a.CloseWait = duration("tcpCloseWaitTimeout", *c.TCPCloseWaitTimeout)
	}
	if c.TCPEstablishedTimeout != nil {
		a.Established = duration("tcpEstablishedTimeout", *c.TCPEstablishedTimeout)
	}
	a.BeLiberal = c.TCPBeLiberal
	a.UDPTimeout, a.UDPStreamTimeout = duration("udpTimeout", c.UDPTimeout), duration("udpStreamTimeout", c.UDPStreamTimeout)
}

// presentLimit is how long it may take to find out whether there can be rules of a family.
const presentLimit = 10 * time.Second

// SupportedFamilies returns those that the node can have rules of: kube-proxy serves both where it can. With iptables that is where its
// programs get at table nat (k8s.io/kubernetes pkg/util/iptables, Present).
func (o *Options) SupportedFamilies() []service.Family {
	_, err := sysctl.Read("net/ipv6/conf/all/forwarding")
	if err == nil && o.Backend == BackendIPTables {
		ctx, cancel := context.WithTimeout(context.Background(), presentLimit)
		defer cancel()
		_, err = iptablescmd.New(service.IPv6, o.IPTablesVariant).Save(ctx, iptables.NAT)
	}
	if err != nil {
		return []service.Family{service.IPv4}
	}
	return []service.Family{service.IPv4, service.IPv6}
}
