package walk

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// machine is a host during one run: its snapshot, and what the run's packets made it learn.
type machine struct {
	*snapshot.Host
	run  *run
	view *conntrack.View
	// neighbours and stations are what the host learnt by asking, beside what the snapshot has.
	neighbours map[neighbour]packet.MAC
	stations   map[station]string // the bridge port behind which a station was seen
	remotes    map[remoteStation]*fib.FDBEntry
	carried    map[packet.Tuple]int  // how often a packet was sent in VXLAN so far
	decided    map[fmt.Stringer]bool // what is unknown, and was decided
	recent     map[string]netfilter.RecentList
}

type neighbour struct {
	link    string
	address netip.Addr
}

type station struct {
	bridge string
	mac    packet.MAC
}

// machine returns a host in this run.
func (r *run) machine(h *snapshot.Host) *machine {
	if m, ok := r.machines[h.Name]; ok {
		return m
	}
	m := &machine{Host: h, run: r}
	m.view = conntrack.NewView(h.Flows, conntrack.Settings{
		TCPLoose:   m.sysctl(true, "net.netfilter.nf_conntrack_tcp_loose"),
		TCPLiberal: m.sysctl(false, "net.netfilter.nf_conntrack_tcp_be_liberal"),
		LocalPorts: m.localPorts(),
		Settled:    r.req.Settled[h.Name],
	})
	for _, f := range r.req.Flows[h.Name] {
		m.view.Adopt(f)
	}
	r.machines[h.Name] = m
	return m
}

// sayMissing tells of rules that are not in the snapshot. What else is missing is told where the walk comes to need it.
func (m *machine) sayMissing(ipv6 bool) {
	rules := snapshot.Rules
	if ipv6 {
		rules = snapshot.RulesIPv6
	}
	for _, part := range [...]snapshot.Part{rules, snapshot.NFT} {
		if why, missing := m.Missing[part]; missing {
			m.assumeMissing(part, fmt.Sprintf("%s unknown (%s); assuming the packet meets none", part, why))
		}
		if why := m.Partial[part]; why != "" {
			m.assumeMissing(part, fmt.Sprintf("some %s unknown (%s); assuming the packet meets no others", part, why))
		}
	}
}

// sayMissingPolicy tells of policy rules that are not in the snapshot, where a route is looked up.
func (m *machine) sayMissingPolicy(ipv6 bool) {
	why, missing := m.Missing[snapshot.Policy]
	switch {
	case !missing:
	case slices.ContainsFunc(m.FIB.Rules, func(r fib.Rule) bool { return r.IPv6 == ipv6 }):
		m.assumeMissing(snapshot.Policy, fmt.Sprintf("some %s unknown (%s); assuming there are no others", snapshot.Policy, why))
	default:
		m.assumeMissing(snapshot.Policy, fmt.Sprintf("%s unknown (%s); assuming the usual three", snapshot.Policy, why))
	}
}

// sayMissingBridgeRules tells of a bridge's rules that are not in the snapshot, where a frame comes to it.
func (m *machine) sayMissingBridgeRules() {
	if why, missing := m.Missing[snapshot.Bridge]; missing {
		m.assumeMissing(snapshot.Bridge, fmt.Sprintf("%s unknown (%s); assuming frames meet none", snapshot.Bridge, why))
	}
	if why := m.Partial[snapshot.Bridge]; why != "" {
		m.assumeMissing(snapshot.Bridge, fmt.Sprintf("some %s unknown (%s); assuming the frame meets no others", snapshot.Bridge, why))
	}
}

// whyUnread returns why a part of the machine's state could not be read, "" where all of the parts were.
func (m *machine) whyUnread(parts ...snapshot.Part) string {
	if len(m.Unread) == 0 {
		return ""
	}
	for _, part := range parts {
		if why := m.Unread[part]; why != "" {
			m.run.notShown(MissingState{Host: m.Name, Part: part})
			return fmt.Sprintf("the %s could not be read: %s", part, why)
		}
	}
	return ""
}

// needs ends the packet's way where it comes to need a part of the machine's state that could not be read: what is there may do anything
// to the packet.
func (t *transit) needs(parts ...snapshot.Part) *End {
	if why := t.m.whyUnread(parts...); why != "" {
		return t.end(Undecided, why)
	}
	return nil
}

// always are the parts that every packet needs, routing those that decide where an IP packet goes.
var (
	always  = []snapshot.Part{snapshot.Links, snapshot.Sysctls}
	routing = []snapshot.Part{snapshot.Routes, snapshot.Policy, snapshot.Addresses}
)

// rules returns the parts that have rules for packets of a family.
func rules(f netfilter.Family) []snapshot.Part {
	switch f {
	case netfilter.IPv4:
		return []snapshot.Part{snapshot.Rules, snapshot.NFT}
	case netfilter.IPv6:
		return []snapshot.Part{snapshot.RulesIPv6, snapshot.NFT}
	case netfilter.Bridge:
		return []snapshot.Part{snapshot.Bridge, snapshot.NFT}
	}
	return []snapshot.Part{snapshot.NFT}
}

