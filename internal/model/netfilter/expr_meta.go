package netfilter

import (
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// metas are what the kernel keeps beside the packet, by nft's names (net/netfilter/nft_meta.c).
var metas = map[string]*Field{}

// Meta returns what the kernel keeps beside the packet by nft's name ("mark", "iifname", …); false where it is not known.
func Meta(name string) (*Field, bool) {
	f, ok := metas[name]
	return f, ok
}

func addMeta(name, words, datatype string, bits int, get func(c *Context) (Span, truth)) *Field {
	f := &Field{Words: words, Type: datatype, Bits: bits, get: get}
	metas[name] = f
	return f
}

func init() {
	addMeta("mark", "mark", "mark", 32, func(c *Context) (Span, truth) { return number(uint64(c.Packet.Mark)) }).withKey(KeyMark)
	addMeta("l4proto", "protocol", "inet_proto", 8, func(c *Context) (Span, truth) {
		if !isIP(c.Packet) {
			return absent()
		}
		return number(uint64(c.Packet.Protocol))
	}).withKey(KeyProtocol)
	addMeta("nfproto", "family", "nf_proto", 8, familyNumber)
	addMeta("protocol", "frame's type", "ether_type", 16, etherType)
	addMeta("length", "length", "integer", 32, func(c *Context) (Span, truth) {
		if c.Packet.Length == 0 {
			return anything(32), yes
		}
		if c.Hook == Egress { // the Ethernet header stands in front by then (__dev_queue_xmit)
			return number(uint64(c.Packet.Length) + 14)
		}
		return number(uint64(c.Packet.Length))
	})
	addMeta("pkttype", "frame's addressee", "pkt_type", 8, func(c *Context) (Span, truth) {
		return number(castNumber(c.Packet.Cast))
	})
	addMeta("priority", "class", "classid", 32, func(c *Context) (Span, truth) { return number(uint64(c.Packet.Priority)) })
	addMeta("skuid", "user of the socket", "uid", 32, owner(func(p *packet.Packet) (uint32, bool) { return p.UID, p.AssumedOwner }))
	addMeta("skgid", "group of the socket", "gid", 32, owner(func(p *packet.Packet) (uint32, bool) { return p.GID, p.AssumedOwner || p.AssumedGroup }))
	addMeta("nftrace", "tracing", "integer", 1, func(*Context) (Span, truth) { return anything(1), yes })
	for name, datatype := range map[string]string{"cpu": "integer", "cgroup": "integer", "random": "integer", "rtclassid": "realm",
		"secmark": "integer", "time": "time", "day": "day", "hour": "hour"} {
		addMeta(name, name, datatype, 32, func(*Context) (Span, truth) { return Span{High: AllOnes}, yes })
	}
	addLinkMetas()
}

// addLinkMetas adds what is known of the interfaces; "iif" and "oif" are compared by name here, which is the same while links keep theirs.
func addLinkMetas() {
	for _, side := range []struct {
		in    string // prefix of nft's names
		words string
		key   KeyField
		name  func(c *Context) (string, bool)
	}{
		{"iif", "incoming interface", KeyIn, func(c *Context) (string, bool) { return c.Packet.In, !c.inUnknown() }},
		{"oif", "outgoing interface", KeyOut, func(c *Context) (string, bool) { return c.Packet.Out, !c.outUnknown() }},
	} {
		name := func(c *Context) (Span, truth) {
			n, known := side.name(c)
			if !known {
				return Span{High: AllOnes}, yes
			}
			return Exactly(NameValue(n)), yes
		}
		addMeta(side.in+"name", side.words, "ifname", 128, name).withKey(side.key)
		addMeta(side.in, side.words, "iface_index", 128, name).withKey(side.key)
		// of is a number of the interface; the rule does not apply where there is none.
		of := func(get func(l Link) uint64) func(c *Context) (Span, truth) {
			return func(c *Context) (Span, truth) {
				n, known := side.name(c)
				if known && n == "" {
					return absent()
				}
				if l, ok := c.link(n); ok && known {
					return number(get(l))
				}
				return anything(32), yes
			}
		}
		addMeta(side.in+"type", side.words+"'s type", "iface_type", 16, of(func(l Link) uint64 { return uint64(l.Type) }))
		addMeta(side.in+"group", side.words+"'s group", "devgroup", 32, of(func(l Link) uint64 { return uint64(l.Group) }))
	}
	bridge := func(link func(c *Context) (string, bool)) func(c *Context) (Span, truth) {
		return func(c *Context) (Span, truth) {
			name, known := link(c)
			switch l, ok := c.link(name); {
			case known && name == "":
				return absent()
			case !known || !ok:
				return Span{High: AllOnes}, maybe
			case l.Master == "":
				return absent()
			default:
				return Exactly(NameValue(l.Master)), yes
			}
		}
	}
	addMeta("ibrname", "incoming bridge", "ifname", 128, bridge(func(c *Context) (string, bool) { return c.Packet.In, !c.inUnknown() }))
	addMeta("obrname", "outgoing bridge", "ifname", 128, bridge(func(c *Context) (string, bool) { return c.Packet.Out, !c.outUnknown() }))
	metas["ibriport"], metas["obriport"] = metas["ibrname"], metas["obrname"] // older names
}

// familyNumber returns NFPROTO_… of the hook (include/uapi/linux/netfilter.h).
func familyNumber(c *Context) (Span, truth) {
	switch {
	case c.Family == Bridge:
		return number(7)
	case c.Packet.Frame.ARP != nil:
		return number(3)
	case c.Packet.IsIPv6():
		return number(10)
	}
	return number(2)
}

// castNumber returns PACKET_… (include/uapi/linux/if_packet.h).
func castNumber(c packet.Cast) uint64 {
	switch c {
	case packet.BroadcastFrame:
		return 1
	case packet.MulticastFrame:
		return 2
	case packet.OtherHost:
		return 3
	}
	return 0
}

// owner returns the reader of a part of the sending socket's owner, which id gives and says of whether it is assumed.
func owner(id func(p *packet.Packet) (n uint32, assumed bool)) func(c *Context) (Span, truth) {
	return func(c *Context) (Span, truth) {
		switch p := c.Packet; {
		case p.HasOwner:
			n, assumed := id(p)
			c.AskedOwner = c.AskedOwner || assumed
			return number(uint64(n))
		case p.SomeOwner:
			return anything(32), maybe
		}
		return absent()
	}
}

// Conntrack returns what conntrack says of the packet by nft's name ("state", "mark", "ip saddr", …), for the direction "original", "reply"
// or "" (net/netfilter/nft_ct.c); false where it is not known. Packets without a connection have only a state.
func Conntrack(key, direction string) (*Field, bool) {
	f := conntrackField(key, direction)
	if f == nil {
		return nil, false
	}
	f.tracks = yes
	return f, true
}

// flowField returns a field of the packet's connection.
func flowField(words, datatype string, bits int, get func(c *Context, f *packet.Flow) (Span, truth)) *Field {
	return &Field{Words: words, Type: datatype, Bits: bits, get: func(c *Context) (Span, truth) {
		f := c.connection()
		if f == nil {
			return absent()
		}
		return get(c, f)
	}}
}

func conntrackField(key, direction string) *Field {
	switch key {
	case "state":
		return &Field{Words: "connection state", Type: "ct_state", Bits: 32, get: func(c *Context) (Span, truth) {
			return number(uint64(c.Packet.TrackState()))
		}}
	case "mark":
		return flowField("connection mark", "mark", 32, func(_ *Context, f *packet.Flow) (Span, truth) { return number(uint64(f.Mark)) })
	case "status":
		return flowField("connection status", "ct_status", 32, func(_ *Context, f *packet.Flow) (Span, truth) { return number(uint64(f.Status)) })
	case "direction":
		return flowField("connection direction", "ct_dir", 8, func(c *Context, _ *packet.Flow) (Span, truth) {
			if c.Packet.Track.Reply {
				return number(1)
			}
			return number(0)
		})
	case "zone":
		return flowField("connection zone", "integer", 16, func(_ *Context, f *packet.Flow) (Span, truth) {
			if direction == "" {
				return number(uint64(f.Zone.ID))
			}
			return number(uint64(f.Zone.In(direction == "reply")))
		})
	case "helper":
		// Only expected connections have a master with a helper; which it was is not known.
		return flowField("connection helper", "string", 128, func(_ *Context, f *packet.Flow) (Span, truth) {
			if f.Status&packet.Expected == 0 {
				return absent()
			}
			return Span{High: AllOnes}, maybe
		})
	case "expiration":
		return flowField("connection expiration", "duration", 32, func(*Context, *packet.Flow) (Span, truth) { return anything(32), yes })
	case "bytes", "packets", "avgpkt", "id", "label", "event", "secmark":
		return flowField("connection "+key, "integer", 64, func(*Context, *packet.Flow) (Span, truth) { return anything(64), yes })
	}
	return tupleField(key, direction)
}

// tupleField returns a part of the connection's tuples.
func tupleField(key, direction string) *Field {
	tuple := func(c *Context, f *packet.Flow) *packet.Tuple {
		if direction == "reply" || direction == "" && c.Packet.Track.Reply {
			return &f.Reply
		}
		return &f.Original
	}
	words := "connection's "
	if direction != "" {
		words += direction + " "
	}
	address := func(of func(t *packet.Tuple) netip.Addr, ipv6 bool) func(c *Context, f *packet.Flow) (Span, truth) {
		return func(c *Context, f *packet.Flow) (Span, truth) {
			a := of(tuple(c, f))
			if a.Is6() != ipv6 {
				return absent()
			}
			return addressSpan(a, ipv6)
		}
	}
	source := func(t *packet.Tuple) netip.Addr { return t.Source }
	destination := func(t *packet.Tuple) netip.Addr { return t.Destination }
	switch key {
	case "ip saddr":
		return flowField(words+"source", "ipv4_addr", 32, address(source, false))
	case "ip daddr":
		return flowField(words+"destination", "ipv4_addr", 32, address(destination, false))
	case "ip6 saddr":
		return flowField(words+"source", "ipv6_addr", 128, address(source, true))
	case "ip6 daddr":
		return flowField(words+"destination", "ipv6_addr", 128, address(destination, true))
	case "proto-src", "proto-dst":
		return flowField(words+"port", "inet_service", 16, func(c *Context, f *packet.Flow) (Span, truth) {
			return tuplePort(tuple(c, f), key == "proto-src")
		})
	case "protocol":
		return flowField("connection's protocol", "inet_proto", 8, func(_ *Context, f *packet.Flow) (Span, truth) {
			return number(uint64(f.Original.Protocol))
		})
	case "l3proto":
		return flowField("connection's family", "nf_proto", 8, func(_ *Context, f *packet.Flow) (Span, truth) {
			if f.Original.Destination.Is6() {
				return number(10)
			}
			return number(2)
		})
	}
	return nil
}

// tuplePort returns the port of a tuple; ICMP has its identifier, and type and code, in their place (struct nf_conntrack_tuple).
func tuplePort(t *packet.Tuple, source bool) (Span, truth) {
	switch {
	case source:
		return portSpan(t.SourcePort)
	case t.Protocol == packet.ICMP || t.Protocol == packet.ICMPv6:
		return number(uint64(t.Type)<<8 | uint64(t.Code))
	}
	return portSpan(t.DestinationPort)
}

// FIB is a look-up in the machine's routing tables (net/ipv4/netfilter/nft_fib_ipv4.c, nft_fib_ipv6.c).
type FIB struct {
	Source   bool // of the source address; otherwise of the destination
	Mark     bool // with the packet's mark
	In, Out  bool // restricted to the interface that the packet came in by, or goes out of
	Result   FIBResult
	Presence bool // whether there is a result, instead of it
}

// FIBResult is what a look-up gives.
type FIBResult uint8

// The results.
const (
	FIBType FIBResult = iota // the address's type
	FIBLink                  // the interface
)

func (f *FIB) String() string {
	text := "type of the " + side(f.Source)
	if f.Result == FIBLink {
		text = "interface towards the " + side(f.Source)
	}
	if f.Mark {
		text += " with the mark"
	}
	switch {
	case f.In:
		text += " on the incoming interface"
	case f.Out:
		text += " on the outgoing interface"
	}
	return text
}

func (f *FIB) value(c *Context, dst []Span) ([]Span, truth) {
	s, t := f.lookup(c)
	if f.Presence && t == yes && s.Certain() {
		found := s != Span{}
		s = Number(0)
		if f.Result == FIBLink && found {
			s = Number(1)
		}
	}
	return append(dst, s), t
}

func (f *FIB) lookup(c *Context) (Span, truth) {
	p := c.Packet
	if !isIP(p) {
		return absent()
	}
	a, other := p.Destination, p.Source
	if f.Source {
		a, other = p.Source, p.Destination
	}
	link, known := "", true
	switch {
	case f.In:
		link, known = p.In, !c.inUnknown()
	case f.Out:
		link, known = p.Out, !c.outUnknown()
	}
	if !a.IsValid() || !known {
		return f.unknown()
	}
	if f.Result == FIBType {
		return f.addressType(c, a, link)
	}
	return f.link(c, a, other, link)
}

func (f *FIB) unknown() (Span, truth) {
	if f.Result == FIBType {
		return Span{Value{}, Value{Lo: uint64(ProhibitAddress)}}, yes
	}
	return Span{High: AllOnes}, yes
}

func (f *FIB) addressType(c *Context, a netip.Addr, link string) (Span, truth) {
	switch {
	case a.Is4() && (a.As4()[0] == 0 || a.As4() == [4]byte{255, 255, 255, 255}):
		return number(uint64(BroadcastAddress))
	case a.IsMulticast():
		return number(uint64(MulticastAddress))
	}
	if t, ok := c.addressType(a, link); ok {
		return number(uint64(t))
	}
	return f.unknown()
}

// link gives the interface's name, which is empty where there is no route, or not by the interface asked for.
func (f *FIB) link(c *Context, a, other netip.Addr, link string) (Span, truth) {
	p := c.Packet
	if c.Hook == Prerouting && p.In == "lo" || f.Source && a.Is4() && a.IsUnspecified() && toAllStations(p.Destination) {
		return Exactly(NameValue(p.In)), yes
	}
	q := RouteQuery{Destination: a, Source: other}
	if other.IsValid() && (other.IsMulticast() || other.IsUnspecified() || other == netip.AddrFrom4([4]byte{255, 255, 255, 255})) {
		q.Source = netip.Addr{}
	}
	if f.Mark {
		q.Mark = p.Mark
	}
	answer, ok := c.route(q)
	switch {
	case !ok:
		return f.unknown()
	case answer.Type != UnicastAddress:
		return Exactly(Value{}), yes
	}
	found := c.routeLink(&answer, link, f)
	if link != "" && found != link {
		found = ""
	}
	return Exactly(NameValue(found)), yes
}

func toAllStations(a netip.Addr) bool {
	return a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || a.IsLinkLocalMulticast()
}
