package conntrack

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// Translate binds the packet's flow to what a rule asks for, and changes the packet accordingly: nf_nat_setup_info and nf_nat_packet
// (net/netfilter/nf_nat_core.c). It is for the first packet of a flow. ok is false, with the reason, where the kernel drops the packet.
// A range of addresses needs no choosing: the kernel hashes the flow's addresses without a secret, and so does this.
func (v *View) Translate(p *packet.Packet, t packet.Translation) (ok bool, why string) {
	f := p.Track.Flow
	switch {
	case f == nil:
		return false, "the packet belongs to no connection: only packets of connections can be translated"
	case t.Low.IsValid() && t.Low.Is4() != f.Original.Source.Is4():
		return false, "the new address is not of the packet's family"
	}
	if f.Status&packet.Confirmed == 0 {
		if f.Status&done(t.Source) != 0 {
			return false, "the connection is translated in this direction already"
		}
		v.bind(f, &t)
	}
	v.Apply(p, t.Source)
	return true, ""
}

// Null makes the binding of a new flow that no rule translated (nf_nat_alloc_null_binding): its address stays, but its port changes when
// another flow has the same one. Where no other port is free either, it is Confirm that tells.
func (v *View) Null(p *packet.Packet, source bool) {
	f := p.Track.Flow
	if f == nil || f.Status&(packet.Confirmed|done(source)) != 0 {
		return
	}
	keep := f.Reply.Source
	if source {
		keep = f.Reply.Destination
	}
	v.bind(f, &packet.Translation{Source: source, Low: keep, High: keep})
	v.Apply(p, source)
}

func done(source bool) packet.Status {
	if source {
		return packet.SNATDone
	}
	return packet.DNATDone
}

// bind does what nf_nat_setup_info does: it binds a flow to a translation.
func (v *View) bind(f *packet.Flow, t *packet.Translation) {
	current := f.Reply.Reply()
	chosen := v.unique(current, t, f)
	if chosen != current {
		f.Reply = chosen.Reply()
		if t.Source {
			f.Status |= packet.SNAT
		} else {
			f.Status |= packet.DNAT
		}
	}
	f.Status |= done(t.Source)
}

// used reports whether the answers to a tuple would be another flow's packets (nf_nat_used_tuple).
func (v *View) used(t packet.Tuple, f *packet.Flow) bool {
	return v.holder(t.Reply(), f, true) != nil
}

// clashes reports whether another flow has the tuple that f begins with, so that f's source has to change (nf_nat_used_tuple_new). A
// datagram's is left for Confirm where neither flow is translated and the other is the one the other way round, which its answer made
// meanwhile, or which is in another zone.
func (v *View) clashes(t packet.Tuple, f *packet.Flow) bool {
	other := v.holder(t.Reply(), f, true)
	if other == nil {
		return false
	}
	translated := (other.Status|f.Status)&(packet.SNAT|packet.DNAT) != 0
	return translated || other.Original != f.Reply || t.Protocol != packet.UDP && t.Protocol != packet.UDPLite
}

// unique returns the tuple that the flow's packets have from here on, as get_unique_tuple does.
func (v *View) unique(current packet.Tuple, t *packet.Translation, f *packet.Flow) packet.Tuple {
	random := t.Random || t.FullyRandom
	if t.Source && !random {
		if inRange(current, t) {
			if !v.clashes(current, f) {
				return current
			}
		} else if earlier, ok := v.appropriate(current, t, f); ok && !v.used(earlier, f) {
			return earlier
		}
	}
	tuple := current
	bestAddress(&tuple, t, f.Zone.ID)
	if !random {
		switch {
		case !hasPorts(t):
			if !v.used(tuple, f) {
				return tuple
			}
		case t.PortBase == 0 && portInRange(tuple, t) && (t.PortLow == t.PortHigh || !v.used(tuple, f)):
			return tuple
		}
	}
	return v.uniquePort(tuple, t, f)
}

// inRange reports whether the translation could give this source, as nf_in_range does.
func inRange(tuple packet.Tuple, t *packet.Translation) bool {
	if t.Low.IsValid() {
		low, high := addresses(tuple, t)
		if tuple.Source.Compare(low) < 0 || tuple.Source.Compare(high) > 0 {
			return false
		}
	}
	return !hasPorts(t) || portInRange(tuple, t)
}

// portInRange reports whether the translation could give this port, as l4proto_in_range does.
func portInRange(tuple packet.Tuple, t *packet.Translation) bool {
	port := tuple.DestinationPort
	switch {
	case isICMP(tuple.Protocol):
		port = tuple.SourcePort
	case !tuple.Protocol.HasPorts():
		return true
	case t.Source:
		port = tuple.SourcePort
	}
	low, high := port.Span()
	return low >= min(t.PortLow, t.PortHigh) && high <= max(t.PortLow, t.PortHigh)
}

func hasPorts(t *packet.Translation) bool { return t.PortLow != 0 || t.PortHigh != 0 }

