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

// addressesPerNode returns how many addresses of the subnet one node takes: its own, and one for each pod unless those have a range of
// their own.
func (c *Cluster) addressesPerNode(p NodePool) int {
	if c.Spec.Network.HasNodeAddressesOnly() {
		return 1
	}
	return 1 + p.MaxPods
}

// countable reports whether a pool's figures are within their bounds, so that sums of them mean something.
func (p NodePool) countable() bool {
	return p.Count >= 1 && p.Count <= MaxPoolNodes && p.MaxPods >= MinMaxPods && p.MaxPods <= MaxMaxPods
}

// countablePools returns the pools, by their indices, that can be counted.
func (c *Cluster) countablePools() map[int]NodePool {
	all := map[int]NodePool{}
	for i, p := range c.Spec.NodePools[:min(len(c.Spec.NodePools), MaxPools)] {
		if p.countable() {
			all[i] = p
		}
	}
	return all
}

// nth returns the n-th address after p's, wrapping around at the end of IPv4. p must be IPv4.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// size returns how many addresses p has. p must be IPv4.
func size(p netip.Prefix) int { return 1 << (32 - p.Bits()) }

// last returns p's last address. p must be IPv4.
func last(p netip.Prefix) netip.Addr { return nth(p.Masked(), size(p)-1) }

// lengthFor returns the longest prefix length that holds n addresses.
func lengthFor(n int) int { return 32 - bits.Len(uint(n-1)) }
