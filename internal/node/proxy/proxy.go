// Package proxy has what the service proxies of all backends share: what configures their rules, what a sync did, and their health.
package proxy

import (
	"net/netip"

	"packetwalk.dev/internal/node/service"
)

// Config is everything besides the service ports that the rules depend on. Its zero value but for Family, Rules and MasqueradeBit is what
// kube-proxy does without a cluster CIDR.
type Config struct {
	Family service.Family
	Rules  string // one of iptables.Ages
	// Detector tells traffic of local pods from other traffic.
	Detector Detector
	// MasqueradeBit is the bit of the packet mark that asks for source NAT: 14 by default, so 0x4000.
	MasqueradeBit int
	// MasqueradeAll marks everything sent to a cluster IP.
	MasqueradeAll bool
	// NodeIP is the node's own address; load balancer source ranges that hold it let the node itself in.
	NodeIP netip.Addr
	// NodePortIPs are the addresses that answer on node ports; nil: all of the node's.
	NodePortIPs []netip.Addr
	// ServiceCIDRs are the ranges of cluster IPs: with nftables what is for an address of them that no service has is dropped.
	ServiceCIDRs []netip.Prefix
	// LocalhostNodePorts lets node ports answer on 127.0.0.0/8 (IPv4 only; needs net.ipv4.conf.all.route_localnet=1).
	LocalhostNodePorts bool
	// TCPLiberal: net.netfilter.nf_conntrack_tcp_be_liberal is set, so INVALID packets are not dropped.
	TCPLiberal bool
	// NFAcct: the kernel has the two accounting objects that today's rules count with (iptables.CounterNames).
	NFAcct bool
}

// Detector recognises traffic that local pods send: by its source range or by the interface it comes in by. The zero value recognises none.
type Detector struct {
	CIDR      netip.Prefix
	Interface string // a name, or a prefix followed by "+"
}

// IsZero reports whether the detector recognises nothing.
func (d Detector) IsZero() bool { return !d.CIDR.IsValid() && d.Interface == "" }

// Result is what a sync did.
type Result struct {
	Full bool
	// Unchanged: no rule was written or deleted.
	Unchanged bool
	// Written counts the rules written, Total those that the rule set has, each by table.
	Written, Total map[string]int
	// NoLocalInternal and NoLocalExternal are those of iptables.RuleSet.
	NoLocalInternal, NoLocalExternal int
	// CleanupErr: chains out of use could not be deleted. They are harmless, and the next full sync tries again.
	CleanupErr error
	// PartialErr: what has changed could not be written by itself, so all was compared with the kernel.
	PartialErr error
}