// addresses returns the range of addresses that a translation gives. With Netmap it is one: the prefix of the range with the host's bits of
// the packet's own address (nft_nat_setup_netmap, xt_NETMAP).
func addresses(tuple packet.Tuple, t *packet.Translation) (low, high netip.Addr) {
	if !t.Netmap {
		if !t.High.IsValid() {
			return t.Low, t.Low
		}
		return t.Low, t.High
	}
	own := tuple.Destination
	if t.Source {
		own = tuple.Source
	}
	a, l, h := own.AsSlice(), t.Low.AsSlice(), t.High.AsSlice()
	for i := range a {
		host := l[i] ^ h[i]
		a[i] = a[i]&host | l[i]&^host
	}
	mapped, _ := netip.AddrFromSlice(a)
	return mapped, mapped
}

// appropriate finds what another flow from the same source was translated to, if this translation could give it (find_appropriate_src).
func (v *View) appropriate(current packet.Tuple, t *packet.Translation, f *packet.Flow) (packet.Tuple, bool) {
	k := bySource(&current, f.Zone)
	try := func(other *packet.Flow) (packet.Tuple, bool) {
		mapped := other.Reply.Reply()
		mapped.Destination, mapped.DestinationPort, mapped.Type, mapped.Code = current.Destination, current.DestinationPort, current.Type,
			current.Code
		return mapped, inRange(mapped, t)
	}
	for i := len(v.sources[k]) - 1; i >= 0; i-- { // the kernel puts new ones in front
		if mapped, ok := try(v.sources[k][i]); ok {
			return mapped, true
		}
	}
	for _, i := range v.base.sources[k] {
		if v.gone[i] {
			continue
		}
		if mapped, ok := try(&v.base.Flows[i]); ok {
			return mapped, true
		}
	}
	return packet.Tuple{}, false
}

// bestAddress picks one address of the range by a hash of the packet's addresses, as find_best_ips_proto does.
func bestAddress(tuple *packet.Tuple, t *packet.Translation, zone uint16) {
	if !t.Low.IsValid() {
		return
	}
	into := &tuple.Destination
	if t.Source {
		into = &tuple.Source
	}
	low, high := addresses(*tuple, t)
	if low == high {
		*into = low
		return
	}
	var octets [16]byte // as the kernel's union nf_inet_addr holds the source
	copy(octets[:], tuple.Source.AsSlice())
	destination := words(tuple.Destination)
	last := 0
	if tuple.Source.Is6() {
		last = 3
	}
	seed := uint32(0)
	if !t.Persistent {
		seed = destination[last] ^ uint32(zone)
	}
	hash := packet.JHash(octets[:], seed)
	from, to, chosen := words(low), words(high), [4]uint32{}
	whole := false
	for i := 0; i <= last; i++ {
		first, span := uint32(0), ^uint32(0)
		if !whole {
			first = bits.ReverseBytes32(from[i])
			span = bits.ReverseBytes32(to[i]) - first + 1
		}
		chosen[i] = bits.ReverseBytes32(first + uint32(uint64(hash)*uint64(span)>>32)) // reciprocal_scale
		whole = whole || chosen[i] != to[i]
		if !t.Persistent {
			hash ^= destination[i]
			if !t.Source { // the destination is what is being written
				hash ^= destination[i] ^ chosen[i]
			}
		}
	}
	*into = fromWords(chosen, tuple.Source.Is4())
}

// words returns an address as the kernel's union nf_inet_addr holds it, read as a little-endian machine does: of IPv4 the first word only.
func words(a netip.Addr) (w [4]uint32) {
	for i, b := 0, a.AsSlice(); len(b) > 0; i, b = i+1, b[4:] {
		w[i] = binary.LittleEndian.Uint32(b)
	}
	return w
}