// assume notes that something is not known of the machine and how the walk goes on.
func (m *machine) assume(what string) { m.run.assume(Assumption{Host: m.Name, What: what}) }

// assumeUntraced calls assume for what no trace of the packet shows.
func (m *machine) assumeUntraced(what string) {
	m.run.assume(Assumption{Host: m.Name, What: what, Untraced: true})
}

// assumeMissing calls assume, for a part of the machine's state that the snapshot lacks.
func (m *machine) assumeMissing(part snapshot.Part, what string) {
	m.assume(what)
	m.run.notShown(MissingState{Host: m.Name, Part: part})
}

// meets notes that the packet comes to need a part of the machine's state, which may not be shown.
func (m *machine) meets(part snapshot.Part) {
	if !m.isKnown(part) {
		m.run.notShown(MissingState{Host: m.Name, Part: part})
	}
}

func (m *machine) isKnown(part snapshot.Part) bool {
	_, missing := m.Missing[part]
	return !missing
}

// knowsRules reports whether all rules of a family are known.
func (m *machine) knowsRules(f netfilter.Family) bool {
	rules := snapshot.Rules
	if f == netfilter.IPv6 {
		rules = snapshot.RulesIPv6
	}
	return m.isKnown(rules) && m.isKnown(snapshot.NFT)
}

// sysctl reads a switch; standard is its value where the snapshot does not have it: the kernel's own default.
func (m *machine) sysctl(standard bool, name string) bool {
	v, ok := m.Sysctls[name]
	if !ok {
		return standard
	}
	return v != "0"
}

// Keys of a link's settings are looked up for "all" and for the link: the kernel takes one of the two, both or the larger
// (include/linux/inetdevice.h: IN_DEV_CONF_GET, IN_DEV_ORCONF, IN_DEV_MAXCONF).

func (m *machine) confNumber(link, key string) int {
	text, ok := m.Sysctl("net", "ipv4", "conf", link, key)
	if !ok {
		return 0
	}
	n, _ := strconv.Atoi(text)
	return n
}

func (m *machine) confEither(link, key string) bool {
	return m.confNumber("all", key) != 0 || m.confNumber(link, key) != 0
}

func (m *machine) confMax(link, key string) int {
	return max(m.confNumber("all", key), m.confNumber(link, key))
}

// forwards reports whether packets that came in by link may go out again (IN_DEV_FORWARD; net.ipv6.conf.all.forwarding).
func (m *machine) forwards(link string, ipv6 bool) bool {
	if own, ok := m.Sysctls[forwardingSetting(link, ipv6)]; ok && !m.isKnown(snapshot.Sysctls) {
		return own != "0"
	}
	if v, ok := m.Sysctls[forwardingSetting("", ipv6)]; ok && !m.isKnown(snapshot.Sysctls) {
		return v != "0" // the links' own settings follow it (Documentation/networking/ip-sysctl.rst)
	}
	if !m.isKnown(snapshot.Sysctls) {
		m.assumeMissing(snapshot.Sysctls, "sysctls unknown; assuming the host forwards packets")
		return true
	}
	if ipv6 || link == "" {
		return m.sysctl(false, forwardingSetting(link, ipv6))
	}
	return m.confNumber(link, "forwarding") != 0
}

// knowsForwarding reports whether a sysctl tells that.
func (m *machine) knowsForwarding(link string, ipv6 bool) bool {
	return m.isKnown(snapshot.Sysctls) || m.Sysctls[forwardingSetting(link, ipv6)]+m.Sysctls[forwardingSetting("", ipv6)] != ""
}

// forwardingSetting returns the sysctl that decides whether a host forwards what came in by link, "" where that is not known.
func forwardingSetting(link string, ipv6 bool) string {
	switch {
	case ipv6:
		return "net.ipv6.conf.all.forwarding"
	case link == "":
		return "net.ipv4.ip_forward"
	}
	return "net.ipv4.conf." + link + ".forwarding"
}

// localPorts returns the range out of which sockets get their ports (net.ipv4.ip_local_port_range).
func (m *machine) localPorts() [2]uint16 {
	fields := strings.Fields(m.Sysctls["net.ipv4.ip_local_port_range"])
	if len(fields) == 2 {
		low, err1 := strconv.ParseUint(fields[0], 10, 16)
		high, err2 := strconv.ParseUint(fields[1], 10, 16)
		if err1 == nil && err2 == nil && low < high {
			return [2]uint16{uint16(low), uint16(high)}
		}
	}
	return [2]uint16{32768, 60999} // Documentation/networking/ip-sysctl.rst
}

// ttl returns what packets of the machine's own start with.
func (m *machine) ttl(ipv6 bool) uint8 {
	key := "net.ipv4.ip_default_ttl"
	if ipv6 {
		key = "net.ipv6.conf.all.hop_limit"
	}
	if text, ok := m.Sysctls[key]; ok {
		if n, err := strconv.ParseUint(text, 10, 8); err == nil && n > 0 {
			return uint8(n)
		}
	}
	return 64
}

