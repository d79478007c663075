package cluster

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// addrRange is first to last, both within.
type addrRange struct {
	first, last netip.Addr
	what        string
}

func inRows(rows []addrRange, a netip.Addr) bool {
	for _, r := range rows {
		if r.first.Compare(a) <= 0 && a.Compare(r.last) <= 0 {
			return true
		}
	}
	return false
}

// addressesPerNode is how many addresses of the subnet one node takes: its own, and one for each pod unless those have a range of their
// own.
func (c *Cluster) addressesPerNode(p NodePool) int {
	if c.Spec.Network.Plugin == PluginKubenet || c.Spec.Network.Plugin == PluginNone {
		return 1
	}
	return 1 + p.MaxPods
}

// countable says whether all pools' figures are within their bounds, so that sums of them mean something.
func (c *Cluster) countable() bool {
	for _, p := range c.Spec.NodePools {
		if p.Count < 1 || p.Count > MaxPoolNodes || p.MaxPods < minMaxPods || p.MaxPods > maxMaxPods {
			return false
		}
	}
	return len(c.Spec.NodePools) <= maxPools
}

// nth is the n-th address after p's, wrapping around at the end of IPv4. p must be IPv4.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// size is how many addresses p has. p must be IPv4.
func size(p netip.Prefix) int { return 1 << (32 - p.Bits()) }

// last is p's last address. p must be IPv4.
func last(p netip.Prefix) netip.Addr { return nth(p.Masked(), size(p)-1) }

// lengthFor is the longest prefix length that holds n addresses.
func lengthFor(n int) int { return 32 - bits.Len(uint(n-1)) }
