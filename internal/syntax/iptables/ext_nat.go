package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

var dnatTarget = targetExtension{
	options: spec("to-destination random=0 persistent=0"),
	lower:   lowerNAT,
	listed:  translated("to-destination"),
}

var snatTarget = targetExtension{
	options: spec("to-source random=0 random-fully=0 persistent=0"),
	lower:   lowerNAT,
	listed:  translated("to-source"),
}

var masqueradeTarget = targetExtension{
	options: spec("to-ports random=0 random-fully=0"),
	lower:   lowerNAT,
	listed:  portsOnly("masq ports:"),
}

var redirectTarget = targetExtension{
	options: spec("to-ports random=0"),
	lower:   lowerNAT,
	listed:  portsOnly("redir ports"),
}

var netmapTarget = targetExtension{
	options: spec("to"),
	lower:   lowerNetmap,
	listed:  translated("to"),
}

// lowerNAT lowers SNAT, DNAT, MASQUERADE and REDIRECT.
func lowerNAT(l *lowerer, t *Target) netfilter.Statement {
	n := packet.Translation{Source: t.Name == "SNAT" || t.Name == "MASQUERADE"}
	switch t.Name {
	case "MASQUERADE":
		n.Chosen = "masquerade"
	case "REDIRECT":
		n.Chosen = "redirect"
	}
	given := false
	for i := range t.Options {
		o := &t.Options[i]
		switch o.Name {
		case "random":
			n.Random = true
		case "random-fully":
			n.FullyRandom = true
		case "persistent":
			n.Persistent = true
		case "to-source", "to-destination":
			if given || !natRange(&n, o.arg()) { // old kernels had several ranges
				return nil
			}
			given = true
		case "to-ports":
			if !natPorts(&n, o.arg()) {
				return nil
			}
		default:
			return nil
		}
		if o.Not {
			return nil
		}
	}
	if !given && (t.Name == "SNAT" || t.Name == "DNAT") {
		return nil
	}
	return l.nats.add(netfilter.Translate{Translation: n})
}

// natRange reads [ADDR[-ADDR]][:PORT[-PORT[/BASE]]], with brackets around addresses of IPv6 that have ports.
func natRange(n *packet.Translation, text string) bool {
	addresses, ports, hasPorts := text, "", false
	switch {
	case strings.HasPrefix(text, "["):
		var ok bool
		if addresses, ports, ok = strings.Cut(text[1:], "]"); !ok {
			return false
		}
		// [a]-[b]:port is not printed; iptables prints [a-b]:port
		ports, hasPorts = strings.CutPrefix(ports, ":")
		if !hasPorts && ports != "" {
			return false
		}
	case strings.Count(text, ":") < 2:
		addresses, ports, hasPorts = strings.Cut(text, ":")
	}
	if addresses != "" {
		var ok bool
		if n.Low, n.High, ok = parseAddresses(addresses); !ok {
			return false
		}
	}
	if !hasPorts {
		return addresses != ""
	}
	ports, base, hasBase := strings.Cut(ports, "/")
	if hasBase {
		b, err := strconv.ParseUint(base, 10, 16)
		if err != nil {
			return false
		}
		n.PortBase = uint16(b)
	}
	return natPorts(n, ports)
}

func natPorts(n *packet.Translation, text string) bool {
	r, ok := parsePorts(text, "-")
	n.PortLow, n.PortHigh = r.Low, r.High
	return ok && text != "" && text != "-"
}

func lowerNetmap(l *lowerer, t *Target) netfilter.Statement {
	name, arg := t.single()
	prefix, err := netip.ParsePrefix(arg)
	if err != nil {
		a, err2 := netip.ParseAddr(arg)
		if err2 != nil || a.Zone() != "" {
			return nil
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	if name != "to" {
		return nil
	}
	low := prefix.Masked().Addr()
	return l.nats.add(netfilter.Translate{Translation: packet.Translation{Netmap: true, Low: low, High: packet.LastOf(prefix)}})
}

// translated makes a reader of "to:ADDRESS[:PORT] random random-fully persistent".
func translated(option string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool {
		value, ok := l.glued("to:")
		return ok && isValue(value) && t.add(option, value) && l.natFlags(t)
	}
}

// portsOnly makes a reader of MASQUERADE's and REDIRECT's text, which is empty where they have no options.
func portsOnly(words string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool {
		if l.lit(words) && !l.word(t, "to-ports") {
			return false
		}
		return l.natFlags(t)
	}
}

func (l *restReader) natFlags(t *Target) bool {
	for _, flag := range []string{"random", "random-fully", "persistent"} {
		if l.lit(flag) {
			t.add(flag)
		}
	}
	return true
}
