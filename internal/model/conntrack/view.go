package conntrack

import (
	"packetwalk.dev/internal/model/packet"
)

// View is a table as one walk sees it: what the table holds, and what the walk's own packets made and changed. The table stays as it is.
// A View is for one goroutine.
type View struct {
	base     *Table
	settings Settings
	copies   map[int]*packet.Flow // of the base's flows that a packet met
	own      map[key]*packet.Flow // the walk's flows, confirmed
	sources  map[sourceKey][]*packet.Flow
	gone     map[int]bool // flows of the base that the walk's packets ended
	order    []*packet.Flow
}

type entry struct {
	flow  *packet.Flow
	reply bool
}

// NewView makes a view of a table; nil is an empty one.
func NewView(t *Table, s Settings) *View {
	if t == nil {
		t = &Table{}
	}
	return &View{base: t, settings: s}
}

// Flows lists what the walk made, and those of the table's flows that its packets changed, in the order in which they were met. The
// flows go on changing with the walk's next packets.
func (v *View) Flows() []*packet.Flow {
	var changed []*packet.Flow
	originals := map[*packet.Flow]int{}
	for i, f := range v.copies {
		originals[f] = i
	}
	for _, f := range v.order {
		if i, copied := originals[f]; !copied || *f != v.base.Flows[i] {
			changed = append(changed, f)
		}
	}
	return changed
}

// find looks a tuple up (nf_conntrack_find_get), in either direction of a flow. The flow may be changed: it is the view's.
func (v *View) find(t packet.Tuple, zone packet.Zone) (entry, bool) {
	if e, ok := v.inDirection(t, zone, false); ok {
		return e, true
	}
	return v.inDirection(t, zone, true)
}

// inDirection finds the flow that has a tuple in one of its directions.
func (v *View) inDirection(t packet.Tuple, zone packet.Zone, reply bool) (entry, bool) {
	k := key{t, zone.In(reply), reply}
	if f, ok := v.own[k]; ok {
		return entry{f, reply}, true
	}
	i, ok := v.base.index[k]
	if !ok || v.gone[i] {
		return entry{}, false
	}
	f := v.copies[i]
	if f == nil {
		c := v.base.Flows[i]
		f = &c
		if v.copies == nil {
			v.copies = map[int]*packet.Flow{}
		}
		v.copies[i] = f
		v.order = append(v.order, f)
	}
	return entry{f, reply}, true
}

// holder returns the flow other than f that has a tuple that f is to have in one direction; nil where there is none
// (nf_conntrack_tuple_taken, nf_conntrack_confirm). In whichever direction the other has it, f must be in the same zone in that one
// (nf_ct_zone_equal).
func (v *View) holder(t packet.Tuple, f *packet.Flow, reply bool) *packet.Flow {
	for _, direction := range [...]bool{false, true} {
		k := key{t, f.Zone.In(reply), direction}
		if f.Zone.In(direction) != k.zone {
			continue
		}
		if other, ok := v.own[k]; ok && other != f {
			return other
		}
		if i, ok := v.base.index[k]; ok && !v.gone[i] && v.copies[i] != f {
			return &v.base.Flows[i]
		}
	}
	return nil
}

// Adopt adds a flow that is there beside those of the table, or in place of the one that has its first packet's tuple.
func (v *View) Adopt(f packet.Flow) {
	if known, ok := v.find(f.Original, f.Zone); ok {
		v.Remove(known.flow)
	}
	v.put(&f)
}

// Remove ends a flow (nf_ct_kill).
func (v *View) Remove(f *packet.Flow) {
	original, reply := keys(f)
	delete(v.own, original)
	delete(v.own, reply)
	if i, ok := v.base.index[original]; ok {
		if v.gone == nil {
			v.gone = map[int]bool{}
		}
		v.gone[i] = true
	}
}

// Confirm puts a new flow into the table: at the end of postrouting and input, __nf_conntrack_confirm. It returns false when another
// flow has one of its tuples: the packet is then dropped.
func (v *View) Confirm(p *packet.Packet) bool {
	f := p.Track.Flow
	if f == nil || f.Status&packet.Confirmed != 0 {
		return true
	}
	if v.holder(f.Original, f, false) != nil || v.holder(f.Reply, f, true) != nil {
		return false
	}
	f.Status |= packet.Confirmed
	v.put(f)
	return true
}

// put adds a flow.
func (v *View) put(f *packet.Flow) {
	if v.own == nil {
		v.own, v.sources = map[key]*packet.Flow{}, map[sourceKey][]*packet.Flow{}
	}
	original, reply := keys(f)
	v.own[original], v.own[reply] = f, f
	s := bySource(&f.Original, f.Zone)
	v.sources[s] = append(v.sources[s], f)
	v.order = append(v.order, f)
}

