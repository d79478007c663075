package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// protocols are the tests of the protocols that rules test most, so that each is there once.
var protocols = map[NameMatch]*netfilter.MatchProtocol{
	{Name: "tcp"}:  {Protocol: packet.TCP},
	{Name: "udp"}:  {Protocol: packet.UDP},
	{Name: "sctp"}: {Protocol: packet.SCTP},
	{Name: "icmp"}: {Protocol: packet.ICMP},
}

func (l *lowerer) protocol(m NameMatch) {
	if p, ok := protocols[m]; ok {
		l.test(p)
		return
	}
	if m.Name == "all" || m.Name == "0" {
		return // every protocol, as iptables means it
	}
	p, err := packet.ParseProtocol(m.Name)
	if err != nil {
		l.test(&netfilter.UnknownTest{Text: strings.TrimPrefix(string(appendName(nil, "-p", m)), " ")})
		return
	}
	l.test(&netfilter.MatchProtocol{Not: m.Not, Protocol: p})
}

// match lowers one match. What it does not understand, in whole or in part, is one unknown test.
func (l *lowerer) match(m *Match) {
	lower, ok := matches[m.Module]
	tests, notes := len(l.tests), len(l.notes)
	if ok && lower(l, m) {
		return
	}
	l.tests, l.notes = l.tests[:tests], l.notes[:notes]
	l.test(&netfilter.UnknownTest{Text: m.text()})
}

// text is the match as iptables prints it.
func (m *Match) text() string { return string(appendOptions([]byte("-m "+m.Module), m.Options)) }

// matches lower the matches of each module. They return false for what they do not understand.
var matches = map[string]func(*lowerer, *Match) bool{
	"addrtype":  lowerAddrtype,
	"comment":   func(*lowerer, *Match) bool { return true },
	"connlimit": lowerHistory,
	"connmark":  lowerMark,
	"conntrack": lowerConntrack,
	"dccp":      lowerPorts,
	"devgroup":  lowerDevgroup,
	"dscp":      lowerTOS,
	"hashlimit": lowerHistory,
	"helper":    lowerHelper,
	"hl":        lowerTTL,
	"icmp":      lowerICMP,
	"icmp6":     lowerICMP,
	"iprange":   lowerIPRange,
	"length":    lowerLength,
	"limit":     lowerHistory,
	"mac":       lowerMAC,
	"mark":      lowerMark,
	"multiport": lowerMultiport,
	"nfacct":    lowerNfacct,
	"owner":     lowerOwner,
	"physdev":   lowerPhysdev,
	"pkttype":   lowerPkttype,
	"recent":    lowerRecent,
	"rpfilter":  lowerRpfilter,
	"sctp":      lowerPorts,
	"set":       lowerSet,
	"state":     lowerState,
	"statistic": lowerStatistic,
	"tcp":       lowerPorts,
	"tos":       lowerTOS,
	"ttl":       lowerTTL,
	"udp":       lowerPorts,
	"udplite":   lowerPorts,
}

// lowerAll lowers each option by itself.
func lowerAll(m *Match, lower func(o *Option) bool) bool {
	for i := range m.Options {
		if !lower(&m.Options[i]) {
			return false
		}
	}
	return len(m.Options) > 0
}

// arg is an option's only word; "" where it has none.
func (o *Option) arg() string {
	if len(o.Args) != 1 {
		return ""
	}
	return o.Args[0]
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
		l.test(&netfilter.UnknownTest{Text: string(appendOptions([]byte("-m "+m.Module), []Option{*o}))})
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

func lowerMultiport(l *lowerer, m *Match) bool {
	sides := map[string]netfilter.PortSide{
		"sports": netfilter.SourcePort, "source-ports": netfilter.SourcePort,
		"dports": netfilter.DestinationPort, "destination-ports": netfilter.DestinationPort, "ports": netfilter.EitherPort,
	}
	return lowerAll(m, func(o *Option) bool {
		side, ok := sides[o.Name]
		t := netfilter.MatchPort{Side: side, Not: o.Not}
		for text := range strings.SplitSeq(o.arg(), ",") {
			r, good := parsePorts(text, ":")
			ok = ok && good
			t.Ranges = append(t.Ranges, r)
		}
		l.test(&t)
		return ok
	})
}

func lowerICMP(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		t, ok := parseICMP(m.Module == "icmp6", o.arg())
		t.Not = o.Not
		l.test(&t)
		return ok
	})
}

