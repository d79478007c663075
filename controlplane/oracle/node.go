package oracle

import (
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// node is the host on which packets are walked. Its pods are behind one link, and all other hosts are behind another. Neither link resolves
// neighbours. Like nodes behind load balancers, the node has an address of a load balancer itself.
type node struct{ host snapshot.Host }

// Host implements snapshot.Source.
func (n *node) Host(string) (*snapshot.Host, error) { return &n.host, nil }

// Names implements snapshot.Source.
func (*node) Names() []string { return []string{nodeHost} }

// Objects implements snapshot.Source.
func (*node) Objects() snapshot.Objects { return snapshot.Objects{} }

const (
	nodeHost = "node"
	outside  = "eth0"
)

// podLink returns the link of the pods. Where local pods are recognised by a link, it is one of those.
func podLink(v Settings) string {
	if v.PodInterface == "" {
		return "pods"
	}
	return strings.Replace(v.PodInterface, "+", "7", 1)
}

// addresses are those of a family that worlds have.
type addresses struct {
	loopback, vip, unallocated, otherUnallocated, pod, remotePod netip.Addr
	node                                                         []netip.Addr
	outside                                                      []netip.Addr // in and out of the source ranges of load balancers
	pods                                                         netip.Prefix
}

func addressesOf(v Settings) addresses {
	if v.IPv6 {
		return addresses{
			loopback: addr("::1"), vip: addr("2001:db8:5::9"), unallocated: addr("fd00:10::fafa"), otherUnallocated: addr("fd00:96::1"),
			pod: addr("fd00:244:1:50::7"), remotePod: addr("fd00:244:1:60::7"), pods: netip.MustParsePrefix("fd00:244::/48"),
			node: addrs("fd00:240::4", "fd00:240:1::4"), outside: addrs("fd00:240::77", "2001:db8::1", "2001:db8::5", "2001:db8:9::9"),
		}
	}
	return addresses{
		loopback: addr("127.0.0.1"), vip: addr("198.51.100.9"), unallocated: addr("10.0.250.250"), otherUnallocated: addr("10.96.1.1"),
		pod: addr("10.244.50.7"), remotePod: addr("10.244.60.7"), pods: netip.MustParsePrefix("10.244.0.0/16"),
		node:    addrs("10.240.0.4", "10.240.1.4"),
		outside: addrs("10.240.0.77", "10.1.2.3", "10.1.9.9", "192.168.0.5", "172.20.0.1", "10.9.3.3", "8.8.8.8"),
	}
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, addr(text))
	}
	return all
}

// newNode returns a node with rules. localhost lets packets to and from loopback addresses be forwarded, as kube-proxy's iptables mode
// does.
func newNode(v Settings, tables []*netfilter.Table, localhost bool) *node {
	n := &node{snapshot.Host{Name: nodeHost, FIB: &fib.State{}, Rules: &netfilter.Ruleset{Tables: tables}, Flows: conntrack.NewTable(nil),
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}}}
	if localhost {
		n.host.Sysctls["net.ipv4.conf.all.route_localnet"] = "1"
	}
	n.host.RecentLists = map[string]netfilter.RecentList{}
	for _, t := range tables {
		for _, c := range t.Chains {
			n.host.RecentLists[c.Name] = netfilter.RecentList{} // an endpoint's chain names its list of clients
		}
	}
	a := addressesOf(v)
	n.link("lo", "loopback", netip.Prefix{}, a.loopback, a.vip)
	n.link(outside, "none", netip.PrefixFrom(netip.IPv4Unspecified(), 0), a.node...)
	if v.IPv6 {
		n.host.FIB.Routes[len(n.host.FIB.Routes)-1].Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	n.link(podLink(v), "none", a.pods)
	n.host.FIB.Index()
	n.host.Rules.Index()
	return n
}

func (n *node) link(name, kind string, behind netip.Prefix, own ...netip.Addr) {
	f := n.host.FIB
	f.Links = append(f.Links, fib.Link{Name: name, Index: len(f.Links) + 1, Up: true, LowerUp: true, Type: kind})
	n.host.Sysctls[snapshot.SysctlKey("net", "ipv4", "conf", name, "forwarding")] = "1"
	n.host.Sysctls[snapshot.SysctlKey("net", "ipv6", "conf", name, "forwarding")] = "1"
	for _, ip := range own {
		single, scope := netip.PrefixFrom(ip, ip.BitLen()), "global"
		if ip.IsLoopback() {
			scope = "host"
		}
		f.Addresses = append(f.Addresses, fib.Address{Link: name, Prefix: single, Scope: scope})
		f.Routes = append(f.Routes, fib.Route{Table: fib.TableLocal, Type: "local", Destination: single, Link: name, Source: ip, Scope: "host"})
	}
	if behind.IsValid() {
		f.Routes = append(f.Routes, fib.Route{Table: fib.TableMain, Type: "unicast", Destination: behind, Link: name, Scope: "link"})
	}
}
