package netfilter

import (
	"encoding/binary"
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// Assign sets a field of the packet, or of what the kernel keeps beside it, to a value (nft_meta, nft_ct and nft_payload with a source
// register).
type Assign struct {
	Target Target
	Value  Expr
	// EtherType and Transport are the protocols of the packets that have the field, which nft tests before it sets one; 0 for all.
	EtherType packet.EtherType
	Transport packet.Protocol
}

// Target is what can be set.
type Target uint8

// The targets. Ports and TTL are set in packets that have them; in others the rule does not apply.
const (
	TargetMark Target = iota
	TargetConnmark
	TargetPriority
	TargetZone
	TargetZoneOriginal // the zone counts in the direction of requests only
	TargetZoneReply    // of answers
	TargetPacketType
	TargetSource
	TargetDestination
	TargetSourcePort
	TargetDestinationPort
	TargetTTL
	TargetDSCP
	TargetECN
	TargetEtherSource
	TargetEtherDestination
)

var targetWords = [...]string{"mark", "connection mark", "class", "connection's zone", "connection's zone for requests",
	"connection's zone for answers", "frame's addressee", "source", "destination", "source port",
	"destination port", "TTL", "DSCP", "ECN", "frame's source", "frame's destination"}

func (t Target) String() string { return targetWords[t] }

// Eval sets the field. Where the value is unknown, so is what becomes of the packet.
func (s *Assign) Eval(c *Context) Verdict {
	var room [4]Span
	v, t := s.Value.value(c, room[:0])
	switch {
	case t == no || !s.Target.in(c.Packet) || !s.concerns(c.Packet):
		return Verdict{Kind: Break}
	case t == maybe || len(v) != 1 || !v[0].Certain():
		return Verdict{Kind: Undecided, Detail: "not known to what: " + s.String()}
	}
	s.Target.set(c.Packet, v[0].Low)
	return Verdict{}
}

// concerns reports whether the packet is of the protocols that the statement is about.
func (s *Assign) concerns(p *packet.Packet) bool {
	return ofEtherType(p, s.EtherType) && (s.Transport == 0 || s.Transport == p.Protocol)
}

// ofEtherType reports whether an IP packet is of a protocol; 0 stands for both.
func ofEtherType(p *packet.Packet, t packet.EtherType) bool {
	return t == 0 || isIP(p) && (t == packet.EtherIPv6) == p.IsIPv6()
}

// in reports whether the packet has the field.
func (t Target) in(p *packet.Packet) bool {
	switch t {
	case TargetSource, TargetDestination, TargetTTL, TargetDSCP, TargetECN:
		return isIP(p)
	case TargetSourcePort, TargetDestinationPort:
		return hasTransport(p) && p.Protocol.HasPorts()
	}
	return true
}

func (t Target) set(p *packet.Packet, v Value) {
	switch t {
	case TargetMark:
		p.Mark = uint32(v.Lo)
	case TargetConnmark:
		if p.Track.Flow != nil {
			p.Track.Flow.Mark = uint32(v.Lo)
		}
	case TargetPriority:
		p.Priority = uint32(v.Lo)
	case TargetZone, TargetZoneOriginal, TargetZoneReply:
		if p.Track.Flow == nil && !p.Template { // one that was not to be tracked is then, after all (nft_ct_set_zone_eval)
			p.Untracked, p.AboutUntracked, p.Track.State, p.Template = false, false, 0, true
			p.Zone = packet.Zone{ID: uint16(v.Lo), Only: packet.ZoneDirection(t - TargetZone)}
		}
	case TargetPacketType:
		p.Cast = [4]packet.Cast{packet.Unicast, packet.BroadcastFrame, packet.MulticastFrame, packet.OtherHost}[v.Lo&3]
	case TargetSource:
		p.Source = v.Address(p.IsIPv6())
	case TargetDestination:
		p.Destination = v.Address(p.IsIPv6())
	case TargetSourcePort:
		p.SourcePort = packet.Exactly(uint16(v.Lo))
	case TargetDestinationPort:
		p.DestinationPort = packet.Exactly(uint16(v.Lo))
	case TargetTTL:
		p.TTL, p.SomeTTL = uint8(v.Lo), false
	case TargetDSCP:
		p.TOS = p.TOS&3 | uint8(v.Lo)<<2
	case TargetECN:
		p.TOS = p.TOS&^3 | uint8(v.Lo)&3
	case TargetEtherSource:
		p.Frame.Source = v.MAC()
	case TargetEtherDestination:
		p.Frame.Destination = v.MAC()
	}
}

// Address returns the value as an address.
func (v Value) Address(ipv6 bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], v.Hi)
	binary.BigEndian.PutUint64(b[8:], v.Lo)
	if ipv6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[12:]))
}

// MAC returns the value as a link-layer address.
func (v Value) MAC() packet.MAC {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v.Lo)
	return packet.MAC(b[2:])
}

// Effect tells that it modifies.
func (s *Assign) Effect() EffectKind { return Modifies }

func (s *Assign) String() string { return "set the " + s.Target.String() + " to " + s.Value.String() }

func (s *Assign) tracking() truth {
	return eitherTracks(truthOf(s.Target == TargetConnmark || s.Target >= TargetZone && s.Target <= TargetZoneReply), tracking(s.Value))
}

// Untrack asks conntrack not to look at the packet (nft's notrack). Unlike iptables' target it does not make the kernel track others.
type Untrack struct{}

// Eval notes it. Packets that are tracked already stay as they are.
func (Untrack) Eval(c *Context) Verdict {
	p := c.Packet
	if p.Track.Flow == nil && !p.Untracked && !p.Template {
		p.Untracked, p.Track.State = true, packet.Untracked
	}
	return Verdict{}
}

// Effect tells that it modifies.
func (Untrack) Effect() EffectKind { return Modifies }

func (Untrack) String() string { return "do not track the connection" }