// Track finds the packet's flow or makes one, as nf_conntrack_in does at priority -200 (net/netfilter/nf_conntrack_core.c), and fills in
// p.Track. A packet that has a flow, or that a rule took out of tracking, keeps what it has; one that was invalid is looked at
// again at the next such hook, on its way through lo.
func (v *View) Track(p *packet.Packet) {
	switch {
	case p.Untracked:
		p.Track = packet.Track{State: packet.Untracked}
		return
	case p.Track.Flow != nil || p.Track.State == packet.Untracked:
		return
	}
	if p.Track.State == packet.Invalid && !p.Template { // looked at again: what zone it was told before counts no longer
		p.Zone, p.ZoneMark = packet.Zone{}, false
	}
	if p.Template = false; p.ZoneMark {
		p.Zone.ID = uint16(p.Mark)
	}
	switch {
	case neighbourDiscovery(p):
		p.Track = packet.Track{State: packet.Untracked}
		return
	case p.About != nil && quotes(p):
		p.Track = v.related(p)
		return
	}
	p.Track = v.resolve(p)
}

// neighbourDiscovery reports whether a packet is an ICMPv6 message that is not tracked (nf_conntrack_icmpv6_error: noct_valid_new): of
// multicast listeners, routers and neighbours.
func neighbourDiscovery(p *packet.Packet) bool {
	return p.Protocol == packet.ICMPv6 && (p.Type >= 130 && p.Type <= 136 || p.Type == 143)
}

// quotes tells of ICMP messages about other packets (nf_conntrack_icmpv4_error, icmpv6_error): destination unreachable, source quench,
// redirect, time exceeded, parameter problem; in IPv6 all types below 128.
func quotes(p *packet.Packet) bool {
	if p.Protocol == packet.ICMPv6 {
		return p.Type < 128
	}
	switch p.Type {
	case 3, 4, 5, 11, 12:
		return p.Protocol == packet.ICMP
	}
	return false
}

// related finds the flow that an ICMP error is about (nf_conntrack_inet_error, net/netfilter/nf_conntrack_proto_icmp.c). The error goes
// against the quoted packet, and counts in the direction it goes in itself. Errors about what is no flow, or that go elsewhere than the
// flow does, are invalid.
func (v *View) related(p *packet.Packet) packet.Track {
	inverse := identity(p.About.Reply())
	e, ok := v.find(inverse, p.Zone)
	if !ok {
		return packet.Track{State: packet.Invalid}
	}
	tuple := e.flow.Original
	if e.reply {
		tuple = e.flow.Reply
	}
	if tuple.Destination != p.Destination {
		return packet.Track{State: packet.Invalid}
	}
	return packet.Track{Flow: e.flow, State: packet.Related, Reply: e.reply}
}

// resolve finds or makes a packet's flow, as resolve_normal_ct does with the protocol's own part (nf_conntrack_handle_packet).
func (v *View) resolve(p *packet.Packet) packet.Track {
	t := identity(p.Tuple)
	e, found := v.find(t, p.Zone)
	if found && p.Protocol == packet.TCP && reopens(e, p.TCPFlags) {
		v.Remove(e.flow)
		e, found = v.find(t, p.Zone)
	}
	if !found {
		return v.begin(p, t)
	}
	if p.Protocol == packet.TCP && !v.advance(e, p.TCPFlags) {
		return packet.Track{State: packet.Invalid}
	}
	if p.Protocol == packet.TCP && p.TCPFlags&packet.RST != 0 && e.flow.Status&packet.SeenReply == 0 {
		v.Remove(e.flow) // a connection that was refused is forgotten at once, but the packet keeps it (nf_ct_kill_acct)
	}
	track := packet.Track{Flow: e.flow, Reply: e.reply, State: packet.New}
	switch {
	case e.reply:
		track.State = packet.Established
		e.flow.Status |= packet.SeenReply
	case e.flow.Status&packet.SeenReply != 0:
		track.State = packet.Established
	case e.flow.Status&packet.Expected != 0:
		track.State = packet.Related
	}
	return track
}

// begin makes a flow of its first packet (init_conntrack), unless its protocol does not start with such a packet.
func (v *View) begin(p *packet.Packet, t packet.Tuple) packet.Track {
	f := &packet.Flow{Original: t, Reply: t.Reply(), Zone: p.Zone, Timeout: 30}
	switch {
	case isICMP(t.Protocol) && !queries(t):
		return packet.Track{State: packet.Invalid}
	case t.Protocol == packet.TCP && !v.beginTCP(f, p.TCPFlags):
		return packet.Track{State: packet.Invalid}
	}
	return packet.Track{Flow: f, State: packet.New}
}

// queries reports whether an ICMP message can be a flow's first (valid_new in nf_conntrack_proto_icmp.c and nf_conntrack_proto_icmpv6.c).
func queries(t packet.Tuple) bool {
	switch t.Type {
	case 8, 13, 15, 17:
		return t.Protocol == packet.ICMP
	case 128, 139:
		return t.Protocol == packet.ICMPv6
	}
	return false
}
