package excerpt

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
)

// assumeOwnAddress assumes that a destination is one of the machine's addresses. It does so where the text shows none, and a rule that
// translates packets for the machine (-m addrtype --dst-type LOCAL) names the port. Such a port is a node port, or one that a container
// publishes. Users do not ask for such a port of another machine.
func (rd *reader) assumeOwnAddress(to netip.AddrPort, families ...[]iptables.Table) {
	a := to.Addr()
	if !a.IsValid() || to.Port() == 0 || len(rd.Host.FIB.Addresses)+len(rd.Host.FIB.Routes) > 0 || a.IsLoopback() || a.IsMulticast() {
		return
	}
	if link, _ := rd.Host.Behind(a); link != "" {
		return
	}
	tables := families[0]
	if a.Is6() {
		tables = families[1]
	}
	i := slices.IndexFunc(tables, func(t iptables.Table) bool { return t.Name == iptables.NAT })
	if i < 0 || namesDestination(&tables[i], a) {
		return
	}
	if chain, number := translatesOwn(&tables[i], to.Port()); chain != "" {
		rd.Host.FIB.Addresses = append(rd.Host.FIB.Addresses, fib.Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Scope: "global"})
		rd.Assume("no addresses in the text; assuming %s is one of them, since nat %s %d is for its port %d", a, chain, number,
			to.Port())
	}
}

// namesDestination reports whether a rule is for an address, or for a network with it.
func namesDestination(t *iptables.Table, a netip.Addr) bool {
	return slices.ContainsFunc(t.Chains, func(c iptables.Chain) bool {
		return slices.ContainsFunc(c.Rules, func(r iptables.Rule) bool {
			d := r.Destination
			return d.Prefix.IsValid() && !d.Not && d.Prefix.Contains(a)
		})
	})
}

// translatesOwn finds the rule that takes a port of the machine's own addresses: one that asks for LOCAL itself, or in a chain that such a
// rule jumps to.
func translatesOwn(t *iptables.Table, port uint16) (chain string, number int) {
	for i := range t.Chains {
		for j := range t.Chains[i].Rules {
			r := &t.Chains[i].Rules[j]
			if !isForOwn(r) {
				continue
			}
			if isForPort(r, port) {
				return t.Chains[i].Name, j + 1
			}
			next := t.Chain(r.Target.Name)
			if next == nil {
				continue
			}
			if k := slices.IndexFunc(next.Rules, func(r iptables.Rule) bool { return isForPort(&r, port) }); k >= 0 {
				return next.Name, k + 1
			}
		}
	}
	return "", 0
}

func isForOwn(r *iptables.Rule) bool {
	return slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		o, ok := m.Option("dst-type")
		return ok && m.Module == "addrtype" && !o.Not && slices.Equal(o.Args, []string{"LOCAL"})
	})
}

// isForPort reports whether a rule for any destination names a port, and translates or jumps.
func isForPort(r *iptables.Rule, port uint16) bool {
	if r.Destination.Prefix.IsValid() || r.Target.Name == "ACCEPT" || r.Target.Name == "RETURN" {
		return false
	}
	text := strconv.Itoa(int(port))
	return slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		for _, name := range []string{"dport", "dports"} {
			if o, ok := m.Option(name); ok && !o.Not && len(o.Args) == 1 && slices.Contains(strings.Split(o.Args[0], ","), text) {
				return true
			}
		}
		return false
	})
}

// virtualAddresses takes the addresses that IPVS has services for as the machine's own, where the text does not show those: IPVS gets what
// is for the machine itself.
func (rd *reader) virtualAddresses() {
	if rd.Host.Missing[snapshot.Addresses] == "" {
		return
	}
	var names []string
	for i := range rd.Host.VirtualServices {
		a := rd.Host.VirtualServices[i].Local.Addr()
		if a.IsValid() && !slices.ContainsFunc(rd.Host.FIB.Addresses, func(o fib.Address) bool { return o.Prefix.Addr() == a }) {
			rd.Host.FIB.Addresses = append(rd.Host.FIB.Addresses, fib.Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Scope: "global"})
			names = append(names, a.String())
		}
	}
	if len(names) > 0 {
		rd.Assume("no addresses in the text; assuming those of IPVS services: %s", some(names))
	}
}
