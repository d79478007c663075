package vnet

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// TranslatedFlow is a flow that left for the internet, as conntrack has it; also one that has ended, for as long as conntrack keeps it:
// Azure gives its port back only then, too ("Source network address translation for outbound connections", SNAT port reuse,
// learn.microsoft.com).
type TranslatedFlow struct {
	Protocol    uint8          // IPPROTO_TCP or IPPROTO_UDP
	Private     netip.AddrPort // the machine's end
	Public      netip.AddrPort // what the destination sees
	Destination netip.AddrPort
}

// PortUse is how far the ports that a machine has on its front ends are used, or those that the machines behind a NAT gateway share. The
// same port serves flows to several destinations, so that what runs out is the ports towards one of them.
type PortUse struct {
	Machine string
	Private netip.Addr
	Gateway string // of the NAT gateway, which has no Machine and no Private
	Ports   int    // towards one destination, over all front ends
	InUse   int    // front ends' ports that some flow has
	// Frontends has each front end's share of Ports.
	Frontends []FrontendPorts
	Fullest   DestinationUse
}

// FrontendPorts holds how many ports of a front end a machine, or a NAT gateway, has towards one destination.
type FrontendPorts struct {
	Address netip.Addr
	Ports   int
}

// DestinationUse is how many ports of a machine flows to one destination have. It is zero where there are none.
type DestinationUse struct {
	Protocol    uint8
	Destination netip.AddrPort
	InUse       int
}

// Spare is a short row of ports among which a machine's new flow to a nearly used up destination finds a free one, or says that there is
// none.
type Spare struct {
	Protocol    uint8
	Private     netip.Addr
	Destination netip.AddrPort
	Frontend    netip.Addr // invalid, and no ports: each has a flow
	First, Last uint16
}

// portKey is what a port can be used for once.
type portKey struct {
	protocol    uint8
	private     netip.Addr
	destination netip.AddrPort
}

// portsInUse are the ports that flows have, by what they are used for.
type portsInUse map[portKey]map[netip.AddrPort]bool

func usedPorts(flows []TranslatedFlow) portsInUse {
	used := portsInUse{}
	for _, f := range flows {
		key := portKey{f.Protocol, f.Private.Addr(), f.Destination}
		if used[key] == nil {
			used[key] = map[netip.AddrPort]bool{}
		}
		used[key][f.Public] = true
	}
	return used
}

// keys returns the keys in a stable order.
func (u portsInUse) keys() []portKey {
	return slices.SortedFunc(maps.Keys(u), func(a, b portKey) int {
		return cmp.Or(int(a.protocol)-int(b.protocol), a.private.Compare(b.private), a.destination.Compare(b.destination))
	})
}

// blocksOf returns the shares of each machine that leaves by a load balancer, in the order in which they are used.
func blocksOf(n Network) (order []netip.Addr, blocks map[netip.Addr][]outboundBlock) {
	blocks = map[netip.Addr][]outboundBlock{}
	for _, b := range outboundBlocks(n) {
		if b.Gateway != "" {
			continue
		}
		own := blocks[b.Private]
		if own == nil {
			order = append(order, b.Private)
		}
		same := func(o outboundBlock) bool { return o.Frontend == b.Frontend && o.FirstPort == b.FirstPort }
		if i := slices.IndexFunc(own, same); i >= 0 { // the other protocol's
			own[i].Protocols = slices.Concat(own[i].Protocols, b.Protocols)
			continue
		}
		blocks[b.Private] = append(own, b)
	}
	return order, blocks
}

// PortUses says how far the ports of each machine that leaves by a load balancer are used, in the machines' order, and then those of each
// NAT gateway.
func PortUses(n Network, flows []TranslatedFlow) []PortUse {
	used := usedPorts(flows)
	order, blocks := blocksOf(n)
	var all []PortUse
	for _, private := range order {
		u := PortUse{Machine: blocks[private][0].Machine, Private: private}
		u.count(blocks[private], used, func(k portKey) bool { return k.private == private })
		all = append(all, u)
	}
	return append(all, gatewayUses(n, flows)...)
}

