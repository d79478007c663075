package walk

import (
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// invalid tells of IPv6 packets that are dropped before any rule sees them (ip6_rcv_core, RFC 4291 sections 2.5.3 and 2.7).
func invalid(p *packet.Packet) string {
	switch {
	case !p.IsIPv6():
		return ""
	case p.Source.IsMulticast():
		return "a multicast address is never a source (ip6_rcv_core)"
	case p.In != "lo" && (p.Source.IsLoopback() || p.Destination.IsLoopback()):
		return "a loopback address never comes in by a wire (ip6_rcv_core)"
	}
	return ""
}

// martian tells of IPv4 addresses that never come in by a wire (ip_route_input_slow, RFC 1812 section 5.3.7).
func (m *machine) martian(p *packet.Packet) string {
	if p.IsIPv6() {
		return ""
	}
	zero := p.Source.As4()[0] == 0
	switch local := m.confEither(p.In, "route_localnet"); {
	case p.Source.IsMulticast() || p.Source == broadcast:
		return fmt.Sprintf("martian source %s", p.Source)
	case zero:
		return fmt.Sprintf("martian source %s (RFC 1122: this network)", p.Source)
	case p.Source.IsLoopback() && !local:
		return fmt.Sprintf("martian source %s (net.ipv4.conf.%s.route_localnet is 0)", p.Source, p.In)
	case p.Destination.IsLoopback() && !local:
		return fmt.Sprintf("martian destination %s (net.ipv4.conf.%s.route_localnet is 0)", p.Destination, p.In)
	case p.Destination.IsUnspecified():
		return "martian destination 0.0.0.0"
	}
	return ""
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// validateSource checks the source address: the machine's own addresses do not come in from outside, and with rp_filter the
// way back must lead out where the packet came in (fib_validate_source). IPv6 has no such check.
func (m *machine) validateSource(p *packet.Packet, d *fib.Answer, portIn func(fib.PortTest) bool) string {
	if p.IsIPv6() || p.In == "" {
		return ""
	}
	mode := m.confMax(p.In, "rp_filter")
	acceptLocal := m.confEither(p.In, "accept_local")
	if mode == 0 && (acceptLocal || !m.ownAddress(p.Source) && !m.customLocal()) {
		return ""
	}
	back := fib.Query{Source: p.Destination, Destination: p.Source, In: "lo", TOS: p.TOS, PortIn: portIn}
	if m.FIB.Dissects() { // the ports are those of an answer (__fib_validate_source)
		back.Protocol, back.SourcePort, back.DestinationPort = p.Protocol, p.DestinationPort, p.SourcePort
	}
	if m.confEither(p.In, "src_valid_mark") {
		back.Mark = p.Mark
	}
	if d.Type != "local" {
		back.In = d.Link
	}
	a := m.FIB.Lookup(back)
	switch {
	case a.Type == "none" || a.Type == "blackhole" || a.Type == "unreachable" || a.Type == "prohibit":
		return filtered(mode, p, "there is no route back to it")
	case a.Type == "local" && !acceptLocal:
		return fmt.Sprintf("martian source %s: it is this host's own address (net.ipv4.conf.%s.accept_local is 0)", p.Source, p.In)
	case a.Type != "unicast" && a.Type != "local":
		return fmt.Sprintf("martian source %s: the route back is of type %s", p.Source, a.Type)
	case leadsTo(&a, p.In) || a.Type == "local" && m.localLink(&a, p.Source) == p.In:
		return ""
	case len(m.FIB.AddressesOf(p.In)) == 0:
		return filtered(mode, p, "the interface has no address")
	case mode == 1:
		return filtered(mode, p, "the route back leads to "+a.Link)
	}
	return ""
}

func filtered(mode int, p *packet.Packet, why string) string {
	if mode == 0 {
		return ""
	}
	return fmt.Sprintf("source %s is filtered on %s: %s (rp_filter %d)", p.Source, p.In, why, mode)
}

func leadsTo(a *fib.Answer, link string) bool {
	for _, w := range a.Ways {
		if w.Link == link {
			return true
		}
	}
	return a.Link == link
}

// localLink returns the link whose local route an address is on: packets to it go by lo, but the route names the link that has the address.
func (m *machine) localLink(a *fib.Answer, address netip.Addr) string {
	if a.Route != nil && a.Route.Link != "" {
		return a.Route.Link
	}
	if own := m.FIB.HasAddress(address); own != nil {
		return own.Link
	}
	return ""
}

func (m *machine) ownAddress(a netip.Addr) bool { return m.FIB.HasAddress(a) != nil }

// customLocal reports whether there are policy rules other than the default ones. The kernel then does more than look for own addresses
// (fib4_has_custom_rules).
func (m *machine) customLocal() bool {
	for i := range m.FIB.Rules {
		r := &m.FIB.Rules[i]
		usual := r.Priority == 0 && r.Table == fib.TableLocal || r.Priority == 32766 && r.Table == fib.TableMain || r.Priority == 32767 &&
			r.Table == fib.TableDefault
		if !r.IPv6 && !usual {
			return true
		}
	}
	return false
}