// parseICMP reads a type: "any", "8", "3/1" or a name.
func parseICMP(ipv6 bool, text string) (t netfilter.MatchICMP, ok bool) {
	t.Protocol = packet.ICMP
	names := icmpNames
	if ipv6 {
		t.Protocol, names = packet.ICMPv6, icmp6Names
	}
	if numbers, ok := names[text]; ok {
		t.Name, text = text, numbers
	}
	kind, code, hasCode := strings.Cut(text, "/")
	if kind == "any" {
		kind = "255"
	}
	n, err := strconv.ParseUint(kind, 10, 8)
	if err != nil {
		return t, false
	}
	t.Type, t.CodeHigh = uint8(n), 255
	t.Any = !ipv6 && n == 255 // net/netfilter/xt_tcpudp.c, icmp_type_code_match
	if hasCode {
		if n, err = strconv.ParseUint(code, 10, 8); err != nil {
			return t, false
		}
		t.CodeLow, t.CodeHigh = uint8(n), uint8(n)
	}
	return t, true
}

func lowerIPRange(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		low, high, ok := parseAddresses(o.arg())
		l.test(&netfilter.MatchRange{Source: o.Name == "src-range", Not: o.Not, Low: low, High: high})
		return ok
	})
}

// parseAddresses reads "a" or "a-b".
func parseAddresses(text string) (low, high netip.Addr, ok bool) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	low, err := netip.ParseAddr(first)
	high, err2 := netip.ParseAddr(last)
	return low, high, err == nil && err2 == nil && low.Is4() == high.Is4() && low.Zone() == "" && high.Zone() == ""
}

// parseMasked reads "value" or "value/mask", decimal or with 0x; no mask is the whole.
func parseMasked(text string, bits int) (value, mask uint32, ok bool) {
	v, m, hasMask := strings.Cut(text, "/")
	a, err := strconv.ParseUint(v, 0, bits)
	if err != nil {
		return 0, 0, false
	}
	b := uint64(1)<<bits - 1
	if hasMask {
		if b, err = strconv.ParseUint(m, 0, bits); err != nil {
			return 0, 0, false
		}
	}
	return uint32(a), uint32(b), true
}

func lowerMark(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		v, mask, ok := parseMasked(o.arg(), 32)
		l.test(&netfilter.MatchMark{Connection: m.Module == "connmark", Not: o.Not, Value: v, Mask: mask})
		return ok
	})
}

func lowerState(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		s, ok := parseStates(o.arg())
		s.Not = o.Not
		l.test(&netfilter.MatchConntrack{States: s})
		return ok && !s.SNAT && !s.DNAT
	})
}

var stateNames = map[string]packet.TrackState{
	"INVALID": packet.Invalid, "NEW": packet.New, "RELATED": packet.Related, "ESTABLISHED": packet.Established, "UNTRACKED": packet.Untracked,
}

func parseStates(text string) (*netfilter.MatchStates, bool) {
	s := &netfilter.MatchStates{}
	for name := range strings.SplitSeq(text, ",") {
		switch name = strings.ToUpper(name); name {
		case "SNAT":
			s.SNAT = true
		case "DNAT":
			s.DNAT = true
		default:
			state, ok := stateNames[name]
			if !ok {
				return s, false
			}
			s.States |= state
		}
	}
	return s, true
}

var statusNames = map[string]packet.Status{
	"NONE": 0, "EXPECTED": packet.Expected, "SEEN_REPLY": packet.SeenReply, "ASSURED": packet.Assured, "CONFIRMED": packet.Confirmed,
}

var flowEnds = map[string]netfilter.FlowEnd{
	"ctorigsrc": netfilter.OriginalSource, "ctorigdst": netfilter.OriginalDestination,
	"ctreplsrc": netfilter.ReplySource, "ctrepldst": netfilter.ReplyDestination,
}

func lowerConntrack(l *lowerer, m *Match) bool {
	t := &netfilter.MatchConntrack{}
	l.test(t)
	return lowerAll(m, func(o *Option) bool { return conntrackOption(t, o) })
}

