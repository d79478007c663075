package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// decisions are the targets that are verdicts.
var decisions = map[string]*netfilter.Decision{
	"ACCEPT": {Verdict: netfilter.Verdict{Kind: netfilter.Accept}},
	"DROP":   {Verdict: netfilter.Verdict{Kind: netfilter.Drop}},
	"RETURN": {Verdict: netfilter.Verdict{Kind: netfilter.Return}},
	"QUEUE":  {Verdict: netfilter.Verdict{Kind: netfilter.Stolen, Detail: "the reader of queue 0"}},
}

// target lowers what a rule does; nil where that is nothing.
func (l *lowerer) target(r *Rule) netfilter.Statement {
	t := &r.Target
	switch {
	case t.Name == "":
		return nil
	case t.Goto || l.chains[t.Name] != nil:
		return l.jump(t)
	}
	if d, ok := decisions[t.Name]; ok && len(t.Options) == 0 {
		return d
	}
	if words, ok := notes[t.Name]; ok {
		return &netfilter.Note{Words: words}
	}
	lower, ok := targets[t.Name]
	if !ok && len(t.Options) == 0 && targetOptions[t.Name] == nil {
		return l.jump(t) // to a chain that is not there
	}
	if ok {
		if s := lower(l, t); s != nil {
			return s
		}
	}
	return &netfilter.UnknownEffect{Text: string(appendOptions([]byte("-j "+t.Name), t.Options))}
}

func (l *lowerer) jump(t *Target) *netfilter.JumpTo {
	key := jump{t.Name, t.Goto}
	j := l.jumps[key]
	if j == nil {
		j = &netfilter.JumpTo{Name: t.Name, Chain: l.chains[t.Name], Goto: t.Goto}
		l.jumps[key] = j
	}
	return j
}

// notes are the targets that change nothing that a walk sees, in words.
var notes = map[string]string{
	"AUDIT":       "write an audit record",
	"CHECKSUM":    "fill in the checksum",
	"CONNSECMARK": "copy the security mark",
	"ECN":         "clear the ECN bits of TCP",
	"IDLETIMER":   "start a timer",
	"LED":         "blink",
	"LOG":         "log",
	"NFLOG":       "log to a listener",
	"RATEEST":     "count the rate",
	"SECMARK":     "set the security mark",
	"TCPMSS":      "limit the TCP segment size",
	"TCPOPTSTRIP": "strip TCP options",
	"TEE":         "send a copy elsewhere",
	"TRACE":       "trace",
	"ULOG":        "log to a listener",
}

// targets lower the targets with options. They return nil for what they do not understand.
var targets = map[string]func(*lowerer, *Target) netfilter.Statement{
	"CLASSIFY":   lowerClassify,
	"CONNMARK":   lowerSetMark,
	"CT":         lowerCT,
	"DNAT":       lowerNAT,
	"DSCP":       lowerSetTOS,
	"HL":         lowerSetTTL,
	"MARK":       lowerSetMark,
	"MASQUERADE": lowerNAT,
	"NETMAP":     lowerNetmap,
	"NFQUEUE":    lowerQueue,
	"NOTRACK":    func(*lowerer, *Target) netfilter.Statement { return &netfilter.SetTracking{NoTrack: true} },
	"REDIRECT":   lowerNAT,
	"REJECT":     lowerReject,
	"SET":        lowerSetTarget,
	"SNAT":       lowerNAT,
	"TOS":        lowerSetTOS,
	"TPROXY":     lowerTPROXY,
	"TTL":        lowerSetTTL,
}

// single is a target's only option.
func (t *Target) single() (name, arg string) {
	if len(t.Options) != 1 || t.Options[0].Not {
		return "", ""
	}
	return t.Options[0].Name, t.Options[0].arg()
}

// lowerSetMark lowers MARK and CONNMARK (iptables extensions/libxt_MARK.c, libxt_CONNMARK.c).
func lowerSetMark(_ *lowerer, t *Target) netfilter.Statement {
	connection := t.Name == "CONNMARK"
	if connection {
		if c := copyMark(t); c != nil {
			return c
		}
	}
	name, arg := t.single()
	v, mask, ok := parseMasked(arg, 32)
	switch name {
	case "set-xmark":
	case "set-mark":
		mask |= v
	case "and-mark":
		v, mask = 0, ^v
	case "or-mark":
		mask = v
	case "xor-mark":
		mask = 0
	default:
		ok = false
	}
	if !ok {
		return nil
	}
	return &netfilter.SetMark{Connection: connection, Value: v, Mask: mask}
}

// copyMark lowers --save-mark and --restore-mark; nil where it is none of them.
func copyMark(t *Target) netfilter.Statement {
	s := &netfilter.CopyMark{Packet: ^uint32(0), Flow: ^uint32(0)}
	_, save := t.Option("save-mark")
	_, s.Restore = t.Option("restore-mark")
	if save == s.Restore {
		return nil
	}
	for i := range t.Options {
		o := &t.Options[i]
		n, err := strconv.ParseUint(o.arg(), 0, 32)
		switch o.Name {
		case "save-mark", "restore-mark":
			continue
		case "nfmask":
			s.Packet = uint32(n)
		case "ctmask":
			s.Flow = uint32(n)
		case "mask":
			s.Packet, s.Flow = uint32(n), uint32(n)
		default:
			return nil
		}
		if err != nil {
			return nil
		}
	}
	return s
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
	return l.nats.add(netfilter.Translate{Translation: packet.Translation{Netmap: true, Low: low, High: lastAddress(prefix)}})
}

