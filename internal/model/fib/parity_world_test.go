package fib_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// world makes up what is in a namespace.
type world struct {
	*rand.Rand
	ipv6  bool
	links []string
	masks bool     // the kernel and iproute2 know masks of ports and DSCPs
	own   []string // addresses of the machine
	lines []string
}

func pick[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

func (w *world) add(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

// address returns one address out of few, so that routes, rules and queries meet.
func (w *world) address() string {
	host := []int{0, 1, 2, 3, 64, 128, 254, 255}
	if w.ipv6 {
		return fmt.Sprintf("fd00:%x:%x::%x", w.IntN(3), w.IntN(4)<<14, host[w.IntN(len(host))])
	}
	return fmt.Sprintf("10.%d.%d.%d", w.IntN(4), pick(w, 0, 1, 64, 128), host[w.IntN(len(host))])
}

func (w *world) prefix() string {
	bits := pick(w, 0, 8, 14, 15, 16, 17, 18, 24, 25, 26, 31, 32)
	if w.ipv6 {
		bits = pick(w, 0, 16, 30, 32, 33, 34, 48, 64, 126, 127, 128)
	}
	p, _ := netip.MustParseAddr(w.address()).Prefix(bits)
	return p.String()
}

func (w *world) nexthop() string {
	link := pick(w, w.links...)
	switch {
	case w.chance(30):
		return "dev " + link
	case w.chance(50):
		return fmt.Sprintf("via %s dev %s onlink", w.address(), link)
	}
	return "via " + w.address()
}

func (w *world) route() {
	where := pick(w, "main", "main", "main", "100", "101", "102")
	line, ways := "", ""
	switch {
	case w.chance(15):
		line = fmt.Sprintf("%s %s", pick(w, "blackhole", "unreachable", "prohibit", "throw"), w.prefix())
	case w.chance(20):
		line = w.prefix()
		for range 2 + w.IntN(2) {
			ways += fmt.Sprintf(" nexthop %s weight %d", w.nexthop(), 1+w.IntN(5))
		}
	case w.chance(5):
		line = fmt.Sprintf("local %s dev %s", w.prefix(), pick(w, w.links...))
		where = pick(w, where, "local")
	default:
		line = w.prefix() + " " + w.nexthop()
	}
	if w.ipv6 && w.chance(15) && !strings.HasPrefix(line, "throw") {
		line += " from " + w.prefix()
	}
	if !w.ipv6 && w.chance(20) {
		line += " tos " + pick(w, "0x10", "0x08", "0x04", "0x20")
	}
	special := ""
	if w.chance(15) && len(w.own) > 0 {
		special = " src " + pick(w, w.own...)
	}
	if w.ipv6 && w.chance(15) {
		special += " pref " + pick(w, "low", "high")
	}
	how := pick(w, "add", "append")
	switch {
	case w.ipv6 && special != "": // siblings that differ in these are printed as if they did not: no other route has the metric
		special, how = special+" metric 77", "add"
	case w.chance(40):
		special += " metric " + pick(w, "5", "10", "2048")
	}
	line += special
	w.add("route %s %s table %s%s", how, line, where, ways)
}

func (w *world) rule(priority int) {
	line := fmt.Sprintf("rule add priority %d", priority)
	if w.chance(15) {
		line += " not"
	}
	optional := func(percent int, text string) {
		if w.chance(percent) {
			line += " " + text
		}
	}
	optional(40, "from "+w.prefix())
	optional(30, "to "+w.prefix())
	optional(20, "iif "+pick(w, append(w.links, "lo")...))
	optional(15, "oif "+pick(w, w.links...))
	optional(20, "fwmark "+pick(w, "1", "2/3", "0x10/0xf0"))
	optional(10, "tos "+pick(w, "0x10", "0x08"))
	optional(15, "ipproto "+pick(w, "6", "17"))
	optional(10, "sport "+pick(w, "1000-2000", "53"))
	optional(10, "dport "+pick(w, "80", "1-1023"))
	if w.masks {
		optional(10, pick(w, "sport 0x20/0xf0", "sport 0x400/0xc00"))
		optional(10, "dscp "+pick(w, "4", "0", "0x8/0x38", "9"))
	}
	optional(10, "uidrange 0-99")
	switch {
	case w.chance(12):
		line += " " + pick(w, "blackhole", "unreachable", "prohibit")
	case w.chance(12):
		line += fmt.Sprintf(" goto %d", priority+pick(w, 5, 10, 20))
	default:
		line += " table " + pick(w, "100", "101", "102", "main")
		optional(20, "suppress_prefixlength "+pick(w, "0", "16", "24"))
		optional(10, "suppress_ifgroup "+pick(w, "7", "default"))
	}
	w.add("%s", line)
}

func (w *world) fill(custom bool) {
	for range 2 + w.IntN(3) {
		link, a := pick(w, w.links...), w.address()
		length := pick(w, 16, 24, 24, 25, 32)
		if w.ipv6 {
			length = pick(w, 48, 64, 64, 128)
		}
		w.own = append(w.own, a)
		switch {
		case !w.ipv6 && w.chance(15):
			w.add("address add %s peer %s/%d dev %s", a, w.address(), length, link)
		case !w.ipv6:
			w.add("address add %s/%d dev %s scope %s brd +", a, length, link, pick(w, "global", "global", "link"))
		default:
			w.add("address add %s/%d dev %s nodad", a, length, link)
		}
	}
	for range 15 + w.IntN(25) {
		w.route()
	}
	if custom {
		for i := range 1 + w.IntN(8) {
			w.rule(100 + 5*i)
		}
	}
}

// query makes up a query and how "ip route get" asks it.
func (w *world) query() (fib.Query, string) {
	dst := w.address()
	if w.chance(5) {
		dst = pick(w, "224.1.2.3", "255.255.255.255", "127.0.0.1")
		if w.ipv6 {
			dst = pick(w, "ff02::1", "ff05::2", "fe80::5", "::1", "2001:db8::1")
		}
	}
	q := fib.Query{Destination: netip.MustParseAddr(dst)}
	text := dst
	switch {
	case w.chance(40):
		q.In, q.Source = pick(w, w.links...), netip.MustParseAddr(w.address())
		text += " from " + q.Source.String() + " iif " + q.In
	case w.chance(30):
		q.Out = pick(w, w.links...)
		text += " oif " + q.Out
	case w.chance(50):
		q.Source = netip.MustParseAddr(pick(w, w.own...))
		text += " from " + q.Source.String()
	}
	if w.chance(40) {
		q.Mark = uint32(w.IntN(4) + 16*w.IntN(2))
		text += fmt.Sprintf(" mark %d", q.Mark)
	}
	if w.chance(40) {
		q.TOS = pick[uint8](w, 0x10, 0x08, 0x30, 0x24)
		text += fmt.Sprintf(" tos 0x%x", q.TOS)
	}
	if w.chance(30) && q.In == "" {
		q.UID = pick[uint32](w, 5, 1000)
		text += fmt.Sprintf(" uid %d", q.UID)
	}
	if w.ipv6 && q.In != "" {
		q.UID = 0xffffffff // inet6_rtm_getroute: INVALID_UID
	}
	if !w.ipv6 {
		q.Protocol = packet.UDP // what "ip route get" asks for without ipproto
	}
	if w.chance(40) {
		q.Protocol = pick(w, packet.TCP, packet.UDP)
		q.SourcePort, q.DestinationPort = packet.Exactly(pick[uint16](w, 53, 1500, 3000)), packet.Exactly(pick[uint16](w, 80, 1023, 8080))
		text += fmt.Sprintf(" ipproto %d sport %s dport %s", q.Protocol, q.SourcePort, q.DestinationPort)
	}
	return q, text
}

func (w *world) flag() string { return map[bool]string{false: "-4", true: "-6"}[w.ipv6] }