func conntrackOption(t *netfilter.MatchConntrack, o *Option) (ok bool) {
	switch o.Name {
	case "ctstate":
		t.States, ok = parseStates(o.arg())
		t.States.Not = o.Not
		return ok
	case "ctdir":
		direction := strings.ToUpper(o.arg())
		t.Direction = &netfilter.MatchDirection{Not: o.Not, Reply: direction == "REPLY"}
		return direction == "REPLY" || direction == "ORIGINAL"
	case "ctproto":
		p, err := packet.ParseProtocol(o.arg())
		t.Protocol = &netfilter.MatchProtocol{Not: o.Not, Protocol: p}
		return err == nil
	case "ctstatus":
		t.Status = &netfilter.MatchStatus{Not: o.Not}
		for name := range strings.SplitSeq(o.arg(), ",") {
			s, known := statusNames[strings.ToUpper(name)]
			if !known {
				return false
			}
			t.Status.Status |= s
		}
		return true
	case "ctexpire":
		t.Expires = negatedText(o.Not) + o.arg()
		return o.arg() != ""
	}
	if name, isPort := strings.CutSuffix(o.Name, "port"); isPort {
		r, ok := parsePorts(o.arg(), ":")
		end, ok2 := flowEnds[name]
		t.Ports = append(t.Ports, netfilter.MatchFlowPort{End: end, Not: o.Not, Port: r})
		return ok && ok2
	}
	var a AddressMatch
	end, ok := flowEnds[o.Name]
	if !ok || !parseAddress(&a, o.Not, o.arg()) {
		return false
	}
	if a.Prefix.IsValid() {
		t.Addresses = append(t.Addresses, netfilter.MatchFlowAddress{End: end, Not: o.Not, Prefix: a.Prefix})
	}
	return true
}

func negatedText(not bool) string {
	if not {
		return "not "
	}
	return ""
}

func lowerAddrtype(l *lowerer, m *Match) bool {
	limit := netfilter.AnyLink
	if _, ok := m.Option("limit-iface-in"); ok {
		limit = netfilter.InLink
	} else if _, ok := m.Option("limit-iface-out"); ok {
		limit = netfilter.OutLink
	}
	return lowerAll(m, func(o *Option) bool {
		if o.Name != "src-type" && o.Name != "dst-type" {
			return !o.Not
		}
		t := &netfilter.MatchAddressType{Source: o.Name == "src-type", Not: o.Not, Limit: limit}
		for name := range strings.SplitSeq(o.arg(), ",") {
			kind, ok := netfilter.ParseAddressType(strings.ToUpper(name))
			if !ok {
				return false
			}
			t.Types = append(t.Types, kind)
		}
		l.test(t)
		return true
	})
}

func lowerSet(l *lowerer, m *Match) bool {
	_, noMatch := m.Option("return-nomatch")
	return lowerAll(m, func(o *Option) bool {
		switch {
		case o.Name == "update-counters" || o.Name == "update-subcounters":
			return true // nothing that a walk sees
		case o.Name != "match-set" && o.Name != "set" || len(o.Args) != 2:
			return o.Name == "return-nomatch" && !o.Not
		}
		sources, ok := parseSides(o.Args[1])
		l.test(&netfilter.MatchSet{Name: o.Args[0], Sources: sources, Not: o.Not, ReturnNoMatch: noMatch})
		return ok
	})
}

// parseSides reads "src,dst": true for src.
func parseSides(text string) (sources []bool, ok bool) {
	for name := range strings.SplitSeq(text, ",") {
		if name != "src" && name != "dst" {
			return nil, false
		}
		sources = append(sources, name == "src")
	}
	return sources, true
}

func lowerStatistic(l *lowerer, m *Match) bool {
	mode, _ := m.Option("mode")
	probability, isRandom := m.Option("probability")
	every, isNth := m.Option("every")
	switch {
	case mode.arg() == "random" && isRandom && !isNth:
		p, err := strconv.ParseFloat(probability.arg(), 64)
		if err != nil || p < 0 || p > 1 {
			return false
		}
		l.test(&netfilter.MatchRandom{Not: probability.Not, Probability: uint32(p*(1<<31) + 0.5)})
		return true
	case mode.arg() == "nth" && isNth && !isRandom:
		n, err := strconv.ParseUint(every.arg(), 0, 32)
		at, _ := m.Option("packet")
		first, _ := strconv.ParseUint(at.arg(), 0, 32)
		l.test(&netfilter.MatchNth{Not: every.Not, Every: uint32(n), Packet: uint32(first)})
		return err == nil && n > 0
	}
	return false
}

// lowerHistory lowers the matches that depend on earlier packets alone.
func lowerHistory(l *lowerer, m *Match) bool {
	text := m.text()
	l.test(&netfilter.MatchHistory{Text: text, Words: "by what came before: " + strings.TrimPrefix(text, "-m ")})
	return len(m.Options) > 0
}

// lowerRecent: "--set" alone always holds; the others ask the list (net/netfilter/xt_recent.c).
func lowerRecent(l *lowerer, m *Match) bool {
	set, ok := m.Option("set")
	switch {
	case ok && set.Not:
		l.test(&netfilter.MatchNever{Words: "never: the address is noted in any case"})
		return true
	case ok:
		name, _ := m.Option("name")
		_, destination := m.Option("rdest")
		side := "source"
		if destination {
			side = "destination"
		}
		l.note("note the %s in list %s", side, name.arg())
		return true
	}
	return lowerHistory(l, m)
}