// gatewayUses says how far the ports of each NAT gateway are used, by all machines together.
func gatewayUses(n Network, flows []TranslatedFlow) []PortUse {
	var all []PortUse
	for _, pool := range outbound(n).pools {
		if pool.gateway == "" {
			continue
		}
		members := map[netip.Addr]bool{}
		for _, m := range pool.members {
			members[m.address] = true
		}
		var own []TranslatedFlow
		for _, f := range flows {
			if members[f.Private.Addr()] {
				f.Private = netip.AddrPort{}
				own = append(own, f)
			}
		}
		u := PortUse{Gateway: pool.gateway}
		var blocks []outboundBlock
		for i := range pool.frontends {
			blocks = append(blocks, pool.block(i, 0))
		}
		u.count(blocks, usedPorts(own), func(portKey) bool { return true })
		all = append(all, u)
	}
	return all
}

// count adds up the blocks' ports, and those of them that are used under the keys that match.
func (u *PortUse) count(blocks []outboundBlock, used portsInUse, match func(portKey) bool) {
	for _, b := range blocks {
		u.Ports += b.Ports
		u.Frontends = append(u.Frontends, FrontendPorts{b.Frontend, b.Ports})
	}
	distinct := map[string]bool{}
	for _, key := range used.keys() {
		if !match(key) {
			continue
		}
		count := 0
		for port := range used[key] {
			if holds(blocks, port) {
				distinct[fmt.Sprint(key.protocol, port)] = true
				count++
			}
		}
		if count > u.Fullest.InUse {
			u.Fullest = DestinationUse{key.protocol, key.destination, count}
		}
	}
	u.InUse = len(distinct)
}

func holds(blocks []outboundBlock, port netip.AddrPort) bool {
	return slices.ContainsFunc(blocks, func(b outboundBlock) bool {
		return b.Frontend == port.Addr() && port.Port() >= b.FirstPort && int(port.Port()) <= b.lastPort()
	})
}

const (
	// spareWindow is how many ports a Spare has: as many as the kernel tries in a row. It begins at a random place, and where it finds
	// nothing, tries half as many at another, down to 16, and gives up (nf_nat_l4proto_unique_tuple, net/netfilter/nf_nat_core.c). So of
	// 1,024 ports it finds the last free one in one case of five, and as ports that are in use stand in long rows, it may miss 70 free
	// ones.
	spareWindow = 128
	// fewSpare is what part of the ports being free is few: then rows of ports in use are seldom longer than what the kernel tries.
	fewSpare = 5
	// spareTimeoutSeconds is how long a Spare is good for: it must not outlive the process that knows whether it is still true for long.
	spareTimeoutSeconds = 3
)

// SparesFrom returns how many flows there are at least before some machine has only few ports left towards some destination; 0 when nothing
// leaves by a load balancer.
func SparesFrom(n Network) int {
	least := 0
	for _, b := range outboundBlocks(n) {
		if b.Gateway != "" { // random ports of so many: the kernel finds one
			continue
		}
		if from := b.Ports - b.Ports/fewSpare; least == 0 || from < least {
			least = from
		}
	}
	return least
}

// Spares finds, for each destination towards which a machine has only few ports left, the row of ports with the most free ones: on the
// first front end that has any where front ends are used in turn, else on any; or that there is none. The kernel alone would, after some
// tries, take the port of a TCP flow that has ended (nf_nat_used_tuple_harder, net/netfilter/nf_nat_core.c), which Azure keeps for four
// minutes. Within a row that is for who applies them to prevent (kernel.Namespace.KeepEnded).
func Spares(n Network, flows []TranslatedFlow) []Spare {
	used := usedPorts(flows)
	_, blocks := blocksOf(n)
	var all []Spare
	for _, key := range used.keys() {
		others := func(b outboundBlock) bool {
			return !slices.Contains(b.Protocols, map[uint8]string{6: "tcp", 17: "udp"}[key.protocol])
		}
		own := slices.DeleteFunc(slices.Clone(blocks[key.private]), others)
		if s, ok := spareFor(key, own, used[key]); ok {
			all = append(all, s)
		}
	}
	return all
}

