package iptables

import (
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

const portOptions = "sport dport source-port destination-port"

var tcpMatch = matchExtension{
	options: spec(portOptions + " tcp-flags=2 tcp-option syn=0"),
	lower:   lowerPorts,
	listed:  map[string]listedMatch{"tcp": ports("tcp")},
}

var udpMatch = matchExtension{
	options: spec(portOptions),
	lower:   lowerPorts,
	listed:  map[string]listedMatch{"udp": ports("udp")},
}

var udpliteMatch = matchExtension{
	options: spec(portOptions),
	lower:   lowerPorts,
	listed:  map[string]listedMatch{"udplite": ports("udplite")},
}

var sctpMatch = matchExtension{
	options: spec(portOptions),
	lower:   lowerPorts,
	listed:  map[string]listedMatch{"sctp": ports("sctp")},
}

var dccpMatch = matchExtension{
	options: spec(portOptions + " dccp-types dccp-option"),
	lower:   lowerPorts,
	listed:  map[string]listedMatch{"dccp": ports("dccp")},
}

// lowerPorts lowers the matches of protocols with ports. The match's name is its protocol.
func lowerPorts(l *lowerer, m *Match) bool {
	protocol, _ := packet.ParseProtocol(m.Module)
	for i := range m.Options {
		if !l.portOption(protocol, m, &m.Options[i]) {
			return false
		}
	}
	return true
}

func (l *lowerer) portOption(protocol packet.Protocol, m *Match, o *Option) bool {
	side := netfilter.SourcePort
	switch o.Name {
	case "sport", "source-port":
	case "dport", "destination-port":
		side = netfilter.DestinationPort
	case "syn":
		flags := packet.SYN | packet.RST | packet.ACK | packet.FIN
		l.test(&netfilter.MatchTCPFlags{Not: o.Not, Mask: flags, Set: packet.SYN})
		return true
	case "tcp-flags":
		return l.tcpFlags(o)
	default: // tcp-option, dccp-types, …: they say more than what is known of the packet
		l.test(&netfilter.UnknownTest{
			Text: string(appendOptions([]byte("-m "+m.Module), []Option{*o})), Tracking: netfilter.NeverTracks,
		})
		return true
	}
	r, ok := parsePorts(o.arg(), ":")
	if !ok {
		return false
	}
	ranges := l.ranges.take(1)
	ranges[0] = r
	l.test(l.ports.add(netfilter.MatchPort{Side: side, Not: o.Not, Protocol: protocol, Ranges: ranges}))
	return true
}

// parsePorts reads "80", "1000:2000", ":1023" or "1024:".
func parsePorts(text, separator string) (netfilter.PortRange, bool) {
	low, high, isRange := strings.Cut(text, separator)
	if !isRange {
		high = low
	} else {
		if low == "" {
			low = "0"
		}
		if high == "" {
			high = "65535"
		}
	}
	a, ok := parsePort(low)
	b, ok2 := parsePort(high)
	return netfilter.PortRange{Low: a, High: b}, ok && ok2
}

// parsePort reads a number, or the name of a service, which people write.
func parsePort(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err == nil {
		return uint16(n), true
	}
	port, ok := serviceNames[text]
	return port, ok
}

var tcpFlagBits = map[string]packet.TCPFlags{
	"FIN": packet.FIN, "SYN": packet.SYN, "RST": packet.RST, "PSH": packet.PSH, "ACK": packet.ACK, "URG": packet.URG,
	"ALL": 0x3f, "NONE": 0,
}

func (l *lowerer) tcpFlags(o *Option) bool {
	if len(o.Args) != 2 {
		return false
	}
	var flags [2]packet.TCPFlags
	for i, arg := range o.Args {
		for name := range strings.SplitSeq(arg, ",") {
			f, ok := tcpFlagBits[strings.ToUpper(name)]
			if !ok {
				return false
			}
			flags[i] |= f
		}
	}
	l.test(&netfilter.MatchTCPFlags{Not: o.Not, Mask: flags[0], Set: flags[1]})
	return true
}

// ports makes a reader of "tcp spts:1:2 dpt:!80 option=5 flags:0x17/0x02"; the module's name can stand alone.
func ports(module string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		l.begin(module)
		for {
			word := l.peek()
			name, value, ok := strings.Cut(word, ":")
			if !ok {
				name, value, ok = strings.Cut(word, "=")
			}
			read, known := portFields[name]
			if !ok || !known {
				return !not
			}
			l.next()
			value, inverted := strings.CutPrefix(value, "!")
			o, ok := read(value)
			if !ok {
				return false
			}
			o.Not = inverted
			l.add(module, o)
		}
	}
}

var portFields = map[string]func(string) (Option, bool){
	"spt": portOption("sport"), "spts": portOption("sport"), "dpt": portOption("dport"), "dpts": portOption("dport"),
	"flags": flagsOption, "option": func(v string) (Option, bool) { return Opt("tcp-option", v), isNumber0(v) },
}

func portOption(name string) func(string) (Option, bool) {
	return func(v string) (Option, bool) {
		v, ok := portNumbers(v, ":")
		return Opt(name, v), ok
	}
}

// portNumbers turns names of services into numbers in a list or range.
func portNumbers(text, separators string) (string, bool) {
	var b strings.Builder
	for {
		i := strings.IndexAny(text, separators)
		word := text
		if i >= 0 {
			word = text[:i]
		}
		n, named := serviceNames[word]
		if !named {
			parsed, err := strconv.ParseUint(word, 10, 16)
			if err != nil {
				return "", false
			}
			n = uint16(parsed)
		}
		b.WriteString(strconv.Itoa(int(n)))
		if i < 0 {
			return b.String(), true
		}
		b.WriteByte(text[i])
		text = text[i+1:]
	}
}

// flagsOption reads TCP's flags: MASK/SET, as numbers with -n and as names without.
func flagsOption(v string) (Option, bool) {
	mask, set, ok := strings.Cut(v, "/")
	mask, ok1 := flagList(mask)
	set, ok2 := flagList(set)
	return Opt("tcp-flags", mask, set), ok && ok1 && ok2
}

func flagList(s string) (string, bool) {
	bits, err := strconv.ParseUint(s, 0, 8)
	if err != nil {
		return s, IsName(s)
	}
	if bits == 0 {
		return "NONE", true
	}
	var names []string
	for i, name := range tcpFlagNames {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ","), bits < 1<<len(tcpFlagNames)
}

// tcpFlagNames are the flags of the tcp match in the order of their bits and of iptables-save.
var tcpFlagNames = []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"}
