package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Placement is where the machines of a running cluster have their addresses, by machine: a node's own first, then those of its pods, in a
// row. Machines keep their places when others come and go, as in Azure, so that these depend on the cluster's past; the zero value is a
// cluster without a past.
type Placement map[string][]netip.Addr

// inSubnet gives the rows of addresses that machines have in a subnet, in order.
func (p Placement) inSubnet(subnet netip.Prefix) []addrRange {
	var rows []addrRange
	for machine, addrs := range p {
		if len(addrs) > 0 && subnet.Contains(addrs[0]) {
			rows = append(rows, addrRange{addrs[0], addrs[len(addrs)-1], machine})
		}
	}
	slices.SortFunc(rows, compareRows)
	return rows
}

func compareRows(a, b addrRange) int {
	return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last), cmp.Compare(a.what, b.what))
}

// nodeRow is a node of a pool and the row of its addresses.
type nodeRow struct {
	pool, index int
	subnet      Subnet
	vnet        string
	addrRange
	fits bool // within what Azure gives out of the subnet
}

// layout gives the rows of the nodes of all pools, in order, also where they do not fit: those that are placed stay, and the others take
// the lowest row that is free. Pools whose subnet is missing, or whose figures are out of bounds, have none.
func (c *Cluster) layout() []nodeRow {
	var rows []nodeRow
	busy := map[netip.Prefix][]addrRange{}
	pools := c.countablePools()
	for _, i := range slices.Sorted(maps.Keys(pools)) {
		p := pools[i]
		v, s, ok := c.findSubnet(p.VNetSubnet)
		if !ok || !s.Prefix.Addr().Is4() {
			continue
		}
		s.Prefix = s.Prefix.Masked()
		if _, seen := busy[s.Prefix]; !seen {
			busy[s.Prefix] = c.placed.inSubnet(s.Prefix)
		}
		for k := range p.Count {
			n := c.addressesPerNode(p)
			r := nodeRow{pool: i, index: k, subnet: s, vnet: v.Name}
			name := c.nodeName(p, k)
			if at := c.placed[name]; len(at) == n && s.Prefix.Contains(at[0]) {
				r.addrRange, r.fits = addrRange{at[0], at[n-1], name}, true
			} else {
				r.first = freeRow(busy[s.Prefix], nth(s.Prefix, reservedFirst), n)
				r.last = after(r.first, n-1)
				r.fits = r.last.Compare(r.first) >= 0 && s.Prefix.Contains(r.last) && r.last != last(s.Prefix)
				at, _ := slices.BinarySearchFunc(busy[s.Prefix], r.addrRange, compareRows)
				busy[s.Prefix] = slices.Insert(busy[s.Prefix], at, r.addrRange)
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// freeRow returns the lowest address, at least from, with which n addresses begin that none of the rows, which are in order, has.
func freeRow(busy []addrRange, from netip.Addr, n int) netip.Addr {
	for _, b := range busy {
		if b.last.Compare(from) < 0 {
			continue
		}
		if b.first.Compare(after(from, n-1)) > 0 {
			break
		}
		from = after(b.last, 1)
	}
	return from
}

// after returns the n-th address after a, which must be IPv4, wrapping around at its end.
func after(a netip.Addr, n int) netip.Addr { return nth(netip.PrefixFrom(a, 32), n) }

// nodeName returns the name of a pool's node: that of its machine, and its host name.
func (c *Cluster) nodeName(p NodePool, index int) string {
	return fmt.Sprintf("aks-%s-%s-%d", p.Name, c.ID(), index)
}

// nodeRows gives the addresses that each pool takes of its subnet, without listing them.
func (c *Cluster) nodeRows() []addrRange {
	var rows []addrRange
	pool := -1
	for _, r := range c.layout() {
		if k := len(rows) - 1; r.pool == pool && after(rows[k].last, 1) == r.first {
			rows[k].last = r.last
			continue
		}
		pool = r.pool
		rows = append(rows, addrRange{r.first, r.last, "the nodes and pods of pool " + c.Spec.NodePools[pool].Name})
	}
	return rows
}