func fromWords(w [4]uint32, ipv4 bool) netip.Addr {
	var b [16]byte
	for i := range w {
		binary.LittleEndian.PutUint32(b[4*i:], w[i])
	}
	if ipv4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// uniquePort picks another port (or ICMP identifier) out of the range that the rule gives, or that the kernel takes, as
// nf_nat_l4proto_unique_tuple does. Where it starts at a random number, the port is one out of the whole range.
func (v *View) uniquePort(tuple packet.Tuple, t *packet.Translation, f *packet.Flow) packet.Tuple {
	port := &tuple.SourcePort
	low, high := min(t.PortLow, t.PortHigh), max(t.PortLow, t.PortHigh)
	switch {
	case isICMP(tuple.Protocol):
		if !hasPorts(t) {
			low, high = 0, 65535
		}
	case !tuple.Protocol.HasPorts():
		return tuple
	case !t.Source && !hasPorts(t):
		return tuple
	case !t.Source:
		port = &tuple.DestinationPort
	case !hasPorts(t):
		low, high = keepPrivilege(port.Number)
	}
	size := uint32(high) - uint32(low) + 1
	random := t.Random || t.FullyRandom
	start := uint32(0)
	switch {
	case t.PortBase != 0 && port.Known():
		start = uint32(port.Number - t.PortBase) // wraps as the kernel's u16 does
	case t.PortBase != 0 || random || t.Source:
		*port = v.pick(tuple, port == &tuple.DestinationPort, low, high, f)
		return tuple
	}
	for i := range min(size, 128) { // NF_NAT_MAX_ATTEMPTS
		*port = packet.Exactly(low + uint16((start+i)&0xffff%size))
		if !v.used(tuple, f) {
			break
		}
	}
	return tuple
}

// keepPrivilege returns the range of ports that a source port may be changed to without a rule that says so: below 512, 600 to 1023, or all
// others.
func keepPrivilege(port uint16) (low, high uint16) {
	switch {
	case port < 512:
		return 1, 511
	case port < 1024:
		return 600, 1023
	}
	return 1024, 65535
}

// mostExamples is how many ports of a range example looks at.
const mostExamples = 4096

// pick returns the port of the range that stands for the kernel's pick: the present one where it would do, otherwise the first that is
// free, also of other flows' picks out of the same range, so that two picks are never the same. Where every port of the range is another
// flow's, it is one of those, as the last that the kernel tries: no packet of the flow passes Confirm.
func (v *View) pick(tuple packet.Tuple, destination bool, low, high uint16, f *packet.Flow) packet.Port {
	port := &tuple.SourcePort
	if destination {
		port = &tuple.DestinationPort
	}
	now := port.Number
	used := func(n uint16) (packet.Port, bool) {
		for _, *port = range []packet.Port{packet.Exactly(n), packet.OneOf(low, high, n)} {
			if v.used(tuple, f) {
				return *port, true
			}
		}
		return *port, false
	}
	settled := v.settled(f, destination, low, high)
	for _, *port = range settled { // of a flow's one first packet there can be several flows, in zones of their own
		if !v.used(tuple, f) {
			return *port
		}
	}
	if len(settled) > 0 {
		return settled[0]
	}
	if now >= low && now <= high {
		if p, taken := used(now); !taken {
			return p
		}
	}
	for n := uint32(low); n <= uint32(high); n++ {
		if n == uint32(low)+mostExamples {
			return packet.OneOf(low, high, low) // of so many one will be free
		}
		if p, taken := used(uint16(n)); !taken {
			return p
		}
	}
	p, _ := used(low)
	return p
}

// settled returns the ports of the range that the kernel is known to have picked for flows with the same first packet.
func (v *View) settled(f *packet.Flow, destination bool, low, high uint16) (ports []packet.Port) {
	for _, s := range v.settings.Settled {
		translated := s.Reply.Reply()
		port := translated.SourcePort
		if destination {
			port = translated.DestinationPort
		}
		if identity(s.Original) == f.Original && port.Known() && low <= port.Number && port.Number <= high {
			ports = append(ports, port)
		}
	}
	return ports
}

// Apply rewrites a packet as its flow's bindings say (nf_nat_packet): the destination at prerouting and output (source false), the source
// at postrouting and input, and the other way round for answers. It reports whether the packet changed. ICMP errors are rewritten together
// with the packet that they quote.
func (v *View) Apply(p *packet.Packet, source bool) bool {
	f := p.Track.Flow
	if f == nil {
		return false
	}
	bit := packet.DNAT
	if source != p.Track.Reply {
		bit = packet.SNAT
	}
	if f.Status&bit == 0 {
		return false
	}
	before := p.Tuple
	other := f.Reply // of the other direction: the packet is to look like its inverse
	if p.Track.Reply {
		other = f.Original
	}
	if p.Track.State == packet.Related && p.About != nil {
		return applyError(p, &other, source)
	}
	target := other.Reply()
	rewrite(&p.Tuple, &target, source)
	return p.Tuple != before
}

// rewrite puts one end of target into a tuple (nf_nat_manip_pkt). An ICMP identifier is the same in both directions.
func rewrite(t, target *packet.Tuple, source bool) {
	if source {
		t.Source = target.Source
	} else {
		t.Destination = target.Destination
	}
	switch {
	case isICMP(t.Protocol):
		t.SourcePort = target.SourcePort
	case !t.Protocol.HasPorts():
	case source:
		t.SourcePort = target.SourcePort
	default:
		t.DestinationPort = target.DestinationPort
	}
}

// applyError translates the quoted packet of an ICMP error, as nf_nat_icmp_reply_translation does (net/netfilter/nf_nat_proto.c). The
// quoted packet goes the other way, so that its other end changes.
func applyError(p *packet.Packet, other *packet.Tuple, source bool) bool {
	before, about := p.Tuple, *p.About
	rewrite(&about, other, !source)
	changed := about != *p.About
	p.About = &about
	target := other.Reply()
	if source {
		p.Source = target.Source
	} else {
		p.Destination = target.Destination
	}
	return changed || p.Tuple != before
}
