package excerpt

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/capture/pastedtext"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
)

// assumeOwnAddress assumes that a destination is one of the machine's addresses. It does so where the text shows none, and a rule that
// translates packets for the machine names the port. Such a port is a node port, or one that a container publishes. Users do not ask for
// such a port of another machine.
func (rd *reader) assumeOwnAddress(to netip.AddrPort) {
	a := to.Addr()
	if !a.IsValid() || to.Port() == 0 || len(rd.Host.FIB.Addresses)+len(rd.Host.FIB.Routes) > 0 || a.IsLoopback() || a.IsMulticast() {
		return
	}
	if link, _ := rd.Host.Behind(a); link != "" {
		return
	}
	for _, t := range slices.Concat(rd.tables, rd.Host.Rules.Tables) {
		if t.Family != netfilter.Inet && t.Family != map[bool]netfilter.Family{false: netfilter.IPv4, true: netfilter.IPv6}[a.Is6()] || namesDestination(t, a) {
			continue
		}
		if chain, number := translatesOwn(t, to.Port()); chain != "" {
			rd.Host.FIB.Addresses = append(rd.Host.FIB.Addresses, fib.Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Scope: "global"})
			rd.Assume("no addresses in the text; assuming %s is one of them, since %s %s %d is for its port %d", a, t.Name, chain, number, to.Port())
			return
		}
	}
}

// What rules of iptables and nft say of the destination, as they print it.
var (
	forOwn        = regexp.MustCompile(`(?:^|[^!] )--dst-type LOCAL\b|\bfib daddr (?:\. \w+ )?type local\b`)
	toAddress     = regexp.MustCompile(`(?:^|[^!] )-d (\S+)|\bip6? daddr ([0-9a-f]\S*)`)
	toPort        = regexp.MustCompile(`(?:^|[^!] )--dports? (\S+)|\bdport (?:([0-9]+)|\{ ([^}]*) \})`)
	translatingTo = regexp.MustCompile(`-j (?:DNAT|REDIRECT|[A-Z0-9-]*[a-z-]\S*|\S+)|\b(?:dnat|redirect|jump|goto)\b`)
	keepsTo       = regexp.MustCompile(`-j (?:ACCEPT|RETURN|DROP)\b`)
)

// namesDestination reports whether a rule is for an address, or for a network with it.
func namesDestination(t *netfilter.Table, a netip.Addr) bool {
	return slices.ContainsFunc(t.Chains, func(c *netfilter.Chain) bool {
		return slices.ContainsFunc(c.Rules, func(r netfilter.Rule) bool {
			m := toAddress.FindStringSubmatch(r.Text)
			if m == nil {
				return false
			}
			text := m[1] + m[2]
			if !strings.Contains(text, "/") {
				return text == a.String()
			}
			p, err := netip.ParsePrefix(text)
			return err == nil && p.Contains(a)
		})
	})
}

// translatesOwn finds the rule that takes a port of the machine's own addresses: one that asks for a local destination itself, or in a
// chain that such a rule jumps to.
func translatesOwn(t *netfilter.Table, port uint16) (chain string, number int) {
	for _, c := range t.Chains {
		for i := range c.Rules {
			r := &c.Rules[i]
			if !forOwn.MatchString(r.Text) {
				continue
			}
			if isForPort(r, port) {
				return c.Name, i + 1
			}
			for _, s := range r.Statements {
				if jump, ok := s.(*netfilter.JumpTo); ok && jump.Chain != nil {
					if k := slices.IndexFunc(jump.Chain.Rules, func(r netfilter.Rule) bool { return isForPort(&r, port) }); k >= 0 {
						return jump.Chain.Name, k + 1
					}
				}
			}
		}
	}
	return "", 0
}

// isForPort reports whether a rule for any destination names a port, and translates or jumps.
func isForPort(r *netfilter.Rule, port uint16) bool {
	m := toPort.FindStringSubmatch(r.Text)
	if m == nil || toAddress.MatchString(r.Text) || keepsTo.MatchString(r.Text) || !translatingTo.MatchString(r.Text) {
		return false
	}
	named := strings.FieldsFunc(m[1]+m[2]+m[3], func(c rune) bool { return c == ',' || c == ' ' })
	return slices.Contains(named, strconv.Itoa(int(port)))
}

// nameTargets gives translations to what is redacted an unknown address with that name.
func (rd *reader) nameTargets(tables []iptables.Table) {
	for r := range pastedtext.Rules([][]iptables.Table{tables}) {
		if r.Unknown != "" {
			continue
		}
		for i := range r.Target.Options {
			o := &r.Target.Options[i]
			if o.Name != "to-source" && o.Name != "to-destination" || len(o.Args) != 1 {
				continue
			}
			name, port, hasPort := strings.Cut(o.Args[0], ":")
			low, high, _ := strings.Cut(name, "-")
			_, err := netip.ParseAddr(low)
			_, err2 := netip.ParseAddr(high)
			if err == nil || err2 == nil || name == "" || strings.Count(o.Args[0], ":") > 1 {
				continue
			}
			if a := rd.redacted(name, false); a.IsValid() {
				o.Args = []string{a.String()}
				if hasPort {
					o.Args[0] += ":" + port
				}
			}
		}
	}
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
		rd.Assume("no addresses in the text; assuming those of IPVS services: %s", pastedtext.Some(names))
	}
}