// lowerNfacct: an object without a quota counts, and the match holds; dumps do not tell of quotas (net/netfilter/xt_nfacct.c).
func lowerNfacct(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		l.note("count in accounting object %s (taken to have no quota)", o.arg())
		return !o.Not
	})
}

func lowerDevgroup(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		v, mask, ok := parseMasked(o.arg(), 32)
		l.test(&netfilter.MatchLinkGroup{Out: o.Name == "dst-group", Not: o.Not, Group: v, Mask: mask})
		return ok
	})
}

func lowerTOS(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		v, mask, ok := parseMasked(o.arg(), 8)
		if m.Module == "dscp" {
			if strings.Contains(o.arg(), "/") || v > 0x3f {
				return false
			}
			v, mask = v<<2, 0xfc
		}
		l.test(&netfilter.MatchTOS{Not: o.Not, Value: uint8(v), Mask: uint8(mask)})
		return ok
	})
}

func lowerHelper(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		l.test(&netfilter.MatchHelper{Not: o.Not, Name: o.arg()})
		return true
	})
}

func lowerTTL(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		n, err := strconv.ParseUint(o.arg(), 10, 8)
		if err != nil {
			return false
		}
		t := netfilter.MatchTTL{Not: o.Not, Low: uint8(n), High: uint8(n)}
		switch {
		case strings.HasSuffix(o.Name, "-lt") && n == 0, strings.HasSuffix(o.Name, "-gt") && n == 255:
			l.test(&netfilter.MatchNever{Words: "never: no TTL is beyond " + o.arg()})
			return !o.Not
		case strings.HasSuffix(o.Name, "-lt"):
			t.Low, t.High = 0, t.High-1
		case strings.HasSuffix(o.Name, "-gt"):
			t.Low, t.High = t.Low+1, 255
		}
		l.test(&t)
		return true
	})
}

func lowerLength(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		r, ok := parsePorts(o.arg(), ":")
		l.test(&netfilter.MatchLength{Not: o.Not, Low: int(r.Low), High: int(r.High)})
		return ok
	})
}

func lowerMAC(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		mac, ok := parseMAC(o.arg())
		l.test(&netfilter.MatchMAC{Not: o.Not, MAC: mac})
		return ok
	})
}

func parseMAC(text string) (mac packet.MAC, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) != len(mac) {
		return mac, false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 8)
		if err != nil {
			return mac, false
		}
		mac[i] = byte(n)
	}
	return mac, true
}

var casts = map[string]packet.Cast{
	"unicast": packet.Unicast, "host": packet.Unicast, "broadcast": packet.BroadcastFrame, "multicast": packet.MulticastFrame,
	"otherhost": packet.OtherHost,
}

func lowerPkttype(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		cast, ok := casts[o.arg()]
		l.test(&netfilter.MatchCast{Not: o.Not, Cast: cast})
		return ok
	})
}

var bridgePortTests = map[string]netfilter.BridgePortTest{
	"physdev-in": netfilter.BridgePortIn, "physdev-out": netfilter.BridgePortOut, "physdev-is-in": netfilter.HasBridgeIn,
	"physdev-is-out": netfilter.HasBridgeOut, "physdev-is-bridged": netfilter.IsBridged,
}

func lowerPhysdev(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		kind, ok := bridgePortTests[o.Name]
		l.test(netfilter.NewMatchBridgePort(kind, o.Not, o.arg()))
		return ok
	})
}

func lowerOwner(l *lowerer, m *Match) bool {
	t := &netfilter.MatchOwner{}
	l.test(t)
	return lowerAll(m, func(o *Option) bool {
		switch o.Name {
		case "socket-exists":
			t.SocketExists, t.NoSocket = !o.Not, o.Not
			return true
		case "suppl-groups":
			t.Supplementary = true
			return !o.Not
		}
		low, high, isRange := strings.Cut(o.arg(), "-")
		if !isRange {
			high = low
		}
		a, err := strconv.ParseUint(low, 10, 32)
		b, err2 := strconv.ParseUint(high, 10, 32)
		r := &netfilter.IDRange{Not: o.Not, Low: uint32(a), High: uint32(b)}
		if o.Name == "uid-owner" {
			t.UID = r
		} else {
			t.GID = r
		}
		return err == nil && err2 == nil
	})
}

func lowerRpfilter(l *lowerer, m *Match) bool {
	t := &netfilter.MatchReversePath{}
	for _, o := range m.Options {
		switch o.Name {
		case "invert":
			t.Invert = true
		case "loose":
			t.Loose = true
		case "validmark":
			t.ValidMark = true
		case "accept-local":
			t.AcceptLocal = true
		}
	}
	l.test(t)
	return true
}