// spareFor returns the best row of the blocks, or none; ok says that it is needed.
func spareFor(key portKey, blocks []outboundBlock, used map[netip.AddrPort]bool) (best Spare, ok bool) {
	most, sum, all, long := 0, 0, 0, false
	for i, b := range blocks {
		first, last, free, total := b.findSpare(used)
		sum, all, long = sum+total, all+b.Ports, long || b.Ports > spareWindow
		if free > most {
			most = free
			best = Spare{key.protocol, key.private, key.destination, b.Frontend, first, last}
		}
		switch {
		case !b.InTurn || free == 0:
		case long && total <= b.Ports/fewSpare:
			return best, true
		default: // a front end whose turn is over must not be asked first
			best.First, best.Last = b.FirstPort, b.FirstPort+uint16(b.Ports-1)
			return best, i > 0
		}
	}
	if most == 0 {
		return Spare{Protocol: key.protocol, Private: key.private, Destination: key.destination}, all > 0
	}
	return best, long && sum <= all/fewSpare
}

// findSpare returns the row with the most free ports, their number, and the number of free ports of the whole block.
func (b outboundBlock) findSpare(used map[netip.AddrPort]bool) (first, last uint16, free, total int) {
	for at := 0; at < b.Ports; at += spareWindow {
		from, to, n := b.FirstPort+uint16(at), b.FirstPort+uint16(min(at+spareWindow, b.Ports)-1), 0
		for p := from; p <= to; p++ {
			if !used[netip.AddrPortFrom(b.Frontend, p)] {
				n++
			}
		}
		if total += n; n > free {
			first, last, free = from, to, n
		}
	}
	return first, last, free, total
}

// SpareScript returns the nft script that makes the fabric's table have exactly these spares, for spareTimeoutSeconds.
func SpareScript(spares []Spare) string {
	var rows, none strings.Builder
	for _, s := range spares {
		key := fmt.Sprintf("\t%d . %s . %s . %d timeout %ds", s.Protocol, s.Private, s.Destination.Addr(), s.Destination.Port(),
			spareTimeoutSeconds)
		if s.Frontend.IsValid() {
			fmt.Fprintf(&rows, "%s : %s . %d-%d,\n", key, s.Frontend, s.First, s.Last)
		} else {
			fmt.Fprintf(&none, "%s,\n", key)
		}
	}
	script := "flush map ip azure spare\nflush set ip azure used-up\n"
	for _, add := range []struct{ to, elements string }{{"spare", rows.String()}, {"used-up", none.String()}} {
		if add.elements != "" {
			script += "add element ip azure " + add.to + " {\n" + add.elements + "}\n"
		}
	}
	return script
}

// spareRules returns what a new flow meets whose destination is used up or nearly so. ICMP has no ports that are counted. The map's keys
// are single values: for ranges of them nft 1.0.9 converts the protocol's byte order, which Linux 6.8 refuses for a single byte.
func (w *nftWriter) spareRules() []string {
	const (
		kind        = "inet_proto . ipv4_addr . ipv4_addr . inet_service"
		destination = "meta l4proto . ip saddr . ip daddr . th dport"
	)
	w.set("set", "used-up", kind, "timeout", nil)
	w.set("map", "spare", kind+" : interval ipv4_addr . inet_service", "timeout", nil)
	return []string{
		"meta l4proto { tcp, udp } " + destination + ` @used-up drop comment "no port is left for this destination"`,
		"meta l4proto { tcp, udp } snat ip to " + destination + ` map @spare comment "few ports are left: among these is a free one"`,
	}
}
