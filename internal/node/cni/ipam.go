package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// maxPool bounds a pool: a NIC has 256 IP configurations in Azure, and a mistyped range must not become a million.
const maxPool = 1 << 16

// addrRange is a row of addresses, both ends included.
type addrRange struct{ First, Last netip.Addr }

// size returns the number of addresses in the row.
func (r addrRange) size() int { return int(v4(r.Last)-v4(r.First)) + 1 }

func v4(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// parseRange reads "10.0.0.5", "10.0.0.5-10.0.0.34" or "10.0.0.16/28".
func parseRange(s string) (addrRange, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		if !p.Addr().Is4() {
			return addrRange{}, fmt.Errorf("%q is not IPv4", s)
		}
		if p != p.Masked() {
			return addrRange{}, fmt.Errorf("%q is no prefix; write %s", s, p.Masked())
		}
		last := v4(p.Addr()) | uint32(1<<(32-p.Bits())-1)
		return addrRange{p.Addr(), netip.AddrFrom4([4]byte{byte(last >> 24), byte(last >> 16), byte(last >> 8), byte(last)})}, nil
	}
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	first, err1 := netip.ParseAddr(strings.TrimSpace(from))
	last, err2 := netip.ParseAddr(strings.TrimSpace(to))
	switch {
	case err1 != nil || err2 != nil:
		return addrRange{}, fmt.Errorf("%q is no address, range or prefix such as 10.13.76.5, 10.13.76.5-10.13.76.34 or 10.13.76.16/28", s)
	case !first.Is4() || !last.Is4():
		return addrRange{}, fmt.Errorf("%q is not IPv4", s)
	case last.Less(first):
		return addrRange{}, fmt.Errorf("%q ends before it starts; write %s-%s", s, last, first)
	}
	return addrRange{first, last}, nil
}

// parseRanges reads a list of ranges and checks that they lie in the subnet and do not overlap, and in one with a gateway that they leave
// out the gateway, the first and the last address. The ranges come back in ascending order.
func parseRanges(field string, list []string, subnet netip.Prefix, gateway netip.Addr, f *faults) []addrRange {
	var pool []addrRange
	size := 0
	for i, s := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		r, err := parseRange(s)
		if err != nil {
			f.add(at, "%w", err)
			continue
		}
		if subnet.IsValid() {
			checkInSubnet(at, s, r, subnet, gateway, f)
		}
		pool, size = append(pool, r), size+r.size()
	}
	if len(list) == 0 {
		f.add(field, "is empty; list the NIC's secondary addresses")
	}
	if size > maxPool {
		f.add(field, "%d addresses; the most is %d", size, maxPool)
	}
	slices.SortFunc(pool, func(a, b addrRange) int { return a.First.Compare(b.First) })
	for i := 1; i < len(pool); i++ {
		if !pool[i-1].Last.Less(pool[i].First) {
			f.add(field, "%s is listed twice; let ranges not overlap", pool[i].First)
		}
	}
	return pool
}

func checkInSubnet(at, s string, r addrRange, subnet netip.Prefix, gateway netip.Addr, f *faults) {
	if !subnet.Contains(r.First) || !subnet.Contains(r.Last) {
		f.add(at, "%q is outside the subnet %s", s, subnet)
		return
	}
	if !gateway.IsValid() {
		return
	}
	whole, _ := parseRange(subnet.String())
	for _, reserved := range []struct {
		addr netip.Addr
		what string
	}{{gateway, "gateway"}, {whole.First, "first address"}, {whole.Last, "last address"}} {
		if !reserved.addr.Less(r.First) && !r.Last.Less(reserved.addr) {
			f.add(at, "%q holds %s, the subnet's %s; leave it out", s, reserved.addr, reserved.what)
		}
	}
}

func poolSize(pool []addrRange) int {
	n := 0
	for _, r := range pool {
		n += r.size()
	}
	return n
}

func inPool(pool []addrRange, a netip.Addr) bool {
	return slices.ContainsFunc(pool, func(r addrRange) bool { return !a.Less(r.First) && !r.Last.Less(a) })
}

// pick chooses an address of the pool that no attachment holds and that is not one of the node's own: the lowest of those never given out
// since the node started, and after those the one that was given back longest ago, so that peers which still know an old pod do not find a
// new one in its place.
func pick(pool []addrRange, s *state, nodes []netip.Addr) (netip.Addr, bool) {
	taken := make(map[netip.Addr]bool, len(s.Attachments)+len(nodes))
	for _, a := range s.Attachments {
		taken[a.Address] = true
	}
	for _, a := range nodes {
		taken[a] = true
	}
	released := make(map[netip.Addr]bool, len(s.Released))
	for _, a := range s.Released {
		released[a] = true
	}
	for _, r := range pool {
		for a := r.First; !r.Last.Less(a); a = a.Next() {
			if !taken[a] && !released[a] {
				return a, true
			}
		}
	}
	for _, a := range s.Released { // oldest first
		if !taken[a] && inPool(pool, a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// exhausted says that there is no address left, how many there are and who has them.
func exhausted(c *config, s *state) error {
	holders := make([]string, len(s.Attachments))
	for i, a := range s.Attachments {
		holders[i] = fmt.Sprintf("%s by %s", a.Address, a.owner())
	}
	return coded(types.ErrTryAgainLater,
		fmt.Errorf("allocate an address on network %s: all %d addresses of the node are in use: %s; delete pods of this node, or give it more addresses",
			c.Name, poolSize(c.Pool), strings.Join(holders, ", ")))
}