// lastAddress is the highest address of a prefix.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func lowerReject(l *lowerer, t *Target) netfilter.Statement {
	with := "icmp-port-unreachable"
	if l.family == netfilter.IPv6 {
		with = "icmp6-port-unreachable"
	}
	if len(t.Options) > 0 {
		var name string
		if name, with = t.single(); name != "reject-with" || with == "" {
			return nil
		}
	}
	return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Reject, Detail: with}, Words: "reject with " + with}
}

func lowerQueue(_ *lowerer, t *Target) netfilter.Statement {
	who := "the reader of queue 0"
	for i := range t.Options {
		switch o := &t.Options[i]; o.Name {
		case "queue-num":
			who = "the reader of queue " + o.arg()
		case "queue-balance":
			who = "the readers of queues " + o.arg()
		}
	}
	return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Stolen, Detail: who}, Words: "hand to " + who}
}

func lowerSetTOS(_ *lowerer, t *Target) netfilter.Statement {
	name, arg := t.single()
	v, mask, ok := parseMasked(arg, 8)
	switch {
	case name == "set-tos":
	case name == "set-dscp" && v <= 0x3f && mask == 0xff:
		v, mask = v<<2, 0xfc
	default:
		ok = false
	}
	if !ok {
		return nil
	}
	return &netfilter.SetTOS{Value: uint8(v), Mask: uint8(mask)}
}

func lowerSetTTL(_ *lowerer, t *Target) netfilter.Statement {
	name, arg := t.single()
	n, err := strconv.ParseUint(arg, 10, 8)
	if err != nil {
		return nil
	}
	switch {
	case strings.HasSuffix(name, "-set"):
		return &netfilter.SetTTL{Set: true, Value: uint8(n)}
	case strings.HasSuffix(name, "-inc"):
		return &netfilter.SetTTL{Delta: int(n)}
	case strings.HasSuffix(name, "-dec"):
		return &netfilter.SetTTL{Delta: -int(n)}
	}
	return nil
}

func lowerClassify(_ *lowerer, t *Target) netfilter.Statement {
	name, arg := t.single()
	major, minor, ok := strings.Cut(arg, ":")
	a, err := strconv.ParseUint(major, 16, 16)
	b, err2 := strconv.ParseUint(minor, 16, 16)
	if name != "set-class" || !ok || err != nil || err2 != nil {
		return nil
	}
	return &netfilter.SetPriority{Priority: uint32(a)<<16 | uint32(b)}
}

// lowerCT lowers CT: helpers, events and timeouts do not change a packet's way.
func lowerCT(_ *lowerer, t *Target) netfilter.Statement {
	s := &netfilter.SetTracking{}
	note := true
	for i := range t.Options {
		switch o := &t.Options[i]; o.Name {
		case "notrack":
			s.NoTrack, note = true, false
		case "zone", "zone-orig", "zone-reply":
			n, err := strconv.ParseUint(o.arg(), 0, 16)
			if s.ZoneMark = o.arg() == "mark"; err != nil && !s.ZoneMark {
				return nil
			}
			note = false
			s.Zone = packet.Zone{ID: uint16(n), Only: map[string]packet.ZoneDirection{"zone-orig": packet.ZoneOriginal, "zone-reply": packet.ZoneReply}[o.Name]}
		case "helper", "ctevents", "expevents", "timeout":
		default:
			return nil
		}
	}
	if note {
		return &netfilter.Note{Words: "set how the connection is tracked"}
	}
	return s
}

// lowerSetTarget lowers SET: what it puts into sets is for later packets. --map-set is not understood.
func lowerSetTarget(_ *lowerer, t *Target) netfilter.Statement {
	var words []string
	for i := range t.Options {
		switch o := &t.Options[i]; {
		case o.Name == "add-set" && len(o.Args) == 2:
			words = append(words, "add the "+o.Args[1]+" to set "+o.Args[0])
		case o.Name == "del-set" && len(o.Args) == 2:
			words = append(words, "take the "+o.Args[1]+" out of set "+o.Args[0])
		case o.Name == "exist", o.Name == "timeout":
		default:
			return nil
		}
	}
	return &netfilter.Note{Words: strings.Join(words, ", ")}
}

func lowerTPROXY(_ *lowerer, t *Target) netfilter.Statement {
	s := &netfilter.TransparentProxy{}
	port, _ := t.Option("on-port")
	ip, _ := t.Option("on-ip")
	s.To = strings.TrimPrefix(ip.arg()+" port "+port.arg(), " ")
	if o, ok := t.Option("tproxy-mark"); ok {
		v, mask, ok := parseMasked(o.arg(), 32)
		if !ok {
			return nil
		}
		s.Value, s.Mask = v, mask
	}
	return s
}
