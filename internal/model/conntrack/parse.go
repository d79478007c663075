package conntrack

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// protocolGRE is tracked by its keys, which stand where others have ports (nf_conntrack_proto_gre.c).
const protocolGRE packet.Protocol = 47

// Parse reads what "conntrack -L" prints, with or without -o extended and -o id, or what /proc/net/nf_conntrack holds. Its summary line
// ("conntrack v1.4.7 …: 7 flow entries have been shown.") is passed over. An error names the line.
func Parse(text []byte) ([]packet.Flow, error) {
	var flows []packet.Flow
	for number := 1; len(text) > 0; number++ {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		text = rest
		fields := strings.Fields(string(line))
		if len(fields) == 0 || strings.HasPrefix(string(line), "conntrack v") {
			continue
		}
		f, err := parseFlow(fields)
		if err != nil {
			return nil, fmt.Errorf("connections, line %d: %w", number, err)
		}
		flows = append(flows, f)
	}
	return flows, nil
}

// reader takes one line of conntrack(8) apart.
type reader struct {
	flow   packet.Flow
	tuples int  // begun so far
	id     bool // the present tuple has its ICMP identifier: another id= is the flow's own
	seen   [2]bool
}

func parseFlow(fields []string) (packet.Flow, error) {
	r := reader{flow: packet.Flow{Status: packet.SeenReply | packet.Confirmed}}
	if strings.HasPrefix(fields[0], "ipv") && len(fields) > 2 { // -o extended: the layer 3 protocol and its number
		fields = fields[2:]
	}
	if len(fields) < 3 {
		return r.flow, fmt.Errorf("%q is no connection", strings.Join(fields, " "))
	}
	protocol, err := strconv.ParseUint(fields[1], 10, 8)
	if err != nil {
		return r.flow, fmt.Errorf("protocol number expected, not %q", fields[1])
	}
	r.flow.Original.Protocol, r.flow.Reply.Protocol = packet.Protocol(protocol), packet.Protocol(protocol)
	for i := 2; i < len(fields); i++ {
		if strings.HasPrefix(fields[i], "[start=") || strings.HasPrefix(fields[i], "[stop=") { // a date with blanks in it
			for i < len(fields)-1 && !strings.HasSuffix(fields[i], "]") {
				i++
			}
			continue
		}
		if err := r.field(fields[i]); err != nil {
			return r.flow, err
		}
	}
	return r.flow, r.finish()
}

// finish looks whether the line was complete, and finds out what it does not say: the translations that the kernel's status bits hold.
func (r *reader) finish() error {
	f := &r.flow
	if r.seen != [2]bool{true, true} || !f.Original.Destination.IsValid() || !f.Reply.Destination.IsValid() {
		return fmt.Errorf("two tuples with src= and dst= expected")
	}
	family := f.Original.Source.Is4()
	for _, a := range []netip.Addr{f.Original.Destination, f.Reply.Source, f.Reply.Destination} {
		if a.Is4() != family {
			return fmt.Errorf("addresses of both families")
		}
	}
	if f.Original.Protocol != protocolGRE {
		f.Original, f.Reply = identity(f.Original), identity(f.Reply)
	}
	f.Status |= packet.SNATDone | packet.DNATDone
	plain := f.Original.Reply()
	if f.Reply.Destination != plain.Destination || sourcePart(f.Reply) != sourcePart(plain) {
		f.Status |= packet.SNAT
		f.Identifier = f.Reply.Destination == plain.Destination && isICMP(plain.Protocol)
	}
	if f.Reply.Source != plain.Source || !isICMP(plain.Protocol) && f.Reply.SourcePort != plain.SourcePort {
		f.Status |= packet.DNAT
	}
	return nil
}

// sourcePart returns what a source translation changes beside the address, seen from the reply: its destination port, or the ICMP
// identifier.
func sourcePart(reply packet.Tuple) packet.Port {
	if isICMP(reply.Protocol) {
		return reply.SourcePort
	}
	return reply.DestinationPort
}

func isICMP(p packet.Protocol) bool { return p == packet.ICMP || p == packet.ICMPv6 }

func (r *reader) field(s string) error {
	key, value, pair := strings.Cut(s, "=")
	switch {
	case strings.HasPrefix(s, "["):
		return r.mark(s)
	case pair:
		return r.pair(key, value)
	case r.tuples > 0:
		return fmt.Errorf("%q is not understood", s)
	}
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		r.flow.Timeout = int(n)
		return nil
	}
	if s != strings.ToUpper(s) {
		return fmt.Errorf("timeout or state expected, not %q", s)
	}
	r.flow.State = s
	return nil
}

func (r *reader) mark(s string) error {
	switch s {
	case "[UNREPLIED]":
		r.flow.Status &^= packet.SeenReply
	case "[ASSURED]":
		r.flow.Status |= packet.Assured
	case "[OFFLOAD]":
		r.flow.Status |= packet.Offload
	case "[HW_OFFLOAD]":
		r.flow.Status |= packet.HWOffload
	default:
		return fmt.Errorf("%q is not understood", s)
	}
	return nil
}

func (r *reader) pair(key, value string) error {
	f := &r.flow
	switch key {
	case "src":
		if r.tuples == 2 {
			return fmt.Errorf("more than two tuples")
		}
		r.tuples, r.id = r.tuples+1, false
		r.seen[r.tuples-1] = true
		return address(&r.tuple().Source, value)
	case "mark":
		return parseNumber(value, 32, func(n uint64) { f.Mark = uint32(n) })
	case "helper":
		f.Helper = value
		return nil
	case "zone", "zone-orig", "zone-reply":
		f.Zone.Only = map[string]packet.ZoneDirection{"zone-orig": packet.ZoneOriginal, "zone-reply": packet.ZoneReply}[key]
		return parseNumber(value, 16, func(n uint64) { f.Zone.ID = uint16(n) })
	}
	if r.tuples == 0 {
		return fmt.Errorf("%q before the first src=", key+"=")
	}
	t := r.tuple()
	switch key {
	case "dst":
		return address(&t.Destination, value)
	case "sport", "srckey":
		return parseNumber(value, 16, func(n uint64) { t.SourcePort = packet.Exactly(uint16(n)) })
	case "dport", "dstkey":
		return parseNumber(value, 16, func(n uint64) { t.DestinationPort = packet.Exactly(uint16(n)) })
	case "type":
		return parseNumber(value, 8, func(n uint64) { t.Type = uint8(n) })
	case "code":
		return parseNumber(value, 8, func(n uint64) { t.Code = uint8(n) })
	case "id":
		if isICMP(t.Protocol) && !r.id {
			r.id = true
			return parseNumber(value, 16, func(n uint64) { t.SourcePort = packet.Exactly(uint16(n)) })
		}
	}
	return nil // counters, times, labels, security contexts
}

func (r *reader) tuple() *packet.Tuple {
	if r.tuples == 1 {
		return &r.flow.Original
	}
	return &r.flow.Reply
}

func address(into *netip.Addr, s string) error {
	a, err := netip.ParseAddr(s)
	*into = a.WithZone("")
	return err
}

func parseNumber(s string, bits int, set func(uint64)) error {
	n, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		return fmt.Errorf("number expected, not %q", s)
	}
	set(n)
	return nil
}