// peer returns the other end of a link's wire, if it is on a host of the snapshot: a capture can be of some hosts only.
func (m *machine) peer(link string) (snapshot.Peer, bool) {
	p, ok := m.Peer(link)
	if !ok {
		return p, false
	}
	_, err := m.run.host(p.Host)
	return p, !errors.Is(err, fs.ErrNotExist)
}

// leadsOut tells of a link whose other end is not in the snapshot: a machine's own card, or half of a pair.
func (m *machine) leadsOut(l *fib.Link) bool {
	if !l.HasCarrier() || l.Kind != "" && l.Kind != "veth" || l.Type == "loopback" {
		return false
	}
	_, known := m.peer(l.Name)
	return !known
}

// IPSet implements netfilter.Host.
func (m *machine) IPSet(name string) (*netfilter.Set, bool) {
	s, ok := m.IPSets[name]
	return s, ok
}

// Recent implements netfilter.Host. A list is the machine's own from when it is first asked for.
func (m *machine) Recent(name string) (netfilter.RecentList, bool) {
	if list, ok := m.recent[name]; ok {
		return list, true
	}
	list, ok := m.RecentLists[name]
	if m.whyUnread(snapshot.RecentLists) != "" || !ok {
		m.meets(snapshot.RecentLists)
		return nil, false
	}
	if m.recent == nil {
		m.recent = map[string]netfilter.RecentList{}
	}
	m.recent[name] = list.Clone()
	return m.recent[name], true
}

// AddressType implements netfilter.Host.
func (m *machine) AddressType(a netip.Addr, link string) (netfilter.AddressType, bool) {
	if m.whyUnread(routing...) != "" {
		return netfilter.Unspec, false
	}
	if !m.isKnown(snapshot.Addresses) && !m.isKnown(snapshot.Routes) {
		switch {
		case !a.IsValid():
			return netfilter.Unspec, false
		case packet.IsRedacted(a):
			return netfilter.Unspec, false
		case a.IsLoopback() || m.FIB.HasAddress(a) != nil || packet.IsUnknown(a): // one of its own
			return netfilter.LocalAddress, true
		case a.IsMulticast():
			return netfilter.MulticastAddress, true
		}
		m.assumeMissing(snapshot.Addresses, "addresses unknown; assuming the packet's are not among them")
		return netfilter.UnicastAddress, true
	}
	t, ok := addressTypes[m.FIB.AddressType(a, link)]
	return t, ok && (!packet.IsRedacted(a) || t == netfilter.LocalAddress)
}

var addressTypes = map[string]netfilter.AddressType{
	"unicast": netfilter.UnicastAddress, "local": netfilter.LocalAddress, "broadcast": netfilter.BroadcastAddress,
	"anycast": netfilter.AnycastAddress, "multicast": netfilter.MulticastAddress, "blackhole": netfilter.BlackholeAddress,
	"unreachable": netfilter.UnreachableAddress, "prohibit": netfilter.ProhibitAddress, "none": netfilter.Unspec, "unspec": netfilter.Unspec,
}

// Route implements netfilter.Host.
func (m *machine) Route(q netfilter.RouteQuery) (netfilter.RouteAnswer, bool) {
	if q.Back && len(m.FIB.Routes) == 0 && !m.isKnown(snapshot.Routes) {
		m.assumeMissing(snapshot.Routes,
			"routes unknown; assuming replies leave by the interface that the packet came in by (rpfilter)")
		return netfilter.RouteAnswer{Type: netfilter.UnicastAddress, Back: true}, true
	}
	if !m.isKnown(snapshot.Routes) || m.whyUnread(routing...) != "" {
		return netfilter.RouteAnswer{}, false
	}
	a := m.FIB.Lookup(fib.Query{Source: q.Source, Destination: q.Destination, In: q.In, Mark: q.Mark})
	t, ok := addressTypes[a.Type]
	answer := netfilter.RouteAnswer{Type: t, Link: a.Link}
	ways := a.Ways
	if q.Destination.Is4() && a.Route != nil { // the kernel has not chosen yet
		ways = a.Route.Nexthops
	}
	for i := range ways {
		if !ways[i].Dead {
			answer.Ways = append(answer.Ways, netfilter.Option{Label: ways[i].Link, Weight: uint64(max(ways[i].Weight, 1))})
		}
	}
	return answer, ok && a.Unknown == ""
}

// Link implements netfilter.Host.
func (m *machine) Link(name string) (netfilter.Link, bool) {
	l := m.FIB.Link(name)
	if l == nil {
		return netfilter.Link{}, false
	}
	return netfilter.Link{Index: l.Index, Group: l.Group, Kind: l.Kind, Type: hardwareTypes[l.Type], Master: l.Master, MAC: l.MAC}, true
}

// hardwareTypes are the ARPHRD_… numbers (include/uapi/linux/if_arp.h).
var hardwareTypes = map[string]uint16{"ether": 1, "loopback": 772, "none": 0xfffe}
